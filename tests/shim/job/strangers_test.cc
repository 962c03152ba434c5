// What somebody may have a host do who can reach it, and who has shown nothing else.
#include <algorithm>
#include <set>

#include "shim/job/messages.h"
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

IpPrefix network(const char* ip, uint8_t bits) { return {*IpAddress::parse(ip), bits}; }

class StrangersTest : public JobTest {
 protected:
  // A join of an open job with 255 servers besides host 1, where nobody is.
  static message::Join scan(uint8_t subnet) {
    message::Join join;
    join.workers = 1;
    join.servers = 256;
    join.incarnation = 7;
    join.timeout_ms = uint64_t{1} << 40;
    join.lanes = {address(250)};
    join.rendezvous = {address(1)};
    for (int i = 1; i < 256; ++i) {
      join.rendezvous.push_back({IpAddress::v4(10, 9, subnet, static_cast<uint8_t>(i)), 53});
    }
    return join;
  }
  SessionModel& says_join(const std::string& name, const message::Join& join) {
    SessionModel& session = hosts.connect_raw(address(1), control_hello(name, ""));
    hosts.run_for(0);
    hosts.send_raw(session, encode(join));
    hosts.run_for(0);
    return session;
  }
  void leave(SessionModel& session) {
    end(session);
    hosts.run_for(0);
  }
  static void end(SessionModel& session) {
    session.ends[1].inbox.push_back(event::SessionClosed{0, Errc::kPeerLost, "gone"});
    session.ends[0].closed = true;
  }
};

TEST_F(StrangersTest, AnOpenJobInvitesFewAtATime) {
  hosts.add(1, 1, serving());
  SessionModel& stranger = says_join("scan", scan(0));
  size_t most = 0;
  for (int i = 0; i < 600; ++i) {
    most = std::max(most, hosts.unanswered_from(1));
    hosts.run_for(100'000'000);
  }
  EXPECT_GT(most, 0U);
  EXPECT_LE(most, 8U);
  leave(stranger);
  expect_nothing_left();
}

TEST_F(StrangersTest, OpenJobsTogetherInviteFewAndEachHasItsTurn) {
  for (int host : {1, 2}) hosts.add(host, 1, serving());
  hosts.add(3, 1, not_serving());
  std::vector<SessionModel*> strangers;
  for (uint8_t i = 0; i < 20; ++i) {
    strangers.push_back(&says_join("scan" + std::to_string(i), scan(i)));
  }
  EXPECT_GT(hosts.unanswered_from(1), 8U);
  EXPECT_LE(hosts.unanswered_from(1), 32U);
  OpenJob honest = job(Role::kWorker, 0, 1, 2, {address(1), address(2)});
  honest.timeout_ns = kMinute;
  ProgramModel& worker = opens(3, honest);
  hosts.run_for(kMinute);
  EXPECT_TRUE(worker.is_open()) << worker.open_text;
  EXPECT_LE(hosts.unanswered_from(1), 32U);
  for (SessionModel* stranger : strangers) leave(*stranger);
  worker.close();
  expect_nothing_left();
}

// Others' jobs do not wait behind them.
TEST_F(StrangersTest, AListedJobsInvitationsHaveRoomOfTheirOwn) {
  JobPolicy policy = serving();
  policy.known = {{"train", "secret", 0}};
  for (int host : {1, 2}) hosts.add(host, 1, policy);
  hosts.add(3, 1, not_serving());
  std::vector<SessionModel*> strangers;
  for (uint8_t i = 0; i < 20; ++i) {
    strangers.push_back(&says_join("scan" + std::to_string(i), scan(i)));
  }
  OpenJob honest = job(Role::kWorker, 0, 1, 2, {address(1), address(2)});
  honest.secret = "secret";
  ProgramModel& worker = opens(3, honest);
  hosts.run_for(0);
  EXPECT_TRUE(worker.is_open()) << worker.open_text;
  for (SessionModel* stranger : strangers) leave(*stranger);
  worker.close();
  expect_nothing_left();
}

