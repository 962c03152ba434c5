#include "shim/job/messages.h"
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

TEST_F(RunningTest, DeclarationsMeetOnEveryEngine) {
  start(2);
  a->declare(tensors(0, 10000));  // several batches
  b->declare(tensors(0, 10000));
  hosts.run();
  EXPECT_TRUE(a->declares == 1 && b->declares == 1);
  EXPECT_TRUE(a->declared.ok() && b->declared.ok());
  for (int host : {1, 2, 3, 4}) {
    for (int lane : {0, 1}) {
      EXPECT_EQ(engine_job(host, lane, JobSlot(0)).tensors.size(), 10000u) << host;
    }
  }
  end();
}

TEST_F(RunningTest, DeclarationNeedNotWaitForOtherWorkers) {
  start();
  a->declare(tensors(0, 1));
  hosts.run();
  EXPECT_TRUE(a->declares == 1 && a->declared.ok());
  EXPECT_EQ(engine_job(4, 0, JobSlot(0)).tensors.size(), 1u);
  end();
}

TEST_F(RunningTest, MismatchIsToldToTheLateOneOnly) {
  start();
  a->declare(tensors(0, 5, 1000));
  hosts.run();
  auto wrong = tensors(0, 5, 1000);
  wrong[4].numel = 1001;
  b->declare(wrong);
  hosts.run();
  ASSERT_EQ(b->declared.ok(), false);
  EXPECT_EQ(b->declared.error().code, Errc::kTensorMismatch);
  EXPECT_EQ(b->declared.error().message,
            "tensor 4 is declared by worker 1 as 1001 x f32, sum, by worker 0 as 1000 x f32, sum");
  EXPECT_TRUE(engine_job(2, 0, JobSlot(0)).tensors.empty());
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  b->declare(tensors(0, 5, 1000));  // corrected
  hosts.run();
  EXPECT_EQ(b->declares, 2);
  EXPECT_TRUE(b->declared.ok());
  end();
}

TEST_F(RunningTest, BadDeclarationsStayOnTheirHost) {
  start();
  a->declare(tensors(0, 2));
  hosts.run();
  const auto code_of = [&](std::vector<TensorDeclaration> list) {
    a->declare(std::move(list));
    hosts.run();
    return a->declared.ok() ? Errc::kOk : a->declared.error().code;
  };
  EXPECT_EQ(code_of(tensors(1, 1)), Errc::kExists);
  auto twice = tensors(7, 1);
  twice.push_back(twice.front());
  EXPECT_EQ(code_of(twice), Errc::kExists);
  EXPECT_EQ(code_of(tensors(0x80000000u, 1)), Errc::kInvalidArgument);
  EXPECT_EQ(code_of(tensors(9, 1, 0)), Errc::kInvalidArgument);
  EXPECT_EQ(code_of(tensors(9, 1, uint64_t{1} << 50)), Errc::kInvalidArgument);  // chunks
  auto average = tensors(9, 1);
  average[0].dtype = Dtype::kI32;
  average[0].op = ReduceOp::kAverage;
  EXPECT_EQ(code_of(average), Errc::kUnsupported);
  EXPECT_EQ(code_of({}), Errc::kOk);
  EXPECT_EQ(code_of(tensors(9, 70000)), Errc::kLimit);
  EXPECT_EQ(code_of(tensors(9, 1)), Errc::kOk);
  end();
}

// One server of two is of the version before: it would take such a declaration for a breach of the
// protocol, and the job would fail.
TEST_F(RunningTest, WhatAServerDoesNotKnowIsRefusedWhereItIsDeclared) {
  hosts.translate = [](std::vector<std::byte>& bytes) {
    const Result<Message> message = decode_message(bytes);
    ASSERT_TRUE(message);
    const auto* join = std::get_if<message::Join>(&*message);
    if (!join || join->role != Role::kServer || join->lanes.front() == address(3)) return;
    message::Join theirs = *join;
    theirs.features &= ~(kKnowsReductions | kKnowsParts);
    bytes = encode(theirs);
  };
  start(1);
  EXPECT_EQ(a->opened.server_features & (kKnowsReductions | kKnowsParts), 0U);
  EXPECT_NE(a->opened.server_features & kKnowsEndings, 0U) << "what both know";
  const auto code_of = [&](Dtype dtype, ReduceOp op) {
    auto list = tensors(9, 1);
    list[0].dtype = dtype;
    list[0].op = op;
    a->declare(std::move(list));
    hosts.run();
    return a->declared.ok() ? Errc::kOk : a->declared.error().code;
  };
  EXPECT_EQ(code_of(Dtype::kU8, ReduceOp::kSum), Errc::kVersionMismatch);
  EXPECT_NE(a->declared.error().message.find("u8 sum"), std::string::npos)
      << a->declared.error().message;
  EXPECT_EQ(code_of(Dtype::kF32, ReduceOp::kMin), Errc::kVersionMismatch);
  EXPECT_EQ(code_of(Dtype::kI64, ReduceOp::kSum), Errc::kOk) << "the job goes on";
  end();
}

