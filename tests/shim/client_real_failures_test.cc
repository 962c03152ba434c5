// Programs, daemons and servers that die, as programs on real daemons meet it.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>

#include "tests/shim/client_hosts.h"

namespace mercury::testing {
namespace {

constexpr size_t kNumel = 5000;
constexpr std::chrono::seconds kLong(20);
// Soon, but not before a busy machine lets the living speak.
constexpr char kImpatient[] = "[session]\npeer_timeout = \"2s\"\n";

// A worker's program in a process of its own, which can be killed. Made before this process
// attaches: a fork of a process with threads must not start any, as it does when it attaches.
class Child {
 public:
  explicit Child(const std::function<int()>& program) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(program());
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  int wait() {
    int status = 0;
    if (::waitpid(std::exchange(pid_, -1), &status, 0) < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)wait();
  }

 private:
  pid_t pid_;
};

// What a child waits for.
class Signal {
 public:
  Signal() { valid_ = ::pipe(ends_) == 0; }
  ~Signal() {
    if (!valid_) return;
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  bool give() { return ::write(ends_[1], "", 1) == 1; }
  bool wait() {
    char byte = 0;
    return ::read(ends_[0], &byte, 1) == 1;
  }

 private:
  bool valid_ = false;
  int ends_[2] = {-1, -1};
};

// One worker of a job with one tensor.
struct DaemonWorker {
  mercury_context* context = nullptr;
  mercury_job* job = nullptr;
  float* data = nullptr;