TEST_F(StrangersTest, AnInvitationThatFailsAgainIsSentLessOften) {
  hosts.add(1, 1, serving());
  message::Join join = scan(0);
  join.servers = 2;
  join.rendezvous.resize(2);
  SessionModel& stranger = says_join("scan", join);
  int attempts = 1;
  bool asking = true;
  for (int i = 0; i < 6000; ++i) {
    hosts.run_for(100'000'000);
    const bool now = hosts.unanswered_from(1) > 0;
    attempts += now && !asking;
    asking = now;
  }
  EXPECT_GT(attempts, 10);
  EXPECT_LT(attempts, 40);  // of ten seconds, in ten minutes; half a second apart they would be 57
  leave(stranger);
  expect_nothing_left();
}

// Hosts that answer hold no place among the unanswered; nobody has them asked without end.
TEST_F(StrangersTest, HostsThatDoNotKnowAnOpenJobAreInvitedSeldom) {
  hosts.add(1, 1, serving());
  hosts.add(2, 1, not_serving());
  message::Join join = scan(0);
  join.servers = 2;
  join.rendezvous = {address(1), address(2)};
  SessionModel& stranger = says_join("scan", join);
  hosts.run_for(10 * kMinute);
  const auto refused = std::count_if(hosts.log.begin(), hosts.log.end(), [](const auto& line) {
    return says(line, "2: refused 10.0.0.1:7470 for job 'scan'");
  });
  EXPECT_GT(refused, 10);
  EXPECT_LT(refused, 20);  // 8 s apart they would be 79
  leave(stranger);
  expect_nothing_left();
}

TEST_F(StrangersTest, AnOpenJobInvitesNobodyOutsideTheNetworks) {
  JobPolicy policy = serving();
  policy.networks = {network("10.0.0.0", 16)};
  for (int host : {1, 2}) hosts.add(host, 1, policy);
  hosts.add(3, 1, not_serving());
  SessionModel& stranger = says_join("scan", scan(0));
  EXPECT_EQ(hosts.unanswered_from(1), 0U);
  OpenJob outside = job(Role::kWorker, 0, 1, 2, {address(1), {IpAddress::v4(10, 9, 0, 1), 7470}});
  outside.name = "outside";
  ProgramModel& waits = opens(3, outside);
  ProgramModel& honest = opens(3, job(Role::kWorker, 0, 1, 2, {address(1), address(2)}));
  hosts.run_for(kMinute);
  EXPECT_EQ(hosts.unanswered_from(1), 0U);
  EXPECT_TRUE(honest.is_open()) << honest.open_text;
  EXPECT_EQ(waits.open_code, Errc::kMissingMembers);
  EXPECT_TRUE(
      says(waits.open_text, "server 1 of 2 (10.9.0.1:7470, not invited: in none of jobs.networks)"))
      << waits.open_text;
  leave(stranger);
  honest.close();
  expect_nothing_left();
}

// What this host's own program, or its configuration, asks for is not a stranger's.
TEST_F(StrangersTest, NetworksBindOpenJobsOnly) {
  JobPolicy policy = serving();
  policy.networks.emplace();
  policy.known = {{"train", "secret", 0}};
  for (int host : {1, 2}) hosts.add(host, 1, policy);
  hosts.add(3, 1, not_serving());
  OpenJob listed = job(Role::kWorker, 0, 1, 2, {address(1), address(2)});
  listed.secret = "secret";
  ProgramModel& there = opens(3, listed);
  OpenJob own = job(Role::kWorker, 0, 1, 2, {address(1), address(2)});
  own.name = "own";
  ProgramModel& here = opens(1, own);
  hosts.run_for(kSecond);
  EXPECT_TRUE(there.is_open()) << there.open_text;
  EXPECT_TRUE(here.is_open()) << here.open_text;
  there.close();
  here.close();
  expect_nothing_left();
}

TEST_F(StrangersTest, AnOpenJobIsNotGatheredForLongerThanAnHour) {
  hosts.add(1, 1, serving());
  message::Join join = scan(0);
  join.servers = 1;
  join.workers = 2;
  join.rendezvous.resize(1);
  says_join("long", join);
  join.timeout_ms = 0;
  join.served = true;
  says_join("endless", join);
  hosts.run_for(59 * kMinute);
  EXPECT_EQ(hosts.manager(1).snapshot().size(), 2U);
  hosts.run_for(2 * kMinute);
  EXPECT_EQ(hosts.manager(1).snapshot().size(), 0U);
}

