#include "apps/trace/shipped.h"

#include <algorithm>
#include <filesystem>

namespace mercury {

const std::vector<std::string>& shipped_models() {
  static const std::vector<std::string> models = {"vgg16",    "vgg19",     "alexnet",
                                                  "resnet50", "mobilenet", "bert-base"};
  return models;
}

std::string trace_path(const std::string& trace) {
  const auto& models = shipped_models();
  if (std::find(models.begin(), models.end(), trace) == models.end()) return trace;
  // An installed program has them beside it, wherever that is; one that was only built, in the
  // sources.
  std::error_code none;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", none);
  const auto installed = program.parent_path() / INSTALLED_TRACES / (trace + ".csv");
  if (std::filesystem::exists(installed, none)) return installed.lexically_normal().string();
  return std::string(TRACES) + "/" + trace + ".csv";
}

std::string model_name(const std::string& trace) {
  std::string name = trace.substr(trace.find_last_of('/') + 1);
  if (name.size() > 4 && name.ends_with(".csv")) name.resize(name.size() - 4);
  return name;
}

}  // namespace mercury
