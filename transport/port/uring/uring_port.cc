// Making and unmaking the port, its ring and its paths; uring_receive.cc and uring_send.cc hold the
// datapath.
#include "transport/port/uring/uring_port.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "transport/port/uring/receive_buffer.h"
#include "transport/port/uring/send_op.h"
#include "transport/port/uring/socket.h"

namespace mercury::uring {
namespace {

constexpr uint32_t kLargestMtu = 9000;  // what the wire format is tuned for; loopback offers 65,536
constexpr uint32_t kLeastMtu = 1280;
constexpr uint64_t kReadMissed = 1'000'000'000;

Error too_old() {
  return Error(Errc::kUnsupported, EINVAL, "the uring port needs Linux 6.0 or later");
}

Error ring_error(int error) {
  switch (error) {
    case EINVAL:  // sizes have been checked, so it is a flag that is not known before 5.19
      return too_old();
    case ENOMEM:
      return Error(Errc::kNoMemory, error,
                   "io_uring: not enough lockable memory; raise it with ulimit -l");
    case EPERM:
    case ENOSYS:
      return Error(Errc::kUnsupported, error,
                   "io_uring is switched off here; run sysctl kernel.io_uring_disabled=0, or "
                   "allow it in the container's seccomp profile");
    default:
      return Error::system(error, "io_uring_queue_init");
  }
}

}  // namespace

UringPort::UringPort(Counters& counters) : counters_(counters) {}

UringPort::~UringPort() {
  stop();
  for (uint32_t i = 0; i < frames_.size(); ++i) {
    if (frames_[i].pin) free_frame(i);
  }
  if (ring_open_) io_uring_queue_exit(&ring_);
  if (socket_ >= 0) ::close(socket_);
  for (const int source : sources_) ::close(source);
}

Result<std::unique_ptr<UringPort>> UringPort::create(const UringConfig& config,
                                                     Counters& counters) {
  if (config.local.ip.is_unspecified()) {
    return Error(Errc::kInvalidArgument, config.local.to_string() +
                                             ": give the address of one interface, at which peers "
                                             "reach this host");
  }
  if (!std::has_single_bit(config.tx_frames) || !std::has_single_bit(config.rx_buffers) ||
      config.tx_frames > 16'384 || config.rx_buffers > 16'384) {
    return Error(Errc::kInvalidArgument,
                 "tx_frames and rx_buffers must be powers of two, at most 16384");
  }
  std::unique_ptr<UringPort> port(new UringPort(counters));
  if (Status opened = port->open_socket(config); !opened) return opened.error();
  if (Status opened = port->open_ring(config); !opened) return opened.error();
  if (Status opened = port->open_buffers(); !opened) return opened.error();
  return port;
}

Status UringPort::open_socket(const UringConfig& config) {
  Result<UdpSocket> socket = open_udp(config.local);
  if (!socket) return socket.error();
  socket_ = socket->fd;
  info_.name = "uring";
  info_.flush_is_system_call = true;
  info_.local = socket->local;
  info_.source_ports = config.source_ports;
  for (uint32_t i = 0; i < config.source_ports.count; ++i) {
    const auto from = static_cast<uint16_t>(config.source_ports.first + i);
    const Result<int> source = open_source({config.local.ip, from});
    if (!source) return source.error();
    sources_.push_back(*source);
  }
  link_rate_ = config.link_bytes_per_second;
  classes_ = config.classes;
  const uint32_t headers = config.local.ip.is_v4() ? 28 : 48;
  const uint32_t mtu = std::min(config.mtu > 0 ? config.mtu : socket->mtu, socket->mtu);
  info_.max_udp_payload = std::clamp(mtu, kLeastMtu, kLargestMtu) - headers;

  frame_capacity_ = (info_.max_udp_payload + 63) / 64 * 64;
  tx_memory_ =
      std::make_unique_for_overwrite<std::byte[]>(size_t{config.tx_frames} * frame_capacity_);
  frames_.resize(config.tx_frames);
  queue_.reserve(config.tx_frames);
  retry_.reserve(config.tx_frames);
  for (uint32_t i = 0; i < config.tx_frames; ++i) {
    frames_[i].data = tx_memory_.get() + size_t{i} * frame_capacity_;
    free_frames_.push_back(config.tx_frames - 1 - i);
  }
  ops_ = std::make_unique<SendOp[]>(kSendOps);
  for (uint32_t i = 0; i < kSendOps; ++i) free_ops_.push_back(kSendOps - 1 - i);
  return {};
}

// IORING_SETUP_COOP_TASKRUN: what comes does not interrupt the engine's processor. It waits until
// the engine enters the kernel for something else, or finds no completion and the ring's flag set:
// then io_uring_peek_batch_cqe, which every pass calls, enters it. Between virtual processors an
// interrupt costs its sender as much as the frames. SINGLE_ISSUER with DEFER_TASKRUN moved no more
// frames over loopback, and would tie the port to one thread for good.
Status UringPort::open_ring(const UringConfig& config) {
  rx_buffers_ = config.rx_buffers;
  io_uring_params params{};
  params.flags = IORING_SETUP_CQSIZE | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  params.cq_entries = 2 * std::max(kSendOps, config.rx_buffers);
  const int error = io_uring_queue_init_params(kSendOps, &ring_, &params);
  if (error < 0) return ring_error(-error);
  ring_open_ = true;
  return {};
}

Status UringPort::open_buffers() {
  rx_memory_ = MappedMemory::anonymous(size_t{rx_buffers_} * kRxBufferBytes);
  if (rx_memory_) ring_memory_ = MappedMemory::anonymous(rx_buffers_ * sizeof(io_uring_buf));
  if (!ring_memory_) return Error(Errc::kNoMemory, errno, "no memory for receive buffers");
  buffer_ring_ = reinterpret_cast<io_uring_buf_ring*>(ring_memory_.data());
  io_uring_buf_reg registration{};
  registration.ring_addr = reinterpret_cast<uint64_t>(buffer_ring_);
  registration.ring_entries = rx_buffers_;
  registration.bgid = kBufferGroup;
  if (const int error = io_uring_register_buf_ring(&ring_, &registration, 0); error < 0) {
    return error == -EINVAL ? too_old()
                            : Error::system(-error, "io_uring: cannot register receive buffers");
  }
  io_uring_buf_ring_init(buffer_ring_);
  received_.resize(rx_buffers_);
  consumed_.reserve(rx_buffers_);
  for (uint32_t i = 0; i < rx_buffers_; ++i) recycle(static_cast<uint16_t>(i));
  rx_message_.msg_namelen = kNameBytes;
  rx_message_.msg_controllen = kControlBytes;
  return {};
}

// The kernel must have let go of buffers and socket before they are freed: closing the ring alone
// cancels in the background, and a frame that comes meanwhile would be written to freed memory.
void UringPort::stop() noexcept {
  if (!ring_open_) return;
  submit();
  io_uring_sync_cancel_reg cancel{};
  cancel.fd = -1;
  cancel.flags = IORING_ASYNC_CANCEL_ANY;
  cancel.timeout = {-1, -1};
  io_uring_register_sync_cancel(&ring_, &cancel);
  // A second, should the thread that started them be slow to run its completions.
  for (int pass = 0; pass < 100 && (armed_ || ops_in_flight_ > 0); ++pass) {
    __kernel_timespec wait{0, 10'000'000};
    io_uring_cqe* cqe = nullptr;
    io_uring_wait_cqe_timeout(&ring_, &cqe, &wait);
    reap();
  }
}

void UringPort::submit() noexcept {
  // What the kernel does not take now (it may be short of memory) stays in the ring for next time.
  if (io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);
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
        --ops_in_flight_;
      }
    }
    io_uring_cq_advance(&ring_, count);
    if (count < batch.size()) return;
  }
}

