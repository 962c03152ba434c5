// The sessions of one engine: found by number in constant time, timed without a timer per packet.
//
// A session's number on the wire holds its slot and a generation, so a frame for a session that is
// gone never reaches its successor. As few bits hold the slot as the capacity needs; the rest are
// the generation's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "transport/base/deadlines.h"
#include "transport/base/endpoint.h"
#include "transport/base/types.h"
#include "transport/engine/hello_gate.h"
#include "transport/engine/path_check.h"
#include "transport/flow/session.h"
#include "transport/port/port.h"

namespace mercury {

// No header's tag: they have 32 bits.
inline constexpr uint64_t kNoPlainTag = uint64_t{1} << 32;

// The paths that a session's datagrams take in turn, from source ports of their own.
struct SpreadPaths {
  std::vector<PathId> paths;  // the session's own is the first, and not to be closed
};

struct SessionEntry {
  std::unique_ptr<Session> session;
  PathId path;
  PathId datagram_path;  // the same, or in its turn one of spread->paths
  Endpoint remote;
  Token token;  // the control plane's name for it
  JobSlot job;
  FrameTag tag;  // of the session, once the peer is known to know it
  // tag.header where datagrams have no seals: one comparison finds both forgeries and seals.
  uint64_t plain_tag = kNoPlainTag;
  Seals* seals = nullptr;                              // of the session; null: its frames have none
  uint32_t head_bytes = sizeof(wire::DatagramHeader);  // of each datagram, with its seal
  uint16_t frame_flags = 0;                            // of each datagram
  uint32_t link_overhead_bytes = 0;                    // of the path's address family (pacer.h)
  uint32_t pauses = 0;                                 // the pacer's, when its last datagram left
  uint32_t peer_hello = 0;   // passive side: the number in the HELLO that opened it
  uint32_t peer_number = 0;  // once it has told its reset token
  uint64_t reset_token = 0;
  bool on_host = false;  // the path ends on this host: its frames take nothing of the link
  bool has_path = false;
  bool touched = false;                 // in touched()
  bool seals_or_cuts = false;           // datagrams do not just go: they are sealed, or may be cut
  uint32_t whole_bytes = ~uint32_t{0};  // frames above go in parts
  std::unique_ptr<PathCheck> check;     // null: its frames have always come from `remote`
  std::unique_ptr<SpreadPaths> spread;  // null: its datagrams leave from one port
  PortRange peer_ports;                 // from which the peer's come, too
  uint32_t refused_bytes = 0;  // the frame that did not fit last; larger than a path that shrank
  bool blocked = true;         // the service was told that its window is full
  bool has_streams = false;
  int8_t line_priority = -1;  // with which its streams wait for their turn; -1: they do not
  bool closed = false;        // to be freed at the end of the pass

  // Whether the peer, which is not there, has said that it sends from there.
  bool spreads_from(const Endpoint& source) const noexcept {
    return peer_ports.contains(source.port) && source.ip == remote.ip;
  }
};

class SessionTable {
 public:
  // From `seed` follows at which generation each slot begins: whoever knows some sessions' numbers
  // knows nothing of the others'.
  explicit SessionTable(uint32_t capacity, uint64_t seed = 1);

  // A free slot, for the session that the control plane calls so; or false when all are taken.
  bool allocate(SessionSlot& slot, Token token);
  void release(SessionSlot slot);
  uint32_t number_of(SessionSlot slot) const { return numbers_[slot.value + 1]; }

  // The entry that `number` names, or null. Constant time, any input.
  SessionEntry* find(uint32_t number) noexcept {
    const uint32_t place = number & slot_mask_;
    return numbers_[place] == number ? entries_[place - 1].get() : nullptr;
  }
  SessionSlot slot_of(uint32_t number) const noexcept {
    return SessionSlot((number & slot_mask_) - 1);
  }
  SessionEntry& at(SessionSlot slot) noexcept { return *entries_[slot.value]; }
  bool in_use(SessionSlot slot) const noexcept {
    return slot.value < entries_.size() && entries_[slot.value] != nullptr;
  }
  SessionEntry* find_token(Token token, SessionSlot& slot);  // constant time, too
  // Passive side: the session that this HELLO opened, or null.
  SessionEntry* find_hello(const Endpoint& remote, uint32_t peer_hello);
  void set_hello(SessionSlot slot, uint32_t peer_hello);  // its `remote` is known
  // Passive side: it has shown nothing yet but its HELLO.
  void add_unshown(SessionSlot slot);
  SessionEntry* oldest_unshown();  // of those that still have not, and do not end; or null
  // The peer is elsewhere from now on, and found there.
  void move(SessionSlot slot, const Endpoint& remote);
  // The session that the peer at `remote` calls so, if it has told its token; or null.
  SessionEntry* find_peer(const Endpoint& remote, uint32_t peer_number);
  void set_reset_token(SessionSlot slot, uint32_t peer_number, uint64_t token);
  uint32_t high_water() const noexcept { return high_water_; }  // slots below it may be in use
  uint32_t size() const noexcept { return size_; }

  // A session whose deadline or pending frames may have changed; visited at the end of the pass.
  void touch(SessionSlot slot) noexcept { touch(slot, at(slot)); }
  [[gnu::always_inline]] void touch(SessionSlot slot, SessionEntry& entry) noexcept {
    if (entry.touched) return;
    entry.touched = true;
    touched_.push_back(slot);  // reserved for all slots
  }
  const std::vector<SessionSlot>& touched() const noexcept { return touched_; }
  void clear_touched() noexcept;
  // All but the first `visited` stay.
  void keep_touched(size_t visited) noexcept;

  void set_deadline(SessionSlot slot, uint64_t deadline_ns) noexcept {
    deadlines_.set(slot.value, deadline_ns);
  }
  // Calls `expired(slot)` for every session whose deadline has come.
  template <class F>
  void run_timers(uint64_t now_ns, F expired) noexcept {
    // The visit at the end of the pass sets the next one.
    deadlines_.take_due(
        now_ns, [&expired](size_t slot) { expired(SessionSlot(static_cast<uint32_t>(slot))); });
  }
  uint64_t next_deadline_ns() const noexcept { return deadlines_.earliest_ns(); }

 private:
  void forget_addresses(SessionSlot slot);
  void forget_touched(SessionSlot slot) noexcept;

  std::vector<std::unique_ptr<SessionEntry>> entries_;
  // Of the session in each slot, or of the next one there: by slot and one, as numbers hold it.
  // What names no slot has a number that would be looked for elsewhere.
  std::vector<uint32_t> numbers_;
  std::unordered_map<Token, SessionSlot> tokens_;
  std::unordered_map<HelloKey, SessionSlot, HelloHash> hellos_;
  std::unordered_map<HelloKey, SessionSlot, HelloHash> peers_;  // that have told a token
  std::deque<uint32_t> unshown_;  // numbers, in their order; also of some that have ended since
  Deadlines deadlines_{1};        // by slot, of those that were in use at a time
  std::vector<SessionSlot> touched_;
  std::vector<bool> left_touched_;  // slots in touched_ whose session has gone in this pass
  std::vector<uint32_t> free_;
  uint32_t slot_mask_ = 0;  // the bits of a number that hold its slot, and one
  uint32_t high_water_ = 0;
  uint32_t size_ = 0;
};

}  // namespace mercury
