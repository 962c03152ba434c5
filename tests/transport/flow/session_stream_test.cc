// Streams within a session: what carries them, and what the session does about a peer's mistakes.
#include "tests/transport/flow/pipe.h"
#include "transport/flow/mtu_probe.h"
#include "transport/wire/stream.h"

namespace mercury::test {
namespace {

Bytes numbered(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

Net& with_streams(Net& net) {
  for (Host& host : net.host) host.carry_streams();
  net.connect();
  return net;
}

// Writes as there is room, and finishes.
struct Writer {
  Session& session;
  StreamId id;
  Bytes data;
  size_t at = 0;
  bool step() {
    Streams* streams = session.streams();
    if (streams == nullptr || at == data.size()) return true;
    at += streams->write(id, std::span(data).subspan(at));
    if (at == data.size()) streams->finish(id);
    return at == data.size();
  }
};

TEST(SessionStream, StreamsAndChunksShareTheWindowAndBothArrive) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    Net net(seed);
    net.weather = {.loss = 0.03, .duplication = 0.03, .corruption = 0.02, .jitter_ns = 60'000};
    ASSERT_TRUE(with_streams(net).run_until_open());
    std::vector<Writer> writers;
    for (Host& host : net.host) {
      for (uint32_t i = 0; i < 4; ++i) {
        const StreamId id = *host.session->streams()->open();
        writers.push_back({*host.session, id, numbered(300'000, seed + id.value)});
      }
    }
    net.host[0].queue_chunks(400);
    ASSERT_TRUE(net.run(
        [&] {
          bool written = true;
          for (Writer& writer : writers) written = writer.step() && written;
          return written && net.host[0].all_acked() && net.host[0].stream_bytes.size() == 4 &&
                 net.host[1].stream_bytes.size() == 4;
        },
        60 * kSecond));
    net.run_for(5 * kSecond);
    for (size_t i = 0; i < 2; ++i) {
      Host& host = net.host[i];
      for (const Writer& writer : writers) {
        if (&writer.session != net.host[1 - i].session.get()) continue;
        EXPECT_EQ(host.stream_bytes[writer.id.value], writer.data);
        host.session->streams()->finish(writer.id);
      }
    }
    net.run_for(5 * kSecond);
    for (Host& host : net.host) {
      EXPECT_EQ(host.streams_closed.size(), 8U);
      for (const auto& [id, code] : host.streams_closed) EXPECT_EQ(code, Errc::kOk) << id;
      EXPECT_EQ(host.session->streams()->count(), 0U);
      EXPECT_EQ(host.session->streams()->block_bytes(), 0U);
      EXPECT_EQ(host.pool.blocks_in_use(), 0U);
      EXPECT_EQ(host.closed, 0);
    }
  }
}

// One window of what is in flight, whatever it is.
TEST(SessionStream, SegmentsStayWithinTheWindow) {
  SessionConfig config;
  config.window = WindowKind::kFixed;
  config.window_bytes = 20'000;
  Net net(1, config, config);
  ASSERT_TRUE(with_streams(net).run_until_open());
  net.run_for(kSecond);
  for (int i = 0; i < 8; ++i) {
    const StreamId id = *net.host[0].session->streams()->open();
    net.host[0].session->streams()->write(id, Bytes(100'000));
  }
  net.host[0].pump();
  EXPECT_LE(net.host[0].session->bytes_in_flight(), 20'000U);
  EXPECT_GE(net.host[0].session->bytes_in_flight(), 18'000U);
}

// What a peer of a release before answers.
TEST(SessionStream, NoneWithoutBothSidesFeature) {
  for (const int without : {0, 1}) {
    Net net(1);
    net.host[static_cast<size_t>(1 - without)].carry_streams();
    net.connect();
    ASSERT_TRUE(net.run_until_open());
    for (Host& host : net.host) {
      EXPECT_EQ(host.session->streams(), nullptr);
      Bytes body(wire::kStreamHeaderBytes + 1);
      wire::encode_stream(1, false, 0, body.data());
      host.session->on_frame(
          plain_header(wire::FrameType::kStream, body, 1000, host.session->tag()), body,
          net.now_ns);
      EXPECT_EQ(host.counters.get(Counter::kDropType), 1U);
      EXPECT_EQ(host.session->state(), Session::State::kOpen);
    }
  }
}

void inject(Net& net, wire::FrameType type, const Bytes& body, uint64_t number) {
  net.host[0].session->on_frame(plain_header(type, body, number, net.host[0].session->tag()), body,
                                net.now_ns);
}

TEST(SessionStream, MalformedFramesAreCountedAndNotAcknowledged) {
  Net net(1);
  ASSERT_TRUE(with_streams(net).run_until_open());
  net.run_for(kSecond);
  uint64_t number = 1000;
  for (const wire::FrameType type :
       {wire::FrameType::kStream, wire::FrameType::kStreamCredit, wire::FrameType::kStreamReset}) {
    inject(net, type, Bytes(3), ++number);
    EXPECT_TRUE(net.host[0].session->is_new(number));
  }
  EXPECT_EQ(net.host[0].counters.get(Counter::kDropStream), 3U);
  EXPECT_EQ(net.host[0].session->state(), Session::State::kOpen);
}

TEST(SessionStream, WhoTakesMoreThanHisCreditLosesTheSession) {
  Net net(1);
  ASSERT_TRUE(with_streams(net).run_until_open());
  const StreamId id = *net.host[0].session->streams()->open();
  net.host[0].session->streams()->write(id, Bytes(10));
  net.run_for(kSecond);
  Bytes body(wire::kStreamHeaderBytes + 1);
  wire::encode_stream(2, false, wire::kInitialStreamBytes, body.data());
  inject(net, wire::FrameType::kStream, body, 1000);
  EXPECT_EQ(net.host[0].session->state(), Session::State::kClosing);
  EXPECT_EQ(net.host[0].session->streams(), nullptr);
  net.run_for(kSecond);
  for (Host& host : net.host) {
    EXPECT_EQ(host.closed, 1);
    EXPECT_EQ(host.closed_code, Errc::kProtocol) << host.closed_text;
  }
  EXPECT_EQ(net.host[0].streams_closed[id.value], Errc::kProtocol);
  EXPECT_EQ(net.host[1].streams_closed[id.value], Errc::kProtocol);
}

TEST(SessionStream, ALargerPathCarriesLargerSegments) {
  SessionConfig config;
  config.max_udp_payload = 8972;
  Net net(1, config, config);
  ASSERT_TRUE(with_streams(net).run_until_open());
  net.run_for(kSecond);
  size_t largest = 0;
  net.tap = [&](int, std::span<const std::byte> frame) {
    largest = std::max(largest, frame.size());
  };
  const StreamId id = *net.host[0].session->streams()->open();
  net.host[0].session->streams()->write(id, Bytes(100'000));
  net.run_for(kSecond);
  EXPECT_EQ(largest, 8972U);
  EXPECT_EQ(net.host[1].stream_bytes[id.value].size(), 100'000U);
}

// The segments that host 0 sends of one stream while nothing is lost, in order: `!` for one that
// asks for an acknowledgement at once, `.` for one that does not.
std::string asked(Net& net, size_t bytes, bool finishes) {
  std::string flags;
  net.tap = [&flags](int from, std::span<const std::byte> frame) {
    wire::Header header;
    std::span<const std::byte> payload;
    ASSERT_EQ(wire::decode(frame, header, payload), wire::DecodeError::kNone);
    if (from != 0 || header.type != wire::FrameType::kStream) return;
    flags += (header.flags & wire::kFlagAckNow) != 0 ? '!' : '.';
  };
  Streams& streams = *net.host[0].session->streams();
  const StreamId id = *streams.open();
  EXPECT_EQ(streams.write(id, Bytes(bytes)), bytes);
  if (finishes) streams.finish(id);
  net.run_for(kSecond);
  EXPECT_EQ(net.host[1].stream_bytes[id.value].size(), bytes);
  net.tap = nullptr;
  return flags;
}

// An answer costs as much as a short message: only who waits for it asks, and only if the peer does
// not answer by itself.
TEST(SessionStream, ABurstAsksForAnAnswerWhereItIsAwaitedAndWouldNotCome) {
  SessionConfig config;
  config.window = WindowKind::kFixed;  // so large that no part of it asks
  Net net(1, config, config);
  ASSERT_TRUE(with_streams(net).run_until_open());
  net.run_for(kSecond);
  EXPECT_EQ(asked(net, 100, false), ".") << "a message";
  EXPECT_EQ(asked(net, 3000, false), "...");
  EXPECT_EQ(asked(net, 100, true), "!") << "nothing follows";
  EXPECT_EQ(asked(net, 3000, true), "..!") << "the last one alone";
  ASSERT_EQ(config.ack_every_packets, 8U);
  EXPECT_EQ(asked(net, 14'000, true).find('!'), std::string::npos) << "the eighth is answered";
}

// Who has little room for more is to have it back.
TEST(SessionStream, ABurstThatLeavesLittleRoomAsksForAnAnswer) {
  StreamConfig streams;
  streams.send_bytes = wire::kInitialStreamBytes;
  SessionConfig config;
  config.window = WindowKind::kFixed;
  config.ack_every_packets = 64;
  Net net(1, config, config);
  for (Host& host : net.host) host.carry_streams(streams);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond);
  const std::string half = asked(net, wire::kInitialStreamBytes / 2, false);
  EXPECT_EQ(half, std::string(half.size(), '.'));
  const std::string full = asked(net, wire::kInitialStreamBytes, false);
  EXPECT_EQ(full, std::string(full.size() - 1, '.') + '!');
}

// Each write of a byte is a segment, and so a packet; the window would hold 30,000 of them.
TEST(SessionStream, SegmentsOfAByteTakeNoMoreRecordsThanAWindowOfFramesNeeds) {
  SessionConfig config;
  config.window = WindowKind::kFixed;
  Net net(1, config, config);
  ASSERT_TRUE(with_streams(net).run_until_open());
  Host& host = net.host[0];
  const StreamId id = *host.session->streams()->open();
  net.weather.down = true;
  constexpr uint32_t kWritten = 5000;
  for (uint32_t i = 0; i < kWritten; ++i) {
    ASSERT_EQ(host.session->streams()->write(id, numbered(1, i)), 1U);
    host.pump();
  }
  const uint64_t window_packets = config.window_bytes / kBasePayloadBytes + 1;
  EXPECT_LE(host.pool.blocks_in_use(), 2 * (window_packets / kSentBlockRecords + 1));
  EXPECT_GE(host.pool.blocks_in_use(), window_packets / kSentBlockRecords);
  net.weather.down = false;
  ASSERT_TRUE(
      net.run([&] { return net.host[1].stream_bytes[id.value].size() == kWritten; }, 60 * kSecond));
  Bytes all;
  for (uint32_t i = 0; i < kWritten; ++i) all.push_back(numbered(1, i)[0]);
  EXPECT_EQ(net.host[1].stream_bytes[id.value], all);
}

}  // namespace
}  // namespace mercury::test
