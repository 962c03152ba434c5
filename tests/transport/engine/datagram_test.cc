// Datagrams from end to end, of a service that knows neither streams nor tensors: over the
// simulated network, in sessions of no job.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "transport/engine/engine.h"
#include "transport/port/sim/sim_port.h"
#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1'000 * kMs;
constexpr Token kToken = 7;

struct Post {
  Token token;
  uint32_t number = 0;
  uint32_t bytes = 0;
};

class PostService {
 public:
  using Command = SessionCommandsAnd<Post>;
  using Event = SessionEventsAnd<>;

  // The payload of datagram n: its number in every byte.
  void on_command(const Post& post, SessionHost& host) {
    ++posted;
    if (const auto claimed = host.claim(post.token)) {
      session = *claimed;
      waiting.push_back(post);
    }
  }
  bool wants_to_send() const noexcept { return !waiting.empty() && !blocked; }
  bool next(OutgoingDatagram& out) noexcept {
    if (!wants_to_send()) return false;
    const Post post = waiting.front();
    waiting.pop_front();
    payload_.assign(post.bytes, static_cast<std::byte>(post.number));
    out.session = session;
    out.job = kNoJob;
    out.header.type = wire::FrameType::kDatagram1;
    out.header.flags = 0;
    out.header.words = {post.number, post.bytes, 0};
    out.header.priority = 3;
    out.payload = payload_;
    out.pin = nullptr;
    out.tag = SentTag(out.header.type, 0, post.number, post.bytes, 0);
    return true;
  }
  void on_acked(SessionSlot, const SentTag& tag) noexcept { acked.insert(tag.word0()); }
  void on_lost(SessionSlot, const SentTag& tag) noexcept {
    ++lost;
    if (sends_again) waiting.push_back({kToken, tag.word0(), tag.word1()});
  }
  Taken on_datagram(SessionSlot, const wire::Header& header, std::span<const std::byte> payload,
                    uint64_t) noexcept {
    if (wire::crc32c(payload) != header.payload_crc) return Taken::kNo;
    EXPECT_EQ(header.type, wire::FrameType::kDatagram1);
    EXPECT_EQ(header.words[1], payload.size());
    for (const std::byte byte : payload) EXPECT_EQ(byte, static_cast<std::byte>(header.words[0]));
    ++arrived[header.words[0]];
    return Taken::kYes;
  }
  void block(SessionSlot) noexcept { blocked = true; }
  void unblock(SessionSlot) noexcept { blocked = false; }
  void charge(JobSlot, uint32_t bytes) noexcept { charged_bytes += bytes; }
  bool awaits_nic() noexcept { return false; }
  uint32_t poll(uint64_t) noexcept { return 0; }
  uint64_t next_deadline_ns() noexcept { return kNever; }
  void forget(SessionSlot) { waiting.clear(); }
  std::optional<Event> take_event() { return std::nullopt; }

  SessionSlot session;
  std::deque<Post> waiting;
  bool blocked = true;
  bool sends_again = true;
  uint32_t posted = 0;
  uint32_t lost = 0;
  uint64_t charged_bytes = 0;
  std::set<uint32_t> acked;
  std::map<uint32_t, uint32_t> arrived;  // how often

 private:
  std::vector<std::byte> payload_;
};
static_assert(Service<PostService> && !StreamService<PostService>);

class PostHost {
 public:
  using Engine = mercury::Engine<sim::SimPort, PostService>;

  PostHost(sim::SimNetwork& network, uint8_t number, EngineConfig config = {},
           sim::SimPortConfig port_config = {})
      : PostHost(network, number, with_seed(config, number), port_config, Rings()) {}
  uint32_t poll(uint64_t now_ns) {
    const uint32_t work = engine.poll_once(now_ns);
    std::unique_ptr<PostService::Event> event;
    while (events_.pop(event)) take(*event);
    return work;
  }
  void send(PostService::Command command) {
    EXPECT_TRUE(commands_.push(std::make_unique<PostService::Command>(std::move(command))));
  }
  void connect(const Endpoint& remote) {
    command::Connect connect{.token = kToken, .remote = remote};
    connect.hello.kind = wire::SessionKind::kData;
    connect.hello.job = "post";
    connect.hello.features = features;
    send(connect);
  }

