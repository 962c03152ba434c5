#include "scheduler/scheduler.h"

#include <algorithm>
#include <string>
#include <vector>

#include "scheduler/priority_trie.h"

namespace mercury {
namespace {

struct RangeNode {
  ChunkRange range;
  uint32_t next = kNil;
};

struct SessionNode {
  PriorityTrie fresh;  // ranges in order of admission
  PriorityTrie again;  // retransmissions: before fresh ones of the same priority
  uint64_t chunks = 0;
  JobSlot job;
  bool present = false;
  bool blocked = false;
  bool linked = false;  // in its job's trie, at priority linked_at
  uint16_t linked_at = 0;
  uint32_t next = kNil;
  uint32_t prev = kNil;
};

struct JobNode {
  PriorityTrie sessions;  // those that may send, by their most urgent priority
  uint64_t chunks = 0;
  int64_t deficit_bytes = 0;
  uint32_t weight = 1;
  bool present = false;
  bool active = false;  // in the round: some session may send
  uint32_t next = kNil;
  uint32_t prev = kNil;
};

}  // namespace

struct Scheduler::State {
  explicit State(const Limits& l)
      : limits(l),
        ranges(l.max_ranges),
        // A range needs a leaf of its own only if no other range of its session is among the same
        // 64 priorities: a quarter of the ranges, and one leaf for each session, is far more than
        // any model needs; when it is not, admit() says so and nothing is lost.
        range_nodes(l.max_ranges / 8 + l.max_sessions, l.max_ranges / 4 + l.max_sessions),
        // One list a session at the most: these never run out.
        session_nodes(l.max_sessions, l.max_sessions),
        sessions(l.max_sessions),
        jobs(l.max_jobs) {}

  const Limits limits;
  NodePool<RangeNode> ranges;
  TriePools range_nodes;
  TriePools session_nodes;
  std::vector<SessionNode> sessions;
  std::vector<JobNode> jobs;
  uint32_t round_head = kNil;  // jobs with something to send, served from the head
  uint32_t round_tail = kNil;
  uint64_t chunks = 0;

  bool has(SessionSlot slot) const noexcept {
    return slot.value < sessions.size() && sessions[slot.value].present;
  }
  bool has(JobSlot slot) const noexcept {
    return slot.value < jobs.size() && jobs[slot.value].present;
  }
  bool empty(const SessionNode& s) const noexcept { return s.fresh.empty() && s.again.empty(); }
  // Whether the session's most urgent chunk is a retransmission; `priority` is that chunk's.
  bool top(const SessionNode& s, uint16_t& priority) const noexcept {
    if (s.again.empty()) {
      priority = s.fresh.top(range_nodes);
      return false;
    }
    priority = s.again.top(range_nodes);
    if (s.fresh.empty()) return true;
    const uint16_t fresh = s.fresh.top(range_nodes);
    if (fresh >= priority) return true;
    priority = fresh;
    return false;
  }

  void join_round(uint32_t index) noexcept {
    JobNode& job = jobs[index];
    job.active = true;
    job.next = kNil;
    job.prev = round_tail;
    (round_tail == kNil ? round_head : jobs[round_tail].next) = index;
    round_tail = index;
  }
  void leave_round(uint32_t index) noexcept {
    JobNode& job = jobs[index];
    (job.prev == kNil ? round_head : jobs[job.prev].next) = job.next;
    (job.next == kNil ? round_tail : jobs[job.next].prev) = job.prev;
    job.active = false;
    // Credit is not saved up while there is nothing to send; debt is kept.
    job.deficit_bytes = std::min<int64_t>(job.deficit_bytes, 0);
  }

  void link(uint32_t index) noexcept {
    SessionNode& s = sessions[index];
    JobNode& job = jobs[s.job.value];
    top(s, s.linked_at);
    PriorityList& list = *job.sessions.ensure(s.linked_at, session_nodes);
    s.next = kNil;
    s.prev = list.tail;
    (list.tail == kNil ? list.head : sessions[list.tail].next) = index;
    list.tail = index;
    s.linked = true;
  }
  void unlink(uint32_t index) noexcept {
    SessionNode& s = sessions[index];
    JobNode& job = jobs[s.job.value];
    PriorityList& list = job.sessions.at(s.linked_at, session_nodes);
    (s.prev == kNil ? list.head : sessions[s.prev].next) = s.next;
    (s.next == kNil ? list.tail : sessions[s.next].prev) = s.prev;
    if (list.head == kNil) job.sessions.erase(s.linked_at, session_nodes);
    s.linked = false;
  }
  // A job is in the round while a session of it may send.
  void update_round(uint32_t index) noexcept {
    const bool wanted = !jobs[index].sessions.empty();
    if (wanted && !jobs[index].active) join_round(index);
    if (!wanted && jobs[index].active) leave_round(index);
  }
  // After a change of what the session holds: where it stands in its job follows.
  void place(uint32_t index) noexcept {
    SessionNode& s = sessions[index];
    const bool wanted = !s.blocked && !empty(s);
    uint16_t priority = 0;
    if (wanted) top(s, priority);
    if (s.linked && (!wanted || priority != s.linked_at)) unlink(index);
    if (wanted && !s.linked) link(index);
    update_round(s.job.value);
  }

