#include "transport/port/ethdev/nd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "transport/port/ethdev/neighbours.h"

namespace mercury::ethdev {
namespace {

using Frame = std::vector<std::byte>;

LocalIdentity host(uint8_t number) {
  LocalIdentity local;
  local.v4 = IpAddress::v4(10, 0, 0, number);
  local.v6 = *IpAddress::parse("fd00::" + std::to_string(number));
  local.has_v4 = local.has_v6 = true;
  local.mac = MacAddress::from_ip(local.v4);
  local.udp_port = 7470;
  return local;
}

FrameClass class_of(const Frame& frame, const LocalIdentity& local) {
  ParsedFrame parsed;
  RxFrame rx;
  return parse_frame(frame, local, parsed, rx);
}

struct Answer {
  Frame reply;
  std::optional<Sighting> learned;
};

Answer ask(const Frame& frame, const LocalIdentity& local) {
  Frame reply(2048);
  const ControlAnswer answer = answer_control(class_of(frame, local), frame, local, reply);
  reply.resize(answer.reply_bytes);
  return {reply, answer.learned};
}

Frame solicitation(const LocalIdentity& from, const IpAddress& target,
                   std::optional<MacAddress> mac = {}) {
  Frame frame(kSolicitationBytes);
  frame.resize(build_solicitation(target, from, mac, frame));
  return frame;
}

// An ICMP echo request as ping sends it.
Frame ping(const LocalIdentity& from, const LocalIdentity& to, bool v6, size_t data_bytes) {
  const size_t ip_bytes = v6 ? 40 : 20;
  Frame frame(14 + ip_bytes + 8 + data_bytes, std::byte{0x5a});
  uint8_t* ip = write_ether(bytes_of(frame.data()), to.mac, from.mac, v6 ? kEtherIpv6 : kEtherIpv4);
  uint8_t* icmp = ip + ip_bytes;
  std::memset(ip, 0, ip_bytes);
  InternetSum sum;
  if (v6) {
    ip[0] = 0x60;
    store_be16(ip + 4, static_cast<uint32_t>(8 + data_bytes));
    ip[6] = 58;
    ip[7] = 64;
    std::memcpy(ip + 8, from.v6.bytes.data(), 16);
    std::memcpy(ip + 24, to.v6.bytes.data(), 16);
    sum.add(std::as_bytes(std::span(ip + 8, 32)));
    sum.add_word(58);
    sum.add_word(static_cast<uint32_t>(8 + data_bytes));
  } else {
    ip[0] = 0x45;
    store_be16(ip + 2, static_cast<uint32_t>(28 + data_bytes));
    ip[8] = 64;
    ip[9] = 1;
    std::memcpy(ip + 12, &from.v4.bytes[12], 4);
    std::memcpy(ip + 16, &to.v4.bytes[12], 4);
    InternetSum header;
    header.add(std::as_bytes(std::span(ip, 20)));
    const uint16_t value = header.finish();
    std::memcpy(ip + 10, &value, 2);
  }
  icmp[0] = v6 ? 128 : 8;
  icmp[1] = icmp[2] = icmp[3] = 0;
  sum.add(std::as_bytes(std::span(icmp, 8 + data_bytes)));
  const uint16_t value = sum.finish();
  std::memcpy(icmp + 2, &value, 2);
  return frame;
}

TEST(Arp, RequestGoldenBytes) {
  const uint8_t golden[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2,  0x4d, 10, 0, 0,
                            1,    8,    6,    0,    1,    8,    0,  6,    4,  0, 1,  //
                            2,    0x4d, 10,   0,    0,    1,    10, 0,    0,  1,     //
                            0,    0,    0,    0,    0,    0,    10, 0,    0,  2};
  const Frame frame = solicitation(host(1), host(2).v4);
  ASSERT_EQ(frame.size(), sizeof(golden));
  EXPECT_TRUE(std::ranges::equal(frame, std::as_bytes(std::span(golden))));
}

TEST(Resolution, BothSidesLearnFromOneQuestion) {
  for (const bool v6 : {false, true}) {
    const auto target = v6 ? host(2).v6 : host(2).v4;
    const Answer at_two = ask(solicitation(host(1), target), host(2));
    ASSERT_TRUE(at_two.learned);
    EXPECT_EQ(at_two.learned->ip, v6 ? host(1).v6 : host(1).v4);
    EXPECT_EQ(at_two.learned->mac, host(1).mac);
    ASSERT_FALSE(at_two.reply.empty());
    const Answer at_one = ask(at_two.reply, host(1));
    EXPECT_TRUE(at_one.reply.empty());
    ASSERT_TRUE(at_one.learned);
    EXPECT_EQ(at_one.learned->ip, target);
    EXPECT_EQ(at_one.learned->mac, host(2).mac);
  }
}

TEST(Resolution, ProbesGoToOneNeighbour) {
  const LocalIdentity neighbour = host(2);
  const Frame probe = solicitation(host(1), neighbour.v6, neighbour.mac);
  EXPECT_TRUE(
      std::ranges::equal(std::span(probe).first(6), std::as_bytes(std::span(neighbour.mac.bytes))));
  EXPECT_FALSE(ask(probe, host(2)).reply.empty());
}

TEST(Resolution, QuestionsForOthersAreNotAnswered) {
  EXPECT_TRUE(ask(solicitation(host(1), host(3).v4), host(2)).reply.empty());
  EXPECT_TRUE(ask(solicitation(host(1), host(3).v6), host(2)).reply.empty());
}

TEST(Resolution, OwnAddressIsNeverLearned) {
  // Somebody claims to be us.
  LocalIdentity thief = host(2);
  thief.mac = host(9).mac;
  const Answer answer = ask(solicitation(thief, host(2).v4), host(2));
  EXPECT_FALSE(answer.learned);
  EXPECT_TRUE(answer.reply.empty());
}

TEST(Nd, DuplicateAddressDetectionIsAnsweredToAll) {
  LocalIdentity newcomer = host(1);
  newcomer.v6 = IpAddress{};  // it has no address yet
  const Answer answer = ask(solicitation(newcomer, host(2).v6), host(2));
  EXPECT_FALSE(answer.learned);
  ASSERT_EQ(answer.reply.size(), 86u);
  EXPECT_EQ(answer.reply[0], std::byte{0x33});
  EXPECT_EQ(answer.reply[58], std::byte{0x20});  // override, not solicited
}

TEST(Nd, RefusesForwardedAndMalformedMessages) {
  const Frame good = solicitation(host(1), host(2).v6);
  Frame forwarded = good;
  forwarded[21] = std::byte{254};
  EXPECT_TRUE(ask(forwarded, host(2)).reply.empty());
  Frame broken = good;
  broken[60] ^= std::byte{1};  // the checksum no longer fits
  EXPECT_TRUE(ask(broken, host(2)).reply.empty());
  EXPECT_FALSE(ask(broken, host(2)).learned);
}

TEST(Ping, IsAnsweredWithTheSameBytes) {
  for (const bool v6 : {false, true}) {
    for (const size_t bytes : {0, 1, 56, 1400}) {
      const Frame request = ping(host(1), host(2), v6, bytes);
      const Answer answer = ask(request, host(2));
      ASSERT_EQ(answer.reply.size(), request.size());
      const size_t icmp = v6 ? 54 : 34;
      EXPECT_EQ(answer.reply[icmp], std::byte(v6 ? 129 : 0));
      EXPECT_TRUE(std::equal(answer.reply.begin() + static_cast<std::ptrdiff_t>(icmp) + 4,
                             answer.reply.end(),
                             request.begin() + static_cast<std::ptrdiff_t>(icmp) + 4));
      // The reply passes the checks of a receiver, and is not answered in turn.
      EXPECT_EQ(class_of(answer.reply, host(1)), v6 ? FrameClass::kIcmp6 : FrameClass::kIcmp4);
      EXPECT_TRUE(ask(answer.reply, host(1)).reply.empty());
    }
  }
}

TEST(Control, SurvivesTruncationAndRandomBytes) {
  std::mt19937 random(5);
  const Frame seeds[] = {solicitation(host(1), host(2).v4), solicitation(host(1), host(2).v6),
                         ping(host(1), host(2), false, 20), ping(host(1), host(2), true, 20),
                         ask(solicitation(host(1), host(2).v6), host(2)).reply};
  for (const Frame& seed : seeds) {
    for (int round = 0; round < 20000; ++round) {
      Frame frame = seed;
      for (int flips = 0; flips < 2; ++flips) {
        frame[random() % frame.size()] = std::byte(random());
      }
      frame.resize(random() % (frame.size() + 1));
      const FrameClass kind = class_of(frame, host(2));
      Frame reply(frame.size());  // exactly: a sanitizer sees any write beyond it
      const ControlAnswer answer = answer_control(kind, frame, host(2), reply);
      ASSERT_LE(answer.reply_bytes, reply.size());
    }
  }
}

TEST(Prefix, ComparesLeadingBitsOfOneFamily) {
  const auto ip = [](const char* text) { return *IpAddress::parse(text); };
  EXPECT_TRUE(in_prefix(ip("10.1.2.3"), ip("10.1.2.0"), 24));
  EXPECT_FALSE(in_prefix(ip("10.1.3.3"), ip("10.1.2.0"), 24));
  EXPECT_TRUE(in_prefix(ip("10.1.3.3"), ip("10.1.2.0"), 23));
  EXPECT_TRUE(in_prefix(ip("192.0.2.1"), ip("10.0.0.0"), 0));
  EXPECT_FALSE(in_prefix(ip("fd00::1"), ip("10.0.0.0"), 0));
  EXPECT_TRUE(in_prefix(ip("fd00::1"), ip("fd00::ffff"), 64));
  EXPECT_FALSE(in_prefix(ip("fd00:0:0:1::1"), ip("fd00::ffff"), 64));
  EXPECT_FALSE(in_prefix(ip("fd00::2"), ip("fd00::1"), 128));
}

class NeighboursTest : public testing::Test {
 protected:
  static constexpr uint64_t kMs = 1'000'000;
  Neighbours table_{host(1), LocalAddress{host(1).v4, 24, IpAddress::v4(10, 0, 0, 254)},
                    LocalAddress{host(1).v6, 64, {}}, nullptr};
  uint32_t asked(uint64_t now_ns) {
    uint32_t frames = 0;
    table_.tick(now_ns, [&](std::span<const std::byte> frame) {
      ++frames;
      last_.assign(frame.begin(), frame.end());
    });
    return frames;
  }
  Frame last_;
};

TEST_F(NeighboursTest, AsksUntilAnswered) {
  const auto entry = table_.resolve(host(2).v4);
  ASSERT_TRUE(entry);
  EXPECT_EQ(asked(1000 * kMs), 1u);
  EXPECT_EQ(asked(1010 * kMs), 0u);
  EXPECT_EQ(asked(1060 * kMs), 1u);
  EXPECT_EQ(table_.mac(*entry), 0u);
  const Answer answer = ask(last_, host(2));
  const Answer back = ask(answer.reply, host(1));
  ASSERT_TRUE(back.learned);
  table_.learn(*back.learned, 1070 * kMs);
  EXPECT_EQ(table_.mac(*entry), host(2).mac.packed());
  EXPECT_EQ(asked(2000 * kMs), 0u);
}

TEST_F(NeighboursTest, ForgetsANeighbourThatFallsSilent) {
  const auto entry = table_.resolve(host(2).v6);
  asked(1000 * kMs);
  table_.learn({host(2).v6, host(2).mac}, 1001 * kMs);
  uint64_t now = 1001 * kMs;
  int probes = 0;
  while (table_.mac(*entry) != 0 && now < 60'000 * kMs) probes += asked(now += 10 * kMs);
  EXPECT_EQ(table_.mac(*entry), 0u);
  EXPECT_GE(now, 6000 * kMs);
  EXPECT_GE(probes, 3);
  table_.learn({host(2).v6, host(3).mac}, now);  // it came back with another card
  EXPECT_EQ(table_.mac(*entry), host(3).mac.packed());
}

// All paths of a job are opened at once, and so all its neighbours grow old at once.
TEST_F(NeighboursTest, NoTickAsksForMoreThanItsPartAndAllHaveTheirTurn) {
  constexpr uint32_t kPeers = 512;
  constexpr uint64_t kTick = 10 * kMs;
  for (uint32_t i = 0; i < kPeers; ++i) {
    const auto peer = *IpAddress::parse("fd00::1:" + std::to_string(i));
    ASSERT_TRUE(table_.resolve(peer));
  }
  std::map<std::string, uint32_t> asked_for;
  uint64_t now_ns = 1000 * kMs;
  for (uint32_t tick = 0; tick < 3 * kPeers / Neighbours::kAskedPerTick; ++tick, now_ns += kTick) {
    uint32_t frames = 0;
    table_.tick(now_ns, [&](std::span<const std::byte> frame) {
      ++frames;
      const auto* target = reinterpret_cast<const char*>(frame.data()) + 14 + 40 + 8;
      ++asked_for[std::string(target, 16)];
    });
    ASSERT_LE(frames, Neighbours::kAskedPerTick);
  }
  EXPECT_EQ(asked_for.size(), kPeers);
  for (const auto& [peer, times] : asked_for) EXPECT_EQ(times, 3U) << "by turns";
}

TEST_F(NeighboursTest, UsesTheGatewayOutsideThePrefix) {
  const auto far = table_.resolve(IpAddress::v4(192, 0, 2, 1));
  const auto farther = table_.resolve(IpAddress::v4(198, 51, 100, 1));
  ASSERT_TRUE(far && farther);
  EXPECT_EQ(*far, *farther);
  table_.learn({IpAddress::v4(10, 0, 0, 254), host(9).mac}, kMs);
  EXPECT_EQ(table_.mac(*far), host(9).mac.packed());
  EXPECT_FALSE(table_.resolve(*IpAddress::parse("2001:db8::1")));  // no IPv6 gateway
}

// Whoever is behind a gateway is no neighbour, and his frames may come from another router's
// address.
TEST_F(NeighboursTest, OnlyAHostOfTheLinkThatNobodyAskedForWouldBeAdded) {
  EXPECT_TRUE(table_.would_add_host(host(2).v4));
  EXPECT_FALSE(table_.would_add_host(IpAddress::v4(192, 0, 2, 1))) << "its gateway would be";
  EXPECT_FALSE(table_.would_add_host(*IpAddress::parse("2001:db8::1"))) << "there is no way to it";
  EXPECT_EQ(table_.size(), 0U);
  ASSERT_TRUE(table_.resolve(host(2).v4));
  EXPECT_FALSE(table_.would_add_host(host(2).v4));
  EXPECT_TRUE(table_.would_add_host(host(3).v4));
}

TEST_F(NeighboursTest, KeepsOnlyWhatWasAskedFor) {
  const auto entry = table_.resolve(host(2).v4);
  for (uint32_t i = 0; i < 10'000; ++i) {
    table_.learn({IpAddress::v4(10, 1, uint8_t(i >> 8), uint8_t(i)), host(7).mac}, kMs);
  }
  EXPECT_EQ(table_.mac(*entry), 0u);
  EXPECT_EQ(*table_.resolve(host(3).v4), *entry + 1);
}

IpAddress many(uint32_t number) {
  IpAddress ip = host(1).v6;
  ip.bytes[13] = 1;
  ip.bytes[14] = uint8_t(number >> 8);
  ip.bytes[15] = uint8_t(number);
  return ip;
}

// However many hosts have come and gone, there is room for the next.
TEST_F(NeighboursTest, WhatNobodyHoldsGivesWay) {
  const auto held = table_.resolve(host(2).v4);
  ASSERT_TRUE(held);
  table_.learn({host(2).v4, host(2).mac}, kMs);
  for (uint32_t i = 0; i < 3 * Neighbours::kMaxEntries; ++i) {
    const auto entry = table_.resolve(many(i));
    ASSERT_TRUE(entry) << i;
    ASSERT_NE(*entry, *held);
    EXPECT_EQ(table_.mac(*entry), 0U) << "of the one before it";
    if (i % 2 == 0) table_.learn({many(i), host(9).mac}, kMs);
    table_.release(*entry);
  }
  EXPECT_EQ(table_.size(), Neighbours::kMaxEntries);
  EXPECT_EQ(table_.mac(*held), host(2).mac.packed());
  EXPECT_EQ(*table_.resolve(host(2).v4), *held);
}

TEST_F(NeighboursTest, WhatPathsHoldIsBoundedAndStays) {
  std::vector<uint32_t> entries;
  for (uint32_t i = 0; i < Neighbours::kMaxEntries; ++i) {
    const auto entry = table_.resolve(many(i));
    ASSERT_TRUE(entry);
    entries.push_back(*entry);
  }
  const auto refused = table_.resolve(host(2).v6);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kLimit);
  table_.release(entries[77]);
  const auto next = table_.resolve(host(2).v6);
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, entries[77]);
}

// Two paths to one neighbour: the first that closes takes nothing from the other.
TEST_F(NeighboursTest, AnEntryStaysUntilTheLastHolderHasGone) {
  const auto first = table_.resolve(host(2).v4);
  const auto second = table_.resolve(host(2).v4);
  ASSERT_EQ(*first, *second);
  table_.learn({host(2).v4, host(2).mac}, kMs);
  table_.release(*first);
  for (uint64_t now = 1000 * kMs; now < 120'000 * kMs; now += 1000 * kMs) {
    if (asked(now) > 0) table_.learn({host(2).v4, host(2).mac}, now);
  }
  EXPECT_EQ(table_.mac(*second), host(2).mac.packed());
  table_.release(*second);
  EXPECT_EQ(asked(121'000 * kMs), 0U);  // nobody wants to know
  EXPECT_EQ(asked(140'000 * kMs), 0U);
  EXPECT_EQ(table_.size(), 1U);
  EXPECT_EQ(asked(190'000 * kMs), 0U);
  EXPECT_EQ(table_.size(), 0U);
}

// Everybody on the link can say that an address is his.
TEST_F(NeighboursTest, AClaimThatContradictsIsCheckedWithTheKnownNeighbour) {
  const auto entry = table_.resolve(host(2).v4);
  asked(1000 * kMs);
  table_.learn({host(2).v4, host(2).mac}, 1001 * kMs);
  const LocalIdentity known = host(2);
  uint64_t now = 1100 * kMs;
  for (int i = 0; i < 100; ++i, now += 10 * kMs) {
    table_.learn({host(2).v4, host(9).mac}, now);
    EXPECT_EQ(table_.mac(*entry), host(2).mac.packed());
    if (asked(now) == 0) continue;
    EXPECT_TRUE(
        std::ranges::equal(std::span(last_).first(6), std::as_bytes(std::span(known.mac.bytes))))
        << "the known one alone is asked";
    table_.learn({host(2).v4, host(9).mac}, now);  // the thief is faster
    table_.learn({host(2).v4, host(2).mac}, now);
  }
  EXPECT_EQ(table_.mac(*entry), host(2).mac.packed());
}

TEST_F(NeighboursTest, AClaimIsCheckedNoMoreOftenThanAnUnansweredQuestion) {
  const auto entry = table_.resolve(host(2).v4);
  asked(1000 * kMs);
  table_.learn({host(2).v4, host(2).mac}, 1001 * kMs);
  uint32_t probes = 0;
  for (uint64_t now = 1100 * kMs; now < 2100 * kMs; now += 10 * kMs) {
    table_.learn({host(2).v4, host(9).mac}, now);
    const uint32_t asked_now = asked(now);
    probes += asked_now;
    if (asked_now > 0) table_.learn({host(2).v4, host(2).mac}, now);
  }
  EXPECT_GT(probes, 5U);
  EXPECT_LE(probes, 21U);
  EXPECT_NE(table_.mac(*entry), 0U);
}

// A host that has another card says so, and the old one does not answer any more.
TEST_F(NeighboursTest, AHostThatMovedIsFoundOnceItsOldPlaceIsSilent) {
  const auto entry = table_.resolve(host(2).v4);
  asked(1000 * kMs);
  table_.learn({host(2).v4, host(2).mac}, 1001 * kMs);
  uint64_t now = 1100 * kMs;
  table_.learn({host(2).v4, host(3).mac}, now);
  while (table_.mac(*entry) != 0 && now < 10'000 * kMs) asked(now += 10 * kMs);
  EXPECT_LE(now, 1500 * kMs) << "sooner than it would be asked anyway";
  EXPECT_EQ(last_[0], std::byte{0xff}) << "now everybody is asked";
  table_.learn({host(2).v4, host(3).mac}, now);
  EXPECT_EQ(table_.mac(*entry), host(3).mac.packed());
}

TEST_F(NeighboursTest, WhatNobodyAskedForChangesNothing) {
  const auto entry = table_.resolve(host(2).v4);
  asked(1000 * kMs);
  table_.learn({host(2).v4, host(2).mac}, 1001 * kMs);
  // It says again and again that all is well, in the name of a host that has gone.
  for (uint64_t now = 1100 * kMs; now < 6000 * kMs; now += 100 * kMs) {
    table_.learn({host(2).v4, host(2).mac}, now);
    EXPECT_EQ(asked(now), 0U);
  }
  EXPECT_EQ(asked(6010 * kMs), 1U) << "five seconds after the last answer";
  EXPECT_NE(table_.mac(*entry), 0U);
}

// The kernel, whose network somebody else configures: it answers when that is over.
struct BusyKernel : KernelNeighbours {
  struct State {
    std::mutex mutex;
    std::condition_variable over;
    bool busy = true;
    std::set<std::thread::id> askers;
    std::vector<IpAddress> asked;
  };
  explicit BusyKernel(State& s) : state(s) {}
  Result<IpAddress> next_hop(const IpAddress& destination) override { return destination; }
  std::optional<MacAddress> ask(const IpAddress& ip) override {
    std::unique_lock lock(state.mutex);
    state.askers.insert(std::this_thread::get_id());
    state.asked.push_back(ip);
    state.over.wait(lock, [this] { return !state.busy; });
    return ip == host(2).v4 ? std::optional(host(2).mac) : std::nullopt;
  }
  State& state;
};

TEST(NeighboursOfTheKernel, AreAskedForByAThreadForWhichNoEngineWaits) {
  BusyKernel::State state;
  Neighbours table(host(1), std::nullopt, std::nullopt, std::make_unique<BusyKernel>(state));
  ASSERT_TRUE(table.start().ok());
  const auto there = table.resolve(host(2).v4);
  const auto silent = table.resolve(host(3).v4);
  ASSERT_TRUE(there && silent);
  for (uint64_t ms = 0; ms < 10'000; ms += 10) {
    table.tick(ms * 1'000'000, [](std::span<const std::byte>) { FAIL() << "the kernel asks"; });
  }
  table.release(*table.resolve(host(4).v4));
  EXPECT_EQ(table.mac(*there), 0U);
  {
    const std::scoped_lock lock(state.mutex);
    EXPECT_LE(state.asked.size(), 1U) << "it waits for the first answer";
    state.busy = false;
  }
  state.over.notify_all();
  while (table.mac(*there) == 0) std::this_thread::yield();
  EXPECT_EQ(table.mac(*there), host(2).mac.packed());
  EXPECT_EQ(table.mac(*silent), 0U);
  const std::scoped_lock lock(state.mutex);
  EXPECT_EQ(state.askers.size(), 1U);
  EXPECT_FALSE(state.askers.contains(std::this_thread::get_id()));
}

}  // namespace
}  // namespace mercury::ethdev
