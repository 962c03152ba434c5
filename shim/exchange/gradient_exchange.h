// What an engine carries: a worker's gradients to servers, and a server's sums to workers. Models
// the concept Service (transport/engine/service.h), by asking of each session what it means and
// handing on to the half that it belongs to.
//
// Owner/thread: one engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "aggregator/aggregator.h"
#include "scheduler/scheduler.h"
#include "scheduler/send_queue.h"
#include "shim/channel/channel.h"
#include "shim/exchange/programs.h"
#include "shim/exchange/server/server.h"
#include "shim/exchange/worker/worker.h"
#include "transport/base/cold_steps.h"
#include "transport/base/counters.h"
#include "transport/engine/service.h"

namespace mercury {

struct ExchangeConfig {
  SendQueue::Limits sends;
  Programs::Limits programs;
  uint64_t sum_bytes = 0;               // at most, of all jobs' sums in this engine; 0 = no limit
  MemoryThread* sums_thread = nullptr;  // Aggregator's
};

// What an exchange holds for jobs, sessions and programs: all zero when it has none of them.
struct ExchangeUsage {
  uint64_t aggregator_bytes = 0;
  uint32_t ranges = 0;  // queued in the scheduler
  uint32_t lost_chunks = 0;
  uint32_t sessions = 0;
  uint32_t jobs = 0;  // of servers, those whose results the NIC still reads included
  uint32_t completions = 0;
};

class GradientExchange {
 public:
  // `port` sends what it hands out; it may go first.
  GradientExchange(const ExchangeConfig& config, Counters& counters, const PortMemory& port);

  // --- datapath, for the engine -----------------------------------------------------------------
  Taken on_datagram(SessionSlot session, const wire::Header& header,
                    std::span<const std::byte> payload, uint64_t now_ns) noexcept;
  bool next(OutgoingDatagram& out) noexcept;
  bool wants_to_send() const noexcept { return !sends_.scheduler().idle(); }
  void charge(JobSlot job, uint32_t bytes) noexcept { sends_.charge(job, bytes); }
  void on_acked(SessionSlot session, const SentTag& tag) noexcept;
  void on_lost(SessionSlot session, const SentTag& tag) noexcept;
  void block(SessionSlot session) noexcept;
  void unblock(SessionSlot session) noexcept;
  uint32_t poll(uint64_t now_ns) noexcept;
  bool awaits_nic() const noexcept { return server_.awaits_nic(); }
  uint64_t next_deadline_ns() const noexcept {
    if (worker_.has_steps() || looks_again_ || worker_.waiting_ranges() > 0) return 0;
    return std::min(
        {worker_.release_due_ns(), server_.next_deadline_ns(), sends_.next_deadline_ns()});
  }

  // --- cold, for the engine ---------------------------------------------------------------------
  using Command = mercury::Command;
  using Event = mercury::Event;
  void forget(SessionSlot session);
  template <class OneCommand>
  void on_command(const OneCommand& command, SessionHost& host) {
    Status done = run(command, host);
    if constexpr (requires { command.job; }) {
      if (!done) report_failure(command.job, done.error());
    }
  }
  std::optional<Event> take_event();

  // --- for the engine's thread ------------------------------------------------------------------
  size_t channel_count() const noexcept { return programs_.size(); }
  ExchangeUsage usage() const noexcept;  // cold: looks at every session
  int doorbell(size_t channel) const noexcept { return programs_.doorbell(channel); }
  // Before a sleep: false if a program has submitted something meanwhile.
  bool park() noexcept { return programs_.park(); }
  void unpark() noexcept { programs_.unpark(); }

 private:
  enum class Kind : uint8_t {
    kNone,
    kShard,   // this host is a worker: chunks of one shard travel to a server
    kWorker,  // this host is a server: sums travel to a worker
  };
  struct Binding {  // what a session means
    Kind kind = Kind::kNone;
    Worker::Share share;  // kShard
    JobSlot job;
    WorkerPeer worker;  // kWorker
    // Of the same job; kNoSession: none.
    SessionSlot next = kNoSession;
    SessionSlot previous = kNoSession;
  };
  static constexpr SessionSlot kNoSession{~uint32_t{0}};

  bool may_go(const WorkerRange& range) const noexcept;
  bool admit(const WorkerRange& range) noexcept;
  void finish_rows() noexcept;
  uint32_t admit_ranges() noexcept;
  [[gnu::cold, gnu::noinline]] uint32_t admit_held_up() noexcept;
  uint32_t end_jobs(ColdSteps& steps);
  uint32_t queue_due(uint64_t now_ns, ColdSteps& steps);
  bool frames_moved() noexcept;
  // exchange_control.cc: one for each command, so that a command without one does not compile.
  Status run(const command::AddWorkerJob& spec, SessionHost& host);
  Status run(const command::BindShard& request, SessionHost& host);
  Status run(const command::AddServerJob& spec, SessionHost& host);
  Status run(const command::BindWorker& request, SessionHost& host);
  Status run(const command::AddTensor& spec, SessionHost& host);
  Status run(const command::Confirm& request, SessionHost& host);
  Status run(const command::CountChunks& request, SessionHost& host);
  Status run(const command::ReplaceWorker& request, SessionHost& host);
  Status run(const command::WithdrawWorker& request, SessionHost& host);
  Status run(const command::Refill& request, SessionHost& host);
  Status run(const command::SetPolicy& request, SessionHost& host);
  Status run(const command::RemoveJob& request, SessionHost& host);
  Status run(const command::FailJob& request, SessionHost& host);
  Status run(const command::FailRounds& request, SessionHost& host);
  Status run(const command::AttachChannel& request, SessionHost& host);
  Status run(const command::DetachChannel& request, SessionHost& host);
  void report_failure(JobSlot job, const Error& error);
  Status bind(SessionSlot session, const Binding& binding);
  void count_jobs() noexcept;
  Status set_policy(JobSlot job, std::string_view text, SessionHost& host);
  const Policy* policy_of(JobSlot job) const noexcept;  // null: no such job
  uint32_t chunk_bytes(JobSlot job) const noexcept;     // 0: it has no tensors
  void set_unit(JobSlot job);

  Counters& counters_;
  std::deque<Event> events_;
  SendQueue sends_;
  Worker worker_;
  Server server_;
  Programs programs_;
  std::vector<Binding> bindings_;      // by session slot
  std::vector<SessionSlot> bound_to_;  // by job slot: its last one; kNoSession
  uint64_t frames_seen_ = 0;           // that the engine had received and sent at the last poll
  bool due_first_ = false;             // in the next pass: before what programs submit
  const uint32_t max_jobs_;
  uint32_t worker_jobs_ = 0;
  // What next() looks at before frames that have come are read again.
  static constexpr uint32_t kLooks = 1024;
  bool looks_again_ = false;
};

}  // namespace mercury
