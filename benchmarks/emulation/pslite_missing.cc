#include "benchmarks/emulation/exchange.h"

namespace mercury::emulation {

Result<std::unique_ptr<Exchange>> make_pslite(const Trace&) {
  return Error(Errc::kUnsupported,
               "built without ps-lite: benchmarks/emulation/build-pslite builds it");
}

}  // namespace mercury::emulation
