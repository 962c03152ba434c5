// Many operations in one call, what comes back with each, and waiting for all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>

#include "tests/shim/client_fixture.h"

namespace mercury::testing {
namespace {

mercury_operation operation(uint32_t tensor, int32_t kind, uint64_t user_data) {
  mercury_operation out;
  EXPECT_EQ(mercury_operation_init(&out, sizeof out), 0);
  EXPECT_EQ(out.priority, MERCURY_DEFAULT_PRIORITY);
  out.kind = kind;
  out.tensor = tensor;
  out.user_data = user_data;
  return out;
}

class ClientSubmit : public ClientTest {
 protected:
  static constexpr uint32_t kTensors = 4;
  TestDaemon::Options daemon_options() const override {
    TestDaemon::Options options;
    options.geometry = {8, 16};
    return options;
  }
  void SetUp() override {
    ClientTest::SetUp();
    for (uint32_t id = 0; id < kTensors; ++id) {
      data_.push_back(allocate());
      declare(id, data_[id]);
      std::fill_n(data_[id], kNumel, static_cast<float>(id + 1));
    }
  }
  std::vector<mercury_operation> all(int32_t kind) const {
    std::vector<mercury_operation> out;
    for (uint32_t id = 0; id < kTensors; ++id) out.push_back(operation(id, kind, 100 + id));
    return out;
  }
  int submit(std::vector<mercury_operation>& operations) {
    return mercury_submit(job_, operations.data(), operations.size());
  }
  // Every completion until `count` have come.
  std::vector<mercury_completion> collect(size_t count) {
    std::vector<mercury_completion> done;
    while (done.size() < count) {
      mercury_completion some[8];
      const int n = mercury_poll(job_, some, 8, sizeof some[0]);
      EXPECT_GE(n, 0) << mercury_last_error();
      done.insert(done.end(), some, some + std::max(n, 0));
      if (n == 0) std::this_thread::yield();
    }
    return done;
  }
  std::vector<float*> data_;
};

TEST_F(ClientSubmit, ABatchIsSubmittedWithTheUsersDataOfEach) {
  auto batch = all(MERCURY_OPERATION_PUSH_PULL);
  batch[2].priority = 77;
  ASSERT_EQ(submit(batch), 0) << mercury_last_error();
  std::vector<bool> seen(kTensors);
  for (const mercury_completion& done : collect(kTensors)) {
    ASSERT_LT(done.tensor, kTensors);
    EXPECT_EQ(done.user_data, 100U + done.tensor);
    EXPECT_EQ(done.handle, batch[done.tensor].handle);
    EXPECT_EQ(done.kind, MERCURY_OPERATION_PUSH_PULL);
    EXPECT_EQ(done.status, 0);
    EXPECT_EQ(done.message, nullptr);
    expect_all(data_[done.tensor], 3.0F * static_cast<float>(done.tensor + 1));
    EXPECT_FALSE(seen[done.tensor]) << "told twice";
    seen[done.tensor] = true;
  }
  EXPECT_EQ(daemon_->priorities(), (std::vector<uint16_t>{5, 5, 77, 5})) << "in the array's order";
}

TEST_F(ClientSubmit, APullMayStandBehindItsPush) {
  std::vector<mercury_operation> batch{operation(0, MERCURY_OPERATION_PUSH, 1),
                                       operation(0, MERCURY_OPERATION_PULL, 2),
                                       operation(1, MERCURY_OPERATION_PUSH_PULL, 3)};
  ASSERT_EQ(submit(batch), 0) << mercury_last_error();
  for (const mercury_completion& done : collect(3)) {
    EXPECT_EQ(done.status, 0);
    const int32_t kinds[] = {0, MERCURY_OPERATION_PUSH, MERCURY_OPERATION_PULL,
                             MERCURY_OPERATION_PUSH_PULL};
    EXPECT_EQ(done.kind, kinds[done.user_data]);
  }
  expect_all(data_[0], 3.0F);
}

// What is refused, of which operation, and with what words. In every case nothing is in flight.
TEST_F(ClientSubmit, ABatchIsSubmittedWholeOrNotAtAll) {
  struct Row {
    mercury_operation wrong;
    int code;
    const char* words;
  };
  mercury_operation beyond = operation(3, MERCURY_OPERATION_PUSH_PULL, 0);
  beyond.priority = 65536;
  const Row rows[] = {
      {operation(9, MERCURY_OPERATION_PUSH, 0), -ENOENT, "operation 3: tensor 9 is not declared"},
      {operation(1, MERCURY_OPERATION_PUSH, 0), -EBUSY, "operation 3: tensor 1"},
      {operation(1, MERCURY_OPERATION_PULL, 0), -EINVAL, "operation 3: tensor 1"},
      {operation(3, MERCURY_OPERATION_PULL, 0), -EINVAL, "operation 3: tensor 3"},
      {operation(3, 77, 0), -EINVAL, "operation 3: unknown kind 77"},
      {beyond, -EINVAL, "65536"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.words);
    auto batch = all(MERCURY_OPERATION_PUSH_PULL);
    batch[3] = row.wrong;
    EXPECT_EQ(submit(batch), row.code);
    EXPECT_NE(std::string(mercury_last_error()).find(row.words), std::string::npos)
        << mercury_last_error();
    for (const mercury_operation& each : batch) EXPECT_EQ(each.handle, 0U);
    EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), 0) << "nothing is in flight";
    for (uint32_t id = 0; id < kTensors; ++id) {
      uint32_t round = 0;
      EXPECT_EQ(mercury_tensor_get_round(job_, id, &round), 0);
      EXPECT_EQ(round, 1U);
    }
  }
  auto batch = all(MERCURY_OPERATION_PUSH_PULL);
  EXPECT_EQ(submit(batch), 0) << "the same without what was wrong";
  EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), 0);
  EXPECT_EQ(mercury_submit(job_, nullptr, 0), 0);
}