  Counters counters;
  PostService service;
  std::unique_ptr<sim::SimPort> port;
  Engine engine;
  uint32_t features = 0;
  bool open = false;
  std::optional<event::SessionClosed> closed;

 private:
  struct Rings {
    decltype(Engine::CommandRing::create(1)) commands = Engine::CommandRing::create(64);
    decltype(Engine::EventRing::create(1)) events = Engine::EventRing::create(64);
  };
  static EngineConfig with_seed(EngineConfig config, uint8_t number) {
    config.session_seed = number;
    return config;
  }
  static std::unique_ptr<sim::SimPort> make_port(sim::SimNetwork& network, uint8_t number,
                                                 sim::SimPortConfig config, Counters& counters) {
    config.counters = &counters;
    auto made = sim::SimPort::create(network, network.add_host(),
                                     {IpAddress::v4(10, 0, 0, number), 7470}, config);
    return made ? std::move(*made) : nullptr;
  }
  PostHost(sim::SimNetwork& network, uint8_t number, const EngineConfig& config,
           const sim::SimPortConfig& port_config, Rings rings)
      : port(make_port(network, number, port_config, counters)),
        engine(*port, service, config, counters, std::move(rings.commands.second),
               std::move(rings.events.first)),
        commands_(std::move(rings.commands.first)),
        events_(std::move(rings.events.second)) {}

  void take(const PostService::Event& event) {
    if (const auto* hello = std::get_if<event::HelloReceived>(&event)) {
      wire::HelloAck answer;
      answer.features = features;
      send(command::Accept{.hello = hello->hello, .token = kToken, .answer = answer});
    } else if (std::get_if<event::SessionOpened>(&event) != nullptr) {
      open = true;
    } else if (const auto* end = std::get_if<event::SessionClosed>(&event)) {
      closed = *end;
    }
  }

  Engine::CommandRing::Producer commands_;
  Engine::EventRing::Consumer events_;
};

struct Lab {
  explicit Lab(const sim::Faults& faults = {}, uint64_t seed = 1)
      : Lab(config(faults, seed), EngineConfig(), sim::SimPortConfig()) {}
  Lab(const sim::NetworkConfig& config, const EngineConfig& engine, const sim::SimPortConfig& port)
      : network(config) {
    for (uint8_t i = 1; i <= 2; ++i) {
      hosts.push_back(std::make_unique<PostHost>(network, i, engine, port));
    }
  }
  static sim::NetworkConfig config(const sim::Faults& faults, uint64_t seed) {
    sim::NetworkConfig config;
    config.seed = seed;
    config.host_link.faults = faults;
    return config;
  }
  PostHost& a() { return *hosts[0]; }
  PostHost& b() { return *hosts[1]; }

  template <class F>
  bool run(F done, uint64_t limit_ns = 60 * kSecond) {
    const uint64_t end_ns = network.now_ns() + limit_ns;
    for (;;) {
      for (bool work = true; work;) {
        work = false;
        for (auto& host : hosts) work = host->poll(network.now_ns()) > 0 || work;
      }
      if (done()) return true;
      uint64_t next_ns = network.next_event_ns();
      for (auto& host : hosts) next_ns = std::min(next_ns, host->engine.next_deadline_ns());
      next_ns = std::max(next_ns, network.now_ns() + 1);
      if (next_ns > end_ns) return false;
      network.advance_to(next_ns);
    }
  }
  bool connect(uint32_t features = 0) {
    for (auto& host : hosts) host->features = features;
    a().connect(b().port->info().local);
    return run([this] { return a().open && b().open; });
  }
  void run_for(uint64_t ns) {
    (void)run([] { return false; }, ns);
  }

  sim::SimNetwork network;
  std::vector<std::unique_ptr<PostHost>> hosts;
};

