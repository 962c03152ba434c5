#include "aggregator/aggregator.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/hopeless_watch.h"
#include "aggregator/replacements.h"
#include "aggregator/stall_watch.h"
#include "aggregator/tensor_slots.h"

namespace mercury {
namespace {

using aggregation::ChunkWalk;
using aggregation::CompletionRule;
using aggregation::Finish;
using aggregation::HopelessWatch;
using aggregation::JobQuorum;
using aggregation::Replacements;
using aggregation::StallWatch;
using aggregation::TensorSlots;

// What giving a tensor's memory back takes, in looks at chunks: one asks the memory's thread, and
// maybe the port.
constexpr uint32_t kLooksPerTensor = 64;

struct Member {
  bool admitted = false;
  uint16_t replacing = 0;  // lives that are not taken out yet: until then it is not admitted
  uint32_t incarnation = 0;
};

struct JobSums {
  AggregationJob spec;
  WorkerSet live{};  // admitted and not withdrawn
  JobQuorum quorum{live};
  StallWatch watch;
  HopelessWatch hopeless;
  Replacements replacements;
  ChunkWalk waking;             // with a quorum: what may be complete as fewer are waited for
  std::vector<Member> members;  // by rank
  aggregation::TensorTable tensors;
  uint64_t memory_bytes = 0;
  uint64_t unmapped_bytes = 0;
  // How far drained() has come: whole tensors, and chunks of the next.
  uint32_t drained_tensors = 0;
  uint32_t drained_chunks = 0;

  bool walks() const noexcept { return replacements.pending() || !waking.ended(); }
  // Nobody pushes, and nothing is looked for any more.
  void retire() noexcept {
    members.clear();
    quorum.retire();
    watch = StallWatch();
    hopeless = HopelessWatch();
    replacements = Replacements();
    waking = ChunkWalk();
  }
};

Error no_such_job(JobSlot job) {
  return {Errc::kNotFound, "no job in slot " + std::to_string(job.value)};
}

// Where the port cannot, the tensor's results are copied.
void map_results(const PortMemory& port, TensorSlots& slots) {
  if (port.map == nullptr || slots.empty()) return;
  const Result<MemoryKey> key = port.map(port.context, slots.result_pages());
  if (key) {
    slots.mapped = *key;
  } else {
    slots.copy_results();
  }
}

Error no_such_worker(const JobSums& job, Rank worker) {
  return {Errc::kInvalidArgument, "worker " + std::to_string(worker.value) + " in a job of " +
                                      std::to_string(job.members.size())};
}

Error no_memory() { return {Errc::kNoMemory, "no memory for the aggregator's tables"}; }

}  // namespace

struct Aggregator::State {
  PortMemory port;
  MemoryThread* thread = nullptr;
  std::vector<std::unique_ptr<JobSums>> jobs;  // by JobSlot
  uint64_t memory_bytes = 0;
  uint64_t unmapped_bytes = 0;
  uint64_t memory_limit_bytes = 0;
  size_t quorum_jobs = 0;
  size_t next_overdue = 0;  // the job slot that take_overdue begins with
  size_t next_walk = 0;     // and take_replaced
  bool is_replacing = false;
  uint64_t next_stall_ns = kNever;
  bool seeks_hopeless = false;

