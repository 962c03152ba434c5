#include "apps/perf/blocks.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "apps/perf/talk.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "transport/base/random.h"

namespace mercury::perf {
namespace {

constexpr std::byte kMore{1}, kEnd{2};
constexpr size_t kOffsets = 4096;         // where blocks' stretches begin
constexpr size_t kReadBytes = 256 << 10;  // what one call takes

// The mark and the payload in one call, as long as the connection takes them so.
Status send_block(int fd, std::span<const std::byte> payload) {
  std::byte mark = kMore;
  std::array<iovec, 2> parts = {
      {{&mark, 1}, {const_cast<std::byte*>(payload.data()), payload.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ssize_t sent = 0;
  do {
    sent = mercury_sendmsg(fd, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return lost(errno);
  return send_all(fd, payload.subspan(static_cast<size_t>(sent) - 1));
}

// What is received, as marks and stretches of payload.
class BlockReader {
 public:
  BlockReader(const BlockContents& contents, bool compare)
      : contents_(contents), compare_(compare), left_(0) {}

  bool ended() const { return ended_; }
  BlockCount count() const { return count_; }

  Status take(std::span<const std::byte> data) {
    while (!data.empty()) {
      if (ended_) return Error(Errc::kProtocol, "bytes behind the end of the blocks");
      if (left_ == 0) {
        if (Status mark = take_mark(data.front()); !mark) return mark;
        data = data.subspan(1);
        continue;
      }
      const size_t length = std::min(left_, data.size());
      if (Status same = compare(data.first(length)); !same) return same;
      left_ -= length;
      if (left_ == 0) ++count_.blocks;
      data = data.subspan(length);
    }
    return {};
  }

 private:
  Status take_mark(std::byte mark) {
    if (mark != kMore && mark != kEnd) {
      return Error(Errc::kProtocol, "no mark before block " + std::to_string(count_.blocks));
    }
    if (mark == kMore) left_ = contents_.bytes();
    ended_ = mark == kEnd;
    return {};
  }

  Status compare(std::span<const std::byte> data) {
    if (!compare_) return {};
    const size_t at = contents_.bytes() - left_;
    if (std::memcmp(data.data(), contents_.of(count_.blocks).data() + at, data.size()) != 0) {
      return Error(Errc::kProtocol, "wrong bytes in block " + std::to_string(count_.blocks));
    }
    count_.compared_bytes += data.size();
    return {};
  }

  const BlockContents& contents_;
  const bool compare_;
  size_t left_;  // of the block that is being received
  bool ended_ = false;
  BlockCount count_;
};

}  // namespace

BlockContents::BlockContents(size_t bytes) : bytes_(bytes), random_(bytes + kOffsets) {
  uint64_t state = 1;
  for (std::byte& one : random_) one = static_cast<std::byte>(split_mix(state) & 0xff);
}

std::span<const std::byte> BlockContents::of(uint64_t number) const {
  const size_t offset = number == 0 ? 0 : split_mix(number) % kOffsets;
  return std::span(random_).subspan(offset, bytes_);
}

Result<BlockCount> send_blocks(int fd, const BlockContents& contents, bool vary,
                               const std::function<bool()>& go_on) {
  BlockCount count;
  for (; go_on(); ++count.blocks) {
    if (Status sent = send_block(fd, contents.of(vary ? count.blocks : 0)); !sent) {
      return sent.error();
    }
  }
  if (Status sent = send_all(fd, {&kEnd, 1}); !sent) return sent.error();
  return count;
}

Result<BlockCount> receive_blocks(int fd, const BlockContents& contents, bool compare) {
  std::vector<std::byte> buffer(kReadBytes);
  BlockReader reader(contents, compare);
  while (!reader.ended()) {
    const ssize_t got = mercury_recv(fd, buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return lost(got == 0 ? 0 : errno);
    const std::span data(buffer.data(), static_cast<size_t>(got));
    if (Status taken = reader.take(data); !taken) return taken.error();
  }
  return reader.count();
}

}  // namespace mercury::perf
