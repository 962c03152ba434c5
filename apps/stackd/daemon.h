// mercury-stackd's control loop: the host, the programs, mercuryctl and signals on one io_context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/stackd/admin_server.h"
#include "apps/stackd/attach_server.h"
#include "apps/stackd/config.h"
#include "apps/stackd/host_builder.h"
#include "apps/stackd/socket_server.h"
#include "apps/stackd/uncut_watch.h"
#include "shim/host/notice_limit.h"

namespace mercury {

class Daemon {
 public:
  explicit Daemon(const StackdConfig& config);
  ~Daemon();
  // Starts everything; then the daemon is ready.
  Status start();
  // Until SIGTERM or SIGINT. SIGHUP, SIGUSR1 and SIGUSR2 are named in the log.
  void run();

 private:
  // Logs a line of the control plane's, of many of a kind in a short time only the first.
  void notice(NoticeKind kind, const std::string& line);
  Status serve_sockets();
  // Of the port: what peers, or this host, will suffer from.
  void warn_of_offloads();
  void watch_uncut(uint64_t now_ns);
  void watch_engines(uint64_t now_ns);
  void watch_signals();
  void watch_events();
  void attend();  // to what the engines reported, and to timers
  void schedule();
  void shut_down();

  StackdConfig config_;  // without its secrets once it has started
  boost::asio::io_context io_{1};
  BuiltHost built_;
  std::unique_ptr<AttachServer> attach_;
  std::unique_ptr<SocketManager> sockets_;
  std::unique_ptr<SocketServer> socket_server_;  // none: it serves no sockets
  std::unique_ptr<AdminServer> admin_;
  boost::asio::posix::stream_descriptor events_{io_};
  boost::asio::steady_timer timer_{io_};
  uint64_t timer_ns_ = kNever;  // when it fires
  boost::asio::signal_set signals_{io_};
  std::optional<UncutWatch> uncut_;  // of an af_packet port
  std::optional<size_t> standing_;   // the engine that stands still, as last said
  uint64_t engines_looked_ns_ = 0;
  NoticeLimit notices_;
};

}  // namespace mercury
