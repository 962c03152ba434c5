// How a job exchanges its gradients: the knobs that tell the systems of the papers apart on one
// engine. All of them are a star of sharded servers.
//
// Written as NAME or NAME:KEY=VALUE,..., for example `mercury`, `mercury:forward=tensor` or
// `bytescheduler:partition=4MB,credit=8MB,startup=50us`:
//
//   name           release    order     forward    who
//   mercury        tensor     priority  chunk      Mercury, TPDS 2023, section IV
//   mercury-fifo   tensor     fifo      chunk      "Mercury W/O Preemption", section V.B
//   wfbp           tensor     fifo      tensor     native parameter server, WFBP: section II.B
//   wfbp-eq7       tensor     fifo      tensor     the same with pulls that share no link: eq. 7
//   p3             partition  priority  partition  P3, SysML 2019: 160 KB, stop-and-wait
//   byteps         partition  priority  partition  BytePS, OSDI 2020: fixed partitions
//   bytescheduler  partition  priority  partition  ByteScheduler, SOSP 2019: tuned for the network
//
//   order=fifo|priority            of what is released
//   forward=tensor|partition|chunk
//   partition=, credit=, startup=  of the last three: bytes, bytes, time
//
// The others have knobs for what Mercury's engine does beside what that paper says: the paper's own
// Mercury is `mercury:answers=fifo,grants=even,unit=30KB`. Defaults come first.
//
//   answers=priority|fifo  the order in which servers send sums: that of the pushes, or of their
//                          becoming complete
//   grants=urgency|even    whether receivers grant more to senders of what is urgent
//                          (flow/credit.h)
//   unit=                  bytes; default: a frame, and of many servers a row of frames that is
//                          half sent (shim/exchange/worker). What is preempted, and answered, as a
//                          whole
//   place=spread|key       a tensor on all servers, or as MXNet's native server has it: one below
//                          1,000,000 elements on the server (9973 * number) mod servers
//
// Order, answers, grants are of a job's tensors, not between jobs: there turns are fair
// (scheduler/scheduler.h, Limits::turns).
//
// A new policy is a row of the table in policy.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/base/result.h"

namespace mercury {

// A value; the engine and the model read the knobs, never the name.
struct Policy {
  // When a chunk may go.
  enum class Release : uint8_t {
    // As soon as its tensor is ready.
    kTensor,
    // Its tensor is released in partitions, by `order`, one after another. Each takes a start-up
    // time before its first byte; start-ups do not overlap each other, but they overlap the sending
    // of earlier partitions. Released and not acknowledged are at most `credit_bytes`, or one
    // partition; the servers acknowledge a partition once they have all of it. What is released
    // goes first-in first-out, in both directions, as in the message library below such systems.
    kPartition,
  };
  // Which chunk goes next.
  enum class Order : uint8_t {
    kFifo,
    kPriority,  // preemptive, per frame; with kPartition between partitions
  };
  // When servers answer: once all workers' contributions to this much are summed.
  enum class Forward : uint8_t { kTensor, kPartition, kChunk };
  // To whom receivers grant more bytes in flight.
  enum class Grants : uint8_t { kEven, kUrgency };
  // Which servers have a tensor.
  enum class Place : uint8_t { kSpread, kKey };

  std::string_view name;  // the row that it began as
  Release release = Release::kTensor;
  Order order = Order::kPriority;
  Forward forward = Forward::kChunk;
  uint64_t partition_bytes = 0;  // these three with kPartition alone, else 0
  uint64_t credit_bytes = 0;
  uint64_t startup_ns = 0;
  // These four with kTensor alone. Where all is of one priority (kFifo), answers and grants of
  // either kind are the same.
  Order answers = Order::kPriority;
  Grants grants = Grants::kUrgency;
  // Of a server's share of a tensor: what has begun goes to its end before anything more urgent for
  // the same server, and with Forward::kChunk it is answered as a whole. 0: a frame.
  uint64_t unit_bytes = 0;
  Place place = Place::kSpread;
  // Not a knob: pulls take the link's bandwidth from each other. False for the model of equation 7
  // alone, which no engine can follow.
  bool pulls_share_link = true;

  friend bool operator==(const Policy&, const Policy&) = default;
};

inline constexpr uint64_t kMinPartitionBytes = 1000;
inline constexpr uint64_t kMaxPartitionBytes = uint64_t{1} << 40;
inline constexpr uint64_t kMaxCreditBytes = uint64_t{1} << 50;
inline constexpr uint64_t kMaxStartupNs = 10'000'000'000;
// MXNet's MXNET_KVSTORE_BIGARRAY_BOUND: a tensor of so many elements is spread in any case.
inline constexpr uint64_t kKeyedElements = 1'000'000;
inline constexpr uint64_t kMinUnitBytes = 1000;
inline constexpr uint64_t kMaxUnitBytes = 1'000'000'000;

// Errors: kInvalidArgument, with what was expected.
Result<Policy> parse_policy(std::string_view text);
// Whether the knobs make sense together; parse_policy() has checked it.
Status check_policy(const Policy& policy);
// What parse_policy() reads as the same policy: the name, and knobs where they differ from its row.
std::string print_policy(const Policy& policy);
// As parse_policy(), for jobs on engines: empty is the first row of the table, and policies for the
// model alone are refused (kUnsupported).
Result<Policy> parse_engine_policy(std::string_view text);
// One text for one policy, as members compare it: empty for the first row. Errors as above.
Result<std::string> canonical_policy(std::string_view text);
// Whether one server has all of a tensor of so many elements.
inline bool on_one_server(const Policy& policy, uint64_t elements) {
  return policy.place == Policy::Place::kKey && elements < kKeyedElements;
}
// Whole frames of `frame_bytes` of elements that a unit is: the nearest number, at least one.
uint32_t unit_frames(const Policy& policy, uint32_t frame_bytes);
// "mercury, mercury-fifo, ...".
std::string policy_names();
// The same without those that only the model can follow.
std::string engine_policy_names();

}  // namespace mercury
