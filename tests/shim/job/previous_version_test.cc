// The exchanges of the versions before, as bytes: what their members say is understood, with the
// meaning that it had, and what is said to them is what they understood. The bytes are those that
// the last release before the options rejoin_ms and quorum sent, and, where it said something else
// or more, the last one before stall_ms; they never change. What cannot be agreed on is refused by
// name.
#include <algorithm>
#include <span>

#include "shim/job/messages.h"
#include "shim/proof/secret.h"
#include "tests/golden.h"
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

constexpr Golden kPrevious[] = {
    {"join",
     "ac6d64657465726d696e6973746963f46b696e6361726e6174696f6e1a01020304646b696e64646a6f69"
     "6e656c616e65735200000000000000000000ffff0a0000021d2e6472616e6b016a72656e64657a766f75"
     "735200000000000000000000ffff0a0000091d2e64726f6c650066736572766564f46773657276657273"
     "016a74696d656f75745f6d73197530667765696768740167776f726b65727302"},
    {"invite",
     "a56d64657465726d696e6973746963f4646b696e6466696e766974656472616e6b006773657276657273"
     "0167776f726b65727302"},
    {"roster",
     "a5646b696e6466726f737465726472616e6b0167736572766572738182075200000000000000000000ff"
     "ff0a0000091d2e667765696768740167776f726b6572738282055200000000000000000000ffff0a0000"
     "011d2e821a010203045200000000000000000000ffff0a0000021d2e"},
    {"ready", "a2646b696e646572656164796f6d61785f7564705f7061796c6f61641905c0"},
    {"start", "a26b6368756e6b5f6279746573190580646b696e64657374617274"},
    {"declare", "a2646b696e64676465636c6172656774656e736f72738184031903e80001"},
    {"declared", "a364636f64651818646b696e64686465636c6172656464746578746764696666657273"},
    {"define", "a2646b696e6466646566696e656774656e736f72738184031903e80001"},
    {"defined", "a1646b696e6467646566696e6564"},
    {"leave", "a1646b696e64656c65617665"},
    {"left", "a1646b696e64646c656674"},
    {"peer_left", "a2646b696e6469706565725f6c6566746472616e6b01"},
    {"end", "a1646b696e6463656e64"},
    {"fail", "a364636f6465181e646b696e64646661696c647465787464676f6e65"}};

// Of the release before stall_ms.
constexpr Golden kBeforeStalls[] = {
    {"join",
     "b16d64657465726d696e6973746963f4686665617475726573036b696e6361726e6174696f6e1a010203"
     "04646b696e64646a6f696e656c616e65735200000000000000000000ffff0a0000021d2e6b7061746965"
     "6e63655f6d7318fa66706f6c6963796270336671756f72756d016472616e6b016972656a6f696e5f6d73"
     "1913886a72656e64657a766f75735200000000000000000000ffff0a0000091d2e64726f6c6500667365"
     "72766564f46773657276657273016a74696d656f75745f6d73197530667765696768740167776f726b65"
     "727302"},
    {"roster",
     "a9646b696e6466726f737465726b70617469656e63655f6d7318fa66706f6c6963796270336671756f72"
     "756d016472616e6b016972656a6f696e5f6d731913886773657276657273818207520000000000000000"
     "0000ffff0a0000091d2e667765696768740167776f726b6572738282055200000000000000000000ffff"
     "0a0000011d2e821a010203045200000000000000000000ffff0a0000021d2e"},
    {"declared", "a464636f646500646b696e64686465636c6172656466726f756e6473820706647465787460"},
    {"replace",
     "a467616464726573735200000000000000000000ffff0a0000021d2e6b696e6361726e6174696f6e1a01"
     "020305646b696e64677265706c6163656472616e6b01"},
    {"replaced",
     "a56b696e6361726e6174696f6e1a01020305646b696e64687265706c61636564646c617374f56472616e"
     "6b0166726f756e647381820307"},
    {"refill", "a1646b696e6466726566696c6c"},
    {"lost", "a36b696e6361726e6174696f6e1a01020304646b696e64646c6f73746472616e6b01"},
    {"set_policy", "a2646b696e646a7365745f706f6c69637966706f6c6963796477666270"}};

Endpoint at(uint8_t last) { return {IpAddress::v4(10, 0, 0, last), 7470}; }

