#include <gtest/gtest.h>

#include <random>
#include <string>

#include "shim/channel/attach.h"

namespace mercury::attach {
namespace {

using Bytes = SecretBytes;

JobOpen some_job() {
  JobOpen m;
  m.client_job = 3;
  m.name = "resnet-50_v1.5";
  m.secret = std::string("s\0\xff", 3);
  m.role = Role::kServer;
  m.rank = 1;
  m.workers = 256;
  m.servers = 2;
  m.rendezvous = {*Endpoint::parse("10.0.0.1:7470"), *Endpoint::parse("[fd00::2]:7471")};
  m.terms.deterministic = true;
  m.terms.weight = 4;
  m.timeout_ms = 1000;
  m.terms.rejoin_ms = 60000;
  m.terms.quorum = 200;
  m.terms.patience_ms = 50;
  m.terms.stall_timeout_ms = 70000;
  return m;
}
Declare some_tensors(size_t count) {
  Declare m;
  m.slot = 65535;
  for (size_t i = 0; i < count; ++i) {
    m.tensors.push_back({0x7fffffff, 1U << 30, Dtype::kF64, ReduceOp::kAverage, 65535, 0xffffffff,
                         uint64_t{1} << 40});
  }
  return m;
}
std::vector<Request> all_requests() {
  return {Hello{},     RegionAdd{7, 4096}, RegionDel{7}, some_job(),     some_tensors(3),
          JobClose{1}, JobWait{2},         JobStatus{3}, RegionSealed{8}};
}
std::vector<Reply> all_replies() {
  return {Ok{}, Ok{{1, Round(0xffffffff)}}, Failed{Errc::kMissingMembers, "worker 1 missing"},
          HelloOk{2, "0.1.0", 9, 1}, JobOpened{1, 2, 3, 4, 1408}};
}

TEST(AttachCodec, RequestsComeBackAsSent) {
  for (const Request& request : all_requests()) {
    const auto out = decode_request(encode(RequestMessage{5, request}));
    ASSERT_TRUE(out.has_value()) << out.error().message;
    EXPECT_EQ(out->sequence, 5U);
    EXPECT_EQ(out->body.index(), request.index());
    EXPECT_EQ(encode(*out), encode(RequestMessage{5, request}));
  }
  const auto job = decode_request(encode(RequestMessage{1, some_job()}));
  const auto& open = std::get<JobOpen>(job->body);
  EXPECT_EQ(open.secret, some_job().secret);
  EXPECT_EQ(open.rendezvous, some_job().rendezvous);
  EXPECT_EQ(open.rank, 1);
  JobOpen any = some_job();
  any.rank = -1;
  EXPECT_EQ(std::get<JobOpen>(decode_request(encode(RequestMessage{1, any}))->body).rank, -1);
}

TEST(AttachCodec, RepliesComeBackAsSent) {
  for (const Reply& reply : all_replies()) {
    const auto out = decode_reply(encode(ReplyMessage{5, reply}));
    ASSERT_TRUE(out.has_value()) << out.error().message;
    EXPECT_EQ(encode(*out), encode(ReplyMessage{5, reply}));
  }
  const ReplyMessage notice{0, Notice{3, Errc::kPeerLost, "worker 1 lost"}};
  EXPECT_EQ(encode(*decode_reply(encode(notice))), encode(notice));
}

TEST(AttachCodec, TheLargestDeclarationFits) {
  const Bytes bytes = encode(RequestMessage{0xffffffff, some_tensors(kMaxTensorsPerDeclare)});
  EXPECT_LE(bytes.size(), kMaxMessageBytes);
  EXPECT_TRUE(decode_request(bytes).has_value());
  EXPECT_FALSE(decode_request(encode(RequestMessage{1, some_tensors(kMaxTensorsPerDeclare + 1)}))
                   .has_value());
}

TEST(AttachCodec, RefusesFieldsOutOfRange) {
  const auto refused = [](const Request& request) {
    const auto out = decode_request(encode(RequestMessage{1, request}));
    return !out && out.error().code == Errc::kProtocol;
  };
  const auto job = [](auto change) {
    JobOpen m = some_job();
    change(m);
    return m;
  };
  const auto tensor = [](auto change) {
    Declare m = some_tensors(1);
    change(m.tensors[0]);
    return m;
  };
  EXPECT_FALSE(refused(some_job()));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.name = ""; })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.name = "a/b"; })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.name.assign(64, 'a'); })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.workers = 0; })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.workers = kMaxWorkers + 1; })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.servers = 0; })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.rank = -2; })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.rank = 2; })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.role = static_cast<Role>(2); })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.terms.weight = 0; })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.terms.quorum = kMaxWorkers + 1; })));
  EXPECT_TRUE(refused(job([](JobOpen& m) { m.secret.assign(kMaxSecretBytes + 1, 'x'); })));
  EXPECT_TRUE(refused(tensor([](DeclaredTensor& t) { t.id = 0x80000000; })));
  EXPECT_TRUE(refused(tensor([](DeclaredTensor& t) { t.numel = 0; })));
  EXPECT_TRUE(refused(tensor([](DeclaredTensor& t) { t.numel = ~uint64_t{0} / 4; })));
  EXPECT_TRUE(
      refused(tensor([](DeclaredTensor& t) { t.dtype = static_cast<Dtype>(kDtypeCount); })));
  EXPECT_TRUE(
      refused(tensor([](DeclaredTensor& t) { t.op = static_cast<ReduceOp>(kReduceOpCount); })));
  EXPECT_TRUE(refused(tensor([](DeclaredTensor& t) { t.offset_bytes = 4; })));
  EXPECT_TRUE(refused(RegionAdd{1, 0}));
  EXPECT_TRUE(refused(RegionAdd{1, kMaxRegionBytes + 1}));
}