Result<PathId> UringPort::open_path(const Endpoint& remote) {
  if (remote.ip.is_v4() != info_.local.ip.is_v4()) {
    return Error(Errc::kInvalidArgument, remote.to_string() +
                                             " is of another address family than " +
                                             info_.local.to_string() + ", where this host listens");
  }
  if (remote.ip.is_unspecified() || remote.port == 0) {
    return Error(Errc::kInvalidArgument, remote.to_string() + " is no endpoint to send to");
  }
  const uint32_t index = take_path();
  Path& path = paths_[index];
  path.open = true;
  path.socket = socket_;
  path.address_bytes = write_address(remote, path.address);
  return PathId(index);
}

Result<PathId> UringPort::open_path_from(PathId like, uint16_t source) {
  if (source >= sources_.size()) {
    return Error(Errc::kInvalidArgument, "the port has no such source port");
  }
  const uint32_t index = take_path();
  Path& path = paths_[index];
  path.open = true;
  path.socket = sources_[source];
  path.address = paths_[like.value].address;
  path.address_bytes = paths_[like.value].address_bytes;
  return PathId(index);
}

uint32_t UringPort::take_path() {
  if (free_paths_.empty()) {
    free_paths_.push_back(static_cast<uint32_t>(paths_.size()));
    paths_.emplace_back();
    // Room for all at once: those that are closed come back on the datapath.
    if (free_paths_.capacity() < paths_.size()) free_paths_.reserve(2 * paths_.size());
  }
  const uint32_t index = free_paths_.back();
  free_paths_.pop_back();
  paths_[index] = Path{};
  return index;
}

void UringPort::close_path(PathId path) {
  if (path.value >= paths_.size() || !paths_[path.value].open) return;
  paths_[path.value].open = false;
  if (paths_[path.value].frames == 0) free_paths_.push_back(path.value);
}

void UringPort::tick(uint64_t now_ns) {
  if (now_ns < next_missed_ns_) return;
  next_missed_ns_ = now_ns + kReadMissed;
  const uint32_t missed = missed_datagrams(socket_);
  if (missed != missed_) counters_.add(Counter::kDropNoBuffer, missed - missed_);
  missed_ = missed;
}

bool UringPort::prepare_sleep() noexcept {
  if (!armed_) arm_receive();
  submit();
  reap();
  if (received_count_ > 0 || !armed_ || !retry_.empty()) return false;
  // While a send waits for room in the socket its completion will wake us; else there is work.
  return queue_.empty() || ops_in_flight_ > 0;
}

}  // namespace mercury::uring
