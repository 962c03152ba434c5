#include "transport/port/sim/fault_schedule.h"

#include <algorithm>

namespace mercury::sim {
namespace {

bool active(const NetworkFault& fault, uint64_t now_ns) {
  return fault.from_ns <= now_ns && now_ns < fault.until_ns;
}

uint64_t half_period_ns(const NetworkFault& fault) {
  return std::max<uint64_t>(fault.period_ns / 2, 1);
}

bool link_is_down(const NetworkFault& fault, uint64_t now_ns) {
  return (now_ns - fault.from_ns) / half_period_ns(fault) % 2 == 0;
}

// When the fault next changes something after `now_ns`.
uint64_t next_change_ns(const NetworkFault& fault, uint64_t now_ns) {
  if (now_ns < fault.from_ns) return fault.from_ns;
  if (now_ns >= fault.until_ns) return kNever;
  if (fault.kind != NetworkFaultKind::kFlap) return fault.until_ns;
  const uint64_t half_ns = half_period_ns(fault);
  const uint64_t turns = (now_ns - fault.from_ns) / half_ns + 1;
  return std::min(fault.until_ns, fault.from_ns + turns * half_ns);
}

double either(double one, double other) { return 1 - (1 - one) * (1 - other); }

void worsen(Faults& faults, const Faults& by) {
  faults.loss = either(faults.loss, by.loss);
  if (by.burst_start > 0) {
    faults.burst_frames = by.burst_frames;
    faults.burst_most_ns = by.burst_most_ns;
  }
  faults.burst_start = either(faults.burst_start, by.burst_start);
  faults.duplicate = either(faults.duplicate, by.duplicate);
  if (by.reorder > 0) {
    faults.reorder_delay_ns = std::max(faults.reorder_delay_ns, by.reorder_delay_ns);
  }
  faults.reorder = either(faults.reorder, by.reorder);
  faults.corrupt = either(faults.corrupt, by.corrupt);
  faults.jitter_ns += by.jitter_ns;
}

}  // namespace

FaultSchedule::FaultSchedule(SimNetwork& network, uint32_t hosts) : network_(network) {
  for (uint32_t host = 0; host < hosts; ++host) {
    base_.push_back({network.config(network.uplink(HostId(host))),
                     network.config(network.downlink(HostId(host)))});
  }
}

void FaultSchedule::apply(uint64_t now_ns) {
  network_.heal();
  next_ns_ = kNever;
  for (const NetworkFault& fault : faults_) {
    next_ns_ = std::min(next_ns_, next_change_ns(fault, now_ns));
    if (active(fault, now_ns)) block(fault);
  }
  for (uint32_t host = 0; host < base_.size(); ++host) apply_to_links(now_ns, host);
}

void FaultSchedule::block(const NetworkFault& fault) {
  if (fault.kind != NetworkFaultKind::kPartition && fault.kind != NetworkFaultKind::kOneWay) return;
  for (uint32_t other = 0; other < base_.size(); ++other) {
    if (other == fault.host) continue;
    if (fault.other != NetworkFault::kEveryone && fault.other != other) continue;
    network_.block(HostId(fault.host), HostId(other));
    if (fault.kind == NetworkFaultKind::kPartition) {
      network_.block(HostId(other), HostId(fault.host));
    }
  }
}

void FaultSchedule::apply_to_links(uint64_t now_ns, uint32_t host) {
  LinkConfig up = base_[host].up;
  LinkConfig down = base_[host].down;
  bool is_up = true;
  for (const NetworkFault& fault : faults_) {
    if (!active(fault, now_ns)) continue;
    if (fault.host != host && fault.host != NetworkFault::kEveryone) continue;
    switch (fault.kind) {
      case NetworkFaultKind::kFlap:
        if (link_is_down(fault, now_ns)) is_up = false;
        break;
      case NetworkFaultKind::kBlackHole:
        up.faults.vanish_above_bytes = std::min(up.faults.vanish_above_bytes, fault.mtu_bytes);
        down.faults.vanish_above_bytes = std::min(down.faults.vanish_above_bytes, fault.mtu_bytes);
        break;
      case NetworkFaultKind::kWeather:
        worsen(up.faults, fault.faults);
        worsen(down.faults, fault.faults);
        break;
      case NetworkFaultKind::kPartition:
      case NetworkFaultKind::kOneWay:
        break;
    }
  }
  const LinkId up_link = network_.uplink(HostId(host));
  const LinkId down_link = network_.downlink(HostId(host));
  network_.set_config(up_link, up);
  network_.set_config(down_link, down);
  network_.set_up(up_link, is_up);
  network_.set_up(down_link, is_up);
}

}  // namespace mercury::sim
