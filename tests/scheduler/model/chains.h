// Chains for tests of the model.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/model/chain.h"
#include "scheduler/policy.h"
#include "transport/base/random.h"

namespace mercury::model {

// The paper's assumptions: a lower layer is more urgent. No framing: wire bytes are bytes.
inline Layer layer_of(double backward_s, double forward_s, uint64_t bytes, uint32_t priority,
                      double update_s = 0) {
  return {forward_s, backward_s, update_s, bytes, static_cast<double>(bytes), priority};
}

// Whole numbers of seconds and, at 1000 bytes a second, of sending: sums of them are exact. Zeros
// are frequent, as in traces (biases, embeddings).
inline Chain random_chain(Random& random, uint32_t max_layers, uint64_t max_s = 8) {
  Chain chain;
  const auto layers = static_cast<uint32_t>(1 + random.below(max_layers));
  const auto seconds = [&] {
    return random.chance(0.3) ? 0.0 : static_cast<double>(random.below(max_s));
  };
  for (uint32_t l = 0; l < layers; ++l) {
    chain.push_back(layer_of(seconds(), seconds(), 1000 * random.below(max_s), l, seconds() / 4));
  }
  return chain;
}

inline Policy policy_of(const std::string& text) {
  const Result<Policy> policy = parse_policy(text);
  return policy ? *policy : Policy{};
}

}  // namespace mercury::model
