#include "scheduler/scheduler.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/deficit_round.h"
#include "scheduler/job_parts.h"
#include "scheduler/priority_trie.h"
#include "scheduler/range_queue.h"
#include "scheduler/shared_ranges.h"

namespace mercury {
namespace {

// Where the last chunk of a session was cut, at the rank at which it is linked. Its next one is cut
// there too, without the dozen lookups of the tries, each of which waits for the one before: until
// something comes to stand in front of it there, the session leaves the range, or units become
// longer than a chunk.
struct LastCut {
  RangeNode* range = nullptr;     // null: look it up
  PriorityList* place = nullptr;  // the session's, if others share the range
  ScheduledChunk chunk;
};

// A power of two: sessions are looked up by number for each chunk, in a shift.
struct alignas(128) SessionNode {
  LastCut last;
  uint64_t chunks = 0;  // of its own ranges
  uint64_t shared_chunks = 0;
  uint32_t next = kNil;  // in its job's list at priority linked_at
  uint32_t prev = kNil;
  JobSlot job;
  uint32_t unit_left = 0;  // chunks of the unit that has begun
  uint16_t unit_priority = 0;
  uint16_t linked_at = 0;
  bool present = false;
  bool blocked = false;
  bool linked = false;  // it may send, and its job knows
  RangeQueue queue;
  SharedPlaces places;
};
static_assert(sizeof(SessionNode) == 256, "an idle session holds nothing but this");

struct alignas(128) JobNode {
  PriorityTrie sessions;  // those that may send, by their most urgent priority
  uint32_t members = 0;   // sessions
  uint64_t chunks = 0;    // as its sessions'
  uint64_t shared_chunks = 0;
  std::shared_ptr<SharedRanges> shared;  // also of sessions that are removed and not dropped yet
  uint32_t ranges = 0, leaves = 0;       // what it holds, with these sessions
  uint32_t unit_chunks = 1;
  uint32_t life = 0;    // of jobs in this slot
  uint32_t linked = 0;  // of its sessions
  bool present = false;
  bool held = false;
  uint16_t unfinished = 0;  // sessions with a unit that finish() made

  // Of its leaves one for each session is nobody else's; what it has beyond these is of its part.
  uint32_t leaves_of_sessions() const noexcept { return std::min(leaves, members); }
  uint32_t leaves_of_part() const noexcept { return leaves - leaves_of_sessions(); }
};
static_assert(sizeof(JobNode) == 128);

// The sessions that take turns now: as long as none comes to stand elsewhere, the first of them is
// next.
struct LastTurn {
  SessionNode* first = nullptr;  // null: look it up
  PriorityList* list = nullptr;
  uint32_t job = 0;  // turn_of() it
};

struct Removed {  // what a session that is gone had queued
  RangeQueue queue;
  SharedPlaces places;
  std::shared_ptr<SharedRanges> shared;
  JobSlot job;
  uint32_t life = 0;  // the job's
};

}  // namespace

struct Scheduler::State {
  explicit State(const Limits& limits)
      : pools(limits.max_ranges, limits.max_sessions),
        range_parts(limits.max_ranges, limits.max_jobs),
        leaf_parts(limits.max_ranges, limits.max_jobs),
        leaves_for_sessions(limits.max_sessions),
        // A linked session stands in one list: these never run out.
        session_nodes(limits.max_sessions, limits.max_sessions),
        sessions(limits.max_sessions),
        max_jobs(limits.max_jobs),
        turns(limits.turns),
        jobs(limits.max_jobs + 1),
        round(limits.max_jobs + 1, limits.quantum_bytes),
        settled(stock()) {
    round.open(max_jobs, 1);
  }

  RangePools pools;
  JobParts range_parts;
  JobParts leaf_parts;
  uint32_t leaves_for_sessions;  // that are kept for them: one for each, but for those they have
  TriePools session_nodes;
  std::vector<SessionNode> sessions;
  const uint32_t max_jobs;
  const Scheduler::Turns turns;
  std::vector<JobNode> jobs;  // by slot; the last is all jobs' where they take no turns
  DeficitRound round;
  std::vector<Removed> removed;
  uint64_t chunks = 0;
  uint32_t linked_sessions = 0;  // of jobs that are not held
  LastTurn last;
  struct Stock {  // what is free in the pools
    uint32_t ranges;
    uint32_t leaves;
    friend bool operator==(const Stock&, const Stock&) = default;
  };
  Stock settled;  // between the calls of all functions the stock; in them what it was

