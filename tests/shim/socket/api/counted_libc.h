// The C library's functions for this program's side of sockets, those counted that wait.
#pragma once

#include <cstdint>
#include <functional>

namespace mercury {

// Calls of the kernel that may wait, of all threads so far.
uint64_t kernel_waits();

// Once: called on the thread that takes an error from the kernel by recv or getsockopt, or hears of
// the end by recv, before the library does.
void when_an_error_is_taken(std::function<void()> then);

// Once: called on the thread that registers something in an epoll next, once the kernel has it.
void when_registered(std::function<void()> then);

// Once: called there before the kernel has it.
void before_registered(std::function<void()> then);

}  // namespace mercury
