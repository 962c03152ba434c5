#include "apps/perf/tensor_sweep.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include "apps/interruption.h"
#include "apps/replay/clock.h"

namespace mercury::perf {
namespace {

constexpr uint32_t kAgreementId = 2'147'483'646;  // the last that a program may use
constexpr int kAwaitMs = 100;                     // between two looks at whether a signal has come
constexpr uint64_t kMostGrowth = 16;  // of the warm-up's rounds from one try to the next

Error job_error(const char* what) {
  return Error(Errc::kSystem, std::string(what) + mercury_last_error());
}

Status signalled() { return Error(Errc::kClosed, "interrupted by " + interruption_name()); }

}  // namespace

std::vector<TensorRow> TensorSweep::run(const std::vector<Trace>& traces) {
  std::vector<TensorRow> rows;
  Status going = declare_agreement();
  if (going) going = compare_options();
  for (const Trace& trace : traces) {
    TensorRow& row = rows.emplace_back();
    row.figures.bytes = options_.model.empty() ? trace.tensors.front().bytes() : trace.bytes();
    row.tensors = trace.tensors.size();
    if (going) {
      going = measure(trace, row);
      if (!going) row.figures.not_measured = going.error().message;
    } else {
      row.figures.not_measured = "not tried after that";
    }
  }
  if (!going && !rows.empty() && rows.front().figures.not_measured == "not tried after that") {
    rows.front().figures.not_measured = going.error().message;
  }
  return rows;
}

Status TensorSweep::declare_agreement() {
  void* memory = nullptr;
  if (mercury_alloc(context_, sizeof *agreement_, &memory) < 0) return job_error("");
  agreement_ = static_cast<int64_t*>(memory);
  mercury_tensor_options tensor{};
  tensor.size = sizeof tensor;
  tensor.id = kAgreementId;
  tensor.numel = 1;
  tensor.dtype = MERCURY_DTYPE_I64;
  tensor.data = memory;
  return mercury_declare(job_, &tensor, 1) < 0 ? Status(job_error("")) : Status();
}

// The same for each worker: who decides by it decides as the others do.
Result<int64_t> TensorSweep::sum_of_all(int64_t value) {
  *agreement_ = value;
  mercury_handle handle = 0;
  if (mercury_push_pull(job_, kAgreementId, MERCURY_DEFAULT_PRIORITY, &handle) < 0) {
    return job_error("");
  }
  int status = 0;
  while ((status = mercury_wait(job_, handle, kAwaitMs)) == -ETIMEDOUT) {
    if (interrupted()) return signalled().error();
  }
  if (status < 0) return job_error("");
  return *agreement_;
}

// Else one would wait for rounds that another does not make, or find his sums wrong.
Status TensorSweep::compare_options() {
  std::string all = options_.model + " " + options_.dtype;
  for (const uint64_t bytes : options_.sizes) all += " " + std::to_string(bytes);
  for (const double number :
       {static_cast<double>(options_.in_flight), options_.size_scale,
        static_cast<double>(options_.repeats), static_cast<double>(options_.time_ns),
        static_cast<double>(options_.warmup_ns), static_cast<double>(options_.rounds),
        options_.check ? 1.0 : 0.0}) {
    all += " " + std::to_string(number);
  }
  // The same of the same text on every machine (FNV-1a), and so small that no sum of them wraps.
  uint64_t hash = 14695981039346656037U;
  for (const char c : all) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  const auto own = static_cast<int64_t>(hash >> 16);
  const Result<int64_t> sum = sum_of_all(own);
  if (!sum) return sum.error();
  if (*sum == own * mercury_job_get_workers(job_)) return {};
  return Error(
      Errc::kInvalidArgument,
      "the workers were started with different options: all but --rank, --priorities, --json "
      "and where they run must be the same");
}

Status TensorSweep::start_together() {
  int status = 0;
  while ((status = mercury_barrier(job_, kAwaitMs)) == -ETIMEDOUT) {
    if (interrupted()) return signalled();
  }
  return status < 0 ? Status(job_error("")) : Status();
}

// The rounds that a repeat takes. Who is slow makes all warm up for longer.
Result<uint64_t> TensorSweep::warm_up(TensorRounds& exchange) {
  for (uint64_t rounds = 1;;) {
    const uint64_t begin_ns = monotonic_ns();
    if (Status done = exchange.run(rounds, false, {}); !done) return done.error();
    const auto own_ns = static_cast<int64_t>(monotonic_ns() - begin_ns);
    const Result<int64_t> sum_ns = sum_of_all(own_ns);
    if (!sum_ns) return sum_ns.error();
    const uint64_t taken_ns =
        static_cast<uint64_t>(*sum_ns) / static_cast<uint64_t>(mercury_job_get_workers(job_));
    const uint64_t round_ns = std::max<uint64_t>(1, taken_ns / rounds);
    if (taken_ns >= options_.warmup_ns) {
      return options_.rounds > 0 ? options_.rounds
                                 : std::max<uint64_t>(1, options_.time_ns / round_ns);
    }
    rounds = std::clamp(options_.warmup_ns / round_ns + 1, rounds + 1, rounds * kMostGrowth);
  }
}

Status TensorSweep::measure(const Trace& trace, TensorRow& row) {
  auto exchange = TensorRounds::create(trace, context_, job_, next_id_);
  if (!exchange) return exchange.error();
  next_id_ += static_cast<uint32_t>(trace.tensors.size());
  if (Status first = exchange->run(1, true, {}); !first) return first;
  const Result<uint64_t> rounds = warm_up(*exchange);
  if (!rounds) return rounds.error();
  row.rounds = *rounds;
  if (Status done = measure_repeats(*exchange, row); !done) return done;
  if (Status last = exchange->run(1, true, {}); !last) return last;
  const PayloadWork::Found& found = exchange->found();
  row.figures.checked = found.verified_elements - found.mismatches;
  if (found.mismatches > 0) {
    row.figures.not_measured = std::to_string(found.mismatches) + " wrong sums of " +
                               std::to_string(found.verified_elements) + ": " + found.first;
  }
  return {};
}

Status TensorSweep::measure_repeats(TensorRounds& exchange, TensorRow& row) {
  Figures& figures = row.figures;
  const uint64_t round_bytes = options_.model.empty() ? figures.bytes * row.tensors : figures.bytes;
  if (CostSample now = meter_.sample(); true) figures.costs = now.since(now);
  for (int repeat = 0; repeat < options_.repeats; ++repeat) {
    progress_(size_text(figures.bytes) + ", repeat " + std::to_string(repeat + 1) + " of " +
              std::to_string(options_.repeats));
    if (Status together = start_together(); !together) return together;
    const CostSample before = meter_.sample();
    const uint64_t begin_ns = monotonic_ns();
    if (Status done = exchange.run(row.rounds, options_.check, {&figures.latency, &row.first});
        !done) {
      return done;
    }
    const uint64_t end_ns = monotonic_ns();
    const double seconds = static_cast<double>(end_ns - begin_ns) * 1e-9;
    row.repeats_ns.emplace_back(begin_ns, end_ns);
    figures.costs.add(meter_.sample().since(before));
    const uint64_t operations = row.rounds * row.tensors, bytes = row.rounds * round_bytes;
    figures.operations += operations;
    figures.total_bytes += bytes;
    figures.gbit_per_s.values.push_back(static_cast<double>(bytes) * 8e-9 / seconds);
    figures.operations_per_s.values.push_back(static_cast<double>(operations) / seconds);
  }
  return {};
}

}  // namespace mercury::perf
