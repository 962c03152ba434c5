// Two threads and millions of items: nothing is lost, repeated or reordered, and no wake-up is
// lost. Every sleep has a generous limit; a sleep that the limit ended, not a doorbell, is a
// rescue. On a busy machine chance alone may never let one side find nothing to do: at every
// kHoldEvery-th item each side holds back until the other one went to sleep.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "shim/channel/channel.h"

namespace mercury {
namespace {

constexpr uint64_t kItems = 2'000'000;
constexpr uint64_t kHoldEvery = 100'000;
constexpr int kRescueMs = 10'000;

// True if the doorbell rang.
bool sleep_on(int fd, std::atomic<bool>& asleep) {
  pollfd p{fd, POLLIN, 0};
  asleep = true;
  const bool rang = ::poll(&p, 1, kRescueMs) == 1;
  asleep = false;
  return rang;
}

struct Outcome {
  uint64_t rescues = 0;
  uint64_t sleeps = 0;
  uint64_t wrong = 0;
};

// True while a side has parked and waits for its doorbell.
struct Asleep {
  std::atomic<bool> engine = false;
  std::atomic<bool> client = false;
};

void await(const std::atomic<bool>& asleep) {
  while (!asleep) std::this_thread::yield();
}

// Pops submissions and completes each; sleeps whenever there is nothing to do.
Outcome run_engine(EngineChannel& channel, Asleep& asleep) {
  Outcome outcome;
  uint64_t next = 0;
  Submission in;
  while (next < kItems) {
    while (channel.pop(in) == EngineChannel::Pop::kOne) {
      if (in.cookie != next || in.tensor != TensorId(static_cast<uint32_t>(next & 0x7fffffff))) {
        ++outcome.wrong;
      }
      if (next % kHoldEvery == kHoldEvery / 2) {
        channel.ring();
        await(asleep.client);
      }
      const Completion done{in.cookie, Errc::kOk, 1, in.tensor, Round(static_cast<uint32_t>(next))};
      while (!channel.complete(done)) {
        channel.ring();
        if (!channel.park()) continue;
        ++outcome.sleeps;
        if (!sleep_on(channel.engine_doorbell(), asleep.engine)) ++outcome.rescues;
        channel.unpark();
      }
      ++next;
    }
    channel.ring();
    if (next == kItems || !channel.park()) continue;
    ++outcome.sleeps;
    if (!sleep_on(channel.engine_doorbell(), asleep.engine)) ++outcome.rescues;
    channel.unpark();
  }
  return outcome;
}

// Submits in bursts of random length, now and then waits until everything came back.
Outcome run_client(ClientChannel& channel, Asleep& asleep, uint64_t seed) {
  Outcome outcome;
  std::mt19937_64 random(seed);
  uint64_t submitted = 0;
  uint64_t next = 0;
  Completion done;
  const auto drain = [&] {
    while (channel.pop(done)) {
      if (done.cookie != next || done.round != Round(static_cast<uint32_t>(next))) ++outcome.wrong;
      ++next;
    }
  };
  uint64_t hold = kHoldEvery;
  while (next < kItems) {
    if (next == submitted && next >= hold) {
      await(asleep.engine);
      hold += kHoldEvery;
    }
    const uint64_t burst = random() % 3 == 0 ? 1 : random() % 700;
    for (uint64_t i = 0; i < burst && submitted < kItems; ++i) {
      if (!channel.submit({SubmitOp::kPush, 3, 1,
                           TensorId(static_cast<uint32_t>(submitted & 0x7fffffff)), submitted})) {
        break;
      }
      ++submitted;
    }
    channel.ring();
    drain();
    while (next < submitted && (next >= hold || random() % 4 == 0 || !channel.has_room())) {
      if (channel.park()) {
        ++outcome.sleeps;
        if (!sleep_on(channel.client_doorbell(), asleep.client)) ++outcome.rescues;
        channel.unpark();
      }
      drain();
    }
  }
  return outcome;
}

void stress(EngineChannel& engine, ClientChannel& client) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Outcome engine_outcome;
  Asleep asleep;
  std::thread thread([&] { engine_outcome = run_engine(engine, asleep); });
  const Outcome client_outcome = run_client(client, asleep, seed);
  thread.join();
  EXPECT_EQ(engine_outcome.wrong, 0U);
  EXPECT_EQ(client_outcome.wrong, 0U);
  EXPECT_EQ(engine_outcome.rescues, 0U) << "a wake-up of the engine was lost";
  EXPECT_EQ(client_outcome.rescues, 0U) << "a wake-up of the program was lost";
  EXPECT_GE(engine_outcome.sleeps, kItems / kHoldEvery - 1);
  EXPECT_GE(client_outcome.sleeps, kItems / kHoldEvery);
}

TEST(ChannelStress, PrivateMemoryLosesNothing) {
  auto memory = ChannelMemory::create({256, 128}, false);
  ASSERT_TRUE(memory.has_value());
  EngineChannel engine(*memory);
  ClientChannel client(*memory);
  stress(engine, client);
}

TEST(ChannelStress, SharedMemoryLosesNothing) {
  auto memory = ChannelMemory::create({64, 512}, true);
  ASSERT_TRUE(memory.has_value());
  EngineChannel engine(*memory);
  std::array<int, 4> fds = (*memory)->program_descriptors();
  for (int& fd : fds) fd = ::dup(fd);
  auto adopted = ChannelMemory::adopt(fds[0], fds[1], fds[2], fds[3]);
  ASSERT_TRUE(adopted.has_value());
  ClientChannel client(*adopted);
  stress(engine, client);
}

}  // namespace
}  // namespace mercury
