// The C functions over real engines: memory, wrong calls, refusals, and ends of all kinds.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>

#include "tests/shim/client_hosts.h"

namespace mercury::testing {
namespace {

class RealEnds : public ::testing::TestWithParam<Engines> {};
INSTANTIATE_TEST_SUITE_P(On, RealEnds, ::testing::Values(Engines::kEmbedded, Engines::kDaemon),
                         [](const auto& engines) { return name_of(engines.param); });

// --- memory ----------------------------------------------------------------------------------

// Both workers exchange tensor `id`, worker 0's being at `mine`.
void exchange_at(RealJob& job, mercury_job* first, mercury_job* second, uint32_t id, float* mine,
                 float* other, size_t numel) {
  for (int round = 1; round <= 3; ++round) {
    std::fill(mine, mine + numel, static_cast<float>(round));
    std::fill(other, other + numel, 10.0F);
    const mercury_handle handle = push_pull(second, id);
    ASSERT_EQ(mercury_wait(first, push_pull(first, id), MERCURY_FOREVER), 0)
        << mercury_last_error();
    ASSERT_EQ(mercury_wait(second, handle, MERCURY_FOREVER), 0) << mercury_last_error();
    for (size_t i = 0; i < numel; ++i) {
      ASSERT_EQ(mine[i], static_cast<float>(10 + round)) << name_of(job.engines());
    }
  }
}

TEST_P(RealEnds, RegisteredMemoryIsReadAndWrittenInPlaceAndNothingBesideIt) {
  constexpr size_t kNumel = 5000;
  RealJob job(GetParam());
  std::vector<float> mine(kNumel + 2, 77.0F), other(kNumel, 0.0F);
  mercury_context* context = job.context(0);
  EXPECT_EQ(declare_at(job.job(0), 1, mine.data() + 1, kNumel), -EINVAL) << "not registered";
  EXPECT_TRUE(said({"tensor 1", "mercury_register"}));
  ASSERT_EQ(mercury_register(context, mine.data(), mine.size() * 4), 0) << mercury_last_error();
  EXPECT_EQ(mercury_register(context, mine.data() + 3, 4), -EEXIST);
  ASSERT_EQ(mercury_register(job.context(1), other.data(), other.size() * 4), 0);
  std::thread second([&] { EXPECT_EQ(declare_at(job.job(1), 1, other.data(), kNumel), 0); });
  EXPECT_EQ(declare_at(job.job(0), 1, mine.data() + 1, kNumel), 0) << mercury_last_error();
  second.join();
  exchange_at(job, job.job(0), job.job(1), 1, mine.data() + 1, other.data(), kNumel);
  EXPECT_EQ(mine.front(), 77.0F);
  EXPECT_EQ(mine.back(), 77.0F);
  EXPECT_EQ(mercury_deregister(context, mine.data()), -EBUSY);
  EXPECT_TRUE(said({"close its job"}));
  EXPECT_EQ(mercury_free(context, mine.data()), -ENOENT);
  job.close(0);
  EXPECT_EQ(mercury_deregister(context, mine.data() + 1), -ENOENT) << "not where it begins";
  EXPECT_EQ(mercury_deregister(context, mine.data()), 0);
  EXPECT_EQ(mercury_deregister(context, mine.data()), -ENOENT);
}

TEST_P(RealEnds, MemoryServesOneJobAfterAnother) {
  constexpr size_t kNumel = 5000;
  RealJob job(GetParam());
  std::vector<float> mine(2 * kNumel);
  void* other = declare(job, 1, 1, kNumel);
  ASSERT_EQ(mercury_register(job.context(0), mine.data(), kNumel * 4), 0);
  ASSERT_EQ(declare_at(job.job(0), 1, mine.data(), kNumel), 0) << mercury_last_error();
  exchange_at(job, job.job(0), job.job(1), 1, mine.data(), static_cast<float*>(other), kNumel);
  job.close(0);
  job.close(1);
  // Registered anew, and larger; freed and allocated anew.
  ASSERT_EQ(mercury_deregister(job.context(0), mine.data()), 0) << mercury_last_error();
  ASSERT_EQ(mercury_register(job.context(0), mine.data(), mine.size() * 4), 0);
  ASSERT_EQ(mercury_free(job.context(1), other), 0) << mercury_last_error();
  ASSERT_EQ(mercury_alloc(job.context(1), mine.size() * 4, &other), 0);
  EXPECT_EQ(static_cast<float*>(other)[kNumel - 1], 0.0F) << "zeroed";
  const std::vector<mercury_job*> again = job.open_again("again");
  ASSERT_EQ(declare_at(again[0], 1, mine.data() + kNumel, kNumel), 0) << mercury_last_error();
  ASSERT_EQ(declare_at(again[1], 1, static_cast<float*>(other) + kNumel, kNumel), 0);
  exchange_at(job, again[0], again[1], 1, mine.data() + kNumel, static_cast<float*>(other) + kNumel,
              kNumel);
  for (mercury_job* each : again) mercury_job_close(each);
}

TEST_P(RealEnds, MemoryInUseIsNotFreed) {
  RealJob job(GetParam());
  const auto data = declare_everywhere(job, 1, 100);
  const mercury_handle handle = push_pull(job.job(0), 1);
  EXPECT_EQ(mercury_free(job.context(0), data[0]), -EBUSY);
  EXPECT_TRUE(said({"a declared tensor lies in the memory"}));
  data[1][99] = 5;
  push_pull(job.job(1), 1);
  EXPECT_EQ(mercury_wait(job.job(0), handle, MERCURY_FOREVER), 0);
  EXPECT_EQ(data[0][99], 5);
  EXPECT_EQ(mercury_free(job.context(0), data[0] + 1), -ENOENT) << "not where it begins";
  job.close(0);
  EXPECT_EQ(mercury_free(job.context(0), data[0]), 0) << mercury_last_error();
  EXPECT_EQ(mercury_free(job.context(0), data[0]), -ENOENT);
}

// --- wrong calls -----------------------------------------------------------------------------

TEST_P(RealEnds, WrongHandlesAreNotFound) {
  RealJob job(GetParam());
  declare_everywhere(job, 1, 100);
  const std::vector<mercury_job*> others = job.open_again("other");
  const mercury_handle handle = push_pull(job.job(0), 1);
  for (const mercury_handle wrong : {handle + 1, handle + (1 << 16), handle ^ ~uint64_t{0},
                                     mercury_handle{0}, mercury_handle{65535}}) {
    EXPECT_EQ(mercury_wait(job.job(0), wrong, MERCURY_FOREVER), -ENOENT);
    EXPECT_TRUE(said({"no such operation"}));
  }
  EXPECT_EQ(mercury_wait(others[0], handle, MERCURY_FOREVER), -ENOENT) << "another job's";
  EXPECT_EQ(mercury_wait(job.job(1), handle, MERCURY_FOREVER), -ENOENT) << "another context's";
  push_pull(job.job(1), 1);
  EXPECT_EQ(mercury_wait(job.job(0), handle, MERCURY_FOREVER), 0);
  EXPECT_EQ(mercury_wait(job.job(0), handle, MERCURY_FOREVER), -ENOENT) << "collected";
  EXPECT_EQ(mercury_push_pull(others[0], 1, 0, nullptr), -ENOENT) << "another job's tensor";
  EXPECT_TRUE(said({"tensor 1 is not declared"}));
  EXPECT_EQ(mercury_push(job.job(0), 1, 70'000, nullptr), -EINVAL);
  EXPECT_TRUE(said({"0 to 65535"}));
  EXPECT_EQ(mercury_pull(job.job(0), 1, 0, nullptr), -EINVAL);
  EXPECT_TRUE(said({"a pull must follow a push"}));
  EXPECT_EQ(mercury_job_wait_end(job.job(0), 0), -ETIMEDOUT);
  EXPECT_TRUE(said({"still running"}));
  for (mercury_job* other : others) mercury_job_close(other);
}

RealJob::Options of_one_worker() {
  RealJob::Options one;
  one.workers = one.servers = 1;
  return one;
}

struct RefusedCall {
  const char* what;  // is in the message
  std::function<int()> call;
};

void expect_refusals(std::span<const RefusedCall> rows) {
  int row = 0;
  for (const auto& [what, call] : rows) {
    EXPECT_EQ(call(), -EINVAL) << "row " << row;
    EXPECT_TRUE(said({what})) << "row " << row;
    ++row;
  }
}

TEST_P(RealEnds, NullArgumentsOfAContextAreNamed) {
  RealJob job(GetParam(), of_one_worker());
  mercury_context* context = job.context(0);
  mercury_job* opened = nullptr;
  const mercury_job_options options = job.member_options();
  void* memory = nullptr;
  mercury_completion done{};
  const RefusedCall rows[] = {
      {"out", [&] { return mercury_attach(nullptr, nullptr); }},
      {"context", [&] { return mercury_alloc(nullptr, 1, &memory); }},
      {"out", [&] { return mercury_alloc(context, 1, nullptr); }},
      {"0 bytes", [&] { return mercury_alloc(context, 0, &memory); }},
      {"context", [&] { return mercury_free(nullptr, &done); }},
      {"context", [&] { return mercury_register(nullptr, &done, 1); }},
      {"address and a size", [&] { return mercury_register(context, nullptr, 1); }},
      {"address and a size", [&] { return mercury_register(context, &done, 0); }},
      {"address and a size", [&] { return mercury_register(context, &done, ~size_t{0}); }},
      {"context", [&] { return mercury_deregister(nullptr, &done); }},
      {"context", [&] { return mercury_job_open(nullptr, &options, &opened); }},
      {"mercury_job_options", [&] { return mercury_job_open(context, nullptr, &opened); }},
      {"out", [&] { return mercury_job_open(context, &options, nullptr); }},
      {"mercury_job_options", [&] { return mercury_job_options_from_env(nullptr); }},
  };
  expect_refusals(rows);
  EXPECT_EQ(mercury_free(context, nullptr), 0) << "as free(3)";
  mercury_detach(nullptr);
  EXPECT_EQ(mercury_job_options_init(nullptr, sizeof options), -EINVAL);
  EXPECT_EQ(mercury_context_get_mode(nullptr), MERCURY_MODE_AUTO);
}

TEST_P(RealEnds, NullArgumentsOfAJobAreNamed) {
  RealJob job(GetParam(), of_one_worker());
  mercury_job* const open = job.job(0);
  mercury_tensor_options tensor = tensor_options(1, nullptr, 1);
  mercury_job_stats no_size{};
  uint32_t round = 0;
  mercury_completion done{};
  const RefusedCall rows[] = {
      {"job", [&] { return mercury_job_get_rank(nullptr); }},
      {"job", [&] { return mercury_job_get_workers(nullptr); }},
      {"job", [&] { return mercury_job_get_servers(nullptr); }},
      {"job", [&] { return mercury_job_get_status(nullptr, nullptr, 0); }},
      {"text", [&] { return mercury_job_get_status(open, nullptr, 1); }},
      {"job", [&] { return mercury_submit(nullptr, nullptr, 0); }},
      {"operations", [&] { return mercury_submit(open, nullptr, 1); }},
      {"job", [&] { return mercury_wait_all(nullptr, 0); }},
      {"job", [&] { return mercury_job_wait_end(nullptr, 0); }},
      {"job", [&] { return mercury_declare(nullptr, &tensor, 1); }},
      {"tensors", [&] { return mercury_declare(open, nullptr, 1); }},
      {"data", [&] { return mercury_declare(open, &tensor, 1); }},
      {"job", [&] { return mercury_push_pull(nullptr, 1, 0, nullptr); }},
      {"job", [&] { return mercury_push(nullptr, 1, 0, nullptr); }},
      {"job", [&] { return mercury_pull(nullptr, 1, 0, nullptr); }},
      {"job", [&] { return mercury_tensor_get_round(nullptr, 1, &round); }},
      {"out", [&] { return mercury_tensor_get_round(open, 1, nullptr); }},
      {"job", [&] { return mercury_wait(nullptr, 1, 0); }},
      {"job", [&] { return mercury_poll(nullptr, &done, 1, sizeof(mercury_completion)); }},
      {"out", [&] { return mercury_poll(open, nullptr, 1, sizeof(mercury_completion)); }},
      {"job", [&] { return mercury_job_set_callback(nullptr, nullptr, nullptr); }},
      {"job", [&] { return mercury_job_get_fd(nullptr); }},
      {"job", [&] { return mercury_job_get_stats(nullptr, &no_size); }},
      {"out", [&] { return mercury_job_get_stats(open, nullptr); }},
      {"size", [&] { return mercury_job_get_stats(open, &no_size); }},
  };
  expect_refusals(rows);
  EXPECT_EQ(mercury_declare(open, nullptr, 0), 0);
  EXPECT_EQ(mercury_poll(open, nullptr, 0, sizeof(mercury_completion)), 0);
  EXPECT_EQ(mercury_tensor_get_round(open, 1, &round), -ENOENT);
  mercury_job_close(nullptr);
}

// --- refusals --------------------------------------------------------------------------------

int open_result(mercury_context* context, const mercury_job_options& options) {
  mercury_job* job = nullptr;
  const int rc = mercury_job_open(context, &options, &job);
  EXPECT_EQ(job == nullptr, rc < 0);
  mercury_job_close(job);
  return rc;
}

TEST_P(RealEnds, MembersThatDoNotFitAreRefusedAndTheJobGoesOn) {
  RealJob::Options options;
  options.secret = "open sesame";
  options.daemon_config = "[[job]]\nname = \"test\"\nsecret = \"open sesame\"\n";
  RealJob job(GetParam(), options);
  const auto data = declare_everywhere(job, 1, 100);
  mercury_context* context = job.attach(1);
  const auto refused = [&](auto change) {
    mercury_job_options wish = job.member_options();
    change(wish);
    return open_result(context, wish);
  };
  using O = mercury_job_options;
  EXPECT_EQ(refused([](O& o) { o.secret = "sesame"; }), -ESRCH);
  EXPECT_TRUE(said({"secret", "test"}));
  EXPECT_EQ(refused([](O& o) { o.secret = nullptr; }), -ESRCH);
  // All members are there: one that fits comes too late, too.
  EXPECT_EQ(refused([](O& o) { o.rank = 1; }), -EADDRINUSE);
  EXPECT_TRUE(said({"test"}));
  EXPECT_EQ(refused([](O& o) { o.rank = 2; }), -EINVAL);
  EXPECT_TRUE(said({"rank", "-1 to 1"}));
  EXPECT_EQ(refused([](O& o) { o.weight = 1001; }), -EINVAL);
  EXPECT_TRUE(said({"weight", "1 to 1000"}));
  EXPECT_EQ(refused([](O& o) { o.timeout_ms = 0; }), -EINVAL);
  EXPECT_TRUE(said({"timeout_ms"}));
  mercury_detach(context);
  data[0][0] = data[1][0] = 4;
  push_pull(job.job(1), 1);
  EXPECT_EQ(mercury_wait(job.job(0), push_pull(job.job(0), 1), MERCURY_FOREVER), 0)
      << mercury_last_error();
  EXPECT_EQ(data[0][0], 8);
}

// A job that lacks members: `present` is there while `wish` tries to join.
TEST_P(RealEnds, SizesAndRanksMustFitWhoIsThere) {
  RealJob running(GetParam());  // for its hosts
  mercury_job_options present = running.member_options();
  present.name = "another";
  present.rank = 0;
  present.timeout_ms = 500;
  std::string missing;
  int present_result = 0;
  mercury_job_options server = present;
  server.role = MERCURY_ROLE_SERVER;
  mercury_context* server_context =
      GetParam() == Engines::kEmbedded ? running.server_context(0) : nullptr;
  int server_result = -ETIME;
  std::thread server_thread([&] {
    if (server_context) server_result = open_result(server_context, server);
  });
  std::thread member([&] {
    present_result = open_result(running.context(0), present);
    missing = mercury_last_error();
  });
  mercury_job_options wish = present;
  wish.workers = 3;
  wish.rank = 2;
  int rc = 0;
  // Whoever comes first fixes the sizes: until then the wish itself waits, and times out.
  wish.timeout_ms = 10'000;
  rc = open_result(running.context(1), wish);
  const std::string why = mercury_last_error();
  member.join();
  server_thread.join();
  // One of the two is refused, the other then misses members.
  EXPECT_TRUE((rc == -ERANGE && present_result == -ETIME) ||
              (present_result == -ERANGE && rc == -ETIME))
      << rc << " " << why << ", " << present_result << " " << missing;
  EXPECT_TRUE((rc == -ERANGE ? why : missing).find("was opened with") != std::string::npos) << why;
  EXPECT_TRUE((rc == -ETIME ? why : missing).find("worker") != std::string::npos) << missing;
  EXPECT_EQ(server_result, -ETIME);
}

TEST_P(RealEnds, DeclarationsOfAllWorkersMustAgree) {
  RealJob job(GetParam());
  declare(job, 0, 7, 100);
  void* memory = nullptr;
  ASSERT_EQ(mercury_alloc(job.context(1), 4096, &memory), 0);
  EXPECT_EQ(declare_at(job.job(1), 7, memory, 101), -EPROTOTYPE);
  EXPECT_TRUE(said({"tensor 7", "100", "101"}));
  mercury_tensor_options options = tensor_options(7, memory, 100, MERCURY_DTYPE_I32);
  EXPECT_EQ(mercury_declare(job.job(1), &options, 1), -EPROTOTYPE);
  EXPECT_TRUE(said({"tensor 7", "i32", "f32"}));
  options = tensor_options(7, memory, 100);
  options.op = MERCURY_REDUCE_AVERAGE;
  EXPECT_EQ(mercury_declare(job.job(1), &options, 1), -EPROTOTYPE);
  EXPECT_TRUE(said({"tensor 7", "average"}));
  EXPECT_EQ(mercury_free(job.context(1), memory), 0) << "no tensor lies in it";
  // Right at last; the job is unharmed.
  auto* right = static_cast<float*>(declare(job, 1, 7, 100));
  right[99] = 6;
  push_pull(job.job(0), 7);
  EXPECT_EQ(mercury_wait(job.job(1), push_pull(job.job(1), 7), MERCURY_FOREVER), 0)
      << mercury_last_error();
  EXPECT_EQ(right[99], 6);
}

TEST(RealDaemon, KnowsOnlyItsJobs) {
  StackDaemon daemon(fresh_address(), "[jobs]\nopen = false\n");
  mercury_context* context = attach_daemon(daemon.socket());
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  const std::string rendezvous = daemon.address() + ":17470";
  options.name = "stranger";
  options.workers = options.servers = 1;
  options.rendezvous = rendezvous.c_str();
  EXPECT_EQ(open_result(context, options), -ESRCH);
  EXPECT_TRUE(said({"stranger", "[[job]]"}));
  mercury_detach(context);
}

TEST(RealDaemon, LimitsWhatAProgramShares) {
  StackDaemon daemon(fresh_address(), "program_memory = \"8MiB\"\n");
  mercury_context* context = attach_daemon(daemon.socket());
  void* memory = nullptr;
  EXPECT_EQ(mercury_alloc(context, 9U << 20, &memory), -ENOSPC);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(mercury_alloc(context, 1U << 20, &memory), 0) << mercury_last_error();
  mercury_detach(context);
}

TEST(RealDaemon, TellsAProgramTooManyWhichLimitItMet) {
  StackDaemon daemon(fresh_address(), "max_programs = 1\n");
  mercury_context* first = attach_daemon(daemon.socket());
  const std::string socket = daemon.socket();
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  options.mode = MERCURY_MODE_DAEMON;
  options.socket = socket.c_str();
  mercury_context* second = nullptr;
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(mercury_attach(&options, &second), -ENOSPC) << i << ": " << mercury_last_error();
    EXPECT_EQ(second, nullptr);
  }
  EXPECT_TRUE(said({"attach.max_programs", "1"}));
  mercury_detach(first);
  // The engines let go of the first program's channels in their own time.
  while (mercury_attach(&options, &second) == -ENOSPC) {
  }
  ASSERT_NE(second, nullptr) << mercury_last_error();
  mercury_detach(second);
}

// --- ends ------------------------------------------------------------------------------------

TEST_P(RealEnds, ClosingEndsWhatIsInFlightAndThePeersHearOfIt) {
  RealJob job(GetParam());
  const auto data = declare_everywhere(job, 1, 100);
  declare_everywhere(job, 2, 100);
  const mercury_handle waited = push_pull(job.job(0), 1);
  push_pull(job.job(0), 2);
  std::thread waiter(
      [&] { EXPECT_EQ(mercury_wait(job.job(0), waited, MERCURY_FOREVER), -ESHUTDOWN); });
  std::thread member(
      [&] { EXPECT_EQ(mercury_job_wait_end(job.job(0), MERCURY_FOREVER), -ESHUTDOWN); });
  while (mercury_wait(job.job(0), waited, 0) != -EBUSY) std::this_thread::yield();
  // Until `member` is inside, too: its call must not come after the end.
  EXPECT_EQ(mercury_job_wait_end(job.job(0), 200), -ETIMEDOUT);
  job.close(0);
  waiter.join();
  member.join();
  EXPECT_EQ(mercury_free(job.context(0), data[0]), 0) << mercury_last_error();
  // The other one pushes what worker 0 never will.
  job.expect_servers_end(-ECONNRESET);
  declare(job, 1, 3, 100);
  const mercury_handle lonely = push_pull(job.job(1), 3);
  EXPECT_EQ(mercury_wait(job.job(1), lonely, MERCURY_FOREVER), -ECONNRESET);
  EXPECT_TRUE(said({"tensor 3", "worker 0", "left"}));
  EXPECT_EQ(mercury_push_pull(job.job(1), 3, 0, nullptr), -ECONNRESET);
  EXPECT_TRUE(said({"the job has failed", "worker 0"}));
  EXPECT_EQ(mercury_job_wait_end(job.job(1), MERCURY_FOREVER), -ECONNRESET);
}

TEST_P(RealEnds, WhatWasPushedBeforeAPeerLeftCanStillBePulled) {
  RealJob job(GetParam());
  const auto data = declare_everywhere(job, 1, 100);
  declare_everywhere(job, 2, 100);
  const mercury_handle both = push_pull(job.job(0), 1);
  mercury_handle pushed = 0;
  ASSERT_EQ(mercury_push(job.job(1), 1, 0, &pushed), 0) << mercury_last_error();
  EXPECT_EQ(mercury_wait(job.job(0), both, MERCURY_FOREVER), 0) << mercury_last_error();
  EXPECT_EQ(mercury_wait(job.job(1), pushed, MERCURY_FOREVER), 0) << mercury_last_error();
  job.close(0);
  job.expect_servers_end(-ECONNRESET);
  const mercury_handle lonely = push_pull(job.job(1), 2);
  EXPECT_EQ(mercury_wait(job.job(1), lonely, MERCURY_FOREVER), -ECONNRESET);
  EXPECT_EQ(mercury_push_pull(job.job(1), 2, 0, nullptr), -ECONNRESET);
  // Tensor 1's round has both contributions.
  mercury_handle pulled = 0;
  ASSERT_EQ(mercury_pull(job.job(1), 1, 0, &pulled), 0) << mercury_last_error();
  EXPECT_EQ(mercury_wait(job.job(1), pulled, MERCURY_FOREVER), 0) << mercury_last_error();
  EXPECT_EQ(mercury_pull(job.job(1), 1, 0, nullptr), -ECONNRESET);
}

TEST_P(RealEnds, DetachingClosesEverything) {
  RealJob job(GetParam());
  declare_everywhere(job, 1, 100);
  const std::vector<mercury_job*> others = job.open_again("other");
  push_pull(job.job(0), 1);
  ASSERT_GE(mercury_job_get_fd(others[0]), 0) << mercury_last_error();
  job.detach(0);
  mercury_job_close(others[1]);
}

TEST_P(RealEnds, AForkedChildIsInertAndTheParentGoesOn) {
  RealJob job(GetParam());
  const auto data = declare_everywhere(job, 1, 100);
  const mercury_handle handle = push_pull(job.job(0), 1);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int wrong = 0;
    void* memory = nullptr;
    mercury_job* opened = nullptr;
    const mercury_job_options options = job.member_options();
    mercury_job_stats stats{};
    stats.size = sizeof stats;
    mercury_completion done{};
    const mercury_tensor_options tensor = tensor_options(9, data[0], 1);
    for (const int rc :
         {mercury_push_pull(job.job(0), 1, 0, nullptr), mercury_push(job.job(0), 1, 0, nullptr),
          mercury_pull(job.job(0), 1, 0, nullptr),
          mercury_wait(job.job(0), handle, MERCURY_FOREVER),
          mercury_poll(job.job(0), &done, 1, sizeof(mercury_completion)),
          mercury_job_get_fd(job.job(0)), mercury_job_wait_end(job.job(0), MERCURY_FOREVER),
          mercury_declare(job.job(0), &tensor, 1),
          mercury_job_set_callback(job.job(0), nullptr, nullptr),
          mercury_job_get_stats(job.job(0), &stats), mercury_alloc(job.context(0), 1, &memory),
          mercury_free(job.context(0), data[0]), mercury_register(job.context(0), &done, 1),
          mercury_deregister(job.context(0), &done),
          mercury_job_open(job.context(0), &options, &opened)}) {
      wrong += rc != -ENOTCONN;
    }
    wrong += std::strstr(mercury_last_error(), "attach after fork") == nullptr;
    mercury_job_close(job.job(0));
    mercury_detach(job.context(0));
// One knows no new threads in the child of a program with threads; the other's allocator may be
// locked there for ever, by a thread that allocated as much as attaching does.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    mercury_context* fresh = job.attach(0);
    wrong += fresh == nullptr || mercury_alloc(fresh, 1, &memory) != 0;
    mercury_detach(fresh);
#endif
    ::_exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "calls that were not refused";
  data[1][0] = 3;
  push_pull(job.job(1), 1);
  EXPECT_EQ(mercury_wait(job.job(0), handle, MERCURY_FOREVER), 0) << mercury_last_error();
  EXPECT_EQ(data[0][0], 3);
}

TEST_P(RealEnds, MercurysThreadsTakeNoSignals) {
  RealJob job(GetParam());
  int seen = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    bool is_ours = false;
    for (std::string line; std::getline(status, line);) {
      if (line.find("Name:\tmercury-") == 0) is_ours = true;
      if (!is_ours || line.find("SigBlk:") != 0) continue;
      ++seen;
      const uint64_t blocked = std::stoull(line.substr(8), nullptr, 16);
      EXPECT_NE(blocked & uint64_t{1} << (SIGINT - 1), 0U) << task.path();
      EXPECT_NE(blocked & uint64_t{1} << (SIGTERM - 1), 0U) << task.path();
    }
  }
  EXPECT_GE(seen, 2);
}

constexpr char kImpatient[] = "[session]\npeer_timeout = \"500ms\"\n";

// However many descriptors are left: an error that says so, and what was taken is given back.
TEST(RealEmbedded, SaysWhenDescriptorsRunOut) {
  const std::string rendezvous = fresh_address() + ":7470";
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  options.name = "few";
  options.role = MERCURY_ROLE_SERVER;
  options.workers = options.servers = 1;
  options.rank = 0;
  options.rendezvous = rendezvous.c_str();
  options.timeout_ms = 50;
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const int first = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(first, 0);
  ::close(first);
  int refused = 0;
  for (int more = 0; more < 40; ++more) {
    rlimit few = old;
    few.rlim_cur = static_cast<rlim_t>(first + more);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    mercury_attach_options attach;
    mercury_attach_options_init(&attach, sizeof attach);
    attach.mode = MERCURY_MODE_EMBEDDED;
    mercury_context* context = nullptr;
    mercury_job* job = nullptr;
    int code = mercury_attach(&attach, &context);
    if (code == 0) code = mercury_job_open(context, &options, &job);
    const std::string text = mercury_last_error();
    mercury_detach(context);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
    ASSERT_NE(code, 0) << "there is no worker";
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(next, first) << "with " << more << ": " << text;
    ::close(next);
    if (code != -EIO) break;
    EXPECT_NE(text.find("Too many open files"), std::string::npos) << text;
    ++refused;
  }
  EXPECT_GT(refused, 3);
  EXPECT_LT(refused, 40);
}

TEST(RealDaemon, WhoseEndIsToldToItsPrograms) {
  RealJob::Options options;
  options.daemon_config = kImpatient;  // the other daemon's program closes the job at the end
  RealJob job(Engines::kDaemon, options);
  declare_everywhere(job, 1, 100);
  const mercury_handle handle = push_pull(job.job(0), 1);
  job.daemon(0).kill();
  EXPECT_EQ(mercury_wait(job.job(0), handle, MERCURY_FOREVER), -EPIPE);
  EXPECT_EQ(mercury_push_pull(job.job(0), 1, 0, nullptr), -EPIPE);
  void* memory = nullptr;
  EXPECT_EQ(mercury_alloc(job.context(0), 1U << 30, &memory), -EPIPE);
  EXPECT_TRUE(said({"mercury-stackd has gone"}));
  EXPECT_EQ(mercury_job_wait_end(job.job(0), MERCURY_FOREVER), -EPIPE);
}

TEST(RealDaemon, WhoseHostIsSilentIsNamedToThePeers) {
  RealJob::Options options;
  options.daemon_config = kImpatient;
  RealJob job(Engines::kDaemon, options);
  declare_everywhere(job, 1, 100);
  const mercury_handle handle = push_pull(job.job(0), 1);
  job.daemon(1).kill();
  EXPECT_EQ(mercury_wait(job.job(0), handle, MERCURY_FOREVER), -EHOSTDOWN) << mercury_last_error();
  EXPECT_TRUE(said({"tensor 1", job.daemon(1).address().c_str()}));
}

}  // namespace
}  // namespace mercury::testing
