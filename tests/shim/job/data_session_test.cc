// Who gets a data session, and from whom one is taken: both sides prove the job's secret.
#include <algorithm>

#include "shim/proof/secret.h"
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

class DataSessionTest : public RunningTest {
 protected:
  HostModel::EngineJob& served() { return hosts.host(3).lanes[0].jobs.begin()->second; }
  // The HELLO of worker `rank` to server 0, as anybody may repeat it who has read it.
  wire::Hello hello_of(uint16_t rank) {
    wire::Hello hello;
    hello.kind = wire::SessionKind::kData;
    hello.role = static_cast<uint8_t>(Role::kWorker);
    hello.rank = rank;
    hello.incarnation = served().incarnations.at(Rank(rank));
    hello.job = "train";
    sign(hello);
    return hello;
  }
  static void sign(wire::Hello& hello) {
    hello.proof = prove(derive_job_key(hello.job, ""), hello);
  }
  // Worker 0's HELLO, changed and proven again.
  template <class F>
  bool refused_with(F change) {
    wire::Hello hello = hello_of(0);
    change(hello);
    sign(hello);
    return refused(hello);
  }
  bool refused(const wire::Hello& hello) {
    const SessionModel& session = hosts.connect_raw(address(3), hello);
    hosts.run_for(0);
    return session.ends[0].closed && !session.open;
  }
};

TEST_F(JobTest, AnAnswerThatDoesNotProveTheSecretIsNotBelieved) {
  for (const wire::SessionKind kind : {wire::SessionKind::kControl, wire::SessionKind::kData}) {
    SCOPED_TRACE(static_cast<int>(kind));
    hosts = Hosts();
    hosts.add(1, 1, not_serving());
    hosts.add(3, 1, serving());
    hosts.answered = [kind](const wire::Hello& asked, wire::HelloAck& answer) {
      if (asked.kind == kind) answer.proof[31] ^= 1;
    };
    ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(3)}));
    hosts.run();
    EXPECT_EQ(worker.opens, 1);
    EXPECT_EQ(worker.open_code, Errc::kWrongSecret) << worker.open_text;
    EXPECT_NE(worker.open_text.find("does not prove the job's secret"), std::string::npos)
        << worker.open_text;
    expect_nothing_left();
  }
}

TEST_F(DataSessionTest, WhoCanBeNoMemberOfAnyJobGetsNoSessionOfEitherKind) {
  start();
  for (const wire::SessionKind kind : {wire::SessionKind::kControl, wire::SessionKind::kData}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const auto refuses = [&](uint8_t role, uint16_t rank) {
      return refused_with([&](wire::Hello& h) {
        h.kind = kind;
        h.role = role;
        h.rank = rank;
      });
    };
    EXPECT_TRUE(refuses(2, 0)) << "there is no such role";
    EXPECT_TRUE(refuses(7, 0)) << "nor such a one";
    EXPECT_TRUE(refuses(0, kMaxWorkers)) << "no job has so many workers";
    EXPECT_TRUE(refuses(0, 0xffff)) << "nor so many";
    EXPECT_TRUE(refuses(1, kMaxServers)) << "or servers";
  }
  wire::Hello of_service = hello_of(0);
  of_service.job = "mercury.sockets";
  const SessionModel& session = hosts.connect_raw(address(3), of_service);
  hosts.run_for(0);
  EXPECT_EQ(session.refusal, "this host has no service 'mercury.sockets'");
  EXPECT_TRUE(a->status().ok());
  end();
}

TEST_F(DataSessionTest, StrangersGetNone) {
  start();
  const Token bound = served().to_workers.at(0);
  wire::Hello hello = hello_of(0);
  hello.proof[0] ^= 1;
  EXPECT_TRUE(refused(hello)) << "without the secret";
  EXPECT_TRUE(refused_with([](wire::Hello& h) { h.lane = 1; })) << "for a lane that is not there";
  EXPECT_TRUE(refused_with([](wire::Hello& h) { h.incarnation ^= 1; }))
      << "of a life that the roster does not name";
  EXPECT_TRUE(refused_with([](wire::Hello& h) { h.rank = 2; })) << "of a worker that is not one";
  EXPECT_TRUE(refused_with([](wire::Hello& h) { h.role = static_cast<uint8_t>(Role::kServer); }))
      << "of a server";
  const wire::Hello gone = hello_of(1);
  b->close();
  hosts.run_for(kSecond);
  EXPECT_TRUE(refused(gone)) << "of one that has left";
  EXPECT_EQ(served().to_workers.at(0), bound);
  EXPECT_TRUE(a->status().ok());
  a->close();
  expect_nothing_left();
}

