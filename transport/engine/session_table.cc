#include "transport/engine/session_table.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace mercury {
namespace {
constexpr uint32_t kMaxSessions = (1U << 16) - 1;
}  // namespace

SessionTable::SessionTable(uint32_t capacity, uint64_t seed)
    : hellos_(0, HelloHash(seed)), peers_(0, HelloHash(seed)) {
  capacity = std::min(capacity, kMaxSessions);
  slot_bits_ = static_cast<uint32_t>(std::bit_width(capacity));  // of slot + 1
  entries_.resize(capacity);
  generations_.resize(capacity);
  std::array<unsigned char, randombytes_SEEDBYTES> key{};
  std::memcpy(key.data(), &seed, sizeof seed);
  randombytes_buf_deterministic(generations_.data(), capacity * sizeof generations_[0], key.data());
  touched_.reserve(capacity);
  free_.reserve(capacity);
  for (uint32_t i = capacity; i > 0; --i) free_.push_back(i - 1);
}

bool SessionTable::allocate(SessionSlot& slot) {
  if (free_.empty()) return false;
  slot = SessionSlot(free_.back());
  free_.pop_back();
  entries_[slot.value] = std::make_unique<SessionEntry>();
  high_water_ = std::max(high_water_, slot.value + 1);
  deadlines_.grow(high_water_);
  ++size_;
  return true;
}

void SessionTable::forget_addresses(SessionSlot slot) {
  const SessionEntry& entry = *entries_[slot.value];
  if (const auto it = hellos_.find({entry.remote, entry.peer_hello});
      it != hellos_.end() && it->second == slot) {
    hellos_.erase(it);
  }
  if (const auto it = peers_.find({entry.remote, entry.peer_number});
      it != peers_.end() && it->second == slot) {
    peers_.erase(it);
  }
}

void SessionTable::release(SessionSlot slot) {
  forget_addresses(slot);
  entries_[slot.value].reset();
  deadlines_.set(slot.value, kNever);
  ++generations_[slot.value];
  free_.push_back(slot.value);
  --size_;
}

uint32_t SessionTable::number_of(SessionSlot slot) const {
  return (generations_[slot.value] << slot_bits_) | (slot.value + 1);
}

SessionSlot SessionTable::slot_of(uint32_t number) const noexcept {
  return SessionSlot((number & ((1U << slot_bits_) - 1)) - 1);
}

SessionEntry* SessionTable::find(uint32_t number) noexcept {
  const SessionSlot slot = slot_of(number);
  if (!in_use(slot) || number_of(slot) != number) return nullptr;
  return entries_[slot.value].get();
}

SessionEntry* SessionTable::find_token(Token token, SessionSlot& slot) {
  for (uint32_t i = 0; i < high_water_; ++i) {
    if (entries_[i] && entries_[i]->token == token && !entries_[i]->closed) {
      slot = SessionSlot(i);
      return entries_[i].get();
    }
  }
  return nullptr;
}

SessionEntry* SessionTable::find_hello(const Endpoint& remote, uint32_t peer_hello) {
  const auto it = hellos_.find({remote, peer_hello});
  if (it == hellos_.end() || entries_[it->second.value]->closed) return nullptr;
  return entries_[it->second.value].get();
}

void SessionTable::set_hello(SessionSlot slot, uint32_t peer_hello) {
  SessionEntry& entry = *entries_[slot.value];
  entry.peer_hello = peer_hello;
  hellos_.insert_or_assign({entry.remote, peer_hello}, slot);  // one that has closed gives way
}

SessionEntry* SessionTable::find_peer(const Endpoint& remote, uint32_t peer_number) {
  const auto it = peers_.find({remote, peer_number});
  if (it == peers_.end() || entries_[it->second.value]->closed) return nullptr;
  return entries_[it->second.value].get();
}

void SessionTable::set_reset_token(SessionSlot slot, uint32_t peer_number, uint64_t token) {
  SessionEntry& entry = *entries_[slot.value];
  entry.peer_number = peer_number;
  entry.reset_token = token;
  peers_.insert_or_assign({entry.remote, peer_number}, slot);
}

void SessionTable::move(SessionSlot slot, const Endpoint& remote) {
  forget_addresses(slot);
  SessionEntry& entry = *entries_[slot.value];
  entry.remote = remote;
  if (entry.peer_hello != 0) hellos_.insert_or_assign({remote, entry.peer_hello}, slot);
  if (entry.peer_number != 0) peers_.insert_or_assign({remote, entry.peer_number}, slot);
}

void SessionTable::touch(SessionSlot slot) noexcept {
  SessionEntry& entry = *entries_[slot.value];
  if (entry.touched) return;
  entry.touched = true;
  touched_.push_back(slot);  // reserved for all slots
}

void SessionTable::clear_touched() noexcept {
  for (SessionSlot slot : touched_) {
    if (entries_[slot.value]) entries_[slot.value]->touched = false;
  }
  touched_.clear();
}

void SessionTable::keep_touched(size_t visited) noexcept {
  for (size_t i = 0; i < visited; ++i) {
    if (entries_[touched_[i].value]) entries_[touched_[i].value]->touched = false;
  }
  touched_.erase(touched_.begin(), touched_.begin() + static_cast<std::ptrdiff_t>(visited));
}

}  // namespace mercury
