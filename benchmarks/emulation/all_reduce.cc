#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "apps/replay/clock.h"
#include "benchmarks/emulation/exchange.h"

namespace mercury::emulation {
namespace {

constexpr uint64_t kEnding = std::numeric_limits<uint64_t>::max();

// Tensors lie in memory in the order in which their gradients become ready, so that what is reduced
// at once is in one piece: there is no copying into a buffer and back, which DDP has a setting for
// (gradient_as_bucket_view) and Horovod has not.
class Reducer : public Exchange {
 public:
  Reducer(const Trace& trace, std::unique_ptr<Collective> library, const Fusion& fusion)
      : library_(std::move(library)), fusion_(fusion), begin_{0} {
    std::vector<uint64_t> numels;
    for (auto tensor = trace.tensors.rbegin(); tensor != trace.tensors.rend(); ++tensor) {
      numels.push_back(tensor->numel);
      begin_.push_back(begin_.back() + tensor->numel);
    }
    in_.assign(begin_.back(), static_cast<float>(library_->rank() + 1));
    out_.assign(begin_.back(), 0.0F);
    done_.assign(numels.size(), true);
    if (fusion.rule == Fusion::Rule::kReady) {
      threads_.emplace_back([this] { run_cycles(); });
      return;
    }
    ends_ = bucket_ends(numels, fusion);
    for (int i = 0; i < library_->threads(); ++i) threads_.emplace_back([this] { run_buckets(); });
  }
  ~Reducer() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void push(size_t tensor) override {
    {
      const std::lock_guard lock(mutex_);
      done_[place_of(tensor)] = false;
      ++pushed_;
    }
    changed_.notify_all();
  }
  Status wait(size_t tensor) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_[place_of(tensor)] || !status_; });
    return status_;
  }
  bool all_hold() const override {
    const int ranks = library_->size();
    const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
    return std::all_of(out_.begin(), out_.end(), [&](float v) { return v == sum; });
  }
  int rank() const override { return library_->rank(); }
  std::string version() const override { return library_->version(); }

 private:
  size_t place_of(size_t tensor) const { return done_.size() - 1 - tensor; }

  // DDP's, in turns among the threads: a bucket once all its gradients are ready.
  void run_buckets() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto ready = [&] {
        return pushed_ >= next_ / ends_.size() * done_.size() + ends_[next_ % ends_.size()];
      };
      changed_.wait(lock, [&] { return ending_ || !status_ || ready(); });
      if (ending_ || !status_) return;
      const size_t bucket = next_++ % ends_.size();
      const size_t first = bucket == 0 ? 0 : ends_[bucket - 1];
      lock.unlock();
      reduce(first, ends_[bucket]);
      lock.lock();
    }
  }

  // Horovod's, in one thread: what is ready on all ranks, in each cycle. It ends on all ranks in
  // the same cycle, the first in which all want to.
  void run_cycles() {
    for (uint64_t taken = 0;;) {
      const uint64_t began_ns = monotonic_ns();
      const Result<uint64_t> ready = library_->least(pushed_or_ending());
      if (!ready) return fail(ready.error());
      if (*ready == kEnding) return;
      while (taken < *ready) {
        const size_t first = taken % done_.size();
        size_t end = first + 1;
        while (end < done_.size() && end - first < *ready - taken &&
               bytes(first, end + 1) <= fusion_.bytes) {
          ++end;
        }
        if (!reduce(first, end)) return;
        taken += end - first;
      }
      wait_until_ns(began_ns + fusion_.cycle_ns);
    }
  }
  uint64_t pushed_or_ending() {
    const std::lock_guard lock(mutex_);
    return ending_ ? kEnding : pushed_;
  }
  uint64_t bytes(size_t first, size_t end) const {
    return (begin_[end] - begin_[first]) * sizeof(float);
  }

  bool reduce(size_t first, size_t end) {
    const size_t at = begin_[first];
    Status reduced = library_->all_reduce(in_.data() + at, out_.data() + at, begin_[end] - at,
                                          static_cast<uint32_t>(first));
    if (!reduced) {
      fail(reduced.error());
      return false;
    }
    {
      const std::lock_guard lock(mutex_);
      for (size_t place = first; place < end; ++place) done_[place] = true;
    }
    changed_.notify_all();
    return true;
  }
  void fail(const Error& error) {
    {
      const std::lock_guard lock(mutex_);
      status_ = error;
    }
    changed_.notify_all();
  }

  std::unique_ptr<Collective> library_;
  Fusion fusion_;
  // Of each tensor, by its place in the backward order, and of the end.
  std::vector<size_t> begin_;
  std::vector<size_t> ends_;
  std::vector<float> in_;
  std::vector<float> out_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t pushed_ = 0;  // since the beginning, as next_
  uint64_t next_ = 0;    // bucket
  std::vector<bool> done_;
  Status status_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::vector<size_t> bucket_ends(const std::vector<uint64_t>& numels, const Fusion& fusion) {
  std::vector<size_t> ends;
  uint64_t bytes = 0;
  for (size_t i = 0; i < numels.size(); ++i) {
    bytes += numels[i] * sizeof(float);
    if (bytes < (ends.empty() ? fusion.first_bytes : fusion.bytes)) continue;
    ends.push_back(i + 1);
    bytes = 0;
  }
  if (ends.empty() || ends.back() != numels.size()) ends.push_back(numels.size());
  return ends;
}

std::unique_ptr<Exchange> make_all_reduce(const Trace& trace, std::unique_ptr<Collective> library,
                                          const Fusion& fusion) {
  return std::make_unique<Reducer>(trace, std::move(library), fusion);
}

}  // namespace mercury::emulation
