// Coordinator: the invitations that it sends to other hosts' daemons, to be servers of the job. A
// member chooses their addresses, so how many are unanswered, how often each is sent and, of
// strangers' jobs, the networks are bounded.
#include <algorithm>

#include "shim/job/coordinator.h"

namespace mercury {
namespace {

// Between attempts to reach a host that is not up yet. Each failure in a row doubles the wait.
constexpr uint64_t kRetryNs = 500'000'000;
constexpr uint32_t kMostDoublings = 4;
// Where each answers that it does not know the job, nobody's silence bounds how many are sent.
// Of strangers' jobs: 64 of them, of 255 hosts each, send 255 a second.
constexpr uint32_t kMostDoublingsOfRefused = 7;

// Of invitations that nobody has answered. Where hosts answer, a round trip makes room for more.
constexpr uint32_t kMostOfOpenJobs = 32;  // some 70 HELLOs a second in all
constexpr uint32_t kMostOfOpenJob = 8;
constexpr uint32_t kMostOfOthers = 256;  // a quarter of the sessions that an engine has by default
constexpr uint32_t kMostOfOther = 64;

}  // namespace

void Coordinator::invite_servers(uint64_t now_ns) {
  if (!context_.policy.serve || shape_->rendezvous.size() != shape_->servers) return;
  const std::vector<Endpoint>& here = context_.host.lanes;
  for (uint16_t rank = 1; rank < shape_->servers; ++rank) {
    const Endpoint& address = shape_->rendezvous[rank];
    if (std::find(here.begin(), here.end(), address) != here.end()) continue;
    if (open_ && !context_.may_invite(address.ip)) continue;  // a program there may still join
    Invitation invitation;
    invitation.rank = rank;
    invitation.address = address;
    invitations_.push_back(invitation);
    set_retry(invitations_.back(), now_ns);
  }
  invite_due(now_ns);
}

bool Coordinator::may_invite() const {
  if (!open_) return unanswered_ < kMostOfOther && context_.unanswered.others < kMostOfOthers;
  return unanswered_ < kMostOfOpenJob && context_.unanswered.open < kMostOfOpenJobs &&
         context_.has_room_for_open_job(LaneId(0));
}

bool Coordinator::invite_due(uint64_t now_ns) {
  bool invited = false;
  while (!invitations_due_.empty() && invitations_due_.begin()->first <= now_ns && may_invite()) {
    invite(invitations_[invitations_due_.begin()->second]);
    invited = true;
  }
  return invited;
}

bool Coordinator::invitations_lack_room(uint64_t now_ns) const {
  if (!open_ || context_.has_room_for_open_job(LaneId(0))) return false;
  const std::vector<int> ranks = ranks_of_seats();
  const auto is_here = [&](uint16_t rank) {  // by itself, whatever became of its invitation
    for (size_t i = 0; i < seats_.size(); ++i) {
      if (seats_[i].join.role == Role::kServer && ranks[i] == rank) return true;
    }
    return false;
  };
  return std::any_of(invitations_due_.begin(), invitations_due_.upper_bound({now_ns, ~size_t{0}}),
                     [&](const auto& due) { return !is_here(invitations_[due.second].rank); });
}

void Coordinator::invite(Invitation& invitation) {
  wire::Hello hello;
  hello.kind = wire::SessionKind::kControl;
  hello.role = static_cast<uint8_t>(Role::kServer);
  hello.rank = invitation.rank;
  hello.job = job_;
  ++context_.work.invitations_seen;
  set_retry(invitation, kNever);
  invitation.unanswered = true;
  ++unanswered_;
  ++unanswered_of_host();
  invitation.link = context_.links.connect(Link::Owner::kCoordinator, number_, LaneId(0), kNoJob,
                                           invitation.address, hello, key_, open_);
  invitation_at_[invitation.link] = static_cast<size_t>(&invitation - invitations_.data());
}

void Coordinator::set_retry(Invitation& invitation, uint64_t retry_ns) {
  const auto at = static_cast<size_t>(&invitation - invitations_.data());
  if (invitation.retry_ns != kNever) invitations_due_.erase({invitation.retry_ns, at});
  if (retry_ns != kNever) invitations_due_.emplace(retry_ns, at);
  invitation.retry_ns = retry_ns;
}

// Its session is a member's, or has ended.
void Coordinator::unlink(Invitation& invitation) {
  invitation_at_.erase(std::exchange(invitation.link, LinkId(0)));
}

Coordinator::Invitation* Coordinator::invitation_of(LinkId link) {
  const auto found = invitation_at_.find(link);
  if (found == invitation_at_.end()) return nullptr;
  ++context_.work.invitations_seen;
  return &invitations_[found->second];
}

// It was answered, or nobody waits for that any more.
void Coordinator::settle(Invitation& invitation) {
  if (!std::exchange(invitation.unanswered, false)) return;
  --unanswered_;
  --unanswered_of_host();
}

void Coordinator::on_opened(LinkId link) {
  Invitation* invitation = invitation_of(link);
  if (!invitation) return;
  settle(*invitation);
  context_.links.send(
      link, message::Invite{invitation->rank, shape_->workers, shape_->servers, shape_->terms});
}

void Coordinator::invite_again(Invitation& invitation, uint64_t now_ns) {
  const bool seldom = open_ && !invitation.refusal.empty();
  const uint32_t most = seldom ? kMostDoublingsOfRefused : kMostDoublings;
  unlink(invitation);
  set_retry(invitation, now_ns + (kRetryNs << std::min(invitation.failures++, most)));
}

void Coordinator::invitation_closed(Invitation& invitation, const Error& why, uint64_t now_ns) {
  settle(invitation);
  unlink(invitation);
  invitation.refusal.clear();
  if (why.code == Errc::kExists) return;  // a program there joins by itself
  if (is_transient(why.code)) return invite_again(invitation, now_ns);  // that host is not up yet
  if (why.code == Errc::kUnknownJob) {  // its program, which makes it known, may come later
    invitation.refusal = why.message;
    return invite_again(invitation, now_ns);
  }
  // It may be this host's own doing: a route that it lacks.
  fail(why.code,
       "server 0 cannot have " +
           describe(Role::kServer, invitation.rank, shape_->servers, invitation.address) + ": " +
           why.message,
       now_ns);
}

// All: the sessions of those that have brought a Join are the members' from now on.
void Coordinator::drop_invitations(const Error& why) {
  for (Invitation& invitation : invitations_) {
    settle(invitation);
    if (!seat_of(invitation.link)) context_.links.drop(invitation.link, why);
  }
  invitations_.clear();
  invitations_due_.clear();
  invitation_at_.clear();
}

}  // namespace mercury
