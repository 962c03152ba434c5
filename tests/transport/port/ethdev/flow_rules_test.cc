// Rules for a NIC's queues, given to one that is not there: DPDK's calls end here, and frames as
// ports write them are sorted by what the rules say.
#include "transport/port/ethdev/flow_rules.h"

#include <gtest/gtest.h>
#include <rte_flow.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/port/ethdev/ip.h"

namespace mercury::ethdev {
namespace {

using Bytes = std::vector<uint8_t>;

// What a frame must be: of each header the bits that count.
struct Layer {
  rte_flow_item_type type;
  Bytes spec, mask;
};
struct NicRule {
  std::vector<Layer> layers;
  uint16_t queue = 0;
};

uint16_t ether_type_of(rte_flow_item_type type) {
  switch (type) {
    case RTE_FLOW_ITEM_TYPE_VLAN:
      return kEtherVlan;
    case RTE_FLOW_ITEM_TYPE_IPV4:
      return kEtherIpv4;
    case RTE_FLOW_ITEM_TYPE_IPV6:
      return kEtherIpv6;
    default:
      return 0;
  }
}

size_t header_bytes(rte_flow_item_type type) {
  switch (type) {
    case RTE_FLOW_ITEM_TYPE_ETH:
      return kEtherHeaderBytes;
    case RTE_FLOW_ITEM_TYPE_VLAN:
      return kVlanTagBytes;
    case RTE_FLOW_ITEM_TYPE_IPV4:
      return kIpv4HeaderBytes;
    case RTE_FLOW_ITEM_TYPE_IPV6:
      return kIpv6HeaderBytes;
    case RTE_FLOW_ITEM_TYPE_UDP:
      return kUdpHeaderBytes;
    default:
      return 0;
  }
}

struct Nic {
  bool wants_names = false;  // of the next header
  bool refuses_names = false;
  bool knows_v6 = true;
  bool knows_tags = true;
  bool looks_behind_tags = false;   // also where no rule has one
  bool takes_any_protocol = false;  // where none is named (ixgbe)
  size_t room = 100;
  std::vector<std::unique_ptr<NicRule>> rules;

  std::optional<NicRule> read(const rte_flow_attr& attributes, const rte_flow_item* item,
                              const rte_flow_action* action) const {
    NicRule rule;
    if (attributes.ingress == 0 || action[0].type != RTE_FLOW_ACTION_TYPE_QUEUE ||
        action[1].type != RTE_FLOW_ACTION_TYPE_END) {
      return {};
    }
    rule.queue = static_cast<const rte_flow_action_queue*>(action[0].conf)->index;
    for (; item->type != RTE_FLOW_ITEM_TYPE_END; ++item) {
      const size_t bytes = header_bytes(item->type);
      const bool is_ip =
          item->type == RTE_FLOW_ITEM_TYPE_IPV4 || item->type == RTE_FLOW_ITEM_TYPE_IPV6;
      const bool names = item->spec != nullptr;
      if (bytes == 0 || names != (item->mask != nullptr) || item->last != nullptr) return {};
      if (is_ip && ((wants_names && !names) || (refuses_names && names))) return {};
      if (item->type == RTE_FLOW_ITEM_TYPE_IPV6 && !knows_v6) return {};
      if (item->type == RTE_FLOW_ITEM_TYPE_VLAN && !knows_tags) return {};
      Layer layer{item->type, Bytes(bytes), Bytes(bytes)};
      if (names) {
        std::memcpy(layer.spec.data(), item->spec, bytes);
        std::memcpy(layer.mask.data(), item->mask, bytes);
      }
      rule.layers.push_back(std::move(layer));
    }
    return rule;
  }
  // Of the first rule that the frame is one of; -1: of none, so by its hash.
  int queue_of(const Bytes& frame) const {
    for (const auto& rule : rules) {
      if (is_of(frame, *rule)) return rule->queue;
    }
    return -1;
  }
  bool is_of(const Bytes& frame, const NicRule& rule) const {
    size_t at = 0;
    uint16_t type = 0;
    uint8_t next_header = 0;
    for (const Layer& layer : rule.layers) {
      const uint16_t expected = ether_type_of(layer.type);
      if (layer.type == RTE_FLOW_ITEM_TYPE_UDP && next_header != 17 && !takes_any_protocol) {
        return false;
      }
      if (looks_behind_tags && type == kEtherVlan && expected != kEtherVlan) {
        type = load_be16(&frame[at + 2]);
        at += kVlanTagBytes;
      }
      if (at + layer.spec.size() > frame.size() || (expected != 0 && expected != type))
        return false;
      for (size_t i = 0; i < layer.spec.size(); ++i) {
        if (((frame[at + i] ^ layer.spec[i]) & layer.mask[i]) != 0) return false;
      }
      at += layer.spec.size();
      if (expected == 0 || expected == kEtherVlan) type = load_be16(&frame[at - 2]);
      if (expected == kEtherIpv4) next_header = frame[at - 11];
      if (expected == kEtherIpv6) next_header = frame[at - 34];
    }
    return true;
  }
};

Nic* nic = nullptr;

}  // namespace
}  // namespace mercury::ethdev

