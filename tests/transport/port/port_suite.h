// What every port must do, as one typed suite. A lab is two ports that can reach each other:
//
//   struct Lab {
//     PortType& a(); PortType& b();
//     Counters counters_a;  // port a's
//     void step();          // lets frames move on: virtual time, or a wait in poll()
//     static Endpoint other_family();
//   };
//
// Use: INSTANTIATE_TYPED_TEST_SUITE_P(Name, PortSuite, Lab).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "transport/port/port.h"

namespace mercury::port_suite {

inline std::byte pattern(uint32_t seed, size_t at) {
  return static_cast<std::byte>((seed * 131 + at * 7 + (at >> 8)) & 0xff);
}

inline void fill(std::byte* data, uint32_t seed, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) data[i - begin] = pattern(seed, i);
}

inline bool holds(std::span<const std::byte> data, uint32_t seed) {
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i] != pattern(seed, i)) return false;
  }
  return true;
}

// Sends a frame of the pattern; false: no room.
template <class P>
bool send(P& port, PathId path, uint32_t seed, uint32_t bytes) {
  TxFrame frame;
  if (!port.tx_alloc(frame)) return false;
  EXPECT_GE(frame.capacity, bytes);
  fill(frame.data, seed, 0, bytes);
  port.tx_send(frame, path, bytes);
  return true;
}

struct Received {
  std::vector<std::byte> bytes;
  Endpoint source;
};

template <class P>
void receive(P& port, std::vector<Received>& out) {
  std::array<RxFrame, 16> burst;
  while (const uint32_t count = port.rx_burst(burst, 0)) {
    for (uint32_t i = 0; i < count; ++i) {
      out.push_back({{burst[i].payload.begin(), burst[i].payload.end()}, burst[i].source});
    }
    port.rx_release();
  }
}

// Steps until `port` has received `count` frames, or nothing more comes.
template <class Lab, class P>
std::vector<Received> await(Lab& lab, P& port, size_t count) {
  std::vector<Received> received;
  for (int idle = 0; idle < 100 && received.size() < count;) {
    const size_t before = received.size();
    lab.a().tx_flush(0);
    lab.b().tx_flush(0);
    lab.step();
    receive(port, received);
    idle = received.size() == before ? idle + 1 : 0;
  }
  return received;
}

// Memory that a port is told of, as long as it lasts: pages of its own.
template <class P>
class MappedPages {
 public:
  MappedPages(P& port, size_t bytes)
      : port_(port),
        bytes_((bytes + kPage - 1) / kPage * kPage),
        memory_(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes_))) {
    const auto key = port_.map({memory_.get(), bytes_});
    EXPECT_TRUE(key) << (key ? "" : key.error().message);
    if (key) key_ = *key;
  }
  ~MappedPages() { port_.unmap(key_); }
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;
  std::byte* data() const { return memory_.get(); }

 private:
  static constexpr size_t kPage = 4096;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  P& port_;
  size_t bytes_;
  std::unique_ptr<std::byte[], Free> memory_;
  MemoryKey key_;
};

template <class Lab>
class PortSuite : public testing::Test {
 protected:
  void SetUp() override { path_ = *lab_.a().open_path(lab_.b().info().local); }

  // Lets go on what a has sent.
  void settle() {
    for (int i = 0; i < 20; ++i) {
      lab_.a().tx_flush(0);
      lab_.step();
    }
  }

  Lab lab_;
  PathId path_;
};
TYPED_TEST_SUITE_P(PortSuite);

TYPED_TEST_P(PortSuite, CarriesEverySizeWhole) {
  auto& a = this->lab_.a();
  const uint32_t most = a.info().max_udp_payload;
  EXPECT_EQ(most, a.path_max_payload(this->path_));
  std::vector<uint32_t> sizes{1472, 1473, 4096, most - 1, most};
  for (uint32_t bytes = 1; bytes < most; bytes += bytes < 130 ? 1 : 379) sizes.push_back(bytes);
  for (uint32_t bytes : sizes) {
    ASSERT_TRUE(send(a, this->path_, bytes, bytes));
    const auto received = await(this->lab_, this->lab_.b(), 1);
    ASSERT_EQ(received.size(), 1u) << bytes;
    EXPECT_EQ(received[0].bytes.size(), bytes);
    EXPECT_TRUE(holds(received[0].bytes, bytes)) << bytes;
    EXPECT_EQ(received[0].source, a.info().local);
  }
}

