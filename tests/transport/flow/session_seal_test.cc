// Sessions whose frames are sealed: who has read every frame of one can still forge none.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string>
#include <type_traits>

#include "tests/seeds.h"
#include "tests/transport/flow/pipe.h"
#include "transport/flow/mtu_probe.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/stream.h"

namespace mercury::test {
namespace {

// What somebody on the path learns of a session's tag from one of its frames.
FrameTag tag_shown_by(const Bytes& frame) {
  wire::Header header;
  std::span<const std::byte> payload;
  EXPECT_EQ(wire::decode(frame, header, payload), wire::DecodeError::kNone);
  const bool sealed = (header.flags & wire::kFlagSealed) != 0;
  return {header.tag,
          header.payload_crc ^ wire::crc32c(sealed ? payload.subspan(wire::kSealBytes) : payload)};
}

// The header's alone.
void repair_header(Bytes& frame, uint32_t tag) {
  const size_t head = wire::header_bytes(static_cast<wire::FrameType>(frame[3]));
  if (frame.size() < head) return;
  std::memset(frame.data() + offsetof(wire::CommonHeader, header_crc), 0, 4);
  const wire::Be32 header_crc(wire::crc32c(frame.data(), head) ^ tag);
  std::memcpy(frame.data() + offsetof(wire::CommonHeader, header_crc), &header_crc, 4);
}

// Makes both CRCs of a sealed frame right again, with the tag.
void repair(Bytes& frame, FrameTag tag) {
  const auto type = static_cast<wire::FrameType>(frame[3]);
  const size_t head = wire::header_bytes(type);
  if (frame.size() < head + wire::kSealBytes) return;
  const wire::Be32 payload_crc(wire::crc32c(std::span(frame).subspan(head + wire::kSealBytes)) ^
                               tag.payload);
  std::memcpy(frame.data() + head - (wire::is_datagram(type) ? 4 : 8), &payload_crc, 4);
  repair_header(frame, tag.header);
}

uint64_t number_of(const Bytes& frame) {
  wire::Be64 number;
  std::memcpy(&number, frame.data() + offsetof(wire::CommonHeader, packet_number), sizeof number);
  return number.value();
}

// Two hosts with seals, and one frame of each type that host 0 has sent and host 1 has not heard.
class Sealed {
 public:
  static constexpr uint64_t kResetToken = 0x1234;
  static SessionConfig of_host() {
    SessionConfig config;
    config.reset_token = kResetToken;
    return config;
  }

  explicit Sealed(bool encrypted = false) : net(1, of_host()) {
    net.with_seals(encrypted);
    net.features |= wire::kFeatureResets;
    net.host[1].answer.features |= wire::kFeatureResets;
    for (Host& host : net.host) host.carry_streams();
    net.alter = [this](int, Bytes& frame) {  // the first does not arrive, the next one does
      if (is_reset_token(frame) && kept.emplace(13, frame).second) frame[0] = std::byte{0};
    };
    net.connect();
    EXPECT_TRUE(net.run([&] { return net.host[1].opened == 1; }, kSecond));
    net.run_for(kSecond / 10);
    EXPECT_EQ(net.host[1].reset_token, kResetToken);
    net.host[1].reset_token = 0;
    net.tap = [this](int from, std::span<const std::byte> frame) {
      if (from == 0) {
        kept.emplace(static_cast<uint8_t>(frame[3]), Bytes(frame.begin(), frame.end()));
      }
    };
    Host& sender = net.host[0];
    net.host[1].queue_chunks(1);  // for an ACK of it
    net.host[1].pump();
    net.host[1].stalled = true;
    const Bytes text(40, std::byte{7});
    EXPECT_TRUE(sender.session->send_control(text));
    const StreamId stream = *sender.session->streams()->open();
    EXPECT_EQ(sender.session->streams()->write(stream, text), text.size());
    sender.queue_chunks(1);
    net.run_for(kSecond / 10);  // a probe time-out: PING
    sender.session->close(Errc::kClosed, "farewell", net.now_ns);
    net.run_for(kSecond / 100);
    net.tap = nullptr;
  }
  static bool is_reset_token(std::span<const std::byte> frame) {
    return frame[3] == static_cast<std::byte>(wire::FrameType::kResetToken);
  }
  Host& receiver() { return net.host[1]; }
  // As they are, but for CLOSE.
  void expect_kept_are_taken() {
    for (const auto& [type, frame] : kept) {
      if (type == 4) continue;
      Bytes whole = frame;
      receiver().receive(whole);
      EXPECT_FALSE(receiver().session->is_new(number_of(frame))) << int{type} << " is taken";
    }
    EXPECT_EQ(receiver().delivered.size(), 1U);
    EXPECT_EQ(receiver().reset_token, kResetToken);
  }

