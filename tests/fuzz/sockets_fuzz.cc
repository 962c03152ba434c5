// The control plane of sockets between programs, a kernel, engines and other hosts that do
// anything: records of requests, raw and forged, of knocks and what comes of them, of what engines
// report, honest or not, and of time.
//
// Beyond not crashing: each request has one reply at most, with a descriptor if it is kConnected,
// and one at least within the time that the policy gives; connections are only opened on sessions
// that are open; limits hold; when all have gone nothing is kept, and no descriptor is left open.
#include <array>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "shim/proof/secret.h"
#include "shim/socket/control/socket_manager.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/play.h"

namespace mercury::fuzz {
namespace {

using sockets::ConnectionId;
using sockets::ReplyKind;
using sockets::RequestKind;

constexpr size_t kMostRecords = 400;
constexpr uint64_t kMs = 1'000'000;
constexpr size_t kPrograms = 4;
constexpr uint32_t kMostConnections = 8, kMostListeners = 6, kMostHosts = 4, kMostDescriptors = 14;

SocketPolicy policy() {
  SocketPolicy policy;
  policy.others = true;
  policy.networks = {{IpAddress::v4(10, 0, 0, 0), 8}};
  policy.key = derive_job_key(kSocketService, "secret");
  policy.silence_ns = 100 * kMs;
  policy.answer_ns = 300 * kMs;
  policy.max_connections = kMostConnections;
  policy.max_descriptors = kMostDescriptors;
  policy.max_listeners = kMostListeners;
  policy.max_hosts = kMostHosts;
  policy.kept_ends = 4;
  return policy;
}

// Few, so that they meet.
Endpoint some_endpoint(Input& record) {
  static const std::array<IpAddress, 8> kIps{IpAddress::v4(127, 0, 0, 1),
                                             IpAddress::v4(0, 0, 0, 0),
                                             IpAddress::v4(10, 0, 0, 1),
                                             IpAddress::v4(10, 0, 0, 2),
                                             IpAddress::v4(10, 0, 0, 3),
                                             IpAddress::v4(11, 0, 0, 1),
                                             IpAddress(),
                                             IpAddress::v4(10, 0, 0, 4)};
  Endpoint endpoint{kIps[record.below(kIps.size())], static_cast<uint16_t>(record.byte() % 4)};
  if (record.byte() >= 250) endpoint.ip.bytes[record.byte() % 16] = record.byte();
  return endpoint;
}

class World {
 public:
  World() {
    SocketManager::Host host;
    host.lanes = {{IpAddress::v4(10, 0, 0, 1), 7470}, {IpAddress::v4(10, 0, 0, 1), 7471}};
    host.send = [this](LaneId lane, SocketCommand command) {
      must(lane.value < 2, "a command for an engine that is none");
      std::visit([this](auto& one) { on(one); }, command);
    };
    host.random = [this] { return random_ += 0x9e3779b97f4a7c15; };
    manager_ = std::make_unique<SocketManager>(std::move(host), policy_);
    SocketManager::Local local;
    local.is_local = [](const IpAddress& ip) {
      return ip == IpAddress::v4(127, 0, 0, 1) || ip == IpAddress::v4(10, 0, 0, 1);
    };
    local.knock = [this](KnockId id, const KnockTarget& target,
                         std::function<void(Result<Endpoint>)> reply) {
      must(knocks_.try_emplace(id, Knock{target.at, {}, std::move(reply)}).second, "a knock twice");
    };
    local.end_knock = [this](KnockId id) { knocks_.erase(id); };
    manager_->set_local(std::move(local));
  }

