#include "examples/digits/data.h"

#include <charconv>
#include <fstream>

namespace digits {
namespace {

constexpr int kBrightest = 16;

// Reads one number up to a comma or the line's end; moves `at` behind it.
bool read_number(const std::string& line, size_t& at, int most, int& out) {
  const char* end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data() + at, end, out);
  if (error != std::errc{} || out < 0 || out > most) return false;
  if (stop != end && *stop != ',') return false;
  at = static_cast<size_t>(stop - line.data()) + (stop != end);
  return true;
}

}  // namespace

std::string load(const std::string& path, Data& data) {
  std::ifstream file(path);
  if (!file) return path + ": cannot be read";
  int number = 0;
  for (std::string line; std::getline(file, line); ++number) {
    const std::string where = path + ":" + std::to_string(number + 1) + ": ";
    Images& images = number % 5 == 4 ? data.test : data.train;
    size_t at = 0;
    for (int i = 0; i < kPixels; ++i) {
      int pixel = 0;
      if (!read_number(line, at, kBrightest, pixel)) {
        return where + "expected 64 pixels from 0 to 16 and a digit, separated by commas";
      }
      images.pixels.push_back(static_cast<float>(pixel) / kBrightest);
    }
    int label = 0;
    if (!read_number(line, at, kClasses - 1, label) || at != line.size()) {
      return where + "expected a digit behind 64 pixels";
    }
    images.labels.push_back(label);
  }
  return data.test.count() == 0 ? path + ": no images" : "";
}

}  // namespace digits