// Those of DPDK, which this program does not reach.
extern "C" {
rte_flow* rte_flow_create(uint16_t, const rte_flow_attr* attributes, const rte_flow_item pattern[],
                          const rte_flow_action actions[], rte_flow_error*) {
  mercury::ethdev::Nic& nic = *mercury::ethdev::nic;
  auto rule = nic.read(*attributes, pattern, actions);
  if (!rule || nic.rules.size() == nic.room) return nullptr;
  nic.rules.push_back(std::make_unique<mercury::ethdev::NicRule>(std::move(*rule)));
  return reinterpret_cast<rte_flow*>(nic.rules.back().get());
}
int rte_flow_destroy(uint16_t, rte_flow* flow, rte_flow_error*) {
  return std::erase_if(mercury::ethdev::nic->rules,
                       [flow](const auto& rule) {
                         return reinterpret_cast<rte_flow*>(rule.get()) == flow;
                       }) == 1
             ? 0
             : -ENOENT;
}
}

namespace mercury::ethdev {
namespace {

constexpr uint16_t kFirst = 7470;

class FlowRules : public ::testing::Test {
 protected:
  FlowRules() { nic = &nic_; }

  static Bytes frame_to(uint16_t udp_port, bool v6, bool tagged = false) {
    const IpAddress from = *IpAddress::parse(v6 ? "fd00::1" : "10.0.0.1");
    const IpAddress to = *IpAddress::parse(v6 ? "fd00::2" : "10.0.0.2");
    const HeaderTemplate header =
        make_template(MacAddress{{2, 0, 0, 0, 0, 1}}, MacAddress{{2, 0, 0, 0, 0, 2}},
                      Endpoint{from, 7777}, Endpoint{to, udp_port});
    std::byte frame[kMaxHeaderBytes]{};
    write_headers(header, frame, {}, {}, false);
    Bytes bytes(bytes_of(frame), bytes_of(frame) + header.length);
    const uint8_t tag[] = {0x81, 0x00, 0x00, 0x05};
    if (tagged) bytes.insert(bytes.begin() + 12, std::begin(tag), std::end(tag));
    return bytes;
  }
  // All that engines hear is in their queues, and nothing else is in any.
  void expect_steered(const FlowPorts& ports, bool v6) {
    SCOPED_TRACE(v6 ? "IPv6" : "IPv4");
    for (uint16_t engine = 0; engine < ports.engines; ++engine) {
      const auto port = static_cast<uint16_t>(ports.first + engine);
      EXPECT_EQ(nic_.queue_of(frame_to(port, v6, ports.tagged)), engine % ports.queues);
      EXPECT_EQ(nic_.queue_of(frame_to(port, v6, !ports.tagged)), -1);
      Bytes not_udp = frame_to(port, v6, ports.tagged);
      not_udp[(ports.tagged ? 4 : 0) + (v6 ? 20 : 23)] = 6;
      EXPECT_EQ(nic_.queue_of(not_udp), -1);
    }
    const auto beyond = static_cast<uint16_t>(ports.first + ports.engines);
    EXPECT_EQ(nic_.queue_of(frame_to(beyond, v6, ports.tagged)), -1);
  }
  static void expect_both(const Steered& done) { EXPECT_TRUE(done.v4 && done.v6); }
  void expect_all_steered(const FlowPorts& ports) {
    expect_both(steer_to_engines(0, ports));
    for (const bool v6 : {false, true}) expect_steered(ports, v6);
  }
  void expect_by_hash(bool v6) {
    EXPECT_EQ(nic_.queue_of(frame_to(kFirst, v6)), -1);
    EXPECT_EQ(nic_.queue_of(frame_to(kFirst, v6, true)), -1);
  }

