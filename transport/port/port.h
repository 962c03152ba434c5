// Gradient path: step 6/8, from the engine's frames, to the NIC; and on the way back, from the NIC
// to the engine loop.
//
// What the engine asks of a wire. Three ports model it: ethdev (DPDK), uring (UDP sockets through
// io_uring) and sim (a simulated network in virtual time). A port moves UDP payloads; what stands
// in front of them (Ethernet, IP, UDP, neighbour discovery, checksums) is its own business.
//
// Owner/thread: one engine drives one port object; nothing here is thread-safe.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/base/arrival.h"
#include "transport/base/counters.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/wire/source_ports.h"

namespace mercury {

// The ECN field of IPv4's type of service and IPv6's traffic class (RFC 3168). Every port sends
// ECT(0): without it routers drop what they could have marked. What is marked on the way arrives as
// Arrival::ecn_ce.
inline constexpr uint8_t kEcnMask = 3;
inline constexpr uint8_t kEcnCapable = 2;  // ECT(0)
inline constexpr uint8_t kEcnCe = 3;       // congestion experienced

struct ReceivedBytes {
  std::span<const std::byte> payload;  // the UDP payload
  Endpoint source;
};
// A received frame: valid until the next rx_release().
struct RxFrame : ReceivedBytes, Arrival {};

// How an answer finds back to whoever sent a frame, without anybody being asked: the port's.
struct ReturnWay {
  uint64_t opaque = 0;
};

// A frame being built: `data` has room for `capacity` bytes of UDP payload (at least what
// PortInfo::max_udp_payload says). Got from tx_alloc, ends in exactly one of tx_send,
// tx_send_shared, tx_cancel.
struct TxFrame {
  std::byte* data = nullptr;
  uint32_t capacity = 0;
  uint32_t handle = 0;     // the port's
  void* cookie = nullptr;  // the port's
};

// Where frames go: resolved once (route, neighbour, header template), then an index.
using PathId = Id<struct PathTag, uint32_t>;

// Memory that a NIC may still be reading after tx_send_shared returned. Lives beside the payload,
// as long as the payload; the port keeps its reference count in it (for DPDK an
// rte_mbuf_ext_shared_info). Zero-initialised = idle.
struct PayloadPin {
  alignas(8) std::byte opaque[32]{};
};

// Memory that a port was told of: unmap takes it back.
using MemoryKey = Id<struct MemoryTag, uint32_t>;

// Of an engine of several, the source ports that it has beside the one at which it hears, which is
// `udp_port` + `engine`: those of all engines follow each other behind the last of these. `each` is
// how many an engine has in all, 1 to kMostSourcePorts.
inline constexpr uint16_t kMostSourcePorts = wire::kMostFurtherPorts + 1;
constexpr PortRange source_ports(uint32_t udp_port, uint32_t engines, uint32_t engine,
                                 uint32_t each) {
  if (each <= 1) return {};
  return {static_cast<uint16_t>(udp_port + engines + engine * (each - 1)),
          static_cast<uint16_t>(each - 1)};
}

struct PortInfo {
  std::string name;                 // "ethdev:net_af_xdp0", "uring", "sim"
  Endpoint local;                   // where peers reach this engine
  uint32_t max_udp_payload = 1232;  // largest UDP payload it can carry (IPv6, MTU 1280: 1232)
  PortRange source_ports;  // beside `local`'s: frames may leave from them, and none is heard there
  bool reports_completion = false;    // false: what tx_flush accepted may still wait in a queue
  bool flush_is_system_call = false;  // few large flushes cost less than many small ones
};

// Datapath calls are noexcept and neither allocate nor lock (virtual devices make their system
// call).
// clang-format off
// (Version 14 knows no concepts.)
template <class P>
concept Port = requires(P port, const P& const_port, std::span<RxFrame> burst, TxFrame& frame,
                        PathId path, uint32_t bytes, uint64_t now_ns, const Endpoint& remote,
                        std::span<const std::byte> payload, PayloadPin& pin,
                        std::span<std::byte> memory, MemoryKey key) {
  { const_port.info() } -> std::same_as<const PortInfo&>;
  // The link's, whoever else sends over it; 0 = unknown: not paced. Links agree on a rate when they
  // come up, and may agree on another later: it changes in tick(). Any thread.
  { const_port.link_bytes_per_second() } noexcept -> std::same_as<uint64_t>;

  // Up to burst.size() frames; 0 when none wait. rx_release gives all of them back.
  { port.rx_burst(burst, now_ns) } noexcept -> std::same_as<uint32_t>;
  { port.rx_release() } noexcept;

  // False: no buffer or no room in the transmit ring; the engine tries again on a later pass.
  { port.tx_alloc(frame) } noexcept -> std::same_as<bool>;
  // Sends the first `bytes` bytes of `frame`. Frames of one path leave in the order of these calls,
  // and no more than a few overtake one of another path that is more urgent.
  { port.tx_send(frame, path, bytes) } noexcept;
  // Sends `bytes` header bytes of `frame` followed by `payload`, without copying the payload where
  // the device can gather; `payload` lies in mapped memory, and must stay unchanged while
  // pin_busy(pin).
  { port.tx_send_shared(frame, bytes, path, payload, pin) } noexcept;
  { port.tx_cancel(frame) } noexcept;
  { port.pin_busy(pin) } noexcept -> std::same_as<bool>;
  // Hands to the device what tx_send queued; what it does not take stays queued, in order. Called
  // once at the end of each pass of the engine loop, even when nothing new was sent (it also reaps
  // completions).
  { port.tx_flush(now_ns) } noexcept;

  // Cold. Whole pages that shared payloads will lie in: a NIC reads no others. The port may hold
  // them in place, which takes their memory at once. No page is mapped twice; all stay until unmap,
  // which comes when no pin of theirs is busy, or until the port is gone. Errors (of which nothing
  // is left behind, and the payloads are to be copied): kLimit, kNoMemory, kSystem.
  { port.map(memory) } -> std::same_as<Result<MemoryKey>>;
  { port.unmap(key) };

  // Cold. A path stays valid until closed. path_ready is false while the neighbour is being
  // resolved; frames sent to it meanwhile are dropped under kDropNeighbor.
  { port.open_path(remote) } -> std::same_as<Result<PathId>>;
  { port.close_path(path) };
  { const_port.path_ready(path) } -> std::same_as<bool>;
  // Largest UDP payload for this path's address family (the port's own limit, not a probed one).
  { const_port.path_max_payload(path) } -> std::same_as<uint32_t>;
  // Buffers of packets in use: none when nothing is received or sent. Between bursts.
  { const_port.buffers_in_use() } noexcept -> std::same_as<uint32_t>;
  // Slow work (neighbour retries, link state), called about every 10 ms while awake.
  { port.tick(now_ns) };

  // A descriptor that poll() shows readable when frames wait, or -1 (then the engine naps).
  // prepare_sleep is called before each sleep and returns false if frames wait already.
  { const_port.wait_fd() } -> std::same_as<int>;
  { port.prepare_sleep() } noexcept -> std::same_as<bool>;
};
// clang-format on

// Cold. For one answer to somebody who may be anybody: a path that keeps nothing of him once it is
// closed. Ports of interfaces of their own read the way out of his frame, before rx_release; to all
// others he is like any peer.
template <Port P>
ReturnWay return_way(const P& port, const RxFrame& frame) noexcept {
  if constexpr (requires { port.return_way(frame); }) {
    return port.return_way(frame);
  } else {
    return {};
  }
}
template <Port P>
Result<PathId> open_answer_path(P& port, const Endpoint& remote, ReturnWay way) {
  if constexpr (requires { port.open_answer_path(remote, way); }) {
    return port.open_answer_path(remote, way);
  } else {
    return port.open_path(remote);
  }
}

// Cold. To somebody who has not shown yet that he is at his address: until settle_path, which says
// that he has, frames go back the way his came, and no neighbour is asked for, or kept, for him.
template <Port P>
Result<PathId> open_tentative_path(P& port, const Endpoint& remote, ReturnWay way) {
  if constexpr (requires { port.open_tentative_path(remote, way); }) {
    return port.open_tentative_path(remote, way);
  } else {
    return port.open_path(remote);
  }
}
template <Port P>
void settle_path(P& port, PathId path) {
  if constexpr (requires { port.settle_path(path); }) port.settle_path(path);
}

// Cold. As `path`, which is open, of frames that leave from the port's source port `source`, one of
// PortInfo::source_ports: 0 is the first. The way to the peer is looked for once, for `path`. Each
// is closed for itself. Ports that have none need not know it.
template <Port P>
Result<PathId> open_path_from(P& port, PathId path, uint16_t source) {
  if constexpr (requires { port.open_path_from(path, source); }) {
    return port.open_path_from(path, source);
  } else {
    return Error(Errc::kUnsupported, "the port has no source ports");
  }
}

// What the owner of shared payloads asks of a port, without its type. Of a port that is gone
// nothing may be asked. `map` may be null: then nothing has to be mapped.
struct PortMemory {
  bool (*busy)(void* context, PayloadPin& pin) = nullptr;
  void* context = nullptr;
  Result<MemoryKey> (*map)(void* context, std::span<std::byte> memory) = nullptr;
  void (*unmap)(void* context, MemoryKey key) = nullptr;
};

template <Port P>
PortMemory memory_of(P& port) {
  return {[](void* context, PayloadPin& pin) { return static_cast<P*>(context)->pin_busy(pin); },
          &port,
          [](void* context, std::span<std::byte> memory) {
            return static_cast<P*>(context)->map(memory);
          },
          [](void* context, MemoryKey key) { static_cast<P*>(context)->unmap(key); }};
}

}  // namespace mercury
