#include "shim/exchange/programs.h"

#include <algorithm>
#include <utility>

namespace mercury {
namespace {

// Looks in a row that found nothing, until a program is looked at by turns again.
constexpr uint8_t kIdleLooks = 100;

}  // namespace

void Programs::attach(EngineChannel* channel) {
  programs_.push_back({.channel = channel});
  index();
  make_room(channel, 0);
  counters_.set(Gauge::kChannels, programs_.size());
}

void Programs::detach(EngineChannel* channel) {
  std::erase_if(programs_, [channel](const AttachedProgram& p) { return p.channel == channel; });
  index();
  counters_.set(Gauge::kChannels, programs_.size());
  events_.emplace_back(event::ChannelDetached{channel});
}

// Their places have changed.
void Programs::index() {
  place_of_.clear();
  lately_.clear();
  told_.clear();
  lately_.reserve(programs_.size());
  told_.reserve(programs_.size());
  behind_.clear();
  behind_.reserve(programs_.size());
  for (uint32_t i = 0; i < programs_.size(); ++i) {
    place_of_[programs_[i].channel] = i;
    programs_[i].lately = programs_[i].told = false;
    if (!programs_[i].backlog.empty()) behind_.push_back(i);
  }
  looks_owed_ = behind_.size();
}

void Programs::make_room(const EngineChannel* channel, size_t completions) {
  for (AttachedProgram& program : programs_) {
    if (program.channel != channel) continue;
    program.backlog.reserve(program.backlog.size() + completions + limits_.refusals_per_pass);
  }
}

uint32_t Programs::waiting_completions() const noexcept {
  size_t waiting = 0;
  for (const AttachedProgram& program : programs_) waiting += program.backlog.size();
  return static_cast<uint32_t>(waiting);
}

// No more is read in this pass.
bool Programs::is_full(const Worker& worker, uint32_t refused) noexcept {
  return refused >= Worker::kRefusalsPerPass ||
         worker.waiting_ranges() >= Worker::kMostWaitingRanges;
}

// Where some fill the pass, those that it has not come to are the first in the next one.
uint32_t Programs::take_submissions(Worker& worker, const SendQueue& sends, bool busy) noexcept {
  uint32_t refused = 0;
  uint32_t taken = 0;
  const size_t all = programs_.size();
  if (!busy || !are_many()) {
    size_t looks = 0;
    for (; looks < all && !is_full(worker, refused); ++looks) {
      taken += look_at(programs_[(begin_with_ + looks) % all], worker, sends, refused);
    }
    if (looks > 0 && is_full(worker, refused)) {
      begin_with_ = (begin_with_ + (looks < all ? looks : 1)) % all;
    }
    return taken;
  }
  for (uint32_t i = 0; i < limits_.looks_per_pass && !is_full(worker, refused); ++i) {
    const size_t place = begin_with_++ % all;
    AttachedProgram& program = programs_[place];
    if (program.lately) continue;
    const uint32_t found = look_at(program, worker, sends, refused);
    taken += found;
    if (found == 0) continue;
    program.lately = true;
    program.idle_looks = 0;
    lately_.push_back(static_cast<uint32_t>(place));
  }
  return taken + look_at_lately(worker, sends, refused);
}

// The last one first, so that who submits nothing more leaves the list without moving it.
uint32_t Programs::look_at_lately(Worker& worker, const SendQueue& sends,
                                  uint32_t& refused) noexcept {
  uint32_t taken = 0;
  size_t left = lately_.size();
  while (left > 0 && !is_full(worker, refused)) {
    AttachedProgram& program = programs_[lately_[--left]];
    const uint32_t found = look_at(program, worker, sends, refused);
    taken += found;
    program.idle_looks = found > 0 ? uint8_t{0} : static_cast<uint8_t>(program.idle_looks + 1);
    if (program.idle_looks < kIdleLooks) continue;
    program.lately = false;
    lately_[left] = lately_.back();
    lately_.pop_back();
  }
  std::rotate(lately_.begin(), lately_.begin() + static_cast<std::ptrdiff_t>(left), lately_.end());
  return taken;
}

uint32_t Programs::look_at(AttachedProgram& program, Worker& worker, const SendQueue& sends,
                           uint32_t& refused_by_all) noexcept {
  if (!program.backlog.empty() || program.broken) return 0;
  if (!sends.has_plenty(1) && !worker.may_push(program.channel, sends)) [[unlikely]]
    return 0;
  return take_submissions(program, worker, refused_by_all);
}

uint32_t Programs::take_submissions(AttachedProgram& program, Worker& worker,
                                    uint32_t& refused_by_all) noexcept {
  uint32_t taken = 0;
  uint32_t refused = 0;
  Submission submission;
  while (taken < limits_.submissions_per_pass && refused < limits_.refusals_per_pass &&
         !is_full(worker, refused_by_all + refused)) {
    const EngineChannel::Pop pop = program.channel->pop(submission);
    if (pop == EngineChannel::Pop::kEmpty) break;
    if (pop == EngineChannel::Pop::kBroken) {
      program.broken = true;
      counters_.add(Counter::kBadDescriptors);
      events_.emplace_back(event::ChannelBroken{program.channel, "invalid submission descriptor"});
      break;
    }
    refused += !worker.submit(program.channel, submission);
    ++taken;
  }
  refused_by_all += refused;
  return taken;
}

uint32_t Programs::deliver_completions(Worker& worker) noexcept {
  uint32_t delivered = behind_.empty() ? 0 : deliver_waiting();
  if (worker.has_completion()) delivered += deliver_new(worker);
  for (const uint32_t place : told_) {
    programs_[place].told = false;
    if (programs_[place].channel->ring()) counters_.add(Counter::kWakeups);
  }
  told_.clear();
  return delivered;
}

// Of some, by turns.
uint32_t Programs::deliver_waiting() noexcept {
  uint32_t delivered = 0;
  const size_t looks = std::min<size_t>(behind_.size(), limits_.looks_per_pass);
  backlog_looks_ += looks;
  const bool owes = looks_owed_ > 0;
  looks_owed_ -= std::min(looks_owed_, looks);
  for (size_t i = 0; i < looks; ++i) {
    if (next_behind_ >= behind_.size()) next_behind_ = 0;
    const uint32_t place = behind_[next_behind_];
    AttachedProgram& program = programs_[place];
    for (; !program.backlog.empty() && program.channel->complete(program.backlog.front());
         ++delivered) {
      program.backlog.pop();
      tell(place);
    }
    if (!program.backlog.empty()) {
      ++next_behind_;
      continue;
    }
    behind_[next_behind_] = behind_.back();
    behind_.pop_back();
  }
  // Those that have left have changed the others' order.
  if (owes && delivered > 0) looks_owed_ = behind_.size();
  return delivered;
}

// Most passes have none, and are spared the room that a completion has for many workers.
uint32_t Programs::deliver_new(Worker& worker) noexcept {
  uint32_t delivered = 0;
  WorkerCompletion done;
  while (worker.take_completion(done)) {
    const auto place = place_of_.find(done.channel);
    if (place == place_of_.end()) continue;
    deliver(place->second, done.told);
    tell(place->second);
    ++delivered;
  }
  return delivered;
}

void Programs::tell(uint32_t place) noexcept {
  if (!std::exchange(programs_[place].told, true)) told_.push_back(place);
}

void Programs::deliver(uint32_t place, const Completion& completion) noexcept {
  AttachedProgram& program = programs_[place];
  counters_.add(Counter::kCompletions);
  if (program.backlog.empty() && program.channel->complete(completion)) return;
  counters_.add(Counter::kCompletionRingFull);
  if (program.backlog.empty()) {
    behind_.push_back(place);
    looks_owed_ += looks_owed_ > 0;
  }
  program.backlog.push(completion);
}

bool Programs::park() noexcept {
  bool idle = true;
  for (AttachedProgram& program : programs_) {
    if (program.channel->park()) continue;
    idle = false;
    // There may be room for what waits, which its channel does not say again.
    if (!program.backlog.empty()) looks_owed_ = behind_.size();
  }
  return idle && looks_owed_ == 0;
}

void Programs::unpark() noexcept {
  for (AttachedProgram& program : programs_) program.channel->unpark();
}

}  // namespace mercury
