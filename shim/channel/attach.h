// The messages by which a program attaches to mercury-stackd, as values and as CBOR.
//
// Transport: one SOCK_SEQPACKET connection per program (seqpacket.h), one message a packet. The
// program asks; each request has a sequence number, unique in the connection and not 0, which its
// one reply repeats. Replies may come in another order. A Notice (number 0) comes unasked. HELLO is
// the first request. The connection's end is the program's end, or the daemon's.
//
//   HELLO        -> HelloOk + 4 descriptors an engine (ChannelMemory::program_descriptors)
//   REGION_ADD   -> Ok + 1 descriptor (region.h)
//   REGION_SEALED -> Ok, if it is
//   REGION_DEL   -> Ok, or kBusy while a tensor lies in it
//   JOB_OPEN     -> JobOpened, when every member is there; the first after all rings are sealed
//   DECLARE      -> Ok, when the servers agree; at most kMaxTensorsPerDeclare a message
//   JOB_CLOSE    -> Ok, when the engines have let go of the job's memory
//   JOB_WAIT     -> Ok when the job has ended in order, else why it failed
//   JOB_STATUS   -> Ok while the job runs, else why it failed
// Any request may be answered by Failed. Decoding checks every field; nothing throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "scheduler/terms/chunk.h"
#include "scheduler/terms/element.h"
#include "scheduler/terms/job_terms.h"
#include "scheduler/terms/members.h"
#include "transport/base/endpoint.h"
#include "transport/base/job_name.h"
#include "transport/base/result.h"
#include "transport/base/secret_file.h"
#include "transport/base/wipe.h"

namespace mercury::attach {

inline constexpr uint32_t kMagic = 0x4d455243;  // "MERC"
inline constexpr uint32_t kAbiMajor = 1;        // another major: refused
inline constexpr uint32_t kAbiMinor = 6;        // a higher minor: more fields
// Of a lower minor neither side serves the other: there it is programs that make what they share.
inline constexpr uint32_t kLeastMinor = 6;
inline constexpr char kDefaultSocket[] = "/run/mercury/stackd.sock";

// Fits the default send buffer of a socket (208 KiB) with room for a few to wait.
inline constexpr size_t kMaxMessageBytes = 65536;
inline constexpr size_t kMaxTensorsPerDeclare = 512;
inline constexpr uint32_t kMaxEngines = 32;
inline constexpr size_t kDescriptorsPerEngine = 4;
inline constexpr size_t kMaxDescriptors = kMaxEngines * kDescriptorsPerEngine;
inline constexpr size_t kMaxNameBytes = 63;
using mercury::kMaxSecretBytes;
inline constexpr size_t kMaxTextBytes = 4096;
inline constexpr uint64_t kMaxRegionBytes = uint64_t{1} << 46;

struct Hello {
  uint32_t magic = kMagic;
  uint32_t abi_major = kAbiMajor;
  uint32_t abi_minor = kAbiMinor;
  uint32_t pid = 0;  // as the program sees it, for display; SO_PEERCRED is what counts
};
struct RegionAdd {
  uint32_t region = 0;  // chosen by the program
  uint64_t bytes = 0;   // whole pages
};
struct RegionDel {
  uint32_t region = 0;
};
// The program has mapped it and sealed it (Region::seal). Before, no tensor may lie in it, and the
// program gets no other.
struct RegionSealed {
  uint32_t region = 0;
};
struct JobOpen {
  uint32_t client_job = 0;  // the program's number for the job in its submissions
  std::string name;         // 1 to 63 of [A-Za-z0-9_.-]
  std::string secret;
  Role role = Role::kWorker;
  int32_t rank = -1;  // -1: any free one
  uint16_t workers = 0;
  uint16_t servers = 0;
  std::vector<Endpoint> rendezvous;
  JobTerms terms = preset_terms();  // those that are missing have these values
  uint32_t timeout_ms = 30000;
};
struct DeclaredTensor {
  TensorId id;  // 0 to 2^31-1
  uint64_t numel = 0;
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  uint16_t priority = 0;
  uint32_t region = 0;
  uint64_t offset_bytes = 0;  // a multiple of the element's size; numel elements fit in 64 bits
};
struct Declare {
  uint16_t slot = 0;
  std::vector<DeclaredTensor> tensors;
};
struct JobClose {
  uint16_t slot = 0;
};
struct JobWait {
  uint16_t slot = 0;
};
struct JobStatus {
  uint16_t slot = 0;
};
// A slot that no job has. Asked for its status a daemon says so at once: that it runs. It says
// nothing while one of its engines stands still.
inline constexpr uint16_t kNoSlot = 0xffff;
struct SetPolicy {
  uint16_t slot = 0;
  std::string policy;
};

using Request = std::variant<Hello, RegionAdd, RegionDel, JobOpen, Declare, JobClose, JobWait,
                             JobStatus, SetPolicy, RegionSealed>;

struct Ok {
  // DECLARE of a program that took a lost worker's place: the round of each tensor.
  std::vector<Round> rounds;
};
struct Failed {
  Errc code = Errc::kSystem;
  std::string text;
};
struct HelloOk {
  uint32_t engines = 0;
  std::string version;
  uint64_t client = 0;
  uint32_t minor = kAbiMinor;  // the daemon's; one that does not say it is of minor 0
};
struct JobOpened {
  uint16_t slot = 0;
  uint16_t rank = 0;
  uint16_t workers = 0;
  uint16_t servers = 0;
  uint32_t chunk_bytes = 0;
  uint32_t features = 0;  // what all the job's servers, and this daemon, know
};
// A job has failed, or the daemon is about to end: what operations will fail with.
struct Notice {
  uint16_t slot = 0;
  Errc code = Errc::kOk;
  std::string text;
};

using Reply = std::variant<Ok, Failed, HelloOk, JobOpened, Notice>;

struct RequestMessage {
  uint32_t sequence = 0;
  Request body;
};
struct ReplyMessage {
  uint32_t sequence = 0;  // 0: a Notice
  Reply body;
};

// Longer texts are cut to kMaxTextBytes. The result may exceed kMaxMessageBytes only if the caller
// exceeds the limits above; send_packet refuses it then.
SecretBytes encode(const RequestMessage& message);
std::vector<std::byte> encode(const ReplyMessage& message);
// kProtocol with the field's name if anything is missing, of another type or out of range. A HELLO
// with another magic or version decodes: check_hello answers it.
Result<RequestMessage> decode_request(std::span<const std::byte> bytes);
Result<ReplyMessage> decode_reply(std::span<const std::byte> bytes);

// Leaves nothing of a job's secret in it, if it has one: for when it has been taken.
void wipe(Request& request);

// kProtocol: not Mercury; kVersionMismatch: another ABI.
Status check_hello(const Hello& hello);
// The same of whom a program has attached to.
Status check_hello_ok(const HelloOk& hello);

}  // namespace mercury::attach
