#include "transport/flow/packet_numbers.h"

#include <gtest/gtest.h>

namespace mercury {
namespace {

wire::Ack ack_of(uint64_t first, uint64_t last) {
  wire::Ack ack;
  ack.count = 2;
  ack.ranges[0] = {last, last};
  ack.ranges[1] = {first, first};
  return ack;
}

TEST(PacketNumbers, EachIsGivenOnceInOrder) {
  PacketNumbers numbers(UINT64_MAX - 1000);
  EXPECT_EQ(numbers.next(), UINT64_MAX - 1000);
  EXPECT_EQ(numbers.take(), UINT64_MAX - 1000);
  EXPECT_EQ(numbers.take(), UINT64_MAX - 999);
  EXPECT_EQ(numbers.next(), UINT64_MAX - 998);
}

TEST(PacketNumbers, AnAcknowledgementOfWhatWasNeverSentIsNotCovered) {
  PacketNumbers numbers(100);
  for (int i = 0; i < 10; ++i) numbers.take();
  EXPECT_TRUE(numbers.cover(ack_of(100, 109)));
  EXPECT_FALSE(numbers.cover(ack_of(100, 110)));
  EXPECT_FALSE(numbers.cover(ack_of(99, 109)));
}

}  // namespace
}  // namespace mercury
