// The control plane of sockets: which programs of this host listen where, which hosts speak
// Mercury, and which connections there are. Without I/O but for the pairs of descriptors that it
// makes: it is asked by programs (request.h), told by engines (command.h), and answers both.
// mercury-stackd drives it from its Asio loop, tests in virtual time.
//
// Who is reached over Mercury is decided as a program connects: an address of this host, if one of
// its programs listens there; else a host in `networks` that answers a HELLO for kSocketService
// within `probe_ns`, if a program listens there. Everything else is the kernel's
// (ReplyKind::kKernel): so is what a limit of this host would refuse, since the program's
// connection works all the same. A host that does not answer is not asked again for `silence_ns`.
//
// A program that listens is told of a connection by one of the kernel's to the address where it
// listens (a knock, Local::knock): so whatever it does to wait for one, it wakes, and forked
// children that share the listener share it still. Whoever accepts it asks for what it announces
// (kClaim).
//
// Owner/thread: the control thread. Allocates and throws nothing outward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "shim/channel/unique_fd.h"
#include "shim/proof/secret.h"
#include "shim/socket/command.h"
#include "shim/socket/request.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/wire/hello.h"

namespace mercury {

struct SocketPolicy {
  bool serve = true;
  bool others = false;               // carries sockets between this host and others
  std::vector<IpPrefix> networks;    // whose; 127.0.0.0/8 and ::1 never are
  std::vector<IpAddress> addresses;  // this host's at its ports, the family of a lane's aside
  uint16_t udp_port = 7470;          // of a host's first engine
  wire::Key key{};                   // of all hosts that may speak to each other
  Authentication authentication = Authentication::kOff;  // of their frames, with a secret
  uint64_t probe_ns = 50'000'000;
  uint64_t silence_ns = 30'000'000'000;
  // For the answer of a host with which there is a session.
  uint64_t answer_ns = 3'000'000'000;
  uint32_t max_connections = 65536;  // that this host's engines carry, or that are not accepted yet
  // Of this daemon, for connections: kMostDescriptors for each that is set up, one for each with
  // another host that is established.
  uint32_t max_descriptors = 3 * 65536;
  uint32_t max_listeners = 4096;
  uint32_t max_hosts = 1024;   // with which there is a session, or which are remembered as silent
  uint32_t kept_ends = 65536;  // reasons of connections that ended, for programs that ask late
};

using SocketProgram = uint64_t;  // one connection of a program to the daemon, the caller's number
using KnockId = uint64_t;        // never used twice

struct KnockTarget {
  Endpoint at;          // an address of this host
  uint64_t cookie = 0;  // the kernel's, of the socket that listens there
  bool soon = false;    // or is about to
  // Whether the socket with this cookie listens at the very same address, as far as is known now.
  std::function<bool(uint64_t cookie)> shares;
};

// What asking another host whether it is there has come to.
struct PingReport {
  enum class Outcome : uint8_t {
    kAnswered,
    kRefusedHere,   // this host does not ask it, or does not believe its answer
    kRefusedThere,  // it says so
    kSilent,        // no answer to a HELLO
    kLost,          // a session, and no answer on it
  };
  Outcome outcome = Outcome::kAnswered;
  std::string why;             // empty: answered
  LaneId lane;                 // by which it was asked; the rest is 0 where nothing was answered
  uint64_t round_trip_ns = 0;  // of a question and its answer, between both control planes
  uint64_t session_ns = 0;     // that a session took before that; 0: there was one
  sockets::Info info;          // of the session, before the question
};

class SocketManager {
 public:
  struct Host {
    std::vector<Endpoint> lanes;
    std::function<void(LaneId, SocketCommand)> send;
    std::function<uint64_t()> random;
  };
  // What the kernel of this host is asked to do. Who calls back does so on the control thread.
  struct Local {
    std::function<bool(const IpAddress&)> is_local;  // an address of this host, 127.0.0.0/8 and ::1
    // Connects to a listener, and waits for one that is about to listen. The reply, maybe from
    // within: the own end's address, or why not. kNotFound: that socket listens there no more, or
    // not in time, and no other is connected to. None after end_knock(). If what was connected
    // breaks before end_knock(), knock_gone() follows.
    std::function<void(KnockId id, const KnockTarget& target,
                       std::function<void(Result<Endpoint>)> reply)>
        knock;
    std::function<void(KnockId id)> end_knock;       // closes it by a reset, whatever its state
    std::function<void(const std::string&)> notice;  // takes lines for the log; may be empty
    // The cookies of all sockets of this host that listen now; nothing if that is not known. It is
    // asked where there are too many listeners, as no program says that it has closed one. May be
    // empty.
    std::function<std::optional<std::unordered_set<uint64_t>>()> listening;
  };
  // A reply and the descriptor that goes with it, if any. Exactly once for each request unless its
  // program goes first, maybe from within it. The descriptor's owner is who gets it.
  using Answer = std::function<void(const sockets::Reply&, UniqueFd end)>;

  SocketManager(Host host, SocketPolicy policy);
  ~SocketManager();
  SocketManager(const SocketManager&) = delete;
  SocketManager& operator=(const SocketManager&) = delete;

  // Before the first request. Without it nothing is local and nobody can be told of a connection.
  void set_local(Local local);

  void ask(SocketProgram program, const sockets::Request& request, uint64_t now_ns, Answer answer);
  // Its listeners are forgotten, and what it waits for; its connections last as long as their
  // descriptors.
  void program_gone(SocketProgram program);

  // The connection that a knock announced will not be accepted: its listener has closed, or
  // whoever accepted it does not speak Mercury.
  void knock_gone(KnockId id);

  // Asks a host whether it speaks Mercury, also one that was silent a moment ago. The report, maybe
  // from within, comes exactly once, within `probe_ns` and `answer_ns`.
  using PingAnswer = std::function<void(const PingReport&)>;
  void ping(const IpAddress& host, uint64_t now_ns, PingAnswer answer);

  // Those that are the sockets': by is_socket_token, or a HELLO's name.
  void on_event(LaneId lane, SocketEvent event, uint64_t now_ns);
  uint64_t next_deadline_ns() const;
  void on_timer(uint64_t now_ns);

  struct Snapshot {            // what `mercuryctl` shows
    uint32_t connections = 0;  // with other hosts
    uint32_t unclaimed = 0;    // of any kind, that a listener has been told of and not accepted
    uint32_t listeners = 0;
    uint32_t sessions = 0;
    uint64_t local_total = 0;  // connections within this host so far: who has them does not say
    uint32_t descriptors = 0;  // that connections of either kind take now, or are about to
  };
  Snapshot snapshot() const;
  bool idle() const;  // no listener, connection or request; sessions may be open

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mercury
