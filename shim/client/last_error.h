// mercury_last_error: what went wrong last, per thread; and what a code means in any.
#pragma once

#include <string>

#include "transport/base/result.h"

namespace mercury::client {

// Remembers the error for the calling thread and returns its negative errno.
int fail(const Error& error) noexcept;
int fail(Errc code, std::string message) noexcept;
int fail_errno(int negative_errno, const char* message) noexcept;
const char* last_error() noexcept;  // "" if none; until the thread's next failure

// mercury_strerror: static.
const char* meaning_of(int code) noexcept;

}  // namespace mercury::client
