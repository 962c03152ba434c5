// Sessions whose path carries less than when they opened: what is larger goes in parts.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/transport/engine/echo_lab.h"
#include "transport/flow/frame_parts.h"
#include "transport/flow/handshake.h"

namespace mercury::echo {
namespace {

constexpr uint32_t kFeatures = wire::kFeatureStreams | wire::kFeatureParts;

sim::Faults nothing_above(uint32_t bytes) {
  sim::Faults faults;
  faults.vanish_above_bytes = bytes;
  return faults;
}

// An open session over a path of 9,000 bytes.
struct Shrinking : Lab {
  explicit Shrinking(uint32_t of_a = kFeatures, uint32_t of_b = kFeatures) : Lab(1) {
    b().features = of_b;
    a().connect(kToken, b().port->info().local, of_a);
    EXPECT_TRUE(run([&] { return !a().opened.empty() && !b().opened.empty(); }));
    echo(1, 100'000);
    EXPECT_TRUE(come_back());
    run_for(100 * kMs);
  }
  void echo(uint32_t count, uint64_t bytes) {
    a().done.clear();
    a().send(StartEcho{kToken, count, bytes});
    streams += count;
  }
  // All that was ever sent.
  bool come_back() {
    run([&] { return !a().done.empty() || !a().closed.empty(); });
    return !a().done.empty() && a().done[0].intact == streams;
  }
  // Some of it is under way when the path shrinks.
  bool echoes_while_it_shrinks(uint32_t to_bytes) {
    const uint64_t before = a().counters->get(Counter::kTxFrames);
    echo(2, 2'000'000);
    run([&] { return a().counters->get(Counter::kTxFrames) > before + 200; }, kSecond);
    EXPECT_TRUE(a().done.empty());
    network.set_faults(nothing_above(to_bytes));
    return come_back();
  }
  uint64_t both(Counter counter) { return a().counters->get(counter) + b().counters->get(counter); }

  uint32_t streams = 0;
};

void goes_on(uint32_t features) {
  for (const uint32_t bytes : {1'280U, 1'500U, 4'000U, 8'999U}) {
    Shrinking lab(features, features);
    EXPECT_TRUE(lab.echoes_while_it_shrinks(bytes)) << bytes;
    EXPECT_GE(lab.both(Counter::kPathsDoubted), 1U) << bytes;
    EXPECT_GT(lab.both(Counter::kPartsSent), 0U) << bytes;
    lab.run_for(20 * kSecond);
    EXPECT_TRUE(lab.a().closed.empty() && lab.b().closed.empty()) << bytes;
    const uint64_t doubted = lab.both(Counter::kPathsDoubted);
    lab.echo(3, 500'000);
    EXPECT_TRUE(lab.come_back());
    EXPECT_EQ(lab.both(Counter::kPathsDoubted), doubted) << "it is known by now";
    EXPECT_EQ(lab.both(Counter::kDropSeal), 0U);
  }
}
TEST(Parts, ASessionGoesOnWhenItsPathCarriesLess) { goes_on(kFeatures); }
TEST(Parts, SoDoesOneWithSeals) { goes_on(kFeatures | wire::kFeatureSeals); }
TEST(Parts, SoDoesOneThatIsEncrypted) {
  goes_on(kFeatures | wire::kFeatureSeals | wire::kFeatureCanEncrypt |
          wire::kFeatureAsksEncryption);
}

TEST(Parts, AShorterOneIsFoundToo) {
  Shrinking lab;
  EXPECT_TRUE(lab.echoes_while_it_shrinks(4'000));
  lab.network.set_faults(nothing_above(1'500));
  lab.echo(2, 1'000'000);
  EXPECT_TRUE(lab.come_back());
}

// Not even what each path has to carry.
TEST(Parts, WherePartsAreLostTooTheSessionEndsByName) {
  Shrinking lab;
  EXPECT_FALSE(lab.echoes_while_it_shrinks(1'100));
  EXPECT_EQ(lab.a().closed[kToken], Errc::kPeerLost);
  EXPECT_GE(lab.both(Counter::kPathsDoubted), 1U);
  EXPECT_NE(lab.a().closed_text[kToken].find("MTU may have shrunk"), std::string::npos);
}

// Frames go whole again once it is found that the path carries them.
TEST(Parts, WhereFramesWereLostByChanceTheyGoWholeAgain) {
  Shrinking lab;
  sim::Faults nothing;
  nothing.loss = 1;
  lab.echo(1, 1'000'000);
  lab.run_for(100'000);
  lab.network.set_faults(nothing);
  lab.run_for(2 * kSecond);
  lab.network.set_faults({});
  ASSERT_TRUE(lab.come_back());
  EXPECT_GE(lab.both(Counter::kPathsDoubted), 1U);
  lab.run_for(kSecond);
  const uint64_t parts = lab.both(Counter::kPartsSent);
  lab.echo(2, 1'000'000);
  EXPECT_TRUE(lab.come_back());
  EXPECT_EQ(lab.both(Counter::kPartsSent), parts);
}

// So do they where the path came to carry less for a while, or each probe of it was lost by chance.
TEST(Parts, WhereThePathCarriesMoreAgainFramesGoWholeAgain) {
  for (const uint32_t features : {kFeatures, kFeatures | wire::kFeatureSeals}) {
    Shrinking lab(features, features);
    ASSERT_TRUE(lab.echoes_while_it_shrinks(1'500));
    ASSERT_GT(lab.both(Counter::kPartsSent), 0U);
    lab.network.set_faults({});
    lab.run_for(EngineConfig().session.peer_timeout_ns * 5 / 4);
    const uint64_t parts = lab.both(Counter::kPartsSent);
    const uint64_t doubted = lab.both(Counter::kPathsDoubted);
    lab.echo(2, 1'000'000);
    EXPECT_TRUE(lab.come_back());
    EXPECT_EQ(lab.both(Counter::kPartsSent), parts);
    EXPECT_EQ(lab.both(Counter::kPathsDoubted), doubted);
  }
}

TEST(Parts, WhereOneLacksThemTheSessionEndsByName) {
  const uint32_t without = wire::kFeatureStreams;
  for (const auto& [of_a, of_b] : {std::pair{without, kFeatures}, std::pair{kFeatures, without}}) {
    Shrinking lab(of_a, of_b);
    EXPECT_FALSE(lab.echoes_while_it_shrinks(1'500));
    EXPECT_EQ(lab.a().closed[kToken], Errc::kPeerLost);
    EXPECT_NE(lab.a().closed_text[kToken].find("MTU may have shrunk"), std::string::npos);
    EXPECT_EQ(lab.both(Counter::kPartsSent), 0U);
  }
}

// The last part of a frame and its session's end come at once, to a host in its second life, which
// answers that it knows no such session: not to what became whole, which shows no way back.
TEST(Parts, WhatBecomesWholeAsItsSessionEndsIsNotAnswered) {
  Shrinking lab;
  EngineConfig second_life;
  second_life.reset_keys.last = ResetKey{1};
  lab.start(1, second_life, 3);
  lab.b().features = kFeatures;
  lab.a().closed.clear();
  lab.a().connect(Token(8), lab.b().port->info().local, kFeatures);
  ASSERT_TRUE(lab.run([&] { return lab.b().opened.size() == 1; }));
  lab.a().send(StartEcho{Token(8), 1, 100'000'000});
  lab.run_for(5 * kMs);
  lab.network.set_faults(nothing_above(1'500));
  ASSERT_TRUE(lab.run([&] { return lab.a().counters->get(Counter::kPartsSent) > 0; }));
  const uint64_t since = lab.network.now_ns();
  for (bool closes = false; lab.network.now_ns() < since + 50 * kMs;) {  // b reads nothing
    while (lab.a().poll(lab.network.now_ns()) > 0) continue;
    if (!closes) lab.a().send(command::CloseSession{Token(8), Errc::kClosed, "it is over"});
    closes = true;
    lab.network.advance_to(lab.network.now_ns() + 10'000);
  }
  lab.run_for(kSecond);
  EXPECT_EQ(lab.b().closed.size(), 1U);
  EXPECT_GT(lab.b().counters->get(Counter::kDropNoSession), 0U);
  EXPECT_EQ(lab.b().counters->get(Counter::kResetsSent), 0U);
  EXPECT_EQ(lab.b().counters->get(Counter::kClosesRepeated), 0U);
}

// --- The parts themselves ------------------------------------------------------------------------

using Bytes = std::vector<std::byte>;

Bytes frame_of(size_t bytes) {
  Bytes frame(bytes);
  for (size_t i = 0; i < bytes; ++i) frame[i] = static_cast<std::byte>(i * 7);
  return frame;
}
wire::Part part_of(const Bytes& frame, size_t offset, size_t bytes) {
  return {static_cast<uint16_t>(offset), static_cast<uint16_t>(frame.size()),
          std::span(frame).subspan(offset, bytes)};
}

TEST(FramePartsTest, AnyOrderGivesTheFrameOnceAllAreThere) {
  const Bytes frame = frame_of(2'500);
  FrameParts parts;
  EXPECT_FALSE(parts.add(7, part_of(frame, 2'000, 500), false));
  EXPECT_FALSE(parts.add(7, part_of(frame, 0, 1'000), true));
  EXPECT_FALSE(parts.add(7, part_of(frame, 0, 1'000), false)) << "once more";
  EXPECT_FALSE(parts.add(8, part_of(frame, 1'000, 1'000), false)) << "another's";
  const auto whole = parts.add(7, part_of(frame, 1'000, 1'000), false);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->bytes, frame);
  EXPECT_TRUE(whole->marked);
}

TEST(FramePartsTest, OfAnotherSizeItIsAnotherFrames) {
  const Bytes frame = frame_of(2'000), longer = frame_of(3'000);
  FrameParts parts;
  parts.add(7, part_of(frame, 0, 1'000), false);
  EXPECT_FALSE(parts.add(7, part_of(longer, 1'000, 1'000), false));
  EXPECT_TRUE(parts.add(7, part_of(frame, 1'000, 1'000), false));
}

TEST(FramePartsTest, TheLowestNumberGivesWay) {
  const Bytes frame = frame_of(2'000);
  FrameParts parts;
  for (uint64_t number = 0; number <= FrameParts::kMost; ++number) {
    parts.add(number, part_of(frame, 0, 1'000), false);
  }
  EXPECT_TRUE(parts.add(1, part_of(frame, 1'000, 1'000), false));
  EXPECT_FALSE(parts.add(0, part_of(frame, 1'000, 1'000), false));
}

TEST(FramePartsTest, WhatIsNoPartIsNone) {
  const auto decoded = [](uint16_t offset, uint16_t total, size_t bytes) {
    Bytes body(wire::kPartHeaderBytes + bytes);
    wire::encode_part(offset, total, body.data());
    return wire::decode_part(body).has_value();
  };
  EXPECT_TRUE(decoded(0, 100, 99));
  EXPECT_TRUE(decoded(99, 100, 1));
  EXPECT_FALSE(decoded(0, 100, 100)) << "a whole one";
  EXPECT_FALSE(decoded(0, 100, 0));
  EXPECT_FALSE(decoded(99, 100, 2));
  EXPECT_FALSE(decoded(65'535, 65'535, 1));
  EXPECT_FALSE(wire::decode_part(Bytes(3)).has_value());
}

TEST(FramePartsTest, PartsOfOlderFramesTakeNoNewerOnesPlace) {
  const Bytes frame = frame_of(2'000);
  FrameParts parts;
  for (uint64_t number = 10; number < 10 + FrameParts::kMost; ++number) {
    parts.add(number, part_of(frame, 0, 1'000), false);
  }
  EXPECT_FALSE(parts.add(9, part_of(frame, 0, 1'000), false));
  EXPECT_FALSE(parts.add(9, part_of(frame, 1'000, 1'000), false)) << "nothing of it is kept";
  EXPECT_TRUE(parts.add(10, part_of(frame, 1'000, 1'000), false));
  EXPECT_FALSE(parts.add(9, part_of(frame, 0, 1'000), false)) << "there is a place again";
  EXPECT_TRUE(parts.add(9, part_of(frame, 1'000, 1'000), false));
}

// --- Forged ones ---------------------------------------------------------------------------------

// Sends parts in the first host's name, whose session's tag he has read from one of its frames.
struct Forger : Shrinking {
  static constexpr uint64_t kNumber = 1'000'000;  // far above all that the host has used

  explicit Forger(uint32_t features = kFeatures) : Shrinking(features, features) {
    network.set_tap(see, this);
    echo(1, 10'000);
    EXPECT_TRUE(come_back());
    network.set_tap(nullptr, nullptr);
  }
  static void see(void* context, uint64_t, const Endpoint& source, const Endpoint&,
                  std::span<const std::byte> frame) {
    auto& self = *static_cast<Forger*>(context);
    std::span<const std::byte> payload;
    if (source != at(0) || wire::decode(frame, self.seen, payload) != wire::DecodeError::kNone) {
      return;
    }
    if ((self.seen.flags & wire::kFlagSealed) != 0) payload = payload.subspan(wire::kSealBytes);
    self.payload_tag = wire::crc32c(payload) ^ self.seen.payload_crc;
  }
  // A frame of his, which is right but for what `spoil` makes of its header.
  template <class F>
  Bytes stream_frame(F spoil) {
    Bytes frame(120);
    wire::Header header;
    header.type = wire::FrameType::kStream;
    header.session = seen.session;
    header.packet_number = kNumber;
    header.tag = seen.tag;
    const auto body = static_cast<uint32_t>(frame.size() - sizeof(wire::PlainHeader));
    uint32_t crc = wire::crc32c(frame.data() + sizeof(wire::PlainHeader), body) ^ payload_tag;
    spoil(header, crc);
    finish_frame(frame, header, body, crc);
    return frame;
  }
  // `frame` in two parts, of which each says that it has so many bytes.
  void send_in_parts(const Bytes& frame, size_t total) {
    for (const size_t offset : {size_t{0}, frame.size() / 2}) {
      Bytes body(wire::kPartHeaderBytes + frame.size() / 2);
      wire::encode_part(static_cast<uint16_t>(offset), static_cast<uint16_t>(total), body.data());
      std::copy_n(frame.data() + offset, frame.size() / 2, body.data() + wire::kPartHeaderBytes);
      Bytes part(sizeof(wire::PlainHeader));
      part.insert(part.end(), body.begin(), body.end());
      wire::Header header;
      header.type = wire::FrameType::kPart;
      header.session = seen.session;
      header.packet_number = kNumber;
      header.tag = seen.tag;
      finish_frame(part, header, static_cast<uint32_t>(body.size()),
                   wire::crc32c(body) ^ payload_tag);
      network.inject(at(0), at(1), part);
    }
    run_for(kMs);
  }
  uint64_t dropped(Counter counter) { return b().counters->get(counter); }
  bool changed_nothing() {
    echo(1, 10'000);
    return come_back() && b().counters->get(Counter::kDropStream) == 0 &&
           b().counters->get(Counter::kDropFarAhead) == 0 && b().closed.empty();
  }

  wire::Header seen;
  uint32_t payload_tag = 0;
};

const auto kRight = [](wire::Header&, uint32_t&) {};

TEST(ForgedParts, WhoseWholeIsNoFrameOfTheirsAreDropped) {
  Forger lab;
  lab.send_in_parts(frame_of(80), 80);
  lab.send_in_parts(lab.stream_frame([](auto& header, uint32_t&) { ++header.session; }), 120);
  lab.send_in_parts(lab.stream_frame([](auto& header, uint32_t&) { ++header.packet_number; }), 120);
  lab.send_in_parts(
      lab.stream_frame([](auto& header, uint32_t&) { header.type = wire::FrameType::kPing; }), 120);
  EXPECT_EQ(lab.dropped(Counter::kDropType), 4U);
  EXPECT_TRUE(lab.changed_nothing());
}

TEST(ForgedParts, WhoseWholeHasAWrongSumAreDroppedAsItWouldBe) {
  Forger lab;
  lab.send_in_parts(lab.stream_frame([](auto& header, uint32_t&) { header.tag ^= 1; }), 120);
  EXPECT_EQ(lab.dropped(Counter::kDropHeaderCrc), 1U);
  lab.send_in_parts(lab.stream_frame([](auto&, uint32_t& crc) { crc ^= 1; }), 120);
  EXPECT_EQ(lab.dropped(Counter::kDropPayloadCrc), 1U);
  EXPECT_TRUE(lab.changed_nothing());
  lab.send_in_parts(lab.stream_frame(kRight), 120);
  EXPECT_EQ(lab.dropped(Counter::kDropHeaderCrc) + lab.dropped(Counter::kDropPayloadCrc), 2U);
  EXPECT_EQ(lab.dropped(Counter::kDropStream), 1U) << "but for them it is a frame, of no stream";
}

TEST(ForgedParts, OfMoreThanBothPortsCarryAreDropped) {
  Forger lab;
  const uint32_t most = lab.a().port->info().max_udp_payload;
  lab.send_in_parts(lab.stream_frame(kRight), most + 1);
  EXPECT_EQ(lab.dropped(Counter::kDropType), 2U);
  lab.send_in_parts(lab.stream_frame(kRight), most);
  EXPECT_EQ(lab.dropped(Counter::kDropType), 2U) << "so many may come";
  EXPECT_TRUE(lab.changed_nothing());
}

TEST(ForgedParts, InASessionWithoutPartsAreDropped) {
  Forger lab(wire::kFeatureStreams);
  lab.send_in_parts(lab.stream_frame(kRight), 120);
  EXPECT_EQ(lab.dropped(Counter::kDropType), 2U);
  EXPECT_TRUE(lab.changed_nothing());
}

// He has read the tag, and can make every sum right.
TEST(ForgedParts, InASessionWithSealsAreNotKept) {
  Forger lab(kFeatures | wire::kFeatureSeals);
  lab.send_in_parts(lab.stream_frame(kRight), 120);
  EXPECT_EQ(lab.dropped(Counter::kDropSeal), 2U);
  EXPECT_TRUE(lab.changed_nothing());
}

// He repeats each part as it comes, with one byte altered, before the part itself.
TEST(ForgedParts, AlteredCopiesSpoilNoFrameOfASessionWithSeals) {
  struct Copier : Shrinking {
    Copier() : Shrinking(kFeatures | wire::kFeatureSeals, kFeatures | wire::kFeatureSeals) {}
    static void copy(void* context, uint64_t, const Endpoint& source, const Endpoint& target,
                     std::span<const std::byte> frame) {
      if (frame[3] != static_cast<std::byte>(wire::FrameType::kPart)) return;
      Bytes forged(frame.begin(), frame.end());
      auto& self = *static_cast<Copier*>(context);
      // What stands at the end changes the payload's sum by as much wherever the tag is.
      const size_t body = sizeof(wire::PlainHeader) + wire::kSealBytes;
      const uint32_t sum = wire::crc32c(std::span(forged).subspan(body));
      forged.back() ^= std::byte{1};
      wire::Header header;
      std::span<const std::byte> payload;
      if (wire::decode(frame, header, payload) != wire::DecodeError::kNone) return;
      header.payload_crc ^= sum ^ wire::crc32c(std::span(forged).subspan(body));
      wire::encode(header, forged.data());
      self.network.inject(source, target, forged);
      ++self.copies;
    }
    uint64_t copies = 0;
  } lab;
  lab.network.set_tap(Copier::copy, &lab);
  EXPECT_TRUE(lab.echoes_while_it_shrinks(1'500));
  EXPECT_GT(lab.copies, 0U);
  EXPECT_EQ(lab.both(Counter::kDropSeal), lab.copies);
}

}  // namespace
}  // namespace mercury::echo
