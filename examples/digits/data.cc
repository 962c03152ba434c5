#include "examples/digits/data.h"

#include <charconv>
#include <fstream>
#include <numeric>

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

// The file is ordered by writer, so neighbouring images are alike and batches of them teach little.
// A stride that shares no divisor with the count meets every image once.
Images mixed(const Images& images) {
  Images out;
  const size_t count = images.count();
  size_t stride = 929;
  while (std::gcd(stride, count) != 1) ++stride;
  for (size_t n = 0; n < count; ++n) {
    const size_t from = n * stride % count;
    const auto pixels = images.pixels.begin() + static_cast<ptrdiff_t>(from * kPixels);
    out.pixels.insert(out.pixels.end(), pixels, pixels + kPixels);
    out.labels.push_back(images.labels[from]);
  }
  return out;
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
  if (data.test.count() == 0) return path + ": no images";
  data.train = mixed(data.train);
  return "";
}

}  // namespace digits
