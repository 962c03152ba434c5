// For instructions_test.py, which counts what each part of the datapath executes in here, by
// itself, so that a figure that moves says where. One thread, virtual time, no system calls, no
// kernels (CRC-32C, copy, sums).
//
//   frame_cost frames BYTES           an engine sends frames with so much payload, another receives
//                                     and acknowledges them: a frame
//   frame_cost contributions BYTES    the aggregator takes pushes of chunks so long: a contribution
//   frame_cost decisions              the scheduler: a chunk cut from a long range, the same where
//                                     two sessions take turns, a lost chunk queued again and cut
//
// Prints how many were counted, and what compiled all this.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "aggregator/aggregator.h"
#include "apps/sim/elision.h"
#include "scheduler/scheduler.h"
#include "tests/behaviour/frame_pair.h"

namespace mercury {

constexpr uint32_t kWireBytes = 1448;  // that a decision is charged

// By these names callgrind knows what to count. (Two of the same body were one function otherwise.)
[[gnu::noipa]] void counted_send(frames::FrameHost& host, uint64_t now_ns) { host.poll(now_ns); }
[[gnu::noipa]] void counted_receive(frames::FrameHost& host, uint64_t now_ns) { host.poll(now_ns); }
[[gnu::noipa]] uint32_t counted_aggregate(Aggregator& aggregator, Contribution& contribution,
                                          uint32_t chunks) {
  uint32_t completed = 0;
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    contribution.chunk = ChunkIndex(chunk);
    if (aggregator.push(contribution).verdict == PushVerdict::kCompleted) ++completed;
  }
  return completed;
}
inline bool decide(Scheduler& scheduler, ScheduledChunk& out) {
  if (!scheduler.next(out)) return false;
  scheduler.charge(out.job, kWireBytes);
  return true;
}
[[gnu::noipa]] bool counted_schedule(Scheduler& scheduler, uint32_t count) {
  ScheduledChunk out;
  while (count > 0 && decide(scheduler, out)) --count;
  return count == 0;
}
[[gnu::noipa]] bool counted_take_turns(Scheduler& scheduler, uint32_t count) {
  ScheduledChunk out;
  while (count > 0 && decide(scheduler, out)) --count;
  return count == 0;
}
// Each chunk that is cut is then lost.
[[gnu::noipa]] bool counted_requeue(Scheduler& scheduler, uint32_t count) {
  ScheduledChunk out;
  while (count > 0 && decide(scheduler, out) &&
         scheduler.readmit(out.session, range_of(out.key, out.priority))) {
    --count;
  }
  return count == 0;
}

namespace {

int fail(const char* why) {
  std::fprintf(stderr, "frame_cost: %s\n", why);
  return 1;
}
int counted(uint64_t count) {
  std::printf("%llu counted, compiled with %s\n", static_cast<unsigned long long>(count),
              COMPILED_WITH);
  return 0;
}

// --- an engine's frames -------------------------------------------------------------------------

constexpr uint32_t kMaxUdpPayload = 8972;  // frames are no longer than their payload, though
// In each pass: as many as it takes then, so that frames of all sizes share its own work alike.
constexpr uint32_t kFramesInPass = frames_per_pass(kBurst, kMaxUdpPayload);
constexpr uint64_t kTurnNs = 10'000;  // about what a turn of both engines takes
constexpr uint32_t kOpenTurns = 64, kWarmUpTurns = 1024, kTurns = 2048;

int run_frames(uint32_t payload_bytes) {
  frames::FramePair pair(kMaxUdpPayload, payload_bytes);
  uint64_t now_ns = 1'000'000;
  if (!pair.open(now_ns, kTurnNs, kOpenTurns)) return fail("no session");
  frames::FrameService& from = pair.sender().service();
  const frames::FrameService& to = pair.receiver().service();
  for (uint32_t turn = 0; turn < kWarmUpTurns; ++turn) {
    now_ns += kTurnNs;
    from.due = kFramesInPass;
    pair.sender().poll(now_ns);
    pair.receiver().poll(now_ns);
  }
  const uint64_t before = to.received;
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    now_ns += kTurnNs;
    from.due = kFramesInPass;
    counted_send(pair.sender(), now_ns);
    counted_receive(pair.receiver(), now_ns);
  }
  const uint64_t frames = to.received - before;
  if (frames != uint64_t{kTurns} * kFramesInPass || from.lost != 0)
    return fail("frames were late or lost");
  return counted(frames);
}

