// The sockets' relay from program to program: real descriptors, simulated network.
#include <cstring>

#include "tests/shim/socket/relay_lab.h"

namespace mercury {
namespace {

using sockets::Answer;

std::byte pattern(uint64_t offset) {
  return static_cast<std::byte>((offset * 7 + (offset >> 8) * 3 + (offset >> 16)) & 0xff);
}

// Writes `bytes` of the pattern, then says that this was all; reads what comes, and checks it.
struct Talk {
  ProgramEnd& end;
  uint64_t bytes = 0;
  uint64_t expected = 0;
  uint64_t written = 0;
  uint64_t read = 0;
  bool finished = false;
  bool intact = true;

  bool done() {
    while (written < bytes) {
      std::byte buffer[10'000];
      const size_t size = static_cast<size_t>(std::min<uint64_t>(sizeof buffer, bytes - written));
      for (size_t i = 0; i < size; ++i) buffer[i] = pattern(written + i);
      const size_t taken = end.write(std::span(buffer).first(size));
      written += taken;
      if (taken < size) break;
    }
    if (written == bytes && !std::exchange(finished, true)) shutdown(end.fd.get(), SHUT_WR);
    for (std::vector<std::byte> got = end.read(); !got.empty(); got = end.read()) {
      for (const std::byte byte : got) intact = intact && byte == pattern(read++);
    }
    return finished && end.ended;
  }
  void expect_whole() const {
    EXPECT_TRUE(intact);
    EXPECT_EQ(read, expected);
  }
};

TEST(SocketRelay, CarriesMegabytesBothWaysInBadWeatherAndEndsInOrder) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    RelayLab lab(seed);
    sim::Faults weather;
    weather.loss = 0.03;
    weather.duplicate = 0.03;
    weather.reorder = 0.1;
    weather.corrupt = 0.01;
    lab.network.set_faults(weather);
    auto [left, right] = lab.connected();
    Talk from_a{left, 3 << 20, 2 << 20};
    Talk from_b{right, 2 << 20, 3 << 20};
    ASSERT_TRUE(lab.run([&] {
      const bool a = from_a.done();
      return from_b.done() && a;
    }));
    from_a.expect_whole();
    from_b.expect_whole();
    ASSERT_TRUE(lab.run([&] { return lab.empty(); }));
    EXPECT_EQ(lab.a().ended.at(1), Errc::kOk);
    EXPECT_EQ(lab.b().ended.at(lab.last_id), Errc::kOk);
    EXPECT_EQ(lab.a().counters->get(Counter::kSocketBytesSent), 3U << 20);
    EXPECT_EQ(lab.a().counters->get(Counter::kSocketBytesReceived), 2U << 20);
    EXPECT_EQ(lab.a().counters->get(Gauge::kConnections), 0U);
    // An engine whose port is full waits for room: it does not look again every nanosecond.
    EXPECT_LT(lab.a().counters->get(Counter::kPolls), 20'000U);
  }
}

// Bytes that come in order go from the frames that brought them to a program that reads.
TEST(SocketRelay, WhatAProgramTakesAtOnceIsNotKept) {
  RelayLab lab(1);
  auto [left, right] = lab.connected();
  lab.run_for(10 * kMs);
  Talk from_a{left, 3 << 20, 0};
  Talk from_b{right, 0, 3 << 20};
  size_t most_kept = 0;
  const auto look = [&](StreamHost& host) {
    most_kept = std::max(most_kept, host.stream_bytes(SessionSlot(0)));
  };
  ASSERT_TRUE(lab.run([&] {
    lab.b().relay.once = look;
    const bool a = from_a.done();
    return from_b.done() && a;
  }));
  from_a.expect_whole();
  from_b.expect_whole();
  EXPECT_LE(most_kept, kStreamBlockBytes);  // of the other direction: its end is on the way
}

TEST(SocketRelay, TheOtherHostLearnsWhoAsksForWhat) {
  RelayLab lab(1);
  lab.connected();
  ASSERT_EQ(lab.b().asked.size(), 1U);
  EXPECT_EQ(lab.b().asked[0].preamble.destination, Endpoint({IpAddress::v4(10, 0, 0, 2), 80}));
  EXPECT_EQ(lab.b().asked[0].preamble.source, Endpoint({IpAddress::v4(10, 0, 0, 1), 40000}));
}

TEST(SocketRelay, ARefusedConnectionLeavesNothing) {
  for (const Answer answer : {Answer::kNobody, Answer::kRefused}) {
    RelayLab lab(1);
    lab.b().answer = answer;
    const ProgramEnd program = lab.a().open(RelayLab::kToken, 1);
    program.write("said too early");
    ASSERT_TRUE(lab.run([&] { return lab.a().answered.contains(1) && lab.empty(); }));
    EXPECT_EQ(lab.a().answered[1], answer);
    EXPECT_TRUE(lab.a().ended.empty());
    EXPECT_TRUE(lab.b().ended.empty());
  }
}

TEST(SocketRelay, WhatWasWrittenBeforeTheAnswerArrivesAfterIt) {
  RelayLab lab(1);
  lab.b().answers = false;
  const ProgramEnd program = lab.a().open(RelayLab::kToken, 1);
  program.write("early");
  ASSERT_TRUE(lab.run([&] { return lab.b().asked.size() == 1; }));
  lab.b().answer_asked(lab.b().asked[0].asked, Answer::kAccepted);
  ProgramEnd& other = lab.b().accepted.begin()->second;
  std::string text;
  ASSERT_TRUE(lab.run([&] { return (text += other.read_text()).size() == 5; }));
  EXPECT_EQ(text, "early");
}

// Between hosts that have a session: one round trip, as long as a byte there and back takes then.
TEST(SocketRelay, AConnectionIsSetUpInOneRoundTrip) {
  RelayLab lab(1, {}, 10 * kMs);
  const uint64_t asked_at_ns = lab.network.now_ns();
  auto [left, right] = lab.connected();
  const uint64_t set_up_ns = lab.network.now_ns() - asked_at_ns;
  const uint64_t written_at_ns = lab.network.now_ns();
  left.write("a");
  ASSERT_TRUE(lab.run([&, &right = right] { return right.read_text() == "a"; }));
  right.write("b");
  ASSERT_TRUE(lab.run([&, &left = left] { return left.read_text() == "b"; }));
  const uint64_t there_and_back_ns = lab.network.now_ns() - written_at_ns;
  EXPECT_GE(there_and_back_ns, 20 * kMs);
  EXPECT_LT(set_up_ns, there_and_back_ns + kMs);
}

TEST(SocketRelay, HalfAConnectionGoesOn) {
  RelayLab lab(1);
  auto [left, right] = lab.connected();
  left.write("question");
  shutdown(left.fd.get(), SHUT_WR);
  std::string text;
  ASSERT_TRUE(lab.run([&] {
    text += right.read_text();
    return right.ended;
  }));
  EXPECT_EQ(text, "question");
  lab.run_for(1'000 * kMs);
  right.write("answer");
  std::string back;
  ASSERT_TRUE(lab.run([&] { return (back += left.read_text()).size() == 6; }));
  EXPECT_FALSE(left.ended);
  right.fd.reset();
  ASSERT_TRUE(lab.run([&] {
    left.read();
    return left.ended && lab.empty();
  }));
  EXPECT_EQ(lab.a().ended.at(1), Errc::kOk);
}

// A read of the relay's stops at them, and no edge tells of what is behind.
TEST(SocketRelay, WhatStandsBehindDescriptorsThatAProgramSendsArrives) {
  RelayLab lab(1);
  auto [left, right] = lab.connected();
  lab.run_for(10 * kMs);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  iovec part{const_cast<char*>("two"), 3};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr& rights = *CMSG_FIRSTHDR(&message);
  rights.cmsg_level = SOL_SOCKET;
  rights.cmsg_type = SCM_RIGHTS;
  rights.cmsg_len = CMSG_LEN(sizeof(int));
  const int sent = left.fd.get();
  std::memcpy(CMSG_DATA(&rights), &sent, sizeof sent);
  left.write("one");
  ASSERT_EQ(sendmsg(left.fd.get(), &message, 0), 3);
  left.write("three");
  std::string text;
  ASSERT_TRUE(lab.run([&] { return (text += right.read_text()).size() == 11; }));
  EXPECT_EQ(text, "onetwothree");
}

TEST(SocketRelay, AProgramThatDoesNotReadStopsTheOtherAndNobodyElse) {
  RelayLab lab(1);
  auto [slow_left, slow_right] = lab.connected(1);
  const std::vector<std::byte> block(64 * 1024);
  uint64_t written = 0;
  lab.run(
      [&] {
        written += slow_left.write(block);
        return false;
      },
      2'000 * kMs);
  // Both pairs, both streams' windows, and a turn on each side.
  EXPECT_LT(written, (2U << 20) + (2U << 20));
  EXPECT_GT(written, 1U << 20);
  auto [left, right] = lab.connected(2);
  Talk from_a{left, 4 << 20, 0};
  Talk from_b{right, 0, 4 << 20};
  ASSERT_TRUE(lab.run([&] {
    const bool a = from_a.done();
    return from_b.done() && a;
  }));
  from_b.expect_whole();
  uint64_t read = 0;
  ASSERT_TRUE(lab.run([&] { return (read += slow_right.read().size()) == written; }));
}

TEST(SocketRelay, WhoClosesWithBytesUnreadResets) {
  RelayLab lab(1);
  auto [left, right] = lab.connected();
  left.write("for nobody");
  lab.run_for(100 * kMs);
  right.fd.reset();
  ASSERT_TRUE(lab.run([&] { return lab.empty(); }));
  EXPECT_EQ(lab.a().ended.at(1), Errc::kPeerLeft);
  EXPECT_EQ(lab.b().ended.at(lab.last_id), Errc::kPeerLeft);
}

TEST(SocketRelay, WhoWritesToAProgramThatHasClosedIsReset) {
  RelayLab lab(1);
  auto [left, right] = lab.connected();
  right.fd.reset();
  ASSERT_TRUE(lab.run([&] {
    left.read();
    return left.ended;
  }));
  left.write("for nobody");
  ASSERT_TRUE(lab.run([&] { return lab.empty(); }));
  EXPECT_EQ(lab.a().ended.at(1), Errc::kPeerLeft);
}

TEST(SocketRelay, AbortOnCloseResets) {
  RelayLab lab(1);
  auto [left, right] = lab.connected();
  lab.a().send(command::SetConnection{1, 0, true});
  lab.run_for(10 * kMs);
  left.fd.reset();
  ASSERT_TRUE(lab.run([&] { return lab.empty(); }));
  EXPECT_EQ(lab.b().ended.at(lab.last_id), Errc::kPeerLeft);
}

TEST(SocketRelay, AConnectionThatItsPeerDoesNotFinishEndsInTime) {
  RelayConfig config;
  config.patience_ns = 5'000 * kMs;
  RelayLab lab(1, config);
  auto [left, right] = lab.connected();
  left.fd.reset();
  lab.run_for(4'000 * kMs);
  EXPECT_EQ(lab.a().relay.connection_count(), 1U);
  ASSERT_TRUE(lab.run([&] { return lab.empty(); }, 2'000 * kMs));
  EXPECT_EQ(lab.a().ended.at(1), Errc::kTimedOut);
}

TEST(SocketRelay, ThatTimeBeginsWhenTheProgramCloses) {
  RelayConfig config;
  config.patience_ns = 5'000 * kMs;
  RelayLab lab(1, config);
  auto [left, right] = lab.connected();
  lab.run_for(4'000 * kMs);
  right.fd.reset();
  lab.run_for(4'000 * kMs);
  EXPECT_EQ(lab.b().relay.connection_count(), 1U);
  ASSERT_TRUE(lab.run([&] { return lab.empty(); }, 2'000 * kMs));
  EXPECT_EQ(lab.b().ended.at(lab.last_id), Errc::kTimedOut);
}

TEST(SocketRelay, AnIdleConnectionWakesNobody) {
  RelayLab lab(1);
  auto [left, right] = lab.connected();
  lab.run_for(10 * kMs);
  EXPECT_EQ(lab.a().relay.next_deadline_ns(), kNever);
  EXPECT_EQ(lab.b().relay.next_deadline_ns(), kNever);
}

// b opens a stream and writes on it what is no connection.
void write_from_b(RelayLab& lab, std::vector<std::byte> bytes) {
  lab.b().relay.once = [bytes = std::move(bytes)](StreamHost& host) {
    const Result<StreamId> stream = host.open_stream(SessionSlot(0));
    ASSERT_TRUE(stream);
    host.write_stream(SessionSlot(0), *stream, bytes);
  };
}

TEST(SocketRelay, AStreamThatIsOpenedForNothingEndsInTime) {
  RelayConfig config;
  config.patience_ns = 5'000 * kMs;
  RelayLab lab(1, config);
  write_from_b(lab, std::vector<std::byte>(3));
  ASSERT_TRUE(lab.run([&] { return lab.a().relay.connection_count() == 1; }));
  lab.run_for(4'000 * kMs);
  EXPECT_EQ(lab.a().relay.connection_count(), 1U);
  ASSERT_TRUE(lab.run([&] { return lab.empty(); }, 2'000 * kMs));
  EXPECT_TRUE(lab.a().asked.empty());
}

// They may have brought 16 KiB each. One that is answered makes room.
TEST(SocketRelay, OfConnectionsThatWaitForAnAnswerAHostHasOnlySoMany) {
  RelayConfig config;
  config.most_asked = 3;
  RelayLab lab(1, config);
  const auto unheard = [&lab] { return lab.b().counters->get(Counter::kConnectionsUnheard); };
  std::vector<std::pair<ProgramEnd, ProgramEnd>> accepted;
  for (sockets::ConnectionId id = 1; id <= 5; ++id) accepted.push_back(lab.connected(id));
  EXPECT_EQ(unheard(), 0U);
  lab.b().answers = false;
  std::vector<ProgramEnd> asking;
  for (sockets::ConnectionId id = 11; id <= 14; ++id) {
    asking.push_back(lab.a().open(RelayLab::kToken, id));
    asking.back().write("before it is accepted");
  }
  ASSERT_TRUE(lab.run([&] { return lab.a().answered.contains(14); }, 1'000 * kMs));
  EXPECT_EQ(lab.a().answered.at(14), Answer::kNobody);
  EXPECT_EQ(unheard(), 1U);
  EXPECT_EQ(lab.a().answered.size(), 6U);  // the five and the fourteenth
  lab.b().answer_asked(lab.b().asked[5].asked, Answer::kRefused);
  lab.b().answer_asked(lab.b().asked[6].asked, Answer::kAccepted);
  ASSERT_TRUE(lab.run([&] { return lab.a().answered.size() == 8; }, 1'000 * kMs));
  lab.b().answers = true;
  lab.connected(21);
  EXPECT_EQ(unheard(), 1U);
}

// What it has sent behind a gap is kept until then.
TEST(SocketRelay, ARefusedConnectionThatItsPeerDoesNotFinishEndsInTime) {
  RelayConfig config;
  config.most_asked = 1;
  config.patience_ns = 500 * kMs;
  RelayLab lab(1, config);
  lab.b().answer = Answer::kNobody;
  lab.a().relay.once = [](StreamHost& host) {
    sockets::Preamble preamble;
    preamble.source = {IpAddress::v4(10, 0, 0, 1), 40000};
    preamble.destination = {IpAddress::v4(10, 0, 0, 2), 80};
    const Result<StreamId> stream = host.open_stream(SessionSlot(0));
    host.write_stream(SessionSlot(0), *stream, sockets::encode(preamble));
  };
  ASSERT_TRUE(lab.run([&] { return lab.b().asked.size() == 1; }));
  lab.run_for(100 * kMs);
  EXPECT_EQ(lab.b().relay.connection_count(), 1U);
  lab.a().open(RelayLab::kToken, 1);
  ASSERT_TRUE(lab.run([&] { return lab.a().answered.contains(1); }));
  EXPECT_EQ(lab.b().counters->get(Counter::kConnectionsUnheard), 1U);
  ASSERT_TRUE(lab.run([&] { return lab.b().relay.connection_count() == 0; }, 600 * kMs));
  lab.b().answer = Answer::kAccepted;
  lab.connected(2);
}

// Nor say what for.
TEST(SocketRelay, StreamsThatSayNothingAreBoundedAndRoomComesBack) {
  RelayConfig config;
  config.most_asked = 3;
  config.patience_ns = 500 * kMs;
  RelayLab lab(1, config);
  const auto unheard = [&lab] { return lab.b().counters->get(Counter::kConnectionsUnheard); };
  lab.a().relay.once = [](StreamHost& host) {
    const std::byte nothing_yet{};
    for (int i = 0; i < 5; ++i) {
      const Result<StreamId> stream = host.open_stream(SessionSlot(0));
      host.write_stream(SessionSlot(0), *stream, {&nothing_yet, 1});
    }
  };
  ASSERT_TRUE(lab.run([&] { return unheard() == 2; }, 100 * kMs));
  ASSERT_TRUE(lab.run([&] { return lab.b().relay.connection_count() == 0; }, 1'000 * kMs));
  lab.connected();
}

TEST(SocketRelay, WhatIsNoPreambleIsReset) {
  RelayLab lab(1);
  write_from_b(lab, std::vector<std::byte>(sizeof(sockets::PreambleBytes)));
  lab.run_for(100 * kMs);
  EXPECT_EQ(lab.a().relay.connection_count(), 0U);
  EXPECT_TRUE(lab.a().asked.empty());
}

TEST(SocketRelay, ALostHostEndsItsConnections) {
  RelayLab lab(1);
  auto [left, right] = lab.connected();
  lab.b().answers = false;
  const ProgramEnd unanswered = lab.a().open(RelayLab::kToken, 2);
  ASSERT_TRUE(lab.run([&] { return lab.b().asked.size() == 2; }));
  left.write("lost");
  sim::Faults cut;
  cut.loss = 1;
  lab.network.set_faults(cut);
  ASSERT_TRUE(lab.run([&] { return lab.empty(); }));
  EXPECT_EQ(lab.a().ended.at(1), Errc::kPeerLost);
  EXPECT_EQ(lab.b().ended.at(lab.last_id), Errc::kPeerLost);
  EXPECT_EQ(lab.a().answered.at(2), Answer::kNobody);
  EXPECT_EQ(lab.b().asked_ended, std::vector<uint64_t>{lab.b().asked[1].asked});
  // The answer comes too late.
  lab.b().answer_asked(lab.b().asked[1].asked, Answer::kAccepted);
  lab.run_for(10 * kMs);
  EXPECT_EQ(lab.b().ended.at(lab.b().next_id - 1), Errc::kPeerLost);
  // And a session that is no more is asked for nothing.
  const ProgramEnd late = lab.a().open(RelayLab::kToken, 3);
  lab.run_for(10 * kMs);
  EXPECT_EQ(lab.a().answered.at(3), Answer::kNobody);
}

TEST(SocketRelay, AbortedBeforeItsAnswerItIsAnsweredForNobody) {
  RelayLab lab(1);
  lab.b().answers = false;
  const ProgramEnd program = lab.a().open(RelayLab::kToken, 1);
  ASSERT_TRUE(lab.run([&] { return lab.b().asked.size() == 1; }));
  lab.a().send(command::AbortConnection{1, Errc::kTimedOut});
  ASSERT_TRUE(lab.run([&] { return lab.empty(); }));
  EXPECT_EQ(lab.a().answered.at(1), Answer::kNobody);
  EXPECT_EQ(lab.b().asked_ended.size(), 1U);
}

TEST(SocketRelay, MoreConnectionsThanStreamsWaitTheirTurn) {
  RelayConfig config;
  config.streams.max_streams = 20;
  RelayLab lab(1, config);
  std::map<sockets::ConnectionId, ProgramEnd> programs;
  for (sockets::ConnectionId id = 1; id <= 50; ++id) {
    programs.emplace(id, lab.a().open(RelayLab::kToken, id));
  }
  lab.run_for(1'000 * kMs);
  EXPECT_EQ(lab.a().answered.size(), 20U);
  // As they end, others are asked for.
  ASSERT_TRUE(lab.run([&] {
    for (const auto& [id, answer] : lab.a().answered) programs.erase(id);
    for (auto& [id, end] : lab.b().accepted) {
      if (end.fd) end.read();
      if (end.ended) end.fd.reset();
    }
    return lab.a().answered.size() == 50 && lab.empty();
  }));
}

TEST(SocketRelay, ThousandsOfConnectionsShareASession) {
  RelayLab lab(1);
  constexpr sockets::ConnectionId kCount = 2000;
  std::map<sockets::ConnectionId, ProgramEnd> programs;
  for (sockets::ConnectionId id = 1; id <= kCount; ++id) {
    programs.emplace(id, lab.a().open(RelayLab::kToken, id));
    programs[id].write("hello " + std::to_string(id));
  }
  std::map<std::string, uint32_t> said;
  size_t heard = 0;
  uint64_t looked_ns = 0;
  ASSERT_TRUE(lab.run([&] {
    if (lab.network.now_ns() < looked_ns + 50 * kMs) return false;
    looked_ns = lab.network.now_ns();
    for (auto& [id, end] : lab.b().accepted) {
      const std::string text = end.read_text();
      if (text.empty()) continue;
      ++said[text];
      ++heard;
    }
    return heard == kCount;
  }));
  EXPECT_EQ(said.size(), kCount);
  EXPECT_EQ(lab.b().counters->get(Gauge::kConnections), kCount);
  programs.clear();
  lab.b().accepted.clear();
  ASSERT_TRUE(lab.run([&] { return lab.empty(); }));
  EXPECT_EQ(lab.a().counters->get(Gauge::kConnections), 0U);
}

// Bulk is queued on a slow link, by a program that always has more; then something urgent is said.
uint64_t urgent_ns(uint8_t priority) {
  RelayLab lab(1);
  lab.network.set_rate(lab.network.uplink(lab.a().host), 12'500'000);
  auto [bulk_left, bulk_right] = lab.connected(1);
  auto [left, right] = lab.connected(2);
  lab.a().send(command::SetConnection{2, priority, false});
  const std::vector<std::byte> block(64 * 1024);
  const auto bulk = [&] {
    bulk_left.write(block);
    bulk_right.read();
  };
  lab.run(
      [&] {
        bulk();
        return false;
      },
      500 * kMs);
  const uint64_t said_ns = lab.network.now_ns();
  left.write("urgent");
  std::string text;
  EXPECT_TRUE(lab.run([&] {
    bulk();
    return (text += right.read_text()).size() == 6;
  }));
  return lab.network.now_ns() - said_ns;
}

TEST(SocketRelay, AnUrgentConnectionOvertakesBulkOfTheSameSession) {
  const uint64_t plain = urgent_ns(0);
  const uint64_t urgent = urgent_ns(7);
  EXPECT_LT(urgent, plain);
  EXPECT_LT(urgent, 40 * kMs) << "the queue of the link, and what the window holds";
}

TEST(SocketRelay, DescribesThePathOfAConnection) {
  RelayLab lab(1);
  auto [left, right] = lab.connected();
  left.write("something");
  lab.run_for(100 * kMs);
  lab.a().send(command::DescribeConnection{1, 5});
  lab.a().send(command::DescribeConnection{2, 6});
  ASSERT_TRUE(lab.run([&] { return lab.a().described.size() == 2; }));
  EXPECT_TRUE(lab.a().described[0].known);
  EXPECT_EQ(lab.a().described[0].number, 5U);
  EXPECT_GT(lab.a().described[0].info.rtt_ns, 0U);
  EXPECT_GT(lab.a().described[0].info.segment_bytes, 1000U);
  EXPECT_FALSE(lab.a().described[1].known);
}

}  // namespace
}  // namespace mercury
