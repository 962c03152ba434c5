// Gradient path: step 8/8, from the engine loop of a worker's host, back to the program; and the
// worker's half of step 3: what a submission puts into the scheduler.
//
// The tensors of the programs on this host, as one engine sees them: which chunks of which round
// have left, which sums have come back. Sums are written into the tensor's memory in place, copy
// and CRC in one pass; that is safe because a chunk's sum exists only after the server has this
// worker's contribution to it, or (with a quorum) does without it: then the chunk counts as pushed,
// and is not read again.
//
// Shape: a tensor's chunks are dealt to shards (scheduler/plan/plan.h); this engine has the shards
// bound to it. Owner/thread: one engine. Allocates in add_* and bind, never in prepare, on_*; in
// submit where a tensor is pushed before it has followed its job to another credit. Paper: Mercury,
// TPDS 2023, section IV.C (Mercury worker).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/policy.h"
#include "scheduler/scheduler.h"
#include "scheduler/send_queue.h"
#include "shim/channel/descriptor.h"
#include "shim/job/command.h"
#include "transport/base/counters.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/engine/service.h"
#include "transport/wire/header.h"

namespace mercury {

// An operation that ended, for the program that submitted it.
struct WorkerCompletion {
  EngineChannel* channel = nullptr;
  Completion told;
};

struct WorkerRange {  // chunks to be scheduled
  SessionSlot session;
  ChunkRange range;
  JobSlot job;
  uint32_t life = 0;  // of the jobs that have had the slot
};

// A chunk of a tensor to each shard, to be finished before more is scheduled.
struct WorkerRow {
  JobSlot job;
  TensorIndex tensor;
  uint32_t row = 0;   // ShardPlan::row_of
  uint32_t rest = 0;  // shards that lack theirs
};

class Worker {
 public:
  explicit Worker(Counters& counters);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  Status add_job(const command::AddWorkerJob& spec);
  Status bind_shard(JobSlot job, Shard shard, SessionSlot session);
  Status add_tensor(const command::AddTensor& spec);
  bool has_job(JobSlot job) const noexcept;
  // How the job releases and orders its chunks from now on; what still waits for its release goes,
  // tensor by tensor (take_removed). A job begins with Policy{}. Cold.
  // Once it has tensors, their place is that of the policy before (Policy::place).
  void set_policy(JobSlot job, const Policy& policy);
  // Of a job that is here.
  const Policy& policy_of(JobSlot job) const noexcept;
  // Of its tensors' full chunks, at most; 0 before there are any.
  uint32_t chunk_bytes(JobSlot job) const noexcept;
  // A server has begun some chunks anew: everything of open rounds that has no sum yet is pushed
  // again (the ranges come out of take_range), tensor by tensor (take_removed). Cold.
  void refill(JobSlot job);
  // Waiting operations complete with `code`, tensor by tensor (take_removed); later ones do at
  // once.
  void fail_job(JobSlot job, Errc code) noexcept;
  // The same for one tensor's operations from one round on. Cold.
  void fail_rounds(const command::FailRounds& request);
  // The same, and then its tensors go (take_removed).
  void remove_job(JobSlot job, Errc code) noexcept;
  // Goes on with these: looks at `looks` tensors at most, and counts that down. True: a job is
  // gone.
  bool take_removed(uint32_t& looks, JobSlot& out) noexcept;
  bool has_steps() const noexcept { return has_steps_; }        // take_removed is worth a call
  const EngineChannel* channel_of(JobSlot job) const noexcept;  // of a job that is here
  // Whether the scheduler has room for a range of each of its jobs, and holds up none of them.
  bool may_push(const EngineChannel* channel, const SendQueue& sends) const noexcept;
  // Released, and not in the scheduler yet; of all programs, but for what is held up.
  size_t waiting_ranges() const noexcept { return ranges_.size() - next_range_; }
  // While there are so many, as a poll puts into the scheduler, nothing more is released or read:
  // what one job has would stand before all that others bring. 1,024 were four fifths of the
  // fullest pass that cold_cost counts; a burst of frames is less than this.
  static constexpr size_t kMostWaitingRanges = 256;
  // That operations of its jobs can have waiting at a time; refusals come on top. Cold.
  size_t most_completions(const EngineChannel* channel) const noexcept;
  // Submissions of all programs that may be refused before their completions are taken.
  static constexpr size_t kRefusalsPerPass = 256;
  // Chunks that servers have acknowledged, and sums taken: it stands still when the job does. Cold.
  uint64_t chunks_moved(JobSlot job) const noexcept;

