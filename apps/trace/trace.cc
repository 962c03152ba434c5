#include "apps/trace/trace.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <unordered_map>

#include "apps/trace/order.h"
#include "apps/trace/shipped.h"

namespace mercury {
namespace {

enum Column : size_t {
  kLayerIndex,
  kName,
  kNumel,
  kDtype,
  kForward,
  kBackward,
  kPriority,
  kUpdate,
  kDepends,
  kColumns
};
constexpr size_t kRequired = kUpdate;  // the first optional one
constexpr std::array<std::string_view, kColumns> kColumnNames = {
    "layer_index",      "name",     "numel",     "dtype",  "forward_pass_ns",
    "backward_pass_ns", "priority", "update_ns", "depends"};
constexpr size_t kMaxNameLength = 127;

Error bad(std::string reason) { return Error(Errc::kConfig, std::move(reason)); }
std::string in_quotes(std::string_view text) {
  std::string result(1, '\'');
  result.append(text.substr(0, 80)).append(1, '\'');
  std::replace_if(
      result.begin(), result.end(), [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; }, '?');
  return result;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Result<uint64_t> number(std::string_view column, std::string_view text, uint64_t low,
                        uint64_t high) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const std::string what = std::string(column) + " " + in_quotes(text);
  if (error == std::errc::invalid_argument || stop != end) {
    const bool negative = text.size() > 1 && text[0] == '-';
    return bad(what + (negative ? " is negative" : " is not a whole number"));
  }
  if (error == std::errc::result_out_of_range || value > high) {
    return bad(what + " is more than " + std::to_string(high));
  }
  if (value < low) return bad(what + " is less than " + std::to_string(low));
  return value;
}

Result<Dtype> dtype_of(std::string_view text) {
  std::string known;
  for (int i = 0; i < kDtypeCount; ++i) {
    const auto type = static_cast<Dtype>(i);
    if (text == name_of(type)) return type;
    known.append(i == 0 ? "" : ", ").append(name_of(type));
  }
  return bad("unknown dtype " + in_quotes(text) + ": one of " + known);
}

bool is_name(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_./:-").find(c) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= kMaxNameLength &&
         std::all_of(text.begin(), text.end(), allowed);
}

// What one file holds, line by line.
class Reader {
 public:
  // Takes a line; an error is without file and line.
  Status line(std::string_view text) {
    ++line_;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (width_ == 0 && text.starts_with('#')) return {};
    if (text.find('"') != std::string_view::npos) {
      return bad("a quote: quoting is not supported, and no field needs it");
    }
    if (text.empty()) return bad("an empty line");
    return width_ == 0 ? header(text) : row(text);
  }
  Result<Trace> finish() {
    if (width_ == 0) return bad(std::to_string(line_ + 1) + ": no line of column names");
    if (rows_.empty()) return bad(std::to_string(line_ + 1) + ": no tensors");
    if (has(kDepends)) return order_by_dependency(std::move(rows_), depends_);
    std::stable_sort(rows_.begin(), rows_.end(), [](const TraceTensor& a, const TraceTensor& b) {
      return a.layer_index < b.layer_index;
    });
    return Trace{std::move(rows_)};
  }
  uint32_t line_number() const { return line_; }

 private:
  static constexpr size_t kAbsent = ~size_t{0};

  bool has(Column column) const { return position_[column] != kAbsent; }

  Status header(std::string_view text) {
    position_.fill(kAbsent);
    const std::vector<std::string_view> names = split(text, ',');
    for (size_t i = 0; i < names.size(); ++i) {
      const auto known = std::find(kColumnNames.begin(), kColumnNames.end(), names[i]);
      if (known == kColumnNames.end()) return bad("unknown column " + in_quotes(names[i]));
      size_t& position = position_[static_cast<size_t>(known - kColumnNames.begin())];
      if (position != kAbsent) return bad("column " + in_quotes(names[i]) + " stands twice");
      position = i;
    }
    for (size_t column = 0; column < kRequired; ++column) {
      if (position_[column] == kAbsent) {
        return bad("column " + in_quotes(kColumnNames[column]) + " is missing");
      }
    }
    width_ = names.size();
    return {};
  }

