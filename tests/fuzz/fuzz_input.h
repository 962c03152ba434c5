// What every fuzzer here shares: reading choices out of the input, and dying when something that
// must hold does not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

namespace mercury::fuzz {

// libFuzzer keeps the input of a process that aborts; the corpus test fails on it.
inline void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// Choices from an input. Past its end everything is zero, so every prefix of an input is one too.
class Input {
 public:
  Input() = default;
  Input(const uint8_t* data, size_t size) : left_(data, size) {}
  explicit Input(std::span<const uint8_t> data) : left_(data) {}

  bool empty() const { return left_.empty(); }
  size_t size() const { return left_.size(); }

  template <class Number>
  Number take() {
    Number value{};
    const size_t bytes = std::min(sizeof value, left_.size());
    if (bytes > 0) std::memcpy(&value, left_.data(), bytes);
    left_ = left_.subspan(bytes);
    return value;
  }
  uint8_t byte() { return take<uint8_t>(); }
  bool flag() { return (byte() & 1) != 0; }
  // 0 to count - 1
  size_t below(size_t count) { return count == 0 ? 0 : take<uint16_t>() % count; }
  std::span<const uint8_t> bytes(size_t most) {
    const std::span<const uint8_t> taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  std::span<const uint8_t> rest() { return bytes(left_.size()); }
  std::string text(size_t most) {
    const std::span<const uint8_t> taken = bytes(most);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

 private:
  std::span<const uint8_t> left_;
};

// An input that is a sequence of records: one byte of length, then so many bytes. A record's first
// byte says what it does; record_mutator.cc moves whole records.
inline Input next_record(Input& input) { return Input(input.bytes(input.byte())); }

}  // namespace mercury::fuzz
