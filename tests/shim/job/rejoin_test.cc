// Workers that are lost and come back into a running job.
#include <set>

#include "tests/seeds.h"
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

class RejoinTest : public RunningTest {
 protected:
  RejoinTest() : RunningTest(kMinute) {}
};

TEST_F(RejoinTest, ANextLifeTakesItsPlaceInTheRoundsThatRun) {
  for (int lanes : {1, 2}) {
    hosts = Hosts();
    start(lanes);
    a->declare(tensors(0, 3));
    b->declare(tensors(0, 3));
    hosts.run_for(kSecond);
    // Server 3 is a round behind in tensor 1; nobody says anything of tensor 2.
    for (int lane = 0; lane < lanes; ++lane) {
      engine_job(3, lane, JobSlot(0)).rounds = {{0, 5}, {1, 4}};
      engine_job(4, lane, JobSlot(0)).rounds = {{0, 5}, {1, 5}};
    }
    b->gone();
    hosts.run_for(5 * kSecond);
    EXPECT_TRUE(a->status().ok()) << a->status().error().message;
    ProgramModel& again = opens(2, request(1));
    hosts.run_for(kSecond);
    ASSERT_TRUE(again.is_open()) << again.open_text;
    EXPECT_EQ(again.opened.rank, 1);
    EXPECT_EQ(again.opened.chunk_bytes, a->opened.chunk_bytes);
    again.declare(tensors(0, 4));
    hosts.run_for(kSecond);
    ASSERT_TRUE(again.declared.ok());
    const auto first = [&](uint32_t tensor) {
      const Round round = engine_job(2, 0, again.slot).tensors.at(tensor).first_round;
      EXPECT_EQ(hosts.manager(2).first_round(again.client, again.slot, TensorId(tensor)), round);
      return round.value;
    };
    EXPECT_EQ(first(0), 5u);
    EXPECT_EQ(first(1), 4u);
    EXPECT_EQ(first(2), 1u);
    EXPECT_EQ(first(3), 1u);  // new to all
    EXPECT_EQ(engine_job(1, 0, a->slot).refills, 1);
    EXPECT_EQ(engine_job(2, 0, again.slot).refills, 0);
    EXPECT_TRUE(a->status().ok());
    b = &again;
    end();
    if (HasFatalFailure()) return;
  }
}

// A server, or an engine of one, that heard late of the next life went on without the last one
// under a quorum: it has no sum of the round that the others were in when they heard.
TEST_F(RejoinTest, ANextLifeBeginsWhereAllServersHaveTheSums) {
  for (int late : {0, 1}) {
    hosts = Hosts();
    start(2);
    a->declare(tensors(0, 2));
    b->declare(tensors(0, 2));
    hosts.run_for(kSecond);
    for (int server : {3, 4}) {
      for (int lane : {0, 1}) {
        const bool is_late = late == 0 ? server == 4 : lane == 1;
        engine_job(server, lane, JobSlot(0)).rounds = {{0, is_late ? 4 : 1}, {1, is_late ? 2 : 1}};
      }
    }
    b->gone();
    hosts.run_for(5 * kSecond);
    ProgramModel& again = opens(2, request(1));
    hosts.run_for(kSecond);
    ASSERT_TRUE(again.is_open()) << again.open_text;
    again.declare(tensors(0, 2));
    hosts.run_for(kSecond);
    const auto first = [&](uint32_t tensor) {
      return engine_job(2, 0, again.slot).tensors.at(tensor).first_round.value;
    };
    EXPECT_EQ(first(0), 3U);
    EXPECT_EQ(first(1), 1U);
    b = &again;
    end();
    if (HasFatalFailure()) return;
  }
}

TEST_F(RejoinTest, WhoeverNamesNoRankGetsTheVacantOne) {
  start();
  a->gone();
  hosts.run_for(kSecond);
  a = &opens(1, request(-1));
  hosts.run_for(kSecond);
  ASSERT_TRUE(a->is_open()) << a->open_text;
  EXPECT_EQ(a->opened.rank, 0);
  end();
}

