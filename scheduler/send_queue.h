// What one engine has to send: the scheduler, and who may use how much of it.
//
// Of what jobs share new work leaves some range nodes and leaves free, which only retransmissions
// may use. A lost chunk that finds none even so waits here, in its job's order, and is tried again
// at each poll.
// Owner/thread: one engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/job_parts.h"
#include "scheduler/lost_chunks.h"
#include "scheduler/rate_limits.h"
#include "scheduler/scheduler.h"
#include "transport/base/cold_steps.h"
#include "transport/base/types.h"

namespace mercury {

class SendQueue {
 public:
  struct Limits {
    Scheduler::Limits scheduler;
    // Range nodes of what jobs share that only retransmissions may use.
    uint32_t reserved_ranges = 8192;
    // Lost chunks that may wait for a range node before this allocates: more than packets may be in
    // flight (SentPool), since each is lost once and those that follow while nothing comes through
    // are few.
    uint32_t most_lost = 262'144;
  };

  explicit SendQueue(const Limits& limits)
      : limits_(limits),
        scheduler_(limits.scheduler),
        rates_(limits.scheduler.max_jobs),
        waiting_(limits.scheduler.max_jobs, limits.most_lost) {
    lives_.resize(limits.scheduler.max_sessions);
  }

  Scheduler& scheduler() noexcept { return scheduler_; }
  const Scheduler& scheduler() const noexcept { return scheduler_; }
  uint32_t used_ranges() const noexcept {
    return limits_.scheduler.max_ranges - scheduler_.free_ranges();
  }
  // A member that takes its sums slowly, or in another order than others push them, must not take
  // what the jobs beside its own need, or those that come later: each has its part (JobParts).
  // Whether new work of a job, for so many sessions that share it, is more than that, or would take
  // the room for which lost chunks of the job wait: asked for every chunk. One look suffices where
  // much is free.
  bool refuses(JobSlot job, uint32_t sessions) const noexcept {
    if (has_plenty(sessions)) [[likely]]
      return false;
    return waiting_.has(job) || !scheduler_.has_part(job, sessions, limits_.reserved_ranges);
  }
  // Whether any job may have a range for so many sessions.
  bool has_plenty(uint32_t sessions) const noexcept {
    return scheduler_.free_ranges() >= plenty_ + sessions &&
           scheduler_.unused_leaves() >= plenty_ + limits_.scheduler.max_sessions + sessions;
  }

  // False: it is more than its job's part; nothing changed.
  bool admit(SessionSlot session, const ChunkRange& range) noexcept {
    return !refuses(scheduler_.job_of(session), 1) && scheduler_.admit(session, range);
  }
  // What must not be lost: into the reserve, or kept until there is room.
  void answer(SessionSlot session, const ChunkRange& range) noexcept {
    if (!has_room(session) || !scheduler_.admit(session, range)) send_again(session, range);
  }
  // The same, for several sessions of a job (Scheduler::admit_all).
  void answer_all(JobSlot job, std::span<const SessionSlot> sessions,
                  const ChunkRange& range) noexcept {
    const auto count = static_cast<uint32_t>(sessions.size());
    const bool has_room = has_plenty(count) || scheduler_.has_part(job, count, 0);
    if (has_room && scheduler_.admit_all(job, sessions, range)) [[likely]]
      return;
    for (const SessionSlot session : sessions) send_again(session, range);
  }
  // Out of line: what is lost does not take the registers of what is not.
  [[gnu::noinline]] void send_again(SessionSlot session, const ChunkRange& chunk) noexcept {
    if (!has_room(session) || !scheduler_.readmit(session, chunk)) [[unlikely]]
      keep(session, chunk);
  }
  // The job is there, and may send so much in a second from now on; 0: as much as it can.
  void limit(JobSlot job, uint64_t bytes_per_second) noexcept {
    rates_.set(job, bytes_per_second);
    scheduler_.go_on(job);
  }
  void charge(JobSlot job, uint32_t bytes) noexcept {
    scheduler_.charge(job, bytes);
    if (rates_.any() && rates_.charge(job, bytes)) [[unlikely]]
      scheduler_.hold(job);
  }
  void remove_job(JobSlot job) {
    scheduler_.remove_job(job);
    rates_.set(job, 0);
  }
  uint64_t next_deadline_ns() const noexcept { return rates_.next_deadline_ns(); }
  // Jobs that have waited for as long as their rates say go on. What sessions that are gone held
  // is dropped, and lost chunks that found no room go on if they do now. How many.
  uint32_t poll(uint64_t now_ns, ColdSteps& steps) noexcept {
    uint32_t done = 0;
    if (rates_.any()) [[unlikely]]
      done = rates_.poll(now_ns, [this](JobSlot job) { scheduler_.go_on(job); });
    if (drops_) {
      // A session may hold a hundred thousand ranges.
      const uint32_t most = steps.part();
      const uint32_t dropped = scheduler_.drop_removed(most);
      drops_ = dropped == most;
      done += dropped;
      steps.took(dropped);
    }
    if (waiting_.size() == 0) [[likely]]
      return done;
    const uint32_t most = steps.part();
    uint32_t looks = most;
    const uint32_t taken = waiting_.take(looks, [this](const LostChunk& lost) {
      const bool gone = lost.life != lives_[lost.session.value];
      return gone || (has_room(lost.session) && scheduler_.readmit(lost.session, lost.chunk));
    });
    steps.took(most - looks);
    return done + taken;
  }
  uint32_t waiting() const noexcept { return waiting_.size(); }
  void forget(SessionSlot session) {
    scheduler_.remove_session(session);
    drops_ = true;
    ++lives_[session.value];
  }
  // What was answered to several, and has not been sent to this one, is not.
  void leave_shared(SessionSlot session) {
    scheduler_.leave_shared(session);
    drops_ = true;
  }

 private:
  // Of a session that is here.
  bool has_room(SessionSlot session) const noexcept {
    return has_plenty(1) || scheduler_.has_part(scheduler_.job_of(session), 1, 0);
  }
  [[gnu::cold, gnu::noinline]] void keep(SessionSlot session, const ChunkRange& chunk) noexcept {
    waiting_.add(scheduler_.job_of(session), {session, lives_[session.value], chunk});
  }

  const Limits limits_;
  const uint32_t plenty_ = JobParts::plenty(limits_.scheduler.max_ranges,
                                            limits_.scheduler.max_jobs, limits_.reserved_ranges);
  Scheduler scheduler_;
  RateLimits rates_;
  LostChunks waiting_;
  std::vector<uint32_t> lives_;  // by session slot: how many are gone
  bool drops_ = false;           // removed sessions may have held something
};

}  // namespace mercury
