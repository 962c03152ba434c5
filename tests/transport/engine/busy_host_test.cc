// Delay is the network's: what frames wait at hosts whose cores are busy says nothing of the path,
// and what they wait on it says all.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/transport/engine/echo_lab.h"

namespace mercury::echo {
namespace {

constexpr uint64_t kPassNs = 300'000;  // six times what is tolerated in the network
constexpr uint64_t kTargetNs = 50'000;
constexpr uint64_t kPasses = 500;

// One stream from a to b, which reads it and says nothing back.
struct BusyLab : Lab {
  BusyLab() : Lab(1, streams(), 1500, engine()) {
    start(0, engine(), 1, streams(), {.tx_queue_bytes = 1 << 20});  // of a NIC: what a pass sends
    b().service.on_opened = [](EchoService::EchoStream& stream) { stream.echoes = false; };
  }
  static StreamConfig streams() {
    StreamConfig config;
    config.window_bytes = config.send_bytes = 1 << 20;
    return config;
  }
  static EngineConfig engine() {
    EngineConfig config;
    config.session.delay_target_ns = kTargetNs;
    return config;
  }
  void begin() {
    ASSERT_TRUE(connect());
    run_for(20 * kMs);  // MTU probes are over
    a().send(StartEcho{kToken, 1, uint64_t{1} << 40});
  }
  sim::LinkId to_b() { return network.downlink(b().port->host()); }

  // `host` does nothing but passes that take so long, each between receiving and sending. The other
  // one's take no time.
  void run_busy(EchoHost<sim::SimPort>& host, uint64_t passes) {
    EchoHost<sim::SimPort>& other = &host == &a() ? b() : a();
    for (uint64_t pass = 0; pass < passes; ++pass) {
      const uint64_t end_ns = network.now_ns() + kPassNs;
      const auto meanwhile = [&] {
        for (;;) {
          while (other.poll(network.now_ns()) > 0) continue;
          if (network.now_ns() >= end_ns) return end_ns;
          const uint64_t next_ns =
              std::min(network.next_event_ns(), other.engine.next_deadline_ns());
          network.advance_to(std::clamp(next_ns, network.now_ns() + 1, end_ns));
        }
      };
      host.poll(network.now_ns(), meanwhile);
      meanwhile();  // where there was nothing to do
      longest_queue_ns = std::max(longest_queue_ns, network.backlog_ns(to_b()));
    }
  }
  uint64_t arrived() { return b().counters->get(Counter::kRxFrames); }
  uint64_t longest_queue_ns = 0;
};

TEST(BusyHost, APeerWhoseCoreIsBusyGetsAllThatItTakes) {
  BusyLab lab;
  lab.begin();
  lab.run_busy(lab.b(), kPasses);
  const uint64_t before = lab.arrived();
  lab.run_busy(lab.b(), kPasses);
  EXPECT_GT(lab.arrived() - before, kPasses * kBurst * 9 / 10);
  EXPECT_EQ(lab.b().counters->get(Counter::kDropNoBuffer), 0U);
}

TEST(BusyHost, ASenderWhoseCoreIsBusySendsAllThatItCan) {
  BusyLab lab;
  lab.begin();
  lab.run_busy(lab.a(), kPasses);
  const uint64_t before = lab.arrived();
  lab.run_busy(lab.a(), kPasses);
  EXPECT_GT(lab.arrived() - before, kPasses * kTxBurst * 8 / 10);
}

TEST(BusyHost, AQueueInTheNetworkIsCutWhoeverIsBusy) {
  for (const size_t busy : {0, 1}) {
    SCOPED_TRACE(busy);
    BusyLab lab;
    sim::LinkConfig slow = lab.network.config(lab.to_b());
    slow.bytes_per_second = 12'500'000;  // of which b's grants know nothing
    lab.network.set_config(lab.to_b(), slow);
    lab.begin();
    lab.run_busy(*lab.hosts[busy], kPasses);
    lab.longest_queue_ns = 0;
    lab.run_busy(*lab.hosts[busy], kPasses);
    // Delay takes no window below four frames, which take 120 us each here.
    EXPECT_LT(lab.longest_queue_ns, 8 * 120'000U);
    EXPECT_GT(lab.arrived(), 500U);
  }
}

}  // namespace
}  // namespace mercury::echo
