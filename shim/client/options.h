// The C structs that begin with their size, as values of this library's version. Private to
// shim/client.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "shim/channel/attach.h"
#include "shim/client/mercury.h"
#include "transport/base/result.h"

namespace mercury::client {

// A caller built against a newer header may pass a longer struct, if what this library does not
// know is zero.
template <class T>
Result<T> read_sized(const T* in, const char* what) {
  const auto wrong = [&](const char* how) {
    return Error(Errc::kInvalidArgument, std::string(what) + how);
  };
  if (!in) return wrong(" may not be NULL");
  if (in->size < sizeof(T)) return wrong(": set `size` to the size of the struct");
  if (in->size > 16 * sizeof(T)) return wrong(": `size` is not set");
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (size_t i = sizeof(T); i < in->size; ++i) {
    if (bytes[i] != 0) return wrong(" asks for more than this version of libmercury knows");
  }
  return *in;
}

// C lets an enum hold any int; C++ may not even look at it as the enum.
template <class Enum>
int raw_value(const Enum& field) {
  static_assert(sizeof(Enum) == sizeof(int));
  int value;
  std::memcpy(&value, &field, sizeof value);
  return value;
}

// An array whose elements have the caller's size.
Result<std::vector<mercury_tensor_options>> read_tensors(const mercury_tensor_options* tensors,
                                                         size_t count);
// Checks and resolves what the program asked for.
Result<attach::JobOpen> read_job(const mercury_job_options* options);

}  // namespace mercury::client