TYPED_TEST_P(PortSuite, BuffersAreInUseUntilTheirFramesAreSentOrRead) {
  auto& a = this->lab_.a();
  auto& b = this->lab_.b();
  EXPECT_EQ(a.buffers_in_use(), 0u);
  TxFrame frame;
  ASSERT_TRUE(a.tx_alloc(frame));
  EXPECT_EQ(a.buffers_in_use(), 1u);
  a.tx_cancel(frame);
  EXPECT_EQ(a.buffers_in_use(), 0u);
  ASSERT_TRUE(send(a, this->path_, 1, 1000));
  EXPECT_EQ(a.buffers_in_use(), 1u);
  this->settle();
  EXPECT_EQ(a.buffers_in_use(), 0u);
  std::array<RxFrame, 4> burst;
  uint32_t count = 0;
  for (int i = 0; i < 100 && count == 0; ++i) {
    this->lab_.step();
    count = b.rx_burst(burst, 0);
  }
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(b.buffers_in_use(), 1u);
  b.rx_release();
  EXPECT_EQ(b.buffers_in_use(), 0u);
}

TYPED_TEST_P(PortSuite, ThousandsOfFramesLeaveInOrderUnderBackPressure) {
  constexpr uint32_t kFrames = 4000;
  auto& a = this->lab_.a();
  const auto size_of = [](uint32_t i) { return i % 7 == 0 ? 100 + i % 50 : 1448; };
  uint32_t sent = 0, refused = 0;
  std::vector<Received> received;
  for (int idle = 0; idle < 1000 && received.size() < kFrames; ++idle) {
    while (sent < kFrames && send(a, this->path_, sent, size_of(sent))) ++sent;
    refused += sent < kFrames;
    a.tx_flush(0);
    const size_t before = received.size();
    this->lab_.step();
    receive(this->lab_.b(), received);
    if (received.size() > before) idle = 0;
  }
  EXPECT_GT(refused, 0u);
  ASSERT_EQ(received.size(), kFrames);
  for (uint32_t i = 0; i < kFrames; ++i) {
    ASSERT_EQ(received[i].bytes.size(), size_of(i)) << i;
    ASSERT_TRUE(holds(received[i].bytes, i)) << i;
  }
}

TYPED_TEST_P(PortSuite, OneSharedPayloadServesManyHeadersAndItsPinGoesIdle) {
  auto& a = this->lab_.a();
  constexpr uint32_t kSeed = 9, kHeader = 48, kPayload = 1000;
  const MappedPages pages(a, kPayload);
  const std::span<const std::byte> payload(pages.data(), kPayload);
  fill(pages.data(), kSeed, kHeader, kHeader + kPayload);
  PayloadPin pin;
  EXPECT_FALSE(a.pin_busy(pin));
  for (int copy = 0; copy < 3; ++copy) {
    TxFrame frame;
    ASSERT_TRUE(a.tx_alloc(frame));
    fill(frame.data, kSeed, 0, kHeader);
    a.tx_send_shared(frame, kHeader, this->path_, payload, pin);
  }
  EXPECT_TRUE(a.pin_busy(pin));
  const auto received = await(this->lab_, this->lab_.b(), 3);
  ASSERT_EQ(received.size(), 3u);
  for (const Received& one : received) {
    EXPECT_EQ(one.bytes.size(), kHeader + kPayload);
    EXPECT_TRUE(holds(one.bytes, kSeed));
  }
  this->settle();
  EXPECT_FALSE(a.pin_busy(pin));
}

TYPED_TEST_P(PortSuite, MemoryIsMappedAndUnmappedInAnyOrderWhileOthersAreSentFrom) {
  auto& a = this->lab_.a();
  using Pages = MappedPages<std::remove_reference_t<decltype(a)>>;
  std::array<std::unique_ptr<Pages>, 3> pages;
  std::array<PayloadPin, 3> pins;
  for (auto& each : pages) each = std::make_unique<Pages>(a, 3 * 4096);
  const auto carries = [&](uint32_t at) {  // from the middle, over a page's end
    constexpr uint32_t kHeader = 8, kPayload = 1000;
    std::byte* const payload = pages[at]->data() + 4096 - kPayload / 2;
    fill(payload, at, kHeader, kHeader + kPayload);
    TxFrame frame;
    ASSERT_TRUE(a.tx_alloc(frame));
    fill(frame.data, at, 0, kHeader);
    a.tx_send_shared(frame, kHeader, this->path_, {payload, kPayload}, pins[at]);
    const auto received = await(this->lab_, this->lab_.b(), 1);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_TRUE(holds(received[0].bytes, at));
    this->settle();
    EXPECT_FALSE(a.pin_busy(pins[at]));
  };
  for (uint32_t at = 0; at < 3; ++at) carries(at);
  pages[1].reset();
  carries(0);
  carries(2);
  pages[1] = std::make_unique<Pages>(a, 3 * 4096);
  pages[0].reset();
  carries(1);
  carries(2);
}

