// Closing a context, or detaching, while other threads are inside calls that block.
#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "tests/shim/client_fixture.h"

namespace mercury::testing {
namespace {

TestDaemon::Options without_members() {
  TestDaemon::Options options;
  options.opens = false;
  return options;
}

// Opens a job that nobody else joins, on a thread; inside the call when the constructor returns.
class Opener {
 public:
  Opener(TestDaemon& daemon, mercury_context* context)
      : thread_([this, context] {
          const mercury_job_options options = job_options();
          mercury_job* job = nullptr;
          result_ = mercury_job_open(context, &options, &job);
          EXPECT_EQ(job, nullptr);
          text_ = mercury_last_error();
        }) {
    while (daemon.opens() == 0) std::this_thread::yield();
  }
  void expect_closed() {
    thread_.join();
    EXPECT_EQ(result_, -ESHUTDOWN);
    EXPECT_EQ(text_, "the context has been closed");
  }

 private:
  int result_ = 0;
  std::string text_;
  std::thread thread_;
};

TEST(ClientClose, DetachingEndsWhoOpensAJobAndAwaitsIt) {
  TestDaemon daemon(without_members());
  mercury_context* context = attach_to(daemon);
  Opener opener(daemon, context);
  EXPECT_EQ(mercury_detach(context), 0);
  opener.expect_closed();
}

TEST(ClientClose, AClosedContextRefusesWhoComesLateAndKeepsItsMemory) {
  TestDaemon daemon(without_members());
  mercury_context* context = attach_to(daemon);
  void* memory = nullptr;
  ASSERT_EQ(mercury_alloc(context, 4096, &memory), 0);
  Opener opener(daemon, context);
  EXPECT_EQ(mercury_context_close(context), 0);
  opener.expect_closed();
  const mercury_job_options options = job_options();
  mercury_job* job = nullptr;
  EXPECT_EQ(mercury_job_open(context, &options, &job), -ESHUTDOWN);
  EXPECT_EQ(daemon.opens(), 1) << "nobody was asked";
  EXPECT_EQ(mercury_context_get_mode(context), MERCURY_MODE_DAEMON);
  static_cast<char*>(memory)[4095] = 1;
  EXPECT_EQ(mercury_free(context, memory), 0) << mercury_last_error();
  EXPECT_EQ(mercury_context_close(context), 0) << "again";
  EXPECT_EQ(mercury_context_close(nullptr), 0);
  EXPECT_EQ(mercury_detach(context), 0);
}

class ClientCloseOfAJob : public ClientTest {
 protected:
  TestDaemon::Options daemon_options() const override {
    TestDaemon::Options options;
    options.declares = false;
    return options;
  }
  void TearDown() override {
    mercury_detach(context_);
    context_ = nullptr;
  }
};

TEST_F(ClientCloseOfAJob, EndsWhateverBlocksOnItsJobs) {
  float* const data = allocate();
  std::thread declarer([&] {
    const mercury_tensor_options options = tensor_options(1, data, kNumel);
    EXPECT_EQ(mercury_declare(job_, &options, 1), -ESHUTDOWN);
  });
  std::thread in_barrier([&] { EXPECT_EQ(mercury_barrier(job_, MERCURY_FOREVER), -ESHUTDOWN); });
  std::thread member([&] { EXPECT_EQ(mercury_job_wait_end(job_, MERCURY_FOREVER), -ESHUTDOWN); });
  while (daemon_->declarations() < 2 || daemon_->waits() == 0) std::this_thread::yield();
  EXPECT_EQ(mercury_context_close(context_), 0);
  declarer.join();
  in_barrier.join();
  member.join();
  EXPECT_EQ(mercury_free(context_, data), 0) << "no tensor lies in it any more";
}

// The job's number may be another job's by then.
TEST_F(ClientTest, WhoHasFoundItsMemoryWhenTheJobIsClosedDeclaresNothing) {
  std::vector<float> mine(kNumel);
  ASSERT_EQ(mercury_register(context_, mine.data(), kNumel * sizeof(float)), 0);
  daemon_->hold_regions(true);
  std::thread declarer([&] {
    const mercury_tensor_options options = tensor_options(1, mine.data(), kNumel);
    EXPECT_EQ(mercury_declare(job_, &options, 1), -ESHUTDOWN);
  });
  while (daemon_->regions() == 0) std::this_thread::yield();  // for what the daemon sees of it
  std::thread closer([&] { EXPECT_EQ(mercury_job_close(job_), 0); });
  while (mercury_push_pull(job_, 1, 0, nullptr) != -ESHUTDOWN) std::this_thread::yield();
  daemon_->hold_regions(false);
  declarer.join();
  closer.join();
  EXPECT_EQ(daemon_->declarations(), 0);
  EXPECT_EQ(mercury_deregister(context_, mine.data()), 0) << mercury_last_error();
}

// An event loop hears of it, and watches no other file under its number.
TEST_F(ClientTest, TheDescriptorOfAClosedContextsJobStaysAndIsReadable) {
  pollfd watched{mercury_job_get_fd(job_), POLLIN, 0};
  ASSERT_GE(watched.fd, 0) << mercury_last_error();
  EXPECT_EQ(::poll(&watched, 1, 0), 0);
  std::thread loop([&] { EXPECT_EQ(::poll(&watched, 1, -1), 1); });
  EXPECT_EQ(mercury_context_close(context_), 0);
  loop.join();
  EXPECT_EQ(watched.revents, POLLIN);
  for (int turn = 0; turn < 2; ++turn) {
    mercury_completion done{};
    EXPECT_EQ(mercury_poll(job_, &done, 1, sizeof done), -ESHUTDOWN);
    EXPECT_EQ(::poll(&watched, 1, 0), 1) << "it can still be watched";
    EXPECT_EQ(watched.revents, POLLIN);
  }
  EXPECT_EQ(mercury_job_close(job_), 0);
  EXPECT_EQ(::poll(&watched, 1, 0), 1);
  EXPECT_EQ(watched.revents, POLLNVAL);
}

// As a thread does that does not know of it yet.
TEST_F(ClientTest, JobsOfAClosedContextRefuseEveryCallUntilTheyAreClosed) {
  float* const data = allocate();
  declare(1, data);
  declare(2, allocate());
  daemon_->hold(true);
  mercury_handle handle = 0;
  ASSERT_EQ(mercury_push_pull(job_, 1, 0, &handle), 0) << mercury_last_error();
  EXPECT_EQ(mercury_context_close(context_), 0);
  const mercury_tensor_options tensor = tensor_options(3, data, kNumel);
  EXPECT_EQ(mercury_declare(job_, &tensor, 1), -ESHUTDOWN);
  EXPECT_EQ(mercury_push_pull(job_, 2, 0, nullptr), -ESHUTDOWN);
  EXPECT_EQ(mercury_barrier(job_, MERCURY_FOREVER), -ESHUTDOWN);
  EXPECT_EQ(mercury_job_wait_end(job_, MERCURY_FOREVER), -ESHUTDOWN);
  EXPECT_EQ(mercury_job_get_status(job_, nullptr, 0), -ESHUTDOWN);
  EXPECT_EQ(mercury_job_set_policy(job_, "p3"), -ESHUTDOWN);
  EXPECT_EQ(mercury_job_get_fd(job_), -ESHUTDOWN);
  EXPECT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), -ENOENT);
  EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), -ESHUTDOWN) << "the sum never came";
  mercury_completion done{};
  EXPECT_EQ(mercury_poll(job_, &done, 1, sizeof done), -ESHUTDOWN);
  uint32_t round = 0;
  EXPECT_EQ(mercury_tensor_get_round(job_, 1, &round), -ENOENT);
  mercury_contributors contributors;
  mercury_contributors_init(&contributors, sizeof contributors);
  EXPECT_EQ(mercury_tensor_get_contributors(job_, 1, &contributors), -ENOENT);
  EXPECT_EQ(mercury_job_get_workers(job_), kWorkers);
  EXPECT_EQ(mercury_free(context_, data), 0) << mercury_last_error();
  EXPECT_EQ(mercury_job_close(job_), 0);
}

