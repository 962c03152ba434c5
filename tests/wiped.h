// Whether a secret is gone from where it was. For tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

namespace mercury {

// The room of a string, which whoever owns it then, moved or not, has not given back: longer than
// what a string holds in itself.
class Room {
 public:
  explicit Room(const std::string& of) : data_(of.data()), bytes_(of.capacity()) {}
  bool is_wiped() const {
    return std::all_of(data_, data_ + bytes_, [](char byte) { return byte == 0; });
  }

 private:
  const char* data_;
  size_t bytes_;
};

inline std::string long_secret() { return std::string(100, 's') + "ecret"; }

}  // namespace mercury
