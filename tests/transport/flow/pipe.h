// Two sessions and a network between them that loses, duplicates, reorders and corrupts, in virtual
// time, from a seed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "transport/flow/frame_keys.h"
#include "transport/flow/sent_pool.h"
#include "transport/flow/session.h"
#include "transport/flow/stream/streams.h"
#include "transport/wire/crc32c.h"

namespace mercury::test {

using Bytes = std::vector<std::byte>;

struct Weather {
  double loss = 0;
  double duplication = 0;
  double corruption = 0;
  uint64_t delay_ns = 50'000;
  uint64_t jitter_ns = 0;          // uniform: reorders
  uint32_t largest_frame = 65535;  // larger ones vanish
  bool down = false;
};

inline constexpr uint64_t kSecond = 1'000'000'000;
inline constexpr uint32_t kEncryption =
    wire::kFeatureSeals | wire::kFeatureCanEncrypt | wire::kFeatureAsksEncryption;
inline constexpr uint32_t kChunkPayload = 1000;

class Net;

// One engine with one session: sends chunks, retransmits what is lost, counts what arrives.
class Host : public SessionEvents, public StreamEvents {
 public:
  Host(Net& net, int index, uint32_t number, SessionConfig config)
      : config_(config), net_(net), index_(index), number_(number) {
    make_session();
  }
  void make_session() {
    session = std::make_unique<Session>(SessionSlot(7), number_, remote(), config_, pool, nullptr,
                                        *this, counters);
    if (with_streams) session->carry_streams(stream_config, *this);
  }
  // Before the session connects or accepts.
  void carry_streams(const StreamConfig& config = {}) {
    with_streams = true;
    stream_config = config;
    answer.features |= wire::kFeatureStreams;
    session->carry_streams(config, *this);
  }

  Endpoint remote() const {
    return Endpoint{IpAddress::v4(10, 0, 0, static_cast<uint8_t>(2 - index_)), 7470};
  }
  void queue_chunks(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) waiting.push_back(next_chunk++);
  }
  void pump();
  void receive(Bytes& frame);
  bool all_acked() const { return acked.size() == next_chunk; }

  void on_acked(SessionSlot, const SentTag& tag) noexcept override {
    if (!acked.insert(tag.word0()).second) ++acked_twice;
    in_flight.erase(tag.word0());
  }
  void on_lost(SessionSlot, const SentTag& tag) noexcept override {
    EXPECT_EQ(in_flight.erase(tag.word0()), 1U);
    ++lost;
    waiting.push_front(tag.word0());
  }
  void on_refused(SessionSlot, const SentTag& tag) noexcept override {
    EXPECT_EQ(in_flight.erase(tag.word0()), 1U);
    ++sent_back;
    waiting.push_front(tag.word0());
  }
  void on_window_open(SessionSlot) noexcept override {
    ++window_opened;
    blocked = false;
  }
  void on_open(SessionSlot) override { ++opened; }
  void on_closed(SessionSlot, const Error& error) override {
    ++closed;
    closed_code = error.code;
    closed_text = error.message;
  }
  void on_reset_token(SessionSlot, uint64_t token) override { reset_token = token; }
  void on_control(SessionSlot, std::span<const std::byte> message) override {
    messages.emplace_back(message.begin(), message.end());
    if (control_hook) control_hook(messages.back());
  }
  void on_path_changed(SessionSlot, uint16_t) override {}
  void on_source_ports(SessionSlot, const PortRange& ports) override {
    peer_ports = ports;
    ++ports_told;
  }
  void on_source_ports_known(SessionSlot) override { ++ports_known; }
  void on_whole(SessionSlot, std::vector<std::byte>, bool) override {}
  void on_path_payload(SessionSlot, uint16_t bytes, uint16_t bytes_in_parts) override {
    ++path_reports;
    path = bytes;
    path_in_parts = bytes_in_parts;
  }
  void on_stream_opened(SessionSlot, StreamId id) override { ++streams_opened[id.value]; }
  void on_stream_readable(SessionSlot, StreamId id) override {
    Bytes buffer(10'000);
    StreamRead part;
    do {
      part = session->streams()->read(id, buffer);
      stream_bytes[id.value].insert(stream_bytes[id.value].end(), buffer.begin(),
                                    buffer.begin() + static_cast<std::ptrdiff_t>(part.bytes));
    } while (part.bytes == buffer.size());
  }
  void on_stream_writable(SessionSlot, StreamId) override {}
  void on_stream_closed(SessionSlot, StreamId id, Errc code) override {
    EXPECT_TRUE(streams_closed.emplace(id.value, code).second);
  }
  void on_streams_available(SessionSlot) override {}

  SentPool pool;
  Counters counters;
  std::unique_ptr<Session> session;
  wire::HelloAck answer = refusing();                  // for accept()
  std::function<void(const wire::Hello&)> hello_hook;  // instead of accept()
  std::function<void(const Bytes&)> control_hook;
  std::function<bool(uint32_t chunk)> has_room;  // empty: it takes all
  bool stalled = false;                          // the engine does not run
  bool blocked = false;  // can_send was false and on_window_open has not come
  std::deque<uint32_t> waiting;
  std::set<uint32_t> in_flight;
  std::set<uint32_t> acked;
  std::map<uint32_t, int> delivered;  // by the peer's chunk, new packet numbers only
  uint32_t next_chunk = 0;
  int acked_twice = 0, lost = 0, sent_back = 0, refused = 0, window_opened = 0, opened = 0,
      closed = 0, path_reports = 0;
  uint64_t frames_sent = 0;
  Errc closed_code = Errc::kOk;
  std::string closed_text;
  std::vector<Bytes> messages;
  bool with_streams = false;
  StreamConfig stream_config;
  std::map<uint32_t, int> streams_opened;
  std::map<uint32_t, Errc> streams_closed;
  std::map<uint32_t, Bytes> stream_bytes;  // read
  uint16_t path = 0, path_in_parts = 0;
  uint64_t reset_token = 0;  // the peer's
  PortRange peer_ports;
  uint32_t ports_told = 0, ports_known = 0;  // on_source_ports, on_source_ports_known
  SessionConfig config_;

 private:
  static wire::HelloAck refusing() {
    wire::HelloAck answer;
    answer.features = wire::kFeatureRefusals;
    return answer;
  }
  void send_datagram();
  Net& net_;
  int index_;
  uint32_t number_;
};

class Net {
 public:
  explicit Net(uint32_t seed, SessionConfig a = {}, SessionConfig b = {})
      : random(seed), host{{Host(*this, 0, 11, a), Host(*this, 1, 22, b)}} {}

