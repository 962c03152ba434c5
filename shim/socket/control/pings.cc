#include "shim/socket/control/pings.h"

#include <utility>
#include <vector>

#include "shim/socket/control/addresses.h"
#include "shim/socket/control/manager_state.h"
#include "transport/base/quantity.h"

namespace mercury {

using sockets::Peer;
using sockets::Ping;
using Outcome = PingReport::Outcome;

namespace {

constexpr uint16_t kSomePort = 1;  // what is asked for, by a source that nobody accepts

PingReport refused_here(std::string why) {
  return {.outcome = Outcome::kRefusedHere, .why = std::move(why)};
}

}  // namespace

void SocketManager::State::ping(const IpAddress& ip, uint64_t now_ns, PingAnswer answer) {
  if (!policy.serve) return answer(refused_here("this daemon serves no sockets (sockets.serve)"));
  if (is_here(ip)) {
    return answer(refused_here(ip.to_string() + " is this host's: no network lies between"));
  }
  if (!policy.others) return answer(refused_here(sockets::kCarriesNoOthers));
  if (!sockets::may_speak(policy, ip)) {
    return answer(refused_here(ip.to_string() +
                               " is in none of the networks (sockets.networks) of this host"));
  }
  Peer* const peer = pings.is_full() ? nullptr : peers.reach(ip, now_ns, true);
  if (peer == nullptr) {
    return answer(refused_here("too many hosts are being asked, or known (sockets.max_hosts)"));
  }
  const uint64_t number = ++last_info;
  Ping& added = pings.all[number];
  added.answer = std::move(answer);
  added.begin_ns = now_ns;
  added.report.lane = peer->lane;
  if (peer->state == Peer::State::kOpen) return ask_ping(*peer, number, now_ns);
  peer->waiting.push_back({.ping = number});
}

void SocketManager::State::ask_ping(const Peer& peer, uint64_t number, uint64_t now_ns) {
  const auto found = pings.all.find(number);
  if (found == pings.all.end()) return;
  Ping& ping = found->second;
  ping.report.session_ns = now_ns - ping.begin_ns;
  ping.report.lane = peer.lane;
  ping.begin_ns = now_ns;
  ping.token = peer.token;
  ping.id = connections.next_id();
  pings.deadlines.add(now_ns + policy.answer_ns, number);
  const IpAddress to = peers.address_of(peer.token);
  const Endpoint nobody{host.lanes[peer.lane.value].ip, 0};
  host.send(peer.lane,
            command::OpenConnection{peer.token, ping.id, {0, nobody, {to, kSomePort}}, UniqueFd()});
  // While it is asked for, the engine knows its session.
  host.send(peer.lane, command::DescribeConnection{ping.id, number});
}

void SocketManager::State::on_ping_answered(uint64_t number, uint64_t now_ns) {
  Ping& ping = pings.all.at(number);
  ping.report.round_trip_ns = now_ns - ping.begin_ns;
  end_ping(number, Outcome::kAnswered, "");
}

void SocketManager::State::end_ping(uint64_t number, Outcome outcome, const std::string& why) {
  auto ping = pings.all.extract(number);
  if (ping.empty()) return;
  PingReport& report = ping.mapped().report;
  report.outcome = outcome;
  report.why = why;
  ping.mapped().answer(report);
}

void SocketManager::State::on_ping_session_closed(const event::SessionClosed& closed) {
  std::vector<uint64_t> over;
  for (const auto& [number, ping] : pings.all) {
    if (ping.token == closed.token) over.push_back(number);
  }
  for (const uint64_t number : over) {
    end_ping(number, Outcome::kLost, "the session has ended: " + closed.text);
  }
}

void SocketManager::State::on_ping_timer(uint64_t now_ns) {
  while (const std::optional<uint64_t> due = pings.deadlines.take_due(now_ns)) {
    const auto ping = pings.all.find(*due);
    if (ping == pings.all.end()) continue;
    host.send(ping->second.report.lane, command::AbortConnection{ping->second.id, Errc::kTimedOut});
    end_ping(*due, Outcome::kLost,
             "no answer within " + print_ns(policy.answer_ns) + " (sockets.answer of this host)");
  }
}

}  // namespace mercury
