#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "examples/digits/data.h"
#include "examples/digits/model.h"
#include "examples/digits/reference.h"

namespace digits {
namespace {

Data load_data() {
  Data data;
  EXPECT_EQ(load(DIGITS_CSV, data), "");
  return data;
}

TEST(DigitsData, HasAllImages) {
  const Data data = load_data();
  EXPECT_EQ(data.train.count(), 1438U);
  EXPECT_EQ(data.test.count(), 359U);
  EXPECT_EQ(data.train.pixels.size(), 1438U * kPixels);
}

TEST(DigitsData, NamesTheLineThatIsWrong) {
  const auto path = std::filesystem::path(testing::TempDir()) / "bad-digits.csv";
  std::ifstream good(DIGITS_CSV);
  std::string line;
  std::getline(good, line);
  for (const std::string& bad : {line + ",1", line.substr(0, 40), "x" + line, std::string()}) {
    std::ofstream(path) << line << "\n" << bad << "\n";
    Data data;
    EXPECT_EQ(load(path, data).find(path.string() + ":2: "), 0U) << bad;
  }
  std::filesystem::remove(path);
}

// Every layer's gradient against the loss's finite difference.
TEST(DigitsModel, GradientsAreTheLossesSlopes) {
  const Data data = load_data();
  constexpr size_t kImages = 8;
  const std::span pixels(data.train.pixels.data(), kImages * kPixels);
  const std::span labels(data.train.labels.data(), kImages);
  Model model(3, kImages);
  const auto loss = [&](Model& at) {
    at.set_input(pixels);
    for (size_t l = 0; l < at.layer_count(); ++l) at.forward(l);
    return static_cast<double>(at.loss(labels));
  };
  loss(model);
  for (size_t l = model.layer_count(); l-- > 0;) {
    std::vector<float> weights(model.layer(l).weights.size()), bias(model.layer(l).bias.size());
    model.backward(l, weights, bias);
    // apply() moves against the gradient given to it: a single 1 moves one weight by the rate.
    size_t steepest = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (std::abs(weights[i]) > std::abs(weights[steepest])) steepest = i;
    }
    Model moved = model;
    std::vector<float> direction(weights.size()), none(bias.size());
    direction[steepest] = 0.2F;
    moved.apply(l, direction, none);
    const double step = static_cast<double>(moved.layer(l).weights[steepest]) -
                        static_cast<double>(model.layer(l).weights[steepest]);
    Model before = model;
    const double slope = (loss(moved) - loss(before)) / step;
    EXPECT_NEAR(slope, static_cast<double>(weights[steepest]), 0.1 * std::abs(slope))
        << model.layer(l).name;
  }
}

TEST(DigitsModel, LearnsTheDigits) {
  const Data data = load_data();
  EXPECT_GT(train_reference(data.train, {2, 60, 128}).accuracy(data.test), 0.95);
}

TEST(DigitsModel, TrainsToTheSameBitsEveryTime) {
  const Data data = load_data();
  EXPECT_EQ(train_reference(data.train, {4, 3, 128}).weights(),
            train_reference(data.train, {4, 3, 128}).weights());
  EXPECT_NE(train_reference(data.train, {4, 3, 128}).weights(),
            train_reference(data.train, {4, 2, 128}).weights());
}

}  // namespace
}  // namespace digits
