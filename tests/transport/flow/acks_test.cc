// What one side's AckSender says and the other's AckReceiver makes of it.
#include <gtest/gtest.h>

#include "transport/flow/ack_receiver.h"
#include "transport/flow/ack_sender.h"

namespace mercury {
namespace {

struct Said {
  wire::Ack ack;
  wire::Header header;
};

Said say(AckSender& sender, uint64_t now_ns) {
  Said said;
  sender.report(said.ack, said.header, now_ns);
  return said;
}

SentRecord sent(uint64_t number, uint64_t sent_ns, uint32_t bytes) {
  SentRecord record;
  record.number = number;
  record.sent_ns = sent_ns;
  record.bytes = bytes;
  return record;
}

TEST(AckSender, CountsTheMarkOfEachFrameOnce) {
  AckSender sender(8, 1000);
  sender.on_received(1, false, 10, true);
  sender.on_received(2, false, 20, false);
  sender.on_received(4, false, 30, true);
  sender.on_received(4, false, 40, true);  // a duplicate
  EXPECT_EQ(sender.marked(), 2);
  EXPECT_EQ(say(sender, 50).ack.marked, 2);
  EXPECT_FALSE(sender.take_missing()) << "it may have been overtaken";
  sender.on_received(5, false, 60, false);
  sender.on_received(6, false, 70, false);
  EXPECT_TRUE(sender.take_missing());
}

TEST(AckSender, AnAcknowledgementIsNoneThatIsAcknowledged) {
  AckSender sender(1, 1000);
  sender.on_ack_received(5, 10);
  EXPECT_FALSE(sender.is_new(5));
  EXPECT_FALSE(sender.due(1'000'000));
  sender.on_received(6, false, 20, false);
  EXPECT_TRUE(sender.due(20));
  const Said said = say(sender, 20);
  ASSERT_EQ(said.ack.count, 1);
  EXPECT_EQ(said.ack.ranges[0].first, 5U);
  EXPECT_EQ(said.ack.ranges[0].last, 6U);
  EXPECT_FALSE(sender.due(1'000'000));
}

TEST(AckSender, SaysTheLatestGrantAndHowLongItWaited) {
  AckSender sender(8, 1'000'000);
  sender.on_received(1, false, 100'000, false);
  sender.set_grant(7, 3);
  sender.set_grant(9, 2);
  const Said said = say(sender, 350'000);
  EXPECT_EQ(said.header.grant, 9);
  EXPECT_EQ(said.header.idle_grant, 2);
  EXPECT_EQ(said.ack.delay_us, 250U);
  // A field of 32 bits: no host has waited longer, and one that was suspended must say something.
  EXPECT_EQ(say(sender, 100'000 + (uint64_t{1} << 32) * 1000).ack.delay_us, UINT32_MAX);
}

// The wait on the host before the engine took it is among it.
TEST(AckSender, SaysHowLongTheLargestHasBeenHereAndWhetherThatIsABound) {
  AckSender sender(8, 1'000'000);
  sender.on_received(1, false, 100'000, {false, false, 40'000});
  EXPECT_EQ(say(sender, 120'000).ack.delay_us, 60U);
  EXPECT_EQ(say(sender, 120'000).header.flags & wire::kFlagAtMost, 0);
  sender.on_received(2, false, 200'000, {false, true, 90'000});
  EXPECT_EQ(say(sender, 200'000).ack.delay_us, 90U);
  EXPECT_NE(say(sender, 200'000).header.flags & wire::kFlagAtMost, 0);
  sender.on_received(4, false, 300'000, {false, false, 10'000});  // behind a gap
  EXPECT_EQ(say(sender, 300'000).ack.delay_us, 10U);
  EXPECT_EQ(say(sender, 300'000).header.flags & wire::kFlagAtMost, 0);
  EXPECT_GT(sender.deadline_ns(), 300'000U) << "it was not taken earlier: nothing is overdue";
}

class AckReceiverTest : public testing::Test {
 protected:
  static wire::Ack ack(uint64_t largest, uint16_t marked) {
    wire::Ack ack;
    ack.count = 1;
    ack.ranges[0] = {0, largest};
    ack.marked = marked;
    return ack;
  }
  uint32_t marked(uint64_t number, uint16_t marked_so_far) {
    newest_ = receiver_.begin(number, ack(1, marked_so_far), 0, 0);
    return receiver_.end(0).marked;
  }
  AckReceiver receiver_;
  bool newest_ = false;
};

TEST_F(AckReceiverTest, MarksAreCountedFromOneToTheNextAndWrap) {
  EXPECT_EQ(marked(0, 65530), 65530U);
  EXPECT_TRUE(newest_);
  EXPECT_EQ(marked(4, 65535), 5U);
  EXPECT_EQ(marked(9, 2), 3U);
}

TEST_F(AckReceiverTest, OneThatWasOvertakenAddsNoMarkAndNoGrant) {
  EXPECT_EQ(marked(7, 10), 10U);
  EXPECT_EQ(marked(6, 8), 0U);
  EXPECT_FALSE(newest_);
  EXPECT_EQ(marked(7, 12), 0U);  // the same number again
  EXPECT_FALSE(newest_);
  EXPECT_EQ(marked(8, 11), 1U);  // since 10, not since 8
  EXPECT_TRUE(newest_);
}

TEST_F(AckReceiverTest, TheRoundTripIsThatOfTheLargestLessTheWait) {
  receiver_.begin(0, ack(5, 0), 3000, 10'000);
  receiver_.on_acked(sent(4, 3'000, 100));
  receiver_.on_acked(sent(5, 4'000, 200));
  const AckSample& sample = receiver_.end(1'000);
  EXPECT_EQ(sample.bytes, 300U);
  EXPECT_EQ(sample.packets, 2U);
  EXPECT_EQ(sample.newest_sent_ns, 4'000U);
  EXPECT_EQ(sample.in_flight_bytes, 3000U);
  EXPECT_EQ(sample.now_ns, 10'000U);
  EXPECT_EQ(sample.rtt_ns, 5'000U);
}

TEST_F(AckReceiverTest, AWaitLongerThanTheRoundTripIsNotBelieved) {
  receiver_.begin(0, ack(5, 0), 0, 10'000);
  receiver_.on_acked(sent(5, 4'000, 200));
  EXPECT_EQ(receiver_.end(6'000).rtt_ns, 6'000U);
}

TEST_F(AckReceiverTest, TheAcknowledgementsOwnWaitIsNoneOfTheNetworks) {
  receiver_.begin(0, ack(5, 0), 0, 10'000);
  receiver_.on_acked(sent(5, 4'000, 200));
  const AckSample& sample = receiver_.end(1'000, false, {false, false, 2'500});
  EXPECT_EQ(sample.rtt_ns, 2'500U);
  EXPECT_EQ(sample.rtt_most_ns, 2'500U);
}

TEST_F(AckReceiverTest, OfABoundTheNetworkMayHaveHadAll) {
  receiver_.begin(0, ack(5, 0), 0, 10'000);
  receiver_.on_acked(sent(5, 4'000, 200));
  const AckSample first = receiver_.end(1'000, false, {false, true, 2'500});
  EXPECT_EQ(first.rtt_ns, 2'500U);
  EXPECT_EQ(first.rtt_most_ns, 5'000U);
  receiver_.begin(1, ack(6, 0), 0, 20'000);
  receiver_.on_acked(sent(6, 14'000, 200));
  const AckSample& sample = receiver_.end(3'000, true, {false, false, 2'000});
  EXPECT_EQ(sample.rtt_ns, 1'000U);
  EXPECT_EQ(sample.rtt_most_ns, 4'000U);
}

TEST_F(AckReceiverTest, ABoundAboveTheRoundTripLeavesTheNetworkNothing) {
  receiver_.begin(0, ack(5, 0), 0, 10'000);
  receiver_.on_acked(sent(5, 4'000, 200));
  const AckSample& sample = receiver_.end(0, false, {false, true, 90'000});
  EXPECT_EQ(sample.rtt_ns, 1U);
  EXPECT_EQ(sample.rtt_most_ns, 6'000U);
}

TEST_F(AckReceiverTest, NothingIsLeftOfTheOneBefore) {
  receiver_.begin(0, ack(5, 0), 0, 10'000);
  receiver_.on_acked(sent(5, 4'000, 200));
  receiver_.end(0);
  receiver_.begin(1, ack(6, 0), 0, 11'000);
  receiver_.on_acked(sent(4, 3'000, 100));  // the largest came before, and is known
  const AckSample& sample = receiver_.end(0);
  EXPECT_EQ(sample.rtt_ns, 0U);
  EXPECT_EQ(sample.bytes, 100U);
}

}  // namespace
}  // namespace mercury
