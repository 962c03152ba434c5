#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

TEST_F(JobTest, UnknownJobSaysWhatTheOperatorCanDo) {
  JobPolicy closed = serving();
  closed.open_jobs = false;
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, closed);
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(2)}));
  ProgramModel& local = opens(2, job(Role::kWorker, 0, 1, 1, {address(2)}));
  hosts.run();
  for (const ProgramModel* program : {&worker, &local}) {
    EXPECT_EQ(program->open_code, Errc::kUnknownJob);
    EXPECT_NE(program->open_text.find("[[job]]"), std::string::npos) << program->open_text;
  }
  expect_nothing_left();
}

// Listing the job there would not make a server of that host.
TEST_F(JobTest, UnknownJobOfAHostThatServesNoneSaysSo) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, not_serving());
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(2)}));
  ProgramModel& local = opens(2, job(Role::kWorker, 0, 1, 1, {address(2)}));
  hosts.run();
  for (const ProgramModel* program : {&worker, &local}) {
    EXPECT_EQ(program->open_code, Errc::kUnknownJob);
    EXPECT_NE(program->open_text.find("jobs.serve = true"), std::string::npos)
        << program->open_text;
    EXPECT_EQ(program->open_text.find("[[job]]"), std::string::npos) << program->open_text;
  }
  expect_nothing_left();
}

TEST_F(JobTest, WrongSecretHurtsOnlyTheWrongOne) {
  JobPolicy policy = serving();
  policy.known = {{"train", "right", 0}};
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, not_serving());
  hosts.add(3, 1, policy);
  OpenJob right = job(Role::kWorker, 0, 1, 1, {address(3)});
  OpenJob wrong = right;
  right.secret = "right";
  wrong.secret = "wrong";
  ProgramModel& bad = opens(1, wrong);
  ProgramModel& good = opens(2, right);
  ProgramModel& bad_here = opens(3, wrong);
  hosts.run();
  EXPECT_EQ(bad.open_code, Errc::kUnknownJob) << "as a job that is not there";
  EXPECT_EQ(bad_here.open_code, Errc::kWrongSecret);
  EXPECT_EQ(bad.open_text.find("right"), std::string::npos);
  EXPECT_TRUE(good.is_open()) << good.open_text;
  good.close();
  expect_nothing_left();
}

TEST_F(JobTest, JobWithASecretMustBeListedWhereItIsServed) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, serving());
  OpenJob request = job(Role::kWorker, 0, 1, 1, {address(2)});
  request.secret = "s";
  ProgramModel& worker = opens(1, request);
  hosts.run();
  EXPECT_EQ(worker.open_code, Errc::kUnknownJob) << worker.open_text;
  expect_nothing_left();
}

TEST_F(JobTest, ServerProgramOpensTheJobWithItsSecret) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, embedded_server());
  OpenJob worker_request = job(Role::kWorker, 0, 1, 1, {address(2)});
  OpenJob server_request = job(Role::kServer, 0, 1, 1, {address(2)});
  worker_request.secret = server_request.secret = "s";
  ProgramModel& worker = opens(1, worker_request);
  hosts.run_for(kSecond);
  ProgramModel& server = opens(2, server_request);
  hosts.run_for(kSecond);
  EXPECT_TRUE(worker.is_open() && server.is_open()) << worker.open_text << server.open_text;
  worker.close();
  server.close();
  expect_nothing_left();
}

TEST_F(JobTest, WrongSizesNameBothAndHurtOnlyTheLateOne) {
  for (int host : {1, 2, 3}) hosts.add(host, 1, not_serving());
  hosts.add(4, 1, serving());
  ProgramModel& a = opens(1, job(Role::kWorker, 0, 2, 1, {address(4)}));
  hosts.run_for(kSecond);
  ProgramModel& wrong = opens(2, job(Role::kWorker, 1, 3, 1, {address(4)}));
  hosts.run_for(kSecond);
  EXPECT_EQ(wrong.open_code, Errc::kWrongSizes);
  EXPECT_NE(wrong.open_text.find("2 workers"), std::string::npos) << wrong.open_text;
  EXPECT_NE(wrong.open_text.find("3 workers"), std::string::npos) << wrong.open_text;
  OpenJob options = job(Role::kWorker, 1, 2, 1, {address(4)});
  options.terms.deterministic = true;
  ProgramModel& other = opens(2, options);
  hosts.run_for(kSecond);
  EXPECT_EQ(other.open_code, Errc::kWrongSizes);
  options.terms.deterministic = false;
  options.terms.policy = "wfbp";
  ProgramModel& differs = opens(2, options);
  hosts.run_for(kSecond);
  EXPECT_EQ(differs.open_code, Errc::kWrongSizes);
  EXPECT_NE(differs.open_text.find("asks for policy = wfbp"), std::string::npos)
      << differs.open_text;
  ProgramModel& b = opens(3, job(Role::kWorker, 1, 2, 1, {address(4)}));
  hosts.run_for(kSecond);
  EXPECT_TRUE(a.is_open() && b.is_open());
  a.close();
  b.close();
  expect_nothing_left();
}