  void connect() {
    wire::Hello hello;
    hello.job = "job";
    hello.nonce = kNonce;
    hello.features = features;
    hello.version_min = host[0].config_.versions.oldest;
    hello.version_max = host[0].config_.versions.newest;
    if (host[0].with_streams) hello.features |= wire::kFeatureStreams;
    host[0].session->connect(hello, key, now_ns);
  }
  void with_seals(bool encrypted = false) {
    const uint32_t both = encrypted ? kEncryption : wire::kFeatureSeals;
    features |= both;
    host[1].answer.features |= both;
  }
  void send(int from, std::span<const std::byte> frame) {
    ++host[static_cast<size_t>(from)].frames_sent;
    if (tap) tap(from, frame);
    Bytes altered;
    if (alter) {
      altered.assign(frame.begin(), frame.end());
      alter(from, altered);
      frame = altered;
    }
    if (weather.down || frame.size() > weather.largest_frame || chance(weather.loss)) return;
    int copies = chance(weather.duplication) ? 2 : 1;
    while (copies-- > 0) {
      Flight flight{now_ns + weather.delay_ns + below(weather.jitter_ns), order_++, 1 - from,
                    Bytes(frame.begin(), frame.end())};
      if (chance(weather.corruption)) {
        flight.bytes[below(flight.bytes.size())] ^= static_cast<std::byte>(1 + below(255));
      }
      flights_.push(std::move(flight));
    }
  }
  // Until `done`, or `limit_ns` of virtual time pass: then false.
  bool run(const std::function<bool()>& done, uint64_t limit_ns) {
    const uint64_t end = now_ns + limit_ns;
    for (uint64_t step = 0; step < 5'000'000; ++step) {
      for (Host& each : host) each.pump();
      if (done()) return true;
      uint64_t next = flights_.empty() ? kNever : flights_.top().at_ns;
      for (Host& each : host) {
        if (!each.stalled) next = std::min(next, each.session->next_deadline_ns());
      }
      if (next > end) {
        now_ns = end;
        return false;
      }
      now_ns = std::max(now_ns, next);
      while (!flights_.empty() && flights_.top().at_ns <= now_ns) {
        Flight flight = flights_.top();
        flights_.pop();
        Host& target = host[static_cast<size_t>(flight.to)];
        if (!target.stalled) target.receive(flight.bytes);
      }
    }
    ADD_FAILURE() << "the sessions spin at " << now_ns << " ns";
    return false;
  }
  bool run_until_open(uint64_t limit_ns = 10'000'000'000) {
    return run([&] { return host[0].opened == 1 && host[1].session->peer_number() != 0; },
               limit_ns);
  }
  void run_for(uint64_t time_ns) {
    run([] { return false; }, time_ns);
  }
  bool chance(double p) { return p > 0 && std::uniform_real_distribution<>(0, 1)(random) < p; }
  uint64_t below(uint64_t limit) { return limit == 0 ? 0 : random() % limit; }

  static constexpr wire::Nonce kNonce{9, 8, 7, 6, 5, 4, 3, 2, 0xfe, 1, 2, 3, 4, 5, 6, 7};
  std::mt19937_64 random;
  Weather weather;
  wire::Key key{7, 1};                         // of the job; both hosts know it
  bool mark = false;                           // the network marks every chunk
  uint32_t features = wire::kFeatureRefusals;  // of who asks, beside streams
  uint64_t now_ns = 1'000'000'000;
  std::function<void(int, std::span<const std::byte>)> tap;
  std::function<void(int, Bytes&)> alter;  // by somebody on the path
  std::array<Host, 2> host;