// Of a job that is listed, one that runs, and one that is not there; `guess` may be null.
class Guesses : public StrangersTest {
 protected:
  void expect_one_refusal(const char* guess) {
    for (const wire::SessionKind kind : {wire::SessionKind::kControl, wire::SessionKind::kData}) {
      std::set<std::string> refusals;
      for (const char* name : {"listed", "runs", "absent"}) {
        wire::Hello hello;
        hello.kind = kind;
        hello.incarnation = 1;
        hello.job = name;
        if (guess != nullptr) hello.proof = prove(derive_job_key(name, guess), hello);
        SessionModel& session = hosts.connect_raw(address(1), hello);
        hosts.run_for(0);
        std::string text = session.refusal;
        ASSERT_FALSE(text.empty()) << name;
        text.replace(text.find(name), std::string(name).size(), "NAME");
        refusals.insert(text);
      }
      EXPECT_EQ(refusals.size(), 1U) << *refusals.begin() << *refusals.rbegin();
    }
  }
};

// Who does not prove a job's secret is not told whether there is such a job.
TEST_F(Guesses, FindNoJobsName) {
  for (const bool open_jobs : {false, true}) {
    SCOPED_TRACE(open_jobs);
    hosts = Hosts();
    JobPolicy policy = serving();
    policy.open_jobs = open_jobs;
    policy.known = {{"listed", "secret", 0}, {"runs", "secret", 0}};
    hosts.add(1, 1, policy);
    hosts.add(2, 1, not_serving());
    OpenJob request = job(Role::kWorker, 0, 1, 1, {address(1)});
    request.name = "runs";
    request.secret = "secret";
    ProgramModel& worker = opens(2, request);
    hosts.run();
    ASSERT_TRUE(worker.is_open()) << worker.open_text;
    expect_one_refusal("guess");
    if (!open_jobs) expect_one_refusal(nullptr);
    // The log of the host says which it was.
    EXPECT_EQ(std::ranges::count_if(hosts.log,
                                    [](const std::string& line) {
                                      return says(line, "for job 'runs': the job's secret is");
                                    }),
              open_jobs ? 2 : 4);
    worker.close();
    expect_nothing_left();
  }
}

TEST_F(StrangersTest, OpenJobsLeaveAQuarterOfTheSessions) {
  JobPolicy policy = serving();
  policy.max_sessions = 16;
  policy.known = {{"train", "secret", 0}};
  hosts.add(1, 1, policy);
  hosts.add(3, 1, not_serving());
  message::Join join = scan(0);
  join.servers = 1;
  join.workers = 200;
  join.rendezvous.resize(1);
  std::vector<SessionModel*> strangers;
  for (int i = 0; i < 12; ++i) strangers.push_back(&says_join("crowd", join));
  SessionModel& one_more = hosts.connect_raw(address(1), control_hello("crowd", ""));
  hosts.run_for(0);
  EXPECT_TRUE(says(one_more.refusal, "three quarters of engine.max_sessions")) << one_more.refusal;
  OpenJob honest = job(Role::kWorker, 0, 1, 1, {address(1)});
  honest.secret = "secret";
  ProgramModel& worker = opens(3, honest);
  hosts.run_for(kSecond);
  EXPECT_TRUE(worker.is_open()) << worker.open_text;
  leave(*strangers.front());  // whoever goes makes room
  EXPECT_TRUE(says_join("crowd", join).open);
  for (size_t i = 1; i < strangers.size(); ++i) leave(*strangers[i]);
  worker.close();
}