TEST_F(RejoinTest, NobodyComesBackAndTheJobFailsByName) {
  start();
  b->gone();
  hosts.run_for(kMinute - kSecond);
  EXPECT_TRUE(a->status().ok());
  hosts.run_for(2 * kSecond);
  ASSERT_FALSE(a->status().ok());
  EXPECT_EQ(a->status().error().code, Errc::kPeerLeft);
  EXPECT_NE(a->status().error().message.find("worker 1 of 2 (10.0.0.2:7470)"), std::string::npos)
      << a->status().error().message;
  EXPECT_EQ(engine_job(1, 0, a->slot).failed, Errc::kPeerLeft);
  a->close();
  expect_nothing_left();
}

// The host vanishes, and the worker is started on another one before anybody has noticed.
TEST_F(RejoinTest, ANextLifeWaitsUntilItsLastOneIsKnownToBeDead) {
  start();
  hosts.add(5, 1, not_serving());
  hosts.kill(2);
  hosts.run_for(kSecond);
  ProgramModel& again = opens(5, request(1));
  hosts.run_for(Hosts::kPeerTimeoutNs - 2 * kSecond);
  EXPECT_EQ(again.opens, 0);
  hosts.run_for(3 * kSecond);
  ASSERT_TRUE(again.is_open()) << again.open_text;
  EXPECT_TRUE(a->status().ok());
  b = &again;
  end();
}

TEST_F(RejoinTest, ALivingWorkerKeepsItsPlace) {
  start();
  hosts.add(5, 1, not_serving());
  ProgramModel& second = opens(5, request(1));
  hosts.run_for(31 * kSecond);
  EXPECT_EQ(second.open_code, Errc::kRankTaken) << second.open_text;
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  end();
}

TEST_F(RejoinTest, TheOptionIsTheSameForAllWorkers) {
  for (int host : {1, 2}) hosts.add(host, 1, not_serving());
  hosts.add(3, 1, serving());
  OpenJob with = job(Role::kWorker, 0, 2, 1, {address(3)});
  with.terms.rejoin_ms = to_ms(kMinute);
  ProgramModel& first = opens(1, with);
  hosts.run_for(kSecond);
  ProgramModel& other = opens(2, job(Role::kWorker, 1, 2, 1, {address(3)}));
  hosts.run_for(kSecond);
  EXPECT_EQ(other.open_code, Errc::kWrongSizes) << other.open_text;
  first.gone();
  expect_nothing_left();
}

TEST_F(RejoinTest, DiesAgainWhileItComesBack) {
  start();
  b->gone();
  hosts.run_for(kSecond);
  for (int steps = 0; steps < 60; ++steps) {
    ProgramModel& again = opens(2, request(1));
    for (int i = 0; i < steps; ++i) hosts.step();
    again.gone();
    hosts.run_for(kSecond / 10);
    ASSERT_TRUE(a->status().ok()) << a->status().error().message << " after " << steps;
  }
  b = &opens(2, request(1));
  hosts.run_for(kSecond);
  ASSERT_TRUE(b->is_open()) << b->open_text;
  EXPECT_TRUE(a->status().ok());
  end();
}

// Whatever keeps a next life from being let in, and however long it would wait itself, the
// others wait no longer than twice rejoin_ms.
TEST_F(RejoinTest, AFenceThatAServerNeverEndsFailsTheJobByName) {
  start();
  engine_job(4, 0, JobSlot(0)).fences = false;
  b->gone();
  hosts.run_for(kMinute / 2);
  OpenJob patient = request(1);
  patient.timeout_ns = 60 * kMinute;
  b = &opens(2, patient);
  hosts.run_for(kMinute + kMinute / 2 - kSecond);
  EXPECT_TRUE(a->status().ok()) << a->status().error().message;
  EXPECT_EQ(b->opens, 0);
  hosts.run_for(2 * kSecond);
  ASSERT_FALSE(a->status().ok());
  EXPECT_TRUE(says(a->status().error().message, "worker 1 of 2")) << a->status().error().message;
  EXPECT_TRUE(says(a->status().error().message, "server 1 of 2 (10.0.0.4:7470) does not answer"))
      << a->status().error().message;
  EXPECT_EQ(b->opens, 1);
  end();
}

