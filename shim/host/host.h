// A host: one control plane and one engine per NIC queue. mercury-stackd is a host, and so is an
// embedded program; the simulator has many.
//
// Owner/thread: one control thread calls everything here, except that counters may be read by any.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "shim/host/lane.h"
#include "shim/host/lane_thread.h"
#include "shim/job/job_manager.h"
#include "transport/base/memory_thread.h"

namespace mercury {

// What the control thread needs of a host, whatever its port.
class Host {
 public:
  virtual ~Host() = default;
  virtual JobManager& jobs() = 0;
  virtual size_t lane_count() const = 0;
  virtual const PortInfo& port_info(size_t lane) const = 0;
  virtual uint64_t link_bytes_per_second(size_t lane) const = 0;  // see Port
  virtual const Counters& counters(size_t lane) const = 0;
  virtual const PassTimes& passes(size_t lane) const = 0;  // none where no thread runs the engines
  // An engine whose thread stands still (lane_thread.h).
  virtual std::optional<size_t> standing_lane(uint64_t now_ns) const = 0;
  virtual void send(LaneId lane, HostCommand command) = 0;
  // Who hears of ChannelDetached and ChannelBroken: whoever attached the channels.
  using ChannelEvents = std::function<void(LaneId lane, const Event& event)>;
  virtual void set_channel_events(ChannelEvents handler) = 0;
  // Who hears of what is the sockets': by token, or a HELLO by its name. Without a handler a HELLO
  // is for a job that nobody knows.
  using SocketEvents = std::function<void(LaneId lane, SocketEvent event, uint64_t now_ns)>;
  virtual void set_socket_events(SocketEvents handler) = 0;

  // Whether the process could have all descriptors that a host takes. Asked once, before start.
  virtual Status opened() const = 0;

  // Readable when engines have reported: call process.
  virtual int event_fd() const = 0;
  // Hands the engines' reports to the control plane and runs its timers.
  virtual void process(uint64_t now_ns) = 0;
  virtual uint64_t next_deadline_ns() const = 0;
  // Commands wait for room in an engine's ring, which the next process() looks for.
  virtual bool commands_wait() const = 0;

  // Runs the engines on threads of their own, one ThreadConfig per lane.
  // An error: the system refused a thread; the host is good for nothing but to be destroyed.
  virtual Status start(const std::vector<ThreadConfig>& threads) = 0;
  // Closes all sessions, waits at most `patience_ns` for the engines, then ends their threads.
  virtual void stop(uint64_t patience_ns) = 0;
};

struct HostConfig {
  LaneConfig lane;
  JobPolicy policy;
  Notice notice;  // takes lines for the log; may be empty
  // Whether a thread beside the engines touches the memory of sums ahead, and gives it back.
  bool sums_thread = false;
};

template <Port P>
class HostOf final : public Host {
 public:
  struct Part {
    std::unique_ptr<Counters> counters;
    std::unique_ptr<P> port;
  };
  // `random` gives nonces and incarnations: the system's generator, or a seed in the simulator.
  HostOf(std::vector<Part> parts, const HostConfig& config, std::function<uint64_t()> random);
  ~HostOf() override {
    for (auto& thread : threads_) thread->abandon();
  }

  JobManager& jobs() override { return *jobs_; }
  size_t lane_count() const override { return lanes_.size(); }
  const PortInfo& port_info(size_t lane) const override { return lanes_[lane]->port().info(); }
  uint64_t link_bytes_per_second(size_t lane) const override {
    return lanes_[lane]->port().link_bytes_per_second();
  }
  const Counters& counters(size_t lane) const override { return lanes_[lane]->counters(); }
  const PassTimes& passes(size_t lane) const override { return lanes_[lane]->passes(); }
  std::optional<size_t> standing_lane(uint64_t now_ns) const override {
    for (size_t lane = 0; lane < threads_.size(); ++lane) {
      if (threads_[lane]->stands_still(now_ns)) return lane;
    }
    return std::nullopt;
  }
  Lane<P>& lane(size_t index) { return *lanes_[index]; }
  void send(LaneId lane, HostCommand command) override {
    lanes_[lane.value]->send(std::move(command));
  }

  void set_channel_events(ChannelEvents handler) override { channel_events_ = std::move(handler); }
  void set_socket_events(SocketEvents handler) override { socket_events_ = std::move(handler); }

  Status opened() const override {
    bool ok = event_fd() >= 0;
    for (const auto& lane : lanes_) ok = ok && lane->doorbell() >= 0;
    if (!ok) return Error::system(EMFILE, "cannot make an eventfd");
    return {};
  }
  int event_fd() const override { return control_.fd(); }
  void process(uint64_t now_ns) override;
  uint64_t next_deadline_ns() const override { return jobs_->next_deadline_ns(); }
  bool commands_wait() const override {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [](const auto& lane) { return lane->commands_wait(); });
  }

