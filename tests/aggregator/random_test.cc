// Workers that follow the protocol, over a network that delays, repeats, reorders and damages, with
// restarts: every verdict and every bit is compared with a model that remembers everything.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/aggregator/harness.h"
#include "tests/aggregator/reference.h"

namespace mercury {
namespace {

struct Message {
  uint32_t worker;
  uint32_t incarnation;
  uint32_t step;  // round - first round
  uint32_t chunk;
  Bytes elements;
};

// What a chunk's contributions add up to, by definition.
struct ModelChunk {
  uint32_t steps_done = 0;
  std::set<uint32_t> in;              // of the open round
  std::vector<Message> order;         // as they were counted
  std::map<uint32_t, Bytes> results;  // by step
};

class World {
 public:
  World(uint64_t seed, Dtype type)
      : random_(seed),
        type_(type),
        workers_(1 + pick(5)),
        deterministic_(pick(2) == 0),
        op_(pick_op()),
        lacunae_(pick(2) == 0),
        first_round_(pick(2) == 0 ? 1 : 0xfffffff8),
        numel_(1 + pick(90)),
        chunk_elems_(1 + pick(40)),
        bench_(static_cast<uint16_t>(workers_), deterministic_) {
    chunks_.resize((numel_ + chunk_elems_ - 1) / chunk_elems_);
    bench_.add_tensor(numel_, chunk_elems_, type, op_, first_round_);
    for (uint32_t w = 0; w < workers_; ++w) incarnations_.push_back(incarnation_of(w));
    steps_.assign(workers_, 0);
    for (uint32_t w = 0; w < workers_; ++w) send_round(w);
  }

  void run(uint32_t steps) {
    uint64_t deliveries = 0;
    while (!testing::Test::HasFatalFailure() && chunks_[0].steps_done < steps) {
      ASSERT_LT(++deliveries, 200000U) << "stuck";
      const uint32_t event = pick(100);
      if (event == 0 && pick(20) == 0) restart(pick(workers_));
      deliver(sent_[pick_message()], event > 80);
      for (uint32_t w = 0; w < workers_; ++w) advance(w);
    }
  }

 private:
  ReduceOp pick_op() {
    const auto op = static_cast<ReduceOp>(pick(kReduceOpCount));
    return applies(op, type_) ? op : ReduceOp::kSum;
  }
  uint32_t pick(uint64_t below) { return static_cast<uint32_t>(random_() % below); }

  // Mostly of the last rounds, sometimes as old as anything.
  size_t pick_message() {
    const size_t recent = std::min<size_t>(sent_.size(), size_t{workers_} * chunks_.size() * 2);
    return pick(4) == 0 ? pick(sent_.size()) : sent_.size() - 1 - pick(recent);
  }

  uint32_t elems_of(uint32_t chunk) const {
    return std::min(chunk_elems_, numel_ - chunk * chunk_elems_);
  }

  void send_round(uint32_t worker) {
    current_[worker].clear();
    for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      Bytes elements(elems_of(chunk) * size_of(type_));
      for (std::byte& byte : elements) byte = static_cast<std::byte>(random_());
      if (lacunae_ && pick(3) == 0) elements.clear();
      current_[worker].push_back(
          {worker, incarnations_[worker], steps_[worker], chunk, std::move(elements)});
    }
    send_again(worker);
  }
  void send_again(uint32_t worker) {
    sent_.insert(sent_.end(), current_[worker].begin(), current_[worker].end());
  }

  // A restarted worker computes its round again, with other numbers; the others send theirs again,
  // for the chunks that begin anew.
  void restart(uint32_t worker) {
    incarnations_[worker] += 100000;
    replace(bench_.aggregator, Rank(static_cast<uint16_t>(worker)), incarnations_[worker]);
    const bool added = op_ == ReduceOp::kSum || op_ == ReduceOp::kAverage;
    const bool in_order = deterministic_ && !is_integer(type_) && added && workers_ > 2;
    for (ModelChunk& chunk : chunks_) {
      if (!chunk.in.contains(worker)) continue;
      uint32_t turn = 0;
      while (chunk.in.contains(turn)) ++turn;
      const bool alone = in_order && worker > turn;  // it was kept apart
      std::erase_if(chunk.in, [&](uint32_t w) { return !alone || w == worker; });
      std::erase_if(chunk.order, [&](const Message& m) { return !alone || m.worker == worker; });
    }
    send_round(worker);
    for (uint32_t w = 0; w < workers_; ++w) {
      if (w != worker) send_again(w);
    }
  }