TYPED_TEST_P(PortSuite, FramesBeyondTheLimitAreDroppedAndCounted) {
  auto& a = this->lab_.a();
  const MappedPages pages(a, a.info().max_udp_payload);
  PayloadPin pin;
  TxFrame frame;
  ASSERT_TRUE(a.tx_alloc(frame));
  a.tx_send_shared(frame, 1, this->path_, {pages.data(), a.info().max_udp_payload}, pin);
  ASSERT_TRUE(send(a, this->path_, 3, 77));
  const auto received = await(this->lab_, this->lab_.b(), 1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_TRUE(holds(received[0].bytes, 3));
  EXPECT_FALSE(a.pin_busy(pin));
  EXPECT_EQ(this->lab_.counters_a.get(Counter::kDropTooLarge), 1u);
}

TYPED_TEST_P(PortSuite, CancelledFramesComeBack) {
  auto& a = this->lab_.a();
  TxFrame frame;
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(a.tx_alloc(frame)) << i;
    a.tx_cancel(frame);
  }
  ASSERT_TRUE(send(a, this->path_, 1, 10));
  EXPECT_EQ(await(this->lab_, this->lab_.b(), 1).size(), 1u);
}

TYPED_TEST_P(PortSuite, AnswersGoBackToTheSource) {
  ASSERT_TRUE(send(this->lab_.a(), this->path_, 5, 64));
  auto received = await(this->lab_, this->lab_.b(), 1);
  ASSERT_EQ(received.size(), 1u);
  const auto back = this->lab_.b().open_path(received[0].source);
  ASSERT_TRUE(back);
  EXPECT_TRUE(this->lab_.b().path_ready(*back));
  ASSERT_TRUE(send(this->lab_.b(), *back, 6, 65));
  received = await(this->lab_, this->lab_.a(), 1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].source, this->lab_.b().info().local);
  EXPECT_TRUE(holds(received[0].bytes, 6));
}

TYPED_TEST_P(PortSuite, APartOfABurstWaitsForTheNextCall) {
  for (uint32_t i = 0; i < 10; ++i) {
    while (!send(this->lab_.a(), this->path_, i, 500)) this->settle();
  }
  this->settle();
  uint32_t next = 0;
  for (int pass = 0; pass < 100 && next < 10; ++pass) {
    std::array<RxFrame, 3> burst;
    const uint32_t count = this->lab_.b().rx_burst(burst, 0);
    for (uint32_t i = 0; i < count; ++i) EXPECT_TRUE(holds(burst[i].payload, next++));
    this->lab_.b().rx_release();
    if (count == 0) this->lab_.step();
  }
  EXPECT_EQ(next, 10u);
}

TYPED_TEST_P(PortSuite, DoesNotSleepOnWaitingFrames) {
  auto& b = this->lab_.b();
  std::vector<Received> none;
  receive(b, none);
  EXPECT_TRUE(b.prepare_sleep());
  ASSERT_TRUE(send(this->lab_.a(), this->path_, 1, 100));
  this->settle();
  EXPECT_FALSE(b.prepare_sleep());
  EXPECT_EQ(await(this->lab_, b, 1).size(), 1u);
  EXPECT_TRUE(b.prepare_sleep());
}

TYPED_TEST_P(PortSuite, PathsCloseAndOpenAgain) {
  auto& a = this->lab_.a();
  for (int i = 0; i < 100; ++i) {
    a.close_path(this->path_);
    this->path_ = *a.open_path(this->lab_.b().info().local);
  }
  ASSERT_TRUE(send(a, this->path_, 1, 10));
  EXPECT_EQ(await(this->lab_, this->lab_.b(), 1).size(), 1u);
}

TYPED_TEST_P(PortSuite, RefusesPathsThatLeadNowhere) {
  auto& a = this->lab_.a();
  EXPECT_FALSE(a.open_path(this->lab_.other_family()));
  Endpoint remote = this->lab_.b().info().local;
  remote.port = 0;
  EXPECT_FALSE(a.open_path(remote));
}

REGISTER_TYPED_TEST_SUITE_P(PortSuite, CarriesEverySizeWhole,
                            BuffersAreInUseUntilTheirFramesAreSentOrRead,
                            ThousandsOfFramesLeaveInOrderUnderBackPressure,
                            OneSharedPayloadServesManyHeadersAndItsPinGoesIdle,
                            MemoryIsMappedAndUnmappedInAnyOrderWhileOthersAreSentFrom,
                            FramesBeyondTheLimitAreDroppedAndCounted, CancelledFramesComeBack,
                            AnswersGoBackToTheSource, APartOfABurstWaitsForTheNextCall,
                            DoesNotSleepOnWaitingFrames, PathsCloseAndOpenAgain,
                            RefusesPathsThatLeadNowhere);

}  // namespace mercury::port_suite
