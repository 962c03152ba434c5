#include "tests/fuzz/cluster.h"

#include <algorithm>
#include <array>

namespace mercury {
template class Engine<fuzz::TapPort, HostServices>;
template class Lane<fuzz::TapPort>;
template class HostOf<fuzz::TapPort>;
template class sim::VirtualHost<fuzz::TapPort>;
template class sim::VirtualCluster<sim::VirtualHost<fuzz::TapPort>>;
}  // namespace mercury

namespace mercury::fuzz {
namespace {

constexpr uint32_t kMostRoundsAtOneTime = 100'000;
constexpr size_t kReportsOfOneFrame = 65'536;  // a control stream's window of empty messages

// Small enough that thousands of clusters are made in a minute.
LaneConfig small_lane() {
  LaneConfig lane;
  lane.engine.max_sessions = 64;
  lane.engine.max_in_flight_packets = 2048;
  lane.exchange.sends.scheduler = {8, 64, 1024, 4096};
  lane.exchange.sends.reserved_ranges = 128;
  return lane;
}

}  // namespace

// --- Cluster -------------------------------------------------------------------------------------

Cluster::Cluster() : cluster_({}) {
  cluster_.after_round = [this](uint32_t round) {
    after_round(round);
    return true;
  };
}

FuzzHost& Cluster::add_host(const JobPolicy& policy) {
  sim::VirtualHostConfig config;
  config.host = {small_lane(), policy};
  const uint32_t index = cluster_.add_host(config, [this](std::unique_ptr<sim::SimPort> port) {
    return std::make_unique<TapPort>(std::move(port), ear_);
  });
  must(cluster_.start(index).ok(), "a host cannot be made");
  return cluster_[index].host();
}

Endpoint Cluster::add_listener() {
  const Endpoint local{IpAddress::v4(10, 0, 0, 66), sim::kVirtualUdpPort};
  Result<std::unique_ptr<sim::SimPort>> made =
      sim::SimPort::create(network(), network().add_host(), local);
  must(made.has_value(), "a port cannot be made");
  listener_ = std::make_unique<TapPort>(std::move(*made), ear_);
  return local;
}

void Cluster::after_round(uint32_t round) {
  must(round < kMostRoundsAtOneTime, "the engines work without end");
  const auto bounded = [](FuzzHost& host) {
    return host.lane(0).engine().reports_waiting() <= kMostReports + kReportsOfOneFrame;
  };
  must(all(bounded), "an engine's reports grow without bound");
  if (listener_) {
    std::array<RxFrame, 8> burst;
    while (listener_->rx_burst(burst, now_ns()) > 0) listener_->rx_release();
  }
  if (each_pass) each_pass();
}

bool Cluster::all(bool (*holds)(FuzzHost& host)) {
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    if (!holds(cluster_[i].host())) return false;
  }
  return true;
}

bool Cluster::run(const std::function<bool()>& until, uint64_t limit_ns) {
  const uint64_t end_ns = now_ns() + limit_ns;
  if (cluster_.run(until, end_ns)) return true;
  network().advance_to(end_ns);
  return false;
}

void Cluster::run_for(uint64_t ns) {
  (void)run([] { return false; }, ns);
}

void Cluster::inject(const Endpoint& source, const Endpoint& target,
                     std::span<const std::byte> bytes, uint64_t delay_ns) {
  network().inject(source, target, bytes, delay_ns);
  last_injected_ns_ = std::max(last_injected_ns_, now_ns() + delay_ns);
}

void Cluster::must_become_empty(uint64_t limit_ns) {
  // A frame of the attacker's may be under way for longer than anybody stays. It is no leak, and
  // finds hosts that nobody uses any more.
  run_for(last_injected_ns_ - std::min(last_injected_ns_, now_ns()));
  const auto no_session = [](FuzzHost& host) { return host.lane(0).engine().session_count() == 0; };
  const auto idle = [](FuzzHost& host) { return host.jobs().idle(); };
  const auto timeless = [](FuzzHost& host) {
    return host.lane(0).engine().next_deadline_ns() == kNever && host.next_deadline_ns() == kNever;
  };
  const bool empty = run([&] { return all(no_session) && all(idle); }, limit_ns);
  must(empty || all(no_session), "a session is left");
  must(empty || all(idle), "the control plane is not idle");
  must(run([&] { return all(timeless); }, limit_ns), "a timer is left");
  run_for(kSecond);
  must(network().frames_in_use() == 0, "a frame is left");
  must(network().unmapped_reads() == 0, "a payload was sent from unmapped memory");
}

}  // namespace mercury::fuzz
