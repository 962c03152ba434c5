// How a session opens, seen from either side. The active side says HELLO until it is answered; the
// passive side has accepted one, and says its HELLO_ACK whenever it is asked. From both nonces and
// the job's key follows the tag that every frame carries afterwards, and from the whole handshake
// the keys of its seals, where both sides have them. The passive side waits for a frame that shows
// that the peer knows them.
//
// Invariants: peer_number() is 0 until the peer has said it; once confirmed, a session stays so;
// one that nobody answers or confirms expires.
// Owner/thread: one engine. Cold, but for the accessors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "transport/base/result.h"
#include "transport/flow/frame_keys.h"
#include "transport/flow/frame_tag.h"
#include "transport/flow/handshake.h"
#include "transport/wire/header.h"
#include "transport/wire/hello.h"

namespace mercury {

class Opening {
 public:
  // `timeout_ns`: from HELLO to its answer (active), from the answer to a frame with the tag.
  // `versions`: that a passive side speaks.
  Opening(uint32_t local_number, uint16_t max_udp_payload, uint64_t timeout_ns,
          const wire::Versions& versions = {})
      : timeout_ns_(timeout_ns),
        local_number_(local_number),
        max_udp_payload_(max_udp_payload),
        versions_(versions) {}

  // Active side: HELLO is due. A limit of the port that the caller left open is filled in.
  void ask(const wire::Hello& hello, const wire::Key& key, uint64_t now_ns);
  // Passive side: HELLO_ACK is due. Error: kVersionMismatch; the peer is known, and to be refused.
  Status accept(const wire::Hello& hello, const wire::HelloAck& answer, const wire::Key& key,
                uint64_t now_ns);

  // --- frames that arrive ---
  // Passive side: whether it is our peer's HELLO, said again; then HELLO_ACK is due again.
  bool on_hello_again(const wire::Hello& hello) noexcept;
  // Whether an answer (HELLO_ACK, REFUSE) comes from one who has seen our HELLO.
  bool knows_hello(const wire::Header& header) const noexcept;
  // Active side: an answer of one who does not. Hosts of version 1 write zero there, and can but
  // refuse: what they say is told if nobody else answers (docs/protocol.md).
  void note_hearsay(const wire::Header& header, std::span<const std::byte> payload);
  // Active side: HELLO is due again with this token. False: it is none, or the peer has asked for
  // too many.
  bool take_token(std::string_view text) noexcept;
  // Active side: what the first HELLO_ACK took to come. Nothing where HELLO was said more than
  // once, as it may answer any of them.
  std::optional<uint64_t> round_trip_ns(uint64_t now_ns) const noexcept;
  // Active side: whether nothing of HELLO and this answer, of which `body` is what arrived, was
  // altered on the way. True too where one side knows no confirmation: then the proof alone shows
  // it.
  bool confirms(const wire::HelloAck& answer, std::span<const std::byte> body);
  // Active side: answered, and confirmed. Error: kVersionMismatch, a version that was not offered;
  // the peer is known, and can be told.
  Status on_answer(const wire::HelloAck& answer);
  void confirm() noexcept { confirmed_ = true; }  // the peer knows the tag

  // --- frames to send, into at least kBasePayloadBytes; their bytes ---
  bool hello_due() const noexcept { return hello_.due(); }
  uint32_t write_hello(std::span<std::byte> out, uint64_t now_ns) noexcept;
  bool answer_due() const noexcept { return answer_due_; }
  bool answered() const noexcept { return answered_; }  // once, at least
  uint32_t write_answer(std::span<std::byte> out) noexcept;
  uint32_t write_refusal(std::span<std::byte> out, const Error& error) const;

  // --- time ---
  void on_timer(uint64_t now_ns) noexcept { hello_.on_timer(now_ns); }
  // Until it is confirmed: HELLO again, or the end.
  uint64_t deadline_ns() const noexcept {
    return passive_ ? accepted_ns_ + timeout_ns_ : hello_.deadline_ns();
  }
  bool expired(uint64_t now_ns) const noexcept {
    return passive_ ? now_ns >= accepted_ns_ + timeout_ns_ : hello_.expired(now_ns);
  }
  void stop() noexcept { hello_.stop(); }  // HELLO is not said again

  bool passive() const noexcept { return passive_; }
  bool confirmed() const noexcept { return confirmed_; }
  uint32_t peer_number() const noexcept { return peer_number_; }
  const FrameTag& tag() const noexcept { return tag_; }
  Seals* seals() const noexcept { return seals_.get(); }  // null: frames have none
  std::unique_ptr<Seals> take_seals() noexcept {
    if (seals_) seals_->forget_plain();
    return std::move(seals_);
  }
  const wire::HelloAck& answer() const noexcept { return answer_; }  // given or received
  uint32_t features() const noexcept { return features_asked_ & answer_.features; }  // both sides'
  const std::string& hearsay() const noexcept { return hearsay_; }
  // What this side's reset token travels combined with, and the peer's; once the tag is known.
  uint64_t own_mask() const noexcept { return passive_ ? masks_.answering : masks_.asking; }
  uint64_t peer_mask() const noexcept { return passive_ ? masks_.asking : masks_.answering; }

 private:
  void confirm_answer(const wire::Hello& hello, const wire::Key& key);  // passive side
  bool has_confirmation(const wire::HelloAck& answer) const noexcept {
    constexpr uint32_t kEither = wire::kFeatureSeals | wire::kFeatureConfirmation;
    return (features_asked_ & answer.features & kEither) != 0;
  }
  bool has_seals(const wire::HelloAck& answer) const noexcept {
    return (features_asked_ & answer.features & wire::kFeatureSeals) != 0;
  }
  bool is_encrypted(const wire::HelloAck& answer) const noexcept {
    return (features_asked_ & answer.features & wire::kFeatureCanEncrypt) != 0 &&
           ((features_asked_ | answer.features) & wire::kFeatureAsksEncryption) != 0;
  }
  // Null: frames have none.
  std::unique_ptr<Seals> seals_of(const FrameKeys& keys, const wire::HelloAck& answer) const {
    if (!has_seals(answer)) return nullptr;
    auto seals = std::make_unique<Seals>(keys, passive_);
    if (is_encrypted(answer)) seals->encrypt(max_udp_payload_);
    return seals;
  }

  FrameTag tag_;
  std::unique_ptr<Seals> seals_;
  ResetMasks masks_;
  uint32_t peer_number_ = 0;
  bool passive_ = false;
  bool confirmed_ = false;
  bool answer_due_ = false;
  bool answered_ = false;
  uint64_t accepted_ns_ = 0;
  const uint64_t timeout_ns_;
  const uint32_t local_number_;
  const uint16_t max_udp_payload_;
  const wire::Versions versions_;
  uint32_t features_asked_ = 0;
  wire::Nonce asked_{};  // the HELLO's nonce
  wire::Key key_{};      // active side
  uint64_t token_ = 0;   // active side: what HELLO carries; 0: none was asked for
  uint32_t tokens_ = 0;  // that were taken
  wire::HelloAck answer_;
  HelloTimer hello_;     // active side
  std::string hearsay_;  // active side
};

}  // namespace mercury
