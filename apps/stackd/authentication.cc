#include "apps/stackd/authentication.h"

#include <utility>

namespace mercury {
namespace {

constexpr const char* kLacking =
    "this CPU has no AES or PCLMULQDQ instructions (grep -wo -m1 -e aes -e pclmulqdq "
    "/proc/cpuinfo), which authenticated frames need";

// The key of the first that says `word`; null: none does.
const char* key_saying(const StackdConfig& config, const std::string& word) {
  if (config.job_authentication == word) return "jobs.authentication";
  return config.sockets_authentication == word ? "sockets.authentication" : nullptr;
}

}  // namespace

Status check_authentication(const StackdConfig& config, bool can_seal) {
  const char* const key = can_seal ? nullptr : key_saying(config, "required");
  if (key == nullptr) return {};
  return wrong_value(config, key,
                     "expected \"off\" or \"offered\", got \"required\": " + std::string(kLacking));
}

std::string authentication_lacking(const StackdConfig& config, bool can_seal) {
  const char* const key = can_seal ? nullptr : key_saying(config, "offered");
  if (key == nullptr) return {};
  return std::string(key) + " = \"offered\" changes nothing: " + kLacking;
}

}  // namespace mercury
