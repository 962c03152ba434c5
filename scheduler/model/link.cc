#include "scheduler/model/link.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace mercury::model {
namespace {

// Rank, then arrival.
using Key = std::pair<uint32_t, uint32_t>;
using Waiting = std::priority_queue<Key, std::vector<Key>, std::greater<>>;

class PartitionSender {
 public:
  PartitionSender(const Chain& chain, const Times& ready, const Policy& policy, double rate)
      : chain_(chain), ready_(ready), policy_(policy), rate_(rate), left_bytes_(chain.size()) {
    for (size_t l = 0; l < chain.size(); ++l) left_bytes_[l] = chain[l].bytes;
  }

  std::vector<Span> run() {
    while (true) {
      take_ready();
      take_acknowledged();
      if (waiting_.empty()) {
        if (arrived_ == chain_.size()) return std::move(spans_);
        now_s_ = next_ready();
      } else if (!fits()) {
        // A tensor that becomes ready first may have a partition that fits, and be more urgent.
        now_s_ = std::min(unacknowledged_.front().first, next_ready());
      } else {
        release();
      }
    }
  }

 private:
  // Gradients become ready from the last layer to the first.
  uint32_t layer_of(uint32_t arrival) const {
    return static_cast<uint32_t>(chain_.size()) - 1 - arrival;
  }
  double next_ready() const {
    return arrived_ == chain_.size() ? std::numeric_limits<double>::infinity()
                                     : ready_[layer_of(arrived_)];
  }
  void take_ready() {
    for (; arrived_ < chain_.size() && next_ready() <= now_s_; ++arrived_) {
      const bool priority = policy_.order == Policy::Order::kPriority;
      waiting_.emplace(priority ? chain_[layer_of(arrived_)].priority : 0, arrived_);
    }
  }
  void take_acknowledged() {
    while (!unacknowledged_.empty() && unacknowledged_.front().first <= now_s_) {
      in_flight_bytes_ -= unacknowledged_.front().second;
      unacknowledged_.pop_front();
    }
  }
  uint64_t next_bytes() const {
    return std::min(policy_.partition_bytes, left_bytes_[layer_of(waiting_.top().second)]);
  }
  bool fits() const {
    return unacknowledged_.empty() || in_flight_bytes_ + next_bytes() <= policy_.credit_bytes;
  }

  void release() {
    const uint32_t l = layer_of(waiting_.top().second);
    const uint64_t bytes = next_bytes();
    const double part = chain_[l].bytes == 0
                            ? 1
                            : static_cast<double>(bytes) / static_cast<double>(chain_[l].bytes);
    now_s_ += static_cast<double>(policy_.startup_ns) * 1e-9;
    const double begin_s = std::max(now_s_, link_free_s_);
    link_free_s_ = begin_s + part * chain_[l].wire_bytes / rate_;
    spans_.push_back({begin_s, link_free_s_, l});
    unacknowledged_.emplace_back(link_free_s_, bytes);
    in_flight_bytes_ += bytes;
    left_bytes_[l] -= bytes;
    if (left_bytes_[l] == 0) waiting_.pop();
  }

  const Chain& chain_;
  const Times& ready_;
  const Policy& policy_;
  double rate_;
  std::vector<uint64_t> left_bytes_;  // by layer
  Waiting waiting_;
  uint32_t arrived_ = 0;  // tensors that have become ready
  double now_s_ = 0;      // when the sender is free
  double link_free_s_ = 0;
  std::deque<std::pair<double, uint64_t>> unacknowledged_;  // when it will be, bytes
  uint64_t in_flight_bytes_ = 0;
  std::vector<Span> spans_;
};

}  // namespace

std::vector<Span> serve(std::span<const Arrival> arrivals) {
  std::vector<Span> spans;
  std::vector<double> left_s;
  for (const Arrival& arrival : arrivals) left_s.push_back(arrival.duration_s);
  Waiting waiting;
  uint32_t arrived = 0;
  double now_s = 0;
  while (arrived < arrivals.size() || !waiting.empty()) {
    if (waiting.empty()) now_s = std::max(now_s, arrivals[arrived].at_s);
    for (; arrived < arrivals.size() && arrivals[arrived].at_s <= now_s; ++arrived) {
      waiting.emplace(arrivals[arrived].rank, arrived);
    }
    const uint32_t item = waiting.top().second;
    const double until_s = arrived < arrivals.size() ? arrivals[arrived].at_s
                                                     : std::numeric_limits<double>::infinity();
    const double end_s = now_s + left_s[item];
    const bool done = end_s <= until_s;
    spans.push_back({now_s, std::min(end_s, until_s), arrivals[item].layer});
    left_s[item] -= until_s - now_s;
    if (done) waiting.pop();
    now_s = spans.back().end_s;
  }
  return spans;
}

uint64_t partition_count(const Chain& chain, uint64_t partition_bytes) {
  uint64_t count = 0;
  for (const Layer& layer : chain) {
    count += layer.bytes / partition_bytes + (layer.bytes % partition_bytes != 0 ? 1 : 0);
  }
  return count;
}

std::vector<Span> send_partitions(const Chain& chain, const Times& ready, const Policy& policy,
                                  double rate) {
  return PartitionSender(chain, ready, policy, rate).run();
}

}  // namespace mercury::model
