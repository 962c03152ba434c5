#include "apps/perf/flow_request.h"

#include <array>
#include <string>

#include "apps/perf/flow_options.h"
#include "apps/perf/talk.h"

namespace mercury::perf {
namespace {

constexpr std::array kKinds = {"sink", "source", "echo"};
constexpr uint64_t kLongestSourceNs = 3'600'000'000'000;

Error malformed(const std::string& what) {
  return Error(Errc::kProtocol, "the request has no proper " + what);
}

// None of them throws: what is missing or of another type is the largest number.
uint64_t number(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number_unsigned() ? found->get<uint64_t>() : UINT64_MAX;
}

}  // namespace

uint64_t held_bytes(const FlowRequest& request) {
  const bool messages = request.kind == FlowRequest::Kind::kEcho;
  return messages ? 2 * (request.bytes + request.reply_bytes) : request.bytes;
}

nlohmann::json json_of(const FlowRequest& request) {
  return {{"mercury_perf", kTalkVersion}, {"do", kKinds[static_cast<size_t>(request.kind)]},
          {"bytes", request.bytes},       {"reply_bytes", request.reply_bytes},
          {"time_ns", request.time_ns},   {"compare", request.compare}};
}

Result<FlowRequest> flow_request(const nlohmann::json& json) {
  if (number(json, "mercury_perf") != kTalkVersion) {
    return Error(Errc::kVersionMismatch, "this mercury-perf serve is of another version");
  }
  FlowRequest request;
  const auto kind = json.find("do");
  size_t n = 0;
  while (n < kKinds.size() && (kind == json.end() || *kind != kKinds[n])) ++n;
  if (n == kKinds.size()) return malformed("\"do\"");
  request.kind = static_cast<FlowRequest::Kind>(n);
  request.bytes = number(json, "bytes");
  if (request.bytes == 0 || request.bytes > kLargestBlock) return malformed("\"bytes\"");
  request.reply_bytes = number(json, "reply_bytes");
  if (request.reply_bytes == 0 || request.reply_bytes > kLargestBlock) {
    return malformed("\"reply_bytes\"");
  }
  request.time_ns = number(json, "time_ns");
  if (request.time_ns > kLongestSourceNs) return malformed("\"time_ns\"");
  const auto compare = json.find("compare");
  if (compare == json.end() || !compare->is_boolean()) return malformed("\"compare\"");
  request.compare = compare->get<bool>();
  return request;
}

}  // namespace mercury::perf
