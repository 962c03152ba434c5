// How a session opens and is refused: versions, HELLO's retries, and the frames that need no
// session.
//
// Cold path. Owner/thread: one engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/wire/header.h"
#include "transport/wire/hello.h"

namespace mercury {

// The highest version that both sides speak, of which `own` is the answering one. Error:
// kVersionMismatch, naming both ranges.
Result<uint8_t> negotiate_version(const wire::Hello& hello, const wire::Versions& own);

// Completes the plain frame whose `body_bytes` of payload already stand behind the header in `out`;
// `payload_crc` is the payload's CRC, combined with the session's tag. Returns the bytes of the
// frame.
uint32_t finish_frame(std::span<std::byte> out, wire::Header header, uint32_t body_bytes,
                      uint32_t payload_crc) noexcept;
// The same for types without a tag; `echo`: HELLO its token or 0, its answers wire::echo_of its
// nonce.
uint32_t finish_frame(std::span<std::byte> out, wire::FrameType type, uint32_t session,
                      uint64_t echo, uint32_t body_bytes) noexcept;

// A REFUSE frame for `reason.session`, whose HELLO had this echo. Returns its bytes, 0 if `out` is
// below 32 + wire::kMaxHandshakeBytes.
uint32_t write_refusal(std::span<std::byte> out, uint64_t echo, const wire::Reason& reason);

// The active side's HELLO, said again until it is answered: after longer and longer times, each up
// to a quarter more, as the nonce says. Sessions that begin together do not meet again and again.
class HelloTimer {
 public:
  void start(const wire::Hello& hello, uint64_t timeout_ns, uint64_t now_ns);
  void stop() noexcept { *this = HelloTimer(); }

  uint64_t deadline_ns() const noexcept;  // kNever when stopped or already due
  bool due() const noexcept { return due_; }
  bool expired(uint64_t now_ns) const noexcept { return now_ns >= expires_ns_; }
  void on_timer(uint64_t now_ns) noexcept;
  void say_again() noexcept;  // now
  // The body of the HELLO that is due.
  std::span<const std::byte> body() const noexcept { return body_; }
  void on_sent(uint64_t now_ns) noexcept;

  uint32_t sent() const noexcept { return sent_; }
  uint64_t last_sent_ns() const noexcept { return last_sent_ns_; }
  bool offers(uint8_t version) const noexcept {
    return version >= version_min_ && version <= version_max_;
  }

 private:
  static constexpr uint64_t kFirstRetryNs = 20'000'000;  // a control plane answers sooner
  static constexpr uint64_t kLastRetryNs = 500'000'000;  // a host that starts later is met soon

  std::vector<std::byte> body_;
  uint64_t expires_ns_ = kNever;
  uint64_t retry_ns_ = kNever;
  uint64_t interval_ns_ = kFirstRetryNs;
  uint64_t random_ = 0;
  uint64_t last_sent_ns_ = 0;
  uint32_t sent_ = 0;
  bool due_ = false;
  uint8_t version_min_ = 0;
  uint8_t version_max_ = 0;
};

}  // namespace mercury
