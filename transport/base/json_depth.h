// Bounds how deep input may nest before anything is built of it. The JSON library's parser calls
// itself once per level, and who sends a message must not choose how deep our stack grows.
//
// Usage: JsonDepth<Json> depth(4); Json::sax_parse(first, last, &depth, format) is false for what
// nests deeper, and for what is no message of that format. `Json` is nlohmann::json, which this
// header need not know.
#pragma once

#include <cstddef>
#include <string>

namespace mercury {

template <class Json>
class JsonDepth {
 public:
  explicit JsonDepth(int most) : most_(most) {}  // a map of numbers has depth 1

  // The library's names; none keeps anything.
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(typename Json::number_integer_t) { return true; }
  bool number_unsigned(typename Json::number_unsigned_t) { return true; }
  bool number_float(typename Json::number_float_t, const typename Json::string_t&) { return true; }
  bool string(typename Json::string_t&) { return true; }
  bool binary(typename Json::binary_t&) { return true; }
  bool key(typename Json::string_t&) { return true; }
  bool start_object(std::size_t) { return enter(); }
  bool end_object() { return leave(); }
  bool start_array(std::size_t) { return enter(); }
  bool end_array() { return leave(); }
  bool parse_error(std::size_t, const std::string&, const typename Json::exception&) {
    return false;
  }

 private:
  bool enter() { return ++depth_ <= most_; }
  bool leave() {
    --depth_;
    return true;
  }

  const int most_;
  int depth_ = 0;
};

}  // namespace mercury
