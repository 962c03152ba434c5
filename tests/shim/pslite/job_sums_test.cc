// Workers' sums by real jobs of Mercury's, over loopback: engines of this process, and a server
// that is closed and opened again.
#include "shim/pslite/job_sums.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

using mercury_van::JobPlace;
using mercury_van::JobSums;

constexpr int kWorkers = 2;
constexpr char kName[] = "sums";

std::string free_address() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd, at, length), 0);
  EXPECT_EQ(::getsockname(fd, at, &length), 0);
  ::close(fd);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

// Serves one job after another, as a daemon does.
class SumServer {
 public:
  explicit SumServer(std::string address, const char* secret = nullptr)
      : address_(std::move(address)), secret_(secret), thread_([this] { run(); }) {}
  ~SumServer() {
    ends_ = true;
    thread_.join();
  }

 private:
  void run() {
    while (!ends_) {
      mercury_attach_options options;
      mercury_attach_options_init(&options, sizeof options);
      options.mode = MERCURY_MODE_EMBEDDED;
      options.listen = address_.c_str();
      mercury_context* context = nullptr;
      if (mercury_attach(&options, &context) < 0) continue;
      serve(context);
      mercury_detach(context);
    }
  }

  void serve(mercury_context* context) {
    mercury_job_options options;
    mercury_job_options_init(&options, sizeof options);
    options.name = kName;
    options.secret = secret_;
    options.role = MERCURY_ROLE_SERVER;
    options.workers = kWorkers;
    options.servers = 1;
    options.rendezvous = address_.c_str();
    options.timeout_ms = 2000;
    mercury_job* job = nullptr;
    if (mercury_job_open(context, &options, &job) == 0) {
      while (!ends_ && mercury_job_wait_end(job, 20) == -ETIMEDOUT) {
      }
    }
    mercury_job_close(job);
  }

  const std::string address_;
  const char* const secret_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

class SumsWorker {
 public:
  SumsWorker(const std::string& address, int rank)
      : sums_(
            [address, rank](JobPlace* out) {
              *out = {kName, address, rank, kWorkers, 1};
              return true;
            },
            [this](const std::string& what) {
              std::lock_guard<std::mutex> lock(mutex_);
              warnings_ += what + "\n";
              changed_.notify_all();
            },
            [this](const std::string& why) {
              std::lock_guard<std::mutex> lock(mutex_);
              failure_ = why;
              changed_.notify_all();
            }) {}

  void push(uint64_t number, float value, int priority = 0) {
    const std::vector<float> values(1000, value);
    sums_.push(number, MERCURY_DTYPE_F32, reinterpret_cast<const char*>(values.data()),
               values.size() * sizeof(float), priority, [this] {
                 std::lock_guard<std::mutex> lock(mutex_);
                 ++taken_;
                 changed_.notify_all();
               });
  }

  // How many of its pushes are, once those are as many, or have been fewer for long.
  int taken(int wanted) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return taken_ >= wanted; });
    return taken_;
  }

  std::string warnings() {
    std::lock_guard<std::mutex> lock(mutex_);
    return warnings_;
  }
  void wait_for_warning() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return !warnings_.empty() || !failure_.empty(); });
    EXPECT_EQ(failure_, "");
  }

  std::string failure() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return !failure_.empty(); });
    return failure_;
  }

  // What all elements of the sums are, or why there is none.
  std::vector<float> pull(const std::vector<uint64_t>& numbers) {
    auto got = std::make_shared<std::vector<JobSums::Sum>>();
    sums_.pull(numbers, [this, got](const std::vector<JobSums::Sum>& sums) {
      std::lock_guard<std::mutex> lock(mutex_);
      *got = sums;
      changed_.notify_all();
    });
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return !got->empty() || !failure_.empty(); });
    EXPECT_EQ(failure_, "");
    std::vector<float> out;
    for (const JobSums::Sum& sum : *got) {
      const auto* const values = reinterpret_cast<const float*>(sum->data());
      for (size_t i = 1; i < sum->size() / sizeof(float); ++i) EXPECT_EQ(values[i], values[0]);
      out.push_back(values[0]);
    }
    return out;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int taken_ = 0;
  std::string warnings_, failure_;
  JobSums sums_;
};

