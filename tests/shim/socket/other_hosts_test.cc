// Which hosts speak Mercury, and sessions with them.
#include "tests/shim/socket/fixture.h"

namespace mercury::sockets::test {
namespace {

using OtherHosts = SocketManagerTest;

constexpr uint32_t kOurs = wire::kFeatureStreams | wire::kFeatureResets | wire::kFeatureParts |
                           wire::kFeatureMoves | wire::kFeatureConfirmation;

TEST_F(OtherHosts, TheFirstConnectionSaysHelloAndTheAnswerOpensIt) {
  lanes = {at("10.0.0.1:7470"), at("10.0.0.1:7471")};
  const auto connecting = connect(1, kServer);
  const auto asked = take<command::Connect>();
  EXPECT_TRUE(is_socket_token(asked.token));
  EXPECT_FALSE(is_socket_token(Token(7)));
  EXPECT_EQ(asked.job, kNoJob);
  EXPECT_EQ(asked.remote, at("10.0.0.2:7470"));
  EXPECT_EQ(asked.key, policy.key);
  EXPECT_EQ(asked.hello.kind, wire::SessionKind::kData);
  EXPECT_EQ(asked.hello.job, "mercury.sockets");
  EXPECT_EQ(asked.hello.features, kOurs);
  EXPECT_TRUE(verify(policy.key, asked.hello));
  const auto second = connect(2, at("10.0.0.2:81"));
  EXPECT_TRUE(commands.empty()) << "a second HELLO";

  tell(event::SessionOpened{asked.token, answer_to(asked.hello)});
  EXPECT_EQ(take<command::OpenConnection>().preamble.destination, kServer);
  EXPECT_EQ(take<command::OpenConnection>().preamble.destination, at("10.0.0.2:81"));
  EXPECT_EQ(manager().snapshot().sessions, 1U);
  // The next needs no HELLO; another host's goes to the next engine.
  connect(3, kServer);
  EXPECT_EQ(take<command::OpenConnection>().token, asked.token);
  connect(3, at("10.0.0.3:80"));
  const auto other = take<command::Connect>(LaneId(1));
  EXPECT_NE(other.token, asked.token);
  EXPECT_NE(other.hello.nonce, asked.hello.nonce);
}

TEST_F(OtherHosts, OnlyNetworksOfTheListAreAsked) {
  policy.networks.push_back({at("127.0.0.0:0").ip, 8});
  policy.networks.push_back({at("203.0.113.4:0").ip, 31});
  local_addresses.clear();
  for (const char* outside : {"11.0.0.2:80", "9.255.255.255:80", "[fe00::2]:80", "[::a00:2]:80",
                              "203.0.113.6:80", "8.8.8.8:80"}) {
    EXPECT_EQ(connect(1, at(outside))->kind(), ReplyKind::kKernel) << outside;
  }
  EXPECT_TRUE(commands.empty());
  for (const char* inside : {"10.255.0.1:80", "[fdff::2]:80", "203.0.113.5:80"}) {
    connect(1, at(inside));
    EXPECT_EQ(take<command::Connect>().remote.ip, at(inside).ip) << inside;
  }
}

TEST_F(OtherHosts, SilentHostIsTheKernelsAfterTheProbeAndAskedAgainAfterSilence) {
  const auto first = connect(1, kServer);
  const auto second = connect(2, kServer);
  const auto asked = take<command::Connect>();
  EXPECT_EQ(manager().next_deadline_ns(), now_ns + policy.probe_ns);
  pass(policy.probe_ns - 1);
  EXPECT_FALSE(first->reply);
  pass(1);
  EXPECT_EQ(first->kind(), ReplyKind::kKernel);
  EXPECT_EQ(second->kind(), ReplyKind::kKernel);
  tell(event::SessionClosed{asked.token, Errc::kTimedOut, ""});
  pass(policy.silence_ns - 1);
  EXPECT_EQ(connect(1, kServer)->kind(), ReplyKind::kKernel);
  EXPECT_TRUE(commands.empty()) << "asked again too early";
  pass(1);
  EXPECT_FALSE(connect(1, kServer)->reply);
  EXPECT_NE(take<command::Connect>().token, asked.token);
}

// A busy host's answer may be late: later connections are Mercury's.
TEST_F(OtherHosts, ALateAnswerOpensTheSession) {
  connect(1, kServer);
  const auto asked = take<command::Connect>();
  pass(policy.probe_ns);
  pass(kMs);
  tell(event::SessionOpened{asked.token, answer_to(asked.hello)});
  EXPECT_TRUE(commands.empty());
  connect(1, kServer);
  EXPECT_EQ(take<command::OpenConnection>().token, asked.token);
}

TEST_F(OtherHosts, AHelloUnderWayAfterSilenceIsWaitedForAgain) {
  policy.silence_ns = kMs;
  connect(1, kServer);
  const auto asked = take<command::Connect>();
  pass(policy.probe_ns);
  pass(policy.silence_ns);
  const auto again = connect(1, kServer);
  EXPECT_TRUE(commands.empty()) << "a second HELLO";
  EXPECT_FALSE(again->reply);
  pass(policy.probe_ns);
  EXPECT_EQ(again->kind(), ReplyKind::kKernel);
  tell(event::SessionOpened{asked.token, answer_to(asked.hello)});
  EXPECT_EQ(manager().snapshot().sessions, 1U);
}

TEST_F(OtherHosts, AnAnswerThatProvesNothingIsRefused) {
  const auto connecting = connect(1, kServer);
  const auto asked = take<command::Connect>();
  wire::HelloAck forged = answer_to(asked.hello);
  forged.proof[3] ^= 1;
  tell(event::SessionOpened{asked.token, forged});
  EXPECT_EQ(take<command::CloseSession>().code, Errc::kWrongSecret);
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
  EXPECT_EQ(connect(1, kServer)->kind(), ReplyKind::kKernel) << "it is not silent";
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_NE(notices[0].find("10.0.0.2:7470: its answer does not prove the secret"),
            std::string::npos);
}

TEST_F(OtherHosts, AHostWithoutStreamsIsTheKernels) {
  const auto connecting = connect(1, kServer);
  const auto asked = take<command::Connect>();
  wire::HelloAck plain = answer_to(asked.hello);
  plain.features = 0;
  plain.proof = prove(policy.key, asked.hello.nonce, plain);
  tell(event::SessionOpened{asked.token, plain});
  EXPECT_EQ(take<command::CloseSession>().code, Errc::kUnsupported);
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
}

TEST_F(OtherHosts, ARefusalIsTheKernelsAtOnceAndSaidWhereSomebodyMustAct) {
  for (const Errc code : {Errc::kUnknownJob, Errc::kWrongSecret}) {
    const Endpoint remote{at(code == Errc::kUnknownJob ? "10.0.0.2:0" : "10.0.0.3:0").ip, 80};
    const auto connecting = connect(1, remote);
    tell(event::SessionClosed{take<command::Connect>().token, code, "why"});
    EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
    EXPECT_EQ(connect(1, remote)->kind(), ReplyKind::kKernel);
    EXPECT_TRUE(commands.empty());
  }
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_NE(notices[0].find("10.0.0.3:7470: refuses this host's sockets: why"), std::string::npos);
}

TEST_F(OtherHosts, ASessionThatIsLostMakesTheHostUnknown) {
  std::shared_ptr<Outcome> connecting;
  const Token token = open_session(1, kServer, &connecting);
  take<command::OpenConnection>();
  tell(event::SessionClosed{token, Errc::kPeerLost, ""});
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
  EXPECT_EQ(heard(connecting->end), "(9)") << "no descriptor";
  EXPECT_EQ(manager().snapshot().sessions, 0U);
  connect(1, kServer);
  EXPECT_NE(take<command::Connect>().token, token) << "asked anew";
}

TEST_F(OtherHosts, ProgramsThatGoDoNotWait) {
  const auto connecting = connect(1, kServer);
  const auto asked = take<command::Connect>();
  EXPECT_FALSE(manager().idle());
  manager().program_gone(1);
  EXPECT_TRUE(manager().idle());
  tell(event::SessionOpened{asked.token, answer_to(asked.hello)});
  EXPECT_TRUE(commands.empty()) << "a connection of nobody's";
  EXPECT_FALSE(connecting->reply);
}

// A program that looks for services may ask for all hosts there are.
TEST_F(OtherHosts, SoManyHellosAreUnderWayAtATime) {
  const auto host = [](int i) {
    return Endpoint{
        IpAddress::v4(10, 1, static_cast<uint8_t>(i / 250), static_cast<uint8_t>(i % 250 + 1)), 80};
  };
  std::vector<std::shared_ptr<Outcome>> asked;
  for (int i = 0; i < 64; ++i) asked.push_back(connect(1, host(i)));
  EXPECT_EQ(commands.size(), 64U);
  EXPECT_EQ(connect(1, host(64))->kind(), ReplyKind::kKernel);
  EXPECT_EQ(commands.size(), 64U);
  pass(policy.probe_ns);
  const Token oldest = take<command::Connect>().token;
  commands.clear();
  // Who is late makes room.
  EXPECT_FALSE(connect(1, host(64))->reply);
  EXPECT_EQ(take<command::CloseSession>().token, oldest);
  take<command::Connect>();
  EXPECT_TRUE(commands.empty());
}

TEST_F(OtherHosts, SoManyHostsAreRemembered) {
  policy.max_hosts = 2;
  const Token token = open_session(1, kServer);
  const ConnectionId id = take<command::OpenConnection>().id;
  connect(1, at("10.0.0.3:80"));
  const Token silent = take<command::Connect>().token;
  EXPECT_EQ(connect(1, at("10.0.0.4:80"))->kind(), ReplyKind::kKernel) << "both are in use";
  EXPECT_TRUE(commands.empty());
  pass(policy.probe_ns);
  // Who is silent is forgotten, and then a session that nobody uses.
  connect(1, at("10.0.0.4:80"));
  EXPECT_EQ(take<command::CloseSession>().token, silent);
  const auto fourth = take<command::Connect>();
  tell(event::SessionOpened{fourth.token, answer_to(fourth.hello)});
  take<command::OpenConnection>();
  EXPECT_EQ(connect(1, at("10.0.0.5:80"))->kind(), ReplyKind::kKernel);
  tell(event::ConnectionAnswered{id, sockets::Answer::kNobody});
  connect(1, at("10.0.0.5:80"));
  EXPECT_EQ(take<command::CloseSession>().token, token);
  take<command::Connect>();
}

TEST_F(OtherHosts, HellosAreAnsweredByWhoProvesTheSecret) {
  wire::Hello hello;
  hello.kind = wire::SessionKind::kData;
  hello.features = wire::kFeatureStreams;
  hello.job = kSocketService;
  hello.nonce[2] = 9;
  hello.proof = prove(policy.key, hello);
  tell(event::HelloReceived{5, at("10.0.0.2:7470"), hello});
  const auto accepted = take<command::Accept>();
  EXPECT_EQ(accepted.hello, 5U);
  EXPECT_TRUE(is_socket_token(accepted.token));
  EXPECT_EQ(accepted.job, kNoJob);
  EXPECT_EQ(accepted.key, policy.key);
  EXPECT_EQ(accepted.answer.features, kOurs);
  EXPECT_TRUE(verify(policy.key, hello.nonce, accepted.answer));
  EXPECT_EQ(manager().snapshot().sessions, 0U);
  tell(event::SessionOpened{accepted.token, {}});
  EXPECT_EQ(manager().snapshot().sessions, 1U);
  // Own connections have a session of their own.
  connect(1, kServer);
  EXPECT_NE(take<command::Connect>().token, accepted.token);
  tell(event::SessionClosed{accepted.token, Errc::kPeerLeft, ""});
  EXPECT_EQ(manager().snapshot().sessions, 0U);
}

TEST_F(OtherHosts, HellosThatAreRefused) {
  const auto refused = [&](const Endpoint& remote, wire::Hello hello, const wire::Key& key) {
    hello.kind = wire::SessionKind::kData;
    hello.job = kSocketService;
    hello.proof = prove(key, hello);
    tell(event::HelloReceived{6, remote, hello});
    return take<command::Refuse>();
  };
  wire::Hello good;
  good.features = wire::kFeatureStreams;
  const auto stranger =
      refused(at("10.0.0.2:7470"), good, derive_job_key("mercury.sockets", "other"));
  EXPECT_EQ(stranger.code, Errc::kWrongSecret);
  EXPECT_EQ(stranger.hello, 6U);
  EXPECT_NE(stranger.text.find("sockets.secret"), std::string::npos);
  EXPECT_EQ(refused(at("11.0.0.2:7470"), good, policy.key).code, Errc::kPermission);
  EXPECT_EQ(refused(at("10.0.0.2:7470"), {}, policy.key).code, Errc::kUnsupported);
  EXPECT_EQ(notices.size(), 2U);
}

TEST_F(OtherHosts, NobodyElseSpeaksWithAHostThatCarriesNoSocketsOfOthers) {
  policy.others = false;
  EXPECT_EQ(connect(1, kServer)->kind(), ReplyKind::kKernel);
  EXPECT_TRUE(commands.empty()) << "nobody is asked";
  say_hello(at("10.0.0.2:7470"));  // with the right proof
  const auto refused = take<command::Refuse>();
  EXPECT_EQ(refused.code, Errc::kPermission);
  EXPECT_NE(refused.text.find("sockets.open"), std::string::npos);
  EXPECT_EQ(notices.size(), 1U);
  EXPECT_EQ(manager().snapshot().sessions, 0U);
}

TEST_F(OtherHosts, SoManySessionsOfOthersAreAccepted) {
  policy.max_hosts = 2;
  const Token first = accept_session(at("10.0.0.2:7470"));
  accept_session(at("10.0.0.3:7470"));
  say_hello(at("10.0.0.4:7470"));
  const auto refused = take<command::Refuse>();
  EXPECT_EQ(refused.code, Errc::kLimit);
  EXPECT_NE(refused.text.find("sockets.max_hosts = 2"), std::string::npos);
  tell(event::SessionClosed{first, Errc::kPeerLeft, ""});
  accept_session(at("10.0.0.4:7470"));
}

TEST_F(OtherHosts, OneAddressHasOnlySoManySessions) {
  std::vector<Token> sessions;
  for (uint16_t port = 1; port <= 16; ++port) {
    sessions.push_back(accept_session({at("10.0.0.2:0").ip, port}));
  }
  say_hello(at("10.0.0.2:100"));
  const auto refused = take<command::Refuse>();
  EXPECT_EQ(refused.code, Errc::kLimit);
  EXPECT_NE(refused.text.find("16 sessions of its address"), std::string::npos);
  accept_session(at("10.0.0.3:7470"));
  tell(event::SessionClosed{sessions.front(), Errc::kPeerLeft, ""});
  accept_session(at("10.0.0.2:100"));
}

TEST_F(OtherHosts, ASessionOfTheNextLifeEndsTheLastOnes) {
  constexpr uint32_t kLast = 5;
  constexpr uint32_t kNext = 6;
  std::shared_ptr<Outcome> connecting;
  const Token own = open_session(1, kServer, &connecting, kLast);
  take<command::OpenConnection>();
  const Token last = accept_session(at("10.0.0.2:7470"), kLast);
  accept_session(at("10.0.0.3:7470"), kNext);
  accept_session(at("10.0.0.2:9999"), kNext);  // another host, behind the same address
  accept_session(at("10.0.0.2:7470"), kLast);
  accept_session(at("10.0.0.2:7470"), 0);  // it does not say
  EXPECT_TRUE(commands.empty()) << "somebody else's, or no other life";
  EXPECT_EQ(manager().snapshot().sessions, 6U);
  accept_session(at("10.0.0.2:7470"), kNext);
  const auto closed = take<command::CloseSession>();
  EXPECT_EQ(closed.token, last);
  EXPECT_EQ(closed.code, Errc::kPeerLeft);
  EXPECT_NE(take<command::CloseSession>().token, own);
  EXPECT_EQ(take<command::CloseSession>().token, own);
  EXPECT_TRUE(commands.empty());
  EXPECT_EQ(manager().snapshot().sessions, 4U);
  // What waits for an answer of the last life's is the kernel's, and the host is asked anew.
  tell(event::SessionClosed{own, Errc::kPeerLeft, ""});
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
  connect(1, kServer);
  EXPECT_NE(take<command::Connect>().token, own);
}

// A daemon with several engines speaks from a port each; behind a translator, so do several
// daemons.
TEST_F(OtherHosts, ASessionOfTheNextLifeEndsThoseOfAllItsEngines) {
  const Token first = accept_session(at("10.0.0.2:7470"), 5);
  const Token second = accept_session(at("10.0.0.2:7471"), 5);
  accept_session(at("10.0.0.2:7472"), 7);  // another daemon's
  accept_session(at("10.0.0.3:7471"), 5);  // another host's, by chance
  EXPECT_TRUE(commands.empty());
  accept_session(at("10.0.0.2:7470"), 6);
  EXPECT_EQ(take<command::CloseSession>().token, first);
  EXPECT_EQ(take<command::CloseSession>().token, second);
  EXPECT_TRUE(commands.empty());
}

// A translator has given the address of who has moved to another host.
TEST_F(OtherHosts, WhereAPeerHasMovedFromMayBeAnotherHost) {
  const Token moved = accept_session(at("10.0.0.2:4001"), 5);
  tell(event::SessionMoved{moved, at("10.0.0.2:4002")});
  accept_session(at("10.0.0.2:4001"), 6);
  EXPECT_TRUE(commands.empty());
  accept_session(at("10.0.0.2:4002"), 7);
  EXPECT_EQ(take<command::CloseSession>().token, moved);
}

// Who is asked for at an address is whoever is there now.
TEST_F(OtherHosts, NothingNewGoesToWhoHasMovedFromWhereItWasAskedFor) {
  const Token moved = open_session(1, kServer, nullptr, 5);
  const auto carried = take<command::OpenConnection>();
  tell(event::ConnectionAnswered{carried.id, sockets::Answer::kAccepted});
  tell(event::SessionMoved{moved, at("10.0.0.9:7470")});
  EXPECT_TRUE(commands.empty()) << "its connections go on";
  EXPECT_EQ(manager().snapshot().sessions, 1U);
  connect(1, kServer);
  const auto asked = take<command::Connect>();
  EXPECT_EQ(asked.remote, at("10.0.0.2:7470"));
  tell(event::SessionOpened{asked.token, answer_to(asked.hello, 6)});
  EXPECT_EQ(take<command::OpenConnection>().token, asked.token);
  EXPECT_TRUE(commands.empty()) << "another host, and no next life of who was there";
  EXPECT_EQ(manager().snapshot().sessions, 2U);
  tell(event::ConnectionEnded{carried.id, 0, Errc::kOk});
  EXPECT_TRUE(commands.empty()) << "a program there may still read what its last one has brought";
  EXPECT_EQ(manager().snapshot().sessions, 2U);
  tell(event::SessionClosed{moved, Errc::kClosed, ""});
  EXPECT_EQ(manager().snapshot().sessions, 1U);
  tell(event::SessionMoved{moved, at("10.0.0.2:7470")});  // they crossed
  connect(1, kServer);
  EXPECT_EQ(take<command::OpenConnection>().token, asked.token);
}

// From another port of its address, too.
TEST_F(OtherHosts, ASessionThatNobodyUsesAndWhosePeerHasMovedMakesRoom) {
  policy.max_hosts = 1;
  const Token moved = open_session(1, kServer);
  const auto refused = take<command::OpenConnection>();
  tell(event::ConnectionAnswered{refused.id, sockets::Answer::kNobody});
  tell(event::SessionMoved{moved, at("10.0.0.2:4001")});
  EXPECT_TRUE(commands.empty());
  connect(1, kServer);
  const auto closed = take<command::CloseSession>();
  EXPECT_EQ(closed.token, moved);
  EXPECT_EQ(closed.code, Errc::kClosed);
  EXPECT_EQ(take<command::Connect>().remote, at("10.0.0.2:7470"));
  EXPECT_EQ(manager().snapshot().sessions, 0U);
}

TEST_F(OtherHosts, TheNextLifeOfWhoHasMovedEndsWhatWasOpenedFromHere) {
  const Token moved = open_session(1, kServer, nullptr, 5);
  const auto carried = take<command::OpenConnection>();
  tell(event::SessionMoved{moved, at("10.0.0.9:4001")});
  accept_session(at("10.0.0.2:7470"), 6);
  accept_session(at("10.0.0.9:4002"), 7);
  EXPECT_TRUE(commands.empty()) << "other hosts";
  accept_session(at("10.0.0.9:4001"), 8);
  EXPECT_EQ(take<command::CloseSession>().token, moved);
  tell(event::SessionClosed{moved, Errc::kPeerLeft, ""});
  tell(event::ConnectionEnded{carried.id, 0, Errc::kPeerLeft});
  EXPECT_TRUE(commands.empty());
}

// They are this host's own, and in use.
TEST_F(OtherHosts, SessionsWhosePeersHaveMovedKeepNobodyElseOut) {
  policy.max_hosts = 1;
  const Token moved = open_session(1, kServer, nullptr, 5);
  take<command::OpenConnection>();
  tell(event::SessionMoved{moved, at("10.0.0.9:7470")});
  accept_session(at("10.0.0.3:7470"), 6);
  EXPECT_EQ(manager().snapshot().sessions, 2U);
}

// Who would not have been let in from there is not kept: neither who said HELLO, nor whom this host
// asked, nor who has moved before. Connections end as their session does.
TEST_F(OtherHosts, WhoMovesOutOfTheNetworksOfTheListLosesTheSession) {
  const Token theirs = accept_session(at("10.0.0.2:4001"), 5);
  const Token ours = open_session(1, at("10.0.0.3:80"), nullptr, 6);
  const auto carried = take<command::OpenConnection>();
  tell(event::ConnectionAnswered{carried.id, sockets::Answer::kAccepted});
  const Token twice = open_session(1, at("10.0.0.4:80"), nullptr, 7);
  take<command::OpenConnection>();
  tell(event::SessionMoved{theirs, at("10.9.0.2:4001")});
  tell(event::SessionMoved{twice, at("10.0.0.5:4001")});
  EXPECT_TRUE(commands.empty()) << "these are in the list";
  EXPECT_EQ(manager().snapshot().sessions, 3U);
  for (const Token token : {theirs, ours, twice}) {
    notices.clear();
    tell(event::SessionMoved{token, at("8.8.8.8:7470")});
    const auto closed = take<command::CloseSession>();
    EXPECT_EQ(closed.token, token);
    EXPECT_EQ(closed.code, Errc::kPermission);
    EXPECT_NE(closed.text.find("8.8.8.8"), std::string::npos) << closed.text;
    ASSERT_EQ(notices.size(), 1U);
    EXPECT_NE(notices[0].find("sockets.networks"), std::string::npos) << notices[0];
    tell(event::SessionMoved{token, at("10.0.0.9:7470")});  // they crossed
    tell(event::SessionClosed{token, Errc::kPermission, closed.text});
  }
  EXPECT_TRUE(commands.empty());
  EXPECT_EQ(manager().snapshot().sessions, 0U);
  connect(1, at("10.0.0.3:80"));
  EXPECT_EQ(take<command::Connect>().remote, at("10.0.0.3:7470")) << "whoever is there now";
}

TEST_F(OtherHosts, AnAnswerOfTheNextLifeEndsTheLastOnes) {
  const Token last = accept_session(at("10.0.0.2:7470"), 5);
  connect(1, kServer);
  const auto asked = take<command::Connect>();
  tell(event::SessionOpened{asked.token, answer_to(asked.hello, 6)});
  EXPECT_EQ(take<command::CloseSession>().token, last);
  EXPECT_EQ(take<command::OpenConnection>().token, asked.token);
}

TEST_F(OtherHosts, SaysWhichLifeItIs) {
  connect(1, kServer);
  const auto asked = take<command::Connect>();
  EXPECT_NE(asked.hello.incarnation, 0U);
  wire::Hello hello;
  hello.features = wire::kFeatureStreams;
  hello.job = kSocketService;
  hello.proof = prove(policy.key, hello);
  tell(event::HelloReceived{7, at("10.0.0.2:7470"), hello});
  EXPECT_EQ(take<command::Accept>().answer.incarnation, asked.hello.incarnation);
}

// A HELLO that somebody has recorded opens nothing, and keeps nobody out.
TEST_F(OtherHosts, SoManySessionsHaveShownNothing) {
  policy.max_hosts = 1;
  wire::Hello hello;
  hello.features = wire::kFeatureStreams;
  hello.job = kSocketService;
  hello.proof = prove(policy.key, hello);
  std::vector<Token> accepted;
  for (uint64_t i = 1; i <= 64; ++i) {
    tell(event::HelloReceived{i, at("10.0.0.4:7470"), hello});
    accepted.push_back(take<command::Accept>().token);
  }
  tell(event::HelloReceived{65, at("10.0.0.2:7470"), hello});
  const auto closed = take<command::CloseSession>();
  EXPECT_EQ(closed.token, accepted[0]);
  EXPECT_EQ(closed.code, Errc::kLimit);
  tell(event::SessionOpened{take<command::Accept>().token, {}});
  tell(event::SessionOpened{accepted[0], {}});  // they crossed
  EXPECT_EQ(manager().snapshot().sessions, 1U);
}

TEST_F(OtherHosts, ADaemonThatServesNoneRefusesHellos) {
  policy.serve = false;
  tell(event::HelloReceived{7, at("10.0.0.4:7470"), {}});
  EXPECT_EQ(take<command::Refuse>().code, Errc::kUnsupported);
}

TEST_F(OtherHosts, WhatSocketsDoNotKnowIsNothing) {
  const Token token(uint64_t{1} << 63 | 77);
  tell(event::SessionOpened{token, {}});
  tell(event::SessionClosed{token, Errc::kPeerLost, ""});
  tell(event::ControlReceived{token, {}});
  tell(event::PathProbed{token, 1400, 1400});
  tell(event::ConnectionAnswered{77, sockets::Answer::kAccepted});
  tell(event::ConnectionEnded{77, 0, Errc::kPeerLost});
  tell(event::ConnectionEnded{0, 77, Errc::kPeerLost});
  tell(event::ConnectionDescribed{77, 1, true, {}});
  EXPECT_TRUE(commands.empty());
  EXPECT_TRUE(manager().idle());
}

TEST_F(OtherHosts, AHostWithoutEnginesHasOnlyItself) {
  lanes.clear();
  EXPECT_EQ(connect(1, kServer)->kind(), ReplyKind::kKernel);
}

// --- Authenticated frames ------------------------------------------------------------------------

TEST_F(OtherHosts, SealsAreOfferedWhereTheConfigurationSaysSoAndThereIsASecret) {
  constexpr uint32_t kAll = kOurs | wire::kFeatureSeals | wire::kFeatureCanEncrypt;
  policy.authentication = Authentication::kOffered;
  connect(1, kServer);
  const auto asked = take<command::Connect>();
  EXPECT_EQ(asked.hello.features, kAll);
  wire::HelloAck answer = answer_to(asked.hello);
  answer.features = kAll;
  answer.proof = prove(policy.key, asked.hello.nonce, answer);
  tell(event::SessionOpened{asked.token, answer});
  EXPECT_EQ(take<command::OpenConnection>().token, asked.token);
  EXPECT_TRUE(notices.empty()) << notices.front();
}

TEST_F(OtherHosts, WithoutASecretThereIsNothingToAuthenticate) {
  policy.key = derive_job_key(kSocketService, "");
  policy.authentication = Authentication::kRequired;
  connect(1, kServer);
  const auto asked = take<command::Connect>();
  EXPECT_EQ(asked.hello.features, kOurs);
  tell(event::SessionOpened{asked.token, answer_to(asked.hello)});
  EXPECT_EQ(take<command::OpenConnection>().token, asked.token);
  EXPECT_TRUE(notices.empty()) << notices.front();
}

TEST_F(OtherHosts, WithoutASecretAHostIsNamedOnceWhereEncryptionIsAskedFor) {
  policy.key = derive_job_key(kSocketService, "");
  policy.authentication = Authentication::kEncrypted;
  open_session(1, kServer);
  take<command::OpenConnection>();
  for (int i = 0; i < 2; ++i) accept_session(at("10.0.0.2:7470"));
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_NE(notices[0].find("not encrypted: there is no sockets.secret"), std::string::npos);
}

TEST_F(OtherHosts, AHostWithoutSealsIsNamedOnceWhereTheyAreOffered) {
  policy.authentication = Authentication::kOffered;
  open_session(1, kServer);
  take<command::OpenConnection>();
  EXPECT_EQ(notices.size(), 1U);
  for (int i = 0; i < 2; ++i) accept_session(at("10.0.0.2:7470"));
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_NE(notices[0].find("10.0.0.2"), std::string::npos) << notices[0];
  EXPECT_NE(notices[0].find("not authenticated"), std::string::npos) << notices[0];
}

TEST_F(OtherHosts, AHostThatCannotEncryptIsRefusedWhereThatIsAskedFor) {
  policy.authentication = Authentication::kEncrypted;
  const auto connecting = connect(1, kServer);
  const auto asked = take<command::Connect>();
  EXPECT_EQ(asked.hello.features,
            kOurs | wire::kFeatureSeals | wire::kFeatureCanEncrypt | wire::kFeatureAsksEncryption);
  wire::HelloAck answer = answer_to(asked.hello);
  answer.features = kOurs | wire::kFeatureSeals;
  answer.proof = prove(policy.key, asked.hello.nonce, answer);
  tell(event::SessionOpened{asked.token, answer});
  EXPECT_EQ(take<command::CloseSession>().token, asked.token);
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_NE(notices[0].find("its frames are not encrypted"), std::string::npos) << notices[0];
}

TEST_F(OtherHosts, AHostWithoutSealsIsRefusedWhereTheyAreRequired) {
  policy.authentication = Authentication::kRequired;
  const auto connecting = connect(1, kServer);
  const auto asked = take<command::Connect>();
  tell(event::SessionOpened{asked.token, answer_to(asked.hello)});
  EXPECT_EQ(take<command::CloseSession>().token, asked.token);
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);

  wire::Hello hello;
  hello.kind = wire::SessionKind::kData;
  hello.features = wire::kFeatureStreams;
  hello.job = kSocketService;
  hello.proof = prove(policy.key, hello);
  tell(event::HelloReceived{++last_hello, at("10.0.0.3:7470"), hello});
  const auto refused = take<command::Refuse>();
  EXPECT_EQ(refused.code, Errc::kUnsupported);
  EXPECT_NE(refused.text.find("authentication = \"required\""), std::string::npos) << refused.text;
}

}  // namespace
}  // namespace mercury::sockets::test
