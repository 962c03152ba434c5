// Sends Mercury's frames to its AF_XDP sockets and everything else to the kernel, so that ping, ssh
// and ARP go on working on an interface that both use.
//
// Compiled for the kernel's virtual machine and embedded into the library; steer.cc writes the port
// range into `steer_ports` before the driver loads it. The name of the function is how a leftover
// of a killed process is recognised (steer.h).
// clang-format off
// (The helpers need the types of the kernel headers.)
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
// clang-format on

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, 64);  // receive queues of the interface
  __uint(key_size, 4);
  __uint(value_size, 4);
} xsks_map SEC(".maps");  // the driver looks for this name

// The marker is what steer.cc searches for in the object file.
const volatile struct {
  char marker[8];
  __u32 first;
  __u32 count;
} steer_ports = {"MERCURY", 0, 0};

SEC("xdp")
int mercury_steer(struct xdp_md* context) {
  const void* end = (const void*)(long)context->data_end;
  const struct ethhdr* ether = (const void*)(long)context->data;
  const struct udphdr* udp = 0;
  if ((const void*)(ether + 1) > end) return XDP_PASS;
  if (ether->h_proto == bpf_htons(ETH_P_IP)) {
    const struct iphdr* ip = (const void*)(ether + 1);
    if ((const void*)(ip + 1) > end) return XDP_PASS;
    const int fragment = ip->frag_off & bpf_htons(0x3fff);
    if (ip->ihl != 5 || fragment || ip->protocol != IPPROTO_UDP) return XDP_PASS;
    udp = (const void*)(ip + 1);
  } else if (ether->h_proto == bpf_htons(ETH_P_IPV6)) {
    const struct ipv6hdr* ip = (const void*)(ether + 1);
    if ((const void*)(ip + 1) > end || ip->nexthdr != IPPROTO_UDP) return XDP_PASS;
    udp = (const void*)(ip + 1);
  } else {
    return XDP_PASS;
  }
  if ((const void*)(udp + 1) > end) return XDP_PASS;
  if ((__u32)bpf_ntohs(udp->dest) - steer_ports.first >= steer_ports.count) return XDP_PASS;
  // A queue without a socket of ours: the kernel drops the frame at its reserved UDP port.
  return bpf_redirect_map(&xsks_map, context->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
