// Hosts of one process that join a link at the same time.
#include "shim/host/link_register.h"

#include <gtest/gtest.h>

#include <barrier>
#include <optional>
#include <thread>
#include <vector>

namespace mercury {
namespace {

const IpAddress kAddress = IpAddress::v4(10, 0, 0, 1);
constexpr uint64_t kRate = 1'250'000'000;

// Each asks with its own rate, and makes its engine's place when it has a seat, and all have asked.
std::vector<std::optional<Errc>> join_at_once(LinkRegister& links, std::vector<LinkSeat>& seats,
                                              const std::vector<uint64_t>& rates) {
  const size_t count = rates.size();
  std::vector<std::optional<Errc>> refused(count);
  seats.clear();
  seats.resize(count);
  std::barrier all(static_cast<std::ptrdiff_t>(count));
  std::vector<std::thread> hosts;
  for (size_t i = 0; i < count; ++i) {
    hosts.emplace_back([&, i] {
      uint64_t rate = rates[i];
      all.arrive_and_wait();
      Result<LinkSeat> seat = links.join(kAddress, rate);
      if (!seat) refused[i] = seat.error().code;
      all.arrive_and_wait();
      if (!seat) return;
      seats[i] = std::move(*seat);
      const SharedLink::Place place(seats[i].link());
    });
  }
  for (std::thread& host : hosts) host.join();
  return refused;
}

TEST(LinkRegister, OfThoseWhoJoinAtOnceNoMoreThanHaveTurnsAreLetIn) {
  LinkRegister links;
  std::vector<LinkSeat> seats;
  for (int again = 0; again < 20; ++again) {
    const std::vector<uint64_t> rates(2 * SharedLink::kTurns, kRate);
    uint32_t in = 0;
    for (const auto& refused : join_at_once(links, seats, rates)) {
      in += !refused.has_value();
      EXPECT_TRUE(!refused || *refused == Errc::kLimit);
    }
    EXPECT_EQ(in, SharedLink::kTurns);
    uint64_t rate = 0;
    const auto one_more = links.join(kAddress, rate);
    ASSERT_FALSE(one_more);
    EXPECT_EQ(one_more.error().code, Errc::kLimit);
    seats.resize(SharedLink::kTurns);
  }
}

TEST(LinkRegister, OfRatesThatAreSaidAtOnceOneHolds) {
  for (int again = 0; again < 20; ++again) {
    LinkRegister links;
    std::vector<LinkSeat> seats;
    std::vector<uint64_t> rates(16, kRate);
    std::fill_n(rates.begin(), 8, 2 * kRate);
    const auto refused = join_at_once(links, seats, rates);
    uint32_t in = 0;
    for (size_t i = 0; i < rates.size(); ++i) {
      in += !refused[i].has_value();
      EXPECT_TRUE(!refused[i] || *refused[i] == Errc::kInvalidArgument);
      EXPECT_EQ(refused[i].has_value(), refused[i / 8 * 8].has_value()) << "as others of its rate";
    }
    EXPECT_EQ(in, 8U);
  }
}

TEST(LinkRegister, WhoGoesLeavesItsSeatAndTheLastOneTheRate) {
  LinkRegister links;
  uint64_t rate = 0;
  auto unknown = links.join(kAddress, rate);
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->link(), nullptr);
  {
    rate = kRate;
    auto first = links.join(kAddress, rate);
    ASSERT_TRUE(first);
    rate = 0;
    auto second = links.join(kAddress, rate);
    ASSERT_TRUE(second);
    EXPECT_EQ(rate, kRate);
    EXPECT_EQ(second->link(), first->link());
    std::vector<LinkSeat> others;
    for (uint32_t i = 2; i < SharedLink::kTurns; ++i) {
      others.push_back(std::move(*links.join(kAddress, rate)));
    }
    EXPECT_FALSE(links.join(kAddress, rate));
    others.pop_back();
    EXPECT_TRUE(links.join(kAddress, rate)) << "and is gone again";
    *second = LinkSeat();
    EXPECT_TRUE(links.join(kAddress, rate));
  }
  rate = 2 * kRate;
  EXPECT_TRUE(links.join(kAddress, rate)) << "nobody is left who says another";
}

}  // namespace
}  // namespace mercury
