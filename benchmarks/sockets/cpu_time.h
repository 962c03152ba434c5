// What a benchmark's process has taken of its processors so far.
#pragma once

#include <sys/resource.h>
#include <sys/time.h>

namespace mercury::bench {

inline double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// Of the program and of the kernel for it.
inline double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace mercury::bench
