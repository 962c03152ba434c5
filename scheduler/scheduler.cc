#include "scheduler/scheduler.h"

#include <string>
#include <vector>

#include "scheduler/deficit_round.h"
#include "scheduler/priority_trie.h"
#include "scheduler/range_queue.h"

namespace mercury {
namespace {

struct SessionNode {
  uint64_t chunks = 0;
  RangeQueue queue;
  uint32_t next = kNil;  // in its job's list at priority linked_at
  uint32_t prev = kNil;
  JobSlot job;
  uint16_t linked_at = 0;
  bool present = false;
  bool blocked = false;
  bool linked = false;  // it may send, and its job knows
};
static_assert(sizeof(SessionNode) <= 104, "an idle session holds nothing but this");

struct JobNode {
  PriorityTrie sessions;  // those that may send, by their most urgent priority
  uint64_t chunks = 0;
  bool present = false;
};

// Where the last chunk was cut. As long as nothing else changes, the next one is cut there too
// without the dozen lookups of the tries, each of which waits for the one before.
struct LastCut {
  RangeNode* range = nullptr;  // of a session that is alone at its priority; null: look it up
  SessionNode* session = nullptr;
  ScheduledChunk chunk;
};

}  // namespace

struct Scheduler::State {
  explicit State(const Limits& limits)
      : pools(limits.max_ranges, limits.max_sessions),
        // A linked session stands in one list: these never run out.
        session_nodes(limits.max_sessions, limits.max_sessions),
        sessions(limits.max_sessions),
        jobs(limits.max_jobs),
        round(limits.max_jobs, limits.quantum_bytes) {}

  RangePools pools;
  TriePools session_nodes;
  std::vector<SessionNode> sessions;
  std::vector<JobNode> jobs;
  DeficitRound round;
  uint64_t chunks = 0;
  uint32_t linked_sessions = 0;
  LastCut last;

  bool has(SessionSlot slot) const noexcept {
    return slot.value < sessions.size() && sessions[slot.value].present;
  }
  bool has(JobSlot slot) const noexcept {
    return slot.value < jobs.size() && jobs[slot.value].present;
  }

