// Control messages between the members of a job and its coordinator: what travels on sessions of
// kind kControl, as CBOR (RFC 8949) maps. docs/protocol.md, "Jobs", tells who sends which when.
//
// Everything decoded has passed the limits below; a message that has not is no message. Unknown
// fields are skipped, so that a field can be added; an unknown kind of message is malformed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "scheduler/terms/chunk.h"
#include "scheduler/terms/element.h"
#include "scheduler/terms/job_terms.h"
#include "scheduler/terms/members.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury {

inline constexpr size_t kMaxControlBytes = 256 * 1024;  // Session::kMaxControlMessage
// Engines per host that a job uses, and of all servers together: so a ROSTER stays within
// kMaxControlBytes.
inline constexpr uint16_t kMaxLanes = 32;
inline constexpr uint32_t kMaxShards = 8192;
// Of each server of a job with so many: 8 of 1,024.
constexpr uint16_t most_lanes(uint32_t servers) {
  return static_cast<uint16_t>(std::min<uint32_t>(kMaxLanes, kMaxShards / servers));
}
// Tensors per DECLARE: 20 bytes each at most, so a batch is a third of the largest message.
inline constexpr size_t kDeclareBatch = 4096;
inline constexpr size_t kMaxText = 1024;
inline constexpr TensorId kMaxTensorId = 0x7fffffff;
// Largest tensor: its bytes stay far below 2^63 for every type.
inline constexpr uint64_t kMaxElements = uint64_t{1} << 56;

