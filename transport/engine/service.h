// What an engine and the service that it carries ask of each other: the service says where
// datagrams come from and where they go, the engine which sessions there are. A datagram fills one
// frame: it arrives whole and in no order, is acknowledged, and when it is lost its service decides
// whether to send it again. The first service is the gradient exchange, whose datagrams are chunks
// (shim/exchange/gradient_exchange.h).
//
// Owner/thread: the engine's thread. All calls are made from within Engine::poll_once, but for
// next_deadline_ns and awaits_nic, which are also asked before a sleep.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/engine/session_command.h"
#include "transport/flow/credit.h"
#include "transport/flow/session.h"
#include "transport/port/port.h"
#include "transport/wire/header.h"

namespace mercury {

// A datagram that leaves now. `header` lacks only session, packet number and (when `pin` is null)
// the payload's CRC. With a pin the payload is shared by several frames and goes out without a
// copy; without one the engine copies it into the frame and sums it in the same pass.
struct OutgoingDatagram {
  SessionSlot session;
  JobSlot job;
  wire::Header header;
  std::span<const std::byte> payload;
  PayloadPin* pin = nullptr;
  SentTag tag;  // comes back in on_acked or on_lost
};

inline uint32_t frame_bytes(const OutgoingDatagram& datagram) noexcept {
  return static_cast<uint32_t>(sizeof(wire::DatagramHeader) + datagram.payload.size());
}

enum class Taken : uint8_t {
  kYes,    // acknowledge it
  kLast,   // the same; others that came before waited for it (flow/sum_lag.h)
  kNo,     // do not: it did not arrive as it was sent
  kLater,  // it did, and cannot be taken now: the sender shall try again later
};

// What a service may ask of its engine while it carries out a command. Cold.
class SessionHost {
 public:
  // The session's datagrams are the service's from now on: it is blocked until the engine unblocks
  // it. Nothing: it has closed meanwhile, which is no error: SessionClosed is on its way.
  virtual std::optional<SessionSlot> claim(Token token) = 0;
  // How many will send datagrams to this engine for the job, before the first does.
  virtual void expect(JobSlot job, const CreditAllocator::FanIn& fan_in) = 0;
  // Whether receivers grant more to senders of what is urgent (flow/credit.h).
  virtual void heed_urgency(JobSlot job, bool heed) = 0;
  // Closes the job's sessions; nothing is expected for it any more.
  virtual void release(JobSlot job, Errc code, std::string_view text) = 0;

 protected:
  ~SessionHost() = default;
};

// clang-format off
// (Version 14 does not know concepts.)
template <class S>
concept Service = requires(S service, SessionSlot session, const wire::Header& header,
                           std::span<const std::byte> payload, OutgoingDatagram& out,
                           const SentTag& tag, uint64_t now_ns, uint32_t bytes, JobSlot job) {
  // A datagram arrived on an open session; the header is verified, the payload's CRC is not.
  { service.on_datagram(session, header, payload, now_ns) } noexcept -> std::same_as<Taken>;
  // The most urgent datagram that may go. False: nothing. `out` may hold the last one: all of it is
  // written that OutgoingDatagram does not leave to the engine, flags too.
  { service.next(out) } noexcept -> std::same_as<bool>;
  // Whether it may have one.
  { service.wants_to_send() } noexcept -> std::same_as<bool>;
  { service.charge(job, bytes) } noexcept;
  { service.on_acked(session, tag) } noexcept;
  { service.on_lost(session, tag) } noexcept;
  { service.block(session) } noexcept;
  { service.unblock(session) } noexcept;
  // What is to be done without a frame having arrived. Returns what it did, in items.
  { service.poll(now_ns) } noexcept -> std::same_as<uint32_t>;
  // A job's removal waits for the NIC, which wakes nobody when it is done: poll() is to be called
  // again soon.
  { service.awaits_nic() } noexcept -> std::same_as<bool>;

  // When poll() is next due without anything having arrived: 0 at once, kNever never.
  { service.next_deadline_ns() } noexcept -> std::same_as<uint64_t>;

  // Cold. A session is forgotten when it closed.
  { service.forget(session) };
  // Cold. What it has to report, one by one; what an event says is gone is gone for good.
  { service.take_event() } -> std::same_as<std::optional<typename S::Event>>;
  // Cold, and for each command C of S::Command that is not the engine's own:
  //   void on_command(const C&, SessionHost&);
  // What fails of it the service reports by an event.
  typename S::Command;
};
// clang-format on

}  // namespace mercury
