#include <algorithm>

#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

TEST_F(JobTest, OneWorkerAndADaemonThatServes) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, serving());
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(2)}));
  hosts.run();
  ASSERT_TRUE(worker.is_open()) << worker.open_text;
  EXPECT_EQ(worker.opened.chunk_bytes, 1472u - 48 - 8);
  EXPECT_EQ(worker.opened.workers, 1);
  ASSERT_EQ(hosts.manager(2).snapshot().size(), 1u);
  EXPECT_EQ(hosts.manager(2).snapshot()[0].state, "running");
  EXPECT_EQ(hosts.manager(2).snapshot()[0].members,
            (std::vector<std::string>{"worker 0 10.0.0.1:7470", "server 0 10.0.0.2:7470"}));

  worker.declare(tensors(0, 3));
  hosts.run();
  EXPECT_EQ(worker.declares, 1);
  EXPECT_TRUE(worker.declared.ok());
  EXPECT_EQ(engine_job(1, 0, worker.slot).tensors.size(), 3u);
  EXPECT_EQ(engine_job(2, 0, JobSlot(0)).tensors.size(), 3u);
  EXPECT_EQ(engine_job(2, 0, JobSlot(0)).tensors.at(2).chunk_bytes, worker.opened.chunk_bytes);

  worker.close();
  expect_nothing_left();
  EXPECT_EQ(worker.closes, 1);
}

TEST_F(JobTest, TwoWorkersAndTwoDaemonsInvitedByTheFirst) {
  for (int host : {1, 2}) hosts.add(host, 1, not_serving());
  for (int host : {3, 4}) hosts.add(host, 1, serving());
  const std::vector<Endpoint> servers{address(3), address(4)};
  ProgramModel& a = opens(1, job(Role::kWorker, 0, 2, 2, servers));
  ProgramModel& b = opens(2, job(Role::kWorker, 1, 2, 2, servers));
  hosts.run();
  ASSERT_TRUE(a.is_open() && b.is_open()) << a.open_text << b.open_text;
  EXPECT_EQ(engine_job(4, 0, JobSlot(0)).server_spec.shard, Shard(1));
  EXPECT_EQ(engine_job(4, 0, JobSlot(0)).server_spec.shards, 2);
  EXPECT_EQ(engine_job(4, 0, JobSlot(0)).to_workers.size(), 2u);
  EXPECT_EQ(engine_job(1, 0, a.slot).to_shards.size(), 2u);
  a.close();
  b.close();
  expect_nothing_left();
}

TEST_F(JobTest, LanesAreTheFewestOfAnyServerAndShardsAreDealtToEngines) {
  hosts.add(1, 2, not_serving());
  hosts.add(2, 1, not_serving());
  hosts.add(3, 3, serving());
  hosts.add(4, 2, serving());
  const std::vector<Endpoint> servers{address(3), address(4)};
  ProgramModel& a = opens(1, job(Role::kWorker, -1, 2, 2, servers));
  ProgramModel& b = opens(2, job(Role::kWorker, -1, 2, 2, servers));
  hosts.run();
  ASSERT_TRUE(a.is_open() && b.is_open()) << a.open_text << b.open_text;
  EXPECT_EQ(engine_job(1, 0, a.slot).worker_spec.shards, 4);
  std::vector<Shard> even, odd;
  for (const auto& [shard, token] : engine_job(1, 0, a.slot).to_shards) even.push_back(shard);
  for (const auto& [shard, token] : engine_job(1, 1, a.slot).to_shards) odd.push_back(shard);
  EXPECT_EQ(even, (std::vector<Shard>{0, 2}));
  EXPECT_EQ(odd, (std::vector<Shard>{1, 3}));
  EXPECT_EQ(engine_job(2, 0, b.slot).to_shards.size(), 4u);
  EXPECT_TRUE(hosts.host(3).lanes[2].jobs.empty());
  EXPECT_EQ(engine_job(4, 1, JobSlot(0)).server_spec.shard, Shard(3));
  a.declare(tensors(0, 1));
  a.close();
  b.close();
  expect_nothing_left();
}

TEST_F(JobTest, ServerProgramsInAnyOrderWithWorkersOnOneAddress) {
  for (int host : {1, 2}) hosts.add(host, 1, not_serving());
  hosts.add(3, 1, embedded_server());
  hosts.add(4, 1, not_serving());
  ProgramModel& a = opens(1, job(Role::kWorker, 0, 2, 2, {address(3)}));
  hosts.run_for(kSecond);  // its HELLO waits at host 3
  ProgramModel& late = opens(4, job(Role::kServer, -1, 2, 2, {address(3)}));
  hosts.run_for(kSecond);
  ProgramModel& first = opens(3, job(Role::kServer, -1, 2, 2, {address(3)}));
  hosts.run_for(kSecond);
  ProgramModel& b = opens(2, job(Role::kWorker, 1, 2, 2, {address(3)}));
  hosts.run_for(kSecond);
  for (ProgramModel* p : {&a, &b, &first, &late}) EXPECT_TRUE(p->is_open()) << p->open_text;
  EXPECT_EQ(first.opened.rank, 0);  // the rendezvous address is its own
  EXPECT_EQ(late.opened.rank, 1);
  first.wait();
  late.wait();
  a.close();
  b.close();
  hosts.run();
  EXPECT_EQ(first.waits + late.waits, 2);
  EXPECT_TRUE(first.waited.ok() && late.waited.ok());
  first.close();
  late.gone();
  expect_nothing_left();
  EXPECT_EQ(first.closes, 1);
  EXPECT_EQ(late.gones, 1);
}

