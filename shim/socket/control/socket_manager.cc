#include "shim/socket/control/socket_manager.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <variant>

#include "shim/socket/control/addresses.h"
#include "shim/socket/control/manager_state.h"

namespace mercury {

using sockets::Asker;
using sockets::Connection;
using sockets::ConnectionIds;
using sockets::Option;
using sockets::Reply;
using sockets::ReplyKind;
using sockets::Request;
using sockets::RequestKind;

SocketManager::State::State(Host h, SocketPolicy p)
    : host(std::move(h)),
      policy(std::move(p)),
      listeners(policy.max_listeners),
      connections(policy.max_connections, policy.max_descriptors, host.random()),
      ends(policy.kept_ends),
      resets(policy.kept_ends),
      peers(host, policy, connections, [this](const std::string& line) {
        if (local.notice) local.notice(line);
      }) {}

void SocketManager::State::kernel(const Answer& answer) {
  answer({.kind = ReplyKind::kKernel}, {});
}

void SocketManager::State::done(const Answer& answer, uint32_t value) {
  answer({.kind = ReplyKind::kDone, .value = value}, {});
}

void SocketManager::State::failed(const Answer& answer, int error) {
  answer({.kind = ReplyKind::kFailed, .value = static_cast<uint32_t>(error)}, {});
}

bool SocketManager::State::is_here(const IpAddress& ip) const {
  return is_local(ip) ||
         std::any_of(host.lanes.begin(), host.lanes.end(),
                     [&ip](const Endpoint& lane) { return lane.ip == ip; }) ||
         std::find(policy.addresses.begin(), policy.addresses.end(), ip) != policy.addresses.end();
}

void SocketManager::State::connect(Asker asker, Request request, uint64_t now_ns) {
  // As the kernel: nowhere in particular is this host.
  if (request.remote.ip.is_unspecified()) {
    request.remote.ip = sockets::loopback_of(request.remote.ip);
  }
  if (!policy.serve || request.remote.port == 0) return kernel(asker.answer);
  if (is_here(request.remote.ip)) return connect_within(std::move(asker), request);
  if (!sockets::may_speak(policy, request.remote.ip)) return kernel(asker.answer);
  connect_to_host(std::move(asker), request, now_ns);
}

// Those that were closed, once in kBetweenSweepsNs.
void SocketManager::State::sweep_listeners(uint64_t now_ns) {
  if (!local.listening || now_ns < next_sweep_ns) return;
  next_sweep_ns = now_ns + kBetweenSweepsNs;
  if (const auto open = local.listening()) listeners.keep(*open);
  if (!listeners.full() || !local.notice) return;
  local.notice("sockets.max_listeners = " + std::to_string(policy.max_listeners) +
               " sockets of programs listen; one more is reached by the kernel alone");
}

void SocketManager::State::listen(SocketProgram program, const Request& request, uint64_t now_ns,
                                  const Answer& answer) {
  const auto listening = static_cast<sockets::Listening>(request.value);
  if (listening == sockets::Listening::kNot) {
    listeners.forget(program, request.cookie);
    return done(answer);
  }
  const bool soon = listening == sockets::Listening::kSoon;
  const sockets::Listener listener{program, request.local, request.cookie, request.v6_only, soon};
  const bool serves = policy.serve && request.local.port != 0;
  bool added = serves && listeners.add(listener);
  if (serves && !added) {
    sweep_listeners(now_ns);
    added = listeners.add(listener);
  }
  return added ? done(answer) : kernel(answer);
}

void SocketManager::State::ended(const Request& request, const Answer& answer) const {
  if (const int error = ends.of(request.id)) return done(answer, static_cast<uint32_t>(error));
  if (const int error = resets.by_peer_of(request.id, request.local, request.remote)) {
    return done(answer, static_cast<uint32_t>(error));
  }
  // What is within this host has outlived the daemon that made it; what is not has ended with it.
  const bool lost =
      !connections.ids().is_of_this_life(request.id) && !ConnectionIds::is_within(request.id);
  done(answer, lost ? ECONNRESET : 0);
}

void SocketManager::State::set(const Request& request, const Answer& answer) {
  const bool valid = request.option == Option::kPriority ? request.value <= sockets::kMostPriority
                     : request.option == Option::kAbort  ? request.value <= 1
                                                         : false;
  if (!valid) return failed(answer, EINVAL);
  if (ConnectionIds::is_within(request.id) && request.option == Option::kAbort) {
    resets.set(request.id, request.local, request.remote, request.value == 1);
    return done(answer);
  }
  Connection* connection = connections.find(request.id);
  if (connection != nullptr && connection->state == Connection::State::kOpen) {
    if (request.option == Option::kPriority) {
      connection->priority = static_cast<uint8_t>(request.value);
    } else {
      connection->abort_on_close = request.value == 1;
    }
    tell_engine(*connection);
  }
  done(answer);
}

void SocketManager::State::tell_engine(const Connection& connection) const {
  host.send(connection.lane,
            command::SetConnection{connection.id, connection.priority, connection.abort_on_close});
}

void SocketManager::State::info(Asker asker, const Request& request, uint64_t now_ns) {
  Connection* connection = connections.find(request.id);
  if (connection == nullptr || connection->state != Connection::State::kOpen) {
    // No network is between two programs of one host, so there is nothing to tell.
    return ConnectionIds::is_within(request.id) ? done(asker.answer)
                                                : failed(asker.answer, ENOTCONN);
  }
  const uint64_t number = ++last_info;
  infos.emplace(number, std::move(asker));
  info_deadlines.add(now_ns + policy.answer_ns, number);
  host.send(connection->lane, command::DescribeConnection{connection->id, number});
}

void SocketManager::State::program_gone(SocketProgram program) {
  listeners.forget_program(program);
  peers.drop_waiting(program);
  std::erase_if(infos, [program](const auto& entry) { return entry.second.program == program; });
  for (const sockets::ConnectionId id : connections.asked_by(program)) {
    const Connection& connection = *connections.find(id);
    if (connection.state == Connection::State::kAsking) {
      host.send(connection.lane, command::AbortConnection{id, Errc::kClosed});
    } else {
      end_knock(id);
    }
    connections.erase(id);
  }
}

SocketManager::SocketManager(Host host, SocketPolicy policy)
    : state_(std::make_unique<State>(std::move(host), std::move(policy))) {}
SocketManager::~SocketManager() = default;

void SocketManager::set_local(Local local) { state_->local = std::move(local); }

void SocketManager::ask(SocketProgram program, const Request& request, uint64_t now_ns,
                        Answer answer) {
  switch (request.kind) {
    case RequestKind::kConnect:
      return state_->connect({program, std::move(answer)}, request, now_ns);
    case RequestKind::kListen:
      return state_->listen(program, request, now_ns, answer);
    case RequestKind::kClaim:
      return state_->claim(request, answer);
    case RequestKind::kEnded:
      return state_->ended(request, answer);
    case RequestKind::kSet:
      return state_->set(request, answer);
    case RequestKind::kInfo:
      return state_->info({program, std::move(answer)}, request, now_ns);
  }
}

void SocketManager::program_gone(SocketProgram program) { state_->program_gone(program); }

void SocketManager::ping(const IpAddress& host, uint64_t now_ns, PingAnswer answer) {
  state_->ping(host, now_ns, std::move(answer));
}

void SocketManager::knock_gone(KnockId id) { state_->knock_gone(id); }

namespace {

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

void SocketManager::on_event(LaneId lane, SocketEvent event, uint64_t now_ns) {
  State& state = *state_;
  std::visit(Overloaded{
                 [&](const event::HelloReceived& e) { state.peers.on_hello(lane, e); },
                 [&](const event::SessionOpened& e) {
                   state.settle(state.peers.on_opened(e, now_ns), now_ns);
                 },
                 [&](const event::SessionClosed& e) { state.on_session_closed(e, now_ns); },
                 [&](const event::SessionMoved& e) { state.peers.on_moved(e); },
                 [&](const event::ConnectionAnswered& e) { state.on_answered(e, now_ns); },
                 [&](const event::ConnectionAsked& e) { state.on_asked(lane, e); },
                 [&](const event::ConnectionEnded& e) { state.on_ended(lane, e); },
                 [&](const event::ConnectionDescribed& e) { state.on_described(e); },
                 [](const auto&) {},  // nothing that sockets ask for
             },
             event);
  state.drop_settled_deadlines();
}

uint64_t SocketManager::next_deadline_ns() const {
  return std::min({state_->peers.next_deadline_ns(), state_->answers.next_ns(),
                   state_->info_deadlines.next_ns(), state_->pings.deadlines.next_ns()});
}

void SocketManager::on_timer(uint64_t now_ns) { state_->on_timer(now_ns); }

SocketManager::Snapshot SocketManager::snapshot() const {
  const auto narrow = [](size_t count) { return static_cast<uint32_t>(count); };
  return {narrow(state_->connections.with_other_hosts()),
          narrow(state_->connections.unclaimed()),
          narrow(state_->listeners.size()),
          narrow(state_->peers.session_count()),
          state_->connections.within_total(),
          narrow(state_->connections.descriptors())};
}

bool SocketManager::idle() const {
  return state_->listeners.size() == 0 && state_->connections.size() == 0 &&
         state_->infos.empty() && state_->pings.all.empty() && !state_->peers.has_waiting();
}

}  // namespace mercury