TEST_F(RejoinTest, ANextLifeThatCannotConnectFailsTheJob) {
  start();
  b->gone();
  hosts.run_for(kSecond);
  hosts.probes = false;
  OpenJob patient = request(1);
  patient.timeout_ns = 60 * kMinute;
  b = &opens(2, patient);
  hosts.run_for(2 * kMinute - 2 * kSecond);
  EXPECT_TRUE(a->status().ok()) << a->status().error().message;
  EXPECT_EQ(b->opens, 0);
  hosts.run_for(2 * kSecond);
  ASSERT_FALSE(a->status().ok());
  EXPECT_TRUE(says(a->status().error().message, "did not connect")) << a->status().error().message;
  EXPECT_EQ(b->opens, 1);
  end();
}

// A program that crashes as often as it is started must not keep the others waiting for ever.
TEST_F(RejoinTest, CrashingAgainAndAgainWithoutARoundFailsTheJob) {
  start();
  a->declare(tensors(0, 1));
  b->declare(tensors(0, 1));
  hosts.run_for(kSecond);
  engine_job(3, 0, JobSlot(0)).rounds = {{0, 5}};
  int lives = 0;
  while (a->status().ok() && lives < 20) {
    b->gone();
    hosts.run_for(10 * kSecond);
    b = &opens(2, request(1));
    hosts.run_for(5 * kSecond);
    ++lives;
  }
  EXPECT_GT(lives, 3);
  EXPECT_LT(lives, 8);
  ASSERT_FALSE(a->status().ok());
  EXPECT_NE(a->status().error().message.find("worker 1"), std::string::npos);
  EXPECT_NE(a->status().error().message.find("no round was completed"), std::string::npos);
  end();
}

// Each came back in time, and the second loss was no consequence of the first.
TEST_F(RejoinTest, TwoThatAreLostOneAfterTheOtherHaveTheirTimeEach) {
  start();
  a->declare(tensors(0, 1));
  b->declare(tensors(0, 1));
  hosts.run_for(kSecond);
  engine_job(3, 0, JobSlot(0)).rounds = {{0, 5}};
  a->gone();
  hosts.run_for(40 * kSecond);
  b->gone();
  hosts.run_for(15 * kSecond);
  a = &opens(1, request(0));
  hosts.run_for(10 * kSecond);
  b = &opens(2, request(1));  // 65 s after the first loss, 25 after its own
  hosts.run_for(10 * kSecond);
  EXPECT_TRUE(a->is_open() && b->is_open()) << a->open_text << b->open_text;
  EXPECT_TRUE(a->status().ok());
  end();
}

TEST_F(RejoinTest, ItMayComeBackAsOftenAsRoundsComplete) {
  start();
  a->declare(tensors(0, 1));
  b->declare(tensors(0, 1));
  hosts.run_for(kSecond);
  for (uint32_t life = 0; life < 20; ++life) {
    engine_job(3, 0, JobSlot(0)).rounds = {{0, life}};
    b->gone();
    hosts.run_for(20 * kSecond);
    b = &opens(2, request(1));
    hosts.run_for(20 * kSecond);
    ASSERT_TRUE(b->is_open() && a->status().ok()) << life;
  }
  end();
}

TEST_F(RejoinTest, BothWorkersMayBeLostAtOnce) {
  start();
  a->gone();
  b->gone();
  hosts.run_for(kSecond);
  b = &opens(2, request(1));
  a = &opens(1, request(0));
  hosts.run_for(kSecond);
  EXPECT_TRUE(a->is_open() && b->is_open()) << a->open_text << b->open_text;
  end();
}

