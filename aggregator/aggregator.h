// Gradient path: step 7/8, from the engine loop of a server, to the results of all workers.
//
// Sums gradients chunk by chunk as they arrive, on the core that received them. A contribution is
// counted once per (job, round, tensor, chunk, worker with incarnation), whatever the network or a
// restart does. Two generations of each slot (round parity): a fast worker may begin round r+1
// while results of round r are still sent again to a slow one; the first contribution overwrites,
// so nothing is ever cleared.
//
// Shape: a tensor of `numel` elements is cut into chunks of `chunk_elems` elements (the last one
// shorter); this server holds chunks [first_chunk, first_chunk + chunk_count).
// Accumulators: f16 and bf16 are summed in f32 and rounded once, to nearest even, on completion;
// average divides once, before that rounding (integers: sum only). Integers wrap. Any NaN in a
// result is the positive quiet NaN without payload; but what the only worker of a job without a
// quorum pushes is its sum, to the bit.
// Rounds are serial numbers (RFC 1982 with 32 bits): they may wrap around. A chunk takes
// contributions of one round at a time, the one after its last completed round; so when round r of
// a chunk begins, r - 1 is complete, hence every worker has had r - 2 and nobody asks for it again.
// (With a quorum r - 1 may be complete without a slow worker: JobTerms::quorum.)
// Owner/thread: one engine. Allocates in add_*, never in push or result.
// Paper: Mercury, TPDS 2023, section IV.C (Mercury PS); PHub thesis section 3.3; SwitchML (Sapio et
// al., NSDI 2021) for two generations of each slot, which one bit tells apart.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "scheduler/terms/chunk.h"
#include "scheduler/terms/element.h"
#include "scheduler/terms/job_terms.h"
#include "scheduler/terms/worker_set.h"
#include "transport/base/memory_thread.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/port/port.h"