namespace message {

// What a tensor is to everyone; data and priority are each worker's own.
struct TensorShape {
  TensorId id;
  uint64_t numel = 0;
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  friend bool operator==(const TensorShape&, const TensorShape&) = default;
};

struct Join {  // member: wants in
  Role role = Role::kWorker;
  int rank = -1;  // -1: any
  uint16_t workers = 0;
  uint16_t servers = 0;
  JobTerms terms;
  uint32_t incarnation = 0;
  uint64_t timeout_ms = 0;  // how long it waits for the others; 0: as long as it takes
  bool served = false;      // no program: a host's daemon serves by itself
  uint32_t features = 0;    // kKnowsLostWorkers and the like
  std::vector<Endpoint> lanes;
  std::vector<Endpoint> rendezvous;
  friend bool operator==(const Join&, const Join&) = default;
};
struct Invite {  // coordinator: be server `rank`; the answer is a Join
  uint16_t rank = 0;
  uint16_t workers = 0;
  uint16_t servers = 0;
  JobTerms terms;  // those that all members say
  friend bool operator==(const Invite&, const Invite&) = default;
};
struct Roster {  // coordinator: all are there
  struct WorkerEntry {
    uint32_t incarnation = 0;
    Endpoint address;  // of its first lane
    friend bool operator==(const WorkerEntry&, const WorkerEntry&) = default;
  };
  struct ServerEntry {
    uint32_t incarnation = 0;
    std::vector<Endpoint> lanes;  // of every server equally many
    friend bool operator==(const ServerEntry&, const ServerEntry&) = default;
  };
  uint16_t rank = 0;  // the receiver's, among the members of its role
  JobTerms terms;     // the job's, now; those that all members say are not in it
  // To a worker that comes back: the UDP payload that its paths must carry, if need be in parts.
  uint16_t frame_bytes = 0;
  uint32_t server_features = 0;      // what all servers know (Join::features)
  std::vector<WorkerEntry> workers;  // by rank
  std::vector<ServerEntry> servers;  // by rank
  uint16_t lanes() const { return static_cast<uint16_t>(servers.front().lanes.size()); }
  uint16_t shards() const { return static_cast<uint16_t>(servers.size() * lanes()); }
  friend bool operator==(const Roster&, const Roster&) = default;
};
struct Ready {  // member: its data sessions are open, their paths measured
  uint16_t max_udp_payload = 0;
  // A worker that comes back, where `frame_bytes` is more: the most that goes in parts over all.
  uint16_t in_parts = 0;
  friend bool operator==(const Ready&, const Ready&) = default;
};
struct Start {  // coordinator: all are ready
  uint32_t chunk_bytes = 0;
  friend bool operator==(const Start&, const Start&) = default;
};
struct Declare {  // worker; the answer is a Declared
  std::vector<TensorShape> tensors;
  friend bool operator==(const Declare&, const Declare&) = default;
};
struct Declared {  // coordinator: kOk, or why none of the batch was taken
  Errc code = Errc::kOk;
  std::string text;
  // To a worker that came back: the round that each tensor of the batch is in; else empty.
  std::vector<Round> rounds;
  std::vector<Shard> first_shards;  // AddTensor's, of each tensor; empty: by their numbers
  friend bool operator==(const Declared&, const Declared&) = default;
};
struct Define {  // coordinator to servers; the answer is a Defined
  std::vector<TensorShape> tensors;
  std::vector<Shard> first_shards;  // as Declared's
  friend bool operator==(const Define&, const Define&) = default;
};
struct Defined {  // server: its engines were told
  friend bool operator==(const Defined&, const Defined&) = default;
};
struct Leave {  // worker: needs nobody any more; the answer is a Left
  friend bool operator==(const Leave&, const Leave&) = default;
};
struct Left {  // coordinator: the worker may close
  friend bool operator==(const Left&, const Left&) = default;
};
struct PeerLeft {  // coordinator: worker `rank` has left in order
  Rank rank;
  std::string lacked;   // which of the others' tensors it had not declared; empty: none
  std::string refused;  // why its last declaration was refused; empty: it was not
  // Nobody comes in its place, and every server says who waits for it in vain (Stalled::gone).
  bool ending = false;
  std::optional<TensorRound> waiting;  // this round, and every later one, waits for it in vain
  friend bool operator==(const PeerLeft&, const PeerLeft&) = default;
};
struct End {  // coordinator to servers: all workers have left in order
  friend bool operator==(const End&, const End&) = default;
};
struct Fail {  // coordinator: the job, or this member's wish to join, has failed
  Errc code = Errc::kOk;
  std::string text;
  friend bool operator==(const Fail&, const Fail&) = default;
};

struct Replace {  // coordinator to servers: worker `rank` came back; the answer is Replaced
  Rank rank;
  uint32_t incarnation = 0;
  Endpoint address;
  friend bool operator==(const Replace&, const Replace&) = default;
};
struct Replaced {  // server: the earlier life is fenced off, and this is where the rounds are
  Rank rank;
  uint32_t incarnation = 0;
  bool last = true;  // else more of these follow
  // At most kDeclareBatch. Of each tensor the lowest and, if it is another, the highest.
  std::vector<TensorRound> rounds;
  friend bool operator==(const Replaced&, const Replaced&) = default;
};
struct Refill {  // coordinator to workers: push again what has no sum yet
  friend bool operator==(const Refill&, const Refill&) = default;
};
struct SetPolicy {  // worker to coordinator, coordinator to all: another policy from now on
  std::string policy;
  friend bool operator==(const SetPolicy&, const SetPolicy&) = default;
};
// Server: nothing is heard from worker `rank` any more. Coordinator, in jobs with a quorum: nothing
// is to be expected of it until it is replaced.
struct Lost {
  Rank rank;
  uint32_t incarnation = 0;
  friend bool operator==(const Lost&, const Lost&) = default;
};
// Server, in jobs with a stall time-out: others have pushed this round, and wait for these workers.
// Or, whether or not there is one: they wait for these, who have left (PeerLeft::ending).
struct Stalled {
  TensorRound at;
  uint64_t waited_ms = 0;
  struct Row {
    Rank rank;
    uint32_t incarnation = 0;
    friend bool operator==(const Row&, const Row&) = default;
  };
  std::vector<Row> workers;
  bool gone = false;
  friend bool operator==(const Stalled&, const Stalled&) = default;
};

}  // namespace message

using Message = std::variant<message::Join, message::Invite, message::Roster, message::Ready,
                             message::Start, message::Declare, message::Declared, message::Define,
                             message::Defined, message::Leave, message::Left, message::PeerLeft,
                             message::End, message::Fail, message::Replace, message::Replaced,
                             message::Refill, message::Lost, message::SetPolicy, message::Stalled>;

const char* name_of(const Message& message);
std::vector<std::byte> encode(const Message& message);
// Errors: kProtocol, with what is wrong.
Result<Message> decode_message(std::span<const std::byte> bytes);

// Cuts `text` to at most `bytes` bytes, the last three "...".
std::string shortened(std::string text, size_t bytes);

}  // namespace mercury
