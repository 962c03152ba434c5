// How a session ends: what it says to the peer, how often, and that the engine is told exactly
// once.
//
// Invariant: on_closed is owed from the last copy of the farewell on (or at once, where there is
// nobody to say it to) until settle().
// Owner/thread: one engine. Cold.
#pragma once

#include <cstdint>
#include <utility>

#include "transport/base/result.h"
#include "transport/wire/header.h"

namespace mercury {

class Ending {
 public:
  // `farewell`: CLOSE or REFUSE, in `copies` frames (at least one).
  void begin(wire::FrameType farewell, Error error, uint32_t copies) {
    farewell_ = farewell;
    error_ = std::move(error);
    copies_left_ = copies;
  }
  wire::FrameType farewell() const noexcept { return farewell_; }
  const Error& error() const noexcept { return error_; }
  bool closes() const noexcept {  // this side ended the session
    return error_.code != Errc::kOk && farewell_ == wire::FrameType::kClose;
  }
  // A copy is written. True: the last, and on_closed is owed.
  bool on_said() noexcept {
    if (--copies_left_ == 0) owed_ = true;
    return owed_;
  }
  // Nobody is there to say it to.
  void skip() noexcept { owed_ = true; }

  bool owed() const noexcept { return owed_; }
  void settle() noexcept { owed_ = false; }  // on_closed is told

 private:
  wire::FrameType farewell_ = wire::FrameType::kClose;
  uint32_t copies_left_ = 0;
  bool owed_ = false;
  Error error_{Errc::kOk, std::string()};
};

}  // namespace mercury
