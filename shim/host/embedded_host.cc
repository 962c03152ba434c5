#include "shim/host/embedded_host.h"

#include <sys/eventfd.h>

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
// A daemon tolerates 10 ms. Nobody tells this engine its link's rate, so nothing paces it, and what
// a host sends waits before its link; a round trip has that wait in it in both directions, and that
// for a processor which the program has, too.
constexpr uint64_t kDelayTargetNs = 30'000'000;

}  // namespace

Result<std::unique_ptr<EmbeddedHost>> EmbeddedHost::create(const Endpoint& listen, Notice notice) {
  auto counters = std::make_unique<Counters>();
  uring::UringConfig port_config;
  port_config.local = listen;
  Result<std::unique_ptr<uring::UringPort>> port = uring::UringPort::create(port_config, *counters);
  if (!port) return port.error();
  HostConfig config;
  config.policy.serve = false;
  config.sums_thread = true;
  config.lane.engine.session.delay_target_ns = kDelayTargetNs;
  config.policy.hold_unknown_ns = kHoldUnknownNs;
  config.notice = std::move(notice);
  std::vector<HostOf<uring::UringPort>::Part> parts;
  parts.push_back({std::move(counters), std::move(*port)});
  std::unique_ptr<EmbeddedHost> embedded(new EmbeddedHost());
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
