// The C structs that begin with their size, as values of this library's version. Private to
// shim/client.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "shim/channel/attach.h"
#include "shim/client/launcher.h"
#include "shim/client/mercurystack/mercury.h"
#include "transport/base/result.h"

namespace mercury::client {

// The least of each struct that says anything: no caller passes less.
template <class T>
inline constexpr size_t kFirstSize = sizeof(T);
template <>
inline constexpr size_t kFirstSize<mercury_attach_options> = offsetof(mercury_attach_options,
                                                                      socket);
template <>
inline constexpr size_t kFirstSize<mercury_job_options> = offsetof(mercury_job_options,
                                                                   deterministic);
template <>
inline constexpr size_t kFirstSize<mercury_contributors> = offsetof(mercury_contributors, in_all);
template <>
inline constexpr size_t kFirstSize<mercury_job_stats> = offsetof(mercury_job_stats, bytes_pushed);
template <>
inline constexpr size_t kFirstSize<mercury_completion> = offsetof(mercury_completion, round);
template <>
inline constexpr size_t kFirstSize<mercury_operation> = offsetof(mercury_operation, user_data);

// What no struct will ever be longer than: more is a `size` that nobody set.
template <class T>
inline constexpr size_t kLongestSize = 16 * sizeof(T);

// A caller built against an older header passes a shorter struct: the rest is zero. One built
// against a newer header may pass a longer one, if what this library does not know is zero.
template <class T>
Result<T> read_sized(const T* in, const char* what) {
  const auto wrong = [&](const char* how) {
    return Error(Errc::kInvalidArgument, std::string(what) + how);
  };
  if (!in) return wrong(" may not be NULL");
  if (in->size < kFirstSize<T>) return wrong(": set `size` to the size of the struct");
  if (in->size > kLongestSize<T>) return wrong(": `size` is not set");
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (size_t i = sizeof(T); i < in->size; ++i) {
    if (bytes[i] != 0) return wrong(" asks for more than this version of libmercurystack knows");
  }
  T out{};
  std::memcpy(&out, in, std::min(in->size, sizeof(T)));
  return out;
}

// The same for what the library fills: a caller of another version gets what both know, then zeros.
template <class T>
Status check_size(size_t size, const char* what) {
  if (size >= kFirstSize<T> && size <= kLongestSize<T>) return {};
  return Error(Errc::kInvalidArgument,
               std::string(what) + ": set `size` to the size of the struct");
}
template <class T>
void write_sized(T value, void* out, size_t size) {
  value.size = std::min(size, sizeof(T));
  std::memset(out, 0, size);
  std::memcpy(out, &value, value.size);
}

// What mercury_*_init does.
template <class T>
Status init_sized(T* out, size_t size, T defaults, const char* what) {
  if (!out) return Error(Errc::kInvalidArgument, std::string(what) + " may not be NULL");
  if (Status fits = check_size<T>(size, what); !fits) return fits;
  defaults.size = size;
  std::memset(out, 0, size);
  std::memcpy(out, &defaults, std::min(size, sizeof defaults));
  return {};
}

// An array whose elements have the caller's size.
Result<std::vector<mercury_tensor_options>> read_tensors(const mercury_tensor_options* tensors,
                                                         size_t count);
// Of mercury_submit.
Result<std::vector<mercury_operation>> read_operations(const mercury_operation* operations,
                                                       size_t count);

// The member of mercury_job_options in which a program says a term of its job.
using TermNumber = int32_t mercury_job_options::*;
using TermText = const char* mercury_job_options::*;
struct TermOption {
  const char* term;
  std::variant<TermNumber, TermText> member;
  // What MERCURY_FOREVER stands for, if it may be said. Where that is 0, no other word for it is.
  std::optional<int32_t> for_ever = std::nullopt;
};
std::span<const TermOption> term_options();

// After how long without an answer a program gives its daemon up: what it says, else what
// $MERCURY_DAEMON_TIMEOUT_MS does, else 10 s.
Result<std::chrono::milliseconds> read_daemon_timeout(const mercury_attach_options& in,
                                                      Getenv getenv);

// As a program has them that says nothing.
void set_preset_terms(mercury_job_options& options);
// Checks and resolves what the program asked for.
Result<attach::JobOpen> read_job(const mercury_job_options* options);

}  // namespace mercury::client
