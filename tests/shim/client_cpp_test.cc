// mercury.hpp over embedded engines: who owns what, and errors as values.
#include <poll.h>

#include <cerrno>
#include <type_traits>

#include "shim/client/mercurystack/mercury.hpp"
#include "tests/shim/client_hosts.h"

namespace mercury::testing {
namespace {

using namespace mercury::api;

static_assert(!std::is_copy_constructible_v<Context> &&
              std::is_nothrow_move_constructible_v<Context>);
static_assert(!std::is_copy_constructible_v<Job> && std::is_nothrow_move_constructible_v<Job>);
static_assert(!std::is_copy_constructible_v<Registration>);
static_assert(!std::is_copy_constructible_v<Buffer<float>> &&
              std::is_nothrow_move_assignable_v<Buffer<float>>);
static_assert(std::is_copy_constructible_v<Tensor> && std::is_copy_constructible_v<Handle>);

Expected<Context> embedded() {
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  options.mode = MERCURY_MODE_EMBEDDED;
  return Context::attach(&options);
}

// A job of one worker, whose sums are its own gradients, and one server on a thread.
class ClientCpp : public ::testing::Test {
 protected:
  void SetUp() override {
    options_ = job_options();
    options_.name = "cpp";
    options_.workers = options_.servers = 1;
    options_.rendezvous = rendezvous_.c_str();
    server_ = std::thread([this] {
      Expected<Context> context = embedded();
      mercury_job_options options = options_;
      options.role = MERCURY_ROLE_SERVER;
      Expected<Job> job = context->open_job(options);
      ASSERT_TRUE(job) << job.status().message();
      const Status ended = job->wait_end();
      EXPECT_TRUE(ended) << ended.message();
    });
  }
  void TearDown() override { server_.join(); }

