#include "transport/wire/crc32c.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cctype>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace mercury::wire {
namespace {

std::vector<std::byte> pattern(size_t bytes, uint32_t seed = 1) {
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<std::byte>(seed >> 24);
  }
  return data;
}

// Bit by bit, as the polynomial is defined.
uint32_t slow_crc32c(std::span<const std::byte> data) {
  uint32_t crc = ~uint32_t{0};
  for (const std::byte byte : data) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

class Crc32c : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    original_ = crc32c_kernel();
    if (!crc32c_force_kernel(GetParam())) GTEST_SKIP() << "this CPU has no " << GetParam();
  }
  void TearDown() override { crc32c_force_kernel(original_); }
  const char* original_ = nullptr;
};

TEST_P(Crc32c, VectorsOfRfc3720) {
  EXPECT_STREQ(crc32c_kernel(), GetParam());
  std::vector<std::byte> data(32, std::byte{0});
  EXPECT_EQ(crc32c(data), 0x8a9136aaU);
  data.assign(32, std::byte{0xff});
  EXPECT_EQ(crc32c(data), 0x62a8ab43U);
  for (uint8_t i = 0; i < 32; ++i) data[i] = std::byte{i};
  EXPECT_EQ(crc32c(data), 0x46dd794eU);
  for (uint8_t i = 0; i < 32; ++i) data[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(crc32c(data), 0x113fdb5cU);
  const uint8_t read_command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,
                                    0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                    0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
  EXPECT_EQ(crc32c(std::as_bytes(std::span(read_command))), 0xd9963a56U);
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe3069283U);
  EXPECT_EQ(crc32c(nullptr, 0), 0U);
}

TEST_P(Crc32c, EveryLengthEqualsTheDefinitionAndCopiesExactly) {
  const std::vector<std::byte> data = pattern(1200);
  std::vector<std::byte> copy(1200);
  for (size_t bytes = 0; bytes <= 1100; ++bytes) {
    const size_t start = bytes % 67;
    const std::byte* source = data.data() + start;
    const uint32_t expected = slow_crc32c(std::span(source, bytes));
    ASSERT_EQ(crc32c(source, bytes), expected) << bytes;
    std::fill(copy.begin(), copy.end(), std::byte{0xee});
    ASSERT_EQ(copy_crc32c(copy.data() + 3, source, bytes), expected) << bytes;
    ASSERT_EQ(std::memcmp(copy.data() + 3, source, bytes), 0) << bytes;
    ASSERT_EQ(copy[2], std::byte{0xee}) << "wrote before its begin";
    ASSERT_EQ(copy[3 + bytes], std::byte{0xee}) << "wrote beyond its end";
  }
}

TEST_P(Crc32c, WordsInRegistersAreSummedAsTheMemoryTheyCameFrom) {
  const std::vector<std::byte> data = pattern(48 + 100, 21);
  for (size_t start = 0; start < 100; ++start) {
    std::array<uint64_t, 6> words;
    std::memcpy(words.data(), data.data() + start, sizeof words);
    ASSERT_EQ(crc32c_of_words(words[0], words[1], words[2], words[3], words[4], words[5]),
              slow_crc32c(std::span(data).subspan(start, sizeof words)));
  }
}

TEST_P(Crc32c, EveryAlignmentGivesTheSame) {
  for (const size_t bytes : {7UL, 63UL, 64UL, 191UL, 256UL, 769UL, 1024UL}) {
    const std::vector<std::byte> data = pattern(bytes, 3);
    const uint32_t expected = slow_crc32c(data);
    std::vector<std::byte> room(bytes + 64), copy(bytes + 64);
    for (size_t start = 0; start < 64; ++start) {
      std::memcpy(room.data() + start, data.data(), bytes);
      ASSERT_EQ(crc32c(room.data() + start, bytes), expected) << bytes << " at " << start;
      ASSERT_EQ(copy_crc32c(copy.data() + 63 - start, room.data() + start, bytes), expected);
      ASSERT_EQ(std::memcmp(copy.data() + 63 - start, data.data(), bytes), 0);
    }
  }
}

TEST_P(Crc32c, FramesOfAllUsualSizes) {
  for (const size_t bytes : {1424UL, 3072UL, 4096UL, 8924UL, 9000UL, 65535UL}) {
    const std::vector<std::byte> data = pattern(bytes, 5);
    std::vector<std::byte> copy(bytes);
    const uint32_t expected = slow_crc32c(data);
    EXPECT_EQ(crc32c(data), expected) << bytes;
    EXPECT_EQ(copy_crc32c(copy.data(), data.data(), bytes), expected) << bytes;
    EXPECT_EQ(copy, data);
  }
}

