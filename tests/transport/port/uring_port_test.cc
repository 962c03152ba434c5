#include "transport/port/uring/uring_port.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <set>
#include <vector>

namespace mercury::uring {
namespace {

static_assert(Port<UringPort>);

class UringPortTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    a_ = open(GetParam());
    b_ = open(GetParam());
    path_ = *a_->open_path(b_->info().local);
  }
  std::unique_ptr<UringPort> open(const char* address) {
    Result<std::unique_ptr<UringPort>> port =
        UringPort::create({*Endpoint::parse(address), 0, 0, 512, 64}, counters_);
    EXPECT_TRUE(port) << port.error().message;
    return std::move(*port);
  }
  static std::byte pattern(uint32_t seed, size_t at) {
    return static_cast<std::byte>((seed * 131 + at * 7) & 0xff);
  }
  bool send(uint32_t seed, uint32_t bytes) {
    TxFrame frame;
    if (!a_->tx_alloc(frame)) return false;
    std::memcpy(frame.data, &seed, 4);
    for (size_t i = 4; i < bytes; ++i) frame.data[i] = pattern(seed, i);
    a_->tx_send(frame, path_, bytes);
    return true;
  }
  // Receives on b until `count` frames have come or nothing more does; checks every byte.
  std::multiset<uint32_t> receive(size_t count) {
    std::multiset<uint32_t> seeds;
    std::vector<RxFrame> burst(32);
    while (seeds.size() < count) {
      a_->tx_flush(0);
      const uint32_t got = b_->rx_burst(burst, 0);
      for (uint32_t i = 0; i < got; ++i) {
        const auto payload = burst[i].payload;
        uint32_t seed = 0;
        std::memcpy(&seed, payload.data(), 4);
        for (size_t k = 4; k < payload.size(); ++k) {
          if (payload[k] != pattern(seed, k)) {
            ADD_FAILURE() << "byte " << k << " of frame " << seed;
            break;
          }
        }
        EXPECT_EQ(burst[i].source, a_->info().local);
        seeds.insert(seed);
      }
      if (got > 0) {
        b_->rx_release();
      } else if (b_->prepare_sleep()) {
        pollfd fd{b_->wait_fd(), POLLIN, 0};
        if (poll(&fd, 1, 1000) == 0) break;
      }
    }
    return seeds;
  }
  Counters counters_;
  std::unique_ptr<UringPort> a_, b_;
  PathId path_;
};

TEST_P(UringPortTest, CarriesEverySizeWhole) {
  const uint32_t most = a_->info().max_udp_payload;
  EXPECT_GE(most, 8900U);  // loopback's MTU is 65,536: the cap is 9,000
  for (uint32_t bytes : {4U, 5U, 63U, 1280U, 1472U, 4000U, most}) {
    ASSERT_TRUE(send(bytes, bytes));
    EXPECT_EQ(receive(1).count(bytes), 1U) << bytes;
  }
}

TEST_P(UringPortTest, BurstsOfMixedSizesLoseAndReorderNothingOnLoopback) {
  uint32_t next = 0;
  for (int round = 0; round < 60; ++round) {
    std::multiset<uint32_t> sent;
    for (uint32_t i = 0; i < 100; ++i) {
      const uint32_t bytes = i % 10 == 9 ? 200 + i : 1448;
      ASSERT_TRUE(send(next, bytes));
      sent.insert(next++);
    }
    EXPECT_EQ(receive(100), sent);
  }
}

TEST_P(UringPortTest, RunsOutOfFramesAndRecovers) {
  uint32_t sent = 0;
  while (send(sent, 1000)) ++sent;
  EXPECT_EQ(sent, 512U);
  EXPECT_EQ(receive(sent).size(), sent);
  std::vector<RxFrame> none(1);
  a_->rx_burst(none, 0);  // reaps what was sent
  EXPECT_TRUE(send(0, 1000));
}

TEST_P(UringPortTest, SharedPayloadGoesOutUncopiedAndItsPinEnds) {
  std::vector<std::byte> payload(3000);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = pattern(9, i + 48);
  PayloadPin pin;
  EXPECT_FALSE(a_->pin_busy(pin));
  for (int copy = 0; copy < 3; ++copy) {
    TxFrame frame;
    ASSERT_TRUE(a_->tx_alloc(frame));
    const uint32_t seed = 9;
    std::memcpy(frame.data, &seed, 4);
    for (size_t i = 4; i < 48; ++i) frame.data[i] = pattern(seed, i);
    a_->tx_send_shared(frame, 48, path_, payload, pin);
  }
  EXPECT_TRUE(a_->pin_busy(pin));
  EXPECT_EQ(receive(3).count(9), 3U);
  std::vector<RxFrame> none(1);
  a_->rx_burst(none, 0);
  EXPECT_FALSE(a_->pin_busy(pin));
}

TEST_P(UringPortTest, SleepsOnADescriptorThatFramesWake) {
  std::vector<RxFrame> burst(4);
  EXPECT_EQ(b_->rx_burst(burst, 0), 0U);
  EXPECT_TRUE(b_->prepare_sleep());
  pollfd fd{b_->wait_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
  ASSERT_TRUE(send(1, 100));
  a_->tx_flush(0);
  EXPECT_EQ(poll(&fd, 1, 1000), 1);
  EXPECT_FALSE(b_->prepare_sleep());
  EXPECT_EQ(receive(1).size(), 1U);
}

TEST_P(UringPortTest, RefusesAnAddressInUseAndAnotherFamily) {
  Result<std::unique_ptr<UringPort>> again =
      UringPort::create({a_->info().local, 0, 0, 64, 8}, counters_);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message.find(a_->info().local.to_string()), std::string::npos);
  const bool v4 = a_->info().local.ip.is_v4();
  EXPECT_FALSE(a_->open_path(*Endpoint::parse(v4 ? "[::1]:9" : "127.0.0.1:9")));
}

INSTANTIATE_TEST_SUITE_P(Families, UringPortTest, testing::Values("127.0.0.1:0", "[::1]:0"),
                         [](const auto& address) {
                           return std::string(address.param)[0] == '[' ? "IPv6" : "IPv4";
                         });

}  // namespace
}  // namespace mercury::uring