  Net net;
  std::map<uint8_t, Bytes> kept;  // by type
};

TEST(SessionSeal, CarriesAllInAnyWeather) {
  for_each_seed(200, [](uint64_t number) {
    const auto seed = static_cast<uint32_t>(number);
    const bool encrypted = seed % 2 != 0;
    SessionConfig config;
    config.max_udp_payload = 8900;
    Net net(seed, config, config);
    net.with_seals(encrypted);
    for (Host& host : net.host) host.carry_streams();
    net.connect();
    net.weather = {.loss = 0.1,
                   .duplication = 0.1,
                   .corruption = 0.05,
                   .jitter_ns = 300'000,
                   .largest_frame = 4000};
    ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1; }, 10 * kSecond));
    ASSERT_NE(net.host[0].session->seals(), nullptr);
    ASSERT_EQ(net.host[0].session->seals()->encrypted(), encrypted);
    const Bytes text(150'000, std::byte{9});
    for (Host& host : net.host) {
      host.queue_chunks(200);
      ASSERT_TRUE(host.session->send_control(text));
    }
    const StreamId stream = *net.host[0].session->streams()->open();
    net.host[0].session->streams()->write(stream, std::span(text).first(10'000));
    ASSERT_TRUE(net.run(
        [&] {
          return net.host[0].all_acked() && net.host[1].all_acked() &&
                 net.host[0].messages.size() == 1 && net.host[1].messages.size() == 1 &&
                 net.host[1].stream_bytes[stream.value].size() == 10'000 && net.host[0].path != 0;
        },
        60 * kSecond));
    EXPECT_EQ(net.host[1].messages[0], text);
    EXPECT_EQ(net.host[1].delivered.size(), 200U);
    EXPECT_EQ(net.host[0].closed + net.host[1].closed, 0);
    EXPECT_LE(net.host[0].path, 4000 - wire::kSealBytes);
  });
}

TEST(SessionSeal, NothingIsLargerThanThePath) {
  for (const uint16_t path : {wire::kMinUdpPayload, uint16_t{4000}}) {
    SessionConfig config;
    config.max_udp_payload = path == wire::kMinUdpPayload ? path : uint16_t{8900};
    Net net(1, config, config);
    net.with_seals();
    net.weather.largest_frame = path;
    net.connect();
    const Bytes text(200'000, std::byte{9});
    ASSERT_TRUE(net.host[0].session->send_control(text));
    ASSERT_TRUE(net.run([&] { return net.host[1].messages.size() == 1 && net.host[0].path != 0; },
                        10 * kSecond));
    EXPECT_LE(net.host[0].path, path - wire::kSealBytes);
    EXPECT_GE(net.host[0].path + kProbeGranularityBytes, path - wire::kSealBytes);
    EXPECT_EQ(net.host[0].session->lost_packets(), 0U) << "a probe of the path is no loss";
  }
}

TEST(SessionSeal, EveryFlippedBitIsDroppedAlthoughBothSumsAreRight) {
  Sealed lab;
  ASSERT_EQ(lab.kept.size(), 7U) << "CLOSE, ACK, PING, CONTROL, a datagram, STREAM, RESET_TOKEN";
  Host& host = lab.receiver();
  const FrameTag tag = tag_shown_by(lab.kept.at(7));
  uint64_t dropped = 0, bits = 0;
  for (const auto& [type, frame] : lab.kept) {
    for (size_t bit = 0; bit < frame.size() * 8; ++bit, ++bits) {
      Bytes forged = frame;
      forged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      repair(forged, tag);
      if (forged == frame) continue;  // a bit of a sum
      const bool fresh = host.session->is_new(number_of(forged));
      host.receive(forged);
      dropped = host.counters.get(Counter::kDropSeal) +
                host.counters.get(Counter::kDropDuplicate) +  // of another packet's number
                host.counters.get(Counter::kDropFarAhead);
      ASSERT_EQ(host.session->state(), Session::State::kOpen) << int{type} << ", bit " << bit;
      ASSERT_EQ(host.session->is_new(number_of(forged)), fresh) << int{type} << ", bit " << bit;
      ASSERT_TRUE(host.delivered.empty() && host.messages.empty() && host.reset_token == 0);
    }
  }
  // But for both sums, which were made right, and what says to whom and of what shape a frame is:
  // magic, version, type, length and session.
  EXPECT_GE(dropped, bits - 7 * (64 + 80));
  const uint64_t seals_wrong = host.counters.get(Counter::kDropSeal);
  EXPECT_GE(seals_wrong, bits - 7 * (64 + 80 + 64));
  lab.expect_kept_are_taken();
  EXPECT_EQ(host.counters.get(Counter::kDropSeal), seals_wrong);
}

// The attack that the tag alone does not stop: one frame shows it.
TEST(SessionSeal, WhoHasReadFramesForgesNone) {
  for (const bool seals : {false, true}) {
    Net net(1);
    if (seals) net.with_seals();
    Bytes seen;
    net.tap = [&](int from, std::span<const std::byte> frame) {
      if (from == 0 && frame[3] == std::byte{6}) seen.assign(frame.begin(), frame.end());
    };
    net.connect();
    ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1; }, kSecond));
    net.run_for(kSecond / 10);
    const FrameTag tag = tag_shown_by(seen);
    EXPECT_EQ(tag.payload, net.host[1].session->tag().payload) << "he knows it";

