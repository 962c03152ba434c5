#include "shim/exchange/worker/worker.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "aggregator/frame/chunk_header.h"
#include "aggregator/frame/contributors.h"
#include "scheduler/terms/part.h"
#include "shim/exchange/worker/worker_state.h"
#include "transport/wire/crc32c.h"

namespace mercury {

namespace {
// Servers to which one engine sends. What finishing a shorter row wins is not more than it takes:
// with 16 and 24 workers and servers a small model's iterations were from 0.5 % shorter to 3 %
// longer.
constexpr uint32_t kLeastRow = 32;

// By doubling, so that a job of many tensors is not copied once for each.
template <class T>
void make_room(std::vector<T>& list, size_t wanted) {
  if (list.capacity() < wanted) list.reserve(std::max(wanted, 2 * list.capacity()));
}
}  // namespace

Worker::Worker(Counters& counters) : counters_(counters) { completions_.reserve(kRefusalsPerPass); }
Worker::~Worker() = default;

Worker::WorkerJob* Worker::find(const EngineChannel* channel, uint32_t client_job) const noexcept {
  for (const auto& job : jobs_) {
    if (job && job->spec.channel == channel && job->spec.client_job == client_job) return job.get();
  }
  return nullptr;
}

bool Worker::has_job(JobSlot job) const noexcept { return find(job) != nullptr; }

const EngineChannel* Worker::channel_of(JobSlot job) const noexcept {
  return find(job)->spec.channel;
}

size_t Worker::most_completions(const EngineChannel* channel) const noexcept {
  size_t most = 0;
  for (const auto& job : jobs_) {
    if (job && job->spec.channel == channel) most += job->tensors.size() * kCompletionsOfTensor;
  }
  return most;
}

bool Worker::may_push(const EngineChannel* channel, const SendQueue& sends) const noexcept {
  return std::ranges::none_of(jobs_, [channel, &sends](const auto& job) {
    return job && job->spec.channel == channel &&
           (!job->held_up.empty() || sends.refuses(job->spec.job, 1));
  });
}

uint64_t Worker::chunks_moved(JobSlot slot) const noexcept {
  const WorkerJob* job = find(slot);
  return job ? job->chunks_moved : 0;
}

Status Worker::add_job(const command::AddWorkerJob& spec) {
  if (find(spec.job)) return Error(Errc::kExists, "the job slot is taken in this engine");
  if (jobs_.size() <= spec.job.value) jobs_.resize(spec.job.value + 1u);
  rows_.reserve(jobs_.size());
  jobs_[spec.job.value] = std::make_unique<WorkerJob>();
  jobs_[spec.job.value]->spec = spec;
  jobs_[spec.job.value]->life = ++lives_;
  return {};
}

Status Worker::bind_shard(JobSlot slot, Shard shard, SessionSlot session) {
  WorkerJob* job = find(slot);
  if (!job) return Error(Errc::kNotFound, "bind of a shard to a job that is not here");
  if (shard.value >= job->spec.shards) return Error(Errc::kInvalidArgument, "shard out of range");
  if (job->tensors.size() > 0) {
    return Error(Errc::kInvalidArgument, "shards are bound before tensors are declared");
  }
  const auto known = std::find_if(job->shards.begin(), job->shards.end(),
                                  [shard](const WorkerJob::Bound& s) { return s.shard == shard; });
  if (known != job->shards.end()) {  // the control plane has opened another session to it
    known->session = session;
    return {};
  }
  auto& shards = job->shards;
  const auto in_order = [](const WorkerJob::Bound& one, const WorkerJob::Bound& other) {
    return one.shard < other.shard;
  };
  const WorkerJob::Bound bound{shard, session};
  shards.insert(std::upper_bound(shards.begin(), shards.end(), bound, in_order), bound);
  const auto& spec = job->spec;
  const uint32_t workers = std::max<uint32_t>(spec.workers, 1);
  const Shard first(static_cast<uint16_t>(uint32_t{spec.rank.value} * spec.shards / workers));
  const auto begin =
      std::lower_bound(shards.begin(), shards.end(), WorkerJob::Bound{first, {}}, in_order);
  job->begin_with = static_cast<size_t>(begin - shards.begin()) % shards.size();
  look_for_rows(*job);
  return {};
}

// Where a policy has longer units, or whole tensors on a server, there are none.
void Worker::look_for_rows(WorkerJob& job) noexcept {
  uint32_t servers = 0;
  uint32_t last = ~0U;
  for (const WorkerJob::Bound& bound : job.shards) {
    const uint32_t server = bound.shard.value / std::max<uint32_t>(job.spec.server_lanes, 1);
    servers += server != std::exchange(last, server);
  }
  const bool has_rows = servers >= kLeastRow && job.policy.release == Policy::Release::kTensor &&
                        job.policy.unit_bytes == 0 && job.policy.place == Policy::Place::kSpread;
  const auto shards = static_cast<uint32_t>(job.shards.size());
  job.least_row = has_rows ? (shards + servers - 1) / servers * kLeastRow : 0;
}

Status Worker::add_tensor(const command::AddTensor& spec) {
  WorkerJob* job = find(spec.job);
  if (!job) return Error(Errc::kNotFound, "tensor for a job that is not here");
  if (job->removed) return Error(Errc::kClosed, "tensor for a job that has ended");
  if (job->find(spec.tensor)) {
    return Error(Errc::kExists,
                 "tensor " + std::to_string(spec.tensor.value) + " is declared already");
  }
  WorkerTensor tensor;
  tensor.spec = spec;
  const auto element_bytes = static_cast<uint32_t>(size_of(spec.dtype));
  const uint32_t elems = chunk_elems(spec.chunk_bytes, element_bytes);
  tensor.chunks = chunk_count(spec.numel, elems);
  tensor.full_chunk_bytes = elems * element_bytes;
  tensor.last_chunk_bytes = static_cast<uint32_t>(
      spec.numel * element_bytes - uint64_t{tensor.chunks - 1} * tensor.full_chunk_bytes);
  tensor.shard_plan = on_one_server(job->policy, spec.numel)
                          ? ShardPlan::whole(spec.tensor, tensor.chunks, job->spec.shards)
                          : ShardPlan(spec.first_shard, tensor.chunks, job->spec.shards);
  for (const WorkerJob::Bound& shard : job->shards) {
    tensor.own_chunks += tensor.shard_plan.span(shard.shard).count;
  }
  tensor.round = spec.first_round.previous();
  if (job->spec.terms.quorum > 0) tensor.absent = std::make_unique<Absentees>();
  tensor.summed = ChunkSet(tensor.chunks);
  tensor.pushed = ChunkSet(tensor.chunks);
  WorkerTensor* const added = job->tensors.insert(std::move(tensor));
  if (added == nullptr) return Error(Errc::kNoMemory, "no memory for the job's tensors");
  if (job->partitions) plan_partitions(*job, *added);
  most_completions_ += kCompletionsOfTensor;
  most_ranges_ += job->shards.size();
  // Those taken stay in front until all are, and some may be of jobs that are gone.
  make_room(ranges_, ranges_.size() + 2 * most_ranges_);
  job->held_up.reserve(job->tensors.size() * job->shards.size());
  make_room(completions_, kRefusalsPerPass + most_completions_);
  if (job->spec.terms.quorum > 0) {
    most_absent_words_ += job->absent_words_of_tensor();
    make_room(absent_words_, most_absent_words_);
  }
  return {};
}

void Worker::complete(const WorkerJob& job, uint64_t cookie, TensorId tensor, Round round,
                      Errc status) noexcept {
  completions_.push_back({job.spec.channel, cookie, job.spec.client_job, tensor, round, status});
}

// Partitions that still wait for their release go: the credit would wait for what is not sent any
// more.
void Worker::fail_rounds(const command::FailRounds& request) {
  WorkerJob* job = find(request.job);
  WorkerTensor* tensor = job ? job->find(request.from.tensor) : nullptr;
  if (!tensor || job->failed != Errc::kOk || tensor->is_hopeless(request.from.round)) return;
  give_up_credit(*job, true);
  tensor->hopeless = request.code;
  tensor->hopeless_from = request.from.round;
  if (tensor->in_flight && tensor->is_hopeless(tensor->round)) {
    give_up(*job, *tensor, request.code);
  }
}

bool Worker::submit(EngineChannel* channel, const Submission& submission) noexcept {
  counters_.add(Counter::kSubmissions);
  const SubmitOp op = submission.op;
  const auto refuse = [&](Errc code, Round round) {
    completions_.push_back(
        {channel, submission.cookie, submission.job, submission.tensor, round, code});
    return false;
  };
  WorkerJob* job = find(channel, submission.job);
  if (!job) return refuse(Errc::kClosed, 0);
  WorkerTensor* tensor = job->find(submission.tensor);
  if (job->failed != Errc::kOk) {
    // A sum that was there before the job ended is pulled as if it had not: the peers may have
    // taken theirs, and left.
    if (tensor) give_up(*job, *tensor, job->failed);  // if no step has come to it yet
    if (!tensor || op != SubmitOp::kPull || !tensor->pull_allowed) return refuse(job->failed, 0);
    tensor->pull_allowed = false;
    complete_sums(*job, *tensor, submission.cookie);
    return true;
  }
  if (!tensor) return refuse(Errc::kNotFound, 0);

  if (op == SubmitOp::kPull) {
    if (!tensor->pull_allowed) {
      const bool gone = tensor->is_hopeless(tensor->round.next());
      return refuse(gone ? tensor->hopeless : Errc::kInvalidArgument, tensor->round);
    }
    tensor->pull_allowed = false;
    tensor->pull_cookie = submission.cookie;
    complete_what_ended(*job, *tensor);
    return true;
  }
  if (tensor->in_flight || tensor->push_cookie != 0) return refuse(Errc::kBusy, tensor->round);
  if (tensor->is_hopeless(tensor->round.next()))
    return refuse(tensor->hopeless, tensor->round.next());
  (op == SubmitOp::kPush ? tensor->push_cookie : tensor->pull_cookie) = submission.cookie;
  tensor->pull_allowed = op == SubmitOp::kPush;
  tensor->in_parts = op == SubmitOp::kReceive || op == SubmitOp::kGather;
  tensor->scattered = op == SubmitOp::kScatter;
  if (tensor->in_parts || tensor->scattered) tensor->part = chunks_of(op, *job, *tensor);
  begin_push(*job, *tensor,
             job->policy.order == Policy::Order::kFifo ? uint16_t{0} : submission.priority);
  complete_what_ended(*job, *tensor);  // an engine without a share of this tensor is done at once
  return true;
}

// The chunks of which this worker contributes elements, or of which it gets the sum; of the others
// none.
ChunkSpan Worker::chunks_of(SubmitOp op, const WorkerJob& job,
                            const WorkerTensor& tensor) noexcept {
  if (op == SubmitOp::kReceive) return {};
  const uint64_t elems = tensor.full_chunk_bytes / size_of(tensor.spec.dtype);
  return part_of(tensor.spec.numel, job.spec.workers, job.spec.rank).chunks(elems);
}

void Worker::begin_push(WorkerJob& job, WorkerTensor& tensor, uint16_t priority) noexcept {
  tensor.round = tensor.round.next();
  tensor.in_flight = true;
  tensor.priority = priority;
  tensor.acks_void = false;
  tensor.credit = 0;
  tensor.row = tensor.sent_of_row = 0;
  if (tensor.absent) *tensor.absent = Absentees::of_no_chunk();
  tensor.missing_sums = tensor.missing_acks = tensor.own_chunks;
  tensor.summed.clear();
  tensor.pushed.clear();
  if (job.partitions) {
    tensor.priority = 0;  // first-in first-out once they are released
    if (!job.partitions->has(tensor.tensor_index)) plan_partitions(job, tensor);
    tensor.credit = job.credits;
    job.partitions->submit(tensor.tensor_index, priority);
    release_due_ns_ = 0;
    return;
  }
  if (job.least_row > 0) [[unlikely]]
    finish_row(job, tensor);
  for (size_t turn = 0; turn < job.shards.size(); ++turn) {
    const auto& shard = job.shards[(job.begin_with + turn) % job.shards.size()];
    queue_range(job, shard.session, tensor, tensor.shard_plan.span(shard.shard));
  }
}

// A row is a chunk to each shard. Each worker begins it with another one, and all send about the
// same at a time: who goes over to what is more urgent in the midst of a row leaves chunks that
// some workers have sent and others have not. Their sums come when all that is more urgent is
// through, and until then links to workers are idle for as long as the begun part took. To finish
// the row takes the rest's time from what is urgent: so that is done where the rest is the smaller.
[[gnu::noinline]] void Worker::finish_row(WorkerJob& job, const WorkerTensor& next) noexcept {
  if (job.sending == WorkerJob::kNoTensor || job.row_waits || next.own_chunks == 0) return;
  const WorkerTensor& tensor = job.tensors.at(job.sending);
  const auto shards = static_cast<uint32_t>(job.shards.size());
  if (!tensor.in_flight || tensor.priority <= next.priority ||
      std::min(shards, tensor.own_chunks) < job.least_row) {
    return;
  }
  const uint32_t all = std::min(shards, tensor.own_chunks - tensor.row * shards);
  const uint32_t begun = std::min(tensor.sent_of_row, all);
  if (begun == all || begun < all - begun) return;
  job.row_waits = true;
  rows_.push_back({job.spec.job, job.sending, tensor.row, all - begun});
}

bool Worker::take_row(WorkerRow& out) noexcept {
  if (rows_.empty()) return false;
  out = rows_.back();
  rows_.pop_back();
  if (WorkerJob* const job = find(out.job)) job->row_waits = false;
  return true;
}

bool Worker::range_of_row(const WorkerRow& row, size_t turn, WorkerRange& out) const noexcept {
  const WorkerJob* job = find(row.job);
  if (!job || turn >= job->shards.size()) return false;
  const WorkerTensor& tensor = job->tensors.at(row.tensor);
  const auto& shard = job->shards[(job->begin_with + turn) % job->shards.size()];
  const ChunkSpan span = tensor.shard_plan.span(shard.shard);
  const ChunkSpan one{span.at(row.row), row.row < span.count ? 1U : 0U};
  out = {
      shard.session, {tensor.tensor_index, tensor.round, one, tensor.priority}, row.job, job->life};
  return true;
}

void Worker::complete_what_ended(WorkerJob& job, WorkerTensor& tensor) noexcept {
  if (tensor.push_ended()) {
    complete(job, std::exchange(tensor.push_cookie, 0), tensor.spec.tensor, tensor.round,
             Errc::kOk);
  }
  if (tensor.sums_ended()) {
    tensor.in_flight = false;
    if (job.counts(tensor)) withdraw(job, tensor);
    if (tensor.pull_cookie != 0) complete_sums(job, tensor, std::exchange(tensor.pull_cookie, 0));
  }
}

void Worker::complete_sums(const WorkerJob& job, WorkerTensor& tensor, uint64_t cookie) noexcept {
  complete(job, cookie, tensor.spec.tensor, tensor.round, Errc::kOk);
  if (!tensor.absent) return;
  Ended& ended = completions_.back();
  ended.absent_words = static_cast<uint16_t>(words_of(job.spec.workers));
  ended.absent_at = absent_words_.size();
  for (const WorkerSet& set : {tensor.absent->in_some, tensor.absent->in_all}) {
    absent_words_.insert(absent_words_.end(), set.begin(), set.begin() + ended.absent_words);
  }
}

bool Worker::take_range(WorkerRange& out) noexcept {
  if (next_range_ == ranges_.size()) {
    ranges_.clear();
    next_range_ = 0;
    return false;
  }
  out = ranges_[next_range_++];
  return true;
}

bool Worker::is_wanted(const WorkerRange& range) const noexcept {
  const WorkerJob* job = find(range.job);
  return job && job->life == range.life && job->failed == Errc::kOk;
}

void Worker::hold_up(const WorkerRange& range) {
  WorkerJob& job = *find(range.job);
  jobs_held_up_ += job.held_up.empty();
  job.held_up.push(range);
}

const WorkerRange* Worker::held_up(JobSlot slot) const noexcept {
  if (jobs_held_up_ == 0) [[likely]]
    return nullptr;
  const WorkerJob* const job = find(slot);
  return job && !job->held_up.empty() ? &job->held_up.front() : nullptr;
}

void Worker::drop_held_up(JobSlot slot) noexcept {
  WorkerJob& job = *find(slot);
  job.held_up.pop();
  if (!job.held_up.empty()) return;
  --jobs_held_up_;
  has_steps_ = has_steps_ || job.has_steps();
  if (job.partitions) release_due_ns_ = 0;
}

bool Worker::take_completion(WorkerCompletion& out) noexcept {
  if (next_completion_ == completions_.size()) {
    completions_.clear();
    absent_words_.clear();
    next_completion_ = 0;
    return false;
  }
  const Ended& ended = completions_[next_completion_++];
  out.channel = ended.channel;
  out.told = {ended.cookie, ended.status, ended.client_job, ended.tensor, ended.round};
  if (ended.absent_words > 0) [[unlikely]] {
    const uint64_t* const words = absent_words_.data() + ended.absent_at;
    out.told.absent_words = ended.absent_words;
    std::copy_n(words, ended.absent_words, out.told.absent.in_some.begin());
    std::copy_n(words + ended.absent_words, ended.absent_words, out.told.absent.in_all.begin());
  }
  return true;
}

void Worker::drop_completions(const EngineChannel* channel) {
  completions_.erase(completions_.begin(),
                     completions_.begin() + static_cast<std::ptrdiff_t>(next_completion_));
  next_completion_ = 0;
  std::erase_if(completions_, [channel](const Ended& done) { return done.channel == channel; });
}

[[gnu::noinline]] void Worker::note_sent(WorkerJob& job, WorkerTensor& tensor,
                                         const ScheduledChunk& chunk) noexcept {
  if (chunk.retransmit || tensor.round != chunk.key.round) return;
  const uint32_t row = tensor.shard_plan.row_of(chunk.key.chunk);
  if (row > tensor.row) {
    tensor.row = row;
    tensor.sent_of_row = 0;
  }
  tensor.sent_of_row += row == tensor.row;
  job.sending = chunk.key.tensor;
}

bool Worker::prepare(const ScheduledChunk& chunk, OutgoingDatagram& out) noexcept {
  WorkerJob* job = find(chunk.job);
  if (!job || job->failed != Errc::kOk) return false;
  WorkerTensor& tensor = job->tensors.at(chunk.key.tensor);
  if (job->least_row > 0) [[unlikely]]
    note_sent(*job, tensor, chunk);
  if (!tensor.needs(chunk.key)) return false;
  wire::Header& header = out.header;
  header.type = kPushFrame;
  ChunkHeader{chunk.key.round, tensor.spec.tensor,   chunk.key.chunk,
              chunk.priority,  job->spec.rank.value, job->spec.incarnation}
      .write(header);
  if (job->counts(tensor) && ends_partition(tensor, chunk.key.chunk)) {
    header.flags = wire::kFlagAckNow;
  }
  out.payload = {tensor.memory_of(chunk.key.chunk), tensor.bytes_of(chunk.key.chunk)};
  if (tensor.in_parts && !tensor.part.contains(chunk.key.chunk)) [[unlikely]]
    out.payload = {};
  if (tensor.scattered) [[unlikely]]
    header.flags |= kFlagInPart;
  return true;
}

inline void Worker::note_pushed(WorkerJob& job, WorkerTensor& tensor, ChunkIndex chunk) noexcept {
  if (tensor.note_pushed(chunk) && job.counts(tensor)) acknowledge(job, tensor, chunk);
  if (tensor.push_ended() || tensor.sums_ended()) complete_what_ended(job, tensor);
}

bool Worker::on_result(JobSlot slot, Share& share, const wire::Header& header,
                       std::span<const std::byte> payload) noexcept {
  WorkerJob* job = find(slot);
  const ChunkHeader chunk = ChunkHeader::of(header);
  WorkerTensor* tensor = job ? job->find(chunk.tensor) : nullptr;
  if (!tensor || job->failed != Errc::kOk || !tensor->in_flight || chunk.round != tensor->round ||
      chunk.chunk.value >= tensor->chunks || tensor->summed.contains(chunk.chunk) ||
      ((header.flags & kFlagPartial) != 0 && job->spec.terms.quorum == 0)) {
    return drop_unread(counters_, Counter::kDropResultUnexpected, header, payload);
  }
  if (share.tensor != tensor->tensor_index) {
    share = {share.shard, tensor->tensor_index, tensor->shard_plan.span(share.shard)};
  }
  const bool partial = (header.flags & kFlagPartial) != 0;
  size_t set_bytes = 0;
  if (partial) [[unlikely]]
    set_bytes = contributor_bytes(job->spec.workers, chunk.sender);
  const bool without =
      payload.empty() && !partial && tensor->scattered && !tensor->part.contains(chunk.chunk);
  if (!share.chunks.contains(chunk.chunk) ||
      (payload.size() != set_bytes + tensor->bytes_of(chunk.chunk) && !without)) {
    return drop_unread(counters_, Counter::kDropChunkRange, header, payload);
  }
  std::byte* const target = tensor->memory_of(chunk.chunk);
  const uint32_t crc = partial ? wire::crc32c(payload)
                               : wire::copy_crc32c_fetching(target, payload.data(), payload.size(),
                                                            target + payload.size());
  if (crc != header.payload_crc) {
    counters_.add(Counter::kDropPayloadCrc);
    return false;
  }
  if (partial) {
    if (!note_absent(*job, *tensor, chunk.sender, payload.first(set_bytes))) {
      counters_.add(Counter::kDropResultUnexpected);
      return true;
    }
    std::memcpy(target, payload.data() + set_bytes, payload.size() - set_bytes);
  } else if (tensor->absent) [[unlikely]] {
    tensor->absent->add(WorkerSet{}, WorkerSet{});  // nobody
  }
  counters_.add(Counter::kResultChunks);
  ++job->chunks_moved;
  tensor->summed.insert(chunk.chunk);
  --tensor->missing_sums;
  note_pushed(*job, *tensor, chunk.chunk);
  return true;
}

// False: the set names other workers, or another number of them, than there can be.
bool Worker::note_absent(const WorkerJob& job, WorkerTensor& tensor, uint32_t contributors,
                         std::span<const std::byte> set) noexcept {
  const std::optional<WorkerSet> present = decode_contributors(set, job.spec.workers, contributors);
  if (!present) return false;
  const WorkerSet absent = complement(*present, job.spec.workers);
  tensor.absent->add(absent, absent);
  return true;
}

void Worker::on_acked(JobSlot slot, const ChunkKey& key) noexcept {
  WorkerJob* job = find(slot);
  WorkerTensor* tensor = job ? job->at(key.tensor) : nullptr;
  if (!tensor || tensor->round != key.round || !tensor->in_flight || tensor->acks_void) return;
  ++job->chunks_moved;
  note_pushed(*job, *tensor, key.chunk);
}

bool Worker::on_lost(JobSlot slot, const ChunkKey& key) noexcept {
  WorkerJob* job = find(slot);
  const WorkerTensor* tensor = job ? job->at(key.tensor) : nullptr;
  return tensor && job->failed == Errc::kOk && tensor->needs(key);
}

}  // namespace mercury
