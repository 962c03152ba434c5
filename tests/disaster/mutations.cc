#include "tests/disaster/mutations.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace mercury::disaster {

std::string mutant_path(const std::string& name) {
  const std::span<const Mutation> all = mutations();
  const bool known =
      std::any_of(all.begin(), all.end(), [&name](const Mutation& m) { return m.name == name; });
  if (!known) return "";
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path() / "mutants" / ("mercury-disaster-" + name);
}

}  // namespace mercury::disaster
