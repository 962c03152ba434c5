// What stands between a HELLO and any state of it: anybody can send one, from any address that he
// writes into it.
//
// While few wait for the control plane's word, and few have asked for it in the last second, each
// is taken at once. Else whoever asks is told a token, and says his HELLO again with it: that he
// hears what is sent to his address costs him a round trip, and this engine nothing that it has to
// keep. A token is a keyed hash of time, address, number and nonce, and good for half a minute at
// least and a minute at most.
//
// However few wait, a pass of the engine reads kPerPass HELLOs at most; kAnswers of each kind are
// answered in a second, and kRefusals refused.
//
// Paper: RFC 9000 section 8.1 (address validation by Retry).
// Owner/thread: one engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/base/endpoint.h"
#include "transport/engine/rate_limit.h"
#include "transport/wire/hello.h"

namespace mercury {

// Whose HELLO it is: he chooses the number, and can choose many.
struct HelloKey {
  Endpoint remote;
  uint32_t session = 0;
  friend bool operator==(const HelloKey&, const HelloKey&) = default;
};

// What its sender has shown. Each kind has its own answers: none takes another's.
enum class HelloKind : uint8_t {
  kUnshown,    // nothing
  kWithToken,  // that he hears what is sent to his address
  kOfSession,  // what it said is known: one repeats what opened a session that is there
};
inline constexpr size_t kHelloKinds = 3;

// Of hash tables: nobody outside finds two keys that meet in one bucket.
class HelloHash {
 public:
  explicit HelloHash(uint64_t seed);  // random
  size_t operator()(const HelloKey& key) const noexcept;

 private:
  std::array<unsigned char, 16> key_;
};

class HelloGate {
 public:
  // HELLOs that a pass of the engine reads, half of kBurst frames (engine.h): a flood leaves the
  // rest of its time to others. The sender of one that is dropped repeats it.
  static constexpr uint32_t kPerPass = 16;
  // That are answered in a second, and at once, of a kind; and by addresses, which share kShares of
  // these: who floods from one address leaves the others room, also with one token, or one session,
  // that is his by right.
  static constexpr uint64_t kAnswers = 10'000;
  static constexpr uint64_t kAnswersOfShare = 256;
  static constexpr size_t kShares = 256;
  // That wait for the control plane's word before tokens are asked for; and that it judges without
  // one in a second, and at once.
  static constexpr size_t kWithoutToken = 64;
  static constexpr uint64_t kJudged = 512;
  // Refusals in a second, and at once: all workers of a large job may be early at the same time.
  static constexpr uint64_t kRefusals = 256;

  explicit HelloGate(uint64_t seed);  // random

  void begin_pass() noexcept { left_ = kPerPass; }
  // Whether this pass reads one more.
  bool take() noexcept { return left_ > 0 && left_-- > 0; }
  // Whether one that was read is answered.
  bool may_answer(const Endpoint& remote, HelloKind kind, uint64_t now_ns) noexcept;
  // Whether one without a token goes to the control plane, where so many wait for it.
  bool may_judge(size_t waiting, uint64_t now_ns) noexcept {
    return waiting < kWithoutToken && judged_.take(now_ns);
  }

  // Whether one more refusal may be said: strangers choose to whom they go.
  bool may_refuse(uint64_t now_ns) noexcept { return refusals_.take(now_ns); }

  // What this HELLO has to carry; never 0.
  uint64_t token(const Endpoint& remote, const wire::Hello& hello, uint64_t now_ns) const noexcept;
  bool accepts(uint64_t token, const Endpoint& remote, const wire::Hello& hello,
               uint64_t now_ns) const noexcept;

 private:
  uint64_t token_of(uint64_t epoch, const Endpoint& remote,
                    const wire::Hello& hello) const noexcept;

  std::array<unsigned char, 16> key_;
  uint32_t left_ = kPerPass;
  struct Answers {
    RateLimit<kAnswers> all;
    std::array<RateLimit<kAnswersOfShare>, kShares> shares;
  };
  std::array<Answers, kHelloKinds> answers_;
  RateLimit<kJudged> judged_;
  RateLimit<kRefusals> refusals_;
};

}  // namespace mercury
