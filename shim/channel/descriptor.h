// What a program asks of an engine, and what it hears of it: what travels in the rings between them
// (channel.h), and what the engine's worker takes and gives (shim/exchange/worker/worker.h).
//
// Plain values. In the rings they have an encoding of their own (channel.cc).
#pragma once

#include <cstdint>

#include "scheduler/terms/chunk.h"
#include "scheduler/terms/worker_set.h"
#include "transport/base/result.h"

namespace mercury {

enum class SubmitOp : uint8_t {
  kPush = 1,
  kPull = 2,
  kPushPull = 3,
  // As kPushPull, but for what this worker contributes of the tensor: nothing; or the rank-th of as
  // many equal parts as there are workers, and zeros beside it where a chunk begins or ends outside
  // (the program's to write). The job's servers must know it (kKnowsParts).
  kReceive = 4,
  kGather = 5,
  // As kPushPull, but that this worker gets its part of the sum (scheduler/terms/part.h), and where
  // a chunk begins or ends outside what is beside it there. The job's servers must know it
  // (kKnowsScatters).
  kScatter = 6,
};
inline constexpr SubmitOp kLastSubmitOp = SubmitOp::kScatter;

struct Submission {
  SubmitOp op = SubmitOp::kPushPull;
  uint16_t priority = 0;
  uint32_t job = 0;  // the program's number for the job (command::AddWorkerJob::client_job)
  TensorId tensor;
  uint64_t cookie = 0;  // comes back in the completion
};

struct Completion {
  uint64_t cookie = 0;
  Errc status = Errc::kOk;
  uint32_t job = 0;
  TensorId tensor;
  Round round;
  // Of a sum, in a job with a quorum: who is missing in this engine's chunks. So many words of each
  // set are said, one for 64 workers; 0: nothing is, and `absent` is of no chunk.
  uint16_t absent_words = 0;
  Absentees absent = Absentees::of_no_chunk();
};

}  // namespace mercury