TEST_F(RunningTest, CoordinatorsTensorLimitIsAnAnswerNotAnEnd) {
  JobPolicy policy = serving();
  policy.max_tensors = 10;
  start(1, policy);
  a->declare(tensors(0, 11));
  hosts.run();
  ASSERT_FALSE(a->declared.ok());
  EXPECT_EQ(a->declared.error().code, Errc::kLimit);
  a->declare(tensors(0, 10));
  hosts.run();
  EXPECT_TRUE(a->declared.ok());
  end();
}

TEST_F(RunningTest, EngineWithoutMemoryFailsTheJobWithItsReason) {
  start();
  hosts.host(4).lanes[0].tensor_limit = 2;
  a->declare(tensors(0, 3));
  hosts.run();
  for (ProgramModel* p : {a, b}) {
    ASSERT_FALSE(p->status().ok());
    EXPECT_EQ(p->status().error().code, Errc::kNoMemory);
    EXPECT_NE(p->status().error().message.find("server 1 of 2 (10.0.0.4:7470)"), std::string::npos)
        << p->status().error().message;
  }
  EXPECT_EQ(a->declares, 1);
  end();
}

// --- ends ------------------------------------------------------------------------------------

TEST_F(RunningTest, WorkerThatDiesFailsTheOthersByName) {
  start();
  hosts.kill(2);
  b->hosts = nullptr;
  hosts.run();
  ASSERT_FALSE(a->status().ok());
  EXPECT_EQ(a->status().error().code, Errc::kPeerLost);
  EXPECT_NE(a->status().error().message.find("worker 1 of 2 (10.0.0.2:7470)"), std::string::npos)
      << a->status().error().message;
  EXPECT_EQ(engine_job(1, 0, a->slot).failed, Errc::kPeerLost);
  EXPECT_TRUE(hosts.manager(3).idle() && hosts.manager(4).idle());  // memory is given back
  a->close();
  expect_nothing_left();
}

TEST_F(RunningTest, ProgramThatDiesFailsTheOthersByName) {
  start();
  a->declare(tensors(0, 1));
  b->gone();
  hosts.run();
  EXPECT_EQ(b->gones, 1);
  ASSERT_FALSE(a->status().ok());
  EXPECT_EQ(a->status().error().code, Errc::kPeerLeft);
  EXPECT_NE(a->status().error().message.find("worker 1 of 2 (10.0.0.2:7470)"), std::string::npos)
      << a->status().error().message;
  a->wait();
  a->declare(tensors(5, 1));
  hosts.run();
  EXPECT_EQ(a->waits, 1);
  EXPECT_FALSE(a->waited.ok());
  EXPECT_FALSE(a->declared.ok());
  a->close();
  expect_nothing_left();
}

TEST_F(RunningTest, ServerThatDiesFailsAllWorkers) {
  start();
  hosts.kill(4);
  hosts.run();
  for (ProgramModel* p : {a, b}) {
    ASSERT_FALSE(p->status().ok());
    EXPECT_EQ(p->status().error().code, Errc::kPeerLost);
    EXPECT_NE(p->status().error().message.find("server 1 of 2 (10.0.0.4:7470)"), std::string::npos)
        << p->status().error().message;
  }
  end();
}

TEST_F(RunningTest, CoordinatorThatDiesFailsAll) {
  start();
  hosts.kill(3);
  hosts.run();
  for (ProgramModel* p : {a, b}) {
    ASSERT_FALSE(p->status().ok());
    EXPECT_EQ(p->status().error().code, Errc::kPeerLost);
  }
  EXPECT_TRUE(hosts.manager(4).idle());
  end();
}