  // The error of the first step that failed.
  int open(const StackDaemon& daemon, const mercury_job_options& options) {
    job = nullptr;
    context = attach_daemon(daemon.socket());
    int error = mercury_job_open(context, &options, &job);
    if (error != 0) return error;
    void* memory = nullptr;
    error = mercury_alloc(context, kNumel * sizeof(float), &memory);
    if (error != 0) return error;
    data = static_cast<float*>(memory);
    const mercury_tensor_options tensor = tensor_options(1, data, kNumel);
    return mercury_declare(job, &tensor, 1);
  }
  uint32_t round() const {
    uint32_t round = 0;
    return mercury_tensor_get_round(job, 1, &round) == 0 ? round : 0;
  }
  mercury_handle push(float value) {
    std::fill_n(data, kNumel, value);
    mercury_handle handle = 0;
    return mercury_push_pull(job, 1, MERCURY_DEFAULT_PRIORITY, &handle) == 0 ? handle : 0;
  }
  // Whether the exchange gave `sum` everywhere.
  bool exchange(float value, float sum) { return got(push(value), sum); }
  bool got(mercury_handle handle, float sum) {
    return mercury_wait(job, handle, 20'000) == 0 &&
           std::all_of(data, data + kNumel, [sum](float x) { return x == sum; });
  }
  // Exchanges round after round, of other values each, until one fails: its error, or 1 for a sum
  // that is wrong.
  int exchange_until_error(float value, float sum, std::atomic<int>& rounds) {
    for (;;) {
      const auto scale = static_cast<float>(rounds % 100 + 1);
      std::fill_n(data, kNumel, scale * value);
      mercury_handle handle = 0;
      int error = mercury_push_pull(job, 1, MERCURY_DEFAULT_PRIORITY, &handle);
      if (error == 0) error = mercury_wait(job, handle, 20'000);
      if (error != 0) return error;
      if (std::any_of(data, data + kNumel, [&](float x) { return x != scale * sum; })) return 1;
      ++rounds;
    }
  }
  void close() {
    mercury_job_close(job);
    mercury_detach(context);
  }
};

class Failures : public ::testing::Test {
 protected:
  // Two daemons that are the servers of all jobs; worker r's program is on daemon r mod 2.
  explicit Failures(const std::string& config = "") {
    for (int i = 0; i < 2; ++i) {
      daemons_.push_back(std::make_unique<StackDaemon>(fresh_address(), config));
      rendezvous_ += (i > 0 ? "," : "") + daemons_.back()->address() + ":17470";
    }
  }
  mercury_job_options options(int rank, int workers = 2) const {
    mercury_job_options open;
    mercury_job_options_init(&open, sizeof open);
    open.name = "failing";
    open.rank = rank;
    open.workers = workers;
    open.servers = 2;
    open.rendezvous = rendezvous_.c_str();
    return open;
  }
  StackDaemon& daemon(int i) { return *daemons_[static_cast<size_t>(i)]; }

  std::string rendezvous_;
  std::vector<std::unique_ptr<StackDaemon>> daemons_;
};

TEST_F(Failures, AProgramThatIsKilledComesBackInTheRoundThatTheOthersAreIn) {
  const auto with_rejoin = [this](int rank) {
    mercury_job_options open = options(rank);
    open.rejoin_ms = 30'000;
    return open;
  };
  Child first([&] {
    DaemonWorker worker;
    if (worker.open(daemon(1), with_rejoin(1)) != 0) return 1;
    for (int round = 1; round <= 3; ++round) {
      if (!worker.exchange(10, 11)) return 2;
    }
    ::pause();
    return 0;
  });
  Signal first_is_dead;
  Child second([&] {
    DaemonWorker worker;
    if (!first_is_dead.wait()) return 4;
    if (worker.open(daemon(1), with_rejoin(1)) != 0) return 1;
    if (worker.round() != 4) return 2;
    if (!worker.exchange(20, 21) || !worker.exchange(30, 33)) return 3;
    worker.close();
    return 0;
  });
  DaemonWorker mine;
  ASSERT_EQ(mine.open(daemon(0), with_rejoin(0)), 0) << mercury_last_error();
  EXPECT_EQ(mine.round(), 1U);
  for (int round = 1; round <= 3; ++round) ASSERT_TRUE(mine.exchange(1, 11)) << round;
  const mercury_handle waiting = mine.push(1);
  first.kill();
  EXPECT_EQ(mercury_wait(mine.job, waiting, 300), -ETIMEDOUT) << "it is waited for";
  ASSERT_TRUE(first_is_dead.give());
  EXPECT_TRUE(mine.got(waiting, 21)) << mercury_last_error();
  EXPECT_TRUE(mine.exchange(3, 33)) << mercury_last_error();
  EXPECT_EQ(second.wait(), 0);
  mine.close();
}

TEST_F(Failures, NobodyComesBackAndEveryWaitEndsWithTheName) {
  const auto with_rejoin = [this](int rank) {
    mercury_job_options open = options(rank);
    open.rejoin_ms = 300;
    return open;
  };
  Child other([&] {
    DaemonWorker worker;
    if (worker.open(daemon(1), with_rejoin(1)) != 0) return 1;
    if (!worker.exchange(10, 11)) return 2;
    ::pause();
    return 0;
  });
  DaemonWorker mine;
  ASSERT_EQ(mine.open(daemon(0), with_rejoin(0)), 0) << mercury_last_error();
  ASSERT_TRUE(mine.exchange(1, 11));
  const mercury_handle waiting = mine.push(1);
  other.kill();
  EXPECT_EQ(mercury_wait(mine.job, waiting, 20'000), -ECONNRESET);
  EXPECT_TRUE(said({("worker 1 of 2 (" + daemon(1).address()).c_str(), "its program ended"}));
  mine.close();
}

TEST_F(Failures, AJobWithAQuorumGoesOnWithoutASlowAndALostWorker) {
  const auto with_quorum = [this](int rank) {
    mercury_job_options open = options(rank, 3);
    open.quorum = 2;
    open.patience_ms = 2000;  // more than a busy machine needs for a round
    return open;
  };
  const auto names = [](DaemonWorker& worker, uint64_t all, uint64_t any) {
    mercury_contributors in{};
    in.size = sizeof in;
    return mercury_tensor_get_contributors(worker.job, 1, &in) == 0 && in.workers == 3 &&
           in.in_all[0] == all && in.in_any[0] == any && in.in_all[1] == 0;
  };
  Child slow([&] {
    DaemonWorker worker;
    if (worker.open(daemon(1), with_quorum(2)) != 0) return 1;
    if (!worker.exchange(100, 111)) return 2;
    ::pause();
    return 0;
  });
  Child fast([&] {
    DaemonWorker worker;
    if (worker.open(daemon(1), with_quorum(1)) != 0) return 1;
    if (!worker.exchange(10, 111)) return 2;
    for (int round = 2; round <= 8; ++round) {
      if (!worker.exchange(10, 11) || !names(worker, 3, 3)) return round;
    }
    worker.close();
    return 0;
  });
  DaemonWorker mine;
  ASSERT_EQ(mine.open(daemon(0), with_quorum(0)), 0) << mercury_last_error();
  EXPECT_TRUE(names(mine, 0, 0)) << "no round is over";
  ASSERT_TRUE(mine.exchange(1, 111)) << mercury_last_error();
  EXPECT_TRUE(names(mine, 7, 7));
  ASSERT_TRUE(mine.exchange(1, 11)) << mercury_last_error();
  EXPECT_TRUE(names(mine, 3, 3));
  const mercury_handle waiting = mine.push(1);
  slow.kill();  // from here on nobody waits, or keeps anything, for it
  ASSERT_TRUE(mine.got(waiting, 11)) << mercury_last_error();
  for (int round = 4; round <= 8; ++round)
    ASSERT_TRUE(mine.exchange(1, 11)) << mercury_last_error();
  EXPECT_EQ(fast.wait(), 0);
  mine.close();
}

TEST_F(Failures, AQuorumOfAllIsAllAndIsNamed) {
  mercury_job_options open = options(0, 1);
  open.quorum = 1;
  open.patience_ms = 1;
  DaemonWorker worker;
  ASSERT_EQ(worker.open(daemon(0), open), 0) << mercury_last_error();
  ASSERT_TRUE(worker.exchange(2, 2));
  mercury_contributors in{};
  in.size = sizeof in;
  ASSERT_EQ(mercury_tensor_get_contributors(worker.job, 1, &in), 0);
  EXPECT_EQ(in.in_all[0], 1U);
  EXPECT_EQ(in.in_any[0], 1U);
  worker.close();
}

// Daemons that die: their peers hear nothing.
class SilentFailures : public Failures {
 protected:
  SilentFailures() : Failures(kImpatient) {}
};

// Which of the servers is killed, and whether its next life is there before its death is known.
class LostServer : public SilentFailures,
                   public ::testing::WithParamInterface<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, LostServer,
                         ::testing::Combine(::testing::Values(0, 1), ::testing::Bool()));

// Server 0's daemon is also the coordinator. The programs are on the other daemon.
// A server that is started again knows nothing of the job.
TEST_P(LostServer, FailsTheJobByNameInMidExchangeAndNoSumIsWrong) {
  const auto [victim, restarted] = GetParam();
  StackDaemon& home = daemon(1 - victim);
  StackDaemon& lost = daemon(victim);
  const std::string name = "server " + std::to_string(victim) + " of 2 (" + lost.address();
  Child other([&] {
    DaemonWorker worker;
    if (worker.open(home, options(1)) != 0) return 1;
    std::atomic<int> rounds{0};
    const int error = worker.exchange_until_error(10, 11, rounds);
    return error != -EHOSTDOWN ? 2 : said({name.c_str()}) ? 0 : 3;
  });
  DaemonWorker mine;
  ASSERT_EQ(mine.open(home, options(0)), 0) << mercury_last_error();
  std::atomic<int> rounds{0};
  std::atomic<bool> over{false};
  std::thread killer([&, again = restarted] {
    while (rounds < 20 && !over) std::this_thread::yield();
    lost.kill();
    if (again) lost.start();
  });
  EXPECT_EQ(mine.exchange_until_error(1, 11, rounds), -EHOSTDOWN) << mercury_last_error();
  EXPECT_TRUE(said({name.c_str()}));
  over = true;
  killer.join();
  EXPECT_GE(rounds, 20);
  EXPECT_EQ(other.wait(), 0);
  mine.close();
  if (!restarted) lost.start();
  ASSERT_EQ(mine.open(home, options(0, 1)), 0) << mercury_last_error();
  EXPECT_TRUE(mine.exchange(4, 4)) << mercury_last_error();
  mine.close();
}

// What programs of other processes tell this one.
struct Board {
  Board()
      : memory(::mmap(nullptr, sizeof(std::atomic<int64_t>) * 3, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~Board() { ::munmap(memory, sizeof(std::atomic<int64_t>) * 3); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  std::atomic<int64_t>& operator[](size_t i) const {
    return static_cast<std::atomic<int64_t>*>(memory)[i];
  }
  void* memory;
};

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Two that wait for a sum, and one that does not push: each hears by the end of its socket, long
// before the daemon's peers miss it (-EHOSTDOWN, 2 s), within a second of the daemon's end.
TEST_F(SilentFailures, EveryProgramOfALostDaemonHearsOfItWithinASecond) {
  Board heard_ms;
  Child pushes([&] {
    DaemonWorker worker;
    if (worker.open(daemon(1), options(1, 3)) != 0 || !worker.exchange(10, 111)) return 1;
    if (mercury_wait(worker.job, worker.push(1), MERCURY_FOREVER) != -EPIPE) return 2;
    heard_ms[1] = now_ms();
    worker.close();
    return 0;
  });
  Child idles([&] {
    DaemonWorker worker;
    if (worker.open(daemon(1), options(2, 3)) != 0 || !worker.exchange(100, 111)) return 1;
    if (mercury_job_wait_end(worker.job, MERCURY_FOREVER) != -EPIPE) return 2;
    heard_ms[2] = now_ms();
    worker.close();
    return 0;
  });
  DaemonWorker mine;
  ASSERT_EQ(mine.open(daemon(1), options(0, 3)), 0) << mercury_last_error();
  ASSERT_TRUE(mine.exchange(1, 111)) << mercury_last_error();
  const mercury_handle waiting = mine.push(1);
  EXPECT_EQ(mercury_wait(mine.job, waiting, 100), -ETIMEDOUT) << "one has not pushed";
  std::thread killer([this] { daemon(1).kill(); });
  EXPECT_EQ(mercury_wait(mine.job, waiting, MERCURY_FOREVER), -EPIPE);
  heard_ms[0] = now_ms();
  killer.join();
  const int64_t ended_ms = now_ms();
  EXPECT_EQ(pushes.wait(), 0);
  EXPECT_EQ(idles.wait(), 0);
  for (size_t i = 0; i < 3; ++i) EXPECT_LT(heard_ms[i] - ended_ms, 1000) << i;
  mine.close();
}

// A daemon that is started again finds none of its programs: each has an error at once, and may
// attach again.
TEST_F(SilentFailures, ARestartedDaemonsProgramsHearOfItAtOnceAndAttachAgain) {
  const auto alone = [this] { return options(0, 1); };
  DaemonWorker worker;
  ASSERT_EQ(worker.open(daemon(1), alone()), 0) << mercury_last_error();
  ASSERT_TRUE(worker.exchange(2, 2));
  const auto before = std::chrono::steady_clock::now();
  daemon(1).kill();
  // By the end of its socket: a time-out of the daemon's peers would be -EHOSTDOWN.
  EXPECT_EQ(mercury_job_wait_end(worker.job, MERCURY_FOREVER), -EPIPE);
  daemon(1).start();
  worker.close();
  // Until the coordinator's time-out for the daemon that is gone, 2 s, the rank is taken.
  int opened = worker.open(daemon(1), alone());
  while (opened == -EADDRINUSE && std::chrono::steady_clock::now() - before < kLong) {
    worker.close();
    opened = worker.open(daemon(1), alone());
  }
  ASSERT_EQ(opened, 0) << mercury_last_error();
  EXPECT_TRUE(worker.exchange(4, 4));
  worker.close();
}

}  // namespace
}  // namespace mercury::testing