namespace mercury {

struct AggregationJob {
  uint16_t workers = 0;  // 1 to kMaxWorkers
  // Three of them are followed here:
  // Deterministic: what arrives ahead of a lower rank is kept apart, and all is added in rank
  // order. Costs workers - 1 times the share of each tensor in memory, for floating point among
  // three or more workers (else the order changes no bit).
  // A quorum: a chunk's round is complete with so many contributions once its patience is at an
  // end, or when all workers that are not withdrawn are in. Its result then says who is in it.
  // Nobody's sum is overwritten before he has it: a chunk's round is not complete before every
  // worker that is not withdrawn has pushed the one before, so the others are one round ahead of a
  // slow one at most.
  // A stall time-out: a chunk whose round has been open for so long since its first contribution is
  // reported (take_stalled), with the workers that it waits for.
  JobTerms terms;
  uint64_t memory_limit_bytes = 0;  // 0 = none; all tensors of the job in this engine
};

struct AggregationTensor {
  TensorId tensor;
  uint64_t numel = 0;
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  uint32_t chunk_elems = 0;
  ChunkIndex first_chunk;
  uint32_t chunk_count = 0;  // this engine's share; may be 0
  Round first_round = 1;     // the round that the first contributions belong to
  Shard first_shard;         // the plan's (scheduler/plan/plan.h), for whoever asks for the tensor
};

struct Contribution {
  JobSlot job;
  Rank worker;
  uint32_t incarnation = 0;
  TensorId tensor;
  Round round;
  ChunkIndex chunk;
  uint32_t payload_crc = 0;  // crc32c of `elements`
  // As many as the chunk has; or none: who contributes nothing is in the round, and changes no sum,
  // whatever the operation. (If nobody has any, the result is zeros.)
  std::span<const std::byte> elements;
  bool in_part = false;   // who pushes wants its own part of the sum
  uint16_t priority = 0;  // with a quorum: the result's, if time completes it
  uint64_t now_ns = 0;
};

enum class PushVerdict : uint8_t {
  kAdded,      // in the sum; others are missing
  kCompleted,  // in the sum, which is now complete: send result() to all workers
  kDuplicate,  // this worker's contribution to the open round was in already: acknowledge
  kOldRound,   // the round has ended, with this worker in it unless there is a quorum: acknowledge
  // Not taken: do not acknowledge; the sender will try again.
  kCorrupt,   // payload CRC
  kSlotBusy,  // the NIC still reads the result of two rounds ago, or what the worker's last life
              // added is being taken out
  kNewRound,  // more than one round after the last completed one: no honest worker is there
  // Not taken, and never will be.
  kUnknownTensor,   // or job
  kBadChunk,        // not this engine's, or neither as long as the chunk nor empty
  kBadWorker,       // rank beyond the job's workers
  kBadIncarnation,  // of this worker's past, or never admitted
};

struct Pushed {
  PushVerdict verdict = PushVerdict::kUnknownTensor;
  TensorIndex tensor;  // that it was for; of a known tensor
};

// A completed chunk. `elements` and `pin` stay until a contribution of round + 2 arrives while the
// pin is not busy; with a quorum, also until nobody needs them any more.
struct ChunkResult {
  std::span<const std::byte> elements;  // if `partial`, behind who is in it
  uint32_t crc = 0;                     // of `elements`
  uint16_t contributors = 0;
  bool partial = false;
  bool in_parts = false;  // every contributor wants its own part of the tensor, and no more
  TensorId tensor;
  PayloadPin* pin = nullptr;  // null: the port could not map it, so it is to be copied
};

// A chunk whose round is complete without a push: send result() to all workers.
struct OverdueChunk {
  JobSlot job;
  ChunkKey key;
  uint16_t priority = 0;
  bool partial = false;
};

// Of which jobs; all, unless it says otherwise.
struct JobFilter {
  bool (*takes)(const void* context, JobSlot job) = [](const void*, JobSlot) { return true; };
  const void* context = nullptr;
  bool operator()(JobSlot job) const noexcept { return takes(context, job); }
};

// A chunk whose round is not complete because workers have not pushed it
// (JobTerms::stall_timeout_ms).
struct StalledChunk {
  JobSlot job;
  TensorRound at;
  uint64_t open_ns = 0;  // for how long
  WorkerSet awaited{};
};

// A round that will not be complete in some chunk, as who has left has not contributed to it.
struct HopelessRound {
  JobSlot job;
  TensorRound at;
  WorkerSet missing{};
};

// A worker's last life is in no open round any more, and these are the rounds that each tensor with
// chunks here is in: the lowest that is open in any of them and, if it is another, the highest.
struct ReplacedWorker {
  JobSlot job;
  Rank worker;
  uint32_t incarnation = 0;
  std::vector<TensorRound> rounds;
};

class Aggregator {
 public:
  // `port` sends the results: it is told of the memory that they lie in when a tensor is added, and
  // again when its job is removed, and asked, rarely, whether it still reads one. It may go before
  // the aggregator does. `memory_limit_bytes`: of all jobs together; 0 = none. `thread`, which
  // lives longer, touches the memory of tensors from when they are added on, and gives it back;
  // null: it is touched as rounds arrive, and remove_job gives it back.
  explicit Aggregator(const PortMemory& port, uint64_t memory_limit_bytes = 0,
                      MemoryThread* thread = nullptr);
  ~Aggregator();
  Aggregator(const Aggregator&) = delete;
  Aggregator& operator=(const Aggregator&) = delete;

  // Errors: kExists, kNotFound, kInvalidArgument, kUnsupported (average of integers), kLimit
  // (memory limit of the job or of all, with the numbers), kNoMemory.
  Status add_job(JobSlot job, const AggregationJob& spec);
  // Whether no port reads a result of the job any more, none of which is sent from the first call
  // on. Looks at `looks` chunks at most, which it counts down, and at each until it is not read:
  // false says nothing of those that it has not come to.
  bool drained(JobSlot job, uint32_t& looks) noexcept;
  // Gives back the memory of a job that is drained, tensor by tensor. Each counts `looks` down by
  // as many chunks as could be looked at meanwhile. True: there is none left.
  bool give_back(JobSlot job, uint32_t& looks);
  // What is left of it at once: the caller has made sure that it is drained, or drained the port.
  void remove_job(JobSlot job);
  // Its index is the number of those that the job has had before.
  Status add_tensor(JobSlot job, const AggregationTensor& spec);

