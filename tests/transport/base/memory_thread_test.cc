// Memory that a thread of its own touches ahead and gives back to the kernel.
#include "transport/base/memory_thread.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
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

// Of the mapping that begins there: the line of /proc/self/smaps that begins so.
std::string smaps_line(const std::byte* data, const char* name) {
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(data) << '-';
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.rfind(begin.str(), 0) == 0) inside = true;
    if (inside && line.rfind(name, 0) == 0) return line;
  }
  return {};
}
std::string flags_of(const std::byte* data) { return smaps_line(data, "VmFlags:"); }
size_t mapped_kib(const std::byte* data) {
  return std::strtoul(smaps_line(data, "Rss:").c_str() + std::strlen("Rss:"), nullptr, 10);
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

// As a daemon has it of what a program has touched already.
TEST(MemoryThread, MapsThePagesOfPartsOfASharedMapping) {
  const int fd = ::memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, 8 * kMiB), 0);
  const MappedMemory theirs = MappedMemory::shared(fd, 8 * kMiB);
  std::memset(theirs.data(), 7, 8 * kMiB);
  MemoryThread thread;
  MappedMemory memory = MappedMemory::shared(fd, 8 * kMiB);
  ::close(fd);
  memory.leave_to(thread);
  thread.populate({memory.data() + 100, 3 * kMiB}, memory.data());
  thread.populate({memory.data() + 5 * kMiB, kMiB}, memory.data());
  wait_until([&] { return mapped_kib(memory.data()) == (4 * kMiB + kPage) / 1024; });
  EXPECT_EQ(memory.data()[100], std::byte{7});

  // What waits to be touched when its mapping goes is void, whatever is mapped there next.
  std::byte* const begin = memory.data();
  MappedMemory busy = MappedMemory::anonymous(256 * kMiB);
  thread.prefault({busy.data(), busy.bytes()});
  thread.populate({begin, 8 * kMiB}, begin);
  memory = MappedMemory();
  wait_until([&] { return thread.bytes_to_unmap() == 0; });
  ASSERT_FALSE(is_mapped(begin));
  void* const next = ::mmap(begin, 8 * kMiB, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(next, begin);
  MappedMemory last = MappedMemory::anonymous(kMiB);
  thread.prefault({last.data(), last.bytes()});
  wait_until([&] { return resident_pages(last.data(), kMiB) == kMiB / kPage; });
  EXPECT_EQ(resident_pages(begin, 8 * kMiB), 0U);
  ::munmap(begin, 8 * kMiB);
}

// Not behind all of what was given back before.
TEST(MemoryThread, LittleDoesNotWaitForMuch) {
  using Steps = MemoryThread::Steps;
  std::promise<void> both_wait;
  std::atomic<int> order{0};
  std::atomic<int> much{0}, little{0};
  MemoryThread thread;
  MappedMemory first = MappedMemory::anonymous(kMiB);
  MappedMemory large = MappedMemory::anonymous(64 * kMiB);
  MappedMemory small = MappedMemory::anonymous(kMiB);
  first.unmap_by(thread, Steps::kMany, [&] { both_wait.get_future().wait(); });
  large.unmap_by(thread, Steps::kMany, [&] { much = ++order; });
  small.unmap_by(thread, Steps::kMany, [&] { little = ++order; });
  both_wait.set_value();
  wait_until([&] { return much != 0 && little != 0; });
  EXPECT_EQ(little, 1);
  EXPECT_EQ(much, 2);
}

// Given back while it is being touched, and before; who is told may map something else there.
TEST(MemoryThread, SaysWhenTheKernelHasMemoryBack) {
  MemoryThread thread;
  for (int i = 0; i < 50; ++i) {
    MappedMemory memory = MappedMemory::anonymous(64 * kMiB);
    std::byte* const begin = memory.data();
    thread.populate({begin, 32 * kMiB}, begin);
    thread.populate({begin + 32 * kMiB, 32 * kMiB}, begin);
    if (i % 2 == 0) wait_until([&] { return resident_pages(begin, kMiB) > 0; });
    if (i % 3 == 0) {  // which it unmaps before it goes on
      MappedMemory other = MappedMemory::anonymous(64 * kMiB, PROT_READ | PROT_WRITE, MAP_POPULATE);
      other.leave_to(thread);
    }
    std::atomic<uint64_t> left{~uint64_t{0}};
    const auto steps = i % 5 == 0 ? MemoryThread::Steps::kOne : MemoryThread::Steps::kMany;
    memory.unmap_by(thread, steps, [&] { left = thread.bytes_to_unmap(); });
    ASSERT_FALSE(memory);
    wait_until([&] { return left != ~uint64_t{0}; });
    ASSERT_LE(left, 65 * kMiB) << "of the others";
    void* const next = ::mmap(begin, 64 * kMiB, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    ASSERT_EQ(next, begin);
    MappedMemory last = MappedMemory::anonymous(kMiB);  // behind all that waited
    thread.populate({last.data(), kMiB}, last.data());
    wait_until([&] { return resident_pages(last.data(), kMiB) == kMiB / kPage; });
    ASSERT_EQ(resident_pages(begin, 64 * kMiB), 0U);
    ::munmap(begin, 64 * kMiB);
    last.leave_to(thread);
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