// Whatever the servers have said of the second when the first one asks for its rounds.
TEST_F(RejoinTest, DeclaresWhileTheNextOneIsFencedOff) {
  for (int steps = 0; steps < 40; ++steps) {
    SCOPED_TRACE("steps " + std::to_string(steps));
    hosts = Hosts();
    start();
    a->declare(tensors(0, 1));
    b->declare(tensors(0, 1));
    hosts.run_for(kSecond);
    for (int server : {3, 4}) engine_job(server, 0, JobSlot(0)).rounds = {{0, 5}};
    a->gone();
    b->gone();
    hosts.run_for(kSecond);
    a = &opens(1, request(0));
    hosts.run_for(kSecond);
    b = &opens(2, request(1));
    for (int i = 0; i < steps; ++i) hosts.step();
    a->declare(tensors(0, 1));
    hosts.run_for(kSecond);
    ASSERT_TRUE(a->declared.ok() && b->is_open()) << b->open_text;
    b->declare(tensors(0, 1));
    hosts.run_for(kSecond);
    for (const ProgramModel* program : {a, b}) {
      EXPECT_EQ(hosts.manager(program->host).first_round(program->client, program->slot, 0),
                Round(5));
    }
    end();
    if (HasFailure()) return;
  }
}

TEST_F(RejoinTest, NobodyIsAwaitedOnceAWorkerHasLeft) {
  start();
  b->gone();
  hosts.run_for(kSecond);
  a->close();  // it does not wait for b
  hosts.run_for(kSecond);
  EXPECT_EQ(a->closes, 1);
  ProgramModel& again = opens(2, request(1));
  hosts.run_for(31 * kSecond);
  EXPECT_FALSE(again.is_open());
  again.gone();
  expect_nothing_left();
}

TEST_F(RejoinTest, AWorkerLostAfterAnotherLeftFailsTheJobAtOnce) {
  start();
  a->close();
  hosts.run_for(kSecond);
  b->gone();
  expect_nothing_left();
}

TEST_F(RejoinTest, AServerThatIsLostFailsTheJobAllTheSame) {
  start();
  hosts.kill(4);
  hosts.run();
  for (ProgramModel* p : {a, b}) {
    ASSERT_FALSE(p->status().ok());
    EXPECT_NE(p->status().error().message.find("server 1 of 2 (10.0.0.4:7470)"), std::string::npos)
        << p->status().error().message;
  }
  end();
}

// A next life whose path is narrower than what the job's frames need is refused, and others may
// still come.
TEST_F(RejoinTest, ANarrowPathIsRefusedByName) {
  start();
  b->gone();
  hosts.run_for(kSecond);
  hosts.path_payload = 1232;
  ProgramModel& narrow = opens(2, request(1));
  hosts.run_for(kSecond);
  EXPECT_EQ(narrow.open_code, Errc::kUnsupported) << narrow.open_text;
  hosts.path_payload = 1472;
  b = &opens(2, request(1));
  hosts.run_for(kSecond);
  EXPECT_TRUE(b->is_open()) << b->open_text;
  end();
}

// What its path does not carry whole goes in parts, if its port carries it.
TEST_F(RejoinTest, ANarrowPathThatCarriesTheJobsFramesInPartsIsEnough) {
  start();
  b->gone();
  hosts.run_for(kSecond);
  hosts.path_payload = 1232;
  hosts.in_parts = 1471;
  ProgramModel& narrow = opens(2, request(1));
  hosts.run_for(kSecond);
  EXPECT_EQ(narrow.open_code, Errc::kUnsupported) << narrow.open_text;
  hosts.in_parts = 1472;
  b = &opens(2, request(1));
  hosts.run_for(kSecond);
  EXPECT_TRUE(b->is_open()) << b->open_text;
  end();
}

