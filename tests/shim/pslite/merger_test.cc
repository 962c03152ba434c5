// What a server's van makes of pushes: which rounds are complete, and whose pushes count.
#include "shim/pslite/merger.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using mercury_van::Bytes;
using mercury_van::Incarnation;
using mercury_van::Merger;
using mercury_van::ValueType;
using mercury_van::WorkerRequest;

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto memory = std::make_shared<std::vector<T>>(values);
  return Bytes{memory, reinterpret_cast<char*>(memory->data()), values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> values_in(const Merger::ToServer& merged) {
  const Bytes& bytes = merged.request.what.data.at(1);
  std::vector<T> out(bytes.size / sizeof(T));
  std::memcpy(out.data(), bytes.data, bytes.size);
  return out;
}

WorkerRequest request(int worker, const std::string& meta, uint64_t key) {
  WorkerRequest out;
  out.worker = worker;
  out.meta = meta;
  out.what.data = {bytes_of<uint64_t>({key}), Bytes()};
  return out;
}

template <typename T = float>
WorkerRequest push(int worker, const std::vector<T>& values, const std::string& meta = "",
                   uint64_t key = 7, ValueType type = ValueType::kFloat32) {
  WorkerRequest out = request(worker, meta, key);
  out.what.push = true;
  out.what.type = type;
  out.what.data[1] = bytes_of(values);
  return out;
}

constexpr Incarnation kFirstLife = 11, kSecondLife = 22;

class MergerTest : public testing::Test {
 protected:
  MergerTest() {
    for (int worker = 0; worker < 3; ++worker) merger.replace(worker, kFirstLife);
  }

  std::vector<Merger::ToServer> give(WorkerRequest one, Incarnation process = kFirstLife) {
    return merger.push(std::move(one), process, &error);
  }

  std::vector<std::string> answered(int merged) {
    std::vector<std::string> metas;
    for (const WorkerRequest& each : merger.answer(merged)) metas.push_back(each.meta);
    return metas;
  }

  Merger merger{3};
  std::string error;
};

using Floats = std::vector<float>;
using Names = std::vector<std::string>;

TEST_F(MergerTest, OnePushForAllAndAnAnswerForEach) {
  EXPECT_TRUE(give(push<float>(2, {100, 1}, "c")).empty());
  EXPECT_TRUE(give(push<float>(0, {1, 2}, "a")).empty());
  const auto merged = give(push<float>(1, {10, 4}, "b"));
  ASSERT_EQ(merged.size(), 1U);
  EXPECT_EQ(values_in<float>(merged[0]), (Floats{111, 7}));
  EXPECT_EQ(answered(merged[0].merged), (Names{"a", "b", "c"}));
  EXPECT_EQ(answered(merged[0].merged), Names{}) << "answered twice";
}

TEST_F(MergerTest, AddsInTheOrderOfWorkersWhateverComesFirst) {
  // In floats (big + 1) - big is 0, and (big - big) + 1 is 1: the second order would give that.
  const float big = 1e8F;
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2}, {0, 2, 1}, {2, 0, 1}}) {
    const Floats of_worker = {big, 1, -big};
    std::vector<Merger::ToServer> merged;
    for (const int worker : order) {
      merged = give(push<float>(worker, {of_worker[static_cast<size_t>(worker)]}));
    }
    ASSERT_EQ(merged.size(), 1U);
    EXPECT_EQ(values_in<float>(merged[0]), Floats{0});
  }
}

TEST_F(MergerTest, AWorkerAheadIsInTheNextRounds) {
  give(push<float>(0, {1}));
  give(push<float>(0, {2}));
  give(push<float>(1, {10}));
  give(push<float>(1, {20}));
  const auto first = give(push<float>(2, {100}));
  const auto second = give(push<float>(2, {200}));
  ASSERT_EQ(first.size() + second.size(), 2U);
  EXPECT_EQ(values_in<float>(first[0]), Floats{111});
  EXPECT_EQ(values_in<float>(second[0]), Floats{222});
  EXPECT_NE(first[0].merged, second[0].merged);
}

TEST_F(MergerTest, KeysDoNotWaitForEachOther) {
  give(push<float>(0, {1}, "", 7));
  give(push<float>(0, {2}, "", 8));
  give(push<float>(1, {2}, "", 8));
  const auto merged = give(push<float>(2, {2}, "", 8));
  ASSERT_EQ(merged.size(), 1U);
  EXPECT_EQ(values_in<float>(merged[0]), Floats{6});
}

TEST_F(MergerTest, AddsEachTypeAndWholeNumbersWrapAround) {
  using Doubles = std::vector<double>;
  const int32_t most = std::numeric_limits<int32_t>::max();
  const int64_t least = std::numeric_limits<int64_t>::min();
  std::vector<Merger::ToServer> doubles, ints, longs;
  for (int worker = 0; worker < 3; ++worker) {
    doubles = give(push<double>(worker, {0x1p53}, "", 1, ValueType::kFloat64));
    ints = give(push<int32_t>(worker, {worker == 0 ? most : 1}, "", 2, ValueType::kInt32));
    longs = give(push<int64_t>(worker, {worker == 0 ? least : -1}, "", 3, ValueType::kInt64));
  }
  EXPECT_EQ(values_in<double>(doubles.at(0)), Doubles{3 * 0x1p53});
  EXPECT_EQ(values_in<int32_t>(ints.at(0)), std::vector<int32_t>{-most});
  EXPECT_EQ(values_in<int64_t>(longs.at(0)),
            std::vector<int64_t>{std::numeric_limits<int64_t>::max() - 1});
}

