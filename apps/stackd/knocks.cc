#include "apps/stackd/knocks.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/system/error_code.hpp>
#include <cerrno>
#include <chrono>

#include "apps/stackd/socket_addresses.h"
#include "shim/host/clock.h"

namespace mercury {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

// A queue that is full drops what the kernel would send again after a second: looked at so often it
// is noticed sooner. Whoever connects waits for this, so not for long; then the kernel's own
// connection takes its place, and waits for the queue as ever.
constexpr std::chrono::milliseconds kAgain{20};
// Between a program's word that it is about to listen and listen() is hardly any time.
constexpr std::chrono::milliseconds kSoon{5};
constexpr uint64_t kPatienceNs = 200'000'000;
// Mostly a program accepts it sooner. If its listener goes before, that is noticed so much later,
// or twice as much.
constexpr std::chrono::milliseconds kWatchAfter{20};
constexpr uint64_t kWatchAfterNs = std::chrono::nanoseconds(kWatchAfter).count();

Result<UniqueFd> make_socket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Error::system(errno, "socket");
  // It never carries anything, so nothing is lost by a reset, and the kernel keeps nothing of it. A
  // listener that dropped it without a word is found out.
  const linger reset{1, 0};
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  return fd;
}

// One of `events`, or an end.
bool has(int fd, short events) {
  pollfd asked{fd, events, 0};
  return ::poll(&asked, 1, 0) > 0;
}

int error_of(int fd) {
  int error = 0;
  socklen_t bytes = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error;
}

Error failure(int error, const Endpoint& at) {
  const std::string what = "nobody listens at " + at.to_string();
  if (error == ECONNREFUSED) return Error(Errc::kNotFound, what);
  return Error::system(error, "connecting to " + at.to_string());
}

}  // namespace

Knocks::Knock* Knocks::find(KnockId id) {
  const auto found = knocks_.find(id);
  return found == knocks_.end() ? nullptr : found->second.get();
}

void Knocks::start(KnockId id, const KnockTarget& target, Reply reply) {
  auto knock = std::make_shared<Knock>(io_);
  knock->target = target;
  knock->reply = std::move(reply);
  knock->deadline_ns = monotonic_ns() + kPatienceNs;
  knocks_[id] = std::move(knock);
  attempt(id);
}

void Knocks::name(KnockId id, Knock& knock, const Endpoint& from) {
  knock.from = from;
  by_name_[{from, knock.target.at}] = id;
}

// Another one may have its port since it broke.
void Knocks::forget_name(KnockId id, const Knock& knock) {
  const auto found = by_name_.find({knock.from, knock.target.at});
  if (found != by_name_.end() && found->second == id) by_name_.erase(found);
}

Status Knocks::connect(KnockId id, Knock& knock) {
  // Somebody else may listen there by now, who expects a client that speaks.
  const KnockTarget& target = knock.target;
  if (Status listens = listening_.check(target.cookie, target.at, target.shares); !listens) {
    return listens;
  }
  SocketAddress to = to_kernel(knock.target.at);
  Result<UniqueFd> socket = make_socket(to.family());
  if (!socket) return socket.error();
  if (::connect(socket->get(), to.get(), to.bytes) != 0 && errno != EINPROGRESS) {
    return failure(errno, knock.target.at);
  }
  SocketAddress own;
  if (::getsockname(socket->get(), own.get(), &own.bytes) != 0)
    return failure(errno, knock.target.at);
  name(id, knock, from_kernel(own.get()));
  error_code ignored;
  knock.socket.close(ignored);
  knock.unwatched = std::move(*socket);
  return {};
}

// On this host the kernel has connected by the time that connect() returns, unless the queue is
// full.
void Knocks::attempt(KnockId id) {
  Knock& knock = *find(id);
  forget_name(id, knock);
  if (Status begun = connect(id, knock); !begun) {
    const bool may_come = knock.target.soon && begun.error().code == Errc::kNotFound;
    if (!may_come || monotonic_ns() >= knock.deadline_ns) return finish(id, begun.error());
    return wait(id, kSoon);
  }
  if (has(knock.unwatched.get(), POLLOUT)) return connected(id);
  if (monotonic_ns() >= knock.deadline_ns) {
    return finish(
        id, Error(Errc::kTimedOut, knock.target.at.to_string() + " takes no more connections"));
  }
  wait(id, kAgain);
}

void Knocks::wait(KnockId id, std::chrono::milliseconds again) {
  const std::weak_ptr<Knock> weak = knocks_[id];
  Knock& knock = *find(id);
  knock.timer.expires_after(again);
  knock.timer.async_wait([this, id, weak](const error_code& cancelled) {
    const auto same = weak.lock();
    if (!cancelled && same && same->reply) attempt(id);
  });
  if (!knock.unwatched) return;  // nobody listens yet
  knock.socket.assign(knock.unwatched.release());
  knock.socket.async_wait(stream_descriptor::wait_write, [this, id, weak](const error_code& error) {
    const auto same = weak.lock();
    if (!error && same && same->reply) connected(id);
  });
}

// Or refused: the socket says.
void Knocks::connected(KnockId id) {
  const std::shared_ptr<Knock> knock = knocks_[id];
  const bool watched = !knock->unwatched;
  const int error = error_of(knock->descriptor());
  if (error != 0) return finish(id, failure(error, knock->target.at));
  if (watched) {
    knock->timer.cancel();
    watch(id, knock);
  } else {
    young_.push_back({monotonic_ns(), id, knock});
    if (young_.size() == 1) watch_later();
  }
  finish(id, knock->from);
}

// Whatever comes: an end, or words of somebody who takes it for a client's.
void Knocks::watch(KnockId id, const std::shared_ptr<Knock>& knock) {
  if (knock->unwatched) knock->socket.assign(knock->unwatched.release());
  knock->socket.async_wait(
      stream_descriptor::wait_read,
      [this, id, weak = std::weak_ptr<Knock>(knock)](const error_code& failed) {
        if (failed || !weak.lock()) return;
        end(id);
        gone_(id);
      });
}

void Knocks::watch_later() {
  watching_.expires_after(kWatchAfter);
  watching_.async_wait([this, here = std::weak_ptr<char>(here_)](const error_code& cancelled) {
    if (cancelled || here.expired()) return;
    const uint64_t now_ns = monotonic_ns();
    while (!young_.empty() && now_ns - young_.front().since_ns >= kWatchAfterNs) {
      if (const auto knock = young_.front().knock.lock()) watch(young_.front().id, knock);
      young_.pop_front();
    }
    if (!young_.empty()) watch_later();
  });
}

void Knocks::finish(KnockId id, Result<Endpoint> result) {
  const std::shared_ptr<Knock> knock = knocks_[id];
  const Reply reply = std::exchange(knock->reply, nullptr);
  if (!result) end(id);
  reply(std::move(result));
}

void Knocks::end(KnockId id) {
  const auto found = knocks_.find(id);
  if (found == knocks_.end()) return;
  forget_name(id, *found->second);
  knocks_.erase(found);
}

void Knocks::clear() {
  knocks_.clear();
  by_name_.clear();
  young_.clear();
  watching_.cancel();
}

void Knocks::accepted(const Endpoint& from, const Endpoint& at) {
  const auto found = by_name_.find({from, at});
  if (found == by_name_.end()) return;
  const KnockId id = found->second;
  const std::shared_ptr<Knock> knock = knocks_[id];
  if (knock->reply) return connected(id);
  if (!has(knock->descriptor(), POLLIN)) return;
  end(id);
  gone_(id);
}

}  // namespace mercury