  Status start(const std::vector<ThreadConfig>& threads) override;
  void stop(uint64_t patience_ns) override;

 private:
  bool is_for_sockets(const HostEvent& event) const;
  void take(LaneId lane, HostEvent event, uint64_t now_ns);

  Bell control_;
  std::unique_ptr<MemoryThread> sums_thread_;  // lives longer than the engines
  std::vector<std::unique_ptr<Lane<P>>> lanes_;
  std::unique_ptr<JobManager> jobs_;
  std::vector<std::unique_ptr<LaneThread<P>>> threads_;
  ChannelEvents channel_events_;
  SocketEvents socket_events_;
  size_t stopped_lanes_ = 0;
};

// Outside of the class, so that who uses a host that is compiled once does not compile these again.
template <Port P>
HostOf<P>::HostOf(std::vector<Part> parts, const HostConfig& config,
                  std::function<uint64_t()> random) {
  JobManager::Host interface;
  LaneConfig each = config.lane;
  if (config.sums_thread) sums_thread_ = std::make_unique<MemoryThread>();
  each.exchange.sums_thread = sums_thread_.get();
  for (Part& part : parts) {
    interface.lanes.push_back(part.port->info().local);
    each.engine.session_seed = random();
    lanes_.push_back(
        std::make_unique<Lane<P>>(std::move(part.counters), std::move(part.port), each));
  }
  interface.send = [this](LaneId lane, Command command) {
    send(lane, widened<HostCommand>(std::move(command)));
  };
  interface.random = std::move(random);
  interface.notice = config.notice;
  JobPolicy policy = config.policy;
  policy.peer_timeout_ns = config.lane.engine.session.peer_timeout_ns;
  policy.wire_versions = config.lane.engine.session.versions;
  jobs_ = std::make_unique<JobManager>(std::move(interface), std::move(policy));
}

template <Port P>
void HostOf<P>::process(uint64_t now_ns) {
  control_.hear();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i]->flush();
    HostEvent event;
    while (lanes_[i]->take_event(event)) {  // NOLINT(bugprone-use-after-move): filled anew
      take(LaneId(static_cast<uint16_t>(i)), std::move(event), now_ns);
    }
  }
  if (jobs_->next_deadline_ns() <= now_ns) jobs_->on_timer(now_ns);
}

template <Port P>
Status HostOf<P>::start(const std::vector<ThreadConfig>& threads) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    threads_.push_back(std::make_unique<LaneThread<P>>(*lanes_[i], threads[i], control_));
    if (Status started = threads_.back()->start(); !started) return started;
  }
  return {};
}

template <Port P>
void HostOf<P>::stop(uint64_t patience_ns) {
  for (auto& lane : lanes_) lane->send(command::Stop{});
  const uint64_t until_ns = monotonic_ns() + patience_ns;
  while (stopped_lanes_ < lanes_.size() && monotonic_ns() < until_ns) {
    pollfd fd{event_fd(), POLLIN, 0};
    poll(&fd, 1, static_cast<int>((until_ns - monotonic_ns()) / 1'000'000 + 1));
    process(monotonic_ns());
  }
  for (auto& thread : threads_) thread->abandon();
  threads_.clear();
}

template <Port P>
bool HostOf<P>::is_for_sockets(const HostEvent& event) const {
  if (!socket_events_) return false;
  return std::visit(
      [](const auto& one) {
        using One = std::remove_cvref_t<decltype(one)>;
        if constexpr (std::is_same_v<One, event::HelloReceived>) {
          return one.body.job == kSocketService;
        } else if constexpr (requires { one.token; }) {
          return is_socket_token(one.token);
        } else {
          return !kHas<Event, One>;
        }
      },
      event);
}

template <Port P>
void HostOf<P>::take(LaneId lane, HostEvent event, uint64_t now_ns) {
  if (is_for_sockets(event)) {
    if (auto own = narrowed<SocketEvent>(std::move(event))) {
      socket_events_(lane, std::move(*own), now_ns);
    }
    return;
  }
  if (std::holds_alternative<event::Stopped>(event)) ++stopped_lanes_;
  auto own = narrowed<Event>(std::move(event));
  if (!own) return;  // of sockets, and nobody hears of them
  if (std::holds_alternative<event::ChannelDetached>(*own) ||
      std::holds_alternative<event::ChannelBroken>(*own)) {
    if (channel_events_) channel_events_(lane, *own);
  } else {
    jobs_->on_event(lane, std::move(*own), now_ns);
  }
}

}  // namespace mercury
