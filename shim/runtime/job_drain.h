// A server's job that has been removed while its NIC may still read results of it: says when it no
// longer does, looking at each chunk once and at few of them in a pass, so that a large job which
// ends does not keep frames of others waiting.
//
// Invariant: nothing of the job is sent or added any more, so what the NIC is done with stays so.
// Owner/thread: one engine, in its GradientExchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aggregator/aggregator.h"
#include "transport/engine/command.h"
#include "transport/job/plan.h"

namespace mercury {

class JobDrain {
 public:
  // `tensors` as they were added to `aggregator`, in that order; before the job is removed there.
  // Cold: asks once for the rounds that all chunks are in.
  JobDrain(const command::AddServerJob& job, const std::vector<command::AddTensor>& tensors,
           const Aggregator& aggregator);

  JobSlot job() const noexcept { return job_; }
  // Goes on to the first chunk that the NIC reads, or until `looks` of them are used up. True: it
  // reads none of the job's.
  bool done(Aggregator& aggregator, Aggregator::PinBusy busy, void* context,
            uint32_t& looks) noexcept;

 private:
  struct Part {  // of a tensor, on this engine
    uint32_t tensor = 0;
    ChunkSpan chunks;
    uint32_t open_round = 0;  // the lowest of any chunk
  };

  JobSlot job_;
  std::vector<Part> parts_;
  size_t part_ = 0;     // the first that was not looked at to its end
  uint32_t chunk_ = 0;  // of that part, from its first on
};

}  // namespace mercury
