// What the control plane asks of the gradient exchange in an engine, and what the exchange reports;
// with the engine's own about sessions (transport/engine/session_command.h) the whole of their
// conversation.
//
// Shape: `job` is the host's slot for a job, the same in all its engines. `token` names a session.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/terms/chunk.h"
#include "scheduler/terms/element.h"
#include "scheduler/terms/job_terms.h"
#include "scheduler/terms/worker_set.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/engine/session_command.h"

namespace mercury {

class EngineChannel;  // shim/channel: the engine's end of a program's rings

namespace command {

// Worker side. One AddWorkerJob per engine, then its sessions, each bound by BindShard, then
// tensors by AddTensor: no shard is bound to a job that has tensors.
struct AddWorkerJob {
  JobSlot job;
  Rank rank;
  uint16_t workers = 0;
  uint32_t incarnation = 0;
  // Servers x lanes: how many parts each tensor is cut into (plan.h). Those of a server follow each
  // other.
  uint16_t shards = 0;
  uint16_t server_lanes = 1;
  uint16_t lanes = 1;  // of this host; shards are dealt to them in turn
  JobTerms terms;      // as this worker follows them; with a quorum completions say who is in sums
  uint64_t bytes_per_second = 0;     // that this engine may send of the job; 0 = no limit
  EngineChannel* channel = nullptr;  // where completions go
  uint32_t client_job = 0;           // the program's number for the job on that channel
};
struct BindShard {  // chunks of `shard` travel on the session `token` of this engine
  JobSlot job;
  Shard shard;
  Token token;
};
// Server side.
struct AddServerJob {
  JobSlot job;
  uint16_t workers = 0;
  uint16_t shards = 0;
  Shard shard;  // the one that this engine holds
  uint16_t lanes = 1;
  JobTerms terms;
  uint64_t bytes_per_second = 0;  // that this engine may send of the job; 0 = no limit
  uint64_t memory_limit_bytes = 0;
  uint32_t incarnation = 0;  // of this server
};
struct BindWorker {  // results for worker `rank` travel on the session `token`
  JobSlot job;
  Rank rank;
  uint32_t incarnation = 0;
  Token token;
};
// Both sides. `chunk_bytes` is the job's payload per frame, agreed by all members.
struct AddTensor {
  JobSlot job;
  TensorId tensor;
  uint64_t numel = 0;
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  uint16_t priority = 0;
  uint32_t chunk_bytes = 0;
  std::byte* data = nullptr;  // worker: where gradients are read and sums written; else null
  Round first_round = 1;      // worker: the round that its first push belongs to
  Shard first_shard;          // that has the first of the tensor's ranges (plan.h)
};
// Confirmed follows when all commands before it have been carried out; what failed of them was
// reported before.
struct Confirm {
  JobSlot job;
  uint32_t number = 0;
};
// Worker: ChunksMoved follows.
struct CountChunks {
  JobSlot job;
};
// Server: worker `rank` has a new life. What the last one sends from now on is refused, and what it
// added to chunks that are not complete is taken out; WorkerReplaced follows, then BindWorker.
struct ReplaceWorker {
  JobSlot job;
  Rank rank;
  uint32_t incarnation = 0;
};
// Server: nothing is to be expected of worker `rank` until ReplaceWorker. With a quorum the others'
// sums do not wait for it. `ending`: nobody will be replaced any more, so a round that cannot be
// complete without those that are withdrawn is reported (RoundHopeless) once somebody waits for it.
struct WithdrawWorker {
  JobSlot job;
  Rank rank;
  bool ending = false;
};
// Worker: pushes again what belongs to a round that is not complete and has no sum yet, because a
// server has taken a worker's part out. What the servers still have is dropped there.
struct Refill {
  JobSlot job;
};
// Both sides: another policy from now on. What waits for its release, or for its answer, under the
// one before goes at once, so nothing is lost or sent twice however hosts differ meanwhile.
struct SetPolicy {
  JobSlot job;
  std::string policy;
};
// The job ends in this engine: sessions of the job are closed with `code`, every waiting operation
// completes with it, memory is given back. JobRemoved follows.
struct RemoveJob {
  JobSlot job;
  Errc code = Errc::kClosed;
  std::string text;
};
// Every waiting operation of the job completes with `code`, and later ones at once; the job stays
// until RemoveJob.
struct FailJob {
  JobSlot job;
  Errc code = Errc::kClosed;
};
// Worker: this round of a tensor, and every later one, will never be complete: operations on
// them complete with `code`, waiting ones and later ones. All others go on.
struct FailRounds {
  JobSlot job;
  TensorRound from;
  Errc code = Errc::kPeerLeft;
};

// A program's rings. After DetachChannel the engine does not touch the channel again
// (ChannelDetached follows); it must have no job left.
struct AttachChannel {
  EngineChannel* channel = nullptr;
};
struct DetachChannel {
  EngineChannel* channel = nullptr;
};
}  // namespace command

using Command =
    SessionCommandsAnd<command::AddWorkerJob, command::BindShard, command::AddServerJob,
                       command::BindWorker, command::AddTensor, command::Confirm,
                       command::CountChunks, command::ReplaceWorker, command::WithdrawWorker,
                       command::Refill, command::SetPolicy, command::RemoveJob, command::FailJob,
                       command::FailRounds, command::AttachChannel, command::DetachChannel>;

namespace event {

struct Confirmed {
  JobSlot job;
  uint32_t number = 0;
};
struct ChunksMoved {
  JobSlot job;
  uint64_t chunks = 0;  // of the job that servers have acknowledged, and sums taken, so far
};
struct WorkerReplaced {
  JobSlot job;
  Rank rank;
  uint32_t incarnation = 0;
  // Open rounds of each tensor with chunks in this engine: the lowest and, if it is another, the
  // highest.
  std::vector<TensorRound> rounds;
};
// Server: others have waited too long for these workers (JobTerms::stall_timeout_ms). Again as long
// as they do.
struct WorkersStalled {
  JobSlot job;
  TensorRound at;
  uint64_t waited_ns = 0;
  WorkerSet awaited{};
};
// Server: somebody waits in vain for this round, and whoever pushes a later one (once for each
// tensor, again only with a lower round; WithdrawWorker::ending).
struct RoundHopeless {
  JobSlot job;
  TensorRound at;
  WorkerSet missing{};  // who is gone and has not contributed
};
struct JobRemoved {
  JobSlot job;
};
struct ChannelDetached {
  EngineChannel* channel = nullptr;
};
struct ChannelBroken {  // the program wrote something invalid into its rings
  EngineChannel* channel = nullptr;
  std::string what;
};
struct CommandFailed {  // AddTensor, AddServerJob, ...: memory or limits
  JobSlot job;
  Errc code = Errc::kOk;
  std::string text;
};
}  // namespace event

using Event = SessionEventsAnd<event::Confirmed, event::ChunksMoved, event::WorkerReplaced,
                               event::WorkersStalled, event::RoundHopeless, event::JobRemoved,
                               event::ChannelDetached, event::ChannelBroken, event::CommandFailed>;

}  // namespace mercury
