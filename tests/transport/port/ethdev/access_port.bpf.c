// The port of a switch at which hosts send and receive with the tag of VLAN 5, and behind which
// nobody has tags: the kernel's own ways to take one off and to put one on.
// clang-format off
// (The helpers need the types of the kernel headers.)
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
// clang-format on

#define VLAN 5

SEC("from_host")
int take_tag(struct __sk_buff* frame) {
  if (!frame->vlan_present || (frame->vlan_tci & 0xfff) != VLAN) return TC_ACT_SHOT;
  return bpf_skb_vlan_pop(frame) == 0 ? TC_ACT_OK : TC_ACT_SHOT;
}

SEC("to_host")
int put_tag(struct __sk_buff* frame) {
  return bpf_skb_vlan_push(frame, bpf_htons(ETH_P_8021Q), VLAN) == 0 ? TC_ACT_OK : TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
