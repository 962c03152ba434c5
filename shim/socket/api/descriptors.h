// What the kernel knows of descriptors.
#pragma once

#include <cstdint>
#include <optional>

namespace mercury::sockets {

// SO_COOKIE: of a socket, in all processes that have it, by whatever number; never used twice.
// Nothing: no socket.
std::optional<uint64_t> cookie_of(int fd);
// An int; nothing: no socket, or it has no such option.
std::optional<int> option_of(int fd, int level, int name);

// Of TCP, and it neither listens, nor connects, nor is connected.
bool is_closed_tcp(int fd);

// Calls use(context, fd) for each descriptor of this process. False: /proc does not say.
bool for_each_descriptor(void (*use)(void* context, int fd), void* context);

}  // namespace mercury::sockets
