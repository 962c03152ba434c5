#include <stdexcept>

#include "benchmarks/emulation/exchange.h"

namespace mercury::emulation {

std::unique_ptr<Exchange> make_pslite(const Trace&) {
  throw std::runtime_error("built without ps-lite; docs/papers.md, \"Emulation\", says how");
}

}  // namespace mercury::emulation
