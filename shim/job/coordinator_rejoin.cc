// Coordinator: workers that are lost and come back, in jobs that wait for them (rejoin_ms).
//
// A lost worker leaves a vacancy with a deadline. Its next life joins under the same rank: the
// servers fence the last life off and say which rounds they are in, the other workers push again
// what has no sum yet, and the new life gets roster, start and the rounds of what it declares.
#include <algorithm>

#include "shim/job/coordinator.h"

namespace mercury {
namespace {

constexpr size_t kNamedWorkers = 8;  // in a text of kMaxText; the rest are counted
// A next life that came in time has as long again to be let in; this long if that is shorter.
constexpr uint64_t kLetInNs = 10'000'000'000;

}  // namespace

size_t Coordinator::workers_there() const {
  return static_cast<size_t>(std::count_if(seats_.begin(), seats_.end(), [](const Seat& seat) {
    return seat.join.role == Role::kWorker && !seat.returns_to;
  }));
}

bool Coordinator::survives_loss(const Seat& worker) const {
  if (phase_ != Phase::kRunning || ending_) return false;
  const size_t left = workers_there() - (worker.returns_to ? 0 : 1);
  return shape_->terms.rejoin_ms > 0 || (shape_->terms.quorum > 0 && left >= shape_->terms.quorum);
}

void Coordinator::limit_vacancies(uint64_t now_ns) {
  const bool waited_for = !has_quorum();
  const auto limit = [&](Vacancy& vacancy) {
    if (!waited_for) {
      vacancy.deadline_ns = kNever;
    } else if (vacancy.deadline_ns == kNever) {
      vacancy.deadline_ns = now_ns + to_ns(shape_->terms.rejoin_ms);
    }
  };
  for (Vacancy& vacancy : vacancies_) limit(vacancy);
  for (Seat& seat : seats_) {
    if (seat.returns_to) limit(*seat.returns_to);
  }
}

void Coordinator::vacate(const Seat& seat, const Error& why, uint64_t now_ns) {
  Vacancy vacancy{rank_of(seat), seat.join.lanes.front(), why, now_ns, kNever};
  // A next life that dies before it starts changes nothing about what the others wait for.
  if (seat.returns_to) vacancy = *seat.returns_to;
  if (shape_->terms.quorum > 0) withdraw(seat);
  refusals_.erase(rank_of(seat));  // of a life that has ended
  const LinkId link = seat.link;
  const bool in_work = !fencing_.empty() && fencing_.front() == link && !awaited_fence_.empty();
  if (!in_work) std::erase(fencing_, link);  // else its servers still answer
  erase_seat(link);
  vacancies_.push_back(std::move(vacancy));
  limit_vacancies(now_ns);
  context_.note(NoticeKind::kTrouble, job_,
                has_quorum() ? "goes on without " + why.message
                             : "waits " + std::to_string(shape_->terms.rejoin_ms) +
                                   " ms for the return of " + why.message);
  for (size_t i = 0; i < applicants_.size(); ++i) {
    if (!take_vacancy(applicants_[i].link, applicants_[i].join, now_ns)) continue;
    applicants_.erase(applicants_.begin() + static_cast<std::ptrdiff_t>(i));
    return begin_fence();
  }
}

// The servers expect nothing of it until it is replaced.
void Coordinator::withdraw(const Seat& worker) {
  const message::Lost withdrawn{rank_of(worker), worker.join.incarnation};
  for (const Seat& server : seats_) {
    if (server.join.role == Role::kServer) context_.links.send(server.link, withdrawn);
  }
}

// It is told why, and its place is free.
void Coordinator::unseat(Seat& seat, const Error& why, uint64_t now_ns) {
  const Error told(why.code, who(seat) + ": " + why.message);
  dismiss(seat.link, message::Fail{told.code, told.message}, now_ns);
  vacate(seat, told, now_ns);
}

void Coordinator::lost(const message::Lost& message, const Seat& server, uint64_t now_ns) {
  const auto seat = std::find_if(seats_.begin(), seats_.end(), [&](const Seat& s) {
    return s.join.role == Role::kWorker && rank_of(s) == message.rank &&
           s.join.incarnation == message.incarnation;
  });
  if (seat == seats_.end()) return;  // it is known already
  const Error why(Errc::kPeerLost, who(server) + " hears nothing from it");
  if (survives_loss(*seat)) return unseat(*seat, why, now_ns);
  fail(why.code, who(*seat) + ": " + why.message, now_ns);
}

// Who does not push counts as lost. Not while a lost worker is waited for: who waits for its part
// of one tensor may not come to push another.
void Coordinator::stalled(const message::Stalled& message, uint64_t now_ns) {
  if (phase_ != Phase::kRunning || (!ending_ && !has_quorum())) return;
  std::vector<LinkId> links;
  std::string names;
  for (const auto& row : message.workers) {
    const auto seat = std::find_if(seats_.begin(), seats_.end(), [&](const Seat& s) {
      return s.join.role == Role::kWorker && rank_of(s) == row.rank &&
             s.join.incarnation == row.incarnation && !s.returns_to;
    });
    if (seat == seats_.end() || std::find(links.begin(), links.end(), seat->link) != links.end()) {
      continue;
    }
    if (links.size() < kNamedWorkers) {
      names += (links.empty() ? "" : ", ") + who(*seat) + refused_text(*seat);
    }
    links.push_back(seat->link);
  }
  if (links.empty()) return;
  if (links.size() > kNamedWorkers) {
    names += " and " + std::to_string(links.size() - kNamedWorkers) + " more";
  }
  const Error why(Errc::kMissingMembers, "no push of tensor " +
                                             std::to_string(message.at.tensor.value) +
                                             " in round " + std::to_string(message.at.round.value) +
                                             " for " + std::to_string(message.waited_ms) +
                                             " ms since others pushed it (stall_timeout_ms)");
  const bool enough =
      shape_->terms.quorum > 0 && workers_there() - links.size() >= shape_->terms.quorum;
  if (ending_ || (!enough && shape_->terms.rejoin_ms == 0)) {
    return fail(why.code, names + ": " + why.message, now_ns);
  }
  for (const LinkId link : links) {
    if (Seat* seat = seat_of(link)) unseat(*seat, why, now_ns);
  }
}

void Coordinator::rejoin(LinkId link, message::Join join, uint64_t now_ns) {
  if (ending_) return dismiss(link, job_is_ending(), now_ns);
  Status fits;
  if (join.role == Role::kServer) {
    fits = Error(Errc::kRankTaken, "job '" + job_ + "' has all its servers");
  } else if (applicants_.size() >= kMaxApplicants) {
    fits = Error(Errc::kAgain, "too many workers wait for places in job '" + job_ + "'");
  } else {
    fits = check_shape(join);
  }
  if (fits && turn_ && (join.features & kKnowsFirstShards) == 0) {
    fits =
        Error(Errc::kVersionMismatch, "it is of a version that does not know how tensors of job '" +
                                          job_ + "' are divided among its servers");
  }
  if (!fits) return dismiss(link, message::Fail{fits.error().code, fits.error().message}, now_ns);
  if (take_vacancy(link, join, now_ns)) return begin_fence();
  // Its last life may be dead without that having been noticed yet.
  const uint64_t deadline_ns = join.timeout_ms > 0 ? time_limit_ns(join, now_ns) : now_ns;
  applicants_.push_back({link, std::move(join), deadline_ns});
}

const Coordinator::Vacancy* Coordinator::any_vacancy() const {
  if (!vacancies_.empty()) return &vacancies_.front();
  const auto seat = std::find_if(seats_.begin(), seats_.end(),
                                 [](const Seat& s) { return s.returns_to.has_value(); });
  return seat == seats_.end() ? nullptr : &*seat->returns_to;
}

bool Coordinator::take_vacancy(LinkId link, message::Join& join, uint64_t now_ns) {
  const auto vacancy = std::min_element(vacancies_.begin(), vacancies_.end(),
                                        [&](const Vacancy& a, const Vacancy& b) {
                                          const bool a_asked = a.rank.value == join.rank;
                                          const bool b_asked = b.rank.value == join.rank;
                                          return a_asked != b_asked ? a_asked : a.rank < b.rank;
                                        });
  if (vacancy == vacancies_.end() || (join.rank >= 0 && vacancy->rank.value != join.rank)) {
    return false;
  }
  Seat seat;
  seat.link = link;
  seat.deadline_ns = time_limit_ns(join, now_ns);
  seat.join = std::move(join);
  seat.join.rank = vacancy->rank.value;
  seat.came_back = true;
  seat.returns_to = *vacancy;
  vacancies_.erase(vacancy);
  add_seat(std::move(seat));
  fencing_.push_back(link);
  return true;
}

// One at a time, so that what the servers say of their rounds belongs to one worker.
void Coordinator::begin_fence() {
  while (awaited_fence_.empty() && !fencing_.empty()) {
    const Seat* seat = seat_of(fencing_.front());
    if (!seat) {  // gone meanwhile
      fencing_.pop_front();
      continue;
    }
    rounds_.clear();
    const Rank rank = rank_of(*seat);
    roster_.workers[rank.value] = {seat->join.incarnation, seat->join.lanes.front()};
    const message::Replace replace{rank, seat->join.incarnation, seat->join.lanes.front()};
    for (const Seat& server : seats_) {
      if (server.join.role != Role::kServer) continue;
      context_.links.send(server.link, replace);
      awaited_fence_.push_back(server.link);
    }
  }
}

void Coordinator::fenced(LinkId server, const message::Replaced& message, uint64_t now_ns) {
  for (const auto& row : message.rounds) note(rounds_, row.tensor, row.round);
  if (!message.last) return;
  std::erase(awaited_fence_, server);
  if (!awaited_fence_.empty()) return;
  Seat* const seat = seat_of(fencing_.front());
  fencing_.pop_front();
  // Whether or not it is still there: the servers have taken its last life's part out.
  for (const Seat& other : seats_) {
    if (other.join.role == Role::kWorker && !other.returns_to) {
      context_.links.send(other.link, message::Refill{});
    }
  }
  if (seat) {
    if (!progressed(*seat->returns_to, now_ns)) return;
    // It declares while the next one is being fenced off.
    for (const auto& [tensor, open] : rounds_) seat->rounds[tensor] = open.first();
    send_roster_to(*seat);
  }
  begin_fence();
}

// A worker that comes back and is lost again, without one round's end between, must not keep the
// others waiting for ever. False: the job has failed.
bool Coordinator::progressed(const Vacancy& vacancy, uint64_t now_ns) {
  uint64_t progress = 0;
  for (const auto& [tensor, open] : rounds_) progress += open.first().value;
  if (last_progress_ != progress || (shape_->terms.quorum > 0 && has_quorum())) {
    last_progress_ = progress;
    first_lost_ns_.clear();
  }
  const auto [first, fresh] = first_lost_ns_.emplace(vacancy.rank, vacancy.lost_ns);
  if (fresh || now_ns <= first->second + to_ns(shape_->terms.rejoin_ms)) return true;
  fail(vacancy.why.code, vacancy.why.message + " (no round was completed since it was lost before)",
       now_ns);
  return false;
}

void Coordinator::started_again(Seat& seat, const message::Ready& message, uint64_t now_ns) {
  const uint32_t carried = std::max(message.max_udp_payload, message.in_parts);
  if (carried < needed_payload()) {
    return unseat(seat,
                  Error(Errc::kUnsupported, "its path carries " + std::to_string(carried) +
                                                " bytes, the job's frames have up to " +
                                                std::to_string(needed_payload())),
                  now_ns);
  }
  seat.ready = true;
  seat.returns_to.reset();
  seat.deadline_ns = kNever;
  context_.links.send(seat.link, message::Start{chunk_bytes_});
  context_.note(NoticeKind::kJob, job_, "has " + who(seat) + " back");
  limit_vacancies(now_ns);
}

// Workers leave in order: nobody who comes back would find enough others to exchange with. A place
// that somebody waits for fails the job.
void Coordinator::end_rejoining(uint64_t now_ns) {
  const Vacancy* vacancy = any_vacancy();
  if (vacancy && vacancy->deadline_ns != kNever) {
    const Error why = vacancy->why;
    return fail(why.code, why.message, now_ns);
  }
  vacancies_.clear();
  for (const Applicant& applicant : applicants_) dismiss(applicant.link, job_is_ending(), now_ns);
  applicants_.clear();
  for (const Seat& seat : seats_) {
    if (!seat.returns_to) continue;
    dismiss(seat.link, job_is_ending(), now_ns);
    withdraw(seat);
  }
  std::erase_if(seats_, [](const Seat& seat) { return seat.returns_to.has_value(); });
  index_seats();
}

uint64_t Coordinator::let_in_by_ns(const Seat& seat) const {
  if (!seat.returns_to || seat.returns_to->deadline_ns == kNever) return kNever;
  return seat.returns_to->deadline_ns + std::max(kLetInNs, to_ns(shape_->terms.rejoin_ms));
}

// However long it would wait itself: the others wait for it.
void Coordinator::not_let_in(const Seat& seat, uint64_t now_ns) {
  const Seat* server = awaited_fence_.empty() ? nullptr : seat_of(awaited_fence_.front());
  const Error why = seat.returns_to->why;
  fail(why.code,
       why.message + " (its next life came, and " +
           (server && fences(seat.link) ? who(*server) + " does not answer for it)"
                                        : "did not connect)"),
       now_ns);
}

void Coordinator::on_rejoin_timer(uint64_t now_ns) {
  for (const Vacancy& vacancy : vacancies_) {
    if (vacancy.deadline_ns > now_ns) continue;
    const Error why = vacancy.why;
    return fail(why.code, why.message, now_ns);
  }
  std::erase_if(applicants_, [&](const Applicant& applicant) {
    if (applicant.deadline_ns > now_ns) return false;
    const message::Fail taken{Errc::kRankTaken, "job '" + job_ + "' has all its members"};
    dismiss(applicant.link, taken, now_ns);
    return true;
  });
  for (Seat& seat : seats_) {
    if (let_in_by_ns(seat) <= now_ns) return not_let_in(seat, now_ns);
    if (!seat.returns_to || seat.deadline_ns > now_ns) continue;
    return unseat(seat, Error(Errc::kTimedOut, "not connected when its time limit passed"), now_ns);
  }
}

std::vector<Round> Coordinator::rounds_of(const Declaration& declaration, const Seat& seat) {
  std::vector<Round> rounds;
  for (const message::TensorShape& t : declaration.tensors) {
    const auto known = seat.rounds.find(t.id);
    rounds.push_back(known == seat.rounds.end() ? Round(1) : known->second);
  }
  return rounds;
}

}  // namespace mercury
