// Whether frames of a job with a secret are authenticated, as its hosts' configurations say, and
// what is said where they disagree.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/shim/job/fixture.h"
#include "tests/wiped.h"

namespace mercury::test {
namespace {

using enum Authentication;

constexpr uint32_t kOurs = wire::kFeatureRefusals | wire::kFeatureResets | wire::kFeatureParts |
                           wire::kFeatureMoves | wire::kFeatureSourcePorts |
                           wire::kFeatureConfirmation;

// What the host of a worker says, and that of its server.
using Pair = std::pair<Authentication, Authentication>;

class AuthenticationTest : public JobTest, public testing::WithParamInterface<Pair> {
 protected:
  ProgramModel& open(const std::string& secret = "s") {
    JobPolicy asks = not_serving(), serves = serving();
    asks.authentication = GetParam().first;
    serves.authentication = GetParam().second;
    serves.known = {{"train", secret, 0}};
    asks.wire_features = asks_features;
    serves.wire_features = serves_features;
    hosts.add(1, 1, asks);
    hosts.add(2, 1, serves);
    hosts.answered = [this](const wire::Hello& asked, wire::HelloAck& answer) {
      if (strip_) answer.features &= ~uint32_t{wire::kFeatureSeals};
      features_.push_back(asked.features & answer.features &
                          ~uint32_t{wire::kFeatureAsksEncryption});
      asks_ = asks_ || ((asked.features | answer.features) & wire::kFeatureAsksEncryption) != 0;
    };
    OpenJob request = job(Role::kWorker, 0, 1, 1, {address(2)});
    request.secret = secret;
    ProgramModel& program = opens(1, request);
    hosts.run_for(kSecond);
    return program;
  }
  // What both sides of each session have.
  bool all_have(uint32_t features) const {
    return !features_.empty() &&
           std::all_of(features_.begin(), features_.end(),
                       [features](uint32_t have) { return have == features; });
  }
  bool either_asks() const { return asks_; }
  // Somebody on the path takes the offer out of every answer.
  void strip_answers() { strip_ = true; }
  uint32_t asks_features = ~uint32_t{0}, serves_features = ~uint32_t{0};  // of their releases
  size_t lines_with(const std::string& text) const {
    return static_cast<size_t>(
        std::count_if(hosts.log.begin(), hosts.log.end(),
                      [&text](const std::string& line) { return says(line, text); }));
  }

