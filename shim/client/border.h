// The border between C and C++: what each C function does around its work. No exception crosses it.
// Private to shim/client.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <string>

#include "shim/client/context.h"
#include "shim/client/last_error.h"
#include "shim/client/mercurystack/mercury.h"
#include "shim/client/options.h"

namespace mercury::client {

inline Context* unwrap(mercury_context* context) { return reinterpret_cast<Context*>(context); }
inline Job* unwrap(mercury_job* job) { return reinterpret_cast<Job*>(job); }

template <class F>
int guarded(F&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_errno(-ENOMEM, "out of memory");
  } catch (const std::exception& e) {
    return fail_errno(-EIO, e.what());
  }
}

inline int result_of(const Status& status) { return status.ok() ? 0 : fail(status.error()); }
inline int null_argument(const char* what) {
  return fail(Errc::kInvalidArgument, std::string(what) + " may not be NULL");
}
inline int in_child() {
  return fail_errno(-ENOTCONN, "the parent attached, not this process; attach after fork");
}

// Calls body(Context&) where a call is possible at all: a call that ends or awaits others.
template <class F>
int with_whole_context(mercury_context* context, F&& body) noexcept {
  return guarded([&] {
    if (!context) return null_argument("context");
    if (unwrap(context)->in_child()) return in_child();
    return body(*unwrap(context));
  });
}
// Any other.
template <class F>
int with_context(mercury_context* context, F&& body) noexcept {
  return with_whole_context(context, [&](Context& c) {
    const Context::Call call(c);
    return body(c);
  });
}
template <class F>
int with_job(mercury_job* job, F&& body) noexcept {
  return guarded([&] {
    if (!job) return null_argument("job");
    if (unwrap(job)->context->in_child()) return in_child();
    return body(*unwrap(job)->context, *unwrap(job));
  });
}

// Before anything is asked whose answer would not fit.
template <class T>
Status check_out(const T* out, const char* what) {
  if (!out) return Error(Errc::kInvalidArgument, "out may not be NULL");
  return check_size<T>(out->size, what);
}

template <class T>
int init(T* out, size_t size, const T& defaults, const char* what) {
  return guarded([&] { return result_of(init_sized(out, size, defaults, what)); });
}

}  // namespace mercury::client
