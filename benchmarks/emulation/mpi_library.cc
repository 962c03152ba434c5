#include <mpi.h>

#include <limits>

#include "benchmarks/emulation/exchange.h"

namespace mercury::emulation {
namespace {

// MPI ends the process itself when a call fails (MPI_ERRORS_ARE_FATAL).
class Mpi : public Collective {
 public:
  Mpi() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~Mpi() override { MPI_Finalize(); }

  Status all_reduce(const float* in, float* out, size_t numel, uint32_t) override {
    if (numel > static_cast<size_t>(std::numeric_limits<int>::max())) {
      return Error(Errc::kUnsupported, "more elements than MPI can count: a smaller --fuse");
    }
    MPI_Allreduce(in, out, static_cast<int>(numel), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return {};
  }
  Result<uint64_t> least(uint64_t mine) override {
    uint64_t result = 0;
    MPI_Allreduce(&mine, &result, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    return result;
  }
  int threads() const override { return 1; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string version() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string all(text, static_cast<size_t>(length));
    return all.substr(0, all.find(','));
  }

 private:
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace

Result<std::unique_ptr<Collective>> make_mpi() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (provided < MPI_THREAD_SERIALIZED) {
    return Error(Errc::kUnsupported, "this MPI knows no threads");
  }
  return std::unique_ptr<Collective>(std::make_unique<Mpi>());
}

}  // namespace mercury::emulation
