#include "scheduler/policy.h"

#include <gtest/gtest.h>

#include <vector>

#include "transport/base/random.h"

namespace mercury {
namespace {

using Release = Policy::Release;
using Order = Policy::Order;
using Forward = Policy::Forward;

std::vector<std::string> names_in(std::string list) {
  std::vector<std::string> names;
  for (size_t end = 0; end != std::string::npos; list.erase(0, end + 2)) {
    end = list.find(", ");
    names.push_back(list.substr(0, end));
    if (end == std::string::npos) break;
  }
  return names;
}
const std::vector<std::string> kNames = names_in(policy_names());

std::string refusal(std::string_view text) {
  const Result<Policy> policy = parse_policy(text);
  if (policy) return "accepted";
  EXPECT_EQ(policy.error().code, Errc::kInvalidArgument);
  return policy.error().message;
}

TEST(Policy, NamesAreSettingsOfTheKnobs) {
  const Policy mercury = *parse_policy("mercury");
  EXPECT_EQ(mercury.release, Release::kTensor);
  EXPECT_EQ(mercury.order, Order::kPriority);
  EXPECT_EQ(mercury.forward, Forward::kChunk);
  EXPECT_EQ(parse_policy("mercury-fifo")->order, Order::kFifo);
  EXPECT_EQ(parse_policy("mercury-fifo")->forward, Forward::kChunk);
  EXPECT_EQ(parse_policy("wfbp")->forward, Forward::kTensor);
  EXPECT_TRUE(parse_policy("wfbp")->pulls_share_link);
  EXPECT_FALSE(parse_policy("wfbp-eq7")->pulls_share_link);
  const Policy p3 = *parse_policy("p3");
  EXPECT_EQ(p3.release, Release::kPartition);
  EXPECT_EQ(p3.partition_bytes, 160'000U);
  EXPECT_EQ(p3.credit_bytes, p3.partition_bytes);
  EXPECT_EQ(parse_policy("byteps")->partition_bytes, 4'000'000U);
  EXPECT_EQ(parse_policy("bytescheduler")->forward, Forward::kPartition);
}

TEST(Policy, ReadsKnobs) {
  const Policy policy = *parse_policy(
      "bytescheduler:partition=0.4MB,credit=1.6MB,startup=50us,order=fifo,"
      "forward=chunk");
  EXPECT_EQ(policy.partition_bytes, 400'000U);
  EXPECT_EQ(policy.credit_bytes, 1'600'000U);
  EXPECT_EQ(policy.startup_ns, 50'000U);
  EXPECT_EQ(policy.order, Order::kFifo);
  EXPECT_EQ(policy.forward, Forward::kChunk);
  EXPECT_EQ(parse_policy("p3:startup=0")->startup_ns, 0U);
  const Policy paper = *parse_policy("mercury:answers=fifo,grants=even,unit=30KB");
  EXPECT_EQ(paper.answers, Order::kFifo);
  EXPECT_EQ(paper.grants, Policy::Grants::kEven);
  EXPECT_EQ(paper.unit_bytes, 30'000U);
  EXPECT_EQ(unit_frames(paper, 8900), 3U);
  EXPECT_EQ(unit_frames(paper, 1400), 21U);
  EXPECT_EQ(unit_frames(paper, 65'000), 1U);
  EXPECT_EQ(unit_frames(Policy(), 8900), 1U);
  const Policy native = *parse_policy("wfbp:place=key");
  EXPECT_EQ(native.place, Policy::Place::kKey);
  EXPECT_TRUE(on_one_server(native, 999'999));
  EXPECT_FALSE(on_one_server(native, 1'000'000));
  EXPECT_FALSE(on_one_server(*parse_policy("wfbp"), 999'999));
}

TEST(Policy, RefusesNonsenseWithTheReason) {
  EXPECT_EQ(refusal("mercuri"), "unknown policy 'mercuri': expected one of " + policy_names());
  EXPECT_EQ(parse_engine_policy("mercuri:order=fifo").error().message,
            "unknown policy 'mercuri': expected one of " + engine_policy_names());
  EXPECT_EQ(refusal(""), "unknown policy '': expected one of " + policy_names());
  EXPECT_EQ(refusal("p3:"), "nothing stands behind the ':'");
  EXPECT_EQ(refusal("p3:credit=1MB,"), "a knob is missing beside a ','");
  EXPECT_EQ(refusal("p3:,credit=1MB"), "a knob is missing beside a ','");
  EXPECT_EQ(refusal("p3:credit=1MB,,startup=0"), "a knob is missing beside a ','");
  EXPECT_EQ(refusal("p3:credit"), "knob 'credit' without a value: expected KEY=VALUE");
  EXPECT_EQ(refusal("p3:window=3"),
            "unknown knob 'window': expected one of order, forward, partition, credit, startup, "
            "answers, grants, unit, place");
  EXPECT_EQ(refusal("mercury:answers=urgency"),
            "answers 'urgency': expected one of fifo, priority");
  EXPECT_EQ(refusal("mercury:grants=fifo"), "grants 'fifo': expected one of even, urgency");
  EXPECT_EQ(refusal("wfbp:place=hash"), "place 'hash': expected one of spread, key");
  EXPECT_EQ(refusal("mercury:unit=999B"), "unit 999B is not from 1KB to 1GB");
  EXPECT_EQ(refusal("mercury:unit=2GB"), "unit 2GB is not from 1KB to 1GB");
  EXPECT_EQ(refusal("mercury:unit=0"), "unit 0: a unit is a frame where none is named");
  EXPECT_EQ(refusal("p3:answers=fifo"), "p3 releases partitions and has no answers");
  EXPECT_EQ(refusal("byteps:unit=30KB"), "byteps releases partitions and has no unit");
  EXPECT_EQ(refusal("wfbp-eq7:place=key"),
            "wfbp-eq7 stands for one printed equation and has no knobs");
  EXPECT_EQ(refusal("mercury:order=random"), "order 'random': expected one of fifo, priority");
  EXPECT_EQ(refusal("mercury:credit=1MB"), "mercury releases whole tensors and has no credit");
  EXPECT_EQ(refusal("wfbp:forward=partition"),
            "wfbp has no partitions to forward: forward=tensor or chunk");
  EXPECT_EQ(refusal("wfbp-eq7:order=priority"),
            "wfbp-eq7 stands for one printed equation and has no knobs");
  EXPECT_EQ(refusal("p3:credit=1MB,credit=2MB"), "credit stands twice");
  EXPECT_EQ(refusal("p3:partition=1MB"), "credit 160KB is less than a partition of 1MB");
  EXPECT_EQ(refusal("p3:partition=999B"), "partition 999B is not from 1KB to 1TiB");
  EXPECT_EQ(refusal("p3:partition=2000GB,credit=2000GB"),
            "partition 2000GB is not from 1KB to 1TiB");
  EXPECT_EQ(refusal("p3:credit=2000000GB"), "credit 2000000GB is more than 1024TiB");
  EXPECT_EQ(refusal("p3:startup=11s"), "startup 11s is more than 10s");
  EXPECT_EQ(refusal("p3:startup=-1s"),
            "startup '-1s' is not a time such as 50us (ns, us, ms or s)");
  EXPECT_EQ(refusal("p3:partition=1MB=2"),
            "partition '1MB=2' is not a number of bytes such as 160KB (B, KB, MB, GB, KiB, MiB or "
            "GiB)");
}

TEST(Policy, ChecksValuesThatWereNotParsed) {
  EXPECT_TRUE(check_policy(*parse_policy("wfbp-eq7")));
  Policy policy = *parse_policy("mercury");
  policy.partition_bytes = 4000;
  EXPECT_FALSE(check_policy(policy));
  policy = *parse_policy("wfbp");
  policy.pulls_share_link = false;
  EXPECT_FALSE(check_policy(policy));
  policy = *parse_policy("p3");
  policy.release = Release::kTensor;
  EXPECT_FALSE(check_policy(policy));
  EXPECT_FALSE(check_policy(Policy{}));
  policy = *parse_policy("p3");
  policy.grants = Policy::Grants::kEven;
  EXPECT_FALSE(check_policy(policy));
}

TEST(Policy, PrintsWhatItReads) {
  for (const std::string& name : kNames) EXPECT_EQ(print_policy(*parse_policy(name)), name);
  EXPECT_EQ(print_policy(*parse_policy("p3:startup=60us,partition=160KB")),
            "p3:partition=160KB,credit=160KB,startup=60us");
  EXPECT_EQ(print_policy(*parse_policy("mercury:unit=30KB,grants=even,answers=fifo,place=key")),
            "mercury:answers=fifo,grants=even,unit=30KB,place=key");
  EXPECT_EQ(*canonical_policy("mercury:answers=priority,grants=urgency,place=spread"), "");
  constexpr uint64_t kSeed = 7;
  Random random(kSeed);
  for (int i = 0; i < 10'000; ++i) {
    Policy policy = *parse_policy(kNames[random.below(kNames.size())]);
    policy.order = static_cast<Order>(random.below(2));
    policy.forward = static_cast<Forward>(random.below(3));
    if (random.chance(0.5)) policy.partition_bytes = random.next() >> (20 + random.below(40));
    policy.credit_bytes += policy.partition_bytes * random.below(3);
    if (random.chance(0.3)) {
      policy.answers = static_cast<Order>(random.below(2));
      policy.grants = static_cast<Policy::Grants>(random.below(2));
      policy.place = static_cast<Policy::Place>(random.below(2));
      // 0 is what no text says.
      if (random.chance(0.5)) policy.unit_bytes = 1 + (random.next() >> (30 + random.below(30)));
    }
    const Result<Policy> read = parse_policy(print_policy(policy));
    EXPECT_EQ(read.has_value(), check_policy(policy).ok())
        << "seed " << kSeed << " step " << i << ": " << print_policy(policy);
    if (read && check_policy(policy).ok()) {
      EXPECT_EQ(*read, policy) << print_policy(policy);
    }
  }
}

}  // namespace
}  // namespace mercury