// Its servers are not asked; whoever waits for them hears why.
TEST_F(StrangersTest, AnOpenJobWithoutRoomForItsInvitationsIsToldOfTheLimit) {
  JobPolicy policy = serving();
  policy.max_sessions = 16;
  for (int host : {1, 2}) hosts.add(host, 1, policy);
  hosts.add(3, 1, not_serving());
  message::Join join = scan(0);
  join.servers = 1;
  join.workers = 200;
  join.rendezvous.resize(1);
  std::vector<SessionModel*> strangers;
  for (int i = 0; i < 11; ++i) strangers.push_back(&says_join("crowd", join));
  const OpenJob request = job(Role::kWorker, 0, 1, 2, {address(1), address(2)});
  ProgramModel& refused = opens(3, request);
  hosts.run_for(kMinute);
  EXPECT_EQ(refused.open_code, Errc::kLimit) << refused.open_text;
  EXPECT_TRUE(says(refused.open_text,
                   "server 1 of 2 (10.0.0.2:7470); open jobs have all sessions "
                   "of 10.0.0.1:7470"))
      << refused.open_text;
  refused.close();
  hosts.run_for(kSecond);
  ProgramModel& waits = opens(3, request);
  hosts.run_for(kSecond);
  EXPECT_FALSE(waits.is_open());
  for (int i = 0; i < 2; ++i) {  // in time: for its server's session, and one for data
    end(*strangers.back());
    strangers.pop_back();
  }
  hosts.run_for(kSecond);
  EXPECT_TRUE(waits.is_open()) << waits.open_text;
  for (SessionModel* stranger : strangers) leave(*stranger);
  waits.close();
  expect_nothing_left();
}

// Nor is a server that is there said to lack an invitation.
TEST_F(StrangersTest, WhereAWorkerAloneIsMissingNoLimitIsSaid) {
  JobPolicy policy = serving();
  policy.max_sessions = 16;
  hosts.add(1, 1, policy);
  for (int host : {2, 3}) hosts.add(host, 1, not_serving());
  ProgramModel& waits = opens(3, job(Role::kWorker, 0, 2, 2, {address(1), address(2)}));
  hosts.run_for(100'000'000);  // host 2 knows no such job, and is to be asked again
  ProgramModel& server = opens(2, job(Role::kServer, 1, 2, 2, {address(1), address(2)}));
  hosts.run_for(0);
  message::Join join = scan(0);
  join.servers = 1;
  join.workers = 200;
  join.rendezvous.resize(1);
  std::vector<SessionModel*> strangers;
  for (int i = 0; i < 10; ++i) strangers.push_back(&says_join("crowd", join));
  hosts.run_for(kMinute);
  EXPECT_EQ(waits.open_code, Errc::kMissingMembers) << waits.open_text;
  EXPECT_TRUE(says(waits.open_text, "worker 1 of 2")) << waits.open_text;
  EXPECT_FALSE(says(waits.open_text, "open jobs have all sessions")) << waits.open_text;
  for (SessionModel* stranger : strangers) leave(*stranger);
  waits.close();
  server.close();
  expect_nothing_left();
}

TEST_F(StrangersTest, OpenJobsLeaveAQuarterOfTheJobs) {
  JobPolicy policy = serving();
  policy.max_jobs = 8;
  policy.known = {{"train", "secret", 0}, {"other", "secret", 0}};
  hosts.add(1, 1, policy);
  hosts.add(3, 1, not_serving());
  message::Join join = scan(0);
  join.servers = 1;
  join.workers = 200;
  join.rendezvous.resize(1);
  std::vector<SessionModel*> strangers;
  for (int i = 0; i < 6; ++i) {
    strangers.push_back(&says_join("crowd" + std::to_string(i), join));
    hosts.run_for(kSecond);
    EXPECT_FALSE(strangers.back()->ends[1].closed) << i;
  }
  SessionModel& one_more = says_join("one_more", join);
  hosts.run_for(kSecond);
  EXPECT_TRUE(one_more.ends[1].closed);
  EXPECT_TRUE(std::ranges::any_of(hosts.log, [](const std::string& line) {
    return says(line, "in 6 open jobs already, three quarters of jobs.max_jobs");
  }));
  for (const char* name : {"train", "other"}) {
    OpenJob honest = job(Role::kWorker, 0, 1, 1, {address(1)});
    honest.name = name;
    honest.secret = "secret";
    ProgramModel& worker = opens(3, honest);
    hosts.run_for(kSecond);
    EXPECT_TRUE(worker.is_open()) << worker.open_text;
  }
  leave(*strangers.front());  // whoever goes makes room
  hosts.run_for(kMinute);
  SessionModel& next = says_join("one_more", join);
  hosts.run_for(kSecond);
  EXPECT_FALSE(next.ends[1].closed);
}

}  // namespace
}  // namespace mercury::test
