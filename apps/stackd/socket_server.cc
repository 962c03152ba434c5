#include "apps/stackd/socket_server.h"

#include <sys/socket.h>

#include <boost/system/error_code.hpp>
#include <utility>

#include "apps/stackd/descriptors.h"
#include "shim/channel/seqpacket.h"
#include "shim/host/clock.h"

namespace mercury {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

std::string program_text(SocketProgram id) { return "sockets: program " + std::to_string(id); }

// For a request, of a later version too, which is told by its beginning.
constexpr size_t kRoom = 1024;
static_assert(kRoom > sizeof(sockets::RequestBytes));

// Of an accepted connection: where its program made it. 0: this kernel does not say (before 5.14).
uint64_t namespace_of(int socket) {
  uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  return getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

bool names_addresses(sockets::RequestKind kind) {
  return kind == sockets::RequestKind::kConnect || kind == sockets::RequestKind::kListen ||
         kind == sockets::RequestKind::kClaim;
}

}  // namespace

SocketServer::SocketServer(boost::asio::io_context& io, const StackdConfig& config,
                           SocketManager& sockets, Hooks hooks)
    : io_(io),
      config_(config),
      sockets_(sockets),
      hooks_(std::move(hooks)),
      most_programs_(socket_room(config, descriptor_limit().soft).programs),
      knocks_(io, [this](KnockId id) { sockets_.knock_gone(id); }),
      listener_(io, sockets_path(config)) {
  sockets_.set_local(local());
}

// NOLINTNEXTLINE(bugprone-exception-escape): without memory at its end, the daemon ends there
SocketServer::~SocketServer() {
  close();
  sockets_.set_local({});
}

SocketManager::Local SocketServer::local() {
  return {[this](const IpAddress& ip) { return addresses_.has(ip, monotonic_ns()); },
          [this](KnockId id, const KnockTarget& target, Knocks::Reply reply) {
            knocks_.start(id, target, std::move(reply));
          },
          [this](KnockId id) { knocks_.end(id); },
          [this](const std::string& line) { hooks_.notice(line); },
          [this] { return knocks_.listening(); }};
}

Result<std::unique_ptr<SocketServer>> SocketServer::create(boost::asio::io_context& io,
                                                           const StackdConfig& config,
                                                           SocketManager& sockets, Hooks hooks) {
  std::unique_ptr<SocketServer> server(new SocketServer(io, config, sockets, std::move(hooks)));
  SocketServer* const own = server.get();
  Status listens = own->listener_.listen(config, [own](UniqueFd fd) { own->add(std::move(fd)); });
  if (!listens) return listens.error();
  return server;
}

// One too many sees its connection end, which is as if there were no daemon: its sockets are the
// kernel's.
void SocketServer::add(UniqueFd socket) {
  if (programs_.size() >= most_programs_) {
    const bool by_key = most_programs_ == config_.sockets_max_programs;
    return hooks_.notice((by_key ? "sockets.max_programs = " : "as many as find descriptors, ") +
                         std::to_string(most_programs_) +
                         " programs or their threads are connected; one more is not served");
  }
  const SocketProgram id = ++last_id_;
  auto caller = std::make_unique<Caller>(io_);
  caller->elsewhere = namespace_of(socket.get()) != namespace_of(listener_.descriptor());
  if (caller->elsewhere) {
    hooks_.notice(
        program_text(id) +
        " is in another network namespace than this daemon: its sockets are the kernel's");
  }
  caller->socket.assign(socket.release());
  programs_[id] = std::move(caller);
  read(id);
}

void SocketServer::read(SocketProgram id) {
  programs_[id]->socket.async_wait(stream_descriptor::wait_read,
                                   [this, id](const error_code& error) {
                                     if (!error) on_readable(id);
                                   });
}

void SocketServer::on_readable(SocketProgram id) {
  const auto found = programs_.find(id);
  if (found == programs_.end()) return;
  const Result<attach::Packet> packet =
      attach::receive_packet(found->second->socket.native_handle(), 0, attach::Wait::kNo, kRoom);
  if (!packet && packet.error().code == Errc::kAgain) return read(id);
  if (packet && packet->bytes.empty()) return disconnect(id);
  const Result<sockets::Request> request =
      packet ? sockets::decode_request(packet->bytes) : Result<sockets::Request>(packet.error());
  if (!request || found->second->waits) {
    hooks_.notice(
        program_text(id) + ": " +
        (request ? "a request before the reply to the last one" : request.error().message) +
        "; disconnected");
    return disconnect(id);
  }
  found->second->waits = true;
  serve(id, *request);
  hooks_.asked();
  if (programs_.count(id) > 0) read(id);
}

void SocketServer::serve(SocketProgram id, const sockets::Request& request) {
  if (programs_[id]->elsewhere && names_addresses(request.kind)) {
    return reply(id, {.kind = sockets::ReplyKind::kKernel, .value = sockets::kOtherNamespace}, {});
  }
  if (request.kind == sockets::RequestKind::kEnded) hooks_.catch_up();
  if (request.kind == sockets::RequestKind::kClaim) knocks_.accepted(request.remote, request.local);
  sockets_.ask(id, request, monotonic_ns(),
               [this, id](const sockets::Reply& answer, UniqueFd end) { reply(id, answer, end); });
}

// The program has its own copy of the descriptor once it is sent.
void SocketServer::reply(SocketProgram id, const sockets::Reply& reply, const UniqueFd& end) {
  const auto found = programs_.find(id);
  if (found == programs_.end()) return;
  found->second->waits = false;
  const int descriptor = end.get();
  const Status sent =
      attach::send_packet(found->second->socket.native_handle(), sockets::encode(reply),
                          {&descriptor, end ? size_t{1} : 0}, attach::Wait::kNo);
  if (sent) return;
  // Room for some replies is there, and a program has one at a time.
  if (sent.error().code == Errc::kAgain) {
    hooks_.notice(program_text(id) + " does not read its replies and is disconnected");
  }
  disconnect(id);
}

void SocketServer::ping(const IpAddress& host, SocketManager::PingAnswer answer) {
  sockets_.ping(host, monotonic_ns(), std::move(answer));
  hooks_.asked();
}

void SocketServer::disconnect(SocketProgram id) {
  if (programs_.erase(id) > 0) sockets_.program_gone(id);
}

void SocketServer::close() {
  listener_.close();
  while (!programs_.empty()) disconnect(programs_.begin()->first);
  knocks_.clear();
}

}  // namespace mercury
