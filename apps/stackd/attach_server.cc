#include "apps/stackd/attach_server.h"

#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>
#include <string>
#include <utility>

#include "apps/stackd/memory_limits.h"
#include "shim/channel/seqpacket.h"

namespace mercury {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

// A program that leaves so many replies unread is disconnected.
constexpr size_t kMostUnsent = 256;
// Before a program that leaves as much unread gets memory, with which a descriptor comes.
constexpr uint32_t kMostUnreadMemory = 4;
constexpr int kMostUnreadBytes = 64 * 1024;
// Programs that are refused hold a descriptor until they say HELLO: so many, for so long.
constexpr size_t kMostRefusals = 32;
constexpr std::chrono::seconds kRefusalTime{1};

// The process that connected, or nothing: it has died already, another pid namespace hides it, or
// there is no descriptor left. Only its connection tells of its end then.
//
// Its number could by now be another process's, if it died since it connected. Without a child that
// holds it the connection has ended, too. With one it cannot be used any more (a forked child's
// calls are refused), so nobody is wronged when it ends with that stranger.
UniqueFd process_of(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0) return {};
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
}

std::string name_of(ClientId id) { return "program " + std::to_string(id); }

}  // namespace

AttachServer::AttachServer(boost::asio::io_context& io, const StackdConfig& config, Host& host,
                           Hooks hooks)
    : io_(io),
      config_(config),
      host_(host),
      hooks_(std::move(hooks)),
      listener_(io, config.socket) {
  host_.set_channel_events([this](LaneId, const Event& event) { on_channel_event(event); });
}

AttachServer::~AttachServer() { host_.set_channel_events({}); }

Result<std::unique_ptr<AttachServer>> AttachServer::create(boost::asio::io_context& io,
                                                           const StackdConfig& config, Host& host,
                                                           Hooks hooks) {
  std::unique_ptr<AttachServer> server(new AttachServer(io, config, host, std::move(hooks)));
  AttachServer* const own = server.get();
  Status listens = own->listener_.listen(config, [own](UniqueFd fd) { own->add(std::move(fd)); });
  if (!listens) return listens.error();
  return server;
}

void AttachServer::add(UniqueFd socket) {
  if (connections_.size() + leaving_.size() >= config_.max_programs) {
    hooks_.notice("attach.max_programs = " + std::to_string(config_.max_programs) +
                  " programs are attached; one more is refused");
    return refuse(std::move(socket));
  }
  const ClientId id = next_id_++;
  auto connection = std::make_unique<Connection>(io_);
  connection->socket.assign(socket.release());
  connection->program = std::make_shared<Program>(
      id, host_,
      Program::Memory{config_.program_memory_bytes, [this] { return memory_left(); },
                      regions_thread_, unmapping_bytes_,
                      [this](const Error& why) { say_once_swappable(why); },
                      [this, id] { return reads_replies(id); }},
      [this, id](const attach::ReplyMessage& message, std::span<const int> descriptors) {
        send(id, message, descriptors);
      });
  connections_[id] = std::move(connection);
  spdlog::debug("program {} attached", id);
  watch_process(id);
  read(id);
}

void AttachServer::say_once_swappable(const Error& why) {
  if (std::exchange(said_swappable_, true)) return;
  spdlog::warn(
      "programs' memory may be swapped, and engines then wait for it: {}; run: ulimit -l unlimited "
      "(systemd: LimitMEMLOCK=infinity)",
      why.message);
}

uint64_t AttachServer::memory_left() const {
  uint64_t shared = 0;
  uint64_t given_back = *unmapping_bytes_;
  for (const auto& [id, connection] : connections_) shared += connection->program->shared_bytes();
  for (const auto& [id, program] : leaving_) given_back += program->shared_bytes();
  return Program::bytes_left(memory_limits(config_, physical_memory_bytes()).programs_bytes, shared,
                             given_back);
}

// Descriptors count as this process's until they are read.
bool AttachServer::reads_replies(ClientId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second->unsent.empty()) return false;
  int unread = 0;
  if (ioctl(found->second->socket.native_handle(), TIOCOUTQ, &unread) != 0) return false;
  if (unread == 0) found->second->unread_memory = 0;
  return unread <= kMostUnreadBytes && found->second->unread_memory++ < kMostUnreadMemory;
}

// A child that the program forked holds its connection open: peers would wait for a dead program
// for as long as that child lives.
void AttachServer::watch_process(ClientId id) {
  Connection& connection = *connections_[id];
  UniqueFd process = process_of(connection.socket.native_handle());
  if (!process) return;
  connection.process.assign(process.release());
  connection.process.async_wait(stream_descriptor::wait_read, [this, id](const error_code& error) {
    if (!error) disconnect(id);
  });
}

// Its HELLO is read first: closed with a message unread, the socket would lose the answer.
void AttachServer::refuse(UniqueFd socket) {
  if (refusals_ >= kMostRefusals) return;
  ++refusals_;
  auto refusal = std::make_shared<Refusal>(io_);
  refusal->socket.assign(socket.release());
  refusal->deadline.expires_after(kRefusalTime);
  refusal->deadline.async_wait([refusal](const error_code& answered) {
    if (answered) return;
    error_code ignored;
    refusal->socket.close(ignored);
  });
  refusal->socket.async_wait(stream_descriptor::wait_read, [this, refusal](const error_code& late) {
    --refusals_;
    refusal->deadline.cancel();
    if (!late) answer_refused(refusal->socket.native_handle());
  });
}

