// Messages with descriptors over a Unix SOCK_SEQPACKET socket: what both sides of the attach
// protocol (attach.h) send and receive by. Received descriptors are close-on-exec and close
// themselves if nobody takes them. No SIGPIPE.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shim/channel/unique_fd.h"
#include "transport/base/result.h"

namespace mercury::attach {

struct Packet {
  std::vector<std::byte> bytes;  // empty: the other side has closed
  std::vector<UniqueFd> descriptors;
};

enum class Wait : bool { kNo, kYes };

// The descriptors stay the caller's. kAgain: Wait::kNo and the socket is full; kDaemonLost: the
// other side has closed; kLimit: longer than kMaxMessageBytes or more than kMaxDescriptors.
Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                   Wait wait);
// kAgain: Wait::kNo and nothing is there, or SO_RCVTIMEO passed; kProtocol: longer than
// kMaxMessageBytes, or more than `max_descriptors` came (all are closed).
Result<Packet> receive_packet(int socket, size_t max_descriptors, Wait wait);

// For a message: user, group and mode of the socket, or of the folder before it that keeps this
// process out.
std::string who_may_open(const std::string& path);
// kDaemonLost: nobody listens there; kPermission.
Result<UniqueFd> connect_socket(const std::string& path);
// Removes a socket that a dead listener left behind, but nothing else; kExists: someone listens.
// Non-blocking, backlog 128; the caller sets owner and mode.
Result<UniqueFd> listen_socket(const std::string& path);

}  // namespace mercury::attach
