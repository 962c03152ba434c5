// What a frame costs the sending thread when io_uring copies its payload (SENDMSG) and when it
// sends it from where it lies (SENDMSG_ZC): nanoseconds of CPU time a frame, and how much of the
// zero-copy payload the kernel copied all the same. Runs alternate; medians and spreads.
//
//   build/benchmarks/goodput/uring_zero_copy_bench                  over loopback
//   ... --receive 10.0.0.2:7000    in one network namespace, and    over what is between them
//   ... --send 10.0.0.2:7000       in the other
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "apps/command_line.h"
#include "transport/base/endpoint.h"
#include "transport/base/mapped_memory.h"

// Linux 6.2; Debian 12's headers are older.
#ifndef IORING_SEND_ZC_REPORT_USAGE
#define IORING_SEND_ZC_REPORT_USAGE (1U << 3)
#endif
#ifndef IORING_NOTIF_USAGE_ZC_COPIED
#define IORING_NOTIF_USAGE_ZC_COPIED (1U << 31)
#endif

namespace {

constexpr uint32_t kSends = 32;  // under way at a time
constexpr uint32_t kMostBytes = 65'000;
constexpr int kSocketBufferBytes = 8 << 20;
constexpr int kRuns = 7;

void check(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(1);
}

sockaddr_in address_of(const mercury::Endpoint& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  const auto bytes = endpoint.ip.v4_bytes();
  std::memcpy(&address.sin_addr, bytes.data(), bytes.size());
  return address;
}

int udp_socket() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  check(fd >= 0, "socket");
  for (int option : {SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_SNDBUF, SO_RCVBUF}) {
    setsockopt(fd, SOL_SOCKET, option, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  }
  return fd;
}

// Takes what comes and looks at none of it, so that the sender's socket is all that is measured.
void receive(int fd, const std::atomic<bool>& stop) {
  const timeval wait{0, 100'000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  const int on = 1;
  setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof on);
  char byte;
  while (!stop.load(std::memory_order_relaxed)) recv(fd, &byte, 1, MSG_TRUNC);
}

struct Cost {
  double ns_per_frame = 0;
  double copied = 0;  // share of zero-copy sends that the kernel copied
};

class Sender {
 public:
  explicit Sender(const mercury::Endpoint& to) : to_(address_of(to)), fd_(udp_socket()) {
    check(io_uring_queue_init(2 * kSends, &ring_, 0) == 0, "io_uring_queue_init");
    check(static_cast<bool>(memory_), "mmap");
  }
  ~Sender() {
    io_uring_queue_exit(&ring_);
    ::close(fd_);
  }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // `frames` frames of `payload_bytes`, `batch` of them to a send (GSO).
  Cost run(bool zero_copy, uint32_t payload_bytes, uint32_t batch, uint32_t frames) {
    const uint32_t sends = frames / batch;
    uint32_t started = 0, copied = 0;
    std::vector<uint32_t> free(kSends);
    for (uint32_t i = 0; i < kSends; ++i) free[i] = i;
    const double begin_ns = thread_ns();
    while (started < sends || free.size() < kSends) {
      for (; started < sends && !free.empty(); ++started) {
        start(free.back(), zero_copy, payload_bytes, batch);
        free.pop_back();
      }
      check(io_uring_submit_and_wait(&ring_, 1) >= 0, "io_uring_submit_and_wait");
      io_uring_cqe* cqe = nullptr;
      while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
        const bool notice = (cqe->flags & IORING_CQE_F_NOTIF) != 0;
        if (!notice && cqe->res < 0) check((errno = -cqe->res, false), "send");
        // A zero-copy send ends with its second completion, which says that the memory is free.
        if ((cqe->flags & IORING_CQE_F_MORE) == 0) {
          free.push_back(static_cast<uint32_t>(io_uring_cqe_get_data64(cqe)));
        }
        if (notice && (static_cast<uint32_t>(cqe->res) & IORING_NOTIF_USAGE_ZC_COPIED)) ++copied;
        io_uring_cqe_seen(&ring_, cqe);
      }
    }
    return {(thread_ns() - begin_ns) / (sends * batch), static_cast<double>(copied) / sends};
  }