  // A worker goes on when it has the whole tensor's result.
  void advance(uint32_t worker) {
    for (const ModelChunk& chunk : chunks_) {
      if (chunk.steps_done <= steps_[worker]) return;
    }
    ++steps_[worker];
    send_round(worker);
  }

  PushVerdict expected(const Message& message, bool damaged) const {
    const ModelChunk& chunk = chunks_[message.chunk];
    if (message.incarnation != incarnations_[message.worker]) return PushVerdict::kBadIncarnation;
    if (message.step < chunk.steps_done) return PushVerdict::kOldRound;
    if (message.step > chunk.steps_done) return PushVerdict::kNewRound;
    if (chunk.in.contains(message.worker)) return PushVerdict::kDuplicate;
    if (damaged) return PushVerdict::kCorrupt;
    return chunk.in.size() + 1 < workers_ ? PushVerdict::kAdded : PushVerdict::kCompleted;
  }

  void deliver(const Message& message, bool damage) {
    Bytes elements = message.elements;
    Contribution c =
        Bench::contribution(message.worker, first_round_ + message.step, message.chunk, elements);
    c.incarnation = message.incarnation;
    if (damage && elements.empty()) c.payload_crc ^= 1U << pick(32);
    if (damage && !elements.empty()) {
      elements[pick(elements.size())] ^= static_cast<std::byte>(1 << pick(8));
    }
    const PushVerdict verdict = expected(message, damage);
    ASSERT_EQ(bench_.aggregator.push(c).verdict, verdict);
    ModelChunk& chunk = chunks_[message.chunk];
    if (verdict == PushVerdict::kAdded || verdict == PushVerdict::kCompleted) {
      chunk.in.insert(message.worker);
      chunk.order.push_back(message);
    }
    if (verdict == PushVerdict::kCompleted) complete(chunk);
    check_results(message.chunk);
  }

  // Of those who had elements.
  Bytes result_of(const std::vector<Bytes>& payloads, uint32_t chunk) const {
    if (payloads.empty()) return Bytes(elems_of(chunk) * size_of(type_));
    if (workers_ == 1) return payloads[0];
    const auto divisor = static_cast<uint32_t>(op_ == ReduceOp::kAverage ? payloads.size() : 1);
    return reference::sum_of(type_, payloads, divisor, op_);
  }

  void complete(ModelChunk& chunk) {
    if (deterministic_) {
      std::sort(chunk.order.begin(), chunk.order.end(),
                [](const Message& a, const Message& b) { return a.worker < b.worker; });
    }
    std::vector<Bytes> payloads;
    for (const Message& message : chunk.order) {
      if (!message.elements.empty()) payloads.push_back(message.elements);
    }
    chunk.results[chunk.steps_done++] = result_of(payloads, chunk.order.front().chunk);
    chunk.in.clear();
    chunk.order.clear();
  }

  // The last result is there, whatever happens to the open round; the open round has none.
  void check_results(uint32_t index) {
    const ModelChunk& chunk = chunks_[index];
    const uint32_t open_round = first_round_ + chunk.steps_done;
    ASSERT_TRUE(bench_.result(open_round, index).empty());
    if (chunk.steps_done > 0) {
      ASSERT_EQ(bench_.result(open_round - 1, index), chunk.results.at(chunk.steps_done - 1));
    }
    if (chunk.steps_done > 1 && chunk.in.empty()) {
      const Bytes before = bench_.result(open_round - 2, index);
      if (!before.empty()) {
        ASSERT_EQ(before, chunk.results.at(chunk.steps_done - 2));
      }
    }
  }

  std::mt19937_64 random_;
  Dtype type_;
  uint32_t workers_;
  bool deterministic_;
  ReduceOp op_;
  bool lacunae_;  // workers contribute nothing at times
  uint32_t first_round_;
  uint32_t numel_;
  uint32_t chunk_elems_;
  Bench bench_;
  std::vector<ModelChunk> chunks_;
  std::vector<uint32_t> incarnations_;
  std::vector<uint32_t> steps_;  // by worker
  std::vector<Message> sent_;
  std::map<uint32_t, std::vector<Message>> current_;  // by worker: its round's
};

class RandomOrder : public testing::TestWithParam<Dtype> {};

TEST_P(RandomOrder, AgreesWithTheModelOverManySeeds) {
  for (uint64_t seed = 1; seed <= 120 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World(seed, GetParam()).run(16);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RandomOrder, testing::ValuesIn(kAllTypes),
                         [](const auto& each) { return std::string(name_of(each.param)); });

}  // namespace
}  // namespace mercury
