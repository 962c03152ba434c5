#include "transport/wire/seal.h"

#include <intel-ipsec-mb.h>
#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "transport/base/types.h"
#include "transport/wire/be.h"
#include "transport/wire/header.h"

namespace mercury::wire {
namespace {

// The widest code that the CPU has, chosen once; of it only functions without state are used.
// It stays until the process ends.
const IMB_MGR* make_library() noexcept {
  IMB_MGR* const library = alloc_mb_mgr(0);
  if (library == nullptr) return nullptr;
  constexpr uint64_t kNeeded = IMB_FEATURE_AESNI | IMB_FEATURE_PCLMULQDQ;
  if ((library->features & kNeeded) == kNeeded) init_mb_mgr_auto(library, nullptr);
  if (imb_get_errno(library) != 0 || library->gmac128_init == nullptr) {
    free_mb_mgr(library);
    return nullptr;
  }
  return library;
}

const IMB_MGR* library() noexcept {
  static const IMB_MGR* const made = make_library();
  return made;
}

constexpr size_t kSaltBytes = sizeof(Be32);
constexpr size_t kKeyBytes = 16;
constexpr size_t kNonceBytes = kSaltBytes + sizeof(Be64);
static_assert(kNonceBytes == IMB_GCM_IV_DATA_LEN);
// 12 bytes, and what fills two words.
using GcmNonce = uint64_t __attribute__((vector_size(16)));

// The key of 2^32 packet numbers.
struct GenerationKey {
  alignas(kCacheLine) gcm_key_data expanded;  // the library's code loads it so
  uint32_t generation = 0;
  Be32 salt{};
};

constexpr uint32_t generation_of(uint64_t packet_number) {
  return static_cast<uint32_t>(packet_number >> 32);
}

// Made in a register and stored by one instruction: the library loads it at once, and a load of
// what several stores have written waits until they are in the cache, behind the payload's.
GcmNonce nonce_of(const GenerationKey& key, uint64_t packet_number, uint32_t piece) noexcept {
  const uint64_t fixed = key.salt.value() ^ piece;
  return GcmNonce{__builtin_bswap64(fixed << 32 | packet_number >> 32),
                  __builtin_bswap64(packet_number << 32)};
}
const uint8_t* octets(const GcmNonce& nonce) noexcept {
  return reinterpret_cast<const uint8_t*>(&nonce);
}

const uint8_t* octets(const std::byte* bytes) noexcept {
  return reinterpret_cast<const uint8_t*>(bytes);
}
uint8_t* octets(std::byte* bytes) noexcept { return reinterpret_cast<uint8_t*>(bytes); }

// In constant time. (sodium_memcmp goes byte by byte: 16 ns instead of 3.)
bool is_same(const std::byte* expected, const std::byte* seal) noexcept {
  static_assert(kSealBytes == crypto_verify_16_BYTES);
  return crypto_verify_16(octets(expected), octets(seal)) == 0;
}

// The key, then the salt.
void derive(const SealSecret& secret, uint32_t generation, const IMB_MGR* library,
            GenerationKey& out) noexcept {
  constexpr std::string_view kDomain = "mercury frame key";
  std::array<unsigned char, kDomain.size() + sizeof(Be32)> input{};
  const Be32 number(generation);
  std::memcpy(input.data(), kDomain.data(), kDomain.size());
  std::memcpy(input.data() + kDomain.size(), &number, sizeof number);
  std::array<unsigned char, 32> hash{};
  crypto_generichash(hash.data(), hash.size(), input.data(), input.size(), secret.data(),
                     secret.size());
  IMB_AES128_GCM_PRE(library, hash.data(), &out.expanded);
  std::memcpy(&out.salt, hash.data() + kKeyBytes, kSaltBytes);
  out.generation = generation;
  sodium_memzero(hash.data(), hash.size());
}

}  // namespace

// Two keys, of neighbouring generations: what comes late when the next has begun is still known,
// and a forged number costs one derivation. (Numbers further away are dropped before.)
struct FrameSeal::Keys {
  explicit Keys(const SealSecret& s) noexcept : secret(s) {
    for (uint32_t i = 0; i < keys.size(); ++i) derive(secret, i, library, keys[i]);
    constexpr std::string_view kDomain = "mercury frame crc";
    crypto_generichash(mask_key.data(), mask_key.size(),
                       reinterpret_cast<const unsigned char*>(kDomain.data()), kDomain.size(),
                       secret.data(), secret.size());
  }
  ~Keys() {
    sodium_memzero(keys.data(), sizeof keys);
    sodium_memzero(secret.data(), secret.size());
    sodium_memzero(mask_key.data(), mask_key.size());
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  const GenerationKey& of(uint64_t packet_number) noexcept {
    const uint32_t generation = generation_of(packet_number);
    GenerationKey& key = keys[generation % keys.size()];
    if (key.generation != generation) [[unlikely]]
      derive(secret, generation, library, key);
    return key;
  }

  std::array<GenerationKey, 2> keys{};
  const IMB_MGR* const library = wire::library();
  SealSecret secret;
  std::array<unsigned char, crypto_shorthash_KEYBYTES> mask_key{};
};

bool can_seal() noexcept { return library() != nullptr; }

FrameSeal::FrameSeal(const SealSecret& secret) : keys_(std::make_unique<Keys>(secret)) {}
FrameSeal::~FrameSeal() = default;

void FrameSeal::seal(uint64_t packet_number, std::span<const std::byte> header,
                     std::span<const std::byte> payload, std::byte* out, uint32_t piece) noexcept {
  const GenerationKey& key = keys_->of(packet_number);
  const IMB_MGR* const library = keys_->library;
  const GcmNonce nonce = nonce_of(key, packet_number, piece);
  gcm_context_data context;
  // What is authenticated begins with the header: the same as GMAC's first update, if it is of
  // whole blocks, and 6 ns less.
  static_assert(sizeof(DatagramHeader) % 16 == 0 && sizeof(PlainHeader) % 16 == 0);
  IMB_AES128_GCM_INIT(library, &key.expanded, &context, octets(nonce), octets(header.data()),
                      header.size());
  if (!payload.empty()) {
    IMB_AES128_GMAC_UPDATE(library, &key.expanded, &context, octets(payload.data()),
                           payload.size());
  }
  IMB_AES128_GMAC_FINALIZE(library, &key.expanded, &context, octets(out), kSealBytes);
}

bool FrameSeal::fits(uint64_t packet_number, std::span<const std::byte> header,
                     std::span<const std::byte> payload, const std::byte* seal,
                     uint32_t piece) noexcept {
  std::array<std::byte, kSealBytes> expected;
  this->seal(packet_number, header, payload, expected.data(), piece);
  return is_same(expected.data(), seal);
}

void FrameSeal::encrypt(uint64_t packet_number, std::span<const std::byte> header,
                        std::span<const std::byte> payload, std::byte* out) noexcept {
  const GenerationKey& key = keys_->of(packet_number);
  const GcmNonce nonce = nonce_of(key, packet_number, 0);
  gcm_context_data context;
  IMB_AES128_GCM_ENC(keys_->library, &key.expanded, &context, octets(out + kSealBytes),
                     octets(payload.data()), payload.size(), octets(nonce), octets(header.data()),
                     header.size(), octets(out), kSealBytes);
}

bool FrameSeal::fits_encrypted(uint64_t packet_number, std::span<const std::byte> header,
                               std::span<const std::byte> sealed) noexcept {
  const GenerationKey& key = keys_->of(packet_number);
  const IMB_MGR* const library = keys_->library;
  const GcmNonce nonce = nonce_of(key, packet_number, 0);
  gcm_context_data context;
  IMB_AES128_GCM_INIT(library, &key.expanded, &context, octets(nonce), octets(header.data()),
                      header.size());
  std::array<std::byte, 512> plain;
  for (std::span<const std::byte> left = sealed.subspan(kSealBytes); !left.empty();) {
    const std::span<const std::byte> piece = left.first(std::min(left.size(), plain.size()));
    IMB_AES128_GCM_DEC_UPDATE(library, &key.expanded, &context, octets(plain.data()),
                              octets(piece.data()), piece.size());
    left = left.subspan(piece.size());
  }
  std::array<std::byte, kSealBytes> expected;
  IMB_AES128_GCM_DEC_FINALIZE(library, &key.expanded, &context, octets(expected.data()),
                              kSealBytes);
  sodium_memzero(plain.data(), plain.size());
  return is_same(expected.data(), sealed.data());
}

bool FrameSeal::decrypt(uint64_t packet_number, std::span<const std::byte> header,
                        std::span<const std::byte> sealed, std::byte* plain) noexcept {
  const GenerationKey& key = keys_->of(packet_number);
  const GcmNonce nonce = nonce_of(key, packet_number, 0);
  const std::span<const std::byte> hidden = sealed.subspan(kSealBytes);
  std::array<std::byte, kSealBytes> expected;
  gcm_context_data context;
  IMB_AES128_GCM_DEC(keys_->library, &key.expanded, &context, octets(plain), octets(hidden.data()),
                     hidden.size(), octets(nonce), octets(header.data()), header.size(),
                     octets(expected.data()), kSealBytes);
  return is_same(expected.data(), sealed.data());
}

uint32_t FrameSeal::crc_mask(uint64_t packet_number) const noexcept {
  const Be64 number(packet_number);
  std::array<unsigned char, crypto_shorthash_BYTES> hash{};
  crypto_shorthash(hash.data(), reinterpret_cast<const unsigned char*>(&number), sizeof number,
                   keys_->mask_key.data());
  Be32 mask;
  std::memcpy(&mask, hash.data(), sizeof mask);
  return mask.value();
}

}  // namespace mercury::wire