  const std::string rendezvous_ = fresh_address() + ":17470";
  mercury_job_options options_{};
  std::thread server_;
};

TEST_F(ClientCpp, ExchangesEveryWay) {
  Expected<Context> context = embedded();
  ASSERT_TRUE(context) << context.status().message();
  EXPECT_EQ(context->mode(), MERCURY_MODE_EMBEDDED);
  Expected<Buffer<double>> buffer = context->alloc<double>(1000);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer->size(), 1000U);
  EXPECT_EQ(buffer->end() - buffer->begin(), 1000);
  Expected<Job> job = context->open_job(options_);
  ASSERT_TRUE(job) << job.status().message();
  EXPECT_EQ(job->rank(), 0);
  EXPECT_EQ(job->workers(), 1);
  Expected<Tensor> tensor =
      job->declare(4, buffer->data(), buffer->size(), 2, MERCURY_REDUCE_AVERAGE);
  ASSERT_TRUE(tensor) << tensor.status().message();
  EXPECT_EQ(tensor->id(), 4U);
  (*buffer)[999] = 2.5;
  Expected<Handle> fused = tensor->push_pull();
  ASSERT_TRUE(fused) << fused.status().message();
  EXPECT_NE(fused->get(), 0U);
  EXPECT_TRUE(fused->wait());
  EXPECT_EQ((*buffer)[999], 2.5);
  EXPECT_EQ(fused->wait().code(), -ENOENT);
  const Expected<Handle> push = tensor->push(7);
  ASSERT_TRUE(push);
  const Expected<Handle> pull = job->tensor(4).pull(7);
  ASSERT_TRUE(pull);
  EXPECT_TRUE(push->wait(60'000));
  EXPECT_TRUE(pull->wait());
  EXPECT_EQ(*tensor->round(), 3U);
  const Expected<mercury_contributors> in = tensor->contributors();
  ASSERT_TRUE(in);
  EXPECT_EQ(in->round, 2U);
  EXPECT_EQ(in->workers, 1U);
  EXPECT_EQ(in->in_all[0], 1U);
  EXPECT_EQ(in->in_any[0], 1U);
  const Expected<mercury_job_stats> stats = job->stats();
  ASSERT_TRUE(stats);
  EXPECT_EQ(stats->operations, 3U);
  EXPECT_EQ(stats->bytes_pushed, 16'000U);
}

TEST_F(ClientCpp, TypesWithoutANameAndManyAtOnce) {
  Expected<Context> context = embedded();
  Expected<Buffer<std::uint16_t>> halves = context->alloc<std::uint16_t>(64);
  ASSERT_TRUE(halves);
  Expected<Job> job = context->open_job(options_);
  ASSERT_TRUE(job) << job.status().message();
  const Expected<Tensor> half = job->declare(1, halves->data(), 32, MERCURY_DTYPE_BF16, 9);
  ASSERT_TRUE(half) << half.status().message();
  (*halves)[31] = 0x3f80;  // 1.0
  std::vector<mercury_tensor_options> more{
      testing::tensor_options(2, halves->data() + 32, 16, MERCURY_DTYPE_F16),
      testing::tensor_options(3, halves->data() + 48, 16, MERCURY_DTYPE_F16)};
  EXPECT_TRUE(job->declare(more));
  const Status twice = job->declare(more);
  EXPECT_EQ(twice.code(), -EEXIST);
  EXPECT_EQ(twice.message(), "tensor 2 is declared already");
  EXPECT_TRUE(half->push_pull()->wait());
  EXPECT_EQ((*halves)[31], 0x3f80);
}

TEST_F(ClientCpp, PollsCallsBackAndHasADescriptor) {
  Expected<Context> context = embedded();
  Expected<Buffer<float>> buffer = context->alloc<float>(10);
  Expected<Job> job = context->open_job(options_);
  ASSERT_TRUE(job) << job.status().message();
  const Expected<Tensor> tensor = job->declare(1, buffer->data(), 10);
  ASSERT_TRUE(tensor);
  const Expected<int> fd = job->fd();
  ASSERT_TRUE(fd) << fd.status().message();
  ASSERT_TRUE(tensor->push_pull());
  std::vector<mercury_completion> all;
  while (all.empty()) {
    pollfd ready{*fd, POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 60'000), 1);
    Expected<std::vector<mercury_completion>> some = job->poll();
    ASSERT_TRUE(some);
    all = *some;
  }
  EXPECT_EQ(all.size(), 1U);
  int calls = 0;
  const auto count = [](const mercury_completion*, void* user) { ++*static_cast<int*>(user); };
  EXPECT_TRUE(job->set_callback(count, &calls));
  EXPECT_TRUE(tensor->push_pull()->wait());
  EXPECT_EQ(calls, 1);
}

TEST_F(ClientCpp, AClosedContextKeepsItsMemoryAndTakesNoCalls) {
  Expected<Context> context = embedded();
  Expected<Buffer<float>> buffer = context->alloc<float>(10);
  Expected<Job> job = context->open_job(options_);
  ASSERT_TRUE(job) << job.status().message();
  const Expected<Tensor> tensor = job->declare(1, buffer->data(), 10);
  ASSERT_TRUE(tensor);
  EXPECT_TRUE(context->close());
  EXPECT_TRUE(context->close()) << "again";
  EXPECT_EQ(context->open_job(options_).status().code(), -ESHUTDOWN);
  EXPECT_FALSE(tensor->push_pull());
  (*buffer)[9] = 1;
}

TEST_F(ClientCpp, OwnersMoveAndEndWhatTheyOwn) {
  Expected<Context> made = embedded();
  Context context = std::move(*made);  // the other one is empty now, and its end harmless
  Expected<Buffer<float>> first = context.alloc<float>(100), second = context.alloc<float>(200);
  float* const memory = first->data();
  Buffer<float> buffer = std::move(*first);
  EXPECT_EQ(buffer.data(), memory);
  EXPECT_EQ(first->data(), nullptr);
  std::vector<float> mine(50);
  {
    Expected<Registration> registered = context.register_memory(mine.data(), 200);
    ASSERT_TRUE(registered);
    EXPECT_EQ(context.register_memory(mine.data(), 200).status().code(), -EEXIST);
    const Registration moved = std::move(*registered);
  }
  Expected<Registration> again = context.register_memory(mine.data(), 200);
  EXPECT_TRUE(again) << "deregistered at the end of its owner";
  {
    Expected<Job> job = context.open_job(options_);
    ASSERT_TRUE(job) << job.status().message();
    Job moved = std::move(*job);
    ASSERT_TRUE(moved.declare(1, buffer.data(), buffer.size()));
    EXPECT_EQ(mercury_free(context.get(), memory), -EBUSY);
    moved.close();  // before its owner ends
    EXPECT_EQ(moved.poll().status().code(), -EINVAL);
  }
  buffer = std::move(*second);
  EXPECT_EQ(buffer.size(), 200U);
  EXPECT_EQ(second->data(), memory);
  { const Buffer<float> last = std::move(*second); }
  EXPECT_EQ(mercury_free(context.get(), memory), -ENOENT) << "its owner has freed it";
}

TEST(ClientCppErrors, AreValues) {
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  options.mode = MERCURY_MODE_DAEMON;
  options.socket = "/nowhere/stackd.sock";
  const Expected<Context> none = Context::attach(&options);
  EXPECT_FALSE(none);
  EXPECT_EQ(none.status().code(), -EPIPE);
  EXPECT_NE(none.status().message().find("/nowhere/stackd.sock"), std::string::npos);
  Expected<Context> context = embedded();
  ASSERT_TRUE(context);
  EXPECT_TRUE(context.status().ok());
  EXPECT_EQ(context->alloc<double>(SIZE_MAX / 4).status().code(), -EINVAL) << "would overflow";
  mercury_job_options wish = job_options();
  EXPECT_EQ(wish.rank, -1);
  const Expected<Job> job = context->open_job(wish);
  EXPECT_EQ(job.status().code(), -EINVAL);
  ASSERT_EQ(::setenv("MERCURY_ROLE", "chief", 1), 0);
  const Expected<mercury_job_options> from_env = job_options_from_env(wish);
  EXPECT_EQ(from_env.status().code(), -EINVAL);
  EXPECT_EQ(from_env.status().message(), "MERCURY_ROLE='chief': must be worker or server");
  ::setenv("MERCURY_ROLE", "server", 1);
  EXPECT_EQ(job_options_from_env()->role, MERCURY_ROLE_SERVER);
  ::unsetenv("MERCURY_ROLE");
}

}  // namespace
}  // namespace mercury::testing