// Three workers, two of whom are enough.
class QuorumJobTest : public JobTest {
 protected:
  OpenJob request(int rank, uint64_t rejoin_ns = 0) {
    OpenJob open = job(Role::kWorker, rank, 3, 1, {address(4)});
    open.terms.quorum = 2;
    open.terms.patience_ms = to_ms(kSecond / 10);
    open.terms.rejoin_ms = to_ms(rejoin_ns);
    return open;
  }
  // The server has a push of tensor 4, which needs these, too.
  void push_in_vain(uint64_t missing) {
    hosts.host(4).lanes[0].events.push_back(
        event::RoundHopeless{JobSlot(0), 4, 1, {missing, 0, 0, 0}});
    hosts.run_for(kSecond);
  }
  void start(uint64_t rejoin_ns = 0) {
    for (int host : {1, 2, 3}) hosts.add(host, 1, not_serving());
    hosts.add(4, 1, serving());
    for (int i : {0, 1, 2}) w[i] = &opens(i + 1, request(i, rejoin_ns));
    hosts.run_for(kSecond);
    for (ProgramModel* p : w) ASSERT_TRUE(p->is_open()) << p->open_text;
  }
  const std::set<Rank>& withdrawn() { return engine_job(4, 0, JobSlot(0)).withdrawn; }
  ProgramModel* w[3] = {};
};

TEST_F(QuorumJobTest, TheEnginesAreTold) {
  start();
  const auto& server = engine_job(4, 0, JobSlot(0)).server_spec;
  EXPECT_EQ(server.terms.quorum, 2u);
  EXPECT_EQ(server.terms.patience_ms, to_ms(kSecond / 10));
  EXPECT_EQ(engine_job(1, 0, w[0]->slot).worker_spec.terms.quorum, 2u);
  for (ProgramModel* p : w) p->close();
  expect_nothing_left();
}

TEST_F(QuorumJobTest, GoesOnWithoutALostWorkerForAsLongAsItTakes) {
  start();
  hosts.kill(3);
  hosts.run_for(kMinute);
  EXPECT_TRUE(w[0]->status().ok() && w[1]->status().ok());
  EXPECT_EQ(withdrawn(), (std::set<Rank>{2}));
  hosts.add(5, 1, not_serving());
  w[2] = &opens(5, request(2));
  hosts.run_for(kSecond);
  EXPECT_TRUE(w[2]->is_open()) << w[2]->open_text;
  EXPECT_TRUE(withdrawn().empty());
  for (ProgramModel* p : w) p->close();
  expect_nothing_left();
}

TEST_F(QuorumJobTest, FailsByNameWithoutItsQuorum) {
  start();
  w[2]->gone();
  hosts.run_for(kSecond);
  EXPECT_TRUE(w[0]->status().ok());
  w[1]->gone();
  hosts.run_for(kSecond);
  ASSERT_FALSE(w[0]->status().ok());
  EXPECT_NE(w[0]->status().error().message.find("worker 1 of 3"), std::string::npos);
  w[0]->close();
  expect_nothing_left();
}

TEST_F(QuorumJobTest, WaitsForThoseItNeedsIfItMay) {
  start(kMinute);
  w[2]->gone();
  w[1]->gone();
  hosts.run_for(kMinute / 2);
  EXPECT_TRUE(w[0]->status().ok());
  w[1] = &opens(2, request(1, kMinute));
  hosts.run_for(2 * kMinute);
  EXPECT_TRUE(w[1]->is_open()) << w[1]->open_text;
  EXPECT_TRUE(w[0]->status().ok()) << "two are enough";
  w[1]->gone();
  hosts.run_for(kMinute + kSecond);
  EXPECT_FALSE(w[0]->status().ok());
  w[0]->close();
  expect_nothing_left();
}

TEST_F(QuorumJobTest, EndsInOrderWhateverWasLostBefore) {
  start();
  w[2]->gone();
  hosts.run_for(kSecond);
  w[1]->declare(tensors(4, 1));
  w[0]->close();
  hosts.run_for(kMinute);
  EXPECT_TRUE(w[1]->status().ok());
  push_in_vain(0b101);
  ASSERT_FALSE(w[1]->status().ok()) << "it is alone";
  EXPECT_EQ(w[1]->status().error().code, Errc::kPeerLeft);
  EXPECT_TRUE(says(w[1]->status().error().message, "worker 0 of 3 (10.0.0.1:7470) left the job"));
  w[1]->close();
  expect_nothing_left();
}

