// Named counters of one engine: everything that is dropped, refused or retried has one, and
// `mercuryctl stats` shows them all. Gauges say what the engine holds now (`mercuryctl status`):
// when nobody uses a host they are all zero, or something has leaked.
//
// Owner/thread: one engine writes (plain increments); any thread may read (relaxed).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mercury {

// Order here = order in kCounterInfo (counters.cc), which holds each name and its help text.
enum class Counter : uint16_t {
  // Traffic.
  kRxFrames,
  kRxBytes,
  kTxFrames,
  kTxBytes,
  kTxGathered,
  kPushChunks,
  kResultChunks,
  kSocketBytesSent,
  kSocketBytesReceived,
  kRetransmits,
  kDatagramsRefused,
  kDatagramsSentBack,
  kAcksSent,
  kAcksReceived,
  // Frames dropped on the way in: each is one reason.
  kDropTruncated,
  kDropMagic,
  kDropVersion,
  kDropType,
  kDropLength,
  kDropHeaderCrc,
  kDropPayloadCrc,
  kDropSeal,
  kDropNoSession,
  kDropForeignSource,
  kDropDuplicate,
  kDropFarAhead,
  kDropNotOpen,
  kDropUnknownTensor,
  kDropChunkRange,
  kDropWorkerRank,
  kDropIncarnation,
  kDropRoundOld,
  kDropRoundNew,
  kDropContributedTwice,
  kDropSlotBusy,
  kDropResultUnexpected,
  kDropHandshake,
  kDropHello,
  kDropForgedAnswer,
  kDropControl,
  kDropStream,
  // The same at the port.
  kDropNotMercury,
  kDropVlan,
  kDropBadIp,
  kDropIpChecksum,
  kDropNeighbor,
  kDropTxFull,
  kDropNoBuffer,
  kHandoffs,
  kDropHandoffFull,
  kDropTooLarge,
  kDropNetwork,
  // Events.
  kSessionsOpened,
  kSessionsSealed,
  kSessionsEncrypted,
  kSessionsClosed,
  kSessionsRefused,
  kSessionsDisplaced,
  kRefusalsUnsaid,
  kConnectionsUnheard,
  kTokensAsked,
  kClosesRepeated,
  kResetsSent,
  kResetsReceived,
  kPathsDoubted,
  kSourcePortsUnheard,
  kSourcePortsLeftOut,
  kPartsSent,
  kPathsChallenged,
  kPeersMoved,
  kPeersLost,
  kProbeTimeouts,
  kSpuriousLosses,
  kTxBackpressure,
  kQuorumResults,
  kBadDescriptors,
  kSubmissions,
  kCompletions,
  kCompletionRingFull,
  kWakeups,
  kSleeps,
  kPolls,
  kIdlePolls,
  kCount
};

inline constexpr size_t kCounterCount = static_cast<size_t>(Counter::kCount);

struct CounterInfo {
  const char* name;  // snake_case, as in `mercuryctl stats --json`
  const char* help;
};
const CounterInfo& info_of(Counter counter);

enum class Gauge : uint16_t {
  kSessions,
  kHandshakes,
  kJobs,
  kChannels,
  kSumBytes,
  kUnmappedSumBytes,
  kSentBlocks,
  kQueuedRanges,
  kPacketBuffers,
  kConnections,
  kCount
};
inline constexpr size_t kGaugeCount = static_cast<size_t>(Gauge::kCount);
const CounterInfo& info_of(Gauge gauge);

class Counters {
 public:
  // Always inlined: a call is longer than what it does.
  [[gnu::always_inline]] void add(Counter counter, uint64_t amount = 1) noexcept {
    std::atomic<uint64_t>& cell = cells_[static_cast<size_t>(counter)];
    cell.store(cell.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  uint64_t get(Counter counter) const noexcept {
    return cells_[static_cast<size_t>(counter)].load(std::memory_order_relaxed);
  }
  void set(Gauge gauge, uint64_t value) noexcept {
    gauges_[static_cast<size_t>(gauge)].store(value, std::memory_order_relaxed);
  }
  uint64_t get(Gauge gauge) const noexcept {
    return gauges_[static_cast<size_t>(gauge)].load(std::memory_order_relaxed);
  }

 private:
  alignas(64) std::array<std::atomic<uint64_t>, kCounterCount> cells_{};
  std::array<std::atomic<uint64_t>, kGaugeCount> gauges_{};
};

}  // namespace mercury
