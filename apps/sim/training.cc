#include "apps/sim/training.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <new>

namespace mercury::simulator {
namespace {

// Each worker's own, of each seed's. (Committed figures hold what the first 256 draw.)
uint64_t seed_of(uint64_t seed, uint32_t rank) {
  return seed * 256 + rank % 256 + (uint64_t{rank / 256} << 40);
}

}  // namespace

TrainingWorker::TrainingWorker(const Trace& trace, const TrainingConfig& config, uint32_t workers,
                               uint32_t rank)
    : trace_(trace),
      config_(config),
      random_(seed_of(config.seed, rank)),
      state_(trace.tensors.size()),
      times_(trace.tensors.size()),
      current_(trace.tensors.size()) {
  if (!config.payload) return;
  for (const TraceTensor& tensor : trace.tensors) {
    std::optional<Payload>& payload = payloads_[static_cast<size_t>(tensor.dtype)];
    if (!payload) payload.emplace(tensor.dtype, workers, rank);
  }
}

Result<std::byte*> TrainingWorker::memory(uint32_t tensor) {
  if (config_.payload) {
    try {
      state_[tensor].data.resize(trace_.tensors[tensor].bytes());
    } catch (const std::bad_alloc&) {
      return Error(Errc::kNoMemory, "no memory for tensor '" + trace_.tensors[tensor].name + "'");
    }
    return state_[tensor].data.data();
  }
  if (!addresses_) {
    uint64_t largest = 0;
    for (const TraceTensor& t : trace_.tensors) largest = std::max(largest, t.bytes());
    addresses_ = MappedMemory::anonymous(largest, PROT_NONE, MAP_NORESERVE);
    if (!addresses_) return Error::system(errno, "cannot reserve addresses for a tensor");
  }
  return addresses_.data();
}

void TrainingWorker::begin(TrainingCluster& cluster, uint32_t number) {
  cluster_ = &cluster;
  number_ = number;
  begin_ns_ = cluster.now_ns();
  at_ = static_cast<uint32_t>(state_.size()) - 1;
  compute(Span::Kind::kBackward, trace_.tensors[at_].backward_ns, begin_ns_);
  cluster.set_program(number, *this);
}

uint64_t TrainingWorker::computing_ns(uint64_t nominal_ns) {
  double factor = config_.slowdown;
  if (config_.jitter > 0) factor *= 1 + config_.jitter * (2 * random_.uniform() - 1);
  if (factor == 1) return nominal_ns;
  return static_cast<uint64_t>(std::llround(static_cast<double>(nominal_ns) * factor));
}

void TrainingWorker::compute(Span::Kind kind, uint64_t nominal_ns, uint64_t now_ns) {
  due_ns_ = now_ns + computing_ns(nominal_ns);
  if (config_.spans) spans_.push_back({at_, iteration(), now_ns, due_ns_, kind});
}

// A layer has been computed.
void TrainingWorker::on_time(uint64_t now_ns) {
  due_ns_ = kNever;
  if (phase_ == Phase::kBackward) {
    push(at_, now_ns);
    if (at_ > 0) {
      --at_;
      return compute(Span::Kind::kBackward, trace_.tensors[at_].backward_ns, now_ns);
    }
    phase_ = Phase::kForward;
    return enter_forward(now_ns);
  }
  if (++at_ < state_.size()) return enter_forward(now_ns);
  for (size_t n = 0; counts() && n < times_.size(); ++n) {
    times_[n].ready_ns += current_[n].ready_ns;
    times_[n].pulled_ns += current_[n].pulled_ns;
  }
  done_.push_back({begin_ns_, now_ns});
  if (stops()) return;
  begin_ns_ = now_ns;
  phase_ = Phase::kBackward;
  --at_;
  compute(Span::Kind::kBackward, trace_.tensors[at_].backward_ns, now_ns);
}

void TrainingWorker::enter_forward(uint64_t now_ns) {
  if (!state_[at_].pulled) return;  // on_completion goes on
  const TraceTensor& tensor = trace_.tensors[at_];
  compute(Span::Kind::kForward, tensor.update_ns + tensor.forward_ns, now_ns);
}

void TrainingWorker::push(uint32_t index, uint64_t now_ns) {
  TensorState& tensor = state_[index];
  const TraceTensor& spec = trace_.tensors[index];
  tensor.ready_ns = now_ns;
  tensor.pulled = false;
  current_[index].ready_ns = now_ns - begin_ns_;
  if (config_.payload) {
    payloads_[static_cast<size_t>(spec.dtype)]->fill(index, iteration() + 1, 0, tensor.data);
  }
  cluster_->push_pull(number_, index, spec.priority);
}

void TrainingWorker::on_completion(const Completion& completion, uint64_t now_ns) {
  const uint32_t index = completion.tensor.value;
  TensorState& tensor = state_[index];
  if (completion.status != Errc::kOk) {
    if (status_) {
      const Status why = cluster_->job_status(number_);
      status_ = why ? Error(completion.status,
                            "an exchange of tensor '" + trace_.tensors[index].name + "' failed")
                    : why.error();
    }
    due_ns_ = kNever;
    return;
  }
  tensor.pulled = true;
  current_[index].pulled_ns = now_ns - begin_ns_;
  if (config_.spans) {
    spans_.push_back({index, iteration(), tensor.ready_ns, now_ns, Span::Kind::kExchange});
  }
  if (config_.payload) {
    const auto dtype = static_cast<size_t>(trace_.tensors[index].dtype);
    mismatches_ += payloads_[dtype]->verify(index, iteration() + 1, 0, tensor.data).mismatches;
  }
  if (phase_ == Phase::kForward && index == at_ && due_ns_ == kNever) {
    enter_forward(now_ns);
  }
}

}  // namespace mercury::simulator
