#include "examples/digits/model.h"

#include <algorithm>
#include <cmath>

namespace digits {
namespace {

constexpr float kLearningRate = 0.05F;
constexpr float kMomentum = 0.9F;
constexpr size_t kChannels = 32;
constexpr size_t kHidden = 160;

// Uniform in [-1, 1): a linear congruential generator is enough to break symmetry.
class Uniform {
 public:
  explicit Uniform(uint64_t seed) : state_(seed * 2 + 1) {}
  float next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31F;
  }

 private:
  uint64_t state_;
};

// c[r][o] += a[r][i] * b[i][o]. The inner loop runs along o, so vector width changes no bit.
void multiply_add(const float* a, const float* b, float* c, size_t rows, size_t in, size_t out) {
  for (size_t r = 0; r < rows; ++r) {
    float* __restrict to = c + r * out;
    for (size_t i = 0; i < in; ++i) {
      const float factor = a[r * in + i];
      if (factor == 0.0F) continue;  // pixels and rectified outputs often are
      const float* __restrict from = b + i * out;
      for (size_t o = 0; o < out; ++o) to[o] += factor * from[o];
    }
  }
}

// The index in an image of `channels` of the patch element (row, column), or -1 outside the image.
ptrdiff_t source_of(size_t row, size_t column, size_t channels) {
  const auto neighbour = static_cast<ptrdiff_t>(column / channels);
  const ptrdiff_t y = static_cast<ptrdiff_t>(row) / kSide + neighbour / 3 - 1;
  const ptrdiff_t x = static_cast<ptrdiff_t>(row) % kSide + neighbour % 3 - 1;
  if (y < 0 || y >= kSide || x < 0 || x >= kSide) return -1;
  return (y * kSide + x) * static_cast<ptrdiff_t>(channels) +
         static_cast<ptrdiff_t>(column % channels);
}

Layer convolution(const char* name, size_t channels) {
  Layer layer;
  layer.name = name;
  layer.convolution = true;
  layer.channels = channels;
  layer.rows = kPixels;
  layer.in = 9 * channels;
  layer.out = kChannels;
  return layer;
}

Layer dense(const char* name, size_t in, size_t out, bool relu) {
  Layer layer;
  layer.name = name;
  layer.in = in;
  layer.out = out;
  layer.relu = relu;
  return layer;
}

}  // namespace

Model::Model(uint64_t seed, size_t max_images) : max_images_(max_images) {
  layers_ = {convolution("conv1", 1), convolution("conv2", kChannels),
             convolution("conv3", kChannels), dense("fc1", kPixels * kChannels, kHidden, true),
             dense("fc2", kHidden, kClasses, false)};
  Uniform uniform(seed);
  for (Layer& layer : layers_) {
    // Keeps the variance from layer to layer (He et al., ICCV 2015, section 2.2).
    const float scale = std::sqrt(6.0F / static_cast<float>(layer.in));
    layer.weights.resize(layer.in * layer.out);
    for (float& weight : layer.weights) weight = scale * uniform.next();
    layer.bias.resize(layer.out);
    layer.weight_momentum.resize(layer.weights.size());
    layer.bias_momentum.resize(layer.out);
    layer.patches.resize(max_images * layer.rows * layer.in);
    layer.output.resize(max_images * layer.rows * layer.out);
    layer.output_gradient.resize(layer.output.size());
  }
}

size_t Model::parameters() const {
  size_t count = 0;
  for (const Layer& layer : layers_) count += layer.weights.size() + layer.bias.size();
  return count;
}

void Model::set_input(std::span<const float> pixels) {
  images_ = pixels.size() / kPixels;
  pixels_.assign(pixels.begin(), pixels.end());
}

std::span<const float> Model::input_of(size_t index) const {
  return index == 0 ? std::span<const float>(pixels_) : layers_[index - 1].output;
}

void Model::gather(Layer& layer, std::span<const float> input) const {
  const size_t image = layer.convolution ? kPixels * layer.channels : layer.rows * layer.in;
  for (size_t n = 0; n < images_; ++n) {
    const float* from = input.data() + n * image;
    float* to = layer.patches.data() + n * layer.rows * layer.in;
    if (!layer.convolution) {
      std::copy(from, from + image, to);
      continue;
    }
    for (size_t row = 0; row < layer.rows; ++row) {
      for (size_t column = 0; column < layer.in; ++column) {
        const ptrdiff_t source = source_of(row, column, layer.channels);
        *to++ = source < 0 ? 0.0F : from[source];
      }
    }
  }
}

void Model::forward(size_t index) {
  Layer& layer = layers_[index];
  gather(layer, input_of(index));
  const size_t rows = images_ * layer.rows;
  for (size_t r = 0; r < rows; ++r) {
    std::copy(layer.bias.begin(), layer.bias.end(),
              layer.output.begin() + static_cast<ptrdiff_t>(r * layer.out));
  }
  multiply_add(layer.patches.data(), layer.weights.data(), layer.output.data(), rows, layer.in,
               layer.out);
  if (!layer.relu) return;
  for (size_t i = 0; i < rows * layer.out; ++i) layer.output[i] = std::max(layer.output[i], 0.0F);
}

