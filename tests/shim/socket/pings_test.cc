// Whether another host speaks Mercury, asked by an operator.
#include "shim/socket/control/pings.h"

#include "tests/shim/socket/fixture.h"

namespace mercury::sockets::test {
namespace {

using PingOutcome = PingReport::Outcome;

class PingsTest : public SocketManagerTest {
 protected:
  std::shared_ptr<std::optional<PingReport>> ping(const Endpoint& host = kServer) {
    auto report = std::make_shared<std::optional<PingReport>>();
    manager().ping(host.ip, now_ns, [report](const PingReport& came) {
      EXPECT_FALSE(*report) << "a second report";
      *report = came;
    });
    return report;
  }
  // What is asked for over a session: nothing that anybody accepts.
  command::OpenConnection take_question() {
    auto question = take<command::OpenConnection>();
    EXPECT_EQ(question.preamble.source.port, 0);
    EXPECT_NE(question.preamble.destination.port, 0);
    EXPECT_EQ(question.preamble.destination.ip, kServer.ip);
    EXPECT_FALSE(question.end) << "a descriptor";
    EXPECT_EQ(take<command::DescribeConnection>().id, question.id);
    EXPECT_TRUE(commands.empty());
    return question;
  }
  static void expect(const std::optional<PingReport>& report, PingOutcome outcome,
                     const std::string& why) {
    ASSERT_TRUE(report);
    EXPECT_EQ(report->outcome, outcome);
    EXPECT_NE(report->why.find(why), std::string::npos) << report->why;
  }
};

TEST_F(PingsTest, ASessionIsOpenedAndTheQuestionIsTimedByItself) {
  const auto first = ping();
  EXPECT_FALSE(manager().idle());
  const auto asked = take<command::Connect>();
  now_ns += 3 * kMs;
  tell(event::SessionOpened{asked.token, answer_to(asked.hello)});
  auto question = take<command::OpenConnection>();
  const auto describe = take<command::DescribeConnection>();
  EXPECT_EQ(describe.id, question.id);
  tell(event::ConnectionDescribed{question.id, describe.number, true, {.segment_bytes = 8972}});
  now_ns += 2 * kMs;
  tell(event::ConnectionAnswered{question.id, Answer::kNobody});
  expect(*first, PingOutcome::kAnswered, "");
  EXPECT_EQ((*first)->session_ns, 3 * kMs);
  EXPECT_EQ((*first)->round_trip_ns, 2 * kMs);
  EXPECT_EQ((*first)->info.segment_bytes, 8972U);
  EXPECT_TRUE(manager().idle());
  pass(policy.answer_ns);
  EXPECT_TRUE(commands.empty()) << "it was answered";

  const auto second = ping();  // by the same session
  question = take_question();
  now_ns += kMs;
  tell(event::ConnectionAnswered{question.id, Answer::kNobody});
  expect(*second, PingOutcome::kAnswered, "");
  EXPECT_EQ((*second)->session_ns, 0U);
  EXPECT_EQ(manager().snapshot().descriptors, 0U);
  EXPECT_EQ(manager().snapshot().connections, 0U);
}

// Whatever port it names, no listener is told.
TEST_F(PingsTest, WhoIsAskedTellsNobody) {
  listen(1, at("0.0.0.0:1"), 5);
  const Token token = accept_session(kServer);
  tell(event::ConnectionAsked{token, 9, {0, {kServer.ip, 0}, at("10.0.0.1:1")}});
  const auto answer = take<command::AnswerConnection>();
  EXPECT_EQ(answer.asked, 9U);
  EXPECT_EQ(answer.answer, Answer::kNobody);
  EXPECT_TRUE(knocks.empty());
}

TEST_F(PingsTest, AHostThatIsSilentIsAskedAgainAtOnce) {
  const auto first = ping();
  const auto asked = take<command::Connect>();
  pass(policy.probe_ns);
  expect(*first, PingOutcome::kSilent, "no answer to a HELLO within 50ms");
  const auto waits = ping();  // its HELLO is under way still
  EXPECT_TRUE(commands.empty());
  tell(event::SessionClosed{asked.token, Errc::kTimedOut, "no answer"});
  expect(*waits, PingOutcome::kSilent, "no answer");
  const auto again = ping();
  const auto second = take<command::Connect>();
  tell(event::SessionOpened{second.token, answer_to(second.hello)});
  tell(event::ConnectionAnswered{take_question().id, Answer::kNobody});
  expect(*again, PingOutcome::kAnswered, "");
}

TEST_F(PingsTest, TheSideThatRefusesIsNamed) {
  const auto there = ping();
  tell(event::SessionClosed{take<command::Connect>().token, Errc::kWrongSecret, "another here"});
  expect(*there, PingOutcome::kRefusedThere, "another here");

  const auto here = ping();
  const auto asked = take<command::Connect>();
  wire::HelloAck forged = answer_to(asked.hello);
  forged.proof[3] ^= 1;
  tell(event::SessionOpened{asked.token, forged});
  take<command::CloseSession>();
  expect(*here, PingOutcome::kRefusedHere, "does not prove the secret (sockets.secret)");

  expect(*ping(at("8.8.8.8:0")), PingOutcome::kRefusedHere, "sockets.networks");
  expect(*ping(at("10.0.0.1:0")), PingOutcome::kRefusedHere, "10.0.0.1 is this host's");
  EXPECT_TRUE(commands.empty());
}

TEST_F(PingsTest, NobodyIsAskedByAHostThatCarriesNoSocketsOfOthers) {
  policy.others = false;
  expect(*ping(), PingOutcome::kRefusedHere, "neither sockets.secret nor sockets.open");
  EXPECT_TRUE(commands.empty());
}

TEST_F(PingsTest, AHostWithoutSealsIsRefusedHereWhereTheyAreRequired) {
  policy.authentication = Authentication::kRequired;
  const auto report = ping();
  const auto asked = take<command::Connect>();
  tell(event::SessionOpened{asked.token, answer_to(asked.hello)});
  take<command::CloseSession>();
  expect(*report, PingOutcome::kRefusedHere, "only authenticated frames are taken here");
  EXPECT_TRUE(commands.empty());
}

TEST_F(PingsTest, AHostThatServesNoSocketsAsksNobody) {
  policy.serve = false;
  expect(*ping(), PingOutcome::kRefusedHere, "serves no sockets");
  EXPECT_TRUE(commands.empty());
}

TEST_F(PingsTest, WhatIsNotAnsweredIsLostAndLetGo) {
  const auto first = ping();
  const auto asked = take<command::Connect>();
  tell(event::SessionOpened{asked.token, answer_to(asked.hello)});
  const auto question = take_question();
  pass(policy.answer_ns);
  expect(*first, PingOutcome::kLost, "no answer within 3s");
  EXPECT_EQ(take<command::AbortConnection>().id, question.id);
  tell(event::ConnectionAnswered{question.id, Answer::kNobody});  // too late
  tell(event::ConnectionEnded{question.id, 0, Errc::kTimedOut, UniqueFd()});

  const auto second = ping();
  take_question();
  tell(event::SessionClosed{asked.token, Errc::kPeerLost, "nothing heard"});
  expect(*second, PingOutcome::kLost, "nothing heard");

  const auto third = ping();
  const auto again = take<command::Connect>();
  tell(event::SessionOpened{again.token, answer_to(again.hello)});
  tell(event::ConnectionEnded{take_question().id, 0, Errc::kPeerLost, UniqueFd()});
  expect(*third, PingOutcome::kLost, "ended");
  EXPECT_TRUE(manager().idle());
}

// Programs' connections and pings wait for the same session.
TEST_F(PingsTest, ThereAreOnlySoMany) {
  std::vector<std::shared_ptr<std::optional<PingReport>>> reports;
  for (size_t n = 0; n < Pings::kMost; ++n) reports.push_back(ping());
  const auto connecting = connect(1, kServer);
  expect(*ping(), PingOutcome::kRefusedHere, "too many");
  const auto asked = take<command::Connect>();
  EXPECT_TRUE(commands.empty());
  tell(event::SessionClosed{asked.token, Errc::kTimedOut, ""});
  for (const auto& report : reports) expect(*report, PingOutcome::kSilent, "");
  EXPECT_EQ(connecting->kind(), ReplyKind::kKernel);
}

}  // namespace
}  // namespace mercury::sockets::test
