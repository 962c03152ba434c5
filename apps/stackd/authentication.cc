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

std::string not_encrypted(const StackdConfig& config) {
  const bool open_job =
      std::ranges::any_of(config.jobs, [](const auto& job) { return job.secret.empty(); });
  if (config.job_authentication == "encrypted" && (config.open_jobs || open_job)) {
    return "jobs.authentication = \"encrypted\" is for jobs with a secret: those without travel as "
           "they are (jobs.open, or a [[job]] without one)";
  }
  if (config.sockets_authentication == "encrypted" && config.sockets_open &&
      !has_sockets_secret(config)) {
    return "sockets.authentication = \"encrypted\" is for hosts with a sockets.secret: without one "
           "connections travel as they are (sockets.open)";
  }
  return {};
}

}  // namespace mercury
