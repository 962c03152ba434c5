// One connection inside an engine: a stream on one side, the daemon's end of a program's pair on
// the other. Private to this folder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shim/channel/unique_fd.h"
#include "shim/socket/connection.h"
#include "shim/socket/preamble.h"
#include "transport/engine/stream_service.h"

namespace mercury {

// Bytes that one side has given and the other has no room for.
class Leftover {
 public:
  bool empty() const { return first_ == bytes_.size(); }
  std::span<const std::byte> bytes() const { return std::span(bytes_).subspan(first_); }
  void keep(std::span<const std::byte> rest) {
    bytes_.assign(rest.begin(), rest.end());
    first_ = 0;
  }
  void taken(size_t count) {
    first_ += count;
    if (empty()) drop();
  }
  void drop() {
    std::vector<std::byte>().swap(bytes_);  // an idle connection holds none
    first_ = 0;
  }

 private:
  std::vector<std::byte> bytes_;
  size_t first_ = 0;
};

struct RelayConnection {
  enum class State : uint8_t {
    kFree,
    kWaiting,  // ours; the session carries no more streams at present
    kAsking,   // ours; the answer has not come
    kAsked,    // the peer's; preamble or our answer is due
    kOpen,
    kLeaving,  // refused: what still comes is not read by anybody
    // The stream is over in order; the program has not taken all of it.
    kDraining,
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
  // What may be done, as far as is known.
  bool program_readable = false;
  bool program_writable = false;
  bool stream_readable = false;
  bool stream_writable = false;
  bool queued = false;  // in the relay's line
  // What is over.
  bool program_ended = false;  // it writes no more
  bool program_gone = false;   // nor reads
  bool peer_ended = false;
  bool end_told = false;  // to the program
  bool orphaned = false;  // the program is gone, the peer has not finished
  Leftover to_stream;
  Leftover to_program;
  sockets::Preamble preamble;
  sockets::PreambleBytes preamble_bytes{};
  uint8_t preamble_read = 0;
};

}  // namespace mercury
