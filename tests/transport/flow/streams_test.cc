// The streams of one session, without the session: what a peer may do to them, and what they do to
// each other.
#include "transport/flow/stream/streams.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace mercury {
namespace {

using Bytes = std::vector<std::byte>;
using Verdict = Streams::Verdict;
using wire::FrameType;

constexpr uint32_t kMost = 1200;

// One side: the streams, and what they said.
struct Side : StreamEvents {
  Side(bool active, const StreamConfig& config) : streams(SessionSlot(1), active, config, *this) {}
  void on_stream_opened(SessionSlot, StreamId id) override { ++opened[id.value]; }
  void on_stream_readable(SessionSlot, StreamId id) override {
    ++readable[id.value];
    if (reads) read(id.value);
  }
  void on_stream_writable(SessionSlot, StreamId id) override { ++writable[id.value]; }
  void on_stream_closed(SessionSlot, StreamId id, Errc code) override {
    EXPECT_TRUE(closed.emplace(id.value, code).second) << id.value;
  }
  void on_streams_available(SessionSlot) override { ++available; }
  void read(uint32_t id) {
    Bytes buffer(4000);
    for (;;) {
      const StreamRead part = streams.read(StreamId(id), buffer);
      got[id].insert(got[id].end(), buffer.begin(),
                     buffer.begin() + static_cast<std::ptrdiff_t>(part.bytes));
      if (part.end) ended[id] = true;
      if (part.bytes < buffer.size()) return;
    }
  }

  Streams streams;
  bool reads = true;
  std::map<uint32_t, int> opened, readable, writable;
  std::map<uint32_t, Errc> closed;
  std::map<uint32_t, Bytes> got;
  std::map<uint32_t, bool> ended;
  int available = 0;
};

// Both, and frames between them, each lost with a probability.
struct Pair {
  explicit Pair(const StreamConfig& config = {}, uint32_t seed = 1)
      : random(seed), a(true, config), b(false, config) {}

  struct Flight {
    Streams::Frame frame;
    Bytes body;
    bool from_a;
  };
  void send(Side& side) {
    Bytes body(2 * kMost);
    while (side.streams.signal_due() || side.streams.segment_bytes(kMost) > 0) {
      const Streams::Frame frame = side.streams.signal_due()
                                       ? side.streams.build_signal(body)
                                       : side.streams.build_segment(body, kMost);
      EXPECT_LE(frame.body_bytes, kMost);
      flights.push_back({frame, Bytes(body.begin(), body.begin() + frame.body_bytes), &side == &a});
    }
  }
  // Until nothing is under way.
  void run(unsigned loss_percent = 0) {
    for (;;) {
      a.streams.tell();
      b.streams.tell();
      send(a);
      send(b);
      if (flights.empty()) return;
      if (loss_percent > 0) std::swap(flights.front(), flights[random() % flights.size()]);
      const Flight flight = flights.front();
      flights.pop_front();
      Side& from = flight.from_a ? a : b;
      Side& to = flight.from_a ? b : a;
      if (random() % 100 < loss_percent) {
        from.streams.on_lost(flight.frame);
        continue;
      }
      const Verdict verdict = to.streams.on_frame(flight.frame.type, flight.body);
      ASSERT_EQ(verdict, Verdict::kTaken) << to.streams.broken();
      if (random() % 100 < loss_percent) {  // it arrived, and nobody learns of it
        from.streams.on_lost(flight.frame);
      } else {
        from.streams.on_acked(flight.frame);
      }
    }
  }

