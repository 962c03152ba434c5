#include "shim/client/client_log.h"

#include <pthread.h>

#include <mutex>
#include <new>

namespace mercury::client {
namespace {

struct Log {
  std::mutex mutex;  // held while the program's function runs: it is not called after set_log
  mercury_log function = nullptr;
  void* user = nullptr;
  int32_t level = 0;
};

// Never destroyed: Mercury's threads may outlive static destruction. A child that was forked while
// another thread wrote a line must be able to write its own.
Log& the_log() {
  static Log* const kLog = [] {
    auto* log = new Log();
    ::pthread_atfork(nullptr, nullptr, [] { new (&the_log().mutex) std::mutex(); });
    return log;
  }();
  return *kLog;
}

}  // namespace

void set_log(mercury_log function, void* user, int32_t level) noexcept {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  log.function = function;
  log.user = user;
  log.level = level;
}

void log_line(mercury_log_level level, const std::string& line) noexcept {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  if (log.function && static_cast<int32_t>(level) <= log.level) {
    log.function(level, line.c_str(), log.user);
  }
}

}  // namespace mercury::client