TEST_F(MergerTest, AHalfRoundOfAnotherLifeIsTakenOut) {
  give(push<float>(0, {1}, "old"));
  give(push<float>(1, {10}));
  merger.replace(0, kSecondLife);
  EXPECT_TRUE(give(push<float>(2, {100})).empty()) << "complete with a push of the dead";
  const auto merged = give(push<float>(0, {2}, "new"), kSecondLife);
  ASSERT_EQ(merged.size(), 1U);
  EXPECT_EQ(values_in<float>(merged[0]), Floats{112});
  EXPECT_EQ(answered(merged[0].merged), (Names{"new", "", ""}));
}

TEST_F(MergerTest, WhatOfAnotherLifeComesLateIsDropped) {
  merger.replace(0, kSecondLife);
  EXPECT_TRUE(give(push<float>(0, {1}, "old"), kFirstLife).empty());
  EXPECT_EQ(error, "");
  give(push<float>(1, {10}));
  EXPECT_TRUE(give(push<float>(2, {100})).empty());
  EXPECT_EQ(give(push<float>(0, {2}), kSecondLife).size(), 1U);
}

TEST_F(MergerTest, ARoundThatTheServerHasKeepsThePushOfTheDeadAndAnswersTheOthers) {
  give(push<float>(0, {1}, "dead"));
  give(push<float>(1, {10}, "b"));
  const auto merged = give(push<float>(2, {100}, "c"));
  ASSERT_EQ(merged.size(), 1U);
  merger.replace(0, kSecondLife);
  EXPECT_EQ(answered(merged[0].merged), (Names{"b", "c"}));
  // The next life's first push is of the next round.
  EXPECT_TRUE(give(push<float>(0, {2}), kSecondLife).empty());
}

TEST_F(MergerTest, ALaterRoundOfTheDeadGoesToo) {
  for (int round = 0; round < 3; ++round) give(push<float>(0, {1}));
  give(push<float>(1, {10}));
  merger.replace(0, kSecondLife);
  give(push<float>(0, {2}), kSecondLife);
  EXPECT_EQ(values_in<float>(give(push<float>(2, {100})).at(0)), Floats{112});
  give(push<float>(1, {20}));
  EXPECT_TRUE(give(push<float>(2, {200})).empty()) << "a later push of the dead counted";
}

TEST_F(MergerTest, APullWaitsForItsWorkersPushAndForNobodyElses) {
  EXPECT_FALSE(merger.hold(request(0, "early", 7), kFirstLife));
  give(push<float>(0, {1}));
  EXPECT_TRUE(merger.hold(request(0, "pull", 7), kFirstLife));
  EXPECT_FALSE(merger.hold(request(1, "other worker", 7), kFirstLife));
  EXPECT_FALSE(merger.hold(request(0, "other key", 8), kFirstLife));
  WorkerRequest other_app = request(0, "other application", 7);
  other_app.what.app = 1;
  EXPECT_FALSE(merger.hold(other_app, kFirstLife));
  give(push<float>(1, {1}));
  const auto out = give(push<float>(2, {1}));
  ASSERT_EQ(out.size(), 2U);
  EXPECT_NE(out[0].merged, 0);
  EXPECT_EQ(out[1].merged, 0);
  EXPECT_EQ(out[1].request.meta, "pull");
  EXPECT_FALSE(merger.hold(request(0, "late", 7), kFirstLife));
}

TEST_F(MergerTest, PullsOfTheDeadAreNotAnswered) {
  give(push<float>(0, {1}));
  EXPECT_TRUE(merger.hold(request(0, "dead", 7), kFirstLife));
  merger.replace(0, kSecondLife);
  give(push<float>(1, {1}));
  give(push<float>(2, {1}));
  EXPECT_EQ(give(push<float>(0, {1}), kSecondLife).size(), 1U);
}

TEST_F(MergerTest, WhatWouldBeAWrongSumIsRefusedByName) {
  Incarnation life = 100;
  const auto refused = [this, &life](WorkerRequest other) {
    merger.replace(1, ++life);  // which takes out what it has given
    give(std::move(other), life);
    return error;
  };
  give(push<float>(0, {1, 2}));
  EXPECT_EQ(refused(push<float>(1, {1})), "key 7: workers 0 and 1 push 8 and 4 bytes");
  EXPECT_EQ(refused(push<int32_t>(1, {1, 2}, "", 7, ValueType::kInt32)),
            "key 7: workers 0 and 1 push values of different types");
  WorkerRequest more = push<float>(1, {1, 2});
  more.what.data[0] = bytes_of<uint64_t>({7, 8});
  EXPECT_EQ(refused(more), "key 7: workers 0 and 1 push it together with different keys");
  WorkerRequest command = push<float>(1, {1, 2});
  command.what.command = 3;
  EXPECT_EQ(refused(command), "key 7: workers 0 and 1 push with different commands");
  WorkerRequest pull = push<float>(1, {1, 2});
  pull.what.pull = true;
  EXPECT_EQ(refused(pull), "key 7: workers 0 and 1 push one with a pull and one without");
  EXPECT_EQ(refused(push<float>(1, {1, 2})), "");
}

}  // namespace
