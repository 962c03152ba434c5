#include "transport/base/memory_thread.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <csignal>
#include <new>
#include <system_error>
#include <utility>

namespace mercury {
namespace {

// A huge page of x86-64. Steps end at its multiples: less would make the kernel split one.
constexpr uintptr_t kStepBytes = uintptr_t{2} << 20;
constexpr size_t kMostNodes = 1024;
constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;

std::byte* step_end(std::byte* begin, std::byte* end) {
  const auto next = (reinterpret_cast<uintptr_t>(begin) / kStepBytes + 1) * kStepBytes;
  return std::min(end, begin + (next - reinterpret_cast<uintptr_t>(begin)));
}

std::byte* step_begin(std::byte* begin, std::byte* end) {
  const auto last = (reinterpret_cast<uintptr_t>(end) - 1) / kStepBytes * kStepBytes;
  return std::max(begin, end - (reinterpret_cast<uintptr_t>(end) - last));
}

// Whoever touches a page first decides where it lies, and that is another thread here. A kernel
// without NUMA refuses, which changes nothing.
void prefer_own_node(std::span<std::byte> memory) noexcept {
  unsigned cpu = 0;
  unsigned node = 0;
  if (::getcpu(&cpu, &node) != 0 || node >= kMostNodes) return;
  std::array<unsigned long, kMostNodes / kWordBits> nodes{};
  nodes[node / kWordBits] = 1UL << node % kWordBits;
  (void)::syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, nodes.data(), kMostNodes,
                  0);
}

// Signals are for the program's own threads.
std::thread start_deaf(void (*run)(void*), void* of) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(run, of);
  } catch (const std::system_error&) {  // the caller does without
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

MemoryThread::MemoryThread()
    : thread_(start_deaf([](void* self) { static_cast<MemoryThread*>(self)->run(); }, this)) {}

MemoryThread::~MemoryThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    prefaulting_ = nullptr;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void MemoryThread::prefault(std::span<std::byte> memory) noexcept {
  if (memory.empty()) return;
  prefer_own_node(memory);
  if (memory.size() >= kStepBytes) ::madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
  (void)post({Kind::kPrefault, memory, memory.data()});
}

void MemoryThread::populate(std::span<std::byte> part, const std::byte* mapping) noexcept {
  static const auto kPage = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t before = reinterpret_cast<uintptr_t>(part.data()) % kPage;
  if (!part.empty()) {
    (void)post({Kind::kPrefault, {part.data() - before, part.size() + before}, mapping});
  }
}

void MemoryThread::forget(const std::byte* mapping) noexcept {
  std::unique_lock lock(mutex_);
  to_touch_.erase(mapping);
  const std::byte* expected = mapping;
  prefaulting_.compare_exchange_strong(expected, nullptr);
  untouched_.wait(lock, [this, mapping] { return touching_ != mapping; });
}

void MemoryThread::unmap(std::span<std::byte> memory) noexcept {
  if (memory.empty()) return;
  to_unmap_ += memory.size();
  if (post({Kind::kUnmap, memory, memory.data()})) return;
  forget(memory.data());
  unmap_in_steps(memory);
}

bool MemoryThread::post(Task task) noexcept {
  if (!thread_.joinable()) return false;
  try {
    const std::lock_guard lock(mutex_);
    if (task.kind == Kind::kUnmap) {
      const std::byte* expected = task.mapping;
      prefaulting_.compare_exchange_strong(expected, nullptr);
      // Of either there may be much: neither is looked through.
      to_touch_.erase(task.mapping);
      tasks_.push_front(task);
    } else {
      task.number = ++last_number_;
      tasks_.push_back(task);
      to_touch_.try_emplace(task.mapping, task.number);
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  wake_.notify_one();
  return true;
}

void MemoryThread::run() {
  pthread_setname_np(pthread_self(), "mercury-memory");
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task task = tasks_.front();
    tasks_.pop_front();
    if (task.kind == Kind::kPrefault && !is_to_touch(task)) continue;
    if (task.kind == Kind::kPrefault) {
      prefaulting_ = ends_ ? nullptr : task.mapping;
      touching_ = task.mapping;
    }
    lock.unlock();
    if (task.kind == Kind::kPrefault) {
      prefault_in_steps(task);
    } else {
      unmap_in_steps(task.memory);
    }
    lock.lock();
    if (std::exchange(touching_, nullptr) != nullptr) untouched_.notify_all();
  }
}

// Not if it has been unmapped since.
bool MemoryThread::is_to_touch(const Task& task) noexcept {
  const auto first = to_touch_.find(task.mapping);
  return first != to_touch_.end() && first->second <= task.number;
}

// Before the task goes on; who has it forgotten does not wait for that. False: somebody has.
bool MemoryThread::unmap_waiting(const Task& task) noexcept {
  if (to_unmap_ == 0) return true;
  std::unique_lock lock(mutex_);
  touching_ = nullptr;
  untouched_.notify_all();
  while (!tasks_.empty() && tasks_.front().kind == Kind::kUnmap) {
    const std::span<std::byte> memory = tasks_.front().memory;
    tasks_.pop_front();
    lock.unlock();
    unmap_in_steps(memory);
    lock.lock();
  }
  if (prefaulting_ != task.mapping) return false;
  touching_ = task.mapping;
  return true;
}

void MemoryThread::prefault_in_steps(const Task& task) noexcept {
  std::byte* const end = task.memory.data() + task.memory.size();
  for (std::byte* at = task.memory.data(); at < end && prefaulting_ == task.mapping;) {
    std::byte* const next = step_end(at, end);
    if (::madvise(at, static_cast<size_t>(next - at), MADV_POPULATE_WRITE) != 0) return;
    at = next;
    if (!unmap_waiting(task)) return;
  }
}

// From its end, so that what is left is one mapping at any time.
void MemoryThread::unmap_in_steps(std::span<std::byte> memory) noexcept {
  for (std::byte* end = memory.data() + memory.size(); end > memory.data();) {
    std::byte* const begin = step_begin(memory.data(), end);
    ::munmap(begin, static_cast<size_t>(end - begin));
    to_unmap_ -= static_cast<uint64_t>(end - begin);
    end = begin;
  }
}

}  // namespace mercury
