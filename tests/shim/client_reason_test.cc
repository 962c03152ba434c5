// What a program is told of why something is wrong, besides a number: of operations that failed,
// however they are collected, and of variables that it misspelt.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>

#include "tests/shim/client_fixture.h"
#include "transport/base/result.h"

namespace mercury::testing {
namespace {

class ClientReason : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    for (uint32_t id = 1; id <= 3; ++id) declare(id, allocate());
  }
  // This thread's last error is another one.
  void fail_otherwise() { EXPECT_EQ(mercury_wait(job_, 12345, 0), -ENOENT); }
};

TEST_F(ClientReason, PollHasTheTextOfTheLastFailureThatItReturned) {
  daemon_->hold(true);
  ASSERT_EQ(mercury_push_pull(job_, 1, 0, nullptr), 0);
  ASSERT_EQ(mercury_push_pull(job_, 2, 0, nullptr), 0);
  daemon_->fail_jobs(Errc::kPeerLeft, "worker 2 (10.0.0.3) has left");
  daemon_->hold(false);
  fail_otherwise();
  mercury_completion done[2];
  int n = 0;
  while (n < 2) {
    const int more =
        mercury_poll(job_, done + n, static_cast<size_t>(2 - n), sizeof(mercury_completion));
    ASSERT_GE(more, 0);
    n += more;
  }
  EXPECT_EQ(done[0].status, -ECONNRESET);
  EXPECT_EQ(done[1].status, -ECONNRESET);
  EXPECT_EQ(std::string(mercury_last_error()),
            "tensor " + std::to_string(done[1].tensor) + ": worker 2 (10.0.0.3) has left");
}

TEST_F(ClientReason, PollThatReturnsNoFailureLeavesTheTextAlone) {
  ASSERT_EQ(mercury_push_pull(job_, 1, 0, nullptr), 0);
  fail_otherwise();
  const std::string before = mercury_last_error();
  mercury_completion done{};
  while (mercury_poll(job_, &done, 1, sizeof(mercury_completion)) == 0) std::this_thread::yield();
  EXPECT_EQ(done.status, 0);
  EXPECT_EQ(std::string(mercury_last_error()), before);
}

TEST_F(ClientReason, ACallbackHasTheTextOfItsOwnFailure) {
  struct Reported {
    int failed = 0;
    std::string text[4];
  } seen;
  const auto callback = [](const mercury_completion* done, void* user) {
    auto* s = static_cast<Reported*>(user);
    s->failed += done->status == -EHOSTDOWN ? 1 : 0;
    s->text[done->tensor] = mercury_last_error();
  };
  ASSERT_EQ(mercury_job_set_callback(job_, callback, &seen), 0);
  daemon_->hold(true);
  mercury_handle handle = 0;
  ASSERT_EQ(mercury_push_pull(job_, 1, 0, nullptr), 0);
  ASSERT_EQ(mercury_push_pull(job_, 2, 0, nullptr), 0);
  ASSERT_EQ(mercury_push_pull(job_, 3, 0, &handle), 0);
  daemon_->fail_jobs(Errc::kPeerLost, "server 0 (10.0.0.1) is silent");
  daemon_->hold(false);
  fail_otherwise();
  EXPECT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), -EHOSTDOWN);
  while (seen.text[1].empty() || seen.text[2].empty() || seen.text[3].empty()) {
    ASSERT_EQ(mercury_poll(job_, nullptr, 0, sizeof(mercury_completion)), 0);
  }
  for (int id = 1; id <= 3; ++id) {
    EXPECT_EQ(seen.text[id], "tensor " + std::to_string(id) + ": server 0 (10.0.0.1) is silent");
  }
  EXPECT_EQ(seen.failed, 3);
}

TEST_F(ClientReason, ALostDaemonIsNamedToWhoPolls) {
  daemon_->hold(true);
  ASSERT_EQ(mercury_push_pull(job_, 1, 0, nullptr), 0);
  daemon_->kill();
  fail_otherwise();
  mercury_completion done{};
  while (mercury_poll(job_, &done, 1, sizeof(mercury_completion)) == 0) std::this_thread::yield();
  EXPECT_EQ(done.status, -EPIPE);
  EXPECT_NE(std::string(mercury_last_error()).find("mercury-stackd has gone"), std::string::npos);
}

TEST(ClientReasonCodes, EveryCodeThatACallReturnsHasAMeaningOfItsOwn) {
  std::set<std::string> meanings;
  for (uint16_t number = 0; number < 100; ++number) {
    if (!is_known_errc(number)) continue;
    const auto code = static_cast<Errc>(number);
    const std::string meaning = mercury_strerror(-errno_of(code));
    EXPECT_NE(meaning, mercury_strerror(-12345)) << name_of(code);
    EXPECT_EQ(meaning, mercury_strerror(errno_of(code)));
    meanings.insert(meaning);
  }
  EXPECT_EQ(meanings.size(), 25U) << "invalid_argument and config are one code";
  EXPECT_NE(std::string(mercury_strerror(-ENOTCONN)), mercury_strerror(12345));
  EXPECT_EQ(std::string(mercury_strerror(0)), "ok");
  EXPECT_STREQ(mercury_strerror(INT32_MIN), mercury_strerror(12345));
}

TEST(ClientEnvironment, AMisspeltVariableIsNamedWithWhatWasMeant) {
  TestDaemon daemon;
  const Variable where("MERCURY_SOCKET", daemon.path().c_str());
  const Variable workers("MERCURY_WORKERS", "3");
  mercury_context* context = nullptr;
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  {
    const Variable misspelt("MERCURY_SERVER", "2");
    EXPECT_EQ(mercury_attach(nullptr, &context), -EINVAL);
    EXPECT_EQ(context, nullptr);
    EXPECT_EQ(std::string(mercury_last_error()),
              "$MERCURY_SERVER is not a variable of Mercury's; did you mean $MERCURY_SERVERS?");
    EXPECT_EQ(mercury_job_options_from_env(&options), -EINVAL);
    EXPECT_EQ(std::string(mercury_last_error()),
              "$MERCURY_SERVER is not a variable of Mercury's; did you mean $MERCURY_SERVERS?");
    EXPECT_EQ(options.workers, 0) << "nothing is filled";
  }
  // The daemon's own, and what Kubernetes sets for a service called mercury.
  const Variable keys("MERCURY_ATTACH_SOCKET", "/elsewhere");
  const Variable others("MERCURY_SERVICE_HOST", "10.0.0.1");
  ASSERT_EQ(mercury_attach(nullptr, &context), 0) << mercury_last_error();
  EXPECT_EQ(mercury_job_options_from_env(&options), 0) << mercury_last_error();
  EXPECT_EQ(options.workers, 3);
  mercury_detach(context);
}

}  // namespace
}  // namespace mercury::testing
