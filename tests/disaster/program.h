// A training program of the virtual cluster: it attaches to its host's daemon, opens its job,
// declares its tensors, exchanges them round by round, and checks every sum, every reply and every
// waiting time. It is killed, stalled and started again as the scenario says; what fails it tries
// again, with what it knows of the job forgotten, as often as its plan allows.
//
// Owner/thread: the world.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shim/channel/channel.h"
#include "tests/disaster/disaster_host.h"
#include "tests/disaster/guarded_memory.h"
#include "tests/disaster/ledger.h"
#include "tests/disaster/scenario.h"
#include "transport/base/random.h"

namespace mercury::disaster {

// Who left a job in order before the others were through, and how much of it was complete then: its
// rounds by tensor.
struct Departure {
  uint32_t rank = 0;
  std::vector<uint32_t> rounds;
  uint64_t at_ns = 0;
};

// What programs need of the world around them.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual uint64_t now_ns() const = 0;
  virtual DisasterHost& host_at(uint32_t index) = 0;
  virtual void wake(uint32_t host) = 0;  // something was submitted or commanded there
  virtual Ledger& ledger() = 0;
  virtual void violation(const std::string& what) = 0;
  // Into the trace: its hash decides whether two runs are the same.
  virtual void note(const std::string& who, const char* what, uint64_t a, uint64_t b) = 0;
  virtual void explain(const std::string& who, const std::string& why) = 0;  // with --verbose
  // Whether a fault has come that may break the job.
  virtual bool disturbed(uint32_t job) const = 0;
  // The job does not open: a session is refused for a `limit`, or fails otherwise, as if another
  // member's was, which must show before the run ends. Whether some engine of its hosts was full
  // since then, and rightly: others have its place.
  virtual bool crowded_out(uint32_t job, uint64_t since_ns, bool limit) = 0;
  virtual void let_in(uint32_t job) = 0;  // the job has begun all the same
  // Of a job from which a program has gone, while nothing else has happened; else null.
  virtual const Departure* departure(uint32_t job) const = 0;
  // By how much waiting since `since_ns` may be longer because of what happened meanwhile.
  virtual uint64_t excused_ns(uint64_t since_ns) const = 0;
};

class DisasterProgram {
 public:
  DisasterProgram(const Scenario& scenario, uint32_t index, uint32_t job, uint32_t rank,
                  Surroundings& around);

  // Something may have come to it, or its time has come.
  void run();
  uint64_t next_ns() const;
  // The time by which whatever it waits for must have come.
  void check_patience();
  void begin(uint64_t at_ns) { wake_ns_ = at_ns; }

  // Disasters.
  void stall(bool still);
  void crash(uint64_t restart_ns);
  void daemon_died();
  // Closes its job in order whatever it waits for, and does not come back. Nothing: it is not in
  // its job now.
  std::optional<Departure> leave();

  // In its job, as far as it knows; and whether the others cannot end without it, and it will come
  // back when it is killed now.
  bool trains() const { return state_ == State::kTraining && !job_failed_; }
  bool would_come_back() const;
  // In no job: before its first one, or after its last.
  bool is_out() const {
    return state_ == State::kDone || (state_ == State::kWaiting && attempts_ == 0);
  }
  bool done() const { return state_ == State::kDone; }
  bool succeeded() const { return succeeded_; }
  bool left_behind() const { return left_behind_; }
  bool refused() const { return refused_; }
  bool left_early() const { return left_early_; }
  uint32_t job() const { return job_; }
  uint32_t host_index() const { return host_; }
  const std::string& name() const { return name_; }
  const std::string& last_error() const { return last_error_; }
  void on_channel_detached(const EngineChannel* channel);
  void check_graveyard();
  uint64_t longest_wait_ns() const { return longest_wait_ns_; }

 private:
  enum class State : uint8_t {
    kWaiting,  // until wake_ns_, to open the job
    kOpening,
    kDeclaring,
    kTraining,
    kClosing,
    kDying,  // killed; its daemon cleans up
    kDetaching,
    kDone
  };
  struct AttachedChannel {
    std::unique_ptr<EngineChannel> engine;
    std::unique_ptr<ClientChannel> client;
    bool attached = true;
  };
  enum class Phase : uint8_t { kReady, kExchanging, kPushing, kPulling, kFinished };
  struct TensorProgress {
    std::unique_ptr<GuardedMemory> memory;
    uint32_t round = 0;
    Phase phase = Phase::kReady;
    uint64_t ready_ns = 0;
    bool exchanged = false;  // a round of it is complete
    Ledger::Absent absent;   // in jobs with a quorum, as the engines say
    uint64_t damaged = 0;    // payloads that its host had dropped when the round began
  };
  struct Operation {
    uint32_t tensor = 0;
    uint64_t since_ns = 0;
    std::vector<bool> answered;  // by engine
    size_t missing = 0;
    Errc status = Errc::kOk;
  };

  DisasterHost& host() { return around_.host_at(host_); }
  bool can_run();
  void enter(State state);
  uint64_t patience_ns() const;
  void wrong(const std::string& what) {
    if (!plan_.hostile) around_.violation(name_ + ": " + what);
  }
  void open();
  void on_opened(const Result<OpenedJob>& opened);
  void declare();
  void on_declared(const Status& status);
  void train();
  void start_round(uint32_t tensor);
  void submit(SubmitOp op, uint32_t tensor);
  void collect();
  void answered(size_t lane, const Completion& completion);
  void finished(uint64_t cookie, const Operation& operation);
  void check_sum(uint32_t tensor);
  void check_failed(uint32_t tensor);
  void check_departure(const Operation& operation);
  bool had_no_room(Errc code);
  void failed(Errc code, const std::string& text);
  void close();
  void note_wait(uint64_t since_ns);
  void detach();
  void bury();
  void over();

  const Scenario& scenario_;
  const JobPlan& plan_;
  const uint32_t job_;
  const uint32_t wanted_rank_;
  const uint32_t host_;
  const uint64_t client_base_;
  const std::string name_;
  Surroundings& around_;
  Random random_;

  State state_ = State::kWaiting;
  uint64_t since_ns_ = 0;
  uint64_t wake_ns_ = kNever;
  uint64_t restart_ns_ = 0;
  uint64_t client_ = 0;
  uint32_t attempts_ = 0;
  uint32_t turn_ = 0;  // replies of an earlier turn are not for us
  bool stalled_ = false;
  uint64_t resumed_ns_ = 0;
  bool succeeded_ = false;
  bool job_failed_ = false;
  bool refused_ = false;      // a session, the last time that it asked
  bool left_behind_ = false;  // by a quorum that was through before this worker
  bool left_early_ = false;
  std::string last_error_;
  uint64_t longest_wait_ns_ = 0;

  std::vector<AttachedChannel> channels_;
  JobSlot slot_;
  uint32_t rank_ = 0;
  uint32_t instance_ = 0;
  Ledger::Company company_;
  std::vector<TensorProgress> tensors_;
  std::map<uint64_t, Operation> operations_;  // by cookie
  uint64_t last_cookie_ = 0;
  std::vector<std::unique_ptr<GuardedMemory>> graveyard_;  // the daemon has let go of it
};

}  // namespace mercury::disaster
