#include <ps/ps.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <vector>

#include "benchmarks/emulation/exchange.h"

namespace mercury::emulation {
namespace {

using Values = ps::SArray<float>;

// Sums in the way of MXNet's kvstore "dist_sync": a push is answered when all workers' have come.
class KvstoreServer {
 public:
  KvstoreServer() : server_(0) {
    server_.set_request_handle([this](const ps::KVMeta& meta, const ps::KVPairs<float>& data,
                                      ps::KVServer<float>* server) { on(meta, data, *server); });
  }

 private:
  struct Part {
    Values sum;
    std::vector<ps::KVMeta> waiting;
  };

  void on(const ps::KVMeta& meta, const ps::KVPairs<float>& data, ps::KVServer<float>& server) {
    Part& part = parts_[data.keys[0]];
    if (!meta.push) {
      ps::KVPairs<float> answer;
      answer.keys = data.keys;
      answer.vals = part.sum;
      answer.lens = {static_cast<int>(part.sum.size())};
      return server.Response(meta, answer);
    }
    if (part.waiting.empty()) {
      part.sum = Values();  // the last one may still be on its way to somebody
      part.sum.CopyFrom(data.vals);
    } else {
      std::transform(data.vals.begin(), data.vals.end(), part.sum.begin(), part.sum.begin(),
                     [](float a, float b) { return a + b; });
    }
    part.waiting.push_back(meta);
    if (part.waiting.size() < static_cast<size_t>(ps::NumWorkers())) return;
    for (const ps::KVMeta& worker : part.waiting) server.Response(worker);
    part.waiting.clear();
  }

  std::map<ps::Key, Part> parts_;
  ps::KVServer<float> server_;
};

// Tensors of more elements are divided among all servers: MXNet's MXNET_KVSTORE_BIGARRAY_BOUND.
constexpr uint64_t kBigTensor = 1'000'000;

class PsLite : public Exchange {
 public:
  explicit PsLite(const Trace& trace) : worker_(0, 0) {
    const auto servers = static_cast<uint64_t>(ps::NumServers());
    const std::vector<ps::Range>& ranges = ps::Postoffice::Get()->GetServerKeyRanges();
    for (uint64_t t = 0; t < trace.tensors.size(); ++t) {
      KeyedTensor tensor;
      const uint64_t numel = trace.tensors[t].numel;
      if (numel < kBigTensor) {
        tensor.keys.push_back(ranges[t * 9973 % servers].begin() + t);  // MXNet's
        tensor.lens.push_back(static_cast<int>(numel));
      } else {
        for (uint64_t s = 0; s < servers; ++s) {
          tensor.keys.push_back(ranges[s].begin() + t);
          tensor.lens.push_back(static_cast<int>(numel * (s + 1) / servers - numel * s / servers));
        }
      }
      tensor.in.resize(numel, static_cast<float>(ps::MyRank() + 1));
      tensor.out.resize(numel, 0.0F);
      tensors_.push_back(tensor);
    }
    done_.assign(tensors_.size(), true);
  }
  ~PsLite() override { ps::Finalize(0, true); }
  PsLite(const PsLite&) = delete;
  PsLite& operator=(const PsLite&) = delete;

  void push(size_t index) override {
    {
      const std::lock_guard lock(mutex_);
      done_[index] = false;
    }
    KeyedTensor& tensor = tensors_[index];
    worker_.ZPush(tensor.keys, tensor.in, tensor.lens, 0, [this, index] { pull(index); });
  }
  Status wait(size_t index) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_[index]; });
    return {};
  }
  bool all_hold() const override {
    const int ranks = ps::NumWorkers();
    const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
    return std::all_of(tensors_.begin(), tensors_.end(), [&](const KeyedTensor& tensor) {
      return std::all_of(tensor.out.begin(), tensor.out.end(), [&](float v) { return v == sum; });
    });
  }
  int rank() const override { return ps::MyRank(); }
  std::string version() const override { return "ps-lite"; }

 private:
  struct KeyedTensor {
    ps::SArray<ps::Key> keys;
    ps::SArray<int> lens;
    Values in;
    Values out;
  };

  void pull(size_t index) {
    KeyedTensor& tensor = tensors_[index];
    worker_.ZPull(tensor.keys, &tensor.out, &tensor.lens, 0, [this, index] {
      const std::lock_guard lock(mutex_);
      done_[index] = true;
      changed_.notify_all();
    });
  }

  ps::KVWorker<float> worker_;
  std::vector<KeyedTensor> tensors_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_;
};

}  // namespace

Result<std::unique_ptr<Exchange>> make_pslite(const Trace& trace) {
  ps::Start(0);
  if (ps::IsWorker()) return std::unique_ptr<Exchange>(std::make_unique<PsLite>(trace));
  if (ps::IsServer()) {
    KvstoreServer server;
    ps::Finalize(0, true);
  } else {
    ps::Finalize(0, true);
  }
  return std::unique_ptr<Exchange>();
}

}  // namespace mercury::emulation
