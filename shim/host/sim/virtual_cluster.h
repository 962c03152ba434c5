// Hosts on one simulated network, in virtual time, and the clock that drives them: everything that
// can happen at a moment happens, then time goes on to the next moment at which anything can. All
// is decided by the configuration. Nothing here decides what a frame does, or what programs do on
// the hosts: this is who is woken when.
//
// Processor time does not pass while an engine works, unless frames are given a cost (processor.h).
//
// Shape: hosts are numbered as they were added. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "shim/host/sim/processor.h"
#include "shim/host/sim/virtual_host.h"
#include "transport/base/deadlines.h"
#include "transport/base/random.h"

namespace mercury::sim {

// Which hosts look whether there is something to do, and how much of it they do before the next.
enum class Look : uint8_t {
  // Every host at every moment, in the order of their numbers, a pass of each of its engines at a
  // time, until no engine has work. Nobody needs to be woken.
  kEveryHost,
  // Those to which something happened (a frame, room in a NIC, a deadline, wake()), in that order,
  // each until its engines have nothing more to do: for thousands of hosts, of which most are idle.
  kWoken,
  // The same, in the order of their numbers.
  kWokenByNumber,
};

struct VirtualClusterConfig {
  // One seed for links and hosts.
  static VirtualClusterConfig seeded(uint64_t seed, Look look) {
    VirtualClusterConfig config;
    config.network.seed = config.seed = seed;
    config.look = look;
    return config;
  }

  NetworkConfig network;
  uint64_t seed = 1;  // of what the hosts draw: nonces, incarnations
  Look look = Look::kEveryHost;
  // At least so long after a moment an engine's or a control plane's own deadline comes: one that
  // found its NIC full wants to run at once, and again until it has room.
  uint64_t least_pause_ns = 1;
  uint64_t frame_cost_ns = 0;  // of an engine's time, for each frame received or sent
};

template <Port P = SimPort>
class VirtualCluster {
 public:
  using Host = VirtualHost<P>;

  explicit VirtualCluster(const VirtualClusterConfig& config)
      : config_(config), network_(config.network), random_(config.seed) {}
  VirtualCluster(const VirtualCluster&) = delete;
  VirtualCluster& operator=(const VirtualCluster&) = delete;

  // What its user does at each moment; any may be empty.
  std::function<void(uint32_t host)> after_visit;  // a host has looked
  std::function<void()> after_round;               // all that were to look have
  std::function<void(size_t timer)> on_timer;

  // The next number; down until start(). With the network's own link, or with these.
  uint32_t add_host(const VirtualHostConfig& host, typename Host::Decorate decorate = {}) {
    return add_host(network_.add_host(), host, std::move(decorate));
  }
  uint32_t add_host(const VirtualHostConfig& host, const LinkConfig& up, const LinkConfig& down) {
    return add_host(network_.add_host(up, down), host, {});
  }
  // Errors: see VirtualHost.
  Status start(uint32_t index) {
    Status started = hosts_[index]->start();
    if (started) attend(index);
    return started;
  }
  void crash(uint32_t index) {
    hosts_[index]->crash();
    engines_.set(index, kNever);
    controls_.set(index, kNever);
  }

  // Runs until `until()` holds, which is asked after each moment. False: it does not hold, and
  // nothing more happens, or not until after `end_ns`.
  template <class Until>
  bool run(Until until, uint64_t end_ns = kNever) {
    for (settle(); !until(); settle()) {
      const uint64_t next_ns = std::max(next_moment_ns(), now_ns() + 1);
      if (next_ns == kNever || next_ns > end_ns) return false;
      network_.advance_to(next_ns);
    }
    return true;
  }
  // It looks at this moment, or at the one that is to come: something was submitted to its engines.
  void wake(uint32_t host) {
    if (is_woken_[host]) return;
    is_woken_[host] = 1;
    woken_.push_back(host);
  }
  void wake_all() {
    for (uint32_t host = 0; host < size(); ++host) wake(host);
  }
  // Somebody has called the control plane of a host from outside.
  void called(uint32_t host) {
    if (!everyone()) attend(host);  // else it is, at this moment
  }
  // The control plane of a host that is up hears what its engines reported, and what time it is.
  void attend(uint32_t index) {
    Host& host = *hosts_[index];
    if (deaf_until_ns_[index] > now_ns()) {
      controls_.set(index, deaf_until_ns_[index]);
    } else {
      host.host().process(now_ns());
      controls_.set(index, after_pause(host.host().next_deadline_ns()));
    }
    for (size_t lane = 0; lane < host.lanes(); ++lane) {
      if (host.lane(lane).engine().commands_waiting()) wake(index);
    }
  }
  // Until then its control plane does nothing; its engines go on.
  void deafen(uint32_t host, uint64_t until_ns) { deaf_until_ns_[host] = until_ns; }
  // `on_timer` is called at `ns`; kNever: not at all.
  void set_timer(size_t timer, uint64_t ns) {
    timers_.grow(timer + 1);
    timers_.set(timer, ns);
  }

