// What the sockets of a program ask of mercury-stackd, and what it answers: as values, and as the
// messages of one SOCK_SEQPACKET connection (shim/channel/seqpacket.h) on kDefaultSocketsPath.
//
// The program asks, one request at a time on a connection, and waits for its one reply; a program
// with several threads has several connections. Both run on one host, so messages are structs of
// fixed size; whoever gets one of another size, magic or version takes nothing from it.
//
//   CONNECT  -> kConnected + the program's end of the connection, kKernel, or kFailed
//   LISTEN   -> kDone, or kKernel where the daemon serves no sockets
//   CLAIM    -> kConnected + the program's end, or kKernel: an ordinary connection of the kernel
//   ENDED    -> kDone; `value` is the errno of its end, 0 if the peer closed in order
//   SET      -> kDone, or kFailed: EINVAL
//   INFO     -> kDone + `info`, or kFailed: ENOTCONN
//
// kKernel: the program's own socket of the kernel is to do what was asked for. kOtherNamespace: so
// it will be for all that it asks for, as its addresses are not the daemon's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "shim/socket/connection.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury::sockets {

inline constexpr char kDefaultSocketsPath[] = "/run/mercury/sockets.sock";

enum class RequestKind : uint8_t {
  kConnect = 1,  // `remote`, `local` as far as the program has bound it, `priority`
  // `local` is what the kernel's socket is bound to and listens at; `cookie` is that socket's
  // SO_COOKIE. For as long as it listens, and this connection lasts. Children of a fork, and a
  // program whose daemon was restarted, ask for the same socket again, on connections of their own:
  // it is forgotten with the last of these. `value` says whether it listens by now (Listening).
  kListen = 2,
  // accept() has taken a connection of the kernel's whose other end, `remote`, is on this host:
  // whether it announces one of Mercury's. `local` is its own end. `priority` of what will be sent.
  kClaim = 3,
  // Both name the asker's end of the connection, too: `local` and `remote` as it was given them.
  kEnded = 4,  // read() said that connection `id` is over: why?
  kSet = 5,    // `option` of connection `id` is `value`
  kInfo = 6,   // of connection `id`
};

enum class Option : uint8_t {
  kNone = 0,
  kPriority = 1,  // 0 to kMostPriority: of what this side sends
  kAbort = 2,     // 1: whoever closes it resets it (SO_LINGER with a time of 0)
};

// A program says that it is about to listen before the kernel takes its first client: so nobody who
// finds the listener by the kernel misses it here. Whoever connects meanwhile waits for it.
enum class Listening : uint8_t { kNow = 0, kSoon = 1, kNot = 2 };

struct Request {
  RequestKind kind = RequestKind::kConnect;
  Option option = Option::kNone;
  uint8_t priority = 0;
  bool v6_only = false;  // LISTEN: at [::], nothing of IPv4
  uint32_t value = 0;    // SET: of `option`; LISTEN: a Listening
  uint64_t cookie = 0;
  ConnectionId id = 0;
  Endpoint local;
  Endpoint remote;
};

enum class ReplyKind : uint8_t { kConnected = 1, kKernel = 2, kDone = 3, kFailed = 4 };

// A connection of two programs of this host, each of which has one end of the pair: without the
// daemon it goes on, and its end is one in order.
inline constexpr uint32_t kBothEndsHere = 1;

// The program speaks to the daemon of another network namespace, whose socket it shares.
inline constexpr uint32_t kOtherNamespace = 1;

struct Reply {
  ReplyKind kind = ReplyKind::kFailed;
  // kFailed: an errno; kConnected: kBothEndsHere, or 0; kKernel: kOtherNamespace, or 0
  uint32_t value = 0;
  ConnectionId id = 0;
  Endpoint local;   // as getsockname is to say it
  Endpoint remote;  // as getpeername is
  Info info;
};

using RequestBytes = std::array<std::byte, 80>;
using ReplyBytes = std::array<std::byte, 112>;

RequestBytes encode(const Request& request);
ReplyBytes encode(const Reply& reply);
// kProtocol: not one; kVersionMismatch: of another version, by mercury-stackd or the library.
Result<Request> decode_request(std::span<const std::byte> bytes);
Result<Reply> decode_reply(std::span<const std::byte> bytes);

}  // namespace mercury::sockets
