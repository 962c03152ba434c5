#include "transport/port/uring/uring_port.h"

#include <netinet/udp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "transport/port/uring/socket.h"

namespace mercury::uring {
namespace {

constexpr uint64_t kReceiveTag = ~uint64_t{0};
constexpr uint16_t kBufferGroup = 0;
// A GRO batch is at most one IP packet's worth, behind it stand name and control messages.
constexpr uint32_t kMaxDatagram = 65536;
constexpr uint32_t kNameBytes = sizeof(sockaddr_in6);
constexpr uint32_t kControlBytes = CMSG_SPACE(sizeof(int)) * 3;
constexpr uint32_t kRxBufferBytes =
    (sizeof(io_uring_recvmsg_out) + kNameBytes + kControlBytes + kMaxDatagram + 63) / 64 * 64;
// The kernel cuts at most 64 segments (UDP_MAX_SEGMENTS) of at most one IP packet's bytes.
constexpr uint32_t kMaxSegments = 64;
constexpr uint32_t kMaxGsoBytes = 65000;

struct PinCount {
  uint32_t busy;
};
static_assert(sizeof(PinCount) <= sizeof(PayloadPin));
PinCount& count_of(PayloadPin& pin) { return *reinterpret_cast<PinCount*>(pin.opaque); }

}  // namespace

struct UringPort::SendOp {
  msghdr message{};
  std::array<iovec, 2 * kMaxSegments> parts{};
  std::array<uint32_t, kMaxSegments> frames{};
  uint32_t frame_count = 0;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(uint16_t))> control{};
};

UringPort::UringPort(Counters& counters) : counters_(counters) {}

UringPort::~UringPort() {
  if (ring_open_) io_uring_queue_exit(&ring_);
  if (rx_memory_) munmap(rx_memory_, size_t{rx_buffers_} * kRxBufferBytes);
  if (buffer_ring_) munmap(buffer_ring_, rx_buffers_ * sizeof(io_uring_buf));
  if (socket_ >= 0) ::close(socket_);
}

Result<std::unique_ptr<UringPort>> UringPort::create(const UringConfig& config,
                                                     Counters& counters) {
  std::unique_ptr<UringPort> port(new UringPort(counters));
  if (Status opened = port->open_socket(config); !opened) return opened.error();
  if (Status opened = port->open_ring(config); !opened) return opened.error();
  return port;
}

Status UringPort::open_socket(const UringConfig& config) {
  Result<UdpSocket> socket = open_udp(config.local);
  if (!socket) return socket.error();
  socket_ = socket->fd;
  info_.name = "uring";
  info_.local = socket->local;
  info_.link_bytes_per_second = config.link_bytes_per_second;
  const uint32_t headers = config.local.ip.is_v4() ? 28 : 48;
  const uint32_t mtu = std::min(config.mtu > 0 ? config.mtu : socket->mtu, socket->mtu);
  info_.max_udp_payload = std::max<uint32_t>(std::min<uint32_t>(mtu, 9000), 1280) - headers;

  frame_capacity_ = (info_.max_udp_payload + 63) / 64 * 64;
  tx_memory_ =
      std::make_unique_for_overwrite<std::byte[]>(size_t{config.tx_frames} * frame_capacity_);
  frames_.resize(config.tx_frames);
  queue_.reserve(config.tx_frames);
  for (uint32_t i = 0; i < config.tx_frames; ++i) {
    frames_[i].data = tx_memory_.get() + size_t{i} * frame_capacity_;
    free_frames_.push_back(config.tx_frames - 1 - i);
  }
  ops_ = std::make_unique<SendOp[]>(config.tx_frames);
  for (uint32_t i = 0; i < config.tx_frames; ++i) free_ops_.push_back(config.tx_frames - 1 - i);
  return {};
}

