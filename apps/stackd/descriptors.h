// How many descriptors mercury-stackd may open, and how many its configuration asks for.
#pragma once

#include <cstdint>
#include <string>

#include "apps/stackd/config.h"

namespace mercury {

struct DescriptorLimit {  // RLIMIT_NOFILE of this process
  uint64_t soft = 0;
  uint64_t hard = 0;
};
DescriptorLimit descriptor_limit();
// The soft limit becomes the hard one, which needs no privilege. Errors: kSystem.
Status raise_descriptor_limit();

// With attach.max_programs programs attached.
uint64_t descriptors_needed(const StackdConfig& config);
// What is wrong and how to mend it; empty if `limit` suffices.
std::string descriptors_lacking(const StackdConfig& config, uint64_t limit);

// What sockets may take beside that: programs of jobs must not lack what they have taken.
struct SocketRoom {
  uint64_t programs = 0;     // of sockets.max_programs
  uint64_t descriptors = 0;  // for connections (SocketPolicy::max_descriptors)
};
SocketRoom socket_room(const StackdConfig& config, uint64_t limit);

}  // namespace mercury
