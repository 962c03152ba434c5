// VLAN tags that no device fills in, on the wire between two ports.
#include "transport/port/ethdev/vlan.h"

#include <gtest/gtest.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "tests/transport/port/ethdev/ring_ports.h"
#include "transport/port/ethdev/ethdev_port.h"
#include "transport/port/ethdev/l2.h"
#include "transport/wire/header.h"

namespace mercury::ethdev {
namespace {

constexpr uint16_t kVlan = 1234;
using Frame = std::vector<uint8_t>;

class VlanPort : public RingPort {
 protected:
  void open_vlans(uint16_t of_a, uint16_t of_b, const std::string& classes = "") {
    static int number = 0;
    const std::string ring = "vlan" + std::to_string(number++);
    a_.emplace(ring, uint8_t{1}, uint16_t{1}, uint16_t{1}, of_a, classes);
    b_.emplace(ring, uint8_t{2}, uint16_t{1}, uint16_t{1}, of_b, classes);
    ASSERT_TRUE(a_->device && b_->device);
  }
  // What waits on the wire before a side.
  static std::vector<Frame> wire_to(const Side& side) {
    std::vector<Frame> frames;
    rte_mbuf* waiting[32];
    const uint16_t count = rte_eth_rx_burst(side.device->dpdk_port(), 0, waiting, 32);
    for (rte_mbuf* frame : std::span(waiting, count)) {
      const auto* bytes = rte_pktmbuf_mtod(frame, const uint8_t*);
      frames.emplace_back(bytes, bytes + rte_pktmbuf_data_len(frame));
      rte_pktmbuf_free(frame);
    }
    return frames;
  }
  // Puts a frame of the test's own on the wire from `side`.
  static void inject(const Side& side, Side& lender, const Frame& bytes) {
    rte_mbuf* frame = rte_pktmbuf_alloc(lender.device->lane(0).pool);
    ASSERT_NE(frame, nullptr);
    std::memcpy(rte_pktmbuf_append(frame, static_cast<uint16_t>(bytes.size())), bytes.data(),
                bytes.size());
    ASSERT_EQ(rte_eth_tx_burst(side.device->dpdk_port(), 0, &frame, 1), 1);
  }
  static uint16_t tag_of(const Frame& frame) {
    return load_be16(&frame[12]) == kEtherVlan ? load_be16(&frame[14]) : 0;
  }
};

TEST_F(VlanPort, BothFamiliesAndTheLargestFramesAreCarried) {
  open_vlans(kVlan, kVlan);
  EthdevPort& port = *a_->ports[0];
  for (const Endpoint& to : {b_->v4(), b_->v6()}) {
    const PathId path = ready_path(port, to);
    const uint32_t largest = port.path_max_payload(path);
    EXPECT_EQ(largest, to.ip.is_v4() ? 1472U : 1452U);  // the tag is no part of the packet
    seen_.clear();
    EXPECT_TRUE(send(port, path, std::string(largest, 'x')));
    for (int i = 0; i < 3; ++i) pass();
    EXPECT_EQ(seen_, std::vector<std::string>{std::string(largest, 'x')});
  }
  EXPECT_EQ(a_->count(Counter::kDropVlan) + b_->count(Counter::kDropVlan), 0U);
}

// Questions for neighbours, their answers and datagrams.
TEST_F(VlanPort, EveryFrameOnTheWireHasTheTag) {
  open_vlans(kVlan, kVlan);
  EthdevPort& port = *a_->ports[0];
  std::set<uint16_t> inner;
  for (const Endpoint& to : {b_->v4(), b_->v6()}) {
    ASSERT_TRUE(port.open_path(to));
    now_ += kMs;
    port.tick(now_);
    port.tx_flush(now_);
    const std::vector<Frame> questions = wire_to(*b_);
    ASSERT_EQ(questions.size(), 1U);
    EXPECT_EQ(tag_of(questions[0]), kVlan);
    inner.insert(load_be16(&questions[0][16]));
    inject(*a_, *a_, questions[0]);
    drive(*b_->ports[0]);
    const std::vector<Frame> answers = wire_to(*a_);
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(tag_of(answers[0]), kVlan);
    inject(*b_, *b_, answers[0]);
    drive(port);
    const PathId path = *port.open_path(to);
    ASSERT_TRUE(port.path_ready(path));
    EXPECT_TRUE(send(port, path, "x"));
    port.tx_flush(now_);
    const std::vector<Frame> sent = wire_to(*b_);
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(tag_of(sent[0]), kVlan);
  }
  EXPECT_EQ(inner, (std::set<uint16_t>{kEtherArp, kEtherIpv6}));
}

TEST_F(VlanPort, FramesOfOthersAreDroppedUnderTheirCounter) {
  open_vlans(kVlan, kVlan);
  EthdevPort& port = *a_->ports[0];
  const PathId path = ready_path(port, b_->v4());
  EXPECT_TRUE(send(port, path, "x"));
  port.tx_flush(now_);
  const Frame own = wire_to(*b_).at(0);
  Frame others = own, untagged = own, unnamed = own, cut = own;
  store_be16(&others[14], kVlan + 1);
  store_be16(&unnamed[14], 0x2000);  // a priority alone
  untagged.erase(untagged.begin() + 12, untagged.begin() + 16);
  cut.resize(kEtherHeaderBytes + kVlanTagBytes - 1);
  seen_.clear();
  for (const Frame& frame : {others, untagged, unnamed, cut}) inject(*a_, *a_, frame);
  drive(*b_->ports[0]);
  EXPECT_EQ(b_->count(Counter::kDropVlan), 4U);
  EXPECT_TRUE(seen_.empty());
  Frame urgent = own;
  store_be16(&urgent[14], 0xe000 | kVlan);  // whatever its priority
  inject(*a_, *a_, urgent);
  drive(*b_->ports[0]);
  EXPECT_EQ(seen_, std::vector<std::string>{"x"});
}

TEST_F(VlanPort, APortWithoutOneDropsTagsUnderTheSameCounter) {
  open_vlans(kVlan, 0);
  EthdevPort& port = *a_->ports[0];
  ASSERT_TRUE(port.open_path(b_->v4()));
  for (int i = 0; i < 3; ++i) pass();
  EXPECT_GT(b_->count(Counter::kDropVlan), 0U);
  ASSERT_TRUE(b_->ports[0]->open_path(a_->v4()));
  for (int i = 0; i < 3; ++i) pass();
  EXPECT_GT(a_->count(Counter::kDropVlan), 0U);
}

// A frame that came before the engine slept is looked at as any other.
TEST_F(VlanPort, AnotherVlansFrameKeepsNobodyAwake) {
  open_vlans(kVlan, kVlan);
  EthdevPort& port = *a_->ports[0];
  const PathId path = ready_path(port, b_->v4());
  for (int i = 0; i < 3; ++i) pass();
  EXPECT_TRUE(send(port, path, "x"));
  port.tx_flush(now_);
  const Frame own = wire_to(*b_).at(0);
  Frame others = own;
  store_be16(&others[14], kVlan + 1);
  inject(*a_, *a_, others);
  EXPECT_TRUE(b_->ports[0]->prepare_sleep());
  EXPECT_EQ(b_->count(Counter::kDropVlan), 1U);
  inject(*a_, *a_, own);
  EXPECT_FALSE(b_->ports[0]->prepare_sleep());
}

// The priority of the tag is the upper half of the DSCP.
TEST_F(VlanPort, TheTagHasThePriorityOfTheTrafficClass) {
  open_vlans(kVlan, kVlan, "16:46, 256:26");
  EthdevPort& port = *a_->ports[0];
  const PathId path = ready_path(port, b_->v4());
  for (const auto& [priority, code_point] :
       {std::pair<uint16_t, uint16_t>{0, 5}, {16, 3}, {256, 0}}) {
    wire::Header header;
    header.type = wire::FrameType::kDatagram0;
    header.priority = priority;
    std::string frame(sizeof(wire::DatagramHeader), '\0');
    wire::encode(header, reinterpret_cast<std::byte*>(frame.data()));
    EXPECT_TRUE(send(port, path, frame));
    port.tx_flush(now_);
    const Frame sent = wire_to(*b_).at(0);
    EXPECT_EQ(tag_of(sent), code_point << 13 | kVlan) << priority;
  }
}

TEST_F(VlanPort, EnginesOfOneHostNeedNone) {
  open_vlans(kVlan, kVlan);
  const PathId path = ready_path(*a_->ports[0], a_->v4());
  seen_.clear();
  EXPECT_TRUE(send(*a_->ports[0], path, "to myself"));
  for (int i = 0; i < 2; ++i) pass();
  EXPECT_EQ(seen_, std::vector<std::string>{"to myself"});
}

}  // namespace
}  // namespace mercury::ethdev
