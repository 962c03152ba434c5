// Other hosts, as far as sockets know them: who speaks Mercury, who does not answer, who is being
// asked; and the sessions with them.
//
//   unknown --connect--> asked --answer--> open --closed--> unknown
//                          |                 ^
//                          +--time, closed--> silent --a late answer
//                                               +--silence_ns, connect--> asked
//
// A host is known by the address that programs connect to: where its peer has moved from there, the
// session carries what it carries until nobody uses it, and who is there now is asked.
//
// Two hosts that connect to each other have two sessions, each opened by who connects over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "shim/socket/control/connections.h"
#include "shim/socket/control/deadlines.h"
#include "shim/socket/control/socket_manager.h"

namespace mercury::sockets {

struct Waiting {  // for a host's answer
  Asker asker;
  Request request;
  uint64_t ping = 0;  // not a program's request but this ping's
};

struct Peer {
  enum class State : uint8_t { kAsked, kOpen, kSilent };
  State state = State::kAsked;
  Token token;  // of the session that this host has opened, or is opening; 0: of none
  LaneId lane;
  wire::Nonce nonce{};  // of its HELLO
  uint32_t life = 0;    // of the daemon that has answered; 0: of a release that does not say
  uint64_t silent_until_ns = 0;
  uint64_t late_until_ns = 0;  // its session is open, and it did not answer
  std::vector<Waiting> waiting;
};

class Peers {
 public:
  // HELLOs that nobody answers each take a session of the engine for a while; jobs need them, too.
  static constexpr size_t kMostHellos = 64;
  // Sessions of others that have shown nothing but a HELLO, which somebody may have recorded.
  static constexpr size_t kMostUnproven = 64;
  // Sessions that one address has opened: of hosts behind a translator of addresses, or of one that
  // would have more than its part of what a session may hold.
  static constexpr size_t kMostOfAddress = 16;
  using Notice = std::function<void(const std::string&)>;

  // All must outlive it.
  Peers(const SocketManager::Host& host, const SocketPolicy& policy, const Connections& connections,
        Notice notice);

  // A host that a program connects to: kOpen, or kAsked, and the request may wait with it. Null: it
  // is the kernel's. `again`: a host that was silent is asked all the same.
  Peer* reach(const IpAddress& ip, uint64_t now_ns, bool again = false);

  // Requests whose wait is over, and the host: null where they are the kernel's, and then why.
  struct Settled {
    Peer* peer = nullptr;
    std::vector<Waiting> waiting;
    PingReport::Outcome outcome = PingReport::Outcome::kAnswered;
    std::string why;
  };
  Settled on_opened(const event::SessionOpened& opened, uint64_t now_ns);
  Settled on_closed(const event::SessionClosed& closed, uint64_t now_ns);
  void on_moved(const event::SessionMoved& moved);
  // How long a program waits for its answer: `answer_ns`, or for `silence_ns` after it was late
  // `probe_ns`. An answer within that ends it.
  uint64_t patience_ns(const Peer& peer, uint64_t now_ns) const;
  void on_late(Token token, uint64_t now_ns);
  void on_answer(Token token);
  Settled on_timer(uint64_t now_ns);
  uint64_t next_deadline_ns() const { return probes_.next_ns(); }
  void on_hello(LaneId lane, const event::HelloReceived& hello);

  void drop_waiting(SocketProgram program);
  // Whose session this is, which this host has opened and connects over.
  IpAddress address_of(Token token) const { return tokens_.at(token); }
  size_t session_count() const;
  bool has_waiting() const;

 private:
  struct Passive {  // this host connects to nobody over it
    LaneId lane;
    Endpoint remote;
    uint32_t life = 0;
    bool opened = false;
    bool own = false;  // this host has opened it, and its peer has moved
  };
  void turn_out(const event::SessionMoved& moved);
  // Sessions of those who have moved from where this host connected to. Not as their last
  // connection ends: programs there may still read what it has brought.
  void close_unused();
  bool make_room();
  bool make_room_for_hello();
  void drop_oldest_unproven();
  size_t open_of_others() const;
  size_t open_of(const IpAddress& ip) const;
  void ask(const IpAddress& ip, Peer& peer, uint64_t now_ns);
  void close(Peer& peer, Errc code, const std::string& text);
  void end_earlier_lives(const Endpoint& remote, uint32_t life);
  std::set<uint32_t> earlier_lives(const Endpoint& remote, uint32_t life) const;
  std::vector<Waiting> silence(Peer& peer, uint64_t now_ns);
  void note(const Endpoint& remote, const std::string& what) const;
  uint32_t own_features() const;
  uint32_t own_seals() const;  // wire::kFeatureSeals, if this host offers it
  // Whether this host speaks with one of these features. If it does without seals that it offers,
  // the log says so, once.
  Status check_features(const Endpoint& remote, uint32_t features);
  Token next_token();
  Peer* peer_of(Token token);  // null: it has moved, or its session has ended

  const SocketManager::Host& host_;
  const SocketPolicy& policy_;
  const Connections& connections_;
  const Notice notice_;
  const uint32_t life_;  // of this daemon, not 0
  std::map<IpAddress, Peer> peers_;
  std::unordered_map<Token, IpAddress> tokens_;  // Peer::token
  std::map<Token, Passive> passive_;             // the oldest first
  std::set<Token> moved_;                        // those that are own
  std::set<IpAddress> unauthenticated_;          // hosts of which the log has said so
  Deadlines<Token> probes_;
  uint64_t last_token_ = 0;
  size_t last_lane_ = 0;
};

}  // namespace mercury::sockets
