#include "shim/pslite/summed.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace mercury_van {
namespace {

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

constexpr char kMode[] = "MERCURY_PSLITE_MODE", kKeys[] = "MERCURY_PSLITE_KEYS",
               kCommands[] = "MERCURY_PSLITE_COMMANDS", kFirst[] = "MERCURY_PSLITE_FIRST";

// One application's keys are summed: rounds of two would be told apart by nothing.
constexpr int kSummedApp = 0;

bool read_number(const char** at, uint64_t* out) {
  if (**at < '0' || **at > '9') return false;
  char* end = nullptr;
  errno = 0;
  *out = std::strtoull(*at, &end, 10);
  *at = end;
  return errno == 0;
}

// "3", "0-99", "0-99,200"
bool read_ranges(const char* text, Ranges* out) {
  out->clear();
  while (true) {
    uint64_t first = 0;
    if (!read_number(&text, &first)) return false;
    uint64_t last = first;
    if (*text == '-') {
      ++text;
      if (!read_number(&text, &last) || last < first) return false;
    }
    out->emplace_back(first, last);
    if (*text == 0) return true;
    if (*text++ != ',') return false;
  }
}

bool is_in(const Ranges& ranges, uint64_t number) {
  for (const auto& range : ranges) {
    if (range.first <= number && number <= range.second) return true;
  }
  return false;
}

// The index of the word in `words`, or -1.
int index_of(const std::string& word, const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == word) return static_cast<int>(i);
  }
  return -1;
}

std::string wrong(const char* name, const char* value, const std::string& expected) {
  return std::string(name) + " is '" + value + "': expected " + expected;
}

std::string word_of(uint64_t key) { return "key " + std::to_string(key); }

std::string type_problem(const KeyRequest& request, const std::vector<KeyPart>& parts) {
  if (request.type == ValueType::kNone) {
    return "command " + std::to_string(request.command) + " pushes " + word_of(parts[0].key) +
           " in a type that is not summed: expected float, double, int32 or int64; leave the " +
           "command out of " + kCommands;
  }
  for (const KeyPart& part : parts) {
    if (part.bytes > 0 && part.bytes % bytes_of(request.type) == 0) continue;
    return word_of(part.key) + " has " + std::to_string(part.bytes) +
           " bytes: expected one value or more of " + std::to_string(bytes_of(request.type));
  }
  return "";
}

}  // namespace

const char* name_of(Mode mode) {
  if (mode == Mode::kAggregate) return "aggregate";
  return mode == Mode::kNotify ? "notify" : "transparent";
}

size_t bytes_of(ValueType type) {
  return type == ValueType::kFloat32 || type == ValueType::kInt32 ? 4 : 8;
}

ValueType type_of_command(int command) {
  // (0 + t)(0 + t + 1) / 2 + t for the types' numbers t.
  switch (command) {
    case 0:
      return ValueType::kFloat32;
    case 2:
      return ValueType::kFloat64;
    case 14:
      return ValueType::kInt32;
    case 27:
      return ValueType::kInt64;
    default:
      return ValueType::kNone;
  }
}

std::string read_rule(const std::function<const char*(const char*)>& value_of, SumRule* out) {
  const auto set = [&value_of](const char* name) {
    const char* const value = value_of(name);
    return value != nullptr && *value != 0 ? value : nullptr;
  };
  *out = SumRule();
  if (const char* const value = set(kMode)) {
    const int mode = index_of(value, {"transparent", "aggregate", "notify"});
    if (mode < 0) return wrong(kMode, value, "transparent, aggregate or notify");
    out->mode = static_cast<Mode>(mode);
  }
  const char* const keys = set(kKeys);
  if (!read_ranges(keys ? keys : "0-18446744073709551615", &out->keys)) {
    return wrong(kKeys, keys, "numbers and ranges, such as 0-99,200");
  }
  const char* const commands = set(kCommands);
  if (!read_ranges(commands ? commands : "0", &out->commands)) {
    return wrong(kCommands, commands, "numbers and ranges, such as 0,2");
  }
  if (const char* const value = set(kFirst)) {
    const int first = index_of(value, {"none", "rank0", "all"});
    if (first < 0) return wrong(kFirst, value, "none, rank0 or all");
    out->first_values = static_cast<FirstValues>(first);
  }
  return "";
}