  void step(Input record) {
    const uint8_t what = record.byte();
    switch (what % 8) {
      case 0:
        return raw(record);
      case 1:
      case 2:
        return request(record);
      case 3:
        return knock(record);
      case 4:
        return claim(record);
      case 5:
      case 6:
        return engine(record);
      default:
        if (what >= 248) return gone(record.byte() % kPrograms);
        return pass(record.byte() * (what >= 128 ? kMs : 1'000));
    }
  }

  void end() {
    while (!connecting().empty()) reply_to(connecting().front(), Error(Errc::kTimedOut, "full"));
    pass(policy_.probe_ns);
    pass(policy_.answer_ns);
    for (bool waits : waits_) must(!waits, "a request hangs");
    for (size_t i = 0; i < kPrograms; ++i) gone(i);
    while (!knocks_.empty()) {
      const KnockId id = knocks_.begin()->first;
      knocks_.erase(id);
      manager_->knock_gone(id);
    }
    ends_.clear();
    for (const ConnectionId id : carried_) tell(event::ConnectionEnded{id, 0, Errc::kOk});
    must(manager_->idle(), "something is kept of nobody's");
    must(manager_->snapshot().connections == 0, "a connection is left");
    must(manager_->snapshot().descriptors == 0, "descriptors are counted that nobody has");
  }

 private:
  struct Knock {
    Endpoint at;
    Endpoint from;
    std::function<void(Result<Endpoint>)> reply;  // until it is connected
  };
  struct EngineSession {
    wire::Nonce nonce{};  // of the own HELLO
    bool open = false;
  };

  void ask(size_t program, const sockets::Request& request) {
    if (waits_[program]) return;  // as the daemon has it: one at a time
    waits_[program] = true;
    manager_->ask(program, request, now_ns_,
                  [this, program](const sockets::Reply& reply, UniqueFd end) {
                    must(waits_[program], "a second reply, or one for nobody");
                    waits_[program] = false;
                    must((reply.kind == ReplyKind::kConnected) == (end.get() >= 0),
                         "a descriptor without a connection, or none with one");
                    if (reply.kind == ReplyKind::kConnected) last_id_ = reply.id;
                  });
  }

  void raw(Input& record) {
    const size_t program = record.byte() % kPrograms;
    const auto decoded = sockets::decode_request(std::as_bytes(record.rest()));
    if (decoded) ask(program, *decoded);
  }

  void request(Input& record) {
    const size_t program = record.byte() % kPrograms;
    sockets::Request request;
    request.kind = static_cast<RequestKind>(1 + record.byte() % 6);
    request.local = some_endpoint(record);
    request.remote = some_endpoint(record);
    request.cookie = record.byte() % 4;
    request.option = static_cast<sockets::Option>(record.byte() % 3);
    request.value = record.byte() % 10;
    request.priority = record.byte() % 8;
    request.v6_only = record.flag();
    request.id = some_id(record);
    auto bytes = sockets::encode(request);
    if (record.byte() >= 224) bytes[record.below(bytes.size())] = std::byte{record.byte()};
    if (const auto decoded = sockets::decode_request(bytes)) ask(program, *decoded);
  }

  ConnectionId some_id(Input& record) const {
    const uint8_t how = record.byte();
    if (how >= 240) return record.take<uint64_t>();
    if (how % 2 == 0 || ends_.empty()) return last_id_;
    auto it = ends_.begin();
    std::advance(it, how % ends_.size());
    return it->first;
  }

  std::vector<KnockId> connecting() const {
    std::vector<KnockId> ids;
    for (const auto& [id, knock] : knocks_) {
      if (knock.reply) ids.push_back(id);
    }
    return ids;
  }
  void reply_to(KnockId id, const Result<Endpoint>& from) {
    Knock& knock = knocks_.at(id);
    const auto reply = std::exchange(knock.reply, nullptr);
    if (from) {
      knock.from = *from;
    } else {
      knocks_.erase(id);
    }
    reply(from);
  }
  void knock(Input& record) {
    if (knocks_.empty()) return;
    auto it = knocks_.begin();
    std::advance(it, record.byte() % knocks_.size());
    const KnockId id = it->first;
    const uint8_t how = record.byte();
    if (!it->second.reply) {
      if (how < 160) return;
      knocks_.erase(id);
      return manager_->knock_gone(id);
    }
    if (how < 160) return reply_to(id, Endpoint{IpAddress::v4(127, 0, 0, 1), ++last_port_});
    reply_to(id, Error(how < 208 ? Errc::kNotFound : Errc::kTimedOut, "no"));
  }

  void claim(Input& record) {
    if (knocks_.empty()) return;
    auto it = knocks_.begin();
    std::advance(it, record.byte() % knocks_.size());
    sockets::Request request;
    request.kind = RequestKind::kClaim;
    request.remote = it->second.from;
    request.local = it->second.at;
    ask(record.byte() % kPrograms, request);
  }

  Token some_token(Input& record) const {
    const uint8_t how = record.byte();
    if (how >= 240 || sessions_.empty()) return Token(record.take<uint64_t>());
    auto it = sessions_.begin();
    std::advance(it, how % sessions_.size());
    return it->first;
  }

  void engine(Input& record) {
    const LaneId lane(static_cast<uint16_t>(record.byte() % 2));
    switch (record.byte() % 8) {
      case 0:
      case 1:
        return opened(record, lane);
      case 2: {
        const Token token = some_token(record);
        sessions_.erase(token);
        return tell(event::SessionClosed{token, static_cast<Errc>(record.byte()), "why"}, lane);
      }
      case 3: {
        const ConnectionId id = some_id(record);
        const auto answer = static_cast<sockets::Answer>(1 + record.byte() % 3);
        if (answer != sockets::Answer::kAccepted) ends_.erase(id);
        return tell(event::ConnectionAnswered{id, answer}, lane);
      }
      case 4: {
        const Token token = some_token(record);
        sockets::Preamble preamble;
        preamble.source = some_endpoint(record);
        preamble.destination = some_endpoint(record);
        return tell(event::ConnectionAsked{token, ++asked_, preamble}, lane);
      }
      case 5: {
        const ConnectionId id = record.byte() < 192 ? some_id(record) : 0;
        const uint64_t asked = id == 0 ? asked_ - record.byte() % 4 : 0;
        ends_.erase(id);
        return tell(event::ConnectionEnded{id, asked, static_cast<Errc>(record.byte())}, lane);
      }
      case 6:
        return tell(
            event::ConnectionDescribed{last_id_, number_ - record.byte() % 2, record.flag(), {}},
            lane);
      default:
        return hello(record, lane);
    }
  }

  void opened(Input& record, LaneId lane) {
    const Token token = some_token(record);
    const auto session = sessions_.find(token);
    wire::HelloAck answer;
    answer.features = record.byte() < 224 ? wire::kFeatureStreams : wire::kFeatureNone;
    if (session != sessions_.end()) {
      answer.proof = prove(policy_.key, session->second.nonce, answer);
      if (record.byte() >= 224) answer.proof[record.byte() % 32] ^= 1;
      session->second.open = true;
    }
    tell(event::SessionOpened{token, answer}, lane);
  }

  void hello(Input& record, LaneId lane) {
    wire::Hello hello;
    hello.job = kSocketService;
    hello.features = record.byte() < 224 ? wire::kFeatureStreams : wire::kFeatureNone;
    hello.nonce[0] = record.byte();
    hello.proof = prove(policy_.key, hello);
    if (record.byte() >= 224) hello.proof[record.byte() % 32] ^= 1;
    tell(event::HelloReceived{++hello_, some_endpoint(record), hello}, lane);
  }

  void tell(SocketEvent event, LaneId lane = LaneId(0)) {
    manager_->on_event(lane, std::move(event), now_ns_);
    check();
  }
  void pass(uint64_t ns) {
    now_ns_ += ns;
    if (manager_->next_deadline_ns() <= now_ns_) manager_->on_timer(now_ns_);
    must(manager_->next_deadline_ns() > now_ns_, "a deadline that stays due");
  }
  void gone(size_t program) {
    waits_[program] = false;
    manager_->program_gone(program);
  }
  void check() const {
    const SocketManager::Snapshot now = manager_->snapshot();
    must(now.connections <= kMostConnections, "too many connections");
    must(now.unclaimed <= kMostConnections, "too many that are not accepted");
    must(now.descriptors <= kMostDescriptors, "too many descriptors");
    must(knocks_.size() + ends_.size() <= now.descriptors, "a descriptor is not counted");
    must(now.listeners <= kMostListeners, "too many listeners");
  }

  // --- what the engines are told ---
  void on(command::Connect& c) {
    must(verify(policy_.key, c.hello), "a HELLO that proves nothing");
    must(sessions_.try_emplace(c.token, EngineSession{c.hello.nonce, false}).second,
         "a token twice");
  }
  void on(command::Accept& c) {
    must(sessions_.try_emplace(c.token, EngineSession{}).second, "a token twice");
  }
  void on(command::Refuse&) {}
  void on(command::SendControl&) { must(false, "a control message"); }
  void on(command::CloseSession& c) { sessions_.erase(c.token); }
  void on(command::Stop&) { must(false, "who stops an engine is the host"); }
  void on(command::OpenConnection& c) {
    const auto session = sessions_.find(c.token);
    must(session != sessions_.end() && session->second.open, "on a session that is not open");
    must(carried_.insert(c.id).second, "a connection twice");
    ends_[c.id] = std::move(c.end);
  }
  void on(command::AnswerConnection& c) {
    must((c.answer == sockets::Answer::kAccepted) == (c.end.get() >= 0), "an end with a refusal");
    if (!c.end) return;
    must(carried_.insert(c.id).second, "a connection twice");
    ends_[c.id] = std::move(c.end);
  }
  void on(command::AbortConnection& c) { ends_.erase(c.id); }
  void on(command::SetConnection& c) { must(c.priority <= sockets::kMostPriority, "a priority"); }
  void on(command::DescribeConnection& c) { number_ = c.number; }

  const SocketPolicy policy_ = policy();
  uint64_t now_ns_ = 1'000 * kMs;
  uint64_t random_ = 7;
  std::array<bool, kPrograms> waits_{};
  std::map<KnockId, Knock> knocks_;
  std::map<Token, EngineSession> sessions_;  // that the engines have
  std::map<ConnectionId, UniqueFd> ends_;    // the engines' of connections
  std::set<ConnectionId> carried_;           // all that there were
  ConnectionId last_id_ = 0;
  uint64_t asked_ = 0;
  uint64_t hello_ = 0;
  uint64_t number_ = 0;
  uint16_t last_port_ = 1000;
  std::unique_ptr<SocketManager> manager_;
};

}  // namespace
}  // namespace mercury::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mercury::fuzz::play<mercury::fuzz::World>(data, size, mercury::fuzz::kMostRecords);
  return 0;
}
