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
  const auto slot_bits =
      static_cast<uint32_t>(std::bit_width(std::max(capacity, 1U)));  // of slot + 1
  slot_mask_ = (1U << slot_bits) - 1;
  entries_.resize(capacity);
  numbers_.resize(slot_mask_ + size_t{1});
  std::array<unsigned char, randombytes_SEEDBYTES> key{};
  std::memcpy(key.data(), &seed, sizeof seed);
  randombytes_buf_deterministic(numbers_.data() + 1, capacity * sizeof numbers_[0], key.data());
  for (uint32_t i = 1; i <= capacity; ++i) numbers_[i] = (numbers_[i] << slot_bits) | i;
  numbers_[0] = 1;
  touched_.reserve(capacity);
  left_touched_.resize(capacity);
  tokens_.reserve(capacity);
  free_.reserve(capacity);
  for (uint32_t i = capacity; i > 0; --i) free_.push_back(i - 1);
}

bool SessionTable::allocate(SessionSlot& slot, Token token) {
  if (free_.empty()) return false;
  slot = SessionSlot(free_.back());
  free_.pop_back();
  entries_[slot.value] = std::make_unique<SessionEntry>();
  entries_[slot.value]->token = token;
  entries_[slot.value]->touched = left_touched_[slot.value];
  left_touched_[slot.value] = false;
  tokens_.insert_or_assign(token, slot);
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
  if (const auto it = tokens_.find(entries_[slot.value]->token);
      it != tokens_.end() && it->second == slot) {
    tokens_.erase(it);
  }
  left_touched_[slot.value] = entries_[slot.value]->touched;
  entries_[slot.value].reset();
  deadlines_.set(slot.value, kNever);
  numbers_[slot.value + 1] += slot_mask_ + 1;  // the next generation
  free_.push_back(slot.value);
  --size_;
}

SessionEntry* SessionTable::find_token(Token token, SessionSlot& slot) {
  const auto it = tokens_.find(token);
  if (it == tokens_.end() || entries_[it->second.value]->closed) return nullptr;
  slot = it->second;
  return entries_[slot.value].get();
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

// Here, too, the first go that have shown something: what is left is as old as a handshake may be.
void SessionTable::add_unshown(SessionSlot slot) {
  (void)oldest_unshown();
  unshown_.push_back(number_of(slot));
}

SessionEntry* SessionTable::oldest_unshown() {
  for (; !unshown_.empty(); unshown_.pop_front()) {
    SessionEntry* const entry = find(unshown_.front());
    if (entry == nullptr || entry->session->confirmed()) continue;
    if (entry->session->state() < Session::State::kClosing) return entry;
  }
  return nullptr;
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

void SessionTable::forget_touched(SessionSlot slot) noexcept {
  if (SessionEntry* const entry = entries_[slot.value].get()) [[likely]] {
    entry->touched = false;
  } else {
    left_touched_[slot.value] = false;
  }
}

void SessionTable::clear_touched() noexcept {
  for (const SessionSlot slot : touched_) forget_touched(slot);
  touched_.clear();
}

void SessionTable::keep_touched(size_t visited) noexcept {
  for (size_t i = 0; i < visited; ++i) forget_touched(touched_[i]);
  touched_.erase(touched_.begin(), touched_.begin() + static_cast<std::ptrdiff_t>(visited));
}

}  // namespace mercury
