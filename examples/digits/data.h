// The handwritten digits (DATA.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace digits {

inline constexpr int kSide = 8;
inline constexpr int kPixels = kSide * kSide;
inline constexpr int kClasses = 10;

struct Images {
  std::vector<float> pixels;  // count x kPixels, each 0 to 1
  std::vector<int> labels;
  size_t count() const { return labels.size(); }
};

struct Data {
  Images train;  // in a fixed order that mixes the writers
  Images test;   // every fifth image
};

// Empty on success, else what is wrong: "FILE:LINE: ...".
std::string load(const std::string& path, Data& data);

}  // namespace digits
