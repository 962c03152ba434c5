#include "apps/command_line.h"

namespace mercury {

std::optional<int> read_command_line(CLI::App& app, int argc, const char* const* argv) {
  app.set_version_flag("--version", MERCURY_VERSION);
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    command->set_version_flag("--version", MERCURY_VERSION);
  }
  app.footer("Exit status: 0 done, 1 failed, 2 wrong usage.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 has a status for each of its errors.
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  }
  return std::nullopt;
}

}  // namespace mercury
