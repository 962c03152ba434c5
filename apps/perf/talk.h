// What the two ends of a measurement of streams and messages say to each other, on the connection
// that they measure: first the client a line of JSON, what it wants; then the server one, `ok` or
// `error`; then bytes (blocks.h), and at the end lines of JSON again.
//
// Thread: one for each connection. Errors: kPeerLost with what happened; nothing blocks for longer
// than kSilenceS without a byte.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "shim/channel/unique_fd.h"
#include "transport/base/result.h"

namespace mercury::perf {

inline constexpr int kTalkVersion = 1;
inline constexpr uint16_t kDefaultPort = 7480;
// Longer than a session takes to find that its peer is lost, which is what is to be said then.
inline constexpr int kSilenceS = 30;

Status send_all(int fd, std::span<const std::byte> data);
Status receive_all(int fd, std::span<std::byte> data);
Status send_json(int fd, const nlohmann::json& json);
// Whoever sends something else than one line of JSON is refused: kProtocol.
Result<nlohmann::json> receive_json(int fd);
// What a call on the connection has failed of. `number` is its errno; 0: the peer has ended.
Error lost(int number);
void limit_silence(int fd);

// Of the daemon, where the library asks for sockets.
std::string sockets_path();
// Whether a connection of Mercury's is one of two programs of one host: a pair of the kernel's,
// with which no daemon has to do.
bool is_within_host(int fd);
// A connection over Mercury, or the kernel's. kUnsupported: it was to be Mercury's, and is not.
Result<UniqueFd> connect_to(const std::string& host, uint16_t port, bool over_kernel);

}  // namespace mercury::perf
