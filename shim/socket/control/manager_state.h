// SocketManager's insides: its tables, and the two ways of a connection: within this host, and with
// another one. How its listener is told, and who accepts it, is the same for both.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "shim/socket/control/connections.h"
#include "shim/socket/control/deadlines.h"
#include "shim/socket/control/ends.h"
#include "shim/socket/control/listeners.h"
#include "shim/socket/control/peers.h"
#include "shim/socket/control/pings.h"
#include "shim/socket/control/socket_manager.h"

namespace mercury {

struct SocketManager::State {
  // A listener that has gone is tried for one connection so often: programs say who listens.
  static constexpr unsigned kMostKnocks = 8;
  static constexpr uint64_t kBetweenSweepsNs = 1'000'000'000;

  State(Host h, SocketPolicy p);

  // --- requests (socket_manager.cc) -----------------------------------------------------------
  static void kernel(const Answer& answer);
  static void done(const Answer& answer, uint32_t value = 0);
  static void failed(const Answer& answer, int error);
  void connect(sockets::Asker asker, sockets::Request request, uint64_t now_ns);
  void listen(SocketProgram program, const sockets::Request& request, uint64_t now_ns,
              const Answer& answer);
  void sweep_listeners(uint64_t now_ns);
  void ended(const sockets::Request& request, const Answer& answer) const;
  void set(const sockets::Request& request, const Answer& answer);
  void tell_engine(const sockets::Connection& connection) const;  // what was set
  void info(sockets::Asker asker, const sockets::Request& request, uint64_t now_ns);
  void program_gone(SocketProgram program);
  // The kernel's addresses; and those that only engines have, as well.
  bool is_local(const IpAddress& ip) const { return local.is_local && local.is_local(ip); }
  bool is_here(const IpAddress& ip) const;
  void end_knock(KnockId id) const {
    if (local.end_knock) local.end_knock(id);
  }

  // --- within this host, and its listeners (local_connections.cc) -------------------------------
  void connect_within(sockets::Asker asker, const sockets::Request& request);
  void knock(sockets::ConnectionId id);
  void on_knock(sockets::ConnectionId id, const Result<Endpoint>& from);
  void accept(sockets::Connection& connection);  // its listener has been told
  void refuse(sockets::Connection& connection, sockets::Answer why);
  void claim(const sockets::Request& request, const Answer& answer);
  void knock_gone(KnockId id);

  // --- with other hosts (remote_connections.cc) -------------------------------------------------
  void connect_to_host(sockets::Asker asker, const sockets::Request& request, uint64_t now_ns);
  void open(const sockets::Peer& peer, sockets::Waiting waiting, uint64_t now_ns);
  std::optional<Endpoint> source_for(const sockets::Request& request, LaneId lane);
  void settle(sockets::Peers::Settled settled, uint64_t now_ns);
  void on_session_closed(const event::SessionClosed& closed, uint64_t now_ns);
  void on_asked(LaneId lane, const event::ConnectionAsked& asked);
  bool is_for_this_host(const sockets::Preamble& preamble) const;
  void on_answered(const event::ConnectionAnswered& answered, uint64_t now_ns);
  void on_ended(LaneId lane, const event::ConnectionEnded& ended);
  void on_described(const event::ConnectionDescribed& described);
  void on_timer(uint64_t now_ns);
  bool is_asking(sockets::ConnectionId id);
  void drop_settled_deadlines();
  void give_up(sockets::Connection& connection);  // that another host has not answered

  // --- whether another host is there (pings.cc) -------------------------------------------------
  void ping(const IpAddress& ip, uint64_t now_ns, PingAnswer answer);
  void ask_ping(const sockets::Peer& peer, uint64_t number, uint64_t now_ns);
  void on_ping_answered(uint64_t number, uint64_t now_ns);
  void end_ping(uint64_t number, PingReport::Outcome outcome, const std::string& why);
  void on_ping_session_closed(const event::SessionClosed& closed);
  void on_ping_timer(uint64_t now_ns);

  const Host host;
  const SocketPolicy policy;
  Local local;
  sockets::Listeners listeners;
  sockets::Connections connections;
  sockets::Ends ends;
  sockets::Resets resets;
  sockets::Peers peers;
  sockets::Deadlines<sockets::ConnectionId> answers;
  // Requests for what an engine knows, by the number that it gives back.
  std::unordered_map<uint64_t, sockets::Asker> infos;
  sockets::Deadlines<uint64_t> info_deadlines;
  uint64_t next_sweep_ns = 0;  // of listeners
  uint64_t last_info = 0;
  sockets::Pings pings;
};

namespace sockets {

// The two ends of a connection of this host: a program's, and the engine's or another program's.
struct Pair {
  UniqueFd first;
  UniqueFd second;
};
std::optional<Pair> make_pair();  // nothing: no descriptor is left
// Makes room for 1 MiB, as the kernel counts, of what this end of a pair has written and its peer
// has not read. Where the host gives as much by itself, that stays.
void enlarge(int end);

}  // namespace sockets

}  // namespace mercury
