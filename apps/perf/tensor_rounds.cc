#include "apps/perf/tensor_rounds.h"

#include <cerrno>
#include <utility>

#include "apps/interruption.h"
#include "apps/replay/clock.h"
#include "apps/replay/tensors.h"

namespace mercury::perf {
namespace {

// How long a wait goes without a look at whether a signal has come.
constexpr int kLookMs = 100;

}  // namespace

TensorRounds::TensorRounds(const Trace& trace, mercury_job* job, uint32_t first_id,
                           PayloadWork work)
    : trace_(&trace),
      job_(job),
      first_id_(first_id),
      work_(std::move(work)),
      exchanges_(trace.tensors.size()),
      round_(trace.tensors.size()) {}

Result<TensorRounds> TensorRounds::create(const Trace& trace, mercury_context* context,
                                          mercury_job* job, uint32_t first_id) {
  auto memory = allocate_tensors(trace, context);
  if (!memory) return memory.error();
  if (Status declared = declare_tensors(trace, *memory, job, first_id); !declared) {
    return declared.error();
  }
  PayloadWork work(trace, std::move(*memory), static_cast<uint32_t>(mercury_job_get_workers(job)),
                   static_cast<uint32_t>(mercury_job_get_rank(job)), true);
  return TensorRounds(trace, job, first_id, std::move(work));
}

Status TensorRounds::run(uint64_t rounds, bool check, Latencies latencies) {
  latencies_ = latencies;
  check_ = check;
  if (check) {
    ++round_[0];
    round_.assign(round_.size(), round_[0]);
    work_.fill_all(round_[0]);
  }
  // Completions are seen as they come, not in the order in which they are waited for.
  const auto callback = [](const mercury_completion* completion, void* rounds_of_these) {
    static_cast<TensorRounds*>(rounds_of_these)->on_completion(*completion);
  };
  if (mercury_job_set_callback(job_, callback, this) < 0) {
    return Error(Errc::kSystem, mercury_last_error());
  }
  // As a backward pass does: the last layer first.
  for (auto tensor = static_cast<uint32_t>(exchanges_.size()); tensor-- > 0 && failed_;) {
    exchanges_[tensor].left = rounds;
    failed_ = push(tensor);
  }
  if (failed_) failed_ = wait();
  mercury_job_set_callback(job_, nullptr, nullptr);
  return failed_;
}

Status TensorRounds::push(uint32_t tensor) {
  Exchange& exchange = exchanges_[tensor];
  mercury_operation operation{};
  operation.size = sizeof operation;
  operation.kind = MERCURY_OPERATION_PUSH_PULL;
  operation.tensor = first_id_ + tensor;
  operation.priority = MERCURY_DEFAULT_PRIORITY;
  operation.user_data = tensor;
  exchange.begin_ns = monotonic_ns();
  if (mercury_submit(job_, &operation, 1) < 0) {
    return Error(Errc::kSystem, "cannot push tensor " + trace_->tensors[tensor].name + ": " +
                                    mercury_last_error());
  }
  exchange.handle = operation.handle;
  return {};
}

void TensorRounds::on_completion(const mercury_completion& completion) {
  const uint64_t now_ns = monotonic_ns();
  const auto tensor = static_cast<uint32_t>(completion.user_data);
  Exchange& exchange = exchanges_[tensor];
  exchange.handle = 0;
  if (completion.status < 0) {
    if (failed_) failed_ = Error(Errc::kSystem, completion.message);
    return;
  }
  const uint64_t taken_ns = now_ns - exchange.begin_ns;
  if (latencies_.all != nullptr) latencies_.all->record(taken_ns);
  if (latencies_.first != nullptr && tensor == 0) latencies_.first->record(taken_ns);
  --exchange.left;
  if (check_) {
    work_.add(tensor, round_[tensor]++, exchange.left == 0);
    work_.finish(tensor);
  }
  if (exchange.left > 0 && failed_) failed_ = push(tensor);
}

Status TensorRounds::wait() {
  for (size_t tensor = 0; tensor < exchanges_.size();) {
    if (!failed_) return failed_;
    if (interrupted()) return Error(Errc::kClosed, "interrupted by " + interruption_name());
    if (exchanges_[tensor].left == 0) {
      ++tensor;
      continue;
    }
    const int status = mercury_wait(job_, exchanges_[tensor].handle, kLookMs);
    if (status < 0 && status != -ETIMEDOUT && failed_) {
      return Error(Errc::kSystem, mercury_last_error());
    }
  }
  return failed_;
}

}  // namespace mercury::perf
