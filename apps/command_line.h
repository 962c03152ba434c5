// What all of Mercury's programs do with their command line.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "transport/base/result.h"

namespace mercury {

// 0: done. 1: failed, with why on standard error.
inline constexpr int kWrongUsage = 2;

// Adds --version, and the exit statuses to --help; then reads. A value is the status to leave with
// (0 after --help and --version, kWrongUsage after a message on standard error); none: go on.
std::optional<int> read_command_line(CLI::App& app, int argc, const char* const* argv);

// A command's own option for a value that `parse` reads into `value`.
template <class Value>
CLI::Option* add_parsed(CLI::App& command, const std::string& name, Value& value,
                        Result<Value> (*parse)(std::string_view), const std::string& help) {
  // CLI11 checks a value where it reads it; ours is read then, and nothing is left to convert.
  const auto read = [&value, parse](const std::string& text) {
    Result<Value> parsed = parse(text);
    if (!parsed) return parsed.error().message;
    value = std::move(*parsed);
    return std::string();
  };
  return command
      .add_option_function<std::string>(
          name, [](const std::string&) {}, help)
      ->check(CLI::Validator(read, ""));
}

}  // namespace mercury
