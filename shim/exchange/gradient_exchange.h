// What an engine carries: scheduler, aggregator and worker, bound together. Models the concept
// Exchange (transport/engine/exchange.h): every chunk that arrives is a contribution to be summed
// or a sum to be delivered, and every chunk that leaves was chosen by the scheduler.
//
// Owner/thread: one engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "aggregator/aggregator.h"
#include "scheduler/scheduler.h"
#include "shim/channel/channel.h"
#include "shim/exchange/server/forward_gate.h"
#include "shim/exchange/worker/worker.h"
#include "transport/base/counters.h"
#include "transport/engine/exchange.h"

namespace mercury {

struct ExchangeConfig {
  Scheduler::Limits scheduler;
  // Range nodes that only retransmissions may use: new work waits while fewer are free.
  uint32_t reserved_ranges = 8192;
  uint32_t submissions_per_pass = 64;  // of each program
  // Of these, such as were refused: no honest program has many, and one that has nothing else to
  // offer must not take the others' time.
  uint32_t refusals_per_pass = 8;
  uint64_t sum_bytes = 0;  // at most, of all jobs' sums in this engine; 0 = no limit
};

// What an exchange holds for jobs, sessions and programs: all zero when it has none of them.
struct ExchangeUsage {
  uint64_t aggregator_bytes = 0;
  uint32_t ranges = 0;  // queued in the scheduler
  uint32_t lost_chunks = 0;
  uint32_t sessions = 0;
  uint32_t jobs = 0;  // of servers, those whose results the NIC still reads included
  uint32_t completions = 0;
};

class GradientExchange {
 public:
  GradientExchange(const ExchangeConfig& config, Counters& counters, Aggregator::PinBusy pin_busy,
                   void* pin_context);

  // --- datapath, for the engine -----------------------------------------------------------------
  Taken on_chunk(SessionSlot session, const wire::Header& header,
                 std::span<const std::byte> payload, uint64_t now_ns) noexcept;
  bool next(OutgoingChunk& out) noexcept;
  void charge(JobSlot job, uint32_t bytes) noexcept { scheduler_.charge(job, bytes); }
  void on_acked(SessionSlot session, const SentTag& tag) noexcept;
  void on_lost(SessionSlot session, const SentTag& tag) noexcept;
  void block(SessionSlot session) noexcept;
  void unblock(SessionSlot session) noexcept;
  uint32_t poll(uint64_t now_ns) noexcept;
  bool awaits_nic() const noexcept { return !draining_.empty(); }
  uint64_t next_deadline_ns() const noexcept {
    const uint64_t overdue_ns = may_answer_all() ? aggregator_.next_overdue_ns() : kNever;
    if (aggregator_.seeks_hopeless()) return 0;
    return std::min({worker_.release_due_ns(), overdue_ns, aggregator_.next_stall_ns()});
  }

  // --- cold, for the engine ---------------------------------------------------------------------
  // Whether receivers are to grant more to senders of what is urgent.
  bool grants_by_urgency(JobSlot job) const noexcept;
  Status bind_shard(JobSlot job, uint16_t shard, SessionSlot session);
  Status bind_worker(JobSlot job, uint16_t rank, uint32_t incarnation, SessionSlot session);
  void forget(SessionSlot session);
  Status on_command(const Command& command);
  std::optional<Event> take_event();

  // --- for the engine's thread ------------------------------------------------------------------
  size_t channel_count() const noexcept { return programs_.size(); }
  ExchangeUsage usage() const noexcept;  // cold: looks at every session
  int doorbell(size_t channel) const noexcept {
    return programs_[channel].channel->engine_doorbell();
  }
  // Before a sleep: false if a program has submitted something meanwhile.
  bool park() noexcept;
  void unpark() noexcept;

