// The exchange of the least minor version that is served, as bytes: what its programs and daemons
// say is understood, with the meaning that it had, and what is said to them has all that they ask
// for. The bytes never change. Of the versions before only the greeting is understood, so that it
// can be refused by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "shim/channel/attach.h"
#include "tests/golden.h"

namespace mercury::attach {
namespace {

using test::bytes_of;
using test::Golden;

constexpr Golden kRequests[] = {
    {"hello",
     "a6656d616769631a4d455243656d616a6f7201656d696e6f720663706964191267637365710164747970"
     "656568656c6c6f"},
    {"region_add",
     "a465627974657319100066726567696f6e07637365710264747970656a726567696f6e5f616464"},
    {"region_sealed", "a366726567696f6e07637365710364747970656d726567696f6e5f7365616c6564"},
    {"job_open",
     "b26a636c69656e745f6a6f62036d64657465726d696e6973746963f4646e616d6565747261696e6b7061"
     "7469656e63655f6d7318fa66706f6c6963796270336671756f72756d016472616e6b016972656a6f696e"
     "5f6d731913886a72656e64657a766f7573826d31302e302e302e313a373437306e5b666430303a3a325d"
     "3a3734373164726f6c650066736563726574636b65796373657104677365727665727301707374616c6c"
     "5f74696d656f75745f6d731a001b77406a74696d656f75745f6d731903e86474797065686a6f625f6f70"
     "656e667765696768740467776f726b65727302"},
    {"declare",
     "a4637365710564736c6f74056774656e736f72738187061903e80201090718406474797065676465636c"
     "617265"},
    {"job_wait", "a3637365710664736c6f74056474797065686a6f625f77616974"},
    {"job_status", "a3637365710764736c6f740564747970656a6a6f625f737461747573"},
    {"job_close", "a3637365710864736c6f74056474797065696a6f625f636c6f7365"},
    {"region_del", "a366726567696f6e07637365710964747970656a726567696f6e5f64656c"},
    {"set_policy",
     "a466706f6c6963796477666270637365710a64736c6f740564747970656a7365745f706f6c696379"},
};
constexpr Golden kReplies[] = {
    {"hello_ok",
     "a666636c69656e740967656e67696e657302656d696e6f7206637365710164747970656868656c6c6f5f"
     "6f6b6776657273696f6e65302e312e30"},
    {"job_opened",
     "a86b6368756e6b5f6279746573190580686665617475726573076472616e6b0163736571026773657276"
     "6572730164736c6f740564747970656a6a6f625f6f70656e656467776f726b65727302"},
    {"ok", "a263736571036474797065626f6b"},
    {"ok", "a366726f756e64738307060763736571046474797065626f6b"},
    {"failed",
     "a464636f6465181a637365710564746578746d776f726b65722030206f6620326474797065666661696c"
     "6564"},
    {"notice",
     "a564636f6465181e637365710064736c6f740564746578746d776f726b65722030206f66203264747970"
     "65666e6f74696365"},
};

// Of minor 0, of 1, and of 5.
constexpr Golden kHellosBefore[] = {
    {"hello",
     "a6656d616769631a4d455243656d616a6f7201656d696e6f720063706964191267637365710164747970"
     "656568656c6c6f"},
    {"hello",
     "a6656d616769631a4d455243656d616a6f7201656d696e6f720163706964191267637365710164747970"
     "656568656c6c6f"},
    {"hello",
     "a6656d616769631a4d455243656d616a6f7201656d696e6f720563706964191267637365710164747970"
     "656568656c6c6f"}};
constexpr Golden kHelloOksBefore[] = {
    {"hello_ok",
     "a566636c69656e740967656e67696e657302637365710164747970656868656c6c6f5f6f6b6776657273"
     "696f6e65302e312e30"},
    {"hello_ok",
     "a666636c69656e740967656e67696e657302656d696e6f7201637365710164747970656868656c6c6f5f"
     "6f6b6776657273696f6e65302e312e30"},
    {"hello_ok",
     "a666636c69656e740967656e67696e657302656d696e6f7205637365710164747970656868656c6c6f5f"
     "6f6b6776657273696f6e65302e312e30"}};

nlohmann::json map_of(std::span<const std::byte> bytes) {
  std::vector<uint8_t> cbor(bytes.size());
  std::transform(bytes.begin(), bytes.end(), cbor.begin(),
                 [](std::byte b) { return std::to_integer<uint8_t>(b); });
  return nlohmann::json::from_cbor(cbor);
}

// The same exchange in this version's words.
std::vector<Request> requests() {
  Hello hello;
  hello.abi_minor = 6;
  hello.pid = 4711;
  JobOpen open;
  open.client_job = 3;
  open.name = "train";
  open.secret = "key";
  open.rank = 1;
  open.workers = 2;
  open.servers = 1;
  open.rendezvous = {*Endpoint::parse("10.0.0.1:7470"), *Endpoint::parse("[fd00::2]:7471")};
  open.terms.policy = "p3";
  open.terms.weight = 4;
  open.terms.rejoin_ms = 5000;
  open.terms.quorum = 1;
  open.terms.patience_ms = 250;
  open.timeout_ms = 1000;
  Declare declare;
  declare.slot = 5;
  declare.tensors.push_back({6, 1000, Dtype::kF16, ReduceOp::kAverage, 9, 7, 64});
  return {hello,      RegionAdd{7, 4096}, RegionSealed{7}, open,         declare,
          JobWait{5}, JobStatus{5},       JobClose{5},     RegionDel{7}, SetPolicy{5, "wfbp"}};
}
std::vector<Reply> replies() {
  return {HelloOk{2, "0.1.0", 9, 6},
          JobOpened{5, 1, 2, 1, 1408, 7},
          Ok{},
          Ok{{7, 6, 7}},
          Failed{Errc::kMissingMembers, "worker 0 of 2"},
          Notice{5, Errc::kPeerLost, "worker 0 of 2"}};
}

// Every field that the message before had, with the value that it had there: what it did not have
// is ignored there.
void says_as_much(std::span<const std::byte> today, std::span<const std::byte> before) {
  const nlohmann::json now = map_of(today);
  const nlohmann::json then = map_of(before);  // items() only refers to it
  for (const auto& [key, value] : then.items()) {
    ASSERT_TRUE(now.contains(key)) << key;
    EXPECT_EQ(now.at(key), value) << key;
  }
}

void expect_meaning(std::span<const Golden> said, const std::vector<Request>& same) {
  ASSERT_EQ(same.size(), said.size());
  for (size_t i = 0; i < same.size(); ++i) {
    SCOPED_TRACE(said[i].kind);
    const std::vector<std::byte> before = bytes_of(said[i].hex);
    const auto message = decode_request(before);
    ASSERT_TRUE(message) << message.error().message;
    const SecretBytes today = encode(RequestMessage{static_cast<uint32_t>(i + 1), same[i]});
    EXPECT_EQ(encode(*message), today) << "what is missing has the value that it stood for";
    says_as_much(today, before);
  }
  EXPECT_TRUE(check_hello(std::get<Hello>(decode_request(bytes_of(said[0].hex))->body)).ok());
}

void expect_meaning(std::span<const Golden> said, const std::vector<Reply>& same) {
  ASSERT_EQ(same.size(), said.size());
  for (size_t i = 0; i < same.size(); ++i) {
    SCOPED_TRACE(said[i].kind);
    const std::vector<std::byte> before = bytes_of(said[i].hex);
    const auto message = decode_reply(before);
    ASSERT_TRUE(message) << message.error().message;
    const std::vector<std::byte> today = encode(ReplyMessage{message->sequence, same[i]});
    EXPECT_EQ(encode(*message), today) << "what is missing has the value that it stood for";
    says_as_much(today, before);
  }
}

TEST(PreviousAttachVersion, WhatItsProgramsSayMeansWhatItMeant) {
  expect_meaning(kRequests, requests());
}

TEST(PreviousAttachVersion, WhatItsDaemonsSayMeansWhatItMeant) {
  expect_meaning(kReplies, replies());
}

TEST(PreviousAttachVersion, OfThoseBeforeItTheGreetingIsRefusedByName) {
  for (const Golden& said : kHellosBefore) {
    const auto hello = decode_request(bytes_of(said.hex));
    ASSERT_TRUE(hello) << hello.error().message;
    EXPECT_EQ(check_hello(std::get<Hello>(hello->body)).error().code, Errc::kVersionMismatch);
  }
  for (const Golden& said : kHelloOksBefore) {
    const auto hello = decode_reply(bytes_of(said.hex));
    ASSERT_TRUE(hello) << hello.error().message;
    EXPECT_EQ(check_hello_ok(std::get<HelloOk>(hello->body)).error().code, Errc::kVersionMismatch);
  }
}

}  // namespace
}  // namespace mercury::attach
