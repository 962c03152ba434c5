// Seals: 16 bytes behind the header of each frame of a session whose key is a secret. They show
// that all of the frame, header and payload, is what the peer has sent, in this session, in this
// direction, under this packet number.
//
// A seal is the tag of AES-128-GCM with the frame as additional data and nothing to encrypt (GMAC,
// NIST SP 800-38D), computed by intel-ipsec-mb, which DPDK's own cryptography uses. Whoever reads
// the wire learns nothing from seals about the next; a guess is right once in 2^128 times.
//
// Where a session is encrypted, too, the header alone is additional data and the payload is what
// AES-128-GCM encrypts; ciphertext has its length. The header's CRC of the payload, which would
// tell what is in it, is combined (exclusive or) with a mask: libsodium's crypto_shorthash of the
// packet number under a key of its own. Parts of a frame are pieces of ciphertext: they have seals
// and nothing more.
//
// Units: a key is for one direction of one session. A nonce is its salt, exclusive or the piece,
// and the packet number: piece 0 of a number is the whole frame, others are its parts (part.h).
// None must be sealed, or encrypted, twice, nor both. After each 2^32 numbers another key is
// derived. Of ciphertext a key then has about 2^41 blocks where frames have 9,000 bytes, which are
// told from noise with a chance of about 2^-47 (GCM's bound is that of counter mode: blocks squared
// by 2^129). Owner/thread: one engine each. Nothing allocates after construction.
//
// Paper: NIST SP 800-38D, sections 6 to 8 (GCM and GMAC, nonces made of a fixed field and a
// counter).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace mercury::wire {

inline constexpr size_t kSealBytes = 16;
// From which the keys of one direction follow.
using SealSecret = std::array<uint8_t, 32>;

// Whether this CPU has what seals need (x86's AES and PCLMULQDQ). Any thread.
bool can_seal() noexcept;

// One direction: its sender seals, its receiver looks.
class FrameSeal {
 public:
  explicit FrameSeal(const SealSecret& secret);  // only where can_seal()
  ~FrameSeal();
  FrameSeal(const FrameSeal&) = delete;
  FrameSeal& operator=(const FrameSeal&) = delete;

  // Writes kSealBytes to `out`. `header` is the frame's as it travels, `payload` what stands behind
  // the seal; both must not change meanwhile.
  void seal(uint64_t packet_number, std::span<const std::byte> header,
            std::span<const std::byte> payload, std::byte* out, uint32_t piece = 0) noexcept;
  // Whether the kSealBytes at `seal` are those of this frame. In constant time.
  bool fits(uint64_t packet_number, std::span<const std::byte> header,
            std::span<const std::byte> payload, const std::byte* seal, uint32_t piece = 0) noexcept;

  // Of a whole frame. Writes to `out` the seal, and the ciphertext of `payload` behind it, where
  // `payload` itself may stand.
  void encrypt(uint64_t packet_number, std::span<const std::byte> header,
               std::span<const std::byte> payload, std::byte* out) noexcept;
  // `sealed`: seal and ciphertext. Writes to `plain`, which is apart. False: the seal does not fit,
  // and what was written means nothing.
  bool decrypt(uint64_t packet_number, std::span<const std::byte> header,
               std::span<const std::byte> sealed, std::byte* plain) noexcept;
  // Whether it does, and nothing is written.
  bool fits_encrypted(uint64_t packet_number, std::span<const std::byte> header,
                      std::span<const std::byte> sealed) noexcept;
  // What this frame's CRC of the payload is combined with where it is encrypted.
  uint32_t crc_mask(uint64_t packet_number) const noexcept;

 private:
  struct Keys;
  std::unique_ptr<Keys> keys_;
};

}  // namespace mercury::wire
