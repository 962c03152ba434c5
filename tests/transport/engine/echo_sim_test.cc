// Streams from end to end: the echo service over the simulated network.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/transport/engine/echo_lab.h"

namespace mercury::echo {
namespace {

constexpr uint64_t kMegabyte = 1 << 20;

sim::Faults bad_weather() {
  sim::Faults faults;
  faults.loss = 0.03;
  faults.duplicate = 0.03;
  faults.reorder = 0.1;
  faults.corrupt = 0.01;
  return faults;
}

TEST(EchoSim, MegabytesEachWayOnSeveralStreamsAreExactInBadWeather) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Lab lab(seed);
    lab.network.set_faults(bad_weather());
    ASSERT_TRUE(lab.connect());
    lab.expect_echoes(6, kMegabyte + seed);
    ASSERT_TRUE(lab.run([&] {
      const auto codes = lab.closed_codes(lab.b());
      return codes == std::vector<Errc>(6, Errc::kOk);
    }));
    EXPECT_EQ(lab.a().service.closed_twice + lab.b().service.closed_twice, 0U);
    EXPECT_EQ(lab.bytes_held(0) + lab.bytes_held(1), 0U);
    EXPECT_EQ(lab.a().counters->get(Counter::kDropStream), 0U);
  }
}

TEST(EchoSim, TheSameSeedGivesTheSameTrace) {
  const auto trace = [](uint64_t seed) {
    Lab lab(seed);
    lab.network.set_faults(bad_weather());
    EXPECT_TRUE(lab.connect());
    lab.expect_echoes(3, kMegabyte / 4);
    lab.run_for(kSecond);
    return lab.network.trace_hash();
  };
  EXPECT_EQ(trace(5), trace(5));
  EXPECT_NE(trace(5), trace(6));
}

TEST(EchoSim, ThousandsOfStreamsOneAfterAnother) {
  Lab lab(1);
  ASSERT_TRUE(lab.connect());
  for (int round = 0; round < 60; ++round) {
    lab.expect_echoes(50, 100);
    lab.a().service.streams.clear();
    ASSERT_TRUE(lab.run([&] {
      return std::ranges::all_of(lab.closed_codes(lab.b()), [](Errc c) { return c == Errc::kOk; });
    }));
    lab.b().service.streams.clear();
  }
}

TEST(EchoSim, AReaderWhoStopsStopsItsOwnStreamAlone) {
  StreamConfig config;
  Lab lab(3, config);
  lab.network.set_faults(bad_weather());
  // Every stream but the last two is read by nobody: more than the shared windows would hold.
  uint32_t opened = 0;
  lab.b().service.on_opened = [&](EchoService::EchoStream& stream) {
    stream.reads = opened++ >= 20;
  };
  ASSERT_TRUE(lab.connect());
  lab.a().send(StartEcho{kToken, 16, kMegabyte});
  lab.run_for(100 * kMs);
  lab.a().send(StartEcho{kToken, 6, kMegabyte});
  const auto intact = [&] {
    return std::ranges::count_if(lab.a().service.streams, [](const auto& one) {
      return one.second.closed == Errc::kOk && one.second.read == kMegabyte && one.second.intact;
    });
  };
  ASSERT_TRUE(lab.run([&] { return intact() == 2; }));
  lab.run_for(kSecond);
  EXPECT_EQ(intact(), 2);
  for (const auto& [key, stream] : lab.b().service.streams) {
    EXPECT_EQ(stream.read, stream.reads ? kMegabyte : 0U);
  }
  // What was promised and not read: the initial window of each, in whole blocks.
  EXPECT_LE(lab.bytes_held(1), 20 * (wire::kInitialStreamBytes + kStreamBlockBytes));
  EXPECT_GE(lab.bytes_held(1), 20 * wire::kInitialStreamBytes);
  lab.b().service.post([&] {
    for (auto& [key, stream] : lab.b().service.streams) {
      stream.reads = true;
      lab.b().service.pump(key);
    }
  });
  ASSERT_TRUE(lab.run([&] { return intact() == 22; }));
}