TEST_F(ClientSubmit, WhatTheRingsHaveNoRoomForIsRefusedWhole) {
  auto batch = all(MERCURY_OPERATION_PUSH);
  for (uint32_t id = 0; id < kTensors; ++id) {
    batch.push_back(operation(id, MERCURY_OPERATION_PULL, 0));
  }
  ASSERT_EQ(batch.size(), 8U) << "as many as the rings have slots";
  ASSERT_EQ(submit(batch), 0) << mercury_last_error();
  EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), 0) << mercury_last_error();
  batch.push_back(operation(0, MERCURY_OPERATION_PUSH, 0));
  EXPECT_EQ(submit(batch), -EINVAL) << "they never will have";
  EXPECT_NE(std::string(mercury_last_error()).find("at most 8"), std::string::npos);
}

TEST_F(ClientSubmit, RegisteredMemoryIsCopiedForTheWholeBatchFirst) {
  std::vector<float> mine(2 * kNumel, 4.0F);
  ASSERT_EQ(mercury_register(context_, mine.data(), mine.size() * sizeof(float)), 0);
  declare(10, mine.data());
  declare(11, mine.data() + kNumel);
  std::vector<mercury_operation> batch{
      operation(10, MERCURY_OPERATION_PUSH_PULL, 1), operation(0, MERCURY_OPERATION_PUSH_PULL, 2),
      operation(11, MERCURY_OPERATION_PUSH, 3), operation(11, MERCURY_OPERATION_PULL, 4)};
  ASSERT_EQ(submit(batch), 0) << mercury_last_error();
  EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), 0) << mercury_last_error();
  expect_all(mine.data(), 12.0F);
  expect_all(mine.data() + kNumel, 12.0F);
  EXPECT_EQ(mercury_job_close(std::exchange(job_, nullptr)), 0);
}

TEST_F(ClientSubmit, WaitAllSaysWhatIsStillInFlightAndLeavesItThere) {
  daemon_->hold(true);
  auto batch = all(MERCURY_OPERATION_PUSH_PULL);
  ASSERT_EQ(submit(batch), 0);
  EXPECT_EQ(mercury_wait_all(job_, 0), -ETIMEDOUT);
  EXPECT_EQ(mercury_wait_all(job_, 1), -ETIMEDOUT);
  daemon_->hold(false);
  EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), 0);
  for (const mercury_operation& each : batch) {
    EXPECT_EQ(mercury_wait(job_, each.handle, 0), -ENOENT) << "collected";
  }
  EXPECT_EQ(collect(0).size(), 0U);
}

TEST_F(ClientSubmit, WaitAllLeavesToOtherWaitersWhatIsTheirs) {
  daemon_->hold(true);
  auto batch = all(MERCURY_OPERATION_PUSH_PULL);
  ASSERT_EQ(submit(batch), 0);
  int waited = 1;
  std::thread waiter([&] { waited = mercury_wait(job_, batch[1].handle, MERCURY_FOREVER); });
  std::thread everyone([&] { EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), 0); });
  daemon_->hold(false);
  everyone.join();
  waiter.join();
  EXPECT_TRUE(waited == 0 || waited == -ENOENT) << "whoever came first has collected it";
}

