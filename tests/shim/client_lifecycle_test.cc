// Attaching, waiting by every means, and ends of all kinds: jobs, daemons, forked children.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "tests/shim/client_fixture.h"

namespace mercury::testing {
namespace {

int attach_error(const std::string& path, mercury_mode mode = MERCURY_MODE_DAEMON) {
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  options.mode = mode;
  options.socket = path.c_str();
  mercury_context* context = nullptr;
  const int rc = mercury_attach(&options, &context);
  if (rc == 0) mercury_detach(context);
  return rc;
}

TEST(ClientAttach, SaysWhyItCannot) {
  EXPECT_EQ(attach_error("/nowhere/stackd.sock"), -EPIPE);
  EXPECT_NE(std::string(mercury_last_error()).find("/nowhere/stackd.sock"), std::string::npos);
  EXPECT_EQ(attach_error(std::string(300, 'x')), -EINVAL);
  {
    TestDaemon::Options options;
    options.greeting = attach::Failed{Errc::kVersionMismatch, "too new"};
    TestDaemon daemon(options);
    EXPECT_EQ(attach_error(daemon.path()), -EPROTONOSUPPORT);
    EXPECT_EQ(attach_error(daemon.path(), MERCURY_MODE_AUTO), -EPROTONOSUPPORT)
        << "a daemon that refuses is not passed over";
    EXPECT_EQ(std::string(mercury_last_error()), "too new");
  }
  {
    TestDaemon::Options options;
    options.greeting = attach::HelloOk{2, "lies about its engines", 1};
    TestDaemon daemon(options);
    EXPECT_EQ(attach_error(daemon.path()), -EPROTO);
  }
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  EXPECT_EQ(mercury_attach(&options, nullptr), -EINVAL);
  mercury_context* context = nullptr;
  options.size = 3;
  EXPECT_EQ(mercury_attach(&options, &context), -EINVAL);
  mercury_detach(nullptr);
}

TEST(ClientAttach, ADaemonThatIsTooOldIsNamed) {
  TestDaemon::Options old;
  old.minor = attach::kLeastMinor - 1;
  TestDaemon daemon(old);
  EXPECT_EQ(attach_error(daemon.path()), -EPROTONOSUPPORT);
  EXPECT_NE(std::string(mercury_last_error()).find("mercury-stackd test speaks attach version 1.5"),
            std::string::npos)
      << mercury_last_error();
}

TEST(ClientAttach, FindsTheSocketInTheEnvironment) {
  TestDaemon daemon;
  ASSERT_EQ(::setenv("MERCURY_SOCKET", daemon.path().c_str(), 1), 0);
  mercury_context* context = nullptr;
  EXPECT_EQ(mercury_attach(nullptr, &context), 0) << mercury_last_error();
  EXPECT_EQ(mercury_context_get_mode(context), MERCURY_MODE_DAEMON);
  mercury_detach(context);
  ::unsetenv("MERCURY_SOCKET");
}

TEST(ClientAttach, DetachLeavesTheDaemonNothing) {
  TestDaemon daemon;
  for (int i = 0; i < 20; ++i) {
    mercury_context* context = attach_to(daemon);
    void* memory = nullptr;
    ASSERT_EQ(mercury_alloc(context, 4096, &memory), 0);
    EXPECT_EQ(daemon.regions(), 1U);
    mercury_detach(context);
    while (daemon.clients() > 0) std::this_thread::yield();
  }
}

class ClientJobOptions : public ::testing::Test {
 protected:
  ~ClientJobOptions() override { mercury_detach(context_); }  // closes the open jobs
  template <class Change>
  int opened(Change change) {
    mercury_job_options options = job_options();
    change(options);
    mercury_job* job = nullptr;
    const int rc = mercury_job_open(context_, &options, &job);
    mercury_job_close(job);
    return rc;
  }

