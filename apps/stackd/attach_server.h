// Accepts programs on the attach socket and serves each until its connection or its process ends.
//
// Owner/thread: the control thread, whose io_context this runs on.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/stackd/config.h"
#include "apps/stackd/program.h"
#include "apps/stackd/program_socket.h"
#include "transport/base/memory_thread.h"

namespace mercury {

class AttachServer {
 public:
  struct Hooks {
    std::function<void()> asked;  // a request, or a program that went, may have set a deadline
    // Takes a line for the log. Programs cause them as fast as they connect: it limits their
    // number.
    std::function<void(const std::string& line)> notice;
  };
  // Listens. Errors: kExists (another daemon), kPermission, kConfig (no such group).
  static Result<std::unique_ptr<AttachServer>> create(boost::asio::io_context& io,
                                                      const StackdConfig& config, Host& host,
                                                      Hooks hooks);
  ~AttachServer();
  AttachServer(const AttachServer&) = delete;
  AttachServer& operator=(const AttachServer&) = delete;

  size_t program_count() const { return connections_.size(); }
  // What is kept for programs, those included that have gone while engines still use it.
  struct Held {
    size_t leaving = 0;  // programs that have gone
    size_t regions = 0;
    uint64_t shared_bytes = 0;  // until the kernel has it back
  };
  Held held() const;
  void engines_go_on();  // Program's, of all
  // No more programs; those attached see the connection end.
  void close();

 private:
  struct Connection {
    explicit Connection(boost::asio::io_context& io) : socket(io), process(io) {}
    boost::asio::posix::stream_descriptor socket;
    boost::asio::posix::stream_descriptor process;  // its pidfd; closed if there is none
    std::shared_ptr<Program> program;
    std::deque<std::vector<std::byte>> unsent;  // replies that found the socket full
    bool writing = false;
    uint32_t unread_memory = 0;  // replies with memory, at most, that are not read
  };
  // A program that is one too many, until it has said HELLO and can be told so.
  struct Refusal {
    explicit Refusal(boost::asio::io_context& io) : socket(io), deadline(io) {}
    boost::asio::posix::stream_descriptor socket;
    boost::asio::steady_timer deadline;
  };
  using Connections = std::map<ClientId, std::unique_ptr<Connection>>;

  AttachServer(boost::asio::io_context& io, const StackdConfig& config, Host& host, Hooks hooks);
  void add(UniqueFd socket);
  uint64_t memory_left() const;  // of attach.total_memory
  bool reads_replies(ClientId id);
  void say_once_swappable(const Error& why);
  void refuse(UniqueFd socket);
  void answer_refused(int socket) const;
  void watch_process(ClientId id);
  void read(ClientId id);
  void on_readable(ClientId id);
  void send(ClientId id, const attach::ReplyMessage& message, std::span<const int> descriptors);
  void write(ClientId id);
  void disconnect(ClientId id);
  void on_channel_event(const Event& event);

  boost::asio::io_context& io_;
  const StackdConfig& config_;
  Host& host_;
  const Hooks hooks_;
  const std::shared_ptr<MemoryThread> regions_thread_ = std::make_shared<MemoryThread>();
  const std::shared_ptr<std::atomic<uint64_t>> unmapping_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  ProgramSocket listener_;
  Connections connections_;
  std::map<ClientId, std::shared_ptr<Program>> leaving_;  // gone, but not let go by the engines
  ClientId next_id_ = 1;
  size_t refusals_ = 0;  // that wait for their HELLO
  bool said_swappable_ = false;
};

}  // namespace mercury