// --- a server's contributions -------------------------------------------------------------------

constexpr uint16_t kWorkers = 4;
constexpr uint32_t kChunks = 256, kRounds = 32;

int run_contributions(uint32_t chunk_bytes) {
  const auto chunk_elems = static_cast<uint32_t>(chunk_bytes / sizeof(float));
  Aggregator aggregator({[](void*, PayloadPin&) { return false; }});
  const JobSlot job(0);
  bool good = aggregator.add_job(job, {.workers = kWorkers, .terms = {}}).ok() &&
              aggregator
                  .add_tensor(job, {.numel = uint64_t{kChunks} * chunk_elems,
                                    .chunk_elems = chunk_elems,
                                    .chunk_count = kChunks})
                  .ok();
  for (uint16_t w = 0; w < kWorkers; ++w) good = good && aggregator.admit(job, Rank(w), 1).ok();
  if (!good) return fail("the aggregator refused");
  const std::vector<std::byte> payload(chunk_bytes);
  Contribution contribution{.job = job, .incarnation = 1, .elements = payload};
  for (uint32_t round = 1; round <= kRounds; ++round) {
    contribution.round = Round(round);
    uint32_t completed = 0;
    for (uint16_t worker = 0; worker < kWorkers; ++worker) {
      contribution.worker = Rank(worker);
      completed += counted_aggregate(aggregator, contribution, kChunks);
    }
    if (completed != kChunks) return fail("a chunk is not complete");
  }
  return counted(uint64_t{kRounds} * kWorkers * kChunks);
}

// --- decisions ----------------------------------------------------------------------------------

constexpr uint32_t kPrioritiesInUse = 64, kDecisions = 4096, kLong = 1'000'000;

// A queue that holds a long range at each priority of so many sessions.
struct Queue {
  explicit Queue(uint32_t sessions) : scheduler({1, sessions, 1024, 65536}) {
    good = scheduler.add_job(JobSlot(0)).ok();
    for (uint32_t s = 0; s < sessions; ++s) {
      good = good && scheduler.add_session(SessionSlot(s), JobSlot(0)).ok();
      for (uint32_t i = 0; i < kPrioritiesInUse; ++i) {
        const auto priority = static_cast<uint16_t>(i * (kPriorities / kPrioritiesInUse));
        good = good && scheduler.admit(SessionSlot(s), {TensorIndex(i), 1, {0, kLong}, priority});
      }
    }
  }
  Scheduler scheduler;
  bool good;
};

int run_decisions() {
  Queue one(1), two(2), again(1);
  const bool good = one.good && counted_schedule(one.scheduler, kDecisions) &&  //
                    two.good && counted_take_turns(two.scheduler, kDecisions) && again.good &&
                    counted_requeue(again.scheduler, kDecisions);
  return good ? counted(kDecisions) : fail("the scheduler refused");
}

int run(std::string_view what, uint32_t bytes) {
  const simulator::PayloadElision elision;
  if (what == "frames" && bytes > 0) return run_frames(bytes);
  if (what == "contributions" && bytes > 0) return run_contributions(bytes);
  if (what == "decisions") return run_decisions();
  return fail("usage: frame_cost frames BYTES | contributions BYTES | decisions");
}

}  // namespace
}  // namespace mercury

int main(int argc, char** argv) {
  return mercury::run(argc > 1 ? argv[1] : "",
                      argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 0);
}
