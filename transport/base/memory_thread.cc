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
constexpr uint64_t kTurnBytes = 16 * kStepBytes;  // some milliseconds of the kernel's
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
  post({memory, memory.data()});
}

void MemoryThread::populate(std::span<std::byte> part, const std::byte* mapping) noexcept {
  static const auto kPage = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t before = reinterpret_cast<uintptr_t>(part.data()) % kPage;
  if (!part.empty()) post({{part.data() - before, part.size() + before}, mapping});
}

void MemoryThread::post(Touch touch) noexcept {
  if (!thread_.joinable()) return;
  try {
    const std::lock_guard lock(mutex_);
    touch.number = ++last_number_;
    touches_.push_back(touch);
    to_touch_.try_emplace(touch.mapping, touch.number);
  } catch (const std::bad_alloc&) {
    return;
  }
  wake_.notify_one();
}

void MemoryThread::unmap(std::span<std::byte> memory, Steps steps,
                         std::function<void()> unmapped) noexcept {
  if (memory.empty()) return;
  to_unmap_ += memory.size();
  Unmap unmap{memory, memory.size(), steps, std::move(unmapped)};
  std::unique_lock lock(mutex_);
  const std::byte* expected = memory.data();
  prefaulting_.compare_exchange_strong(expected, nullptr);
  to_touch_.erase(memory.data());  // its touches wait, void: of them there may be many
  try {
    if (thread_.joinable()) {
      unmaps_.push_back(std::move(unmap));
      return wake_.notify_one();
    }
  } catch (const std::bad_alloc&) {  // it is as it was
  }
  lock.unlock();
  (void)unmap_some(unmap, memory.size());
}

void MemoryThread::run() {
  pthread_setname_np(pthread_self(), "mercury-memory");
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ends_ || !unmaps_.empty() || !touches_.empty(); });
    unmap_waiting(lock);
    if (touches_.empty()) {
      if (ends_) return;
      continue;
    }
    const Touch touch = touches_.front();
    touches_.pop_front();
    if (!is_to_touch(touch)) continue;
    prefaulting_ = ends_ ? nullptr : touch.mapping;
    lock.unlock();
    touch_in_steps(touch);
    lock.lock();
  }
}

// Not if it has been unmapped since.
bool MemoryThread::is_to_touch(const Touch& touch) noexcept {
  const auto first = to_touch_.find(touch.mapping);
  return first != to_touch_.end() && first->second <= touch.number;
}

void MemoryThread::unmap_waiting(std::unique_lock<std::mutex>& lock) noexcept {
  while (!unmaps_.empty()) {
    std::list<Unmap> next;
    next.splice(next.end(), unmaps_, unmaps_.begin());
    lock.unlock();
    const bool all = unmap_some(next.front(), kTurnBytes);
    lock.lock();
    if (!all) unmaps_.splice(unmaps_.end(), next);
  }
}

void MemoryThread::touch_in_steps(const Touch& touch) noexcept {
  std::byte* const end = touch.memory.data() + touch.memory.size();
  for (std::byte* at = touch.memory.data(); at < end && prefaulting_ == touch.mapping;) {
    std::byte* const next = step_end(at, end);
    if (::madvise(at, static_cast<size_t>(next - at), MADV_POPULATE_WRITE) != 0) return;
    at = next;
    if (to_unmap_ == 0) continue;
    std::unique_lock lock(mutex_);
    unmap_waiting(lock);
  }
}

// From its end, so that what is left is one mapping at any time. True: nothing is left.
bool MemoryThread::unmap_some(Unmap& unmap, uint64_t bytes) noexcept {
  std::byte* const first = unmap.memory.data();
  std::byte* end = first + unmap.memory.size();
  const bool at_once = unmap.steps == Steps::kOne;
  std::byte* const last = at_once || bytes >= unmap.memory.size() ? first : end - bytes;
  while (end > last) {
    std::byte* const begin = at_once ? first : step_begin(first, end);
    ::munmap(begin, static_cast<size_t>(end - begin));
    end = begin;
  }
  unmap.memory = {first, end};
  if (end > first) return false;
  to_unmap_ -= unmap.bytes;
  if (unmap.unmapped) unmap.unmapped();
  return true;
}

}  // namespace mercury