// The other server has not heard yet that the coordinator died when its next life calls.
TEST_F(RunningTest, AJobIsOpenedAgainWhereServersStillBelongToTheLastOne) {
  start();
  hosts.kill(3);
  a->gone();
  b->gone();
  hosts.run_for(1);
  hosts.add(3, 1, serving());
  ProgramModel& next = opens(1, job(Role::kWorker, 0, 1, 2, {address(3), address(4)}));
  hosts.run_for(kSecond);
  EXPECT_FALSE(next.is_open());
  EXPECT_FALSE(hosts.manager(4).idle());
  hosts.run_for(20 * kSecond);
  EXPECT_TRUE(next.is_open()) << next.open_text;
  next.close();
  expect_nothing_left();
}

TEST_F(RunningTest, LeavingInOrderLetsTheOthersFinish) {
  start();
  b->declare(tensors(4, 2));
  hosts.run();
  a->close();
  hosts.run_for(kMinute);
  EXPECT_EQ(a->closes, 1);
  EXPECT_TRUE(b->status().ok()) << "nobody waits for it";
  for (const int host : {3, 4}) {
    EXPECT_EQ(engine_job(host, 0, JobSlot(0)).withdrawn, std::set<Rank>{0});
    EXPECT_TRUE(engine_job(host, 0, JobSlot(0)).ending);
    EXPECT_FALSE(hosts.manager(host).idle());
  }
  b->close();
  expect_nothing_left();
  EXPECT_FALSE(std::any_of(hosts.log.begin(), hosts.log.end(),
                           [](const std::string& line) { return says(line, "failed"); }));
}

// Server 1's engine has a push of worker 1, and will have none of worker 0.
TEST_F(RunningTest, WhoWaitsForOneThatHasLeftIsToldAtOnce) {
  start();
  b->declare(tensors(4, 2));
  hosts.run();
  a->close();
  hosts.run();
  const auto pushed = [this](uint32_t tensor, uint32_t round) {
    hosts.host(4).lanes[0].events.push_back(
        event::RoundHopeless{JobSlot(0), {TensorId(tensor), Round(round)}, {1, 0, 0, 0}});
    hosts.run_for(kSecond / 1000);  // nothing waits for a time limit
  };
  const std::string why =
      "worker 0 of 2 (10.0.0.1:7470) left the job while tensor 4 waits for it in round 3; it had "
      "not declared tensor 4 and 1 more";
  b->wait();
  hosts.run();
  EXPECT_EQ(b->waits, 0);
  pushed(4, 3);
  EXPECT_EQ(b->waits, 1);
  b->wait();
  hosts.run_for(kSecond / 1000);
  EXPECT_EQ(b->waits, 2) << "at once";
  EXPECT_FALSE(b->waited.ok());
  ASSERT_FALSE(b->status().ok());
  EXPECT_EQ(b->status().error().code, Errc::kPeerLeft);
  EXPECT_EQ(b->status().error().message, why);
  auto& engine = engine_job(2, 0, b->slot);
  EXPECT_EQ(engine.failed, Errc::kOk) << "all else goes on";
  EXPECT_EQ(engine.failed_rounds.size(), 1U);
  EXPECT_EQ(engine.failed_rounds[4].from.round.value, 3U);
  EXPECT_EQ(engine.failed_rounds[4].code, Errc::kPeerLeft);
  pushed(4, 3);  // another server says so, too
  pushed(4, 2);
  EXPECT_EQ(engine.failed_rounds[4].from.round.value, 2U);
  pushed(5, 7);
  EXPECT_EQ(engine.failed_rounds[5].from.round.value, 7U);
  pushed(99, 1);  // no tensor of the job
  EXPECT_EQ(engine.failed_rounds.size(), 2U);
  EXPECT_EQ(b->status().error().message, why) << "the first is the reason";
  b->close();
  expect_nothing_left();
  for (const std::string host : {"2", "3", "4"}) {  // and none says that all was well
    std::vector<std::string> said;
    for (const std::string& line : hosts.log) {
      if (line.starts_with(host + ": ") && !says(line, "opened")) said.push_back(line);
    }
    EXPECT_EQ(said, std::vector{host + ": job 'train' failed (peer_left): " + why});
  }
}