  // A program's operation; ranges to schedule come out of take_range. Whatever is wrong with it
  // becomes its completion; false: it was refused.
  bool submit(EngineChannel* channel, const Submission& submission) noexcept;
  // Policies that release partitions: what is due now becomes ranges. Apart: a pass that has
  // nothing of them should not pay for it.
  [[gnu::noinline]] void release(uint64_t now_ns) noexcept;
  // When release() is worth a call; kNever for all other policies.
  uint64_t release_due_ns() const noexcept { return release_due_ns_; }
  // Before take_removed(), and before release(). A job that has something due and finds no room for
  // it beside what waits is the first next time, and until then neither queues ranges of others.
  void begin_turns() noexcept { lacks_room_ = false; }
  bool lacks_room() const noexcept { return lacks_room_; }
  // The next range that was released. One for which the scheduler has no room is to be held up, and
  // so is what comes behind it of its job: others go on.
  bool take_range(WorkerRange& out) noexcept;
  bool has_ranges() const noexcept { return !ranges_.empty(); }  // take_range is worth a call
  // Before those ranges, and in the same pass. And what is to be finished (Scheduler::finish) of
  // it, shard by shard, if that lacks it: an empty range where it has none; false: there are no
  // more.
  bool take_row(WorkerRow& out) noexcept;
  bool range_of_row(const WorkerRow& row, size_t turn, WorkerRange& out) const noexcept;
  // Whether its job is still there, and goes on.
  bool is_wanted(const WorkerRange& range) const noexcept;
  void hold_up(const WorkerRange& range);  // one that is wanted
  bool holds_up_any() const noexcept { return jobs_held_up_ > 0; }
  // The first of the job that is held up, to be dropped when it has gone on; null: none is.
  const WorkerRange* held_up(JobSlot job) const noexcept;
  void drop_held_up(JobSlot job) noexcept;
  bool has_completion() const noexcept { return !completions_.empty(); }
  bool take_completion(WorkerCompletion& out) noexcept;
  void drop_completions(const EngineChannel* channel);  // of a program that is gone

  // Fills header and payload of a scheduled chunk. False: nobody needs it any more.
  bool prepare(const ScheduledChunk& chunk, OutgoingDatagram& out) noexcept;
  // A server lane's shard, and the chunks that it has of the tensor that its last sum was of: of
  // most sums they need not be computed again. Of one job, and one of its lives.
  struct Share {
    Shard shard;
    TensorIndex tensor{~uint32_t{0}};
    ChunkSpan chunks;
  };
  // A RESULT arrived from the server lane that has `share`. False: not taken (corrupt), the server
  // shall send it again.
  bool on_result(JobSlot job, Share& share, const wire::Header& header,
                 std::span<const std::byte> payload) noexcept;
  // The server has the chunk.
  void on_acked(JobSlot job, const ChunkKey& key) noexcept;
  // Whether a chunk that is lost is to be sent again: not if its sum is here already.
  bool on_lost(JobSlot job, const ChunkKey& key) noexcept;

