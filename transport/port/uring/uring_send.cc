#include <netinet/udp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/port/uring/send_op.h"
#include "transport/port/uring/uring_port.h"

namespace mercury::uring {
namespace {

struct PinCount {
  uint32_t busy;
};
static_assert(sizeof(PinCount) <= sizeof(PayloadPin));
constexpr PathId kNoPath{~uint32_t{0}};    // of a frame for a path that was not open
constexpr uint32_t kTaken = ~uint32_t{0};  // in the queue's place of a frame that is in a send

PinCount& count_of(PayloadPin& pin) { return *reinterpret_cast<PinCount*>(pin.opaque); }

Counter drop_counter(int error) noexcept {
  switch (error) {
    case EMSGSIZE:
    case EINVAL:
      return Counter::kDropTooLarge;
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
      return Counter::kDropTxFull;
    default:
      return Counter::kDropNetwork;
  }
}

}  // namespace

// Behind what it has already: the kernel copies it when the message is sent.
template <class Value>
void UringPort::add_control(SendOp& op, int level, int type, Value value) noexcept {
  auto* const at = reinterpret_cast<cmsghdr*>(op.control.data() + op.message.msg_controllen);
  at->cmsg_level = level;
  at->cmsg_type = type;
  at->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(at), &value, sizeof value);
  op.message.msg_control = op.control.data();
  op.message.msg_controllen += CMSG_SPACE(sizeof value);
}

bool UringPort::tx_alloc(TxFrame& frame) noexcept {
  if (free_frames_.empty()) return false;
  frame.handle = free_frames_.back();
  free_frames_.pop_back();
  frame.data = frames_[frame.handle].data;
  frame.capacity = info_.max_udp_payload;
  return true;
}

void UringPort::tx_cancel(TxFrame& frame) noexcept { free_frames_.push_back(frame.handle); }

void UringPort::tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept {
  Frame& queued = frames_[frame.handle];
  queued.bytes = bytes;
  const bool known = path.value < paths_.size() && paths_[path.value].open;
  queued.path = known ? path : kNoPath;
  if (known) ++paths_[path.value].frames;
  queued.payload = {};
  queued.pin = nullptr;
  queued.class_byte = classes_.any() ? classes_.byte_of(frame.data) : kEcnCapable;
  queued.alone = false;
  queued.priority = TrafficClasses::priority_of(frame.data);
  queued.overtaken_bytes = 0;
  queue_.push_back(frame.handle);
}

void UringPort::tx_send_shared(TxFrame& frame, uint32_t bytes, PathId path,
                               std::span<const std::byte> payload, PayloadPin& pin) noexcept {
  tx_send(frame, path, bytes);
  frames_[frame.handle].payload = payload;
  frames_[frame.handle].pin = &pin;
  ++count_of(pin).busy;
}

bool UringPort::pin_busy(PayloadPin& pin) noexcept { return count_of(pin).busy > 0; }

void UringPort::free_frame(uint32_t index) noexcept {
  if (frames_[index].pin) --count_of(*frames_[index].pin).busy;
  frames_[index].pin = nullptr;
  free_frames_.push_back(index);
  const PathId path = frames_[index].path;
  if (path == kNoPath) return;
  Path& meant = paths_[path.value];
  if (--meant.frames == 0 && !meant.open) free_paths_.push_back(path.value);
}

void UringPort::on_sent(SendOp& op, int result) noexcept {
  if (result < 0 && op.frame_count > 1 && retry_alone(op, -result)) return;
  if (result < 0 && result != -ECANCELED) {
    counters_.add(drop_counter(-result), op.frame_count);
  }
  for (uint32_t i = 0; i < op.frame_count; ++i) free_frame(op.frames[i]);
}

// A batch is refused as a whole where a device cannot cut segments, or where one is larger than the
// route's interface carries; the frames themselves may be fine. Only then may frames that followed
// the batch on the same path overtake it.
bool UringPort::retry_alone(SendOp& op, int error) noexcept {
  if (error == EIO) {
    gso_ = false;
  } else if (error == EINVAL || error == EMSGSIZE) {
    const Frame& leader = frames_[op.frames[0]];
    uint32_t& limit = paths_[leader.path.value].segment_limit;
    limit = std::min(limit, leader.total() - 1);
  } else {
    return false;
  }
  for (uint32_t i = 0; i < op.frame_count; ++i) {
    frames_[op.frames[i]].alone = true;
    retry_.push_back(op.frames[i]);
  }
  return true;
}

void UringPort::tx_flush(uint64_t) noexcept {
  submit();
  reap();
  // Sends complete inside submit(), unless the socket is full: then later ones must not overtake.
  while (ops_in_flight_ == 0 && start_sends()) {
    submit();
    reap();
  }
}