  std::mt19937 random;
  std::deque<Flight> flights;
  Side a;
  Side b;
};

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

// Room and bytes in place: parts that a reader or writer fills as far as it likes.
size_t fill(Side& side, StreamId id, size_t most, uint64_t& next) {
  std::array<iovec, 5> parts;
  const size_t count = side.streams.room(id, parts);
  size_t bytes = 0;
  for (const iovec& part : std::span(parts).first(count)) {
    for (size_t i = 0; i < part.iov_len && bytes < most; ++i, ++bytes) {
      static_cast<std::byte*>(part.iov_base)[i] = static_cast<std::byte>(next++ * 7 >> 3);
    }
  }
  side.streams.wrote(id, bytes);
  return bytes;
}

size_t drain(Side& side, StreamId id, size_t most, uint64_t& next, bool& end) {
  std::array<iovec, 5> parts;
  const Streams::Peeked peeked = side.streams.peek(id, parts);
  end = end || peeked.end;
  size_t bytes = 0;
  for (const iovec& part : std::span(parts).first(peeked.parts)) {
    for (size_t i = 0; i < part.iov_len && bytes < most; ++i, ++bytes) {
      EXPECT_EQ(static_cast<std::byte*>(part.iov_base)[i], static_cast<std::byte>(next * 7 >> 3));
      ++next;
    }
  }
  side.streams.took(id, bytes);
  return bytes;
}

TEST(Streams, BytesInPlaceAreTheSameBytes) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Pair pair({}, seed);
    pair.a.reads = pair.b.reads = false;
    const StreamId id = *pair.a.streams.open();
    uint64_t written = 0;
    uint64_t read = 0;
    bool end = false;
    constexpr uint64_t kBytes = 300'000;
    while (!end) {
      // Whatever is written or taken of what is offered, maybe nothing.
      const uint64_t most = std::min<uint64_t>(pair.random() % 9000, kBytes - written);
      if (fill(pair.a, id, static_cast<size_t>(most), written) == 0 && written == kBytes) {
        pair.a.streams.finish(id);
      }
      pair.run(20);
      drain(pair.b, id, pair.random() % 9000, read, end);
      ASSERT_LE(read, written);
    }
    EXPECT_EQ(read, kBytes);
    pair.b.streams.finish(id);
    pair.run();
    EXPECT_EQ(pair.a.closed.at(id.value), Errc::kOk);
    EXPECT_EQ(pair.b.closed.at(id.value), Errc::kOk);
    EXPECT_EQ(pair.a.streams.block_bytes() + pair.b.streams.block_bytes(), 0U);
  }
}

TEST(Streams, RoomThatNothingIsWrittenToHoldsNoMemory) {
  Pair pair;
  const StreamId id = *pair.a.streams.open();
  uint64_t written = 0;
  EXPECT_EQ(fill(pair.a, id, 0, written), 0U);
  EXPECT_EQ(pair.a.streams.block_bytes(), 0U);
  EXPECT_EQ(fill(pair.a, id, 1, written), 1U);
  EXPECT_EQ(pair.a.streams.block_bytes(), kStreamBlockBytes);
  EXPECT_EQ(fill(pair.a, id, 0, written), 0U);
  EXPECT_EQ(pair.a.streams.block_bytes(), kStreamBlockBytes);
}

TEST(Streams, WhoHasNoRoomIsToldOfSome) {
  Pair pair;
  pair.b.reads = false;
  const StreamId id = *pair.a.streams.open();
  uint64_t written = 0;
  while (fill(pair.a, id, 1 << 20, written) > 0) pair.run();
  pair.run();
  EXPECT_EQ(pair.a.writable[id.value], 0);
  uint64_t read = 0;
  bool end = false;
  while (drain(pair.b, id, 1 << 20, read, end) > 0) pair.run();
  EXPECT_EQ(pair.a.writable[id.value], 1);
  EXPECT_EQ(read, written);
  // And who found nothing to read is told of something, once.
  const int told = pair.b.readable[id.value];
  EXPECT_GT(fill(pair.a, id, 100, written), 0U);
  pair.run();
  EXPECT_EQ(pair.b.readable[id.value], told + 1);
}

TEST(Streams, PrioritiesGoFirstAndTheRestTakeTurns) {
  Pair pair;
  const Bytes much(4 * kMost);
  std::vector<StreamId> ids;
  for (int i = 0; i < 4; ++i) {
    ids.push_back(*pair.a.streams.open());
    pair.a.streams.write(ids.back(), much);
  }
  pair.a.streams.prioritise(ids[2], 5);  // what waits goes by it, too
  pair.a.streams.prioritise(ids[3], 1);
  std::vector<uint32_t> order;
  Bytes body(2 * kMost);
  while (pair.a.streams.segment_bytes(kMost) > 0) {
    order.push_back(pair.a.streams.build_segment(body, kMost).stream);
  }
  const size_t each = order.size() / 4;
  for (size_t i = 0; i < each; ++i) {
    EXPECT_EQ(order[i], ids[2].value);
    EXPECT_EQ(order[each + i], ids[3].value);
    EXPECT_EQ(order[2 * each + 2 * i], ids[0].value);
    EXPECT_EQ(order[2 * each + 2 * i + 1], ids[1].value);
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
