// Memory that a thread of its own touches ahead and gives back to the kernel.
#include "transport/base/memory_thread.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/resident_pages.h"
#include "transport/base/mapped_memory.h"

namespace mercury {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

bool is_mapped(const std::byte* data) {
  return ::msync(const_cast<std::byte*>(data), 1, MS_ASYNC) == 0;
}

// Whoever waits for another thread waits without a limit: a test that hangs fails by its time-out.
template <class F>
void wait_until(F holds) {
  while (!holds()) ::usleep(100);
}

// Of the mapping that begins there: what /proc/self/smaps calls VmFlags.
std::string flags_of(const std::byte* data) {
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(data) << '-';
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.rfind(begin.str(), 0) == 0) inside = true;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line;
  }
  return {};
}

TEST(MemoryThread, TouchesAllOfAMappingAndChangesNothing) {
  MemoryThread thread;
  for (const size_t bytes : {3 * kPage, 9 * kMiB + kPage}) {
    const MappedMemory memory = MappedMemory::anonymous(bytes);
    memory.data()[kPage] = std::byte{7};
    thread.prefault({memory.data(), bytes});
    memory.data()[2 * kPage] = std::byte{9};  // it is in use from the start
    wait_until([&] { return resident_pages(memory.data(), bytes) == bytes / kPage; });
    EXPECT_EQ(memory.data()[kPage], std::byte{7});
    EXPECT_EQ(memory.data()[2 * kPage], std::byte{9});
    EXPECT_EQ(memory.data()[bytes - 1], std::byte{0});
  }
}

TEST(MemoryThread, AsksForHugePagesAndForTheNodeOfWhoeverAsks) {
  const bool has_huge_pages = ::access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) == 0;
  MemoryThread thread;
  const MappedMemory memory = MappedMemory::anonymous(4 * kMiB);
  thread.prefault({memory.data(), memory.bytes()});
  if (has_huge_pages) {
    EXPECT_NE(flags_of(memory.data()).find(" hg"), std::string::npos) << flags_of(memory.data());
  }
  int mode = -1;
  if (::syscall(SYS_get_mempolicy, &mode, nullptr, 0, memory.data(), MPOL_F_ADDR) == 0) {
    EXPECT_EQ(mode, MPOL_PREFERRED);
  }
}

TEST(MemoryThread, GivesMemoryBackWhenItsOwnerLetsGo) {
  MemoryThread thread;
  MappedMemory memory = MappedMemory::anonymous(5 * kMiB + 100);
  memory.leave_to(thread);
  std::byte* const data = memory.data();
  std::byte* const last = data + 5 * kMiB;
  data[0] = *last = std::byte{1};
  memory = MappedMemory();
  wait_until([&] { return thread.bytes_to_unmap() == 0; });
  EXPECT_FALSE(is_mapped(data));
  EXPECT_FALSE(is_mapped(last));
}

TEST(MemoryThread, TakesBackWhatItIsStillTouching) {
  MemoryThread thread;
  std::vector<std::byte*> all;
  for (int i = 0; i < 50; ++i) {
    MappedMemory memory = MappedMemory::anonymous(64 * kMiB);
    memory.leave_to(thread);
    thread.prefault({memory.data(), memory.bytes()});
    all.push_back(memory.data());
  }
  wait_until([&] { return thread.bytes_to_unmap() == 0; });
  for (const std::byte* data : all) EXPECT_FALSE(is_mapped(data));
}

TEST(MemoryThread, EndsWhenAllIsGivenBack) {
  std::byte* data = nullptr;
  {
    MemoryThread thread;
    MappedMemory memory = MappedMemory::anonymous(100 * kMiB, PROT_READ | PROT_WRITE, MAP_POPULATE);
    data = memory.data();
    memory.leave_to(thread);
  }
  EXPECT_FALSE(is_mapped(data));
}

// In a child: what a user may have of processes cannot be had back.
TEST(MemoryThreadDeathTest, WithoutAThreadTheOwnerGivesItBackHimself) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become a user without processes";
  const auto run = [] {
    constexpr uid_t kNobody = 65534;
    const struct rlimit none {};
    if (::setresuid(kNobody, kNobody, kNobody) != 0) std::_Exit(1);
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) std::_Exit(2);
    MemoryThread thread;
    MappedMemory memory = MappedMemory::anonymous(3 * kMiB);
    std::byte* const data = memory.data();
    memory.leave_to(thread);
    thread.prefault({data, memory.bytes()});
    if (resident_pages(data, memory.bytes()) != 0) std::_Exit(3);
    memory = MappedMemory();
    std::_Exit(!is_mapped(data) && thread.bytes_to_unmap() == 0 ? 0 : 4);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace mercury
