// Daemons that are not there, or not as they should be; programs that fork.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "tests/shim/socket/api/socket_fixture.h"

namespace mercury {
namespace {

using sockets::OnError;
using sockets::RequestKind;
using Manner = FakeDaemon::Manner;

void expect_connected_by_kernel() {
  const BothEnds ends = both_ends(AF_INET);
  EXPECT_FALSE(is_mercurys(ends.client.get()));
  EXPECT_FALSE(is_mercurys(ends.server.get()));
}

// connect() to a listener that only the daemon might refuse. The errno; 0: connected.
int connect_error() {
  const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
  const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
  return connect_to(client.get(), name_of(listener.get()), AF_INET) == 0 ? 0 : errno;
}

TEST(Trouble, WithoutADaemonTheKernelConnectsAndOneLineSaysSo) {
  in_child([] {
    use_daemon(daemon_path() + "-none");
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 3; ++i) expect_connected_by_kernel();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_NE(said.find(daemon_path() + "-none: sockets go through the kernel"), said.npos) << said;
  });
}

TEST(Trouble, WithoutADaemonConnectFailsWhereThatIsAskedFor) {
  in_child([] {
    use_daemon(daemon_path() + "-none", OnError::kFail);
    EXPECT_EQ(connect_error(), ECONNREFUSED);
  });
}

TEST(Trouble, ADaemonThatRefusesIsBelieved) {
  in_child([] {
    FakeDaemon daemon(daemon_path());
    use_daemon(daemon_path());
    daemon.behave(Manner::kRefuses);
    EXPECT_EQ(connect_error(), ECONNREFUSED);
  });
}

TEST(Trouble, WhatIsNoAnswerIsADaemonThatIsNotThere) {
  for (const Manner manner :
       {Manner::kBabbles, Manner::kHangsUp, Manner::kNoEnd, Manner::kWrongEnd}) {
    in_child([manner] {
      FakeDaemon daemon(daemon_path());
      use_daemon(daemon_path());
      const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
      daemon.behave(manner);
      const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
      EXPECT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), 0);
      EXPECT_FALSE(is_mercurys(client.get()));
      const UniqueFd server(mercury_accept(listener.get(), nullptr, nullptr));
      EXPECT_FALSE(is_mercurys(server.get()));
    });
  }
}

TEST(Trouble, ASilentDaemonIsWaitedForOnce) {
  in_child([] {
    FakeDaemon daemon(daemon_path());
    use_daemon(daemon_path(), OnError::kFail);
    const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
    daemon.behave(Manner::kIsSilent);
    for (int i = 0; i < 20; ++i) {
      const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
      EXPECT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), -1);
      EXPECT_EQ(errno, ENETDOWN);
    }
    EXPECT_EQ(daemon.asked(RequestKind::kConnect), 1U);
  });
}

TEST(Trouble, ADaemonThatServesNoSocketsLeavesThemToTheKernel) {
  in_child([] {
    FakeDaemon daemon(daemon_path());
    use_daemon(daemon_path(), OnError::kFail);
    daemon.behave(Manner::kKernel);
    expect_connected_by_kernel();
  });
}

TEST(Trouble, AProgramIsUnharmedByALostDaemon) {
  in_child([] {
    BothEnds ends;
    {
      FakeDaemon daemon(daemon_path());
      use_daemon(daemon_path());
      ends = both_ends(AF_INET);
    }
    ASSERT_EQ(::write(ends.client.get(), "on", 2), 2);  // no byte passes a daemon here
    std::array<char, 2> data{};
    EXPECT_EQ(mercury_read(ends.server.get(), data.data(), data.size()), 2);
    ends.client.reset();
    EXPECT_EQ(mercury_read(ends.server.get(), data.data(), data.size()), 0);
    expect_connected_by_kernel();
  });
}

TEST(Trouble, AConnectionWaitsForADaemonThatIsStartedAgain) {
  in_child([] {
    use_daemon(daemon_path());
    sockets::process().settings.come_back_ns = 60'000'000'000;
    std::optional<FakeDaemon> daemon(std::in_place, daemon_path());
    const BothEnds before = both_ends(AF_INET);
    daemon.reset();
    std::thread connecting([&before] {
      const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
      EXPECT_EQ(connect_to(client.get(), name_of(before.listener.get()), AF_INET), 0);
    });
    while (sockets::process().daemon.lost_ns() == 0) std::this_thread::yield();
    daemon.emplace(daemon_path());
    connecting.join();
    EXPECT_EQ(daemon->asked(RequestKind::kConnect), 1U);
  });
}

// What the daemon is told of a listener: Listening.
std::vector<uint32_t> told(const FakeDaemon& daemon) {
  std::vector<uint32_t> values;
  for (const sockets::Request& one : daemon.requests()) {
    if (one.kind == RequestKind::kListen) values.push_back(one.value);
  }
  return values;
}

