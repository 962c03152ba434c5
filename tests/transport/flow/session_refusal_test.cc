// Datagrams that arrive and that the peer's service has no room for: what the two sessions make of
// them, and what they do not.
#include "tests/transport/flow/pipe.h"
#include "transport/flow/refusal_pause.h"

namespace mercury::test {
namespace {

constexpr uint64_t kMs = 1'000'000;

// A peer that has no room until it is told, and what it saw.
struct Refusing {
  explicit Refusing(uint32_t seed, uint32_t features = wire::kFeatureRefusals) : net(seed) {
    net.features = features;
    if ((features & wire::kFeatureSeals) != 0) net.with_seals();
    net.connect();
    EXPECT_TRUE(net.run_until_open());
    net.run_for(20 * kMs);  // paths are probed
    to().has_room = [this](uint32_t) { return room; };
  }
  Host& from() { return net.host[0]; }
  Host& to() { return net.host[1]; }
  Net net;
  bool room = true;
};

TEST(SessionRefusal, IsNoLossAndNoGapAndTheWindowStays) {
  Refusing pair(1);
  pair.from().queue_chunks(400);
  ASSERT_TRUE(pair.net.run([&] { return pair.from().all_acked(); }, kSecond));
  const uint64_t window = pair.from().session->window_bytes();
  EXPECT_FALSE(pair.to().session->take_missing(pair.net.now_ns));
  pair.room = false;
  pair.from().queue_chunks(100);
  pair.net.run_for(200 * kMs);
  EXPECT_GT(pair.to().refused, 0);
  EXPECT_EQ(pair.from().sent_back, pair.to().refused);
  EXPECT_EQ(pair.from().counters.get(Counter::kDatagramsSentBack),
            static_cast<uint64_t>(pair.to().refused));
  EXPECT_EQ(pair.from().lost, 0);
  EXPECT_EQ(pair.from().session->lost_packets(), 0U);
  EXPECT_FALSE(pair.to().session->take_missing(pair.net.now_ns));
  pair.room = true;
  ASSERT_TRUE(pair.net.run([&] { return pair.from().all_acked(); }, kSecond));
  EXPECT_GE(pair.from().session->window_bytes(), window);
}

// It is asked again and again, ever more seldom, and goes on within the longest pause.
TEST(SessionRefusal, TheSenderAsksSeldomAndGoesOnSoon) {
  Refusing pair(2);
  pair.room = false;
  pair.from().queue_chunks(1'000);
  pair.net.run_for(200 * kMs);
  const int at_first = pair.to().refused;
  EXPECT_LE(at_first, 40) << "one window, and then a frame a pause";
  pair.net.run_for(800 * kMs);
  EXPECT_GT(pair.to().refused, at_first + 40);
  EXPECT_LE(pair.to().refused, at_first + 60);
  pair.room = true;
  const uint64_t before_ns = pair.net.now_ns;
  ASSERT_TRUE(pair.net.run([&] { return !pair.from().acked.empty(); }, kSecond));
  EXPECT_LE(pair.net.now_ns - before_ns, RefusalPause::kMostNs + kMs);
  ASSERT_TRUE(pair.net.run([&] { return pair.from().all_acked(); }, kSecond));
  EXPECT_EQ(pair.from().lost, 0);
}

// One in sixteen is refused at its first coming: the others do not wait for it.
TEST(SessionRefusal, SingleChunksComeAgainBesideTheOthers) {
  Refusing pair(3);
  std::set<uint32_t> seen;
  pair.to().has_room = [&](uint32_t chunk) {
    return chunk % 16 != 0 || !seen.insert(chunk).second;
  };
  pair.from().queue_chunks(800);
  const uint64_t before_ns = pair.net.now_ns;
  ASSERT_TRUE(pair.net.run([&] { return pair.from().all_acked(); }, kSecond));
  EXPECT_EQ(pair.from().sent_back, 50);
  EXPECT_EQ(pair.from().lost, 0);
  Refusing all(3);
  all.from().queue_chunks(800);
  const uint64_t begun_ns = all.net.now_ns;
  ASSERT_TRUE(all.net.run([&] { return all.from().all_acked(); }, kSecond));
  EXPECT_LE(pair.net.now_ns - before_ns, 2 * (all.net.now_ns - begun_ns));
}

// Whatever the path loses, every chunk is taken once by who had said that it has room, and nothing
// that was refused counts as delivered; with seals and without.
TEST(SessionRefusal, EveryChunkIsTakenInTheEndUnderLossAndReordering) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    Refusing pair(seed, wire::kFeatureRefusals | (seed % 2 == 0 ? wire::kFeatureSeals : 0U));
    ASSERT_EQ(pair.from().session->seals() != nullptr, seed % 2 == 0);
    pair.net.weather.loss = 0.1;
    pair.net.weather.duplication = 0.1;
    pair.net.weather.jitter_ns = 200'000;
    pair.to().has_room = [&](uint32_t) { return pair.net.below(100) < 30 + seed; };
    pair.from().queue_chunks(300);
    ASSERT_TRUE(pair.net.run([&] { return pair.from().all_acked(); }, 60 * kSecond)) << seed;
    for (uint32_t chunk = 0; chunk < 300; ++chunk) {
      ASSERT_GE(pair.to().delivered[chunk], 1) << "acknowledged and never taken, seed " << seed;
    }
    EXPECT_GT(pair.from().sent_back, 0) << seed;
  }
}

// A release before: it would not read an ACK that names refusals.
TEST(SessionRefusal, APeerThatDoesNotKnowOfThemTakesThemForLoss) {
  Refusing pair(4, wire::kFeatureNone);
  pair.room = false;
  pair.from().queue_chunks(50);
  pair.net.run_for(50 * kMs);
  EXPECT_EQ(pair.to().refused, 0);
  EXPECT_EQ(pair.from().sent_back, 0);
  EXPECT_GT(pair.from().lost, 0);
  pair.room = true;
  EXPECT_TRUE(pair.net.run([&] { return pair.from().all_acked(); }, 10 * kSecond));
}

}  // namespace
}  // namespace mercury::test
