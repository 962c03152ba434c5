#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "tests/shim/client_fixture.h"

namespace mercury::testing {
namespace {

class ClientExchange : public ClientTest {};

TEST_F(ClientExchange, PushPullLeavesTheSumInPlace) {
  float* data = allocate();
  declare(7, data);
  for (int round = 1; round <= 3; ++round) {
    std::fill(data, data + kNumel, 2.0F);
    mercury_handle handle = 0;
    ASSERT_EQ(mercury_push_pull(job_, 7, MERCURY_DEFAULT_PRIORITY, &handle), 0);
    EXPECT_NE(handle, 0U);
    ASSERT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), 0) << mercury_last_error();
    expect_all(data, 2.0F * kWorkers);
    EXPECT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), -ENOENT)
        << "a handle is waited for once";
  }
  mercury_job_stats stats{};
  stats.size = sizeof stats;
  ASSERT_EQ(mercury_job_get_stats(job_, &stats), 0);
  EXPECT_EQ(stats.operations, 3U);
  EXPECT_EQ(stats.bytes_pushed, 3 * kNumel * 4);
  EXPECT_EQ(stats.bytes_pulled, 3 * kNumel * 4);
}

TEST_F(ClientExchange, RegisteredMemoryIsCopiedInAndOut) {
  std::vector<float> mine(kNumel + 2, 1.0F);
  ASSERT_EQ(mercury_register(context_, mine.data(), mine.size() * 4), 0) << mercury_last_error();
  declare(1, mine.data() + 1);
  EXPECT_EQ(mercury_deregister(context_, mine.data()), -EBUSY);
  for (int round = 0; round < 2; ++round) {
    std::fill(mine.begin(), mine.end(), 5.0F);
    mercury_handle handle = 0;
    daemon_->hold(true);
    ASSERT_EQ(mercury_push_pull(job_, 1, 0, &handle), 0);
    daemon_->hold(false);
    ASSERT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), 0);
    expect_all(mine.data() + 1, 5.0F * kWorkers);
    EXPECT_EQ(mine.front(), 5.0F);
    EXPECT_EQ(mine.back(), 5.0F);
  }
  mercury_job_close(job_);
  EXPECT_EQ(mercury_deregister(context_, mine.data()), 0);
}

TEST_F(ClientExchange, PushThenPull) {
  std::vector<float> mine(kNumel, 1.0F);
  ASSERT_EQ(mercury_register(context_, mine.data(), kNumel * 4), 0);
  declare(1, mine.data());
  mercury_handle push = 0;
  mercury_handle pull = 0;
  EXPECT_EQ(mercury_pull(job_, 1, 0, &pull), -EINVAL) << "nothing was pushed";
  ASSERT_EQ(mercury_push(job_, 1, 0, &push), 0);
  EXPECT_EQ(mercury_push(job_, 1, 0, &push), -EBUSY);
  EXPECT_EQ(mercury_wait(job_, push, MERCURY_FOREVER), 0);
  EXPECT_EQ(mercury_push_pull(job_, 1, 0, &push), -EBUSY) << "the sum was not taken yet";
  EXPECT_NE(std::string(mercury_last_error()).find("not been pulled"), std::string::npos);
  ASSERT_EQ(mercury_pull(job_, 1, 0, &pull), 0);
  EXPECT_EQ(mercury_pull(job_, 1, 0, nullptr), -EINVAL) << "one pull a push";
  EXPECT_EQ(mercury_wait(job_, pull, MERCURY_FOREVER), 0);
  expect_all(mine.data(), kWorkers);
  EXPECT_EQ(mercury_push(job_, 1, 0, &push), 0) << "the next round";
  EXPECT_EQ(mercury_pull(job_, 1, 0, &pull), 0) << "without waiting for the push";
  EXPECT_EQ(mercury_wait(job_, pull, MERCURY_FOREVER), 0);
  EXPECT_EQ(mercury_wait(job_, push, MERCURY_FOREVER), 0);
}

