// A server's jobs inside one engine: what workers push goes into the aggregator, and what is
// complete goes to every worker, at once or when the job's policy forwards it.
//
// The other half is Worker (shim/exchange/worker/worker.h), of the same shape: jobs, tensors and
// sessions are added; frames arrive; chunks are prepared when the scheduler has chosen them; what
// is lost is sent again.
//
// Owner/thread: one engine. on_push, prepare, on_lost and poll do not allocate, but for events that
// are rare (stalls, hopeless rounds), and beyond SendQueue's most_lost.
// Paper: Mercury, TPDS 2023, section IV.C (Mercury PS).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "aggregator/aggregator.h"
#include "scheduler/plan/plan.h"
#include "scheduler/policy.h"
#include "scheduler/send_queue.h"
#include "shim/exchange/server/forward_gate.h"
#include "shim/job/command.h"
#include "transport/base/cold_steps.h"
#include "transport/base/counters.h"
#include "transport/engine/service.h"

namespace mercury {

// A worker at the other end of a session, as the control plane has bound it.
struct WorkerPeer {
  JobSlot job;
  Rank rank;
  uint32_t incarnation = 0;
  bool catches_up = false;  // took a lost one's place
};

class Server {
 public:
  struct Limits {
    uint32_t max_jobs = 0;                // job slots are below it
    uint64_t sum_bytes = 0;               // at most, of all jobs' sums in this engine; 0 = no limit
    MemoryThread* sums_thread = nullptr;  // Aggregator's
  };
  // All references outlive it; `port`, which sends the sums, may go first.
  Server(const Limits& limits, SendQueue& sends, Counters& counters, std::deque<Event>& events,
         const PortMemory& port);

  // --- cold --------------------------------------------------------------------------------------
  Status add_job(const command::AddServerJob& spec);
  // Sums for this worker travel on the session from now on.
  Result<WorkerPeer> bind_worker(JobSlot job, Rank rank, uint32_t incarnation, SessionSlot session);
  void forget(SessionSlot session, const WorkerPeer& worker) noexcept;
  Status add_tensor(const command::AddTensor& spec);
  bool has_job(JobSlot job) const noexcept {
    return job.value < jobs_.size() && jobs_[job.value].present;
  }
  // What is held back under the policy before is answered, and the new one holds back, within a few
  // polls.
  void set_policy(JobSlot job, const Policy& policy);
  const Policy& policy_of(JobSlot job) const noexcept { return jobs_[job.value].policy; }
  // Of its tensors' full chunks, at most; 0 before there are any.
  uint32_t chunk_bytes(JobSlot job) const noexcept;
  Status replace_worker(const command::ReplaceWorker& request);  // poll() reports WorkerReplaced
  void withdraw_worker(const command::WithdrawWorker& request) noexcept;
  // Its memory is given back, and JobRemoved follows, once no NIC reads its results any more.
  void remove_job(JobSlot job);

  // --- datapath ----------------------------------------------------------------------------------
  Taken on_push(SessionSlot session, const WorkerPeer& worker, const wire::Header& header,
                std::span<const std::byte> payload, uint64_t now_ns) noexcept;
  // Fills header and payload of a scheduled sum. False: nobody needs it any more.
  bool prepare(const ScheduledChunk& chunk, const WorkerPeer& worker,
               OutgoingDatagram& out) noexcept;
  // What time completes, replaced workers, stalls and rounds that wait in vain.
  uint32_t poll(uint64_t now_ns, ColdSteps& steps) noexcept;
  // Goes on with removing jobs whose results no NIC reads any more. Returns what it did.
  uint32_t drain(ColdSteps& steps);
  bool awaits_nic() const noexcept { return !draining_.empty(); }
  uint64_t next_deadline_ns() const noexcept;

  uint64_t memory_bytes() const noexcept { return aggregator_.memory_bytes(); }
  uint32_t job_count() const noexcept {  // those that are drained included
    return serving_ + static_cast<uint32_t>(draining_.size());
  }