void AttachServer::answer_refused(int socket) const {
  const Result<attach::Packet> packet = attach::receive_packet(socket, 0, attach::Wait::kNo);
  if (!packet) return;
  Result<attach::RequestMessage> hello = attach::decode_request(packet->bytes);
  if (!hello) return;
  attach::wipe(hello->body);  // of one who says no HELLO
  const attach::Failed why{Errc::kLimit,
                           "attach.max_programs = " + std::to_string(config_.max_programs) +
                               " programs are attached to mercury-stackd; raise it there"};
  const auto bytes = attach::encode(attach::ReplyMessage{hello->sequence, why});
  // One that does not read it is closed all the same.
  (void)attach::send_packet(socket, bytes, {}, attach::Wait::kNo);
}

void AttachServer::read(ClientId id) {
  connections_[id]->socket.async_wait(stream_descriptor::wait_read,
                                      [this, id](const error_code& error) {
                                        if (!error) on_readable(id);
                                      });
}

void AttachServer::on_readable(ClientId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Result<attach::Packet> packet =
      attach::receive_packet(found->second->socket.native_handle(), 0, attach::Wait::kNo);
  if (!packet && packet.error().code == Errc::kAgain) return read(id);
  if (!packet || packet->bytes.empty()) {
    if (!packet) hooks_.notice(name_of(id) + ": " + packet.error().message);
    return disconnect(id);
  }
  const std::shared_ptr<Program> program = found->second->program;
  const Status good = program->on_packet(packet->bytes);
  hooks_.asked();
  if (connections_.count(id) == 0) return;
  if (!good) {
    hooks_.notice(name_of(id) + ": " + good.error().message + "; disconnected");
    return disconnect(id);
  }
  read(id);
}

void AttachServer::send(ClientId id, const attach::ReplyMessage& message,
                        std::span<const int> descriptors) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  std::vector<std::byte> bytes = attach::encode(message);
  // HELLO's reply is the first, and other descriptors go to who reads (reads_replies).
  if (connection.unsent.empty()) {
    const Status sent = attach::send_packet(connection.socket.native_handle(), bytes, descriptors,
                                            attach::Wait::kNo);
    if (sent) return;
    if (sent.error().code != Errc::kAgain || !descriptors.empty()) return disconnect(id);
  }
  connection.unsent.push_back(std::move(bytes));
  if (connection.unsent.size() > kMostUnsent) {
    hooks_.notice(name_of(id) + " does not read its replies and is disconnected");
    return disconnect(id);
  }
  if (!connection.writing) write(id);
}

void AttachServer::write(ClientId id) {
  Connection& connection = *connections_[id];
  connection.writing = true;
  connection.socket.async_wait(stream_descriptor::wait_write, [this, id](const error_code& error) {
    const auto found = connections_.find(id);
    if (error || found == connections_.end()) return;
    Connection& ready = *found->second;
    ready.writing = false;
    while (!ready.unsent.empty()) {
      const Status sent = attach::send_packet(ready.socket.native_handle(), ready.unsent.front(),
                                              {}, attach::Wait::kNo);
      if (!sent && sent.error().code != Errc::kAgain) return disconnect(id);
      if (!sent) break;
      ready.unsent.pop_front();
    }
    if (!ready.unsent.empty()) write(id);
  });
}

void AttachServer::disconnect(ClientId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const std::shared_ptr<Program> program = found->second->program;
  connections_.erase(found);
  leaving_[id] = program;
  spdlog::debug("program {} has gone", id);
  program->on_gone([this, id] {
    // Not from within the program's own call.
    boost::asio::post(io_, [this, id] { leaving_.erase(id); });
  });
  hooks_.asked();
}

void AttachServer::on_channel_event(const Event& event) {
  if (const auto* detached = std::get_if<event::ChannelDetached>(&event)) {
    for (const auto& [id, program] : leaving_) {
      if (program->owns(detached->channel)) return program->on_detached();
    }
  }
  if (const auto* broken = std::get_if<event::ChannelBroken>(&event)) {
    for (const auto& [id, connection] : connections_) {
      if (!connection->program->owns(broken->channel)) continue;
      hooks_.notice(name_of(id) + ": " + broken->what + "; disconnected");
      return disconnect(id);
    }
  }
}

AttachServer::Held AttachServer::held() const {
  Held held;
  held.leaving = leaving_.size();
  held.shared_bytes = unmapping_bytes_->load();
  const auto count = [&held](const Program& program) {
    held.regions += program.region_count();
    held.shared_bytes += program.shared_bytes();
  };
  for (const auto& [id, connection] : connections_) count(*connection->program);
  for (const auto& [id, program] : leaving_) count(*program);
  return held;
}

void AttachServer::engines_go_on() {
  for (auto next = connections_.begin(); next != connections_.end();) {
    const std::shared_ptr<Program> program = next->second->program;
    ++next;  // who cannot be answered is disconnected
    program->engines_go_on();
  }
}

void AttachServer::close() {
  listener_.close();
  while (!connections_.empty()) disconnect(connections_.begin()->first);
}

}  // namespace mercury