// One of the job's servers has one engine, so it uses one of each.
TEST_F(DataSessionTest, NoneOnAnEngineThatTheJobDoesNotUse) {
  for (const int host : {1, 2}) hosts.add(host, 2, not_serving());
  hosts.add(3, 2, serving());
  hosts.add(4, 1, serving());
  a = &opens(1, request(0));
  b = &opens(2, request(1));
  hosts.run_for(kSecond);
  ASSERT_TRUE(a->is_open() && b->is_open());
  wire::Hello hello = hello_of(0);
  hello.lane = 1;
  sign(hello);
  const SessionModel& session = hosts.connect_raw(address(3, 1), hello);
  hosts.run_for(0);
  EXPECT_TRUE(session.ends[0].closed && !session.open);
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  end();
}

// A recorded HELLO, said again by somebody who does not know the key: few wait, and the worker
// keeps its own session.
TEST_F(DataSessionTest, RepeatedHellosAreFewAndTakeNothing) {
  start();
  const Token bound = served().to_workers.at(0);
  std::vector<SessionModel*> repeated;
  for (int i = 0; i < 20; ++i) {
    repeated.push_back(&hosts.connect_raw(address(3), hello_of(0)));
    repeated.back()->mute = true;
    hosts.run_for(0);
    EXPECT_TRUE(repeated.back()->open) << "whether the key is known shows later";
  }
  const auto waiting = std::count_if(repeated.begin(), repeated.end(),
                                     [](const SessionModel* s) { return !s->ends[1].closed; });
  EXPECT_EQ(waiting, 4);
  EXPECT_EQ(served().to_workers.at(0), bound);
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  end();
}

// The same before the worker has shown that it knows the key (disaster seed 100620794: its host
// stood still, and somebody repeated its HELLO).
TEST_F(JobTest, AWorkerWhoseSessionRepeatedHellosPushOutAsksAgain) {
  hosts.add(1, 1, not_serving());
  hosts.add(3, 1, serving());
  wire::Hello overheard;
  const SessionModel* first = nullptr;
  hosts.mutes = [&](SessionModel& session) {
    if (session.hello.kind != wire::SessionKind::kData) return false;
    if (first == nullptr) {
      first = &session;
      overheard = session.hello;
    }
    return &session == first || session.ends[0].host == 0;
  };
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(3)}));
  hosts.run_for(0);
  ASSERT_NE(first, nullptr);
  EXPECT_FALSE(worker.is_open());
  for (int i = 0; i < 4; ++i) {
    hosts.connect_raw(address(3), overheard);
    hosts.run_for(0);
  }
  EXPECT_TRUE(first->ends[1].closed) << "nothing was shown";
  hosts.run_for(kSecond);
  EXPECT_TRUE(worker.is_open()) << worker.open_text;
  worker.close();
  expect_nothing_left();
}

// Nor may a job that runs be taken for one operation to try again.
TEST_F(DataSessionTest, OneThatIsClosedForNowInARunningJobEndsItByName) {
  SessionModel* session = nullptr;
  hosts.mutes = [&session](SessionModel& accepted) {
    const bool first = session == nullptr && accepted.hello.rank == 0;
    if (first && accepted.hello.kind == wire::SessionKind::kData) session = &accepted;
    return false;
  };
  start();
  ASSERT_NE(session, nullptr);
  hosts.close(*session, 1, Errc::kAgain, "others asked for this session since");
  hosts.run_for(kSecond);
  ASSERT_FALSE(a->status().ok());
  EXPECT_EQ(a->status().error().code, Errc::kPeerLeft);
  EXPECT_NE(a->status().error().message.find("server 0 of 2"), std::string::npos)
      << a->status().error().message;
  end();
}

