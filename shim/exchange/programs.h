// The programs on this host, as one engine sees them: what they submit goes to the worker, and what
// has ended goes back into their rings.
//
// A program whose ring is full of completions that it does not read stops only itself: nothing more
// is taken from it until they have found room. Nor is it while ranges are few and it has more than
// its part of them. Allocates in attach and make_room, and to report a program that breaks its
// ring.
//
// A pass in which frames have come or gone looks at the programs that have lately submitted
// something, and at some of the others, by turns; a pass without looks at all, so that none is
// overlooked. (A bitmap in which programs say that they have submitted something would be one
// memory that all of them write: each could clear the others' bits.)
// Owner/thread: one engine; park, unpark and doorbell: the same thread, before and after it sleeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "scheduler/send_queue.h"
#include "shim/channel/channel.h"
#include "shim/exchange/worker/worker.h"
#include "shim/job/command.h"
#include "transport/base/counters.h"
#include "transport/base/fifo.h"

namespace mercury {

class Programs {
 public:
  struct Limits {
    uint32_t submissions_per_pass = 64;  // of each program
    // Such of them as were refused: no honest program has many, and one that has nothing else to
    // offer must not take the others' time.
    uint32_t refusals_per_pass = 8;  // of each program; of all, Worker::kRefusalsPerPass
    // That a busy pass looks at besides those that have lately submitted something; and any pass,
    // of those that do not read their completions.
    uint32_t looks_per_pass = 32;
  };
  // All references outlive it.
  Programs(const Limits& limits, Counters& counters, std::deque<Event>& events)
      : limits_(limits), counters_(counters), events_(events) {}

  // --- cold --------------------------------------------------------------------------------------
  void attach(EngineChannel* channel);
  // Completions that the program will never read are dropped with it. ChannelDetached follows.
  void detach(EngineChannel* channel);
  // So many completions can be on the way to this program: its backlog has room for them.
  void make_room(const EngineChannel* channel, size_t completions);
  size_t size() const noexcept { return programs_.size(); }
  bool are_many() const noexcept { return programs_.size() > limits_.looks_per_pass; }
  uint32_t waiting_completions() const noexcept;
  // How often a pass has looked at a program because it had a backlog. For tests.
  uint64_t backlog_looks() const noexcept { return backlog_looks_; }

  // --- datapath ----------------------------------------------------------------------------------
  // While `sends` has room for new work. `busy`: there is other work, so not all are looked at. Nor
  // are they where some of them fill the pass: the others are first in the next one then.
  uint32_t take_submissions(Worker& worker, const SendQueue& sends, bool busy) noexcept;
  uint32_t deliver_completions(Worker& worker) noexcept;

  // --- for the engine's thread -------------------------------------------------------------------
  int doorbell(size_t index) const noexcept { return programs_[index].channel->engine_doorbell(); }
  // Before a sleep: false if a program has submitted something meanwhile, or one that has a backlog
  // has made room, until a pass has looked at it.
  bool park() noexcept;
  void unpark() noexcept;

 private:
  struct AttachedProgram {
    EngineChannel* channel = nullptr;
    bool broken = false;
    bool told = false;    // something since its doorbell was rung
    bool lately = false;  // in lately_
    uint8_t idle_looks = 0;
    Fifo<Completion> backlog;  // found no room in its ring
  };
  static bool is_full(const Worker& worker, uint32_t refused) noexcept;
  uint32_t look_at(AttachedProgram& program, Worker& worker, const SendQueue& sends,
                   uint32_t& refused_by_all) noexcept;
  uint32_t take_submissions(AttachedProgram& program, Worker& worker,
                            uint32_t& refused_by_all) noexcept;
  uint32_t look_at_lately(Worker& worker, const SendQueue& sends, uint32_t& refused) noexcept;
  void index();
  uint32_t deliver_new(Worker& worker) noexcept;
  void tell(uint32_t place) noexcept;
  uint32_t deliver_waiting() noexcept;
  void deliver(uint32_t place, const Completion& completion) noexcept;

  const Limits limits_;
  Counters& counters_;
  std::deque<Event>& events_;
  std::vector<AttachedProgram> programs_;
  std::unordered_map<const EngineChannel*, uint32_t> place_of_;  // in programs_
  std::vector<uint32_t> lately_;                                 // have submitted something
  std::vector<uint32_t> told_;                                   // their doorbells are to be rung
  std::vector<uint32_t> behind_;                                 // have a backlog
  size_t next_behind_ = 0;                                       // of these: whose turn it is
  size_t looks_owed_ = 0;                                        // at these, before a sleep
  uint64_t backlog_looks_ = 0;
  size_t begin_with_ = 0;  // the program whose turn it is to be first
};

}  // namespace mercury
