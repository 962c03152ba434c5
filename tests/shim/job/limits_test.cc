// Requests that meet a limit, or a job that is there already in another form: each is refused by
// name, hurts nobody else, and leaves nothing behind.
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

// --- a server program on a host that serves the job already ----------------------------------

class ServedTest : public JobTest {
 protected:
  void start(const std::string& secret) {
    hosts.add(1, 1, not_serving());
    JobPolicy policy = serving();
    policy.known = {{"train", secret, 0}};
    hosts.add(2, 1, policy);
    OpenJob request = job(Role::kWorker, 0, 1, 1, {address(2)});
    request.secret = secret;
    worker = &opens(1, request);
    hosts.run();
    ASSERT_TRUE(worker->is_open()) << worker->open_text;
  }
  ProgramModel& serves(OpenJob request, const std::string& secret) {
    request.secret = secret;
    ProgramModel& server = opens(2, request);
    hosts.run();
    EXPECT_TRUE(worker->status().ok());
    return server;
  }
  void end() {
    worker->close();
    expect_nothing_left();
  }
  ProgramModel* worker = nullptr;
};

TEST_F(ServedTest, AnotherSecretIsRefusedAndNotTold) {
  start("right");
  const OpenJob request = job(Role::kServer, 0, 1, 1, {address(2)});
  ProgramModel& wrong = serves(request, "wrong");
  EXPECT_EQ(wrong.open_code, Errc::kWrongSecret) << wrong.open_text;
  EXPECT_FALSE(says(wrong.open_text, "right")) << wrong.open_text;
  ProgramModel& right = serves(request, "right");
  EXPECT_TRUE(right.is_open()) << right.open_text;
  worker->close();
  hosts.run();
  right.close();
  expect_nothing_left();
}

TEST_F(ServedTest, OtherSizesAreRefusedWithThoseOfTheJob) {
  start("");
  std::vector<OpenJob> others(3, job(Role::kServer, 0, 1, 1, {address(2)}));
  others[0].workers = 2;
  others[1].servers = 2;
  others[2].terms.deterministic = true;
  for (const OpenJob& other : others) {
    ProgramModel& wrong = serves(other, "");
    EXPECT_EQ(wrong.open_code, Errc::kWrongSizes) << wrong.open_text;
    EXPECT_TRUE(says(wrong.open_text, "opened with 1 workers, 1 servers")) << wrong.open_text;
  }
  end();
}

TEST_F(ServedTest, AnotherRankIsRefused) {
  start("");
  ProgramModel& wrong = serves(job(Role::kServer, 1, 1, 2, {address(2)}), "");
  EXPECT_EQ(wrong.open_code, Errc::kExists) << wrong.open_text;
  end();
}

// --- requests that no host could grant -------------------------------------------------------

TEST_F(JobTest, AWorkerNeedsAChannelToEachEngineOfItsHost) {
  hosts.add(1, 2, serving());
  OpenJob request = job(Role::kWorker, 0, 1, 1, {address(1)});
  request.channels.resize(1);
  ProgramModel& program = opens(1, request);
  hosts.run();
  EXPECT_EQ(program.open_code, Errc::kInvalidArgument);
  EXPECT_TRUE(says(program.open_text, "one channel per engine")) << program.open_text;
  expect_nothing_left();
}

TEST_F(JobTest, ServersNeitherDeclareTensorsNorChangeThePolicy) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, embedded_server());
  ProgramModel& server = opens(2, job(Role::kServer, 0, 1, 1, {address(2)}));
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(2)}));
  hosts.run();
  ASSERT_TRUE(server.is_open() && worker.is_open()) << server.open_text << worker.open_text;
  server.declare(tensors(0, 1));
  hosts.run();
  ASSERT_FALSE(server.declared.ok());
  EXPECT_EQ(server.declared.error().code, Errc::kInvalidArgument);
  const Status changed =
      hosts.manager(2).set_policy(server.client, server.slot, "fifo", hosts.now_ns());
  ASSERT_FALSE(changed.ok());
  EXPECT_EQ(changed.error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(worker.status().ok());
  worker.close();
  hosts.run();
  server.close();
  expect_nothing_left();
}

TEST_F(RunningTest, ElementTypesAndOperationsAreThoseOfTheTable) {
  start();
  auto list = tensors(0, 1);
  list[0].dtype = static_cast<Dtype>(200);
  a->declare(list);
  hosts.run();
  ASSERT_FALSE(a->declared.ok());
  EXPECT_EQ(a->declared.error().code, Errc::kInvalidArgument);
  list = tensors(0, 1);
  list[0].op = static_cast<ReduceOp>(200);
  a->declare(list);
  hosts.run();
  ASSERT_FALSE(a->declared.ok());
  EXPECT_EQ(a->declared.error().code, Errc::kInvalidArgument);
  end();
}

// --- limits of hosts -------------------------------------------------------------------------

