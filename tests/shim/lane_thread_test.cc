// How an engine's thread and the control plane wake each other: a wake-up that is lost shows as a
// sleep of the engine's longest.
#include "shim/host/lane_thread.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <memory>

#include "shim/channel/unique_fd.h"
#include "transport/port/port_decorator.h"
#include "transport/port/sim/sim_port.h"

namespace mercury {
namespace {

// Nothing ever comes in; and where it has no descriptor an engine only naps. It takes its time, now
// more and now less, at the end of each pass, when the engine has looked for commands, and before
// each sleep: what happens in between is what may be missed.
class QuietPort : public PortDecorator<sim::SimPort> {
 public:
  using PortDecorator::PortDecorator;
  int wait_fd() const { return never_.get(); }
  void tx_flush(uint64_t now_ns) noexcept {
    PortDecorator::tx_flush(now_ns);
    dawdle();
  }
  bool prepare_sleep() noexcept {
    dawdle();
    return true;
  }

 private:
  void dawdle() noexcept {
    const uint64_t until_ns = monotonic_ns() + times_++ % 16 * 1'000;
    while (monotonic_ns() < until_ns) {
    }
  }

  uint64_t times_ = 0;
  const UniqueFd never_{::eventfd(0, EFD_CLOEXEC)};
};
static_assert(Port<QuietPort>);

constexpr size_t kRing = 4;

class LaneThreadTest : public testing::TestWithParam<Polling> {
 protected:
  LaneThreadTest() {
    const Endpoint local{IpAddress::v4(10, 0, 0, 1), 7470};
    auto counters = std::make_unique<Counters>();
    auto port = sim::SimPort::create(network, network.add_host(), local);
    LaneConfig config;
    config.control_ring = kRing;
    lane = std::make_unique<Lane<QuietPort>>(std::move(counters),
                                             std::make_unique<QuietPort>(std::move(*port)), config);
    thread = std::make_unique<LaneThread<QuietPort>>(*lane, ThreadConfig{.polling = GetParam()},
                                                     control);
    EXPECT_TRUE(thread->start());
  }
  ~LaneThreadTest() override { thread->abandon(); }

  // Commands that are answered by an event each, after others of which nothing is heard.
  void send(uint64_t silent, uint64_t count) {
    for (uint64_t i = 0; i < silent; ++i) lane->send(command::CloseSession{.token = Token(1)});
    for (uint64_t i = 0; i < count; ++i) lane->send(command::DescribeConnection{.number = ++sent});
  }
  // As the control plane does: it looks where the bell has rung, and never by the clock.
  void take_all() {
    constexpr int kPatienceMs = 10'000;
    while (taken < sent) {
      pollfd bell{control.fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&bell, 1, kPatienceMs), 1) << taken << " of " << sent;
      control.hear();
      lane->flush();
      HostEvent event;
      while (lane->take_event(event)) {
        const auto* const described = std::get_if<event::ConnectionDescribed>(&event);
        ASSERT_TRUE(described != nullptr);
        ASSERT_EQ(described->number, ++taken);
      }
    }
  }

  sim::SimNetwork network;
  Bell control;
  std::unique_ptr<Lane<QuietPort>> lane;
  std::unique_ptr<LaneThread<QuietPort>> thread;
  uint64_t sent = 0, taken = 0;
};

// One, as many as have room, and many more, so that either waits for the other in each way. On a
// machine that stood still a round may have taken so long all the same; three have not.
TEST_P(LaneThreadTest, NoWakeUpIsLost) {
  constexpr uint64_t kLostNs = kLongestSleepNs * 9 / 10;
  constexpr int kRounds = 10'000;
  int lost = 0;
  for (int round = 0; round < kRounds && lost < 3; ++round) {
    const uint64_t began_ns = monotonic_ns();
    const uint64_t count = std::array<uint64_t, 4>{1, kRing, kRing + 1, 5 * kRing}[round % 4];
    if (round / 4 % 2 == 0) {
      send(0, count);
    } else {
      send(count, 1);
    }
    ASSERT_NO_FATAL_FAILURE(take_all()) << "round " << round;
    if (monotonic_ns() - began_ns >= kLostNs) ++lost;
  }
  EXPECT_LT(lost, 3);
}

INSTANTIATE_TEST_SUITE_P(Ways, LaneThreadTest,
                         testing::Values(Polling::kInterrupt, Polling::kAdaptive),
                         [](const auto& way) {
                           return way.param == Polling::kInterrupt ? "Interrupt" : "Adaptive";
                         });

}  // namespace
}  // namespace mercury