TEST(Datagrams, ArriveWholeAndWhoSentThemHearsOfEachOnce) {
  constexpr uint32_t kCount = 1000;
  sim::Faults weather;
  weather.loss = 0.05;
  weather.duplicate = 0.05;
  weather.reorder = 0.1;
  weather.corrupt = 0.02;
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    Lab lab(weather, seed);
    ASSERT_TRUE(lab.connect());
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t size = i * 37 % 1400;
      bytes += size;
      lab.a().send(Post{kToken, i, size});
      if (i % 32 == 0) (void)lab.run([] { return false; }, kMs);
    }
    ASSERT_TRUE(lab.run([&] { return lab.a().service.acked.size() == kCount; }));
    EXPECT_EQ(lab.b().service.arrived.size(), kCount);
    for (const auto& [number, times] : lab.b().service.arrived) {
      EXPECT_GE(times, 1U) << number;
      EXPECT_LE(times, 1 + lab.a().service.lost) << number;
    }
    EXPECT_GT(lab.a().service.lost, 0U);
    EXPECT_GE(lab.a().service.charged_bytes, bytes + kCount * sizeof(wire::DatagramHeader));
  }
}

// Frames that have come are not kept waiting by what the control plane asks for.
TEST(Datagrams, APassCarriesOutSoManyCommandsAtMost) {
  Lab lab;
  ASSERT_TRUE(lab.connect());
  lab.a().service.blocked = true;
  for (uint32_t i = 0; i < 2 * kCommandsPerPass; ++i) lab.a().send(Post{kToken, i, 100});
  const auto taken = [&] { return lab.a().service.acked.size(); };
  for (uint32_t pass = 1; pass <= 2; ++pass) {
    EXPECT_TRUE(lab.a().engine.commands_waiting());
    EXPECT_GT(lab.a().poll(lab.network.now_ns()), 0U) << "the engine does not sleep over the rest";
    EXPECT_EQ(lab.a().service.posted, pass * kCommandsPerPass);
  }
  EXPECT_FALSE(lab.a().engine.commands_waiting());
  ASSERT_TRUE(lab.run([&] { return taken() == 2 * kCommandsPerPass; }));
}

// A pass that takes time, as the network here does not know: its time is given to poll().
TEST(Datagrams, AnEngineWhosePassesTakeTimeFillsItsLink) {
  constexpr uint64_t kPassNs = 10'000;
  constexpr uint64_t kPasses = 1'000;
  constexpr uint64_t kRate = 6'250'000'000;  // an eighth of 400 Gb/s
  constexpr uint32_t kBytes = 8000;
  sim::NetworkConfig fast;
  fast.host_link.bytes_per_second = kRate;
  fast.host_link.queue_bytes = 4 << 20;
  fast.host_link.mtu_bytes = 9000;
  Lab lab(fast, {.tx_bound_bytes = 2 * 9216}, {.tx_queue_bytes = 4 << 20});
  ASSERT_TRUE(lab.connect());
  (void)lab.run([] { return false; }, 20 * kMs);  // MTU probes are over
  lab.a().send(Post{kToken, 0, kBytes});
  ASSERT_TRUE(lab.run([&] { return lab.a().service.acked.size() == 1; }));
  for (uint32_t i = 1; i <= 10 * kPasses; ++i) {
    lab.a().service.waiting.push_back({kToken, i, kBytes});
  }
  const auto arrived = [&] { return lab.b().counters.get(Counter::kRxBytes); };
  uint64_t before = 0;
  const uint64_t begin_ns = lab.network.now_ns();
  for (uint64_t pass = 0; pass < kPasses; ++pass) {
    if (pass == kPasses / 2) before = arrived();  // the window is open
    for (auto& host : lab.hosts) host->poll(lab.network.now_ns());
    lab.network.advance_to(begin_ns + (pass + 1) * kPassNs);
  }
  const double reached = static_cast<double>(arrived() - before) /
                         (static_cast<double>(kRate) * kPassNs * 1e-9 * kPasses / 2);
  EXPECT_GT(reached, 0.85) << "of the link, headers below UDP not counted";
}

// The peer, which says nothing itself, hears of it at once: not when it is next heard.
TEST(Datagrams, OneThatThePortCannotCarryEndsItsSessionAndIsNotSent) {
  Lab lab;
  ASSERT_TRUE(lab.connect());
  (void)lab.run([] { return false; }, 20 * kMs);  // MTU probes are over
  lab.a().service.sends_again = false;
  lab.a().send(Post{kToken, 1, lab.a().port->info().max_udp_payload});
  EXPECT_TRUE(lab.run([&] { return lab.a().closed && lab.b().closed; }, 5 * kMs));
  ASSERT_TRUE(lab.a().closed && lab.b().closed);
  EXPECT_EQ(lab.a().closed->code, Errc::kProtocol);
  EXPECT_EQ(lab.b().closed->code, Errc::kProtocol);
  EXPECT_NE(lab.b().closed->text.find("more than the port carries"), std::string::npos)
      << lab.b().closed->text;
  EXPECT_EQ(lab.a().service.lost, 1U) << "it is its service's again";
  EXPECT_TRUE(lab.b().service.arrived.empty());
}

