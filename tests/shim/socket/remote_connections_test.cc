// Connections with other hosts: asked for here, and asked for there.
#include "tests/shim/socket/fixture.h"

namespace mercury::sockets::test {
namespace {

using Outgoing = SocketManagerTest;

TEST_F(Outgoing, AcceptedGivesTheProgramItsEnd) {
  std::shared_ptr<Outcome> connecting;
  const Token token = open_session(1, kServer, &connecting);
  const auto opened = take<command::OpenConnection>();
  EXPECT_EQ(opened.token, token);
  EXPECT_EQ(opened.preamble.destination, kServer);
  EXPECT_EQ(opened.preamble.source.ip, at("10.0.0.1:0").ip);
  EXPECT_GE(opened.preamble.source.port, 32768);
  EXPECT_FALSE(connecting->reply);
  tell(event::ConnectionAnswered{opened.id, sockets::Answer::kAccepted});
  ASSERT_EQ(connecting->kind(), ReplyKind::kConnected);
  EXPECT_EQ(connecting->reply->id, opened.id);
  EXPECT_EQ(connecting->reply->local, opened.preamble.source);
  EXPECT_EQ(connecting->reply->remote, kServer);
  say(connecting->end, "to the engine");
  EXPECT_EQ(heard(opened.end), "to the engine");
  EXPECT_EQ(manager().snapshot().connections, 1U);
  EXPECT_EQ(end_of(opened.id), 0U) << "while it lasts, an end of stream is the peer's";
  pass(policy.probe_ns);
  EXPECT_EQ(manager().next_deadline_ns(), kNever) << "an established one wakes nobody";
  pass(policy.answer_ns);
  EXPECT_TRUE(commands.empty()) << "it was answered in time";
}

TEST_F(Outgoing, PriorityAndWhatWasBoundGoAlong) {
  open_session(1, at("10.0.0.2:1"));
  take<command::OpenConnection>();
  ask(1, {.kind = RequestKind::kConnect,
          .priority = 5,
          .local = at("192.168.7.1:0"),
          .remote = kServer});
  const auto bound_ip = take<command::OpenConnection>();
  EXPECT_EQ(bound_ip.preamble.priority, 5);
  EXPECT_EQ(bound_ip.preamble.source.ip, at("192.168.7.1:0").ip);
  EXPECT_GE(bound_ip.preamble.source.port, 32768);
  connect(1, kServer, at("192.168.7.1:1234"));
  EXPECT_EQ(take<command::OpenConnection>().preamble.source, at("192.168.7.1:1234"));
  connect(1, kServer, at("0.0.0.0:1235"));
  EXPECT_EQ(take<command::OpenConnection>().preamble.source, at("10.0.0.1:1235"));
  // As in the kernel: one connection from one place to another.
  EXPECT_EQ(connect(1, kServer, at("192.168.7.1:1234"))->kind(), ReplyKind::kKernel);
  // Of the other family than what is connected to there is nothing to say.
  EXPECT_EQ(connect(1, kServer, at("[fd00::1]:5"))->kind(), ReplyKind::kKernel);
}

TEST_F(Outgoing, EachFamilyHasItsAddress) {
  open_session(1, at("[fd00::2]:80"));
  EXPECT_EQ(take<command::OpenConnection>().preamble.source.ip, at("[fd00::1]:0").ip);
}

TEST_F(Outgoing, AFamilyWithoutAnAddressIsTheKernels) {
  policy.addresses.clear();
  std::shared_ptr<Outcome> connecting;
  open_session(1, at("[fd00::2]:80"), &connecting);
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
  EXPECT_TRUE(commands.empty());
}

TEST_F(Outgoing, NobodyAndRefusedAreTheKernels) {
  open_session(1, at("10.0.0.2:1"));
  take<command::OpenConnection>();
  for (const sockets::Answer answer : {sockets::Answer::kNobody, sockets::Answer::kRefused}) {
    const auto connecting = connect(2, kServer);
    const auto opened = take<command::OpenConnection>();
    tell(event::ConnectionAnswered{opened.id, answer});
    EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
    EXPECT_FALSE(connecting->end);
    EXPECT_EQ(heard(opened.end), "") << "the program's end stays open";
  }
  EXPECT_TRUE(commands.empty());
}

TEST_F(Outgoing, NoAnswerIsTheKernelsAndTheOtherSideHears) {
  std::shared_ptr<Outcome> connecting;
  open_session(1, kServer, &connecting);
  const auto opened = take<command::OpenConnection>();
  pass(policy.answer_ns - 1);
  EXPECT_FALSE(connecting->reply);
  pass(1);
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
  const auto aborted = take<command::AbortConnection>();
  EXPECT_EQ(aborted.id, opened.id);
  EXPECT_EQ(aborted.code, Errc::kTimedOut);
  tell(event::ConnectionAnswered{opened.id, sockets::Answer::kAccepted});  // they crossed
  tell(event::ConnectionEnded{opened.id, 0, Errc::kTimedOut});
  EXPECT_TRUE(manager().idle());
}

// A program that connects without blocking waits for it all the same.
TEST_F(Outgoing, AHostThatWasLateIsWaitedForAsOneThatIsUnknown) {
  open_session(1, kServer);
  take<command::OpenConnection>();
  pass(policy.answer_ns);
  take<command::AbortConnection>();
  const uint64_t late_at_ns = now_ns;
  for (int i = 0; i < 3; ++i) {
    const auto connecting = connect(1, kServer);
    take<command::OpenConnection>();
    pass(policy.probe_ns);
    EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
    take<command::AbortConnection>();
  }
  // After a while, or an answer, it has its time again.
  pass(late_at_ns + policy.silence_ns - now_ns);
  const auto patient = connect(1, kServer);
  take<command::OpenConnection>();
  pass(policy.answer_ns - 1);
  EXPECT_FALSE(patient->reply);
  pass(1);
  take<command::AbortConnection>();
  connect(1, kServer);
  tell(event::ConnectionAnswered{take<command::OpenConnection>().id, sockets::Answer::kAccepted});
  const auto again = connect(1, kServer);
  take<command::OpenConnection>();
  pass(policy.answer_ns - 1);
  EXPECT_FALSE(again->reply);
}

TEST_F(Outgoing, AProgramThatGoesAbortsWhatItWaitsFor) {
  std::shared_ptr<Outcome> connecting;
  open_session(1, kServer, &connecting);
  const auto opened = take<command::OpenConnection>();
  manager().program_gone(1);
  EXPECT_EQ(take<command::AbortConnection>().id, opened.id);
  tell(event::ConnectionAnswered{opened.id, sockets::Answer::kAccepted});
  EXPECT_FALSE(connecting->reply);
  EXPECT_EQ(heard(opened.end), "");
  EXPECT_TRUE(manager().idle());
}

TEST_F(Outgoing, WhyTheyEndedIsKept) {
  open_session(1, at("10.0.0.2:1"));
  take<command::OpenConnection>();
  for (const auto& [code, error] : {std::pair{Errc::kPeerLost, ETIMEDOUT},
                                    {Errc::kTimedOut, ETIMEDOUT},
                                    {Errc::kClosed, ECONNRESET},
                                    {Errc::kPeerLeft, ECONNRESET},
                                    {Errc::kOk, 0}}) {
    connect(2, kServer);
    const ConnectionId id = take<command::OpenConnection>().id;
    tell(event::ConnectionAnswered{id, sockets::Answer::kAccepted});
    tell(event::ConnectionEnded{id, 0, code});
    EXPECT_EQ(end_of(id), static_cast<uint32_t>(error)) << name_of(code);
    EXPECT_EQ(end_of(id), static_cast<uint32_t>(error)) << "a child may ask as well";
  }
  EXPECT_EQ(manager().snapshot().connections, 1U) << "the first, not answered";
}

TEST_F(Outgoing, SoManyEndsAreKept) {
  policy.kept_ends = 2;
  open_session(1, at("10.0.0.2:1"));
  take<command::OpenConnection>();
  std::vector<ConnectionId> ids;
  for (int i = 0; i < 3; ++i) {
    connect(2, kServer);
    ids.push_back(take<command::OpenConnection>().id);
    tell(event::ConnectionAnswered{ids[static_cast<size_t>(i)], sockets::Answer::kAccepted});
    tell(event::ConnectionEnded{ids[static_cast<size_t>(i)], 0, Errc::kPeerLost});
  }
  EXPECT_EQ(end_of(ids[0]), 0U) << "forgotten";
  EXPECT_EQ(end_of(ids[1]), static_cast<uint32_t>(ETIMEDOUT));
  EXPECT_EQ(end_of(ids[2]), static_cast<uint32_t>(ETIMEDOUT));
}

TEST_F(Outgoing, OptionsGoToTheEngineTogether) {
  std::shared_ptr<Outcome> connecting;
  open_session(1, kServer, &connecting);
  const ConnectionId id = take<command::OpenConnection>().id;
  tell(event::ConnectionAnswered{id, sockets::Answer::kAccepted});
  ask(1, {.kind = RequestKind::kSet, .option = Option::kPriority, .value = 6, .id = id});
  const auto first = take<command::SetConnection>();
  EXPECT_EQ(first.id, id);
  EXPECT_EQ(first.priority, 6);
  EXPECT_FALSE(first.abort_on_close);
  ask(1, {.kind = RequestKind::kSet, .option = Option::kAbort, .value = 1, .id = id});
  const auto second = take<command::SetConnection>();
  EXPECT_EQ(second.priority, 6);
  EXPECT_TRUE(second.abort_on_close);
  ask(1, {.kind = RequestKind::kSet, .option = Option::kAbort, .value = 0, .id = id});
  EXPECT_FALSE(take<command::SetConnection>().abort_on_close);
  tell(event::ConnectionEnded{id, 0, Errc::kOk});
  EXPECT_EQ(
      ask(1, {.kind = RequestKind::kSet, .option = Option::kAbort, .value = 1, .id = id})->kind(),
      ReplyKind::kDone)
      << "as of a socket that is over";
  EXPECT_TRUE(commands.empty());
}

TEST_F(Outgoing, InfoIsTheEngines) {
  open_session(1, kServer);
  const ConnectionId id = take<command::OpenConnection>().id;
  const Request question{.kind = RequestKind::kInfo, .id = id};
  EXPECT_EQ(ask(1, question)->reply->value, static_cast<uint32_t>(ENOTCONN)) << "not answered yet";
  tell(event::ConnectionAnswered{id, sockets::Answer::kAccepted});

  const auto known = ask(1, question);
  auto described = take<command::DescribeConnection>();
  EXPECT_EQ(described.id, id);
  EXPECT_FALSE(known->reply);
  EXPECT_FALSE(manager().idle());
  event::ConnectionDescribed answer{id, described.number, true, {}};
  answer.info.rtt_ns = 12345;
  tell(answer);
  ASSERT_EQ(known->kind(), ReplyKind::kDone);
  EXPECT_EQ(known->reply->info.rtt_ns, 12345U);
  tell(answer);  // once

  const auto unknown = ask(1, question);
  tell(event::ConnectionDescribed{id, take<command::DescribeConnection>().number, false, {}});
  EXPECT_EQ(unknown->reply->value, static_cast<uint32_t>(ENOTCONN));

  const auto late = ask(1, question);
  take<command::DescribeConnection>();
  pass(policy.answer_ns);
  EXPECT_EQ(late->reply->value, static_cast<uint32_t>(ENOTCONN));

  const auto dropped = ask(8, question);
  described = take<command::DescribeConnection>();
  manager().program_gone(8);
  tell(event::ConnectionDescribed{id, described.number, true, {}});
  EXPECT_FALSE(dropped->reply);
}

// --- asked for by another host -------------------------------------------------------------------

class Incoming : public SocketManagerTest {
 protected:
  // What the engine's relay reports, of source 10.0.0.2:5000 if nothing else is said.
  uint64_t asked_for(const Endpoint& destination, const Endpoint& source = at("10.0.0.2:5000")) {
    if (session == 0) session = accept_session(at("10.0.0.2:7470"));
    tell(event::ConnectionAsked{session, ++asked, {3, source, destination}});
    return asked;
  }
  Token session;
  uint64_t asked = 0;
};

TEST_F(Incoming, ListenerIsToldAndWhoeverAcceptsGetsTheEnd) {
  listen(1, at("0.0.0.0:80"), 11);
  const uint64_t number = asked_for(at("10.0.0.1:80"));
  const Knock knock = take_knock();
  EXPECT_EQ(knock.at, at("10.0.0.1:80"));
  EXPECT_TRUE(commands.empty()) << "before the listener was told";
  knock.reply(at("10.0.0.1:40000"));
  const auto answered = take<command::AnswerConnection>();
  EXPECT_EQ(answered.asked, number);
  EXPECT_EQ(answered.answer, sockets::Answer::kAccepted);
  EXPECT_EQ(answered.priority, 3);
  say(answered.end, "from afar");
  const auto accepted = claim(1, at("10.0.0.1:40000"), at("10.0.0.1:80"));
  ASSERT_EQ(accepted->kind(), ReplyKind::kConnected);
  EXPECT_EQ(accepted->reply->id, answered.id);
  EXPECT_EQ(accepted->reply->local, at("10.0.0.1:80"));
  EXPECT_EQ(accepted->reply->remote, at("10.0.0.2:5000"));
  EXPECT_EQ(ended_knocks, std::vector<KnockId>{knock.id});
  EXPECT_EQ(heard(accepted->end), "from afar");
  EXPECT_EQ(manager().snapshot().connections, 1U);
  EXPECT_EQ(manager().snapshot().unclaimed, 0U);
  tell(event::ConnectionEnded{answered.id, 0, Errc::kPeerLost});
  EXPECT_EQ(end_of(answered.id), static_cast<uint32_t>(ETIMEDOUT));
  EXPECT_EQ(manager().snapshot().connections, 0U);
}

// Who connected has said nothing of what comes back.
TEST_F(Incoming, WhoAcceptsSendsWithAPriorityOfItsOwn) {
  listen(1, at("0.0.0.0:80"), 11);
  for (const uint8_t own : {uint8_t{0}, uint8_t{3}, uint8_t{7}}) {
    asked_for(at("10.0.0.1:80"), {at("10.0.0.2").ip, uint16_t(5000 + own)});
    take_knock().reply(at("10.0.0.1:40000"));
    const auto answered = take<command::AnswerConnection>();
    EXPECT_EQ(answered.priority, 3) << "which the answer has";
    const auto accepted = ask(1, {.kind = RequestKind::kClaim,
                                  .priority = own,
                                  .local = at("10.0.0.1:80"),
                                  .remote = at("10.0.0.1:40000")});
    ASSERT_EQ(accepted->kind(), ReplyKind::kConnected);
    if (own == 3) continue;
    const auto set = take<command::SetConnection>();
    EXPECT_EQ(set.id, answered.id);
    EXPECT_EQ(set.priority, own);
    EXPECT_FALSE(set.abort_on_close);
  }
  EXPECT_TRUE(commands.empty());
}

TEST_F(Incoming, NobodyListens) {
  const uint64_t number = asked_for(at("10.0.0.1:80"));
  const auto answered = take<command::AnswerConnection>();
  EXPECT_EQ(answered.asked, number);
  EXPECT_EQ(answered.answer, sockets::Answer::kNobody);
  EXPECT_FALSE(answered.end);
}

TEST_F(Incoming, WhatOnlyThisHostIsToReachIsNobodys) {
  listen(1, at("0.0.0.0:80"), 11);
  listen(1, at("[::]:81"), 12);
  for (const auto& [destination, source] : {
           std::pair{"127.0.0.1:80", "10.0.0.2:5000"},  // only from within
           {"[::1]:81", "[fd00::2]:5000"},
           {"10.0.0.9:80", "10.0.0.2:5000"},   // not this host's
           {"10.0.0.1:80", "127.0.0.1:5000"},  // who says to be on this host
           {"10.0.0.1:80", "10.0.0.1:5000"},
           {"10.0.0.1:80", "0.0.0.0:5000"},
           {"10.0.0.1:80", "11.0.0.2:5000"},  // in none of the networks
           {"10.0.0.1:80", "10.0.0.2:0"},
       }) {
    asked_for(at(destination), at(source));
    EXPECT_EQ(take<command::AnswerConnection>().answer, sockets::Answer::kNobody)
        << destination << " from " << source;
  }
  EXPECT_TRUE(knocks.empty());
}

TEST_F(Incoming, AListenerThatIsGoneIsNobodyAndOneThatIsFullRefuses) {
  listen(1, at("10.0.0.1:80"), 11);
  asked_for(at("10.0.0.1:80"));
  take_knock().reply(Error(Errc::kTimedOut, "full"));
  EXPECT_EQ(take<command::AnswerConnection>().answer, sockets::Answer::kRefused);
  EXPECT_EQ(manager().snapshot().listeners, 1U);
  asked_for(at("10.0.0.1:80"));
  take_knock().reply(Error(Errc::kNotFound, "gone"));
  EXPECT_EQ(take<command::AnswerConnection>().answer, sockets::Answer::kNobody);
  EXPECT_TRUE(manager().idle());
}

TEST_F(Incoming, OneThatIsNotAcceptedIsAborted) {
  listen(1, at("10.0.0.1:80"), 11);
  asked_for(at("10.0.0.1:80"));
  const Knock knock = take_knock();
  knock.reply(at("10.0.0.1:40000"));
  const auto answered = take<command::AnswerConnection>();
  manager().knock_gone(knock.id);
  EXPECT_EQ(take<command::AbortConnection>().id, answered.id);
  EXPECT_EQ(heard(answered.end), "");
  tell(event::ConnectionEnded{answered.id, 0, Errc::kClosed});
  EXPECT_EQ(manager().snapshot().connections, 0U);
}

// As a connection in the kernel's queue that was reset: it is accepted, and then at its end.
TEST_F(Incoming, OneThatEndsBeforeItIsAcceptedSaysWhyAfterwards) {
  listen(1, at("10.0.0.1:80"), 11);
  asked_for(at("10.0.0.1:80"));
  take_knock().reply(at("10.0.0.1:40000"));
  auto answered = take<command::AnswerConnection>();
  answered.end.reset();
  tell(event::ConnectionEnded{answered.id, 0, Errc::kPeerLost});
  tell(event::ConnectionEnded{answered.id, 0, Errc::kPeerLost});
  const auto accepted = claim(1, at("10.0.0.1:40000"), at("10.0.0.1:80"));
  ASSERT_EQ(accepted->kind(), ReplyKind::kConnected);
  EXPECT_EQ(heard(accepted->end), "");
  EXPECT_EQ(end_of(answered.id), static_cast<uint32_t>(ETIMEDOUT));
  EXPECT_EQ(manager().snapshot().connections, 0U);
}

TEST_F(Incoming, OneThatEndsAndIsNotAcceptedIsForgotten) {
  listen(1, at("10.0.0.1:80"), 11);
  asked_for(at("10.0.0.1:80"));
  const Knock knock = take_knock();
  knock.reply(at("10.0.0.1:40000"));
  const auto answered = take<command::AnswerConnection>();
  tell(event::ConnectionEnded{answered.id, 0, Errc::kPeerLost});
  manager().knock_gone(knock.id);
  EXPECT_TRUE(commands.empty()) << "the engine has nothing of it";
  EXPECT_EQ(manager().snapshot().connections, 0U);
}

TEST_F(Incoming, WhoAsksGivesUpWhileTheListenerIsTold) {
  listen(1, at("10.0.0.1:80"), 11);
  const uint64_t number = asked_for(at("10.0.0.1:80"));
  const Knock first = take_knock();
  tell(event::ConnectionEnded{0, number, Errc::kPeerLeft});
  EXPECT_EQ(ended_knocks, std::vector<KnockId>{first.id});
  first.reply(at("10.0.0.1:40000"));
  asked_for(at("10.0.0.1:80"));
  const Knock second = take_knock();
  tell(event::SessionClosed{session, Errc::kPeerLost, ""});
  EXPECT_EQ(ended_knocks.back(), second.id);
  second.reply(at("10.0.0.1:40001"));
  EXPECT_TRUE(commands.empty());
  EXPECT_EQ(manager().snapshot().connections, 0U);
}

// Two engines count for themselves.
TEST_F(Incoming, NumbersOfTwoEnginesAreApart) {
  lanes.push_back(at("10.0.0.1:7471"));
  listen(1, at("10.0.0.1:80"), 11);
  asked_for(at("10.0.0.1:80"));
  tell(event::ConnectionAsked{session, asked, {0, at("10.0.0.2:5001"), at("10.0.0.1:80")}},
       LaneId(1));
  take_knock();
  const Knock second = take_knock();
  tell(event::ConnectionEnded{0, asked, Errc::kPeerLeft}, LaneId(1));
  EXPECT_EQ(ended_knocks, std::vector<KnockId>{second.id});
}

// --- limits --------------------------------------------------------------------------------------

TEST_F(Incoming, SoManyConnections) {
  policy.max_connections = 2;
  listen(1, at("0.0.0.0:80"), 11);
  const auto within = connect(2, at("127.0.0.1:80"));
  open_session(3, kServer);
  const ConnectionId id = take<command::OpenConnection>().id;
  EXPECT_EQ(connect(4, kServer)->kind(), ReplyKind::kKernel);
  EXPECT_EQ(connect(4, at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  asked_for(at("10.0.0.1:80"));
  EXPECT_EQ(take<command::AnswerConnection>().answer, sockets::Answer::kRefused);
  EXPECT_TRUE(commands.empty());
  // Accepted within the host it is not the daemon's any more.
  take_knock().reply(at("127.0.0.1:40000"));
  claim(1, at("127.0.0.1:40000"), at("127.0.0.1:80"));
  EXPECT_FALSE(connect(4, kServer)->reply);
  take<command::OpenConnection>();
  tell(event::ConnectionAnswered{id, sockets::Answer::kNobody});
  EXPECT_FALSE(connect(5, kServer)->reply);
}

// Requests that wait for a host are none yet: there may be more of them than room.
TEST_F(Incoming, SoManyConnectionsOnceTheHostAnswers) {
  policy.max_connections = 1;
  const auto first = connect(1, kServer);
  const auto second = connect(2, kServer);
  const auto hello = take<command::Connect>();
  tell(event::SessionOpened{hello.token, answer_to(hello.hello)});
  take<command::OpenConnection>();
  EXPECT_FALSE(first->reply);
  EXPECT_EQ(second->kind(), ReplyKind::kKernel);
}

TEST_F(Incoming, SoManyListeners) {
  policy.max_listeners = 2;
  EXPECT_EQ(listen(1, at("0.0.0.0:80"), 11)->kind(), ReplyKind::kDone);
  EXPECT_EQ(listen(1, at("0.0.0.0:81"), 12)->kind(), ReplyKind::kDone);
  EXPECT_EQ(listen(1, at("0.0.0.0:82"), 13)->kind(), ReplyKind::kKernel);
  EXPECT_EQ(listen(1, at("0.0.0.0:80"), 11)->kind(), ReplyKind::kDone) << "known already";
  EXPECT_EQ(listen(1, at("0.0.0.0:0"), 14)->kind(), ReplyKind::kKernel) << "bound to no port";
  EXPECT_EQ(manager().snapshot().listeners, 2U);
  manager().program_gone(1);
  EXPECT_EQ(listen(2, at("0.0.0.0:82"), 13)->kind(), ReplyKind::kDone);
}

TEST_F(Incoming, ThoseThatWereClosedMakeRoom) {
  policy.max_listeners = 3;
  listen(1, at("0.0.0.0:80"), 11);
  listen(1, at("0.0.0.0:81"), 12);
  listen(2, at("0.0.0.0:82"), 13, false, Listening::kSoon);  // not yet in the kernel's list
  EXPECT_EQ(listen(2, at("0.0.0.0:83"), 14)->kind(), ReplyKind::kKernel) << "nobody knows better";
  const auto again = [this] {
    now_ns += 1'000'000'000;
    return listen(2, at("0.0.0.0:83"), 14)->kind();
  };
  open_listeners = {11, 12};
  EXPECT_EQ(again(), ReplyKind::kKernel);
  ASSERT_EQ(notices.size(), 2U);
  EXPECT_NE(notices.back().find("sockets.max_listeners = 3"), std::string::npos);
  EXPECT_EQ(listen(1, at("0.0.0.0:80"), 11)->kind(), ReplyKind::kDone) << "known already";
  open_listeners = {11};
  EXPECT_EQ(listen(2, at("0.0.0.0:83"), 14)->kind(), ReplyKind::kKernel) << "asked a moment ago";
  EXPECT_EQ(again(), ReplyKind::kKernel) << "the list may lack one";
  open_listeners = {11, 12};
  EXPECT_EQ(again(), ReplyKind::kKernel) << "as it did";
  open_listeners = {11};
  EXPECT_EQ(again(), ReplyKind::kKernel);
  EXPECT_EQ(again(), ReplyKind::kDone);
  EXPECT_EQ(notices.size(), 5U) << "nothing is said of room that was made, or of one that is known";
  EXPECT_EQ(connect(3, at("127.0.0.1:81"))->kind(), ReplyKind::kKernel);
  EXPECT_EQ(connect(3, at("127.0.0.1:80"))->reply, std::nullopt) << "is knocked at";
  EXPECT_EQ(connect(3, at("127.0.0.1:82"))->reply, std::nullopt);
}

}  // namespace
}  // namespace mercury::sockets::test
