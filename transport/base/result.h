// What a fallible call returns. Mercury throws nothing: a Result<T> carries either a value or an
// Error, a Status carries success or an Error. The names are a subset of std::expected's (C++23),
// so that these can become aliases one day.
#pragma once

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mercury {

// Why an operation failed. Each code has one errno (errno_of), which the C ABI returns negated, and
// one name (name_of), which logs, `mercuryctl` and the wire's REFUSE and CLOSE frames carry as the
// number given here: append only, never renumber.
enum class Errc : uint16_t {
  kOk = 0,
  // The call was wrong.
  kInvalidArgument = 1,
  kBusy = 2,      // the tensor has an exchange in flight
  kNotFound = 3,  // no such tensor, handle, region
  kExists = 4,
  kUnsupported = 5,  // type, operation or feature that this build or peer does not have
  // A limit was reached; trying again later may help.
  kAgain = 10,
  kNoMemory = 11,
  kLimit = 12,  // a per-job or per-daemon limit
  kRetry = 13,  // of a REFUSE alone: HELLO is to be said again with the token in the text
  // The job refused.
  kUnknownJob = 20,
  kWrongSecret = 21,
  kWrongSizes = 22,  // workers, servers or options differ from what the job was opened with
  kRankTaken = 23,
  kTensorMismatch = 24,  // a declaration differs from another worker's
  kVersionMismatch = 25,
  kMissingMembers = 26,  // the time limit passed before every member was there
  // A peer or the daemon went away.
  kPeerLost = 30,  // nothing heard for peer_timeout
  kPeerLeft = 31,  // the peer closed the session, or its program ended
  kDaemonLost = 32,
  kTimedOut = 33,
  kClosed = 34,  // this side closed the job or session
  // The machine.
  kPermission = 40,
  kNoDevice = 41,
  kSystem = 42,    // a system call failed: Error::sys_errno says how
  kConfig = 43,    // a configuration file or option is wrong
  kProtocol = 44,  // a peer or program broke the protocol
};

const char* name_of(Errc code);
// What an errno means: strerror's text, for threads that ask at the same time.
std::string errno_text(int number);
int errno_of(Errc code);
// True if `number` is the value of a named Errc; what arrives from a peer must pass here.
bool is_known_errc(uint16_t number);

// Why and where; `message` says what was expected and what to do, without a trailing period.
struct [[nodiscard]] Error {
  Errc code = Errc::kOk;
  int sys_errno = 0;
  std::string message;

  Error(Errc c, std::string m) : code(c), message(std::move(m)) {}
  Error(Errc c, int sys, std::string m) : code(c), sys_errno(sys), message(std::move(m)) {}
  // From errno: "WHAT: errno_text()".
  static Error system(int sys, std::string_view what);
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: implicit, as std::unexpected is
  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit
  bool has_value() const { return value_.has_value(); }
  explicit operator bool() const { return has_value(); }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  const Error& error() const { return *error_; }

 private:
  std::optional<T> value_;
  std::optional<Error> error_;
};

}  // namespace mercury
