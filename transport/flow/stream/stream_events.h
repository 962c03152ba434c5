// What the streams of a session tell the service that uses them, and their limits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/wire/stream.h"

namespace mercury {

// The number of a stream within its session: odd ones are opened by the side that connected.
using StreamId = Id<struct StreamTag, uint32_t>;

// Of what a side sends: higher ones go first, those of one priority take turns. 0 at first.
inline constexpr uint8_t kStreamPriorities = 8;

// Of one session. Memory for bytes is bounded by these whatever a peer does, to so much each way
// and two blocks for each stream more: 2 * max_streams * wire::kInitialStreamBytes, which each
// stream has for itself, and what is shared. Of that no stream takes more than half of what is
// left, so that those which stand still leave the others room. Records of segments (up to 32 KiB a
// stream) and of gaps (4 KiB), and the session's spare blocks, come on top.
struct StreamConfig {
  // Open at a time, of each side's; wire::kInitialStreams at least.
  uint32_t max_streams = 64;
  // What a peer may send of one stream beyond what was read, and what may be written to one and not
  // acknowledged: at most; wire::kInitialStreamBytes at least.
  uint32_t window_bytes = 256 * 1024;
  // (Segments on the way are counted too, 1,024 a stream: about 1.2 MB of full ones.)
  uint32_t send_bytes = 256 * 1024;
  uint64_t shared_window_bytes = 1 << 20;
  uint64_t shared_send_bytes = 2 << 20;
  // Written and never sent yet, of all streams together: no stream is written to beyond it, but for
  // least_unsent_bytes of its own. What waits here has left the processor's cache when it goes, and
  // whoever writes may have it where it is.
  uint64_t unsent_bytes = kNever;
  uint32_t least_unsent_bytes = 64 * 1024;
};

// The session's calls; from within them all calls of a stream may be made (Streams).
class StreamEvents {
 public:
  virtual void on_stream_opened(SessionSlot, StreamId) = 0;  // by the peer
  // Bytes have come, or the end, since read() last had less than it was asked for.
  virtual void on_stream_readable(SessionSlot, StreamId) = 0;
  virtual void on_stream_writable(SessionSlot, StreamId) = 0;  // room again after a short write()
  // It is over, and no call knows it any more. kOk: both sides have finished, all of ours has
  // arrived and all of theirs is read. Else the peer's reset or the session's end says why, and
  // what was not read is gone. Not after reset(). Exactly once otherwise.
  virtual void on_stream_closed(SessionSlot, StreamId, Errc) = 0;
  virtual void on_streams_available(SessionSlot) = 0;  // open() is worth another try after kAgain
  // Not for the service: a payload was borrowed, and stays until Streams::keep().
  virtual void on_payload_lent(SessionSlot) {}

 protected:
  ~StreamEvents() = default;
};

struct StreamRead {
  size_t bytes = 0;
  bool end = false;  // the peer has finished, and nothing is left to read
};

}  // namespace mercury
