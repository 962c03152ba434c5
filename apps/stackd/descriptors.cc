#include "apps/stackd/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace mercury {
namespace {

// Sockets, io_uring or the DPDK device, hugepages, the log, mercuryctl, programs being refused.
constexpr uint64_t kOwn = 128;
constexpr uint64_t kOwnPerEngine = 16;
constexpr uint64_t kPerSourcePort = 2;  // a socket for each address
// Its connection, its process, the memory that it is just sharing, and what it does not read of
// that.
constexpr uint64_t kPerProgram = 7;
constexpr uint64_t kPerProgramAndEngine = 4;  // ChannelMemory: two memfds and two doorbells
// Programs that ask for sockets have a quarter of what is left, if that is less than their limit:
// connections are what they ask for.
constexpr uint64_t kPartOfPrograms = 4;

}  // namespace

DescriptorLimit descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  return {limit.rlim_cur, limit.rlim_max};
}

Status raise_descriptor_limit() {
  const DescriptorLimit now = descriptor_limit();
  if (now.soft >= now.hard) return {};
  const rlimit wanted{now.hard, now.hard};
  if (setrlimit(RLIMIT_NOFILE, &wanted) == 0) return {};
  return Error::system(errno,
                       "cannot raise the limit of open descriptors to " + std::to_string(now.hard));
}

uint64_t descriptors_needed(const StackdConfig& config) {
  return kOwn + (kOwnPerEngine + kPerSourcePort * (config.source_ports - 1)) * config.engines +
         config.max_programs * (kPerProgram + kPerProgramAndEngine * config.engines);
}

std::string descriptors_lacking(const StackdConfig& config, uint64_t limit) {
  const uint64_t needed = descriptors_needed(config);
  if (limit >= needed) return "";
  return "attach.max_programs = " + std::to_string(config.max_programs) + " needs up to " +
         std::to_string(needed) + " descriptors, and " + std::to_string(limit) +
         " may be open: set LimitNOFILE=" + std::to_string(needed) +
         " in the unit (ulimit -n), or lower attach.max_programs";
}

SocketRoom socket_room(const StackdConfig& config, uint64_t limit) {
  const uint64_t others = descriptors_needed(config);
  const uint64_t left = limit > others ? limit - others : 0;
  const uint64_t programs = std::min(config.sockets_max_programs, left / kPartOfPrograms);
  return {programs, left - programs};
}

}  // namespace mercury
