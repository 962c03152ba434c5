#include "shim/pslite/message_link.h"

#include <mercurystack/socket.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace mercury_van {
namespace {

enum Kind : uint32_t { kStart = 1, kPiece, kAcknowledge };

// What is sent, in the byte order of both hosts, as ps-lite sends its own: x86-64 and ARM agree.
struct Frame {
  uint32_t kind;
  uint32_t parts;  // kStart
  uint64_t id;
  uint64_t bytes;  // kStart: of the meta; kPiece: that follow
};
static_assert(sizeof(Frame) == 24, "as it is sent");

constexpr size_t kPieceBytes = 256 << 10;
// Far more than ps-lite sends: what is greater is no message.
constexpr uint64_t kMostMetaBytes = 16 << 20, kMostParts = 64;

// False: the connection has ended.
bool send_bytes(int fd, iovec* parts, size_t count) {
  while (count > 0) {
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t sent = mercury_sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    size_t left = static_cast<size_t>(sent);
    while (count > 0 && left >= parts->iov_len) {
      left -= parts->iov_len;
      ++parts;
      --count;
    }
    if (count > 0) {
      parts->iov_base = static_cast<char*>(parts->iov_base) + left;
      parts->iov_len -= left;
    }
  }
  return true;
}

bool receive_bytes(int fd, void* out, size_t bytes) {
  char* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = mercury_recv(fd, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool first_key(const Outgoing& message, uint64_t* key) {
  if (message.data.empty() || message.data[0].size < sizeof *key) return false;
  std::memcpy(key, message.data[0].data, sizeof *key);
  return true;
}

}  // namespace

MessageLink::MessageLink(Connect connect, Deliver deliver, Warn warn)
    : connect_(std::move(connect)), deliver_(std::move(deliver)), warn_(std::move(warn)) {
  thread_ = std::thread(&MessageLink::run, this);
}

MessageLink::~MessageLink() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
  }
  changed_.notify_all();
  thread_.join();
}

MessageLink::Turn MessageLink::turn_of(const Pending& pending) {
  return Turn(-static_cast<int64_t>(pending.priority), pending.id);
}

void MessageLink::send(Outgoing message) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (message.peer != 0 && message.peer != peer_) return;
    Pending pending;
    pending.id = next_id_++;
    pending.priority = message.priority;
    uint64_t key = 0;
    if (first_key(message, &key)) {
      std::pair<size_t, int>& waiting = keys_[key];
      if (waiting.first > 0) pending.priority = std::min(pending.priority, waiting.second);
      waiting = {waiting.first + 1, pending.priority};
    }
    if (message.request != 0) requests_[message.request] = pending.id;
    pending.message = std::move(message);
    ready_.insert(turn_of(pending));
    pending_.emplace(pending.id, std::move(pending));
  }
  changed_.notify_all();
}

void MessageLink::forget(std::map<uint64_t, Pending>::iterator which) {
  const Pending& pending = which->second;
  uint64_t key = 0;
  if (first_key(pending.message, &key) && --keys_[key].first == 0) keys_.erase(key);
  requests_.erase(pending.message.request);
  ready_.erase(turn_of(pending));
  pending_.erase(which);
  changed_.notify_all();
}

void MessageLink::settle(uint64_t request) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = requests_.find(request);
  if (found == requests_.end()) return;
  const uint64_t id = found->second;
  changed_.wait(lock, [&] { return writing_ != id; });
  const auto pending = pending_.find(id);
  if (pending != pending_.end()) forget(pending);
}

void MessageLink::set_peer(Incarnation peer) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (peer_ == peer) return;
  if (peer_ != 0) {
    // The one that this was for has gone.
    if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
    changed_.wait(lock, [&] { return fd_ < 0; });
    while (!pending_.empty()) forget(pending_.begin());
    complete_.clear();
    acknowledge_.clear();
    next_ = 1;
    next_id_ = 1;
    replaced_.insert(peer_);
  }
  peer_ = peer;
}

Incarnation MessageLink::peer() {
  std::lock_guard<std::mutex> lock(mutex_);
  return peer_;
}

bool MessageLink::was_replaced(Incarnation process) {
  std::lock_guard<std::mutex> lock(mutex_);
  return replaced_.count(process) > 0;
}

void MessageLink::disconnect() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

bool MessageLink::drain(int milliseconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                           [&] { return pending_.empty() && acknowledge_.empty(); });
}

void MessageLink::run() {
  while (true) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (ending_) return;
    }
    const int fd = connect_();
    if (fd >= 0) serve(fd);
  }
}

void MessageLink::serve(int fd) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    fd_ = fd;
    broken_ = false;
    if (ending_) ::shutdown(fd, SHUT_RDWR);
    for (auto& each : pending_) {
      each.second.begun = false;
      each.second.part = each.second.offset = 0;
      ready_.insert(turn_of(each.second));
    }
  }
  std::thread receiver(&MessageLink::receive_all, this, fd);
  send_all(fd);
  ::shutdown(fd, SHUT_RDWR);
  receiver.join();
  ::close(fd);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    fd_ = -1;
  }
  changed_.notify_all();
}

void MessageLink::send_all(int fd) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [&] { return ending_ || broken_ || !ready_.empty() || !acknowledge_.empty(); });
    if (ending_ || broken_ || !send_next(fd, lock)) return;
  }
}

