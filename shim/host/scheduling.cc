#include "shim/host/scheduling.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "shim/host/thread.h"

namespace mercury {
namespace {

constexpr uint64_t kSliceNs = 100'000;  // the least that the kernel takes
constexpr int kMostUrgentNice = -20;
constexpr uint64_t kResetOnFork = 1;  // SCHED_FLAG_RESET_ON_FORK: threads start as SCHED_OTHER

// The kernel's struct sched_attr, first version; glibc has it from 2.41.
struct Attributes {
  uint32_t size = sizeof(Attributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;  // SCHED_OTHER: the slice, ignored before Linux 6.12
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};
static_assert(sizeof(Attributes) == 48);

bool get(Attributes& attributes) noexcept {
  return syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0;
}
bool set(const Attributes& attributes) noexcept {
  return syscall(SYS_sched_setattr, 0, &attributes, 0) == 0;
}

// Its threads run before all of SCHED_OTHER.
const char* name_of_realtime(uint32_t policy) noexcept {
  switch (policy) {
    case SCHED_FIFO:
      return "SCHED_FIFO";
    case SCHED_RR:
      return "SCHED_RR";
    default:
      return nullptr;
  }
}

// Of the calling thread.
std::string in_force() {
  Attributes now;
  if (!get(now)) return "unknown";
  const char* realtime = name_of_realtime(now.policy);
  if (!realtime) return "nice " + std::to_string(now.nice);
  return std::string(realtime) + ", priority " + std::to_string(now.priority);
}

}  // namespace

Status set_scheduling(Scheduling scheduling) noexcept {
  Attributes now;
  if (!get(now)) return Error::system(errno, "sched_getattr");
  if (name_of_realtime(now.policy)) return {};
  Attributes wanted;
  wanted.nice = now.nice;
  wanted.runtime_ns = kSliceNs;
  if (scheduling == Scheduling::kUrgent) wanted.nice = kMostUrgentNice;
  if (scheduling == Scheduling::kRealtime) {
    wanted = Attributes();
    wanted.policy = SCHED_RR;
    wanted.priority = 1;
  }
  if (set(wanted)) return {};
  const int why = errno;
  Attributes sliced;
  sliced.nice = now.nice;
  sliced.runtime_ns = kSliceNs;
  set(sliced);
  return Error(Errc::kPermission, why, std::string(kSchedulingTrouble) + ": " + kSchedulingRemedy);
}

Result<std::string> check_scheduling(Scheduling scheduling) {
  Attributes mine;
  if (get(mine) && mine.policy == SCHED_DEADLINE && (mine.flags & kResetOnFork) == 0) {
    return Error(Errc::kUnsupported, std::string(kThreadsTrouble) + ": " + kThreadsRemedy);
  }
  Result<std::string> result = std::string();
  Result<std::thread> probe = start_thread([&] {
    Attributes before;
    const bool kept = get(before) && name_of_realtime(before.policy);
    if (const Status done = set_scheduling(scheduling); !done) {
      result = done.error();
    } else {
      result = in_force() + (kept ? ", as this process was started" : "");
    }
  });
  if (!probe) return probe.error();
  probe->join();
  return result;
}

}  // namespace mercury
