// A worker: trains layer by layer, and exchanges each layer's gradients through Mercury while
// others compute.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "examples/digits/data.h"
#include "examples/digits/model.h"
#include "examples/digits/pace.h"
#include "examples/digits/record.h"
#include "examples/digits/reference.h"
#include "shim/client/mercurystack/mercury.h"

namespace digits {

// Policies take turns of so many iterations; a turn begins with no exchange under way.
struct Turns {
  std::vector<std::string> policies{"mercury"};
  size_t iterations = 1;

  const std::string& policy(size_t step) const {
    return policies[step / iterations % policies.size()];
  }
  bool begins(size_t step) const { return step % iterations == 0; }
};

class Trainer {
 public:
  // Declares the job's tensors; without a job, computes and exchanges nothing. All must outlive it.
  Trainer(mercury_context* context, mercury_job* job, const Data& data, const Schedule& schedule,
          const Turns& turns, const Pace& pace);

  // `report(iterations done, loss, share of images that were right)`.
  using Report = std::function<void(size_t, float, double)>;
  void train(const Report& report);

  Model& model() { return model_; }
  const Record& record() const { return record_; }

 private:
  // One layer's two tensors as Mercury sees them.
  struct Exchange {
    std::span<float> weights, bias;
    mercury_handle handles[2]{};
    double begun_s = 0;
    size_t iteration = 0;
    bool pending = false;  // gradients that were not applied yet
  };

  std::span<float> tensor(mercury_context* context, size_t layer, size_t numel);
  void begin(size_t step);
  void iterate(size_t step, const Report& report);
  void update(size_t layer, size_t step);
  void push(size_t layer, size_t step);
  template <class Work>
  void compute(Record::Kind kind, size_t layer, size_t step, const Work& work);

  mercury_job* job_;
  const Data& data_;
  const Schedule& schedule_;
  const Turns& turns_;
  const Pace& pace_;
  size_t rank_;
  Model model_;
  std::vector<Exchange> exchanges_;
  std::vector<mercury_tensor_options> tensors_;
  std::vector<std::vector<float>> memory_;  // of gradients, without a job
  std::vector<float> pixels_;
  std::vector<int> labels_;
  Record record_;
};

}  // namespace digits
