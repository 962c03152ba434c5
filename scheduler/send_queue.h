// What one engine has to send: the scheduler, and who may use how much of it.
//
// New work leaves some range nodes and leaves free, which only retransmissions may use. A lost
// chunk that finds none even so waits here, in its job's order, and is tried again at each poll.
// Owner/thread: one engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/lost_chunks.h"
#include "scheduler/scheduler.h"
#include "transport/base/types.h"

namespace mercury {

class SendQueue {
 public:
  struct Limits {
    Scheduler::Limits scheduler;
    // Range nodes that only retransmissions may use: new work waits while fewer are free.
    uint32_t reserved_ranges = 8192;
    // Lost chunks that may wait for a range node before this allocates: as many as packets may be
    // in flight, since each is lost once and those that follow while nothing comes through are few.
    uint32_t most_lost = 131'072;
  };

  explicit SendQueue(const Limits& limits)
      : limits_(limits),
        scheduler_(limits.scheduler),
        waiting_(limits.scheduler.max_jobs, limits.most_lost) {
    lives_.resize(limits.scheduler.max_sessions);
  }

  Scheduler& scheduler() noexcept { return scheduler_; }
  const Scheduler& scheduler() const noexcept { return scheduler_; }
  uint32_t used_ranges() const noexcept {
    return limits_.scheduler.max_ranges - scheduler_.free_ranges();
  }
  // Whether a range for so many sessions, which share it, would take from what is reserved.
  bool short_of(uint32_t sessions) const noexcept {
    return scheduler_.free_ranges() <= limits_.reserved_ranges ||
           scheduler_.free_leaves() < sessions + limits_.reserved_ranges;
  }
  // A member that takes its sums slowly, or in another order than others push them, must not take
  // the ranges of the jobs beside its own, or of those that come later: once half are in use, who
  // has more than its part waits. All of a job that is alone are no more than half.
  bool takes_others_part(JobSlot job, uint32_t jobs) const noexcept {
    const uint64_t all = limits_.scheduler.max_ranges;
    const bool few_ranges = has_few_ranges();
    const bool few_leaves = 2 * uint64_t{scheduler_.free_leaves()} < all;
    if (!few_ranges && !few_leaves) [[likely]]
      return false;
    const uint64_t part = all / (2 * uint64_t{jobs});
    return (few_ranges && scheduler_.held_ranges(job) > part) ||
           (few_leaves && scheduler_.held_leaves(job) > part);
  }

  // Whether a chunk of a job of so many sessions, of so many jobs, is refused for either reason:
  // asked for every one. One look suffices where much is free.
  bool refuses(JobSlot job, uint32_t sessions, uint32_t jobs) const noexcept {
    const uint32_t free = std::min(scheduler_.free_ranges(), scheduler_.free_leaves());
    if (free >= plenty_ + sessions) [[likely]]
      return false;
    return short_of(sessions) || takes_others_part(job, jobs);
  }
  bool has_few_ranges() const noexcept {
    return 2 * uint64_t{scheduler_.free_ranges()} < limits_.scheduler.max_ranges;
  }
  // The same of a program that has so many ranges, of so many programs: nothing more is taken of
  // it.
  bool takes_others_part(uint64_t ranges, size_t programs) const noexcept {
    return has_few_ranges() && ranges > limits_.scheduler.max_ranges / (2 * programs);
  }

  // False: short of ranges, or of leaves; nothing changed.
  bool admit(SessionSlot session, const ChunkRange& range) noexcept {
    const bool reserved = scheduler_.free_ranges() < limits_.reserved_ranges ||
                          scheduler_.free_leaves() < limits_.reserved_ranges;
    return !reserved && scheduler_.admit(session, range);
  }
  // What must not be lost: into the reserve, or kept until there is room.
  void answer(SessionSlot session, const ChunkRange& range) noexcept {
    if (!scheduler_.admit(session, range)) send_again(session, range);
  }
  // The same, for several sessions of a job (Scheduler::admit_all).
  void answer_all(JobSlot job, std::span<const SessionSlot> sessions,
                  const ChunkRange& range) noexcept {
    if (scheduler_.admit_all(job, sessions, range)) [[likely]]
      return;
    for (const SessionSlot session : sessions) send_again(session, range);
  }
  void send_again(SessionSlot session, const ChunkRange& chunk) noexcept {
    if (!scheduler_.readmit(session, chunk)) [[unlikely]]
      keep(session, chunk);
  }
  // What sessions that are gone held is dropped, and lost chunks that found no room go on if they
  // do now: kPerPoll of each at most. How many.
  uint32_t poll() noexcept {
    uint32_t done = 0;
    if (drops_) {
      done = scheduler_.drop_removed(kPerPoll);
      drops_ = done == kPerPoll;
    }
    if (waiting_.size() == 0) [[likely]]
      return done;
    return done + waiting_.take(kPerPoll, [this](const LostChunk& lost) {
      const bool gone = lost.life != lives_[lost.session.value];
      return gone || scheduler_.readmit(lost.session, lost.chunk);
    });
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
  // A session may hold a hundred thousand ranges, and frames wait.
  static constexpr uint32_t kPerPoll = 1024;

  [[gnu::cold, gnu::noinline]] void keep(SessionSlot session, const ChunkRange& chunk) noexcept {
    waiting_.add(scheduler_.job_of(session), {session, lives_[session.value], chunk});
  }

  const Limits limits_;
  const uint32_t plenty_ = std::max(limits_.scheduler.max_ranges / 2, limits_.reserved_ranges) + 1;
  Scheduler scheduler_;
  LostChunks waiting_;
  std::vector<uint32_t> lives_;  // by session slot: how many are gone
  bool drops_ = false;           // removed sessions may have held something
};

}  // namespace mercury
