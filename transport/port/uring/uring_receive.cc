#include <algorithm>

#include "transport/port/uring/receive_buffer.h"
#include "transport/port/uring/send_op.h"
#include "transport/port/uring/socket.h"
#include "transport/port/uring/uring_port.h"

namespace mercury::uring {

void UringPort::recycle(uint16_t buffer) noexcept {
  io_uring_buf_ring_add(buffer_ring_, rx_memory_.data() + size_t{buffer} * kRxBufferBytes,
                        kRxBufferBytes, buffer, io_uring_buf_ring_mask(rx_buffers_), 0);
  io_uring_buf_ring_advance(buffer_ring_, 1);
}

// Multishot ends when the buffers run out, and on errors: it is armed again on the next pass, for
// which some buffer must be the kernel's.
void UringPort::arm_receive() noexcept {
  if (received_count_ + consumed_.size() >= rx_buffers_) return;
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return;
  io_uring_prep_recvmsg_multishot(sqe, socket_, &rx_message_, 0);
  sqe->flags |= IOSQE_BUFFER_SELECT;
  sqe->buf_group = kBufferGroup;
  io_uring_sqe_set_data64(sqe, kReceiveTag);
  armed_ = true;
  submit();
}

void UringPort::on_received(const io_uring_cqe& cqe) noexcept {
  if ((cqe.flags & IORING_CQE_F_MORE) == 0) armed_ = false;
  if (cqe.res < 0 && cqe.res != -ENOBUFS && cqe.res != -ECANCELED) {
    counters_.add(Counter::kDropNetwork);  // for example, ICMP says that a peer's port is closed
  }
  if ((cqe.flags & IORING_CQE_F_BUFFER) == 0) return;
  const auto buffer = static_cast<uint16_t>(cqe.flags >> IORING_CQE_BUFFER_SHIFT);
  std::byte* const memory = rx_memory_.data() + size_t{buffer} * kRxBufferBytes;
  io_uring_recvmsg_out* const out =
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
  received.facts.segment_bytes = bytes;
  for (cmsghdr* c = io_uring_recvmsg_cmsg_firsthdr(out, &rx_message_); c != nullptr;
       c = io_uring_recvmsg_cmsg_nexthdr(out, &rx_message_, c)) {
    read_control(*c, received.facts);
  }
  if (bytes == 0 || received.facts.segment_bytes == 0) {
    counters_.add(Counter::kDropTruncated);
    recycle(buffer);
    return;
  }
  received_[(received_head_ + received_count_++) % rx_buffers_] = received;
}

uint32_t UringPort::rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept {
  if (!armed_) arm_receive();
  reap();
  if (received_count_ == 0) {
    drained_ns_ = now_ns;
    return 0;
  }
  const uint64_t pass_wall_ns = now_ns + static_cast<uint64_t>(wall_ahead_ns());
  // Whatever was done to the wall clock meanwhile.
  const uint64_t most_ns = std::min<uint64_t>(now_ns - drained_ns_, UINT32_MAX);
  uint32_t count = 0;
  while (count < burst.size() && received_count_ > 0) {
    Received& received = received_[received_head_];
    const ReceivedFacts& facts = received.facts;
    const size_t bytes = std::min<size_t>(facts.segment_bytes, received.rest.size());
    const bool known = facts.arrived_ns != 0 && facts.arrived_ns < pass_wall_ns;
    const uint64_t waited_ns = known ? pass_wall_ns - facts.arrived_ns : 0;
    burst[count++] = {
        {received.rest.first(bytes), received.source},
        Arrival(facts.ecn_ce, false, static_cast<uint32_t>(std::min(waited_ns, most_ns)))};
    received.rest = received.rest.subspan(bytes);
    if (!received.rest.empty()) continue;
    consumed_.push_back(received.buffer);
    received_head_ = (received_head_ + 1) % rx_buffers_;
    --received_count_;
  }
  if (received_count_ == 0) drained_ns_ = now_ns;
  return count;
}

void UringPort::rx_release() noexcept {
  for (uint16_t buffer : consumed_) recycle(buffer);
  consumed_.clear();
}

}  // namespace mercury::uring