 private:
  enum class Kind : uint8_t { kNone, kShard, kWorker };
  struct Binding {  // what a session means
    Kind kind = Kind::kNone;
    JobSlot job;
    uint16_t rank = 0;  // kWorker: whose; kShard: the shard
    uint32_t incarnation = 0;
    bool catches_up = false;  // kWorker: took a lost one's place
  };
  // A program and the completions that found no room in its ring: while there are any, nothing more
  // is taken from it, so a program that does not read stops only itself.
  struct Program {
    EngineChannel* channel = nullptr;
    bool broken = false;
    std::deque<Completion> backlog;
  };
  struct ServerJob {
    bool present = false;
    command::AddServerJob spec;
    std::vector<SessionSlot> workers;  // by rank
    std::vector<uint8_t> bound;        // whether workers[rank] is a session
    std::vector<uint8_t> replaced;     // whether it has had a life before
    std::vector<command::AddTensor> tensors;
    Policy policy;
    std::unique_ptr<ForwardGate> gate;  // null: chunks are forwarded as they are complete
  };

  Taken on_push(SessionSlot session, const wire::Header& header, std::span<const std::byte> payload,
                uint64_t now_ns) noexcept;
  // At which sums are sent, of what was pushed at `pushed`.
  static uint16_t answer_priority(const ServerJob& job, uint16_t pushed) noexcept {
    return job.policy.answers == Policy::Order::kFifo ? uint16_t{0} : pushed;
  }
  void answer_all(const ServerJob& job, const ChunkRange& range) noexcept;
  void count_partial(const ServerJob& job, const ChunkRange& chunk) noexcept;
  void on_complete(const ServerJob& job, const ChunkRange& chunk) noexcept;
  void answer_late(const Binding& binding, SessionSlot session,
                   const wire::Header& header) noexcept;
  bool prepare_result(const ScheduledChunk& chunk, OutgoingChunk& out) noexcept;
  void retransmit(SessionSlot session, const ChunkRange& chunk) noexcept;
  bool short_of_ranges(uint32_t wanted) const noexcept {
    return scheduler_.free_ranges() < wanted + config_.reserved_ranges;
  }
  // A member that takes its sums slowly, or in another order than others push them, must not take
  // the ranges of the jobs beside its own: once half are in use, who has more than its part waits.
  bool takes_others_ranges(const ServerJob& job) const noexcept {
    const uint32_t all = config_.scheduler.max_ranges;
    if (serving_ < 2 || 2 * scheduler_.free_ranges() >= all) return false;
    return scheduler_.queued_chunks(job.spec.job) > all / (2 * serving_);
  }
  bool may_answer_all() const noexcept { return !short_of_ranges(kMaxWorkers); }
  uint32_t report_stalls(uint64_t now_ns) noexcept;
  uint32_t report_hopeless() noexcept;
  uint32_t take_submissions() noexcept;
  uint32_t take_submissions(Program& program) noexcept;
  uint32_t admit_ranges() noexcept;
  uint32_t deliver_completions() noexcept;
  void deliver(Program& program, const Completion& completion) noexcept;
  // exchange_control.cc
  Status add_server_job(const command::AddServerJob& spec);
  Status add_server_tensor(const command::AddTensor& spec);
  Status replace_worker(const command::ReplaceWorker& request);
  void remove_job(const command::RemoveJob& request);
  void forget_job(JobSlot job);
  void detach(EngineChannel* channel);
  Status bind(SessionSlot session, const Binding& binding);
  // policy_switch.cc
  Status set_policy(JobSlot job, std::string_view text);
  void set_server_policy(JobSlot slot, ServerJob& job, const Policy& policy);
  static void add_to_gate(ServerJob& job, const command::AddTensor& tensor);
  static ShardPlan plan_of(const ServerJob& job, const command::AddTensor& tensor);
  const Policy* policy_of(JobSlot job) const noexcept;  // null: no such job
  uint32_t chunk_bytes(JobSlot job) const noexcept;     // 0: it has no tensors
  void set_unit(JobSlot job);

  const ExchangeConfig config_;
  Counters& counters_;
  Scheduler scheduler_;
  Aggregator aggregator_;
  Worker worker_;
  std::vector<Binding> bindings_;       // by session slot
  std::vector<ServerJob> server_jobs_;  // by job slot
  uint32_t serving_ = 0;                // of them
  std::vector<Program> programs_;
  uint32_t jobs_ = 0;              // of both kinds, draining ones included
  std::vector<JobSlot> draining_;  // removed; the NIC may still read their results
  std::deque<std::pair<SessionSlot, ChunkRange>> lost_;  // found no range node; tried again
  std::deque<Event> events_;
};

}  // namespace mercury