    Bytes close(64);
    close.resize(wire::encode(wire::Reason{11, Errc::kClosed, "go away"}, close));
    Bytes with_seal(wire::kSealBytes);  // that of the frame he saw
    std::memcpy(with_seal.data(), seen.data() + sizeof(wire::PlainHeader),
                seals ? wire::kSealBytes : 0);
    with_seal.insert(with_seal.end(), close.begin(), close.end());
    for (const Bytes& body : {close, with_seal}) {
      wire::Header header = plain_header(wire::FrameType::kClose, body, 1000, tag);
      header.session = 22;
      if (seals) header.payload_crc = wire::crc32c(close) ^ tag.payload;
      Bytes frame(sizeof(wire::PlainHeader));
      wire::encode(header, frame.data());
      frame.insert(frame.end(), body.begin(), body.end());
      net.host[1].receive(frame);
    }
    EXPECT_EQ(net.host[1].closed, seals ? 0 : 1);
    EXPECT_EQ(net.host[1].counters.get(Counter::kDropSeal), seals ? 2U : 0U);
  }
}

TEST(SessionSeal, AFrameFitsItsDirectionSessionAndNumberAlone) {
  Sealed lab;
  // The same key, nonces and numbers, but for one bit of a nonce.
  Net third(1);
  third.with_seals();
  third.host[1].answer.nonce[3] ^= 1;
  third.connect();
  ASSERT_TRUE(third.run([&] { return third.host[1].opened == 1; }, kSecond));
  for (const auto& [type, frame] : lab.kept) {
    Bytes elsewhere = frame;
    wire::Be64 number(number_of(frame) + 1'000);
    std::memcpy(elsewhere.data() + offsetof(wire::CommonHeader, packet_number), &number,
                sizeof number);
    repair(elsewhere, tag_shown_by(frame));
    lab.receiver().receive(elsewhere);
    EXPECT_TRUE(lab.receiver().session->is_new(number.value())) << int{type};
    Bytes again = frame;
    repair(again, third.host[1].session->tag());
    third.host[1].receive(again);
    EXPECT_EQ(third.host[1].session->state(), Session::State::kOpen);
  }
  EXPECT_EQ(lab.receiver().counters.get(Counter::kDropSeal), lab.kept.size());
  // The number of one has been used there.
  EXPECT_EQ(third.host[1].counters.get(Counter::kDropDuplicate), 1U);
  EXPECT_EQ(third.host[1].counters.get(Counter::kDropSeal), lab.kept.size() - 1);

  // Back to its sender, under the number of the session there.
  Net back(1);
  back.with_seals();
  Bytes ping;
  back.tap = [&](int from, std::span<const std::byte> frame) {
    if (from == 0 && frame[3] == std::byte{6}) ping.assign(frame.begin(), frame.end());
  };
  back.connect();
  ASSERT_TRUE(back.run([&] { return back.host[1].opened == 1; }, kSecond));
  back.run_for(kSecond / 10);
  const wire::Be32 session(11);
  std::memcpy(ping.data() + offsetof(wire::CommonHeader, session), &session, sizeof session);
  const wire::Be64 number(500);
  std::memcpy(ping.data() + offsetof(wire::CommonHeader, packet_number), &number, sizeof number);
  repair(ping, back.host[0].session->tag());
  back.host[0].receive(ping);
  EXPECT_EQ(back.host[0].counters.get(Counter::kDropSeal), 1U);
  EXPECT_TRUE(back.host[0].session->is_new(500));
}

TEST(SessionSeal, GoesOnWhereTheNextKeyBegins) {
  for (const bool encrypted : {false, true}) {
    SessionConfig config;
    config.first_packet_number = (uint64_t{1} << 32) - 150;
    Net net(3, config, config);
    net.with_seals(encrypted);
    net.weather = {.loss = 0.05, .jitter_ns = 100'000};
    net.connect();
    ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1; }, kSecond));
    for (Host& host : net.host) host.queue_chunks(500);
    ASSERT_TRUE(
        net.run([&] { return net.host[0].all_acked() && net.host[1].all_acked(); }, 20 * kSecond));
    for (Host& host : net.host) {
      EXPECT_EQ(host.counters.get(Counter::kDropSeal), 0U);
      EXPECT_EQ(host.delivered.size(), 500U);
    }
  }
}

