// What is closed however the program ends, so that no peer waits for it.
#pragma once

#include <cerrno>
#include <string>

#include "shim/client/mercurystack/mercury.h"

namespace digits {

struct AttachedJob {
  mercury_context* context = nullptr;
  mercury_job* job = nullptr;
  void close();
};
// The program's only one.
AttachedJob& attached_job();

// Says why, closes it and ends the program.
[[noreturn]] void fail(const std::string& text, int status = 1);
// Fails with mercury_last_error() where `status` is an error.
void check(int status, const char* what);
// Fails where a signal asked for it.
void stop_if_interrupted();

// Calls `wait_ms(milliseconds)` until it says something else than that it is not over yet; looks
// ten times a second whether to stop.
template <class Wait>
int wait(Wait wait_ms) {
  int status = 0;
  while ((status = wait_ms(100)) == -ETIMEDOUT) stop_if_interrupted();
  return status;
}

}  // namespace digits