// A callback of one job that blocks on another job of the context, or on one that it opens.
class ClientCloseAmidCallback : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    const mercury_job_options options = job_options(kWorkers);
    ASSERT_EQ(mercury_job_open(context_, &options, &second_), 0) << mercury_last_error();
    declare(1, allocate());
  }
  void TearDown() override {
    mercury_detach(context_);
    context_ = nullptr;
  }
  void calls(mercury_callback callback) {
    ASSERT_EQ(mercury_job_set_callback(job_, callback, this), 0);
    ASSERT_EQ(mercury_push_pull(job_, 1, 0, &handle_), 0) << mercury_last_error();
  }
  static void await_second(const mercury_completion*, void* test) {
    auto* t = static_cast<ClientCloseAmidCallback*>(test);
    t->result_ = mercury_job_wait_end(t->second_, MERCURY_FOREVER);
  }
  static void open_third(const mercury_completion*, void* test) {
    auto* t = static_cast<ClientCloseAmidCallback*>(test);
    const mercury_job_options options = job_options(kWorkers);
    mercury_job* third = nullptr;
    t->result_ = mercury_job_open(t->context_, &options, &third);
  }

  mercury_job* second_ = nullptr;
  mercury_handle handle_ = 0;
  int result_ = 0;
};

TEST_F(ClientCloseAmidCallback, EndsTheOtherJobBeforeItAwaitsTheFirstOnes) {
  calls(await_second);
  std::thread waiter([&] { EXPECT_EQ(mercury_wait(job_, handle_, MERCURY_FOREVER), 0); });
  while (daemon_->waits() == 0) std::this_thread::yield();
  EXPECT_EQ(mercury_context_close(context_), 0);
  waiter.join();
  EXPECT_EQ(result_, -ESHUTDOWN);
}

