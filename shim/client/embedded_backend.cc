#include "shim/client/embedded_backend.h"

namespace mercury::client {

Result<std::unique_ptr<Backend>> make_embedded_backend(const std::string&) {
  return Error(Errc::kUnsupported,
               "this build of libmercury has no embedded engine; start mercury-stackd");
}

}  // namespace mercury::client