// He knows the tag, and no mask: of an encrypted frame's sums he can make the header's right alone.
TEST(SessionSeal, EveryFlippedBitOfAnEncryptedFrameIsDropped) {
  Sealed lab(true);
  ASSERT_EQ(lab.kept.size(), 7U) << "CLOSE, ACK, PING, CONTROL, a datagram, STREAM, RESET_TOKEN";
  Host& host = lab.receiver();
  const uint32_t tag = tag_shown_by(lab.kept.at(7)).header;
  for (const auto& [type, frame] : lab.kept) {
    for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
      Bytes forged = frame;
      forged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      repair_header(forged, tag);
      if (forged == frame) continue;  // a bit of its sum
      const bool fresh = host.session->is_new(number_of(forged));
      host.receive(forged);
      ASSERT_EQ(host.session->state(), Session::State::kOpen) << int{type} << ", bit " << bit;
      ASSERT_EQ(host.session->is_new(number_of(forged)), fresh) << int{type} << ", bit " << bit;
      ASSERT_TRUE(host.delivered.empty() && host.messages.empty() && host.reset_token == 0);
    }
  }
  lab.expect_kept_are_taken();
}

// A gradient that repeats shows neither itself nor that it does.
TEST(SessionSeal, WhatTravelsEncryptedShowsNothing) {
  for (const bool encrypted : {false, true}) {
    Net net(1);
    net.with_seals(encrypted);
    for (Host& host : net.host) host.carry_streams();
    const Bytes text(64, std::byte{0x5a});
    std::set<Bytes> payloads;
    std::set<uint32_t> sums;
    size_t frames = 0, with_text = 0;
    net.tap = [&](int, std::span<const std::byte> frame) {
      wire::Header header;
      std::span<const std::byte> payload;
      ASSERT_EQ(wire::decode(frame, header, payload), wire::DecodeError::kNone);
      if (!wire::is_tagged(header.type)) return;
      EXPECT_EQ((header.flags & wire::kFlagEncrypted) != 0,
                encrypted && !wire::is_datagram(header.type));  // whose flags are the engine's
      with_text += !std::ranges::search(frame, std::span(text).first(16)).empty();
      if (header.type != wire::FrameType::kControl && header.type != wire::FrameType::kStream)
        return;
      ++frames;
      const size_t head = wire::kSealBytes + wire::kStreamHeaderBytes;
      payloads.emplace(payload.begin() + static_cast<std::ptrdiff_t>(head), payload.end());
      sums.insert(header.payload_crc);
    };
    net.connect();
    ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1; }, kSecond));
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(net.host[0].session->send_control(text));
      net.run_for(kSecond / 100);
      const StreamId stream = *net.host[0].session->streams()->open();
      net.host[0].session->streams()->write(stream, text);
      net.run_for(kSecond / 100);
    }
    ASSERT_GE(frames, 40U);
    EXPECT_EQ(net.host[1].messages.size(), 20U);
    if (encrypted) {
      EXPECT_EQ(with_text, 0U);
      EXPECT_EQ(payloads.size(), frames);
      EXPECT_EQ(sums.size(), frames);
    } else {
      EXPECT_EQ(with_text, frames) << "this test sees what travels plainly";
      EXPECT_LT(payloads.size(), frames / 2);
    }
  }
}

