// Answers what programs ask for their sockets (shim/socket/request.h), and does on this host what
// the control plane of sockets asks for: knocks at listeners, tells which addresses are its own.
//
// Owner/thread: the control thread, whose io_context this runs on.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "apps/stackd/config.h"
#include "apps/stackd/knocks.h"
#include "apps/stackd/local_addresses.h"
#include "apps/stackd/program_socket.h"
#include "shim/socket/control/socket_manager.h"

namespace mercury {

class SocketServer {
 public:
  struct Hooks {
    // Hands what engines have reported to the control plane: before it is asked why a connection
    // has ended, which its program may see before the report is read.
    std::function<void()> catch_up;
    std::function<void()> asked;  // a request may have set a deadline
    // Takes a line for the log. Programs cause them as fast as they connect: it limits their
    // number.
    std::function<void(const std::string& line)> notice;
  };
  // Listens, and serves `sockets` until close(). Errors: as ProgramSocket::listen().
  static Result<std::unique_ptr<SocketServer>> create(boost::asio::io_context& io,
                                                      const StackdConfig& config,
                                                      SocketManager& sockets, Hooks hooks);
  ~SocketServer();  // NOLINT(bugprone-exception-escape): see there
  SocketServer(const SocketServer&) = delete;
  SocketServer& operator=(const SocketServer&) = delete;

  size_t program_count() const { return programs_.size(); }
  SocketManager::Snapshot snapshot() const { return sockets_.snapshot(); }
  // As SocketManager::ping, now.
  void ping(const IpAddress& host, SocketManager::PingAnswer answer);
  // No more programs; those that are there see the connection end.
  void close();

 private:
  struct Caller {
    explicit Caller(boost::asio::io_context& io) : socket(io) {}
    boost::asio::posix::stream_descriptor socket;
    bool waits = false;      // for the reply to its request
    bool elsewhere = false;  // in another network namespace, whose addresses are not this host's
  };

  SocketServer(boost::asio::io_context& io, const StackdConfig& config, SocketManager& sockets,
               Hooks hooks);
  SocketManager::Local local();
  void add(UniqueFd socket);
  void read(SocketProgram id);
  void on_readable(SocketProgram id);
  void serve(SocketProgram id, const sockets::Request& request);
  void reply(SocketProgram id, const sockets::Reply& reply, const UniqueFd& end);
  void disconnect(SocketProgram id);

  boost::asio::io_context& io_;
  const StackdConfig& config_;
  SocketManager& sockets_;
  const Hooks hooks_;
  const uint64_t most_programs_;
  LocalAddresses addresses_;
  Knocks knocks_;
  ProgramSocket listener_;
  std::map<SocketProgram, std::unique_ptr<Caller>> programs_;
  SocketProgram last_id_ = 0;
};

}  // namespace mercury