float Model::loss(std::span<const int> labels) {
  Layer& last = layers_.back();
  float total = 0;
  for (size_t n = 0; n < images_; ++n) {
    const float* score = last.output.data() + n * kClasses;
    float* gradient = last.output_gradient.data() + n * kClasses;
    const float most = *std::max_element(score, score + kClasses);
    float sum = 0;
    for (int c = 0; c < kClasses; ++c) sum += gradient[c] = std::exp(score[c] - most);
    for (int c = 0; c < kClasses; ++c) gradient[c] /= sum;
    const auto label = static_cast<size_t>(labels[n]);
    total -= std::log(std::max(gradient[label], 1e-30F));
    gradient[label] -= 1.0F;
    for (int c = 0; c < kClasses; ++c) gradient[c] /= static_cast<float>(images_);
  }
  return total / static_cast<float>(images_);
}

void Model::backward(size_t index, std::span<float> weight_gradient,
                     std::span<float> bias_gradient) {
  Layer& layer = layers_[index];
  const size_t rows = images_ * layer.rows;
  if (layer.relu) {
    for (size_t i = 0; i < rows * layer.out; ++i) {
      if (layer.output[i] <= 0.0F) layer.output_gradient[i] = 0.0F;
    }
  }
  std::fill(weight_gradient.begin(), weight_gradient.end(), 0.0F);
  std::fill(bias_gradient.begin(), bias_gradient.end(), 0.0F);
  for (size_t r = 0; r < rows; ++r) {
    const float* gradient = layer.output_gradient.data() + r * layer.out;
    for (size_t o = 0; o < layer.out; ++o) bias_gradient[o] += gradient[o];
    multiply_add(layer.patches.data() + r * layer.in, gradient, weight_gradient.data(), layer.in, 1,
                 layer.out);
  }
  if (index == 0) return;
  // Gradient of the patches, then back to where each patch element came from.
  transposed_.resize(layer.weights.size());
  for (size_t i = 0; i < layer.in; ++i) {
    for (size_t o = 0; o < layer.out; ++o)
      transposed_[o * layer.in + i] = layer.weights[i * layer.out + o];
  }
  patch_gradient_.assign(rows * layer.in, 0.0F);
  multiply_add(layer.output_gradient.data(), transposed_.data(), patch_gradient_.data(), rows,
               layer.out, layer.in);
  std::vector<float>& below = layers_[index - 1].output_gradient;
  if (!layer.convolution) {
    std::copy(patch_gradient_.begin(), patch_gradient_.end(), below.begin());
    return;
  }
  std::fill(below.begin(), below.end(), 0.0F);
  const size_t image = kPixels * layer.channels;
  for (size_t n = 0; n < images_; ++n) {
    const float* from = patch_gradient_.data() + n * layer.rows * layer.in;
    for (size_t row = 0; row < layer.rows; ++row) {
      for (size_t column = 0; column < layer.in; ++column, ++from) {
        const ptrdiff_t source = source_of(row, column, layer.channels);
        if (source >= 0) below[n * image + static_cast<size_t>(source)] += *from;
      }
    }
  }
}

void Model::apply(size_t index, std::span<const float> weight_gradient,
                  std::span<const float> bias_gradient) {
  const auto step = [](std::vector<float>& values, std::vector<float>& momentum,
                       std::span<const float> gradient) {
    for (size_t i = 0; i < values.size(); ++i) {
      momentum[i] = kMomentum * momentum[i] + gradient[i];
      values[i] -= kLearningRate * momentum[i];
    }
  };
  Layer& layer = layers_[index];
  step(layer.weights, layer.weight_momentum, weight_gradient);
  step(layer.bias, layer.bias_momentum, bias_gradient);
}

size_t Model::right(std::span<const int> labels) const {
  size_t found = 0;
  for (size_t n = 0; n < labels.size(); ++n) {
    const float* score = layers_.back().output.data() + n * kClasses;
    found += std::max_element(score, score + kClasses) - score == labels[n];
  }
  return found;
}

double Model::accuracy(const Images& images) {
  size_t found = 0;
  for (size_t first = 0; first < images.count(); first += max_images_) {
    const size_t count = std::min(max_images_, images.count() - first);
    set_input(std::span(images.pixels).subspan(first * kPixels, count * kPixels));
    for (size_t l = 0; l < layers_.size(); ++l) forward(l);
    found += right(std::span(images.labels).subspan(first, count));
  }
  return static_cast<double>(found) / static_cast<double>(images.count());
}

std::vector<float> Model::weights() const {
  std::vector<float> all;
  for (const Layer& layer : layers_) {
    all.insert(all.end(), layer.weights.begin(), layer.weights.end());
    all.insert(all.end(), layer.bias.begin(), layer.bias.end());
  }
  return all;
}

void average(std::span<const std::vector<float>> gradients, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    float sum = gradients[0][i];
    for (size_t worker = 1; worker < gradients.size(); ++worker) sum += gradients[worker][i];
    out[i] = sum / static_cast<float>(gradients.size());
  }
}

}  // namespace digits
