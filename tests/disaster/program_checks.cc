// What a program of the virtual cluster checks: its sums, its memory, and how long it waits.
#include <algorithm>
#include <string>

#include "tests/disaster/program.h"

namespace mercury::disaster {

void DisasterProgram::check_sum(uint32_t t) {
  TensorProgress& tensor = tensors_[t];
  if (auto error = around_.ledger().check(job_, t, tensor.round, tensor.memory->bytes(), company_,
                                          tensor.absent)) {
    wrong(*error);
  }
}

// A sum is written before its CRC is known: one that came damaged stands there until it comes
// again, which it does not if the job fails before. No more chunks may be neither than payloads
// came damaged meanwhile; of a host that is down nobody knows how many.
void DisasterProgram::check_failed(uint32_t t) {
  if (scenario_.corrupts() && !host().up()) return;
  TensorProgress& tensor = tensors_[t];
  const uint64_t damaged =
      scenario_.corrupts() ? host().total(Counter::kDropPayloadCrc) - tensor.damaged : 0;
  if (auto error = around_.ledger().check_unfinished(job_, rank_, instance_, t, tensor.round,
                                                     tensor.memory->bytes(), company_, damaged)) {
    wrong(*error);
  }
}

// Somebody has gone in order, and nothing else is wrong: what he had the sum of, he had contributed
// to, and all get it; what he had not, fails by his name. (With a quorum he may not be missed.)
void DisasterProgram::check_departure(const Operation& operation) {
  const uint32_t t = operation.tensor;
  const Errc code = operation.status;
  const Departure* gone = around_.departure(job_);
  if (gone == nullptr || plan_.quorum > 0) return;
  const TensorProgress& tensor = tensors_[t];
  if (t < gone->rounds.size() && tensor.round <= gone->rounds[t]) {
    wrong("tensor " + std::to_string(plan_.tensors[t].number) + " round " +
          std::to_string(tensor.round) + " is complete for worker " + std::to_string(gone->rank) +
          ", who has left, and fails here");
  }
  const uint64_t heard_ns = around_.now_ns() - std::max(gone->at_ns, operation.since_ns);
  if (heard_ns > scenario_.leave_notice_ns) {
    wrong("worker " + std::to_string(gone->rank) + " has left, which was heard of after " +
          std::to_string(heard_ns / 1'000'000) + " ms");
  }
  const Status status = host().jobs().job_status(client_, slot_);
  const std::string text = status ? "" : status.error().message;
  const std::string name = "worker " + std::to_string(gone->rank) + " of " +
                           std::to_string(plan_.worker_hosts.size()) + " ";
  if (code != Errc::kPeerLeft || !text.starts_with(name) ||
      text.find("left the job") == std::string::npos) {
    wrong("worker " + std::to_string(gone->rank) + " has left, and the error is " +
          std::string(name_of(code)) + ": " + text);
  }
}

// An engine that is full refuses sessions, and says so. Who has his has nothing to fear.
bool DisasterProgram::had_no_room(Errc code) {
  if (plan_.hostile) return true;
  const bool limit = code == Errc::kLimit;
  if (state_ == State::kOpening) return around_.crowded_out(job_, since_ns_, limit);
  if (limit) wrong("a limit ends a job that runs");
  return false;
}

void DisasterProgram::check_graveyard() {
  for (const auto& memory : graveyard_) {
    if (!memory->unchanged()) return wrong("memory was written after its job was closed");
  }
}

// How long anything may take when nothing but the faults that excuse it stands in the way.
uint64_t DisasterProgram::patience_ns() const {
  const uint64_t timeouts_ns = (3 + scenario_.faults.size()) * scenario_.peer_timeout_ns;
  // Each program that stalls for ever costs what the job bears with, and an eighth.
  const auto endless = static_cast<uint64_t>(
      std::count_if(scenario_.faults.begin(), scenario_.faults.end(), Scenario::endless));
  const uint64_t others_ns = 2 * (plan_.straggle_ns + plan_.compute_ns) +
                             endless * plan_.stall_ns / 8 * 9 + 2 * plan_.patience_ns +
                             (1 + scenario_.faults.size()) * plan_.rejoin_ns;
  switch (state_) {
    case State::kOpening:
      return plan_.open_timeout_ns + timeouts_ns + others_ns + 6 * kSecond;
    case State::kClosing:
    case State::kDeclaring:
      return timeouts_ns + others_ns + 7 * kSecond;
    case State::kTraining:
      return timeouts_ns + others_ns + 3 * kSecond;
    default:
      return 3 * kSecond;
  }
}

void DisasterProgram::check_patience() {
  if (state_ == State::kWaiting || state_ == State::kDone || !can_run()) return;
  const auto waits_too_long = [this](uint64_t since_ns) {
    return around_.now_ns() > since_ns + patience_ns() + around_.excused_ns(since_ns);
  };
  if (state_ == State::kTraining) {
    for (const auto& [cookie, operation] : operations_) {
      if (!waits_too_long(operation.since_ns)) continue;
      const TensorProgress& tensor = tensors_[operation.tensor];
      return wrong("tensor " + std::to_string(plan_.tensors[operation.tensor].number) + " round " +
                   std::to_string(tensor.round) + " waits for ever");
    }
    return;
  }
  static constexpr const char* kNames[] = {"", "open", "declare", "", "close", "die", "detach", ""};
  if (waits_too_long(since_ns_)) {
    wrong(std::string("waits for ever to ") + kNames[static_cast<size_t>(state_)]);
  }
}

}  // namespace mercury::disaster
