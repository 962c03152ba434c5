#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <exception>

#include "benchmarks/emulation/exchange.h"

namespace mercury::emulation {
namespace {

// Gloo throws; nothing leaves this file.
class Gloo : public Collective {
 public:
  Gloo(int rank, int size, const std::string& folder, const std::string& address)
      : context_(std::make_shared<gloo::rendezvous::Context>(rank, size)) {
    gloo::rendezvous::FileStore store(folder);
    gloo::transport::tcp::attr attributes(address.c_str());
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context_->connectFullMesh(store, device);
  }

  Status all_reduce(const float* in, float* out, size_t numel, uint32_t tag) override try {
    gloo::AllreduceOptions options(context_);
    options.setTag(tag);
    options.setInput(const_cast<float*>(in), numel);  // which it reads only
    options.setOutput(out, numel);
    options.setReduceFunction(
        [](void* c, const void* a, const void* b, size_t n) { gloo::sum<float>(c, a, b, n); });
    gloo::allreduce(options);
    return {};
  } catch (const std::exception& error) {
    return Error(Errc::kSystem, error.what());
  }
  Result<uint64_t> least(uint64_t mine) override try {
    gloo::AllreduceOptions options(context_);
    uint64_t result = 0;
    options.setInput(&mine, 1);
    options.setOutput(&result, 1);
    options.setReduceFunction(
        [](void* c, const void* a, const void* b, size_t n) { gloo::min<uint64_t>(c, a, b, n); });
    gloo::allreduce(options);
    return result;
  } catch (const std::exception& error) {
    return Error(Errc::kSystem, error.what());
  }
  int threads() const override { return 2; }  // as PyTorch's ProcessGroupGloo has
  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }
  std::string version() const override { return "Gloo 2022-05-18 (Debian 12)"; }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace

Result<std::unique_ptr<Collective>> make_gloo(int rank, int size, const std::string& folder,
                                              const std::string& address) try {
  return std::unique_ptr<Collective>(std::make_unique<Gloo>(rank, size, folder, address));
} catch (const std::exception& error) {
  return Error(Errc::kSystem, error.what());
}

}  // namespace mercury::emulation