// --- Over a path that carries less than when the session opened
// ------------------------------------

constexpr uint32_t kLarge = 8'000;  // in parts
constexpr uint32_t kSmall = 100;    // whole

// It is known that frames of kLarge bytes go in parts.
struct InParts : Lab {
  explicit InParts(uint32_t features = wire::kFeatureParts, sim::SimPortConfig port = {})
      : Lab(jumbo(), EngineConfig(), port) {
    EXPECT_TRUE(connect(features));
    run_for(20 * kMs);  // MTU probes are over
    sim::Faults narrow;
    narrow.vanish_above_bytes = 1'500;
    network.set_faults(narrow);
    post(8, kLarge);
    EXPECT_TRUE(all_acked());
    run_for(100 * kMs);
    for (size_t i = 0; i < 2; ++i) {
      for (size_t c = 0; c < kCounterCount; ++c) {
        before[i][c] = hosts[i]->counters.get(static_cast<Counter>(c));
      }
    }
  }
  static sim::NetworkConfig jumbo() {
    sim::NetworkConfig config;
    config.host_link.mtu_bytes = 9'000;
    return config;
  }
  void post(uint32_t count, uint32_t bytes) {
    for (uint32_t i = 0; i < count; ++i) a().service.waiting.push_back({kToken, posted++, bytes});
  }
  bool all_acked() {
    return run([this] { return a().service.acked.size() == posted || a().closed; }) && !a().closed;
  }
  uint64_t since(size_t host, Counter counter) const {
    return hosts[host]->counters.get(counter) - before[host][static_cast<size_t>(counter)];
  }

  uint32_t posted = 0;
  std::array<std::array<uint64_t, kCounterCount>, 2> before{};
};

TEST(DatagramsInParts, ArriveWithAndWithoutSeals) {
  for (const uint32_t features :
       {uint32_t{wire::kFeatureParts}, wire::kFeatureParts | wire::kFeatureSeals}) {
    SCOPED_TRACE(features);
    InParts lab(features);
    lab.post(200, kLarge);
    ASSERT_TRUE(lab.all_acked());
    EXPECT_GE(lab.since(0, Counter::kPartsSent), 200U * 6);
    EXPECT_EQ(lab.since(0, Counter::kRetransmits), 0U);
    EXPECT_EQ(lab.since(1, Counter::kDropSeal), 0U);
    lab.run_for(20 * kSecond);
    EXPECT_FALSE(lab.a().closed || lab.b().closed);
  }
}

// Nothing has to be lost first.
TEST(DatagramsInParts, GoOverAPathThatCarriedLessWhenItsSessionOpened) {
  Lab lab(InParts::jumbo(), EngineConfig(), sim::SimPortConfig());
  sim::Faults narrow;
  narrow.vanish_above_bytes = 1'500;
  lab.network.set_faults(narrow);
  ASSERT_TRUE(lab.connect(wire::kFeatureParts));
  lab.run_for(20 * kMs);  // MTU probes are over
  for (uint32_t i = 0; i < 100; ++i) lab.a().service.waiting.push_back({kToken, i, kLarge});
  ASSERT_TRUE(lab.run([&] { return lab.a().service.acked.size() == 100; }));
  EXPECT_EQ(lab.a().counters.get(Counter::kRetransmits), 0U);
  EXPECT_EQ(lab.a().counters.get(Counter::kPathsDoubted), 0U);
}

