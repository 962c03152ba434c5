// The independent reference: what every program contributed, and which sums may come of it. Plain
// arithmetic (tests/aggregator/reference.h); it shares no code with the aggregator.
//
// A program that opens a job is an instance of its rank, and its gradients differ from those of all
// other instances, rounds, tensors, ranks and jobs. A sum is right if it is the sum of one instance
// per rank, and all sums that a program gets name the same instances: those that are in the job
// with it. Where a job waits for lost workers, a rank's instances follow each other within it: then
// each element may hold another of them, as a round that one began another completes. In jobs with
// a quorum an element may lack workers, but not too many, and only those that the result says.
//
// Shape: gradients are integers small enough that every order of addition gives the same bits,
// except in deterministic jobs, where they are fractions and the order is that of the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/disaster/scenario.h"

namespace mercury::disaster {

class Ledger {
 public:
  explicit Ledger(const Scenario& scenario);

  // A program joined job `job` as `rank`: the number of the instance.
  uint32_t enrol(uint32_t job, uint32_t rank);
  // Writes the gradient, and notes that it may be summed from now on.
  void contribute(uint32_t job, uint32_t rank, uint32_t instance, uint32_t tensor, uint32_t round,
                  std::span<std::byte> out);

  // With whom an instance is in a job: by rank, nothing while unknown.
  using Company = std::vector<std::optional<uint32_t>>;
  // Who is missing in some elements, and in all: sets of ranks.
  struct Absent {
    uint64_t in_some = 0;
    uint64_t in_all = 0;
  };
  // Whether `sum` is what `company` contributed; fills in what is unknown of it. Else what is
  // wrong.
  std::optional<std::string> check(uint32_t job, uint32_t tensor, uint32_t round,
                                   std::span<const std::byte> sum, Company& company,
                                   const Absent& absent);
  // After an error: every element is still the own gradient, or already the sum, but for those of
  // `damaged` chunks at most.
  std::optional<std::string> check_unfinished(uint32_t job, uint32_t rank, uint32_t instance,
                                              uint32_t tensor, uint32_t round,
                                              std::span<const std::byte> memory, Company company,
                                              uint64_t damaged);
  uint64_t sums_checked() const { return sums_checked_; }

 private:
  struct Instance {
    std::map<uint32_t, uint32_t> rounds;  // by tensor: the last that it contributed to
  };
  static constexpr uint32_t kNobody = ~uint32_t{0};
  using Instances = std::vector<uint32_t>;  // one per rank, or kNobody

  std::vector<std::byte> gradient(uint32_t job, uint32_t rank, uint32_t instance, uint32_t tensor,
                                  uint32_t round) const;
  const std::vector<std::byte>& expected(uint32_t job, uint32_t tensor, uint32_t round,
                                         const Instances& instances);
  // Who may have contributed as `rank`, the latest first.
  std::vector<uint32_t> candidates(uint32_t job, uint32_t rank, uint32_t tensor, uint32_t round,
                                   const Company& company) const;
  // Whether workers may be missing, or have several lives, in one sum.
  bool elements_differ(uint32_t job) const {
    return scenario_.jobs[job].rejoin_ns > 0 || scenario_.jobs[job].quorum > 0;
  }
  template <class F>
  bool any_combination(uint32_t job, uint32_t tensor, uint32_t round, const Company& company,
                       const Absent& absent, F matches);
  // Offsets of the elements that are neither a sum of instances that some choice makes, nor
  // `own`'s.
  std::vector<size_t> unexplained(uint32_t job, uint32_t tensor, uint32_t round,
                                  std::span<const std::byte> sum, std::span<const std::byte> own,
                                  const Company& company, const Absent& absent);
  std::string explain(uint32_t job, uint32_t tensor, uint32_t round, std::span<const std::byte> sum,
                      const Company& company, const Absent& absent);

  const Scenario& scenario_;
  std::vector<std::vector<std::vector<Instance>>> instances_;  // by job, rank
  struct Key {
    uint32_t job, tensor, round;
    Instances instances;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::vector<std::byte>> sums_;
  uint64_t sums_checked_ = 0;
};

}  // namespace mercury::disaster
