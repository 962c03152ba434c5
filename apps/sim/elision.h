// Simulates without payload: for as long as one of these lives, nothing in this process sums,
// copies or checks a chunk's elements, and chunks are the length that they would be.
//
// The kernels are the only code that touches payload: CRC-32C with or without a copy, and the
// aggregator's arithmetic. They are chosen at run time, so the simulator chooses ones that do
// nothing: the engine, the aggregator and the worker run unchanged, branch for branch, and real
// hosts pay nothing for it. All CRCs are zero meanwhile, headers' too, so a network that corrupts
// frames cannot be simulated like this.
//
// One at a time.
#pragma once

#include <string>

namespace mercury::simulator {

class PayloadElision {
 public:
  PayloadElision();
  ~PayloadElision();
  PayloadElision(const PayloadElision&) = delete;
  PayloadElision& operator=(const PayloadElision&) = delete;

 private:
  std::string crc_kernel_, sum_kernel_;
};

}  // namespace mercury::simulator