TEST(SessionSeal, PayloadsAreEncryptedWhereBothSidesCanAndEitherAsks) {
  constexpr uint32_t kSeals = wire::kFeatureSeals, kCan = kSeals | wire::kFeatureCanEncrypt,
                     kAsks = kCan | wire::kFeatureAsksEncryption;
  struct Row {
    uint32_t asking, answering;
    bool encrypted;
  };
  for (const auto& [asking, answering, encrypted] : {Row{kCan, kCan, false},
                                                     {kAsks, kCan, true},
                                                     {kCan, kAsks, true},
                                                     {kAsks, kAsks, true},
                                                     {kAsks, kSeals, false},
                                                     {kSeals, kAsks, false},
                                                     {kSeals, kCan, false}}) {
    Net net(1);
    net.features |= asking;
    net.host[1].answer.features |= answering;
    net.connect();
    ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1; }, kSecond));
    for (Host& host : net.host) {
      EXPECT_EQ(host.session->seals()->encrypted(), encrypted) << asking << ", " << answering;
      host.queue_chunks(50);
    }
    ASSERT_TRUE(
        net.run([&] { return net.host[0].all_acked() && net.host[1].all_acked(); }, kSecond));
  }
}

// Releases before know no seals; both ends then speak as they do.
TEST(SessionSeal, WhereOneSideLacksThemThereAreNone) {
  for (const int side : {0, 1}) {
    Net net(1);
    net.with_seals();
    if (side == 0) net.features = 0;
    if (side == 1) net.host[1].answer.features = 0;
    net.connect();
    ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1; }, kSecond));
    for (Host& host : net.host) {
      EXPECT_EQ(host.session->seals(), nullptr);
      host.queue_chunks(50);
    }
    ASSERT_TRUE(
        net.run([&] { return net.host[0].all_acked() && net.host[1].all_acked(); }, kSecond));
    EXPECT_FALSE(net.host[0].session->answer().confirmation.has_value());
  }
}