TEST_F(ClientExchange, ATensorInFlightIsBusy) {
  declare(1, allocate());
  daemon_->hold(true);
  mercury_handle handle = 0;
  ASSERT_EQ(mercury_push_pull(job_, 1, 0, &handle), 0);
  mercury_handle second = 0;
  EXPECT_EQ(mercury_push_pull(job_, 1, 0, &second), -EBUSY);
  EXPECT_EQ(mercury_wait(job_, handle, 0), -ETIMEDOUT);
  EXPECT_EQ(mercury_wait(job_, handle, 20), -ETIMEDOUT);
  daemon_->hold(false);
  EXPECT_EQ(mercury_wait(job_, handle, kGenerousMs), 0);
  EXPECT_EQ(mercury_push_pull(job_, 1, 0, &second), 0);
  EXPECT_EQ(mercury_wait(job_, second, kGenerousMs), 0);
}

TEST_F(ClientExchange, ChecksItsArguments) {
  float* data = allocate();
  declare(1, data);
  mercury_handle handle = 0;
  EXPECT_EQ(mercury_push_pull(job_, 2, 0, &handle), -ENOENT);
  EXPECT_EQ(mercury_push_pull(job_, 1, 65536, &handle), -EINVAL);
  EXPECT_EQ(mercury_push_pull(job_, 1, -2, &handle), -EINVAL);
  EXPECT_EQ(mercury_push_pull(nullptr, 1, 0, &handle), -EINVAL);
  EXPECT_EQ(mercury_wait(job_, 12345, 0), -ENOENT);
  EXPECT_EQ(mercury_wait(job_, 0, 0), -ENOENT);
  EXPECT_EQ(mercury_poll(job_, nullptr, 1, sizeof(mercury_completion)), -EINVAL);
}

TEST_F(ClientExchange, PrioritiesAreTheCallsOrTheTensors) {
  declare(1, allocate());
  mercury_handle handle = 0;
  ASSERT_EQ(mercury_push_pull(job_, 1, MERCURY_DEFAULT_PRIORITY, &handle), 0);
  ASSERT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), 0);
  ASSERT_EQ(mercury_push_pull(job_, 1, 65535, &handle), 0);
  ASSERT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), 0);
  EXPECT_EQ(daemon_->priorities(), (std::vector<uint16_t>{5, 65535}));
}

TEST_F(ClientExchange, DeclarationsAreChecked) {
  float* data = allocate();
  const auto declared = [&](auto change) {
    mercury_tensor_options options = tensor_options(1, data, kNumel);
    change(options);
    return mercury_declare(job_, &options, 1);
  };
  using T = mercury_tensor_options;
  EXPECT_EQ(declared([](T& t) { t.size = 0; }), -EINVAL);
  EXPECT_EQ(declared([](T& t) { t.id = 0x80000000; }), -EINVAL);
  EXPECT_EQ(declared([](T& t) { t.numel = 0; }), -EINVAL);
  EXPECT_EQ(declared([](T& t) { t.numel = ~uint64_t{0}; }), -EINVAL);
  EXPECT_EQ(declared([](T& t) { t.dtype = 9; }), -EINVAL);
  EXPECT_EQ(declared([](T& t) { t.op = 4; }), -EINVAL);
  EXPECT_EQ(declared([](T& t) {
              t.dtype = MERCURY_DTYPE_I32;
              t.op = MERCURY_REDUCE_AVERAGE;
            }),
            -EINVAL);
  EXPECT_EQ(declared([](T& t) { t.data = nullptr; }), -EINVAL);
  EXPECT_EQ(declared([](T& t) { t.data = static_cast<char*>(t.data) + 2; }), -EINVAL);
  float stack[4];
  EXPECT_EQ(declared([&](T& t) {
              t.data = stack;
              t.numel = 4;
            }),
            -EINVAL)
      << "unknown memory";
  EXPECT_EQ(declared([](T& t) { t.numel = 2000; }), -EINVAL) << "beyond its memory";
  EXPECT_EQ(declared([](T&) {}), 0);
  EXPECT_EQ(declared([](T&) {}), -EEXIST);
  EXPECT_EQ(mercury_free(context_, data), -EBUSY);
}

