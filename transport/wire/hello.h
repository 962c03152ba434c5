// Bodies of HELLO, HELLO_ACK, REFUSE and CLOSE: how a session opens and ends. Pictures and golden
// bytes as in header.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "transport/base/job_name.h"
#include "transport/base/result.h"
#include "transport/wire/header.h"

namespace mercury::wire {

enum class SessionKind : uint8_t {
  kControl = 0,  // a member and the job's coordinator: control messages only
  kData = 1,     // a service: the job's exchange, or one of streams, which `job` names
};

// Features that both sides must share to use them; what one side lacks is not used.
enum Feature : uint32_t {
  kFeatureNone = 0,
  kFeatureStreams =
      1,              // byte streams beside the control stream: frames of type 10 to 12 (stream.h)
  kFeatureSeals = 2,  // each frame with a tag has a seal, too (seal.h); HELLO_ACK a confirmation
  kFeatureRefusals = 4,      // ACKs that say which datagrams were refused for now (ack.h)
  kFeatureResets = 8,        // a host that was started again says so: frames of type 13 and 14
  kFeatureParts = 16,        // frames that are more than the path carries come in parts (part.h)
  kFeatureMoves = 32,        // where frames have seals a peer's address may change (path_data.h)
  kFeatureSourcePorts = 64,  // datagrams come from ports that SOURCE_PORTS told (source_ports.h)
  // Frames with seals can be encrypted, too. They are where both sides can, and either asks for it.
  kFeatureCanEncrypt = 128,
  kFeatureAsksEncryption = 256,
  kFeatureConfirmation = 512,  // HELLO_ACK has a confirmation where frames have no seals, too
};

inline constexpr size_t kMaxReason = 255;
inline constexpr uint16_t kMinUdpPayload =
    1232;  // IPv6's least MTU, 1280, less its header and UDP's
using Nonce = std::array<uint8_t, 16>;
using Proof = std::array<uint8_t, 32>;
using Key = std::array<uint8_t, 32>;  // of a job (shim/proof/secret.h) or a service without jobs

// What stands as packet number in an answer: the last eight bytes of HELLO's nonce, as they stand
// there. Whoever has not seen the HELLO guesses them once in 2^64 times.
inline uint64_t echo_of(const Nonce& nonce) {
  uint64_t echo = 0;
  for (size_t i = nonce.size() - 8; i < nonce.size(); ++i) echo = echo << 8 | nonce[i];
  return echo;
}

// Wire versions that a host speaks, both included. This release's are one; tests let hosts differ.
struct Versions {
  uint8_t oldest = kVersion;
  uint8_t newest = kVersion;
};

struct Hello {
  uint8_t version_min = kVersion;
  uint8_t version_max = kVersion;
  SessionKind kind = SessionKind::kControl;
  uint8_t role = 0;  // as rank, lane and incarnation, who asks: the service's to read
  uint32_t features = 0;
  uint32_t session = 0;  // the sender's number for this session
  uint16_t rank = 0;
  uint16_t lane = 0;
  uint32_t incarnation = 0;
  uint16_t max_udp_payload = 0;  // what the sender's port carries here, at least kMinUdpPayload
  std::string job;               // or service, one name space; is_job_name (base/job_name.h)
  Nonce nonce{};
  Proof proof{};  // of a job: keyed hash of all the above under its key (shim/proof/secret.h)
};

struct HelloAck {
  uint8_t version = kVersion;
  uint32_t features = 0;
  uint32_t session = 0;  // the answering side's number
  uint16_t max_udp_payload = 0;
  uint32_t incarnation = 0;
  Nonce nonce{};
  Proof proof{};  // over the HELLO's nonce as well
  // Where both sides have kFeatureSeals or kFeatureConfirmation: of all that stands in HELLO and
  // HELLO_ACK (flow/frame_keys.h).
  std::optional<Proof> confirmation;
};
// Of a HELLO_ACK, what the confirmation is of.
inline constexpr size_t kHelloAckBytes = 68;

// REFUSE and CLOSE.
struct Reason {
  uint32_t session = 0;  // the sender's number, or for REFUSE the number in the HELLO
  Errc code = Errc::kClosed;
  std::string text;  // at most kMaxReason bytes
};

// A token of the answering side's, in the text of a REFUSE with kRetry: 16 hexadecimal digits. It
// comes back as HELLO's packet number, which is 0 without one.
std::string token_text(uint64_t token);
std::optional<uint64_t> token_of(std::string_view text);

// Encoders return the bytes written, at most kMaxHandshakeBytes, or 0 if `out` is too small or a
// name too long; they cut a reason's text. Decoders check every length and range; nullopt is a
// malformed body. Text from a peer is printable ASCII afterwards.
inline constexpr size_t kMaxHandshakeBytes = 512;
size_t encode(const Hello& hello, std::span<std::byte> out);
size_t encode(const HelloAck& ack, std::span<std::byte> out);
size_t encode(const Reason& reason, std::span<std::byte> out);
std::optional<Hello> decode_hello(std::span<const std::byte> body);
std::optional<HelloAck> decode_hello_ack(std::span<const std::byte> body);
std::optional<Reason> decode_reason(std::span<const std::byte> body);

}  // namespace mercury::wire
