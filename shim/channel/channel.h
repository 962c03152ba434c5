// Gradient path: step 2/8, from the shim call, to the scheduler. Step 8 comes back the same way.
//
// The rings between one program and one engine: submissions to the engine, completions back. Each is
// single-producer single-consumer in shared memory (or in private memory when the engine is embedded
// in the program). What the program writes is data to be checked: the engine copies each descriptor
// once and validates the copy; anything invalid breaks this channel and nothing else.
//
// Memory: A is written by the program (submission ring, the completion ring's read position), B by
// the engine (completion ring, the submission ring's read position); in daemon mode both are sealed
// memfds and B is mapped read-only by the program. Descriptors carry a phase bit, so one cache line
// moves per descriptor. Doorbells are eventfds, rung only when the other side has parked (armed, then
// looked again): the order that cannot lose a wake-up, UCX's rather than TAS's.
//
// Owner/thread: EngineChannel belongs to one engine; ClientChannel to one program, which serialises
// its own threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "transport/base/result.h"
#include "transport/base/types.h"

namespace mercury {

enum class SubmitOp : uint8_t { kPush = 1, kPull = 2, kPushPull = 3 };

struct Submission {
  SubmitOp op = SubmitOp::kPushPull;
  uint16_t priority = 0;
  uint32_t job = 0;     // the program's number for the job (command::AddWorkerJob::client_job)
  uint32_t tensor = 0;
  uint64_t cookie = 0;  // comes back in the completion
};

struct Completion {
  uint64_t cookie = 0;
  Errc status = Errc::kOk;
  uint32_t job = 0;
  uint32_t tensor = 0;
  uint32_t round = 0;
};

struct ChannelGeometry {
  uint32_t submissions = 1024;  // power of two
  uint32_t completions = 2048;  // power of two
};

// The memory and descriptors of one channel; whoever holds it keeps them alive. The descriptors are
// -1 in private mode except the doorbells.
class ChannelMemory {
 public:
  // Creates memfds (sealed against shrinking, growing and further seals) and both eventfds. `shared`
  // false: anonymous private memory, for an engine in the same process.
  static Result<std::shared_ptr<ChannelMemory>> create(const ChannelGeometry& geometry, bool shared);
  // The program's side of a daemon's channel, from received descriptors (taken over, also on error):
  // checks sizes, seals and the header.
  static Result<std::shared_ptr<ChannelMemory>> adopt(int memfd_a, int memfd_b, int engine_doorbell,
                                                      int client_doorbell);
  ~ChannelMemory();
  ChannelMemory(const ChannelMemory&) = delete;
  ChannelMemory& operator=(const ChannelMemory&) = delete;
  int memfd_a() const;
  int memfd_b() const;
  int engine_doorbell() const;  // the program writes, the engine sleeps on it
  int client_doorbell() const;  // the engine writes, the program sleeps on it

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
  // Copies the next submission out; kBroken: an invalid descriptor, now and for ever.
  Pop pop(Submission& out) noexcept;
  // False: no room; the engine keeps the completion and tries again later.
  [[nodiscard]] bool complete(const Completion& completion) noexcept;
  // Rings the program's doorbell if it is parked and completions were added since the last call.
  // Returns true if it rang.
  bool ring() noexcept;
  // Before the engine sleeps on engine_doorbell(): false if a submission waits (do not sleep).
  bool park() noexcept;
  void unpark() noexcept;  // after the sleep; also clears the doorbell
  int engine_doorbell() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class ClientChannel {
 public:
  explicit ClientChannel(std::shared_ptr<ChannelMemory> memory);
  ~ClientChannel();
  [[nodiscard]] bool submit(const Submission& submission) noexcept;  // false: full
  void ring() noexcept;  // rings the engine's doorbell if it is parked
  bool pop(Completion& out) noexcept;
  bool park() noexcept;    // false if a completion waits
  void unpark() noexcept;
  int client_doorbell() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mercury
