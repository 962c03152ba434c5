// Hosts on one simulated network, in virtual time, and the clock that drives them: everything that
// can happen at a moment happens, then time goes on to the next moment at which anything can. All
// is decided by the configuration. Nothing here decides what a frame does, what hosts do when they
// are visited, or what programs do on them: this is who is woken when.
//
// Shape: hosts are numbered as they were added. One thread.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

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
  // Those to which something happened, a pass of each of their engines at a time, those that worked
  // again and again, by their numbers from one on that the seed draws each time.
  kInTurns,
};

// What a cluster asks of a host; what it means, VirtualHost says.
template <class H>
concept ClusterHost = requires(H& host, uint64_t now_ns) {
  { host.start() } -> std::same_as<Status>;
  host.crash();
  { host.visit(now_ns, /*one_pass=*/true) } -> std::same_as<Visit>;
  { host.attend(now_ns) } -> std::same_as<uint64_t>;
  { host.up() } -> std::same_as<bool>;
  { host.commands_waiting() } -> std::same_as<bool>;
  { host.total(Counter::kRxFrames) } -> std::same_as<uint64_t>;
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
  uint64_t seed = 1;  // of what the hosts draw, nonces and incarnations, and of kInTurns
  Look look = Look::kEveryHost;
  // A moment that only engines' and control planes' own deadlines ask for comes so long after the
  // last one at least: an engine that found its NIC full wants to run at once, and again until it
  // has room.
  uint64_t least_pause_ns = 1;
};

template <ClusterHost H = VirtualHost<>>
class VirtualCluster {
 public:
  using Host = H;

  explicit VirtualCluster(const VirtualClusterConfig& config)
      : config_(config), network_(config.network), random_(config.seed) {}
  VirtualCluster(const VirtualCluster&) = delete;
  VirtualCluster& operator=(const VirtualCluster&) = delete;

  // What its user does at each moment; any may be empty.
  std::function<void(uint32_t host)> after_visit;  // a host has looked
  // All that were to look have, for the so many-th time at this moment, 1 first. False: that is
  // enough of it.
  std::function<bool(uint32_t round)> after_round;
  std::function<void(size_t timer)> on_timer;

  // The next number; down until start(). With the network's own link, or with these.
  uint32_t add_host(const VirtualHostConfig& host) {
    return add(network_.add_host(), host, draws());
  }
  template <class Decorate>
  uint32_t add_host(const VirtualHostConfig& host, Decorate decorate) {
    return add(network_.add_host(), host, draws(), std::move(decorate));
  }
  uint32_t add_host(const VirtualHostConfig& host, const LinkConfig& up, const LinkConfig& down) {
    return add(network_.add_host(up, down), host, draws());
  }
  // On that host, beside its other program.
  uint32_t add_beside(uint32_t other, VirtualHostConfig host) {
    host.beside = other;
    return add(hosts_[other]->id(), std::move(host), draws());
  }
  // With what the host's constructor takes behind the network, its id and its number.
  template <class... More>
  uint32_t add(HostId id, More&&... more) {
    const uint32_t index = size();
    hosts_.push_back(std::make_unique<Host>(network_, id, index, std::forward<More>(more)...));
    is_woken_.push_back(0);
    engines_.grow(size());
    controls_.grow(size());
    return index;
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
      const uint64_t next_ns = next_moment_ns();
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
    const uint64_t now_ns = network_.now_ns();
    controls_.set(index, std::max(hosts_[index]->attend(now_ns), now_ns + 1));
    if (hosts_[index]->commands_waiting()) wake(index);
  }
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
  std::function<uint64_t()> draws() {
    return [this] { return random_.next(); };
  }

  uint64_t next_moment_ns() const {
    const uint64_t now_ns = network_.now_ns();
    const uint64_t own_ns = std::min(engines_.earliest_ns(), controls_.earliest_ns());
    const uint64_t others_ns = std::min(network_.next_event_ns(), timers_.earliest_ns());
    return std::max(now_ns + 1,
                    std::min(others_ns, std::max(own_ns, now_ns + config_.least_pause_ns)));
  }
  bool everyone() const { return config_.look == Look::kEveryHost; }

  // Everything that can happen now has happened when it returns.
  void settle();
  void take_due();
  void put_in_order();
  void visit(uint32_t index);

  const VirtualClusterConfig config_;
  SimNetwork network_;
  Random random_;
  std::vector<std::unique_ptr<Host>> hosts_;
  Deadlines engines_{0}, controls_{0};  // by host
  Deadlines timers_{0};
  std::vector<uint32_t> woken_, visited_;
  std::vector<uint8_t> is_woken_;
};

template <ClusterHost H>
void VirtualCluster<H>::settle() {
  for (const SimPort* port : network_.touched()) wake(port->tag());
  network_.clear_touched();
  if (everyone()) wake_all();
  uint32_t round = 0;
  do {
    take_due();
    visited_.swap(woken_);
    put_in_order();
    for (const uint32_t host : visited_) {
      is_woken_[host] = 0;
      if (hosts_[host]->up()) visit(host);
    }
    visited_.clear();
    if (after_round && !after_round(++round)) return;
    if (everyone() && !woken_.empty()) wake_all();
  } while (!woken_.empty() || timers_.earliest_ns() <= now_ns());
}

template <ClusterHost H>
void VirtualCluster<H>::take_due() {
  const uint64_t now_ns = network_.now_ns();
  engines_.take_due(now_ns, [this](size_t host) { wake(static_cast<uint32_t>(host)); });
  controls_.take_due(now_ns, [this](size_t host) {
    if (!everyone()) attend(static_cast<uint32_t>(host));  // else it is, in its turn
  });
  timers_.take_due(now_ns, [this](size_t timer) {
    if (on_timer) on_timer(timer);
  });
}

template <ClusterHost H>
void VirtualCluster<H>::put_in_order() {
  if (config_.look == Look::kWoken) return;
  if (visited_.size() > 1) std::sort(visited_.begin(), visited_.end());
  if (config_.look != Look::kInTurns) return;
  const auto first = std::lower_bound(visited_.begin(), visited_.end(), random_.below(size()));
  std::rotate(visited_.begin(), first, visited_.end());
}

template <ClusterHost H>
void VirtualCluster<H>::visit(uint32_t index) {
  const uint64_t now_ns = network_.now_ns();
  const bool one_pass = everyone() || config_.look == Look::kInTurns;
  const Visit visit = hosts_[index]->visit(now_ns, one_pass);
  if (one_pass && visit.work > 0) wake(index);  // another pass may find more
  if (visit.reported || everyone()) attend(index);
  engines_.set(index, std::max(visit.next_ns, now_ns + 1));
  if (after_visit) after_visit(index);
}

extern template class VirtualCluster<VirtualHost<>>;

}  // namespace mercury::sim
