#include "transport/port/ethdev/neighbours.h"

namespace mercury::ethdev {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kSecond = 1000 * kMillisecond;
// An unanswered question is repeated, at first quickly (start of a job), then once a second (RFC
// 4861's RetransTimer), for as long as a path wants the neighbour.
constexpr uint64_t kFirstRetry = 50 * kMillisecond;
constexpr uint32_t kQuickRetries = 10;
// How often a known neighbour is asked again. A host that moved is then found within this time.
constexpr uint64_t kRefresh = 5 * kSecond;
// Own mode: a neighbour that stays silent this long is gone (three unicast probes unanswered).
constexpr uint32_t kProbesUntilGone = 3;

uint64_t retry_after(uint32_t unanswered) {
  return unanswered < kQuickRetries ? kFirstRetry : kSecond;
}

}  // namespace

Neighbours::Neighbours(const LocalIdentity& local, std::optional<LocalAddress> v4,
                       std::optional<LocalAddress> v6, std::optional<RouteSocket> kernel)
    : local_(local),
      v4_(v4),
      v6_(v6),
      kernel_(std::move(kernel)),
      storage_(std::make_unique<std::array<Entry, kMaxEntries>>()),
      entries_(storage_->data()) {}

Result<IpAddress> Neighbours::next_hop(const IpAddress& destination) {
  if (kernel_) return kernel_->next_hop(destination);
  const auto& address = destination.is_v4() ? v4_ : v6_;
  if (!address) {
    return Error(Errc::kNotFound, "no route to " + destination.to_string() +
                                      ": this device has no address of its family");
  }
  if (in_prefix(destination, address->ip, address->prefix_bits)) return destination;
  if (address->gateway) return *address->gateway;
  return Error(Errc::kNotFound, "no route to " + destination.to_string() + ": not in " +
                                    address->ip.to_string() + "/" +
                                    std::to_string(address->prefix_bits) + ", and no gateway set");
}

Result<uint32_t> Neighbours::resolve(const IpAddress& destination) {
  const std::scoped_lock lock(mutex_);
  const auto hop = next_hop(destination);
  if (!hop) return hop.error();
  const uint32_t count = count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (entries_[i].ip == *hop) return i;
  }
  if (count == kMaxEntries) {
    return Error(Errc::kLimit, "more than " + std::to_string(kMaxEntries) + " neighbours");
  }
  Entry& entry = entries_[count];
  entry.ip = *hop;
  if (kernel_) tick_kernel(entry, 0);
  count_.store(count + 1, std::memory_order_release);
  return count;
}

void Neighbours::learn(const Sighting& sighting, uint64_t now_ns) noexcept {
  if (kernel_) return;
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (entries_[i].ip != sighting.ip) continue;
    entries_[i].mac.store(sighting.mac.packed(), std::memory_order_relaxed);
    entries_[i].seen_ns.store(now_ns, std::memory_order_relaxed);
    return;
  }
}

void Neighbours::tick_kernel(Entry& entry, uint64_t now_ns) {
  const bool known = entry.mac.load(std::memory_order_relaxed) != 0;
  const uint64_t wait = known ? kRefresh : retry_after(entry.unanswered);
  if (entry.asked_ns != 0 && now_ns - entry.asked_ns < wait) return;
  entry.asked_ns = now_ns;
  // The kernel does not see our frames, so that it would forget the neighbour: keep it in use.
  kernel_->touch(entry.ip);
  const auto mac = kernel_->neighbour(entry.ip);
  entry.mac.store(mac ? mac->packed() : 0, std::memory_order_relaxed);
  entry.unanswered = mac ? 0 : entry.unanswered + 1;
}

void Neighbours::tick_own(Entry& entry, uint64_t now_ns, const Send& send) {
  const uint64_t seen_ns = entry.seen_ns.load(std::memory_order_relaxed);
  const uint64_t packed = entry.mac.load(std::memory_order_relaxed);
  if (packed != 0 && seen_ns >= entry.asked_ns) {  // the last question was answered
    entry.unanswered = 0;
    if (now_ns - seen_ns < kRefresh) return;
  } else if (entry.asked_ns != 0 && now_ns - entry.asked_ns < retry_after(entry.unanswered)) {
    return;
  }
  std::optional<MacAddress> probe;
  if (packed != 0) probe = MacAddress::unpack(packed);
  if (probe && entry.unanswered >= kProbesUntilGone) {
    entry.mac.store(0, std::memory_order_relaxed);
    probe.reset();
  }
  ++entry.unanswered;
  entry.asked_ns = now_ns;
  std::byte frame[kSolicitationBytes];
  const uint32_t bytes = build_solicitation(entry.ip, local_, probe, frame);
  if (bytes != 0) send(std::span(frame, bytes));
}

void Neighbours::tick(uint64_t now_ns, const Send& send) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // another engine is at it
  const uint32_t count = count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (kernel_) {
      tick_kernel(entries_[i], now_ns);
    } else {
      tick_own(entries_[i], now_ns, send);
    }
  }
}

}  // namespace mercury::ethdev
