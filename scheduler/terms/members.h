// Who the members of a job are.
#pragma once

#include <cstdint>

namespace mercury {

enum class Role : uint8_t { kWorker = 0, kServer = 1 };
constexpr const char* name_of(Role role) { return role == Role::kWorker ? "worker" : "server"; }

inline constexpr uint32_t kMaxWorkers = 1024;  // width of a WorkerSet (worker_set.h)
inline constexpr uint32_t kMaxServers = 1024;

}  // namespace mercury
