// What measuring costs in processor time and cycles: of this program, whose embedded engine is one
// of its threads, and of the daemon that it is attached to. What cannot be read is none, with why.
#pragma once

#include <time.h>

#include <cstdint>
#include <optional>
#include <string>

#include "shim/channel/unique_fd.h"

namespace mercury::perf {

// Since some time before: differences alone mean something.
struct CostSample {
  uint64_t program_ns = 0;            // user and system, all threads
  std::optional<uint64_t> daemon_ns;  // all that the daemon does, for other programs too
  std::optional<uint64_t> cycles;     // of the program's threads
  CostSample since(const CostSample& before) const;
  void add(const CostSample& more);
};

// None where one of them is.
std::optional<uint64_t> sum(std::optional<uint64_t> one, std::optional<uint64_t> other);

class CostMeter {
 public:
  // Counts the cycles of this thread and of those that are made after this call.
  CostMeter();
  // The daemon that listens at `socket`, or why there is none to be watched.
  void watch_daemon(const std::string& socket);
  void no_daemon(std::string why) { why_no_daemon_ = std::move(why); }

  CostSample sample() const;
  const std::string& why_no_daemon() const { return why_no_daemon_; }
  const std::string& why_no_cycles() const { return why_no_cycles_; }
  // "user and kernel", or "user" where the kernel's may not be counted.
  const std::string& cycles_scope() const { return cycles_scope_; }

 private:
  UniqueFd cycles_;
  std::optional<clockid_t> daemon_clock_;
  std::string why_no_daemon_ = "not attached", why_no_cycles_, cycles_scope_;
};

}  // namespace mercury::perf
