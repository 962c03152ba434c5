// An XDP program that is not Mercury's, for the test that it is left alone.
// clang-format off
// (The helpers need the types of the kernel headers.)
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
// clang-format on

SEC("xdp")
int foreign_pass(struct xdp_md* context) {
  (void)context;
  return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