// One that shows the key is the worker: what it had before is over.
TEST_F(DataSessionTest, AnotherOpenSessionTakesTheFirstOnesPlace) {
  start();
  hosts.connect_raw(address(3), hello_of(0));
  hosts.run_for(kSecond);
  ASSERT_FALSE(a->status().ok()) << "its own session was closed";
  EXPECT_EQ(a->status().error().code, Errc::kPeerLeft);
  EXPECT_NE(a->status().error().message.find("the worker opened another session"),
            std::string::npos)
      << a->status().error().message;
  EXPECT_FALSE(b->status().ok());
  end();
}

TEST_F(JobTest, AServerThatWasStartedAgainIsToldFromTheOneInTheRoster) {
  hosts.add(1, 1, not_serving());
  hosts.add(3, 1, serving());
  hosts.answered = [](const wire::Hello& asked, wire::HelloAck& answer) {
    if (asked.kind != wire::SessionKind::kData) return;
    ++answer.incarnation;
    answer.proof = prove(derive_job_key("train", ""), asked.nonce, answer);
  };
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(3)}));
  hosts.run();
  EXPECT_EQ(worker.open_code, Errc::kPeerLeft);
  EXPECT_NE(worker.open_text.find("was started again"), std::string::npos) << worker.open_text;
  expect_nothing_left();
}

// Held while its server has no roster, a worker's HELLO loses its place to no other: neither to one
// of an earlier life nor to itself, said again by others. Of each few are held.
TEST_F(JobTest, RepeatedHellosPushNoneOutThatIsHeld) {
  hosts.add(2, 1, serving());
  hosts.add(3, 1, embedded_server());
  opens(3, job(Role::kServer, 1, 1, 2, {address(2), address(3)}));
  hosts.run_for(kSecond);
  wire::Hello hello;
  hello.kind = wire::SessionKind::kData;
  hello.job = "train";
  const auto says_hello = [&](uint32_t incarnation, const Endpoint& from) -> SessionModel& {
    hello.incarnation = incarnation;
    hello.proof = prove(derive_job_key("train", ""), hello);
    SessionModel& session = hosts.connect_raw(address(3), hello, from);
    hosts.run_for(0);
    return session;
  };
  const SessionModel& honest = says_hello(7, address(1));
  std::vector<const SessionModel*> repeated;
  for (int i = 0; i < 50; ++i) {
    repeated.push_back(&says_hello(7, address(10 + i)));                            // itself
    repeated.push_back(&says_hello(static_cast<uint32_t>(100 + i), address(200)));  // others
    repeated.push_back(&says_hello(8, address(100 + i)));  // one of them, from everywhere
  }
  EXPECT_EQ(honest.refusal, "");
  EXPECT_FALSE(honest.ends[0].closed);
  EXPECT_EQ(std::count_if(repeated.begin(), repeated.end(),
                          [](const SessionModel* s) { return s->refusal.empty(); }),
            3 + 4 + 4);
  says_hello(7, address(1));  // the worker's own, again: it is told to ask later
  hosts.run();
}

// A server has its roster later than the worker, and no room to keep HELLOs until then.
TEST_F(JobTest, AWorkerThatIsRefusedForNowAsksAgain) {
  int refused = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    hosts = Hosts(seed);
    const std::vector<Endpoint> servers = add_worker_and_servers();
    ProgramModel& server = opens(3, job(Role::kServer, 1, 1, 2, servers));
    hosts.run_for(kSecond);
    for (int i = 0; i < 300; ++i) {
      hosts.connect_raw(address(3), control_hello("other" + std::to_string(i), ""));
    }
    hosts.run_for(0);
    hosts.log.clear();
    ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 2, servers));
    hosts.run_for(5 * kSecond);
    for (const std::string& line : hosts.log) {
      refused += says(line, "for job 'train'") && says(line, "too many hosts wait here");
    }
    EXPECT_TRUE(worker.is_open()) << worker.open_text;
    worker.close();
    hosts.run();
    server.close();
    expect_nothing_left();
  }
  EXPECT_GT(refused, 0) << "nothing was shown";
}

}  // namespace
}  // namespace mercury::test