// The completion that closing makes, on the thread that closes.
TEST_F(ClientCloseAmidCallback, CallsBackWhenAllJobsWereLeft) {
  daemon_->hold(true);
  calls(await_second);
  EXPECT_EQ(mercury_context_close(context_), 0);
  EXPECT_EQ(result_, -ESHUTDOWN);
}

TEST_F(ClientCloseAmidCallback, EndsTheOpeningOfAThirdJob) {
  daemon_->hold_opens(true);
  calls(open_third);
  std::thread waiter([&] { EXPECT_EQ(mercury_wait(job_, handle_, MERCURY_FOREVER), 0); });
  while (daemon_->opens() < 3) std::this_thread::yield();
  EXPECT_EQ(mercury_context_close(context_), 0);
  waiter.join();
  EXPECT_EQ(result_, -ESHUTDOWN);
}

class ClientCloseBesideACloser : public ClientTest {
 protected:
  // Until a closing thread would have got as far as it can.
  void expect_attached() {
    for (int turn = 0; turn < 2000 && !HasFailure(); ++turn) {
      EXPECT_EQ(daemon_->clients(), 1U) << "the attachment ended amid a close";
    }
  }
};

// Else peers hear that its program ended.
TEST_F(ClientCloseBesideACloser, ContextCloseAwaitsThatTheHostLeftTheJob) {
  daemon_->hold_closes(true);
  std::thread closer([&] { EXPECT_EQ(mercury_job_close(job_), 0); });
  while (daemon_->closes() == 0) std::this_thread::yield();
  std::thread context_closer([&] { EXPECT_EQ(mercury_context_close(context_), 0); });
  expect_attached();
  daemon_->hold_closes(false);
  closer.join();
  context_closer.join();
}

TEST_F(ClientCloseBesideACloser, DetachAwaitsContextClose) {
  daemon_->hold_closes(true);
  std::thread closer([&] { EXPECT_EQ(mercury_context_close(context_), 0); });
  while (daemon_->closes() == 0) std::this_thread::yield();
  std::thread detacher([&] { EXPECT_EQ(mercury_detach(context_), 0); });
  expect_attached();
  daemon_->hold_closes(false);
  closer.join();
  detacher.join();
  context_ = nullptr;
}

TEST_F(ClientTest, ACallbackCannotCloseItsContext) {
  float* const data = allocate();
  declare(1, data);
  struct Seen {
    mercury_context* context;
    int result = 0;
  } seen{context_};
  const auto callback = [](const mercury_completion*, void* user) {
    auto* s = static_cast<Seen*>(user);
    s->result = mercury_context_close(s->context);
  };
  ASSERT_EQ(mercury_job_set_callback(job_, callback, &seen), 0);
  mercury_handle handle = 0;
  ASSERT_EQ(mercury_push_pull(job_, 1, 0, &handle), 0);
  EXPECT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), 0);
  EXPECT_EQ(seen.result, -EBUSY);
}

}  // namespace
}  // namespace mercury::testing
