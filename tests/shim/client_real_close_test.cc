// Closing a context, or detaching, while another thread opens a job over real engines.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>

#include "tests/shim/client_hosts.h"

namespace mercury::testing {
namespace {

class RealClose : public ::testing::TestWithParam<Engines> {};
INSTANTIATE_TEST_SUITE_P(On, RealClose, ::testing::Values(Engines::kEmbedded, Engines::kDaemon),
                         [](const auto& engines) { return name_of(engines.param); });

// What a worker is told of a job that nobody else opens.
int open_alone(mercury_context* context, const std::string& rendezvous) {
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  options.name = "lonely";
  options.workers = 2;
  options.servers = 1;
  options.rendezvous = rendezvous.c_str();
  mercury_job* job = nullptr;
  const int result = mercury_job_open(context, &options, &job);
  EXPECT_EQ(job, nullptr);
  return result;
}

// Whenever the other thread comes: before, amid or after.
TEST_P(RealClose, ClosingAContextEndsWhoOpensAJobOnItOrIsAboutTo) {
  RealJob job(GetParam());
  for (int round = 0; round < 20; ++round) {
    mercury_context* const context = job.attach(0);
    int result = 0;
    std::thread opener([&] { result = open_alone(context, job.rendezvous()); });
    for (int turn = 0; turn < round; ++turn) std::this_thread::yield();
    EXPECT_EQ(mercury_context_close(context), 0);
    opener.join();
    EXPECT_EQ(result, -ESHUTDOWN) << round;
    EXPECT_EQ(mercury_detach(context), 0);
  }
}

// It is inside by the time its engine has said that it listens.
TEST(EmbeddedClose, DetachingEndsWhoOpensAJobAndAwaitsIt) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> inside{false};
    const auto log = [](int32_t, const char*, void* user) {
      *static_cast<std::atomic<bool>*>(user) = true;
    };
    ASSERT_EQ(mercury_set_log(log, &inside, MERCURY_LOG_INFO), 0);
    const std::string rendezvous = fresh_address() + ":7470";
    mercury_context* const context = attach_embedded();
    std::thread opener([&] { EXPECT_EQ(open_alone(context, rendezvous), -ESHUTDOWN) << round; });
    while (!inside) std::this_thread::yield();
    EXPECT_EQ(mercury_detach(context), 0);
    opener.join();
    mercury_set_log(nullptr, nullptr, 0);
  }
}

}  // namespace
}  // namespace mercury::testing
