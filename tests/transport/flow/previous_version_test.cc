// A host of wire version 1, as bytes that never change: each side refuses the other by name, in the
// handshake's frames, which all versions share.
#include "tests/transport/flow/pipe.h"
#include "tests/transport/wire/golden_frames.h"
#include "transport/flow/handshake.h"

namespace mercury::test {
namespace {

// Of session 33, to open one for the job "job"; it speaks version 1 alone.
constexpr std::string_view kHello =
    "4d55 01 01 0000 004b 00000000 cc980964 0000000000000000 e0a04ed0 00000000 "
    "01 01 00 00 00000000 00000021 0000 0000 00000007 05c0 0003 "
    "000102030405060708090a0b0c0d0e0f "
    "d96dc207ed5fbbd71254246abacb8d84eece68de826e53eed5809ebb29660dd9 6a6f62";
// To session 11, without the echo, which version 1 did not have.
constexpr std::string_view kRefuse =
    "4d55 01 03 0000 0047 0000000b 97086240 0000000000000000 768c29ce 00000000 "
    "0000000b 0019 003f 74686520636f6e6e656374696e67207369646520737065616b732077697265207665727369"
    "6f6e20322c2074686520616e73776572696e6720736964652031";
constexpr std::string_view kPing =
    "4d55 01 06 0001 0000 0000000b 1bdc28e8 0000000000000001 00000000 00000000";

TEST(PreviousVersion, ItsHelloIsRefusedInItsOwnWords) {
  Bytes frame = wire::bytes_of_hex(kHello);
  wire::Header header;
  std::span<const std::byte> payload;
  ASSERT_EQ(wire::decode(frame, header, payload), wire::DecodeError::kNone);
  const std::optional<wire::Hello> hello = wire::decode_hello(payload);
  ASSERT_TRUE(hello.has_value());
  const Result<uint8_t> version = negotiate_version(*hello, {});
  ASSERT_FALSE(version.has_value());
  EXPECT_EQ(version.error().message,
            "the connecting side speaks wire version 1, the answering side 2");

  Net net(1);
  Bytes answer;
  net.tap = [&](int from, std::span<const std::byte> sent) {
    if (from == 1) answer.assign(sent.begin(), sent.end());
  };
  net.host[1].receive(frame);
  net.host[1].pump();
  ASSERT_EQ(wire::decode(answer, header, payload), wire::DecodeError::kNone);
  EXPECT_EQ(header.type, wire::FrameType::kRefuse);
  EXPECT_EQ(answer[2], std::byte{1}) << "version 1 drops frames of all others";
  EXPECT_EQ(header.session, 33U);
  const std::optional<wire::Reason> reason = wire::decode_reason(payload);
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->session, 33U);
  EXPECT_EQ(reason->code, Errc::kVersionMismatch);
  EXPECT_EQ(reason->text, version.error().message);
}

// It shows nothing of the HELLO, so it is not believed at once; but if nobody else answers it is
// told.
TEST(PreviousVersion, ItsRefusalIsToldWhenTheHandshakesTimeIsUp) {
  Net net(1);
  net.host[1].hello_hook = [&](const wire::Hello&) { net.send(1, wire::bytes_of_hex(kRefuse)); };
  net.connect();
  ASSERT_TRUE(net.run([&] { return net.host[0].closed == 1; }, 11 * kSecond));
  EXPECT_EQ(net.host[0].closed_code, Errc::kTimedOut);
  EXPECT_EQ(
      net.host[0].closed_text,
      "no answer from 10.0.0.2:7470 within 10 s; somebody there says, without showing that he "
      "was asked: the connecting side speaks wire version 2, the answering side 1");
  EXPECT_GT(net.host[0].counters.get(Counter::kDropForgedAnswer), 0U);
}

TEST(PreviousVersion, ItsOtherFramesAreDropped) {
  wire::Header header;
  std::span<const std::byte> payload;
  EXPECT_EQ(wire::decode(wire::bytes_of_hex(kPing), header, payload),
            wire::DecodeError::kBadVersion);
}

}  // namespace
}  // namespace mercury::test
