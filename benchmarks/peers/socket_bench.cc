// The least that a program makes of the kernel's TCP with one thread: by epoll, and by io_uring.
// One connection; what arrives is counted and not looked at. Each end prints one JSON object.
//
//   socket_bench epoll|io_uring pull|push|reply|request ADDRESS PORT TIMES BYTES [TOS [MBIT]]
//
// pull and reply listen. pull: how many bytes came after the first ones, and in how many seconds.
// request: one message under way at a time, and its reply as long. TOS is that of what this end
// sends; push and request send MBIT a second at most, where there is one, and else as fast as they
// can.
#include <arpa/inet.h>
#include <fcntl.h>
#include <liburing.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "benchmarks/sockets/cpu_time.h"
#include "benchmarks/sockets/pace.h"

namespace {

using mercury::bench::cpu_seconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 256 << 10;  // what one call takes, as mercury-perf's
constexpr int kSecondsToConnect = 10;
constexpr unsigned kEntries = 8;  // of the rings: sends under way at a time, which keep their order

[[noreturn]] void fail(const char* what, int error) {
  std::fprintf(stderr, "socket_bench: %s: %s\n", what, std::strerror(error));
  std::exit(1);
}
void check(bool good, const char* what) {
  if (!good) fail(what, errno);
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class ByEpoll {
 public:
  explicit ByEpoll(int fd) : fd_(fd), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    check(epoll_ >= 0, "epoll_create1");
    check(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "fcntl");
    // Edges: one call for all that is to be known of this connection.
    epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {}};
    check(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
  }
  ~ByEpoll() { close(epoll_); }
  ByEpoll(const ByEpoll&) = delete;
  ByEpoll& operator=(const ByEpoll&) = delete;

  // At least one; 0 at the end of the stream.
  size_t receive(std::span<std::byte> buffer) {
    for (;;) {
      const ssize_t got = recv(fd_, buffer.data(), buffer.size(), 0);
      if (got >= 0) return static_cast<size_t>(got);
      wait("recv");
    }
  }
  void send_block(std::span<const std::byte> block) {
    while (!block.empty()) {
      const ssize_t sent = send(fd_, block.data(), block.size(), MSG_NOSIGNAL);
      if (sent < 0) {
        wait("send");
      } else {
        block = block.subspan(static_cast<size_t>(sent));
      }
    }
  }
  void finish() {}

 private:
  void wait(const char* what) {
    check(errno == EAGAIN || errno == EINTR, what);
    epoll_event event{};
    check(epoll_wait(epoll_, &event, 1, -1) >= 0 || errno == EINTR, "epoll_wait");
  }

  int fd_;
  int epoll_;
};

class ByUring {
 public:
  explicit ByUring(int fd) : fd_(fd) {
    io_uring_params parameters{};
    parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    const int made = io_uring_queue_init_params(kEntries, &ring_, &parameters);
    if (made < 0) fail("io_uring_queue_init", -made);
  }
  ~ByUring() { io_uring_queue_exit(&ring_); }
  ByUring(const ByUring&) = delete;
  ByUring& operator=(const ByUring&) = delete;

  size_t receive(std::span<std::byte> buffer) {
    io_uring_prep_recv(io_uring_get_sqe(&ring_), fd_, buffer.data(), buffer.size(), 0);
    return static_cast<size_t>(complete("recv", 1));
  }
  // A chain of as many as the ring holds is submitted at once: the kernel sends one after another.
  void send_block(std::span<const std::byte> block) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_send(entry, fd_, block.data(), block.size(), MSG_NOSIGNAL | MSG_WAITALL);
    block_bytes_ = block.size();
    if (last_ != nullptr) last_->flags |= static_cast<uint8_t>(IOSQE_IO_LINK);
    last_ = entry;
    if (++waiting_ == kEntries) finish();
  }
  void finish() {
    last_ = nullptr;
    for (; waiting_ > 0; --waiting_) {
      if (static_cast<size_t>(complete("send", waiting_)) != block_bytes_) fail("send", EPIPE);
    }
  }

 private:
  // The next result; if there is none yet, submits what is to be and waits for as many as `wanted`.
  int complete(const char* what, unsigned wanted) {
    io_uring_cqe* done = nullptr;
    while (io_uring_peek_cqe(&ring_, &done) != 0) {
      const int status = io_uring_submit_and_wait(&ring_, wanted);
      if (status < 0 && status != -EINTR) fail("io_uring_submit_and_wait", -status);
    }
    const int result = done->res;
    io_uring_cqe_seen(&ring_, done);
    if (result < 0) fail(what, -result);
    return result;
  }

  int fd_;
  io_uring ring_{};
  unsigned waiting_ = 0;  // sends that have not been completed
  size_t block_bytes_ = 0;
  io_uring_sqe* last_ = nullptr;  // of the chain
};

struct Run {
  std::string_view side;
  sockaddr_in address{};
  size_t times = 0;
  size_t bytes = 0;
  int tos = 0;
  double mbit = 0;
};

