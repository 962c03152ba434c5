// Deficit round robin between jobs, on bytes: whose turn it is. Each turn grants a job `weight`
// quanta; it sends while its account is above zero and carries what it overdrew into the next turn,
// so chunk sizes do not matter. Paper: Shreedhar & Varghese, SIGCOMM 1995.
//
// A job that can send nothing leaves when its turn comes, not before: one that is blocked and
// unblocked meanwhile keeps its place, and what it sent last is charged to the credit it still has.
// It leaves without its credit but with its debt.
//
// Owner/thread: one engine. Constant time, amortised: each step of current() either answers, or
// drops a job that joined once, or is paid for by a quantum of bytes that was charged.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/priority_trie.h"

namespace mercury {

class DeficitRound {
 public:
  // A smaller quantum would pass over a job many times for one chunk.
  static constexpr uint32_t kMinQuantumBytes = 1024;
  // What a job may owe, in its own turns, whatever it is charged.
  static constexpr int64_t kMaxDebtTurns = 64;

  DeficitRound(uint32_t max_jobs, uint32_t quantum_bytes)
      : quantum_bytes_(std::max(quantum_bytes, kMinQuantumBytes)),
        accounts_(max_jobs),
        ring_(max_jobs) {}

  // A new job under this index; a place that an earlier one left in the round becomes its own.
  void open(uint32_t index, uint32_t weight) {
    Account& account = accounts_[index];
    account.allowance_bytes = quantum_bytes_ * weight;
    account.least_bytes = -kMaxDebtTurns * account.allowance_bytes;
    account.deficit_bytes = 0;
    account.in_turn = false;
  }

  // The job can send something: to the end of the round, if it is not in it.
  void join(uint32_t index) noexcept {
    if (accounts_[index].queued) return;
    accounts_[index].queued = true;
    push(index);
  }

  void charge(uint32_t index, uint32_t bytes) noexcept {
    Account& account = accounts_[index];
    account.deficit_bytes = std::max(account.deficit_bytes - int64_t{bytes}, account.least_bytes);
  }

  // Of the job that current() named last: whether it would again, as long as it can send.
  bool keeps_turn(uint32_t index) const noexcept { return accounts_[index].deficit_bytes > 0; }

  // The job whose turn it is; kNil if none can send. `can_send(index)` is asked of each job that
  // comes up.
  template <class CanSend>
  uint32_t current(CanSend&& can_send) noexcept {
    while (size_ != 0) {
      const uint32_t index = ring_[head_];
      Account& account = accounts_[index];
      const bool stays = can_send(index);
      if (stays && !account.in_turn) {
        account.in_turn = true;
        account.deficit_bytes += account.allowance_bytes;
      }
      if (stays && account.deficit_bytes > 0) return index;
      pop();
      account.in_turn = false;
      account.queued = stays;
      if (stays)
        push(index);
      else
        account.deficit_bytes = std::min<int64_t>(account.deficit_bytes, 0);
    }
    return kNil;
  }

 private:
  struct Account {
    int64_t allowance_bytes = 0;
    int64_t least_bytes = 0;  // that deficit_bytes may be
    int64_t deficit_bytes = 0;
    bool queued = false;
    bool in_turn = false;
  };

  // Each job stands in the ring at most once, so it never overflows.
  void push(uint32_t index) noexcept {
    ring_[wrapped(head_ + size_)] = index;
    ++size_;
  }
  void pop() noexcept {
    head_ = wrapped(head_ + 1);
    --size_;
  }
  uint32_t wrapped(uint32_t position) const noexcept {
    const auto capacity = static_cast<uint32_t>(ring_.size());
    return position < capacity ? position : position - capacity;
  }

  int64_t quantum_bytes_;
  std::vector<Account> accounts_;
  std::vector<uint32_t> ring_;
  uint32_t head_ = 0;
  uint32_t size_ = 0;
};

}  // namespace mercury
