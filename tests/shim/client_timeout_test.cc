// After how long without an answer a program gives its daemon up: what it may ask for, and that it
// has it. client_lifecycle_test counts what one has that asks for nothing.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/shim/client_fixture.h"

namespace mercury::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr char kVariable[] = "MERCURY_DAEMON_TIMEOUT_MS";
constexpr int kQuestions = 11;  // of a program before it gives up

// Null, and why is in mercury_last_error.
mercury_context* attach_with(const TestDaemon& daemon, int32_t timeout_ms) {
  mercury_attach_options options;
  EXPECT_EQ(mercury_attach_options_init(&options, sizeof options), 0);
  EXPECT_EQ(options.daemon_timeout_ms, 0);
  const std::string path = daemon.path();
  options.mode = MERCURY_MODE_DAEMON;
  options.socket = path.c_str();
  options.daemon_timeout_ms = timeout_ms;
  mercury_context* context = nullptr;
  const int code = mercury_attach(&options, &context);
  EXPECT_EQ(code, context == nullptr ? -EINVAL : 0) << mercury_last_error();
  return context;
}

void expect_accepted(const TestDaemon& daemon, int32_t timeout_ms) {
  mercury_context* const context = attach_with(daemon, timeout_ms);
  EXPECT_NE(context, nullptr) << timeout_ms << ": " << mercury_last_error();
  mercury_detach(context);
}

void expect_refused(const TestDaemon& daemon, int32_t timeout_ms, const std::string& why) {
  mercury_context* const context = attach_with(daemon, timeout_ms);
  EXPECT_EQ(context, nullptr) << timeout_ms;
  EXPECT_EQ(std::string(mercury_last_error()), why);
  mercury_detach(context);
}

std::string refusal_of(int32_t bad) {
  return "mercury_attach_options.daemon_timeout_ms is " + std::to_string(bad) +
         ", must be 200 to 2147483647, MERCURY_FOREVER, or 0 (unsaid)";
}

TEST(ClientTimeoutOptions, ANumberIsInRangeOrRefusedByItsName) {
  TestDaemon daemon;
  for (const int32_t good : {0, 200, 800, INT32_MAX, MERCURY_FOREVER}) {
    expect_accepted(daemon, good);
  }
  for (const int32_t bad : {1, 199, -2, INT32_MIN}) {
    expect_refused(daemon, bad, refusal_of(bad));
  }
}

TEST(ClientTimeoutOptions, TheVariableIsInRangeOrRefusedByItsName) {
  TestDaemon daemon;
  for (const char* good : {"", "200", "2147483647"}) {
    const Variable set(kVariable, good);
    expect_accepted(daemon, 0);
  }
  for (const char* bad : {"0", "199", "-1", "2147483648", "1s", "ten", "800 ", " 800"}) {
    const Variable set(kVariable, bad);
    expect_refused(daemon, 0, std::string(kVariable) + "='" + bad + "': must be 200 to 2147483647");
    expect_accepted(daemon, 800);  // what a program says goes first
  }
  const Variable misspelt("MERCURY_DAEMON_TIMEOUT", "800");
  expect_refused(daemon, 0,
                 "$MERCURY_DAEMON_TIMEOUT is not a variable of Mercury's; did you mean "
                 "$MERCURY_DAEMON_TIMEOUT_MS?");
}

TEST(ClientTimeoutOptions, AnEmbeddedProgramDoesNotReadTheVariable) {
  const Variable set(kVariable, "ten");
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  options.mode = MERCURY_MODE_EMBEDDED;
  options.listen = "127.0.0.1";
  mercury_context* context = nullptr;
  EXPECT_EQ(mercury_attach(&options, &context), 0) << mercury_last_error();
  mercury_detach(context);
  options.daemon_timeout_ms = 199;  // a mistake all the same
  EXPECT_EQ(mercury_attach(&options, &context), -EINVAL);
  EXPECT_EQ(std::string(mercury_last_error()), refusal_of(199));
}

// Its struct was shorter, and what lies behind it is no time-out.
TEST(ClientTimeoutOptions, AProgramOfThePreviousHeaderSaysNothing) {
  constexpr size_t kSize = offsetof(mercury_attach_options, daemon_timeout_ms);
  TestDaemon daemon;
  const std::string path = daemon.path();
  mercury_attach_options older;
  older.daemon_timeout_ms = 7;
  ASSERT_EQ(mercury_attach_options_init(&older, kSize), 0);
  EXPECT_EQ(older.size, kSize);
  EXPECT_EQ(older.daemon_timeout_ms, 7) << "not the program's struct any more";
  older.mode = MERCURY_MODE_DAEMON;
  older.socket = path.c_str();
  mercury_context* context = nullptr;
  EXPECT_EQ(mercury_attach(&older, &context), 0) << mercury_last_error();
  mercury_detach(context);
  older.size = sizeof older;
  EXPECT_EQ(mercury_attach(&older, &context), -EINVAL) << "of this header's struct it is one";
}

