// The streams of one session, without the session: what a peer may do to them, and what they do to
// each other.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/transport/flow/streams_pair.h"

namespace mercury {
namespace {

using namespace stream_tests;

Bytes piece(uint32_t stream, uint64_t offset, size_t bytes, bool end = false) {
  Bytes body(wire::kStreamHeaderBytes + bytes, std::byte{7});
  wire::encode_stream(stream, end, offset, body.data());
  return body;
}
template <class Body>
Bytes body_of(const Body& value) {
  Bytes body(wire::kStreamHeaderBytes);
  wire::encode(value, body.data());
  return body;
}

TEST(Streams, NumbersSayWhoOpened) {
  Pair pair;
  EXPECT_EQ(pair.a.streams.open()->value, 1U);
  EXPECT_EQ(pair.a.streams.open()->value, 3U);
  EXPECT_EQ(pair.b.streams.open()->value, 2U);
  for (const uint32_t id : {1U, 3U}) pair.a.streams.write(StreamId(id), Bytes(10));
  pair.b.streams.write(StreamId(2), Bytes(10));
  pair.run();
  EXPECT_EQ(pair.b.opened, (std::map<uint32_t, int>{{1, 1}, {3, 1}}));
  EXPECT_EQ(pair.a.opened, (std::map<uint32_t, int>{{2, 1}}));
}

// Ten streams, five opened by either side, and random bytes both ways on each.
class RandomTransfer {
 public:
  explicit RandomTransfer(uint32_t seed) : pair_(config(), seed), loss_percent_(seed % 3 * 10) {
    for (int i = 0; i < 5; ++i) {
      ids_.push_back(pair_.a.streams.open()->value);
      ids_.push_back(pair_.b.streams.open()->value);
    }
    for (const uint32_t id : ids_) open_with_data(id);
  }
  void run() {
    for (int round = 0; round < 1000; ++round) {
      const bool all = write_more();
      pair_.run(loss_percent_);
      if (all || testing::Test::HasFatalFailure()) break;
    }
    for (const uint32_t id : ids_) {  // those that had nothing to say
      pair_.a.streams.finish(StreamId(id));
      pair_.b.streams.finish(StreamId(id));
    }
    pair_.run(loss_percent_);
  }
  void expect_all_arrived_and_nothing_left() {
    for (const uint32_t id : ids_) {
      EXPECT_EQ(pair_.b.got[id], data_[0][id]) << id;
      EXPECT_EQ(pair_.a.got[id], data_[1][id]) << id;
      EXPECT_EQ(pair_.a.closed[id], Errc::kOk);
      EXPECT_EQ(pair_.b.closed[id], Errc::kOk);
    }
    EXPECT_EQ(pair_.a.closed.size() + pair_.b.closed.size(), 20U);
    for (Side* side : {&pair_.a, &pair_.b}) {
      EXPECT_EQ(side->streams.count(), 0U);
      EXPECT_EQ(side->streams.block_bytes(), 0U);
    }
  }