// The coordinator's own limit answers the declaration; another server's, lower one ends the job.
TEST_F(JobTest, AServersOwnTensorLimitFailsTheJobByName) {
  for (int host : {1, 2}) hosts.add(host, 1, not_serving());
  hosts.add(3, 1, serving());
  JobPolicy small = serving();
  small.max_tensors = 10;
  hosts.add(4, 1, small);
  const std::vector<Endpoint> servers{address(3), address(4)};
  ProgramModel& a = opens(1, job(Role::kWorker, 0, 2, 2, servers));
  ProgramModel& b = opens(2, job(Role::kWorker, 1, 2, 2, servers));
  hosts.run();
  ASSERT_TRUE(a.is_open() && b.is_open()) << a.open_text << b.open_text;
  a.declare(tensors(0, 10));
  hosts.run();
  EXPECT_TRUE(a.declared.ok());
  a.declare(tensors(10, 1));
  hosts.run();
  EXPECT_EQ(a.declares, 2);
  EXPECT_FALSE(a.declared.ok());
  for (ProgramModel* p : {&a, &b}) {
    ASSERT_FALSE(p->status().ok());
    const Error why = p->status().error();
    EXPECT_EQ(why.code, Errc::kLimit);
    EXPECT_TRUE(says(why.message, "server 1 of 2 (10.0.0.4:7470)")) << why.message;
    EXPECT_TRUE(says(why.message, "at most 10 tensors here (jobs.max_tensors)")) << why.message;
    p->close();
  }
  expect_nothing_left();
}

// Who waits in vain is told of the first that came, and was refused.
TEST_F(JobTest, AMemberOfAnotherSizeIsWhyOneIsMissing) {
  hosts.add(1, 1, serving());
  for (int host : {2, 3, 4}) hosts.add(host, 1, not_serving());
  ProgramModel& waits = opens(2, job(Role::kWorker, 0, 2, 1, {address(1)}));
  hosts.run_for(kSecond);
  ProgramModel& larger = opens(3, job(Role::kWorker, 1, 3, 1, {address(1)}));
  hosts.run_for(kSecond);
  ProgramModel& twice = opens(4, job(Role::kWorker, 0, 2, 1, {address(1)}));
  hosts.run();
  EXPECT_EQ(larger.open_code, Errc::kWrongSizes) << larger.open_text;
  EXPECT_EQ(twice.open_code, Errc::kRankTaken) << twice.open_text;
  EXPECT_EQ(waits.open_code, Errc::kMissingMembers);
  EXPECT_EQ(waits.open_text,
            "missing when the time limit passed: worker 1 of 2; worker 1 of 3 (10.0.0.3:7470) was "
            "refused: job 'train' was opened with 2 workers, 1 servers, this member asks for 3 "
            "workers, 1 servers");
  expect_nothing_left();
}

// What the logs of the hosts have about jobs.max_jobs.
std::vector<std::string> lines_about_max_jobs(const Hosts& hosts) {
  std::vector<std::string> lines;
  for (const std::string& line : hosts.log) {
    if (says(line, "jobs.max_jobs")) lines.push_back(line);
  }
  return lines;
}

// A host that coordinates jobs, serves none, and may be in one: for a worker elsewhere and here.
TEST_F(JobTest, JobsThatAHostCoordinatesAreLimited) {
  JobPolicy policy = not_serving();
  policy.max_jobs = 1;
  policy.known = {{"train", "", 0}, {"other", "", 0}};
  hosts.add(1, 1, policy);
  hosts.add(2, 1, not_serving());
  ProgramModel& first = opens(2, job(Role::kWorker, 0, 2, 1, {address(1)}));
  hosts.run_for(kSecond);
  OpenJob other = job(Role::kWorker, 0, 1, 1, {address(1)});
  other.name = "other";
  other.timeout_ns = 5 * kSecond;
  for (int host : {1, 2}) {
    ProgramModel& second = opens(host, other);
    hosts.run_for(6 * kSecond);
    EXPECT_EQ(second.open_code, Errc::kLimit) << second.open_text;
    EXPECT_TRUE(says(second.open_text, "10.0.0.1:7470 is in 1 jobs already (jobs.max_jobs)"))
        << second.open_text;
  }
  const std::string why = "10.0.0.1:7470 is in 1 jobs already (jobs.max_jobs)";
  const std::vector<std::string> lines = lines_about_max_jobs(hosts);
  ASSERT_EQ(lines.size(), 3u);  // here, here for the other's, and the other's own
  EXPECT_EQ(lines[0], "1: job 'other' did not open (limit): " + why);
  EXPECT_EQ(lines[1], "1: job 'other' refused: " + why);
  EXPECT_EQ(lines[2].substr(0, 2), "2:");
  first.gone();
  expect_nothing_left();
}

