#include "shim/job/messages.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace mercury {
namespace {

using Json = nlohmann::json;

Endpoint endpoint(uint8_t last, uint16_t port) { return {IpAddress::v4(10, 0, 0, last), port}; }

message::Join join() {
  message::Join m;
  m.role = Role::kServer;
  m.rank = 1;
  m.workers = 3;
  m.servers = 2;
  m.terms.weight = 7;
  m.incarnation = 0xfffffffe;
  m.timeout_ms = 30000;
  m.served = true;
  m.lanes = {endpoint(1, 7470), {*IpAddress::parse("fd00::1"), 65535}};
  m.rendezvous = {endpoint(9, 1)};
  m.terms.rejoin_ms = 60000;
  m.terms.policy = "p3:startup=20us";
  m.terms.quorum = 2;
  m.terms.patience_ms = 50;
  m.features = 5;
  return m;
}

message::Roster roster() {
  message::Roster m;
  m.rank = 2;
  m.terms.weight = 3;
  m.terms.rejoin_ms = 60000;
  m.terms.policy = "wfbp";
  m.terms.quorum = 256;
  m.terms.patience_ms = 1;
  m.terms.stall_timeout_ms = 5;
  m.frame_bytes = 1472;
  m.workers = {{1, endpoint(1, 7470)}, {2, endpoint(2, 7470)}, {3, endpoint(3, 7470)}};
  m.servers = {{4, {endpoint(4, 1), endpoint(4, 2)}}, {5, {endpoint(5, 1), endpoint(5, 2)}}};
  return m;
}

std::vector<Message> one_of_each() {
  return {join(),
          message::Invite{1, 3, 2, {.deterministic = true}},
          roster(),
          message::Ready{1232, 1472},
          message::Start{1408},
          message::Declare{{{0, 1, Dtype::kF32, ReduceOp::kSum},
                            {kMaxTensorId, kMaxElements, Dtype::kBf16, ReduceOp::kAverage}}},
          message::Declared{Errc::kTensorMismatch, "tensor 1 differs", {7, Round(~uint32_t{0})}},
          message::Declared{Errc::kOk, "", {}, {0, Shard(uint16_t{kMaxShards - 1})}},
          message::Define{{{5, 6, Dtype::kI64, ReduceOp::kSum}}},
          message::Define{{{5, 6, Dtype::kI64, ReduceOp::kSum}}, {3}},
          message::Defined{},
          message::Leave{},
          message::Left{},
          message::PeerLeft{255},
          message::PeerLeft{3, "tensor 7 and 2 more", "", false, {}},
          message::PeerLeft{3, "", "tensor 7 differs", true, {{kMaxTensorId, ~uint32_t{0}}}},
          message::End{},
          message::Fail{Errc::kPeerLost, "worker 1 of 2: nothing heard"},
          message::Replace{255, 1, endpoint(1, 7470)},
          message::Replaced{255, ~uint32_t{0}, false, {{0, 1}, {kMaxTensorId, ~uint32_t{0}}}},
          message::Refill{},
          message::Lost{3, 5},
          message::SetPolicy{"mercury:forward=tensor"},
          message::Stalled{kMaxTensorId, ~uint32_t{0}, 1'800'000, {{0, 7}, {255, 1}}, false},
          message::Stalled{{0, 1}, 0, {{0, 7}}, true}};
}

Result<Message> decode_json(const Json& json) {
  const std::vector<uint8_t> bytes = Json::to_cbor(json);
  return decode_message(std::as_bytes(std::span(bytes)));
}

Json to_json(const Message& message) {
  const std::vector<std::byte> bytes = encode(message);
  const auto* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  return Json::from_cbor(begin, begin + bytes.size());
}

TEST(Messages, SurviveTheWire) {
  for (const Message& message : one_of_each()) {
    const Result<Message> back = decode_message(encode(message));
    ASSERT_TRUE(back) << name_of(message) << ": " << back.error().message;
    EXPECT_TRUE(*back == message) << name_of(message);
  }
}

TEST(Messages, LargestRosterAndBatchFit) {
  message::Roster m;
  m.workers.assign(kMaxWorkers, {~uint32_t{0}, endpoint(1, 65535)});
  for (const uint32_t servers : {kMaxShards / kMaxLanes, kMaxServers}) {
    const std::vector<Endpoint> lanes(most_lanes(servers), endpoint(2, 65535));
    m.servers.assign(servers, {~uint32_t{0}, lanes});
    EXPECT_EQ(m.shards(), kMaxShards);
    EXPECT_LT(encode(m).size(), kMaxControlBytes);
    EXPECT_TRUE(decode_message(encode(m)));
    for (auto& server : m.servers) server.lanes.push_back(lanes.front());
    EXPECT_FALSE(decode_message(encode(m))) << "more lanes than a roster may have";
  }
  message::Replaced rounds;
  rounds.rounds.assign(kDeclareBatch, {kMaxTensorId, ~uint32_t{0}});
  EXPECT_LT(encode(rounds).size(), kMaxControlBytes / 2);
  message::Declare batch;
  batch.tensors.assign(kDeclareBatch,
                       {kMaxTensorId, kMaxElements, Dtype::kI64, ReduceOp::kAverage});
  EXPECT_LT(encode(batch).size(), kMaxControlBytes / 2);
  EXPECT_TRUE(decode_message(encode(batch)));
}

// What version 1 of the control messages did not have: left out by those who have no use for it.
bool is_optional(const Message& message, const std::string& key) {
  return key == "rejoin_ms" || key == "frame_bytes" || key == "lacked" || key == "quorum" ||
         key == "patience_ms" || key == "stall_ms" || key == "features" || key == "refused" ||
         key == "ending" || key == "waiting" || key == "gone" || key == "in_parts" ||
         (key == "policy" && !std::holds_alternative<message::SetPolicy>(message)) ||
         key == "first_shards" ||
         (key == "rounds" && std::holds_alternative<message::Declared>(message));
}

TEST(Messages, AFieldAddedLaterMayBeMissing) {
  for (const Message& message : one_of_each()) {
    const Json whole = to_json(message);
    Json json = whole;
    for (const auto& [key, value] : whole.items()) {
      if (is_optional(message, key)) json.erase(key);
    }
    EXPECT_TRUE(decode_json(json)) << name_of(message);
  }
  message::Join plain = join();
  plain.terms.rejoin_ms = 0;
  plain.terms.policy.clear();
  plain.terms.quorum = 0;
  plain.terms.patience_ms = 0;
  EXPECT_FALSE(to_json(plain).contains("rejoin_ms"));
  EXPECT_FALSE(to_json(plain).contains("policy"));
  EXPECT_FALSE(to_json(message::Declared{}).contains("rounds"));
  EXPECT_FALSE(to_json(message::Declared{}).contains("first_shards"));
  EXPECT_EQ(to_json(message::Define{{{5, 6, Dtype::kI64, ReduceOp::kSum}}}).size(), 2U);
  EXPECT_EQ(to_json(message::PeerLeft{3}).size(), 2U);
  EXPECT_FALSE(to_json(message::Ready{1472}).contains("in_parts"));
  EXPECT_FALSE(to_json(message::Stalled{}).contains("gone"));
}

TEST(Messages, SkipsUnknownFields) {
  Json json = to_json(join());
  json["from_the_future"] = {1, 2, 3};
  EXPECT_TRUE(decode_json(json));
}

TEST(Messages, RefusesWhatIsMissingOrOfTheWrongType) {
  for (const Message& message : one_of_each()) {
    const Json whole = to_json(message);
    for (const auto& [key, value] : whole.items()) {
      Json json = whole;
      json.erase(key);
      const bool goes_with_another = key == "quorum" || key == "patience_ms";
      if (!is_optional(message, key) || goes_with_another) {
        EXPECT_FALSE(decode_json(json)) << name_of(message) << " without " << key;
      }
      for (const Json& wrong : {Json(nullptr), Json(1.5), Json::object(), Json::array({Json()}),
                                Json(uint64_t{1} << 63)}) {
        json[key] = wrong;
        EXPECT_FALSE(decode_json(json)) << name_of(message) << " with " << key << " = " << wrong;
      }
    }
  }
}

TEST(Messages, RefusesValuesOutOfRange) {
  const auto refused = [](const Message& message, const char* key, const Json& value) {
    Json json = to_json(message);
    json[key] = value;
    const Result<Message> result = decode_json(json);
    return !result && result.error().code == Errc::kProtocol;
  };
  EXPECT_TRUE(refused(join(), "workers", 0));
  EXPECT_TRUE(refused(join(), "workers", kMaxWorkers + 1));
  EXPECT_TRUE(refused(join(), "rank", 2));
  EXPECT_TRUE(refused(join(), "rank", -2));
  EXPECT_TRUE(refused(join(), "incarnation", 0));
  EXPECT_TRUE(refused(join(), "role", 2));
  EXPECT_TRUE(refused(join(), "quorum", 4));
  EXPECT_TRUE(refused(join(), "deterministic", true));  // and a quorum
  EXPECT_TRUE(refused(join(), "weight", 1001));
  EXPECT_TRUE(refused(join(), "lanes", Json::binary({})));
  EXPECT_TRUE(refused(join(), "lanes", Json::binary(std::vector<uint8_t>(17, 1))));
  EXPECT_TRUE(refused(join(), "lanes", Json::binary(std::vector<uint8_t>(18 * 33, 1))));
  EXPECT_TRUE(refused(join(), "lanes", Json::binary(std::vector<uint8_t>(18, 0))));  // port 0
  EXPECT_TRUE(refused(message::Fail{Errc::kPeerLost, ""}, "code", 9999));
  EXPECT_TRUE(refused(message::Fail{Errc::kPeerLost, ""}, "code", 0));
  EXPECT_TRUE(refused(message::Fail{Errc::kPeerLost, ""}, "text", std::string(5000, 'x')));
  EXPECT_TRUE(refused(message::Start{1408}, "chunk_bytes", 3));
  const message::Declare declare{{{1, 1, Dtype::kF32, ReduceOp::kSum}}};
  for (const Json& row :
       {Json{1, 0, 0, 0}, Json{1, 1, kDtypeCount, 0}, Json{1, 1, 0, kReduceOpCount},
        Json{-1, 1, 0, 0}, Json{1, 1, 0}, Json{1, 1, 0, 0, 0}, Json(1)}) {
    EXPECT_TRUE(refused(declare, "tensors", Json::array({row}))) << row;
  }
  EXPECT_TRUE(refused(declare, "tensors", Json::array()));
  EXPECT_TRUE(refused(roster(), "servers",
                      Json::array({{4, Json::binary(std::vector<uint8_t>(18, 1))},
                                   {5, Json::binary(std::vector<uint8_t>(36, 1))}})));
}

TEST(Messages, PrintableTextOnly) {
  const Result<Message> back = decode_message(encode(message::Fail{Errc::kClosed, "a\x1b[2J\xff"}));
  ASSERT_TRUE(back);
  EXPECT_EQ(std::get<message::Fail>(*back).text, "a?[2J?");
}

TEST(Messages, RefusesDeepNestingWithoutDeepRecursion) {
  std::vector<std::byte> deep(kMaxControlBytes, std::byte{0x81});  // an array of an array of ...
  EXPECT_FALSE(decode_message(deep));
  std::fill(deep.begin(), deep.end(), std::byte{0xa1});
  EXPECT_FALSE(decode_message(deep));
  std::fill(deep.begin(), deep.end(), std::byte{0x9f});
  EXPECT_FALSE(decode_message(deep));
}

TEST(Messages, RefusesWhatIsTooLongOrAnnouncesTooMuch) {
  EXPECT_FALSE(decode_message(std::vector<std::byte>(kMaxControlBytes + 1, std::byte{0})));
  // An array, a string and a map of 2^63 elements, and no more bytes.
  for (const int first : {0x9b, 0x7b, 0x5b, 0xbb}) {
    std::vector<std::byte> bytes(9, std::byte{0});
    bytes[0] = static_cast<std::byte>(first);
    bytes[1] = std::byte{0x80};
    EXPECT_FALSE(decode_message(bytes));
  }
  EXPECT_FALSE(decode_message({}));
}

TEST(Messages, NeverCrashOnMutatedBytes) {
  std::mt19937 random(3);
  const std::vector<Message> all = one_of_each();
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = encode(all[random() % all.size()]);
    const size_t changes = 1 + random() % 4;
    for (size_t c = 0; c < changes; ++c) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const Result<Message> result = decode_message(bytes);
    if (result) {
      ++accepted;
      EXPECT_TRUE(decode_message(encode(*result)));  // what passes is within the limits
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace mercury