 private:
  static StreamConfig config() {
    StreamConfig config;
    config.window_bytes = 40'000;
    config.shared_window_bytes = 60'000;
    config.send_bytes = 30'000;
    config.shared_send_bytes = 20'000;
    return config;
  }
  void open_with_data(uint32_t id) {
    for (auto& side : data_) {
      side[id].resize(pair_.random() % 90'000);
      for (std::byte& byte : side[id]) byte = static_cast<std::byte>(pair_.random());
    }
    // Who opens writes at least its end; the other side knows of it then.
    Streams& opener = id % 2 != 0 ? pair_.a.streams : pair_.b.streams;
    if (data_[id % 2 != 0 ? 0 : 1][id].empty()) opener.finish(StreamId(id));
    opener.write(StreamId(id), {});
  }
  // As much as is taken, of each; true: nothing is left to write.
  bool write_more() {
    bool all = true;
    for (const uint32_t id : ids_) {
      for (size_t side = 0; side < 2; ++side) {
        Streams& streams = side == 0 ? pair_.a.streams : pair_.b.streams;
        size_t& at = written_[side][id];
        const Bytes& bytes = data_[side][id];
        if (at == bytes.size()) continue;
        at += streams.write(StreamId(id), std::span(bytes).subspan(at));
        if (at == bytes.size()) streams.finish(StreamId(id));
        all = all && at == bytes.size();
      }
    }
    return all;
  }

  Pair pair_;
  const uint32_t loss_percent_;
  std::vector<uint32_t> ids_;
  std::map<uint32_t, Bytes> data_[2];
  std::map<uint32_t, size_t> written_[2];
};

TEST(Streams, AnythingGoesThroughAndNothingIsLeft) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomTransfer transfer(seed);
    ASSERT_NO_FATAL_FAILURE(transfer.run());
    transfer.expect_all_arrived_and_nothing_left();
  }
}

TEST(Streams, CreditIsPromisedOnceHoweverManyWantIt) {
  StreamConfig config;
  config.max_streams = 32;
  config.window_bytes = 256 * 1024;
  config.shared_window_bytes = 300'000;
  config.send_bytes = 1 << 20;
  config.shared_send_bytes = 1 << 30;
  Pair pair(config);
  pair.run();
  for (int i = 0; i < 32; ++i) {
    const StreamId id = *pair.a.streams.open();
    pair.a.streams.write(id, Bytes(1 << 19));
    pair.run();  // it is read: its window grows
  }
  pair.b.reads = false;
  for (uint32_t id = 1; id < 64; id += 2) {
    pair.a.streams.write(StreamId(id), Bytes(1 << 20));
    pair.run();
  }
  // Full: each has the initial window at least, and all together no more than the budget.
  constexpr size_t kPromised = 32 * wire::kInitialStreamBytes + 300'000;
  EXPECT_LE(pair.b.streams.block_bytes(), kPromised + 32 * 2 * kStreamBlockBytes);
  EXPECT_GE(pair.b.streams.block_bytes(), 32 * wire::kInitialStreamBytes / 2);
  pair.b.reads = true;
  for (uint32_t id = 1; id < 64; id += 2) pair.b.read(id);
  pair.run();
  for (uint32_t id = 1; id < 64; id += 2) EXPECT_EQ(pair.b.got[id].size(), 3U << 19) << id;
}

TEST(Streams, AWriterIsToldOfRoomOncePerShortWrite) {
  StreamConfig config;
  config.send_bytes = 20'000;
  config.shared_send_bytes = 6'000;
  Pair pair(config);
  const StreamId one = *pair.a.streams.open();
  const StreamId two = *pair.a.streams.open();
  constexpr size_t kOwn = wire::kInitialStreamBytes;
  EXPECT_EQ(pair.a.streams.write(one, Bytes(50'000)), kOwn + 3'000) << "half of what is shared";
  EXPECT_EQ(pair.a.streams.write(two, Bytes(50'000)), kOwn + 1'500);
  pair.run();
  EXPECT_EQ(pair.a.writable, (std::map<uint32_t, int>{{1, 1}, {3, 1}}));
  EXPECT_EQ(pair.a.streams.write(one, Bytes(kOwn)), kOwn);
  pair.run();
  EXPECT_EQ(pair.a.writable[1], 1) << "there was room for all";
}

TEST(Streams, BytesOfOneAtATimeFillNoMemoryWithRecords) {
  Pair pair;
  const StreamId id = *pair.a.streams.open();
  size_t sent = 0;
  Bytes body(2 * kMost);
  for (int i = 0; i < 5000; ++i) {
    pair.a.streams.write(id, Bytes(1));
    if (pair.a.streams.segment_bytes(kMost) == 0) continue;
    pair.a.streams.build_segment(body, kMost);
    ++sent;
  }
  EXPECT_EQ(sent, 1024U) << "then they wait and go together";
}

TEST(Streams, AResetAnswersAndBothSidesForget) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const unsigned loss = seed % 2 * 40;
    Pair pair({}, seed);
    pair.b.reads = false;
    const StreamId id = *pair.a.streams.open();
    pair.a.streams.write(id, Bytes(100'000));
    pair.run(loss);
    pair.b.streams.write(id, Bytes(50'000));
    pair.a.streams.reset(id, Errc::kBusy);
    EXPECT_EQ(pair.a.streams.write(id, Bytes(1)), 0U);
    pair.run(loss);
    EXPECT_TRUE(pair.a.closed.empty()) << "it knows";
    EXPECT_EQ(pair.b.closed, (std::map<uint32_t, Errc>{{1, Errc::kBusy}}));
    EXPECT_EQ(pair.a.streams.count() + pair.b.streams.count(), 0U);
    EXPECT_EQ(pair.a.streams.block_bytes() + pair.b.streams.block_bytes(), 0U);
  }
}

TEST(Streams, BothMayResetAtOnce) {
  Pair pair;
  const StreamId id = *pair.a.streams.open();
  pair.a.streams.write(id, Bytes(100));
  pair.run();
  pair.a.streams.reset(id, Errc::kBusy);
  pair.b.streams.reset(id, Errc::kLimit);
  pair.run();
  EXPECT_TRUE(pair.a.closed.empty());
  EXPECT_TRUE(pair.b.closed.empty());
  EXPECT_EQ(pair.a.streams.count() + pair.b.streams.count(), 0U);
}

TEST(Streams, WhatWasNotReadIsNoEndAfterAReset) {
  Pair pair;
  const StreamId id = *pair.a.streams.open();
  pair.a.streams.write(id, Bytes(100));
  pair.run();
  EXPECT_EQ(pair.b.streams.on_frame(FrameType::kStreamReset,
                                    body_of(wire::StreamReset{1, Errc::kBusy, 100})),
            Verdict::kTaken);
  Bytes buffer(10);
  const StreamRead read = pair.b.streams.read(id, buffer);  // before it has heard
  EXPECT_EQ(read.bytes, 0U);
  EXPECT_FALSE(read.end);
}

TEST(Streams, TheEndOfTheSessionIsTheEndOfEachStream) {
  Pair pair;
  ASSERT_TRUE(pair.a.streams.open());
  ASSERT_TRUE(pair.a.streams.open());
  pair.a.streams.reset(StreamId(3), Errc::kBusy);
  pair.a.streams.close_all(Errc::kPeerLost);
  EXPECT_EQ(pair.a.closed, (std::map<uint32_t, Errc>{{1, Errc::kPeerLost}}));
  EXPECT_EQ(pair.a.streams.block_bytes(), 0U);
  EXPECT_FALSE(pair.a.streams.open());
  EXPECT_EQ(pair.a.streams.write(StreamId(1), Bytes(1)), 0U);
  EXPECT_FALSE(pair.a.streams.signal_due());
}

TEST(Streams, OpeningBeyondTheLimitIsRefusedUntilThePeerAllowsMore) {
  Pair pair;
  for (uint32_t i = 0; i < wire::kInitialStreams; ++i) EXPECT_TRUE(pair.a.streams.open());
  EXPECT_EQ(pair.a.streams.open().error().code, Errc::kAgain);
  EXPECT_EQ(pair.a.available, 0);
  pair.run();  // the peer allows 64
  EXPECT_EQ(pair.a.available, 1);
  uint32_t more = 0;
  while (pair.a.streams.open()) ++more;
  EXPECT_EQ(more, 64 - wire::kInitialStreams);
  for (uint32_t id = 1; id < 128; id += 2) {
    pair.a.streams.write(StreamId(id), Bytes(1));
    pair.a.streams.finish(StreamId(id));
  }
  pair.run();
  for (uint32_t id = 1; id < 128; id += 2) pair.b.streams.finish(StreamId(id));
  pair.run();
  EXPECT_EQ(pair.a.available, 2);
  EXPECT_EQ(pair.a.streams.open()->value, 129U);
}

// Numbers that are free again, and were not worth a frame when they became so, are told once the
// peer comes near its end.
TEST(Streams, NumbersThatAreFreeAgainAreToldBeforeThePeerHasToWait) {
  Pair pair;
  pair.run();
  uint32_t next = 1;
  const auto open_and_end = [&](uint32_t count) {
    for (uint32_t i = 0; i < count; ++i, next += 2) {
      ASSERT_EQ(pair.a.streams.open()->value, next);
      pair.a.streams.write(StreamId(next), Bytes(1));
      pair.a.streams.finish(StreamId(next));
    }
    pair.run();
    for (uint32_t id = next - 2 * count; id < next; id += 2) pair.b.streams.finish(StreamId(id));
    pair.run();
  };
  open_and_end(24);
  for (uint32_t i = 0; i < 64; ++i, next += 2) {
    ASSERT_TRUE(pair.a.streams.open()) << i;
    pair.a.streams.write(StreamId(next), Bytes(1));
    pair.run();
  }
  EXPECT_FALSE(pair.a.streams.open()) << "64 are open";
}

TEST(Streams, AWriteThatFitsForgetsNoPromiseOfRoom) {
  Pair pair;
  const StreamId id = *pair.a.streams.open();
  pair.a.streams.write(id, Bytes(1 << 20));
  EXPECT_EQ(pair.a.streams.write(id, {}), 0U);
  pair.run();
  EXPECT_EQ(pair.a.writable[1], 1);
}

TEST(Streams, WhatWasCompleteBeforeTheSessionEndedIsNoFailure) {
  Pair pair;
  ASSERT_TRUE(pair.a.streams.open());
  pair.a.streams.write(StreamId(1), Bytes(1));
  pair.a.streams.finish(StreamId(1));
  pair.run();
  pair.b.streams.write(StreamId(1), Bytes(1));
  pair.b.streams.finish(StreamId(1));
  pair.a.reads = false;
  pair.run();
  pair.a.read(1);  // all is here and acknowledged, and not told yet
  pair.a.streams.close_all(Errc::kClosed);
  EXPECT_EQ(pair.a.closed, (std::map<uint32_t, Errc>{{1, Errc::kOk}}));
}

struct BrokenRule {
  const char* what;
  std::vector<std::pair<FrameType, Bytes>> before;  // taken
  FrameType type;
  Bytes body;
  const char* broken;
};

std::vector<BrokenRule> what_no_honest_peer_sends() {
  const uint32_t window = wire::kInitialStreamBytes;
  const auto stream = FrameType::kStream;
  const auto credit = FrameType::kStreamCredit;
  const auto reset = FrameType::kStreamReset;
  const Bytes hundred = piece(1, 0, 100);
  return {
      {"credit", {}, stream, piece(1, window, 1), "more bytes of a stream than its credit"},
      {"far credit", {}, stream, piece(1, 1ULL << 60, 1), "more bytes of a stream than its credit"},
      {"an end beyond", {}, stream, piece(1, window + 1, 0, true), "more bytes of a stream"},
      {"the 65th stream", {}, stream, piece(129, 0, 1), "more streams than were allowed"},
      {"the last stream", {}, stream, piece(0xffffffff, 0, 1), "more streams than were allowed"},
      {"credit of the 65th", {}, credit, body_of(wire::StreamCredit{129, 1}), "more streams"},
      {"not opened", {}, stream, piece(2, 0, 1), "a frame of a stream that was never opened"},
      {"reset not opened",
       {},
       reset,
       body_of(wire::StreamReset{4, Errc::kBusy, 0}),
       "never opened"},
      {"behind the end",
       {{stream, piece(1, 0, 10, true)}},
       stream,
       piece(1, 10, 1),
       "behind the end"},
      {"another end", {{stream, piece(1, 0, 10, true)}}, stream, piece(1, 0, 9, true), "behind"},
      {"an end before", {{stream, hundred}}, stream, piece(1, 0, 50, true), "behind the end"},
      {"a reset before",
       {{stream, hundred}},
       reset,
       body_of(wire::StreamReset{1, Errc::kBusy, 99}),
       "contradicts"},
      {"a reset behind the end",
       {{stream, piece(1, 0, 10, true)}},
       reset,
       body_of(wire::StreamReset{1, Errc::kBusy, 11}),
       "contradicts"},
      {"a reset beyond credit",
       {},
       reset,
       body_of(wire::StreamReset{1, Errc::kBusy, window + 1}),
       "beyond its credit"},
  };
}

TEST(Streams, WhoBreaksTheRulesIsTold) {
  for (const BrokenRule& row : what_no_honest_peer_sends()) {
    SCOPED_TRACE(row.what);
    Pair pair;
    pair.b.reads = false;
    pair.run();
    for (const auto& [type, body] : row.before) {
      ASSERT_EQ(pair.b.streams.on_frame(type, body), Verdict::kTaken);
    }
    EXPECT_EQ(pair.b.streams.on_frame(row.type, row.body), Verdict::kBroken);
    EXPECT_NE(std::string(pair.b.streams.broken()).find(row.broken), std::string::npos)
        << pair.b.streams.broken();
  }
}

TEST(Streams, FramesOfStreamsThatAreOverChangeNothing) {
  Pair pair;
  const StreamId id = *pair.a.streams.open();
  pair.a.streams.finish(id);
  pair.run();
  pair.b.streams.finish(id);
  pair.run();
  ASSERT_EQ(pair.a.streams.count() + pair.b.streams.count(), 0U);
  for (Side* side : {&pair.a, &pair.b}) {
    EXPECT_EQ(side->streams.on_frame(FrameType::kStream, piece(1, 5, 100)), Verdict::kTaken);
    EXPECT_EQ(
        side->streams.on_frame(FrameType::kStreamCredit, body_of(wire::StreamCredit{1, 1 << 20})),
        Verdict::kTaken);
    EXPECT_EQ(side->streams.on_frame(FrameType::kStreamReset,
                                     body_of(wire::StreamReset{1, Errc::kBusy, 5})),
              Verdict::kTaken);
    side->streams.tell();
    EXPECT_EQ(side->closed.size(), 1U);
    EXPECT_EQ(side->streams.count(), 0U);
    EXPECT_FALSE(side->streams.signal_due());
  }
}

TEST(Streams, TooManyGapsAndMalformedBodiesAreDropped) {
  Pair pair;
  size_t dropped = 0;
  for (uint64_t at = 1; at < 2000; at += 2) {
    dropped += pair.b.streams.on_frame(FrameType::kStream, piece(1, at, 1)) == Verdict::kDropped;
  }
  EXPECT_EQ(dropped, 1000 - StreamReceiver::kMaxGaps);
  EXPECT_EQ(pair.b.streams.on_frame(FrameType::kStream, piece(1, 0, 1)), Verdict::kTaken);
  for (const FrameType type :
       {FrameType::kStream, FrameType::kStreamCredit, FrameType::kStreamReset}) {
    EXPECT_EQ(pair.b.streams.on_frame(type, Bytes(15)), Verdict::kDropped);
  }
}

// One byte in each block, of as many streams as there may be: the most that credit costs.
TEST(Streams, SparseBytesCostNoMoreThanTheCredit) {
  Pair pair;
  pair.b.reads = false;
  pair.run();
  for (uint32_t id = 1; id < 128; id += 2) {
    for (uint64_t at = 1; at < wire::kInitialStreamBytes; at += 100) {
      ASSERT_EQ(pair.b.streams.on_frame(FrameType::kStream, piece(id, at, 1)), Verdict::kTaken);
    }
  }
  EXPECT_LE(pair.b.streams.block_bytes(), 64 * wire::kInitialStreamBytes);
}

}  // namespace
}  // namespace mercury
