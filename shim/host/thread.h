// Threads of Mercury's: std::thread throws where the system refuses one, this says so.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "transport/base/result.h"

namespace mercury {

inline constexpr char kThreadRefused[] =
    "cannot start a thread (limits: ulimit -u, systemd's TasksMax, a container's pids.max; "
    "SCHED_DEADLINE allows none)";

template <class F>
Result<std::thread> start_thread(F&& body) {
  try {
    return std::thread(std::forward<F>(body));
  } catch (const std::system_error& refused) {
    return Error::system(refused.code().value(), kThreadRefused);
  }
}

}  // namespace mercury
