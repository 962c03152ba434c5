// Messages as bytes that never change, written in hexadecimal: what a version before sent.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace mercury::test {

struct Golden {
  const char* kind;
  const char* hex;
};

inline std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

}  // namespace mercury::test
