#include "shim/channel/seqpacket.h"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "shim/channel/attach.h"

namespace mercury::attach {
namespace {

// SCM_MAX_FD of the kernel: more cannot come in one packet, so none is lost for want of space.
constexpr size_t kMostDescriptors = 253;
static_assert(kMaxDescriptors <= kMostDescriptors);

// Takes every descriptor out of the message, so that each is closed whatever follows. Who closes a
// socket last waits as long as its sender has said: no longer.
std::vector<UniqueFd> take_descriptors(msghdr& message) {
  std::vector<UniqueFd> out;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      constexpr linger kNone{};
      (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &kNone, sizeof kNone);  // of a socket
      out.emplace_back(fd);
    }
  }
  return out;
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error(Errc::kInvalidArgument, "socket path '" + path + "' must have 1 to " +
                                             std::to_string(sizeof address.sun_path - 1) +
                                             " characters");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace

Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                   Wait wait) {
  if (bytes.empty() || bytes.size() > kMaxMessageBytes || descriptors.size() > kMaxDescriptors) {
    return Error(Errc::kLimit,
                 "an attach message may have 1 to " + std::to_string(kMaxMessageBytes) + " bytes");
  }
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  if (!descriptors.empty()) {
    std::memset(control, 0, sizeof control);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size_bytes());
  }
  const int flags = MSG_NOSIGNAL | (wait == Wait::kNo ? MSG_DONTWAIT : 0);
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &message, flags);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return {};
  if (errno == EAGAIN) return Error(Errc::kAgain, "the attach socket is full");
  if (errno == EPIPE || errno == ECONNRESET) {
    return Error(Errc::kDaemonLost, errno, "the other side of the attach socket has closed");
  }
  return Error::system(errno, "cannot send on the attach socket");
}

Result<Packet> receive_packet(int socket, size_t max_descriptors, Wait wait) {
  return receive_packet(socket, max_descriptors, wait, kMaxMessageBytes);
}

Result<Packet> receive_packet(int socket, size_t max_descriptors, Wait wait, size_t max_bytes) {
  Packet packet;
  packet.bytes.resize(max_bytes);
  iovec data{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const int flags = MSG_CMSG_CLOEXEC | (wait == Wait::kNo ? MSG_DONTWAIT : 0);
  ssize_t got;
  do {
    got = ::recvmsg(socket, &message, flags);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN) return Error(Errc::kAgain, "nothing on the attach socket");
    if (errno == ECONNRESET) got = 0;
    if (got < 0) return Error::system(errno, "cannot receive on the attach socket");
    message.msg_controllen = 0;
  }
  packet.descriptors = take_descriptors(message);
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return Error(Errc::kProtocol, "attach message: longer than " + std::to_string(max_bytes));
  }
  packet.lacks_descriptors = (message.msg_flags & MSG_CTRUNC) != 0;
  if (packet.descriptors.size() > max_descriptors ||
      (packet.lacks_descriptors && max_descriptors == 0)) {
    return Error(Errc::kProtocol, "attach message: more descriptors than expected");
  }
  packet.bytes.resize(static_cast<size_t>(got));
  return packet;
}

std::string who_may_open(const std::string& path) {
  std::filesystem::path closed = path;
  struct stat facts {};
  while (::stat(closed.c_str(), &facts) != 0 && closed.has_relative_path()) {
    closed = closed.parent_path();
  }
  std::array<char, 1024> names{};
  passwd user{}, *known_user = nullptr;
  group owners{}, *known_group = nullptr;
  getpwuid_r(facts.st_uid, &user, names.data(), names.size(), &known_user);
  const std::string user_name = known_user ? user.pw_name : std::to_string(facts.st_uid);
  getgrgid_r(facts.st_gid, &owners, names.data(), names.size(), &known_group);
  const std::string group_name = known_group ? owners.gr_name : std::to_string(facts.st_gid);
  std::array<char, 8> mode{};
  std::snprintf(mode.data(), mode.size(), "%04o", facts.st_mode & 07777U);
  return closed.string() + " is of user " + user_name + ", group " + group_name + ", mode " +
         mode.data();
}

Result<UniqueFd> connect_socket(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.error();
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return Error::system(errno, "socket");
  int rc;
  do {
    rc = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address);
  } while (rc < 0 && errno == EINTR);
  if (rc == 0) return fd;
  const int why = errno;
  if (why == EACCES || why == EPERM) {
    return Error(Errc::kPermission, why,
                 "no permission to open " + path + ": " + who_may_open(path) +
                     "; join that group (usermod -aG), or set attach.group to one of yours");
  }
  return Error(Errc::kDaemonLost, why,
               "no mercury-stackd listens on " + path + ": " + errno_text(why) +
                   "; start it, or name its socket in MERCURY_SOCKET");
}

bool refuse_descriptors(int socket) {
  constexpr int kNone = 0;
  return ::setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &kNone, sizeof kNone) == 0;
}

Result<UniqueFd> listen_socket(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.error();
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return Error(Errc::kExists, path + " exists and is not a socket; move it away");
    }
    if (connect_socket(path)) {
      return Error(Errc::kExists, "another daemon listens on " + path);
    }
    ::unlink(path.c_str());
  }
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Error::system(errno, "socket");
  refuse_descriptors(fd.get());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    return Error::system(errno, "cannot bind " + path);
  }
  if (::listen(fd.get(), 128) != 0) return Error::system(errno, "cannot listen on " + path);
  return fd;
}

}  // namespace mercury::attach
