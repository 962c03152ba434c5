// What a program's first call may meet. Its own program, as the others have made theirs.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "tests/seeds.h"
#include "tests/shim/socket/api/socket_fixture.h"

namespace mercury {
namespace {

void make_a_call() { UniqueFd(mercury_socket(AF_INET, SOCK_STREAM, 0)); }

// Whether it ends by itself.
bool ends(pid_t child) {
  constexpr int kPatienceMs = 20'000;
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd waits{process.get(), POLLIN, 0};
  const bool ended = ::poll(&waits, 1, kPatienceMs) == 1;
  if (!ended) ::kill(child, SIGKILL);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && ended;
}

// One in some hundred found the lock of the first call taken, for ever. (Nothing is drawn by a
// seed.)
TEST(FirstCall, AThreadMayMakeItWhileAnotherForks) {
  for_each_seed(1000, [](uint64_t) {
    in_child([] {
      std::thread first(make_a_call);
      const pid_t child = ::fork();
      if (child == 0) {
        make_a_call();
        ::_exit(0);
      }
      EXPECT_TRUE(ends(child));
      first.join();
    });
  });
}

TEST(FirstCall, AHandlerOfForkMayMakeIt) {
  for (const bool in_the_parent : {false, true}) {
    in_child([in_the_parent] {
      ::pthread_atfork(in_the_parent ? make_a_call : nullptr, nullptr, make_a_call);
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      EXPECT_TRUE(ends(child));
    });
  }
}

}  // namespace
}  // namespace mercury