 private:
  struct WorkerJob;
  struct WorkerTensor;
  WorkerJob* find(JobSlot job) const noexcept;
  WorkerJob* find(const EngineChannel* channel, uint32_t client_job) const noexcept;
  void give_up(const WorkerJob& job, WorkerTensor& tensor, Errc code) noexcept;
  static ChunkSpan chunks_of(SubmitOp op, const WorkerJob& job,
                             const WorkerTensor& tensor) noexcept;
  void begin_push(WorkerJob& job, WorkerTensor& tensor, uint16_t priority) noexcept;
  // Apart, as acknowledge: most chunks end nothing, and should not pay for what does.
  [[gnu::noinline]] void complete_what_ended(WorkerJob& job, WorkerTensor& tensor) noexcept;
  static bool note_absent(const WorkerJob& job, WorkerTensor& tensor, uint32_t contributors,
                          std::span<const std::byte> set) noexcept;
  void complete_sums(const WorkerJob& job, WorkerTensor& tensor, uint64_t cookie) noexcept;
  void complete(const WorkerJob& job, uint64_t cookie, TensorId tensor, Round round,
                Errc status) noexcept;
  // The server has our contribution; ends what waited for it.
  void note_pushed(WorkerJob& job, WorkerTensor& tensor, ChunkIndex chunk) noexcept;
  [[gnu::noinline]] void acknowledge(WorkerJob& job, const WorkerTensor& tensor,
                                     ChunkIndex chunk) noexcept;
  static bool ends_partition(const WorkerTensor& tensor, ChunkIndex chunk) noexcept;
  static void plan_partitions(WorkerJob& job, WorkerTensor& tensor);
  void withdraw(WorkerJob& job, const WorkerTensor& tensor) noexcept;
  void give_up_credit(WorkerJob& job, bool lets_go) noexcept;
  void begin_credit(WorkerJob& job);
  bool has_room_for_ranges(const WorkerJob& job) noexcept;
  static void look_for_rows(WorkerJob& job) noexcept;
  static void note_sent(WorkerJob& job, WorkerTensor& tensor, const ScheduledChunk& chunk) noexcept;
  void finish_row(WorkerJob& job, const WorkerTensor& next) noexcept;
  void queue_range(const WorkerJob& job, SessionSlot session, const WorkerTensor& tensor,
                   const ChunkSpan& span) noexcept;
  // worker_steps.cc
  void follow_on(WorkerJob& job, uint32_t& looks) noexcept;
  void let_go(const WorkerJob& job, WorkerTensor& tensor, uint32_t from) noexcept;
  static void drop_credits(WorkerJob& job, uint32_t& looks) noexcept;
  void refill_on(WorkerJob& job, uint32_t& looks) noexcept;
  void give_up_on(WorkerJob& job, uint32_t& looks) noexcept;

  Counters& counters_;
  std::vector<std::unique_ptr<WorkerJob>> jobs_;  // by slot
  // Reserved for the most that can wait: the completions and one range per shard of each tensor,
  // and a completion for each submission that is refused in a pass.
  size_t most_completions_ = 0;  // that tensors can have waiting at a time
  size_t most_ranges_ = 0;       // that can wait at a time: one for each tensor and shard
  std::vector<WorkerRange> ranges_;
  size_t next_range_ = 0;
  std::vector<WorkerRow> rows_;  // of a job one at most
  uint32_t jobs_held_up_ = 0;
  // A WorkerCompletion, with the words of both of its sets in absent_words_: most have none.
  struct Ended {
    EngineChannel* channel = nullptr;
    uint64_t cookie = 0;
    uint32_t client_job = 0;
    TensorId tensor;
    Round round;
    Errc status = Errc::kOk;
    uint16_t absent_words = 0;  // of each
    size_t absent_at = 0;
  };
  std::vector<Ended> completions_;
  std::vector<uint64_t> absent_words_;
  size_t most_absent_words_ = 0;
  size_t next_completion_ = 0;
  uint64_t release_due_ns_ = kNever;
  // In jobs_: the first that may queue ranges when not all can at a time.
  size_t first_to_release_ = 0;
  size_t first_to_refill_ = 0;
  bool has_steps_ = false;
  bool lacks_room_ = false;
  uint32_t lives_ = 0;  // jobs so far
};

}  // namespace mercury
