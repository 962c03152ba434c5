// Both sides of a session's streams, without the session, and what they said; frames between them
// may be lost.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "transport/flow/stream/streams.h"

namespace mercury::stream_tests {

using Bytes = std::vector<std::byte>;
using Verdict = Streams::Verdict;
using wire::FrameType;

inline constexpr uint32_t kMost = 1200;

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

}  // namespace mercury::stream_tests
