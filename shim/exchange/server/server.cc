#include "shim/exchange/server/server.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "aggregator/frame/chunk_header.h"
#include "scheduler/terms/part.h"

namespace mercury {
namespace {

// So that many chunks whose time is up at once, or that are looked at for it, do not keep frames
// waiting.
constexpr uint32_t kOverduePerPoll = 64;
constexpr uint32_t kHopelessPerPoll = 16;  // events of rounds that wait in vain

// The header has round, then tensor; were this their order here, too, the compiler could make one
// load of eight bytes of both, which waits for the two stores that have just written the header.
Contribution contribution_of(const WorkerPeer& worker, const wire::Header& header,
                             std::span<const std::byte> payload, uint64_t now_ns) noexcept {
  static_assert(offsetof(Contribution, tensor) < offsetof(Contribution, round),
                "the other order than the header's: no load of two fields at once");
  const ChunkHeader chunk = ChunkHeader::of(header);
  return {.job = worker.job,
          .worker = worker.rank,
          .incarnation = worker.incarnation,
          .tensor = chunk.tensor,
          .round = chunk.round,
          .chunk = chunk.chunk,
          .payload_crc = header.payload_crc,
          .elements = payload,
          .in_part = (header.flags & kFlagInPart) != 0,
          .priority = chunk.priority,
          .now_ns = now_ns};
}

// Read again from the header: kept meanwhile, its words would cost more.
ChunkKey key_of(const Pushed& pushed, const wire::Header& header) noexcept {
  const ChunkHeader chunk = ChunkHeader::of(header);
  return {pushed.tensor, chunk.round, chunk.chunk};
}

}  // namespace

Server::Server(const Limits& limits, SendQueue& sends, Counters& counters,
               std::deque<Event>& events, const PortMemory& port)
    : sends_(sends),
      counters_(counters),
      events_(events),
      aggregator_(port, limits.sum_bytes, limits.sums_thread),
      jobs_(limits.max_jobs),
      gate_changes_(limits.max_jobs) {}

Taken Server::on_push(SessionSlot session, const WorkerPeer& worker, const wire::Header& header,
                      std::span<const std::byte> payload, uint64_t now_ns) noexcept {
  const ServerJob& job = jobs_[worker.job.value];
  const ChunkHeader chunk = ChunkHeader::of(header);
  if (chunk.sender != worker.rank.value || chunk.incarnation != worker.incarnation) {
    const Counter why =
        chunk.sender != worker.rank.value ? Counter::kDropWorkerRank : Counter::kDropIncarnation;
    return drop_unread(counters_, why, header, payload) ? Taken::kYes : Taken::kNo;
  }
  if (sends_.refuses(worker.job, job.takers)) {
    return drop_unread(counters_, Counter::kDropSlotBusy, header, payload) ? Taken::kLater
                                                                           : Taken::kNo;
  }
  const Pushed pushed = aggregator_.push(contribution_of(worker, header, payload, now_ns));
  if (pushed.verdict == PushVerdict::kCompleted) {
    on_complete(job, key_of(pushed, header), header.priority);
  }
  return conclude(pushed, job, session, worker, header, payload);
}

Taken Server::conclude(const Pushed& pushed, const ServerJob& job, SessionSlot session,
                       const WorkerPeer& worker, const wire::Header& header,
                       std::span<const std::byte> payload) noexcept {
  const auto drop = [this](Counter counter, Taken taken) {
    counters_.add(counter);
    return taken;
  };
  const auto unread = [&](Counter counter, Taken intact = Taken::kYes) {
    return drop_unread(counters_, counter, header, payload) ? intact : Taken::kNo;
  };
  switch (pushed.verdict) {
    case PushVerdict::kCompleted:
      return drop(Counter::kPushChunks, job.spec.workers > 1 ? Taken::kLast : Taken::kYes);
    case PushVerdict::kAdded:
      return drop(Counter::kPushChunks, Taken::kYes);
    case PushVerdict::kDuplicate:
      return unread(Counter::kDropContributedTwice);
    case PushVerdict::kOldRound: {
      const Taken taken = unread(Counter::kDropRoundOld);
      if (taken == Taken::kYes)
        answer_late(worker, session, key_of(pushed, header), header.priority);
      return taken;
    }
    case PushVerdict::kCorrupt:
      return drop(Counter::kDropPayloadCrc, Taken::kNo);
    case PushVerdict::kSlotBusy:
      return unread(Counter::kDropSlotBusy, Taken::kLater);
    case PushVerdict::kNewRound:
      return unread(Counter::kDropRoundNew, Taken::kLater);
    case PushVerdict::kUnknownTensor:  // its AddTensor may be on the way: the worker tries again
      return unread(Counter::kDropUnknownTensor, Taken::kLater);
    case PushVerdict::kBadChunk:
      return unread(Counter::kDropChunkRange);
    case PushVerdict::kBadWorker:
      return unread(Counter::kDropWorkerRank);
    case PushVerdict::kBadIncarnation:
      return unread(Counter::kDropIncarnation);
  }
  return Taken::kYes;
}

void Server::count_partial(const ServerJob& job, const ChunkKey& key) noexcept {
  ChunkResult result;
  const bool complete = aggregator_.result(job.spec.job, key, result);
  if (complete && result.partial) counters_.add(Counter::kQuorumResults);
}

// The sum of a chunk is complete: it goes to every worker.
// Flattened: by calls, what a sum is put into the queue by costs a fourth more.
[[gnu::flatten]] void Server::on_complete(const ServerJob& job, const ChunkKey& key,
                                          uint16_t pushed_at) noexcept {
  if (job.spec.terms.quorum > 0) count_partial(job, key);
  const ChunkRange chunk = range_of(key, answer_priority(job, pushed_at));
  if (changes_gates_) [[unlikely]]
    gate_changes_[job.spec.job.value].note_complete(key);
  if (job.gate) return pass_gate(job, chunk);
  answer_all(job, chunk);
}

void Server::pass_gate(const ServerJob& job, const ChunkRange& chunk) noexcept {
  job.gate->complete(chunk, [&](const ChunkRange& range) { answer_all(job, range); });
}

void Server::answer_all(const ServerJob& job, const ChunkRange& range) noexcept {
  // Who is not among them has gone: its job is about to fail, or goes on without it.
  if (job.workers.size() > 1) return sends_.answer_all(job.spec.job, job.answered, range);
  for (const SessionSlot session : job.answered) sends_.answer(session, range);
}

// A worker that took a lost one's place pushes the round that its tensor is in, and one that a
// quorum did without is late: some chunks may have been complete before.
void Server::answer_late(const WorkerPeer& worker, SessionSlot session, const ChunkKey& key,
                         uint16_t priority) noexcept {
  const ServerJob& job = jobs_[worker.job.value];
  if (!worker.catches_up && job.spec.terms.quorum == 0) return;
  ChunkResult result;
  if (!aggregator_.result(worker.job, key, result)) return;
  sends_.send_again(session, range_of(key, answer_priority(job, priority)));
}

// Whether some of the chunk is in the worker's part of the tensor.
bool Server::is_in_part(const WorkerPeer& worker, const ChunkKey& key) const noexcept {
  const AggregationTensor& tensor = aggregator_.tensor(worker.job, key.tensor);
  return part_of(tensor.numel, jobs_[worker.job.value].spec.workers, worker.rank)
      .chunks(tensor.chunk_elems)
      .contains(key.chunk);
}

// Flattened, so that what result() says of a sum stays in registers.
[[gnu::flatten]] bool Server::prepare(const ScheduledChunk& chunk, const WorkerPeer& worker,
                                      OutgoingDatagram& out) noexcept {
  ChunkResult result;
  if (!aggregator_.result(chunk.job, chunk.key, result)) return false;
  out.header.type = kResultFrame;
  ChunkHeader{chunk.key.round, result.tensor,       chunk.key.chunk,
              chunk.priority,  result.contributors, jobs_[chunk.job.value].spec.incarnation}
      .write(out.header);
  if (result.partial) out.header.flags |= kFlagPartial;
  out.header.payload_crc = result.crc;
  // Pointer and size, as they were just written: one wide load of both would wait for the stores.
  out.payload = {result.elements.data(), result.elements.size()};
  out.pin = result.pin;
  if (result.in_parts && !is_in_part(worker, chunk.key)) [[unlikely]] {
    out.payload = {};
    out.pin = nullptr;
  }
  return true;
}

uint32_t Server::poll(uint64_t now_ns, ColdSteps& steps) noexcept {
  uint32_t work = 0;
  if (walks_) [[unlikely]]
    work = walk_on(steps);
  work += complete_overdue(now_ns);
  work += report_stalls(now_ns);
  if (aggregator_.seeks_hopeless()) work += report_hopeless();
  return work;
}

uint32_t Server::walk_on(ColdSteps& steps) {
  uint32_t work = aggregator_.is_replacing() ? report_replaced(steps) : 0;
  if (changes_gates_) {
    const uint32_t changed = change_gates(steps.part());
    steps.took(changed);
    work += changed;
  }
  walks_ = changes_gates_ || aggregator_.is_replacing();
  return work;
}

uint32_t Server::report_replaced(ColdSteps& steps) {
  const uint32_t most = steps.part();
  uint32_t looks = most;
  ReplacedWorker done;
  while (aggregator_.take_replaced(looks, done)) {
    if (!has_job(done.job)) continue;
    events_.emplace_back(
        event::WorkerReplaced{done.job, done.worker, done.incarnation, std::move(done.rounds)});
  }
  steps.took(most - looks);
  return most - looks + 1;
}

uint32_t Server::complete_overdue(uint64_t now_ns) noexcept {
  uint32_t looks = kOverduePerPoll;
  OverdueChunk due;
  while (aggregator_.take_overdue(now_ns, looks, due, that_may_answer())) {
    const ServerJob& job = jobs_[due.job.value];
    on_complete(job, due.key, due.priority);
  }
  return kOverduePerPoll - looks;
}

uint32_t Server::report_stalls(uint64_t now_ns) noexcept {
  if (now_ns < aggregator_.next_stall_ns()) return 0;
  uint32_t looks = kOverduePerPoll;
  StalledChunk stalled;
  if (aggregator_.take_stalled(now_ns, looks, stalled) && has_job(stalled.job)) {
    events_.emplace_back(
        event::WorkersStalled{stalled.job, stalled.at, stalled.open_ns, stalled.awaited});
  }
  return kOverduePerPoll - looks;
}

uint32_t Server::report_hopeless() noexcept {
  uint32_t looks = kOverduePerPoll;
  HopelessRound found;
  // What is left stays listed for the next poll.
  for (uint32_t told = 0; told < kHopelessPerPoll && aggregator_.take_hopeless(looks, found);
       ++told) {
    if (!has_job(found.job)) continue;
    events_.emplace_back(event::RoundHopeless{found.job, found.at, found.missing});
  }
  return kOverduePerPoll - looks + 1;
}

uint64_t Server::next_deadline_ns() const noexcept {
  if (walks_ || drains_on_ || aggregator_.seeks_hopeless()) return 0;
  return std::min(aggregator_.next_overdue_ns(that_may_answer()), aggregator_.next_stall_ns());
}

uint32_t Server::drain(ColdSteps& steps) {
  uint32_t gone = 0;
  const uint32_t most = steps.part();
  uint32_t looks = most;
  for (size_t i = 0; i < draining_.size();) {
    const JobSlot job = draining_[i];
    if (!aggregator_.drained(job, looks) || !aggregator_.give_back(job, looks)) {
      ++i;
      continue;
    }
    aggregator_.remove_job(job);
    events_.emplace_back(event::JobRemoved{job});
    draining_.erase(draining_.begin() + static_cast<std::ptrdiff_t>(i));
    ++gone;
  }
  steps.took(most - looks);
  count_sums();
  drains_on_ = looks == 0 && !draining_.empty();
  return gone + (drains_on_ ? 1 : 0);
}

}  // namespace mercury
