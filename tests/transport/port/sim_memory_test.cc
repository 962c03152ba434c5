// Payloads that several frames share, and the memory that they lie in, as the simulated NIC reads
// them.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/transport/port/sim_star.h"

namespace mercury::sim {
namespace {

TEST(SimNetwork, APayloadThatNobodyMappedWhenItIsReadIsCounted) {
  Star star(2);
  SimPort& port = *star.ports[0];
  const PathId path = *port.open_path(endpoint(2));
  alignas(4096) static std::byte memory[2 * 4096];
  PayloadPin pin;
  const auto unmapped_reads_of = [&](size_t at, size_t bytes, auto before_it_is_read) {
    const uint64_t before = star.network.unmapped_reads();
    TxFrame frame;
    EXPECT_TRUE(port.tx_alloc(frame));
    port.tx_send_shared(frame, 4, path, {memory + at, bytes}, pin);
    port.tx_flush(0);
    before_it_is_read();
    star.run(1);
    EXPECT_FALSE(port.pin_busy(pin));
    return star.network.unmapped_reads() - before;
  };
  const auto nothing = [] {};
  EXPECT_EQ(unmapped_reads_of(0, 100, nothing), 1u);
  const auto key = port.map({memory, 4096});
  ASSERT_TRUE(key);
  EXPECT_EQ(unmapped_reads_of(0, 100, nothing), 0u);
  EXPECT_EQ(unmapped_reads_of(4096 - 100, 100, nothing), 0u);
  EXPECT_EQ(unmapped_reads_of(4096 - 50, 100, nothing), 1u) << "half of it";
  EXPECT_EQ(unmapped_reads_of(4096, 100, nothing), 1u);
  EXPECT_EQ(unmapped_reads_of(0, 100, [&] { port.unmap(*key); }), 1u);
  EXPECT_EQ(unmapped_reads_of(0, 100, nothing), 1u);
  EXPECT_EQ(star.received.size(), 7u) << "they are carried all the same";
}

TEST(SimNetwork, OnlyWholePagesAreMappedAndEachOnce) {
  Star star(1);
  SimPort& port = *star.ports[0];
  alignas(4096) static std::byte memory[4 * 4096];
  EXPECT_FALSE(port.map({memory, 0}));
  EXPECT_FALSE(port.map({memory, 100}));
  EXPECT_FALSE(port.map({memory + 64, 4096}));
  const auto key = port.map({memory + 4096, 2 * 4096});
  ASSERT_TRUE(key);
  EXPECT_FALSE(port.map({memory, 2 * 4096}));
  EXPECT_FALSE(port.map({memory + 4096, 4096}));
  EXPECT_FALSE(port.map({memory + 2 * 4096, 2 * 4096}));
  EXPECT_TRUE(port.map({memory, 4096}));
  EXPECT_TRUE(port.map({memory + 3 * 4096, 4096}));
  port.unmap(*key);
  EXPECT_TRUE(port.map({memory + 4096, 2 * 4096}));
}

TEST(SimNetwork, ASharedPayloadIsReadWhenItLeavesTheNic) {
  Star star(2);
  SimPort& port = *star.ports[0];
  std::vector<std::byte> payload(600, std::byte{1});
  PayloadPin pin;
  TxFrame frame;
  ASSERT_TRUE(port.tx_alloc(frame));
  port.tx_send_shared(frame, 4, *port.open_path(endpoint(2)), payload, pin);
  port.tx_flush(0);
  EXPECT_TRUE(port.pin_busy(pin));
  payload.assign(600, std::byte{2});  // too early: what the pin forbids shows on the wire
  star.network.advance_to(star.network.next_event_ns());
  EXPECT_FALSE(port.pin_busy(pin));
  payload.assign(600, std::byte{3});
  std::array<RxFrame, 1> burst;
  while (star.ports[1]->rx_burst(burst, 0) == 0)
    star.network.advance_to(star.network.next_event_ns());
  ASSERT_EQ(burst[0].payload.size(), 604u);
  EXPECT_EQ(burst[0].payload[4], std::byte{2});
  EXPECT_EQ(burst[0].payload[603], std::byte{2});
  star.ports[1]->rx_release();
}

}  // namespace
}  // namespace mercury::sim