// The same exchange in this version's words.
std::vector<Message> expected() {
  message::Join join;
  join.rank = 1;
  join.workers = 2;
  join.servers = 1;
  join.incarnation = 0x01020304;
  join.timeout_ms = 30000;
  join.lanes = {at(2)};
  join.rendezvous = {at(9)};
  message::Roster roster;
  roster.rank = 1;
  roster.workers = {{5, at(1)}, {0x01020304, at(2)}};
  roster.servers = {{7, {at(9)}}};
  const message::TensorShape tensor{3, 1000, Dtype::kF32, ReduceOp::kAverage};
  return {join,
          message::Invite{0, 2, 1, {}},
          roster,
          message::Ready{1472},
          message::Start{1408},
          message::Declare{{tensor}},
          message::Declared{Errc::kTensorMismatch, "differs", {}},
          message::Define{{tensor}},
          message::Defined{},
          message::Leave{},
          message::Left{},
          message::PeerLeft{1},
          message::End{},
          message::Fail{Errc::kPeerLost, "gone"}};
}

void expect_the_same(std::span<const Golden> before, const std::vector<Message>& ours) {
  ASSERT_EQ(ours.size(), before.size());
  for (size_t i = 0; i < before.size(); ++i) {
    const std::vector<std::byte> theirs = bytes_of(before[i].hex);
    const Result<Message> read = decode_message(theirs);
    ASSERT_TRUE(read) << before[i].kind << ": " << read.error().message;
    EXPECT_STREQ(name_of(*read), before[i].kind);
    EXPECT_TRUE(*read == ours[i]) << before[i].kind;
    EXPECT_TRUE(encode(ours[i]) == theirs) << before[i].kind;
  }
}

TEST(PreviousVersion, ItsMessagesAreUnderstoodAndItUnderstandsOurs) {
  expect_the_same(kPrevious, expected());
}

TEST(PreviousVersion, SoAreThoseOfTheReleaseBeforeStalls) {
  auto join = std::get<message::Join>(expected()[0]);
  join.features = kKnowsLostWorkers | kKnowsPolicies;
  join.terms.policy = "p3";
  join.terms.rejoin_ms = 5000;
  join.terms.quorum = 1;
  join.terms.patience_ms = 250;
  auto roster = std::get<message::Roster>(expected()[2]);
  roster.terms.policy = "p3";
  roster.terms.rejoin_ms = 5000;
  roster.terms.quorum = 1;
  roster.terms.patience_ms = 250;
  message::Replaced replaced;
  replaced.rank = 1;
  replaced.incarnation = 0x01020305;
  replaced.rounds = {{3, 7}};
  expect_the_same(kBeforeStalls,
                  {join, roster, message::Declared{Errc::kOk, "", {7, 6}},
                   message::Replace{1, 0x01020305, at(2)}, replaced, message::Refill{},
                   message::Lost{1, 0x01020304}, message::SetPolicy{"wfbp"}});
}

// A worker of that version in a job with an option that it does not have.
TEST_F(RunningTest, AWorkerOfThePreviousVersionIsRefusedByNameWhereItCannotTakePart) {
  hosts.add(1, 1, not_serving());
  hosts.add(3, 1, serving());
  OpenJob open = job(Role::kWorker, 0, 2, 1, {address(3)});
  open.terms.rejoin_ms = to_ms(kSecond);
  ProgramModel& worker = opens(1, open);
  hosts.run_for(kSecond);

  hosts.add(2, 1, not_serving());
  ProgramModel& old = opens(2, job(Role::kWorker, 1, 2, 1, {address(3)}));  // says what theirs says
  hosts.run_for(kSecond);
  EXPECT_EQ(old.open_code, Errc::kWrongSizes);
  EXPECT_NE(old.open_text.find("rejoin_ms = 1000"), std::string::npos) << old.open_text;
  worker.gone();
  expect_nothing_left();
}

