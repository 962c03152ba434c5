// Who lives at which MAC address, for all engines of one device.
//
// Two ways to know: an interface that the kernel shares is asked by rtnetlink; an interface of our
// own is asked by ARP and neighbour discovery. Either way an entry is made once, when a path is
// opened, and read by the datapath with one relaxed load.
//
// Owner/thread: mac() and learn() from any engine, without a lock; the rest takes a mutex, cold.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/port/ethdev/config.h"
#include "transport/port/ethdev/ip.h"
#include "transport/port/ethdev/nd.h"
#include "transport/port/ethdev/rtnetlink.h"

namespace mercury::ethdev {

class Neighbours {
 public:
  // On-link hosts and gateways that one device talks to. Entries stay: a job of 256 workers and 256
  // servers fits several times, and a table that cannot grow cannot be made to.
  static constexpr uint32_t kMaxEntries = 4096;

  // Kernel mode if `kernel` is given. `local`, `v4` and `v6` are used in own mode only.
  Neighbours(const LocalIdentity& local, std::optional<LocalAddress> v4,
             std::optional<LocalAddress> v6, std::optional<RouteSocket> kernel);

  // The entry of the next hop to `destination`. Errors: kNotFound (no route), kLimit.
  Result<uint32_t> resolve(const IpAddress& destination);

  // MacAddress::packed(); 0 while unresolved.
  uint64_t mac(uint32_t entry) const noexcept {
    return entries_[entry].mac.load(std::memory_order_relaxed);
  }

  // Own mode: keeps what a frame told, if an entry asked for it.
  void learn(const Sighting& sighting, uint64_t now_ns) noexcept;

  // Asks for what is unresolved, and again for what grew old. At most one engine does it at a time.
  // `send` puts a whole frame on the wire (own mode).
  using Send = std::function<void(std::span<const std::byte> frame)>;
  void tick(uint64_t now_ns, const Send& send);

 private:
  struct Entry {
    IpAddress ip;  // constant once count_ covers it
    std::atomic<uint64_t> mac{0};
    std::atomic<uint64_t> seen_ns{0};  // when learn() last heard of it
    uint64_t asked_ns = 0;             // guarded by mutex_, as is the next
    uint32_t unanswered = 0;
  };

  Result<IpAddress> next_hop(const IpAddress& destination);
  void tick_kernel(Entry& entry, uint64_t now_ns);
  void tick_own(Entry& entry, uint64_t now_ns, const Send& send);

  const LocalIdentity local_;
  const std::optional<LocalAddress> v4_;
  const std::optional<LocalAddress> v6_;
  std::mutex mutex_;
  std::optional<RouteSocket> kernel_;
  std::unique_ptr<std::array<Entry, kMaxEntries>> storage_;
  Entry* const entries_;
  std::atomic<uint32_t> count_{0};
};

}  // namespace mercury::ethdev