  uint32_t size() const { return static_cast<uint32_t>(hosts_.size()); }
  Host& operator[](uint32_t index) { return *hosts_[index]; }
  const Host& operator[](uint32_t index) const { return *hosts_[index]; }
  SimNetwork& network() { return network_; }
  const SimNetwork& network() const { return network_; }
  Random& random() { return random_; }
  uint64_t now_ns() const { return network_.now_ns(); }
  // Over all engines that are up.
  uint64_t total(Counter counter) const {
    uint64_t sum = 0;
    for (const auto& host : hosts_) sum += host->total(counter);
    return sum;
  }

 private:
  uint32_t add_host(HostId id, const VirtualHostConfig& config, typename Host::Decorate decorate) {
    const uint32_t index = size();
    hosts_.push_back(std::make_unique<Host>(
        network_, id, index, config, [this] { return random_.next(); }, std::move(decorate)));
    processors_.emplace_back(config.lanes, Processor(config_.frame_cost_ns));
    deaf_until_ns_.push_back(0);
    is_woken_.push_back(0);
    engines_.grow(size());
    controls_.grow(size());
    return index;
  }

  uint64_t next_moment_ns() const { return std::min(network_.next_event_ns(), next_deadline_ns()); }
  uint64_t next_deadline_ns() const {
    return std::min({engines_.earliest_ns(), controls_.earliest_ns(), timers_.earliest_ns()});
  }
  uint64_t after_pause(uint64_t ns) const {
    return std::max(ns, now_ns() + config_.least_pause_ns);
  }
  bool everyone() const { return config_.look == Look::kEveryHost; }

  // Everything that can happen now has happened when it returns.
  void settle() {
    for (const SimPort* port : network_.touched()) wake(port->tag());
    network_.clear_touched();
    if (everyone()) wake_all();
    do {
      take_due();
      visited_.swap(woken_);
      if (config_.look != Look::kWoken) std::sort(visited_.begin(), visited_.end());
      worked_ = false;
      for (const uint32_t host : visited_) {
        is_woken_[host] = 0;
        if (hosts_[host]->up()) visit(host);
      }
      visited_.clear();
      if (after_round) after_round();
      if (everyone() && worked_) wake_all();
    } while (!woken_.empty() || next_deadline_ns() <= now_ns());
  }

  void take_due() {
    engines_.take_due(now_ns(), [this](size_t host) { wake(static_cast<uint32_t>(host)); });
    controls_.take_due(now_ns(), [this](size_t host) {
      if (!everyone()) attend(static_cast<uint32_t>(host));  // else it is, in its turn
    });
    timers_.take_due(now_ns(), [this](size_t timer) {
      if (on_timer) on_timer(timer);
    });
  }

  void visit(uint32_t index) {
    Host& host = *hosts_[index];
    bool reported = everyone();
    uint64_t next_ns = kNever;
    for (size_t lane = 0; lane < host.lanes(); ++lane) {
      next_ns = std::min(next_ns,
                         run(host.lane(lane), host.port(lane), processors_[index][lane], reported));
    }
    if (reported) attend(index);
    engines_.set(index, after_pause(next_ns));
    if (after_visit) after_visit(index);
  }

  // Returns when the engine has to run next, unless it is woken.
  uint64_t run(Lane<P>& lane, const SimPort& port, Processor& processor, bool& reported) {
    const uint32_t burst = frames_per_pass(kBurst, port.info().max_udp_payload);
    bool more = true;
    while (more && processor.may_work(now_ns(), port.rx_waiting_frames(), burst)) {
      reported = reported || lane.engine().commands_waiting();
      more = pass(lane, port, processor) && !everyone();
    }
    reported = lane.engine().take_reported() || reported;
    return more ? processor.free_ns() : lane.engine().next_deadline_ns();
  }

  // Whether there may be more to do at once: a pass that did less than any of its limits has left
  // nothing.
  bool pass(Lane<P>& lane, const SimPort& port, Processor& processor) {
    const Counters& counters = lane.counters();
    const auto frames = [&counters] {
      return counters.get(Counter::kRxFrames) + counters.get(Counter::kTxFrames);
    };
    const uint64_t before = frames();
    const uint32_t work = lane.poll(now_ns());
    worked_ = worked_ || work > 0;
    processor.worked(now_ns(), frames() - before);
    return work >= kLeastBurst || port.rx_waiting();
  }

  const VirtualClusterConfig config_;
  SimNetwork network_;
  Random random_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::vector<Processor>> processors_;  // by host and lane
  std::vector<uint64_t> deaf_until_ns_;
  Deadlines engines_{0}, controls_{0};  // by host
  Deadlines timers_{0};
  std::vector<uint32_t> woken_, visited_;
  std::vector<uint8_t> is_woken_;
  bool worked_ = false;  // in this round, an engine
};

}  // namespace mercury::sim
