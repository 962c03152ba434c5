// Messages with descriptors over a Unix SOCK_SEQPACKET socket: what both sides of the attach
// protocol (attach.h) send and receive by. Received descriptors are close-on-exec and close
// themselves if nobody takes them. No SIGPIPE.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shim/channel/unique_fd.h"
#include "transport/base/result.h"
#include "transport/base/wipe.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83  // Linux 6.16
#endif

namespace mercury::attach {

struct Packet {
  SecretBytes bytes;  // empty: the other side has closed
  std::vector<UniqueFd> descriptors;
  bool lacks_descriptors = false;  // some that came: this process may open no more (ulimit -n)
};

enum class Wait : bool { kNo, kYes };

// The descriptors stay the caller's. kAgain: Wait::kNo and the socket is full; kDaemonLost: the
// other side has closed; kLimit: longer than kMaxMessageBytes or more than kMaxDescriptors.
Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                   Wait wait);
// kAgain: Wait::kNo and nothing is there, or SO_RCVTIMEO passed; kProtocol: longer than
// `max_bytes`, which is kMaxMessageBytes if it is not said, or more than `max_descriptors` came
// (all are closed). Where they are read to, `max_bytes` are cleared before and after: there may be
// secrets among them.
Result<Packet> receive_packet(int socket, size_t max_descriptors, Wait wait);
Result<Packet> receive_packet(int socket, size_t max_descriptors, Wait wait, size_t max_bytes);

// For a message: user, group and mode of the socket, or of the folder before it that keeps this
// process out.
std::string who_may_open(const std::string& path);
// kDaemonLost: nobody listens there; kPermission.
Result<UniqueFd> connect_socket(const std::string& path);
// Removes a socket that a dead listener left behind, but nothing else; kExists: someone listens.
// Non-blocking, backlog 128; the caller sets owner and mode. Its connections refuse descriptors.
Result<UniqueFd> listen_socket(const std::string& path);
// Of a UNIX socket and those that it accepts: who sends one gets EPERM. Whoever closes a descriptor
// last may have to wait as long as its sender likes. False: the kernel, before 6.16, cannot.
bool refuse_descriptors(int socket);

}  // namespace mercury::attach
