#include "shim/job/messages.h"
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

TEST_F(RunningTest, GarbageClosesTheSessionThatSentIt) {
  start();
  for (const char* garbage : {"", "\xa0", "hello", "\x81\x81\x81", "\xa1\x64kind\x64join"}) {
    auto& session = hosts.connect_raw(address(3), control_hello("train", ""));
    hosts.run_for(0);
    ASSERT_TRUE(session.open);
    const std::string text(garbage);
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    hosts.send_raw(session, {bytes.begin(), bytes.end()});
    hosts.run_for(0);
    EXPECT_TRUE(session.ends[1].closed);
  }
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  end();
}

TEST_F(RunningTest, EveryFirstMessageButJoinAndInviteIsRefused) {
  start();
  const std::vector<Message> messages = {
      message::Ready{1400}, message::Start{1400},
      message::Leave{},     message::Left{},
      message::End{},       message::Defined{},
      message::PeerLeft{1}, message::Fail{Errc::kPeerLost, "believe me"}};
  for (const Message& message : messages) {
    auto& session = hosts.connect_raw(address(3), control_hello("train", ""));
    hosts.run_for(0);
    hosts.send_raw(session, encode(message));
    hosts.run_for(0);
    EXPECT_TRUE(session.ends[1].closed) << name_of(message);
  }
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  end();
}

// Each is told why, and would keep its session until then.
TEST_F(RunningTest, WhoJoinsInVainAgainAndAgainTakesNoMoreAndMoreSessions) {
  start();
  message::Join join;
  join.workers = 7;
  join.servers = 1;
  join.incarnation = 1;
  join.lanes = join.rendezvous = {address(3)};
  const size_t before = hosts.open_sessions();
  size_t most = 0;
  for (int i = 0; i < 1500; ++i) {
    auto& session = hosts.connect_raw(address(3), control_hello("train", ""));
    hosts.run_for(0);
    hosts.send_raw(session, encode(join));
    hosts.run_for(0);
    most = std::max(most, hosts.open_sessions() - before);
  }
  EXPECT_GT(most, 500U) << "nobody was told";
  EXPECT_LE(most, 768U);
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  end();
}

TEST_F(RunningTest, SilentPeersAndStrangersAreForgotten) {
  start();
  for (int i = 0; i < 300; ++i) hosts.connect_raw(address(3), control_hello("train", ""));
  wire::Hello stranger = control_hello("train", "");
  stranger.kind = wire::SessionKind::kData;
  stranger.incarnation = 1;
  stranger.proof = prove(derive_job_key("train", ""), stranger);
  hosts.connect_raw(address(3), stranger);
  hosts.connect_raw(address(1), stranger);
  wire::Hello forged = control_hello("train", "guess");
  hosts.connect_raw(address(3), forged);
  wire::Hello unnamed = control_hello("no name", "");
  hosts.connect_raw(address(3), unnamed);
  hosts.run();
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  end();
}

TEST_F(JobTest, HeldHellosAreBounded) {
  hosts.add(1, 1, embedded_server());
  for (int i = 0; i < 1000; ++i) {
    hosts.connect_raw(address(1), control_hello("job" + std::to_string(i), ""));
  }
  hosts.run();
  expect_nothing_left();
}

TEST_F(RunningTest, MemberThatSpeaksOutOfTurnFailsItsOwnJobOnly) {
  start();
  OpenJob other = job(Role::kWorker, 0, 2, 1, {address(3)});
  other.name = "other";
  ProgramModel& victim = opens(1, other);
  auto& session = hosts.connect_raw(address(3), control_hello("other", ""));
  hosts.run_for(0);
  message::Join join;
  join.rank = 1;
  join.workers = 2;
  join.servers = 1;
  join.incarnation = 7;
  join.lanes = {address(9)};
  join.rendezvous = {address(3)};
  hosts.send_raw(session, encode(join));
  hosts.run_for(0);
  hosts.send_raw(session, encode(message::End{}));
  hosts.run_for(kSecond);
  EXPECT_EQ(victim.open_code, Errc::kProtocol) << victim.open_text;
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  end();
}

