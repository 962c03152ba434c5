#include "apps/stackd/daemon.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "apps/stackd/ports.h"
#include "apps/stackd/reset_key.h"
#include "shim/host/random.h"

namespace mercury {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

// Peers are told that the host stops; beyond this they find out by themselves.
constexpr uint64_t kGoodbyeNs = 500'000'000;
// Whoever may have moved a timer says so; nothing is later than this all the same.
constexpr uint64_t kLongestWaitNs = 1'000'000'000;
// Commands that found an engine's ring full.
constexpr uint64_t kBetweenTriesNs = 10'000'000;

}  // namespace

Daemon::Daemon(const StackdConfig& config) : config_(config) {}

Daemon::~Daemon() {
  // The host's descriptor is not the daemon's to close.
  if (events_.is_open()) events_.release();
}

Status Daemon::start() {
  Result<BuiltHost> built =
      build_host(config_, [this](NoticeKind kind, const std::string& line) { notice(kind, line); });
  if (!built) return built.error();
  built_ = std::move(*built);
  Result<std::unique_ptr<AttachServer>> attach = AttachServer::create(
      io_, config_, *built_.host,
      {[this] { schedule(); },
       [this](const std::string& line) { notice(NoticeKind::kRefusal, line); }});
  if (!attach) return attach.error();
  attach_ = std::move(*attach);
  if (Status kept = keep_reset_key(reset_key_path(config_.socket), built_.reset_key); !kept) {
    return kept;
  }
  if (Status served = serve_sockets(); !served) return served;
  wipe_secrets(config_);
  Result<std::unique_ptr<AdminServer>> admin =
      AdminServer::create(io_, config_, *built_.host, *attach_, socket_server_.get());
  if (!admin) return admin.error();
  admin_ = std::move(*admin);
  if (Status started = built_.host->start(built_.threads); !started) return started;
  events_.assign(built_.host->event_fd());
  watch_events();
  schedule();
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) signals_.add(signal);
  watch_signals();
  for (size_t lane = 0; lane < built_.host->lane_count(); ++lane) {
    const PortInfo& port = built_.host->port_info(lane);
    spdlog::info("engine {} on {} at {}, {} bytes of UDP payload", lane, port.name,
                 port.local.to_string(), port.max_udp_payload);
  }
  warn_of_offloads();
  return {};
}

Status Daemon::serve_sockets() {
  if (!config_.sockets_serve) return {};
  if (!speaks_to_others(config_)) {
    spdlog::info(
        "sockets between programs of this host alone: no sockets.secret, and sockets.open is "
        "false");
  }
  SocketManager::Host host;
  for (size_t lane = 0; lane < built_.host->lane_count(); ++lane) {
    host.lanes.push_back(built_.host->port_info(lane).local);
  }
  host.send = [this](LaneId lane, SocketCommand command) {
    built_.host->send(lane, widened<HostCommand>(std::move(command)));
    if (built_.host->commands_wait()) schedule();
  };
  host.random = system_random;
  sockets_ = std::make_unique<SocketManager>(std::move(host), socket_policy(config_));
  Result<std::unique_ptr<SocketServer>> server = SocketServer::create(
      io_, config_, *sockets_,
      {[this] { built_.host->process(monotonic_ns()); }, [this] { schedule(); },
       [this](const std::string& line) { notice(NoticeKind::kRefusal, line); }});
  if (!server) return server.error();
  socket_server_ = std::move(*server);
  // By the clock, not by when this pass over events began: an engine may answer within it, and a
  // ping says how long that took.
  built_.host->set_socket_events([this](LaneId lane, SocketEvent event, uint64_t) {
    sockets_->on_event(lane, std::move(event), monotonic_ns());
  });
  return {};
}

void Daemon::run() { io_.run(); }

void Daemon::notice(NoticeKind kind, const std::string& line) {
  const auto level = kind == NoticeKind::kJob ? spdlog::level::info : spdlog::level::warn;
  notices_.pass(kind, line, monotonic_ns(),
                [level](const std::string& passed) { spdlog::log(level, "{}", passed); });
}