  bool put(uint32_t index, PriorityTrie& trie, const ChunkRange& range) noexcept {
    SessionNode& s = sessions[index];
    PriorityList* list = trie.ensure(range.priority, range_nodes);
    if (list == nullptr) return false;
    if (list->tail != kNil) {
      ChunkRange& last = ranges[list->tail].range;
      if (last.tensor == range.tensor && last.round == range.round &&
          last.first_chunk + last.chunk_count == range.first_chunk) {
        last.chunk_count += range.chunk_count;
        count(s, range.chunk_count);
        return true;
      }
    }
    const uint32_t node = ranges.take();
    if (node == kNil) {
      if (list->head == kNil) trie.erase(range.priority, range_nodes);
      return false;
    }
    ranges[node] = {range, kNil};
    (list->tail == kNil ? list->head : ranges[list->tail].next) = node;
    list->tail = node;
    count(s, range.chunk_count);
    place(index);
    return true;
  }
  void count(SessionNode& s, int64_t change) noexcept {
    s.chunks += static_cast<uint64_t>(change);
    jobs[s.job.value].chunks += static_cast<uint64_t>(change);
    chunks += static_cast<uint64_t>(change);
  }

  // The next chunk of a session that has one.
  void cut(uint32_t index, ScheduledChunk& out) noexcept {
    SessionNode& s = sessions[index];
    uint16_t priority = 0;
    const bool again = top(s, priority);
    PriorityTrie& trie = again ? s.again : s.fresh;
    PriorityList& list = trie.at(priority, range_nodes);
    const uint32_t node = list.head;
    ChunkRange& range = ranges[node].range;
    out = {SessionSlot(index), s.job,    range.tensor, range.round,
           range.first_chunk,  priority, again};
    ++range.first_chunk;
    if (--range.chunk_count == 0) {
      list.head = ranges[node].next;
      if (list.head == kNil)
        trie.erase(priority, range_nodes);
      else if (list.tail == node)
        list.tail = kNil;
      ranges.give(node);
    }
    count(s, -1);
  }

  void clear(SessionNode& s, PriorityTrie& trie) noexcept {
    while (!trie.empty()) {
      const uint16_t priority = trie.top(range_nodes);
      for (uint32_t node = trie.at(priority, range_nodes).head; node != kNil;) {
        const uint32_t next = ranges[node].next;
        count(s, -int64_t{ranges[node].range.chunk_count});
        ranges.give(node);
        node = next;
      }
      trie.erase(priority, range_nodes);
    }
  }
};

Scheduler::Scheduler(const Limits& limits) : state_(std::make_unique<State>(limits)) {}
Scheduler::~Scheduler() = default;

Status Scheduler::add_job(JobSlot slot, uint32_t weight) {
  if (slot.value >= state_->jobs.size()) {
    return Error(Errc::kLimit, "at most " + std::to_string(state_->jobs.size()) + " jobs");
  }
  if (weight == 0) return Error(Errc::kInvalidArgument, "a job's weight is at least 1");
  JobNode& job = state_->jobs[slot.value];
  if (job.present) return Error(Errc::kExists, "the job is scheduled already");
  job = JobNode{};
  job.present = true;
  job.weight = weight;
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
  SessionNode& session = state_->sessions[slot.value];
  if (session.linked) state_->unlink(slot.value);
  state_->update_round(session.job.value);
  state_->clear(session, session.fresh);
  state_->clear(session, session.again);
  session.present = false;
}

bool Scheduler::admit(SessionSlot slot, const ChunkRange& range) noexcept {
  if (!state_->has(slot) || range.chunk_count == 0) return true;
  return state_->put(slot.value, state_->sessions[slot.value].fresh, range);
}

bool Scheduler::readmit(SessionSlot slot, const ChunkRange& one_chunk) noexcept {
  if (!state_->has(slot) || one_chunk.chunk_count == 0) return true;
  return state_->put(slot.value, state_->sessions[slot.value].again, one_chunk);
}

bool Scheduler::next(ScheduledChunk& out) noexcept {
  State& st = *state_;
  if (st.round_head == kNil) return false;
  // Deficit round robin: the job at the head sends until its account is empty, then goes to the end
  // of the round with a new allowance.
  while (st.jobs[st.round_head].deficit_bytes <= 0) {
    const uint32_t index = st.round_head;
    JobNode& job = st.jobs[index];
    const int64_t account = job.deficit_bytes + int64_t{st.limits.quantum_bytes} * job.weight;
    st.leave_round(index);
    st.join_round(index);
    job.deficit_bytes = account;
  }
  const uint32_t job_index = st.round_head;
  JobNode& job = st.jobs[job_index];
  const uint16_t priority = job.sessions.top(st.session_nodes);
  const uint32_t session = job.sessions.at(priority, st.session_nodes).head;
  st.cut(session, out);
  // To the end of the list of the priority that is its most urgent now.
  st.unlink(session);
  if (!st.empty(st.sessions[session])) st.link(session);
  st.update_round(job_index);
  return true;
}

void Scheduler::charge(JobSlot job, uint32_t bytes) noexcept {
  if (state_->has(job)) state_->jobs[job.value].deficit_bytes -= bytes;
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
bool Scheduler::idle() const noexcept { return state_->round_head == kNil; }
uint64_t Scheduler::queued_chunks(JobSlot job) const noexcept {
  return state_->has(job) ? state_->jobs[job.value].chunks : 0;
}
uint64_t Scheduler::queued_chunks(SessionSlot session) const noexcept {
  return state_->has(session) ? state_->sessions[session.value].chunks : 0;
}
uint32_t Scheduler::free_ranges() const noexcept { return state_->ranges.available(); }

}  // namespace mercury
