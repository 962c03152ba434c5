// One connection inside an engine: a stream on one side, the daemon's end of a program's pair on
// the other. Private to this folder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "shim/channel/unique_fd.h"
#include "shim/socket/connection.h"
#include "shim/socket/preamble.h"
#include "transport/engine/stream_service.h"

namespace mercury {

struct RelayConnection {
  enum class State : uint8_t {
    kFree,
    kWaiting,  // ours; the session carries no more streams at present
    kAsking,   // ours; the answer has not come
    kAsked,    // the peer's; preamble or our answer is due
    kOpen,
    kLeaving,  // refused: what still comes is not read by anybody
  };
  State state = State::kFree;
  uint32_t place = 0;  // in the relay's table
  uint32_t life = 0;   // of this place: whoever remembers another means another connection
  sockets::ConnectionId id = 0;
  uint64_t asked = 0;
  Token token;
  SessionSlot session;
  StreamId stream;
  UniqueFd end;
  uint8_t priority = 0;
  bool abort_on_close = false;
  bool counted = false;  // the peer's, not accepted yet: RelayConfig::most_asked
  // What may be done, as far as is known.
  bool program_readable = false;
  bool program_writable = false;
  bool stream_readable = false;
  bool stream_writable = false;
  bool queued = false;  // in the relay's line
  // What is over.
  bool end_follows = false;    // behind what can be read
  bool program_ended = false;  // it writes no more
  bool program_gone = false;   // nor reads
  bool end_told = false;       // to the program
  bool orphaned = false;       // the program is gone, the peer has not finished
  sockets::Preamble preamble;
  sockets::PreambleBytes preamble_bytes{};
  uint8_t preamble_read = 0;
};

}  // namespace mercury
