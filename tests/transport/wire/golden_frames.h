// One frame of every type as the bytes that stand behind the UDP header: golden_test.cc decodes and
// encodes them, and dissector_test.py shows them to Wireshark. They were written down from
// docs/protocol.md, not printed by the encoder; a change here is a change of the protocol.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace mercury::wire {

struct GoldenFrame {
  const char* name;
  std::string_view hex;  // blanks separate the fields, for the reader
};

inline constexpr std::array<GoldenFrame, 35> kGoldenFrames{{
    {"hello",
     "4d55 01 01 0000 004f 00000000 ada469fe 0000000000000000 "
     "22770384 00000000 "
     "01 03 01 00 00000000 00c0ffee 0002 0001 5eed0001 230c 0007 "
     "000102030405060708090a0b0c0d0e0f "
     "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f 6d6e6973742d31"},
    {"hello_ack",
     "4d55 01 02 0000 0044 00c0ffee 78b90d11 08090a0b0c0d0e0f "
     "eceb473e 00000000 "
     "01 000000 00000000 0badf00d 5eed0002 05c0 0000 "
     "101112131415161718191a1b1c1d1e1f "
     "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"},
    {"refuse",
     "4d55 01 03 0000 0024 00c0ffee 963d3c82 08090a0b0c0d0e0f "
     "e8234087 00000000 "
     "00c0ffee 0015 001c 77726f6e672073656372657420666f72206a6f62206d6e6973742d31"},
    {"close",
     "4d55 02 04 0000 0015 0badf00d 795c0528 0000000000000009 "
     "09f7b68c 00000000 "
     "00c0ffee 0022 000d 70726f6772616d20656e646564"},
    {"ack",
     "4d55 02 05 0000 0028 0badf00d e5ac9d51 0000000000000007 "
     "1dec8b65 024a 0049 "
     "00000000000003e8 000000fa 0003 0007 00000005 00000003 00000000 00000058 00000320 "
     "00000000"},
    {"ping",
     "4d55 02 06 0001 0000 0badf00d 0446cfed 0000000000000008 "
     "00000000 00000000"},
    {"mtu_probe",
     "4d55 02 06 0001 0018 0badf00d 1e8ae47c 000000000000000b "
     "84fbecee 00000000 "
     "0000000000000000 0000000000000000 0000000000000000"},
    {"control",
     "4d55 02 07 0000 0011 0badf00d 01d455ac 000000000000000a "
     "0c2c67b8 00000000 "
     "0000000100000000 00000005 68656c6c6f"},
    {"push",
     "4d55 02 08 0001 0010 0badf00d a4146beb 0102030405060708 "
     "00000006 00000011 00000003 002a 0002 5eed0001 c30d4189 "
     "0000803f 000000c0 0000003f 00005040"},
    {"result",
     "4d55 02 09 0000 0010 00c0ffee 06da7670 1112131415161718 "
     "00000006 00000011 00000003 002a 0004 5eed0002 13b4e116 "
     "00008040 000000c1 00000040 00005041"},
    {"partial_result",
     "4d55 02 09 0002 0010 00c0ffee 6c9f2efc 1112131415161719 "
     "00000006 00000011 00000004 002a 0003 5eed0002 1da04f28 "
     "000000000000000b 00004040 0000c0c0"},
    // As "push", in a session whose tag is 7a61675f 54414721; all others here have the tag zero.
    {"tagged_push",
     "4d55 02 08 0001 0010 0badf00e d65e27b1 0102030405060708 "
     "00000006 00000011 00000003 002a 0002 5eed0001 974c06a8 "
     "0000803f 000000c0 0000003f 00005040"},
    // Of a worker that contributes nothing to the chunk.
    {"push_of_nothing",
     "4d55 02 08 0000 0000 0badf00d bb97f8c0 0102030405060709 "
     "00000006 00000011 00000004 002a 0002 5eed0001 00000000 "},
    {"stream",
     "4d55 02 0a 0000 0012 0badf00d 61d062d1 000000000000000c "
     "912438da 00000000 "
     "00000005 0000 0000 0000000200000010 6869"},
    {"stream_end",
     "4d55 02 0a 0001 0012 0badf00d 5071d0e5 000000000000000d "
     "a1f600bf 00000000 "
     "00000005 0001 0000 0000000200000010 6869"},
    {"stream_credit",
     "4d55 02 0b 0000 0010 0badf00d 23c7dfe5 000000000000000e "
     "4f48ff36 00000000 "
     "00000005 0000 0000 0000000200040010"},
    {"stream_reset",
     "4d55 02 0c 0001 0010 0badf00d b479b38b 000000000000000f "
     "2b62af2a 00000000 "
     "00000005 001f 0000 0000000200000012"},
    {"refuse_with_token",
     "4d55 01 03 0000 0018 00c0ffee 24c74601 08090a0b0c0d0e0f "
     "27ae8f06 00000000 "
     "00c0ffee 000d 0010 30313233343536373839616263646566"},
    {"hello_with_token",
     "4d55 01 01 0000 004f 00000000 dbfd04c4 0123456789abcdef "
     "22770384 00000000 "
     "01 03 01 00 00000000 00c0ffee 0002 0001 5eed0001 230c 0007 "
     "000102030405060708090a0b0c0d0e0f "
     "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f 6d6e6973742d31"},
    {"ack_of_refused",
     "4d55 02 05 0000 0038 0badf00d 4bee9aaa 0000000000000011 "
     "520b8c43 024a 0049 "
     "00000000000003e8 000000fa 02 03 0007 00000005 00000003 00000000 00000058 00000320 "
     "00000000 00000001 00000001 000001f1 00000000"},
    // With seals: HELLO_ACK's confirmation is 60 61 .. 7f, the secret of a direction 00 01 .. 1f,
    // the tag that of "tagged_push".
    {"hello_ack_of_seals",
     "4d55 01 02 0000 0064 00c0ffee 5488d7a8 08090a0b0c0d0e0f "
     "7b243e22 00000000 "
     "01 000000 00000002 0badf00d 5eed0002 05c0 0000 "
     "101112131415161718191a1b1c1d1e1f "
     "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f "
     "606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f"},
    {"sealed_push",
     "4d55 02 08 0005 0020 0badf00f ae38f7e9 0102030405060708 "
     "00000006 00000011 00000003 002a 0002 5eed0001 974c06a8 "
     "c1e4ec1454ca5b85172ed31ec3094e6d "
     "0000803f 000000c0 0000003f 00005040"},
    {"encrypted_push",
     "4d55 02 08 0045 0020 0badf00f 8dc68c26 0102030405060708 "
     "00000006 00000011 00000003 002a 0002 5eed0001 de9b0f70 "
     "ccbd09f2a478ce7c58199d9aeb7e0133 "
     "182e0e5606a012f29e434a8dd9b1bb40"},
    {"sealed_ping",
     "4d55 02 06 0005 0010 0badf00f f79a2dcf 0000000000000008 "
     "54414721 00000000 "
     "01158cc8c80a6174fe63e56dfb00fe99"},
    {"sealed_control",
     "4d55 02 07 0004 0021 0badf00f 26cc691b 000000000000000a "
     "586d2099 00000000 "
     "45c9d298e98ef094e26ee3a94723f754 "
     "0000000100000000 00000005 68656c6c6f"},
    {"encrypted_control",
     "4d55 02 07 0044 0021 0badf00f f47f791d 000000000000000a "
     "10a889e3 00000000 "
     "e632759468560a75cf089c87dd1e05e0 "
     "3512709a2bd278a67c6115ebba27a86341"},
    {"sealed_stream_end",
     "4d55 02 0a 0005 0022 0badf00f 7769ec52 000000000000000d "
     "f5b7479e 00000000 "
     "021b12bf43c0a546863989bc065f6ba5 "
     "00000005 0001 0000 0000000200000010 6869"},
    {"sealed_reset_token",
     "4d55 02 0d 0004 0018 0badf00f 04e80e6d 0000000000000012 "
     "7b334801 00000000 "
     "e3d20a4d121835c10c9757c44128581c "
     "0123456789abcdef"},
    {"reset_token",
     "4d55 02 0d 0000 0008 0badf00d f734ec4f 0000000000000012 "
     "2f720f20 00000000 0123456789abcdef"},
    {"reset",
     "4d55 02 0e 0000 0000 00c0ffee d41fd75b fedcba9876543210 "
     "00000000 00000000"},
    {"part",
     "4d55 02 0f 0000 0008 0badf00d 352a6187 0000000000000048 "
     "6c132490 002a 0008 04a4 230c 70617274"},
    {"sealed_part",
     "4d55 02 0f 0004 0018 0badf00f c6f683a5 0000000000000048 "
     "385263b1 002a 0008 "
     "bc8556c460a8b5729e64897c790b77ad "
     "04a4 230c 70617274"},
    {"path_challenge",
     "4d55 02 10 0000 0008 0badf00d 38a098f1 0000000000000049 "
     "2f720f20 00000000 0123456789abcdef"},
    {"path_response",
     "4d55 02 11 0000 0008 0badf00d d6d45ffd 000000000000004a "
     "2f720f20 00000000 0123456789abcdef"},
    {"source_ports",
     "4d55 02 12 0001 0004 0badf00d 38eba163 000000000000004b "
     "a227812a 00000000 1d36 0003"},
}};

inline std::vector<std::byte> bytes_of_hex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<std::byte> bytes;
  int high = -1;
  for (char c : hex) {
    if (c == ' ') continue;
    if (high < 0) {
      high = digit(c);
    } else {
      bytes.push_back(static_cast<std::byte>(high * 16 + digit(c)));
      high = -1;
    }
  }
  return bytes;
}

inline std::vector<std::byte> golden(std::string_view name) {
  for (const GoldenFrame& frame : kGoldenFrames) {
    if (name == frame.name) return bytes_of_hex(frame.hex);
  }
  return {};
}

}  // namespace mercury::wire
