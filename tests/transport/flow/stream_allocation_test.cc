// Streams that are open and carry short messages leave the heap alone: in order, out of order, and
// with losses.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <span>

#include "tests/allocations.h"
#include "transport/flow/stream/streams.h"

namespace mercury {
namespace {

constexpr uint32_t kMost = 1200;

struct Deaf : StreamEvents {
  void on_stream_opened(SessionSlot, StreamId) override {}
  void on_stream_readable(SessionSlot, StreamId) override {}
  void on_stream_writable(SessionSlot, StreamId) override {}
  void on_stream_closed(SessionSlot, StreamId, Errc) override {}
  void on_streams_available(SessionSlot) override {}
};

enum class Way { kInOrder, kReversed, kFirstLost };

class Exchange {
 public:
  explicit Exchange(Way way) : way_(way), id_(*a_.open()) {}

  // A message there and one back, each read when it has come whole.
  void run(size_t bytes) {
    send(a_, b_, bytes);
    send(b_, a_, bytes);
  }

 private:
  struct Sent {
    Streams::Frame frame;
    std::array<std::byte, 2 * kMost> body;
  };

  void send(Streams& from, Streams& to, size_t bytes) {
    ASSERT_EQ(from.write(id_, std::span(message_).first(bytes)), bytes);
    if (way_ == Way::kFirstLost) lose_one(from);
    deliver(from, to);
    ASSERT_EQ(to.read(id_, buffer_).bytes, bytes);
    to.tell();
    deliver(to, from);  // credit
  }

  Sent& build(Streams& from, Sent& sent) {
    sent.frame =
        from.signal_due() ? from.build_signal(sent.body) : from.build_segment(sent.body, kMost);
    return sent;
  }

  void lose_one(Streams& from) { from.on_lost(build(from, flights_[0]).frame); }

  void deliver(Streams& from, Streams& to) {
    size_t count = 0;
    while (from.signal_due() || from.segment_bytes(kMost) > 0) build(from, flights_.at(count++));
    for (size_t i = 0; i < count; ++i) {
      Sent& sent = flights_[way_ == Way::kReversed ? count - 1 - i : i];
      to.on_frame(sent.frame.type, std::span(sent.body).first(sent.frame.body_bytes));
      from.on_acked(sent.frame);
    }
  }

  const Way way_;
  Deaf events_;
  Streams a_{SessionSlot(1), true, StreamConfig{}, events_};
  Streams b_{SessionSlot(1), false, StreamConfig{}, events_};
  StreamId id_;
  std::array<Sent, 64> flights_{};
  std::array<std::byte, 12'000> message_{};
  std::array<std::byte, 12'000> buffer_{};
};

void expect_none(Way way, size_t bytes) {
  Exchange exchange(way);
  for (int i = 0; i < 100; ++i) exchange.run(bytes);
  const uint64_t before = allocations();
  for (int i = 0; i < 1000; ++i) exchange.run(bytes);
  EXPECT_EQ(allocations() - before, 0u) << bytes << " bytes";
}

TEST(StreamAllocation, ShortMessagesInOrderTakeNothingFromTheHeap) {
  for (const size_t bytes : {1, 64, 1200, 5000, 12'000}) expect_none(Way::kInOrder, bytes);
}

TEST(StreamAllocation, NorOutOfOrder) {
  for (const size_t bytes : {2400, 5000, 12'000}) expect_none(Way::kReversed, bytes);
}

TEST(StreamAllocation, NorWithLosses) {
  for (const size_t bytes : {64, 5000, 12'000}) expect_none(Way::kFirstLost, bytes);
}

}  // namespace
}  // namespace mercury
