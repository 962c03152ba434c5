#include "apps/perf/messages.h"

#include <algorithm>
#include <string>
#include <vector>

#include "apps/perf/talk.h"
#include "apps/replay/clock.h"

namespace mercury::perf {
namespace {

constexpr std::byte kMessage{1}, kLastMessage{2};

// A message as it is sent: its mark and its contents, which a message that is compared has of its
// own.
class Message {
 public:
  Message(const BlockContents& contents, bool vary)
      : contents_(contents), vary_(vary), bytes_(1 + contents.bytes()) {
    bytes_[0] = kMessage;
    std::ranges::copy(contents.of(0), bytes_.begin() + 1);
  }
  std::span<const std::byte> number(uint64_t number) {
    if (vary_) std::ranges::copy(contents_.of(number), bytes_.begin() + 1);
    return bytes_;
  }
  std::span<const std::byte> last() {
    bytes_[0] = kLastMessage;
    return bytes_;
  }

 private:
  const BlockContents& contents_;
  const bool vary_;
  std::vector<std::byte> bytes_;
};

Status compare_message(std::span<const std::byte> got, const BlockContents& contents, bool compare,
                       BlockCount& count) {
  if (!compare) return {};
  if (!std::ranges::equal(got, contents.of(count.blocks))) {
    return Error(Errc::kProtocol, "wrong bytes in message " + std::to_string(count.blocks));
  }
  count.compared_bytes += got.size();
  return {};
}

}  // namespace

Result<BlockCount> ask_messages(int fd, const BlockContents& requests, const BlockContents& replies,
                                bool compare, LatencyHistogram& latency,
                                const std::function<bool()>& go_on) {
  Message request(requests, compare);
  std::vector<std::byte> reply(1 + replies.bytes());
  BlockCount count;
  while (go_on()) {
    const auto sent = request.number(count.blocks);
    const uint64_t begin_ns = monotonic_ns();
    if (Status done = send_all(fd, sent); !done) return done.error();
    if (Status done = receive_all(fd, reply); !done) return done.error();
    latency.record(monotonic_ns() - begin_ns);
    const auto contents = std::span(reply).subspan(1);
    if (reply[0] != kMessage) return Error(Errc::kProtocol, "a reply has no mark");
    if (Status same = compare_message(contents, replies, compare, count); !same)
      return same.error();
    ++count.blocks;
  }
  if (Status done = send_all(fd, request.last()); !done) return done.error();
  return count;
}

Result<BlockCount> answer_messages(int fd, const BlockContents& requests,
                                   const BlockContents& replies, bool compare) {
  Message reply(replies, compare);
  std::vector<std::byte> request(1 + requests.bytes());
  BlockCount count;
  for (;;) {
    if (Status done = receive_all(fd, request); !done) return done.error();
    if (request[0] == kLastMessage) return count;
    if (request[0] != kMessage) return Error(Errc::kProtocol, "a request has no mark");
    const auto contents = std::span(request).subspan(1);
    if (Status same = compare_message(contents, requests, compare, count); !same)
      return same.error();
    if (Status done = send_all(fd, reply.number(count.blocks)); !done) return done.error();
    ++count.blocks;
  }
}

}  // namespace mercury::perf
