// A worker's program in virtual time: iterations of a backward pass that hands each gradient to
// Mercury as it is ready, and a forward pass that waits for each sum, updates and computes.
//
// An iteration begins with the backward pass of the last tensor and ends with its forward pass, as
// the model has it (scheduler/model/chain.h); the next begins at once.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/replay/payload.h"
#include "apps/sim/training_cluster.h"
#include "apps/trace/trace.h"
#include "transport/base/mapped_memory.h"
#include "transport/base/random.h"

namespace mercury::simulator {

struct TrainingConfig {
  uint32_t iterations = 4;
  uint32_t warmup = 1;  // of them, not in the figures
  double slowdown = 1;  // of its computing
  double jitter = 0;    // each layer takes up to this share more or less
  bool payload = false;
  bool spans = false;  // keep what a timeline shows
  uint64_t seed = 1;
  // Whether to go on after `iterations`, which count as well: other jobs have not done theirs, and
  // are to share their hosts until they have. May be empty.
  std::function<bool()> goes_on;
};

struct Span {
  enum class Kind : uint8_t { kForward, kBackward, kExchange };
  uint32_t tensor = 0;
  uint32_t iteration = 0;
  uint64_t begin_ns = 0, end_ns = 0;
  Kind kind = Kind::kForward;
};

class TrainingWorker final : public VirtualProgram {
 public:
  struct Iteration {
    uint64_t begin_ns = 0, end_ns = 0;
  };
  struct TensorTimes {  // sums over the iterations that count, from each one's begin
    uint64_t ready_ns = 0, pulled_ns = 0;
  };

  TrainingWorker(const Trace& trace, const TrainingConfig& config, uint32_t workers, uint32_t rank);
  // Of a tensor, before it is declared.
  Result<std::byte*> memory(uint32_t tensor);
  // `number` is its program's in the cluster.
  void begin(TrainingCluster& cluster, uint32_t number);

  void on_time(uint64_t now_ns) override;
  void on_completion(const Completion& completion, uint64_t now_ns) override;
  uint64_t due_ns() const override { return due_ns_; }

  bool finished() const { return done_.size() >= config_.iterations || !status_; }
  const Status& status() const { return status_; }
  const std::vector<Iteration>& iterations() const { return done_; }  // that are over
  const std::vector<TensorTimes>& tensors() const { return times_; }
  const std::vector<Span>& spans() const { return spans_; }
  uint64_t mismatches() const { return mismatches_; }

 private:
  enum class Phase : uint8_t { kBackward, kForward };
  struct TensorState {
    uint64_t ready_ns = 0;
    bool pulled = true;
    std::vector<std::byte> data;  // with payload
  };
  uint32_t iteration() const { return static_cast<uint32_t>(done_.size()); }
  bool counts() const { return iteration() >= config_.warmup; }
  bool stops() const { return finished() && !(status_ && config_.goes_on && config_.goes_on()); }
  uint64_t computing_ns(uint64_t nominal_ns);
  void compute(Span::Kind kind, uint64_t duration_ns, uint64_t now_ns);
  void enter_forward(uint64_t now_ns);
  void push(uint32_t tensor, uint64_t now_ns);

  const Trace& trace_;
  const TrainingConfig config_;
  TrainingCluster* cluster_ = nullptr;
  uint32_t number_ = 0;
  Random random_;
  std::vector<TensorState> state_;
  // Without payload: addresses without memory, the same for all tensors. Who touches them, crashes.
  MappedMemory addresses_;
  std::array<std::optional<Payload>, kDtypeCount> payloads_;
  Phase phase_ = Phase::kBackward;
  uint32_t at_ = 0;  // the tensor that computes, or is waited for
  uint64_t due_ns_ = kNever;
  uint64_t begin_ns_ = 0;  // of the iteration
  std::vector<Iteration> done_;
  std::vector<TensorTimes> times_;
  std::vector<TensorTimes> current_;  // of the iteration that is not over
  std::vector<Span> spans_;
  Status status_;
  uint64_t mismatches_ = 0;
};

}  // namespace mercury::simulator