// Somebody on the path alters one byte of each body of HELLO or HELLO_ACK, and makes the frame's
// sums right.
void alter(Net& net, uint8_t type, size_t at, uint8_t bits) {
  net.alter = [=](int, Bytes& frame) {
    if (static_cast<uint8_t>(frame[3]) != type) return;
    frame[sizeof(wire::PlainHeader) + at] ^= static_cast<std::byte>(bits);
    const wire::Be32 sum(wire::crc32c(std::span(frame).subspan(sizeof(wire::PlainHeader))));
    std::memcpy(frame.data() + sizeof(wire::CommonHeader), &sum, sizeof sum);
    std::memset(frame.data() + offsetof(wire::CommonHeader, header_crc), 0, 4);
    const wire::Be32 header_sum(wire::crc32c(frame.data(), sizeof(wire::PlainHeader)));
    std::memcpy(frame.data() + offsetof(wire::CommonHeader, header_crc), &header_sum, 4);
  };
}

TEST(SessionSeal, AHandshakeThatWasAlteredOnTheWayOpensNothing) {
  struct Row {
    uint8_t type;
    size_t at;  // in the body
    uint8_t bits;
    const char* what;
  };
  // Where each field stands: docs/protocol.md, "Bodies".
  constexpr Row kRows[] = {{1, 1, 4, "HELLO's highest version"},
                           {1, 3, 1, "role"},
                           {1, 4, 128, "features"},
                           {1, 7, 128, "whether it can encrypt"},
                           {1, 6, 1, "whether it asks for encryption"},
                           {1, 13, 1, "rank"},
                           {1, 15, 1, "lane"},
                           {1, 19, 1, "incarnation"},
                           {1, 21, 64, "max UDP payload"},
                           {1, 23 + 1, 1, "nonce"},
                           {1, 40, 1, "proof"},
                           {1, 72, 1, "the job's name"},
                           {2, 1, 1, "HELLO_ACK's reserved byte"},
                           {2, 4, 128, "features"},
                           {2, 7, 128, "whether it can encrypt"},
                           {2, 6, 1, "whether it asks for encryption"},
                           {2, 11, 1, "session"},
                           {2, 15, 1, "incarnation"},
                           {2, 17, 64, "max UDP payload"},
                           {2, 20, 1, "nonce"},
                           {2, 36, 1, "proof"},
                           {2, 68, 1, "confirmation"}};
  for (const uint32_t features :
       {uint32_t{wire::kFeatureSeals}, uint32_t{wire::kFeatureConfirmation}, kEncryption}) {
    for (const Row& row : kRows) {
      SCOPED_TRACE(row.what);
      Net net(1);
      net.features |= features;
      net.host[1].answer.features |= features;
      alter(net, row.type, row.at, row.bits);
      net.connect();
      ASSERT_TRUE(net.run([&] { return net.host[0].closed == 1; }, 11 * kSecond));
      EXPECT_EQ(net.host[0].opened + net.host[1].opened, 0);
      EXPECT_EQ(net.host[0].closed_code, Errc::kTimedOut);
      EXPECT_NE(net.host[0].closed_text.find("altered on the way"), std::string::npos)
          << net.host[0].closed_text;
      EXPECT_GT(net.host[0].counters.get(Counter::kDropForgedAnswer), 0U);
    }
  }
}

