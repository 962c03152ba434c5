#include "shim/host/embedded_host.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "shim/host/random.h"
#include "transport/port/uring/uring_port.h"

namespace mercury {
namespace {

// How long a program that embeds the coordinator waits for a job that a peer asks for and that it
// has not opened yet: programs start in any order.
constexpr uint64_t kHoldUnknownNs = 60'000'000'000;
constexpr uint64_t kGoodbyeNs = 200'000'000;
// A daemon tolerates 10 ms. Where nobody tells this engine its link's rate, nothing paces it, and
// what a host sends waits before its link; a round trip has that wait in it in both directions, and
// that for a processor which the program has, too.
constexpr uint64_t kDelayTargetNs = 30'000'000;

// What the hosts of this process send over from one address: one link. A child by fork has its
// parent's map, and none of its engines.
std::shared_ptr<SharedLink> link_of(const IpAddress& address) {
  static std::mutex mutex;
  // Outlives static destruction: a context may be used until then.
  static auto& links = *new std::map<std::pair<pid_t, std::string>, std::weak_ptr<SharedLink>>();
  const std::lock_guard lock(mutex);
  std::weak_ptr<SharedLink>& known = links[{getpid(), address.to_string()}];
  std::shared_ptr<SharedLink> link = known.lock();
  if (!link) known = link = std::make_shared<SharedLink>();
  return link;
}

}  // namespace

Result<std::unique_ptr<EmbeddedHost>> EmbeddedHost::create(const Endpoint& listen,
                                                           uint64_t link_bytes_per_second,
                                                           Notice notice) {
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
  if (link_bytes_per_second > 0) config.lane.engine.link = link_of(listen.ip);
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
