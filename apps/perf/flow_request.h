// What a client of streams or messages asks of mercury-perf serve, as values and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "transport/base/result.h"

namespace mercury::perf {

struct FlowRequest {
  enum class Kind : uint8_t { kSink, kSource, kEcho };
  Kind kind = Kind::kSink;  // what the server is to be
  uint64_t bytes = 0;       // of a block or a request
  uint64_t reply_bytes = 0;
  uint64_t time_ns = 0;  // for which a source sends
  bool compare = false;  // what arrives, on either side
};

// What either end holds for it: contents, and of messages one of each kind beside them.
uint64_t held_bytes(const FlowRequest& request);

nlohmann::json json_of(const FlowRequest& request);
// Error: kProtocol, for the client to read.
Result<FlowRequest> flow_request(const nlohmann::json& json);

}  // namespace mercury::perf