 private:
  struct Send {
    msghdr message{};
    iovec part{};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(uint16_t))> control{};
  };

  static double thread_ns() {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) * 1e9 + static_cast<double>(used.tv_nsec);
  }

  void start(uint32_t index, bool zero_copy, uint32_t payload_bytes, uint32_t batch) {
    Send& send = sends_[index];
    std::byte* const memory = memory_.data() + size_t{index} * kMostBytes;
    for (uint32_t i = 0; i < batch; ++i)
      std::memset(memory + i * payload_bytes, static_cast<int>(index), 48);
    send.part = {memory, size_t{payload_bytes} * batch};
    send.message = {};
    send.message.msg_name = &to_;
    send.message.msg_namelen = sizeof to_;
    send.message.msg_iov = &send.part;
    send.message.msg_iovlen = 1;
    if (batch > 1) {
      send.message.msg_control = send.control.data();
      send.message.msg_controllen = send.control.size();
      cmsghdr* const control = CMSG_FIRSTHDR(&send.message);
      control->cmsg_level = SOL_UDP;
      control->cmsg_type = UDP_SEGMENT;
      control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
      const auto segment = static_cast<uint16_t>(payload_bytes);
      std::memcpy(CMSG_DATA(control), &segment, sizeof segment);
    }
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    if (zero_copy) {
      io_uring_prep_sendmsg_zc(sqe, fd_, &send.message, 0);
      sqe->ioprio = IORING_SEND_ZC_REPORT_USAGE;
    } else {
      io_uring_prep_sendmsg(sqe, fd_, &send.message, 0);
    }
    io_uring_sqe_set_data64(sqe, index);
  }

  sockaddr_in to_;
  int fd_;
  io_uring ring_{};
  mercury::MappedMemory memory_ = mercury::MappedMemory::anonymous(
      size_t{kSends} * kMostBytes, PROT_READ | PROT_WRITE, MAP_POPULATE);
  std::array<Send, kSends> sends_{};
};

struct Spread {
  double median, least, most;
};
Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

void compare(Sender& sender, uint32_t payload_bytes, uint32_t batch, uint32_t frames) {
  std::vector<double> copy, zero, ratio;
  double copied = 0;
  for (int run = 0; run < kRuns; ++run) {
    copy.push_back(sender.run(false, payload_bytes, batch, frames).ns_per_frame);
    const Cost cost = sender.run(true, payload_bytes, batch, frames);
    zero.push_back(cost.ns_per_frame);
    copied += cost.copied / kRuns;
    ratio.push_back(zero.back() / copy.back());
  }
  const Spread spread = spread_of(ratio);
  std::printf("%9u %6u %14.0f %14.0f %8.2f (%.2f to %.2f) %9.0f %%\n", payload_bytes, batch,
              spread_of(copy).median, spread_of(zero).median, spread.median, spread.least,
              spread.most, 100 * copied);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"The CPU time of sending with and without a copy, through io_uring"};
  std::string send, receive_at;
  uint32_t frames = 100'000;
  app.add_option("--send", send, "ADDRESS:PORT of the receiver");
  app.add_option("--receive", receive_at, "be the receiver, at ADDRESS:PORT, until killed");
  app.add_option("--frames", frames, "frames of a run")->capture_default_str();
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  const auto at = mercury::Endpoint::parse(!receive_at.empty() ? receive_at
                                           : !send.empty()     ? send
                                                               : "127.0.0.1:17999");
  check(at.has_value() && at->ip.is_v4(), "an IPv4 ADDRESS:PORT");
  std::atomic<bool> stop = false;
  std::thread receiver;
  if (send.empty()) {
    const int fd = udp_socket();
    const sockaddr_in address = address_of(*at);
    check(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "bind");
    if (!receive_at.empty()) receive(fd, stop);
    receiver = std::thread([fd, &stop] {
      receive(fd, stop);
      ::close(fd);
    });
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("CPU time of the sending thread, %d alternating runs of %u frames\n", kRuns, frames);
  std::printf("%9s %6s %14s %14s %8s %26s\n", "payload B", "batch", "copy ns/frame", "zc ns/frame",
              "zc/copy", "copied by the kernel");
  Sender sender(*at);
  for (uint32_t payload_bytes : {1400u, 8900u}) {
    for (uint32_t batch : {1u, std::min(64u, kMostBytes / payload_bytes)}) {
      compare(sender, payload_bytes, batch, frames);
    }
  }
  stop = true;
  if (receiver.joinable()) receiver.join();
}
