// Who lives at which MAC address, for all engines of one device.
//
// Two ways to know: on an interface that the kernel shares it is asked by rtnetlink, by a thread of
// the table's, as it may have that wait for whoever configures the network; on an interface of our
// own engines ask by ARP and neighbour discovery. Either way an entry is made when a path is
// opened, lives as long as a path holds it (and a while longer, in case it is wanted again), and is
// read by the datapath with one relaxed load.
//
// On an interface of our own anybody on the link can claim any address. A claim counts while a
// question is open. One that contradicts what is known is no more than a reason to ask the known
// neighbour (RFC 4861 section 7.3): only when it is silent is everybody asked.
//
// Owner/thread: mac() of an entry that the caller holds from any engine, without a lock; the rest
// takes a mutex, cold, which the thread does not hold while it asks.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/port/ethdev/config.h"
#include "transport/port/ethdev/ip.h"
#include "transport/port/ethdev/kernel_neighbours.h"
#include "transport/port/ethdev/nd.h"

namespace mercury::ethdev {

class Neighbours {
 public:
  // On-link hosts and gateways that paths lead to at a time: a job of 1,024 workers and 1,024
  // servers fits twice.
  static constexpr uint32_t kMaxEntries = 4096;

  // Kernel mode if `kernel` is given. `local`, `v4` and `v6` are used in own mode only.
  Neighbours(const LocalIdentity& local, std::optional<LocalAddress> v4,
             std::optional<LocalAddress> v6, std::unique_ptr<KernelNeighbours> kernel);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;
  // Kernel mode: nothing is known before. Once. Errors: kSystem.
  Status start();

  // The entry of the next hop to `destination`, for the caller to hold until release(). Errors:
  // kNotFound (no route), kLimit.
  Result<uint32_t> resolve(const IpAddress& destination);
  // Whether that would bring in a host which may not be there: one of the link's that nobody has
  // asked for.
  bool would_add_host(const IpAddress& destination);
  void hold(uint32_t entry);  // once more, which is held
  void release(uint32_t entry);

  // MacAddress::packed(); 0 while unresolved.
  uint64_t mac(uint32_t entry) const noexcept {
    return entries_[entry].mac.load(std::memory_order_relaxed);
  }

  // Own mode: keeps what a frame told, if it answers what an entry asks.
  void learn(const Sighting& sighting, uint64_t now_ns) noexcept;

  // Own mode: asks for what is unresolved, and again for what grew old: for kAskedPerTick at most,
  // as its engine receives nothing meanwhile, and for the others at the next ticks. At most one
  // engine does it at a time. `send` puts a whole frame on the wire.
  static constexpr uint32_t kAskedPerTick = 8;
  using Send = std::function<void(std::span<const std::byte> frame)>;
  void tick(uint64_t now_ns, const Send& send);

  uint32_t size() const;         // entries, held or not
  uint64_t ways_sought() const;  // how often resolve() asked for the way, the kernel if that knows

 private:
  struct Entry {
    std::atomic<uint64_t> mac{0};
    // Guarded by mutex_, all of them.
    IpAddress ip;
    uint32_t holders = 0;
    uint64_t idle_ns = 0;   // since when nobody holds it, as tick() saw it; 0: not seen yet
    uint64_t asked_ns = 0;  // 0: never
    uint64_t seen_ns = 0;   // when it was last answered
    uint32_t unanswered = 0;
    bool doubted = false;  // somebody else claims the address
  };

  Result<IpAddress> next_hop(const IpAddress& destination);
  std::optional<uint32_t> free_entry();
  void forget(uint32_t entry);
  // Looks at some entries, by turns: for each that is held `each(Entry&)` says whether it asked,
  // and `most` may.
  template <class F>
  void look(uint64_t now_ns, uint32_t most, F each);
  bool tick_own(Entry& entry, uint64_t now_ns, const Send& send);
  // Kernel mode: of the thread.
  void keep();
  static bool is_due(const Entry& entry, uint64_t now_ns);
  void note(const IpAddress& ip, const std::optional<MacAddress>& mac);

  const LocalIdentity local_;
  const std::optional<LocalAddress> v4_;
  const std::optional<LocalAddress> v6_;
  mutable std::mutex mutex_;
  const std::unique_ptr<KernelNeighbours> kernel_;
  std::unique_ptr<std::array<Entry, kMaxEntries>> storage_;
  Entry* const entries_;
  std::map<IpAddress, uint32_t> by_ip_;
  IpAddress next_;  // whose turn it is at the next tick, or who comes behind it
  std::vector<uint32_t> free_;
  uint64_t ways_sought_ = 0;
  std::condition_variable wake_;  // an entry is new, or the thread is to end
  bool is_new_ = false;
  bool ends_ = false;
  std::thread keeper_;  // of all that is above
};

}  // namespace mercury::ethdev
