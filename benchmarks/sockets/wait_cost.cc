// What epoll_wait and poll cost that have something to tell at once: to be run by itself and by
// mercury-run. Prints nanoseconds of a call, the least of some series.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

namespace {

constexpr int kSeries = 15;
constexpr int kCalls = 200'000;

template <class Call>
double least_ns(Call call) {
  double least = std::numeric_limits<double>::max();
  for (int series = 0; series < kSeries; ++series) {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
      if (call() != 1) return -1;
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
    least = std::min(least, took.count() / kCalls);
  }
  return least;
}

}  // namespace

int main() {
  const int ready = eventfd(1, EFD_CLOEXEC);
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (ready < 0 || epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, ready, &event) != 0) {
    std::perror("wait_cost");
    return 1;
  }
  pollfd asked{ready, POLLIN, 0};
  for (const int timeout_ms : {-1, 1000}) {
    std::printf("time-out %d ms: epoll_wait %.1f ns, poll %.1f ns\n", timeout_ms,
                least_ns([&] { return epoll_wait(epoll, &event, 1, timeout_ms); }),
                least_ns([&] { return poll(&asked, 1, timeout_ms); }));
  }
}