  JobSums* find(JobSlot job) const noexcept {
    return job.value < jobs.size() ? jobs[job.value].get() : nullptr;
  }
};

Aggregator::Aggregator(const PortMemory& port, uint64_t memory_limit_bytes, MemoryThread* thread)
    : state_(std::make_unique<State>()) {
  state_->port = port;
  state_->thread = thread;
  state_->memory_limit_bytes = memory_limit_bytes;
}
Aggregator::~Aggregator() = default;

Status Aggregator::add_job(JobSlot job, const AggregationJob& spec) {
  if (state_->find(job) != nullptr) {
    return Error(Errc::kExists, "slot " + std::to_string(job.value) + " holds a job already");
  }
  if (spec.workers == 0 || spec.workers > kMaxWorkers) {
    return Error(Errc::kInvalidArgument, "a job has 1 to " + std::to_string(kMaxWorkers) +
                                             " workers, not " + std::to_string(spec.workers));
  }
  if (std::string wrong = contradiction(spec.terms, spec.workers); !wrong.empty()) {
    return Error(Errc::kInvalidArgument, std::move(wrong));
  }
  try {
    auto added = std::make_unique<JobSums>();
    added->spec = spec;
    added->quorum.set(spec.terms.quorum, to_ns(spec.terms.patience_ms));
    added->watch = StallWatch(to_ns(spec.terms.stall_timeout_ms));
    state_->next_stall_ns = std::min(state_->next_stall_ns, added->watch.due_ns());
    added->members.resize(spec.workers);
    if (state_->jobs.size() <= job.value) state_->jobs.resize(size_t{job.value} + 1);
    state_->jobs[job.value] = std::move(added);
    state_->quorum_jobs += state_->jobs[job.value]->quorum.exists();
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
  return {};
}

bool Aggregator::drained(JobSlot job, uint32_t& looks) noexcept {
  JobSums* held = state_->find(job);
  if (held == nullptr) return true;
  for (; held->drained_tensors < held->tensors.size(); ++held->drained_tensors) {
    const TensorSlots& slots = held->tensors.at(TensorIndex(held->drained_tensors));
    for (; held->drained_chunks < slots.chunks(); ++held->drained_chunks) {
      if (looks == 0) return false;
      --looks;
      if (slots.pins_busy(held->drained_chunks, state_->port)) return false;
    }
    held->drained_chunks = 0;
  }
  return true;
}

bool Aggregator::give_back(JobSlot job, uint32_t& looks) {
  JobSums* const gone = state_->find(job);
  if (gone == nullptr) return true;
  state_->quorum_jobs -= gone->quorum.exists();
  gone->retire();
  auto& tensors = gone->tensors;
  for (; looks > 0 && tensors.size() > 0; looks -= std::min(looks, kLooksPerTensor)) {
    const TensorSlots& last = tensors.at(TensorIndex(tensors.size() - 1));
    if (last.mapped) state_->port.unmap(state_->port.context, *last.mapped);
    const uint64_t bytes = last.memory().bytes();
    gone->memory_bytes -= bytes;
    state_->memory_bytes -= bytes;
    if (last.copies_results()) {
      gone->unmapped_bytes -= bytes;
      state_->unmapped_bytes -= bytes;
    }
    tensors.drop_last();
  }
  return tensors.size() == 0;
}

void Aggregator::remove_job(JobSlot job) {
  if (state_->find(job) == nullptr) return;
  for (uint32_t looks = ~uint32_t{0}; !give_back(job, looks);) looks = ~uint32_t{0};
  state_->jobs[job.value].reset();
  state_->next_stall_ns = 0;  // it looks anew at what is left
}

Status Aggregator::add_tensor(JobSlot job, const AggregationTensor& spec) {
  JobSums* const owner = state_->find(job);
  if (owner == nullptr) return no_such_job(job);
  if (owner->tensors.find(spec.tensor) != nullptr) {
    return Error(Errc::kExists,
                 "tensor " + std::to_string(spec.tensor.value) + " is declared already");
  }
  if (Status valid = aggregation::check_tensor(spec); !valid) return valid;
  const AggregationJob& limits = owner->spec;
  Result<Finish> finish = aggregation::finish_of(spec);
  if (!finish) return finish.error();
  const CompletionRule rule = aggregation::rule_of(spec, limits, owner->quorum, *finish);
  const uint64_t needed = TensorSlots::bytes_needed(spec, rule, *finish);
  const auto beyond = [&](const char* who, uint64_t held, const char* whose, uint64_t limit) {
    return Error(Errc::kLimit, "tensor " + std::to_string(spec.tensor.value) + " needs " +
                                   std::to_string(needed) + " bytes; " + who +
                                   std::to_string(held) + " of " + whose + " limit of " +
                                   std::to_string(limit));
  };
  if (limits.memory_limit_bytes != 0 && needed > limits.memory_limit_bytes - owner->memory_bytes) {
    return beyond("the job has ", owner->memory_bytes, "its", limits.memory_limit_bytes);
  }
  if (state_->memory_limit_bytes != 0 &&
      needed > state_->memory_limit_bytes - state_->memory_bytes) {
    return beyond("all jobs have ", state_->memory_bytes, "their", state_->memory_limit_bytes);
  }
  Result<TensorSlots> slots =
      // NOLINTNEXTLINE(performance-move-const-arg): one that keeps something is moved only
      TensorSlots::create(spec, limits.workers, rule, std::move(*finish), state_->thread);
  if (!slots) return slots.error();
  TensorSlots* added = nullptr;
  try {
    added = owner->tensors.insert(std::move(*slots));
  } catch (const std::bad_alloc&) {
  }
  if (added == nullptr) return no_memory();
  owner->memory_bytes += needed;
  state_->memory_bytes += needed;
  map_results(state_->port, *added);
  if (added->copies_results()) {
    owner->unmapped_bytes += needed;
    state_->unmapped_bytes += needed;
  }
  return {};
}

Status Aggregator::admit(JobSlot job, Rank worker, uint32_t incarnation) {
  JobSums* const owner = state_->find(job);
  if (owner == nullptr) return no_such_job(job);
  if (worker.value >= owner->members.size()) return no_such_worker(*owner, worker);
  Member& member = owner->members[worker.value];
  if ((member.admitted || member.replacing > 0) && member.incarnation != incarnation) {
    return Error(Errc::kExists,
                 "worker " + std::to_string(worker.value) + " has had another life here");
  }
  member.admitted = member.replacing == 0;
  member.incarnation = incarnation;
  insert(owner->live, worker);
  return {};
}

Status Aggregator::replace(JobSlot job, Rank worker, uint32_t incarnation) {
  JobSums* const owner = state_->find(job);
  if (owner == nullptr) return no_such_job(job);
  if (worker.value >= owner->members.size()) return no_such_worker(*owner, worker);
  Member& member = owner->members[worker.value];
  member.admitted = false;
  ++member.replacing;
  member.incarnation = incarnation;
  insert(owner->live, worker);
  owner->watch.restart();
  state_->next_stall_ns = std::min(state_->next_stall_ns, owner->watch.due_ns());
  owner->replacements.add(owner->tensors, worker, incarnation);
  state_->is_replacing = true;
  return {};
}

bool Aggregator::take_replaced(uint32_t& looks, ReplacedWorker& out) {
  if (!state_->is_replacing) return false;
  for (size_t tried = 0; looks > 0 && tried < state_->jobs.size(); ++tried) {
    const size_t slot = state_->next_walk++ % state_->jobs.size();
    JobSums* const job = state_->jobs[slot].get();
    if (job == nullptr) continue;
    job->waking.advance(job->tensors, looks, [](TensorSlots& slots, uint32_t index) {
      slots.quorum().wake_open(slots, index);
    });
    if (!job->replacements.pending() || !job->replacements.advance(job->tensors, looks, out)) {
      continue;
    }
    out.job = JobSlot(static_cast<uint16_t>(slot));
    Member& member = job->members[out.worker.value];
    member.admitted = --member.replacing == 0;
    return true;
  }
  state_->is_replacing = std::any_of(state_->jobs.begin(), state_->jobs.end(),
                                     [](const auto& job) { return job && job->walks(); });
  return false;
}

bool Aggregator::is_replacing() const noexcept { return state_->is_replacing; }

void Aggregator::withdraw(JobSlot job, Rank worker) noexcept {
  JobSums* const owner = state_->find(job);
  if (owner == nullptr || worker.value >= owner->members.size()) return;
  erase(owner->live, worker);
  if (owner->quorum.exists()) {
    owner->waking = ChunkWalk(owner->tensors);
    state_->is_replacing = true;
  }
  owner->watch.restart();
  state_->next_stall_ns = std::min(state_->next_stall_ns, owner->watch.due_ns());
  owner->hopeless.restart();
  state_->seeks_hopeless = state_->seeks_hopeless || owner->hopeless.pending();
}

void Aggregator::end_admission(JobSlot job) noexcept {
  JobSums* const owner = state_->find(job);
  if (owner == nullptr) return;
  owner->hopeless.begin();
  state_->seeks_hopeless = true;
}

bool Aggregator::take_hopeless(uint32_t& looks, HopelessRound& out) noexcept {
  if (!state_->seeks_hopeless) return false;
  bool found = false;
  state_->seeks_hopeless = false;
  for (size_t slot = 0; slot < state_->jobs.size(); ++slot) {
    JobSums* const job = state_->jobs[slot].get();
    if (job == nullptr || !job->hopeless.pending()) continue;
    if (!found) {
      out.job = JobSlot(static_cast<uint16_t>(slot));
      found = job->hopeless.take(job->tensors, job->live, looks, out);
    }
    state_->seeks_hopeless = state_->seeks_hopeless || job->hopeless.pending();
  }
  return found;
}

bool Aggregator::seeks_hopeless() const noexcept { return state_->seeks_hopeless; }

bool Aggregator::take_overdue(uint64_t now_ns, uint32_t& looks, OverdueChunk& out,
                              const JobFilter& those) noexcept {
  if (state_->quorum_jobs == 0) return false;
  for (size_t tried = 0; looks > 0 && tried < state_->jobs.size(); ++tried) {
    const size_t slot = state_->next_overdue++ % state_->jobs.size();
    JobSums* const job = state_->jobs[slot].get();
    if (job == nullptr || !those(JobSlot(static_cast<uint16_t>(slot)))) continue;
    out.job = JobSlot(static_cast<uint16_t>(slot));
    if (job->quorum.take_overdue(now_ns, state_->port, looks, out)) return true;
  }
  return false;
}

uint64_t Aggregator::next_overdue_ns(const JobFilter& those) const noexcept {
  uint64_t next_ns = kNever;
  if (state_->quorum_jobs == 0) return next_ns;
  for (size_t slot = 0; slot < state_->jobs.size(); ++slot) {
    const JobSums* const job = state_->jobs[slot].get();
    if (job == nullptr || !those(JobSlot(static_cast<uint16_t>(slot)))) continue;
    next_ns = std::min(next_ns, job->quorum.next_due_ns());
  }
  return next_ns;
}

bool Aggregator::take_stalled(uint64_t now_ns, uint32_t& looks, StalledChunk& out) noexcept {
  if (now_ns < state_->next_stall_ns) return false;
  bool found = false;
  state_->next_stall_ns = kNever;
  for (size_t slot = 0; slot < state_->jobs.size(); ++slot) {
    JobSums* const job = state_->jobs[slot].get();
    if (job == nullptr) continue;
    if (!found && looks > 0 && job->watch.due_ns() <= now_ns) {
      out.job = JobSlot(static_cast<uint16_t>(slot));
      found = job->watch.look(job->tensors, job->live, now_ns, looks, out);
    }
    state_->next_stall_ns = std::min(state_->next_stall_ns, job->watch.due_ns());
  }
  return found;
}

Round Aggregator::open_round(JobSlot job, TensorIndex tensor, ChunkIndex chunk) const noexcept {
  const TensorSlots& slots = state_->find(job)->tensors.at(tensor);
  return slots.round_of(slots.index_of(chunk));
}

uint64_t Aggregator::next_stall_ns() const noexcept { return state_->next_stall_ns; }

Pushed Aggregator::push(const Contribution& contribution) noexcept {
  JobSums* const owner = state_->find(contribution.job);
  if (owner == nullptr) return {PushVerdict::kUnknownTensor, {}};
  if (contribution.worker.value >= owner->members.size()) return {PushVerdict::kBadWorker, {}};
  const Member& member = owner->members[contribution.worker.value];
  if (!member.admitted || member.incarnation != contribution.incarnation) {
    const bool soon = member.replacing > 0 && member.incarnation == contribution.incarnation;
    return {soon ? PushVerdict::kSlotBusy : PushVerdict::kBadIncarnation, {}};
  }
  TensorSlots* const slots = owner->tensors.find(contribution.tensor);
  if (slots == nullptr) return {PushVerdict::kUnknownTensor, {}};
  const PushVerdict verdict = slots->push(contribution, state_->port);
  if (owner->hopeless.ending() && verdict == PushVerdict::kAdded) {
    owner->hopeless.note(*slots, slots->index_of(contribution.chunk), owner->live);
    state_->seeks_hopeless = state_->seeks_hopeless || owner->hopeless.pending();
  }
  return {verdict, slots->tensor_index};
}

bool Aggregator::result(JobSlot job, const ChunkKey& key, ChunkResult& out) noexcept {
  JobSums* const owner = state_->find(job);
  return owner != nullptr && owner->tensors.has(key.tensor) &&
         owner->tensors.at(key.tensor).result(key.round, key.chunk, out);
}

uint32_t Aggregator::tensor_count(JobSlot job) const noexcept {
  const JobSums* const owner = state_->find(job);
  return owner == nullptr ? 0 : owner->tensors.size();
}

const AggregationTensor& Aggregator::tensor(JobSlot job, TensorIndex index) const noexcept {
  return state_->find(job)->tensors.at(index).memory().spec();
}

uint64_t Aggregator::memory_bytes(JobSlot job) const noexcept {
  const JobSums* const owner = state_->find(job);
  return owner == nullptr ? 0 : owner->memory_bytes;
}

uint64_t Aggregator::memory_bytes() const noexcept { return state_->memory_bytes; }
uint64_t Aggregator::unmapped_bytes() const noexcept { return state_->unmapped_bytes; }

}  // namespace mercury