 private:
  bool strip_ = false;
  bool asks_ = false;
  std::vector<uint32_t> features_;
};

#define EACH(name, ...) INSTANTIATE_TEST_SUITE_P(Policies, name, testing::Values(__VA_ARGS__))

using BothHaveIt = AuthenticationTest;
EACH(BothHaveIt, Pair{kOffered, kOffered}, Pair{kOffered, kRequired}, Pair{kRequired, kOffered},
     Pair{kRequired, kRequired}, Pair{kEncrypted, kOffered}, Pair{kRequired, kEncrypted});

TEST_P(BothHaveIt, EverySessionHasSealsAndNothingIsSaid) {
  ProgramModel& program = open();
  ASSERT_TRUE(program.is_open()) << program.open_text;
  EXPECT_TRUE(all_have(kOurs | wire::kFeatureSeals | wire::kFeatureCanEncrypt));
  EXPECT_EQ(either_asks(), GetParam().first == kEncrypted || GetParam().second == kEncrypted);
  EXPECT_EQ(lines_with("authenticat"), 0U);
  program.close();
  expect_nothing_left();
}

using BothEncrypt = AuthenticationTest;
EACH(BothEncrypt, Pair{kEncrypted, kEncrypted});

TEST_P(BothEncrypt, AJobWithoutASecretIsNamedOnceByEachHost) {
  ProgramModel& program = open("");
  ASSERT_TRUE(program.is_open()) << program.open_text;
  EXPECT_TRUE(all_have(kOurs));
  EXPECT_EQ(lines_with("job 'train' is not encrypted: it has no secret"), 2U);
  program.close();
  expect_nothing_left();
}

using OneEncrypts = AuthenticationTest;
EACH(OneEncrypts, Pair{kEncrypted, kRequired}, Pair{kOffered, kEncrypted});

TEST_P(OneEncrypts, AReleaseThatCannotIsRefusedAndToldWhy) {
  (GetParam().first == kEncrypted ? serves_features : asks_features) &=
      ~uint32_t{wire::kFeatureCanEncrypt | wire::kFeatureAsksEncryption};
  ProgramModel& program = open();
  hosts.run();
  EXPECT_FALSE(program.is_open());
  EXPECT_EQ(program.open_code, Errc::kUnsupported) << program.open_text;
  EXPECT_TRUE(says(program.open_text, "authentication = \"encrypted\"")) << program.open_text;
  expect_nothing_left();
}

TEST_P(BothHaveIt, AnAnswerWithoutTheOfferDoesNotProveTheSecret) {
  strip_answers();
  ProgramModel& program = open();
  hosts.run();
  EXPECT_FALSE(program.is_open());
  EXPECT_TRUE(says(program.open_text, "does not prove the job's secret")) << program.open_text;
  expect_nothing_left();
}

using NobodyHasASecret = AuthenticationTest;
EACH(NobodyHasASecret, Pair{kRequired, kRequired}, Pair{kRequired, kOff}, Pair{kOff, kRequired});

TEST_P(NobodyHasASecret, ThereIsNothingToAuthenticateAndTheJobRuns) {
  ProgramModel& program = open("");
  ASSERT_TRUE(program.is_open()) << program.open_text;
  EXPECT_TRUE(all_have(kOurs));
  EXPECT_EQ(lines_with("authenticat"), 0U);
  program.close();
  expect_nothing_left();
}

using OneHasItOff = AuthenticationTest;
EACH(OneHasItOff, Pair{kOffered, kOff}, Pair{kOff, kOffered});

TEST_P(OneHasItOff, TheOtherSaysOnceOfTheJobThatFramesAreNotAuthenticated) {
  ProgramModel& program = open();
  ASSERT_TRUE(program.is_open()) << program.open_text;
  EXPECT_TRUE(all_have(kOurs));
  const char* who = GetParam().first == kOffered ? "1: " : "2: ";
  EXPECT_EQ(
      lines_with(std::string(who) + "job 'train' has a member whose frames are not authenticated"),
      1U);
  EXPECT_EQ(lines_with("not authenticated"), 1U);
  program.close();
  expect_nothing_left();
}

using OneRequiresIt = AuthenticationTest;
EACH(OneRequiresIt, Pair{kRequired, kOff}, Pair{kOff, kRequired});

TEST_P(OneRequiresIt, WhoHasItOffIsRefusedAndToldWhatToChange) {
  ProgramModel& program = open();
  hosts.run();
  EXPECT_FALSE(program.is_open());
  EXPECT_EQ(program.open_code, Errc::kUnsupported) << program.open_text;
  EXPECT_TRUE(says(program.open_text, "authentication = \"required\"")) << program.open_text;
  expect_nothing_left();
}

using BothHaveItOff = AuthenticationTest;
EACH(BothHaveItOff, Pair{kOff, kOff});

TEST_P(BothHaveItOff, NothingIsOfferedOrSaid) {
  ProgramModel& program = open();
  ASSERT_TRUE(program.is_open()) << program.open_text;
  EXPECT_TRUE(all_have(kOurs));
  EXPECT_EQ(lines_with("authenticat"), 0U);
  program.close();
  expect_nothing_left();
}

// Neither of what an operator configured nor of what a program says, while the job runs.
TEST_F(JobTest, NoSecretIsLeftOnceItsKeyIsDerived) {
  hosts.add(1, 1, not_serving());
  JobPolicy policy = serving();
  policy.known = {{"train", long_secret(), 0}};
  const Room configured(policy.known[0].secret);
  hosts.add(2, 1, std::move(policy));
  EXPECT_TRUE(configured.is_wiped());
  OpenJob request = job(Role::kWorker, 0, 1, 1, {address(2)});
  request.secret = long_secret();
  request.channels.resize(1);
  const Room said(request.secret);
  bool open = false;
  hosts.manager(1).open_job(1, std::move(request), 0, [&open](const Result<OpenedJob>& opened) {
    open = opened.has_value();
  });
  EXPECT_TRUE(said.is_wiped());
  hosts.run_for(kSecond);
  EXPECT_TRUE(open);
}

}  // namespace
}  // namespace mercury::test
