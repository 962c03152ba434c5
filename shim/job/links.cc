#include "shim/job/links.h"

#include <algorithm>
#include <utility>

namespace mercury {

LinkId Links::add(Link link) {
  ++last_id_.value;
  if (link.open_job) {
    if (link.lane.value >= open_job_sessions_.size()) {
      open_job_sessions_.resize(size_t{link.lane.value} + 1);
    }
    ++open_job_sessions_[link.lane.value];
  }
  links_.emplace(last_id_, std::move(link));
  return last_id_;
}

void Links::forget(LinkId id) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  if (it->second.open_job) --open_job_sessions_[it->second.lane.value];
  links_.erase(it);
}

uint32_t Links::own_features(const std::string& job, const JobKey& key) const {
  return features_ & (wire::kFeatureRefusals | wire::kFeatureResets | wire::kFeatureParts |
                      wire::kFeatureMoves | wire::kFeatureSourcePorts | wire::kFeatureConfirmation |
                      seal_features(authentication_, job, key));
}

LinkId Links::connect(Link::Owner owner, uint64_t owner_id, LaneId lane, JobSlot job,
                      const Endpoint& remote, wire::Hello hello, const JobKey& key, bool open_job) {
  hello.version_min = versions_.oldest;
  hello.version_max = versions_.newest;
  hello.nonce = draw_nonce(host_.random);
  hello.features |= own_features(hello.job, key);
  hello.proof = prove(key, hello);
  const LinkId id = add({owner, owner_id, lane, 0, true, key, hello.nonce, open_job, hello.job});
  host_.send(lane, command::Connect{id, job, remote, std::move(hello), key});
  return id;
}

LinkId Links::accept(Link::Owner owner, uint64_t owner_id, LaneId lane, JobSlot job,
                     const event::HelloReceived& hello, uint32_t incarnation, const JobKey& key,
                     bool open_job) {
  const wire::Nonce& nonce = hello.body.nonce;
  wire::HelloAck answer;
  answer.features = own_features(hello.body.job, key);
  answer.incarnation = incarnation;
  answer.nonce = draw_nonce(host_.random);
  answer.proof = prove(key, nonce, answer);
  const LinkId id = add({owner, owner_id, lane, 0, false, key, nonce, open_job, hello.body.job});
  host_.send(lane, command::Accept{hello.hello, id, job, answer, key});
  return id;
}

std::pair<LinkId, LinkId> Links::pair(uint64_t member, uint64_t coordinator) {
  const LinkId a = add({Link::Owner::kMember, member, LaneId(), 0, false, {}, {}});
  const LinkId b = add({Link::Owner::kCoordinator, coordinator, LaneId(), a, false, {}, {}});
  links_[a].peer = b;
  return {a, b};
}

Link* Links::find(LinkId id) {
  const auto it = links_.find(id);
  return it == links_.end() ? nullptr : &it->second;
}

bool Links::verify(LinkId id, const wire::HelloAck& answer) {
  const Link* link = find(id);
  if (link && mercury::verify(link->key, link->nonce, answer)) return true;
  drop(id, Error(Errc::kWrongSecret, "the answer does not prove the job's secret"));
  return false;
}

void Links::send(LinkId id, const Message& message) {
  const Link* link = find(id);
  if (!link) return;
  if (link->peer != 0) {
    local_.push_back({link->peer, message});
  } else {
    host_.send(link->lane, command::SendControl{id, encode(message)});
  }
}

void Links::drop(LinkId id, const Error& why) {
  const Link* link = find(id);
  if (!link) return;
  if (link->peer != 0) {
    if (find(link->peer)) local_.push_back({link->peer, why});
  } else {
    host_.send(link->lane,
               command::CloseSession{id, why.code, shortened(why.message, wire::kMaxReason)});
  }
  forget(id);
}

bool Links::take_local(Delivery& out) {
  if (local_.empty()) return false;
  out = std::move(local_.front());
  local_.pop_front();
  return true;
}

Error JobContext::no_room_for_open_jobs() const {
  return Error(Errc::kLimit,
               "open jobs have all sessions of " + host.lanes.front().to_string() +
                   " that they may have, three quarters of engine.max_sessions: list the job "
                   "there under [[job]]");
}

bool JobContext::may_invite(const IpAddress& ip) const {
  if (!policy.networks || (is_loopback(ip) && is_loopback(host.lanes.front().ip))) return true;
  return std::any_of(policy.networks->begin(), policy.networks->end(),
                     [&ip](const IpPrefix& network) { return contains(network, ip); });
}

void JobContext::note(NoticeKind kind, const std::string& job, const std::string& what) const {
  if (!host.notice) return;
  std::string line = "job '" + job + "' " + what;
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  host.notice(kind, line);
}

Status JobContext::check_features(const std::string& job, const JobKey& key, uint32_t features) {
  const Authentication how = policy.authentication;
  if (Status good = check_seals(how, job, key, features); !good) return good;
  constexpr size_t kMostNamed = 1024;
  const uint32_t offered = seal_features(how, job, key) & wire::kFeatureSeals;
  const bool bare = how == Authentication::kEncrypted && offered == 0;
  if ((bare || (offered & ~features) != 0) && unauthenticated.size() < kMostNamed &&
      unauthenticated.insert(job).second) {
    note(NoticeKind::kTrouble, job,
         bare ? "is not encrypted: it has no secret (jobs.authentication)"
              : "has a member whose frames are not authenticated: its release is older, or it has "
                "them off (jobs.authentication)");
  }
  return {};
}

bool is_transient(Errc code) {
  switch (code) {
    case Errc::kAgain:
    case Errc::kTimedOut:
    case Errc::kPeerLost:
    case Errc::kPeerLeft:
    case Errc::kClosed:
    case Errc::kSystem:
      return true;
    default:
      return false;
  }
}

std::string describe(Role role, uint16_t rank, uint16_t total, const Endpoint& address) {
  return std::string(name_of(role)) + " " + std::to_string(rank) + " of " + std::to_string(total) +
         " (" + address.to_string() + ")";
}

std::string said_of(const std::string& who, const std::string& what) {
  return what.starts_with(who) ? what : who + ": " + what;
}

}  // namespace mercury