  Status row(std::string_view text) {
    if (rows_.size() == kMaxTraceTensors) {
      return bad("more than " + std::to_string(kMaxTraceTensors) + " tensors");
    }
    fields_ = split(text, ',');
    if (fields_.size() != width_) {
      return bad(std::to_string(fields_.size()) + " fields, but " + std::to_string(width_) +
                 " columns");
    }
    TraceTensor tensor;
    tensor.line = line_;
    if (Status ok = name(tensor); !ok) return ok;
    if (Status ok = size(tensor); !ok) return ok;
    uint64_t layer_index = 0, priority = 0;
    if (Status ok = take(kLayerIndex, ~uint32_t{0}, layer_index); !ok) return ok;
    if (Status ok = take(kForward, kMaxTraceTimeNs, tensor.forward_ns); !ok) return ok;
    if (Status ok = take(kBackward, kMaxTraceTimeNs, tensor.backward_ns); !ok) return ok;
    if (Status ok = take(kPriority, kPriorities - 1, priority); !ok) return ok;
    if (has(kUpdate)) {
      if (Status ok = take(kUpdate, kMaxTraceTimeNs, tensor.update_ns); !ok) return ok;
    }
    tensor.layer_index = static_cast<uint32_t>(layer_index);
    tensor.priority = static_cast<uint16_t>(priority);
    depends_.emplace_back();
    if (has(kDepends) && !field(kDepends).empty()) {
      for (std::string_view name : split(field(kDepends), ';')) depends_.back().emplace_back(name);
    }
    rows_.push_back(std::move(tensor));
    return {};
  }

  std::string_view field(Column column) const { return fields_[position_[column]]; }
  Status take(Column column, uint64_t high, uint64_t& out) const {
    const Result<uint64_t> value = number(kColumnNames[column], field(column), 0, high);
    if (!value) return value.error();
    out = *value;
    return {};
  }
  Status name(TraceTensor& tensor) {
    tensor.name = field(kName);
    if (!is_name(tensor.name)) {
      return bad("name " + in_quotes(tensor.name) + " is not 1 to " +
                 std::to_string(kMaxNameLength) + " of [A-Za-z0-9_./:-]");
    }
    const auto [first, added] = line_of_.emplace(tensor.name, line_);
    if (added) return {};
    return bad("tensor " + in_quotes(tensor.name) + " stands in line " +
               std::to_string(first->second) + " already");
  }
  Status size(TraceTensor& tensor) const {
    const Result<Dtype> dtype = dtype_of(field(kDtype));
    if (!dtype) return dtype.error();
    tensor.dtype = *dtype;
    const Result<uint64_t> numel = number(kColumnNames[kNumel], field(kNumel), 1,
                                          kMaxTraceTensorBytes / size_of(tensor.dtype));
    if (!numel) return numel.error();
    tensor.numel = *numel;
    return {};
  }

  uint32_t line_ = 0;
  size_t width_ = 0;  // columns; 0 before the line that names them
  std::array<size_t, kColumns> position_{};
  std::vector<std::string_view> fields_;
  std::vector<TraceTensor> rows_;
  std::vector<std::vector<std::string>> depends_;  // by row
  std::unordered_map<std::string, uint32_t> line_of_;
};

template <class Number>
uint64_t sum(const std::vector<TraceTensor>& tensors, Number number) {
  uint64_t total = 0;
  for (const TraceTensor& tensor : tensors) total += number(tensor);
  return total;
}

}  // namespace

uint64_t Trace::bytes() const {
  return sum(tensors, [](const TraceTensor& t) { return t.bytes(); });
}
uint64_t Trace::forward_ns() const {
  return sum(tensors, [](const TraceTensor& t) { return t.forward_ns; });
}
uint64_t Trace::backward_ns() const {
  return sum(tensors, [](const TraceTensor& t) { return t.backward_ns; });
}

Result<Trace> parse_trace(std::string_view text, std::string_view file) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // as spreadsheets begin UTF-8
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::string where = std::string(file) + ":";
  Reader reader;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (Status ok = reader.line(text.substr(0, end)); !ok) {
      return bad(where + std::to_string(reader.line_number()) + ": " + ok.error().message);
    }
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  Result<Trace> trace = reader.finish();
  if (!trace) return bad(where + trace.error().message);
  return trace;
}

Result<Trace> read_trace(const std::string& path) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "re"));
  if (!file && errno == ENOENT && path.find('/') == std::string::npos) {
    std::string models;
    for (const std::string& model : shipped_models()) models += ", " + model;
    return Error::system(ENOENT, path + ": neither a trace file nor one of " + models.substr(2));
  }
  if (!file) return Error::system(errno, path);
  std::string text;
  std::array<char, 65536> block;
  while (const size_t got = std::fread(block.data(), 1, block.size(), file.get())) {
    text.append(block.data(), got);
    if (text.size() > kMaxTraceFileBytes) {
      return bad(path + ": more than " + std::to_string(kMaxTraceFileBytes) + " bytes");
    }
  }
  if (std::ferror(file.get())) return Error::system(errno, path);
  return parse_trace(text, path);
}

}  // namespace mercury
