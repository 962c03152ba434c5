// Source ports as the session sees them: told once it is open, and once for all.
#include <gtest/gtest.h>

#include "tests/transport/flow/pipe.h"
#include "transport/wire/source_ports.h"

namespace mercury::test {
namespace {

constexpr PortRange kPorts{7600, 3};

bool tells_ports(std::span<const std::byte> frame) {
  return frame[3] == static_cast<std::byte>(wire::FrameType::kSourcePorts);
}
void drop_ports(Net& net) {
  net.alter = [](int, Bytes& frame) {
    if (tells_ports(frame)) frame.back() ^= std::byte{1};
  };
}

// Host 0 has source ports, host 1 none; both know what they are.
struct PortsLab {
  explicit PortsLab(uint32_t asks = wire::kFeatureSourcePorts,
                    uint32_t answers = wire::kFeatureSourcePorts, PortRange ports = kPorts,
                    const std::function<void(Net&)>& prepare = {})
      : net(1, of(ports)) {
    if (prepare) prepare(net);
    net.features |= asks;
    net.host[1].answer.features |= answers;
    net.tap = [this](int, std::span<const std::byte> frame) { told += tells_ports(frame) ? 1 : 0; };
    net.connect();
    net.run_for(kSecond / 10);
  }
  static SessionConfig of(const PortRange& ports) {
    SessionConfig config;
    config.source_ports = ports;
    return config;
  }
  // Host 0 tells these, under its next packet number.
  uint64_t say(const PortRange& ports) {
    std::array<std::byte, wire::kSourcePortsBytes> body{};
    wire::encode_source_ports(ports, body.data());
    const uint64_t before = net.host[1].counters.get(Counter::kDropHandshake);
    net.host[1].session->on_frame(plain_header(wire::FrameType::kSourcePorts, body, next_number++,
                                               net.host[1].session->tag()),
                                  body, net.now_ns);
    return net.host[1].counters.get(Counter::kDropHandshake) - before;
  }

  Net net;
  uint32_t told = 0;
  uint64_t next_number = 1000;
};

TEST(SessionPorts, AreToldAndKnown) {
  PortsLab lab;
  EXPECT_EQ(lab.net.host[1].peer_ports, kPorts);
  EXPECT_EQ(lab.net.host[1].ports_told, 1U);
  EXPECT_EQ(lab.net.host[0].ports_known, 1U);
  EXPECT_EQ(lab.net.host[1].ports_known + lab.net.host[0].ports_told, 0U) << "host 1 has none";
  EXPECT_EQ(lab.told, 1U);
}

TEST(SessionPorts, NothingIsSaidWhereOneSideDoesNotKnowThemOrThereAreNone) {
  constexpr uint32_t kKnown = wire::kFeatureSourcePorts;
  struct Row {
    uint32_t asks, answers;
    PortRange ports;
  };
  for (const Row& row : {Row{0, kKnown, kPorts}, Row{kKnown, 0, kPorts}, Row{kKnown, kKnown, {}}}) {
    PortsLab lab(row.asks, row.answers, row.ports);
    EXPECT_EQ(lab.told, 0U);
    EXPECT_EQ(lab.net.host[0].ports_known + lab.net.host[1].ports_told, 0U);
  }
}

TEST(SessionPorts, OthersAreNotTakenLater) {
  PortsLab lab;
  EXPECT_EQ(lab.say(kPorts), 0U) << "said again";
  EXPECT_EQ(lab.say({7601, 3}), 1U);
  EXPECT_EQ(lab.say({7600, 4}), 1U);
  EXPECT_EQ(lab.net.host[1].peer_ports, kPorts);
  EXPECT_EQ(lab.net.host[1].ports_told, 1U);
}

// Whoever is on the way drops what it does not know: all else goes on, from one port.
TEST(SessionPorts, OfWhichThePeerNeverHearsAreToldNoMore) {
  for (const bool sealed : {false, true}) {
    PortsLab lab(wire::kFeatureSourcePorts, wire::kFeatureSourcePorts, kPorts, [&](Net& net) {
      if (sealed) net.with_seals();
      drop_ports(net);
    });
    lab.net.host[0].queue_chunks(2'000);
    ASSERT_TRUE(lab.net.run([&] { return lab.net.host[0].all_acked(); }, kSecond));
    lab.net.run_for(10 * kSecond);
    EXPECT_EQ(lab.told, 16U);
    EXPECT_EQ(lab.net.host[0].counters.get(Counter::kSourcePortsUnheard), 1U);
    EXPECT_EQ(lab.net.host[0].ports_known, 0U);
    EXPECT_EQ(lab.net.host[0].closed, 0);
    EXPECT_EQ(lab.net.host[0].lost, 0);
  }
}

// Silence says nothing of them.
TEST(SessionPorts, AreToldOnceThePathHasHealed) {
  PortsLab lab(wire::kFeatureSourcePorts, wire::kFeatureSourcePorts, kPorts, [](Net& net) {
    net.alter = [&net](int, const Bytes& frame) { net.weather.down |= tells_ports(frame); };
  });
  lab.net.run_for(5 * kSecond);
  EXPECT_GT(lab.told, 16U);
  EXPECT_EQ(lab.net.host[0].ports_known, 0U);
  lab.net.alter = nullptr;
  lab.net.weather.down = false;
  lab.net.run_for(kSecond);
  EXPECT_EQ(lab.net.host[0].ports_known, 1U);
  EXPECT_EQ(lab.net.host[0].counters.get(Counter::kSourcePortsUnheard), 0U);
}

TEST(SessionPorts, ThatNobodyMayHaveAreDropped) {
  PortsLab lab(wire::kFeatureSourcePorts, wire::kFeatureSourcePorts, PortRange{});
  for (const PortRange& bad :
       {PortRange{7600, 0}, PortRange{7600, 16}, PortRange{0, 3}, PortRange{65'534, 3}}) {
    EXPECT_EQ(lab.say(bad), 1U) << bad.first;
  }
  EXPECT_EQ(lab.net.host[1].ports_told, 0U);
  EXPECT_EQ(lab.say(kPorts), 0U);
  EXPECT_EQ(lab.net.host[1].peer_ports, kPorts);
  PortsLab old(wire::kFeatureSourcePorts, 0);
  EXPECT_EQ(old.say(kPorts), 1U) << "it was not asked for";
  EXPECT_EQ(old.net.host[1].ports_told, 0U);
}

}  // namespace
}  // namespace mercury::test
