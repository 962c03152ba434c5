#include "scheduler/model/predict.h"

#include <algorithm>
#include <limits>

#include "scheduler/model/equations.h"
#include "scheduler/model/link.h"

namespace mercury::model {
namespace {

uint32_t rank_of(const Layer& layer, const Policy& policy) {
  return policy.order == Policy::Order::kPriority ? layer.priority : 0;
}

// The uplink of a policy that releases whole tensors.
std::vector<Span> send_tensors(const Chain& chain, const Times& ready, const Policy& policy,
                               double rate) {
  std::vector<Arrival> arrivals;
  for (size_t l = chain.size(); l-- > 0;) {
    arrivals.push_back({ready[l], chain[l].wire_bytes / rate, static_cast<uint32_t>(l),
                        rank_of(chain[l], policy)});
  }
  return serve(arrivals);
}

// When the last byte of each layer was sent; spans are in the order of time.
Times last_ends(const Chain& chain, const std::vector<Span>& spans) {
  Times ends(chain.size());
  for (const Span& span : spans) ends[span.layer] = span.end_s;
  return ends;
}

// What the servers have to send back, and from when on. A chunk can go while more of its span
// comes in: as the downlink is the slower one here, it never waits for the rest, so that the whole
// span can be taken as there when its first byte is.
std::vector<Arrival> answers(const Chain& chain, Rates rates, const Policy& policy,
                             const std::vector<Span>& up, const Times& pushed) {
  const bool fifo = policy.release == Policy::Release::kPartition;
  std::vector<Arrival> arrivals;
  for (const Span& span : up) {
    const uint32_t rank = fifo ? 0 : rank_of(chain[span.layer], policy);
    const double pull_s = (span.end_s - span.begin_s) * rates.push / rates.pull;
    if (policy.forward == Policy::Forward::kChunk) {
      arrivals.push_back({span.begin_s, pull_s, span.layer, rank});
    } else if (policy.forward == Policy::Forward::kPartition) {
      arrivals.push_back({span.end_s, pull_s, span.layer, rank});
    }
  }
  if (policy.forward != Policy::Forward::kTensor) return arrivals;
  for (size_t l = chain.size(); l-- > 0;) {
    arrivals.push_back({pushed[l], chain[l].wire_bytes / rates.pull, static_cast<uint32_t>(l),
                        fifo ? 0 : rank_of(chain[l], policy)});
  }
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at_s < b.at_s; });
  return arrivals;
}

Times pull(const Chain& chain, Rates rates, const Policy& policy, const std::vector<Span>& up,
           const Times& pushed) {
  if (!policy.pulls_share_link) return wfbp_pulled(pushed, transfer_times(chain, rates.pull));
  // Equation 8: what arrives is passed on at once, and the downlink keeps up.
  if (policy.forward == Policy::Forward::kChunk && rates.pull >= rates.push) return pushed;
  return last_ends(chain, serve(answers(chain, rates, policy, up, pushed)));
}

Status check(const Chain& chain, Rates rates, const Policy& policy) {
  if (chain.empty() || chain.size() >= std::numeric_limits<uint32_t>::max()) {
    return Error(Errc::kInvalidArgument, "a chain of at least one layer is needed");
  }
  if (!(rates.push > 0 && rates.pull > 0)) {
    return Error(Errc::kInvalidArgument, "rates above zero are needed");
  }
  if (Status sensible = check_policy(policy); !sensible) return sensible;
  Policy known = policy;
  known.answers = Policy().answers;
  known.grants = Policy().grants;
  known.unit_bytes = Policy().unit_bytes;
  known.place = Policy().place;
  if (policy != known) {
    return Error(Errc::kUnsupported,
                 "the equations know no answers, grants, unit and place: ask the simulation");
  }
  if (policy.release != Policy::Release::kPartition) return {};
  const uint64_t partitions = partition_count(chain, policy.partition_bytes);
  if (partitions <= kMaxPartitions) return {};
  return Error(Errc::kLimit, std::to_string(partitions) + " partitions, more than " +
                                 std::to_string(kMaxPartitions) + ": make them larger");
}

}  // namespace

Result<Prediction> predict(const Chain& chain, Rates rates, const Policy& policy) {
  if (Status ok = check(chain, rates, policy); !ok) return ok.error();
  const Times ready = backward_ends(chain);
  const std::vector<Span> up = policy.release == Policy::Release::kPartition
                                   ? send_partitions(chain, ready, policy, rates.push)
                                   : send_tensors(chain, ready, policy, rates.push);
  const Times pushed = last_ends(chain, up);
  const Times pulled = pull(chain, rates, policy, up, pushed);
  Prediction prediction;
  prediction.iteration_s = forward_ends(chain, pulled).back();
  for (size_t l = 0; l < chain.size(); ++l) {
    prediction.layers.push_back({ready[l], pushed[l], pulled[l]});
  }
  double busy_s = 0;
  for (const Span& span : up) busy_s += span.end_s - span.begin_s;
  prediction.push_begin_s = up.front().begin_s;
  prediction.push_end_s = up.back().end_s;
  const double phase_s = prediction.push_end_s - prediction.push_begin_s;
  prediction.uplink_busy = phase_s > 0 ? busy_s / phase_s : 1;
  return prediction;
}

}  // namespace mercury::model
