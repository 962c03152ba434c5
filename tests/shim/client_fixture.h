// A context on a TestDaemon, with one job.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "shim/client/context.h"
#include "shim/client/mercurystack/mercury.h"
#include "tests/shim/client_daemon.h"

namespace mercury::testing {

inline constexpr int kGenerousMs = 10'000;

// Sets a variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

inline mercury_context* attach_to(const TestDaemon& daemon) {
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  const std::string path = daemon.path();
  options.mode = MERCURY_MODE_DAEMON;
  options.socket = path.c_str();
  mercury_context* context = nullptr;
  EXPECT_EQ(mercury_attach(&options, &context), 0) << mercury_last_error();
  return context;
}

inline mercury_job_options job_options(int workers = 3) {
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  options.name = "test";
  options.workers = workers;
  options.servers = 1;
  options.rendezvous = "127.0.0.1:7470";
  return options;
}

inline mercury_tensor_options tensor_options(uint32_t id, float* data, size_t numel) {
  mercury_tensor_options options{};
  options.size = sizeof options;
  options.id = id;
  options.numel = numel;
  options.dtype = MERCURY_DTYPE_F32;
  options.priority = 5;
  options.data = data;
  return options;
}

class ClientTest : public ::testing::Test {
 protected:
  static constexpr int kWorkers = 3;
  static constexpr size_t kNumel = 1001;

  virtual TestDaemon::Options daemon_options() const { return {}; }
  void SetUp() override {
    daemon_ = std::make_unique<TestDaemon>(daemon_options());
    context_ = attach_to(*daemon_);
    ASSERT_NE(context_, nullptr);
    const mercury_job_options options = job_options(kWorkers);
    ASSERT_EQ(mercury_job_open(context_, &options, &job_), 0) << mercury_last_error();
  }
  void TearDown() override {
    if (context_) {
      EXPECT_EQ(reinterpret_cast<client::Context*>(context_)->rescued_wakeups(), 0U);
    }
    mercury_detach(context_);
    daemon_.reset();
  }
  float* allocate(size_t numel = kNumel) {
    void* memory = nullptr;
    EXPECT_EQ(mercury_alloc(context_, numel * sizeof(float), &memory), 0) << mercury_last_error();
    return static_cast<float*>(memory);
  }
  void declare(uint32_t id, float* data, size_t numel = kNumel) {
    const mercury_tensor_options options = tensor_options(id, data, numel);
    ASSERT_EQ(mercury_declare(job_, &options, 1), 0) << mercury_last_error();
  }
  static void expect_all(const float* data, float value, size_t numel = kNumel) {
    EXPECT_EQ(std::vector<float>(data, data + numel), std::vector<float>(numel, value));
  }

  std::unique_ptr<TestDaemon> daemon_;
  mercury_context* context_ = nullptr;
  mercury_job* job_ = nullptr;
};

}  // namespace mercury::testing
