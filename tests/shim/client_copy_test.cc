// Registered memory is copied in by whoever pushes and out by whoever collects, and nobody else
// waits for it: the copies here end when the test says so, however long the others take.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string>
#include <thread>

#include "tests/shim/client_fixture.h"

namespace mercury::testing {
namespace {

// Memory that a thread which reads or writes it sticks to, inside a signal handler, until it is let
// go: a copy that takes as long as the test wants.
class StickyMemory {
 public:
  StickyMemory() {
    void* memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<float*>(memory);
    EXPECT_EQ(::pipe2(stuck_, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(go_, O_CLOEXEC), 0);
    first_ = reinterpret_cast<uintptr_t>(memory);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    EXPECT_EQ(::sigaction(SIGSEGV, &action, &before_), 0);
  }
  ~StickyMemory() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    for (const int fd : {stuck_[0], stuck_[1], go_[0], go_[1]}) ::close(fd);
    ::munmap(memory_, kBytes);
  }
  StickyMemory(const StickyMemory&) = delete;
  StickyMemory& operator=(const StickyMemory&) = delete;

  float* data() const { return memory_; }
  void stick() { EXPECT_EQ(::mprotect(memory_, kBytes, PROT_NONE), 0); }
  static void until_a_thread_sticks() {
    char byte;
    EXPECT_EQ(::read(stuck_[0], &byte, 1), 1);
  }
  void let_go() {
    EXPECT_EQ(::mprotect(memory_, kBytes, PROT_READ | PROT_WRITE), 0);
    EXPECT_EQ(::write(go_[1], "", 1), 1);
  }

  static constexpr size_t kBytes = 16384;

 private:
  static void on_fault(int, siginfo_t* info, void*) {
    const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
    if (at < first_ || at >= first_ + kBytes) {
      ::signal(SIGSEGV, SIG_DFL);  // another one: the same access ends the program
      return;
    }
    char byte = 0;
    if (::write(stuck_[1], &byte, 1) != 1 || ::read(go_[0], &byte, 1) != 1) ::_exit(3);
  }

  static inline int stuck_[2];
  static inline int go_[2];
  static inline uintptr_t first_ = 0;
  float* memory_ = nullptr;
  struct sigaction before_ {};
};

class ClientCopy : public ClientTest {
 protected:
  static constexpr uint32_t kSticky = 1;
  static constexpr uint32_t kOther = 2;

  void SetUp() override {
    ClientTest::SetUp();
    ASSERT_EQ(mercury_register(context_, sticky_.data(), StickyMemory::kBytes), 0);
    declare(kSticky, sticky_.data());
    other_ = allocate();
    declare(kOther, other_);
    std::fill(sticky_.data(), sticky_.data() + kNumel, 5.0F);
  }
  // What another thread can do while one copies.
  void expect_that_others_go_on() {
    std::fill(other_, other_ + kNumel, 2.0F);
    mercury_handle handle = 0;
    ASSERT_EQ(mercury_push_pull(job_, kOther, 0, &handle), 0) << mercury_last_error();
    EXPECT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), 0);
    expect_all(other_, 2.0F * kWorkers);
    ASSERT_EQ(mercury_push_pull(job_, kOther, 0, nullptr), 0);
    collect(kOther);
    expect_all(other_, 2.0F * kWorkers * kWorkers);
    // And what it cannot.
    EXPECT_EQ(mercury_push_pull(job_, kSticky, 0, nullptr), -EBUSY);
    EXPECT_EQ(mercury_pull(job_, kSticky, 0, nullptr), -EINVAL);
    EXPECT_EQ(mercury_deregister(context_, sticky_.data()), -EBUSY);
  }
  // Polls until the completion of `tensor` came.
  void collect(uint32_t tensor) {
    mercury_completion done{};
    int n = 0;
    while ((n = mercury_poll(job_, &done, 1, sizeof(mercury_completion))) == 0)
      std::this_thread::yield();
    EXPECT_EQ(n, 1);
    EXPECT_EQ(done.tensor, tensor);
    EXPECT_EQ(done.status, 0);
  }
  // The daemon completes a round of the sticky tensor, whose sum nobody has collected.
  mercury_handle complete_sticky() {
    daemon_->hold(true);
    mercury_handle handle = 0;
    EXPECT_EQ(mercury_push_pull(job_, kSticky, 0, &handle), 0);
    sticky_.stick();
    daemon_->hold(false);
    return handle;
  }

  StickyMemory sticky_;
  float* other_ = nullptr;
};

TEST_F(ClientCopy, OthersGoOnWhileAPushCopies) {
  sticky_.stick();
  mercury_handle handle = 0;
  int pushed = 1;
  std::thread pusher([&] { pushed = mercury_push_pull(job_, kSticky, 0, &handle); });
  sticky_.until_a_thread_sticks();
  expect_that_others_go_on();
  EXPECT_NE(std::string(mercury_last_error()), "");
  uint32_t round = 0;
  EXPECT_EQ(mercury_tensor_get_round(job_, kSticky, &round), 0);
  EXPECT_EQ(round, 1U) << "not pushed yet";
  sticky_.let_go();
  pusher.join();
  ASSERT_EQ(pushed, 0);
  EXPECT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), 0);
  expect_all(sticky_.data(), 5.0F * kWorkers);
}

