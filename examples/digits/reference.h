// Data-parallel training in one process: what a job of several workers computes, to the same bits.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "examples/digits/data.h"
#include "examples/digits/model.h"

namespace digits {

// How a job trains: batches run through the training set in order, and each worker takes its share
// of every batch (a multiple of the workers).
struct Schedule {
  size_t workers = 2;
  size_t iterations = 60;
  size_t batch = 128;  // images per iteration, all workers together
};

// The model that every worker of a job starts with.
Model initial_model(const Schedule& schedule);

// The images of worker `rank` in iteration `step`.
void take_share(const Images& all, const Schedule& schedule, size_t step, size_t rank,
                std::vector<float>& pixels, std::vector<int>& labels);

// All workers' shares at once, their gradients added in rank order as a server does.
// `report` is given the number of iterations that are done.
Model train_reference(
    const Images& images, const Schedule& schedule,
    const std::function<void(size_t)>& report = [](size_t) {});

}  // namespace digits
