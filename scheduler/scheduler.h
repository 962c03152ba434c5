// Gradient path: step 3/8, from the submit ring, to the engine loop.
//
// Which chunk goes next from one NIC queue. Fair between jobs (deficit round robin on bytes; or all
// jobs are as one),
// strict priority inside a job (0 first) but for units that have begun, first-in first-out inside a
// priority and session,
// rotating between the sessions that hold the same priority, retransmissions first at their own
// priority. Constant time at any number of priorities, ranges and bytes: 64-ary tries of three
// levels, find first set. A session that may not send now (window full) is set aside whole, in
// constant time, and never holds up another session.
//
// The queue holds ranges of chunks and cuts one chunk per next(): admitting 400 MB costs what
// admitting 4 KB costs.
//
// Owner/thread: one engine. Pure: no I/O, no clock. Allocates at construction and in add_*, never
// in admit, readmit, finish, next, charge, block, unblock. Paper: Mercury, TPDS 2023, section IV.C
// (the O(N) scan replaced); DRR: Shreedhar & Varghese, SIGCOMM 1995.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "scheduler/terms/chunk.h"
#include "transport/base/result.h"
#include "transport/base/types.h"

namespace mercury {

// Consecutive chunks of one tensor for one session, all of one round and priority.
struct ChunkRange {
  TensorIndex tensor;
  Round round;
  ChunkSpan chunks;
  uint16_t priority = 0;
};

inline ChunkRange range_of(const ChunkKey& key, uint16_t priority) noexcept {
  return {key.tensor, key.round, {key.chunk, 1}, priority};
}

// What next() cuts off.
struct ScheduledChunk {
  SessionSlot session;
  JobSlot job;
  ChunkKey key;
  uint16_t priority = 0;
  bool retransmit = false;
};

class Scheduler {
 public:
  // Between jobs.
  enum class Turns : uint8_t {
    kFair,
    kUrgency,  // none: the most urgent chunk of all jobs, weights mean nothing. For comparison
  };
  struct Limits {
    uint32_t max_jobs = 64;
    uint32_t max_sessions = 4096;
    // Admitted and unfinished, all jobs together, retransmissions included. A range takes 32 bytes,
    // and up to 824 where its priority is far from all others of its session. A sum that is
    // complete takes one for all workers, unless it continues the last; and each worker that it
    // waits for a leaf of 524 bytes for each 64 consecutive priorities of such sums. Of leaves
    // there are as many, and one more for each session, which is its job's own: so a sum finds its
    // leaves, whatever others take, once what removed sessions held is dropped. So are some of the
    // others, and of the ranges (JobParts), 1,024 of each with 64 jobs. What is never used is never
    // touched.
    uint32_t max_ranges = 327'680;
    // DRR: what a job of weight 1 may send per round. At least 1,024 is used; of the size of a
    // frame or more, so that a job is passed over at most once.
    uint32_t quantum_bytes = 65536;
    Turns turns = Turns::kFair;
  };
  static constexpr uint32_t kMaxWeight = 65535;

  explicit Scheduler(const Limits& limits);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Errors: kLimit, kExists, kNotFound, kInvalidArgument (weight). Removing drops what is queued,
  // whose ranges are free when drop_removed has come to them; a job takes its sessions along.
  Status add_job(JobSlot job, uint32_t weight = 1);
  void remove_job(JobSlot job);
  // What admit_all needs. Once, before it. Errors: kNotFound, kNoMemory.
  Status share(JobSlot job);
  Status add_session(SessionSlot session, JobSlot job);
  // From now on so many consecutive chunks of a range are a unit: once a session has begun one, the
  // rest of it goes before anything more urgent in this session, and as the most urgent things of
  // others. It ends with its range. Usual: 1. Cold.
  void set_unit(JobSlot job, uint32_t chunks);
  // The chunk of its own that the session would send next of the range's priority, if it is one of
  // these and no retransmission, goes before anything more urgent in this session, and as the most
  // urgent things of others: as a unit that has begun. What is readmitted meanwhile, of the same
  // priority, goes in its place; readmitted itself it is as others. False: it is another one, the
  // priority is 0, the session is blocked or goes on with a unit, or the job's are longer than a
  // chunk.
  bool finish(SessionSlot session, const ChunkRange& range) noexcept;
  void remove_session(SessionSlot session);
  JobSlot job_of(SessionSlot session) const noexcept;  // of one that is here
  // What was admitted for all sessions of its job is not this one's any more. Cold.
  void leave_shared(SessionSlot session);
  // Frees `most` ranges of removed sessions at most. Returns how many.
  uint32_t drop_removed(uint32_t most) noexcept;

  // Appends a range, or extends the last one of its priority in this session if it continues it
  // (same tensor, round, next chunk). False: max_ranges are in use, or as many leaves; nothing
  // changed, try later. True, and nothing is queued: no such session, or no chunks.
  [[nodiscard]] bool admit(SessionSlot session, const ChunkRange& range) noexcept;
  // The same for several sessions of a job that shares ranges, all of which are there: it takes one
  // range. Who is among them once is each time, until it is removed or leaves (leave_shared).
  // False: as much as it may take is not free, which is a range and a leaf for each session;
  // nothing changed.
  [[nodiscard]] bool admit_all(JobSlot job, std::span<const SessionSlot> sessions,
                               const ChunkRange& range) noexcept;
  // A lost chunk: in front of everything of its priority and session, behind earlier readmitted
  // ones. Otherwise as admit().
  [[nodiscard]] bool readmit(SessionSlot session, const ChunkRange& one_chunk) noexcept;

  // Cuts the next chunk. False: nothing can be sent (all empty or blocked).
  [[nodiscard]] bool next(ScheduledChunk& out) noexcept;
  // Bytes that the chunk of the last next() took on the wire: DRR's account. The job may have
  // become empty or blocked meanwhile.
  void charge(JobSlot job, uint32_t bytes) noexcept;

  // A job that is held has no turns until it goes on, and idle() does not count it. Not where jobs
  // take none (Turns::kUrgency). Idempotent.
  void hold(JobSlot job) noexcept;
  void go_on(JobSlot job) noexcept;

  // A blocked session is skipped until unblocked. Idempotent.
  void block(SessionSlot session) noexcept;
  void unblock(SessionSlot session) noexcept;

  bool empty() const noexcept;  // nothing queued, blocked or not
  bool idle() const noexcept;   // nothing that could be sent now
  uint64_t queued_chunks(JobSlot job) const noexcept;
  uint64_t queued_chunks(SessionSlot session) const noexcept;
  uint32_t free_ranges() const noexcept;
  // Of max_ranges, beside those that are sessions' own; a session holds one for each 64 consecutive
  // priorities of which it has something queued. More than anybody asks for where they cannot run
  // out, as there are too few sessions.
  uint32_t free_leaves() const noexcept;
  uint32_t unused_leaves() const noexcept;  // those that are sessions' own included
  // What the job has of both, until it is dropped.
  uint32_t held_ranges(JobSlot job) const noexcept;
  uint32_t held_leaves(JobSlot job) const noexcept;
  // Whether a range and so many leaves are no more than its part (JobParts) and its sessions' own,
  // and leave `reserve` of what jobs share. Nothing here asks.
  bool has_part(JobSlot job, uint32_t leaves, uint32_t reserve) const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mercury
