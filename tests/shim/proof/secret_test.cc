#include "shim/proof/secret.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/wiped.h"

namespace mercury {
namespace {

wire::Hello hello() {
  wire::Hello h;
  h.role = 1;
  h.rank = 3;
  h.lane = 1;
  h.incarnation = 77;
  h.job = "train";
  h.nonce[5] = 9;
  return h;
}

TEST(JobKey, DependsOnNameAndSecretAndTheirBorder) {
  const JobKey key = derive_job_key("ab", "c");
  EXPECT_TRUE(same_key(key, derive_job_key("ab", "c")));
  EXPECT_FALSE(same_key(key, derive_job_key("a", "bc")));
  EXPECT_FALSE(same_key(key, derive_job_key("ab", "")));
  EXPECT_FALSE(same_key(key, derive_job_key("ab", "d")));
}

TEST(Wipe, LeavesNothingOfASecretInItsMemory) {
  for (std::string secret : {std::string("short"), long_secret()}) {
    const Room room(secret);
    EXPECT_FALSE(room.is_wiped());
    wipe(secret);
    EXPECT_TRUE(room.is_wiped());
    EXPECT_TRUE(secret.empty());
  }
}

TEST(Wipe, NorOfALongerOneThatWasThereBefore) {
  std::string secret = long_secret();
  const Room room(secret);
  secret.resize(20);
  wipe(secret);
  EXPECT_TRUE(room.is_wiped());
}

TEST(HelloProof, HoldsUnderTheSameKeyOnly) {
  wire::Hello h = hello();
  h.proof = prove(derive_job_key("train", "s"), h);
  EXPECT_TRUE(verify(derive_job_key("train", "s"), h));
  EXPECT_FALSE(verify(derive_job_key("train", ""), h));
  EXPECT_FALSE(verify(derive_job_key("other", "s"), h));
}

TEST(HelloProof, CoversEveryFieldButThoseTheEngineFills) {
  const JobKey key = derive_job_key("train", "s");
  wire::Hello signed_hello = hello();
  signed_hello.proof = prove(key, signed_hello);

  wire::Hello h = signed_hello;
  h.session = 12345;
  h.max_udp_payload = 1472;
  EXPECT_TRUE(verify(key, h));

  const auto broken_by = [&](auto change) {
    wire::Hello changed = signed_hello;
    change(changed);
    return !verify(key, changed);
  };
  EXPECT_TRUE(broken_by([](auto& c) { c.kind = wire::SessionKind::kData; }));
  EXPECT_TRUE(broken_by([](auto& c) { c.role = 0; }));
  EXPECT_TRUE(broken_by([](auto& c) { c.rank = 4; }));
  EXPECT_TRUE(broken_by([](auto& c) { c.lane = 2; }));
  EXPECT_TRUE(broken_by([](auto& c) { c.incarnation = 78; }));
  EXPECT_TRUE(broken_by([](auto& c) { c.features = 1; }));
  EXPECT_TRUE(broken_by([](auto& c) { c.version_max = 3; }));
  EXPECT_TRUE(broken_by([](auto& c) { c.job = "trains"; }));
  EXPECT_TRUE(broken_by([](auto& c) { c.nonce[0] ^= 1; }));
  EXPECT_TRUE(broken_by([](auto& c) { c.proof[31] ^= 1; }));
}

TEST(AckProof, BindsTheAnswerToTheQuestion) {
  const JobKey key = derive_job_key("train", "s");
  wire::Nonce nonce{};
  nonce[0] = 1;
  wire::HelloAck ack;
  ack.incarnation = 5;
  ack.proof = prove(key, nonce, ack);
  ack.session = 9;
  ack.max_udp_payload = 1400;
  ack.confirmation.emplace().fill(1);
  EXPECT_TRUE(verify(key, nonce, ack));
  wire::HelloAck other = ack;
  other.incarnation = 6;
  EXPECT_FALSE(verify(key, nonce, other));
  other = ack;
  other.nonce[15] = 1;
  EXPECT_FALSE(verify(key, nonce, other)) << "both nonces are covered";
  nonce[0] = 2;
  EXPECT_FALSE(verify(key, nonce, ack));
}

}  // namespace
}  // namespace mercury
