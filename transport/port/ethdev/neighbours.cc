#include "transport/port/ethdev/neighbours.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "transport/base/signal_block.h"

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
// Entries that a tick looks at: each is looked at every 80 ms, however many there are.
constexpr size_t kLooksPerTick = 512;
// Between looks of the thread that asks the kernel, as between an engine's ticks.
constexpr auto kLookPause = std::chrono::milliseconds(10);
// What nobody holds is neither asked for nor believed, and kept so long in case it is wanted again.
constexpr uint64_t kKeep = 60 * kSecond;

uint64_t retry_after(uint32_t unanswered) {
  return unanswered < kQuickRetries ? kFirstRetry : kSecond;
}

uint64_t now_of_kernel_mode() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

Neighbours::Neighbours(const LocalIdentity& local, std::optional<LocalAddress> v4,
                       std::optional<LocalAddress> v6, std::unique_ptr<KernelNeighbours> kernel)
    : local_(local),
      v4_(v4),
      v6_(v6),
      kernel_(std::move(kernel)),
      storage_(std::make_unique<std::array<Entry, kMaxEntries>>()),
      entries_(storage_->data()) {
  free_.reserve(kMaxEntries);
  for (uint32_t i = kMaxEntries; i > 0; --i) free_.push_back(i - 1);
}

Status Neighbours::start() {
  if (!kernel_) return {};
  const SignalBlock signals_are_for_other_threads;
  try {
    keeper_ = std::thread([this] { keep(); });
    ::pthread_setname_np(keeper_.native_handle(), "mercury-neigh");
  } catch (const std::system_error& failed) {
    return Error::system(failed.code().value(), "cannot start the thread that asks for neighbours");
  }
  return {};
}

Neighbours::~Neighbours() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  if (keeper_.joinable()) keeper_.join();
}

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
  ++ways_sought_;
  const auto hop = next_hop(destination);
  if (!hop) return hop.error();
  if (const auto known = by_ip_.find(*hop); known != by_ip_.end()) {
    ++entries_[known->second].holders;
    return known->second;
  }
  const std::optional<uint32_t> index = free_entry();
  if (!index) {
    return Error(Errc::kLimit,
                 "paths lead to " + std::to_string(kMaxEntries) + " neighbours already");
  }
  Entry& entry = entries_[*index];
  entry.ip = *hop;
  entry.holders = 1;
  by_ip_[*hop] = *index;
  is_new_ = true;
  if (kernel_) wake_.notify_one();
  return *index;
}

bool Neighbours::would_add_host(const IpAddress& destination) {
  const std::scoped_lock lock(mutex_);
  const auto hop = next_hop(destination);
  return hop && *hop == destination && !by_ip_.contains(destination);
}

void Neighbours::hold(uint32_t entry) {
  const std::scoped_lock lock(mutex_);
  ++entries_[entry].holders;
}

void Neighbours::release(uint32_t entry) {
  const std::scoped_lock lock(mutex_);
  if (--entries_[entry].holders == 0) entries_[entry].idle_ns = 0;
}