Status UringPort::open_ring(const UringConfig& config) {
  if (const int error = io_uring_queue_init(config.tx_frames, &ring_, 0); error < 0) {
    if (error == -ENOMEM) {
      return Error(Errc::kNoMemory, ENOMEM,
                   "io_uring: not enough lockable memory; raise it with ulimit -l");
    }
    if (error == -EPERM || error == -ENOSYS) {
      return Error(Errc::kUnsupported, -error,
                   "io_uring is switched off here; run sysctl kernel.io_uring_disabled=0");
    }
    return Error::system(-error, "io_uring_queue_init");
  }
  ring_open_ = true;
  rx_buffers_ = config.rx_buffers;
  void* memory = mmap(nullptr, size_t{rx_buffers_} * kRxBufferBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* ring = mmap(nullptr, rx_buffers_ * sizeof(io_uring_buf), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || ring == MAP_FAILED) {
    return Error(Errc::kNoMemory, errno, "no memory for receive buffers");
  }
  rx_memory_ = static_cast<std::byte*>(memory);
  buffer_ring_ = static_cast<io_uring_buf_ring*>(ring);
  io_uring_buf_reg registration{};
  registration.ring_addr = reinterpret_cast<uint64_t>(ring);
  registration.ring_entries = rx_buffers_;
  registration.bgid = kBufferGroup;
  if (const int error = io_uring_register_buf_ring(&ring_, &registration, 0); error < 0) {
    return Error::system(
        -error, "io_uring: cannot register receive buffers (Linux 6.0 or later is needed)");
  }
  io_uring_buf_ring_init(buffer_ring_);
  received_.resize(rx_buffers_);
  consumed_.reserve(rx_buffers_);
  for (uint32_t i = 0; i < rx_buffers_; ++i) recycle(static_cast<uint16_t>(i));
  rx_message_.msg_namelen = kNameBytes;
  rx_message_.msg_controllen = kControlBytes;
  return {};
}

void UringPort::recycle(uint16_t buffer) noexcept {
  io_uring_buf_ring_add(buffer_ring_, rx_memory_ + size_t{buffer} * kRxBufferBytes, kRxBufferBytes,
                        buffer, io_uring_buf_ring_mask(rx_buffers_), 0);
  io_uring_buf_ring_advance(buffer_ring_, 1);
}

// Multishot ends when the buffers run out, and on errors: it is armed again on the next pass.
void UringPort::arm_receive() noexcept {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return;
  io_uring_prep_recvmsg_multishot(sqe, socket_, &rx_message_, 0);
  sqe->flags |= IOSQE_BUFFER_SELECT;
  sqe->buf_group = kBufferGroup;
  io_uring_sqe_set_data64(sqe, kReceiveTag);
  armed_ = true;
  io_uring_submit(&ring_);
}

void UringPort::reap() noexcept {
  std::array<io_uring_cqe*, 64> batch;
  for (;;) {
    const uint32_t count = io_uring_peek_batch_cqe(&ring_, batch.data(), batch.size());
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t tag = io_uring_cqe_get_data64(batch[i]);
      if (tag == kReceiveTag) {
        on_received(*batch[i]);
      } else {
        on_sent(ops_[tag], batch[i]->res);
        free_ops_.push_back(static_cast<uint32_t>(tag));
      }
    }
    io_uring_cq_advance(&ring_, count);
    if (count < batch.size()) return;
  }
}

void UringPort::on_received(const io_uring_cqe& cqe) noexcept {
  if ((cqe.flags & IORING_CQE_F_MORE) == 0) armed_ = false;
  if ((cqe.flags & IORING_CQE_F_BUFFER) == 0) return;  // an error, for example from ICMP
  const auto buffer = static_cast<uint16_t>(cqe.flags >> IORING_CQE_BUFFER_SHIFT);
  std::byte* memory = rx_memory_ + size_t{buffer} * kRxBufferBytes;
  io_uring_recvmsg_out* out =
      cqe.res < 0 ? nullptr : io_uring_recvmsg_validate(memory, cqe.res, &rx_message_);
  Received received;
  if (out == nullptr || (out->flags & MSG_TRUNC) != 0 ||
      !read_source(io_uring_recvmsg_name(out), out->namelen, received.source)) {
    counters_.add(Counter::kDropBadIp);
    recycle(buffer);
    return;
  }
  const uint32_t bytes = io_uring_recvmsg_payload_length(out, cqe.res, &rx_message_);
  received.buffer = buffer;
  received.rest = {static_cast<const std::byte*>(io_uring_recvmsg_payload(out, &rx_message_)),
                   bytes};
  received.segment_bytes = bytes;
  for (cmsghdr* c = io_uring_recvmsg_cmsg_firsthdr(out, &rx_message_); c != nullptr;
       c = io_uring_recvmsg_cmsg_nexthdr(out, &rx_message_, c)) {
    read_control(*c, received.segment_bytes, received.ecn_ce);
  }
  if (bytes == 0 || received.segment_bytes == 0) {
    recycle(buffer);
    return;
  }
  received_[(received_head_ + received_count_++) % rx_buffers_] = received;
}

uint32_t UringPort::rx_burst(std::span<RxFrame> burst, uint64_t) noexcept {
  if (!armed_) arm_receive();
  reap();
  uint32_t count = 0;
  while (count < burst.size() && received_count_ > 0) {
    Received& received = received_[received_head_];
    const size_t bytes = std::min<size_t>(received.segment_bytes, received.rest.size());
    burst[count++] = {received.rest.first(bytes), received.source, received.ecn_ce};
    received.rest = received.rest.subspan(bytes);
    if (!received.rest.empty()) continue;
    consumed_.push_back(received.buffer);
    received_head_ = (received_head_ + 1) % rx_buffers_;
    --received_count_;
  }
  return count;
}