TEST(Trouble, TheDaemonIsToldOfAListenerBeforeTheKernelTakesItsClients) {
  in_child([] {
    FakeDaemon daemon(daemon_path());
    use_daemon(daemon_path());
    const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
    EXPECT_EQ(told(daemon), (std::vector<uint32_t>{1, 0}));
    EXPECT_FALSE(daemon.was_late());
    EXPECT_EQ(mercury_listen(listener.get(), 7), 0);  // a longer queue
    EXPECT_EQ(told(daemon), (std::vector<uint32_t>{1, 0, 0})) << "it never ceased to listen";
    const UniqueFd unbound(mercury_socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(mercury_listen(unbound.get(), 7), 0);
    EXPECT_EQ(told(daemon), (std::vector<uint32_t>{1, 0, 0, 0})) << "nobody knew its port";
  });
}

// The other socket has bound this port as well, and listens first.
TEST(Trouble, WhatCannotListenIsTakenBack) {
  in_child([] {
    FakeDaemon daemon(daemon_path());
    use_daemon(daemon_path());
    std::array<UniqueFd, 2> sockets;
    Endpoint at = loopback(AF_INET);
    for (UniqueFd& one : sockets) {
      one = UniqueFd(mercury_socket(AF_INET, SOCK_STREAM, 0));
      const int on = 1;
      ASSERT_EQ(mercury_setsockopt(one.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
      SocketAddress address = address_of(at, AF_INET);
      ASSERT_EQ(mercury_bind(one.get(), address.get(), address.length), 0) << std::strerror(errno);
      at = name_of(one.get());
    }
    ASSERT_EQ(mercury_listen(sockets[0].get(), 7), 0);
    EXPECT_EQ(mercury_listen(sockets[1].get(), 7), -1);
    EXPECT_EQ(errno, EADDRINUSE);
    EXPECT_EQ(told(daemon), (std::vector<uint32_t>{1, 0, 1, 2}));
    const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(connect_to(client.get(), at, AF_INET), 0);
    EXPECT_TRUE(is_mercurys(client.get())) << "the first's";
  });
}

TEST(Trouble, ListenersAreToldToTheNextDaemon) {
  in_child([] {
    UniqueFd listener;
    {
      FakeDaemon daemon(daemon_path());
      use_daemon(daemon_path());
      listener = listener_at(loopback(AF_INET), AF_INET, SOCK_NONBLOCK);
      EXPECT_EQ(daemon.asked(RequestKind::kListen), 2U) << "before, and after";
    }
    FakeDaemon daemon(daemon_path());
    while (daemon.asked(RequestKind::kListen) == 0) {  // it tries once a second
      EXPECT_EQ(mercury_accept(listener.get(), nullptr, nullptr), -1);
      EXPECT_EQ(errno, EAGAIN);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), 0);
    EXPECT_TRUE(is_mercurys(client.get()));
  });
}

// Numbers of this process's connections to a daemon.
std::vector<int> links() {
  std::vector<int> found;
  const auto add = [](void* context, int fd) {
    SocketAddress peer;
    if (sockets::option_of(fd, SOL_SOCKET, SO_TYPE) == SOCK_SEQPACKET &&
        ::getpeername(fd, peer.get(), &peer.length) == 0 && peer.length > sizeof(sa_family_t)) {
      static_cast<std::vector<int>*>(context)->push_back(fd);
    }
  };
  EXPECT_TRUE(sockets::for_each_descriptor(add, &found));
  return found;
}

// As closefrom(), and what a program opens afterwards.
TEST(Trouble, AnotherDescriptorUnderTheNumberOfOursIsLeftAlone) {
  const FakeDaemon daemon(daemon_path());
  use_daemon(daemon_path());
  in_child([] {
    const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
    const UniqueFd first(mercury_socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect_to(first.get(), name_of(listener.get()), AF_INET), 0);
    const std::vector<int> numbers = links();
    ASSERT_GE(numbers.size(), 2U);  // the listener's, and one that is kept
    std::array<int, 2> pair{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair.data()), 0);
    for (const int number : numbers) ASSERT_EQ(::dup2(pair[0], number), number);
    const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), 0);
    const UniqueFd another = listener_at(loopback(AF_INET), AF_INET);
    char byte = 0;
    EXPECT_EQ(::recv(pair[1], &byte, 1, MSG_DONTWAIT), -1);  // no request came here
    EXPECT_EQ(errno, EAGAIN);
    const uint64_t cookie = *sockets::cookie_of(pair[0]);
    for (const int number : numbers) EXPECT_EQ(sockets::cookie_of(number), cookie);
  });
}