TEST_F(QuorumJobTest, WhoLeavesInOrderIsNotMissedWhileEnoughAreThere) {
  start();
  w[2]->declare(tensors(4, 1));
  w[0]->close();
  hosts.run_for(kMinute);
  EXPECT_TRUE(w[1]->status().ok() && w[2]->status().ok());
  EXPECT_EQ(withdrawn(), (std::set<Rank>{0}));
  EXPECT_FALSE(engine_job(4, 0, JobSlot(0)).ending);
  w[1]->close();
  hosts.run_for(kMinute);
  EXPECT_TRUE(w[2]->status().ok()) << "nobody waits for it";
  EXPECT_TRUE(engine_job(4, 0, JobSlot(0)).ending);
  push_in_vain(0b010);
  ASSERT_FALSE(w[2]->status().ok());
  EXPECT_TRUE(says(w[2]->status().error().message, "worker 1 of 3 (10.0.0.2:7470) left the job"));
  w[2]->close();
  expect_nothing_left();
}

TEST_F(QuorumJobTest, ImpossibleOptionsAreRefused) {
  hosts.add(1, 1, not_serving());
  const auto code_of = [&](auto change) {
    OpenJob open = request(0);
    change(open);
    ProgramModel& p = opens(1, open);
    hosts.run_for(1);
    return p.open_code;
  };
  EXPECT_EQ(code_of([](OpenJob& o) { o.terms.quorum = 4; }), Errc::kInvalidArgument);
  EXPECT_EQ(code_of([](OpenJob& o) { o.terms.patience_ms = 0; }), Errc::kInvalidArgument);
  EXPECT_EQ(code_of([](OpenJob& o) { o.terms.deterministic = true; }), Errc::kInvalidArgument);
}

// Every worker is lost at some time, in any order of events; every job goes on or fails by name.
TEST(RejoinSeeds, WhateverIsLostEveryQuestionIsAnsweredAndNothingIsLeft) {
  for_each_seed(1500, [](uint64_t seed) {
    Hosts hosts(seed);
    auto& random = hosts.random();
    for (int host : {1, 2, 3}) hosts.add(host, 1 + static_cast<int>(seed % 2), not_serving());
    for (int host : {4, 5}) hosts.add(host, 1 + static_cast<int>(seed % 2), serving());
    std::vector<std::unique_ptr<ProgramModel>> programs;
    const auto open = [&](int rank) {
      programs.push_back(std::make_unique<ProgramModel>());
      programs.back()->hosts = &hosts;
      programs.back()->host = rank + 1;
      programs.back()->client = programs.size();
      OpenJob request = job(Role::kWorker, rank, 3, 2, {address(4), address(5)});
      request.terms.rejoin_ms = to_ms(20 * kSecond);
      if (seed % 3 == 0) {
        request.terms.quorum = 2;
        request.terms.patience_ms = to_ms(kSecond);
      }
      programs.back()->open(request);
      return programs.back().get();
    };
    std::vector<ProgramModel*> now{open(0), open(1), open(2)};
    hosts.run_for(kSecond);
    int declares = 0;
    for (int strike = 0; strike < 8; ++strike) {
      const size_t victim = random() % 3;
      if (now[victim]->is_open() && random() % 2 == 0) {
        now[victim]->declare(tensors(static_cast<uint32_t>(programs.size() * 4), 2));
        ++declares;
      }
      for (uint64_t steps = random() % 60; steps > 0; --steps) hosts.step();
      now[victim]->gone();
      for (uint64_t steps = random() % 60; steps > 0; --steps) hosts.step();
      if (random() % 4 == 0) hosts.run_for(random() % (15 * kSecond));
      now[victim] = open(static_cast<int>(victim));
      if (random() % 2 == 0) hosts.run_for(kSecond);
    }
    hosts.run_for(40 * kSecond);
    for (ProgramModel* p : now) EXPECT_EQ(p->opens, 1);
    for (auto& p : programs) p->gone();
    hosts.run();
    EXPECT_EQ(hosts.leftovers(), "");
    int answers = 0;
    for (auto& p : programs) answers += p->declares;
    EXPECT_EQ(answers, declares);
  });
}

}  // namespace
}  // namespace mercury::test