  using O = mercury_job_options;
  TestDaemon daemon_;
  mercury_context* context_ = attach_to(daemon_);
};

TEST_F(ClientJobOptions, AreChecked) {
  EXPECT_EQ(opened([](O&) {}), 0);
  EXPECT_EQ(opened([](O& o) { o.size = 0; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.name = nullptr; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.name = "a b"; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.workers = 0; }), -EINVAL);
  EXPECT_EQ(
      std::string(mercury_last_error()),
      "no number of workers: set mercury_job_options.workers or MERCURY_WORKERS to 1 to 1024");
  EXPECT_EQ(opened([](O& o) { o.workers = 1025; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.servers = -1; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.rank = 3; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.weight = 0; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.timeout_ms = -2; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.timeout_ms = MERCURY_FOREVER; }), 0);
  EXPECT_EQ(daemon_.last_job().timeout_ms, 0x7fffffffU);
  EXPECT_EQ(opened([](O& o) { o.stall_timeout_ms = -2; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.stall_timeout_ms = 0; }), -EINVAL) << "there is one word for never";
  EXPECT_NE(std::string(mercury_last_error()).find("MERCURY_FOREVER"), std::string::npos);
  EXPECT_EQ(opened([](O& o) { o.stall_timeout_ms = MERCURY_FOREVER; }), 0);
  EXPECT_EQ(daemon_.last_job().terms.stall_timeout_ms, 0U) << "never";
  EXPECT_EQ(opened([](O& o) { o.rejoin_ms = MERCURY_FOREVER; }), 0);
  EXPECT_EQ(daemon_.last_job().terms.rejoin_ms, 0x7fffffffU);
  EXPECT_EQ(opened([](O& o) { o.stall_timeout_ms = 7; }), 0);
  EXPECT_EQ(daemon_.last_job().terms.stall_timeout_ms, 7U);
}

TEST_F(ClientJobOptions, RendezvousIsAListOfAddresses) {
  EXPECT_EQ(opened([](O& o) { o.rendezvous = nullptr; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.rendezvous = "10.0.0.1:x"; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.rendezvous = "10.0.0.1,"; }), -EINVAL);
  EXPECT_EQ(opened([](O& o) { o.rendezvous = "localhost:99,[::1]:7,10.0.0.1"; }), 0);
  const attach::JobOpen job = daemon_.last_job();
  ASSERT_EQ(job.rendezvous.size(), 3U);
  EXPECT_EQ(job.rendezvous[0].to_string(), "127.0.0.1:99");
  EXPECT_EQ(job.rendezvous[1].to_string(), "[::1]:7");
  EXPECT_EQ(job.rendezvous[2].to_string(), "10.0.0.1:7470");
}

TEST_F(ClientJobOptions, OfANewerHeaderMayBeLongerAsLongAsWhatIsNewIsZero) {
  struct Newer {
    mercury_job_options known;
    uint64_t unknown;
  } newer{job_options(), 0};
  newer.known.size = sizeof newer;
  mercury_job* opened_job = nullptr;
  EXPECT_EQ(mercury_job_open(context_, &newer.known, &opened_job), 0);
  newer.unknown = 1;
  mercury_job* refused = nullptr;
  EXPECT_EQ(mercury_job_open(context_, &newer.known, &refused), -EINVAL);
}

// It was shorter, and other memory may lie right behind it.
TEST_F(ClientJobOptions, OfTheFirstHeaderAreUnderstood) {
  struct Older {
    alignas(mercury_job_options) std::byte known[offsetof(mercury_job_options, rejoin_ms)];
    std::byte behind[64];
  } older;
  std::memset(&older, 0x55, sizeof older);
  auto* prefix = reinterpret_cast<mercury_job_options*>(older.known);
  mercury_job_options_init(prefix, sizeof older.known);
  EXPECT_EQ(prefix->size, sizeof older.known);
  EXPECT_EQ(prefix->timeout_ms, 30000);
  EXPECT_EQ(older.behind[0], std::byte{0x55}) << "not the program's struct any more";
  mercury_job_options wish = job_options();
  wish.size = sizeof older.known;
  std::memcpy(older.known, &wish, sizeof older.known);
  mercury_job* opened_job = nullptr;
  EXPECT_EQ(mercury_job_open(context_, prefix, &opened_job), 0) << mercury_last_error();
  EXPECT_EQ(daemon_.last_job().terms.rejoin_ms, 0U);
  EXPECT_EQ(daemon_.last_job().terms.quorum, 0U);
  EXPECT_EQ(daemon_.last_job().terms.stall_timeout_ms, 1'800'000U) << "not 0, which is never";
}

TEST(ClientJob, TheHostsRefusalIsTheCallersErrno) {
  TestDaemon::Options options;
  options.opening = attach::Failed{Errc::kMissingMembers, "worker 1 is missing"};
  TestDaemon daemon(options);
  mercury_context* context = attach_to(daemon);
  const mercury_job_options job_wish = job_options();
  mercury_job* job = nullptr;
  EXPECT_EQ(mercury_job_open(context, &job_wish, &job), -ETIME);
  EXPECT_EQ(std::string(mercury_last_error()), "worker 1 is missing");
  EXPECT_EQ(job, nullptr);
  mercury_detach(context);
}

class ClientLifecycle : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    data_ = allocate();
    declare(1, data_);
  }
  mercury_handle push_pull(uint32_t tensor = 1) {
    mercury_handle handle = 0;
    EXPECT_EQ(mercury_push_pull(job_, tensor, 0, &handle), 0) << mercury_last_error();
    return handle;
  }
  // With nothing in flight: an engine may still ring for what was collected before it came to ring,
  // but then no more.
  void expect_quiet(int fd) {
    for (int rings = 0; readable(fd, 0); ++rings) {
      mercury_completion done{};
      ASSERT_EQ(mercury_poll(job_, &done, 1, sizeof(mercury_completion)), 0);
      ASSERT_LE(rings, 2) << "one an engine";
    }
  }
  static bool readable(int fd, int timeout_ms) {
    pollfd p{fd, POLLIN, 0};
    return ::poll(&p, 1, timeout_ms) == 1;
  }
  float* data_ = nullptr;
};

