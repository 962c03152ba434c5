#include "shim/runtime/job_drain.h"

namespace mercury {

JobDrain::JobDrain(const command::AddServerJob& job, const std::vector<command::AddTensor>& tensors,
                   const Aggregator& aggregator)
    : job_(job.job) {
  // In the order in which they were added; without those that have no chunks on this engine.
  auto tensor = tensors.begin();
  for (const TensorRound& at : aggregator.open_rounds(job.job)) {
    while (tensor != tensors.end() && tensor->tensor != at.tensor) ++tensor;
    if (tensor == tensors.end()) return;
    const uint32_t elems =
        chunk_elems(tensor->chunk_bytes, static_cast<uint32_t>(size_of(tensor->dtype)));
    const uint32_t chunks = chunk_count(tensor->numel, elems);
    parts_.push_back({at.tensor, shard_span(at.tensor, chunks, job.shard, job.shards), at.round});
  }
}

bool JobDrain::done(Aggregator& aggregator, Aggregator::PinBusy busy, void* context,
                    uint32_t& looks) noexcept {
  for (; part_ < parts_.size(); ++part_, chunk_ = 0) {
    const Part& part = parts_[part_];
    for (; chunk_ < part.chunks.count; ++chunk_) {
      if (looks == 0) return false;
      --looks;
      // A chunk has the results of the last two rounds that are complete in it, and chunks of one
      // tensor are one round apart at most.
      for (uint32_t ago = 0; ago <= 2; ++ago) {
        ChunkResult result;
        if (aggregator.result(job_, part.tensor, part.open_round - ago, part.chunks.first + chunk_,
                              result) &&
            busy(context, *result.pin)) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace mercury
