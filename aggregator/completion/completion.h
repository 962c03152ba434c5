// What completes a chunk's round: one rule per tensor, chosen when it is declared.
//
// A rule says when a contribution is added and when the round ends. TensorSlots asks it, and knows
// one by name: Quorum, which time completes from outside (TensorSlots::quorum). All's functions are
// what each has. A rule is copied while its tensor is declared and stays where it is from the first
// push on; what it keeps per chunk lies in the tensor's memory.
#pragma once

#include <variant>

#include "aggregator/completion/all.h"
#include "aggregator/completion/in_order.h"
#include "aggregator/completion/quorum.h"
#include "aggregator/finish/finish.h"

namespace mercury::aggregation {

using CompletionRule = std::variant<All, InOrder, Quorum>;

// What the terms of the job ask for. `quorum` outlives it.
inline CompletionRule rule_of(const AggregationTensor& spec, const AggregationJob& job,
                              JobQuorum& quorum, const Finish& finish) noexcept {
  if (quorum.exists()) return Quorum(spec, job.workers, quorum);
  if (job.terms.deterministic && InOrder::matters(spec, job.workers)) {
    return InOrder(spec, job.workers);
  }
  return All(job.workers, std::visit([](const auto& any) { return any.kNeededAlone; }, finish));
}

}  // namespace mercury::aggregation