TEST(AttachCodec, RefusesSequenceNumbersThatDoNotFit) {
  EXPECT_FALSE(decode_request(encode(RequestMessage{0, JobClose{}})).has_value());
  EXPECT_FALSE(decode_reply(encode(ReplyMessage{0, Ok{}})).has_value());
  EXPECT_FALSE(decode_reply(encode(ReplyMessage{1, Notice{0, Errc::kClosed, ""}})).has_value());
}

TEST(AttachCodec, CutsLongTextsAndMapsUnknownCodes) {
  const auto long_text = decode_reply(
      encode(ReplyMessage{1, Failed{Errc::kConfig, std::string(2 * kMaxTextBytes, 'x')}}));
  ASSERT_TRUE(long_text.has_value());
  EXPECT_EQ(std::get<Failed>(long_text->body).text.size(), kMaxTextBytes);
  const auto newer = decode_reply(encode(ReplyMessage{1, Failed{static_cast<Errc>(999), "new"}}));
  ASSERT_TRUE(newer.has_value());
  EXPECT_EQ(std::get<Failed>(newer->body).code, Errc::kSystem);
}

TEST(AttachCodec, AnswersAnotherVersionAndAnotherProtocol) {
  EXPECT_TRUE(check_hello({}).ok());
  Hello other;
  other.abi_minor = kAbiMinor + 7;
  EXPECT_TRUE(check_hello(other).ok());
  other.abi_minor = kLeastMinor - 1;
  const Status old = check_hello(other);
  ASSERT_FALSE(old);
  EXPECT_EQ(old.error().code, Errc::kVersionMismatch);
  EXPECT_NE(old.error().message.find("version 1.5, this daemon 1.6"), std::string::npos)
      << old.error().message;
  other.abi_minor = kAbiMinor;
  other.abi_major = kAbiMajor + 1;
  const auto decoded = decode_request(encode(RequestMessage{1, other}));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(check_hello(std::get<Hello>(decoded->body)).error().code, Errc::kVersionMismatch);
  other.magic = 1;
  EXPECT_EQ(check_hello(other).error().code, Errc::kProtocol);
}

TEST(AttachCodec, RefusesDeepNestingAndImpossibleLengths) {
  for (const int opening : {0x81, 0x9f, 0xbf, 0xa1}) {
    EXPECT_FALSE(
        decode_request(Bytes(kMaxMessageBytes, static_cast<std::byte>(opening))).has_value());
  }
  for (const int kind : {0x9b, 0xbb, 0x7b, 0x5b}) {  // 2^64-1 items or bytes
    Bytes bytes(9, std::byte{0xff});
    bytes[0] = static_cast<std::byte>(kind);
    EXPECT_FALSE(decode_request(bytes).has_value());
    EXPECT_FALSE(decode_reply(bytes).has_value());
  }
  EXPECT_FALSE(decode_request({}).has_value());
  EXPECT_FALSE(decode_request(Bytes(kMaxMessageBytes + 1, std::byte{0})).has_value());
}

TEST(AttachCodec, EveryPrefixAndEveryRandomChangeIsAnswered) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const Request& request : all_requests()) {
    const Bytes good = encode(RequestMessage{5, request});
    for (size_t n = 0; n < good.size(); ++n) {
      EXPECT_FALSE(decode_request(std::span(good).first(n)).has_value()) << n;
    }
    for (int i = 0; i < 3000; ++i) {
      Bytes bad = good;
      for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
        bad[random() % bad.size()] = static_cast<std::byte>(random());
      }
      const auto out = decode_request(bad);  // refused, or valid in every field
      if (out) (void)encode(*out);
      (void)decode_reply(bad);
    }
  }
  for (int i = 0; i < 20000; ++i) {
    Bytes noise(random() % 200);
    for (std::byte& b : noise) b = static_cast<std::byte>(random());
    EXPECT_FALSE(decode_request(noise).has_value());
  }
}

}  // namespace
}  // namespace mercury::attach
