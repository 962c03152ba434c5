// Gradient path: step 2/8, from the shim call, to the scheduler; and the end of step 8/8, from the
// worker to the program.
//
// The rings between one program and one engine: submissions to the engine, completions back. Each
// is single-producer single-consumer in shared memory (or in private memory when the engine is
// embedded in the program). What the program writes is data to be checked: the engine copies each
// descriptor once and validates the copy; anything invalid breaks this channel and nothing else.
//
// Memory: A is written by the program (submission ring, the completion ring's read position), B by
// the engine (completion ring, the submission ring's read position); in daemon mode both are sealed
// memfds and the program cannot map B for writing. Descriptors carry their position, so one cache
// line moves per descriptor and a stale one is never taken for new. channel_layout.h has the bytes.
//
// Doorbells are rung only when the other side has parked (armed, then looked again), once per park:
// the order that cannot lose a wake-up, UCX's rather than TAS's. The engine's is an eventfd. The
// program's is a pipe: an eventfd is one open file for both sides, so a program could make the
// engine's write to it block for ever; of a pipe the engine has an end of its own.
//
// Owner/thread: EngineChannel belongs to one engine; ClientChannel to one program, which serialises
// its own threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "shim/channel/descriptor.h"
#include "transport/base/memory_thread.h"
#include "transport/base/result.h"

namespace mercury {

struct ChannelGeometry {
  uint32_t submissions = 1024;  // power of two, 4 to 65,536
  uint32_t completions = 2048;  // power of two, 4 to 65,536
};

class ChannelEnd;  // channel_layout.h

// The memory and descriptors of one channel; whoever holds it keeps them alive. A descriptor that
// this side does not have is -1.
class ChannelMemory {
 public:
  // The engine's side: memfds (sealed against shrinking and growing; B also against all who would
  // write to it later) and doorbells. `shared` false: anonymous private memory, for an engine in
  // the same process; the same object then serves both ends.
  static Result<std::shared_ptr<ChannelMemory>> create(const ChannelGeometry& geometry,
                                                       bool shared);
  // The program's side of a daemon's channel, from received descriptors in the order of
  // program_descriptors() (taken over, also on error): checks sizes, seals and the headers, and
  // seals A as B is.
  static Result<std::shared_ptr<ChannelMemory>> adopt(int memfd_a, int memfd_b, int engine_doorbell,
                                                      int client_doorbell);
  // The engine's side, before an engine may look at A: whether the program has sealed it, so that
  // it punches no hole there under the engine. All its pages are there then. kProtocol, kNoMemory.
  Status close_a();
  // MappedMemory's: to unmap what the program has not sealed may wait.
  void leave_to(MemoryThread& thread) noexcept;
  ~ChannelMemory();
  ChannelMemory(const ChannelMemory&) = delete;
  ChannelMemory& operator=(const ChannelMemory&) = delete;
  // What the daemon hands to the program: memfd A, memfd B, engine doorbell, client doorbell (the
  // program's end). Stays owned by this object, which keeps them open: a program that closes its
  // own cannot make the engine's descriptors hang up.
  std::array<int, 4> program_descriptors() const;

 private:
  friend class EngineChannel;
  friend class ClientChannel;
  struct State;
  explicit ChannelMemory(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class EngineChannel {
 public:
  explicit EngineChannel(std::shared_ptr<ChannelMemory> memory);
  ~EngineChannel();
  enum class Pop : uint8_t { kEmpty, kOne, kBroken };
  // Copies the next submission out; kBroken: an invalid descriptor or position, now and for ever.
  Pop pop(Submission& out) noexcept;
  // False: no room for all of it; the engine keeps the completion and tries again later, with this
  // one first: park() refuses, or the doorbell rings, when the program has made room. A broken
  // channel swallows everything (true).
  [[nodiscard]] bool complete(const Completion& completion) noexcept;
  // Rings the program's doorbell if it is parked and completions were added since the last call.
  // Returns true if it rang.
  bool ring() noexcept;
  // Before the engine sleeps on engine_doorbell(): false if a submission waits, or (once) if there
  // is room for a completion that was refused (do not sleep; not parked).
  bool park() noexcept;
  void unpark() noexcept;  // after the sleep; also clears the doorbell
  int engine_doorbell() const noexcept;

 private:
  std::shared_ptr<ChannelMemory> memory_;
  std::unique_ptr<ChannelEnd> end_;
  uint32_t absences_told_ = 0;  // of the completion that found no room
};

class ClientChannel {
 public:
  explicit ClientChannel(std::shared_ptr<ChannelMemory> memory);
  ~ClientChannel();
  // True: so many of the next submit()s cannot fail, at most slots(). An operation goes to all
  // engines or to none.
  bool has_room(uint32_t count = 1) noexcept;
  uint32_t slots() const noexcept;
  [[nodiscard]] bool submit(const Submission& submission) noexcept;  // false: full
  // Rings the engine's doorbell if it is parked and submissions were added since the last call.
  void ring() noexcept;
  bool pop(Completion& out) noexcept;
  // Before the program sleeps on client_doorbell(): false if a completion waits (not parked).
  bool park() noexcept;
  void unpark() noexcept;  // after the sleep; also clears the doorbell
  // Readable when rung; hangs up when the daemon ends.
  int client_doorbell() const noexcept;

 private:
  std::shared_ptr<ChannelMemory> memory_;
  std::unique_ptr<ChannelEnd> end_;
  Completion next_;  // as far as it has been told: who is missing
};

}  // namespace mercury
