// One row for each key of the configuration. Private to apps/stackd.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "apps/stackd/config.h"

namespace mercury {

// Of numbers the unit; of strings, and each string of a list, the form.
enum class Unit : uint8_t { kNone, kBytes, kNanoseconds, kBitsPerSecond, kIp, kIpPrefix, kCpu };

struct ConfigRow {
  const char* section;
  const char* key;
  std::variant<bool StackdConfig::*, uint64_t StackdConfig::*, std::string StackdConfig::*,
               std::vector<std::string> StackdConfig::*>
      member;
  Unit unit;
  uint64_t min;  // numbers: inclusive
  uint64_t max;
  const char* choices;  // strings: "a|b|c", or null for any
  const char* help;
};

std::span<const ConfigRow> config_rows();

// "64KiB", "10ms", "200Mbit", "5". Nothing: not such a quantity.
bool parse_quantity(const std::string& text, Unit unit, uint64_t& out);
// Whether a string has the form that `unit` names; an empty one always does (none given).
bool has_form(const std::string& text, Unit unit);
std::string print_quantity(uint64_t value, Unit unit);
// What a row takes, for messages: "a size from 1KiB to 1GiB".
std::string expected(const ConfigRow& row);

}  // namespace mercury