void UringPort::rx_release() noexcept {
  for (uint16_t buffer : consumed_) recycle(buffer);
  consumed_.clear();
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
  queued.path = path;
  queued.payload = {};
  queued.pin = nullptr;
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
}

void UringPort::on_sent(SendOp& op, int result) noexcept {
  if (result < 0) {
    counters_.add(Counter::kDropTxFull, op.frame_count);
    // A device or path that cannot cut segments: from now on one frame a call.
    if (op.frame_count > 1 && (result == -EIO || result == -EINVAL || result == -EMSGSIZE)) {
      gso_ = false;
    }
  }
  for (uint32_t i = 0; i < op.frame_count; ++i) free_frame(op.frames[i]);
  op.frame_count = 0;
}

void UringPort::tx_flush(uint64_t) noexcept {
  reap();
  uint32_t first = 0;
  while (first < queue_.size()) {
    if (!paths_[frames_[queue_[first]].path.value].open) {  // closed since: nobody listens
      free_frame(queue_[first++]);
      continue;
    }
    const uint32_t count = start_send(first);
    if (count == 0) break;
    first += count;
  }
  if (first == 0) return;
  queue_.erase(queue_.begin(), queue_.begin() + first);
  io_uring_submit(&ring_);
}

// Queues one SENDMSG for the frames from `first` on that go together: to one peer, all of one size
// except that the last may be shorter. Returns how many; 0 if there is no room now.
uint32_t UringPort::start_send(uint32_t first) noexcept {
  if (free_ops_.empty()) return 0;
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return 0;
  const uint32_t index = free_ops_.back();
  free_ops_.pop_back();
  SendOp& op = ops_[index];
  const Frame& leader = frames_[queue_[first]];
  uint32_t parts = 0, total = 0;
  op.frame_count = 0;
  for (uint32_t i = first; i < queue_.size() && op.frame_count < (gso_ ? kMaxSegments : 1); ++i) {
    Frame& frame = frames_[queue_[i]];
    if (i > first && (frame.path != leader.path || frame.total() > leader.total() ||
                      total + frame.total() > kMaxGsoBytes)) {
      break;
    }
    op.parts[parts++] = {frame.data, frame.bytes};
    if (!frame.payload.empty()) {
      op.parts[parts++] = {const_cast<std::byte*>(frame.payload.data()), frame.payload.size()};
    }
    op.frames[op.frame_count++] = queue_[i];
    total += frame.total();
    if (frame.total() < leader.total()) break;
  }
  Path& path = paths_[leader.path.value];
  op.message = {};
  op.message.msg_name = &path.address;
  op.message.msg_namelen = path.address_bytes;
  op.message.msg_iov = op.parts.data();
  op.message.msg_iovlen = parts;
  if (op.frame_count > 1) {
    op.message.msg_control = op.control.data();
    op.message.msg_controllen = op.control.size();
    cmsghdr* control = CMSG_FIRSTHDR(&op.message);
    control->cmsg_level = SOL_UDP;
    control->cmsg_type = UDP_SEGMENT;
    control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const auto segment = static_cast<uint16_t>(leader.total());
    std::memcpy(CMSG_DATA(control), &segment, sizeof segment);
  }
  io_uring_prep_sendmsg(sqe, socket_, &op.message, 0);
  io_uring_sqe_set_data64(sqe, index);
  return op.frame_count;
}

Result<PathId> UringPort::open_path(const Endpoint& remote) {
  if (remote.ip.is_v4() != info_.local.ip.is_v4()) {
    return Error(Errc::kInvalidArgument, remote.to_string() +
                                             " is of another address family than " +
                                             info_.local.to_string() + ", where this host listens");
  }
  uint32_t index = 0;
  while (index < paths_.size() && paths_[index].open) ++index;
  if (index == paths_.size()) paths_.emplace_back();
  Path& path = paths_[index];
  path.open = true;
  path.remote = remote;
  path.address_bytes = write_address(remote, path.address);
  return PathId(index);
}

void UringPort::close_path(PathId path) { paths_[path.value].open = false; }

uint32_t UringPort::path_max_payload(PathId) const { return info_.max_udp_payload; }

bool UringPort::prepare_sleep() noexcept {
  if (!armed_) arm_receive();
  reap();
  return received_count_ == 0 && queue_.empty() && armed_;
}

}  // namespace mercury::uring
