// Two threads and millions of items: nothing is lost, repeated or reordered, and no wake-up is
// lost. Every sleep has a generous limit; a sleep that the limit ended, not a doorbell, is a
// rescue.
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
constexpr int kRescueMs = 10'000;

// True if the doorbell rang.
bool sleep_on(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, kRescueMs) == 1;
}

struct Outcome {
  uint64_t rescues = 0;
  uint64_t sleeps = 0;
  uint64_t wrong = 0;
};

// Pops submissions and completes each; sleeps whenever there is nothing to do.
Outcome run_engine(EngineChannel& channel) {
  Outcome outcome;
  uint64_t next = 0;
  Submission in;
  while (next < kItems) {
    while (channel.pop(in) == EngineChannel::Pop::kOne) {
      if (in.cookie != next || in.tensor != static_cast<uint32_t>(next & 0x7fffffff)) {
        ++outcome.wrong;
      }
      const Completion done{in.cookie, Errc::kOk, 1, in.tensor, static_cast<uint32_t>(next)};
      while (!channel.complete(done)) {
        channel.ring();
        if (!channel.park()) continue;
        ++outcome.sleeps;
        if (!sleep_on(channel.engine_doorbell())) ++outcome.rescues;
        channel.unpark();
      }
      ++next;
    }
    channel.ring();
    if (next == kItems || !channel.park()) continue;
    ++outcome.sleeps;
    if (!sleep_on(channel.engine_doorbell())) ++outcome.rescues;
    channel.unpark();
  }
  return outcome;
}

// Submits in bursts of random length, now and then waits until everything came back.
Outcome run_client(ClientChannel& channel, uint64_t seed) {
  Outcome outcome;
  std::mt19937_64 random(seed);
  uint64_t submitted = 0;
  uint64_t next = 0;
  Completion done;
  const auto drain = [&] {
    while (channel.pop(done)) {
      if (done.cookie != next || done.round != static_cast<uint32_t>(next)) ++outcome.wrong;
      ++next;
    }
  };
  while (next < kItems) {
    const uint64_t burst = random() % 3 == 0 ? 1 : random() % 700;
    for (uint64_t i = 0; i < burst && submitted < kItems; ++i) {
      if (!channel.submit(
              {SubmitOp::kPush, 3, 1, static_cast<uint32_t>(submitted & 0x7fffffff), submitted})) {
        break;
      }
      ++submitted;
    }
    channel.ring();
    drain();
    while (next < submitted && (random() % 4 == 0 || !channel.has_room())) {
      if (channel.park()) {
        ++outcome.sleeps;
        if (!sleep_on(channel.client_doorbell())) ++outcome.rescues;
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
  std::thread thread([&] { engine_outcome = run_engine(engine); });
  const Outcome client_outcome = run_client(client, seed);
  thread.join();
  EXPECT_EQ(engine_outcome.wrong, 0U);
  EXPECT_EQ(client_outcome.wrong, 0U);
  EXPECT_EQ(engine_outcome.rescues, 0U) << "a wake-up of the engine was lost";
  EXPECT_EQ(client_outcome.rescues, 0U) << "a wake-up of the program was lost";
  EXPECT_GT(engine_outcome.sleeps, 0U);
  EXPECT_GT(client_outcome.sleeps, 0U);
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
