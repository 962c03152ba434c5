// What a control plane asks of an engine about sessions, and what an engine reports of them. The
// service that the engine carries adds commands and events of its own; together they are the whole
// conversation (SessionCommandsAnd, SessionEventsAnd). Each way one ring of unique_ptrs; neither
// side waits for the other. Cold path: allocation is allowed on both sides.
//
// Shape: `token` is chosen by the control plane and comes back in the event. `job` is the host's
// slot for a job, the same in all its engines. kNoJob has two users: every control session of a
// job, whose key and name (Hello::job) are the job's, and which its removal does not close; and the
// sessions of a service without jobs, whose key and name are the service's. Both have a share of no
// job's grants: streams are bounded by the session's window and their credit, control messages by
// the window of their own stream.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/wire/hello.h"

namespace mercury {

namespace command {

// Opens a session to `remote`; SessionOpened or SessionClosed follows.
struct Connect {
  Token token;
  JobSlot job = kNoJob;
  Endpoint remote;
  wire::Hello hello;  // `session` and `max_udp_payload` are filled in by the engine
  wire::Key key{};    // the job's or the service's: what the session's tag is derived from
};
// Answers a HelloReceived event.
struct Accept {
  uint64_t hello = 0;  // HelloReceived::hello
  Token token;         // names the session from now on
  JobSlot job = kNoJob;
  wire::HelloAck answer;  // `session` and `max_udp_payload` are filled in by the engine
  wire::Key key{};
};
struct Refuse {
  uint64_t hello = 0;
  Errc code = Errc::kOk;
  std::string text;
};
struct SendControl {
  Token token;
  std::vector<std::byte> message;
};
struct CloseSession {
  Token token;
  Errc code = Errc::kClosed;
  std::string text;
};

struct Stop {};  // the engine closes its sessions, sends what is due, and its loop ends

}  // namespace command

namespace event {

struct HelloReceived {  // answer with Accept or Refuse; the same HELLO again is not reported again
  uint64_t hello = 0;
  Endpoint remote;
  wire::Hello body;
};
struct HelloRefused {  // by the engine itself: no version in common. At most one a second
  Endpoint remote;
  std::string job;
  std::string text;
};
// Of Connect: HELLO_ACK has come. Of Accept: a frame, other than a datagram, has come that proves
// the peer knows the key.
struct SessionOpened {
  Token token;
  wire::HelloAck answer;
};
struct SessionClosed {
  Token token;
  Errc code = Errc::kOk;
  std::string text;
};
struct ControlReceived {
  Token token;
  std::vector<std::byte> message;
};
struct PathProbed {  // largest UDP payload that the path carries, both ports' limits considered
  Token token;
  uint16_t max_udp_payload = 0;
  uint16_t in_parts = 0;  // what goes over it, in parts where it is more; at least as much
};
struct SessionMoved {  // its peer has shown that it is elsewhere
  Token token;
  Endpoint remote;
};
struct Stopped {};

}  // namespace event

template <class... Own>
using SessionCommandsAnd =
    std::variant<command::Connect, command::Accept, command::Refuse, command::SendControl,
                 command::CloseSession, command::Stop, Own...>;
template <class... Own>
using SessionEventsAnd =
    std::variant<event::HelloReceived, event::HelloRefused, event::SessionOpened,
                 event::SessionClosed, event::ControlReceived, event::PathProbed,
                 event::SessionMoved, event::Stopped, Own...>;

}  // namespace mercury