TEST_F(ClientExchange, ManyTensorsInOneDeclaration) {
  constexpr size_t kCount = 2000;  // several messages
  float* data = allocate(kCount * 16);
  std::vector<mercury_tensor_options> tensors;
  for (size_t i = 0; i < kCount; ++i) {
    tensors.push_back(tensor_options(static_cast<uint32_t>(i), data + 16 * i, 16));
  }
  ASSERT_EQ(mercury_declare(job_, tensors.data(), kCount), 0) << mercury_last_error();
  EXPECT_EQ(mercury_declare(job_, nullptr, 0), 0);
  std::fill(data, data + kCount * 16, 1.0F);
  // More than the submission rings hold: some are told to come again.
  mercury_completion done[64];
  size_t completed = 0;
  const auto collect = [&] {
    const int n = mercury_poll(job_, done, 64, sizeof(mercury_completion));
    ASSERT_GE(n, 0);
    for (int i = 0; i < n; ++i) EXPECT_EQ(done[i].status, 0);
    completed += static_cast<size_t>(n);
  };
  daemon_->hold(true);
  bool was_full = false;
  for (uint32_t i = 0; i < kCount; ++i) {
    int rc = mercury_push_pull(job_, i, 0, nullptr);
    if (rc == -EAGAIN) {
      was_full = true;
      daemon_->hold(false);
      while (rc == -EAGAIN) {
        collect();
        rc = mercury_push_pull(job_, i, 0, nullptr);
      }
    }
    ASSERT_EQ(rc, 0) << mercury_last_error();
  }
  daemon_->hold(false);
  while (completed < kCount) collect();
  EXPECT_TRUE(was_full);
  expect_all(data, kWorkers, kCount * 16);
}

TEST_F(ClientExchange, AFailedJobSaysWhyAndStaysFailed) {
  declare(1, allocate());
  daemon_->fail_jobs(Errc::kPeerLeft, "worker 2 (10.0.0.3) has left");
  mercury_handle handle = 0;
  ASSERT_EQ(mercury_push_pull(job_, 1, 0, &handle), 0);
  EXPECT_EQ(mercury_wait(job_, handle, MERCURY_FOREVER), -ECONNRESET);
  EXPECT_EQ(std::string(mercury_last_error()), "tensor 1: worker 2 (10.0.0.3) has left");
  EXPECT_EQ(mercury_push_pull(job_, 1, 0, &handle), -ECONNRESET);
  EXPECT_NE(std::string(mercury_last_error()).find("worker 2"), std::string::npos);
  EXPECT_EQ(mercury_job_wait_end(job_, 0), -ETIMEDOUT) << "asked after the failure";
}

class SmallRings : public ClientExchange {
 protected:
  TestDaemon::Options daemon_options() const override {
    TestDaemon::Options options;
    options.engines = 3;
    options.geometry = {16, 4};  // the engines often find no room for their completions
    return options;
  }
};

TEST_F(SmallRings, NothingIsLostWhenRingsAreFull) {
  constexpr uint32_t kTensors = 16;
  float* data = allocate(kTensors * 8);
  for (uint32_t i = 0; i < kTensors; ++i) declare(i, data + 8 * i, 8);
  for (int round = 0; round < 200; ++round) {
    std::fill(data, data + kTensors * 8, 1.0F);
    std::vector<mercury_handle> handles(kTensors);
    for (uint32_t i = 0; i < kTensors; ++i) {
      ASSERT_EQ(mercury_push_pull(job_, i, 0, &handles[i]), 0) << mercury_last_error();
    }
    for (uint32_t i = kTensors; i-- > 0;) {
      ASSERT_EQ(mercury_wait(job_, handles[i], kGenerousMs), 0) << mercury_last_error();
    }
    expect_all(data, kWorkers, kTensors * 8);
  }
}

}  // namespace
}  // namespace mercury::testing