TEST_F(JobTest, CoordinatorStartsLast) {
  hosts.add(1, 1, not_serving());
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(2)}));
  hosts.run_for(5 * kSecond);
  hosts.add(2, 1, serving());
  hosts.run();
  EXPECT_TRUE(worker.is_open()) << worker.open_text;
  worker.gone();
  expect_nothing_left();
}

TEST_F(JobTest, InvitedHostStartsLast) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, serving());
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 2, {address(2), address(3)}));
  hosts.run_for(5 * kSecond);
  hosts.add(3, 1, serving());
  hosts.run();
  EXPECT_TRUE(worker.is_open()) << worker.open_text;
  worker.close();
  expect_nothing_left();
}

// Each host knows the job only while its own program has opened it.
TEST_F(JobTest, ServerProgramsOfDaemonsThatListNoJobStartInAnyOrder) {
  JobPolicy closed = serving();
  closed.open_jobs = false;
  hosts.add(1, 1, not_serving());
  for (int host : {2, 3, 4}) hosts.add(host, 1, closed);
  const std::vector<Endpoint> servers{address(2), address(3), address(4)};
  std::vector<int> order{2, 3, 4};
  do {
    std::vector<ProgramModel*> programs;
    for (const int host : order) {
      programs.push_back(&opens(host, job(Role::kServer, -1, 1, 3, servers)));
      hosts.run_for(3 * kSecond);
    }
    programs.push_back(&opens(1, job(Role::kWorker, 0, 1, 3, servers)));
    hosts.run_for(10 * kSecond);
    for (const ProgramModel* p : programs) ASSERT_TRUE(p->is_open()) << p->open_text;
    programs.back()->close();
    hosts.run();
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(programs[i]->opened.rank, order[i] - 2) << "as the rendezvous list has it";
      programs[i]->close();
    }
    expect_nothing_left();
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(JobTest, AnInvitedHostThatNeverKnowsTheJobIsNamedWithItsWords) {
  JobPolicy closed = serving();
  closed.open_jobs = false;
  hosts.add(1, 1, not_serving());
  for (int host : {2, 3}) hosts.add(host, 1, closed);
  const std::vector<Endpoint> servers{address(2), address(3)};
  ProgramModel& first = opens(2, job(Role::kServer, -1, 1, 2, servers));
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 2, servers));
  hosts.run_for(20 * kSecond);
  EXPECT_EQ(worker.opens, 0) << worker.open_text;
  hosts.run();
  for (const ProgramModel* p : {&first, &worker}) {
    EXPECT_EQ(p->open_code, Errc::kMissingMembers);
    EXPECT_TRUE(says(p->open_text,
                     "server 1 of 2 (10.0.0.3:7470); 10.0.0.3:7470 was invited and "
                     "says: job 'train' is not known on 10.0.0.3:7470"))
        << p->open_text;
  }
  expect_nothing_left();
}

TEST_F(JobTest, AServerWhoseRendezvousNeverKnowsTheJobSaysWhy) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, not_serving());
  ProgramModel& server = opens(1, job(Role::kServer, 1, 1, 2, {address(2)}));
  hosts.run();
  EXPECT_EQ(server.open_code, Errc::kMissingMembers);
  EXPECT_TRUE(says(server.open_text, "server 0 of 2 (10.0.0.2:7470): job 'train' is not known"))
      << server.open_text;
  expect_nothing_left();
}

TEST_F(JobTest, WorkerOnTheCoordinatorsHost) {
  hosts.add(1, 2, serving());
  hosts.add(2, 2, not_serving());
  ProgramModel& here = opens(1, job(Role::kWorker, -1, 2, 1, {address(1)}));
  ProgramModel& there = opens(2, job(Role::kWorker, -1, 2, 1, {address(1)}));
  hosts.run();
  ASSERT_TRUE(here.is_open() && there.is_open()) << here.open_text << there.open_text;
  EXPECT_NE(here.opened.rank, there.opened.rank);
  here.close();
  there.close();
  expect_nothing_left();
}

TEST_F(JobTest, ServerProgramTakesOverWhatItsDaemonServes) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, serving());
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(2)}));
  hosts.run();
  ProgramModel& server = opens(2, job(Role::kServer, 0, 1, 1, {address(2)}));
  hosts.run();
  ASSERT_TRUE(server.is_open()) << server.open_text;
  server.wait();
  worker.close();
  hosts.run();
  EXPECT_EQ(server.waits, 1);
  EXPECT_TRUE(server.waited.ok());
  server.close();
  expect_nothing_left();
}

// Each of the two would be told what was true of the one before.
TEST_F(JobTest, AReplyThatAsksWhenTheNextTimerIsDueHearsWhatIsDueThen) {
  hosts.add(1, 1, not_serving());
  JobManager& manager = hosts.manager(1);
  std::vector<uint64_t> heard;
  const auto refused = [&](const Result<OpenedJob>& opened) {
    EXPECT_FALSE(opened);
    heard.push_back(manager.next_deadline_ns());
  };
  for (int i = 0; i < 2; ++i) manager.open_job(1, OpenJob{}, 0, refused);
  EXPECT_EQ(manager.next_deadline_ns(), 0U);
  manager.on_timer(0);
  EXPECT_EQ(heard, (std::vector<uint64_t>{0, kNever})) << "the second reply was due at once";
  EXPECT_EQ(manager.next_deadline_ns(), kNever);
}

TEST_F(JobTest, SmallestPathDecidesTheChunk) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, serving());
  hosts.path_payload = 8972;
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(2)}));
  hosts.run();
  EXPECT_EQ(worker.opened.chunk_bytes, 8972u - 48 - 8);
  worker.close();
  expect_nothing_left();
}

}  // namespace
}  // namespace mercury::test