// It is in one job as a worker's host, and can serve no other.
TEST_F(JobTest, AHostThatIsInTooManyJobsDeclinesToServe) {
  JobPolicy policy = serving();
  policy.max_jobs = 1;
  hosts.add(1, 1, policy);
  hosts.add(2, 1, serving());
  hosts.add(3, 1, not_serving());
  ProgramModel& here = opens(1, job(Role::kWorker, 0, 1, 1, {address(2)}));
  hosts.run();
  ASSERT_TRUE(here.is_open()) << here.open_text;
  OpenJob other = job(Role::kWorker, 0, 1, 1, {address(1)});
  other.name = "other";
  ProgramModel& coordinated = opens(3, other);  // by host 1, which would be its server 0
  hosts.run();
  EXPECT_EQ(coordinated.open_code, Errc::kLimit) << coordinated.open_text;
  other.servers = 2;
  other.rendezvous = {address(2), address(1)};
  ProgramModel& invited = opens(3, other);  // host 1 is to be its server 1
  hosts.run();
  EXPECT_EQ(invited.open_code, Errc::kLimit) << invited.open_text;
  EXPECT_TRUE(says(invited.open_text, "server 0 cannot have server 1 of 2 (10.0.0.1:7470): "))
      << invited.open_text;
  EXPECT_TRUE(here.status().ok());
  other.rendezvous = {address(2)};
  other.servers = 1;
  ProgramModel& local = opens(1, other);
  hosts.run();
  EXPECT_EQ(local.open_code, Errc::kLimit) << local.open_text;
  size_t lines = 0;
  for (const std::string& line : lines_about_max_jobs(hosts)) {
    lines += line == "1: job 'other' refused: 10.0.0.1:7470 is in 1 jobs already (jobs.max_jobs)";
  }
  EXPECT_EQ(lines, 3u);  // one for each
  here.close();
  expect_nothing_left();
}

TEST_F(JobTest, AHostThatKnowsTheJobButServesNoneSaysSo) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, serving());
  JobPolicy knows = not_serving();
  knows.known = {{"train", "", 0}};
  hosts.add(3, 1, knows);
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 2, {address(2), address(3)}));
  hosts.run();
  EXPECT_EQ(worker.open_code, Errc::kMissingMembers);
  EXPECT_TRUE(says(worker.open_text, "this host serves no jobs (jobs.serve)")) << worker.open_text;
  expect_nothing_left();
}

// Both an invitation and its own program bring the host in: it is there once.
TEST_F(JobTest, AnInvitedHostWhoseProgramServesJoinsOnce) {
  const std::vector<Endpoint> servers = add_worker_and_servers();
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 2, servers));
  hosts.run_for(kSecond);
  ProgramModel& server = opens(3, job(Role::kServer, 1, 1, 2, servers));
  hosts.run_for(5 * kSecond);
  ASSERT_TRUE(worker.is_open() && server.is_open()) << worker.open_text << server.open_text;
  worker.close();
  hosts.run();
  server.close();
  expect_nothing_left();
}

// --- limits of jobs that gather --------------------------------------------------------------

TEST_F(JobTest, NoPlaceIsLeftForOneMoreOfItsKind) {
  for (int host : {1, 2}) hosts.add(host, 1, not_serving());
  hosts.add(3, 1, serving());
  const std::vector<Endpoint> servers{address(3), address(9)};  // the second never comes
  ProgramModel& first = opens(1, job(Role::kWorker, -1, 1, 2, servers));
  hosts.run_for(kSecond);
  ProgramModel& late = opens(2, job(Role::kWorker, -1, 1, 2, servers));
  hosts.run_for(kSecond);
  EXPECT_EQ(late.open_code, Errc::kRankTaken);
  EXPECT_TRUE(says(late.open_text, "all 1 workers of job 'train'")) << late.open_text;
  first.gone();
  expect_nothing_left();
}

TEST_F(JobTest, ALongListOfMissingMembersEndsInTheirNumber) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, serving());
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 256, 1, {address(2)}));
  hosts.run();
  EXPECT_EQ(worker.open_code, Errc::kMissingMembers);
  EXPECT_TRUE(says(worker.open_text, "worker 1 of 256, worker 2 of 256")) << worker.open_text;
  EXPECT_TRUE(worker.open_text.ends_with(" more")) << worker.open_text;
  EXPECT_LT(worker.open_text.size(), 256u);
  expect_nothing_left();
}

// --- ends that nobody answers ----------------------------------------------------------------

TEST_F(RunningTest, AWorkerThatLeavesDoesNotWaitForADeadCoordinator) {
  start();
  hosts.kill(3);
  a->close();
  hosts.run_for(4 * kSecond);
  EXPECT_EQ(a->closes, 0);
  hosts.run_for(2 * kSecond);  // before its host is given up for lost
  EXPECT_EQ(a->closes, 1);
  b->close();
  expect_nothing_left();
}

}  // namespace
}  // namespace mercury::test