 private:
  struct Flight {
    uint64_t at_ns;
    uint64_t order;
    int to;
    Bytes bytes;
    bool operator<(const Flight& other) const {
      return std::pair(at_ns, order) > std::pair(other.at_ns, other.order);
    }
  };
  std::priority_queue<Flight> flights_;
  uint64_t order_ = 0;
};

// A plain frame with a valid checksum, as a hostile peer would make it, who knows the tag.
inline wire::Header plain_header(wire::FrameType type, std::span<const std::byte> payload,
                                 uint64_t number, FrameTag tag, uint16_t flags = 0) {
  if (!wire::is_tagged(type)) tag = {};
  wire::Header header;
  header.type = type;
  header.flags = flags;
  header.payload_bytes = static_cast<uint16_t>(payload.size());
  header.packet_number = number;
  header.tag = tag.header;
  header.payload_crc = wire::crc32c(payload) ^ tag.payload;
  return header;
}

inline void Host::send_datagram() {
  Seals* const seals = session->seals();
  const size_t head = sizeof(wire::DatagramHeader) + (seals != nullptr ? wire::kSealBytes : 0);
  Bytes frame(head + kChunkPayload);
  const std::span<std::byte> payload = std::span(frame).subspan(head);
  const SentTag tag(wire::FrameType::kDatagram0, 0, waiting.front(), 0, 0);
  waiting.pop_front();
  wire::Header header;
  header.type = tag.type();
  header.payload_bytes = static_cast<uint16_t>(frame.size() - sizeof(wire::DatagramHeader));
  header.session = session->peer_number();
  header.words[2] = tag.word0();
  for (size_t i = 0; i < payload.size(); ++i) {
    payload[i] = static_cast<std::byte>(tag.word0() + i);
  }
  header.payload_crc = wire::crc32c(payload) ^ session->tag().payload;
  header.tag = session->tag().header;
  header.packet_number =
      session->on_send_datagram(tag, static_cast<uint32_t>(frame.size()), net_.now_ns);
  header.flags = session->datagram_flags();
  if (seals != nullptr) header.payload_crc ^= seals->crc_mask(header.packet_number);
  in_flight.insert(tag.word0());
  wire::encode(header, frame.data());
  if (seals != nullptr) {
    seals->seal(header.packet_number, sizeof(wire::DatagramHeader), frame.data(), payload);
  }
  net_.send(index_, frame);
}

inline void Host::pump() {
  if (stalled) return;
  if (session->next_deadline_ns() <= net_.now_ns) session->on_timer(net_.now_ns);
  Bytes out(config_.max_udp_payload < 1232 ? 1232 : config_.max_udp_payload);
  while (session->has_pending(net_.now_ns)) {
    const uint32_t bytes = session->build(out, net_.now_ns);
    if (bytes == 0) break;
    net_.send(index_, std::span(out).first(bytes));
  }
  while (session->can_send_stream(net_.now_ns)) {
    const uint32_t bytes = session->build_stream(out, net_.now_ns);
    if (bytes == 0) break;
    net_.send(index_, std::span(out).first(bytes));
  }
  if (session->state() != Session::State::kOpen) return;
  while (!waiting.empty() && !blocked) {
    if (!session->can_send(sizeof(wire::DatagramHeader) + kChunkPayload, net_.now_ns)) {
      blocked = true;
    } else {
      send_datagram();
    }
  }
}

inline void Host::receive(Bytes& frame) {
  wire::Header header;
  std::span<const std::byte> payload;
  if (wire::decode(frame, header, payload) != wire::DecodeError::kNone) return;
  if (header.type == wire::FrameType::kHello) {
    const auto hello =
        wire::crc32c(payload) == header.payload_crc ? wire::decode_hello(payload) : std::nullopt;
    if (hello && hello_hook) {
      hello_hook(*hello);
    } else if (hello && session->peer_number() == 0) {
      session->accept(*hello, answer, net_.key, net_.now_ns);
    } else {
      session->on_frame(header, payload, net_.now_ns);
    }
    return;
  }
  if (header.session != number_) return;
  if (!wire::is_datagram(header.type)) {
    session->on_frame(header, payload, net_.now_ns);
    return;
  }
  if (session->seals() != nullptr) {
    const auto plain = session->seals()->open(header, payload);
    if (!plain) {
      counters.add(Counter::kDropSeal);
      return;
    }
    payload = plain->payload;
    header.payload_crc ^= plain->crc_mask;
  }
  if (header.tag == session->tag().header &&
      (wire::crc32c(payload) ^ session->tag().payload) == header.payload_crc &&
      session->is_new(header.packet_number)) {
    if (has_room && !has_room(header.words[2])) {
      refused += session->refused(header.packet_number, net_.now_ns, net_.mark);
      return;
    }
    session->received(header.packet_number, (header.flags & wire::kFlagAckNow) != 0, net_.now_ns,
                      net_.mark);
    ++delivered[header.words[2]];
  }
}

}  // namespace mercury::test