// Starts as many sends as one system call takes. False: there is nothing to send.
bool UringPort::start_sends() noexcept {
  if (!retry_.empty()) {
    queue_.insert(queue_.begin(), retry_.begin(), retry_.end());
    retry_.clear();
  }
  uint32_t first = 0;
  for (; first < queue_.size(); ++first) {
    if (queue_[first] == kTaken) continue;
    const Frame& frame = frames_[queue_[first]];
    const bool known = frame.path != kNoPath && paths_[frame.path.value].open;
    if (!known || frame.total() > info_.max_udp_payload) {
      counters_.add(known ? Counter::kDropTooLarge : Counter::kDropNeighbor);
      free_frame(std::exchange(queue_[first], kTaken));
      continue;
    }
    if (!start_send(first)) break;
  }
  queue_.erase(queue_.begin(), queue_.begin() + first);
  std::erase(queue_, kTaken);
  return ops_in_flight_ > 0;
}

// Queues one SENDMSG for the frames from `first` on that go together. False: there is no room now.
bool UringPort::start_send(uint32_t first) noexcept {
  if (free_ops_.empty()) return false;
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return false;
  const uint32_t index = free_ops_.back();
  free_ops_.pop_back();
  ++ops_in_flight_;
  SendOp& op = ops_[index];
  const Frame& leader = frames_[queue_[first]];
  Path& path = paths_[leader.path.value];
  op.message = {};
  op.message.msg_name = &path.address;
  op.message.msg_namelen = path.address_bytes;
  op.message.msg_iov = op.parts.data();
  op.message.msg_iovlen = gather(op, first);
  if (op.frame_count > 1) {
    add_control(op, SOL_UDP, UDP_SEGMENT, static_cast<uint16_t>(leader.total()));
  }
  if (leader.class_byte != kEcnCapable) {
    const bool v4 = path.address.ss_family == AF_INET;
    add_control(op, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS,
                int{leader.class_byte});
  }
  io_uring_prep_sendmsg(sqe, path.socket, &op.message, 0);
  io_uring_sqe_set_data64(sqe, index);
  return true;
}

// Lets the frame at `at` in the queue go before those from `first` on that stay. False: it may not,
// as too much would overtake a more urgent one; nothing has changed.
bool UringPort::overtake(size_t first, size_t at) noexcept {
  const Frame& frame = frames_[queue_[at]];
  for (size_t i = first; i < at; ++i) {
    if (queue_[i] == kTaken) continue;
    const Frame& other = frames_[queue_[i]];
    if (other.priority < frame.priority &&
        other.overtaken_bytes + frame.total() > kMostOvertakingBytes) {
      return false;
    }
  }
  for (size_t i = first; i < at; ++i) {
    if (queue_[i] == kTaken) continue;
    Frame& other = frames_[queue_[i]];
    if (other.priority < frame.priority) other.overtaken_bytes += frame.total();
  }
  return true;
}

// Takes what goes into one SENDMSG out of the queue: frames of one path and traffic class, all of
// one size except that the last may be shorter. Those of others in between, as where a sum goes to
// each worker in turn, stay, and a few that are less urgent may go before them. Returns the number
// of parts.
uint32_t UringPort::gather(SendOp& op, uint32_t first) noexcept {
  const Frame& leader = frames_[queue_[first]];
  const bool batch =
      gso_ && !leader.alone && leader.total() <= paths_[leader.path.value].segment_limit;
  uint32_t parts = 0, total = 0;
  uint32_t passed_over = TrafficClasses::kPriorities;  // the most urgent that stays
  op.frame_count = 0;
  const auto end = std::min<size_t>(queue_.size(), first + (batch ? kMostLookedAt : 1));
  for (size_t i = first; i < end && op.frame_count < kMaxSegments; ++i) {
    if (queue_[i] == kTaken) continue;
    Frame& frame = frames_[queue_[i]];
    if (frame.path != leader.path) {
      passed_over = std::min(passed_over, frame.priority);
      continue;
    }
    if (i > first && (frame.total() > leader.total() || frame.class_byte != leader.class_byte ||
                      total + frame.total() > kMaxGsoBytes ||
                      (frame.priority > passed_over && !overtake(first, i)))) {
      break;
    }
    op.parts[parts++] = {frame.data, frame.bytes};
    if (!frame.payload.empty()) {
      op.parts[parts++] = {const_cast<std::byte*>(frame.payload.data()), frame.payload.size()};
    }
    op.frames[op.frame_count++] = std::exchange(queue_[i], kTaken);
    total += frame.total();
    if (frame.total() < leader.total()) break;
  }
  return parts;
}

}  // namespace mercury::uring
