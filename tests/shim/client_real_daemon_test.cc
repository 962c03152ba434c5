// What programs have of a daemon besides sums: how long they wait for one that stands still, and
// who has the memory that they share with it.
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/shim/client_hosts.h"

namespace mercury::testing {
namespace {

constexpr int kPatienceMs = 60'000;  // at most, on a machine that others keep busy

// Tensor 1 of a job of two workers.
void declare_both(RealJob& job, std::vector<float>& mine, std::vector<float>& other) {
  ASSERT_EQ(mercury_register(job.context(0), mine.data(), mine.size() * 4), 0);
  ASSERT_EQ(mercury_register(job.context(1), other.data(), other.size() * 4), 0);
  std::thread second([&] { EXPECT_EQ(declare_at(job.job(1), 1, other.data(), other.size()), 0); });
  EXPECT_EQ(declare_at(job.job(0), 1, mine.data(), mine.size()), 0) << mercury_last_error();
  second.join();
}

// Within a second of when the daemon knows.
void expect_logged(const StackDaemon& daemon, const std::string& words) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (daemon.log().find(words) == std::string::npos) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << daemon.log();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// A job of one worker: a sum comes back as it went.
void expect_served(const StackDaemon& daemon, const RealJob& job, size_t numel) {
  mercury_context* context = attach_daemon(daemon.socket());
  ASSERT_NE(context, nullptr);
  mercury_job_options one = job.member_options();
  one.name = "afterwards";
  one.workers = 1;
  mercury_job* next = nullptr;
  ASSERT_EQ(mercury_job_open(context, &one, &next), 0) << mercury_last_error();
  std::vector<float> sum(numel, 5.0F);
  ASSERT_EQ(mercury_register(context, sum.data(), numel * 4), 0);
  ASSERT_EQ(declare_at(next, 1, sum.data(), numel), 0) << mercury_last_error();
  EXPECT_EQ(mercury_wait(next, push_pull(next, 1), MERCURY_FOREVER), 0) << mercury_last_error();
  EXPECT_EQ(sum, std::vector<float>(numel, 5.0F));
  mercury_job_close(next);
  mercury_detach(context);
}

// For two seconds it is waited for, as peers would. For longer (client_lifecycle_test counts for
// how long) it counts as gone, whatever is asked of it; and when it goes on it has let go of the
// programs that have, and serves them again.
TEST(RealDaemon, ThatStandsStillIsLostToItsProgramsInTimeAndServesThemAgainAfterwards) {
  constexpr size_t kNumel = 5000;
  RealJob::Options options;
  options.servers = 1;
  RealJob job(Engines::kDaemon, options);
  StackDaemon& daemon = job.daemon(0);
  mercury_context* const asks = job.attach(0);  // has nothing in flight, and no job
  ASSERT_NE(asks, nullptr);
  std::vector<float> mine(kNumel, 1.0F), other(kNumel, 2.0F);
  ASSERT_NO_FATAL_FAILURE(declare_both(job, mine, other));

  const mercury_handle slow = push_pull(job.job(0), 1);
  daemon.stop();
  EXPECT_EQ(mercury_wait(job.job(0), slow, 2'500), -ETIMEDOUT);
  daemon.go_on();
  const mercury_handle theirs = push_pull(job.job(1), 1);
  ASSERT_EQ(mercury_wait(job.job(0), slow, MERCURY_FOREVER), 0) << mercury_last_error();
  ASSERT_EQ(mercury_wait(job.job(1), theirs, MERCURY_FOREVER), 0) << mercury_last_error();
  EXPECT_EQ(mine, std::vector<float>(kNumel, 3.0F));

  const mercury_handle lost = push_pull(job.job(0), 1);
  daemon.stop();
  push_pull(job.job(1), 1);
  std::thread request([&] {
    EXPECT_EQ(declare_at(job.job(1), 2, other.data(), kNumel), -EPIPE) << mercury_last_error();
  });
  std::thread question([asks] {
    void* more = nullptr;
    EXPECT_EQ(mercury_alloc(asks, 4096, &more), -EPIPE);
    EXPECT_TRUE(said({"stands still"}));
  });
  EXPECT_EQ(mercury_wait(job.job(0), lost, kPatienceMs), -EPIPE);
  EXPECT_TRUE(said({"mercury-stackd has gone", "stands still"}));
  request.join();
  question.join();
  mercury_detach(asks);
  job.detach(0);
  job.detach(1);
  const std::vector<float> kept(kNumel, 42.0F);
  mine = other = kept;
  daemon.go_on();  // sums of the old job may be complete now, and are nobody's

  expect_served(daemon, job, kNumel);
  EXPECT_EQ(mine, kept);
  EXPECT_EQ(other, kept);
}

// Its control plane answers all the while.
TEST(RealDaemon, OfWhichAnEngineStandsStillIsLostToItsProgramsInTimeToo) {
  constexpr size_t kNumel = 5000;
  RealJob::Options options;
  options.servers = 1;
  RealJob job(Engines::kDaemon, options);
  StackDaemon& daemon = job.daemon(0);
  std::vector<float> mine(kNumel, 1.0F), other(kNumel, 2.0F);
  ASSERT_NO_FATAL_FAILURE(declare_both(job, mine, other));

  // For longer than the daemon takes to notice, and not for so long that programs give it up.
  const mercury_handle slow = push_pull(job.job(0), 1);
  daemon.stop_engine();
  EXPECT_EQ(mercury_wait(job.job(0), slow, 6'000), -ETIMEDOUT);
  EXPECT_NE(daemon.log().find("engine 0 stands still"), std::string::npos) << daemon.log();
  daemon.engine_goes_on();
  EXPECT_EQ(mercury_wait(job.job(0), slow, 11'000), -ETIMEDOUT) << "nobody else has pushed";
  const mercury_handle theirs = push_pull(job.job(1), 1);
  ASSERT_EQ(mercury_wait(job.job(0), slow, MERCURY_FOREVER), 0) << mercury_last_error();
  ASSERT_EQ(mercury_wait(job.job(1), theirs, MERCURY_FOREVER), 0) << mercury_last_error();

  const mercury_handle lost = push_pull(job.job(0), 1);
  const auto since = std::chrono::steady_clock::now();
  daemon.stop_engine();
  EXPECT_EQ(mercury_wait(job.job(0), lost, kPatienceMs), -EPIPE);
  EXPECT_GE(std::chrono::steady_clock::now() - since, std::chrono::seconds(12));
  EXPECT_TRUE(said({"mercury-stackd has gone", "stands still"}));
  job.detach(0);
  job.detach(1);
  daemon.engine_goes_on();
  expect_served(daemon, job, kNumel);
}

class HastyProgram : public ::testing::Test {
 protected:
  static constexpr size_t kNumel = 5000;
  static RealJob::Options options() {
    RealJob::Options options;
    options.servers = 1;
    options.first_timeout_ms = 800;
    return options;
  }
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(declare_both(job_, mine_, other_)); }

  RealJob job_{Engines::kDaemon, options()};
  StackDaemon& daemon_ = job_.daemon(0);
  std::vector<float> mine_ = std::vector<float>(kNumel, 1.0F);
  std::vector<float> other_ = std::vector<float>(kNumel, 2.0F);
};

// The other program says nothing: it has ten seconds.
TEST_F(HastyProgram, LosesADaemonThatStandsStillSoonerThanAnother) {
  daemon_.stop();
  const auto since = std::chrono::steady_clock::now();
  const mercury_handle hasty = push_pull(job_.job(0), 1);
  const mercury_handle patient = push_pull(job_.job(1), 1);
  EXPECT_EQ(mercury_wait(job_.job(0), hasty, MERCURY_FOREVER), -EPIPE);
  EXPECT_TRUE(said({"mercury-stackd has gone", "stands still"}));
  EXPECT_GE(std::chrono::steady_clock::now() - since, std::chrono::milliseconds(800));
  EXPECT_EQ(mercury_wait(job_.job(1), patient, 0), -ETIMEDOUT);
  job_.detach(0);
  daemon_.go_on();
  const int outcome = mercury_wait(job_.job(1), patient, kPatienceMs);
  EXPECT_TRUE(outcome == 0 || outcome == -ECONNRESET)
      << "what it pushed may have been read: " << outcome << ", " << mercury_last_error();
  job_.detach(1);
  expect_served(daemon_, job_, kNumel);
}

// As its daemon says that it runs until it knows better, after about three seconds.
TEST_F(HastyProgram, LosesOneOfWhichAnEngineStandsStillNoSoonerThanItKnows) {
  const mercury_handle lost = push_pull(job_.job(0), 1);
  const auto since = std::chrono::steady_clock::now();
  daemon_.stop_engine();
  EXPECT_EQ(mercury_wait(job_.job(0), lost, kPatienceMs), -EPIPE);
  EXPECT_GE(std::chrono::steady_clock::now() - since, std::chrono::seconds(2));
  expect_logged(daemon_, "engine 0 stands still");
  job_.detach(0);
  daemon_.engine_goes_on();
  job_.detach(1);
  expect_served(daemon_, job_, kNumel);
}

// What is given back may be another's at once, however long the kernel needs for it; what is given
// back again and again, once the kernel has taken it.
int alloc_in_time(mercury_context* context, size_t bytes, void** memory) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  int status = 0;
  do {
    status = mercury_alloc(context, bytes, memory);
  } while (status == -ENOSPC && std::chrono::steady_clock::now() < deadline);
  return status;
}

TEST(RealDaemon, LimitsWhatAllProgramsShare) {
  constexpr size_t kBytes = size_t{3} << 30;
  StackDaemon daemon(fresh_address(), "program_memory = \"3GiB\"\ntotal_memory = \"4GiB\"\n");
  mercury_context* first = attach_daemon(daemon.socket());
  mercury_context* second = attach_daemon(daemon.socket());
  void *most = nullptr, *memory = nullptr;
  EXPECT_EQ(mercury_alloc(first, kBytes, &most), 0) << mercury_last_error();
  EXPECT_EQ(mercury_alloc(second, kBytes, &memory), -ENOSPC);
  EXPECT_TRUE(said({"for all programs (attach.total_memory)"}));
  EXPECT_EQ(mercury_alloc(first, 1, &memory), -ENOSPC);
  EXPECT_TRUE(said({"(attach.program_memory)"}));
  EXPECT_EQ(mercury_free(first, most), 0);
  ASSERT_EQ(mercury_alloc(second, kBytes, &memory), 0) << mercury_last_error();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(mercury_free(second, memory), 0);
    ASSERT_EQ(alloc_in_time(first, kBytes, &most), 0) << mercury_last_error();
    EXPECT_EQ(mercury_free(first, most), 0);
    ASSERT_EQ(alloc_in_time(second, kBytes, &memory), 0) << mercury_last_error();
  }
  mercury_detach(first);
  mercury_detach(second);
}

// The daemon's memory comes with a descriptor: without one only what asks for it fails.
TEST(RealDaemon, OfAProgramWithoutDescriptorsOnlyTheAllocationFails) {
  StackDaemon daemon(fresh_address());
  mercury_context* context = attach_daemon(daemon.socket());
  void* memory = nullptr;
  ASSERT_EQ(mercury_alloc(context, 1, &memory), 0) << mercury_last_error();
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit none = old;
  none.rlim_cur = 3;
  void* more = nullptr;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const int refused = mercury_alloc(context, 64U << 20, &more);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(refused, -EIO);
  EXPECT_TRUE(said({"ulimit -n"})) << mercury_last_error();
  EXPECT_EQ(mercury_alloc(context, 64U << 20, &more), 0) << mercury_last_error();
  mercury_detach(context);
}

// Nobody has touched them: the program that declares them has, and not the daemon.
TEST(RealDaemon, FindsThePagesOfDeclaredTensorsInPlace) {
  constexpr size_t kBytes = size_t{8} << 20;
  RealJob::Options options;
  options.workers = options.servers = 1;
  RealJob job(Engines::kDaemon, options);
  void* memory = nullptr;
  ASSERT_EQ(mercury_alloc(job.context(0), 2 * kBytes, &memory), 0) << mercury_last_error();
  const auto pages = [&](size_t offset) {
    std::vector<unsigned char> there(kBytes / 4096);
    EXPECT_EQ(::mincore(static_cast<std::byte*>(memory) + offset, kBytes, there.data()), 0);
    return std::count_if(there.begin(), there.end(), [](unsigned char c) { return (c & 1) != 0; });
  };
  static_cast<float*>(memory)[1] = 7;
  EXPECT_EQ(pages(0), 1);
  ASSERT_EQ(declare_at(job.job(0), 1, memory, kBytes / 4), 0) << mercury_last_error();
  EXPECT_EQ(pages(0), static_cast<long>(kBytes / 4096));
  EXPECT_EQ(pages(kBytes), 0) << "what is not declared";
  EXPECT_EQ(static_cast<float*>(memory)[1], 7);
}

}  // namespace
}  // namespace mercury::testing
