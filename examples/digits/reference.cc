#include "examples/digits/reference.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace digits {
namespace {

constexpr uint64_t kSeed = 1;
constexpr size_t kTestImages = 360;  // that are looked at together

}  // namespace

Model initial_model(const Schedule& schedule) {
  return Model(kSeed, std::max(schedule.batch, kTestImages));
}

void take_share(const Images& all, const Schedule& schedule, size_t step, size_t rank,
                std::vector<float>& pixels, std::vector<int>& labels) {
  const size_t share = schedule.batch / schedule.workers;
  const size_t first = step * schedule.batch + rank * share;
  pixels.clear();
  labels.clear();
  for (size_t n = first; n < first + share; ++n) {
    const size_t image = n % all.count();
    const auto begin = all.pixels.begin() + static_cast<ptrdiff_t>(image * kPixels);
    pixels.insert(pixels.end(), begin, begin + kPixels);
    labels.push_back(all.labels[image]);
  }
}

Model train_reference(const Images& images, const Schedule& schedule,
                      const std::function<void(size_t)>& report) {
  // Each worker's share on a thread and in a model of its own; their weights stay the same.
  std::vector<Model> models(schedule.workers, initial_model(schedule));
  const size_t layers = models[0].layer_count();
  // By layer and worker.
  std::vector<std::vector<std::vector<float>>> weights(layers), biases(layers);
  for (size_t l = 0; l < layers; ++l) {
    weights[l].assign(schedule.workers, std::vector<float>(models[0].layer(l).weights.size()));
    biases[l].assign(schedule.workers, std::vector<float>(models[0].layer(l).bias.size()));
  }
  const auto compute = [&](size_t step, size_t worker) {
    Model& model = models[worker];
    std::vector<float> pixels;
    std::vector<int> labels;
    take_share(images, schedule, step, worker, pixels, labels);
    model.set_input(pixels);
    for (size_t l = 0; l < layers; ++l) model.forward(l);
    model.loss(labels);
    for (size_t l = layers; l-- > 0;) model.backward(l, weights[l][worker], biases[l][worker]);
  };
  for (size_t step = 0; step < schedule.iterations; ++step) {
    {
      std::vector<std::jthread> threads;
      for (size_t worker = 0; worker < schedule.workers; ++worker) {
        threads.emplace_back(compute, step, worker);
      }
    }
    for (size_t l = 0; l < layers; ++l) {
      average(weights[l], weights[l][0]);
      average(biases[l], biases[l][0]);
      for (Model& model : models) model.apply(l, weights[l][0], biases[l][0]);
    }
    report(step + 1);
  }
  return std::move(models[0]);
}

}  // namespace digits