// Whoever has been told that one has left pushes nothing new: what the others wait for of it would
// never come.
TEST_F(RunningTest, WhatAToldWorkerStillWaitsForIsGivenUpWhenNothingMoves) {
  start();
  b->declare(tensors(4, 2));
  hosts.run();
  a->close();
  hosts.run();
  hosts.host(4).lanes[0].events.push_back(
      event::RoundHopeless{JobSlot(0), {TensorId(4), Round(3)}, {1, 0, 0, 0}});
  hosts.run_for(kSecond);
  const Error first = b->status().error();
  auto& engine = engine_job(2, 0, b->slot);
  for (int i = 0; i < 20; ++i) {
    hosts.run_for(2 * kSecond);
    ++engine.chunks_moved;
    ASSERT_EQ(engine.failed, Errc::kOk) << "after " << i;
  }
  hosts.run_for(12 * kSecond);
  EXPECT_EQ(engine.failed, Errc::kPeerLeft);
  EXPECT_EQ(b->status().error().message, first.message);
  b->close();
  expect_nothing_left();
}

// Over a path that takes longer than the grace for what is complete. A server of the version before
// does not say who waits in vain.
TEST_F(RunningTest, WhatStillComesAfterOneHasLeftIsWaitedFor) {
  hosts.translate = [](std::vector<std::byte>& bytes) {
    const Result<Message> message = decode_message(bytes);
    ASSERT_TRUE(message);
    const auto* join = std::get_if<message::Join>(&*message);
    if (!join || join->role != Role::kServer) return;
    message::Join theirs = *join;
    theirs.features &= ~kKnowsEndings;
    bytes = encode(theirs);
  };
  start(2);
  a->close();
  for (int i = 0; i < 20; ++i) {
    hosts.run_for(2 * kSecond);
    ++engine_job(2, i % 2, b->slot).chunks_moved;
    ASSERT_TRUE(b->status().ok()) << "after " << i;
  }
  hosts.run_for(12 * kSecond);
  ASSERT_FALSE(b->status().ok());
  EXPECT_EQ(b->status().error().code, Errc::kPeerLeft);
  b->close();
  expect_nothing_left();
}

// Every engine of the job, whoever asks for it.
TEST_F(RunningTest, PolicyReachesEveryEngine) {
  start(2);
  const auto policies = [this] {
    std::set<std::string> all;
    for (const int host : {1, 2, 3, 4}) {
      for (const HostModel::Lane& lane : hosts.host(host).lanes) {
        for (const auto& [slot, job] : lane.jobs) all.insert(job.policy);
      }
    }
    return all;
  };
  EXPECT_EQ(policies(), std::set<std::string>{""});
  ASSERT_TRUE(hosts.manager(2).set_policy(b->client, b->slot, "wfbp", hosts.now_ns()));
  hosts.run_for(kSecond);
  EXPECT_EQ(policies(), std::set<std::string>{"wfbp"});
  const auto refusal = [&](ClientId client, JobSlot slot, const char* policy) {
    return hosts.manager(1).set_policy(client, slot, policy, hosts.now_ns()).error().code;
  };
  EXPECT_EQ(refusal(a->client, a->slot, ""), Errc::kInvalidArgument);
  EXPECT_EQ(refusal(b->client + 10, a->slot, "wfbp"), Errc::kNotFound);
  a->close();
  EXPECT_EQ(refusal(a->client, a->slot, "mercury"), Errc::kClosed);
  b->close();
  expect_nothing_left();
}

TEST_F(JobTest, GatheringEndsWithItsLastProgram) {
  hosts.add(1, 1, not_serving());
  for (int host : {2, 3}) hosts.add(host, 1, serving());
  const std::vector<Endpoint> servers{address(2), address(3)};
  ProgramModel& a = opens(1, job(Role::kWorker, 0, 2, 2, servers));
  hosts.run_for(kSecond);
  EXPECT_FALSE(hosts.manager(3).idle());
  a.gone();
  hosts.run_for(kSecond);
  EXPECT_EQ(a.opens, 1);
  EXPECT_EQ(a.gones, 1);
  ProgramModel& b = opens(1, job(Role::kWorker, 0, 1, 2, servers));  // other sizes are fine again
  hosts.run_for(kSecond);
  EXPECT_TRUE(b.is_open()) << b.open_text;
  b.close();
  expect_nothing_left();
}

