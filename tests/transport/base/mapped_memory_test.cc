// Memory that is mapped for as long as somebody owns it.
#include "transport/base/mapped_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace mercury {
namespace {

constexpr size_t kBytes = 100;  // not a whole page

bool is_mapped(void* page) { return ::msync(page, 1, MS_ASYNC) == 0; }

TEST(MappedMemory, IsZeroedAndUnmappedWithItsOwner) {
  std::byte* data = nullptr;
  {
    const MappedMemory memory = MappedMemory::anonymous(kBytes);
    ASSERT_TRUE(memory);
    data = memory.data();
    EXPECT_EQ(memory.bytes(), kBytes);
    EXPECT_EQ(data[kBytes - 1], std::byte{0});
    data[0] = std::byte{1};
    EXPECT_TRUE(is_mapped(data));
  }
  EXPECT_FALSE(is_mapped(data));
}

TEST(MappedMemory, MovesAndLetsGoOfWhatItHeld) {
  MappedMemory first = MappedMemory::anonymous(kBytes);
  MappedMemory second = MappedMemory::anonymous(2 * kBytes);
  std::byte* const held = first.data();
  std::byte* const moved = second.data();
  first = std::move(second);
  EXPECT_FALSE(is_mapped(held));
  EXPECT_EQ(first.data(), moved);
  EXPECT_EQ(first.bytes(), 2 * kBytes);
  EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move): it is empty then
  EXPECT_EQ(second.data(), nullptr);
  EXPECT_EQ(second.bytes(), 0u);
  const MappedMemory third(std::move(first));
  EXPECT_TRUE(is_mapped(third.data()));
}

TEST(MappedMemory, SharesAFile) {
  const int fd = ::memfd_create("mapped-memory-test", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, kBytes), 0);
  const MappedMemory ours = MappedMemory::shared(fd, kBytes);
  const MappedMemory theirs = MappedMemory::shared(fd, kBytes, PROT_READ);
  ::close(fd);
  ASSERT_TRUE(ours);
  ASSERT_TRUE(theirs);
  ours.data()[7] = std::byte{42};
  EXPECT_EQ(theirs.data()[7], std::byte{42});
}

TEST(MappedMemory, IsEmptyWhereTheKernelRefuses) {
  errno = 0;
  const MappedMemory memory = MappedMemory::shared(-1, kBytes);
  EXPECT_EQ(errno, EBADF);
  EXPECT_FALSE(memory);
  EXPECT_EQ(memory.data(), nullptr);
  EXPECT_EQ(memory.bytes(), 0u);
}

}  // namespace
}  // namespace mercury