using Floats = std::vector<float>;

// Worker 0 as a test would have it: says of key 3 what it is told to.
class ToldWorker {
 public:
  explicit ToldWorker(const std::string& address) {
    mercury_attach_options attach;
    mercury_attach_options_init(&attach, sizeof attach);
    attach.mode = MERCURY_MODE_EMBEDDED;
    EXPECT_EQ(mercury_attach(&attach, &context_), 0) << mercury_last_error();
    mercury_job_options options;
    mercury_job_options_init(&options, sizeof options);
    options.name = kName;
    options.rank = 0;
    options.workers = kWorkers;
    options.servers = 1;
    options.rendezvous = address.c_str();
    int opened = -1;
    for (int attempt = 0; attempt < 10 && opened < 0; ++attempt) {
      opened = mercury_job_open(context_, &options, &job_);
    }
    EXPECT_EQ(opened, 0) << mercury_last_error();
    declare(6, 1000, MERCURY_DTYPE_F32, &values_, sizeof(float));
    declare(7, kWorkers, MERCURY_DTYPE_I64, &counts_, sizeof(int64_t));
  }
  ~ToldWorker() {
    mercury_job_close(job_);
    mercury_detach(context_);
  }
  ToldWorker(const ToldWorker&) = delete;
  ToldWorker& operator=(const ToldWorker&) = delete;

  // It has so many sums; how many the other one has.
  int64_t compare(int64_t own) {
    auto* const counts = static_cast<int64_t*>(counts_);
    counts[0] = own;
    counts[1] = 0;
    exchange(7);
    return counts[1];
  }
  float sum_with(float value) {
    auto* const values = static_cast<float*>(values_);
    std::fill(values, values + 1000, value);
    exchange(6);
    return values[999];
  }

 private:
  void declare(uint32_t id, uint64_t count, mercury_dtype type, void** memory, size_t each) {
    EXPECT_EQ(mercury_alloc(context_, count * each, memory), 0);
    mercury_tensor_options tensor;
    mercury_tensor_options_init(&tensor, sizeof tensor);
    tensor.id = id;
    tensor.numel = count;
    tensor.dtype = type;
    tensor.data = *memory;
    EXPECT_EQ(mercury_declare(job_, &tensor, 1), 0) << mercury_last_error();
  }
  void exchange(uint32_t id) {
    mercury_handle handle = 0;
    EXPECT_EQ(mercury_push_pull(job_, id, MERCURY_DEFAULT_PRIORITY, &handle), 0);
    EXPECT_EQ(mercury_wait(job_, handle, -1), 0) << mercury_last_error();
  }

  mercury_context* context_ = nullptr;
  mercury_job* job_ = nullptr;
  void* values_ = nullptr;
  void* counts_ = nullptr;
};

class JobSumsTest : public testing::Test {
 protected:
  // Before any thread reads the environment. Of the workers: any port.
  static void SetUpTestSuite() { ::setenv("MERCURY_LISTEN", "127.0.0.1", 1); }

  JobSumsTest() {
    start(0);
    start(1);
  }

  void start(size_t rank) {
    worker[rank] = std::make_unique<SumsWorker>(address, static_cast<int>(rank));
  }

  const std::string address = free_address();
  std::unique_ptr<SumServer> server = std::make_unique<SumServer>(address);
  std::unique_ptr<SumsWorker> worker[kWorkers];
};

