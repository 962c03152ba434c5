// One row for each key of the configuration. Private to apps/stackd.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "apps/stackd/config.h"

namespace mercury {

enum class Unit : uint8_t { kNone, kBytes, kNanoseconds, kBitsPerSecond };  // of numbers

struct ConfigRow {
  const char* section;
  const char* key;
  std::variant<bool StackdConfig::*, uint64_t StackdConfig::*, std::string StackdConfig::*,
               IpAddress StackdConfig::*, std::vector<IpPrefix> StackdConfig::*,
               std::vector<uint32_t> StackdConfig::*>
      member;
  Unit unit;
  uint64_t min;  // numbers: inclusive
  uint64_t max;
  const char* choices;  // strings: "a|b|c", or null for any
  const char* help;
  bool secret = false;  // a string that is not printed
};

std::span<const ConfigRow> config_rows();

// "64KiB", "10ms", "200Mbps" (transport/base/quantity.h), "5". Nothing: not such a quantity.
std::optional<uint64_t> parse_quantity(const std::string& text, Unit unit);
std::string print_quantity(uint64_t value, Unit unit);
// "10.0.0.1", or nothing for none; "10.0.0.1/24", without a length all bits; a CPU's number.
bool parse_value(const std::string& text, IpAddress& out);
bool parse_value(const std::string& text, IpPrefix& out);
bool parse_value(const std::string& text, uint32_t& out);
std::string print_value(const IpAddress& ip);
std::string print_value(const IpPrefix& prefix);
std::string print_value(uint32_t cpu);
// What a row takes, for messages: "a size from 1KiB to 1GiB".
std::string expected(const ConfigRow& row);

}  // namespace mercury