// Who stands still for a while finds all that has come at once.
TEST(DatagramsInParts, NoneIsOvertakenByWhatCameBehindIt) {
  InParts lab;
  for (uint32_t i = 0; i < 200; ++i) {
    lab.post(1, kLarge);
    lab.post(6, kSmall);
  }
  for (uint32_t step = 0; step < 5'000; ++step) {
    while (lab.a().poll(lab.network.now_ns()) > 0) continue;
    for (bool reads = step % 20 == 0; reads;) reads = lab.b().poll(lab.network.now_ns()) > 0;
    lab.network.advance_to(lab.network.now_ns() + 10'000);
  }
  ASSERT_TRUE(lab.all_acked());
  EXPECT_EQ(lab.since(0, Counter::kSpuriousLosses), 0U);
  EXPECT_EQ(lab.since(0, Counter::kRetransmits), 0U);
}

TEST(DatagramsInParts, EachPacketIsCountedOnce) {
  InParts lab;
  lab.post(100, kLarge);
  ASSERT_TRUE(lab.all_acked());
  lab.run_for(100 * kMs);
  ASSERT_GT(lab.since(0, Counter::kPartsSent), 0U);
  for (const size_t host : {0, 1}) {
    EXPECT_EQ(lab.since(host, Counter::kTxFrames), lab.since(1 - host, Counter::kRxFrames));
    EXPECT_EQ(lab.since(host, Counter::kTxBytes), lab.since(1 - host, Counter::kRxBytes));
  }
}

// A port that takes three packets of a frame's six at a time.
TEST(DatagramsInParts, NoneIsHalfSentWhereThePortHasNoRoom) {
  InParts lab(wire::kFeatureParts, {.tx_queue_bytes = 4'000});
  const uint64_t refused = lab.since(0, Counter::kTxBackpressure);
  lab.post(100, kLarge);
  ASSERT_TRUE(lab.all_acked());
  EXPECT_GT(lab.since(0, Counter::kTxBackpressure), refused);
  EXPECT_EQ(lab.since(0, Counter::kRetransmits), 0U);
}

// The rest of its last frame is no later session's.
TEST(DatagramsInParts, WhatIsLeftOfOneGoesWithItsSession) {
  InParts lab(wire::kFeatureParts, {.tx_queue_bytes = 4'000});
  lab.post(1, kLarge);
  ASSERT_GT(lab.a().poll(lab.network.now_ns()), 0U);  // half of it
  lab.a().send(command::CloseSession{kToken, Errc::kClosed, "it is over"});
  ASSERT_TRUE(lab.run([&] { return lab.a().closed && lab.b().closed; }, kSecond));
  lab.a().open = lab.b().open = false;
  ASSERT_TRUE(lab.connect());
  lab.post(1, kSmall);
  EXPECT_TRUE(lab.run([&] { return lab.a().service.acked.count(lab.posted - 1) == 1; }, kSecond));
}

// --- What the link says --------------------------------------------------------------------------

struct LinkFree {
  static void see(void* context, uint64_t, const Endpoint&, const Endpoint&,
                  std::span<const std::byte> frame) {
    wire::Header header;
    std::span<const std::byte> payload;
    if (wire::decode(frame, header, payload) != wire::DecodeError::kNone) return;
    if (!wire::is_datagram(header.type)) return;
    static_cast<LinkFree*>(context)->seen.push_back((header.flags & wire::kFlagLinkFree) != 0);
  }
  std::vector<bool> seen;  // of each datagram: its link was free
};

// The first of a burst finds the link idle, and the next one says so.
TEST(Datagrams, SayThatTheirLinkHasBeenIdle) {
  for (const bool known : {true, false}) {
    SCOPED_TRACE(known);
    Lab lab(Lab::config({}, 1), EngineConfig(), {.report_rate = known});
    ASSERT_TRUE(lab.connect());
    lab.run_for(20 * kMs);  // MTU probes are over
    LinkFree link;
    lab.network.set_tap(LinkFree::see, &link);
    for (uint32_t burst = 0; burst < 3; ++burst) {
      link.seen.clear();
      for (uint32_t i = 0; i < 4; ++i) lab.a().send(Post{kToken, 4 * burst + i, 1'400});
      ASSERT_TRUE(lab.run([&] { return lab.a().service.acked.size() == 4 * (burst + 1); }));
      lab.run_for(10 * kMs);
      if (burst == 0) continue;  // what came before, as probes, counts too
      EXPECT_EQ(link.seen, (std::vector<bool>{false, known, false, false}));
    }
  }
}

}  // namespace
}  // namespace mercury