// As with seals, the proof covers the offer.
TEST(SessionSeal, WhereOneSideKnowsNoConfirmationTheAnswerHasNone) {
  for (const int side : {0, 1, 2}) {
    Net net(1);
    if (side != 0) net.features |= wire::kFeatureConfirmation;
    if (side != 1) net.host[1].answer.features |= wire::kFeatureConfirmation;
    net.connect();
    ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1; }, kSecond));
    EXPECT_EQ(net.host[0].session->answer().confirmation.has_value(), side == 2);
    EXPECT_EQ(net.host[0].session->seals(), nullptr);
    EXPECT_EQ(net.host[1].session->seals(), nullptr);
    net.host[0].queue_chunks(20);
    ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, kSecond));
  }
}

TEST(FrameKeys, DifferForEachSessionAndDirection) {
  const wire::Key key{7};
  Bytes hello(80), answer(wire::kHelloAckBytes);
  std::set<std::array<uint8_t, 32>> seen;
  const auto all_new = [&](const wire::Key& of) {
    const FrameKeys keys = derive_frame_keys(of, hello, answer);
    const size_t before = seen.size();
    seen.insert({keys.confirmation, keys.asking, keys.answering});
    return seen.size() == before + 3;
  };
  EXPECT_TRUE(all_new(key));
  EXPECT_FALSE(all_new(key)) << "the same handshake has the same";
  for (Bytes* body : {&hello, &answer}) {
    for (std::byte& byte : *body) {
      byte ^= std::byte{1};
      EXPECT_TRUE(all_new(key));
      byte ^= std::byte{1};
    }
  }
  EXPECT_TRUE(all_new(wire::Key{8}));
}

// It may come from who has the secret alone, and a buffer has bounds.
TEST(Seals, OpenNoMoreThanTheSessionsLargestPayload) {
  const FrameKeys keys = derive_frame_keys(wire::Key{7}, Bytes(80), Bytes(wire::kHelloAckBytes));
  Seals sender(keys, false), receiver(keys, true);
  sender.encrypt(1000);
  receiver.encrypt(100);
  wire::Header header;
  header.type = wire::FrameType::kControl;
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{101}, size_t{1000}}) {
    Bytes frame(sizeof(wire::PlainHeader) + wire::kSealBytes + bytes);
    const std::span<std::byte> body = std::span(frame).subspan(sizeof(wire::PlainHeader));
    const Bytes payload(bytes, std::byte{3});
    header.packet_number = bytes;
    const auto hidden = sender.seal(bytes, sizeof(wire::PlainHeader), frame.data(), payload);
    ASSERT_EQ(hidden.data(), body.data() + wire::kSealBytes);
    EXPECT_TRUE(receiver.fits(header, body)) << bytes;
    const auto opened = receiver.open(header, body);
    EXPECT_EQ(opened.has_value(), bytes <= 100) << bytes;
    if (opened) {
      EXPECT_EQ(Bytes(opened->payload.begin(), opened->payload.end()), payload);
      EXPECT_EQ(opened->crc_mask, sender.crc_mask(bytes));
    }
    body.back() ^= std::byte{1};
    EXPECT_FALSE(receiver.fits(header, body));
    EXPECT_FALSE(receiver.open(header, body));
    EXPECT_FALSE(receiver.fits(header, body.first(wire::kSealBytes - 1)));
  }
}

// The seals have their own by then.
TEST(FrameKeys, NoneIsLeftInMemoryWhenTheyAreWiped) {
  const wire::Key key{1, 2, 3};
  const std::array<std::byte, 72> hello{};
  const std::array<std::byte, wire::kHelloAckBytes> answer{};
  FrameKeys keys = derive_frame_keys(key, hello, answer);
  static_assert(std::is_trivially_copyable_v<FrameKeys>);
  const std::array<std::byte, sizeof keys> none{};
  EXPECT_NE(std::memcmp(&keys, none.data(), none.size()), 0);
  wipe(keys);
  EXPECT_EQ(std::memcmp(&keys, none.data(), none.size()), 0);
}

}  // namespace
}  // namespace mercury::test