  // Admits a worker that has had no other life here. Errors: kNotFound, kInvalidArgument, kExists
  // (it has: replace).
  Status admit(JobSlot job, Rank worker, uint32_t incarnation);
  // Admits a worker's next life: contributions of another incarnation are refused from now on, and
  // what the last one added is taken out of every chunk whose open round is not complete. A sum
  // cannot give a number back, so where it was added in, the chunk begins its open round anew and
  // needs every worker's contribution again; complete rounds stay as they are. All chunks are
  // looked at, in steps: take_replaced follows, and until then the new life's contributions are not
  // taken. Errors: kNotFound, kInvalidArgument.
  Status replace(JobSlot job, Rank worker, uint32_t incarnation);
  // Goes on with what replace and withdraw began, job by job: looks at `looks` chunks at most, and
  // counts that down. True: one worker is replaced.
  bool take_replaced(uint32_t& looks, ReplacedWorker& out);
  bool is_replacing() const noexcept;  // take_replaced is worth a call
  // That a chunk which is here is in.
  Round open_round(JobSlot job, TensorIndex tensor, ChunkIndex chunk) const noexcept;

  // Nothing is to be expected of this worker until replace admits it again. With a quorum the
  // others' sums do not wait for it; which of them are complete so is found in steps
  // (take_replaced, then take_overdue).
  void withdraw(JobSlot job, Rank worker) noexcept;
  // Nobody is admitted any more: what cannot be complete without those that are withdrawn is
  // hopeless, whether somebody has pushed it already or will.
  void end_admission(JobSlot job) noexcept;
  // One tensor of a job whose admission has ended, with the lowest round of it that is hopeless and
  // not known yet; the later ones are as hopeless. Looks at `looks` chunks at most, and counts that
  // down. False: nothing, or nothing yet.
  bool take_hopeless(uint32_t& looks, HopelessRound& out) noexcept;
  bool seeks_hopeless() const noexcept;  // take_hopeless is worth a call
  // With a quorum: completes what time, or a slow worker's progress, lets complete, one at a time,
  // of one job after the other, of `those`. It looks at `looks` chunks at most and counts that
  // down. False: nothing, or nothing yet (next_overdue_ns).
  bool take_overdue(uint64_t now_ns, uint32_t& looks, OverdueChunk& out,
                    const JobFilter& those = JobFilter()) noexcept;
  // When it has something of those to complete next, as far as is known now; kNever.
  uint64_t next_overdue_ns(const JobFilter& those = JobFilter()) const noexcept;

  // Of one job, the chunk that has been open for longest, if that is too long, an eighth of
  // stall_ns later at most; again and again as long as it is. Lives that begin or end
  // (replace, withdraw) give everybody the whole time anew. Looks at `looks` chunks at most
  // and counts that down.
  bool take_stalled(uint64_t now_ns, uint32_t& looks, StalledChunk& out) noexcept;
  // When take_stalled has to look next; kNever.
  uint64_t next_stall_ns() const noexcept;

  Pushed push(const Contribution& contribution) noexcept;

  // False: no such chunk, or not complete in that round.
  bool result(JobSlot job, const ChunkKey& key, ChunkResult& out) noexcept;

  // Of a job, in the order of declaration.
  uint32_t tensor_count(JobSlot job) const noexcept;
  const AggregationTensor& tensor(JobSlot job, TensorIndex index) const noexcept;  // one it has

  // Reserved for accumulators, slots, contributions kept apart and what a finish keeps.
  uint64_t memory_bytes(JobSlot job) const noexcept;
  uint64_t memory_bytes() const noexcept;
  // Of it, what belongs to tensors whose results are copied, as the port could not map them.
  uint64_t unmapped_bytes() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The kernels, by name: "avx512", "avx2", "scalar". Chosen once at start; tests force each (false
// if the CPU lacks it).
const char* aggregation_kernel() noexcept;
bool force_aggregation_kernel(const char* name) noexcept;

}  // namespace mercury