TEST_F(ClientLifecycle, PollTakesWhatNobodyWaitedFor) {
  declare(2, allocate());
  const mercury_handle first = push_pull(1);
  const mercury_handle second = push_pull(2);
  ASSERT_EQ(mercury_wait(job_, second, MERCURY_FOREVER), 0);
  mercury_completion done{};
  while (mercury_poll(job_, &done, 1, sizeof(mercury_completion)) == 0) std::this_thread::yield();
  EXPECT_EQ(done.handle, first);
  EXPECT_EQ(done.status, 0);
  EXPECT_EQ(done.tensor, 1U);
  EXPECT_EQ(done.round, 1U);
  EXPECT_EQ(mercury_poll(job_, &done, 1, sizeof(mercury_completion)), 0);
  EXPECT_EQ(mercury_wait(job_, first, MERCURY_FOREVER), -ENOENT);
}

TEST_F(ClientLifecycle, TheEventDescriptorIsReadableWhileCompletionsWait) {
  const int fd = mercury_job_get_fd(job_);
  ASSERT_GE(fd, 0) << mercury_last_error();
  EXPECT_EQ(mercury_job_get_fd(job_), fd);
  EXPECT_FALSE(readable(fd, 0));  // no operation yet
  for (int round = 0; round < 500; ++round) {
    push_pull();
    mercury_completion done{};
    int n = 0;
    // Engines complete their parts one by one: it may be readable for half an operation.
    while (n == 0) {
      ASSERT_TRUE(readable(fd, kGenerousMs)) << "round " << round;
      n = mercury_poll(job_, &done, 1, sizeof(mercury_completion));
    }
    ASSERT_EQ(n, 1);
    expect_quiet(fd);
  }
  // Waiting by other means in between leaves it armed.
  ASSERT_EQ(mercury_wait(job_, push_pull(), MERCURY_FOREVER), 0);
  expect_quiet(fd);
  push_pull();
  EXPECT_TRUE(readable(fd, kGenerousMs));
}

TEST_F(ClientLifecycle, TwoJobsEachHaveTheirOwnEvents) {
  mercury_job* other = nullptr;
  const mercury_job_options options = job_options();
  ASSERT_EQ(mercury_job_open(context_, &options, &other), 0);
  const mercury_tensor_options tensor = tensor_options(1, allocate(), kNumel);
  ASSERT_EQ(mercury_declare(other, &tensor, 1), 0);
  const int mine = mercury_job_get_fd(job_);
  const int others = mercury_job_get_fd(other);
  ASSERT_EQ(mercury_push_pull(other, 1, 0, nullptr), 0);
  mercury_completion done{};
  while (!readable(others, 0)) std::this_thread::yield();
  // Whoever drains the rings hands the completion to the job that it belongs to.
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(mercury_poll(job_, &done, 1, sizeof(mercury_completion)), 0);
  while (mercury_poll(other, &done, 1, sizeof(mercury_completion)) == 0)
    ASSERT_TRUE(readable(others, kGenerousMs));
  expect_quiet(others);
  expect_quiet(mine);
  mercury_job_close(other);
}

struct Seen {
  mercury_job* job = nullptr;
  int calls = 0;
  int errors = 0;
  mercury_completion last{};
  void* told = nullptr;
};

