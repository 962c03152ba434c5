// One host's control plane of sockets between programs, a kernel and engines that the test plays:
// real pairs of descriptors, virtual time, everything else as told.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shim/proof/secret.h"
#include "shim/socket/control/socket_manager.h"

namespace mercury::sockets::test {

constexpr uint64_t kMs = 1'000'000;

inline Endpoint at(const char* text) { return *Endpoint::parse(text); }

inline const Endpoint kServer = at("10.0.0.2:80");  // on another host

// What a program's request has come to.
struct Outcome {
  std::optional<Reply> reply;
  UniqueFd end;
  ReplyKind kind() const { return reply ? reply->kind : ReplyKind{}; }
};

inline void say(const UniqueFd& end, const std::string& text) {
  ASSERT_EQ(::send(end.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}
// What is there to be read; "" at its end, "(nothing)" where nothing is yet.
inline std::string heard(const UniqueFd& end) {
  char text[64];
  const ssize_t got = ::recv(end.get(), text, sizeof text, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN ? "(nothing)" : "(" + std::to_string(errno) + ")";
  return {text, static_cast<size_t>(got)};
}

class SocketManagerTest : public testing::Test {
 protected:
  struct Knock {
    KnockId id = 0;
    Endpoint at;
    uint64_t cookie = 0;
    bool soon = false;
    std::function<bool(uint64_t)> shares;
    std::function<void(Result<Endpoint>)> reply;
  };

  SocketManagerTest() {
    policy.others = true;
    policy.networks = {{at("10.0.0.0:0").ip, 8}, {at("[fd00::]:0").ip, 8}};
    policy.addresses = {at("10.0.0.1:0").ip, at("[fd00::1]:0").ip};
    policy.key = derive_job_key(kSocketService, "secret");
    local_addresses = {at("10.0.0.1:0").ip, at("192.168.7.1:0").ip, at("[fd00::1]:0").ip};
  }

  SocketManager& manager() {
    if (manager_) return *manager_;
    SocketManager::Host host;
    host.lanes = lanes;
    host.send = [this](LaneId lane, SocketCommand command) {
      commands.emplace_back(lane, std::move(command));
    };
    host.random = [this] { return random_ += 0x9e3779b97f4a7c15; };
    manager_ = std::make_unique<SocketManager>(std::move(host), policy);
    SocketManager::Local local;
    local.is_local = [this](const IpAddress& ip) {
      return (ip.is_v4() && ip.v4_bytes()[0] == 127) || ip == at("[::1]:0").ip ||
             local_addresses.count(ip) > 0;
    };
    local.knock = [this](KnockId id, const KnockTarget& to,
                         std::function<void(Result<Endpoint>)> reply) {
      knocks.push_back({id, to.at, to.cookie, to.soon, to.shares, std::move(reply)});
    };
    local.end_knock = [this](KnockId id) { ended_knocks.push_back(id); };
    local.listening = [this] { return open_listeners; };
    local.notice = [this](const std::string& line) { notices.push_back(line); };
    manager_->set_local(std::move(local));
    return *manager_;
  }

  // The outcome is filled as the reply comes, now or later.
  std::shared_ptr<Outcome> ask(SocketProgram program, const Request& request) {
    auto outcome = std::make_shared<Outcome>();
    manager().ask(program, request, now_ns, [outcome](const Reply& reply, UniqueFd end) {
      EXPECT_FALSE(outcome->reply) << "a second reply";
      outcome->reply = reply;
      outcome->end = std::move(end);
    });
    return outcome;
  }
  std::shared_ptr<Outcome> connect(SocketProgram program, const Endpoint& remote,
                                   const Endpoint& local = {}) {
    return ask(program, {.kind = RequestKind::kConnect, .local = local, .remote = remote});
  }
  std::shared_ptr<Outcome> listen(SocketProgram program, const Endpoint& local, uint64_t cookie,
                                  bool v6_only = false, Listening listening = Listening::kNow) {
    return ask(program, {.kind = RequestKind::kListen,
                         .v6_only = v6_only,
                         .value = static_cast<uint32_t>(listening),
                         .cookie = cookie,
                         .local = local});
  }
  // As a socket of no priority.
  std::shared_ptr<Outcome> claim(SocketProgram program, const Endpoint& remote,
                                 const Endpoint& local) {
    return ask(program, {.kind = RequestKind::kClaim, .local = local, .remote = remote});
  }
  uint32_t end_of(ConnectionId id) {
    const auto outcome = ask(99, {.kind = RequestKind::kEnded, .id = id});
    EXPECT_EQ(outcome->kind(), ReplyKind::kDone);
    return outcome->reply ? outcome->reply->value : 0;
  }

  // The oldest knock that is not answered.
  Knock take_knock() {
    EXPECT_FALSE(knocks.empty()) << "nobody is told";
    if (knocks.empty()) return {};
    Knock knock = std::move(knocks.front());
    knocks.pop_front();
    return knock;
  }
  // The next command, which is of this type.
  template <class Type>
  Type take(LaneId lane = LaneId(0)) {
    EXPECT_FALSE(commands.empty()) << "no command";
    if (commands.empty()) return {};
    auto [to, command] = std::move(commands.front());
    commands.pop_front();
    EXPECT_EQ(to, lane);
    EXPECT_TRUE(std::holds_alternative<Type>(command)) << "command " << command.index();
    return std::holds_alternative<Type>(command) ? std::get<Type>(std::move(command)) : Type{};
  }
  void tell(SocketEvent event, LaneId lane = LaneId(0)) {
    manager().on_event(lane, std::move(event), now_ns);
  }
  void pass(uint64_t ns) {
    now_ns += ns;
    if (manager().next_deadline_ns() <= now_ns) manager().on_timer(now_ns);
  }
  // What an honest host says to a HELLO.
  wire::HelloAck answer_to(const wire::Hello& hello, uint32_t life = 0) const {
    wire::HelloAck ack;
    ack.incarnation = life;
    ack.features = wire::kFeatureStreams;
    ack.proof = prove(policy.key, hello.nonce, ack);
    return ack;
  }
  // A session to the host of `remote`, by a connection to it, whose request is then with the
  // engine: its OpenConnection is the next command.
  Token open_session(SocketProgram program, const Endpoint& remote,
                     std::shared_ptr<Outcome>* outcome = nullptr, uint32_t life = 0) {
    auto connecting = connect(program, remote);
    const auto asked = take<command::Connect>();
    tell(event::SessionOpened{asked.token, answer_to(asked.hello, life)});
    if (outcome != nullptr) *outcome = connecting;
    return asked.token;
  }
  // As an honest host asks for a session.
  void say_hello(const Endpoint& remote, uint32_t life = 0) {
    wire::Hello hello;
    hello.incarnation = life;
    hello.kind = wire::SessionKind::kData;
    hello.features = wire::kFeatureStreams;
    hello.job = kSocketService;
    hello.proof = prove(policy.key, hello);
    tell(event::HelloReceived{++last_hello, remote, hello});
  }
  // A session that the other host has opened.
  Token accept_session(const Endpoint& remote, uint32_t life = 0) {
    say_hello(remote, life);
    const auto accepted = take<command::Accept>();
    tell(event::SessionOpened{accepted.token, {}});
    return accepted.token;
  }

  std::vector<Endpoint> lanes{at("10.0.0.1:7470")};
  SocketPolicy policy;
  std::set<IpAddress> local_addresses;
  uint64_t now_ns = 1'000'000'000;
  std::deque<std::pair<LaneId, SocketCommand>> commands;
  std::deque<Knock> knocks;
  std::vector<KnockId> ended_knocks;
  std::vector<std::string> notices;
  std::optional<std::unordered_set<uint64_t>> open_listeners;  // what the kernel says
  uint64_t last_hello = 0;

 private:
  std::unique_ptr<SocketManager> manager_;
  uint64_t random_ = 7;
};

}  // namespace mercury::sockets::test