// One that nobody holds gives way, first one that is not known to be there.
std::optional<uint32_t> Neighbours::free_entry() {
  if (free_.empty()) {
    std::optional<uint32_t> gives_way;
    for (const auto& [ip, index] : by_ip_) {
      if (entries_[index].holders > 0) continue;
      gives_way = index;
      if (mac(index) == 0) break;
    }
    if (!gives_way) return std::nullopt;
    forget(*gives_way);
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

void Neighbours::forget(uint32_t index) {
  Entry& entry = entries_[index];
  by_ip_.erase(entry.ip);
  entry.mac.store(0, std::memory_order_relaxed);
  entry.idle_ns = entry.asked_ns = entry.seen_ns = 0;
  entry.unanswered = 0;
  entry.doubted = false;
  free_.push_back(index);
}

uint32_t Neighbours::size() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<uint32_t>(by_ip_.size());
}

uint64_t Neighbours::ways_sought() const {
  const std::scoped_lock lock(mutex_);
  return ways_sought_;
}

void Neighbours::learn(const Sighting& sighting, uint64_t now_ns) noexcept {
  if (kernel_) return;
  const std::scoped_lock lock(mutex_);
  const auto known = by_ip_.find(sighting.ip);
  if (known == by_ip_.end()) return;
  Entry& entry = entries_[known->second];
  if (entry.holders == 0) return;
  const uint64_t packed = entry.mac.load(std::memory_order_relaxed);
  if (packed != 0 && packed != sighting.mac.packed()) {
    entry.doubted = true;
    return;
  }
  if (packed != 0 && entry.seen_ns >= entry.asked_ns) return;  // nobody asks
  entry.mac.store(sighting.mac.packed(), std::memory_order_relaxed);
  entry.seen_ns = now_ns;
  entry.doubted = false;
}

bool Neighbours::tick_own(Entry& entry, uint64_t now_ns, const Send& send) {
  const uint64_t packed = entry.mac.load(std::memory_order_relaxed);
  if (packed != 0 && entry.seen_ns >= entry.asked_ns) {  // the last question was answered
    entry.unanswered = 0;
    const bool asked_lately = entry.asked_ns != 0 && now_ns - entry.asked_ns < kFirstRetry;
    if (entry.doubted ? asked_lately : now_ns - entry.seen_ns < kRefresh) return false;
  } else if (entry.asked_ns != 0 && now_ns - entry.asked_ns < retry_after(entry.unanswered)) {
    return false;
  }
  std::optional<MacAddress> probe;
  if (packed != 0) probe = MacAddress::unpack(packed);
  if (probe && entry.unanswered >= kProbesUntilGone) {
    entry.mac.store(0, std::memory_order_relaxed);
    entry.doubted = false;
    probe.reset();
  }
  ++entry.unanswered;
  entry.asked_ns = now_ns;
  std::byte frame[kSolicitationBytes];
  const uint32_t bytes = build_solicitation(entry.ip, local_, probe, frame);
  if (bytes != 0) send(std::span(frame, bytes));
  return true;
}

template <class F>
void Neighbours::look(uint64_t now_ns, uint32_t most, F each) {
  uint32_t asked = 0;
  auto it = by_ip_.lower_bound(next_);
  for (size_t left = std::min(by_ip_.size(), kLooksPerTick); left > 0 && asked < most; --left) {
    if (it == by_ip_.end()) it = by_ip_.begin();
    const uint32_t index = (it++)->second;  // which may be forgotten
    Entry& entry = entries_[index];
    if (entry.holders > 0) {
      asked += each(entry);
      continue;
    }
    if (entry.idle_ns == 0) entry.idle_ns = now_ns;
    if (now_ns - entry.idle_ns >= kKeep) forget(index);
  }
  next_ = it == by_ip_.end() ? IpAddress() : it->first;
}

void Neighbours::tick(uint64_t now_ns, const Send& send) {
  if (kernel_) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // another engine is at it
  look(now_ns, kAskedPerTick, [&](Entry& entry) { return tick_own(entry, now_ns, send); });
}

bool Neighbours::is_due(const Entry& entry, uint64_t now_ns) {
  const bool known = entry.mac.load(std::memory_order_relaxed) != 0;
  const uint64_t wait = known ? kRefresh : retry_after(entry.unanswered);
  return entry.asked_ns == 0 || now_ns - entry.asked_ns >= wait;
}

// One after the other, as engines may want the mutex in between.
void Neighbours::keep() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    is_new_ = false;
    std::optional<IpAddress> due;
    const uint64_t now_ns = now_of_kernel_mode();
    look(now_ns, 1, [&](Entry& entry) {
      if (!is_due(entry, now_ns)) return false;
      entry.asked_ns = now_ns;
      due = entry.ip;
      return true;
    });
    if (!due) {
      wake_.wait_for(lock, kLookPause, [this] { return ends_ || is_new_; });
      continue;
    }
    lock.unlock();
    const std::optional<MacAddress> mac = kernel_->ask(*due);
    lock.lock();
    note(*due, mac);
  }
}

void Neighbours::note(const IpAddress& ip, const std::optional<MacAddress>& mac) {
  const auto known = by_ip_.find(ip);  // which may have been forgotten meanwhile
  if (known == by_ip_.end()) return;
  Entry& entry = entries_[known->second];
  entry.mac.store(mac ? mac->packed() : 0, std::memory_order_relaxed);
  entry.unanswered = mac ? 0 : entry.unanswered + 1;
}

}  // namespace mercury::ethdev
