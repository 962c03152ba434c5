// Which requests are parts of sums, and what is refused.
#include "shim/pslite/summed.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using mercury_van::Bytes;
using mercury_van::FirstValues;
using mercury_van::KeyPart;
using mercury_van::KeyRequest;
using mercury_van::Mode;
using mercury_van::SumChooser;
using mercury_van::SumRule;
using mercury_van::ValueType;

using Variables = std::map<std::string, std::string>;

std::string read(const Variables& variables, SumRule* rule) {
  return mercury_van::read_rule(
      [&variables](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      rule);
}

SumRule rule_of(const Variables& variables) {
  SumRule rule;
  EXPECT_EQ(read(variables, &rule), "");
  return rule;
}

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto memory = std::make_shared<std::vector<T>>(values);
  return Bytes{memory, reinterpret_cast<char*>(memory->data()), values.size() * sizeof(T)};
}

KeyRequest push(const std::vector<uint64_t>& keys, size_t values, int command = 0) {
  KeyRequest out;
  out.command = command;
  out.push = true;
  out.type = ValueType::kFloat32;
  out.value_bytes = 4;
  out.data = {bytes_of(keys), bytes_of(std::vector<float>(values))};
  return out;
}

KeyRequest pull(const std::vector<uint64_t>& keys) {
  KeyRequest out = push(keys, 0);
  out.push = false;
  out.pull = true;
  return out;
}

class Chooser {
 public:
  explicit Chooser(const Variables& variables, int rank = 0) : chooser_(rule_of(variables), rank) {}
  bool sums(const KeyRequest& request) { return chooser_.is_summed(request, &parts, &error); }
  std::vector<KeyPart> parts;
  std::string error;

 private:
  SumChooser chooser_;
};

