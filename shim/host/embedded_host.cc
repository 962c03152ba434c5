#include "shim/host/embedded_host.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "shim/host/random.h"
#include "transport/port/uring/uring_port.h"

namespace mercury {
namespace {

// How long a program that embeds the coordinator waits for a job that a peer asks for and that it
// has not opened yet: programs start in any order.
constexpr uint64_t kHoldUnknownNs = 60'000'000'000;
constexpr uint64_t kGoodbyeNs = 200'000'000;
// A daemon tolerates 10 ms. This engine has no processor of its own, so that a round trip has waits
// for one in it that no port sees; and where nobody tells the link's rate, nothing paces it, and
// what a host sends waits before its link, in both directions.
constexpr uint64_t kDelayTargetNs = 30'000'000;

// Outlives static destruction: a context may be used until then. A child by fork has a register of
// its own, as it has none of its parent's engines, and a thread of those may have held the mutex.
LinkRegister& link_register() {
  static std::atomic<LinkRegister*> own{nullptr};
  static const bool renewed = [] {
    own = new LinkRegister();
    pthread_atfork(nullptr, nullptr, [] { own = new LinkRegister(); });
    return true;
  }();
  static_cast<void>(renewed);
  return *own;
}

}  // namespace

Result<std::unique_ptr<EmbeddedHost>> EmbeddedHost::create(const Endpoint& listen,
                                                           uint64_t link_bytes_per_second,
                                                           Notice notice) {
  Result<LinkSeat> seat = link_register().join(listen.ip, link_bytes_per_second);
  if (!seat) return seat.error();
  auto counters = std::make_unique<Counters>();
  uring::UringConfig port_config;
  port_config.local = listen;
  port_config.link_bytes_per_second = link_bytes_per_second;
  Result<std::unique_ptr<uring::UringPort>> port = uring::UringPort::create(port_config, *counters);
  if (!port) return port.error();
  HostConfig config;
  config.policy.serve = false;
  config.sums_thread = true;
  config.lane.engine.session.delay_target_ns = kDelayTargetNs;
  config.lane.engine.link = seat->link();
  config.policy.hold_unknown_ns = kHoldUnknownNs;
  config.notice = std::move(notice);
  std::vector<HostOf<uring::UringPort>::Part> parts;
  parts.push_back({std::move(counters), std::move(*port)});
  std::unique_ptr<EmbeddedHost> embedded(new EmbeddedHost());
  embedded->seat_ = std::move(*seat);
  embedded->host_ =
      std::make_unique<HostOf<uring::UringPort>>(std::move(parts), config, system_random);
  if (const Status opened = embedded->host_->opened(); !opened) return opened.error();
  UniqueFd doorbell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!doorbell) return Error::system(errno, "cannot make an eventfd");
  if (Status started = embedded->host_->start({ThreadConfig{}}); !started) return started.error();
  embedded->control_ = std::make_unique<ControlThread>(*embedded->host_, std::move(doorbell));
  if (Status started = embedded->control_->start(); !started) return started.error();
  return embedded;
}

EmbeddedHost::~EmbeddedHost() {
  control_.reset();
  if (host_) host_->stop(kGoodbyeNs);
}

}  // namespace mercury
