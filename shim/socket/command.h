// What the control plane of sockets asks of the relay in an engine, and what the relay reports;
// with the engine's own about sessions (transport/engine/session_command.h) the whole of their
// conversation.
//
// Shape: `token` names a session. A connection has the number that the control plane gave it; one
// that a peer asks for has the relay's own number until it is answered (`asked`, never used twice).
// Ownership: `end` is the daemon's end of the pair whose other end the program has. It is moved
// with the command, and closed by whoever has it last.
#pragma once

#include <cstdint>
#include <utility>

#include "shim/channel/unique_fd.h"
#include "shim/socket/connection.h"
#include "shim/socket/preamble.h"
#include "transport/base/job_name.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/engine/session_command.h"

namespace mercury {

namespace command {

// Opens a stream on the session and asks for a connection there. ConnectionAnswered follows, and if
// it is not kAccepted nothing is left of it.
struct OpenConnection {
  Token token;
  sockets::ConnectionId id = 0;
  sockets::Preamble preamble;
  UniqueFd end;
};
// Answers ConnectionAsked. kAccepted: with `id` and `end`; else neither. One whose session has
// closed meanwhile is reported as ConnectionEnded.
struct AnswerConnection {
  uint64_t asked = 0;
  sockets::Answer answer = sockets::Answer::kNobody;
  sockets::ConnectionId id = 0;
  uint8_t priority = 0;
  UniqueFd end;
};
// Both sides' programs see a reset, with `code` here.
struct AbortConnection {
  sockets::ConnectionId id = 0;
  Errc code = Errc::kClosed;
};
struct SetConnection {
  sockets::ConnectionId id = 0;
  uint8_t priority = 0;
  bool abort_on_close = false;
};
// ConnectionDescribed follows, with the same number.
struct DescribeConnection {
  sockets::ConnectionId id = 0;
  uint64_t number = 0;
};

}  // namespace command

namespace event {

struct ConnectionAnswered {
  sockets::ConnectionId id = 0;
  sockets::Answer answer = sockets::Answer::kNobody;
};
struct ConnectionAsked {
  Token token;
  uint64_t asked = 0;
  sockets::Preamble preamble;
};
// A connection that was accepted, on either side, is over. kOk: both programs have finished, and
// all bytes have arrived. Its `end` is closed with the event, so whoever remembers the code first
// has an answer for a program that sees its end close. One that was asked for and not answered ends
// so too, with `asked`.
struct ConnectionEnded {
  sockets::ConnectionId id = 0;
  uint64_t asked = 0;
  Errc code = Errc::kOk;
  UniqueFd end;
};
struct ConnectionDescribed {
  sockets::ConnectionId id = 0;
  uint64_t number = 0;
  bool known = false;
  sockets::Info info;
};

}  // namespace event

// The name in HELLOs of sockets' sessions: no job has it. Their tokens have kSocketTokens' bit, and
// no job's has: so whoever shares an engine with jobs knows what is whose.
inline constexpr char kSocketService[] = "mercury.sockets";
static_assert(is_service_name(kSocketService));
inline constexpr uint64_t kSocketTokens = uint64_t{1} << 63;
constexpr bool is_socket_token(Token token) { return (token.value & kSocketTokens) != 0; }

using SocketCommand =
    SessionCommandsAnd<command::OpenConnection, command::AnswerConnection, command::AbortConnection,
                       command::SetConnection, command::DescribeConnection>;
using SocketEvent = SessionEventsAnd<event::ConnectionAnswered, event::ConnectionAsked,
                                     event::ConnectionEnded, event::ConnectionDescribed>;

}  // namespace mercury
