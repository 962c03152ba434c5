// A small convolutional network, written plainly, that can be trained layer by layer: each layer's
// forward pass waits only for its own weights, and each layer's gradient can leave as soon as its
// backward pass is done. As in the large networks of this kind, the first layers hold most of the
// computing and the last ones most of the weights.
//
// Arithmetic is in float, in one fixed order: the same inputs give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/digits/data.h"

namespace digits {

// out = activation(in x weights + bias) over `rows` rows per image. A convolution is the same over
// the 3x3 neighbourhoods of all pixels.
struct Layer {
  std::string name;
  bool convolution = false;
  size_t channels = 0;  // of the input image; convolution only
  size_t rows = 1;      // per image
  size_t in = 0;        // columns of a row
  size_t out = 0;
  bool relu = true;

  std::vector<float> weights;  // in x out
  std::vector<float> bias;     // out
  std::vector<float> weight_momentum;
  std::vector<float> bias_momentum;

  std::vector<float> patches;  // images x rows x in: what the weights are applied to
  std::vector<float> output;   // images x rows x out
  std::vector<float> output_gradient;
};

class Model {
 public:
  // Weights come from `seed` alone. At most `max_images` at a time.
  Model(uint64_t seed, size_t max_images);

  size_t layer_count() const { return layers_.size(); }
  const Layer& layer(size_t index) const { return layers_[index]; }
  size_t parameters() const;

  // Sets the images for the passes that follow (pixels: count x kPixels).
  void set_input(std::span<const float> pixels);
  void forward(size_t layer);  // layers in order, 0 first
  // Behind the last layer: mean cross-entropy; prepares the backward pass.
  float loss(std::span<const int> labels);
  // Layers in reverse order. Writes the mean gradients of this layer's weights and bias.
  void backward(size_t layer, std::span<float> weight_gradient, std::span<float> bias_gradient);
  // Stochastic gradient descent with momentum.
  void apply(size_t layer, std::span<const float> weight_gradient,
             std::span<const float> bias_gradient);

  // Share of images whose most likely class is the label.
  double accuracy(const Images& images);
  // Of the images that were last passed forward.
  size_t right(std::span<const int> labels) const;
  // All weights and biases, layer after layer.
  std::vector<float> weights() const;

 private:
  void gather(Layer& layer, std::span<const float> input) const;
  std::span<const float> input_of(size_t layer) const;

  std::vector<Layer> layers_;
  size_t max_images_;
  size_t images_ = 0;
  std::vector<float> pixels_;
  std::vector<float> patch_gradient_;
  std::vector<float> transposed_;
};

// Mean of `gradients[worker]` over workers, added in rank order: what a server computes.
void average(std::span<const std::vector<float>> gradients, std::span<float> out);

}  // namespace digits