 private:
  struct ServerJob {
    bool present = false;
    command::AddServerJob spec;
    std::vector<SessionSlot> workers;   // by rank
    std::vector<uint8_t> bound;         // whether workers[rank] is a session
    std::vector<uint8_t> replaced;      // whether it has had a life before
    std::vector<SessionSlot> answered;  // the sessions among workers, by rank
    uint32_t chunk_bytes = 0;           // 0 before it has tensors
    Policy policy;
    std::unique_ptr<ForwardGate> gate;  // null: chunks are forwarded as they are complete
    uint32_t takers = 0;                // of answered
  };

  // server_policy.cc: the gate that will take the place of a job's, as far as it has been taught,
  // and those before, whose sums are still to be answered. (Apart: jobs are looked at for each
  // chunk.)
  struct GateChange {
    std::unique_ptr<ForwardGate> next;
    TensorIndex tensor;
    uint32_t chunks = 0;  // of this tensor
    Round base;           // the rounds of this tensor's chunks count from here
    std::vector<std::unique_ptr<ForwardGate>> old;

    bool is_under_way() const noexcept { return next != nullptr || !old.empty(); }
    void note_complete(const ChunkKey& key) noexcept;
  };

  Taken conclude(const Pushed& pushed, const ServerJob& job, SessionSlot session,
                 const WorkerPeer& worker, const wire::Header& header,
                 std::span<const std::byte> payload) noexcept;
  // At which sums are sent, of what was pushed at `pushed`.
  static uint16_t answer_priority(const ServerJob& job, uint16_t pushed) noexcept {
    return job.policy.answers == Policy::Order::kFifo ? uint16_t{0} : pushed;
  }
  void on_complete(const ServerJob& job, const ChunkKey& key, uint16_t pushed_at) noexcept;
  // Apart: most policies have no gate.
  [[gnu::noinline]] void pass_gate(const ServerJob& job, const ChunkRange& chunk) noexcept;
  void answer_all(const ServerJob& job, const ChunkRange& range) noexcept;
  static void note_answered(ServerJob& job);
  void answer_late(const WorkerPeer& worker, SessionSlot session, const ChunkKey& key,
                   uint16_t priority) noexcept;
  // Apart: of most jobs' sums everybody wants all.
  [[gnu::noinline]] bool is_in_part(const WorkerPeer& worker, const ChunkKey& key) const noexcept;
  void count_partial(const ServerJob& job, const ChunkKey& key) noexcept;
  // Jobs whose sums find room in the queue: what time completes of the others waits.
  JobFilter that_may_answer() const noexcept {
    return {[](const void* server, JobSlot job) {
              const Server& self = *static_cast<const Server*>(server);
              return !self.sends_.refuses(job, self.jobs_[job.value].takers);
            },
            this};
  }
  uint32_t complete_overdue(uint64_t now_ns) noexcept;
  uint32_t walk_on(ColdSteps& steps);
  uint32_t report_replaced(ColdSteps& steps);
  uint32_t report_stalls(uint64_t now_ns) noexcept;
  uint32_t report_hopeless() noexcept;
  // server_jobs.cc
  void count_sums();
  // server_policy.cc
  uint32_t change_gates(uint32_t looks);
  void teach_gate(ServerJob& job, GateChange& change, uint32_t& looks);
  static void take_next_gate(ServerJob& job, GateChange& change);
  void drop_gate(std::unique_ptr<ForwardGate> gate);
  static void add_to_gate(const ServerJob& job, ForwardGate& gate, const AggregationTensor& tensor);
  static ShardPlan plan_of(const ServerJob& job, const AggregationTensor& tensor);

  SendQueue& sends_;
  Counters& counters_;
  std::deque<Event>& events_;
  Aggregator aggregator_;
  std::vector<ServerJob> jobs_;  // by job slot
  uint32_t serving_ = 0;         // of them
  std::vector<JobSlot> draining_;
  std::vector<GateChange> gate_changes_;                     // by job slot
  std::vector<std::unique_ptr<ForwardGate>> dropped_gates_;  // of which nobody wants anything more
  bool changes_gates_ = false;
  bool walks_ = false;      // walk_on() is worth a call
  bool drains_on_ = false;  // more of them could be looked at than was
};

}  // namespace mercury
