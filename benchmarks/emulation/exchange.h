// What Mercury is compared with, behind the calls that the replay needs. Rank r contributes r + 1
// in every element of every tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/trace/trace.h"
#include "transport/base/result.h"

namespace mercury::emulation {

// Of all tensors of a trace. Used by one thread.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void push(size_t tensor) = 0;    // its gradients are ready
  virtual Status wait(size_t tensor) = 0;  // for the sum, if it was pushed
  virtual bool all_hold() const = 0;       // the sums are what they must be
  virtual int rank() const = 0;
  virtual std::string version() const = 0;
};

class Collective {
 public:
  virtual ~Collective() = default;
  // The sum over all ranks; returns when `out` holds it. From so many threads at once as threads()
  // says, where calls of one `tag` belong together; else in the same order on all ranks.
  virtual Status all_reduce(const float* in, float* out, size_t numel, uint32_t tag) = 0;
  // The least that any rank has. By one thread, beside no other call.
  virtual Result<uint64_t> least(uint64_t mine) = 0;
  // That may call at once.
  virtual int threads() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string version() const = 0;
};

// What is reduced at once.
struct Fusion {
  enum class Rule : uint8_t {
    // PyTorch's DistributedDataParallel: buckets that are the same in every iteration, closed by
    // the
    // tensor with which they have `bytes`; each as soon as all its gradients are ready.
    kBuckets,
    // Horovod: in each cycle what is ready on all ranks, but no more than `bytes`.
    kReady,
  };
  Rule rule = Rule::kBuckets;
  uint64_t bytes = 0;        // 0: each tensor by itself
  uint64_t first_bytes = 0;  // of the first bucket
  uint64_t cycle_ns = 0;     // kReady: from one look to the next
};

// Tensors must be pushed in the backward order, the last of the trace first.
std::unique_ptr<Exchange> make_all_reduce(const Trace& trace, std::unique_ptr<Collective> library,
                                          const Fusion& fusion);
// Where buckets end, of tensors that have so many elements each, in that order.
std::vector<size_t> bucket_ends(const std::vector<uint64_t>& numels, const Fusion& fusion);
// Ranks meet in `folder`, which all see; this one listens on `address`.
Result<std::unique_ptr<Collective>> make_gloo(int rank, int size, const std::string& folder,
                                              const std::string& address);
// Under mpirun, which says who is who.
Result<std::unique_ptr<Collective>> make_mpi();
// The environment (DMLC_ROLE and its like) says who is who. Null in servers and the scheduler, once
// all workers have left.
Result<std::unique_ptr<Exchange>> make_pslite(const Trace& trace);

}  // namespace mercury::emulation