uint64_t digest_of(const SumRule& rule) {
  std::vector<uint64_t> words = {static_cast<uint64_t>(rule.mode)};
  if (rule.mode != Mode::kTransparent) {
    words.push_back(static_cast<uint64_t>(rule.first_values));
    for (const Ranges* const ranges : {&rule.keys, &rule.commands}) {
      words.push_back(ranges->size());
      for (const auto& range : *ranges) {
        words.push_back(range.first);
        words.push_back(range.second);
      }
    }
  }
  // FNV-1a, of 64 bits.
  uint64_t digest = 0xcbf29ce484222325;
  for (const uint64_t word : words) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      digest = (digest ^ (word >> shift & 0xff)) * 0x100000001b3;
    }
  }
  return digest;
}

std::string parts_of(const KeyRequest& request, std::vector<KeyPart>* out) {
  out->clear();
  if (request.data.size() < 2) return request.data.empty() ? "" : "a request without values";
  const Bytes& keys = request.data[0];
  const Bytes& values = request.data[1];
  const size_t count = keys.size / sizeof(uint64_t);
  const bool has_lengths = request.data.size() > 2 && request.data[2].size > 0;
  if (has_lengths && request.data[2].size != count * sizeof(int)) return "lengths of other keys";
  if (count == 0) return "";
  const size_t each = request.value_bytes;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    KeyPart part;
    std::memcpy(&part.key, keys.data + i * sizeof part.key, sizeof part.key);
    part.length = static_cast<int>(values.size / count / each);
    if (has_lengths) {
      std::memcpy(&part.length, request.data[2].data + i * sizeof part.length, sizeof part.length);
    }
    if (part.length < 0) return word_of(part.key) + " has a negative length";
    part.at = at;
    part.bytes = static_cast<size_t>(part.length) * each;
    at += part.bytes;
    out->push_back(part);
  }
  // Pulls may say the lengths that they expect, without any values.
  if (request.push && at != values.size) {
    return word_of(out->front().key) + " and those after it have " + std::to_string(at) +
           " bytes by their lengths, and " + std::to_string(values.size) + " are pushed";
  }
  return "";
}

bool SumChooser::is_summed(const KeyRequest& request, std::vector<KeyPart>* parts,
                           std::string* error) {
  error->clear();
  if (rule_.mode == Mode::kTransparent || request.app != kSummedApp) return false;
  if (request.data.size() < 2 || request.data[0].size == 0) return false;
  if (!request.push) {
    if (rule_.mode != Mode::kAggregate) return false;
    *error = parts_of(request, parts);
    return error->empty() && is_pull_summed(*parts, error);
  }
  if (request.command < 0 || !is_in(rule_.commands, static_cast<uint64_t>(request.command)) ||
      request.data[1].size == 0) {
    return false;
  }
  *error = parts_of(request, parts);
  return error->empty() && is_push_summed(request, *parts, error);
}

bool SumChooser::has_first_values() const {
  return rule_.first_values == FirstValues::kAll ||
         (rule_.first_values == FirstValues::kRankZero && rank_ == 0);
}

bool SumChooser::is_push_summed(const KeyRequest& request, const std::vector<KeyPart>& parts,
                                std::string* error) {
  size_t named = 0, first = 0;
  for (const KeyPart& part : parts) {
    if (!is_in(rule_.keys, part.key - request.first_key)) continue;
    ++named;
    const auto known = known_.find(part.key);
    if (known == known_.end()) {
      ++first;
    } else if (known->second.customer != request.customer) {
      *error = word_of(part.key) + " is pushed by customers " +
               std::to_string(known->second.customer) + " and " + std::to_string(request.customer) +
               " of one worker: a round has one push of each worker";
      return false;
    }
  }
  if (named == 0) return false;
  const bool are_first_values = has_first_values() && first > 0;
  if (named < parts.size() || (are_first_values && first < parts.size())) {
    *error = word_of(parts[0].key) + " is pushed together with keys that " +
             (named < parts.size() ? std::string(kKeys) + " does not name" : "were pushed before") +
             ": push them apart";
    return false;
  }
  *error = type_problem(request, parts);
  if (!error->empty()) return false;
  for (const KeyPart& part : parts) {
    Known& known = known_[part.key];
    known.customer = request.customer;
    known.has_contributed = known.has_contributed || !are_first_values;
  }
  return !are_first_values;
}

bool SumChooser::is_pull_summed(const std::vector<KeyPart>& parts, std::string* error) const {
  size_t summed = 0;
  for (const KeyPart& part : parts) {
    const auto known = known_.find(part.key);
    if (known != known_.end() && known->second.has_contributed) ++summed;
  }
  if (summed > 0 && summed < parts.size()) {
    *error = word_of(parts[0].key) +
             " is pulled together with keys of which some have sums and some have not: pull " +
             "them apart";
    return false;
  }
  return summed > 0;
}

}  // namespace mercury_van
