// The streams of a session between a service that does anything and a peer who sends anything:
// records of calls, of honest frames under way (delivered, lost, acknowledged, in any order) and of
// forged ones.
//
// Beyond not crashing: memory stays within the configured bound; a service is told of the end of
// each stream once, and only of streams that it knows; what is told of has been opened; frames fit
// what was asked for; and as long as nothing was forged, nothing is broken and bytes arrive as they
// were written.
#include <map>
#include <set>
#include <vector>

#include "tests/fuzz/fuzz_input.h"
#include "transport/flow/stream/streams.h"

namespace mercury::fuzz {
namespace {

constexpr size_t kMostRecords = 600;
constexpr uint32_t kMost = 1200;

std::byte written_at(uint32_t stream, bool by_active, uint64_t offset) {
  return static_cast<std::byte>(stream * 31 + offset * 7 + (offset >> 8) + (by_active ? 1 : 0));
}

StreamConfig small_config() {
  StreamConfig config;
  config.max_streams = wire::kInitialStreams;
  config.window_bytes = 32 * 1024;
  config.shared_window_bytes = 40'000;
  config.send_bytes = 24 * 1024;
  config.shared_send_bytes = 50'000;
  config.unsent_bytes = 20'000;
  config.least_unsent_bytes = 3000;
  return config;
}

struct Side final : StreamEvents {
  explicit Side(bool active_)
      : active(active_), streams(SessionSlot(0), active_, small_config(), *this) {
    if (!active) streams.borrow();
  }
  void on_stream_opened(SessionSlot, StreamId id) override {
    must(known.insert(id.value).second, "a stream is opened twice");
  }
  void on_stream_readable(SessionSlot, StreamId id) override { told_of(id); }
  void on_stream_writable(SessionSlot, StreamId id) override { told_of(id); }
  void on_stream_closed(SessionSlot, StreamId id, Errc) override {
    told_of(id);
    known.erase(id.value);
  }
  void on_streams_available(SessionSlot) override {}
  void told_of(StreamId id) const {
    must(known.count(id.value) == 1, "an event of a stream that the service does not know");
  }
  uint32_t pick(Input& record) const {
    if (known.empty()) return 1 + record.byte() % 8;
    auto at = known.begin();
    std::advance(at, record.byte() % known.size());
    return *at;
  }

  bool active;
  Streams streams;
  std::set<uint32_t> known;
  std::map<uint32_t, uint64_t> written, read;
};

class Harness {
 public:
  void run(Input input) {
    for (size_t i = 0; i < kMostRecords && !input.empty() && !broken_; ++i) {
      Input record = next_record(input);
      step(record);
      check();
    }
    for (Side* side : {&a_, &b_}) {
      side->streams.close_all(Errc::kPeerLost);
      must(side->known.empty(), "a stream's end was not told");
      must(side->streams.block_bytes() == 0, "blocks are left");
    }
  }

 private:
  struct Flight {
    Streams::Frame frame;
    std::vector<std::byte> body;
    bool from_a;
    bool arrived = false;
  };

  void step(Input& record) {
    const uint8_t what = record.byte();
    Side& side = (what & 0x80) != 0 ? a_ : b_;
    switch (what & 0x0f) {
      case 0:
        if (const auto id = side.streams.open()) side.known.insert(id->value);
        return;
      case 1:
      case 2:
        return write(side, side.pick(record), record.take<uint16_t>());
      case 3:
      case 4:
        return read(side, side.pick(record), record.take<uint16_t>() % 9000);
      case 5:
        return side.streams.finish(StreamId(side.pick(record)));
      case 6: {
        const uint32_t id = side.pick(record);
        side.streams.reset(StreamId(id), Errc::kBusy);
        side.known.erase(id);
        return;
      }
      case 7:
        side.streams.tell();
        return end_pass();
      case 8:
      case 9:
        return build(side, 1 + record.byte() % 32);
      case 10:
      case 11:
      case 12:
        return move(record);
      default:
        return forge(side, record);
    }
  }

