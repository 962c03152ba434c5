#include "shim/exchange/gradient_exchange.h"

#include <utility>

#include "aggregator/frame/chunk_header.h"

namespace mercury {
namespace {

constexpr uint32_t kRangesPerPoll = Worker::kMostWaitingRanges;  // frames wait

SentTag tag_of(const ScheduledChunk& chunk, wire::FrameType type) noexcept {
  return {type, chunk.priority, chunk.key.tensor.value, chunk.key.round.value,
          chunk.key.chunk.value};
}
ChunkKey key_of(const SentTag& tag) noexcept {
  return {TensorIndex(tag.word0()), Round(tag.word1()), ChunkIndex(tag.word2())};
}

}  // namespace

GradientExchange::GradientExchange(const ExchangeConfig& config, Counters& counters,
                                   const PortMemory& port)
    : counters_(counters),
      sends_(config.sends),
      worker_(counters),
      server_({config.sends.scheduler.max_jobs, config.sum_bytes, config.sums_thread}, sends_,
              counters, events_, port),
      programs_(config.programs, counters, events_),
      bindings_(config.sends.scheduler.max_sessions),
      bound_to_(config.sends.scheduler.max_jobs, kNoSession),
      max_jobs_(config.sends.scheduler.max_jobs) {}

Taken GradientExchange::on_datagram(SessionSlot session, const wire::Header& header,
                                    std::span<const std::byte> payload, uint64_t now_ns) noexcept {
  Binding& binding = bindings_[session.value];
  if (binding.kind == Kind::kWorker && header.type == kPushFrame) {
    return server_.on_push(session, binding.worker, header, payload, now_ns);
  }
  if (binding.kind == Kind::kShard && header.type == kResultFrame) {
    return worker_.on_result(binding.job, binding.share, header, payload) ? Taken::kYes
                                                                          : Taken::kNo;
  }
  // The control plane has not bound the session yet, or the job is gone: the sender tries again
  // until its session is closed.
  return drop_unread(counters_, Counter::kDropNotOpen, header, payload) ? Taken::kLater
                                                                        : Taken::kNo;
}

bool GradientExchange::next(OutgoingDatagram& out) noexcept {
  ScheduledChunk chunk;
  looks_again_ = false;
  for (uint32_t looks = 0; sends_.scheduler().next(chunk); ++looks) {
    out.session = chunk.session;
    out.job = chunk.job;
    out.pin = nullptr;
    out.header.flags = 0;
    const Binding& binding = bindings_[chunk.session.value];
    const bool needed = binding.kind == Kind::kWorker ? server_.prepare(chunk, binding.worker, out)
                                                      : worker_.prepare(chunk, out);
    if (!needed) {
      // Whoever takes no sums, or comes back late, may have left behind all of a job's.
      looks_again_ = looks + 1 == kLooks;
      if (looks_again_) return false;
      continue;
    }
    out.tag = tag_of(chunk, out.header.type);
    return true;
  }
  return false;
}

void GradientExchange::on_acked(SessionSlot session, const SentTag& tag) noexcept {
  const Binding& binding = bindings_[session.value];
  if (binding.kind == Kind::kShard) worker_.on_acked(binding.job, key_of(tag));
}

void GradientExchange::on_lost(SessionSlot session, const SentTag& tag) noexcept {
  const Binding& binding = bindings_[session.value];
  const ChunkKey key = key_of(tag);
  // A sum is asked for when it leaves: whether somebody needs it still is known then.
  const bool needed = binding.kind == Kind::kWorker ||
                      (binding.kind == Kind::kShard && worker_.on_lost(binding.job, key));
  if (needed) sends_.send_again(session, range_of(key, tag.half_word()));
}

void GradientExchange::block(SessionSlot session) noexcept {
  if (bindings_[session.value].kind != Kind::kNone) sends_.scheduler().block(session);
}

void GradientExchange::unblock(SessionSlot session) noexcept {
  if (bindings_[session.value].kind != Kind::kNone) sends_.scheduler().unblock(session);
}

uint32_t GradientExchange::poll(uint64_t now_ns) noexcept {
  ColdSteps steps;
  uint32_t work = server_.poll(now_ns, steps);
  work += sends_.poll(now_ns, steps);
  // By turns where programs fill a pass, or leave too little room: else nothing would be pushed
  // again, and no job would end. What is due keeps its turn until something of it has found room.
  const bool due_first = due_first_;
  const size_t waiting = worker_.waiting_ranges();
  if (due_first) work += queue_due(now_ns, steps);
  if (!due_first || worker_.waiting_ranges() > waiting || !worker_.lacks_room()) {
    work += programs_.take_submissions(worker_, sends_, programs_.are_many() && frames_moved());
    due_first_ = !due_first && worker_.waiting_ranges() >= Worker::kMostWaitingRanges;
  }
  if (!due_first) {
    work += queue_due(now_ns, steps);
    due_first_ = due_first_ || worker_.lacks_room();
  }
  work += admit_ranges();
  work += programs_.deliver_completions(worker_);
  if (server_.awaits_nic()) {
    work += server_.drain(steps);
    count_jobs();
  }
  counters_.set(Gauge::kQueuedRanges, sends_.used_ranges());
  return work;
}

// Since the last call.
bool GradientExchange::frames_moved() noexcept {
  const uint64_t frames = counters_.get(Counter::kRxFrames) + counters_.get(Counter::kTxFrames);
  return std::exchange(frames_seen_, frames) != frames;
}

uint32_t GradientExchange::queue_due(uint64_t now_ns, ColdSteps& steps) {
  worker_.begin_turns();
  const size_t waiting = worker_.waiting_ranges();
  const uint32_t work = worker_.has_steps() ? end_jobs(steps) : 0;
  if (worker_.waiting_ranges() > waiting) worker_.begin_turns();  // then it is a release's turn
  if (now_ns >= worker_.release_due_ns()) worker_.release(now_ns);
  return work;
}

uint32_t GradientExchange::end_jobs(ColdSteps& steps) {
  const uint32_t most = steps.part();
  uint32_t looks = most;
  JobSlot gone;
  while (worker_.take_removed(looks, gone)) {
    --worker_jobs_;
    count_jobs();
    events_.emplace_back(event::JobRemoved{gone});
  }
  steps.took(most - looks);
  return most - looks + 1;
}

// Else its session has closed, and the slot may be another job's, or its job has ended.
bool GradientExchange::may_go(const WorkerRange& range) const noexcept {
  const Binding& binding = bindings_[range.session.value];
  return binding.kind == Kind::kShard && binding.job == range.job && worker_.is_wanted(range);
}

// False: the scheduler has no room for it.
bool GradientExchange::admit(const WorkerRange& range) noexcept {
  return !may_go(range) || sends_.admit(range.session, range.range);
}

void GradientExchange::finish_rows() noexcept {
  WorkerRow row;
  WorkerRange range;
  while (worker_.take_row(row)) {
    for (size_t turn = 0; row.rest > 0 && worker_.range_of_row(row, turn, range); ++turn) {
      row.rest -= may_go(range) && sends_.scheduler().finish(range.session, range.range);
    }
  }
}

uint32_t GradientExchange::admit_ranges() noexcept {
  uint32_t admitted = worker_.holds_up_any() ? admit_held_up() : 0;
  if (!worker_.has_ranges()) return admitted;
  finish_rows();
  WorkerRange range;
  for (uint32_t looks = kRangesPerPoll; looks > 0 && worker_.take_range(range); --looks) {
    if (worker_.held_up(range.job) == nullptr && admit(range)) {
      ++admitted;
    } else if (worker_.is_wanted(range)) {
      worker_.hold_up(range);
    }
  }
  return admitted;
}

uint32_t GradientExchange::admit_held_up() noexcept {
  uint32_t admitted = 0;
  for (uint16_t slot = 0; slot < max_jobs_; ++slot) {
    const JobSlot job(slot);
    for (const WorkerRange* range = worker_.held_up(job);
         range != nullptr && admitted < kRangesPerPoll && admit(*range);
         range = worker_.held_up(job)) {
      worker_.drop_held_up(job);
      ++admitted;
    }
  }
  return admitted;
}

ExchangeUsage GradientExchange::usage() const noexcept {
  ExchangeUsage usage;
  usage.aggregator_bytes = server_.memory_bytes();
  usage.ranges = sends_.used_ranges();
  usage.lost_chunks = sends_.waiting();
  for (const Binding& binding : bindings_) usage.sessions += binding.kind != Kind::kNone;
  usage.jobs = server_.job_count();
  usage.completions = programs_.waiting_completions();
  return usage;
}

}  // namespace mercury