// It is bound by the job's time-out for workers that stall, of which it knows nothing.
TEST_F(RunningTest, AWorkerOfThePreviousVersionTakesPartWhereOthersAreNotToStall) {
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, not_serving());
  hosts.add(3, 1, serving());
  const auto asking = [](int rank, uint64_t stall_ns) {
    OpenJob open = job(Role::kWorker, rank, 3, 1, {address(3)});
    open.terms.stall_timeout_ms = to_ms(stall_ns);
    return open;
  };
  int joins = 0;
  hosts.translate = [&joins](std::vector<std::byte>& bytes) {
    const Result<Message> message = decode_message(bytes);
    ASSERT_TRUE(message);
    const auto* join = std::get_if<message::Join>(&*message);
    if (!join || join->rank != 0 || ++joins > 1) return;
    message::Join theirs = *join;
    theirs.features = 0;
    theirs.terms.stall_timeout_ms = 0;
    bytes = encode(theirs);
  };
  ProgramModel& old = opens(1, asking(0, 0));
  hosts.run_for(kSecond);
  ProgramModel& fresh = opens(2, asking(1, 7 * kSecond));
  hosts.run_for(kSecond);
  ProgramModel& other = opens(2, asking(2, 8 * kSecond));
  hosts.run_for(kSecond);
  EXPECT_EQ(other.open_code, Errc::kWrongSizes);
  EXPECT_NE(other.open_text.find("stall_timeout_ms = 7000"), std::string::npos) << other.open_text;
  ProgramModel& same = opens(2, asking(2, 7 * kSecond));
  hosts.run_for(kSecond);
  ASSERT_TRUE(old.is_open() && fresh.is_open() && same.is_open()) << same.open_text;
  for (auto& [slot, job] : hosts.host(3).lanes[0].jobs) {
    EXPECT_EQ(job.server_spec.terms.stall_timeout_ms, 7000u);
  }
  for (ProgramModel* program : {&old, &fresh, &same}) program->gone();
  expect_nothing_left();
}

// A server of that version would not fence, or wait for nobody: the job does not begin.
TEST_F(JobTest, AServerOfThePreviousVersionIsRefusedByNameWhereItCannotTakePart) {
  hosts.add(1, 1, not_serving());
  hosts.add(3, 1, serving());
  OpenJob open = job(Role::kWorker, 0, 1, 2, {address(3)});
  open.terms.rejoin_ms = to_ms(kSecond);
  ProgramModel& worker = opens(1, open);
  hosts.run_for(kSecond / 10);
  wire::Hello hello;
  hello.job = "train";
  hello.proof = prove(derive_job_key("train", ""), hello);
  auto& old = hosts.connect_raw(address(3), hello);
  hosts.run_for(0);
  message::Join join;
  join.role = Role::kServer;
  join.rank = 1;
  join.workers = 1;
  join.servers = 2;
  join.incarnation = 9;
  join.timeout_ms = 30000;
  join.lanes = {at(9)};
  join.rendezvous = {address(3)};
  hosts.send_raw(old, encode(join));
  hosts.run_for(kSecond);
  EXPECT_EQ(worker.open_code, Errc::kVersionMismatch);
  EXPECT_NE(worker.open_text.find("server 1 of 2 (10.0.0.9:7470)"), std::string::npos)
      << worker.open_text;
  expect_nothing_left();
}

// A coordinator of that version does not see what is asked for, and so does not say it to all.
TEST_F(JobTest, ACoordinatorOfThePreviousVersionIsRefusedByNameWhereItCannotTakePart) {
  hosts.translate = [](std::vector<std::byte>& bytes) {
    const Result<Message> message = decode_message(bytes);
    ASSERT_TRUE(message);
    const auto* roster = std::get_if<message::Roster>(&*message);
    if (!roster) return;
    message::Roster theirs = *roster;
    theirs.terms.rejoin_ms = theirs.terms.patience_ms = theirs.terms.quorum = 0;
    bytes = encode(theirs);
  };
  hosts.add(1, 1, not_serving());
  hosts.add(2, 1, not_serving());
  hosts.add(3, 1, serving());
  const auto opens_with = [&](auto change) {
    std::vector<ProgramModel*> workers;
    for (int rank : {0, 1}) {
      OpenJob open = job(Role::kWorker, rank, 2, 1, {address(3)});
      change(open);
      workers.push_back(&opens(rank + 1, open));
    }
    hosts.run_for(kSecond);
    const Errc code = workers[0]->open_code;
    const std::string text = workers[0]->open_text;
    for (ProgramModel* worker : workers) worker->gone();
    hosts.run_for(60 * kSecond);
    return std::pair(code, text);
  };
  EXPECT_EQ(opens_with([](OpenJob&) {}).first, Errc::kOk);
  const auto [code, text] =
      opens_with([](OpenJob& open) { open.terms.rejoin_ms = to_ms(kSecond); });
  EXPECT_EQ(code, Errc::kVersionMismatch) << text;
  EXPECT_NE(text.find("server 0 of 1 (10.0.0.3:7470)"), std::string::npos) << text;
  EXPECT_EQ(opens_with([](OpenJob& open) {
              open.terms.quorum = 1;
              open.terms.patience_ms = to_ms(kSecond);
            }).first,
            Errc::kVersionMismatch);
  expect_nothing_left();
}

}  // namespace
}  // namespace mercury::test
