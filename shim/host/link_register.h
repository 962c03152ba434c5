// Which hosts of this process send over one link: those that listen at one address.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "transport/base/endpoint.h"
#include "transport/base/quantity.h"
#include "transport/base/result.h"
#include "transport/engine/shared_link.h"

namespace mercury {

// A host's part in a link, from before its engine has a SharedLink::Place until that is gone: as
// many as have turns are given out.
class LinkSeat {
 public:
  LinkSeat() = default;
  LinkSeat(std::shared_ptr<SharedLink> link, std::shared_ptr<std::atomic<uint32_t>> taken) noexcept
      : link_(std::move(link)), taken_(std::move(taken)) {}
  LinkSeat(LinkSeat&& other) noexcept = default;
  LinkSeat& operator=(LinkSeat&& other) noexcept {
    std::swap(link_, other.link_);
    std::swap(taken_, other.taken_);
    return *this;
  }
  ~LinkSeat() {
    if (taken_) taken_->fetch_sub(1, std::memory_order_release);
  }

  // Null: nothing is known of the link.
  const std::shared_ptr<SharedLink>& link() const noexcept { return link_; }

 private:
  std::shared_ptr<SharedLink> link_;
  std::shared_ptr<std::atomic<uint32_t>> taken_;
};

class LinkRegister {
 public:
  // `bytes_per_second` 0: whatever is known, and without a link if nothing is. Whoever else asks
  // meanwhile, no more seats than kTurns are given out. Errors: kInvalidArgument: others said
  // another rate; kLimit: too many have it.
  Result<LinkSeat> join(const IpAddress& address, uint64_t& bytes_per_second) {
    const std::lock_guard lock(mutex_);
    Known& known = links_[address];
    std::shared_ptr<SharedLink> link = known.link.lock();
    if (!link) {
      if (bytes_per_second == 0) return LinkSeat();
      link = std::make_shared<SharedLink>();
      known = {link, std::make_shared<std::atomic<uint32_t>>(0), bytes_per_second};
    }
    if (bytes_per_second == 0) bytes_per_second = known.bytes_per_second;
    if (bytes_per_second != known.bytes_per_second) {
      return Error(Errc::kInvalidArgument, "rate: the link of " + address.to_string() +
                                               " carries " +
                                               print_bits_per_second(8 * known.bytes_per_second) +
                                               ", another context of this process says, not " +
                                               print_bits_per_second(8 * bytes_per_second));
    }
    if (known.taken->load(std::memory_order_acquire) >= SharedLink::kTurns) {
      return Error(Errc::kLimit, "rate: at most " + std::to_string(SharedLink::kTurns) +
                                     " contexts of a process share the link of " +
                                     address.to_string());
    }
    known.taken->fetch_add(1, std::memory_order_relaxed);
    return LinkSeat(std::move(link), known.taken);
  }

 private:
  struct Known {
    std::weak_ptr<SharedLink> link;
    std::shared_ptr<std::atomic<uint32_t>> taken;
    uint64_t bytes_per_second = 0;
  };
  std::mutex mutex_;
  std::map<IpAddress, Known> links_;
};

}  // namespace mercury
