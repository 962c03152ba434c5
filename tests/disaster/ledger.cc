#include "tests/disaster/ledger.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "tests/aggregator/reference.h"
#include "transport/base/random.h"

namespace mercury::disaster {
namespace {

constexpr size_t kMaxKeptSums = 64;  // each is needed until the slowest worker has it
constexpr size_t kMaxCandidates = 4;

// Integers whose sums of a few workers every type holds exactly.
int64_t small_integer(uint64_t random, Dtype dtype) {
  const int bits = dtype == Dtype::kBf16 ? 5 : dtype == Dtype::kF16 ? 7 : 19;
  return static_cast<int64_t>(random >> (64 - bits)) - (int64_t{1} << (bits - 1));
}

// Of the few integers that a half's gradients are, found once.
template <const reference::HalfFormat& kFormat>
uint16_t half_of(int64_t number) {
  static const std::vector<uint16_t> kHalves = [] {
    std::vector<uint16_t> halves;
    for (int i = -64; i < 64; ++i) {
      halves.push_back(reference::nearest_half(static_cast<float>(i), kFormat));
    }
    return halves;
  }();
  return kHalves[static_cast<size_t>(number + 64)];
}

// A fraction with all bits of its mantissa in use, so that the order of addition shows.
double fraction(uint64_t random, Dtype dtype) {
  const int bits = dtype == Dtype::kBf16  ? 8
                   : dtype == Dtype::kF16 ? 11
                   : dtype == Dtype::kF32 ? 24
                                          : 53;
  const auto mantissa = static_cast<double>(random >> (64 - bits));
  // A power of two, so that the product is exact.
  const double scale = static_cast<double>(uint64_t{1} << (random >> 1 & 7)) /
                       static_cast<double>(uint64_t{1} << bits);
  return ((random & 1) != 0 ? mantissa : -mantissa) * scale;
}

template <Dtype kType>
void fill(std::span<std::byte> out, uint64_t base, bool fractions) {
  using A = reference::Arithmetic<kType>;
  using Wire = typename A::Wire;
  for (size_t i = 0; i < out.size() / sizeof(Wire); ++i) {
    uint64_t state = base + i;
    const uint64_t random = split_mix(state);
    Wire value;
    if constexpr (kType == Dtype::kI32 || kType == Dtype::kI64) {
      value = static_cast<Wire>(random);
    } else {
      constexpr bool kF16 = kType == Dtype::kF16;
      if constexpr (kF16 || kType == Dtype::kBf16) {
        constexpr const reference::HalfFormat& kFormat =
            kF16 ? reference::kF16Format : reference::kBf16Format;
        value = fractions
                    ? reference::nearest_half(static_cast<float>(fraction(random, kType)), kFormat)
                    : half_of<kFormat>(small_integer(random, kType));
      } else {
        value = static_cast<Wire>(fractions ? fraction(random, kType)
                                            : static_cast<double>(small_integer(random, kType)));
      }
    }
    std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
  }
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

Ledger::Ledger(const Scenario& scenario) : scenario_(scenario) {
  for (const JobPlan& job : scenario.jobs) {
    instances_.emplace_back(job.worker_hosts.size());
  }
}

uint32_t Ledger::enrol(uint32_t job, uint32_t rank) {
  instances_[job][rank].emplace_back();
  return static_cast<uint32_t>(instances_[job][rank].size() - 1);
}

std::vector<std::byte> Ledger::gradient(uint32_t job, uint32_t rank, uint32_t instance,
                                        uint32_t tensor, uint32_t round) const {
  const JobPlan& plan = scenario_.jobs[job];
  const TensorPlan& t = plan.tensors[tensor];
  uint64_t base = scenario_.seed;
  for (uint64_t part : {job, rank, instance, tensor, round}) {
    base ^= part + 1;
    base = split_mix(base);
  }
  std::vector<std::byte> out(t.numel * size_of(t.dtype));
  reference::with_type(t.dtype, [&]<Dtype kType>() { fill<kType>(out, base, plan.deterministic); });
  return out;
}

void Ledger::contribute(uint32_t job, uint32_t rank, uint32_t instance, uint32_t tensor,
                        uint32_t round, std::span<std::byte> out) {
  const std::vector<std::byte> values = gradient(job, rank, instance, tensor, round);
  std::memcpy(out.data(), values.data(), values.size());
  instances_[job][rank][instance].rounds[tensor] = round;
}

const std::vector<std::byte>& Ledger::expected(uint32_t job, uint32_t tensor, uint32_t round,
                                               const Instances& instances) {
  const Key key{job, tensor, round, instances};
  if (const auto known = sums_.find(key); known != sums_.end()) return known->second;
  if (sums_.size() >= kMaxKeptSums) {
    // Of the rounds, the oldest is needed least.
    sums_.erase(std::min_element(sums_.begin(), sums_.end(), [](const auto& a, const auto& b) {
      return a.first.round < b.first.round;
    }));
  }
  std::vector<std::vector<std::byte>> gradients;
  for (uint32_t rank = 0; rank < instances.size(); ++rank) {
    if (instances[rank] == kNobody) continue;
    gradients.push_back(gradient(job, rank, instances[rank], tensor, round));
  }
  const TensorPlan& t = scenario_.jobs[job].tensors[tensor];
  const auto divisor =
      t.op == ReduceOp::kAverage ? static_cast<uint32_t>(gradients.size()) : uint32_t{1};
  return sums_.emplace(key, reference::sum_of(t.dtype, gradients, divisor)).first->second;
}

std::vector<uint32_t> Ledger::candidates(uint32_t job, uint32_t rank, uint32_t tensor,
                                         uint32_t round, const Company& company) const {
  if (company[rank]) return {*company[rank]};
  std::vector<uint32_t> found;
  const std::vector<Instance>& all = instances_[job][rank];
  for (size_t i = all.size(); i-- > 0 && found.size() < kMaxCandidates;) {
    const auto last = all[i].rounds.find(tensor);
    if (last != all[i].rounds.end() && last->second >= round) {
      found.push_back(static_cast<uint32_t>(i));
    }
  }
  return found;
}

// Calls matches(instances) for every choice of one candidate per rank, or nobody where that may be,
// until it returns true.
template <class F>
bool Ledger::any_combination(uint32_t job, uint32_t tensor, uint32_t round, const Company& company,
                             const Absent& absent, F matches) {
  const size_t ranks = company.size();
  const size_t fewest = scenario_.jobs[job].quorum > 0 ? scenario_.jobs[job].quorum : ranks;
  std::vector<std::vector<uint32_t>> choices;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    choices.emplace_back();
    if ((absent.in_all >> rank & 1) == 0) {
      choices.back() = candidates(job, rank, tensor, round, company);
    }
    if ((absent.in_some >> rank & 1) != 0) choices.back().push_back(kNobody);
    if (choices.back().empty()) return false;
  }
  std::vector<size_t> at(ranks, 0);
  for (;;) {
    Instances instances;
    for (size_t rank = 0; rank < ranks; ++rank) instances.push_back(choices[rank][at[rank]]);
    const auto nobodies = std::count(instances.begin(), instances.end(), kNobody);
    if (ranks - static_cast<size_t>(nobodies) >= fewest && matches(instances)) return true;
    size_t rank = 0;
    while (rank < ranks && ++at[rank] == choices[rank].size()) at[rank++] = 0;
    if (rank == ranks) return false;
  }
}

std::optional<std::string> Ledger::check(uint32_t job, uint32_t tensor, uint32_t round,
                                         std::span<const std::byte> sum, Company& company,
                                         const Absent& absent) {
  ++sums_checked_;
  if (elements_differ(job)) {
    const Company anyone(company.size());
    if (unexplained(job, tensor, round, sum, {}, anyone, absent).empty()) return std::nullopt;
    return explain(job, tensor, round, sum, anyone, absent);
  }
  const bool right =
      any_combination(job, tensor, round, company, absent, [&](const Instances& instances) {
        if (!equal(sum, expected(job, tensor, round, instances))) return false;
        company.assign(instances.begin(), instances.end());
        return true;
      });
  if (right) return std::nullopt;
  return explain(job, tensor, round, sum, company, absent);
}

std::vector<size_t> Ledger::unexplained(uint32_t job, uint32_t tensor, uint32_t round,
                                        std::span<const std::byte> sum,
                                        std::span<const std::byte> own, const Company& company,
                                        const Absent& absent) {
  const size_t bytes = size_of(scenario_.jobs[job].tensors[tensor].dtype);
  std::vector<size_t> left;
  for (size_t at = 0; at < sum.size(); at += bytes) {
    if (own.empty() || std::memcmp(&own[at], &sum[at], bytes) != 0) left.push_back(at);
  }
  if (left.empty()) return left;
  any_combination(job, tensor, round, company, absent, [&](const Instances& instances) {
    const std::vector<std::byte>& right = expected(job, tensor, round, instances);
    std::erase_if(left, [&](size_t at) { return std::memcmp(&right[at], &sum[at], bytes) == 0; });
    return left.empty();
  });
  return left;
}

std::string Ledger::explain(uint32_t job, uint32_t tensor, uint32_t round,
                            std::span<const std::byte> sum, const Company& company,
                            const Absent& absent) {
  const TensorPlan& plan = scenario_.jobs[job].tensors[tensor];
  const size_t bytes = size_of(plan.dtype);
  std::string text = "tensor " + std::to_string(plan.number) + " round " + std::to_string(round) +
                     ": not the sum of what the workers contributed";
  size_t best = 0;
  bool any = false;
  any_combination(job, tensor, round, company, absent, [&](const Instances& instances) {
    const std::vector<std::byte>& right = expected(job, tensor, round, instances);
    size_t at = 0;
    while (at < right.size() && right[at] == sum[at]) ++at;
    best = std::max(best, at / bytes);
    any = true;
    return false;
  });
  if (!any) return text + "; not every worker has contributed";
  return text + "; wrong from element " + std::to_string(best) + " of " +
         std::to_string(plan.numel) + " on";
}

std::optional<std::string> Ledger::check_unfinished(uint32_t job, uint32_t rank, uint32_t instance,
                                                    uint32_t tensor, uint32_t round,
                                                    std::span<const std::byte> memory,
                                                    Company company, uint64_t damaged) {
  const TensorPlan& plan = scenario_.jobs[job].tensors[tensor];
  const std::vector<std::byte> own = gradient(job, rank, instance, tensor, round);
  if (equal(memory, own)) return std::nullopt;
  company[rank] = instance;
  if (elements_differ(job)) company.assign(company.size(), std::nullopt);
  const Absent anyone{scenario_.jobs[job].quorum > 0 ? ~uint64_t{0} : 0, 0};
  // A chunk is no longer than the frames of any member's host: elements further apart are of
  // several.
  const JobPlan& job_plan = scenario_.jobs[job];
  size_t frame_bytes = std::numeric_limits<size_t>::max();
  for (const auto* hosts : {&job_plan.worker_hosts, &job_plan.server_hosts}) {
    for (const uint32_t host : *hosts) {
      frame_bytes = std::min<size_t>(frame_bytes, scenario_.hosts[host].mtu_bytes);
    }
  }
  uint64_t chunks = 0;
  size_t next = 0;
  for (const size_t at : unexplained(job, tensor, round, memory, own, company, anyone)) {
    if (at < next) continue;
    ++chunks;
    next = frame_bytes > memory.size() - at ? memory.size() : at + frame_bytes;
  }
  if (chunks <= damaged) return std::nullopt;
  return "tensor " + std::to_string(plan.number) + " round " + std::to_string(round) +
         ", which failed, holds neither the gradient nor the sum in " + std::to_string(chunks) +
         " chunks, and " + std::to_string(damaged) + " came damaged";
}

}  // namespace mercury::disaster
