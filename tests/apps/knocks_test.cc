// Knocks at listeners of this process, which come and go.
#include "apps/stackd/knocks.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "apps/stackd/socket_addresses.h"

namespace mercury {
namespace {

using std::chrono::milliseconds;

struct Listener {
  UniqueFd fd;
  KnockTarget target;
};

Listener listen_at(const Endpoint& at) {
  Listener listener{UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), {}};
  SocketAddress name = to_kernel(at);
  EXPECT_EQ(::bind(listener.fd.get(), name.get(), name.bytes), 0) << std::strerror(errno);
  EXPECT_EQ(::listen(listener.fd.get(), 8), 0);
  EXPECT_EQ(::getsockname(listener.fd.get(), name.get(), &name.bytes), 0);
  listener.target.at = from_kernel(name.get());
  socklen_t bytes = sizeof listener.target.cookie;
  EXPECT_EQ(::getsockopt(listener.fd.get(), SOL_SOCKET, SO_COOKIE, &listener.target.cookie, &bytes),
            0);
  return listener;
}

class KnocksTest : public testing::Test {
 protected:
  Endpoint knock(KnockId id, const Listener& at) {
    Endpoint from;
    knocks.start(id, at.target, [&from](const Result<Endpoint>& result) {
      ASSERT_TRUE(result);
      from = *result;
    });
    EXPECT_NE(from.port, 0) << "not at once";
    return from;
  }

  boost::asio::io_context io;
  std::vector<KnockId> gone;
  Knocks knocks{io, [this](KnockId id) { gone.push_back(id); }};
  Listener listener = listen_at({IpAddress::v4(127, 0, 0, 1), 0});
};

// Another program may be given the knock's port before the client is: then with another knock.
TEST_F(KnocksTest, OneWhoseListenerHasGoneIsNotTakenForWhoHasItsPort) {
  UniqueFd client;
  Endpoint from;
  KnockId id = 0;
  for (bool bound = false; !bound && id < 100;) {
    if (id != 0) knocks.end(id);
    from = knock(++id, listener);
    listener.fd.reset();
    listener = listen_at(listener.target.at);
    client.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SocketAddress name = to_kernel(from);
    bound = ::bind(client.get(), name.get(), name.bytes) == 0;
    ASSERT_TRUE(bound || errno == EADDRINUSE) << std::strerror(errno);
  }
  SocketAddress to = to_kernel(listener.target.at);
  ASSERT_EQ(::connect(client.get(), to.get(), to.bytes), 0) << std::strerror(errno);
  knocks.accepted(from, listener.target.at);
  EXPECT_EQ(gone, std::vector<KnockId>{id});
  EXPECT_EQ(knocks.size(), 0U);
}

TEST_F(KnocksTest, OneThatIsAcceptedStays) {
  const Endpoint from = knock(1, listener);
  const UniqueFd accepted(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  knocks.accepted(from, listener.target.at);
  EXPECT_TRUE(gone.empty());
  EXPECT_EQ(knocks.size(), 1U);
}

// Also one that is watched already, whose end the loop has not come to.
TEST_F(KnocksTest, OneThatBreaksLaterIsToldOfOnce) {
  const Endpoint from = knock(1, listener);
  io.run_for(milliseconds(100));
  listener.fd.reset();
  knocks.accepted(from, listener.target.at);
  EXPECT_EQ(gone, std::vector<KnockId>{1});
  io.run_for(milliseconds(100));
  EXPECT_EQ(gone.size(), 1U);
}

TEST_F(KnocksTest, OneThatEndsLeavesItsNameToTheNext) {
  const Endpoint from = knock(1, listener);
  listener.fd.reset();
  const Listener restarted = listen_at(listener.target.at);
  Endpoint next;
  for (KnockId id = 2; next != from && id < 100'000; ++id) {
    next = knock(id, restarted);
    const UniqueFd accepted(::accept4(restarted.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (next != from) knocks.end(id);
  }
  if (next != from) GTEST_SKIP() << "the kernel does not give this port once more";
  knocks.end(1);
  knocks.accepted(from, listener.target.at);
  EXPECT_EQ(gone.size(), 1U) << "what was accepted has been closed";
}

// The loop has found both timers over, and runs the second's handler when the first has made an end
// of the knocks.
TEST_F(KnocksTest, NothingIsDoneOnceTheyHaveGone) {
  alignas(Knocks) std::array<std::byte, sizeof(Knocks)> place;
  auto* const some = new (place.data()) Knocks(io, [](KnockId) {});
  boost::asio::steady_timer before(io, milliseconds(1));
  before.async_wait([&](const boost::system::error_code&) {
    some->~Knocks();
    for (size_t i = 0; i < place.size(); ++i) place[i] = static_cast<std::byte>(i);
  });
  some->start(1, listener.target, [](const Result<Endpoint>&) {});
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_EQ(io.run_for(milliseconds(100)), 2U);
}

}  // namespace
}  // namespace mercury
