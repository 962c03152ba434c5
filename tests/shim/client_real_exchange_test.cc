// The C functions over real engines: what is exchanged, and how completions are collected.
#include <poll.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <future>
#include <random>

#include "tests/shim/client_hosts.h"

namespace mercury::testing {
namespace {

class RealExchange : public ::testing::TestWithParam<Engines> {};
INSTANTIATE_TEST_SUITE_P(On, RealExchange, ::testing::Values(Engines::kEmbedded, Engines::kDaemon),
                         [](const auto& engines) { return name_of(engines.param); });

// --- element types ---------------------------------------------------------------------------

// How small numbers, multiples of 1/2 below 64, look in each type; all are exact.
template <class T>
void put(void* at, double value) {
  const T element = static_cast<T>(value);
  std::memcpy(at, &element, sizeof element);
}
template <class T>
double get(const void* at) {
  T element;
  std::memcpy(&element, at, sizeof element);
  return static_cast<double>(element);
}
void put_bf16(void* at, double value) {
  const auto wide = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &wide, sizeof bits);
  put<uint16_t>(at, bits >> 16);
}
double get_bf16(const void* at) {
  const uint32_t bits = static_cast<uint32_t>(get<uint16_t>(at)) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return static_cast<double>(wide);
}
void put_f16(void* at, double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // value = fraction * 2^exponent
  const auto mantissa = static_cast<uint16_t>(fraction * 2048) & 0x3ffU;
  put<uint16_t>(at, value == 0 ? 0 : static_cast<unsigned>(exponent + 14) << 10 | mantissa);
}
double get_f16(const void* at) {
  const auto bits = static_cast<unsigned>(get<uint16_t>(at));
  return bits == 0 ? 0 : std::ldexp(1024 + (bits & 0x3ff), static_cast<int>(bits >> 10) - 25);
}

struct Element {
  const char* name;
  mercury_dtype dtype;
  size_t bytes;
  void (*put)(void*, double);
  double (*get)(const void*);
};
constexpr Element kElements[] = {
    {"f32", MERCURY_DTYPE_F32, 4, put<float>, get<float>},
    {"f64", MERCURY_DTYPE_F64, 8, put<double>, get<double>},
    {"f16", MERCURY_DTYPE_F16, 2, put_f16, get_f16},
    {"bf16", MERCURY_DTYPE_BF16, 2, put_bf16, get_bf16},
    {"i32", MERCURY_DTYPE_I32, 4, put<int32_t>, get<int32_t>},
    {"i64", MERCURY_DTYPE_I64, 8, put<int64_t>, get<int64_t>},
    {"i8", MERCURY_DTYPE_I8, 1, put<int8_t>, get<int8_t>},
    {"u8", MERCURY_DTYPE_U8, 1, put<uint8_t>, get<uint8_t>},
};

double gradient(int rank, size_t i) { return static_cast<double>(i % 13) + rank + 1; }

double result(const RealJob& job, mercury_reduce_op op, size_t i) {
  double sum = 0;
  for (int r = 0; r < job.workers(); ++r) sum += gradient(r, i);
  if (op == MERCURY_REDUCE_AVERAGE) return sum / job.workers();
  if (op == MERCURY_REDUCE_MIN) return gradient(0, i);
  return op == MERCURY_REDUCE_MAX ? gradient(job.workers() - 1, i) : sum;
}

// One worker's part of one round.
void scatter(RealJob& job, int rank, uint32_t id, const Element& element, mercury_reduce_op op,
             size_t numel) {
  auto* data = static_cast<std::byte*>(declare(job, rank, id, numel, element.dtype, op));
  for (size_t i = 0; i < numel; ++i) element.put(data + i * element.bytes, gradient(rank, i));
  mercury_handle handle = 0;
  ASSERT_EQ(mercury_reduce_scatter(job.job(rank), id, 3, &handle), 0) << mercury_last_error();
  ASSERT_EQ(mercury_wait(job.job(rank), handle, MERCURY_FOREVER), 0) << mercury_last_error();
  uint64_t begin = 0, part = 0;
  ASSERT_EQ(mercury_tensor_get_part(job.job(rank), id, static_cast<uint32_t>(rank), &begin, &part),
            0);
  for (size_t i = begin; i < begin + part; ++i) {
    ASSERT_EQ(element.get(data + i * element.bytes), result(job, op, i))
        << element.name << ", operation " << op << ", element " << i;
  }
}

// Two rounds of one tensor on one worker: fused, and in two steps.
void exchange(RealJob& job, int rank, uint32_t id, const Element& element, mercury_reduce_op op,
              size_t numel) {
  auto* data = static_cast<std::byte*>(declare(job, rank, id, numel, element.dtype, op));
  for (const bool fused : {true, false}) {
    for (size_t i = 0; i < numel; ++i) element.put(data + i * element.bytes, gradient(rank, i));
    mercury_handle last = 0;
    if (fused) {
      last = push_pull(job.job(rank), id);
    } else {
      mercury_handle push = 0;
      ASSERT_EQ(mercury_push(job.job(rank), id, 3, &push), 0) << mercury_last_error();
      if (rank == 0) {
        EXPECT_EQ(mercury_wait(job.job(rank), push, MERCURY_FOREVER), 0) << mercury_last_error();
      }
      ASSERT_EQ(mercury_pull(job.job(rank), id, 3, &last), 0) << mercury_last_error();
    }
    ASSERT_EQ(mercury_wait(job.job(rank), last, MERCURY_FOREVER), 0) << mercury_last_error();
    for (size_t i = 0; i < numel; ++i) {
      ASSERT_EQ(element.get(data + i * element.bytes), result(job, op, i))
          << element.name << ", operation " << op << ", element " << i;
    }
  }
}

// Each worker asks for another policy now and then, while tensors of every worker are under way.
TEST_P(RealExchange, ThePolicyChangesWhileSumsAreUnderWay) {
  constexpr std::array kPolicies = {"wfbp",         "p3:partition=9KB,credit=9KB,startup=10us",
                                    "mercury",      "byteps:partition=20KB,credit=60KB,startup=0",
                                    "mercury-fifo", "mercury:answers=fifo,grants=even,unit=30KB"};
  constexpr std::array<size_t, 3> kNumel = {30'000, 1, 7'001};
  constexpr uint32_t kRounds = 60;
  RealJob job(GetParam());
  job.each_worker([&](int rank) {
    std::array<int32_t*, kNumel.size()> data{};
    for (uint32_t id = 0; id < data.size(); ++id) {
      data[id] = static_cast<int32_t*>(
          declare(job, rank, id, kNumel[id], MERCURY_DTYPE_I32, MERCURY_REDUCE_SUM));
    }
    for (uint32_t round = 1; round <= kRounds; ++round) {
      std::array<mercury_handle, kNumel.size()> handles{};
      for (uint32_t id = 0; id < data.size(); ++id) {
        for (size_t i = 0; i < kNumel[id]; ++i) {
          data[id][i] = static_cast<int32_t>(i * 3 + round * 7 + static_cast<uint32_t>(rank));
        }
        handles[id] = push_pull(job.job(rank), id);
      }
      if (round % 5 == static_cast<uint32_t>(rank)) {
        const char* policy = kPolicies[(round / 5 + static_cast<size_t>(rank)) % kPolicies.size()];
        ASSERT_EQ(mercury_job_set_policy(job.job(rank), policy), 0) << mercury_last_error();
      }
      for (uint32_t id = 0; id < data.size(); ++id) {
        ASSERT_EQ(mercury_wait(job.job(rank), handles[id], MERCURY_FOREVER), 0)
            << mercury_last_error();
        const int32_t ranks = job.workers() * (job.workers() - 1) / 2;
        for (size_t i = 0; i < kNumel[id]; ++i) {
          ASSERT_EQ(data[id][i], job.workers() * static_cast<int32_t>(i * 3 + round * 7) + ranks)
              << "round " << round << ", tensor " << id << ", element " << i;
        }
      }
    }
    EXPECT_EQ(mercury_job_set_policy(job.job(rank), "p4"), -EINVAL);
    EXPECT_NE(std::string(mercury_last_error()).find("p3"), std::string::npos)
        << mercury_last_error();
    EXPECT_EQ(mercury_job_set_policy(job.job(rank), "wfbp-eq7"), -EOPNOTSUPP);
    EXPECT_EQ(mercury_job_set_policy(job.job(rank), nullptr), -EINVAL);
    EXPECT_EQ(mercury_job_set_policy(job.job(rank), "wfbp:place=key"), -EINVAL);
    EXPECT_NE(std::string(mercury_last_error()).find("on other servers"), std::string::npos)
        << mercury_last_error();
  });
}

// More than the ring of commands to an engine holds.
TEST_P(RealExchange, ManyTensorsAreDeclaredAtOnce) {
  constexpr uint32_t kTensors = 3000;
  RealJob job(GetParam());
  job.each_worker([&](int rank) {
    void* memory = nullptr;
    ASSERT_EQ(mercury_alloc(job.context(rank), kTensors * sizeof(float), &memory), 0);
    std::vector<mercury_tensor_options> all;
    for (uint32_t id = 0; id < kTensors; ++id) {
      all.push_back(tensor_options(id, static_cast<float*>(memory) + id, 1));
    }
    ASSERT_EQ(mercury_declare(job.job(rank), all.data(), all.size()), 0) << mercury_last_error();
    *(static_cast<float*>(memory) + kTensors - 1) = 1;
    ASSERT_EQ(mercury_wait(job.job(rank), push_pull(job.job(rank), kTensors - 1), MERCURY_FOREVER),
              0);
    EXPECT_EQ(*(static_cast<float*>(memory) + kTensors - 1), 2);
  });
}

TEST_P(RealExchange, EveryTypeIsSummedAveragedAndScattered) {
  RealJob job(GetParam());
  job.each_worker([&](int rank) {
    uint32_t id = 0;
    for (const Element& element : kElements) {
      for (const mercury_reduce_op op :
           {MERCURY_REDUCE_SUM, MERCURY_REDUCE_AVERAGE, MERCURY_REDUCE_MIN, MERCURY_REDUCE_MAX}) {
        const bool integer = element.dtype >= MERCURY_DTYPE_I32;
        if (op == MERCURY_REDUCE_AVERAGE && integer) continue;
        // One element; a few; several frames.
        for (const size_t numel : {1U, 7U, 60'001U}) {
          exchange(job, rank, id++, element, op, numel);
          scatter(job, rank, id++, element, op, numel);
        }
      }
    }
  });
}

TEST_P(RealExchange, TheOnlyWorkersPartIsAll) {
  RealJob::Options options;
  options.workers = 1;
  RealJob job(GetParam(), options);
  scatter(job, 0, 1, kElements[0], MERCURY_REDUCE_SUM, 60'001);
  scatter(job, 0, 2, kElements[3], MERCURY_REDUCE_AVERAGE, 1);
}

// --- rounds in flight ------------------------------------------------------------------------

constexpr uint32_t kTensors = 8;
constexpr uint32_t kRounds = 25;

float value(int rank, uint32_t tensor, uint32_t round, size_t i) {
  return static_cast<float>(static_cast<uint32_t>(rank + 1) * 1000 + tensor * 100 + round +
                            static_cast<uint32_t>(i % 7));
}

// A worker that pushes whichever tensor is free, in an order of its own, and checks every sum.
class Rusher {
 public:
  Rusher(RealJob& job, int rank, const std::vector<std::vector<float*>>& data)
      : job_(job), rank_(rank), data_(data), random_(static_cast<uint64_t>(rank) + 7) {}

  static size_t numel(uint32_t tensor) { return size_t{37} << tensor; }

  void run() {
    while (finished_ < kTensors * kRounds) {
      const auto tensor = static_cast<uint32_t>(random_() % kTensors);
      if (!in_flight_[tensor] && rounds_[tensor] < kRounds) push(tensor);
      collect();
    }
  }

 private:
  float* data(uint32_t tensor) const { return data_[tensor][static_cast<size_t>(rank_)]; }

  void push(uint32_t tensor) {
    const uint32_t round = ++rounds_[tensor];
    for (size_t i = 0; i < numel(tensor); ++i) data(tensor)[i] = value(rank_, tensor, round, i);
    const auto priority = static_cast<int>(random_() % 65536);
    ASSERT_EQ(mercury_push_pull(job_.job(rank_), tensor, priority, nullptr), 0)
        << mercury_last_error();
    in_flight_[tensor] = true;
  }

  void collect() {
    mercury_completion done[3];
    const int n = mercury_poll(job_.job(rank_), done, 3, sizeof(mercury_completion));
    for (int k = 0; k < n; ++k) {
      const uint32_t tensor = done[k].tensor;
      ASSERT_EQ(done[k].status, 0);
      ASSERT_EQ(done[k].round, rounds_[tensor]);
      for (size_t i = 0; i < numel(tensor); ++i) {
        float sum = 0;
        for (int r = 0; r < job_.workers(); ++r) sum += value(r, tensor, done[k].round, i);
        ASSERT_EQ(data(tensor)[i], sum) << "tensor " << tensor << " round " << done[k].round;
      }
      in_flight_[tensor] = false;
      ++finished_;
    }
    if (n == 0) std::this_thread::yield();
  }

  RealJob& job_;
  const int rank_;
  const std::vector<std::vector<float*>>& data_;
  std::mt19937_64 random_;
  uint32_t rounds_[kTensors]{};
  bool in_flight_[kTensors]{};
  uint32_t finished_ = 0;
};

TEST_P(RealExchange, RoundsOfManyTensorsAreInFlightInAnyOrder) {
  RealJob::Options options;
  options.workers = 3;
  RealJob job(GetParam(), options);
  std::vector<std::vector<float*>> data;
  for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    data.push_back(declare_everywhere(job, tensor, Rusher::numel(tensor)));
  }
  job.each_worker([&](int rank) { Rusher(job, rank, data).run(); });
  for (int rank = 0; rank < job.workers(); ++rank) {
    mercury_job_stats stats{};
    stats.size = sizeof stats;
    ASSERT_EQ(mercury_job_get_stats(job.job(rank), &stats), 0);
    EXPECT_EQ(stats.operations, kTensors * kRounds);
    EXPECT_EQ(stats.bytes_pushed, kRounds * 4 * 37 * ((1U << kTensors) - 1));
    EXPECT_EQ(stats.bytes_pulled, stats.bytes_pushed);
  }
}

TEST_P(RealExchange, AnUrgentTensorIsExchangedWhileALongOneIsInFlight) {
  constexpr size_t kLong = 2'000'000;
  RealJob job(GetParam());
  const auto big = declare_everywhere(job, 1, kLong, 9);
  const auto small = declare_everywhere(job, 2, 10, 1);
  big[0][0] = big[1][kLong - 1] = 1;
  small[0][9] = small[1][9] = 2;
  const mercury_handle long_one = push_pull(job.job(0), 1);
  const mercury_handle urgent = push_pull(job.job(0), 2);
  // The other worker's part of the long one comes only when the urgent one is through.
  ASSERT_EQ(mercury_wait(job.job(1), push_pull(job.job(1), 2), MERCURY_FOREVER), 0)
      << mercury_last_error();
  EXPECT_EQ(mercury_wait(job.job(0), urgent, MERCURY_FOREVER), 0);
  EXPECT_EQ(small[0][9], 4);
  EXPECT_EQ(mercury_wait(job.job(0), long_one, 0), -ETIMEDOUT);
  ASSERT_EQ(mercury_wait(job.job(1), push_pull(job.job(1), 1), MERCURY_FOREVER), 0);
  EXPECT_EQ(mercury_wait(job.job(0), long_one, MERCURY_FOREVER), 0);
  EXPECT_EQ(big[0][0] + big[0][kLong - 1], 2);
}

// --- completion ------------------------------------------------------------------------------

TEST_P(RealExchange, WaitingHasATimeLimit) {
  RealJob job(GetParam());
  const auto data = declare_everywhere(job, 1, 100);
  data[0][99] = 1;
  data[1][99] = 2;
  const mercury_handle handle = push_pull(job.job(0), 1);
  EXPECT_EQ(mercury_wait(job.job(0), handle, 0), -ETIMEDOUT);
  EXPECT_EQ(mercury_wait(job.job(0), handle, 5), -ETIMEDOUT);
  EXPECT_STREQ(mercury_last_error(), "the operation is still in flight");
  mercury_completion none{};
  EXPECT_EQ(mercury_poll(job.job(0), &none, 1, sizeof(mercury_completion)), 0);
  EXPECT_EQ(mercury_push_pull(job.job(0), 1, 0, nullptr), -EBUSY);
  push_pull(job.job(1), 1);
  EXPECT_EQ(mercury_wait(job.job(0), handle, MERCURY_FOREVER), 0) << mercury_last_error();
  EXPECT_EQ(data[0][99], 3);
  EXPECT_EQ(mercury_wait(job.job(0), handle, 0), -ENOENT);
}

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 60'000) == 1;  // a limit for a hang only
}

TEST_P(RealExchange, TheEventDescriptorWakesAnEventLoop) {
  RealJob job(GetParam());
  const auto data = declare_everywhere(job, 1, 3000);
  const int fd = mercury_job_get_fd(job.job(0));
  ASSERT_GE(fd, 0) << mercury_last_error();
  EXPECT_EQ(mercury_job_get_fd(job.job(0)), fd);
  for (uint32_t round = 1; round <= 50; ++round) {
    data[0][2999] = data[1][2999] = static_cast<float>(round);
    push_pull(job.job(0), 1);
    const mercury_handle other = push_pull(job.job(1), 1);
    mercury_completion done{};
    int n = 0;
    while (n == 0) {
      ASSERT_TRUE(readable(fd)) << "round " << round;
      n = mercury_poll(job.job(0), &done, 1, sizeof(mercury_completion));
    }
    ASSERT_EQ(n, 1) << mercury_last_error();
    EXPECT_EQ(done.round, round);
    EXPECT_EQ(done.user_data, 0U);
    EXPECT_EQ(done.message, nullptr);
    EXPECT_EQ(data[0][2999], 2.0F * static_cast<float>(round));
    ASSERT_EQ(mercury_wait(job.job(1), other, MERCURY_FOREVER), 0);
  }
}

// A callback that submits the next round itself, and waits for another tensor in between.
struct Chain {
  mercury_job* job = nullptr;
  std::atomic<int> rounds{0};
  std::atomic<int> errors{0};
};

void next_link(const mercury_completion* done, void* user) {
  auto* chain = static_cast<Chain*>(user);
  chain->errors += done->status != 0 || done->user_data != 0;
  if (done->tensor != 1) return;
  mercury_handle other = 0;
  chain->errors += mercury_push_pull(chain->job, 2, 0, &other) != 0;
  chain->errors += mercury_wait(chain->job, other, MERCURY_FOREVER) != 0;
  // Closing is not for callbacks.
  mercury_job_close(chain->job);
  chain->errors += std::strstr(mercury_last_error(), "callback") == nullptr;
  if (++chain->rounds < 5) chain->errors += mercury_push_pull(chain->job, 1, 0, nullptr) != 0;
}

TEST_P(RealExchange, ACallbackMaySubmitAndWait) {
  RealJob job(GetParam());
  declare_everywhere(job, 1, 500);
  declare_everywhere(job, 2, 500);
  std::thread peer([&] {
    for (int round = 0; round < 5; ++round) {
      for (const uint32_t tensor : {1U, 2U}) {
        EXPECT_EQ(mercury_wait(job.job(1), push_pull(job.job(1), tensor), MERCURY_FOREVER), 0);
      }
    }
  });
  Chain chain;
  chain.job = job.job(0);
  ASSERT_EQ(mercury_job_set_callback(chain.job, next_link, &chain), 0);
  const mercury_handle first = push_pull(chain.job, 1);
  EXPECT_EQ(mercury_wait(chain.job, first, MERCURY_FOREVER), 0) << mercury_last_error();
  mercury_completion none{};
  while (chain.rounds < 5)
    EXPECT_EQ(mercury_poll(chain.job, &none, 1, sizeof(mercury_completion)), 0);
  peer.join();
  EXPECT_EQ(chain.errors, 0);
  ASSERT_EQ(mercury_job_set_callback(chain.job, nullptr, nullptr), 0);
  EXPECT_EQ(mercury_poll(chain.job, &none, 1, sizeof(mercury_completion)), 0)
      << "all were told to the callback";
}

struct Slow {
  std::promise<void> entered;
  std::promise<void> may_return;
};

TEST_P(RealExchange, ASlowCallbackHoldsUpNoOtherThread) {
  RealJob job(GetParam());
  for (const uint32_t tensor : {1U, 2U, 3U}) declare_everywhere(job, tensor, 500);
  Slow slow;
  const auto callback = [](const mercury_completion* done, void* user) {
    auto* s = static_cast<Slow*>(user);
    if (done->tensor != 1) return;
    s->entered.set_value();
    s->may_return.get_future().wait();
  };
  ASSERT_EQ(mercury_job_set_callback(job.job(0), callback, &slow), 0);
  const mercury_handle handles[] = {push_pull(job.job(0), 1), push_pull(job.job(0), 2),
                                    push_pull(job.job(0), 3)};
  // A thread that comes after the callback was told finds the handle gone.
  const auto wait = [&](mercury_handle handle) {
    const int status = mercury_wait(job.job(0), handle, MERCURY_FOREVER);
    EXPECT_TRUE(status == 0 || status == -ENOENT) << status;
  };
  std::thread leader(wait, handles[0]);
  std::thread follower(wait, handles[1]);
  // Either thread may run the callback; tensor 1 completes first.
  push_pull(job.job(1), 1);
  slow.entered.get_future().wait();
  push_pull(job.job(1), 2);
  push_pull(job.job(1), 3);
  wait(handles[2]);
  slow.may_return.set_value();
  leader.join();
  follower.join();
}

TEST_P(RealExchange, ManyThreadsShareAJob) {
  constexpr uint32_t kThreads = 6;
  constexpr int kEach = 60;
  RealJob job(GetParam());
  std::vector<std::vector<float*>> data;
  for (uint32_t t = 0; t < kThreads; ++t) data.push_back(declare_everywhere(job, t, 2000));
  std::atomic<bool> stop{false};
  std::thread reader([&] {  // takes completions out of the rings for others
    while (!stop) {
      mercury_job_stats stats{};
      stats.size = sizeof stats;
      EXPECT_EQ(mercury_job_get_stats(job.job(0), &stats), 0);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    for (int rank = 0; rank < job.workers(); ++rank) {
      threads.emplace_back([&job, rank, t, mine = data[t][static_cast<size_t>(rank)]] {
        for (int round = 0; round < kEach; ++round) {
          std::fill(mine, mine + 2000, static_cast<float>(rank + round));
          const mercury_handle handle = push_pull(job.job(rank), t);
          int rc = -ETIMEDOUT;
          while (rc == -ETIMEDOUT) rc = mercury_wait(job.job(rank), handle, t % 2 == 0 ? -1 : 1);
          ASSERT_EQ(rc, 0) << mercury_last_error();
          ASSERT_EQ(mine[1999], static_cast<float>(1 + 2 * round));
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace mercury::testing
