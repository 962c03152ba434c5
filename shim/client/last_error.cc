#include "shim/client/last_error.h"

#include <exception>

namespace mercury::client {
namespace {
thread_local std::string last_message;
}

int fail(const Error& error) noexcept {
  fail_errno(0, error.message.empty() ? name_of(error.code) : error.message.c_str());
  return -errno_of(error.code);
}

int fail(Errc code, std::string message) noexcept { return fail(Error(code, std::move(message))); }

int fail_errno(int negative_errno, const char* message) noexcept {
  try {
    last_message = message;
  } catch (const std::exception&) {
    last_message.clear();  // the code still tells
  }
  return negative_errno;
}

const char* last_error() noexcept { return last_message.c_str(); }

}  // namespace mercury::client
