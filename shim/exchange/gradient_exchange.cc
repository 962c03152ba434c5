#include "shim/exchange/gradient_exchange.h"

#include <algorithm>
#include <cstddef>

namespace mercury {
namespace {

// So that many chunks whose time is up at once, or that are looked at for it, do not keep frames
// waiting.
constexpr uint32_t kOverduePerPoll = 64;
constexpr uint32_t kHopelessPerPoll = 16;  // events of rounds that wait in vain
// Chunks of closed jobs: a large model has hundreds of thousands, and other jobs' frames wait.
constexpr uint32_t kDrainedPerPoll = 1024;

}  // namespace

GradientExchange::GradientExchange(const ExchangeConfig& config, Counters& counters,
                                   Aggregator::PinBusy pin_busy, void* pin_context)
    : config_(config),
      counters_(counters),
      scheduler_(config.scheduler),
      aggregator_(pin_busy, pin_context, config.sum_bytes),
      worker_(counters),
      bindings_(config.scheduler.max_sessions),
      server_jobs_(config.scheduler.max_jobs) {}

Taken GradientExchange::on_chunk(SessionSlot session, const wire::Header& header,
                                 std::span<const std::byte> payload, uint64_t now_ns) noexcept {
  const Binding& binding = bindings_[session.value];
  if (binding.kind == Kind::kWorker && header.type == wire::FrameType::kPush) {
    return on_push(session, header, payload, now_ns);
  }
  if (binding.kind == Kind::kShard && header.type == wire::FrameType::kResult) {
    return worker_.on_result(binding.job, binding.rank, header, payload) ? Taken::kYes : Taken::kNo;
  }
  // The control plane has not bound the session yet, or the job is gone: the sender tries again
  // until its session is closed.
  counters_.add(Counter::kDropNotOpen);
  return Taken::kNo;
}

Taken GradientExchange::on_push(SessionSlot session, const wire::Header& header,
                                std::span<const std::byte> payload, uint64_t now_ns) noexcept {
  const Binding& binding = bindings_[session.value];
  const ServerJob& job = server_jobs_[binding.job.value];
  if (header.sender != binding.rank || header.incarnation != binding.incarnation) {
    counters_.add(header.sender != binding.rank ? Counter::kDropWorkerRank
                                                : Counter::kDropIncarnation);
    return Taken::kYes;
  }
  if (short_of_ranges(job.spec.workers) || takes_others_ranges(job)) {
    counters_.add(Counter::kDropSlotBusy);
    return Taken::kNo;
  }
  static_assert(offsetof(Contribution, tensor) < offsetof(Contribution, round) &&
                    offsetof(wire::Header, round) < offsetof(wire::Header, tensor),
                "side by side in one order they are copied with one load, which waits for the two "
                "stores that wrote the header");
  const Contribution contribution{.job = binding.job,
                                  .worker = binding.rank,
                                  .incarnation = binding.incarnation,
                                  .tensor = header.tensor,
                                  .round = header.round,
                                  .chunk = header.chunk,
                                  .payload_crc = header.payload_crc,
                                  .elements = payload,
                                  .priority = header.priority,
                                  .now_ns = now_ns};
  switch (aggregator_.push(contribution)) {
    case PushVerdict::kCompleted:
      on_complete(job, {header.tensor, header.round, header.chunk, 1,
                        answer_priority(job, header.priority)});
      [[fallthrough]];
    case PushVerdict::kAdded:
      counters_.add(Counter::kPushChunks);
      return Taken::kYes;
    case PushVerdict::kDuplicate:
      counters_.add(Counter::kDropContributedTwice);
      return Taken::kYes;
    case PushVerdict::kOldRound:
      if (binding.catches_up || job.spec.quorum > 0) answer_late(binding, session, header);
      counters_.add(Counter::kDropRoundOld);
      return Taken::kYes;
    case PushVerdict::kCorrupt:
      counters_.add(Counter::kDropPayloadCrc);
      return Taken::kNo;
    case PushVerdict::kSlotBusy:
      counters_.add(Counter::kDropSlotBusy);
      return Taken::kNo;
    case PushVerdict::kNewRound:
      counters_.add(Counter::kDropRoundNew);
      return Taken::kNo;
    case PushVerdict::kUnknownTensor:  // its AddTensor may be on the way: the worker tries again
      counters_.add(Counter::kDropUnknownTensor);
      return Taken::kNo;
    case PushVerdict::kBadChunk:
      counters_.add(Counter::kDropChunkRange);
      return Taken::kYes;
    case PushVerdict::kBadWorker:
      counters_.add(Counter::kDropWorkerRank);
      return Taken::kYes;
    case PushVerdict::kBadIncarnation:
      counters_.add(Counter::kDropIncarnation);
      return Taken::kYes;
  }
  return Taken::kYes;
}

void GradientExchange::count_partial(const ServerJob& job, const ChunkRange& chunk) noexcept {
  ChunkResult result;
  const bool complete =
      aggregator_.result(job.spec.job, chunk.tensor, chunk.round, chunk.first_chunk, result);
  if (complete && result.partial) counters_.add(Counter::kQuorumResults);
}

// The sum of a chunk is complete: it goes to every worker.
void GradientExchange::on_complete(const ServerJob& job, const ChunkRange& chunk) noexcept {
  if (job.spec.quorum > 0) count_partial(job, chunk);
  if (!job.gate) return answer_all(job, chunk);
  job.gate->complete(chunk, [&](const ChunkRange& range) { answer_all(job, range); });
}

void GradientExchange::answer_all(const ServerJob& job, const ChunkRange& range) noexcept {
  for (size_t rank = 0; rank < job.workers.size(); ++rank) {
    if (!job.bound[rank]) continue;  // gone; its job is about to fail
    if (!scheduler_.admit(job.workers[rank], range)) retransmit(job.workers[rank], range);
  }
}

// A worker that took a lost one's place pushes the round that its tensor is in; some chunks of it
// may have been complete before it came.
void GradientExchange::answer_late(const Binding& binding, SessionSlot session,
                                   const wire::Header& header) noexcept {
  ChunkResult result;
  if (!aggregator_.result(binding.job, header.tensor, header.round, header.chunk, result)) return;
  retransmit(session, {header.tensor, header.round, header.chunk, 1,
                       answer_priority(server_jobs_[binding.job.value], header.priority)});
}

bool GradientExchange::next(OutgoingChunk& out) noexcept {
  ScheduledChunk chunk;
  while (scheduler_.next(chunk)) {
    out.session = chunk.session;
    out.job = chunk.job;
    out.pin = nullptr;
    out.header.flags = 0;
    const bool needed = bindings_[chunk.session.value].kind == Kind::kWorker
                            ? prepare_result(chunk, out)
                            : worker_.prepare(chunk.job, chunk.tensor, chunk.round, chunk.chunk,
                                              chunk.priority, out.header, out.payload);
    if (needed) return true;
  }
  return false;
}

bool GradientExchange::prepare_result(const ScheduledChunk& chunk, OutgoingChunk& out) noexcept {
  ChunkResult result;
  if (!aggregator_.result(chunk.job, chunk.tensor, chunk.round, chunk.chunk, result)) return false;
  out.header.type = wire::FrameType::kResult;
  out.header.round = chunk.round;
  out.header.tensor = chunk.tensor;
  out.header.chunk = chunk.chunk;
  out.header.priority = chunk.priority;
  out.header.sender = result.contributors;
  out.header.incarnation = server_jobs_[chunk.job.value].spec.incarnation;
  if (result.partial) out.header.flags |= wire::kFlagPartial;
  out.header.payload_crc = result.crc;
  // Pointer and size, as they were just written: one wide load of both would wait for the stores.
  out.payload = {result.elements.data(), result.elements.size()};
  out.pin = result.pin;
  return true;
}

void GradientExchange::on_acked(SessionSlot session, const SentTag& tag) noexcept {
  const Binding& binding = bindings_[session.value];
  if (binding.kind == Kind::kShard) worker_.on_acked(binding.job, tag);
}

void GradientExchange::on_lost(SessionSlot session, const SentTag& tag) noexcept {
  const Binding& binding = bindings_[session.value];
  if (binding.kind == Kind::kShard) {
    if (const auto range = worker_.on_lost(binding.job, session, tag)) {
      retransmit(session,
                 {range->tensor_index, range->round, range->chunks.first, 1, range->priority});
    }
  } else if (binding.kind == Kind::kWorker) {
    retransmit(session, {tag.tensor, tag.round, tag.chunk, 1, tag.priority});
  }
}

void GradientExchange::retransmit(SessionSlot session, const ChunkRange& chunk) noexcept {
  if (!scheduler_.readmit(session, chunk)) lost_.emplace_back(session, chunk);
}

void GradientExchange::block(SessionSlot session) noexcept {
  if (bindings_[session.value].kind != Kind::kNone) scheduler_.block(session);
}

void GradientExchange::unblock(SessionSlot session) noexcept {
  if (bindings_[session.value].kind != Kind::kNone) scheduler_.unblock(session);
}

uint32_t GradientExchange::poll(uint64_t now_ns) noexcept {
  uint32_t looks = kOverduePerPoll;
  OverdueChunk due;
  while (may_answer_all() && aggregator_.take_overdue(now_ns, looks, due)) {
    const ServerJob& job = server_jobs_[due.job.value];
    on_complete(job, {due.tensor, due.round, due.chunk, 1, answer_priority(job, due.priority)});
  }
  uint32_t work = kOverduePerPoll - looks;
  work += report_stalls(now_ns);
  if (aggregator_.seeks_hopeless()) work += report_hopeless();
  while (!lost_.empty() && scheduler_.readmit(lost_.front().first, lost_.front().second)) {
    lost_.pop_front();
    ++work;
  }
  work += take_submissions();
  if (now_ns >= worker_.release_due_ns()) worker_.release(now_ns);
  work += admit_ranges();
  work += deliver_completions();
  uint32_t drain_looks = kDrainedPerPoll;
  for (size_t i = 0; i < draining_.size();) {
    if (!aggregator_.drained(draining_[i], drain_looks)) {
      ++i;
      continue;
    }
    aggregator_.remove_job(draining_[i]);
    forget_job(draining_[i]);
    draining_.erase(draining_.begin() + static_cast<std::ptrdiff_t>(i));
    ++work;
  }
  counters_.set(Gauge::kQueuedRanges, config_.scheduler.max_ranges - scheduler_.free_ranges());
  return work;
}

uint32_t GradientExchange::report_stalls(uint64_t now_ns) noexcept {
  if (now_ns < aggregator_.next_stall_ns()) return 0;
  uint32_t looks = kOverduePerPoll;
  StalledChunk stalled;
  if (aggregator_.take_stalled(now_ns, looks, stalled) && server_jobs_[stalled.job.value].present) {
    events_.emplace_back(event::WorkersStalled{stalled.job, stalled.tensor, stalled.round,
                                               stalled.open_ns, stalled.awaited});
  }
  return kOverduePerPoll - looks;
}

uint32_t GradientExchange::report_hopeless() noexcept {
  uint32_t looks = kOverduePerPoll;
  HopelessRound found;
  // What is left stays listed for the next poll.
  for (uint32_t told = 0; told < kHopelessPerPoll && aggregator_.take_hopeless(looks, found);
       ++told) {
    if (!server_jobs_[found.job.value].present) continue;
    events_.emplace_back(event::RoundHopeless{found.job, found.tensor, found.round, found.missing});
  }
  return kOverduePerPoll - looks + 1;
}

uint32_t GradientExchange::take_submissions() noexcept {
  uint32_t taken = 0;
  for (Program& program : programs_) {
    if (program.backlog.empty() && !program.broken) taken += take_submissions(program);
  }
  return taken;
}

uint32_t GradientExchange::take_submissions(Program& program) noexcept {
  uint32_t taken = 0;
  uint32_t refused = 0;
  Submission submission;
  while (taken < config_.submissions_per_pass && refused < config_.refusals_per_pass &&
         !short_of_ranges(0)) {
    const EngineChannel::Pop pop = program.channel->pop(submission);
    if (pop == EngineChannel::Pop::kEmpty) break;
    if (pop == EngineChannel::Pop::kBroken) {
      program.broken = true;
      counters_.add(Counter::kBadDescriptors);
      events_.emplace_back(event::ChannelBroken{program.channel, "invalid submission descriptor"});
      break;
    }
    const WorkerOp op = submission.op == SubmitOp::kPush   ? WorkerOp::kPush
                        : submission.op == SubmitOp::kPull ? WorkerOp::kPull
                                                           : WorkerOp::kPushPull;
    refused += !worker_.submit(program.channel, op, submission.job, submission.tensor,
                               submission.priority, submission.cookie);
    ++taken;
  }
  return taken;
}

uint32_t GradientExchange::admit_ranges() noexcept {
  uint32_t admitted = 0;
  WorkerRange range;
  while (worker_.take_range(range)) {
    const ChunkRange chunks{range.tensor_index, range.round, range.chunks.first, range.chunks.count,
                            range.priority};
    if (bindings_[range.session.value].kind != Kind::kShard) continue;  // the session has closed
    if (short_of_ranges(0) || !scheduler_.admit(range.session, chunks)) {
      worker_.put_back(range);
      break;
    }
    ++admitted;
  }
  return admitted;
}

uint32_t GradientExchange::deliver_completions() noexcept {
  uint32_t delivered = 0;
  for (Program& program : programs_) {
    while (!program.backlog.empty() && program.channel->complete(program.backlog.front())) {
      program.backlog.pop_front();
      ++delivered;
    }
  }
  WorkerCompletion done;
  while (worker_.take_completion(done)) {
    const auto program =
        std::find_if(programs_.begin(), programs_.end(),
                     [&done](const Program& p) { return p.channel == done.channel; });
    if (program == programs_.end()) continue;
    deliver(*program,
            {done.cookie, done.status, done.client_job, done.tensor, done.round, done.part});
    ++delivered;
  }
  if (delivered > 0) {
    for (Program& program : programs_) {
      if (program.channel->ring()) counters_.add(Counter::kWakeups);
    }
  }
  return delivered;
}

void GradientExchange::deliver(Program& program, const Completion& completion) noexcept {
  counters_.add(Counter::kCompletions);
  if (program.backlog.empty() && program.channel->complete(completion)) return;
  counters_.add(Counter::kCompletionRingFull);
  program.backlog.push_back(completion);
}

ExchangeUsage GradientExchange::usage() const noexcept {
  ExchangeUsage usage;
  usage.aggregator_bytes = aggregator_.memory_bytes();
  usage.ranges = config_.scheduler.max_ranges - scheduler_.free_ranges();
  usage.lost_chunks = static_cast<uint32_t>(lost_.size());
  for (const Binding& binding : bindings_) usage.sessions += binding.kind != Kind::kNone;
  for (const ServerJob& job : server_jobs_) usage.jobs += job.present;
  usage.jobs += static_cast<uint32_t>(draining_.size());
  for (const Program& program : programs_) {
    usage.completions += static_cast<uint32_t>(program.backlog.size());
  }
  return usage;
}

bool GradientExchange::park() noexcept {
  bool idle = true;
  for (Program& program : programs_) idle = program.channel->park() && idle;
  return idle;
}

void GradientExchange::unpark() noexcept {
  for (Program& program : programs_) program.channel->unpark();
}

}  // namespace mercury
