// Source ports as the session sees them: told once it is open, and once for all.
#include <gtest/gtest.h>

#include "tests/transport/flow/pipe.h"
#include "transport/wire/source_ports.h"

namespace mercury::test {
namespace {

constexpr PortRange kPorts{7600, 3};

// Host 0 has source ports, host 1 none; both know what they are.
struct PortsLab {
  explicit PortsLab(uint32_t asks = wire::kFeatureSourcePorts,
                    uint32_t answers = wire::kFeatureSourcePorts, PortRange ports = kPorts)
      : net(1, of(ports)) {
    net.features |= asks;
    net.host[1].answer.features |= answers;
    net.tap = [this](int, std::span<const std::byte> frame) {
      told += frame[3] == static_cast<std::byte>(wire::FrameType::kSourcePorts) ? 1 : 0;
    };
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
