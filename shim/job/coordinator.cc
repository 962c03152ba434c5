#include "shim/job/coordinator.h"

#include <algorithm>
#include <iterator>

namespace mercury {
namespace {

// A member that was told its last word closes its session; one that cannot is closed after this.
constexpr uint64_t kPartingNs = 5'000'000'000;
// Room for all members of the job and its applicants; who joins in vain, again and again, takes
// no more of the engines' sessions.
constexpr size_t kLeastParting = 768;
// How long a stranger may have this host wait for members.
constexpr uint64_t kMostOpenJobMs = 3'600'000;
// Members have so much of their time limits to connect.
constexpr uint64_t kConnectNs = 2'000'000'000;

bool contains(const std::vector<Endpoint>& list, const Endpoint& endpoint) {
  return std::find(list.begin(), list.end(), endpoint) != list.end();
}

std::string sizes_text(const message::Join& join) {
  return std::to_string(join.workers) + " workers, " + std::to_string(join.servers) + " servers";
}

// Whether what this worker says of a term that all workers say is its word.
bool says(const message::Join& join, const Term& term) {
  return join.role == Role::kWorker && term.said_by == SaidBy::kWorkers &&
         (join.features & term.counts_with) == term.counts_with;
}

}  // namespace

Coordinator::Coordinator(JobContext& context, uint64_t number, std::string job, const JobKey& key,
                         bool open)
    : context_(context), number_(number), job_(std::move(job)), key_(key), open_(open) {}

// --- gathering -------------------------------------------------------------------------------

void Coordinator::join(LinkId link, message::Join join, uint64_t now_ns) {
  if (phase_ == Phase::kRunning && (shape_->terms.rejoin_ms > 0 || shape_->terms.quorum > 0)) {
    return rejoin(link, std::move(join), now_ns);
  }
  Status fits = phase_ == Phase::kGathering
                    ? Status()
                    : Status(Error(Errc::kRankTaken, "job '" + job_ + "' has all its members"));
  if (fits && shape_) fits = check_shape(join);
  const bool first = !shape_;
  if (fits && first) shape_ = join;
  if (fits) adopt_terms(join);
  if (fits) fits = check_rank(join);
  if (may_be_next_life(join, fits)) {
    const uint64_t deadline_ns = std::min(time_limit_ns(join, now_ns), now_ns + last_life_ns());
    applicants_.push_back({link, std::move(join), deadline_ns, now_ns});
    return;
  }
  if (!fits) {
    if (Invitation* invitation = invitation_of(link)) unlink(*invitation);  // not again
    note_refused(join, fits.error());
    return dismiss(link, message::Fail{fits.error().code, fits.error().message}, now_ns);
  }
  Seat seat;
  seat.link = link;
  seat.deadline_ns = time_limit_ns(join, now_ns);
  if (Invitation* invitation = invitation_of(link)) invitation->failures = 0;
  seat.join = std::move(join);
  seat.join.rendezvous.clear();  // shape_ has the job's
  add_seat(std::move(seat));

  if (first) invite_servers(now_ns);
  begin_if_complete(now_ns);
}

// Whether it takes the place of a worker that is lost, perhaps, which nobody knows yet.
bool Coordinator::may_be_next_life(const message::Join& join, const Status& fits) const {
  return !fits && fits.error().code == Errc::kRankTaken && phase_ == Phase::kGathering &&
         join.role == Role::kWorker && join.rank >= 0 && shape_->terms.rejoin_ms > 0 &&
         applicants_.size() < kMaxApplicants;
}

// So long the next life of a worker waits for its last one's end to be noticed, before a job has
// begun.
uint64_t Coordinator::last_life_ns() const {
  return context_.policy.peer_timeout_ns + context_.policy.peer_timeout_ns / 2;
}

// A worker may be lost whose next life waits, and nobody would be ready without it: so long the
// others wait, too, however many come that say they are one.
void Coordinator::begin_if_complete(uint64_t now_ns) {
  if (phase_ != Phase::kGathering || !shape_) return;
  if (seats_.size() < size_t{shape_->workers} + shape_->servers) return;
  if (!applicants_.empty()) {
    if (begins_by_ns_ == kNever) begins_by_ns_ = now_ns + last_life_ns();
    for (const Seat& seat : seats_) {
      begins_by_ns_ =
          std::min(begins_by_ns_, seat.deadline_ns - std::min(seat.deadline_ns, kConnectNs));
    }
    if (now_ns < begins_by_ns_) return;
    for (Applicant& applicant : applicants_) applicant.deadline_ns = now_ns;
    return refuse_late_applicants(now_ns);  // and comes back here
  }
  if (Status known = check_servers(); !known) {
    return fail(known.error().code, known.error().message, now_ns);
  }
  send_roster();
}

// The first worker that knows a term fixes it for all; until then it is as a server has it, which
// nobody follows.
void Coordinator::adopt_terms(const message::Join& join) {
  for (const Term& term : job_terms()) {
    if (!says(join, term) || was_said(term)) continue;
    said_.push_back(&term);
    copy_term(term, join.terms, shape_->terms);
  }
}

uint64_t Coordinator::time_limit_ns(const message::Join& join, uint64_t now_ns) const {
  uint64_t limit_ms = join.timeout_ms;
  if (open_ && (limit_ms == 0 || limit_ms > kMostOpenJobMs)) limit_ms = kMostOpenJobMs;
  return limit_ms == 0 ? kNever : now_ns + limit_ms * 1'000'000;
}

Status Coordinator::check_servers() const {
  for (const Seat& seat : seats_) {
    const TermsApart unknown = apart(shape_->terms, JobTerms(), [&](const Term& term) {
      return seat.join.role == Role::kServer && (term.servers_need & ~seat.join.features) != 0;
    });
    if (unknown.first.empty()) continue;
    return Error(Errc::kVersionMismatch,
                 who(seat) + " is of a version that does not know " + unknown.first);
  }
  return {};
}

Status Coordinator::check_shape(const message::Join& join) const {
  const std::string opened = "job '" + job_ + "' was opened with ";
  if (join.workers != shape_->workers || join.servers != shape_->servers) {
    return Error(Errc::kWrongSizes,
                 opened + sizes_text(*shape_) + ", this member asks for " + sizes_text(join));
  }
  const TermsApart terms = apart(shape_->terms, join.terms, [&](const Term& term) {
    // A worker that returns may have heard of the policy that the job changed to.
    if (phase_ == Phase::kRunning && same(term, roster_.terms, join.terms)) return false;
    return term.said_by == SaidBy::kMembers || (says(join, term) && was_said(term));
  });
  if (terms.first.empty()) return {};
  return Error(Errc::kWrongSizes,
               opened + terms.first + ", this " + name_of(join.role) + " asks for " + terms.second);
}

// May set the rank of a server that did not ask for one: a host that the rendezvous list names has
// its place in it.
Status Coordinator::check_rank(message::Join& join) const {
  const auto taken = [&](int rank) {
    return std::find_if(seats_.begin(), seats_.end(), [&](const Seat& seat) {
      return seat.join.role == join.role && seat.join.rank == rank;
    });
  };
  const uint32_t there = seats_of_[static_cast<size_t>(join.role)];
  if (there == total(join.role)) {
    return Error(Errc::kRankTaken, "all " + std::to_string(there) + " " + name_of(join.role) +
                                       "s of job '" + job_ + "' are there already");
  }
  if (join.rank >= 0) {
    const auto seat = taken(join.rank);
    if (seat == seats_.end()) return {};
    return Error(Errc::kRankTaken, who(*seat) + " of job '" + job_ + "' is there already");
  }
  if (join.role == Role::kServer) {
    const size_t named = std::min<size_t>(shape_->rendezvous.size(), shape_->servers);
    for (size_t i = 0; i < named; ++i) {
      const int rank = static_cast<int>(i);
      if (contains(join.lanes, shape_->rendezvous[i]) && taken(rank) == seats_.end()) {
        join.rank = rank;
        break;
      }
    }
  }
  return {};
}

void Coordinator::send_roster() {
  phase_ = Phase::kConnecting;
  drop_invitations(Error(Errc::kClosed, "the job has all its servers"));
  const std::vector<int> ranks = ranks_of_seats();
  message::Roster roster;
  roster.terms = shape_->terms;
  copy_terms(SaidBy::kWorker, JobTerms(), roster.terms);
  roster.workers.resize(shape_->workers);
  roster.servers.resize(shape_->servers);
  roster.server_features = ~uint32_t{0};
  size_t lanes = most_lanes(shape_->servers);
  for (size_t i = 0; i < seats_.size(); ++i) {
    message::Join& member = seats_[i].join;
    member.rank = ranks[i];
    const auto rank = static_cast<size_t>(ranks[i]);
    if (member.role == Role::kWorker) {
      roster.workers[rank] = {member.incarnation, member.lanes.front()};
      keep_largest(member.terms, roster.terms);
    } else {
      roster.servers[rank] = {member.incarnation, member.lanes};
      roster.server_features &= member.features;
      lanes = std::min(lanes, member.lanes.size());
    }
  }
  for (auto& server : roster.servers) server.lanes.resize(lanes);
  roster_ = std::move(roster);
  const bool all_know = std::all_of(seats_.begin(), seats_.end(), [](const Seat& seat) {
    return (seat.join.features & kKnowsFirstShards) != 0;
  });
  if (all_know) turn_.emplace(roster_.shards());
  for (const Seat& seat : seats_) send_roster_to(seat);
}

void Coordinator::send_roster_to(const Seat& seat) {
  roster_.rank = static_cast<uint16_t>(seat.join.rank);
  roster_.frame_bytes = seat.returns_to ? static_cast<uint16_t>(needed_payload()) : uint16_t{0};
  context_.links.send(seat.link, roster_);
}

// --- the end ---------------------------------------------------------------------------------

void Coordinator::dismiss(LinkId link, const Message& last_word, uint64_t now_ns) {
  context_.links.send(link, last_word);
  const size_t members = shape_ ? size_t{shape_->workers} + shape_->servers : 0;
  if (parting_.size() >= std::max(kLeastParting, members + kMaxApplicants)) {
    context_.links.drop(parting_.front().first, Error(Errc::kClosed, "others came since"));
    parting_.erase(parting_.begin());
  }
  parting_.emplace_back(link, now_ns + kPartingNs);
}

void Coordinator::fail(Errc code, const std::string& text, uint64_t now_ns) {
  if (ended()) return;
  phase_ = Phase::kEnded;
  drop_invitations(Error(code, text));
  for (const Seat& seat : seats_) dismiss(seat.link, message::Fail{code, text}, now_ns);
  for (const Applicant& a : applicants_) dismiss(a.link, message::Fail{code, text}, now_ns);
  seats_.clear();
  applicants_.clear();
  vacancies_.clear();
  fencing_.clear();
  declarations_.clear();
}

// --- events ----------------------------------------------------------------------------------

void Coordinator::on_closed(LinkId link, const Error& why, uint64_t now_ns) {
  std::erase_if(parting_, [&](const auto& parting) { return parting.first == link; });
  if (std::erase_if(applicants_, [&](const Applicant& a) { return a.link == link; }) > 0) {
    return begin_if_complete(now_ns);
  }
  if (Seat* seat = seat_of(link)) return seat_closed(*seat, why, now_ns);
  if (Invitation* invitation = invitation_of(link)) invitation_closed(*invitation, why, now_ns);
}

void Coordinator::seat_closed(Seat& seat, const Error& why, uint64_t now_ns) {
  if (phase_ != Phase::kGathering) {
    // kClosed without a Leave before it: the member's host was stopped.
    const Errc code = why.code == Errc::kClosed ? Errc::kPeerLeft : why.code;
    std::string text = said_of(who(seat), why.message);
    if (seat.join.role == Role::kWorker) text += refused_text(seat);
    if (seat.join.role == Role::kWorker && survives_loss(seat)) {
      return vacate(seat, Error(code, text), now_ns);
    }
    erase_seat(seat.link);
    return fail(code, text, now_ns);
  }
  // Nothing has begun: its place is free again, for a second attempt within the time limit.
  if (Invitation* invitation = invitation_of(seat.link)) {
    invite_again(*invitation, now_ns);
  }
  erase_seat(seat.link);
  begins_by_ns_ = kNever;
  take_in_next_life(now_ns);
  if (std::all_of(seats_.begin(), seats_.end(), [](const Seat& s) { return s.join.served; })) {
    fail(Errc::kPeerLeft, "all programs left before the job began", now_ns);
  }
}

// One whose place is free since a worker was lost, if there is one.
void Coordinator::take_in_next_life(uint64_t now_ns) {
  const auto next = std::find_if(applicants_.begin(), applicants_.end(), [&](Applicant& applicant) {
    return check_rank(applicant.join).ok();
  });
  if (next == applicants_.end()) return;
  Applicant applicant = std::move(*next);
  applicants_.erase(next);
  if (uint64_t& limit_ms = applicant.join.timeout_ms; limit_ms > 0) {  // its own, since it came
    const uint64_t waited_ms = (now_ns - applicant.since_ns) / 1'000'000;
    limit_ms = limit_ms > waited_ms ? limit_ms - waited_ms : 1;
  }
  join(applicant.link, std::move(applicant.join), now_ns);
}

// Their ranks' workers are there.
void Coordinator::refuse_late_applicants(uint64_t now_ns) {
  const auto late = std::stable_partition(
      applicants_.begin(), applicants_.end(),
      [now_ns](const Applicant& applicant) { return applicant.deadline_ns > now_ns; });
  if (late == applicants_.end()) return;
  std::vector<Applicant> refused(std::make_move_iterator(late),
                                 std::make_move_iterator(applicants_.end()));
  applicants_.erase(late, applicants_.end());
  for (Applicant& applicant : refused) {
    const Status taken = check_rank(applicant.join);
    const Error why = taken ? Error(Errc::kTimedOut, "its time limit passed") : taken.error();
    note_refused(applicant.join, why);
    dismiss(applicant.link, message::Fail{why.code, why.message}, now_ns);
  }
  begin_if_complete(now_ns);
}

void Coordinator::on_timer(uint64_t now_ns) {
  for (auto& [link, deadline_ns] : parting_) {
    if (deadline_ns <= now_ns) {
      context_.links.drop(link, Error(Errc::kClosed, "the job has ended"));
      link = 0;
    }
  }
  std::erase_if(parting_, [](const auto& parting) { return parting.first == 0; });
  invite_due(now_ns);
  if (phase_ != Phase::kGathering && phase_ != Phase::kConnecting) return on_rejoin_timer(now_ns);
  refuse_late_applicants(now_ns);
  begin_if_complete(now_ns);
  for (const Seat& seat : seats_) {
    if (seat.deadline_ns > now_ns) continue;
    const std::string what = " when the time limit passed: " + missing();
    if (phase_ == Phase::kConnecting) return fail(Errc::kTimedOut, "not connected" + what, now_ns);
    if (invitations_lack_room(now_ns)) {
      const Error why = context_.no_room_for_open_jobs();
      return fail(why.code, "missing" + what + "; " + why.message, now_ns);
    }
    return fail(Errc::kMissingMembers, "missing" + what, now_ns);
  }
}

uint64_t Coordinator::next_deadline_ns() const {
  uint64_t next = kNever;
  for (const auto& parting : parting_) next = std::min(next, parting.second);
  if (!invitations_due_.empty() && may_invite()) {  // else the end of another one is waited for
    next = std::min(next, invitations_due_.begin()->first);
  }
  for (const Vacancy& vacancy : vacancies_) next = std::min(next, vacancy.deadline_ns);
  for (const Applicant& applicant : applicants_) next = std::min(next, applicant.deadline_ns);
  if (phase_ == Phase::kGathering) next = std::min(next, begins_by_ns_);
  for (const Seat& seat : seats_) {
    if (phase_ != Phase::kRunning || seat.returns_to) next = std::min(next, seat.deadline_ns);
    next = std::min(next, let_in_by_ns(seat));
  }
  return next;
}

}  // namespace mercury
