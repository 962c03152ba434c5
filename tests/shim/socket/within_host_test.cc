#include "tests/shim/socket/fixture.h"

namespace mercury::sockets::test {
namespace {

using WithinHost = SocketManagerTest;

// Programs 1 and 2: who listens, and who connects.
TEST_F(WithinHost, TwoProgramsGetTheTwoEndsOfOnePair) {
  EXPECT_EQ(listen(1, at("127.0.0.1:80"), 11)->kind(), ReplyKind::kDone);
  const auto connecting = connect(2, at("127.0.0.1:80"));
  EXPECT_FALSE(connecting->reply) << "before the listener was told";
  const Knock knock = take_knock();
  EXPECT_EQ(knock.at, at("127.0.0.1:80"));
  EXPECT_EQ(knock.cookie, 11U);
  knock.reply(at("127.0.0.1:40000"));

  // As the kernel: connected before it is accepted.
  ASSERT_EQ(connecting->kind(), ReplyKind::kConnected);
  EXPECT_EQ(connecting->reply->value, sockets::kBothEndsHere);
  EXPECT_EQ(connecting->reply->remote, at("127.0.0.1:80"));
  EXPECT_EQ(connecting->reply->local.ip, at("127.0.0.1:0").ip);
  EXPECT_GE(connecting->reply->local.port, 32768);
  say(connecting->end, "early");
  EXPECT_EQ(manager().snapshot().unclaimed, 1U);
  EXPECT_FALSE(manager().idle());

  const auto accepted = claim(1, at("127.0.0.1:40000"), at("127.0.0.1:80"));
  ASSERT_EQ(accepted->kind(), ReplyKind::kConnected);
  EXPECT_EQ(accepted->reply->value, sockets::kBothEndsHere);
  EXPECT_EQ(accepted->reply->local, connecting->reply->remote);
  EXPECT_EQ(accepted->reply->remote, connecting->reply->local);
  EXPECT_EQ(accepted->reply->id, connecting->reply->id);
  EXPECT_EQ(ended_knocks, std::vector<KnockId>{knock.id});
  EXPECT_EQ(heard(accepted->end), "early");
  say(accepted->end, "answer");
  EXPECT_EQ(heard(connecting->end), "answer");
  accepted->end.reset();
  EXPECT_EQ(heard(connecting->end), "");
  EXPECT_EQ(end_of(connecting->reply->id), 0U);
  const SocketManager::Snapshot now = manager().snapshot();
  EXPECT_EQ(now.unclaimed, 0U);
  EXPECT_EQ(now.connections, 0U);
  EXPECT_EQ(now.local_total, 1U);
  EXPECT_TRUE(commands.empty()) << "no engine has to do with it";
}

// Each side says for itself what its close() does to the other.
TEST_F(WithinHost, WhoAsksForItResetsItsPeer) {
  listen(1, at("127.0.0.1:80"), 11);
  const auto connecting = connect(2, at("127.0.0.1:80"));
  take_knock().reply(at("127.0.0.1:40000"));
  const auto accepted = claim(1, at("127.0.0.1:40000"), at("127.0.0.1:80"));
  ASSERT_EQ(accepted->kind(), ReplyKind::kConnected);
  const auto about = [](RequestKind kind, const Outcome& end) {
    Request request;
    request.kind = kind;
    request.id = end.reply->id;
    request.local = end.reply->local;
    request.remote = end.reply->remote;
    return request;
  };
  const auto resets = [&](const Outcome& end, bool on) {
    Request request = about(RequestKind::kSet, end);
    request.option = Option::kAbort;
    request.value = on ? 1 : 0;
    EXPECT_EQ(ask(1, request)->kind(), ReplyKind::kDone);
  };
  const auto ended = [&](const Outcome& end) {
    return ask(1, about(RequestKind::kEnded, end))->reply->value;
  };
  EXPECT_EQ(ended(*connecting), 0U);
  resets(*accepted, true);
  EXPECT_EQ(ended(*connecting), uint32_t{ECONNRESET});
  EXPECT_EQ(ended(*accepted), 0U);
  resets(*connecting, true);
  resets(*accepted, false);
  EXPECT_EQ(ended(*connecting), 0U);
  EXPECT_EQ(ended(*accepted), uint32_t{ECONNRESET});
  EXPECT_TRUE(commands.empty()) << "no engine has to do with it";
}

TEST_F(WithinHost, NobodyListensIsTheKernels) {
  EXPECT_EQ(connect(2, at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  listen(1, at("127.0.0.1:80"), 11);
  EXPECT_EQ(connect(2, at("127.0.0.1:81"))->kind(), ReplyKind::kKernel);
  EXPECT_EQ(connect(2, at("127.0.0.2:80"))->kind(), ReplyKind::kKernel);
  EXPECT_EQ(connect(2, at("127.0.0.1:0"))->kind(), ReplyKind::kKernel);
  EXPECT_TRUE(knocks.empty());
}

TEST_F(WithinHost, SourceIsAsTheKernelChoosesOrAsItWasBound) {
  listen(1, at("0.0.0.0:80"), 11);
  const auto source = [&](const Endpoint& remote, const Endpoint& local) {
    const auto connecting = connect(2, remote, local);
    take_knock().reply(at("127.0.0.1:40000"));
    claim(1, at("127.0.0.1:40000"), remote);
    return connecting->reply->local;
  };
  EXPECT_EQ(source(at("127.0.0.5:80"), {}).ip, at("127.0.0.1:0").ip);
  EXPECT_EQ(source(at("10.0.0.1:80"), {}).ip, at("10.0.0.1:0").ip);
  EXPECT_EQ(source(at("10.0.0.1:80"), at("127.0.0.9:1234")), at("127.0.0.9:1234"));
  const Endpoint bound_port = source(at("10.0.0.1:80"), at("0.0.0.0:1234"));
  EXPECT_EQ(bound_port, at("10.0.0.1:1234"));
}

// connect() to no address in particular is this host.
TEST_F(WithinHost, UnspecifiedMeansLoopback) {
  listen(1, at("0.0.0.0:80"), 11);
  const auto four = connect(2, at("0.0.0.0:80"));
  EXPECT_EQ(take_knock().at, at("127.0.0.1:80"));
  listen(1, at("[::]:81"), 12);
  connect(2, at("[::]:81"));
  EXPECT_EQ(take_knock().at, at("[::1]:81"));
}

TEST_F(WithinHost, PortsDifferAsLongAsTheyAreUsed) {
  listen(1, at("127.0.0.1:80"), 11);
  const auto first = connect(2, at("127.0.0.1:80"));
  const auto second = connect(3, at("127.0.0.1:80"));
  take_knock().reply(at("127.0.0.1:40000"));
  take_knock().reply(at("127.0.0.1:40001"));
  ASSERT_EQ(first->kind(), ReplyKind::kConnected);
  ASSERT_EQ(second->kind(), ReplyKind::kConnected);
  EXPECT_NE(first->reply->local.port, second->reply->local.port);
  // As in the kernel, a bound port serves one connection to a place.
  EXPECT_EQ(connect(4, at("127.0.0.1:80"), first->reply->local)->kind(), ReplyKind::kKernel);
}

TEST_F(WithinHost, ListenersTakeWhatTheirAddressesSay) {
  listen(1, at("[::]:80"), 11);
  connect(2, at("127.0.0.1:80"));
  EXPECT_EQ(take_knock().cookie, 11U) << "[::] takes IPv4";
  listen(1, at("[::]:81"), 12, true);
  EXPECT_EQ(connect(2, at("127.0.0.1:81"))->kind(), ReplyKind::kKernel) << "IPV6_V6ONLY";
  connect(2, at("[fd00::1]:81"));
  EXPECT_EQ(take_knock().cookie, 12U);
  listen(1, at("0.0.0.0:82"), 13);
  EXPECT_EQ(connect(2, at("[::1]:82"))->kind(), ReplyKind::kKernel);
  listen(1, at("10.0.0.1:82"), 14);
  connect(2, at("10.0.0.1:82"));
  EXPECT_EQ(take_knock().cookie, 14U) << "who listens at this very address comes first";
  connect(2, at("127.0.0.1:82"));
  EXPECT_EQ(take_knock().cookie, 13U);
}

TEST_F(WithinHost, AKnockKnowsWhoSharesTheListenersAddress) {
  listen(1, at("0.0.0.0:80"), 11);
  listen(1, at("0.0.0.0:80"), 12);
  listen(2, at("0.0.0.0:80"), 12);  // a child of fork
  listen(2, at("10.0.0.1:80"), 13);
  listen(2, at("[::]:80"), 14);
  listen(2, at("0.0.0.0:81"), 15);
  connect(3, at("127.0.0.1:80"));
  const Knock knock = take_knock();
  EXPECT_EQ(knock.cookie, 11U);
  listen(4, at("0.0.0.0:80"), 16);  // as it waits for its turn
  for (const uint64_t cookie : {12, 16}) EXPECT_TRUE(knock.shares(cookie)) << cookie;
  for (const uint64_t cookie : {13, 14, 15, 17}) EXPECT_FALSE(knock.shares(cookie)) << cookie;
  connect(3, at("127.0.0.1:81"));
  EXPECT_FALSE(take_knock().shares(12));
}

// An address that only an engine has is none that the kernel would connect to.
TEST_F(WithinHost, AnEnginesOwnAddressIsThisHost) {
  local_addresses.clear();
  listen(1, at("0.0.0.0:80"), 11);
  const auto connecting = connect(2, at("10.0.0.1:80"));
  const Knock knock = take_knock();
  EXPECT_EQ(knock.at, at("127.0.0.1:80"));
  knock.reply(at("127.0.0.1:40000"));
  EXPECT_EQ(connecting->reply->remote, at("10.0.0.1:80"));
  EXPECT_EQ(claim(1, at("127.0.0.1:40000"), at("127.0.0.1:80"))->reply->local, at("10.0.0.1:80"));
}

TEST_F(WithinHost, AListenerThatIsGoneIsForgottenAndTheNextIsTold) {
  listen(1, at("127.0.0.1:80"), 11);
  listen(2, at("127.0.0.1:80"), 12);
  const auto connecting = connect(3, at("127.0.0.1:80"));
  take_knock().reply(Error(Errc::kNotFound, "gone"));
  EXPECT_EQ(manager().snapshot().listeners, 1U);
  const Knock second = take_knock();
  EXPECT_EQ(second.cookie, 12U);
  second.reply(Error(Errc::kNotFound, "gone"));
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
  EXPECT_EQ(manager().snapshot().listeners, 0U);
  EXPECT_TRUE(manager().idle());
}

TEST_F(WithinHost, AnotherFailureIsTheKernelsAndTheListenerStays) {
  listen(1, at("127.0.0.1:80"), 11);
  const auto connecting = connect(3, at("127.0.0.1:80"));
  take_knock().reply(Error(Errc::kTimedOut, "full"));
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
  EXPECT_EQ(manager().snapshot().listeners, 1U);
}

// A program may say of listeners that never were: nobody waits for all of them.
TEST_F(WithinHost, SoManyDeadListenersAreTriedForOneConnection) {
  for (uint64_t cookie = 1; cookie <= 100; ++cookie) listen(1, at("127.0.0.1:80"), cookie);
  const auto connecting = connect(3, at("127.0.0.1:80"));
  int tried = 0;
  for (; !connecting->reply; ++tried) take_knock().reply(Error(Errc::kNotFound, "gone"));
  EXPECT_EQ(tried, 8);
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
}

TEST_F(WithinHost, OneThatIsNotAcceptedIsReset) {
  listen(1, at("127.0.0.1:80"), 11);
  const auto connecting = connect(2, at("127.0.0.1:80"));
  const Knock knock = take_knock();
  knock.reply(at("127.0.0.1:40000"));
  manager().knock_gone(knock.id);
  EXPECT_EQ(heard(connecting->end), "");
  EXPECT_EQ(end_of(connecting->reply->id), static_cast<uint32_t>(ECONNRESET));
  EXPECT_EQ(claim(1, at("127.0.0.1:40000"), at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  manager().knock_gone(knock.id);  // of none: nothing
}

TEST_F(WithinHost, AClaimNamesBothAddresses) {
  listen(1, at("127.0.0.1:80"), 11);
  connect(2, at("127.0.0.1:80"));
  EXPECT_EQ(claim(1, at("127.0.0.1:40000"), at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  take_knock().reply(at("127.0.0.1:40000"));
  EXPECT_EQ(claim(1, at("127.0.0.1:40000"), at("127.0.0.1:81"))->kind(), ReplyKind::kKernel);
  EXPECT_EQ(claim(1, at("127.0.0.1:40001"), at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  // Any program: a listener is shared with forked children.
  EXPECT_EQ(claim(7, at("127.0.0.1:40000"), at("127.0.0.1:80"))->kind(), ReplyKind::kConnected);
  EXPECT_EQ(claim(7, at("127.0.0.1:40000"), at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
}

TEST_F(WithinHost, AProgramThatGoesTakesItsListenersAndRequestsAlong) {
  listen(1, at("127.0.0.1:80"), 11);
  listen(5, at("127.0.0.1:81"), 12);
  const auto connecting = connect(2, at("127.0.0.1:80"));
  const Knock knock = take_knock();
  manager().program_gone(2);
  EXPECT_EQ(ended_knocks, std::vector<KnockId>{knock.id});
  knock.reply(at("127.0.0.1:40000"));  // too late
  EXPECT_FALSE(connecting->reply);
  EXPECT_EQ(claim(1, at("127.0.0.1:40000"), at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  manager().program_gone(1);
  EXPECT_EQ(connect(3, at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  EXPECT_EQ(manager().snapshot().listeners, 1U) << "the other's stays";
  manager().program_gone(5);
  EXPECT_TRUE(manager().idle());
}

// A child that has the listener still accepts what was announced.
TEST_F(WithinHost, WhatWasAnnouncedOutlivesTheProgramThatListened) {
  listen(1, at("127.0.0.1:80"), 11);
  const auto connecting = connect(2, at("127.0.0.1:80"));
  take_knock().reply(at("127.0.0.1:40000"));
  manager().program_gone(1);
  manager().program_gone(2);
  const auto accepted = claim(3, at("127.0.0.1:40000"), at("127.0.0.1:80"));
  ASSERT_EQ(accepted->kind(), ReplyKind::kConnected);
  say(connecting->end, "hello");
  EXPECT_EQ(heard(accepted->end), "hello");
}

TEST_F(WithinHost, ListeningAgainReplacesAndAnotherProgramsStays) {
  listen(1, at("0.0.0.0:80"), 11);
  listen(1, at("0.0.0.0:80"), 11);
  EXPECT_EQ(manager().snapshot().listeners, 1U);
  listen(2, at("0.0.0.0:80"), 11);  // a child's connection of its own
  manager().program_gone(1);
  connect(3, at("127.0.0.1:80"));
  EXPECT_EQ(take_knock().cookie, 11U);
}

TEST_F(WithinHost, OneThatIsAboutToListenIsWaitedForAndForgottenIfItDoesNot) {
  listen(1, at("127.0.0.1:80"), 11, false, Listening::kSoon);
  const auto early = connect(2, at("127.0.0.1:80"));
  EXPECT_TRUE(take_knock().soon);
  EXPECT_FALSE(early->reply);
  listen(1, at("127.0.0.1:80"), 11);
  EXPECT_EQ(manager().snapshot().listeners, 1U);
  connect(2, at("127.0.0.1:80"));
  EXPECT_FALSE(take_knock().soon);
  listen(5, at("127.0.0.1:80"), 11);  // a child has it as well
  EXPECT_EQ(listen(1, at("127.0.0.1:80"), 11, false, Listening::kNot)->kind(), ReplyKind::kDone);
  EXPECT_EQ(manager().snapshot().listeners, 1U) << "the child's";
  listen(5, at("127.0.0.1:80"), 11, false, Listening::kNot);
  EXPECT_EQ(connect(2, at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  EXPECT_EQ(listen(5, at("127.0.0.1:80"), 99, false, Listening::kNot)->kind(), ReplyKind::kDone);
}

TEST_F(WithinHost, OptionsAndInfoOfAConnectionWithoutANetwork) {
  listen(1, at("127.0.0.1:80"), 11);
  const auto connecting = connect(2, at("127.0.0.1:80"));
  take_knock().reply(at("127.0.0.1:40000"));
  const ConnectionId id = connecting->reply->id;
  const auto set = [&](Option option, uint32_t value) {
    return ask(2, {.kind = RequestKind::kSet, .option = option, .value = value, .id = id});
  };
  EXPECT_EQ(set(Option::kPriority, 7)->kind(), ReplyKind::kDone);
  EXPECT_EQ(set(Option::kAbort, 1)->kind(), ReplyKind::kDone);
  for (const auto& wrong :
       {set(Option::kPriority, 8), set(Option::kAbort, 2), set(Option::kNone, 0)}) {
    EXPECT_EQ(wrong->kind(), ReplyKind::kFailed);
    EXPECT_EQ(wrong->reply->value, static_cast<uint32_t>(EINVAL));
  }
  const auto info = ask(2, {.kind = RequestKind::kInfo, .id = id});
  EXPECT_EQ(info->kind(), ReplyKind::kDone);
  EXPECT_EQ(info->reply->info.rtt_ns, 0U);
  EXPECT_TRUE(commands.empty());
}

// Of another life of the daemon: what was within the host goes on without it.
TEST_F(WithinHost, EndsOfConnectionsThatOutlivedTheirDaemon) {
  listen(1, at("127.0.0.1:80"), 11);
  const auto connecting = connect(2, at("127.0.0.1:80"));
  take_knock().reply(at("127.0.0.1:40000"));
  constexpr ConnectionId kOtherLife = 1ULL << 40;
  EXPECT_EQ(end_of(connecting->reply->id ^ kOtherLife), 0U);
  const ConnectionId remote = connecting->reply->id ^ kOtherLife ^ 1ULL << 31;
  EXPECT_EQ(end_of(remote), static_cast<uint32_t>(ECONNRESET));
}

TEST_F(WithinHost, ADaemonThatServesNoneLeavesAllToTheKernel) {
  policy.serve = false;
  EXPECT_EQ(listen(1, at("127.0.0.1:80"), 11)->kind(), ReplyKind::kKernel);
  EXPECT_EQ(connect(2, at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  EXPECT_EQ(connect(2, at("10.0.0.2:80"))->kind(), ReplyKind::kKernel);
  EXPECT_TRUE(commands.empty());
}

TEST_F(WithinHost, WithoutAKernelToAskNothingIsLocal) {
  listen(1, at("0.0.0.0:80"), 11);
  manager().set_local({});
  EXPECT_EQ(connect(2, at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  EXPECT_EQ(connect(2, at("10.0.0.1:80"))->kind(), ReplyKind::kKernel);  // the engine's
}

}  // namespace
}  // namespace mercury::sockets::test