// As an attacker who reads nothing of what comes back would have it.
TEST(EchoSim, MemoryIsBoundedHoweverMuchIsWritten) {
  StreamConfig config;
  config.shared_window_bytes = 200'000;
  config.shared_send_bytes = 200'000;
  Lab lab(4, config);
  lab.b().service.on_opened = [](EchoService::EchoStream& stream) { stream.reads = true; };
  ASSERT_TRUE(lab.connect());
  lab.a().service.post([&] {
    for (int i = 0; i < 16; ++i) lab.a().service.open(kToken, kMegabyte).reads = false;
  });
  lab.run_for(5 * kSecond);
  constexpr size_t kBlocks = 16 * 4 * kStreamBlockBytes;  // begun at both ends of both windows
  constexpr size_t kWindows = 16 * wire::kInitialStreamBytes + 200'000;
  for (const size_t most : lab.most_bytes) {
    EXPECT_LE(most, 2 * kWindows + kBlocks);
    EXPECT_GE(most, kWindows / 2) << "it was tried";
  }
  uint64_t written = 0;
  for (const auto& [key, stream] : lab.a().service.streams) written += stream.written;
  EXPECT_LT(written, 16 * kMegabyte) << "the writer was told that there is no room";
  lab.a().service.post([&] {
    for (auto& [key, stream] : lab.a().service.streams) {
      stream.reads = true;
      lab.a().service.pump(key);
    }
  });
  ASSERT_TRUE(lab.run([&] { return !lab.a().done.empty(); })) << "and when there is again";
  EXPECT_EQ(lab.a().done[0].intact, 16U);
}