void Daemon::warn_of_offloads() {
  const PortRow& port = port_of(config_);
  const std::optional<ethdev::Check> check = port.check_offload(config_);
  const bool bad = check && !check->fix.empty();
  if (bad) spdlog::warn("{}; run: {}", check->message, check->fix);
  if (const std::string interface = port.drops_uncut_of(config_); !interface.empty()) {
    uncut_.emplace(interface, bad);
  }
}

void Daemon::watch_uncut(uint64_t now_ns) {
  if (!uncut_) return;
  uint64_t dropped = 0;
  for (size_t lane = 0; lane < built_.host->lane_count(); ++lane) {
    const Counters& counters = built_.host->counters(lane);
    dropped += counters.get(Counter::kDropBadIp) + counters.get(Counter::kDropLength);
  }
  if (const auto line = uncut_->look(now_ns, dropped)) spdlog::warn("{}", *line);
}

void Daemon::watch_engines(uint64_t now_ns) {
  // Where this thread has stood, too, the engines have had no time to begin a pass.
  const uint64_t looked_ns = std::exchange(engines_looked_ns_, now_ns);
  if (now_ns - looked_ns > 2 * kLongestWaitNs) return;
  const std::optional<size_t> standing = built_.host->standing_lane(now_ns);
  if (!standing) attach_->engines_go_on();
  if (standing == std::exchange(standing_, standing)) return;
  if (standing) {
    spdlog::error(
        "engine {} stands still: its thread has begun no pass for {} s (cat /proc/{}/task/*/stack "
        "shows where it is)",
        *standing, kStandstillNs / 1'000'000'000, getpid());
  } else {
    spdlog::info("no engine stands still any more");
  }
}

void Daemon::watch_signals() {
  signals_.async_wait([this](const error_code& error, int signal) {
    if (error) return;
    if (signal == SIGTERM || signal == SIGINT) {
      spdlog::info("signal {}: stopping", signal);
      return shut_down();
    }
    // Jobs on this host, and their peers, know nothing of who sent it.
    if (signal == SIGHUP) {
      spdlog::warn("SIGHUP: configuration is read at start only; restart to apply");
    } else {
      spdlog::warn("signal {} has no meaning here; SIGTERM stops", signal);
    }
    watch_signals();
  });
}

void Daemon::watch_events() {
  events_.async_wait(stream_descriptor::wait_read, [this](const error_code& error) {
    if (error) return;
    attend();
    watch_events();
  });
}

void Daemon::attend() {
  const uint64_t now_ns = monotonic_ns();
  built_.host->process(now_ns);
  if (sockets_ && sockets_->next_deadline_ns() <= now_ns) sockets_->on_timer(now_ns);
  watch_uncut(now_ns);
  watch_engines(now_ns);
  schedule();
}

void Daemon::schedule() {
  const uint64_t now_ns = monotonic_ns();
  uint64_t deadline_ns = std::max(built_.host->next_deadline_ns(), now_ns);
  if (sockets_) deadline_ns = std::min(deadline_ns, std::max(sockets_->next_deadline_ns(), now_ns));
  const uint64_t most_ns = built_.host->commands_wait() ? kBetweenTriesNs : kLongestWaitNs;
  const uint64_t wait_ns = std::min(deadline_ns - now_ns, most_ns);
  // What fires no later looks again then: each request of a program comes by here.
  if (timer_ns_ <= now_ns + wait_ns) return;
  timer_ns_ = now_ns + wait_ns;
  timer_.expires_after(std::chrono::nanoseconds(wait_ns));
  timer_.async_wait([this](const error_code& error) {
    if (error) return;  // superseded
    timer_ns_ = kNever;
    attend();
  });
}

void Daemon::shut_down() {
  admin_->close();
  if (socket_server_) socket_server_->close();
  built_.host->jobs().host_ends();
  attach_->close();
  built_.host->stop(kGoodbyeNs);
  io_.stop();
}

}  // namespace mercury
