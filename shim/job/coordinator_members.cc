// Coordinator: who is who among the members, who is missing, and what operators are shown of them.
#include <algorithm>

#include "shim/job/coordinator.h"

namespace mercury {
namespace {

constexpr size_t kMaxMissingText = 180;  // of the 255 bytes that a REFUSE or CLOSE carries

// `total`: of its role, as it or the job has it.
std::string member_text(const message::Join& join, uint16_t total) {
  const Endpoint& address = join.lanes.front();
  if (join.rank < 0)
    return std::string("a ") + name_of(join.role) + " (" + address.to_string() + ")";
  return describe(join.role, static_cast<uint16_t>(join.rank), total, address);
}

}  // namespace

std::vector<int> Coordinator::ranks_of_seats() const {
  std::vector<int> ranks(seats_.size(), -1);
  for (const Role role : {Role::kWorker, Role::kServer}) {
    std::vector<bool> used(total(role), false);
    for (size_t i = 0; i < seats_.size(); ++i) {
      if (seats_[i].join.role != role || seats_[i].join.rank < 0) continue;
      ranks[i] = seats_[i].join.rank;
      used[static_cast<size_t>(ranks[i])] = true;
    }
    for (size_t i = 0; i < seats_.size(); ++i) {
      if (seats_[i].join.role != role || ranks[i] >= 0) continue;
      const auto free = std::find(used.begin(), used.end(), false);
      ranks[i] = static_cast<int>(free - used.begin());
      *free = true;
    }
  }
  return ranks;
}

// Who is not there, or, when all are, who is not ready.
std::string Coordinator::missing() const {
  const bool gathering = phase_ == Phase::kGathering;
  const std::vector<int> ranks = ranks_of_seats();
  std::string text;
  size_t more = 0;
  for (const Role role : {Role::kWorker, Role::kServer}) {
    for (uint16_t rank = 0; rank < total(role); ++rank) {
      const Seat* seat = nullptr;
      for (size_t i = 0; i < seats_.size(); ++i) {
        if (seats_[i].join.role == role && ranks[i] == rank) seat = &seats_[i];
      }
      if (gathering ? seat != nullptr : seat->ready) continue;
      std::string name = std::string(name_of(role)) + " " + std::to_string(rank) + " of " +
                         std::to_string(total(role));
      if (seat) {
        name = who(*seat);
      } else if (role == Role::kServer && rank < shape_->rendezvous.size()) {
        const Endpoint& address = shape_->rendezvous[rank];
        const bool uninvited = gathering && open_ && !context_.may_invite(address.ip);
        name += " (" + address.to_string() +
                (uninvited ? ", not invited: in none of jobs.networks)" : ")");
      }
      if (text.size() + name.size() > kMaxMissingText) {
        ++more;
      } else {
        text += (text.empty() ? "" : ", ") + name;
      }
    }
  }
  if (more > 0) text += " and " + std::to_string(more) + " more";
  return text + refused_invitation() + (gathering ? refused_member_ : std::string());
}

// Whoever waits for those that are missing is told, too: a member that was started with another
// job's size, or twice, is why they are.
void Coordinator::note_refused(const message::Join& join, const Error& why) {
  if (phase_ != Phase::kGathering || !refused_member_.empty()) return;
  const uint16_t total = join.role == Role::kWorker ? join.workers : join.servers;
  refused_member_ = "; " + member_text(join, total) + " was refused: " + why.message;
}

std::string Coordinator::refused_invitation() const {
  for (const Invitation& invitation : invitations_) {
    if (invitation.refusal.empty()) continue;
    return "; " + invitation.address.to_string() + " was invited and says: " + invitation.refusal;
  }
  return {};
}

std::vector<std::string> Coordinator::members() const {
  std::vector<std::string> lines;
  if (!shape_) return lines;
  const std::vector<int> ranks = ranks_of_seats();
  for (const Role role : {Role::kWorker, Role::kServer}) {
    const size_t begin = lines.size();
    for (uint16_t rank = 0; rank < total(role); ++rank) {
      lines.push_back(std::string(name_of(role)) + " " + std::to_string(rank) +
                      (phase_ == Phase::kGathering ? " missing" : " left"));
    }
    for (const Vacancy& vacancy : vacancies_) {
      if (role == Role::kWorker) {
        lines[begin + vacancy.rank.value] = vacancy.why.message + " (awaited)";
      }
    }
    for (size_t i = 0; i < seats_.size(); ++i) {
      if (seats_[i].join.role != role) continue;
      lines[begin + static_cast<size_t>(ranks[i])] = std::string(name_of(role)) + " " +
                                                     std::to_string(ranks[i]) + " " +
                                                     seats_[i].join.lanes.front().to_string();
    }
  }
  return lines;
}

bool Coordinator::parts(LinkId link) const {
  return std::any_of(parting_.begin(), parting_.end(),
                     [&](const auto& parting) { return parting.first == link; });
}

Coordinator::Seat* Coordinator::seat_of(LinkId link) {
  const auto it = seat_at_.find(link);
  if (it == seat_at_.end() || it->second >= seats_.size()) return nullptr;
  Seat& seat = seats_[it->second];
  return seat.link == link ? &seat : nullptr;
}

void Coordinator::add_seat(Seat seat) {
  seat_at_[seat.link] = seats_.size();
  ++seats_of_[static_cast<size_t>(seat.join.role)];
  seats_.push_back(std::move(seat));
}

void Coordinator::index_seats() {
  seat_at_.clear();
  seats_of_ = {};
  for (size_t i = 0; i < seats_.size(); ++i) {
    seat_at_[seats_[i].link] = i;
    ++seats_of_[static_cast<size_t>(seats_[i].join.role)];
  }
}

std::string Coordinator::who(const Seat& seat) const {
  return member_text(seat.join, total(seat.join.role));
}

void Coordinator::erase_seat(LinkId link) {
  const Seat* seat = seat_of(link);
  if (!seat) return;
  seats_.erase(seats_.begin() + (seat - seats_.data()));
  index_seats();
}

}  // namespace mercury
