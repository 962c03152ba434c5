// Seals, beside those that another library's AES-GCM and Python's BLAKE2b give for the same frames.
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

}  // namespace
}  // namespace mercury::wire