const Variables kAggregate = {{"MERCURY_PSLITE_MODE", "aggregate"}};
const Variables kNotify = {{"MERCURY_PSLITE_MODE", "notify"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables["MERCURY_PSLITE_" + name] = value;
  return variables;
}

TEST(SumRule, IsTransparentUnlessAsked) {
  EXPECT_EQ(rule_of({}).mode, Mode::kTransparent);
  EXPECT_EQ(rule_of({{"MERCURY_PSLITE_MODE", ""}}).mode, Mode::kTransparent);
  EXPECT_FALSE(Chooser({}).sums(push({1}, 1)));
}

TEST(SumRule, ReadsWhatIsSet) {
  const SumRule rule =
      rule_of(with(with(with(kNotify, "KEYS", "3,10-20"), "COMMANDS", "0,2-3"), "FIRST", "rank0"));
  EXPECT_EQ(rule.mode, Mode::kNotify);
  EXPECT_EQ(rule.keys, (std::vector<std::pair<uint64_t, uint64_t>>{{3, 3}, {10, 20}}));
  EXPECT_EQ(rule.commands, (std::vector<std::pair<uint64_t, uint64_t>>{{0, 0}, {2, 3}}));
  EXPECT_EQ(rule.first_values, FirstValues::kRankZero);
}

TEST(SumRule, NamesTheVariableThatIsWrong) {
  SumRule rule;
  EXPECT_EQ(read({{"MERCURY_PSLITE_MODE", "aggregated"}}, &rule),
            "MERCURY_PSLITE_MODE is 'aggregated': expected transparent, aggregate or notify");
  for (const char* ranges :
       {"a", "1,", "-1", "5-3", "1 2", "99999999999999999999", "1--2", "0x1"}) {
    EXPECT_EQ(read(with({}, "KEYS", ranges), &rule),
              "MERCURY_PSLITE_KEYS is '" + std::string(ranges) +
                  "': expected numbers and ranges, such as 0-99,200");
    EXPECT_NE(read(with({}, "COMMANDS", ranges), &rule), "");
  }
  EXPECT_EQ(read(with({}, "FIRST", "rank1"), &rule),
            "MERCURY_PSLITE_FIRST is 'rank1': expected none, rank0 or all");
}

TEST(SumRule, FrameworksSayTypesByCommands) {
  EXPECT_EQ(mercury_van::type_of_command(0), ValueType::kFloat32);
  EXPECT_EQ(mercury_van::type_of_command(2), ValueType::kFloat64);
  EXPECT_EQ(mercury_van::type_of_command(14), ValueType::kInt32);
  EXPECT_EQ(mercury_van::type_of_command(27), ValueType::kInt64);
  // Row-sparse and compressed ones of floats, and halves.
  for (const int command : {1, 3, 5}) {
    EXPECT_EQ(mercury_van::type_of_command(command), ValueType::kNone);
  }
}

TEST(SumChooser, SumsThePushesThatAreNamed) {
  Chooser chooser(with(with(kNotify, "KEYS", "3-5"), "COMMANDS", "0,7"));
  EXPECT_TRUE(chooser.sums(push({3}, 1)));
  EXPECT_TRUE(chooser.sums(push({4, 5}, 2, 7)));
  EXPECT_FALSE(chooser.sums(push({6}, 1)));
  EXPECT_FALSE(chooser.sums(push({3}, 1, 1)));
  EXPECT_FALSE(chooser.sums(push({3}, 0))) << "nothing to sum";
  EXPECT_FALSE(chooser.sums(pull({3}))) << "the server answers it";
  KeyRequest other = push({3}, 1);
  other.app = 1;
  EXPECT_FALSE(chooser.sums(other));
  KeyRequest second_server = push({1003}, 1);
  second_server.first_key = 1000;
  EXPECT_TRUE(chooser.sums(second_server)) << "keys count from the beginning of a server's range";
  EXPECT_EQ(chooser.error, "");
}

TEST(SumChooser, CutsARequestIntoItsKeys) {
  Chooser chooser(kAggregate);
  KeyRequest request = push({1, 2, 3}, 9);
  EXPECT_TRUE(chooser.sums(request));
  ASSERT_EQ(chooser.parts.size(), 3U);
  EXPECT_EQ(chooser.parts[2].at, 24U);
  EXPECT_EQ(chooser.parts[2].bytes, 12U);
  EXPECT_EQ(chooser.parts[2].length, 3);
  request.data.push_back(bytes_of(std::vector<int>{1, 2, 6}));
  EXPECT_TRUE(chooser.sums(request));
  EXPECT_EQ(chooser.parts[1].at, 4U);
  EXPECT_EQ(chooser.parts[2].bytes, 24U);
}

TEST(SumChooser, InAggregateModePullsOfWhatWasPushedAreSums) {
  Chooser chooser(kAggregate);
  EXPECT_FALSE(chooser.sums(pull({1})));
  EXPECT_TRUE(chooser.sums(push({1, 2}, 2)));
  EXPECT_TRUE(chooser.sums(pull({1})));
  EXPECT_TRUE(chooser.sums(pull({1, 2})));
  EXPECT_FALSE(chooser.sums(pull({1, 3})));
  EXPECT_NE(chooser.error.find("key 1 is pulled together with"), std::string::npos);
}

TEST(SumChooser, FirstValuesAreNoSums) {
  Chooser first(with(kAggregate, "FIRST", "rank0"), 0),
      second(with(kAggregate, "FIRST", "rank0"), 1);
  EXPECT_FALSE(first.sums(push({1}, 1)));
  EXPECT_FALSE(first.sums(pull({1}))) << "the server has the first values";
  EXPECT_TRUE(first.sums(push({1}, 1)));
  EXPECT_TRUE(first.sums(pull({1})));
  EXPECT_TRUE(second.sums(push({1}, 1)));
  Chooser any(with(kNotify, "FIRST", "all"), 1);
  EXPECT_FALSE(any.sums(push({1}, 1)));
  EXPECT_TRUE(any.sums(push({1}, 1)));
  EXPECT_FALSE(any.sums(push({1, 2}, 2)));
  EXPECT_NE(any.error.find("were pushed before"), std::string::npos);
}

TEST(SumChooser, RefusesWhatWouldBeAWrongSum) {
  const auto refusal = [](const Variables& variables, const KeyRequest& request) {
    Chooser chooser(variables);
    EXPECT_TRUE(chooser.sums(push({1}, 1)));
    EXPECT_FALSE(chooser.sums(request));
    return chooser.error;
  };
  KeyRequest other_customer = push({1}, 1);
  other_customer.customer = 1;
  EXPECT_EQ(
      refusal(kNotify, other_customer),
      "key 1 is pushed by customers 0 and 1 of one worker: a round has one push of each worker");
  EXPECT_EQ(
      refusal(with(kNotify, "KEYS", "1"), push({1, 2}, 2)),
      "key 1 is pushed together with keys that MERCURY_PSLITE_KEYS does not name: push them apart");
  KeyRequest half = push({1}, 1);
  half.type = ValueType::kNone;
  EXPECT_NE(refusal(kNotify, half).find("in a type that is not summed"), std::string::npos);
  KeyRequest bytes = push({1}, 1);
  bytes.type = ValueType::kFloat64;
  bytes.value_bytes = 1;
  EXPECT_EQ(refusal(kNotify, bytes), "key 1 has 4 bytes: expected one value or more of 8");
  KeyRequest lengths = push({1}, 3);
  lengths.data.push_back(bytes_of(std::vector<int>{2}));
  EXPECT_NE(refusal(kNotify, lengths).find("8 bytes by their lengths, and 12 are pushed"),
            std::string::npos);
  lengths.data[2] = bytes_of(std::vector<int>{-1});
  EXPECT_EQ(refusal(kNotify, lengths), "key 1 has a negative length");
  lengths.data[2] = bytes_of(std::vector<int>{1, 2});
  EXPECT_EQ(refusal(kNotify, lengths), "lengths of other keys");
}

TEST(SumRule, WhatDecidesAlikeHasOneDigest) {
  const auto digest = [](const Variables& variables) {
    return mercury_van::digest_of(rule_of(variables));
  };
  EXPECT_EQ(digest(kNotify), digest(with(with(kNotify, "COMMANDS", "0"), "FIRST", "none")));
  EXPECT_EQ(digest({}), digest(with({}, "KEYS", "1-5"))) << "nothing is summed";
  std::set<uint64_t> all = {digest({}), digest(kAggregate), digest(kNotify)};
  for (const auto& one : {std::make_pair("KEYS", "1-5"), std::make_pair("KEYS", "1,5"),
                          std::make_pair("COMMANDS", "1-5"), std::make_pair("FIRST", "all"),
                          std::make_pair("FIRST", "rank0")}) {
    all.insert(digest(with(kNotify, one.first, one.second)));
  }
  EXPECT_EQ(all.size(), 8) << "two of them are taken for the same";
}

}  // namespace
