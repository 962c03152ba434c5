// Seals and ciphertexts, beside those that another library's AES-GCM and Python's BLAKE2b give for
// the same frames.
#include "transport/wire/seal.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "tests/transport/wire/golden_frames.h"

namespace mercury::wire {
namespace {

using Bytes = std::vector<std::byte>;

SealSecret secret_of(uint8_t first = 0) {
  SealSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(first + i);
  return secret;
}
Bytes bytes_from(size_t count, unsigned step) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * step);
  return bytes;
}
Bytes sealed(FrameSeal& seal, uint64_t number, const Bytes& header, const Bytes& payload,
             uint32_t piece = 0) {
  Bytes out(kSealBytes);
  seal.seal(number, header, payload, out.data(), piece);
  return out;
}

struct Known {
  uint64_t number;
  size_t header_bytes;
  size_t payload_bytes;
  std::string_view seal;
  uint32_t piece = 0;
};
// Key and salt: BLAKE2b-256 of "mercury frame key" and the number's upper half, keyed with 00 01 ..
// 1f. Header: 00 01 02 .., payload: 00 07 0e ..
constexpr Known kKnown[] = {
    {0, 48, 0, "4aed8456654f922b0bb461c46101da9c"},
    {0, 48, 1, "46c1acf839f11c3a2b9ec83651ef4ced"},
    {0, 48, 1000, "1409c9cdbefd76e99444ba3d9ff7ad3e"},
    {9, 32, 5, "4212828da383c4ae8b80895c7cfd2faa"},
    {1, 48, 16, "b7c39c5c89cc25f50d88e4a89c140b6a"},
    {0xffffffff, 48, 1000, "19460a287879c6f12a00b39dea15ec13"},
    {0x100000000, 48, 1000, "d32fdb121764564c04bc2e56ca19de55"},  // another key
    {0x0102030405060708, 48, 1000, "8439baf3800b7059cad75cde6f79b8a3"},
    {9, 32, 5, "0ea4aa22da3eed0f1a461beae946a43b", 1},
    {9, 32, 5, "5b94e9d76a6801e19d894da0d8f31b7a", 1189},
    {0x100000000, 32, 1000, "af8cde5973ec69761f8f11247b93396e", 65'536},
};

TEST(Seal, IsWhatOtherLibrariesCompute) {
  ASSERT_TRUE(can_seal()) << "this CPU lacks AES or PCLMULQDQ";
  FrameSeal seal(secret_of());
  for (const Known& known : kKnown) {
    const Bytes header = bytes_from(known.header_bytes, 1);
    const Bytes payload = bytes_from(known.payload_bytes, 7);
    EXPECT_EQ(sealed(seal, known.number, header, payload, known.piece), bytes_of_hex(known.seal))
        << known.number << ", " << known.payload_bytes << " bytes";
    EXPECT_TRUE(
        seal.fits(known.number, header, payload, bytes_of_hex(known.seal).data(), known.piece));
    EXPECT_FALSE(
        seal.fits(known.number, header, payload, bytes_of_hex(known.seal).data(), known.piece + 1));
  }
}

TEST(Seal, FitsNothingElse) {
  FrameSeal seal(secret_of());
  FrameSeal another(secret_of(1));
  const uint64_t number = 77;
  Bytes header = bytes_from(48, 3), payload = bytes_from(100, 5);
  Bytes own = sealed(seal, number, header, payload);
  EXPECT_TRUE(seal.fits(number, header, payload, own.data()));
  EXPECT_FALSE(another.fits(number, header, payload, own.data()));
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_FALSE(seal.fits(number ^ uint64_t{1} << bit, header, payload, own.data())) << bit;
  }
  for (Bytes* part : {&header, &payload, &own}) {
    for (size_t bit = 0; bit < part->size() * 8; ++bit) {
      (*part)[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_FALSE(seal.fits(number, header, payload, own.data())) << "bit " << bit;
      (*part)[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
  }
  EXPECT_TRUE(seal.fits(number, header, payload, own.data())) << "all is as it was";
  const Bytes longer = bytes_from(101, 5), shorter = bytes_from(99, 5);
  EXPECT_FALSE(seal.fits(number, header, longer, own.data()));
  EXPECT_FALSE(seal.fits(number, header, shorter, own.data()));
}

// A frame may be late when the next key's have come, and forged numbers may have asked for others.
TEST(Seal, KeysOfNeighbouringNumbersAreKnownInAnyOrder) {
  FrameSeal sender(secret_of()), receiver(secret_of());
  const Bytes header = bytes_from(48, 1), payload = bytes_from(200, 1);
  std::vector<uint64_t> numbers;
  for (uint64_t generation = 0; generation < 5; ++generation) {
    for (const uint64_t low : {uint64_t{0}, uint64_t{5}, uint64_t{0xffffffff}}) {
      numbers.push_back(generation << 32 | low);
    }
  }
  std::vector<Bytes> seals;
  for (const uint64_t number : numbers) seals.push_back(sealed(sender, number, header, payload));
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (size_t j = 0; j < numbers.size(); ++j) {
      EXPECT_EQ(receiver.fits(numbers[j], header, payload, seals[i].data()), i == j)
          << numbers[i] << " as " << numbers[j];
    }
  }
}

struct KnownCiphertext {
  uint64_t number;
  size_t header_bytes;
  std::string_view seal;
  std::string_view hidden;
  uint32_t crc_mask;
};
// The same keys, headers and payloads; the mask's key is BLAKE2b with 16 bytes of "mercury frame
// crc".
constexpr KnownCiphertext kKnownCiphertexts[] = {
    {0, 48, "4aed8456654f922b0bb461c46101da9c", "", 0xbca837d8},
    {0, 48, "dec233eb229c07b537b8beb76f2270c1", "88", 0xbca837d8},
    {9, 32, "a736231cc846e3290c2a38b89c3e8797", "0dee6cc3ff", 0xa02b8d00},
    {1, 48, "c6627a9597e5c6f5ad7ef558ddc5e8ce", "b77546f1280b3e6f7bdf2b3feebb7c42", 0x28f8ef50},
    {0xffffffff, 48, "bb5af5f00f3079c64ddda93b11a2c530",
     "4aa3560460c07bc936ebb46ad6e8c29bbf669b2972d2bfb76d2f3b0a9ecbbb71ea1c9fb5720b559f",
     0x6d071725},
    {0x100000000, 48, "66afb9f04bb1918381fb9f8cdce9498a",
     "e65436b8598cd84c5167531b3e8aeea5bb7b2e8205b15df56c165aa4ea4af17b5622429a68da1e0c",
     0x9224ae00},
    {0x0102030405060708, 32, "3571a28ac2bf2475f68b2d4d2a71f661",
     "1829807c1a833803a67c0cff8dea8969452f8071d4f92a9f7e0e54bb42c2515620", 0x49d709d8},
};

TEST(Encryption, IsWhatOtherLibrariesCompute) {
  FrameSeal seal(secret_of());
  for (const KnownCiphertext& known : kKnownCiphertexts) {
    const Bytes header = bytes_from(known.header_bytes, 1);
    const Bytes payload = bytes_from(known.hidden.size() / 2, 7);
    Bytes expected = bytes_of_hex(known.seal);
    const Bytes hidden = bytes_of_hex(known.hidden);
    expected.insert(expected.end(), hidden.begin(), hidden.end());
    Bytes out(expected.size());
    seal.encrypt(known.number, header, payload, out.data());
    EXPECT_EQ(out, expected) << known.number << ", " << payload.size() << " bytes";
    Bytes in_place(kSealBytes);
    in_place.insert(in_place.end(), payload.begin(), payload.end());
    seal.encrypt(known.number, header, std::span(in_place).subspan(kSealBytes), in_place.data());
    EXPECT_EQ(in_place, expected) << "where the payload stood";
    EXPECT_EQ(seal.crc_mask(known.number), known.crc_mask);
    Bytes plain(payload.size());
    EXPECT_TRUE(seal.decrypt(known.number, header, expected, plain.data()));
    EXPECT_EQ(plain, payload);
  }
}

TEST(Encryption, NothingElseIsDecrypted) {
  FrameSeal seal(secret_of());
  FrameSeal another(secret_of(1));
  const uint64_t number = 77;
  Bytes header = bytes_from(48, 3);
  const Bytes payload = bytes_from(100, 5);
  Bytes sealed(kSealBytes + payload.size()), plain(payload.size());
  seal.encrypt(number, header, payload, sealed.data());
  const auto decrypts = [&] { return seal.decrypt(number, header, sealed, plain.data()); };
  EXPECT_TRUE(decrypts());
  EXPECT_FALSE(another.decrypt(number, header, sealed, plain.data()));
  EXPECT_FALSE(seal.decrypt(number + 1, header, sealed, plain.data()));
  EXPECT_FALSE(
      seal.decrypt(number, header, std::span(sealed).first(sealed.size() - 1), plain.data()));
  EXPECT_FALSE(seal.fits(number, header, std::span(sealed).subspan(kSealBytes), sealed.data()))
      << "a seal of ciphertext is another one";
  for (Bytes* part : {&header, &sealed}) {
    for (size_t bit = 0; bit < part->size() * 8; ++bit) {
      (*part)[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_FALSE(decrypts()) << "bit " << bit;
      (*part)[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
  }
  EXPECT_TRUE(decrypts()) << "all is as it was";
  EXPECT_EQ(plain, payload);
}

}  // namespace
}  // namespace mercury::wire
