#include "benchmarks/emulation/exchange.h"

namespace mercury::emulation {

Result<std::unique_ptr<Exchange>> make_pslite(const Trace&) {
  return Error(Errc::kUnsupported,
               "built without ps-lite; docs/papers.md, \"Emulation\", says how");
}

}  // namespace mercury::emulation
