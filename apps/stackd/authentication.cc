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

bool requires_it(const std::string& word) { return word == "required" || word == "encrypted"; }

}  // namespace

Status check_authentication(const StackdConfig& config, bool can_seal) {
  if (can_seal) return {};
  const std::pair<const char*, const std::string&> words[] = {
      {"jobs.authentication", config.job_authentication},
      {"sockets.authentication", config.sockets_authentication}};
  for (const auto& [key, word] : words) {
    if (!requires_it(word)) continue;
    return wrong_value(config, key,
                       "expected \"off\" or \"offered\", got \"" + word + "\": " + kLacking);
  }
  return {};
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
