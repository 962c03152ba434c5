// What all of Mercury's programs do with their command line.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace mercury {

// 0: done. 1: failed, with why on standard error.
inline constexpr int kWrongUsage = 2;

// Adds --version, and the exit statuses to --help; then reads. A value is the status to leave with
// (0 after --help and --version, kWrongUsage after a message on standard error); none: go on.
std::optional<int> read_command_line(CLI::App& app, int argc, const char* const* argv);

}  // namespace mercury
