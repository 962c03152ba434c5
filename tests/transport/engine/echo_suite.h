// The echo service over a port that moves in real time, as one typed suite. A lab makes both ports:
//
//   struct Lab {
//     std::unique_ptr<PortType> open(int host, Counters& counters);  // host 0 or 1
//   };
//
// Use: INSTANTIATE_TYPED_TEST_SUITE_P(Name, EchoSuite, Lab).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/transport/engine/echo_host.h"

namespace mercury::echo {

template <class Lab>
class EchoSuite : public testing::Test {
 protected:
  using P =
      typename decltype(std::declval<Lab&>().open(0, std::declval<Counters&>()))::element_type;
  static constexpr Token kToken = 7;
  static constexpr uint64_t kMegabyte = 1 << 20;
  static constexpr std::chrono::seconds kHung{60};  // only a run that does nothing takes so long

  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      auto counters = std::make_unique<Counters>();
      auto port = lab_.open(i, *counters);
      ASSERT_NE(port, nullptr);
      EngineConfig config;
      config.session_seed = static_cast<uint64_t>(i) + 1;
      config.session.peer_timeout_ns = 1'000'000'000;
      hosts_.push_back(std::make_unique<EchoHost<P>>(std::move(counters), std::move(port), config,
                                                     StreamConfig()));
    }
    remote_ = b().port->info().local;
    a().connect(kToken, remote_);
    ASSERT_TRUE(
        run([&] { return !a().service.sessions.empty() && !b().service.sessions.empty(); }));
  }
  EchoHost<P>& a() { return *hosts_[0]; }
  EchoHost<P>& b() { return *hosts_[1]; }

  template <class F>
  bool run(F done) {
    const auto began = std::chrono::steady_clock::now();
    while (!done()) {
      const auto now = std::chrono::steady_clock::now();
      if (now - began > kHung) return false;
      uint32_t work = 0;
      for (auto& host : hosts_) {
        work += host->poll(static_cast<uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count()));
      }
      if (work == 0) std::this_thread::yield();
    }
    return true;
  }
  bool all_closed(EchoHost<P>& host, size_t count, Errc code) {
    return host.service.streams.size() == count &&
           std::ranges::all_of(host.service.streams,
                               [&](const auto& one) { return one.second.closed == code; });
  }
  size_t held(EchoHost<P>& host) {
    return host.service.host->stream_bytes(host.service.sessions.begin()->second);
  }

  Lab lab_;
  Endpoint remote_;
  std::vector<std::unique_ptr<EchoHost<P>>> hosts_;
};
TYPED_TEST_SUITE_P(EchoSuite);

TYPED_TEST_P(EchoSuite, MegabytesComeBackExact) {
  auto& a = this->a();
  a.send(StartEcho{this->kToken, 5, 2 * this->kMegabyte + 1});
  ASSERT_TRUE(this->run([&] { return !a.done.empty(); }));
  EXPECT_EQ(a.done[0].intact, 5U);
  ASSERT_TRUE(this->run([&] { return this->all_closed(this->b(), 5, Errc::kOk); }));
  EXPECT_EQ(this->held(a) + this->held(this->b()), 0U);
}

TYPED_TEST_P(EchoSuite, AReaderWhoStopsStopsItsOwnStreamAlone) {
  auto& a = this->a();
  auto& b = this->b();
  b.service.on_opened = [&](EchoService::EchoStream& stream) {
    stream.reads = b.service.streams.size() > 1;
  };
  a.send(StartEcho{this->kToken, 3, this->kMegabyte});
  const auto over = [&] {
    return std::ranges::count_if(a.service.streams,
                                 [](const auto& one) { return one.second.closed == Errc::kOk; });
  };
  ASSERT_TRUE(this->run([&] { return over() == 2; }));
  EXPECT_EQ(b.service.streams.begin()->second.read, 0U);
  ASSERT_TRUE(this->run([&] { return this->held(b) >= wire::kInitialStreamBytes; }));
  EXPECT_LE(this->held(b), wire::kInitialStreamBytes + kStreamBlockBytes);
  b.service.post([&] {
    b.service.streams.begin()->second.reads = true;
    b.service.pump(b.service.streams.begin()->first);
  });
  ASSERT_TRUE(this->run([&] { return !a.done.empty(); }));
  EXPECT_EQ(a.done[0].intact, 3U);
}

TYPED_TEST_P(EchoSuite, EitherSideMayFinishFirst) {
  auto& a = this->a();
  auto& b = this->b();
  b.service.on_opened = [](EchoService::EchoStream& stream) { stream.finishes = false; };
  a.send(StartEcho{this->kToken, 1, 100'000});
  ASSERT_TRUE(this->run([&] {
    return a.service.streams.size() == 1 && a.service.streams.begin()->second.read == 100'000 &&
           b.service.streams.begin()->second.ended;
  }));
  EXPECT_FALSE(a.service.streams.begin()->second.ended);
  b.service.post([&] {
    b.service.streams.begin()->second.finishes = true;
    b.service.pump(b.service.streams.begin()->first);
  });
  ASSERT_TRUE(this->run([&] { return !a.done.empty(); }));
  EXPECT_EQ(a.done[0].intact, 1U);
}

TYPED_TEST_P(EchoSuite, AResetEndsOneStreamAlone) {
  auto& a = this->a();
  auto& b = this->b();
  a.send(StartEcho{this->kToken, 2, 4 * this->kMegabyte});
  ASSERT_TRUE(this->run(
      [&] { return a.service.streams.size() == 2 && a.service.streams.begin()->second.read > 0; }));
  a.service.post([&] {
    const EchoService::Key key = a.service.streams.begin()->first;
    a.service.host->reset_stream(key.first, key.second, Errc::kBusy);
    a.service.streams.at(key).closed = Errc::kBusy;
  });
  ASSERT_TRUE(this->run([&] { return !a.done.empty(); }));
  EXPECT_EQ(a.done[0].intact, 1U);
  ASSERT_TRUE(this->run([&] {
    return b.service.streams.begin()->second.closed == Errc::kBusy &&
           b.service.streams.rbegin()->second.closed == Errc::kOk;
  }));
}

TYPED_TEST_P(EchoSuite, AKilledPeerIsAnErrorOfEachStream) {
  auto& a = this->a();
  a.send(StartEcho{this->kToken, 2, 256 * this->kMegabyte});
  ASSERT_TRUE(this->run(
      [&] { return a.service.streams.size() == 2 && a.service.streams.begin()->second.read > 0; }));
  this->hosts_.pop_back();
  ASSERT_TRUE(this->run([&] { return !a.closed.empty(); }));
  EXPECT_TRUE(this->all_closed(a, 2, Errc::kPeerLost));
}

REGISTER_TYPED_TEST_SUITE_P(EchoSuite, MegabytesComeBackExact,
                            AReaderWhoStopsStopsItsOwnStreamAlone, EitherSideMayFinishFirst,
                            AResetEndsOneStreamAlone, AKilledPeerIsAnErrorOfEachStream);

}  // namespace mercury::echo
