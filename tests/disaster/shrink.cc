#include "tests/disaster/shrink.h"

#include <algorithm>
#include <utility>

namespace mercury::disaster {
namespace {

constexpr uint64_t kSmall = 16;

class Shrinker {
 public:
  Shrinker(const Scenario& scenario, const Fails& fails,
           const std::function<void(const Reduction&)>& progress)
      : scenario_(scenario), fails_(fails), progress_(progress) {}

  Reduction run() {
    bool smaller = true;
    while (smaller) {
      smaller = false;
      for (uint32_t i = 0; i < scenario_.faults.size(); ++i) {
        if (kept_.without_faults.contains(i)) continue;
        smaller |= attempt([i](Reduction& cut) { cut.without_faults.insert(i); });
      }
      for (uint32_t j = 0; j < scenario_.jobs.size(); ++j) {
        if (scenario_.jobs[j].recovery || kept_.without_jobs.contains(j)) continue;
        smaller |= attempt([j](Reduction& cut) { cut.without_jobs.insert(j); });
      }
      for (const std::string& name : weather_of(scenario_)) {
        if (kept_.calm.contains(name)) continue;
        smaller |= attempt([&name](Reduction& cut) { cut.calm.insert(name); });
      }
      smaller |= fewer(&Reduction::max_rounds, most_rounds());
      smaller |= fewer(&Reduction::max_tensors, 8U);
      smaller |= fewer(&Reduction::max_numel, most_elements());
    }
    return kept_;
  }

 private:
  template <class Change>
  bool attempt(Change change) {
    Reduction cut = kept_;
    change(cut);
    if (fails_(cut).empty()) return false;
    kept_ = std::move(cut);
    progress_(kept_);
    return true;
  }

  // Halves the limit while that still fails; a small one goes down by one then.
  template <class Number>
  bool fewer(Number Reduction::*limit, Number most) {
    bool any = false;
    const auto now = [&] { return std::min(kept_.*limit, most); };
    while (now() > 1 && attempt([&](Reduction& cut) { cut.*limit = now() / 2; })) any = true;
    while (now() > 1 && now() <= kSmall &&
           attempt([&](Reduction& cut) { cut.*limit = now() - 1; })) {
      any = true;
    }
    return any;
  }

  uint32_t most_rounds() const {
    uint32_t most = 1;
    for (const JobPlan& job : scenario_.jobs) most = std::max(most, job.rounds);
    return most;
  }
  uint64_t most_elements() const {
    uint64_t most = 1;
    for (const JobPlan& job : scenario_.jobs) {
      for (const TensorPlan& tensor : job.tensors) most = std::max(most, tensor.numel);
    }
    return most;
  }

  const Scenario& scenario_;
  const Fails& fails_;
  const std::function<void(const Reduction&)>& progress_;
  Reduction kept_;
};

}  // namespace

Reduction shrink(const Scenario& scenario, const Fails& fails,
                 const std::function<void(const Reduction&)>& progress) {
  return Shrinker(scenario, fails, progress).run();
}

}  // namespace mercury::disaster
