// Payloads that mbufs point at, without a NIC: each frame counts in the pin until it is freed, or
// until the port ends what it has lent.
#include "transport/port/ethdev/loan.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "transport/port/ethdev/eal.h"

namespace mercury::ethdev {
namespace {

constexpr size_t kPage = 4096;
constexpr uint32_t kMbufs = 1023;  // pools keep some for each core

class LoanTest : public testing::TestWithParam<bool> {
 protected:
  static void SetUpTestSuite() {
    const Status started = start_eal({.hugepages = Hugepages::kNever, .memory_mb = 64});
    ASSERT_TRUE(started) << started.error().message;
  }
  void SetUp() override {
    static int number = 0;
    how_.pool = create_gather_pool("loans" + std::to_string(number++), kMbufs);
    ASSERT_NE(how_.pool, nullptr);
    how_.lends = GetParam();
    stock_.emplace();
  }
  void TearDown() override {
    stock_.reset();
    EXPECT_EQ(rte_mempool_avail_count(how_.pool), kMbufs) << "an mbuf is lost";
    rte_mempool_free(how_.pool);
  }
  rte_mbuf* point(size_t at, size_t bytes) {
    segments_ = 0;
    return point_at(*stock_, how_, {memory_ + at, bytes}, pin_, segments_);
  }
  uint32_t readers() { return info_of(pin_)->refcnt; }

  alignas(kPage) static inline std::byte memory_[4 * kPage];
  Pointing how_;
  std::optional<BufferStock> stock_;
  PayloadPin pin_;
  uint16_t segments_ = 0;
};
INSTANTIATE_TEST_SUITE_P(LentAndNot, LoanTest, testing::Bool(),
                         [](const auto& name) { return name.param ? "Lent" : "CopiedInTheCall"; });

TEST_P(LoanTest, EveryFrameCountsUntilItIsFreed) {
  std::vector<rte_mbuf*> frames;
  for (uint32_t frame = 1; frame <= 3; ++frame) {
    frames.push_back(point(100, 1424));
    ASSERT_NE(frames.back(), nullptr);
    EXPECT_EQ(segments_, 1);
    EXPECT_EQ(readers(), frame);
    EXPECT_EQ(rte_pktmbuf_mtod(frames.back(), std::byte*), memory_ + 100);
    EXPECT_EQ(frames.back()->data_len, 1424);
    if (how_.lends) {
      EXPECT_EQ(rte_pktmbuf_iova(frames.back()), reinterpret_cast<uintptr_t>(memory_ + 100));
    }
  }
  for (uint32_t left = 3; left-- > 0;) {
    rte_pktmbuf_free(frames[left]);
    EXPECT_EQ(readers(), left);
  }
}

TEST_P(LoanTest, NoSegmentCrossesAPage) {
  how_.page_bytes = kPage;
  rte_mbuf* const first = point(kPage - 100, 2 * kPage);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(segments_, 3);
  EXPECT_EQ(readers(), 3U);
  const std::byte* expected = memory_ + kPage - 100;
  std::vector<uint16_t> lengths;
  for (const rte_mbuf* segment = first; segment != nullptr; segment = segment->next) {
    EXPECT_EQ(rte_pktmbuf_mtod(segment, const std::byte*), expected);
    expected += segment->data_len;
    lengths.push_back(segment->data_len);
  }
  EXPECT_EQ(lengths, (std::vector<uint16_t>{100, kPage, kPage - 100}));
  rte_pktmbuf_free(first);
  EXPECT_EQ(readers(), 0U);
}

TEST_P(LoanTest, APayloadForWhichMbufsDoNotSufficeIsNotPointedAtAtAll) {
  std::vector<rte_mbuf*> taken;
  while (rte_mbuf* const mbuf = point(0, 64)) taken.push_back(mbuf);
  EXPECT_EQ(readers(), taken.size());
  rte_pktmbuf_free(taken.back());
  taken.pop_back();
  how_.page_bytes = kPage;
  EXPECT_EQ(point(kPage - 100, 2 * kPage), nullptr) << "three are needed, one is there";
  EXPECT_EQ(readers(), taken.size());
  for (rte_mbuf* const mbuf : taken) rte_pktmbuf_free(mbuf);
  EXPECT_EQ(readers(), 0U);
}

TEST_P(LoanTest, AfterALoanHasEndedADriverMayLetGoLate) {
  if (!how_.lends) GTEST_SKIP() << "nothing is lent";
  rte_mbuf* const frame = point(0, 64);
  ASSERT_NE(frame, nullptr);
  loan_of(frame)->end();
  EXPECT_EQ(readers(), 0U);
  loan_of(frame)->end();
  EXPECT_EQ(readers(), 0U);
  info_of(pin_)->refcnt = 7;  // the memory is somebody else's now
  rte_pktmbuf_free(frame);
  EXPECT_EQ(readers(), 7U);
}

}  // namespace
}  // namespace mercury::ethdev