  Nic nic_;
};

TEST_F(FlowRules, FramesComeToTheQueueOfTheEngineThatHearsThem) {
  expect_all_steered({kFirst, 4, 4, true, true, false});
  EXPECT_EQ(nic_.rules.size(), 8U);
}

TEST_F(FlowRules, EnginesWithoutAQueueHaveThatOfTheirOwner) {
  expect_all_steered({kFirst, 8, 3, true, true, false});
}

TEST_F(FlowRules, ANicMayWantTheNextHeaderNamedOrNot) {
  for (const bool wants : {false, true}) {
    nic_ = Nic();
    nic_.wants_names = wants;
    nic_.refuses_names = !wants;
    nic_.takes_any_protocol = wants;
    expect_all_steered({kFirst, 2, 2, true, true, false});
    EXPECT_EQ(nic_.rules.size(), 4U);
  }
}

TEST_F(FlowRules, FramesWithATagAreSteeredWhereTheNicLooksBehindIt) {
  expect_all_steered({kFirst, 2, 2, true, true, true});
}

// Frames without a tag are in queues by the same rules then; the port drops them.
TEST_F(FlowRules, ANicMayLookBehindATagThatNoRuleHas) {
  nic_.knows_tags = false;
  nic_.looks_behind_tags = true;
  expect_both(steer_to_engines(0, {kFirst, 2, 2, true, true, true}));
  for (const bool v6 : {false, true}) {
    EXPECT_EQ(nic_.queue_of(frame_to(kFirst, v6, true)), 0);
    EXPECT_EQ(nic_.queue_of(frame_to(kFirst + 1, v6, true)), 1);
    EXPECT_EQ(nic_.queue_of(frame_to(kFirst + 2, v6, true)), -1);
  }
}

// ixgbe.
TEST_F(FlowRules, WhereNoNamedProtocolIsAnyUdpIsNamed) {
  nic_.takes_any_protocol = true;
  expect_all_steered({kFirst, 2, 2, true, true, false});
}

TEST_F(FlowRules, AFamilyThatItDoesNotKnowGoesByHash) {
  nic_.knows_v6 = false;
  const FlowPorts ports{kFirst, 4, 4, true, true, false};
  const Steered done = steer_to_engines(0, ports);
  EXPECT_TRUE(done.v4);
  EXPECT_FALSE(done.v6);
  expect_steered(ports, false);
  expect_by_hash(true);
}

TEST_F(FlowRules, NoneIsMadeOfAFamilyThatTheHostHasNot) {
  const Steered done = steer_to_engines(0, {kFirst, 4, 4, false, true, false});
  EXPECT_FALSE(done.v4);
  EXPECT_TRUE(done.v6);
  EXPECT_EQ(nic_.rules.size(), 4U);
  expect_by_hash(false);
}

// Half of the engines by rule and half by hash would be neither fast nor even.
TEST_F(FlowRules, WhereThereIsNoRoomForAllNoneIsLeft) {
  for (size_t room = 0; room < 8; ++room) {
    SCOPED_TRACE(room);
    nic_ = Nic();
    nic_.room = room;
    const Steered done = steer_to_engines(0, {kFirst, 4, 4, true, true, false});
    EXPECT_EQ(done.v4, room >= 4);
    EXPECT_FALSE(done.v6);
    EXPECT_EQ(nic_.rules.size(), room < 4 ? 0U : 4U);
  }
}

}  // namespace
}  // namespace mercury::ethdev