  bool has(SessionSlot slot) const noexcept {
    return slot.value < sessions.size() && sessions[slot.value].present;
  }
  bool has(JobSlot slot) const noexcept {
    return slot.value < max_jobs && jobs[slot.value].present;
  }
  // The index in jobs under which a job's sessions are linked.
  uint32_t turn_of(JobSlot job) const noexcept {
    return turns == Scheduler::Turns::kFair ? job.value : max_jobs;
  }
  static bool has_chunks(const SessionNode& s) noexcept {
    return !s.queue.empty() || !s.places.empty();
  }
  // The most urgent priority of a session that is not empty.
  uint16_t top(const SessionNode& s) const noexcept {
    if (s.places.empty()) return s.queue.top(pools);
    const uint16_t shared = s.places.top(pools);
    return s.queue.empty() ? shared : std::min(shared, s.queue.top(pools));
  }
  // Where the session stands among others; not empty.
  uint16_t rank(const SessionNode& s) const noexcept {
    return s.unit_left == 0 ? top(s) : uint16_t{0};
  }

  // Whether a range for so many sessions finds all that it may take.
  bool has_room_for(size_t count) const noexcept {
    return pools.ranges.available() != 0 && pools.trie.leaf.available() >= count &&
           pools.trie.middle.available() >= count;
  }

  // Puts a session that may send at the end of the list of its most urgent priority.
  void link(uint32_t index) noexcept {
    SessionNode& s = sessions[index];
    last.first = nullptr;
    const uint16_t at = rank(s);
    if (at != s.linked_at) s.last.range = nullptr;
    s.linked_at = at;
    PriorityList& list = *jobs[turn_of(s.job)].sessions.ensure(at, session_nodes);
    s.next = kNil;
    s.prev = list.tail;
    (list.tail == kNil ? list.head : sessions[list.tail].next) = index;
    list.tail = index;
    s.linked = true;
    count_linked(jobs[s.job.value], 1);
    round.join(turn_of(s.job));
  }
  void unlink(uint32_t index) noexcept {
    SessionNode& s = sessions[index];
    last.first = nullptr;
    PriorityTrie& trie = jobs[turn_of(s.job)].sessions;
    PriorityList& list = trie.at(s.linked_at, session_nodes);
    (s.prev == kNil ? list.head : sessions[s.prev].next) = s.next;
    (s.next == kNil ? list.tail : sessions[s.next].prev) = s.prev;
    if (list.head == kNil) trie.erase(s.linked_at, session_nodes);
    s.linked = false;
    count_linked(jobs[s.job.value], -1);
  }
  void count_linked(JobNode& job, int32_t change) noexcept {
    job.linked += static_cast<uint32_t>(change);
    if (!job.held) [[likely]]
      linked_sessions += static_cast<uint32_t>(change);
  }
  // To the end of its list, in which it comes first, before others.
  void rotate(PriorityList& list, uint32_t index) noexcept {
    SessionNode& s = sessions[index];
    list.head = s.next;
    sessions[list.head].prev = kNil;
    s.next = kNil;
    s.prev = list.tail;
    sessions[list.tail].next = index;
    list.tail = index;
  }
  // After a change of what the session holds or may do: where it stands in its job follows.
  void place(uint32_t index) noexcept {
    const SessionNode& s = sessions[index];
    const bool wanted = !s.blocked && has_chunks(s);
    if (s.linked && (!wanted || rank(s) != s.linked_at)) unlink(index);
    if (wanted && !s.linked) link(index);
  }
  void count(SessionNode& s, uint64_t added, uint64_t taken) noexcept {
    s.chunks += added - taken;
    jobs[s.job.value].chunks += added - taken;
    chunks += added - taken;
  }
  Stock stock() const noexcept { return {pools.ranges.available(), pools.trie.leaf.available()}; }
  // What was taken of the pools or given back since the last time is the job's. Null: it is not
  // there any more.
  [[gnu::noinline]] void settle(JobNode* job) noexcept {
    const Stock before = std::exchange(settled, stock());
    if (job == nullptr) return;
    range_parts.change(job->ranges, job->ranges + before.ranges - settled.ranges);
    const uint32_t leaves = job->leaves + before.leaves - settled.leaves;
    if (std::max(job->leaves, leaves) > job->members) [[unlikely]] {
      return count_leaves(*job, leaves, job->members);
    }
    leaves_for_sessions += job->leaves - leaves;
    job->leaves = leaves;
  }
  [[gnu::noinline]] void count_leaves(JobNode& job, uint32_t leaves, uint32_t members) noexcept {
    uint32_t of_part = job.leaves_of_part();
    leaves_for_sessions += job.leaves_of_sessions();
    job.leaves = leaves;
    job.members = members;
    leaves_for_sessions -= job.leaves_of_sessions();
    leaf_parts.change(of_part, job.leaves_of_part());
  }
  // That parts may take.
  uint32_t free_leaves() const noexcept {
    const uint32_t all = pools.free_leaves();
    return all - std::min(all, leaves_for_sessions);
  }
  void count_shared(SessionNode& s, uint64_t added, uint64_t taken) noexcept {
    s.shared_chunks += added - taken;
    jobs[s.job.value].shared_chunks += added - taken;
    chunks += added - taken;
  }
  // Where the session whose turn it is was cut last, unless one chunk alone is left there.
  bool cut_again(ScheduledChunk& out) noexcept {
    if (last.first == nullptr || !round.keeps_turn(last.job)) return false;
    SessionNode& s = *last.first;
    RangeNode* const range = s.last.range;
    if (range == nullptr) return false;
    if (s.last.place == nullptr) {
      if (range->chunks.count < 2) return false;
      out = s.last.chunk;
      out.key.chunk = range->chunks.take_first();
      count(s, 0, 1);
    } else {
      uint32_t& taken = s.last.place->tail;
      if (range->chunks.count - taken < 2) return false;
      out = s.last.chunk;
      out.key.chunk = range->chunks.at(taken++);
      count_shared(s, 0, 1);
    }
    if (s.next != kNil) {
      rotate(*last.list, out.session.value);
      last.first = &sessions[last.list->head];
    }
    return true;
  }

