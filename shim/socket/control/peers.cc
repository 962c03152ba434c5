#include "shim/socket/control/peers.h"

#include <algorithm>
#include <utility>

#include "shim/proof/secret.h"
#include "shim/socket/control/addresses.h"
#include "transport/base/quantity.h"

namespace mercury::sockets {
namespace {

constexpr const char* kUnused = "nobody uses the session";

}  // namespace

Peers::Peers(const SocketManager::Host& host, const SocketPolicy& policy,
             const Connections& connections, Notice notice)
    : host_(host),
      policy_(policy),
      connections_(connections),
      notice_(std::move(notice)),
      life_(static_cast<uint32_t>(host.random() >> 32) | 1) {}

Token Peers::next_token() { return Token(kSocketTokens | ++last_token_); }

Peer* Peers::reach(const IpAddress& ip, uint64_t now_ns, bool again) {
  if (host_.lanes.empty()) return nullptr;
  const auto found = peers_.find(ip);
  if (found == peers_.end()) {
    if (!make_room_for_hello() || !make_room()) return nullptr;
    Peer& peer = peers_[ip];
    ask(ip, peer, now_ns);
    return &peer;
  }
  Peer& peer = found->second;
  if (peer.state != Peer::State::kSilent) return &peer;
  if (now_ns < peer.silent_until_ns && !again) return nullptr;
  if (peer.token != 0) {  // its HELLO is under way still
    peer.state = Peer::State::kAsked;
    probes_.add(now_ns + policy_.probe_ns, peer.token);
    return &peer;
  }
  if (!make_room_for_hello()) return nullptr;
  ask(ip, peer, now_ns);
  return &peer;
}

Peer* Peers::peer_of(Token token) {
  const auto known = tokens_.find(token);
  return known == tokens_.end() ? nullptr : &peers_.at(known->second);
}

uint64_t Peers::patience_ns(const Peer& peer, uint64_t now_ns) const {
  return now_ns < peer.late_until_ns ? policy_.probe_ns : policy_.answer_ns;
}

void Peers::on_late(Token token, uint64_t now_ns) {
  Peer* peer = peer_of(token);
  if (peer != nullptr && now_ns >= peer->late_until_ns) {
    peer->late_until_ns = now_ns + policy_.silence_ns;
  }
}

void Peers::on_answer(Token token) {
  if (Peer* peer = peer_of(token)) peer->late_until_ns = 0;
}

// Those go first that nobody uses and whose peers have moved; then who is silent, the longest
// known; then a session that nobody uses.
bool Peers::make_room() {
  if (peers_.size() + moved_.size() >= policy_.max_hosts) close_unused();
  if (peers_.size() < policy_.max_hosts) return true;
  auto victim = peers_.end();
  uint64_t least = kNever;
  for (auto it = peers_.begin(); it != peers_.end(); ++it) {
    const Peer& peer = it->second;
    if (peer.state == Peer::State::kAsked) continue;
    if (peer.state == Peer::State::kOpen && connections_.uses(peer.token)) continue;
    const uint64_t rank = peer.state == Peer::State::kOpen ? kNever - 1 : peer.silent_until_ns;
    if (rank >= least) continue;
    least = rank;
    victim = it;
  }
  if (victim == peers_.end()) return false;
  close(victim->second, Errc::kClosed, kUnused);
  peers_.erase(victim);
  return true;
}

bool Peers::make_room_for_hello() {
  size_t hellos = 0;
  Peer* late = nullptr;
  for (auto& [ip, peer] : peers_) {
    if (peer.token == 0 || peer.state == Peer::State::kOpen) continue;
    ++hellos;
    if (peer.state != Peer::State::kSilent) continue;
    if (late == nullptr || peer.silent_until_ns < late->silent_until_ns) late = &peer;
  }
  if (hellos < kMostHellos) return true;
  if (late == nullptr) return false;
  close(*late, Errc::kTimedOut, "no answer");
  return true;
}

void Peers::ask(const IpAddress& ip, Peer& peer, uint64_t now_ns) {
  peer.state = Peer::State::kAsked;
  peer.token = next_token();
  peer.lane = LaneId(static_cast<uint16_t>(last_lane_++ % host_.lanes.size()));
  peer.nonce = draw_nonce(host_.random);
  tokens_[peer.token] = ip;
  wire::Hello hello;
  hello.kind = wire::SessionKind::kData;
  hello.features = own_features();
  hello.job = kSocketService;
  hello.incarnation = life_;
  hello.nonce = peer.nonce;
  hello.proof = prove(policy_.key, hello);
  host_.send(peer.lane, command::Connect{peer.token, kNoJob, Endpoint{ip, policy_.udp_port},
                                         std::move(hello), policy_.key});
  probes_.add(now_ns + policy_.probe_ns, peer.token);
}

void Peers::close(Peer& peer, Errc code, const std::string& text) {
  if (peer.token == 0) return;
  host_.send(peer.lane, command::CloseSession{peer.token, code, text});
  tokens_.erase(peer.token);
  peer.token = Token();
}

// Of those that are known, which have spoken from `remote` and are not this one. By the whole
// endpoint, as several hosts may be behind one address.
std::set<uint32_t> Peers::earlier_lives(const Endpoint& remote, uint32_t life) const {
  std::set<uint32_t> lives;
  for (const auto& [token, one] : passive_) {
    if (one.opened && one.remote == remote) lives.insert(one.life);
  }
  const auto own = peers_.find(remote.ip);
  if (own != peers_.end() && remote.port == policy_.udp_port) lives.insert(own->second.life);
  lives.erase(life);
  lives.erase(0);  // it does not say
  return lives;
}

// A daemon that was started again knows nothing of its last life's sessions. Programs are to hear
// of it before the next life's connections come: libzmq, for one, refuses a peer of the same name
// as one that it has. Engines of one daemon speak from a port each, and all of its sessions end.
void Peers::end_earlier_lives(const Endpoint& remote, uint32_t life) {
  if (life == 0) return;
  const std::set<uint32_t> earlier = earlier_lives(remote, life);
  constexpr const char* kWhy = "the peer was started again";
  for (auto it = passive_.begin(); it != passive_.end();) {
    const auto& [token, one] = *it;
    const bool ends = one.opened && one.remote.ip == remote.ip && earlier.contains(one.life);
    if (ends) host_.send(one.lane, command::CloseSession{token, Errc::kPeerLeft, kWhy});
    it = ends ? passive_.erase(it) : std::next(it);
  }
  const auto own = peers_.find(remote.ip);
  if (own == peers_.end() || own->second.state != Peer::State::kOpen) return;
  if (!earlier.contains(own->second.life)) return;
  close(own->second, Errc::kPeerLeft, kWhy);
  peers_.erase(own);
}

std::vector<Waiting> Peers::silence(Peer& peer, uint64_t now_ns) {
  if (peer.state != Peer::State::kSilent) peer.silent_until_ns = now_ns + policy_.silence_ns;
  peer.state = Peer::State::kSilent;
  return std::exchange(peer.waiting, {});
}

void Peers::note(const Endpoint& remote, const std::string& what) const {
  if (notice_) notice_("sockets: " + remote.to_string() + ": " + what);
}

Peers::Settled Peers::on_opened(const event::SessionOpened& opened, uint64_t now_ns) {
  const auto passive = passive_.find(opened.token);
  if (passive != passive_.end()) {
    passive->second.opened = true;
    end_earlier_lives(passive->second.remote, passive->second.life);
    return {};
  }
  const auto token = tokens_.find(opened.token);
  if (token == tokens_.end()) return {};
  Peer& peer = peers_.at(token->second);
  const Endpoint remote{token->second, policy_.udp_port};
  if (!verify(policy_.key, peer.nonce, opened.answer)) {
    note(remote, "its answer does not prove the secret (sockets.secret) of this host");
    close(peer, Errc::kWrongSecret, "the answer does not prove the secret of sockets");
    return {nullptr, silence(peer, now_ns), PingReport::Outcome::kRefusedHere,
            "its answer does not prove the secret (sockets.secret) of this host"};
  }
  if ((opened.answer.features & wire::kFeatureStreams) == 0) {
    close(peer, Errc::kUnsupported, "sockets need byte streams");
    return {nullptr, silence(peer, now_ns), PingReport::Outcome::kRefusedHere,
            "its version has no byte streams, which sockets need"};
  }
  if (Status agreed = check_features(remote, opened.answer.features); !agreed) {
    close(peer, agreed.error().code, agreed.error().message);
    return {nullptr, silence(peer, now_ns), PingReport::Outcome::kRefusedHere,
            agreed.error().message};
  }
  peer.state = Peer::State::kOpen;
  peer.late_until_ns = 0;
  peer.life = opened.answer.incarnation;
  end_earlier_lives(remote, peer.life);
  return {&peer, std::exchange(peer.waiting, {}), {}, {}};
}

Peers::Settled Peers::on_closed(const event::SessionClosed& closed, uint64_t now_ns) {
  moved_.erase(closed.token);
  if (passive_.erase(closed.token) > 0) return {};
  const auto token = tokens_.find(closed.token);
  if (token == tokens_.end()) return {};
  const IpAddress ip = token->second;
  tokens_.erase(token);
  Peer& peer = peers_.at(ip);
  peer.token = Token();
  if (peer.state == Peer::State::kOpen) {
    peers_.erase(ip);
    return {};
  }
  if (closed.code == Errc::kWrongSecret || closed.code == Errc::kPermission ||
      closed.code == Errc::kVersionMismatch) {
    note({ip, policy_.udp_port}, "refuses this host's sockets: " + closed.text);
  }
  const bool silent = closed.code == Errc::kTimedOut;
  return {nullptr, silence(peer, now_ns),
          silent ? PingReport::Outcome::kSilent : PingReport::Outcome::kRefusedThere,
          closed.text.empty() ? std::string("it does not say why") : closed.text};
}

// Where it was may be another host's soon.
void Peers::on_moved(const event::SessionMoved& moved) {
  if (!may_speak(policy_, moved.remote.ip)) return turn_out(moved);
  const auto passive = passive_.find(moved.token);
  if (passive != passive_.end()) passive->second.remote = moved.remote;
  const auto token = tokens_.find(moved.token);
  if (token == tokens_.end()) return;
  const auto peer = peers_.find(token->second);
  passive_[moved.token] = {peer->second.lane, moved.remote, peer->second.life, true, true};
  moved_.insert(moved.token);
  peers_.erase(peer);
  tokens_.erase(token);
}

// Of whoever asked from there no session would have been opened.
void Peers::turn_out(const event::SessionMoved& moved) {
  const Errc code = Errc::kPermission;
  const std::string why = moved.remote.ip.to_string() +
                          ", to which this peer has moved, is in none of the networks "
                          "(sockets.networks) of this host";
  note(moved.remote, "closed: it has moved there, and is in none of sockets.networks any more");
  const auto passive = passive_.find(moved.token);
  if (passive != passive_.end()) {
    host_.send(passive->second.lane, command::CloseSession{moved.token, code, why});
    passive_.erase(passive);
    moved_.erase(moved.token);
  }
  const auto token = tokens_.find(moved.token);
  if (token == tokens_.end()) return;
  const auto peer = peers_.find(token->second);
  close(peer->second, code, why);
  peers_.erase(peer);
}

void Peers::close_unused() {
  for (auto it = moved_.begin(); it != moved_.end();) {
    if (connections_.uses(*it)) {
      ++it;
      continue;
    }
    const auto passive = passive_.find(*it);
    if (passive != passive_.end()) {
      host_.send(passive->second.lane, command::CloseSession{*it, Errc::kClosed, kUnused});
      passive_.erase(passive);
    }
    it = moved_.erase(it);
  }
}

Peers::Settled Peers::on_timer(uint64_t now_ns) {
  Settled settled{.outcome = PingReport::Outcome::kSilent,
                  .why = "no answer to a HELLO within " + print_ns(policy_.probe_ns) +
                         " (sockets.probe of this host)"};
  while (const std::optional<Token> due = probes_.take_due(now_ns)) {
    const auto token = tokens_.find(*due);
    if (token == tokens_.end()) continue;
    Peer& peer = peers_.at(token->second);
    if (peer.state != Peer::State::kAsked) continue;
    for (Waiting& waiting : silence(peer, now_ns)) settled.waiting.push_back(std::move(waiting));
  }
  return settled;
}

void Peers::drop_oldest_unproven() {
  const auto oldest = std::find_if(passive_.begin(), passive_.end(),
                                   [](const auto& entry) { return !entry.second.opened; });
  host_.send(oldest->second.lane,
             command::CloseSession{oldest->first, Errc::kLimit, "too many that show nothing"});
  passive_.erase(oldest);
}

size_t Peers::open_of_others() const {
  return static_cast<size_t>(std::count_if(passive_.begin(), passive_.end(), [](const auto& entry) {
    return entry.second.opened && !entry.second.own;
  }));
}

size_t Peers::open_of(const IpAddress& ip) const {
  return static_cast<size_t>(std::count_if(
      passive_.begin(), passive_.end(),
      [&ip](const auto& entry) { return entry.second.opened && entry.second.remote.ip == ip; }));
}

void Peers::on_hello(LaneId lane, const event::HelloReceived& hello) {
  const auto refuse = [&](Errc code, const std::string& text) {
    host_.send(lane, command::Refuse{hello.hello, code, text});
  };
  if (!policy_.serve) return refuse(Errc::kUnsupported, "this host serves no sockets");
  if (!policy_.others) {
    note(hello.remote, std::string("refused: ") + kCarriesNoOthers);
    return refuse(Errc::kPermission, kCarriesNoOthers);
  }
  if (!verify(policy_.key, hello.body)) {
    note(hello.remote, "refused: it does not prove the secret (sockets.secret) of this host");
    return refuse(Errc::kWrongSecret, "the secret of sockets (sockets.secret) is another here");
  }
  if (!may_speak(policy_, hello.remote.ip)) {
    note(hello.remote, "refused: it is in none of sockets.networks");
    return refuse(Errc::kPermission, hello.remote.ip.to_string() +
                                         " is in none of the networks (sockets.networks) "
                                         "of this host");
  }
  if ((hello.body.features & wire::kFeatureStreams) == 0) {
    return refuse(Errc::kUnsupported, "sockets need byte streams");
  }
  if (Status agreed = check_features(hello.remote, hello.body.features); !agreed) {
    return refuse(agreed.error().code, agreed.error().message);
  }
  if (open_of_others() >= policy_.max_hosts) {
    note(hello.remote, "refused: sockets.max_hosts = " + std::to_string(policy_.max_hosts) +
                           " sessions of other hosts are open");
    return refuse(Errc::kLimit, "this host has sockets.max_hosts = " +
                                    std::to_string(policy_.max_hosts) + " sessions of others");
  }
  if (open_of(hello.remote.ip) >= kMostOfAddress) {
    const std::string many = std::to_string(kMostOfAddress) + " sessions of its address are open";
    note(hello.remote, "refused: " + many);
    return refuse(Errc::kLimit, many);
  }
  const auto unproven = std::count_if(passive_.begin(), passive_.end(),
                                      [](const auto& entry) { return !entry.second.opened; });
  if (static_cast<size_t>(unproven) >= kMostUnproven) drop_oldest_unproven();
  const Token token = next_token();
  passive_[token] = {lane, hello.remote, hello.body.incarnation};
  wire::HelloAck answer;
  answer.features = own_features();
  answer.incarnation = life_;
  answer.nonce = draw_nonce(host_.random);
  answer.proof = prove(policy_.key, hello.body.nonce, answer);
  host_.send(lane, command::Accept{hello.hello, token, kNoJob, answer, policy_.key});
}

uint32_t Peers::own_features() const {
  return wire::kFeatureStreams | wire::kFeatureResets | wire::kFeatureParts | wire::kFeatureMoves |
         wire::kFeatureConfirmation | own_seals();
}

uint32_t Peers::own_seals() const {
  return seal_features(policy_.authentication, kSocketService, policy_.key);
}

Status Peers::check_features(const Endpoint& remote, uint32_t features) {
  Status agreed = check_seals(policy_.authentication, kSocketService, policy_.key, features);
  if (!agreed) {
    note(remote, std::string("refused: its frames are not ") +
                     (policy_.authentication == Authentication::kEncrypted ? "encrypted"
                                                                           : "authenticated") +
                     " (sockets.authentication)");
  } else if (policy_.authentication == Authentication::kEncrypted && own_seals() == 0) {
    if (unauthenticated_.size() < policy_.max_hosts && unauthenticated_.insert(remote.ip).second) {
      note(remote, "connections are not encrypted: there is no sockets.secret");
    }
  } else if ((own_seals() & ~features & wire::kFeatureSeals) != 0 &&
             unauthenticated_.size() < policy_.max_hosts &&
             unauthenticated_.insert(remote.ip).second) {
    note(remote,
         "its frames are not authenticated: its release is older, or it has them off "
         "(sockets.authentication)");
  }
  return agreed;
}

void Peers::drop_waiting(SocketProgram program) {
  for (auto& [ip, peer] : peers_) {
    std::erase_if(peer.waiting,
                  [program](const Waiting& one) { return one.asker.program == program; });
  }
}

size_t Peers::session_count() const {
  const auto open = std::count_if(peers_.begin(), peers_.end(), [](const auto& entry) {
    return entry.second.state == Peer::State::kOpen;
  });
  const auto opened = std::count_if(passive_.begin(), passive_.end(),
                                    [](const auto& entry) { return entry.second.opened; });
  return static_cast<size_t>(open + opened);
}

bool Peers::has_waiting() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const auto& entry) { return !entry.second.waiting.empty(); });
}

}  // namespace mercury::sockets