// Of what a coordinator may say, but not now or not of this job.
TEST_F(RunningTest, ACoordinatorThatSpeaksOutOfTurnFailsItsJobByName) {
  const message::TensorShape tensor{5, 1000, Dtype::kF32, ReduceOp::kSum};
  const struct {
    const char* instead;  // of this message, which goes to a worker or to the other server
    Message said;
    const char* why;
  } rows[] = {
      {"declared", message::Start{1400}, "sent 'start' when it may not"},
      {"declared", message::Define{{tensor}}, "sent 'define' when it may not"},
      {"define", message::Declared{}, "sent 'declared' when it may not"},
      {"define", message::Define{{tensor, tensor}}, "defined a tensor twice"},
      {"define", message::Replace{77, 1, address(9)}, "replaced a worker that is not one"},
      {"declared", message::Declared{Errc::kOk, "", {}, {0, 1, 7}}, "where no shard is"},
      {"declared", message::Declared{Errc::kOk, "", {}, {0, 1}}, "where no shard is"},
      {"define", message::Define{{tensor}, {2}}, "where no shard is"},
      {"define", message::Define{{tensor}, {0, 1}}, "where no shard is"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    hosts = Hosts();
    start();
    hosts.translate = [&row](std::vector<std::byte>& bytes) {
      const Result<Message> message = decode_message(bytes);
      if (message && std::string(name_of(*message)) == row.instead) bytes = encode(row.said);
    };
    a->declare(tensors(0, 3));
    hosts.run();
    EXPECT_EQ(a->declares, 1);
    EXPECT_FALSE(a->declared.ok());
    ASSERT_FALSE(a->status().ok());
    if (std::string(row.instead) == "declared") {
      EXPECT_EQ(a->status().error().code, Errc::kProtocol);
      EXPECT_NE(a->status().error().message.find(row.why), std::string::npos)
          << a->status().error().message;
    }
    EXPECT_FALSE(b->status().ok());
    end();
  }
}

// It chooses how large frames are, and a port's buffers hold no more than the paths carry.
TEST_F(JobTest, ChunksThatNoPathCarriesFailTheJob) {
  hosts.add(1, 1, not_serving());
  hosts.add(3, 1, serving());
  hosts.translate = [](std::vector<std::byte>& bytes) {
    const Result<Message> message = decode_message(bytes);
    if (message && std::get_if<message::Start>(&*message)) bytes = encode(message::Start{65408});
  };
  ProgramModel& worker = opens(1, job(Role::kWorker, 0, 1, 1, {address(3)}));
  hosts.run_for(kSecond);
  EXPECT_EQ(worker.open_code, Errc::kProtocol);
  EXPECT_TRUE(says(worker.open_text, "wants frames of 65456 bytes, the paths here carry 1472"))
      << worker.open_text;
  hosts.translate = nullptr;
  expect_nothing_left();
}

class HostileReturnTest : public RunningTest {
 protected:
  HostileReturnTest() : RunningTest(kMinute) {}
};

// Before the servers have fenced its last life off it has no roster, and cannot know any path.
TEST_F(HostileReturnTest, WhoIsReadyBeforeItsRosterIsPutOut) {
  start();
  b->gone();
  hosts.run_for(kSecond);
  message::Join join;
  join.rank = 1;
  join.workers = join.servers = 2;
  join.incarnation = 77;
  join.terms.rejoin_ms = 60'000;
  join.terms.policy = "mercury";
  join.features = kKnowsLostWorkers | kKnowsPolicies | kKnowsStalls | kKnowsFirstShards;
  join.lanes = {address(9)};
  join.rendezvous = {address(3), address(4)};
  for (int i = 0; i < 3; ++i) {
    auto& session = hosts.connect_raw(address(3), control_hello("train", ""));
    hosts.run_for(0);
    hosts.send_raw(session, encode(join));
    hosts.send_raw(session, encode(message::Ready{1472}));
    hosts.run_for(kSecond);
    EXPECT_TRUE(session.ends[1].closed);
  }
  EXPECT_TRUE(a->status().ok()) << a->status().error().message;
  b = &opens(2, request(1));
  hosts.run_for(kSecond);
  EXPECT_TRUE(b->is_open()) << b->open_text;
  end();
}

TEST_F(HostileReturnTest, AServerWithRoundsOfUnknownTensorsFailsItsJob) {
  start();
  a->declare(tensors(0, 1));
  b->declare(tensors(0, 1));
  hosts.run_for(kSecond);
  engine_job(4, 0, JobSlot(0)).rounds = {{0, 5}, {999, 1}};  // from another host than server 0's
  b->gone();
  hosts.run_for(kSecond);
  b = &opens(2, request(1));
  hosts.run_for(kSecond);
  ASSERT_FALSE(a->status().ok());
  EXPECT_TRUE(says(a->status().error().message, "sent 'replaced' when it may not"))
      << a->status().error().message;
  end();
}

}  // namespace
}  // namespace mercury::test
