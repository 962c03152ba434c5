#include "transport/base/result.h"

#include <array>
#include <cstring>

namespace mercury {
namespace {

struct Row {
  Errc code;
  const char* name;
  int number;
};

constexpr Row kRows[] = {
    {Errc::kOk, "ok", 0},
    {Errc::kInvalidArgument, "invalid_argument", EINVAL},
    {Errc::kBusy, "busy", EBUSY},
    {Errc::kNotFound, "not_found", ENOENT},
    {Errc::kExists, "exists", EEXIST},
    {Errc::kUnsupported, "unsupported", ENOTSUP},
    {Errc::kAgain, "again", EAGAIN},
    {Errc::kNoMemory, "no_memory", ENOMEM},
    {Errc::kLimit, "limit", ENOSPC},
    {Errc::kRetry, "retry", EAGAIN},
    {Errc::kUnknownJob, "unknown_job", ESRCH},
    {Errc::kWrongSecret, "wrong_secret", EKEYREJECTED},
    {Errc::kWrongSizes, "wrong_sizes", ERANGE},
    {Errc::kRankTaken, "rank_taken", EADDRINUSE},
    {Errc::kTensorMismatch, "tensor_mismatch", EPROTOTYPE},
    {Errc::kVersionMismatch, "version_mismatch", EPROTONOSUPPORT},
    {Errc::kMissingMembers, "missing_members", ETIME},
    {Errc::kPeerLost, "peer_lost", EHOSTDOWN},
    {Errc::kPeerLeft, "peer_left", ECONNRESET},
    {Errc::kDaemonLost, "daemon_lost", EPIPE},
    {Errc::kTimedOut, "timed_out", ETIMEDOUT},
    {Errc::kClosed, "closed", ESHUTDOWN},
    {Errc::kPermission, "permission", EPERM},
    {Errc::kNoDevice, "no_device", ENODEV},
    {Errc::kSystem, "system", EIO},
    {Errc::kConfig, "config", EINVAL},
    {Errc::kProtocol, "protocol", EPROTO},
};

const Row* find(Errc code) {
  for (const Row& row : kRows) {
    if (row.code == code) return &row;
  }
  return nullptr;
}

}  // namespace

const char* name_of(Errc code) {
  const Row* row = find(code);
  return row ? row->name : "unknown";
}

int errno_of(Errc code) {
  const Row* row = find(code);
  return row ? row->number : EIO;
}

std::string errno_text(int number) {
  std::array<char, 128> room{};
  return strerror_r(number, room.data(), room.size());  // GNU's, which may have a text of its own
}

bool is_known_errc(uint16_t number) { return find(static_cast<Errc>(number)) != nullptr; }

Error Error::system(int sys, std::string_view what) {
  return Error(sys == EPERM || sys == EACCES ? Errc::kPermission : Errc::kSystem, sys,
               std::string(what) + ": " + errno_text(sys));
}

}  // namespace mercury
