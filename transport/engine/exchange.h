// What the engine asks of the layer above it: where chunks come from and where they go. The runtime
// composes it of scheduler, aggregator and worker (shim/exchange/gradient_exchange.h), so that the
// engine includes none of them.
//
// Owner/thread: the engine's thread calls; all calls are made from within Engine::poll_once.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/engine/command.h"
#include "transport/flow/session.h"
#include "transport/port/port.h"
#include "transport/wire/header.h"

namespace mercury {

// A chunk that leaves now. `header` lacks only session, packet number and (when `pin` is null) the
// payload's CRC. With a pin the payload is shared by several frames and goes out without a copy;
// without one the engine copies it into the frame and sums it in the same pass.
struct OutgoingChunk {
  SessionSlot session;
  JobSlot job;
  wire::Header header;
  std::span<const std::byte> payload;
  PayloadPin* pin = nullptr;
};

inline uint32_t frame_bytes(const OutgoingChunk& chunk) noexcept {
  return static_cast<uint32_t>(sizeof(wire::ChunkHeader) + chunk.payload.size());
}
inline SentTag tag_of(const OutgoingChunk& chunk) noexcept {
  return {chunk.header.type, chunk.header.priority, chunk.header.round, chunk.header.tensor,
          chunk.header.chunk};
}

enum class Taken : uint8_t {
  kYes,  // acknowledge it
  kNo,   // do not: the sender shall try again
};

template <class X>
concept Exchange = requires(X exchange, SessionSlot session, const wire::Header& header,
                            std::span<const std::byte> payload, OutgoingChunk& out,
                            const SentTag& tag, uint64_t now_ns, uint32_t bytes, JobSlot job,
                            const Command& command) {
  // A chunk arrived on an open session; the header is verified, the payload's CRC is not.
  { exchange.on_chunk(session, header, payload, now_ns) }
  noexcept->std::same_as<Taken>;
  // The most urgent chunk that may go. False: nothing. `out` may hold the last one: all of it is
  // written that OutgoingChunk does not leave to the engine, flags too.
  { exchange.next(out) }
  noexcept->std::same_as<bool>;
  { exchange.charge(job, bytes) }
  noexcept;
  { exchange.on_acked(session, tag) }
  noexcept;
  { exchange.on_lost(session, tag) }
  noexcept;
  { exchange.block(session) }
  noexcept;
  { exchange.unblock(session) }
  noexcept;
  // Submissions from programs, completions that found no room, jobs whose removal waits for the
  // NIC. Returns what it did, in items.
  { exchange.poll(now_ns) }
  noexcept->std::same_as<uint32_t>;
  // A job's removal waits for the NIC, which wakes nobody when it is done: poll() is to be called
  // again soon.
  { exchange.awaits_nic() }
  noexcept->std::same_as<bool>;

  // When poll() is next due without anything having arrived: 0 at once, kNever never.
  { exchange.next_deadline_ns() }
  noexcept->std::same_as<uint64_t>;

  // Cold. Whether receivers grant more to senders of what is urgent, in a job as its commands have
  // it by now (flow/credit.h).
  { exchange.grants_by_urgency(job) }
  noexcept->std::same_as<bool>;
  // Cold. Bindings give a session its meaning; a session is forgotten when it closed.
  { exchange.bind_shard(job, uint16_t{}, session) } -> std::same_as<Status>;
  { exchange.bind_worker(job, uint16_t{}, uint32_t{}, session) } -> std::same_as<Status>;
  {exchange.forget(session)};
  // AddWorkerJob, AddServerJob, AddTensor, Confirm, CountChunks, ReplaceWorker, WithdrawWorker,
  // Refill, SetPolicy, RemoveJob, FailJob, FailRounds, AttachChannel, DetachChannel.
  { exchange.on_command(command) } -> std::same_as<Status>;
  // Jobs and channels that are gone for good since the last call are reported one by one.
  { exchange.take_event() } -> std::same_as<std::optional<Event>>;
};

}  // namespace mercury