  // Puts a session that may send at the end of the list of its most urgent priority.
  void link(uint32_t index) noexcept {
    SessionNode& s = sessions[index];
    s.linked_at = s.queue.top(pools);
    PriorityList& list = *jobs[s.job.value].sessions.ensure(s.linked_at, session_nodes);
    s.next = kNil;
    s.prev = list.tail;
    (list.tail == kNil ? list.head : sessions[list.tail].next) = index;
    list.tail = index;
    s.linked = true;
    ++linked_sessions;
    round.join(s.job.value);
  }
  void unlink(uint32_t index) noexcept {
    SessionNode& s = sessions[index];
    PriorityTrie& trie = jobs[s.job.value].sessions;
    PriorityList& list = trie.at(s.linked_at, session_nodes);
    (s.prev == kNil ? list.head : sessions[s.prev].next) = s.next;
    (s.next == kNil ? list.tail : sessions[s.next].prev) = s.prev;
    if (list.head == kNil) trie.erase(s.linked_at, session_nodes);
    s.linked = false;
    --linked_sessions;
  }
  // To the end of the list where it comes first, before others.
  void rotate(uint32_t index) noexcept {
    SessionNode& s = sessions[index];
    PriorityList& list = jobs[s.job.value].sessions.at(s.linked_at, session_nodes);
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
    const bool wanted = !s.blocked && !s.queue.empty();
    if (s.linked && (!wanted || s.queue.top(pools) != s.linked_at)) unlink(index);
    if (wanted && !s.linked) link(index);
  }
  void count(SessionNode& s, uint64_t added, uint64_t taken) noexcept {
    s.chunks += added - taken;
    jobs[s.job.value].chunks += added - taken;
    chunks += added - taken;
  }
  bool cut_again(ScheduledChunk& out) noexcept {
    if (last.range == nullptr || last.range->chunk_count < 2 ||
        !round.keeps_turn(last.chunk.job.value)) {
      return false;
    }
    out = last.chunk;
    out.chunk = last.range->first_chunk++;
    --last.range->chunk_count;
    count(*last.session, 0, 1);
    return true;
  }
};

Scheduler::Scheduler(const Limits& limits) : state_(std::make_unique<State>(limits)) {}
Scheduler::~Scheduler() = default;

Status Scheduler::add_job(JobSlot slot, uint32_t weight) {
  if (slot.value >= state_->jobs.size()) {
    return Error(Errc::kLimit, "at most " + std::to_string(state_->jobs.size()) + " jobs");
  }
  if (weight == 0 || weight > kMaxWeight) {
    return Error(Errc::kInvalidArgument,
                 "a job's weight is from 1 to " + std::to_string(kMaxWeight));
  }
  JobNode& job = state_->jobs[slot.value];
  if (job.present) return Error(Errc::kExists, "the job is scheduled already");
  job = JobNode{};
  job.present = true;
  state_->round.open(slot.value, weight);
  return {};
}

void Scheduler::remove_job(JobSlot slot) {
  if (!state_->has(slot)) return;
  for (uint32_t i = 0; i < state_->sessions.size(); ++i) {
    if (state_->sessions[i].present && state_->sessions[i].job == slot)
      remove_session(SessionSlot(i));
  }
  state_->jobs[slot.value].present = false;
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
  return {};
}

void Scheduler::remove_session(SessionSlot slot) {
  if (!state_->has(slot)) return;
  state_->last.range = nullptr;
  SessionNode& session = state_->sessions[slot.value];
  if (session.linked) state_->unlink(slot.value);
  state_->count(session, 0, session.queue.clear(state_->pools));
  session.present = false;
}

bool Scheduler::admit(SessionSlot slot, const ChunkRange& range) noexcept {
  State& st = *state_;
  if (!st.has(slot) || range.chunk_count == 0) return true;
  SessionNode& session = st.sessions[slot.value];
  const RangeQueue::Appended appended = session.queue.append(range, st.pools);
  if (appended == RangeQueue::Appended::kNot) return false;
  st.count(session, range.chunk_count, 0);
  if (appended == RangeQueue::Appended::kNew) {
    st.last.range = nullptr;
    st.place(slot.value);
  }
  return true;
}

bool Scheduler::readmit(SessionSlot slot, const ChunkRange& one_chunk) noexcept {
  State& st = *state_;
  if (!st.has(slot) || one_chunk.chunk_count == 0) return true;
  SessionNode& session = st.sessions[slot.value];
  st.last.range = nullptr;
  if (!session.queue.append_again(one_chunk, st.pools)) return false;
  st.count(session, one_chunk.chunk_count, 0);
  st.place(slot.value);
  return true;
}

bool Scheduler::next(ScheduledChunk& out) noexcept {
  State& st = *state_;
  if (st.cut_again(out)) return true;
  st.last.range = nullptr;
  const uint32_t job_index =
      st.round.current([&st](uint32_t index) { return !st.jobs[index].sessions.empty(); });
  if (job_index == kNil) return false;
  PriorityTrie& trie = st.jobs[job_index].sessions;
  const uint16_t priority = trie.top(st.session_nodes);
  const uint32_t index = trie.at(priority, st.session_nodes).head;
  SessionNode& session = st.sessions[index];
  out.session = SessionSlot(index);
  out.job = session.job;
  const auto [more, range] = session.queue.cut(priority, out, st.pools);
  st.count(session, 0, 1);
  if (!more) {
    st.place(index);
  } else if (session.next == kNil) {
    st.last = {range, &session, out};
  } else {
    st.rotate(index);
  }
  return true;
}

void Scheduler::charge(JobSlot job, uint32_t bytes) noexcept {
  if (state_->has(job)) state_->round.charge(job.value, bytes);
}

void Scheduler::block(SessionSlot slot) noexcept {
  if (!state_->has(slot)) return;
  state_->last.range = nullptr;
  state_->sessions[slot.value].blocked = true;
  state_->place(slot.value);
}

void Scheduler::unblock(SessionSlot slot) noexcept {
  if (!state_->has(slot)) return;
  state_->last.range = nullptr;
  state_->sessions[slot.value].blocked = false;
  state_->place(slot.value);
}

bool Scheduler::empty() const noexcept { return state_->chunks == 0; }
bool Scheduler::idle() const noexcept { return state_->linked_sessions == 0; }
uint64_t Scheduler::queued_chunks(JobSlot job) const noexcept {
  return state_->has(job) ? state_->jobs[job.value].chunks : 0;
}
uint64_t Scheduler::queued_chunks(SessionSlot session) const noexcept {
  return state_->has(session) ? state_->sessions[session.value].chunks : 0;
}
uint32_t Scheduler::free_ranges() const noexcept { return state_->pools.ranges.available(); }

}  // namespace mercury