TEST_F(JobTest, TheUsualPolicyIsNotThatOfAJobWhichWasOpenedWithAnother) {
  for (int host : {1, 2}) hosts.add(host, 1, not_serving());
  hosts.add(3, 1, serving());
  OpenJob first = job(Role::kWorker, 0, 2, 1, {address(3)});
  first.terms.policy = "p3";
  ProgramModel& a = opens(1, first);
  hosts.run_for(kSecond);
  for (const char* usual : {"", "mercury"}) {
    OpenJob second = job(Role::kWorker, 1, 2, 1, {address(3)});
    second.terms.policy = usual;
    ProgramModel& differs = opens(2, second);
    hosts.run_for(kSecond);
    EXPECT_EQ(differs.open_code, Errc::kWrongSizes) << differs.open_text;
    EXPECT_NE(differs.open_text.find("asks for policy = mercury"), std::string::npos)
        << differs.open_text;
  }
  OpenJob second = first;
  second.rank = 1;
  ProgramModel& b = opens(2, second);
  hosts.run_for(kSecond);
  EXPECT_TRUE(a.is_open() && b.is_open()) << b.open_text;
  a.close();
  b.close();
  expect_nothing_left();
}

TEST_F(JobTest, RankTakenHurtsOnlyTheLateOne) {
  for (int host : {1, 2, 3}) hosts.add(host, 1, not_serving());
  hosts.add(4, 1, serving());
  ProgramModel& a = opens(1, job(Role::kWorker, 0, 2, 1, {address(4)}));
  hosts.run_for(kSecond);
  ProgramModel& late = opens(2, job(Role::kWorker, 0, 2, 1, {address(4)}));
  hosts.run_for(kSecond);
  EXPECT_EQ(late.open_code, Errc::kRankTaken);
  EXPECT_NE(late.open_text.find("10.0.0.1:7470"), std::string::npos) << late.open_text;
  ProgramModel& b = opens(3, job(Role::kWorker, -1, 2, 1, {address(4)}));
  hosts.run_for(kSecond);
  ASSERT_TRUE(a.is_open() && b.is_open());
  EXPECT_EQ(b.opened.rank, 1);
  ProgramModel& third = opens(2, job(Role::kWorker, -1, 2, 1, {address(4)}));
  hosts.run_for(kSecond);
  EXPECT_EQ(third.open_code, Errc::kRankTaken);
  a.close();
  b.close();
  expect_nothing_left();
}

TEST_F(JobTest, GivenRanksComeAfterAskedOnes) {
  for (int host : {1, 2}) hosts.add(host, 1, not_serving());
  hosts.add(3, 1, serving());
  ProgramModel& any = opens(1, job(Role::kWorker, -1, 2, 1, {address(3)}));
  hosts.run_for(kSecond);
  ProgramModel& zero = opens(2, job(Role::kWorker, 0, 2, 1, {address(3)}));
  hosts.run_for(kSecond);
  ASSERT_TRUE(any.is_open() && zero.is_open());
  EXPECT_EQ(zero.opened.rank, 0);
  EXPECT_EQ(any.opened.rank, 1);
  any.close();
  zero.close();
  expect_nothing_left();
}

TEST_F(JobTest, BadRequestsAreRefusedAtOnceButRepliedLater) {
  hosts.add(1, 1, serving());
  const OpenJob good = job(Role::kWorker, 0, 1, 1, {address(1)});
  std::vector<OpenJob> bad(10, good);
  bad[0].name = "no spaces";
  bad[1].workers = 0;
  bad[2].servers = kMaxServers + 1;
  bad[3].rank = 1;
  bad[4].rendezvous.clear();
  bad[5].rendezvous = {Endpoint{IpAddress::v4(10, 0, 0, 1), 0}};
  bad[6].terms.weight = 0;
  bad[7].timeout_ns = 0;
  bad[8].rank = -2;
  bad[9].name = "mercury.sockets";
  for (const OpenJob& request : bad) {
    ProgramModel& p = opens(1, request);
    EXPECT_EQ(p.opens, 0);
    hosts.run();
    EXPECT_EQ(p.opens, 1);
    EXPECT_EQ(p.open_code, Errc::kInvalidArgument) << p.open_text;
  }
  expect_nothing_left();
}

TEST_F(JobTest, MissingMembersAreNamedOnEveryWaitingSide) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, serving());
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 2, 2, {address(2), address(9)}));
  ProgramModel& local = opens(2, job(Role::kWorker, 0, 1, 1, {address(8)}));
  hosts.run();
  EXPECT_EQ(worker.open_code, Errc::kMissingMembers);
  EXPECT_NE(worker.open_text.find("worker 1 of 2, server 1 of 2 (10.0.0.9:7470)"),
            std::string::npos)
      << worker.open_text;
  EXPECT_EQ(local.open_code, Errc::kMissingMembers);
  EXPECT_NE(local.open_text.find("server 0 of 1 (10.0.0.8:7470)"), std::string::npos)
      << local.open_text;
  EXPECT_EQ(worker.opens + local.opens, 2);
  expect_nothing_left();
}

TEST_F(JobTest, InvitedHostThatDoesNotServeIsNamed) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, serving());
  hosts.add(3, 1, not_serving());
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 2, {address(2), address(3)}));
  hosts.run();
  EXPECT_EQ(worker.open_code, Errc::kMissingMembers);
  EXPECT_NE(worker.open_text.find("server 1 of 2 (10.0.0.3:7470)"), std::string::npos)
      << worker.open_text;
  expect_nothing_left();
}

TEST_F(JobTest, JobsPerHostAreLimited) {
  JobPolicy policy = serving();
  policy.max_jobs = 1;
  hosts.add(1, 1, policy);
  hosts.add(2, 1, serving());
  OpenJob first = job(Role::kWorker, 0, 1, 1, {address(2)});
  ProgramModel& a = opens(1, first);
  hosts.run();
  first.name = "other";
  ProgramModel& b = opens(1, first);
  hosts.run();
  EXPECT_TRUE(a.is_open());
  EXPECT_EQ(b.open_code, Errc::kLimit);
  a.close();
  expect_nothing_left();
}

}  // namespace
}  // namespace mercury::test