TEST(Trouble, OutOfDescriptorsIsEmfile) {
  const FakeDaemon daemon(daemon_path());
  use_daemon(daemon_path());
  in_child([] {
    const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
    const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), 0);
    const int next = ::dup(0);
    ::close(next);
    // One more: the accepted one, and none for what it becomes.
    const rlimit few{static_cast<rlim_t>(next) + 1, static_cast<rlim_t>(next) + 1};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    EXPECT_EQ(mercury_accept(listener.get(), nullptr, nullptr), -1);
    EXPECT_EQ(errno, EMFILE);
  });
}

TEST(Fork, AChildUsesWhatItInherited) {
  FakeDaemon daemon(daemon_path());
  use_daemon(daemon_path());
  BothEnds ends = both_ends(AF_INET);
  in_child([&ends] {
    EXPECT_EQ(peer_of(ends.client.get()), name_of(ends.listener.get()));
    EXPECT_EQ(::write(ends.client.get(), "child", 5), 5);
  });
  std::array<char, 5> data{};
  EXPECT_EQ(mercury_recv(ends.server.get(), data.data(), data.size(), MSG_WAITALL), 5);
  ends.client.reset();
  EXPECT_EQ(mercury_read(ends.server.get(), data.data(), data.size()), 0);
}

TEST(Fork, AChildAsksOnItsOwnConnection) {
  FakeDaemon daemon(daemon_path());
  use_daemon(daemon_path());
  const BothEnds ends = both_ends(AF_INET);
  in_child([&ends] {
    for (int i = 0; i < 5; ++i) {
      const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
      ASSERT_EQ(connect_to(client.get(), name_of(ends.listener.get()), AF_INET), 0);
      EXPECT_TRUE(is_mercurys(client.get()));
    }
  });
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(is_mercurys(mercury_accept(ends.listener.get(), nullptr, nullptr)));
  }
}

TEST(Fork, AChildKeepsOfItsParentsConnectionsTheListenersAlone) {
  FakeDaemon daemon(daemon_path());
  use_daemon(daemon_path());
  in_child([] {
    const BothEnds ends = both_ends(AF_INET);
    const size_t before = links().size();
    EXPECT_GE(before, 2U);  // the listeners', and one that is kept
    in_child([before] {
      EXPECT_EQ(links().size(), before);  // one of its own for the one that its parent keeps
      const UniqueFd another = listener_at(loopback(AF_INET), AF_INET);
      EXPECT_EQ(links().size(), before + 1);  // on which it tells of its own listeners
    });
  });
}

// As nginx and redis become daemons.
TEST(Fork, AListenerOutlivesTheParentThatToldOfIt) {
  FakeDaemon daemon(daemon_path());
  use_daemon(daemon_path());
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const UniqueFd reads(pipe[0]);
  UniqueFd writes(pipe[1]);
  in_child([&writes] {
    const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
    if (::fork() != 0) return;  // ends here
    const Endpoint at = name_of(listener.get());
    ASSERT_EQ(::write(writes.get(), &at, sizeof at), static_cast<ssize_t>(sizeof at));
    const UniqueFd server(mercury_accept(listener.get(), nullptr, nullptr));
    const char answer = is_mercurys(server.get()) ? 'm' : 'k';
    ASSERT_EQ(::write(server.get(), &answer, 1), 1);
    ::_exit(0);
  });
  writes.reset();
  Endpoint at;
  ASSERT_EQ(::read(reads.get(), &at, sizeof at), static_cast<ssize_t>(sizeof at));
  const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(connect_to(client.get(), at, AF_INET), 0);
  EXPECT_TRUE(is_mercurys(client.get()));
  char answer = 0;
  EXPECT_EQ(mercury_read(client.get(), &answer, 1), 1);
  EXPECT_EQ(answer, 'm');
}

// As a server's workers do, which may not open the daemon's socket any more.
TEST(Fork, AChildThatBecomesAnotherUserGoesOnAccepting) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  FakeDaemon daemon(daemon_path());
  ASSERT_EQ(::chmod(daemon_path().c_str(), 0600), 0);
  use_daemon(daemon_path());
  const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
  const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), 0);
  in_child([&listener] {
    constexpr uid_t kNobody = 65534;
    ASSERT_EQ(::setuid(kNobody), 0);
    EXPECT_TRUE(is_mercurys(mercury_accept(listener.get(), nullptr, nullptr)));
  });
}

