#include "shim/socket/api/tcp_facts.h"

#include <poll.h>

#include <algorithm>
#include <limits>

#include "shim/socket/api/libc.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {
namespace {

// Of Linux's enum, which the header for options does not have.
constexpr uint8_t kEstablishedState = 1;
constexpr uint8_t kCloseState = 7;
constexpr uint8_t kCloseWaitState = 8;

uint8_t state_of(int fd, const OwnConnection& connection) {
  pollfd asked{fd, POLLRDHUP, 0};
  if (libc().poll(&asked, 1, 0) != 1) return kEstablishedState;
  const bool goes_on = connection.on_host && !connection.finished;  // the peer alone has ended
  if ((asked.revents & POLLERR) != 0) return kCloseState;
  if ((asked.revents & POLLHUP) != 0 && !goes_on) return kCloseState;
  return (asked.revents & POLLRDHUP) != 0 ? kCloseWaitState : kEstablishedState;
}

uint32_t most_32(uint64_t value) {
  return static_cast<uint32_t>(std::min<uint64_t>(value, std::numeric_limits<uint32_t>::max()));
}

}  // namespace

tcp_info tcp_facts(int fd, const OwnConnection& connection) {
  tcp_info facts{};
  facts.tcpi_state = state_of(fd, connection);
  Request request;
  request.kind = RequestKind::kInfo;
  request.id = connection.id;
  const Asked asked = process().ask(request);
  if (asked.error != 0 || asked.reply.kind != ReplyKind::kDone) return facts;
  const Info& info = asked.reply.info;
  const uint64_t segment = std::max(info.segment_bytes, 1U);
  facts.tcpi_rtt = most_32(info.rtt_ns / 1000);
  facts.tcpi_min_rtt = most_32(info.least_rtt_ns / 1000);
  facts.tcpi_snd_mss = info.segment_bytes;
  facts.tcpi_rcv_mss = info.segment_bytes;
  facts.tcpi_snd_cwnd = most_32(info.window_bytes / segment);
  facts.tcpi_unacked = most_32(info.in_flight_bytes / segment);
  facts.tcpi_total_retrans = most_32(info.lost_packets);
  return facts;
}

}  // namespace mercury::sockets