TEST_F(JobSumsTest, SumsRoundAfterRoundAndKeepsTheLast) {
  for (int round = 1; round <= 5; ++round) {
    const auto value = static_cast<float>(round);
    worker[0]->push(3, value);
    worker[1]->push(3, 10 * value);
    EXPECT_EQ(worker[0]->pull({3}), Floats{11 * value});
    EXPECT_EQ(worker[1]->pull({3}), Floats{11 * value});
    EXPECT_EQ(worker[1]->pull({3}), Floats{11 * value});
  }
}

TEST_F(JobSumsTest, AWorkerAheadGetsEachRoundsOwnSum) {
  std::thread ahead([this] {
    for (int round = 1; round <= 3; ++round) worker[0]->push(3, static_cast<float>(round));
    EXPECT_EQ(worker[0]->pull({3}), Floats{33});
  });
  for (int round = 1; round <= 3; ++round) {
    worker[1]->push(3, static_cast<float>(10 * round));
    EXPECT_EQ(worker[1]->pull({3}), Floats{static_cast<float>(11 * round)});
  }
  ahead.join();
}

TEST_F(JobSumsTest, AWorkerFarAheadIsHeldBack) {
  for (int round = 1; round <= 5; ++round) worker[0]->push(3, 1);
  EXPECT_EQ(worker[0]->taken(2), 2);
  worker[0]->push(4, 1);
  EXPECT_EQ(worker[0]->taken(3), 3) << "another key is not behind";
  for (int round = 1; round <= 3; ++round) {
    worker[1]->push(3, 2);
    EXPECT_EQ(worker[0]->taken(3 + round), 3 + round);
  }
  worker[1]->push(3, 2);
  worker[1]->push(3, 20);
  EXPECT_EQ(worker[1]->pull({3}), Floats{21});
  EXPECT_EQ(worker[0]->taken(6), 6) << "one was taken twice";
}

TEST_F(JobSumsTest, PullsSeveralKeysAtOnce) {
  for (uint64_t number : {1, 2, 9}) {
    worker[0]->push(number, static_cast<float>(number), static_cast<int>(number) - 5);
    worker[1]->push(number, 1);
  }
  EXPECT_EQ(worker[0]->pull({9, 1, 2}), (Floats{10, 2, 3}));
  EXPECT_EQ(worker[1]->pull({2}), Floats{3});
}

// More than a job's rings hold, when they are pushed and when a job is opened again.
TEST_F(JobSumsTest, MoreKeysThanThereIsRoomForTakeTurns) {
  constexpr uint64_t kKeys = 2500;
  const auto push_all = [this](size_t rank, float value) {
    for (uint64_t number = 0; number < kKeys; ++number) worker[rank]->push(number, value);
  };
  std::vector<uint64_t> all(kKeys);
  std::iota(all.begin(), all.end(), 0);
  push_all(0, 1);
  push_all(1, 2);
  EXPECT_EQ(worker[0]->pull(all), Floats(kKeys, 3));
  push_all(0, 10);
  server.reset();
  server = std::make_unique<SumServer>(address);
  push_all(1, 20);
  EXPECT_EQ(worker[0]->pull(all), Floats(kKeys, 30));
  EXPECT_EQ(worker[1]->pull(all), Floats(kKeys, 30));
  for (const auto& each : worker) {
    EXPECT_EQ(each->warnings().find("too many operations"), std::string::npos) << each->warnings();
  }
}

TEST(JobSums, ADaemonThatIsNotThereYetIsAwaited) {
  ::setenv("MERCURY_SOCKET", "/nonexistent/mercury.sock", 1);
  {
    SumsWorker alone("127.0.0.1:1", 0);
    alone.wait_for_warning();
    EXPECT_NE(alone.warnings().find("cannot attach to Mercury"), std::string::npos);
  }
  ::unsetenv("MERCURY_SOCKET");
}

