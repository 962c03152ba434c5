#include "shim/channel/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "shim/channel/channel_layout.h"
#include "transport/base/mapped_memory.h"

namespace mercury {
namespace {

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

std::array<int, 4> dup_all(const std::array<int, 4>& fds) {
  std::array<int, 4> out{};
  for (size_t i = 0; i < fds.size(); ++i) out[i] = ::fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
  return out;
}

// Both ends, over memfds adopted as a program would, or over private memory.
class ChannelTest : public testing::TestWithParam<bool> {
 protected:
  void open(const ChannelGeometry& geometry) {
    auto memory = ChannelMemory::create(geometry, GetParam());
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    engine_ = std::make_unique<EngineChannel>(*memory);
    if (GetParam()) {
      const auto fds = dup_all((*memory)->program_descriptors());
      auto adopted = ChannelMemory::adopt(fds[0], fds[1], fds[2], fds[3]);
      ASSERT_TRUE(adopted.has_value()) << adopted.error().message;
      client_ = std::make_unique<ClientChannel>(*adopted);
    } else {
      client_ = std::make_unique<ClientChannel>(*memory);
    }
  }
  std::unique_ptr<EngineChannel> engine_;
  std::unique_ptr<ClientChannel> client_;
};

INSTANTIATE_TEST_SUITE_P(Memory, ChannelTest, testing::Bool(),
                         [](const auto& p) { return p.param ? "Shared" : "Private"; });

TEST_P(ChannelTest, CarriesEveryFieldBothWays) {
  open({});
  const Submission in{SubmitOp::kPull, 65535, 0xfffffffe, 0x7fffffff, ~uint64_t{0}};
  ASSERT_TRUE(client_->submit(in));
  Submission out;
  ASSERT_EQ(engine_->pop(out), EngineChannel::Pop::kOne);
  EXPECT_EQ(out.op, in.op);
  EXPECT_EQ(out.priority, in.priority);
  EXPECT_EQ(out.job, in.job);
  EXPECT_EQ(out.tensor, in.tensor);
  EXPECT_EQ(out.cookie, in.cookie);
  EXPECT_EQ(engine_->pop(out), EngineChannel::Pop::kEmpty);
  const Completion done{~uint64_t{0}, Errc::kPeerLost, 0xfffffffe, 0x7fffffff, 0xffffffff};
  ASSERT_TRUE(engine_->complete(done));
  Completion got;
  ASSERT_TRUE(client_->pop(got));
  EXPECT_EQ(got.cookie, done.cookie);
  EXPECT_EQ(got.status, done.status);
  EXPECT_EQ(got.job, done.job);
  EXPECT_EQ(got.tensor, done.tensor);
  EXPECT_EQ(got.round, done.round);
  EXPECT_FALSE(client_->pop(got));
}

TEST_P(ChannelTest, SaysWhoIsMissingWithTheCompletionEvenThroughASmallRing) {
  open({4, 4});
  Completion sum{7, Errc::kOk, 1, 2, 3};
  sum.absent_words = kWorkerWords;
  for (uint16_t word = 0; word < kWorkerWords; ++word) {
    sum.absent.in_some[word] = 0x1000 + word;
    sum.absent.in_all[word] = 0x2000 + word;
  }
  Completion got;
  int tries = 1;
  for (; !engine_->complete(sum); ++tries) {
    ASSERT_LT(tries, 20);
    EXPECT_FALSE(client_->pop(got)) << "it is not all there yet";
  }
  EXPECT_EQ(tries, 9) << "33 descriptors, four at a time";
  ASSERT_TRUE(client_->pop(got));
  EXPECT_EQ(got.cookie, sum.cookie);
  EXPECT_EQ(got.absent_words, sum.absent_words);
  EXPECT_EQ(got.absent, sum.absent);
  ASSERT_TRUE(engine_->complete({8}));
  ASSERT_TRUE(client_->pop(got));
  EXPECT_EQ(got.cookie, 8U);
  EXPECT_EQ(got.absent_words, 0);
  EXPECT_EQ(got.absent, Absentees::of_no_chunk());
}

// What programs of earlier releases read: it never changes within kChannelAbi.
TEST(ChannelBytes, AnAbsenceHasAKindOfItsOwnBeforeItsCompletion) {
  const auto memory = ChannelMemory::create({4, 4}, true);
  ASSERT_TRUE(memory.has_value());
  EngineChannel engine(*memory);
  const int fd = (*memory)->program_descriptors()[1];
  const MappedMemory mapped = MappedMemory::shared(fd, area_bytes(4), PROT_READ);
  ASSERT_TRUE(mapped);
  Completion sum{0x1122334455667788, Errc::kPeerLost, 0xa, 0xb, 0xc};
  sum.absent_words = 1;
  sum.absent.in_some[0] = 0x30;
  sum.absent.in_all[0] = 0x10;
  ASSERT_TRUE(engine.complete(sum));
  const ChannelDescriptor* ring = reinterpret_cast<const ChannelArea*>(mapped.data())->ring();
  const uint64_t status = static_cast<uint64_t>(Errc::kPeerLost) << 32;
  const std::array<ChannelWords, 3> expected{{{0x30, 0xc'0000'000b, 0x0001'0000'0000'000a},
                                              {0x10, 0xc'0000'000b, 0x0005'0000'0000'000a},
                                              {sum.cookie, 0xc'0000'000b, 0xa | status}}};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(ring[i].turn.load(), i + 1);
    for (size_t word = 0; word < 3; ++word) {
      EXPECT_EQ(ring[i].words[word].load(), expected[i][word]) << "descriptor " << i;
    }
  }
}

TEST_P(ChannelTest, RefusesWhenFullAndGoesOnManyLaps) {
  open({4, 4});
  uint64_t next_in = 0;
  uint64_t next_out = 0;
  Submission out;
  for (int lap = 0; lap < 1000; ++lap) {
    const uint64_t burst = static_cast<uint64_t>(lap % 4) + 1;
    for (uint64_t i = 0; i < burst; ++i) {
      ASSERT_TRUE(client_->submit({SubmitOp::kPush, 0, 1, 2, next_in++}));
    }
    if (burst == 4) {
      EXPECT_FALSE(client_->has_room());
      EXPECT_FALSE(client_->submit({SubmitOp::kPush, 0, 1, 2, 77}));
    }
    while (engine_->pop(out) == EngineChannel::Pop::kOne) ASSERT_EQ(out.cookie, next_out++);
    EXPECT_TRUE(client_->has_room());
  }
  EXPECT_EQ(next_in, next_out);
}

TEST_P(ChannelTest, CompletionsWaitForRoom) {
  open({4, 4});
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(engine_->complete({i, Errc::kOk, 0, 0, 0}));
  EXPECT_FALSE(engine_->complete({4, Errc::kOk, 0, 0, 0}));
  EXPECT_TRUE(engine_->park()) << "nothing has changed yet";
  Completion got;
  ASSERT_TRUE(client_->pop(got));
  EXPECT_TRUE(readable(engine_->engine_doorbell())) << "room was made for an engine that sleeps";
  engine_->unpark();
  EXPECT_FALSE(readable(engine_->engine_doorbell()));
  EXPECT_TRUE(engine_->complete({4, Errc::kOk, 0, 0, 0}));
  EXPECT_FALSE(engine_->complete({5, Errc::kOk, 0, 0, 0}));
  ASSERT_TRUE(client_->pop(got));
  EXPECT_FALSE(engine_->park()) << "there is room: try again first";
}

TEST_P(ChannelTest, RingsOncePerParkAndOnlyThen) {
  open({});
  ASSERT_TRUE(client_->submit({}));
  client_->ring();
  EXPECT_FALSE(readable(engine_->engine_doorbell())) << "the engine polls";
  EXPECT_FALSE(engine_->park()) << "a submission waits";
  Submission out;
  ASSERT_EQ(engine_->pop(out), EngineChannel::Pop::kOne);
  ASSERT_TRUE(engine_->park());
  client_->ring();
  EXPECT_FALSE(readable(engine_->engine_doorbell())) << "nothing was added";
  ASSERT_TRUE(client_->submit({}));
  client_->ring();
  EXPECT_TRUE(readable(engine_->engine_doorbell()));
  engine_->unpark();
  EXPECT_FALSE(readable(engine_->engine_doorbell()));

  ASSERT_TRUE(client_->park());
  EXPECT_FALSE(engine_->ring());
  ASSERT_TRUE(engine_->complete({}));
  EXPECT_TRUE(engine_->ring());
  ASSERT_TRUE(engine_->complete({}));
  EXPECT_FALSE(engine_->ring()) << "rung in this park already";
  EXPECT_TRUE(readable(client_->client_doorbell()));
  client_->unpark();
  EXPECT_FALSE(readable(client_->client_doorbell()));
  EXPECT_FALSE(client_->park()) << "completions wait";
}

TEST(ChannelMemory, RefusesGeometryThatIsNoPowerOfTwo) {
  for (const ChannelGeometry& bad : {ChannelGeometry{0, 8}, ChannelGeometry{8, 12},
                                     ChannelGeometry{2, 8}, ChannelGeometry{8, 1U << 17}}) {
    auto memory = ChannelMemory::create(bad, false);
    ASSERT_FALSE(memory.has_value());
    EXPECT_EQ(memory.error().code, Errc::kInvalidArgument);
  }
}

TEST(ChannelMemory, TheProgramCannotResizeNorWriteTheEnginesMemory) {
  auto memory = ChannelMemory::create({}, true);
  ASSERT_TRUE(memory.has_value());
  const auto fds = (*memory)->program_descriptors();
  for (const int fd : {fds[0], fds[1]}) {
    EXPECT_NE(::ftruncate(fd, 0), 0);
    EXPECT_NE(::ftruncate(fd, 1 << 24), 0);
    EXPECT_NE(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  }
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0), MAP_FAILED);
  EXPECT_NE(::pwrite(fds[1], "x", 1, 0), 1);
}

// Else an engine that reads it may wait until a hole is punched.
TEST(ChannelMemory, TheProgramPunchesNoHoleOnceAnEngineLooks) {
  auto memory = ChannelMemory::create({}, true);
  ASSERT_TRUE(memory.has_value());
  const auto fds = dup_all((*memory)->program_descriptors());
  const auto punch = [fd = (*memory)->program_descriptors()[0]] {
    return ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, area_bytes(1024));
  };
  EXPECT_EQ(punch(), 0);
  const Status open = (*memory)->close_a();
  ASSERT_FALSE(open);
  EXPECT_EQ(open.error().code, Errc::kProtocol);
  EXPECT_FALSE(ChannelMemory::adopt(::dup(fds[0]), ::dup(fds[1]), ::dup(fds[2]), ::dup(fds[3])))
      << "its header is gone";
  auto again = ChannelMemory::create({}, true);
  ASSERT_TRUE(again.has_value());
  const auto theirs = dup_all((*again)->program_descriptors());
  const auto adopted = ChannelMemory::adopt(theirs[0], theirs[1], theirs[2], theirs[3]);
  ASSERT_TRUE(adopted.has_value()) << adopted.error().message;
  EXPECT_TRUE((*again)->close_a());
  EXPECT_NE(::fallocate(theirs[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, theirs[0], 0), MAP_FAILED);
  for (const int fd : fds) ::close(fd);
}

TEST(ChannelMemory, TheEngineNeverBlocksOnADoorbellThatAProgramFilledOrEmptied) {
  auto memory = ChannelMemory::create({}, true);
  ASSERT_TRUE(memory.has_value());
  const auto fds = dup_all((*memory)->program_descriptors());
  EngineChannel engine(*memory);
  auto adopted = ChannelMemory::adopt(fds[0], fds[1], fds[2], fds[3]);
  ASSERT_TRUE(adopted.has_value());
  ClientChannel client(*adopted);
  ASSERT_EQ(::fcntl(fds[2], F_SETFL, 0), 0);  // blocking, for both sides' descriptor
  ASSERT_EQ(::fcntl(fds[3], F_SETFL, 0), 0);
  for (int i = 0; i < 100'000; ++i) {  // more than a pipe holds
    (void)client.park();
    ASSERT_TRUE(engine.complete({}));
    engine.ring();
    Completion got;
    ASSERT_TRUE(client.pop(got));
    client.park();
    // A program that never clears its doorbell: a new epoch without unpark's read.
    if (i % 2 == 0) engine.unpark();
  }
  engine.unpark();  // an empty eventfd
}

// A pair as the daemon would send it, for tampering.
class AdoptTest : public testing::Test {
 protected:
  void SetUp() override {
    auto memory = ChannelMemory::create({}, true);
    ASSERT_TRUE(memory.has_value());
    memory_ = *memory;
    fds_ = dup_all(memory_->program_descriptors());
  }
  // A memfd of `bytes` with the header of `source`, sealed with `seals`.
  static int forge(const AreaHeader& header, size_t bytes, int seals) {
    const int fd = ::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(::pwrite(fd, &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
    EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
  }
  static AreaHeader header_a() { return {kChannelMagic, kChannelAbi, kChannelSideA, 1024, 2048}; }
  Errc adopt_with_a(int forged_a) {
    ::close(fds_[0]);
    auto adopted = ChannelMemory::adopt(forged_a, fds_[1], fds_[2], fds_[3]);
    return adopted ? Errc::kOk : adopted.error().code;
  }
  static constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  std::shared_ptr<ChannelMemory> memory_;
  std::array<int, 4> fds_{};
};

TEST_F(AdoptTest, TakesAForgeryThatIsRight) {
  EXPECT_EQ(adopt_with_a(forge(header_a(), area_bytes(1024), kSeals)), Errc::kOk);
}
TEST_F(AdoptTest, RefusesUnsealedMemory) {
  EXPECT_EQ(adopt_with_a(forge(header_a(), area_bytes(1024), 0)), Errc::kProtocol);
}
TEST_F(AdoptTest, RefusesMemoryThatCanShrink) {
  EXPECT_EQ(adopt_with_a(forge(header_a(), area_bytes(1024), F_SEAL_GROW)), Errc::kProtocol);
}
TEST_F(AdoptTest, RefusesMemoryThatItCannotSeal) {
  EXPECT_EQ(adopt_with_a(forge(header_a(), area_bytes(1024), kSeals | F_SEAL_SEAL)),
            Errc::kPermission);
}
TEST_F(AdoptTest, RefusesAnotherSizeThanTheHeaderSays) {
  EXPECT_EQ(adopt_with_a(forge(header_a(), area_bytes(512), kSeals)), Errc::kProtocol);
}
TEST_F(AdoptTest, RefusesTinyMemory) {
  EXPECT_EQ(adopt_with_a(forge(header_a(), 64, kSeals)), Errc::kProtocol);
}
TEST_F(AdoptTest, RefusesAWrongMagic) {
  AreaHeader header = header_a();
  header.magic ^= 1;
  EXPECT_EQ(adopt_with_a(forge(header, area_bytes(1024), kSeals)), Errc::kProtocol);
}
TEST_F(AdoptTest, RefusesAnotherVersion) {
  AreaHeader header = header_a();
  header.abi = kChannelAbi + 1;
  EXPECT_EQ(adopt_with_a(forge(header, area_bytes(1024), kSeals)), Errc::kVersionMismatch);
}
TEST_F(AdoptTest, RefusesTheHalvesOfTwoChannels) {
  AreaHeader header = header_a();
  header.completions = 4096;
  EXPECT_EQ(adopt_with_a(forge(header, area_bytes(1024), kSeals)), Errc::kProtocol);
}
TEST_F(AdoptTest, RefusesWhatIsNoMemory) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(adopt_with_a(ends[0]), Errc::kProtocol);
  ::close(ends[1]);
}
TEST_F(AdoptTest, RefusesSwappedMemories) {
  auto adopted = ChannelMemory::adopt(fds_[1], fds_[0], fds_[2], fds_[3]);
  EXPECT_FALSE(adopted.has_value());
}

}  // namespace
}  // namespace mercury