  // A range that does not continue the session's last one. False: no node is free.
  [[gnu::noinline]] bool append(uint32_t index, const ChunkRange& range) noexcept {
    SessionNode& s = sessions[index];
    const RangeQueue::Appended appended = s.queue.append(range, pools);
    if (appended == RangeQueue::Appended::kNot) return false;
    count(s, range.chunks.count, 0);
    if (appended == RangeQueue::Appended::kNew) {
      settle(&jobs[s.job.value]);
      s.last.range = nullptr;
      place(index);
    }
    return true;
  }
  // Where a range for several sessions begins this one has a place, which it may not have had.
  [[gnu::noinline]] void stand(SessionSlot slot, const SharedRanges::Appended& at,
                               uint16_t priority) noexcept {
    SessionNode& s = sessions[slot.value];
    if (s.places.stand(at, priority, pools)) place(slot.value);
  }
  // Of a session that has places, and ranges of its own: beside places, those are retransmissions,
  // and so go first. False: there is none of `priority`.
  [[gnu::noinline]] bool cut_own(SessionNode& s, uint16_t priority, ScheduledChunk& out,
                                 RangeQueue::Cut& cut) noexcept {
    if (!s.queue.holds(priority, pools)) return false;
    cut = s.queue.cut(priority, out, pools);
    cut.more = cut.more || s.places.top(pools) == priority;
    count(s, 0, 1);
    return true;
  }
  void end_unit(SessionNode& s) noexcept {
    JobNode& job = jobs[s.job.value];
    if (job.unit_chunks == 1 && s.unit_left != 0) --job.unfinished;
    s.unit_left = 0;
  }
  // After a cut from the session that stands first at its rank, in a job whose units are longer
  // than a chunk, or some of whose sessions have one of a chunk by finish(). While a unit is left
  // its range is queued: nothing but its own chunks end it.
  void go_on_with_unit(uint32_t index, bool range_is_left, const ScheduledChunk& chunk) noexcept {
    SessionNode& s = sessions[index];
    const uint32_t unit = jobs[s.job.value].unit_chunks;
    if (unit == 1) {
      end_unit(s);
    } else if (!chunk.retransmit) {
      const uint32_t left = s.unit_left != 0 ? s.unit_left : unit;
      s.unit_left = range_is_left ? left - 1 : 0;
      s.unit_priority = chunk.priority;
    }
    place(index);
    if (s.linked && s.next != kNil) {
      rotate(jobs[turn_of(s.job)].sessions.at(s.linked_at, session_nodes), index);
    }
  }
};

Scheduler::Scheduler(const Limits& limits) : state_(std::make_unique<State>(limits)) {}
Scheduler::~Scheduler() = default;

Status Scheduler::add_job(JobSlot slot, uint32_t weight) {
  if (slot.value >= state_->max_jobs) {
    return Error(Errc::kLimit, "at most " + std::to_string(state_->max_jobs) + " jobs");
  }
  if (weight == 0 || weight > kMaxWeight) {
    return Error(Errc::kInvalidArgument,
                 "a job's weight is from 1 to " + std::to_string(kMaxWeight));
  }
  JobNode& job = state_->jobs[slot.value];
  if (job.present) return Error(Errc::kExists, "the job is scheduled already");
  const uint32_t life = job.life + 1;
  job = JobNode{};
  job.life = life;
  job.present = true;
  state_->round.open(slot.value, weight);
  return {};
}

Status Scheduler::share(JobSlot slot) {
  if (!state_->has(slot)) return Error(Errc::kNotFound, "shared ranges of a job that is not here");
  MappedMemory memory = SharedRanges::memory();
  if (!memory) return Error(Errc::kNoMemory, "no memory for the last ranges of priorities");
  state_->jobs[slot.value].shared = std::make_shared<SharedRanges>(std::move(memory));
  return {};
}

void Scheduler::remove_job(JobSlot slot) {
  if (!state_->has(slot)) return;
  JobNode& job = state_->jobs[slot.value];
  for (uint32_t i = 0; job.members > 0 && i < state_->sessions.size(); ++i) {
    if (state_->sessions[i].present && state_->sessions[i].job == slot)
      remove_session(SessionSlot(i));
  }
  job.present = false;
  job.shared.reset();
  state_->range_parts.change(job.ranges, 0);
  state_->count_leaves(job, 0, 0);
}

Status Scheduler::add_session(SessionSlot slot, JobSlot job) {
  if (slot.value >= state_->sessions.size()) {
    return Error(Errc::kLimit, "at most " + std::to_string(state_->sessions.size()) + " sessions");
  }
  if (!state_->has(job)) return Error(Errc::kNotFound, "session of a job that is not scheduled");
  SessionNode& session = state_->sessions[slot.value];
  if (session.present) return Error(Errc::kExists, "the session is scheduled already");
  session = SessionNode{};
  session.present = true;
  session.job = job;
  JobNode& its = state_->jobs[job.value];
  state_->count_leaves(its, its.leaves, its.members + 1);
  return {};
}

void Scheduler::set_unit(JobSlot slot, uint32_t chunks) {
  if (!state_->has(slot) || state_->jobs[slot.value].unit_chunks == chunks) return;
  state_->jobs[slot.value].unit_chunks = chunks;
  state_->jobs[slot.value].unfinished = 0;
  uint32_t left = state_->jobs[slot.value].members;
  for (uint32_t i = 0; left > 0 && i < state_->sessions.size(); ++i) {
    SessionNode& session = state_->sessions[i];
    if (!session.present || session.job != slot) continue;
    --left;
    session.unit_left = 0;
    session.last.range = nullptr;
    state_->place(i);
  }
}

bool Scheduler::finish(SessionSlot slot, const ChunkRange& range) noexcept {
  State& st = *state_;
  if (!st.has(slot) || range.priority == 0) return false;
  SessionNode& session = st.sessions[slot.value];
  JobNode& job = st.jobs[session.job.value];
  if (job.unit_chunks > 1 || session.unit_left != 0 || session.blocked ||
      !session.queue.begins_with(range, st.pools)) {
    return false;
  }
  session.unit_left = 1;
  session.unit_priority = range.priority;
  session.last.range = nullptr;
  ++job.unfinished;
  st.place(slot.value);
  return true;
}

void Scheduler::remove_session(SessionSlot slot) {
  if (!state_->has(slot)) return;
  SessionNode& session = state_->sessions[slot.value];
  if (session.linked) state_->unlink(slot.value);
  state_->end_unit(session);
  state_->count(session, 0, session.chunks);
  state_->count_shared(session, 0, session.shared_chunks);
  JobNode& job = state_->jobs[session.job.value];
  if (State::has_chunks(session)) {
    state_->removed.push_back({session.queue, session.places, job.shared, session.job, job.life});
  }
  session.present = false;
  state_->count_leaves(job, job.leaves, job.members - 1);
}

JobSlot Scheduler::job_of(SessionSlot slot) const noexcept {
  return state_->sessions[slot.value].job;
}

void Scheduler::leave_shared(SessionSlot slot) {
  if (!state_->has(slot) || state_->sessions[slot.value].places.empty()) return;
  SessionNode& session = state_->sessions[slot.value];
  const JobNode& job = state_->jobs[session.job.value];
  state_->removed.push_back({{}, session.places, job.shared, session.job, job.life});
  session.places = SharedPlaces();
  session.last.range = nullptr;
  state_->end_unit(session);
  state_->count_shared(session, 0, session.shared_chunks);
  state_->place(slot.value);
}

uint32_t Scheduler::drop_removed(uint32_t most) noexcept {
  uint32_t left = most;
  while (left > 0 && !state_->removed.empty()) {
    Removed& gone = state_->removed.back();
    gone.queue.drop(state_->pools, left);
    if (!gone.places.empty()) gone.places.drop(*gone.shared, state_->pools, left);
    JobNode& job = state_->jobs[gone.job.value];
    state_->settle(job.present && job.life == gone.life ? &job : nullptr);
    if (gone.queue.empty() && gone.places.empty()) state_->removed.pop_back();
  }
  return most - left;
}

bool Scheduler::admit(SessionSlot slot, const ChunkRange& range) noexcept {
  State& st = *state_;
  if (!st.has(slot) || range.chunks.count == 0) return true;
  SessionNode& session = st.sessions[slot.value];
  if (!session.queue.continue_last(range, st.pools)) return st.append(slot.value, range);
  st.count(session, range.chunks.count, 0);
  return true;
}

bool Scheduler::admit_all(JobSlot slot, std::span<const SessionSlot> sessions,
                          const ChunkRange& range) noexcept {
  State& st = *state_;
  if (!st.has(slot) || sessions.empty() || range.chunks.count == 0) return true;
  if (st.jobs[slot.value].shared == nullptr || !st.has_room_for(sessions.size())) return false;
  JobNode& job = st.jobs[slot.value];
  const SharedRanges::Appended at = job.shared->append(range, st.pools);
  for (const SessionSlot one : sessions) {
    SessionNode& session = st.sessions[one.value];
    session.shared_chunks += range.chunks.count;
    if (!session.places.stands_in(range.priority)) st.stand(one, at, range.priority);
  }
  if (st.stock() != st.settled) st.settle(&job);
  const uint64_t chunks = uint64_t{sessions.size()} * range.chunks.count;
  job.shared_chunks += chunks;
  st.chunks += chunks;
  return true;
}

bool Scheduler::readmit(SessionSlot slot, const ChunkRange& one_chunk) noexcept {
  State& st = *state_;
  if (!st.has(slot) || one_chunk.chunks.count == 0) return true;
  SessionNode& session = st.sessions[slot.value];
  session.last.range = nullptr;
  if (!session.queue.append_again(one_chunk, st.pools)) return false;
  st.settle(&st.jobs[session.job.value]);
  st.count(session, one_chunk.chunks.count, 0);
  st.place(slot.value);
  return true;
}

bool Scheduler::next(ScheduledChunk& out) noexcept {
  State& st = *state_;
  if (st.cut_again(out)) return true;
  st.last.first = nullptr;  // keeps_turn() is asked of the job alone that current() named last
  const uint32_t turn = st.round.current(
      [&st](uint32_t index) { return !st.jobs[index].sessions.empty() && !st.jobs[index].held; });
  if (turn == kNil) return false;
  PriorityTrie& trie = st.jobs[turn].sessions;
  const uint16_t rank = trie.top(st.session_nodes);
  PriorityList& list = trie.at(rank, st.session_nodes);
  const uint32_t index = list.head;
  SessionNode& session = st.sessions[index];
  const uint16_t priority = session.unit_left == 0 ? rank : session.unit_priority;
  out.session = SessionSlot(index);
  out.job = session.job;
  RangeQueue::Cut cut;
  PriorityList* place = nullptr;
  if (session.places.empty()) {
    cut = session.queue.cut(priority, out, st.pools);
    st.count(session, 0, 1);
  } else if (session.queue.empty() || !st.cut_own(session, priority, out, cut)) {
    place = session.places.cut(priority, out, *st.jobs[session.job.value].shared, st.pools, cut);
    st.count_shared(session, 0, 1);
  }
  if (cut.range == nullptr) st.settle(&st.jobs[session.job.value]);
  session.last.range = nullptr;
  const JobNode& job = st.jobs[session.job.value];
  if (job.unit_chunks > 1 || job.unfinished > 0) {
    st.go_on_with_unit(index, cut.range != nullptr, out);
  } else if (!cut.more) {
    st.place(index);
  } else {
    if (cut.range != nullptr) session.last = {cut.range, place, out};
    if (session.next != kNil) st.rotate(list, index);
    st.last = {&st.sessions[list.head], &list, turn};
  }
  return true;
}

void Scheduler::charge(JobSlot job, uint32_t bytes) noexcept {
  if (state_->has(job)) state_->round.charge(state_->turn_of(job), bytes);
}

void Scheduler::hold(JobSlot slot) noexcept {
  State& st = *state_;
  if (!st.has(slot) || st.jobs[slot.value].held || st.turns == Turns::kUrgency) return;
  st.jobs[slot.value].held = true;
  st.linked_sessions -= st.jobs[slot.value].linked;
  st.last.first = nullptr;
}

void Scheduler::go_on(JobSlot slot) noexcept {
  State& st = *state_;
  if (!st.has(slot) || !st.jobs[slot.value].held) return;
  st.jobs[slot.value].held = false;
  st.linked_sessions += st.jobs[slot.value].linked;
  if (st.jobs[slot.value].linked > 0) st.round.join(slot.value);
}

void Scheduler::block(SessionSlot slot) noexcept {
  if (!state_->has(slot)) return;
  state_->sessions[slot.value].blocked = true;
  state_->place(slot.value);
}

void Scheduler::unblock(SessionSlot slot) noexcept {
  if (!state_->has(slot)) return;
  state_->sessions[slot.value].blocked = false;
  state_->place(slot.value);
}

bool Scheduler::empty() const noexcept { return state_->chunks == 0; }
bool Scheduler::idle() const noexcept { return state_->linked_sessions == 0; }
uint64_t Scheduler::queued_chunks(JobSlot slot) const noexcept {
  if (!state_->has(slot)) return 0;
  const JobNode& job = state_->jobs[slot.value];
  return job.chunks + job.shared_chunks;
}
uint64_t Scheduler::queued_chunks(SessionSlot slot) const noexcept {
  if (!state_->has(slot)) return 0;
  const SessionNode& session = state_->sessions[slot.value];
  return session.chunks + session.shared_chunks;
}
uint32_t Scheduler::held_ranges(JobSlot slot) const noexcept {
  return state_->has(slot) ? state_->jobs[slot.value].ranges : 0;
}
uint32_t Scheduler::held_leaves(JobSlot slot) const noexcept {
  return state_->has(slot) ? state_->jobs[slot.value].leaves : 0;
}
bool Scheduler::has_part(JobSlot slot, uint32_t leaves, uint32_t reserve) const noexcept {
  const State& st = *state_;
  if (!st.has(slot)) return true;
  const JobNode& job = st.jobs[slot.value];
  const uint32_t kept = job.members - job.leaves_of_sessions();
  return st.range_parts.may_take(job.ranges, 1, st.pools.ranges.available(), reserve) &&
         st.leaf_parts.may_take(job.leaves_of_part(), leaves - std::min(leaves, kept),
                                st.free_leaves(), reserve);
}
uint32_t Scheduler::free_ranges() const noexcept { return state_->pools.ranges.available(); }
uint32_t Scheduler::free_leaves() const noexcept { return state_->free_leaves(); }
uint32_t Scheduler::unused_leaves() const noexcept { return state_->pools.free_leaves(); }

}  // namespace mercury