TEST_F(JobTest, QuestionsAboutJobsThatAreNotThereAreAnswered) {
  hosts.add(1, 1, serving());
  ProgramModel& p = program(1);
  p.declare(tensors(0, 1));
  p.wait();
  p.close();
  p.gone();
  hosts.run();
  EXPECT_EQ(p.declares + p.waits + p.closes + p.gones, 4);
  EXPECT_EQ(p.declared.error().code, Errc::kNotFound);
  EXPECT_EQ(p.status().error().code, Errc::kNotFound);
}

TEST_F(JobTest, PlaceOfAProgramThatGaveUpIsFreeAgain) {
  for (int host : {1, 2, 3}) hosts.add(host, 1, not_serving());
  hosts.add(4, 1, serving());
  ProgramModel& a = opens(1, job(Role::kWorker, 0, 3, 1, {address(4)}));
  ProgramModel& dying = opens(2, job(Role::kWorker, 1, 3, 1, {address(4)}));
  hosts.run_for(kSecond);
  dying.gone();
  hosts.run_for(kSecond);
  EXPECT_EQ(dying.open_code, Errc::kClosed);
  ProgramModel& again = opens(2, job(Role::kWorker, 1, 3, 1, {address(4)}));
  ProgramModel& third = opens(3, job(Role::kWorker, 2, 3, 1, {address(4)}));
  hosts.run_for(kSecond);
  for (ProgramModel* p : {&a, &again, &third}) EXPECT_TRUE(p->is_open()) << p->open_text;
  for (ProgramModel* p : {&a, &again, &third}) p->close();
  expect_nothing_left();
}

TEST_F(RunningTest, SameNameAgainAfterTheEnd) {
  start();
  a->close();
  b->close();
  hosts.run_for(kSecond);
  const std::vector<Endpoint> servers{address(3), address(4)};
  ProgramModel& c = opens(1, job(Role::kWorker, 0, 1, 2, servers));  // other sizes now
  hosts.run();
  EXPECT_TRUE(c.is_open()) << c.open_text;
  c.close();
  expect_nothing_left();
}

TEST_F(RunningTest, TwoJobsAtOnceDoNotMeet) {
  start();
  OpenJob other = job(Role::kWorker, 0, 1, 2, {address(4), address(3)});
  other.name = "other";
  ProgramModel& c = opens(1, other);
  hosts.run();
  ASSERT_TRUE(c.is_open()) << c.open_text;
  EXPECT_NE(c.slot, a->slot);
  c.gone();
  hosts.run();
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  a->declare(tensors(0, 1));
  hosts.run();
  EXPECT_TRUE(a->declared.ok());
  end();
}

TEST_F(JobTest, TwoWorkersOnOneHost) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, serving());
  ProgramModel& a = opens(1, job(Role::kWorker, -1, 2, 1, {address(2)}));
  ProgramModel& b = opens(1, job(Role::kWorker, -1, 2, 1, {address(2)}));
  hosts.run();
  ASSERT_TRUE(a.is_open() && b.is_open());
  EXPECT_NE(a.slot, b.slot);
  a.close();
  b.close();
  expect_nothing_left();
}

TEST_F(JobTest, ServerProgramThatLeavesFailsTheJob) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, embedded_server());
  ProgramModel& server = opens(2, job(Role::kServer, 0, 1, 1, {address(2)}));
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(2)}));
  hosts.run();
  ASSERT_TRUE(server.is_open() && worker.is_open()) << server.open_text << worker.open_text;
  ProgramModel& second = opens(2, job(Role::kServer, -1, 1, 1, {address(2)}));
  hosts.run();
  EXPECT_EQ(second.open_code, Errc::kExists);
  server.close();
  hosts.run();
  EXPECT_EQ(server.closes, 1);
  ASSERT_FALSE(worker.status().ok());
  EXPECT_EQ(worker.status().error().code, Errc::kPeerLeft);
  EXPECT_NE(worker.status().error().message.find("server 0 of 1 (10.0.0.2:7470)"),
            std::string::npos)
      << worker.status().error().message;
  worker.close();
  expect_nothing_left();
}

}  // namespace
}  // namespace mercury::test
