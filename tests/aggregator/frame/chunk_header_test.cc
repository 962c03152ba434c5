// What a PUSH and a RESULT say, against the golden frames, which were written down from
// docs/protocol.md.
#include "aggregator/frame/chunk_header.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "tests/transport/wire/golden_frames.h"

namespace mercury {
namespace {

std::vector<std::byte> golden(std::string_view name) {
  for (const wire::GoldenFrame& frame : wire::kGoldenFrames) {
    if (frame.name == name) return wire::bytes_of_hex(frame.hex);
  }
  ADD_FAILURE() << "no golden frame " << name;
  return {};
}

struct Said {
  const char* name;
  wire::FrameType type;
  uint16_t flags;
  ChunkHeader chunk;
};
const Said kSaid[] = {
    {"push", kPushFrame, wire::kFlagAckNow, {6, 17, 3, 42, 2, 0x5eed0001}},
    {"result", kResultFrame, 0, {6, 17, 3, 42, 4, 0x5eed0002}},
    {"partial_result", kResultFrame, kFlagPartial, {6, 17, 4, 42, 3, 0x5eed0002}},
};

TEST(ChunkHeader, GoldenFramesSayThis) {
  for (const Said& row : kSaid) {
    SCOPED_TRACE(row.name);
    const std::vector<std::byte> frame = golden(row.name);
    wire::Header header;
    std::span<const std::byte> payload;
    ASSERT_EQ(wire::decode(frame, header, payload), wire::DecodeError::kNone);
    EXPECT_EQ(header.type, row.type);
    EXPECT_EQ(header.flags, row.flags);
    const ChunkHeader chunk = ChunkHeader::of(header);
    EXPECT_EQ(chunk.round, row.chunk.round);
    EXPECT_EQ(chunk.tensor, row.chunk.tensor);
    EXPECT_EQ(chunk.chunk, row.chunk.chunk);
    EXPECT_EQ(chunk.priority, row.chunk.priority);
    EXPECT_EQ(chunk.sender, row.chunk.sender);
    EXPECT_EQ(chunk.incarnation, row.chunk.incarnation);
  }
}

TEST(ChunkHeader, SaysItInTheseBytes) {
  for (const Said& row : kSaid) {
    SCOPED_TRACE(row.name);
    const std::vector<std::byte> frame = golden(row.name);
    wire::Header header;
    std::span<const std::byte> payload;
    ASSERT_EQ(wire::decode(frame, header, payload), wire::DecodeError::kNone);
    header.words = {};
    header.priority = header.half_word = 0;
    header.last_word = 0;
    header.type = row.type;
    header.flags = row.flags;
    row.chunk.write(header);
    std::vector<std::byte> written(sizeof(wire::DatagramHeader));
    wire::encode(header, written.data());
    EXPECT_TRUE(std::equal(written.begin(), written.end(), frame.begin()));
  }
}

}  // namespace
}  // namespace mercury
