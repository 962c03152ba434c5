// Answers mercuryctl on a Unix stream socket beside the attach socket: one line asks, one JSON
// document answers, the connection ends.
//
// Owner/thread: the control thread, whose io_context this runs on.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/stackd/accept_pause.h"
#include "apps/stackd/attach_server.h"
#include "apps/stackd/config.h"
#include "apps/stackd/socket_server.h"
#include "shim/host/host.h"

namespace mercury {

// Where mercuryctl asks the daemon whose programs attach at `attach_socket`.
std::string admin_socket(const std::string& attach_socket);

class AdminServer {
 public:
  // Listens. Errors: kSystem.
  static Result<std::unique_ptr<AdminServer>> create(boost::asio::io_context& io,
                                                     const StackdConfig& config, Host& host,
                                                     const AttachServer& attach,
                                                     SocketServer* sockets);
  void close();

 private:
  struct Client;
  AdminServer(boost::asio::io_context& io, const StackdConfig& config, Host& host,
              const AttachServer& attach, SocketServer* sockets);
  void accept();
  using Reply = std::function<void(std::string)>;
  void answer(const std::string& question, const Reply& reply) const;
  void ping(const std::string& host, const Reply& reply) const;
  std::string status() const;
  nlohmann::json sockets() const;
  std::string jobs() const;
  std::string stats() const;

  boost::asio::io_context& io_;
  const StackdConfig& config_;
  Host& host_;
  const AttachServer& attach_;
  SocketServer* const sockets_;  // null: it serves none
  const std::string path_;
  const uint64_t started_ns_;
  const std::shared_ptr<const char> seats_ = std::make_shared<char>();  // each client has one, too
  boost::asio::local::stream_protocol::acceptor acceptor_;
  AcceptPause pause_;
};

}  // namespace mercury