bool MessageLink::send_next(int fd, std::unique_lock<std::mutex>& lock) {
  if (acknowledge_.empty()) return send_piece(fd, ready_.begin()->second, lock);
  std::vector<Frame> frames;
  for (const uint64_t id : acknowledge_) frames.push_back(Frame{kAcknowledge, 0, id, 0});
  lock.unlock();
  iovec all = {frames.data(), frames.size() * sizeof(Frame)};
  const bool sent = send_bytes(fd, &all, 1);
  lock.lock();
  // One that is lost with the connection is said again when the message comes again.
  acknowledge_.erase(acknowledge_.begin(),
                     acknowledge_.begin() + static_cast<std::ptrdiff_t>(frames.size()));
  changed_.notify_all();
  return sent;
}

bool MessageLink::send_piece(int fd, uint64_t id, std::unique_lock<std::mutex>& lock) {
  Pending& pending = pending_.at(id);
  const Outgoing& message = pending.message;
  std::vector<uint64_t> sizes;
  for (const Bytes& part : message.data) sizes.push_back(part.size);
  Frame start = {kStart, static_cast<uint32_t>(sizes.size()), id, message.meta.size()};
  Frame piece = {kPiece, 0, id, 0};
  std::vector<iovec> out;
  if (!pending.begun) {
    out.push_back({&start, sizeof start});
    out.push_back({sizes.data(), sizes.size() * sizeof(uint64_t)});
    out.push_back({const_cast<char*>(message.meta.data()), message.meta.size()});
    pending.begun = true;
  }
  out.push_back({&piece, sizeof piece});
  // Empty parts go with what is before them: the peer is done when nothing is missing.
  while (pending.part < sizes.size() && (piece.bytes < kPieceBytes || sizes[pending.part] == 0)) {
    const size_t bytes =
        std::min<size_t>(kPieceBytes - piece.bytes, sizes[pending.part] - pending.offset);
    if (bytes > 0) out.push_back({message.data[pending.part].data + pending.offset, bytes});
    piece.bytes += bytes;
    pending.offset += bytes;
    if (pending.offset == sizes[pending.part]) {
      ++pending.part;
      pending.offset = 0;
    }
  }
  if (pending.part == sizes.size()) ready_.erase(turn_of(pending));
  writing_ = id;
  lock.unlock();
  const bool sent = send_bytes(fd, out.data(), out.size());
  lock.lock();
  writing_ = 0;
  if (pending.acknowledged) forget(pending_.find(id));
  changed_.notify_all();
  return sent;
}

void MessageLink::receive_all(int fd) {
  Arrivals arriving;
  while (receive_frame(fd, arriving)) {
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
  }
  changed_.notify_all();
}

bool MessageLink::receive_frame(int fd, Arrivals& arriving) {
  Frame frame;
  if (!receive_bytes(fd, &frame, sizeof frame)) return false;
  if (frame.kind == kAcknowledge) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto pending = pending_.find(frame.id);
    if (pending == pending_.end()) return true;
    // One that is just sent again is left to the sender. It is not awaited: if both ends did so,
    // none would read what the other one sends.
    pending->second.acknowledged = true;
    if (writing_ != frame.id) forget(pending);
    return true;
  }
  if (frame.kind == kStart) return receive_start(fd, frame.id, frame.bytes, frame.parts, arriving);
  const auto found = arriving.find(frame.id);
  if (frame.kind != kPiece || found == arriving.end()) return refuse("a piece of no message");
  if (!receive_piece(fd, found->second, frame.bytes)) return false;
  if (found->second.part < found->second.data.size()) return true;
  complete(frame.id, std::move(found->second));
  arriving.erase(found);
  return true;
}

bool MessageLink::receive_start(int fd, uint64_t id, uint64_t meta_bytes, uint64_t parts,
                                Arrivals& arriving) {
  if (meta_bytes > kMostMetaBytes || parts > kMostParts || arriving.count(id) > 0) {
    return refuse("the beginning of no message");
  }
  std::vector<uint64_t> sizes(parts);
  Arriving message;
  message.meta.resize(meta_bytes);
  if (!receive_bytes(fd, sizes.data(), parts * sizeof(uint64_t))) return false;
  if (!receive_bytes(fd, &message.meta[0], meta_bytes)) return false;
  for (const uint64_t bytes : sizes) {
    if (bytes > kMostPartBytes) return refuse("a greater tensor than can be received");
    const std::shared_ptr<char> memory(new char[bytes], std::default_delete<char[]>());
    message.data.push_back(Bytes{memory, memory.get(), bytes});
  }
  arriving.emplace(id, std::move(message));
  return true;
}

bool MessageLink::receive_piece(int fd, Arriving& message, uint64_t bytes) {
  while (message.part < message.data.size()) {
    const Bytes& part = message.data[message.part];
    const size_t here = std::min<size_t>(bytes, part.size - message.offset);
    if (!receive_bytes(fd, part.data + message.offset, here)) return false;
    bytes -= here;
    message.offset += here;
    if (message.offset < part.size) break;
    ++message.part;
    message.offset = 0;
  }
  return bytes == 0 || refuse("more of a message than it has");
}

bool MessageLink::refuse(const char* what) {
  warn_(std::string("a connection is closed, on which came ") + what);
  return false;
}

bool MessageLink::note(uint64_t id) {
  if (id < next_ || !complete_.insert(id).second) return false;
  while (!complete_.empty() && *complete_.begin() == next_) {
    complete_.erase(complete_.begin());
    ++next_;
  }
  return true;
}

void MessageLink::complete(uint64_t id, Arriving message) {
  bool is_new = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_new = note(id);
  }
  // Delivered before it is acknowledged: what is acknowledged is never sent again.
  if (is_new) deliver_(std::move(message.meta), std::move(message.data));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    acknowledge_.push_back(id);
  }
  changed_.notify_all();
}

}  // namespace mercury_van
