// A worker's: sums of all workers by a job of Mercury's, one tensor for each key.
//
// Round n of a key is each worker's n-th push of it. When the job fails, as when a host's daemon is
// started again, a new one is opened, and workers tell each other for each key how many sums they
// have: what some have and others lack is handed to those, and what nobody has is pushed again. So
// a sum has each push once. A worker that was started again is brought to the round where the
// others are.
#pragma once

#include <mercurystack/mercury.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace mercury_van {

// "HOST,HOST" for the hosts of servers in their order, each once, and how many those are.
std::pair<std::string, int> rendezvous_of(const std::vector<std::string>& hosts);

struct JobPlace {
  std::string name, rendezvous;  // as mercury_job_options says
  int rank = 0, workers = 0, servers = 0;
};

class JobSums {
 public:
  using Sum = std::shared_ptr<const std::vector<char>>;
  // Called by the thread that pulls or by one of JobSums', and returns soon.
  using Take = std::function<void(const std::vector<Sum>& sums)>;
  // Called as Take is: the push has an answer.
  using Taken = std::function<void()>;
  // Asked by a thread of JobSums', and may wait; false: it is of no use any more.
  using FindPlace = std::function<bool(JobPlace* out)>;
  // For people. `fail` is for what cannot be mended, and does not return.
  using Say = std::function<void(const std::string& what)>;

  JobSums(FindPlace find_place, Say warn, Say fail);
  ~JobSums();  // leaves the job
  JobSums(const JobSums&) = delete;
  JobSums& operator=(const JobSums&) = delete;

  // Any thread. The values are copied: they are the caller's when this returns. `number` names the
  // key to all workers, 0 to kMostNumber; the greater `priority`, the sooner. It is taken when no
  // more than kMostAhead rounds of the key wait, with its own: else who is ahead of the others
  // would fill the memory.
  void push(uint64_t number, mercury_dtype type, const char* values, size_t bytes, int priority,
            const Taken& taken);
  // Any thread: for each number the sum of the round that was pushed last.
  void pull(const std::vector<uint64_t>& numbers, Take take);
  // Until all that was pushed is summed; false: not within that time.
  bool drain(int milliseconds);

  static constexpr uint64_t kMostNumber = (1U << 30U) - 1;  // each has two tensors
  // One is being summed, and the next is there when that is done.
  static constexpr size_t kMostAhead = 2;

 private:
  struct Contribution {
    std::vector<char> values;
    int priority = 0;
    Taken taken;  // none: it is
  };
  struct Pull {
    Take take;
    std::vector<Sum> sums;
    size_t missing = 0;
  };
  struct Waiting {
    uint64_t round = 0;  // counted as `summed` is
    std::shared_ptr<Pull> pull;
    size_t place = 0;  // in its sums
  };
  enum class Step {
    kUndeclared,  // in the job that is open
    kComparing,   // workers tell how many sums they have
    kCatchingUp,  // one of them hands on its last
    kReady,
    kSumming,
  };
  struct OfKey {
    uint64_t number = 0;
    mercury_dtype type = MERCURY_DTYPE_F32;
    size_t bytes = 0;
    // Under the mutex. Counts of rounds; `waiting` are those from `summed` on.
    uint64_t pushed = 0, summed = 0;
    std::deque<Contribution> waiting;
    Sum last;
    std::deque<Waiting> pulls;
    // The thread's.
    Step step = Step::kUndeclared;
    bool has_contributed = false;  // in some job, with what waits first
    char* values = nullptr;        // in Mercury's memory, as the next
    int64_t* counts = nullptr;     // each worker's `summed`
  };

  void run();
  bool is_ending();
  void read_secret();
  bool open();
  bool attach();
  void close();
  void broke(const std::string& what, int error);
  void warn_once(const std::string& what);
  void look_at_news();
  void declare(const std::vector<OfKey*>& keys);
  void place_in_memory(OfKey& key);
  void compare(OfKey& key);
  void catch_up(OfKey& key);
  void adopt(OfKey& key);
  void contribute(OfKey& key);
  void finish(OfKey& key);
  void submit(OfKey& key, Step step);
  void submit_all();
  void take_completions();
  void on_completion(const mercury_completion& completion);
  void wait_for_news();
  void pause();
  int64_t most_sums(const OfKey& key) const;
  Sum copy_of(const OfKey& key) const;

  const FindPlace find_place_;
  const Say warn_, fail_;
  std::string secret_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, OfKey> keys_;
  std::deque<OfKey*> news_;  // pushed since the thread looked
  bool ending_ = false;
  int wake_ = -1;

  // The thread's.
  mercury_context* context_ = nullptr;
  mercury_job* job_ = nullptr;
  JobPlace place_;
  bool is_broken_ = false;
  std::deque<OfKey*> unsubmitted_;         // the job's rings had no room for them yet
  mercury_mode mode_ = MERCURY_MODE_AUTO;  // until it has attached once
  std::string warned_;

  std::thread thread_;
};

}  // namespace mercury_van