TEST_F(ClientSubmit, AFailureIsInEachCompletionAndInTheJobsStatus) {
  char text[64] = "x";
  EXPECT_EQ(mercury_job_get_status(job_, text, sizeof text), 0);
  EXPECT_EQ(std::string(text), "");
  EXPECT_EQ(mercury_job_get_status(job_, nullptr, 0), 0);
  daemon_->hold(true);
  auto batch = all(MERCURY_OPERATION_PUSH_PULL);
  ASSERT_EQ(submit(batch), 0);
  daemon_->fail_jobs(Errc::kPeerLeft, "worker 2 (10.0.0.3) has left");
  daemon_->hold(false);
  for (const mercury_completion& done : collect(kTensors)) {
    EXPECT_EQ(done.status, -ECONNRESET);
    EXPECT_EQ(done.user_data, 100U + done.tensor);
    ASSERT_NE(done.message, nullptr);
    EXPECT_EQ(std::string(done.message), "worker 2 (10.0.0.3) has left");
  }
  EXPECT_EQ(mercury_job_get_status(job_, text, sizeof text), -ECONNRESET);
  EXPECT_EQ(std::string(text), "worker 2 (10.0.0.3) has left");
  EXPECT_EQ(mercury_job_get_status(job_, text, 7), -ECONNRESET);
  EXPECT_EQ(std::string(text), "worker");
  EXPECT_EQ(mercury_job_get_status(job_, text, 1), -ECONNRESET);
  EXPECT_EQ(std::string(text), "");
  EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), 0) << "all are collected";
  EXPECT_EQ(submit(batch), -ECONNRESET);
}

TEST_F(ClientSubmit, WaitAllReportsAFailureRatherThanWhatIsLate) {
  daemon_->hold(true);
  auto batch = all(MERCURY_OPERATION_PUSH_PULL);
  ASSERT_EQ(submit(batch), 0);
  daemon_->fail_jobs(Errc::kPeerLost, "server 0 is silent");
  daemon_->hold(false);
  EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), -EHOSTDOWN);
  EXPECT_EQ(std::string(mercury_last_error()), "tensor 0: server 0 is silent");
}

// Whose job has a server of a version before.
class ClientOfOldHosts : public ClientTest {
 protected:
  TestDaemon::Options daemon_options() const override {
    TestDaemon::Options options;
    options.features = 0;
    return options;
  }
};

TEST_F(ClientOfOldHosts, WhatTheyDoNotKnowIsRefused) {
  float* data = allocate();
  declare(1, data);
  EXPECT_EQ(mercury_broadcast(job_, 1, 0, 0, nullptr), -EPROTONOSUPPORT);
  EXPECT_NE(std::string(mercury_last_error()).find("broadcast"), std::string::npos);
  EXPECT_EQ(mercury_push_pull(job_, 1, 0, nullptr), 0) << "the rest works";
  EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), 0);
}

class ClientOfHostsWithoutScatters : public ClientTest {
 protected:
  TestDaemon::Options daemon_options() const override {
    TestDaemon::Options options;
    options.features = kKnowsReductions | kKnowsParts;
    return options;
  }
};

TEST_F(ClientOfHostsWithoutScatters, WhatIsNewerIsRefusedAlone) {
  declare(1, allocate());
  EXPECT_EQ(mercury_reduce_scatter(job_, 1, 0, nullptr), -EPROTONOSUPPORT);
  EXPECT_NE(std::string(mercury_last_error()).find("without reduce-scatter"), std::string::npos)
      << mercury_last_error();
  EXPECT_EQ(mercury_broadcast(job_, 1, 0, 0, nullptr), 0) << mercury_last_error();
  EXPECT_EQ(mercury_wait_all(job_, MERCURY_FOREVER), 0);
}

class ClientWithQuorum : public ClientTest {
 protected:
  void SetUp() override {
    daemon_ = std::make_unique<TestDaemon>();
    context_ = attach_to(*daemon_);
    mercury_job_options options = job_options(kWorkers);
    options.quorum = 2;
    options.patience_ms = 10;
    ASSERT_EQ(mercury_job_open(context_, &options, &job_), 0) << mercury_last_error();
  }
};

TEST_F(ClientWithQuorum, WhatMayLackAWorkerIsNoBroadcastAndNoBarrier) {
  float* data = allocate();
  declare(1, data);
  EXPECT_EQ(mercury_broadcast(job_, 1, 0, 0, nullptr), -ENOTSUP);
  EXPECT_EQ(mercury_barrier(job_, 0), -ENOTSUP);
}

}  // namespace
}  // namespace mercury::testing