TEST_P(Crc32c, WhatIsFetchedNextNeedNotBeMapped) {
  const std::vector<std::byte> data = pattern(9000, 13);
  std::vector<std::byte> copy(data.size());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* guarded = mmap(nullptr, 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(guarded, MAP_FAILED);
  const auto* const unreadable = static_cast<const std::byte*>(guarded);
  for (const std::byte* next : {unreadable, unreadable + page - 1, data.data() + data.size(),
                                static_cast<const std::byte*>(nullptr)}) {
    for (const size_t bytes : {0UL, 1UL, 1424UL, 8924UL}) {
      std::fill(copy.begin(), copy.end(), std::byte{0xee});
      ASSERT_EQ(copy_crc32c_fetching(copy.data(), data.data(), bytes, next),
                slow_crc32c(std::span(data).first(bytes)));
      ASSERT_EQ(std::memcmp(copy.data(), data.data(), bytes), 0);
      ASSERT_EQ(copy[bytes], std::byte{0xee}) << "wrote beyond its end";
    }
  }
  munmap(guarded, 2 * page);
}

// Long pieces are taken apart into some of 1,152, 2,880 and 8,640 bytes.
TEST_P(Crc32c, LengthsAroundItsPiecesFromAnyStart) {
  const std::vector<std::byte> data = pattern(22'000, 11);
  for (const size_t piece : {1152UL, 2304UL, 2880UL, 4032UL, 8640UL, 12'672UL, 21'312UL}) {
    for (const size_t bytes : {piece - 64, piece - 8, piece - 1, piece, piece + 1, piece + 8,
                               piece + 63, piece + 64, piece + 71}) {
      for (size_t start = 0; start < 9; ++start) {
        ASSERT_EQ(crc32c(data.data() + start, bytes),
                  slow_crc32c(std::span(data).subspan(start, bytes)))
            << bytes << " at " << start;
      }
    }
  }
}

TEST_P(Crc32c, ExtendsWhereverTheDataIsCut) {
  for (const size_t bytes : {700UL, 12'000UL}) {
    const std::vector<std::byte> data = pattern(bytes, 7);
    const uint32_t whole = crc32c(data);
    for (size_t cut = 0; cut <= bytes; ++cut) {
      ASSERT_EQ(crc32c_extend(crc32c(data.data(), cut), data.data() + cut, bytes - cut), whole);
    }
  }
}

// Programs share their gradients' memory with the engine and may write it at any time. The writer
// here uses a mapping of its own, as a program does.
TEST_P(Crc32c, CopySumsWhatItStoredWhileTheSourceChanges) {
  constexpr size_t kBytes = 4096;
  const int fd = memfd_create("crc32c_test", 0);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, kBytes), 0);
  const int prot = PROT_READ | PROT_WRITE;
  void* written = mmap(nullptr, kBytes, prot, MAP_SHARED, fd, 0);
  void* read = mmap(nullptr, kBytes, prot, MAP_SHARED, fd, 0);
  close(fd);
  ASSERT_NE(written, MAP_FAILED);
  ASSERT_NE(read, MAP_FAILED);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    auto* words = static_cast<volatile uint64_t*>(written);
    for (uint64_t value = 1; !stop.load(std::memory_order_relaxed); ++value) {
      for (size_t i = 0; i < kBytes / 8; ++i) words[i] = value * 0x9e3779b97f4a7c15 + i;
    }
  });
  std::vector<std::byte> target(kBytes);
  size_t wrong = 0;
  for (size_t i = 0; i < 5000; ++i) {
    const size_t bytes = kBytes - i % 300;
    const uint32_t crc =
        copy_crc32c(target.data(), static_cast<const std::byte*>(read) + i % 13, bytes - 13);
    if (crc32c(target.data(), bytes - 13) != crc) ++wrong;
  }
  stop = true;
  writer.join();
  EXPECT_EQ(wrong, 0U);
  munmap(written, kBytes);
  munmap(read, kBytes);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Crc32c, testing::Values("avx512-vpclmul", "sse4.2", "table"),
                         [](const auto& kernel) {
                           std::string name = kernel.param;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST(Crc32cKernel, ChoosesTheWidestAndRefusesUnknownNames) {
  const std::string chosen = crc32c_kernel();
  EXPECT_FALSE(crc32c_force_kernel("mmx"));
  EXPECT_EQ(crc32c_kernel(), chosen);
  for (const char* wider : {"avx512-vpclmul", "sse4.2"}) {
    if (chosen == wider) break;
    EXPECT_FALSE(crc32c_force_kernel(wider)) << "this CPU has it, but " << chosen << " was chosen";
  }
}

}  // namespace
}  // namespace mercury::wire
