// Packets with descriptors, and regions.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "shim/channel/attach.h"
#include "shim/channel/region.h"
#include "shim/channel/seqpacket.h"
#include "tests/resident_pages.h"

namespace mercury::attach {
namespace {

int open_descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

class PacketTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    left_.reset(ends[0]);
    right_.reset(ends[1]);
  }
  UniqueFd left_, right_;
  const SecretBytes hello_{std::byte{1}, std::byte{2}};
};

TEST_F(PacketTest, CarriesBytesAndDescriptorsThatCloseOnExec) {
  const int before = open_descriptors();
  {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ASSERT_TRUE(send_packet(left_.get(), hello_, ends, Wait::kYes).ok());
    ::close(ends[0]);
    ::close(ends[1]);
    auto packet = receive_packet(right_.get(), 2, Wait::kYes);
    ASSERT_TRUE(packet.has_value());
    EXPECT_EQ(packet->bytes, hello_);
    ASSERT_EQ(packet->descriptors.size(), 2U);
    EXPECT_NE(::fcntl(packet->descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
    ASSERT_EQ(::write(packet->descriptors[1].get(), "x", 1), 1);
    char c = 0;
    EXPECT_EQ(::read(packet->descriptors[0].get(), &c, 1), 1);
    EXPECT_EQ(c, 'x');
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(PacketTest, CarriesTheMostDescriptorsThatHelloOkNeeds) {
  const std::vector<int> many(kMaxDescriptors, 0);
  ASSERT_TRUE(send_packet(left_.get(), hello_, many, Wait::kYes).ok());
  const auto packet = receive_packet(right_.get(), kMaxDescriptors, Wait::kYes);
  ASSERT_TRUE(packet.has_value());
  EXPECT_EQ(packet->descriptors.size(), kMaxDescriptors);
}

// Else whoever closes it waits as long as its sender likes.
TEST_F(PacketTest, ASocketThatCameLingersNoMore) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const linger long_time{1, 100'000};
  ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time), 0);
  const int fd = socket.get();
  ASSERT_TRUE(send_packet(left_.get(), hello_, std::span(&fd, 1), Wait::kYes).ok());
  const auto packet = receive_packet(right_.get(), 1, Wait::kYes);
  ASSERT_TRUE(packet.has_value());
  linger now{};
  socklen_t length = sizeof now;
  ASSERT_EQ(::getsockopt(packet->descriptors.at(0).get(), SOL_SOCKET, SO_LINGER, &now, &length), 0);
  EXPECT_EQ(now.l_onoff, 0);
}

TEST_F(PacketTest, UnexpectedDescriptorsAreClosed) {
  const int before = open_descriptors();
  const std::vector<int> two(2, 0);
  ASSERT_TRUE(send_packet(left_.get(), hello_, two, Wait::kYes).ok());
  const auto packet = receive_packet(right_.get(), 1, Wait::kYes);
  ASSERT_FALSE(packet.has_value());
  EXPECT_EQ(packet.error().code, Errc::kProtocol);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(PacketTest, DescriptorsBeyondTheProcessLimitAreLackingAndNoLeak) {
  const int before = open_descriptors();
  const std::vector<int> many(20, 0);
  ASSERT_TRUE(send_packet(left_.get(), hello_, many, Wait::kYes).ok());
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit few = old;
  few.rlim_cur = static_cast<rlim_t>(before) + 5;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  {
    const auto packet = receive_packet(right_.get(), 20, Wait::kYes);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
    ASSERT_TRUE(packet.has_value());
    EXPECT_EQ(packet->bytes, hello_);
    EXPECT_TRUE(packet->lacks_descriptors);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(PacketTest, SaysWhenNothingIsThereAndWhenTheOtherSideHasClosed) {
  EXPECT_EQ(receive_packet(right_.get(), 0, Wait::kNo).error().code, Errc::kAgain);
  left_.reset();
  const auto end = receive_packet(right_.get(), 0, Wait::kYes);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->bytes.empty());
  EXPECT_EQ(send_packet(right_.get(), hello_, {}, Wait::kYes).error().code, Errc::kDaemonLost);
}

TEST_F(PacketTest, RefusesWhatIsTooLong) {
  const std::vector<std::byte> big(kMaxMessageBytes + 1);
  EXPECT_EQ(send_packet(left_.get(), big, {}, Wait::kYes).error().code, Errc::kLimit);
  ASSERT_EQ(::send(left_.get(), big.data(), big.size(), 0), static_cast<ssize_t>(big.size()));
  EXPECT_EQ(receive_packet(right_.get(), 0, Wait::kYes).error().code, Errc::kProtocol);
  constexpr size_t kRoom = 100;
  for (const size_t bytes : {kRoom, kRoom + 1}) {
    ASSERT_TRUE(send_packet(left_.get(), std::span(big).first(bytes), {}, Wait::kYes));
    EXPECT_EQ(receive_packet(right_.get(), 0, Wait::kYes, kRoom).has_value(), bytes == kRoom);
  }
}

TEST_F(PacketTest, AFullSocketIsNotWaitedFor) {
  const std::vector<std::byte> big(kMaxMessageBytes);
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = send_packet(left_.get(), big, {}, Wait::kNo);
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Errc::kAgain);
}

TEST(AttachSocket, ListensConnectsAndReplacesOnlyADeadSocket) {
  char folder[] = "/tmp/mercury-attach-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/stackd.sock";
  EXPECT_EQ(connect_socket(path).error().code, Errc::kDaemonLost);
  {
    const auto listener = listen_socket(path);
    ASSERT_TRUE(listener.has_value()) << listener.error().message;
    EXPECT_TRUE(connect_socket(path).has_value());
    EXPECT_EQ(listen_socket(path).error().code, Errc::kExists);
  }
  EXPECT_EQ(connect_socket(path).error().code, Errc::kDaemonLost);
  EXPECT_TRUE(listen_socket(path).has_value());
  ::unlink(path.c_str());
  ASSERT_TRUE(UniqueFd(::open(path.c_str(), O_CREAT | O_WRONLY, 0600)));
  EXPECT_EQ(listen_socket(path).error().code, Errc::kExists) << "not a socket: not ours to remove";
  EXPECT_EQ(connect_socket(std::string(200, 'x')).error().code, Errc::kInvalidArgument);
  std::filesystem::remove_all(folder);
}

// Whoever closes one may have to wait as long as its sender likes. Where the kernel cannot refuse
// them, who sends one breaks the protocol.
TEST(AttachSocket, WhoListensTakesNoDescriptors) {
  char folder[] = "/tmp/mercury-attach-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const auto listener = listen_socket(std::string(folder) + "/stackd.sock");
  ASSERT_TRUE(listener.has_value()) << listener.error().message;
  const auto program = connect_socket(std::string(folder) + "/stackd.sock");
  ASSERT_TRUE(program.has_value()) << program.error().message;
  const UniqueFd daemon(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(daemon);
  int refuses = 1;
  socklen_t length = sizeof refuses;
  refuses = ::getsockopt(daemon.get(), SOL_SOCKET, SO_PASSRIGHTS, &refuses, &length) == 0;
  const int before = open_descriptors();
  const int some = 0;
  const std::vector<std::byte> bytes(2);
  const Status sent = send_packet(program->get(), bytes, std::span(&some, 1), Wait::kYes);
  EXPECT_EQ(sent.ok(), refuses == 0);
  if (sent) {
    EXPECT_EQ(receive_packet(daemon.get(), 0, Wait::kYes).error().code, Errc::kProtocol);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_TRUE(send_packet(daemon.get(), bytes, std::span(&some, 1), Wait::kYes));
  EXPECT_TRUE(receive_packet(program->get(), 1, Wait::kYes));
  std::filesystem::remove_all(folder);
}

constexpr uint64_t kMiB = 1U << 20;

TEST(RegionTest, BothSidesSeeTheSameBytes) {
  auto mine = Region::create(kMiB - 5);
  ASSERT_TRUE(mine.has_value());
  EXPECT_EQ((*mine)->bytes(), kMiB) << "whole pages";
  auto theirs = Region::adopt((*mine)->fd(), kMiB);
  ASSERT_TRUE(theirs.has_value()) << theirs.error().message;
  (*mine)->data()[100] = std::byte{42};
  EXPECT_EQ((*theirs)->data()[100], std::byte{42});
  (*theirs)->data()[100] = std::byte{43};
  EXPECT_EQ((*mine)->data()[100], std::byte{43});
  EXPECT_NE(::ftruncate((*mine)->fd(), 0), 0) << "sealed";
}

// An engine that touches a page within a hole waits until all of the hole is punched.
TEST(RegionTest, NobodyTakesPagesOutOfWhatIsSealed) {
  auto mine = Region::create(kMiB);
  ASSERT_TRUE(mine.has_value());
  Region& own = **mine;
  std::memset(own.data(), 1, kMiB);
  EXPECT_TRUE(own.discard(0, 4096));
  EXPECT_EQ(resident_pages(own.data(), kMiB), kMiB / kPage - 1) << "nobody has sealed it";
  std::memset(own.data(), 1, kMiB);
  const auto theirs = Region::adopt(own.fd(), kMiB);
  ASSERT_TRUE(theirs.has_value()) << theirs.error().message;
  EXPECT_FALSE(own.check_sealed());
  ASSERT_TRUE(Region::seal(own.fd()));
  EXPECT_TRUE(own.check_sealed());
  EXPECT_TRUE(own.lock());

  std::byte* const data = (*theirs)->data();
  EXPECT_FALSE((*theirs)->discard(0, 4096));
  EXPECT_EQ(data[0], std::byte{1});
  EXPECT_EQ(::madvise(data, kMiB, MADV_REMOVE), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::fallocate(own.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kMiB), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::fcntl(own.fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, own.fd(), 0), MAP_FAILED);
  ::madvise(data, kMiB, MADV_PAGEOUT);
  ::madvise(data, kMiB, MADV_DONTNEED);
  EXPECT_EQ(resident_pages(own.data(), kMiB), kMiB / kPage);
  EXPECT_EQ(own.data()[kMiB - 1], std::byte{1});
  EXPECT_FALSE(Region::adopt(own.fd(), kMiB));
}

TEST(RegionTest, ResolvesOnlyWhatLiesInside) {
  const auto region = Region::create(8192);
  ASSERT_TRUE(region.has_value());
  const Region& r = **region;
  EXPECT_EQ(r.resolve(0, 8192), r.data());
  EXPECT_EQ(r.resolve(8191, 1), r.data() + 8191);
  EXPECT_EQ(r.resolve(8192, 1), nullptr);
  EXPECT_EQ(r.resolve(8192, 0), nullptr);
  EXPECT_EQ(r.resolve(0, 8193), nullptr);
  EXPECT_EQ(r.resolve(1, ~uint64_t{0}), nullptr);
  EXPECT_EQ(r.resolve(~uint64_t{0}, 2), nullptr);
}

// Who touches memory beyond a file's end is killed.
TEST(RegionTest, OnlyWhatIsAsLongAsSaidIsAdopted) {
  const auto mine = Region::create(kMiB);
  ASSERT_TRUE(mine.has_value());
  const auto code_of = [](int fd, uint64_t bytes) {
    const auto region = Region::adopt(fd, bytes);
    return region ? Errc::kOk : region.error().code;
  };
  EXPECT_EQ(code_of((*mine)->fd(), kMiB), Errc::kOk);
  EXPECT_EQ(code_of((*mine)->fd(), kMiB + kPage), Errc::kProtocol);
  EXPECT_EQ(code_of(-1, kMiB), Errc::kProtocol);
}

}  // namespace
}  // namespace mercury::attach
