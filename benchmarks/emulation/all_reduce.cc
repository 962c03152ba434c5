#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/emulation/exchange.h"

namespace mercury::emulation {
namespace {

// One all-reduce after the other, in the order in which gradients become ready, as Horovod and
// PyTorch do without fusion.
class Reducer : public Exchange {
 public:
  Reducer(const Trace& trace, std::unique_ptr<Collective> library) : library_(std::move(library)) {
    for (const TraceTensor& tensor : trace.tensors) {
      in_.emplace_back(tensor.numel, static_cast<float>(library_->rank() + 1));
      out_.emplace_back(tensor.numel, 0.0F);
    }
    done_.assign(in_.size(), true);
    thread_ = std::thread([this] { run(); });
  }
  ~Reducer() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void push(size_t tensor) override {
    {
      const std::lock_guard lock(mutex_);
      done_[tensor] = false;
      ready_.push_back(tensor);
    }
    changed_.notify_all();
  }
  Status wait(size_t tensor) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_[tensor] || !status_; });
    return status_;
  }
  bool all_hold() const override {
    const int ranks = library_->size();
    const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
    return std::all_of(out_.begin(), out_.end(), [&](const std::vector<float>& tensor) {
      return std::all_of(tensor.begin(), tensor.end(), [&](float v) { return v == sum; });
    });
  }
  int rank() const override { return library_->rank(); }
  std::string version() const override { return library_->version(); }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || !ready_.empty(); });
      if (ready_.empty()) return;
      const size_t tensor = ready_.front();
      ready_.pop_front();
      lock.unlock();
      Status reduced =
          library_->all_reduce(in_[tensor].data(), out_[tensor].data(), in_[tensor].size());
      lock.lock();
      done_[tensor] = true;
      status_ = std::move(reduced);
      changed_.notify_all();
      if (!status_) return;
    }
  }

  std::unique_ptr<Collective> library_;
  std::vector<std::vector<float>> in_;
  std::vector<std::vector<float>> out_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<size_t> ready_;
  std::vector<bool> done_;
  Status status_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Exchange> make_all_reduce(const Trace& trace, std::unique_ptr<Collective> library) {
  return std::make_unique<Reducer>(trace, std::move(library));
}

}  // namespace mercury::emulation