TEST_F(ClientLifecycle, TheCallbackIsCalledOnceForEachOperation) {
  Seen seen;
  seen.job = job_;
  const auto callback = [](const mercury_completion* done, void* user) {
    auto* s = static_cast<Seen*>(user);
    ++s->calls;
    s->last = *done;
    s->told = user;
    if (done->status != 0) ++s->errors;
    // A callback may submit; it may not close its job.
    if (s->calls < 10 && mercury_push_pull(s->job, 1, 0, nullptr) != 0) ++s->errors;
    if (mercury_job_close(s->job) != -EBUSY) ++s->errors;
  };
  ASSERT_EQ(mercury_job_set_callback(job_, callback, &seen), 0);
  const mercury_handle handle = push_pull();
  EXPECT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), 0);
  mercury_completion none{};
  while (seen.calls < 10) EXPECT_EQ(mercury_poll(job_, &none, 1, sizeof(mercury_completion)), 0);
  EXPECT_EQ(seen.errors, 0);
  EXPECT_EQ(seen.told, &seen);
  EXPECT_EQ(seen.last.round, 10U);
  ASSERT_EQ(mercury_job_set_callback(job_, nullptr, nullptr), 0);
  EXPECT_EQ(mercury_wait(job_, push_pull(), MERCURY_FOREVER), 0);
  EXPECT_EQ(seen.calls, 10);
}

TEST_F(ClientLifecycle, ClosingAJobEndsItsOperationsAndItsWaiters) {
  daemon_->hold(true);
  const mercury_handle handle = push_pull();
  int rc = 1;
  std::thread waiter([&] { rc = mercury_wait(job_, handle, MERCURY_FOREVER); });
  std::thread member([&] { EXPECT_EQ(mercury_job_wait_end(job_, MERCURY_FOREVER), -ESHUTDOWN); });
  while (mercury_wait(job_, handle, 0) != -EBUSY || daemon_->waits() == 0) {
    std::this_thread::yield();  // until both are inside
  }
  mercury_job_close(job_);
  waiter.join();
  member.join();
  EXPECT_EQ(rc, -ESHUTDOWN);
  EXPECT_EQ(mercury_free(context_, data_), 0) << "no tensor lies in it any more";
}

TEST_F(ClientLifecycle, AMemberWaitsForTheEndOfTheJob) {
  EXPECT_EQ(mercury_job_wait_end(job_, 0), -ETIMEDOUT);
  EXPECT_EQ(mercury_job_wait_end(job_, 10), -ETIMEDOUT);
  std::thread ender([&] { daemon_->end_jobs(); });
  EXPECT_EQ(mercury_job_wait_end(job_, kGenerousMs), 0);
  ender.join();
}

TEST_F(ClientLifecycle, ADeadDaemonFailsEverythingAtOnce) {
  const int fd = mercury_job_get_fd(job_);
  declare(2, allocate());
  daemon_->hold(true);
  const mercury_handle waited = push_pull(1);
  const mercury_handle polled = push_pull(2);
  int rc = 1;
  std::thread waiter([&] { rc = mercury_wait(job_, waited, MERCURY_FOREVER); });
  std::thread member([&] { EXPECT_EQ(mercury_job_wait_end(job_, MERCURY_FOREVER), -EPIPE); });
  const auto start = std::chrono::steady_clock::now();
  daemon_->kill();
  waiter.join();
  member.join();
  EXPECT_EQ(rc, -EPIPE);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_TRUE(readable(fd, kGenerousMs));
  mercury_completion done{};
  EXPECT_EQ(mercury_poll(job_, &done, 1, sizeof(mercury_completion)), 1);
  EXPECT_EQ(done.handle, polled);
  EXPECT_EQ(done.status, -EPIPE);
  EXPECT_EQ(mercury_poll(job_, &done, 1, sizeof(mercury_completion)), 0);
  EXPECT_FALSE(readable(fd, 0)) << "nothing is left to collect";
  EXPECT_EQ(mercury_push_pull(job_, 1, 0, nullptr), -EPIPE);
  void* memory = nullptr;
  EXPECT_EQ(mercury_alloc(context_, size_t{1} << 30, &memory), -EPIPE);
  data_[0] = 1.0F;  // the program's memory stays its own
  mercury_job* job = nullptr;
  const mercury_job_options options = job_options();
  EXPECT_EQ(mercury_job_open(context_, &options, &job), -EPIPE);
}

