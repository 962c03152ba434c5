#include "apps/stackd/authentication.h"

#include <algorithm>
#include <utility>

namespace mercury {
namespace {

constexpr const char* kLacking =
    "this CPU has no AES or PCLMULQDQ instructions (grep -wo -m1 -e aes -e pclmulqdq "
    "/proc/cpuinfo), which authenticated frames need";

bool has_job_secret(const StackdConfig& config) {
  return std::ranges::any_of(config.jobs, [](const auto& job) { return !job.secret.empty(); });
}

// The key of the first that requires it; null: none does.
const char* requiring_key(const StackdConfig& config) {
  if (config.job_authentication == "required") return "jobs.authentication";
  return config.sockets_authentication == "required" ? "sockets.authentication" : nullptr;
}

}  // namespace

Status check_authentication(const StackdConfig& config, bool can_seal) {
  const char* const key = can_seal ? nullptr : requiring_key(config);
  if (key == nullptr) return {};
  return wrong_value(config, key,
                     "expected \"off\" or \"offered\", got \"required\": " + std::string(kLacking));
}

std::string authentication_lacking(const StackdConfig& config, bool can_seal) {
  if (can_seal) return {};
  // By default both offer it: who has no secret lacks nothing.
  const char* key = nullptr;
  if (config.sockets_authentication == "offered" && has_sockets_secret(config)) {
    key = "sockets.authentication";
  }
  if (config.job_authentication == "offered" && has_job_secret(config)) key = "jobs.authentication";
  if (key == nullptr) return {};
  return std::string(key) + " = \"offered\" changes nothing: " + kLacking;
}

}  // namespace mercury
