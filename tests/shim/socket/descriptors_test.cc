// What connections take of the daemon's descriptors: counted beside what is really open, at each
// step of a connection and at each way in which it fails.
#include <filesystem>
#include <iterator>

#include "tests/shim/socket/fixture.h"

namespace mercury::sockets::test {
namespace {

size_t open_here() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class Descriptors : public SocketManagerTest {
 protected:
  // The daemon's are those that are open here, knocks' sockets with them; programs have their own.
  size_t really() const {
    size_t programs = 0;
    for (const auto& one : outcomes) programs += one->end ? 1 : 0;
    return open_here() - before - programs + knocks_open();
  }
  size_t knocks_open() const { return all_told - ended_knocks.size() - broken; }
  // Counted is what is open, and what a connection that is set up may still need.
  void expect(size_t open, size_t needed, const char* when) {
    EXPECT_EQ(really(), open) << when;
    EXPECT_EQ(manager().snapshot().descriptors, open + needed) << when;
  }

  std::shared_ptr<Outcome> connecting(const Endpoint& remote) {
    outcomes.push_back(connect(2, remote));
    return outcomes.back();
  }
  std::shared_ptr<Outcome> claiming(const Endpoint& from, const Endpoint& listening) {
    outcomes.push_back(claim(1, from, listening));
    return outcomes.back();
  }
  Knock take_told() {
    ++all_told;
    return take_knock();
  }
  void fail_to_tell(Errc why) {
    take_told().reply(Error(why, "no"));
    ++broken;
  }
  void break_knock(KnockId id) {
    manager().knock_gone(id);
    ++broken;
  }
  void ask_from_afar() {
    tell(event::ConnectionAsked{session, ++asked, {0, at("10.0.0.2:5000"), at("10.0.0.1:80")}});
  }
  // A connection that another host has asked for, of which the listener has been told.
  command::AnswerConnection announced() {
    ask_from_afar();
    knock = take_told();
    knock.reply(at("10.0.0.1:40000"));
    return take<command::AnswerConnection>();
  }

  const size_t before = open_here();
  std::vector<std::shared_ptr<Outcome>> outcomes;
  size_t all_told = 0;
  size_t broken = 0;  // knocks that failed, or broke
  Knock knock;
  Token session;
  uint64_t asked = 0;
};

TEST_F(Descriptors, WithinTheHostThreeAndNoneOnceItIsAccepted) {
  listen(1, at("127.0.0.1:80"), 11);
  const auto client = connecting(at("127.0.0.1:80"));
  const Knock told = take_told();
  expect(3, 0, "its listener is being told");
  told.reply(at("127.0.0.1:40000"));
  expect(2, 0, "its client has its end");
  claiming(at("127.0.0.1:40000"), at("127.0.0.1:80"));
  expect(0, 0, "accepted");
}

TEST_F(Descriptors, WithinTheHostEachFailureGivesAllBack) {
  listen(1, at("127.0.0.1:80"), 11);
  connecting(at("127.0.0.1:80"));
  fail_to_tell(Errc::kTimedOut);
  expect(0, 0, "its listener takes no more");
  connecting(at("127.0.0.1:80"));
  take_told();
  manager().program_gone(2);
  expect(0, 0, "its client went");
  connecting(at("127.0.0.1:80"));
  const Knock told = take_told();
  told.reply(at("127.0.0.1:40000"));
  break_knock(told.id);
  expect(0, 0, "it was not accepted");
  connecting(at("127.0.0.1:80"));
  fail_to_tell(Errc::kNotFound);
  expect(0, 0, "its listener is gone");
}

TEST_F(Descriptors, ToAnotherHostTwoAndOneOnceItIsEstablished) {
  connecting(kServer);
  expect(0, 0, "the host is being asked");
  const auto hello = take<command::Connect>();
  tell(event::SessionOpened{hello.token, answer_to(hello.hello)});
  auto opened = take<command::OpenConnection>();
  expect(2, 0, "the host's answer is awaited");
  tell(event::ConnectionAnswered{opened.id, sockets::Answer::kAccepted});
  expect(1, 0, "established");
  outcomes.clear();
  expect(1, 0, "its program has closed it, and the other has not");
  tell(event::ConnectionEnded{opened.id, 0, Errc::kOk, std::move(opened.end)});
  expect(0, 0, "over");
}

TEST_F(Descriptors, ToAnotherHostTheEnginesEndCountsUntilItIsClosed) {
  open_session(9, at("10.0.0.2:1"));
  auto first = take<command::OpenConnection>();
  first.end.reset();
  tell(event::ConnectionAnswered{first.id, sockets::Answer::kNobody});
  expect(0, 0, "nobody listens there");

  connecting(kServer);
  auto late = take<command::OpenConnection>();
  pass(policy.answer_ns);
  expect(1, 0, "given up, which the engine has not heard of");
  take<command::AbortConnection>();
  late.end.reset();
  tell(event::ConnectionAnswered{late.id, sockets::Answer::kNobody});
  expect(0, 0, "given up");

  connecting(kServer);
  auto dropped = take<command::OpenConnection>();
  manager().program_gone(2);
  take<command::AbortConnection>();
  tell(event::ConnectionAnswered{dropped.id, sockets::Answer::kAccepted});  // they crossed
  expect(1, 0, "its program went, which the engine has not heard of");
  tell(event::ConnectionEnded{dropped.id, 0, Errc::kClosed, std::move(dropped.end)});
  expect(0, 0, "its program went");

  connecting(kServer);
  auto lost = take<command::OpenConnection>();
  tell(event::SessionClosed{lost.token, Errc::kPeerLost, ""});
  expect(1, 0, "the session is lost, and the engine has it still");
  lost.end.reset();
  tell(event::ConnectionAnswered{lost.id, sockets::Answer::kNobody});
  expect(0, 0, "the session is lost");
}

TEST_F(Descriptors, FromAnotherHostThreeAndOneOnceItIsAccepted) {
  listen(1, at("0.0.0.0:80"), 11);
  session = accept_session(at("10.0.0.2:7470"));
  ask_from_afar();
  const Knock told = take_told();
  expect(1, 2, "its listener is being told");
  told.reply(at("10.0.0.1:40000"));
  auto answered = take<command::AnswerConnection>();
  expect(3, 0, "its listener was told");
  claiming(at("10.0.0.1:40000"), at("10.0.0.1:80"));
  expect(1, 0, "accepted");
  tell(event::ConnectionEnded{answered.id, 0, Errc::kOk, std::move(answered.end)});
  expect(0, 0, "over");
}

TEST_F(Descriptors, FromAnotherHostEachFailureGivesAllBack) {
  listen(1, at("0.0.0.0:80"), 11);
  session = accept_session(at("10.0.0.2:7470"));
  ask_from_afar();
  fail_to_tell(Errc::kTimedOut);
  take<command::AnswerConnection>();
  expect(0, 0, "its listener takes no more");

  ask_from_afar();
  take_told();
  tell(event::ConnectionEnded{0, asked, Errc::kPeerLeft});
  expect(0, 0, "who asked gave up");

  auto early = announced();
  tell(event::ConnectionEnded{early.id, 0, Errc::kPeerLost, std::move(early.end)});
  expect(2, 0, "over before it is accepted");
  claiming(at("10.0.0.1:40000"), at("10.0.0.1:80"));
  expect(0, 0, "over, and accepted");

  auto unwanted = announced();
  break_knock(knock.id);
  take<command::AbortConnection>();
  expect(1, 0, "not accepted, which the engine has not heard of");
  tell(event::ConnectionEnded{unwanted.id, 0, Errc::kClosed, std::move(unwanted.end)});
  expect(0, 0, "not accepted");
}

// Descriptors for three established ones, or for one that is being set up.
TEST_F(Descriptors, SetUpTakesNoMoreThanThereAreAndEstablishedOnesFillThem) {
  policy.max_descriptors = 5;
  std::vector<command::OpenConnection> engines;
  const auto established = [&] {
    engines.push_back(take<command::OpenConnection>());
    tell(event::ConnectionAnswered{engines.back().id, sockets::Answer::kAccepted});
  };
  open_session(9, at("10.0.0.2:1"), &outcomes.emplace_back());
  established();
  connecting(kServer);
  EXPECT_EQ(connecting(kServer)->kind(), ReplyKind::kKernel) << "1 + 2, and 3 more";
  established();
  connecting(kServer);
  established();
  expect(3, 0, "three established");
  EXPECT_EQ(connecting(kServer)->kind(), ReplyKind::kKernel);
  listen(1, at("0.0.0.0:80"), 11);
  EXPECT_EQ(connecting(at("127.0.0.1:80"))->kind(), ReplyKind::kKernel);
  session = accept_session(at("10.0.0.2:7470"));
  ask_from_afar();
  EXPECT_EQ(take<command::AnswerConnection>().answer, sockets::Answer::kRefused);
  EXPECT_TRUE(knocks.empty());
  tell(event::ConnectionEnded{engines[0].id, 0, Errc::kOk, std::move(engines[0].end)});
  EXPECT_FALSE(connecting(at("127.0.0.1:80"))->reply) << "there is room again";
  take_told();
  expect(5, 0, "two established and one being set up");
}

// What nobody accepts stays counted, however many of them there are.
TEST_F(Descriptors, AStormOfSetUpsIsTheKernels) {
  policy.max_descriptors = 100;
  listen(1, at("0.0.0.0:80"), 11);
  size_t ours = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto one = connecting(at("127.0.0.1:80"));
    if (one->reply) continue;
    ++ours;
    take_told().reply(Endpoint{at("127.0.0.1:0").ip, static_cast<uint16_t>(20000 + i)});
    EXPECT_LE(really(), 100U);
  }
  EXPECT_EQ(ours, 49U) << "two each, and three for the last";
  EXPECT_EQ(really(), manager().snapshot().descriptors);
}

}  // namespace
}  // namespace mercury::sockets::test
