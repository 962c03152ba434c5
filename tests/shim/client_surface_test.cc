// What the C API says of itself: versions, defaults, and the log.
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "tests/shim/client_hosts.h"

namespace mercury::testing {
namespace {

TEST(ClientSurface, TheHeadersVersionIsTheLibrarys) {
  const std::string expected = std::to_string(MERCURY_VERSION_MAJOR) + "." +
                               std::to_string(MERCURY_VERSION_MINOR) + "." +
                               std::to_string(MERCURY_VERSION_PATCH);
  EXPECT_EQ(expected, mercury_version());
  EXPECT_EQ(mercury_version_number(), MERCURY_VERSION_NUMBER);
}

template <class T>
void expect_init(int (*init)(T*, size_t), size_t least) {
  T it;
  EXPECT_EQ(init(nullptr, sizeof it), -EINVAL);
  EXPECT_EQ(init(&it, 0), -EINVAL);
  EXPECT_EQ(init(&it, least - 1), -EINVAL);
  EXPECT_EQ(init(&it, SIZE_MAX), -EINVAL);
  EXPECT_EQ(init(&it, sizeof it), 0);
  EXPECT_EQ(it.size, sizeof it);
}

TEST(ClientSurface, InitialisersCheckTheSizeThatTheyAreTold) {
  expect_init(mercury_attach_options_init, offsetof(mercury_attach_options, socket));
  expect_init(mercury_job_options_init, offsetof(mercury_job_options, deterministic));
  expect_init(mercury_tensor_options_init, sizeof(mercury_tensor_options));
  expect_init(mercury_operation_init, offsetof(mercury_operation, user_data));
  expect_init(mercury_completion_init, offsetof(mercury_completion, round));
  expect_init(mercury_contributors_init, offsetof(mercury_contributors, in_all));
  expect_init(mercury_job_stats_init, offsetof(mercury_job_stats, bytes_pushed));
}

struct Lines {
  std::mutex mutex;
  std::condition_variable more;
  std::vector<std::pair<int32_t, std::string>> all;
  static void write(int32_t level, const char* line, void* user) {
    auto* lines = static_cast<Lines*>(user);
    const std::lock_guard lock(lines->mutex);
    lines->all.emplace_back(level, line);
    lines->more.notify_all();
  }
  bool have(int32_t level, const std::string& words) {
    const std::lock_guard lock(mutex);
    return have_locked(level, words);
  }
  // Until another thread has said it.
  void await(int32_t level, const std::string& words) {
    std::unique_lock lock(mutex);
    more.wait(lock, [&] { return have_locked(level, words); });
  }
  bool have_locked(int32_t level, const std::string& words) const {
    for (const auto& [at, line] : all) {
      if (at == level && line.find(words) != std::string::npos) return true;
    }
    return false;
  }
  size_t of(int32_t level) {
    const std::lock_guard lock(mutex);
    size_t n = 0;
    for (const auto& [at, line] : all) n += at == level;
    return n;
  }
};

class ClientLog : public ::testing::Test {
 protected:
  ~ClientLog() override { EXPECT_EQ(mercury_set_log(nullptr, nullptr, 0), 0); }
  Lines lines_;
};

TEST_F(ClientLog, SaysWhenAnEmbeddedProgramsJobsBeginAndFail) {
  ASSERT_EQ(mercury_set_log(&Lines::write, &lines_, MERCURY_LOG_INFO), 0);
  {
    RealJob job(Engines::kEmbedded);
    job.expect_servers_end(-ECONNRESET);
    EXPECT_TRUE(lines_.have(MERCURY_LOG_INFO, "an engine of this program listens at 127."));
    EXPECT_TRUE(lines_.have(MERCURY_LOG_INFO, "opened for worker 0"));
    declare_everywhere(job, 1, 100);
    const mercury_handle lonely = push_pull(job.job(1), 1);
    job.close(0);
    EXPECT_EQ(mercury_wait(job.job(1), lonely, MERCURY_FOREVER), -ECONNRESET);
  }
  EXPECT_TRUE(lines_.have(MERCURY_LOG_WARNING, "worker 0"));
}

TEST_F(ClientLog, LevelsAboveTheAskedOneAreLeftOut) {
  EXPECT_EQ(mercury_set_log(&Lines::write, &lines_, 3), -EINVAL);
  EXPECT_EQ(mercury_set_log(&Lines::write, &lines_, 0), -EINVAL);
  ASSERT_EQ(mercury_set_log(&Lines::write, &lines_, MERCURY_LOG_WARNING), 0);
  { RealJob job(Engines::kEmbedded); }
  EXPECT_EQ(lines_.of(MERCURY_LOG_INFO), 0U);
}

TEST_F(ClientLog, SaysWhenTheDaemonIsThereAndHasGone) {
  ASSERT_EQ(mercury_set_log(&Lines::write, &lines_, MERCURY_LOG_INFO), 0);
  StackDaemon daemon(fresh_address());
  mercury_context* quiet = attach_daemon(daemon.socket());
  mercury_context* context = attach_daemon(daemon.socket());
  EXPECT_TRUE(lines_.have(MERCURY_LOG_INFO, std::string("attached to mercury-stackd ") +
                                                STACKD_VERSION + " at " + daemon.socket()));
  EXPECT_EQ(mercury_detach(quiet), 0);
  EXPECT_EQ(lines_.of(MERCURY_LOG_WARNING), 0U) << "it was this program that left";
  daemon.kill();
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  options.name = "gone";
  options.workers = options.servers = 1;
  options.rendezvous = "127.0.0.1";
  mercury_job* job = nullptr;
  EXPECT_EQ(mercury_job_open(context, &options, &job), -EPIPE);
  lines_.await(MERCURY_LOG_WARNING, "mercury-stackd has gone");
  EXPECT_EQ(mercury_detach(context), 0);
  daemon.start();
}

}  // namespace
}  // namespace mercury::testing
