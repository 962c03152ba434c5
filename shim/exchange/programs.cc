#include "shim/exchange/programs.h"

#include <algorithm>

namespace mercury {

void Programs::attach(EngineChannel* channel) {
  programs_.push_back({channel, false, {}});
  make_room(channel, 0);
  counters_.set(Gauge::kChannels, programs_.size());
}

void Programs::detach(EngineChannel* channel) {
  std::erase_if(programs_, [channel](const AttachedProgram& p) { return p.channel == channel; });
  counters_.set(Gauge::kChannels, programs_.size());
  events_.emplace_back(event::ChannelDetached{channel});
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

uint32_t Programs::take_submissions(Worker& worker, const SendQueue& sends) noexcept {
  uint32_t taken = 0;
  uint32_t refused = 0;
  for (size_t i = 0; i < programs_.size() && refused < Worker::kRefusalsPerPass; ++i) {
    AttachedProgram& program = programs_[(begin_with_ + i) % programs_.size()];
    if (program.backlog.empty() && !program.broken) {
      taken += take_submissions(program, worker, sends, refused);
    }
  }
  // Where refusals fill the pass, those that it did not come to are not always the same.
  if (refused >= Worker::kRefusalsPerPass) begin_with_ = (begin_with_ + 1) % programs_.size();
  return taken;
}

uint32_t Programs::take_submissions(AttachedProgram& program, Worker& worker,
                                    const SendQueue& sends, uint32_t& refused_by_all) noexcept {
  uint32_t taken = 0;
  uint32_t refused = 0;
  Submission submission;
  while (taken < limits_.submissions_per_pass && refused < limits_.refusals_per_pass &&
         refused_by_all + refused < Worker::kRefusalsPerPass && !sends.short_of(0)) {
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
  uint32_t delivered = 0;
  for (AttachedProgram& program : programs_) {
    while (!program.backlog.empty() && program.channel->complete(program.backlog.front())) {
      program.backlog.pop();
      ++delivered;
    }
  }
  WorkerCompletion done;
  while (worker.take_completion(done)) {
    const auto program =
        std::find_if(programs_.begin(), programs_.end(),
                     [&done](const AttachedProgram& p) { return p.channel == done.channel; });
    if (program == programs_.end()) continue;
    deliver(*program, done.told);
    ++delivered;
  }
  if (delivered > 0) {
    for (AttachedProgram& program : programs_) {
      if (program.channel->ring()) counters_.add(Counter::kWakeups);
    }
  }
  return delivered;
}

void Programs::deliver(AttachedProgram& program, const Completion& completion) noexcept {
  counters_.add(Counter::kCompletions);
  if (program.backlog.empty() && program.channel->complete(completion)) return;
  counters_.add(Counter::kCompletionRingFull);
  program.backlog.push(completion);
}

bool Programs::park() noexcept {
  bool idle = true;
  for (AttachedProgram& program : programs_) idle = program.channel->park() && idle;
  return idle;
}

void Programs::unpark() noexcept {
  for (AttachedProgram& program : programs_) program.channel->unpark();
}

}  // namespace mercury
