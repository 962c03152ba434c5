// Datagrams that leave from several source ports, so that routers which choose a path by ports
// spread them.
//
// All that the session itself says goes from the port at which it hears, and so do frames in parts.
// The port changes when a pass has sent datagrams, and enough of them have left
// (flow/port_turns.h): what leaves together stays together, in one system call and on one path, and
// frames overtake each other by such runs.
//
// Owner/thread: one engine. Cold but for take_next_path, once in a pass.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "transport/engine/session_table.h"
#include "transport/port/port.h"
#include "transport/wire/header.h"

namespace mercury {

// It comes from where its sender hears nothing.
inline bool is_spread(const wire::Header& header) noexcept {
  return wire::is_datagram(header.type) && (header.flags & wire::kFlagSpread) != 0;
}

// The session has its path; if it has a spread, this begins anew. Where a port's path cannot be
// opened the others do.
template <Port P>
void open_spread(P& port, SessionEntry& entry) {
  entry.datagram_path = entry.path;
  entry.frame_flags &= static_cast<uint16_t>(~wire::kFlagSpread);
  if (!entry.spread) return;
  entry.spread->paths.assign(1, entry.path);
  for (uint16_t source = 0; source < port.info().source_ports.count; ++source) {
    const Result<PathId> path = open_path_from(port, entry.path, source);
    if (path) entry.spread->paths.push_back(*path);
  }
  entry.session->take_turns(static_cast<uint32_t>(entry.spread->paths.size()));
}

// The peer knows the ports: until then it would drop what comes from them.
template <Port P>
void begin_spread(P& port, SessionEntry& entry) {
  if (entry.spread) return;
  entry.spread = std::make_unique<SpreadPaths>();
  open_spread(port, entry);
}

template <Port P>
void close_spread(P& port, SessionEntry& entry) {
  if (!entry.spread) return;
  for (size_t i = 1; i < entry.spread->paths.size(); ++i) port.close_path(entry.spread->paths[i]);
  entry.spread->paths.clear();
}

// It has a spread, and may have sent.
[[gnu::cold, gnu::noinline]] inline void take_next_path(SessionEntry& entry,
                                                        uint64_t now_ns) noexcept {
  const std::optional<uint32_t> turn = entry.session->next_turn(now_ns);
  if (!turn) return;
  entry.datagram_path = entry.spread->paths[*turn];
  if (*turn == 0) {
    entry.frame_flags &= static_cast<uint16_t>(~wire::kFlagSpread);
  } else {
    entry.frame_flags |= wire::kFlagSpread;
  }
}

}  // namespace mercury
