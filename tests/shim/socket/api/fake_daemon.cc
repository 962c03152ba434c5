#include "tests/shim/socket/api/fake_daemon.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "shim/channel/seqpacket.h"
#include "shim/socket/api/address.h"

namespace mercury {
namespace {

using sockets::Reply;
using sockets::ReplyKind;
using sockets::Request;
using sockets::RequestKind;

// Connects to a listener by the kernel, from 127.0.0.1 or ::1.
UniqueFd knock_at(const Endpoint& listener) {
  const int family = listener.ip.is_v4() ? AF_INET : AF_INET6;
  Endpoint to = listener;
  if (to.ip.is_unspecified()) {
    to.ip = family == AF_INET ? IpAddress::v4(127, 0, 0, 1) : *IpAddress::parse("::1");
  }
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  sockets::give_address(family, to, reinterpret_cast<sockaddr*>(&address), &length);
  UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) return {};
  return socket;
}

std::pair<Reply, UniqueFd> only(ReplyKind kind, uint32_t value = 0) {
  Reply reply;
  reply.kind = kind;
  reply.value = value;
  return {reply, UniqueFd()};
}

}  // namespace

FakeDaemon::FakeDaemon(std::string path)
    : path_(std::move(path)),
      listener_(std::move(*attach::listen_socket(path_))),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this] { run(); }) {}

FakeDaemon::~FakeDaemon() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
  ::unlink(path_.c_str());
}

void FakeDaemon::inform(const sockets::Info& info) {
  const std::lock_guard<std::mutex> lock(mutex_);
  info_ = info;
}

void FakeDaemon::meanwhile(RequestKind kind, std::function<void()> then) {
  const std::lock_guard<std::mutex> lock(mutex_);
  awaited_ = kind;
  then_ = std::move(then);
}

size_t FakeDaemon::asked(RequestKind kind) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<size_t>(
      std::count_if(requests_.begin(), requests_.end(),
                    [kind](const Request& request) { return request.kind == kind; }));
}

size_t FakeDaemon::connections() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return connections_.size();
}

std::vector<Request> FakeDaemon::requests() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return requests_;
}

void FakeDaemon::wait_for(RequestKind kind, size_t count) const {
  while (asked(kind) < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void FakeDaemon::run() {
  while (true) {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const auto& [fd, owner] : connections_) polled.push_back({fd, POLLIN, 0});
    ::poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) return;
    for (size_t i = 2; i < polled.size(); ++i) {
      if (polled[i].revents != 0) serve(polled[i].fd);
    }
    if (polled[1].revents == 0) continue;
    UniqueFd accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (accepted) connections_[accepted.get()] = std::move(accepted);
  }
}

void FakeDaemon::serve(int connection) {
  const auto packet = attach::receive_packet(connection, 0, attach::Wait::kNo);
  if (!packet || packet->bytes.empty()) return close_connection(connection);
  const auto request = sockets::decode_request(packet->bytes);
  if (!request) return close_connection(connection);
  std::function<void()> then;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(*request);
    if (request->kind == awaited_) then = std::exchange(then_, nullptr);
  }
  if (then) then();
  answer(connection, *request);
}

void FakeDaemon::close_connection(int connection) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(listeners_, [connection](const Listener& l) { return l.connection == connection; });
  connections_.erase(connection);
}

void FakeDaemon::answer(int connection, const Request& request) {
  switch (manner_.load()) {
    case Manner::kIsSilent:
      return;
    case Manner::kHangsUp:
      return close_connection(connection);
    case Manner::kBabbles: {
      const std::array<std::byte, 112> babble{};
      (void)attach::send_packet(connection, babble, {}, attach::Wait::kNo);
      return;
    }
    default:
      break;
  }
  const auto [reply, end] = decide(connection, request);
  const sockets::ReplyBytes bytes = sockets::encode(reply);
  const int fd = end.get();
  (void)attach::send_packet(connection, bytes,
                            fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>(),
                            attach::Wait::kNo);
}