int connection(const Run& run) {
  const bool listens = run.side == "pull" || run.side == "reply";
  const auto* name = reinterpret_cast<const sockaddr*>(&run.address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check(fd >= 0, "socket");
  const int yes = 1;
  int connected = fd;
  if (run.tos != 0) {
    check(setsockopt(fd, IPPROTO_IP, IP_TOS, &run.tos, sizeof run.tos) == 0, "IP_TOS");
  }
  if (listens) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    check(bind(fd, name, sizeof run.address) == 0 && listen(fd, 1) == 0, "listen");
    connected = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
    check(connected >= 0, "accept");
    close(fd);
  } else {
    const timeval limit{kSecondsToConnect, 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    check(connect(fd, name, sizeof run.address) == 0, "connect");
    const timeval none{};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
  }
  setsockopt(connected, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return connected;
}

template <typename Way>
void receive_all(Way& way, std::span<std::byte> message) {
  while (!message.empty()) {
    const size_t got = way.receive(message);
    if (got == 0) fail("recv", ECONNRESET);
    message = message.subspan(got);
  }
}

template <typename Way>
void pull(Way& way, const Run& run) {
  std::vector<std::byte> buffer(kReadBytes);
  const size_t all = run.times * run.bytes;
  const size_t first = way.receive(buffer);
  const auto begin = Clock::now();
  size_t got = first;
  while (const size_t more = way.receive(buffer)) got += more;
  if (got != all) fail("the stream has another length", EPROTO);
  std::printf("{\"seconds\": %.9f, \"bytes\": %zu, \"cpu_s\": %.6f}\n", seconds_since(begin),
              got - first, cpu_seconds());
}

template <typename Way>
void push(Way& way, const Run& run) {
  const std::vector<std::byte> block(run.bytes);
  mercury::bench::Pace pace(run.mbit, run.bytes);
  for (size_t i = 0; i < run.times; ++i) {
    way.send_block(block);
    if (pace.waits()) way.finish();
    pace.wait();
  }
  way.finish();
  std::printf("{\"cpu_s\": %.6f}\n", cpu_seconds());
}

template <typename Way>
void reply(Way& way, const Run& run) {
  std::vector<std::byte> message(run.bytes);
  for (size_t i = 0; i < run.times; ++i) {
    receive_all(way, message);
    way.send_block(message);
    way.finish();
  }
  std::printf("{\"cpu_s\": %.6f}\n", cpu_seconds());
}

template <typename Way>
void request(Way& way, const Run& run) {
  const std::vector<std::byte> question(run.bytes);
  std::vector<std::byte> answer(run.bytes);
  std::vector<double> took;
  mercury::bench::Pace pace(run.mbit, run.bytes);
  for (size_t i = 0; i < run.times; ++i) {
    pace.wait_since_last();
    const auto asked = Clock::now();
    way.send_block(question);
    way.finish();
    receive_all(way, answer);
    if (i >= run.times / 10) took.push_back(seconds_since(asked));  // the first warm up
  }
  std::sort(took.begin(), took.end());
  const auto at = [&](double part) {
    return 1e6 * took[static_cast<size_t>(part * static_cast<double>(took.size() - 1))];
  };
  std::printf("{\"p50_us\": %.1f, \"p99_us\": %.1f, \"most_us\": %.1f, \"cpu_s\": %.6f}\n", at(0.5),
              at(0.99), at(1), cpu_seconds());
}

template <typename Way>
bool run_by(const Run& run) {
  const int fd = connection(run);
  {
    Way way(fd);
    if (run.side == "pull") pull(way, run);
    if (run.side == "push") push(way, run);
    if (run.side == "reply") reply(way, run);
    if (run.side == "request") request(way, run);
  }
  close(fd);
  return true;
}

bool is_side(std::string_view side) {
  return side == "pull" || side == "push" || side == "reply" || side == "request";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 7 && argc <= 9 && is_side(argv[2])) {
    const std::string_view way = argv[1];
    Run run{.side = argv[2],
            .times = std::strtoul(argv[5], nullptr, 10),
            .bytes = std::strtoul(argv[6], nullptr, 10),
            .tos = argc > 7 ? std::atoi(argv[7]) : 0,
            .mbit = argc > 8 ? std::atof(argv[8]) : 0};
    run.address.sin_family = AF_INET;
    run.address.sin_port = htons(static_cast<uint16_t>(std::strtoul(argv[4], nullptr, 10)));
    const bool addressed = inet_pton(AF_INET, argv[3], &run.address.sin_addr) == 1;
    if (addressed && run.times > 0 && run.bytes > 0) {
      if (way == "epoll") return run_by<ByEpoll>(run) ? 0 : 1;
      if (way == "io_uring") return run_by<ByUring>(run) ? 0 : 1;
    }
  }
  std::fprintf(stderr,
               "usage: socket_bench epoll|io_uring pull|push|reply|request ADDRESS PORT TIMES "
               "BYTES [TOS [MBIT]]\n");
  return 2;
}
