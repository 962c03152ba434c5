// The pending verifying and refilling of tensors, done in slices while a layer "computes": a timed
// layer needs no core, so this work costs the replayed iteration nothing as long as it fits.
// One pass over a tensor compares a block of its sum and puts the next round's gradient in its
// place. Not shared between threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/replay/payload.h"
#include "apps/trace/trace.h"

namespace mercury {

class PayloadWork {
 public:
  struct Found {  // over all tensors and iterations
    uint64_t verified_elements = 0;
    uint64_t mismatches = 0;
    std::string first;  // the first mismatch: tensor, iteration, element, got, expected
  };

  // `memory[t]` holds tensor t of `trace`; both must outlive this.
  PayloadWork(const Trace& trace, std::vector<std::span<std::byte>> memory, uint32_t workers,
              uint32_t rank, bool verify);

  // Writes this worker's contribution to a round of every tensor.
  void fill_all(uint64_t round);
  // Tensor `tensor` holds the sum of `round`: to be verified, and refilled for the next unless this
  // was the `last` round.
  void add(uint32_t tensor, uint64_t round, bool last);
  bool pending() const { return !tasks_.empty(); }
  // A slice of what the backward pass needs first. At most kSliceElements.
  void slice();
  // All that is left of a tensor's work. False if nothing was.
  bool finish(uint32_t tensor);
  void finish_all();

  const Found& found() const { return found_; }

 private:
  // Some 20 us of work, so that a slice ends a layer late by no more than that.
  static constexpr uint64_t kSliceElements = 16 * Payload::kBlock;

  struct Task {
    uint32_t tensor = 0;
    bool last = false;
    uint64_t round = 0, done_elements = 0;
  };
  // True when the task is done.
  bool advance(Task& task, uint64_t elements);
  void note(const Task& task, const Payload::Verdict& verdict);
  const Payload& payload_of(uint32_t tensor) const;

  const Trace& trace_;
  std::vector<std::span<std::byte>> memory_;
  std::array<std::optional<Payload>, kDtypeCount> payloads_;
  std::vector<Task> tasks_;  // a stack: the last layers' gradients are pushed first
  Found found_;
  bool verify_;
};

}  // namespace mercury
