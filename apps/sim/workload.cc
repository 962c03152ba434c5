#include "apps/sim/workload.h"

#include "aggregator/frame/contributors.h"
#include "scheduler/plan/plan.h"
#include "transport/wire/header.h"

namespace mercury::simulator {
namespace {

constexpr uint32_t kEthernetBytes = 8 + 14 + 4 + 12;
constexpr uint32_t kIpv4Bytes = 20, kIpv6Bytes = 40, kUdpBytes = 8;

double seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

Framing framing_of(const SimOptions& options) {
  const uint32_t headers = (options.ipv6 ? kIpv6Bytes : kIpv4Bytes) + kUdpBytes +
                           static_cast<uint32_t>(sizeof(wire::DatagramHeader));
  const uint32_t beside = contributor_room(options.workers, /*quorum=*/0);
  return {options.mtu - headers - beside, headers + kEthernetBytes};
}

uint64_t frames_of(const TraceTensor& tensor, const Framing& framing) {
  const uint32_t elems =
      chunk_elems(framing.payload_bytes, static_cast<uint32_t>(size_of(tensor.dtype)));
  return chunk_count(tensor.numel, elems);
}

model::Chain chain_of(const Trace& trace, const Framing& framing) {
  model::Chain chain;
  for (const TraceTensor& tensor : trace.tensors) {
    const uint64_t framed = tensor.bytes() + frames_of(tensor, framing) * framing.overhead_bytes;
    chain.push_back({seconds(tensor.forward_ns), seconds(tensor.backward_ns),
                     seconds(tensor.update_ns), tensor.bytes(), static_cast<double>(framed),
                     tensor.priority});
  }
  return chain;
}

model::Chain without_framing(model::Chain chain) {
  for (model::Layer& layer : chain) layer.wire_bytes = static_cast<double>(layer.bytes);
  return chain;
}

model::Cluster cluster_of(const SimOptions& options) {
  const auto rate = [](uint64_t bps) { return static_cast<double>(bps); };
  return {options.workers,
          options.servers,
          rate(options.worker_up_bps),
          rate(options.worker_down_bps),
          rate(options.server_up_bps),
          rate(options.server_down_bps)};
}

}  // namespace mercury::simulator