TEST(Fork, ChildrenShareAListener) {
  FakeDaemon daemon(daemon_path());
  use_daemon(daemon_path());
  const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
  for (int child = 0; child < 3; ++child) {
    if (::fork() != 0) continue;
    const UniqueFd server(mercury_accept(listener.get(), nullptr, nullptr));
    const char answer = is_mercurys(server.get()) ? 'm' : 'k';
    ::_exit(::write(server.get(), &answer, 1) == 1 ? 0 : 1);
  }
  for (int child = 0; child < 3; ++child) {
    const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), 0);
    char answer = 0;
    EXPECT_EQ(mercury_read(client.get(), &answer, 1), 1);
    EXPECT_EQ(answer, 'm');
    int status = 0;
    EXPECT_GT(::wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(Fork, OthersMayForkWhileThreadsConnect) {
  FakeDaemon daemon(daemon_path());
  use_daemon(daemon_path());
  const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
  std::atomic<bool> done{false};
  std::thread connects([&] {
    while (!done) {
      const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
      ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), 0);
      const UniqueFd server(mercury_accept(listener.get(), nullptr, nullptr));
      ASSERT_TRUE(is_mercurys(client.get()));
    }
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {  // what a lock of the other thread's would keep it from
      const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
      ::_exit(connect_to(client.get(), name_of(listener.get()), AF_INET) == 0 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  done = true;
  connects.join();
}

// Every 20 ms, from now on, in a process of its own.
void have_signals(int flags) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = flags;
  ASSERT_EQ(::sigaction(SIGALRM, &action, nullptr), 0);
  const itimerval often{.it_interval = {0, 20'000}, .it_value = {0, 20'000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
}

// Which would never be seen if each signal had it begin anew.
TEST(Signals, ThatComeOftenDoNotProlongTheWaitForASilentDaemon) {
  for (const bool waits : {true, false}) {
    in_child([waits] {
      FakeDaemon daemon(daemon_path());
      use_daemon(daemon_path());
      const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
      daemon.behave(Manner::kIsSilent);
      const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM | (waits ? 0 : SOCK_NONBLOCK), 0));
      have_signals(waits ? SA_RESTART : 0);  // or it would be ended
      const int rc = connect_to(client.get(), name_of(listener.get()), AF_INET);
      EXPECT_TRUE(rc == 0 || (!waits && errno == EINPROGRESS)) << std::strerror(errno);
      EXPECT_FALSE(is_mercurys(client.get()));
    });
  }
}

// And goes on without its caller, as the kernel's does.
TEST(Signals, EndAConnectThatWaits) {
  in_child([] {
    FakeDaemon daemon(daemon_path());
    use_daemon(daemon_path());
    const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
    daemon.behave(Manner::kIsSilent);
    const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
    have_signals(0);
    const int rc = connect_to(client.get(), name_of(listener.get()), AF_INET);
    EXPECT_TRUE(rc == 0 || errno == EINTR) << std::strerror(errno);
    const itimerval never{};
    ASSERT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
    EXPECT_FALSE(sockets::process().warned) << "nothing is wrong";
    pollfd connected{client.get(), POLLOUT, 0};
    ASSERT_EQ(::poll(&connected, 1, 10'000), 1);
    EXPECT_EQ(connected.revents, POLLOUT);
    EXPECT_EQ(peer_of(client.get()), name_of(listener.get()));
    EXPECT_EQ(::fcntl(client.get(), F_GETFL) & O_NONBLOCK, 0);
  });
  in_child([] {
    FakeDaemon daemon(daemon_path());
    use_daemon(daemon_path(), OnError::kFail);
    const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
    daemon.behave(Manner::kIsSilent);
    const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
    have_signals(0);
    EXPECT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), -1);
    EXPECT_EQ(errno, EINTR);
    const itimerval never{};
    ASSERT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
    daemon.behave(Manner::kServes);
    ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), 0);
    EXPECT_TRUE(is_mercurys(client.get())) << "the kernel was not asked";
  });
}

// Fewer than the listener's queue has room for: a handler may run at any time, and often.
constexpr int kSignals = 20;
int signals_connected = 0;
Endpoint signals_connect_to;

TEST(Signals, AHandlerMayConnectWhateverItInterrupts) {
  FakeDaemon daemon(daemon_path());
  use_daemon(daemon_path());
  const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
  signals_connect_to = name_of(listener.get());
  struct sigaction action {};
  action.sa_handler = [](int) {
    if (signals_connected == kSignals) return;
    const int kept = errno;
    const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
    if (connect_to(client.get(), signals_connect_to, AF_INET) == 0) ++signals_connected;
    errno = kept;
  };
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  std::atomic<bool> done{false};
  const pthread_t self = ::pthread_self();
  std::thread signals([&] {
    while (!done) {
      ::pthread_kill(self, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });
  for (int i = 0; i < 300 || signals_connected < kSignals; ++i) {
    const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), 0);
    int accepted;
    do {
      accepted = mercury_accept(listener.get(), nullptr, nullptr);
    } while (accepted < 0 && errno == EINTR);
    ::close(accepted);
    pollfd more{listener.get(), POLLIN, 0};
    while (::poll(&more, 1, 0) == 1) ::close(mercury_accept(listener.get(), nullptr, nullptr));
  }
  done = true;
  signals.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(signals_connected, kSignals);
}

}  // namespace
}  // namespace mercury
