// What a PUSH and a RESULT say, against the golden frames, which were written down from
// docs/protocol.md.
#include "aggregator/frame/chunk_header.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/transport/wire/golden_frames.h"

namespace mercury {
namespace {

struct Said {
  const char* name;
  wire::FrameType type;
  uint16_t flags;
  ChunkHeader chunk;
};
const Said kSaid[] = {
    {"push", kPushFrame, wire::kFlagAckNow, {6, 17, 3, 42, 2, 0x5eed0001}},
    {"push_of_nothing", kPushFrame, 0, {6, 17, 4, 42, 2, 0x5eed0001}},
    {"result", kResultFrame, 0, {6, 17, 3, 42, 4, 0x5eed0002}},
    {"partial_result", kResultFrame, kFlagPartial, {6, 17, 4, 42, 3, 0x5eed0002}},
};

TEST(ChunkHeader, GoldenFramesSayThisAndItIsSaidInTheirBytes) {
  for (const Said& row : kSaid) {
    SCOPED_TRACE(row.name);
    const std::vector<std::byte> frame = wire::golden(row.name);
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