TEST_F(ClientCopy, OthersGoOnWhileAWaiterTakesASum) {
  const mercury_handle handle = complete_sticky();
  int waited = 1;
  std::thread waiter([&] { waited = mercury_wait(job_, handle, MERCURY_FOREVER); });
  sticky_.until_a_thread_sticks();
  expect_that_others_go_on();
  sticky_.let_go();
  waiter.join();
  EXPECT_EQ(waited, 0);
  expect_all(sticky_.data(), 5.0F * kWorkers);
}

TEST_F(ClientCopy, OthersGoOnWhileAPollerTakesASum) {
  const int fd = mercury_job_get_fd(job_);
  ASSERT_GE(fd, 0);
  complete_sticky();
  std::thread poller([&] { collect(kSticky); });
  sticky_.until_a_thread_sticks();
  expect_that_others_go_on();
  sticky_.let_go();
  poller.join();
  expect_all(sticky_.data(), 5.0F * kWorkers);
}

TEST_F(ClientCopy, OthersGoOnWhileASumIsTakenForACallback) {
  struct Seen {
    std::atomic<int> others{0};
    std::atomic<float> sum{0};
    const float* data;
  } seen;
  seen.data = sticky_.data();
  const auto callback = [](const mercury_completion* done, void* user) {
    auto* s = static_cast<Seen*>(user);
    if (done->tensor == kSticky) {
      s->sum = s->data[kNumel - 1];
    } else {
      ++s->others;
    }
  };
  ASSERT_EQ(mercury_job_set_callback(job_, callback, &seen), 0);
  const mercury_handle handle = complete_sticky();
  std::thread waiter([&] { EXPECT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), 0); });
  sticky_.until_a_thread_sticks();
  ASSERT_EQ(mercury_push_pull(job_, kOther, 0, nullptr), 0);
  while (seen.others == 0) EXPECT_EQ(mercury_poll(job_, nullptr, 0, sizeof(mercury_completion)), 0);
  EXPECT_EQ(seen.sum, 0.0F);
  sticky_.let_go();
  waiter.join();
  EXPECT_EQ(seen.sum, 5.0F * kWorkers) << "there before the callback is called";
}

TEST_F(ClientCopy, ClosingWaitsForAPushThatCopies) {
  sticky_.stick();
  int pushed = 1;
  std::thread pusher([&] { pushed = mercury_push_pull(job_, kSticky, 0, nullptr); });
  sticky_.until_a_thread_sticks();
  std::atomic<bool> closed{false};
  std::thread closer([&] {
    mercury_job_close(job_);
    closed = true;
  });
  mercury_handle handle = 0;
  int rc = 0;
  while ((rc = mercury_push_pull(job_, kOther, 0, &handle)) != -ESHUTDOWN) {
    if (rc == 0) rc = mercury_wait(job_, handle, MERCURY_FOREVER);
    // Closing had not begun; when it has before the wait, the handle is gone.
    ASSERT_TRUE(rc == 0 || rc == -ESHUTDOWN || rc == -ENOENT) << rc;
  }
  for (int i = 0; i < 1000; ++i) {  // whatever else closing does, it does meanwhile
    std::this_thread::yield();
    ASSERT_EQ(mercury_deregister(context_, sticky_.data()), -EBUSY);
    ASSERT_FALSE(closed);
  }
  sticky_.let_go();
  pusher.join();
  closer.join();
  EXPECT_EQ(pushed, -ESHUTDOWN);
  EXPECT_EQ(mercury_deregister(context_, sticky_.data()), 0);
}

TEST_F(ClientCopy, APushWhoseJobFailsMeanwhileSaysSo) {
  sticky_.stick();
  int pushed = 1;
  std::string text;
  std::thread pusher([&] {
    pushed = mercury_push_pull(job_, kSticky, 0, nullptr);
    text = mercury_last_error();
  });
  sticky_.until_a_thread_sticks();
  daemon_->fail_jobs(Errc::kPeerLeft, "worker 2 has left");
  mercury_handle handle = 0;
  ASSERT_EQ(mercury_push_pull(job_, kOther, 0, &handle), 0);
  EXPECT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), -ECONNRESET);
  sticky_.let_go();
  pusher.join();
  EXPECT_EQ(pushed, -ECONNRESET);
  EXPECT_NE(text.find("worker 2 has left"), std::string::npos) << text;
}

// Its memory is the program's again with its completion, not before.
TEST_F(ClientCopy, ASumThatNobodyHasCollectedIsNotOverwritten) {
  ASSERT_EQ(mercury_push_pull(job_, kSticky, 0, nullptr), 0);
  mercury_job_stats stats{};
  stats.size = sizeof stats;
  do {
    ASSERT_EQ(mercury_job_get_stats(job_, &stats), 0);
  } while (stats.operations == 0);
  EXPECT_EQ(mercury_push_pull(job_, kSticky, 0, nullptr), -EBUSY);
  EXPECT_EQ(std::string(mercury_last_error()), "tensor 1: its last sum has not been collected");
  collect(kSticky);
  expect_all(sticky_.data(), 5.0F * kWorkers);
  EXPECT_EQ(mercury_push_pull(job_, kSticky, 0, nullptr), 0);
  collect(kSticky);
}

}  // namespace
}  // namespace mercury::testing
