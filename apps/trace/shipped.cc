#include "apps/trace/shipped.h"

#include <algorithm>

namespace mercury {

const std::vector<std::string>& shipped_models() {
  static const std::vector<std::string> models = {"vgg16", "vgg19", "alexnet", "resnet50",
                                                  "bert-base"};
  return models;
}

std::string trace_path(const std::string& trace) {
  const auto& models = shipped_models();
  if (std::find(models.begin(), models.end(), trace) == models.end()) return trace;
  return std::string(TRACES) + "/" + trace + ".csv";
}

std::string model_name(const std::string& trace) {
  std::string name = trace.substr(trace.find_last_of('/') + 1);
  if (name.size() > 4 && name.ends_with(".csv")) name.resize(name.size() - 4);
  return name;
}

}  // namespace mercury
