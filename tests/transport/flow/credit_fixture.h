// Senders towards one receiver, whose link carries what they are granted: what its grants become.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "transport/flow/credit.h"
#include "transport/wire/header.h"

namespace mercury {

inline constexpr uint64_t kRate = 1'250'000'000;
inline constexpr uint64_t kQueue = 128 * 1024;
inline constexpr uint64_t kPathRtt = 40'000;
inline constexpr uint64_t kDelayTarget = 10'000'000;
inline constexpr uint64_t kEpoch = 50'000;
inline constexpr uint32_t kFrameBytes = 9'000;

class CreditTest : public ::testing::Test {
 protected:
  void job(uint16_t number, uint32_t senders, uint32_t weight = 1) {
    credit.add_job(JobSlot(number), {senders, receivers == 0 ? senders : receivers, weight});
    for (uint32_t i = 0; i < senders; ++i) {
      credit.add_session(SessionSlot(next_session), JobSlot(number));
      jobs[next_session++] = number;
    }
    divide();
  }
  void divide() {
    if (marks) ++signs;
    credit.divide(now_ns, [this](SessionSlot slot, uint16_t now_units, uint16_t idle_units) {
      told[slot.value] = {now_units, idle_units};
      const auto far = rtts.find(slot.value);
      const uint64_t least_ns = far == rtts.end() ? kPathRtt : far->second;
      const auto queue = queues.find(slot.value);
      return CreditAllocator::PathState{least_ns, signs, misses,
                                        queue == queues.end() ? least_ns : queue->second};
    });
  }
  // These senders send chunks of these priorities for a while, each as much of what the link
  // carries as it has of what is granted, or no more than `most` of it.
  void epoch(const std::map<uint32_t, uint16_t>& senders, int count = 1,
             const std::map<uint32_t, double>& most = {}, double load = 1) {
    for (int i = 0; i < count; ++i) {
      uint64_t all = 0;
      for (const auto& [session, priority] : senders) all += std::min(grant(session), kQueue * 64);
      for (const auto& [session, priority] : senders) {
        double part = load * static_cast<double>(std::min(grant(session), kQueue * 64)) /
                      static_cast<double>(all);
        if (const auto found = most.find(session); found != most.end()) {
          part = std::min(part, found->second);
        }
        auto bytes = static_cast<uint32_t>(part * kRate / 1e9 * kEpoch);
        for (; bytes > frame_bytes; bytes -= frame_bytes) {
          credit.on_datagram(SessionSlot(session), priority, frame_bytes, now_ns,
                             {session == behind, links_free});
        }
        credit.on_datagram(SessionSlot(session), priority, bytes, now_ns,
                           {session == behind, links_free});
      }
      now_ns += kEpoch;
      const uint64_t budget = credit.budget_bytes();
      divide();
      EXPECT_LE(granted(), std::max(budget, credit.budget_bytes()));
    }
  }
  void send_for_long(uint32_t senders) {  // the only job, each as urgent as the others
    job(0, senders);
    for (uint32_t i = 0; i < senders; ++i) active[i] = 5;
    epoch(active, 1000);
  }
  uint64_t grant(uint32_t session) const { return credit.grant_bytes(SessionSlot(session)); }
  uint64_t elsewhere(uint32_t session) const {
    return credit.elsewhere_bytes(SessionSlot(session));
  }
  uint64_t granted() const {  // to those that send, but for what lies elsewhere
    uint64_t sum = 0;
    for (const auto& [session, units] : told) {
      if (!active.empty() && active.count(session) == 0) continue;
      const uint64_t bytes = units.first * wire::kGrantUnitBytes;
      sum += bytes - std::min(bytes, elsewhere(session));
    }
    return active.empty() ? 0 : sum;
  }

  CreditAllocator credit{kRate, kQueue, kDelayTarget};
  std::map<uint32_t, uint16_t> jobs;
  std::map<uint32_t, uint64_t> rtts;    // of sessions for which they are not kPathRtt
  std::map<uint32_t, uint64_t> queues;  // round trips of those that have more now, or none (0)
  std::map<uint32_t, std::pair<uint16_t, uint16_t>> told;
  std::map<uint32_t, uint16_t> active;
  uint32_t next_session = 0;
  uint32_t frame_bytes = kFrameBytes;
  uint32_t receivers = 0;  // of each sender; 0: as many as there are senders
  uint64_t now_ns = 1'000'000;
  bool marks = true;  // the path marks, so that the queue does not grow
  bool misses = false;
  bool links_free = false;
  uint32_t behind = 1'000;  // the session whose datagrams the others' wait for
  uint32_t signs = 0;
};

inline std::map<uint32_t, uint16_t> senders(uint32_t first, uint32_t count, uint16_t priority) {
  std::map<uint32_t, uint16_t> all;
  for (uint32_t i = 0; i < count; ++i) all[first + i] = priority;
  return all;
}

}  // namespace mercury