TEST(EchoSim, EitherSideMayFinishFirstAndGoOnReading) {
  Lab lab(5);
  lab.network.set_faults(bad_weather());
  lab.b().service.on_opened = [](EchoService::EchoStream& stream) { stream.finishes = false; };
  ASSERT_TRUE(lab.connect());
  lab.a().send(StartEcho{kToken, 2, 100'000});
  const auto settled = [&](auto& host, auto condition) {
    return host.service.streams.size() == 2 &&
           std::ranges::all_of(host.service.streams,
                               [&](const auto& one) { return condition(one.second); });
  };
  ASSERT_TRUE(lab.run([&] {
    return settled(lab.b(), [](const auto& one) { return one.ended && one.written == 100'000; }) &&
           settled(lab.a(), [](const auto& one) { return one.read == 100'000; });
  }));
  lab.run_for(kSecond);
  EXPECT_TRUE(settled(lab.a(), [](const auto& one) { return !one.ended && !one.closed; }));
  // The side that still may, writes on; then it finishes too.
  lab.b().service.post([&] {
    for (auto& [key, stream] : lab.b().service.streams) {
      const std::byte more = pattern(key.second, stream.written);
      EXPECT_EQ(lab.b().service.host->write_stream(key.first, key.second, {&more, 1}), 1U);
      stream.finishes = true;
      lab.b().service.pump(key);
    }
  });
  ASSERT_TRUE(lab.run([&] { return !lab.a().done.empty(); }));
  EXPECT_TRUE(settled(lab.a(), [](const auto& one) {
    return one.ended && one.intact && one.read == 100'001 && one.closed == Errc::kOk;
  }));
}

TEST(EchoSim, WhoWasOpenedToMayFinishFirst) {
  Lab lab(6);
  lab.network.set_faults(bad_weather());
  ASSERT_TRUE(lab.connect());
  lab.b().service.on_opened = [&](EchoService::EchoStream& stream) {
    stream.echoes = false;
    lab.b().service.post([&] {
      const auto& key = lab.b().service.streams.begin()->first;
      lab.b().service.streams.begin()->second.finished = true;
      lab.b().service.host->finish_stream(key.first, key.second);
      std::byte one{};
      EXPECT_EQ(lab.b().service.host->write_stream(key.first, key.second, {&one, 1}), 0U);
    });
  };
  lab.a().service.post([&] { lab.a().service.open(kToken, 10, false); });
  ASSERT_TRUE(lab.run([&] {
    return lab.a().service.streams.size() == 1 && lab.a().service.streams.begin()->second.ended;
  }));
  lab.a().service.post([&] {
    EchoService::EchoStream& stream = lab.a().service.streams.begin()->second;
    stream.wanted = kMegabyte;
    stream.finishes = true;
    lab.a().service.pump(lab.a().service.streams.begin()->first);
  });
  ASSERT_TRUE(lab.run([&] { return !lab.a().done.empty(); }));
  EXPECT_EQ(lab.a().service.streams.begin()->second.closed, Errc::kOk);
  ASSERT_TRUE(lab.run([&] { return lab.closed_codes(lab.b())[0] == Errc::kOk; }));
  EXPECT_EQ(lab.b().service.streams.begin()->second.read, kMegabyte);
}

TEST(EchoSim, AResetEndsOneStreamBothWaysAtOnce) {
  for (const bool by_opener : {true, false}) {
    SCOPED_TRACE(by_opener);
    Lab lab(7);
    lab.network.set_faults(bad_weather());
    ASSERT_TRUE(lab.connect());
    lab.a().send(StartEcho{kToken, 3, kMegabyte});
    auto& resets = by_opener ? lab.a().service : lab.b().service;
    auto& hears = by_opener ? lab.b().service : lab.a().service;
    ASSERT_TRUE(lab.run([&] {
      return resets.streams.size() == 3 && resets.streams.begin()->second.read > 200'000;
    }));
    const EchoService::Key key = resets.streams.begin()->first;
    resets.post([&] {
      resets.host->reset_stream(key.first, key.second, Errc::kBusy);
      resets.streams.at(key).closed = Errc::kBusy;  // it is not told what it knows
    });
    ASSERT_TRUE(lab.run([&] { return hears.streams.begin()->second.closed.has_value(); }));
    EXPECT_EQ(hears.streams.begin()->second.closed, Errc::kBusy);
    ASSERT_TRUE(lab.run([&] {
      const auto over = [](const auto& one) { return one.second.closed.has_value(); };
      return std::ranges::all_of(lab.a().service.streams, over) &&
             std::ranges::all_of(lab.b().service.streams, over);
    }));
    lab.run_for(kSecond);
    EXPECT_EQ(resets.closed_twice, 0U);
    EXPECT_EQ(lab.bytes_held(0) + lab.bytes_held(1), 0U);
    EXPECT_EQ(std::ranges::count(lab.closed_codes(lab.a()), Errc::kOk), 2);
    EXPECT_EQ(std::ranges::count(lab.closed_codes(lab.b()), Errc::kOk), 2);
    EXPECT_TRUE(lab.a().closed.empty());
    lab.a().service.streams.clear();
    lab.expect_echoes(1, kMegabyte);
  }
}

TEST(EchoSim, AKilledPeerIsAnErrorOfEachStream) {
  Lab lab(8);
  ASSERT_TRUE(lab.connect());
  lab.a().send(StartEcho{kToken, 5, 4 * kMegabyte});
  ASSERT_TRUE(lab.run([&] {
    return lab.a().service.streams.size() == 5 && lab.a().service.streams.begin()->second.read > 0;
  }));
  lab.hosts.pop_back();
  ASSERT_TRUE(lab.run([&] { return !lab.a().closed.empty(); }));
  EXPECT_EQ(lab.closed_codes(lab.a()), std::vector<Errc>(5, Errc::kPeerLost));
  EXPECT_EQ(lab.a().closed[kToken], Errc::kPeerLost);
  EXPECT_EQ(lab.a().service.forgotten, 1U);
  EXPECT_EQ(lab.a().service.ended_after_session, 0U) << "streams end before their session";
  EXPECT_EQ(lab.a().service.closed_twice, 0U);
}

TEST(EchoSim, AClosedSessionEndsItsStreamsOnBothSides) {
  Lab lab(9);
  ASSERT_TRUE(lab.connect());
  lab.a().send(StartEcho{kToken, 2, 4 * kMegabyte});
  ASSERT_TRUE(lab.run([&] { return lab.b().service.streams.size() == 2; }));
  lab.b().service.post([&] {
    lab.b().service.host->close_session(lab.b().service.sessions.begin()->second, Errc::kPeerLeft,
                                        "enough");
  });
  ASSERT_TRUE(lab.run([&] { return !lab.a().closed.empty() && !lab.b().closed.empty(); }));
  EXPECT_EQ(lab.closed_codes(lab.a()), std::vector<Errc>(2, Errc::kPeerLeft));
  EXPECT_EQ(lab.closed_codes(lab.b()), std::vector<Errc>(2, Errc::kPeerLeft));
  lab.a().service.post([&] {
    const EchoService::Key key = lab.a().service.streams.begin()->first;
    std::byte one{};
    EXPECT_EQ(lab.a().service.host->write_stream(key.first, key.second, {&one, 1}), 0U);
    EXPECT_EQ(lab.a().service.host->open_stream(key.first).error().code, Errc::kClosed);
  });
  lab.run_for(kMs);
}

TEST(EchoSim, MoreStreamsThanAllowedAreRefusedUntilOthersEnd) {
  StreamConfig config;
  config.max_streams = 20;
  Lab lab(10, config);
  ASSERT_TRUE(lab.connect());
  lab.run_for(kMs);  // b says how many it allows
  lab.a().service.post([&] {
    for (int i = 0; i < 25; ++i) lab.a().service.open(kToken, 100'000);
  });
  ASSERT_TRUE(lab.run([&] { return !lab.a().done.empty(); }));
  EXPECT_EQ(lab.a().done[0].intact, 20U);
  EXPECT_EQ(lab.a().service.refused, std::vector<Errc>(5, Errc::kAgain));
  lab.run_for(kMs);
  EXPECT_EQ(lab.a().service.available, 1U);
  lab.a().service.streams.clear();
  lab.expect_echoes(50, 100'000);  // who waits until it is told gets them all
}

TEST(EchoSim, StreamsNeedBothSidesWord) {
  for (const uint32_t of_a : {0U, uint32_t{wire::kFeatureStreams}}) {
    Lab lab(11);
    if (of_a != 0) lab.b().features = 0;  // as a peer of a release before
    lab.a().connect(kToken, lab.b().port->info().local, of_a);
    ASSERT_TRUE(lab.run([&] { return !lab.a().opened.empty() && !lab.b().opened.empty(); }));
    EXPECT_TRUE(lab.a().service.sessions.empty());
    EXPECT_TRUE(lab.b().service.sessions.empty());
    lab.a().service.post([&] {
      const auto id = lab.a().service.host->open_stream(*lab.a().service.host->claim(kToken));
      EXPECT_EQ(id.error().code, Errc::kUnsupported) << id.error().message;
    });
    lab.run_for(kMs);
  }
}

TEST(EchoSim, NoJobsRemovalClosesASessionOfNone) {
  Lab lab(12);
  ASSERT_TRUE(lab.connect());
  wire::Hello hello;
  hello.kind = wire::SessionKind::kData;
  hello.job = "echo";
  hello.nonce[0] = 99;
  lab.a().send(command::Connect{.token = 8,
                                .job = JobSlot(3),
                                .remote = lab.b().port->info().local,
                                .hello = hello,
                                .key = lab.a().key});
  ASSERT_TRUE(lab.run([&] { return lab.a().opened.size() == 2; }));
  lab.a().service.post([&] {
    for (uint16_t job = 0; job < 100; ++job) {
      lab.a().service.host->expect(JobSlot(job), {.senders = 3});
    }
    for (uint16_t job = 0; job < 100; ++job) {
      lab.a().service.host->release(JobSlot(job), Errc::kClosed, "the job is over");
    }
  });
  ASSERT_TRUE(lab.run([&] { return !lab.a().closed.empty(); }));
  lab.run_for(kSecond);
  EXPECT_EQ(lab.a().closed.size(), 1U);
  EXPECT_EQ(lab.a().closed.count(8), 1U) << "the job's own";
  lab.expect_echoes(4, kMegabyte);
}

// No frame is received while a pass closes sessions.
TEST(EchoSim, AJobsSessionsAreClosedAPartInEachPass) {
  constexpr uint64_t kSessions = 200;
  constexpr size_t kInPass = JobEnds::kClosedInPass;
  Lab lab(14);
  lab.start(0, {}, 1, {}, {.tx_queue_bytes = 64 * kMegabyte});  // has room for all CLOSEs at once
  ASSERT_TRUE(lab.connect());
  const size_t others = lab.a().opened.size();
  for (uint64_t i = 0; i < kSessions; ++i) {
    wire::Hello hello;
    hello.kind = wire::SessionKind::kData;
    hello.job = "echo";
    hello.nonce[0] = static_cast<uint8_t>(i);
    hello.nonce[1] = 1;
    lab.a().send(command::Connect{.token = Token(1'000 + i),
                                  .job = JobSlot(static_cast<uint16_t>(3 + i % 2)),
                                  .remote = lab.b().port->info().local,
                                  .hello = hello,
                                  .key = lab.a().key});
    ASSERT_TRUE(lab.run([&] { return lab.a().opened.size() == others + i + 1; }));
  }
  lab.a().service.post([&] {  // two jobs in one pass
    for (const uint16_t job : {uint16_t{3}, uint16_t{4}}) {
      lab.a().service.host->release(JobSlot(job), Errc::kClosed, "the job is over");
    }
  });
  const auto closed = [&] { return lab.a().closed.size() + lab.a().engine.reports_waiting(); };
  const size_t before = closed();
  const auto senders = [&] { return lab.a().engine.credit().registered_senders(); };
  const uint64_t left = senders() - kSessions;
  uint32_t passes = 0;
  for (size_t last = before; last < before + kSessions && passes < kSessions; ++passes) {
    lab.a().poll(lab.network.now_ns());
    ASSERT_LE(closed(), last + kInPass);
    last = closed();
    EXPECT_EQ(senders(), left) << "those that are still open get no more of the link";
    if (last == before + kSessions) continue;
    ASSERT_LE(lab.a().engine.next_deadline_ns(), lab.network.now_ns()) << "it does not sleep";
  }
  EXPECT_GE(passes, kSessions / kInPass);
  lab.run_for(kSecond);
  EXPECT_EQ(lab.a().closed.size(), before + kSessions);
  lab.expect_echoes(4, kMegabyte);
}

// The keys of others open nothing.
TEST(EchoSim, AnotherServicesKeyIsNotThisOnes) {
  Lab lab(13);
  lab.b().key = wire::Key{9};
  lab.a().connect(kToken, lab.b().port->info().local);
  lab.run_for(15 * kSecond);
  EXPECT_TRUE(lab.b().opened.empty());
  EXPECT_TRUE(lab.b().service.sessions.empty());
  EXPECT_FALSE(lab.a().closed.empty());
}

}  // namespace
}  // namespace mercury::echo
