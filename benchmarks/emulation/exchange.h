// What Mercury is compared with, behind the calls that the replay needs. Rank r contributes r + 1
// in every element of every tensor.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

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
  // The sum over all ranks; returns when `out` holds it. One call at a time, from any one thread,
  // in the same order on all ranks.
  virtual Status all_reduce(const float* in, float* out, size_t numel) = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string version() const = 0;
};

std::unique_ptr<Exchange> make_all_reduce(const Trace& trace, std::unique_ptr<Collective> library);
// Ranks meet in `folder`, which all see; this one listens on `address`.
Result<std::unique_ptr<Collective>> make_gloo(int rank, int size, const std::string& folder,
                                              const std::string& address);
// Under mpirun, which says who is who.
Result<std::unique_ptr<Collective>> make_mpi();
// The environment (DMLC_ROLE and its like) says who is who. Null in servers and the scheduler, once
// all workers have left.
Result<std::unique_ptr<Exchange>> make_pslite(const Trace& trace);

}  // namespace mercury::emulation
