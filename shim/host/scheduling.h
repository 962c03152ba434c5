// How soon the kernel gives an engine's thread a core that other threads want, too. On a worker's
// host they do: its program computes on all cores. An engine that sleeps and has to wait for the
// end of somebody's time slice, some milliseconds, with each packet halves the goodput
// (docs/performance.md); the kernel's own network stack does not wait, it runs in interrupts.
#pragma once

#include <cstdint>
#include <string>

#include "transport/base/result.h"

namespace mercury {

enum class Scheduling : uint8_t {
  kNormal,    // a fair share, in short slices, which Linux 6.12 and later grant without delay
  kUrgent,    // and the highest of the usual priorities (nice -20)
  kRealtime,  // before all others (SCHED_RR), who get what the engine leaves
};

// What is lost without the permission, and how to give it: for logs and mercuryctl doctor.
inline constexpr char kSchedulingTrouble[] =
    "engines may not run before other threads, and lose goodput where those use all cores";
inline constexpr char kSchedulingRemedy[] =
    "run mercury-stackd as root or with CAP_SYS_NICE (systemd: AmbientCapabilities=CAP_SYS_NICE), "
    "or set engine.scheduling = \"normal\"";

// The kernel's rule for that policy, unless it is of the first thread alone (reset on fork).
inline constexpr char kThreadsTrouble[] =
    "a process under SCHED_DEADLINE can start no threads, and engines are threads";
inline constexpr char kThreadsRemedy[] =
    "start mercury-stackd without that policy, or under SCHED_RR or SCHED_FIFO (chrt; systemd: "
    "CPUSchedulingPolicy=)";

// Of the calling thread. One that runs under a real-time policy already (chrt, systemd's
// CPUSchedulingPolicy) is left as the administrator wants it, whatever is asked. kPermission: short
// slices were all that was allowed.
Status set_scheduling(Scheduling scheduling) noexcept;
// What would be in force after set_scheduling(), in words, or its error; changes nothing.
// kUnsupported: the calling thread can start none.
Result<std::string> check_scheduling(Scheduling scheduling);

}  // namespace mercury
