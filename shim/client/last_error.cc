#include "shim/client/last_error.h"

#include <cerrno>
#include <exception>

namespace mercury::client {
namespace {

thread_local std::string last_message;

struct Meaning {
  int number;
  const char* text;
};
// What errno's own texts would not tell: the numbers have meanings of their own here.
constexpr Meaning kMeanings[] = {
    {0, "ok"},
    {EINVAL, "an argument, an option or a variable is wrong"},
    {EBUSY, "something of it is in use: finish that first"},
    {ENOENT, "no such tensor, operation, memory or variable"},
    {EEXIST, "it is there already"},
    {ENOTSUP, "not supported by this engine, version or system"},
    {EAGAIN, "too many operations in flight"},
    {ENOMEM, "out of memory"},
    {ENOSPC, "a limit of the daemon is reached"},
    {ESRCH, "the rendezvous does not know the job"},
    {EKEYREJECTED, "the job has another secret"},
    {ERANGE, "sizes or terms differ from the job's"},
    {EADDRINUSE, "the rank is taken"},
    {EPROTOTYPE, "the tensor differs from another worker's"},
    {EPROTONOSUPPORT, "the daemon or a peer speaks another version"},
    {ETIME, "members are missing, or did not push in time"},
    {EHOSTDOWN, "a member's host is silent"},
    {ECONNRESET, "a member has left the job"},
    {EPIPE, "mercury-stackd is not there, or has gone"},
    {ETIMEDOUT, "still in flight, or no answer in time"},
    {ESHUTDOWN, "this program closed the job"},
    {EPERM, "no permission"},
    {ENODEV, "no such device"},
    {EIO, "a system call failed"},
    {EPROTO, "the daemon or a peer broke the protocol"},
    {ENOTCONN, "the process was forked from the one that attached"},
};

}  // namespace

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

const char* meaning_of(int code) noexcept {
  const int64_t number = code < 0 ? -int64_t{code} : code;
  for (const Meaning& meaning : kMeanings) {
    if (meaning.number == number) return meaning.text;
  }
  return "not a code of Mercury's";
}

const char* last_error() noexcept { return last_message.c_str(); }

}  // namespace mercury::client