std::pair<Reply, UniqueFd> FakeDaemon::decide(int connection, const Request& request) {
  switch (request.kind) {
    case RequestKind::kConnect:
      return connect(request);
    case RequestKind::kClaim:
      return claim(request);
    case RequestKind::kListen:
      if (manner_ == Manner::kKernel) return only(ReplyKind::kKernel);
      listen(connection, request);
      return only(ReplyKind::kDone);
    case RequestKind::kEnded:
      return only(ReplyKind::kDone, resets_.count({request.remote, request.local}) > 0
                                        ? uint32_t{ECONNRESET}
                                        : end_.load());
    case RequestKind::kSet:
      if (request.option == sockets::Option::kAbort) {
        resets_.erase({request.local, request.remote});
        if (request.value == 1) resets_.insert({request.local, request.remote});
      }
      return only(ReplyKind::kDone);
    case RequestKind::kInfo:
      break;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  auto answer = only(ReplyKind::kDone);
  answer.first.info = info_;
  return answer;
}

void FakeDaemon::listen(int connection, const Request& request) {
  std::erase_if(listeners_, [&](const Listener& one) {
    return one.cookie == request.cookie && one.connection == connection;
  });
  switch (static_cast<sockets::Listening>(request.value)) {
    case sockets::Listening::kSoon:
      // Others may share the port, and listen already.
      if (listeners_.empty() && knock_at(request.local)) late_ = true;
      return;
    case sockets::Listening::kNow:
      return listeners_.push_back({request.local, request.cookie, connection});
    case sockets::Listening::kNot:
      return;
  }
}

std::pair<Reply, UniqueFd> FakeDaemon::connect(const Request& request) {
  if (manner_ == Manner::kKernel) return only(ReplyKind::kKernel);
  if (manner_ == Manner::kRefuses) return only(ReplyKind::kFailed, ECONNREFUSED);
  if (manner_ == Manner::kNoEnd) return only(ReplyKind::kConnected);
  if (manner_ == Manner::kWrongEnd) {
    return {only(ReplyKind::kConnected).first, UniqueFd(::eventfd(0, EFD_CLOEXEC))};
  }
  const auto found =
      std::find_if(listeners_.begin(), listeners_.end(), [&request](const Listener& listener) {
        return listener.local.port == request.remote.port &&
               (listener.local.ip == request.remote.ip || listener.local.ip.is_unspecified());
      });
  if (found == listeners_.end()) return only(ReplyKind::kKernel);
  Endpoint at = found->local;
  if (at.ip.is_unspecified()) at.ip = request.remote.ip;
  UniqueFd knock = knock_at(at);
  if (!knock) {  // it listens there no more
    listeners_.erase(found);
    return only(ReplyKind::kKernel);
  }
  const Endpoint own = *sockets::kernel_name(knock.get());
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return only(ReplyKind::kFailed, ENOBUFS);
  }
  auto connected = only(ReplyKind::kConnected, sockets::kBothEndsHere);
  connected.first.id = next_id_++;
  connected.first.local = own;
  connected.first.remote = request.remote;
  connected.second = UniqueFd(pair[0]);
  auto announced = only(ReplyKind::kConnected, sockets::kBothEndsHere);
  announced.first.id = next_id_++;
  announced.first.local = request.remote;
  announced.first.remote = own;
  knocks_[own] = {std::move(knock), UniqueFd(pair[1]), announced.first};
  return connected;
}

std::pair<Reply, UniqueFd> FakeDaemon::claim(const Request& request) {
  const auto found = knocks_.find(request.remote);
  if (found == knocks_.end()) return only(ReplyKind::kKernel);
  std::pair<Reply, UniqueFd> answer{found->second.reply, std::move(found->second.end)};
  knocks_.erase(found);
  return answer;
}

}  // namespace mercury