  void write(Side& side, uint32_t id, size_t bytes) {
    uint64_t& at = side.written[id];
    std::vector<std::byte> data(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = written_at(id, side.active, at + i);
    const size_t taken = side.streams.write(StreamId(id), data);
    must(taken <= bytes, "more was taken than given");
    at += taken;
  }

  void read(Side& side, uint32_t id, size_t bytes) {
    std::vector<std::byte> data(bytes);
    const StreamRead got = side.streams.read(StreamId(id), data);
    must(got.bytes <= bytes, "more was read than there is room for");
    uint64_t& at = side.read[id];
    for (size_t i = 0; i < got.bytes && !forged_; ++i) {
      must(data[i] == written_at(id, !side.active, at + i), "another byte than was written");
    }
    at += got.bytes;
    must(forged_ || at <= (side.active ? b_ : a_).written[id], "more was read than written");
  }

  void build(Side& side, size_t count) {
    std::vector<std::byte> body(kMost);
    for (size_t i = 0; i < count && flights_.size() < 256; ++i) {
      Streams::Frame frame;
      if (side.streams.signal_due()) {
        frame = side.streams.build_signal(body);
      } else if (const uint32_t bytes = side.streams.segment_bytes(kMost)) {
        must(bytes <= kMost, "a segment is larger than asked for");
        frame = side.streams.build_segment(body, kMost);
        must(frame.body_bytes == bytes, "a segment of another size than said");
      } else {
        return;
      }
      flights_.push_back({frame, {body.begin(), body.begin() + frame.body_bytes}, &side == &a_});
    }
  }

  // A frame under way arrives, again perhaps, is lost, or is acknowledged.
  void move(Input& record) {
    if (flights_.empty()) return;
    const size_t index = record.below(flights_.size());
    const uint8_t how = record.byte() % 8;
    Flight& flight = flights_[index];
    Side& from = flight.from_a ? a_ : b_;
    if (how < 5 && !take(flight.from_a ? b_ : a_, flight.frame.type, flight.body)) return;
    flight.arrived = flight.arrived || how < 5;
    if (how == 4) return;  // and stays: a duplicate
    flight.arrived&& how != 5 ? from.streams.on_acked(flight.frame)
                              : from.streams.on_lost(flight.frame);
    flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // Whether it is to be acknowledged.
  bool take(Side& side, wire::FrameType type, std::span<const std::byte> body) {
    lent_.emplace_back(body.begin(), body.end());
    const Streams::Verdict verdict = side.streams.on_frame(type, lent_.back());
    must(verdict == Streams::Verdict::kTaken || forged_ || verdict == Streams::Verdict::kDropped,
         side.streams.broken());
    broken_ = verdict == Streams::Verdict::kBroken;
    return verdict == Streams::Verdict::kTaken;
  }

  // Frames are gone, and what was not read of them is kept.
  void end_pass() {
    for (Side* side : {&a_, &b_}) side->streams.keep();
    lent_.clear();
  }

  void forge(Side& side, Input& record) {
    forged_ = true;
    const uint8_t how = record.byte();
    const uint32_t stream =
        (how & 1) != 0 ? side.pick(record) : record.take<uint32_t>() >> (record.byte() % 32);
    const uint64_t offset = record.take<uint64_t>() >> (record.byte() % 64);
    std::vector<std::byte> body(wire::kStreamHeaderBytes);
    wire::FrameType type = wire::FrameType::kStream;
    if ((how & 6) == 0) {
      type = wire::FrameType::kStreamCredit;
      wire::encode(wire::StreamCredit{stream, offset}, body.data());
    } else if ((how & 6) == 2) {
      type = wire::FrameType::kStreamReset;
      wire::encode(wire::StreamReset{stream, static_cast<Errc>(record.byte()), offset},
                   body.data());
    } else {
      wire::encode_stream(stream, (how & 8) != 0, offset, body.data());
      body.resize(body.size() + record.take<uint16_t>() % kMost);
    }
    if ((how & 0xf0) == 0xf0) body.resize(record.byte() % (body.size() + 1));
    take(side, type, body);
  }

  void check() const {
    for (const Side* side : {&a_, &b_}) {
      const StreamConfig config = small_config();
      const size_t windows = 2 * 2 * config.max_streams * wire::kInitialStreamBytes +
                             config.shared_window_bytes + config.shared_send_bytes;
      must(side->streams.block_bytes() <= windows + 4 * 2 * config.max_streams * kStreamBlockBytes,
           "memory beyond the bound");
      must(side->streams.count() <= 2 * config.max_streams, "streams beyond the limit");
    }
  }

  Side a_{true};
  Side b_{false};
  std::vector<Flight> flights_;
  std::vector<std::vector<std::byte>> lent_;  // what arrived in this pass
  bool forged_ = false;
  bool broken_ = false;
};

}  // namespace
}  // namespace mercury::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mercury::fuzz::Harness().run(mercury::fuzz::Input(data, size));
  return 0;
}