// In seconds in which this program waits, each of which has its question: neither sooner nor later.
TEST_F(ClientLifecycle, ADaemonThatStandsStillIsGivenUpAfterElevenQuestions) {
  daemon_->hold(true);
  daemon_->say_nothing();
  const mercury_handle pushed = push_pull(1);
  EXPECT_EQ(mercury_wait(job_, pushed, MERCURY_FOREVER), -EPIPE);
  EXPECT_EQ(daemon_->questions(), 11);
}

// A daemon that ends closes the programs' jobs a moment before their sockets.
TEST_F(ClientLifecycle, ADaemonThatClosesTheProgramsJobHasGone) {
  daemon_->fail_jobs(Errc::kClosed, "no such job");
  EXPECT_EQ(mercury_wait(job_, push_pull(), MERCURY_FOREVER), -EPIPE);
  EXPECT_NE(std::string(mercury_last_error()).find("mercury-stackd has gone"), std::string::npos);
  EXPECT_EQ(mercury_push_pull(job_, 1, 0, nullptr), -EPIPE);
}

TEST_F(ClientLifecycle, AForkedChildIsInertAndMayAttachAgain) {
  const mercury_handle handle = push_pull();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int wrong = 0;
    void* memory = nullptr;
    wrong += mercury_push_pull(job_, 1, 0, nullptr) != -ENOTCONN;
    wrong += mercury_wait(job_, handle, 0) != -ENOTCONN;
    wrong += mercury_poll(job_, nullptr, 0, sizeof(mercury_completion)) != -ENOTCONN;
    wrong += mercury_alloc(context_, 1, &memory) != -ENOTCONN;
    wrong += mercury_job_get_fd(job_) != -ENOTCONN;
    mercury_job_close(job_);
    mercury_detach(context_);
// One knows no new threads in the child of a program with threads; the other's allocator may be
// locked there for ever, by a thread that allocated as much as attaching does.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    mercury_context* fresh = nullptr;
    mercury_attach_options options;
    mercury_attach_options_init(&options, sizeof options);
    const std::string path = daemon_->path();
    options.mode = MERCURY_MODE_DAEMON;
    options.socket = path.c_str();
    wrong += mercury_attach(&options, &fresh) != 0;
    wrong += mercury_alloc(fresh, 1, &memory) != 0;
    mercury_detach(fresh);
#endif
    ::_exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(mercury_wait(job_, handle, kGenerousMs), 0) << "the parent goes on";
}

TEST_F(ClientLifecycle, ManyThreadsShareAContext) {
  constexpr uint32_t kThreads = 6;
  constexpr int kRounds = 300;
  for (uint32_t t = 0; t < kThreads; ++t) declare(100 + t, allocate(64), 64);
  std::vector<std::thread> threads;
  std::vector<int> failures(kThreads, 0);
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        mercury_handle handle = 0;
        if (mercury_push_pull(job_, 100 + t, 0, &handle) != 0) ++failures[t];
        if (t % 3 == 0 && round % 2 == 0) {
          // Poll may also take what others submitted and do not wait for: here nobody's.
          while (mercury_wait(job_, handle, 0) == -ETIMEDOUT) {
          }
        } else if (mercury_wait(job_, handle, kGenerousMs) != 0) {
          ++failures[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, std::vector<int>(kThreads, 0));
}

TEST_F(ClientLifecycle, AWaiterIsNotLeftBehindByAPollerThatTookItsCompletion) {
  std::atomic<bool> stop{false};
  std::thread poller([&] {
    mercury_completion done{};
    while (!stop) EXPECT_EQ(mercury_poll(job_, &done, 1, sizeof(mercury_completion)), 0);
  });
  // The handle is not waited for until mercury_wait is inside, so hold the completion until then.
  for (int round = 0; round < 50; ++round) {
    daemon_->hold(true);
    const mercury_handle handle = push_pull();
    std::thread releaser([&] {
      while (mercury_wait(job_, handle, 0) == -ETIMEDOUT) std::this_thread::yield();
      daemon_->hold(false);
    });
    int rc = -EBUSY;
    while (rc == -EBUSY) rc = mercury_wait(job_, handle, kGenerousMs);
    EXPECT_EQ(rc, 0);
    releaser.join();
  }
  stop = true;
  poller.join();
}

}  // namespace
}  // namespace mercury::testing