// Beside the fixture's program, which says nothing.
class ClientTimeout : public ClientTest {
 protected:
  // A second program, which says so much, with a job and a tensor.
  void attach_hasty(int32_t timeout_ms) {
    hasty_ = attach_with(*daemon_, timeout_ms);
    ASSERT_NE(hasty_, nullptr) << mercury_last_error();
    const mercury_job_options options = job_options(kWorkers);
    ASSERT_EQ(mercury_job_open(hasty_, &options, &hasty_job_), 0) << mercury_last_error();
    void* memory = nullptr;
    ASSERT_EQ(mercury_alloc(hasty_, kNumel * sizeof(float), &memory), 0) << mercury_last_error();
    const auto tensor = tensor_options(1, static_cast<float*>(memory), kNumel);
    ASSERT_EQ(mercury_declare(hasty_job_, &tensor, 1), 0) << mercury_last_error();
  }
  void TearDown() override {
    mercury_detach(hasty_);
    ClientTest::TearDown();
  }
  static mercury_handle pushed_by(mercury_job* job) {
    mercury_handle handle = 0;
    EXPECT_EQ(mercury_push_pull(job, 1, 0, &handle), 0) << mercury_last_error();
    return handle;
  }
  // Both wait for a daemon that says nothing any more.
  void expect_hasty_gives_up_alone() {
    declare(1, allocate());
    daemon_->hold(true);
    daemon_->say_nothing();
    const auto since = steady_clock::now();
    const mercury_handle patient = pushed_by(job_);
    const mercury_handle hasty = pushed_by(hasty_job_);
    EXPECT_EQ(mercury_wait(hasty_job_, hasty, MERCURY_FOREVER), -EPIPE);
    EXPECT_GE(steady_clock::now() - since, milliseconds(800));
    EXPECT_EQ(mercury_wait(job_, patient, 0), -ETIMEDOUT) << "it has ten seconds";
    EXPECT_GE(daemon_->questions(), kQuestions);
    EXPECT_LT(daemon_->questions(), 2 * kQuestions) << "the other has not asked so often yet";
  }

  mercury_context* hasty_ = nullptr;
  mercury_job* hasty_job_ = nullptr;
};

TEST_F(ClientTimeout, WhoAsksForLessGivesADaemonUpSooner) {
  ASSERT_NO_FATAL_FAILURE(attach_hasty(800));
  expect_hasty_gives_up_alone();
}

TEST_F(ClientTimeout, SoDoesWhoseVariableSaysLess) {
  {
    const Variable set(kVariable, "800");
    ASSERT_NO_FATAL_FAILURE(attach_hasty(0));
  }
  expect_hasty_gives_up_alone();
}

// A tenth of the time-out goes before each.
TEST_F(ClientTimeout, ItAsksElevenTimesAsWhoSaysNothing) {
  struct Line {
    std::string text;
    static void write(int32_t, const char* line, void* user) {
      static_cast<Line*>(user)->text = line;
    }
  } last;
  ASSERT_NO_FATAL_FAILURE(attach_hasty(800));
  ASSERT_EQ(mercury_set_log(&Line::write, &last, MERCURY_LOG_WARNING), 0);
  daemon_->hold(true);
  daemon_->say_nothing();
  const int before = daemon_->questions();  // where this machine took so long for what it was asked
  EXPECT_EQ(mercury_wait(hasty_job_, pushed_by(hasty_job_), MERCURY_FOREVER), -EPIPE);
  EXPECT_EQ(mercury_set_log(nullptr, nullptr, 0), 0);
  EXPECT_EQ(daemon_->questions() - before, kQuestions) << "the other does not wait";
  EXPECT_EQ(last.text, "mercury-stackd has not answered for 800 ms: it stands still");
}

// What comes, comes in between, and the count begins anew.
TEST_F(ClientTimeout, ADaemonThatAnswersIsWaitedForHoweverLong) {
  ASSERT_NO_FATAL_FAILURE(attach_hasty(800));
  daemon_->hold(true);
  const mercury_handle hasty = pushed_by(hasty_job_);
  while (daemon_->questions() < kQuestions + 4) {
    ASSERT_EQ(mercury_wait(hasty_job_, hasty, 20), -ETIMEDOUT);
  }
  daemon_->hold(false);
  EXPECT_EQ(mercury_wait(hasty_job_, hasty, kGenerousMs), 0) << mercury_last_error();
}

// This whole process, daemon and all, as where a virtual machine is moved.
void stand_still(unsigned seconds) {
  const pid_t self = ::getpid();
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    ::kill(self, SIGSTOP);
    ::sleep(seconds);
    ::kill(self, SIGCONT);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
}

TEST_F(ClientTimeout, WhoStoodStillItselfDoesNotGiveItsDaemonUp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // whoever started this one should not see it
  const auto run = [this] {
    ASSERT_NO_FATAL_FAILURE(attach_hasty(800));
    daemon_->hold(true);
    const mercury_handle hasty = pushed_by(hasty_job_);
    while (daemon_->questions() == 0) {
      ASSERT_EQ(mercury_wait(hasty_job_, hasty, 20), -ETIMEDOUT);
    }
    ASSERT_NO_FATAL_FAILURE(stand_still(2));
    daemon_->hold(false);
    EXPECT_EQ(mercury_wait(hasty_job_, hasty, kGenerousMs), 0) << mercury_last_error();
  };
  EXPECT_EXIT(run(); ::_exit(HasFailure() ? 1 : 0), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace mercury::testing