TEST(JobSums, TheSecretMayBeInAFile) {
  const std::string path = testing::TempDir() + "mercury-secret-" + std::to_string(::getpid());
  std::ofstream(path) << "sesame\n";
  const std::map<std::string, std::string> variables{
      {"DMLC_ROLE", "worker"},           {"DMLC_NUM_WORKER", "2"},   {"DMLC_NUM_SERVER", "1"},
      {"DMLC_PS_ROOT_URI", "127.0.0.1"}, {"DMLC_PS_ROOT_PORT", "1"}, {"MERCURY_SECRET_FILE", path},
      {"MERCURY_LISTEN", "127.0.0.1"}};
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  {
    const std::string address = free_address();
    auto server = std::make_unique<SumServer>(address, "sesame");
    SumsWorker first(address, 0);
    SumsWorker second(address, 1);
    first.push(3, 1);
    second.push(3, 2);
    EXPECT_EQ(first.pull({3}), Floats{3});
    std::remove(path.c_str());  // it was read, and jobs go on being opened with it
    server.reset();
    server = std::make_unique<SumServer>(address, "sesame");
    first.push(3, 10);
    second.push(3, 20);
    EXPECT_EQ(first.pull({3}), Floats{30});
  }
  {
    SumsWorker alone("127.0.0.1:1", 0);
    EXPECT_NE(alone.failure().find("MERCURY_SECRET_FILE: expected a readable file"),
              std::string::npos)
        << alone.failure();
  }
  for (const auto& [name, value] : variables) {
    if (name != "MERCURY_LISTEN") ::unsetenv(name.c_str());
  }
}

TEST_F(JobSumsTest, AServerThatIsStartedAgainCostsNoSum) {
  worker[0]->push(3, 1);
  worker[1]->push(3, 2);
  EXPECT_EQ(worker[0]->pull({3}), Floats{3});
  worker[0]->push(3, 10);  // half a round
  server.reset();
  server = std::make_unique<SumServer>(address);
  worker[1]->push(3, 20);
  EXPECT_EQ(worker[0]->pull({3}), Floats{30});
  EXPECT_EQ(worker[1]->pull({3}), Floats{30});
}

TEST_F(JobSumsTest, AWorkerThatIsStartedAgainIsInTheRoundOfTheOthers) {
  for (int round = 1; round <= 3; ++round) {
    worker[0]->push(3, 1);
    worker[1]->push(3, 2);
    EXPECT_EQ(worker[0]->pull({3}), Floats{3});
  }
  worker[1].reset();
  start(1);
  worker[1]->push(3, 20);
  worker[0]->push(3, 10);
  EXPECT_EQ(worker[0]->pull({3}), Floats{30});
  EXPECT_EQ(worker[1]->pull({3}), Floats{30});
  worker[1]->push(3, 200);
  worker[0]->push(3, 100);
  EXPECT_EQ(worker[1]->pull({3}), Floats{300});
}

TEST_F(JobSumsTest, WhoLacksASumGetsItOfWhoHasIt) {
  worker[0].reset();
  worker[1]->push(3, 20);
  {
    ToldWorker other(address);
    EXPECT_EQ(other.compare(0), 0);
  }  // that could have had the sum, before it opens the next job
  worker[1]->push(3, 200);
  ToldWorker other(address);
  EXPECT_EQ(other.compare(1), 0);
  EXPECT_EQ(other.sum_with(30), 30) << "it had nothing to hand on";
  EXPECT_EQ(other.sum_with(100), 300);
  EXPECT_EQ(worker[1]->pull({3}), Floats{300});
}

TEST_F(JobSumsTest, WhoHasASumHandsItOnAlsoIfThatWasHandedToIt) {
  worker[0].reset();
  worker[1]->push(3, 20);  // of the sixth round: another process was this worker in those before
  {
    ToldWorker other(address);
    EXPECT_EQ(other.compare(5), 0);
    EXPECT_EQ(other.sum_with(77), 77);
  }
  ToldWorker other(address);
  EXPECT_EQ(other.compare(4), 5);
  EXPECT_EQ(other.sum_with(0), 77);
  EXPECT_EQ(other.sum_with(10), 30);
  EXPECT_EQ(worker[1]->pull({3}), Floats{30});
}

}  // namespace
