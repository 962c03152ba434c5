// mercury-run: runs a program whose stream sockets go over Mercury. docs/sockets.md.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/run/check.h"
#include "apps/run/rules_file.h"

namespace {

using mercury::Result;

struct RunOptions {
  std::string rules;
  std::string socket;
  std::string on_error;
  std::string check;
  std::vector<std::string> command;
};

int fail(const std::string& text, int status = 1) {
  std::fprintf(stderr, "mercury-run: %s\n", text.c_str());
  return status;
}

std::optional<int> parse(int argc, char** argv, RunOptions& options) {
  CLI::App app(
      "Runs a program whose stream sockets go over Mercury where that reaches, and through the "
      "kernel elsewhere. docs/sockets.md says what works.\n"
      "  mercury-run [OPTIONS] PROGRAM [ARGUMENTS...]\n"
      "  mercury-run --check PROGRAM\n",
      "mercury-run");
  app.add_option("--rules", options.rules,
                 "File that says which programs, addresses and ports go through Mercury (default: "
                 "all but ssh)");
  app.add_option("--socket", options.socket,
                 "Where mercury-stackd serves sockets (default: $MERCURY_PRELOAD_SOCKET, then "
                 "/run/mercury/sockets.sock)");
  app.add_option("--on-error", options.on_error,
                 "Without a daemon: kernel (default; says so once), or fail")
      ->check(CLI::IsMember({"kernel", "fail"}));
  app.add_option("--check", options.check,
                 "Runs nothing; says what of PROGRAM will not go over Mercury, with status 1 if "
                 "anything");
  app.prefix_command();
  if (const auto status = mercury::read_command_line(app, argc, argv)) return status;
  options.command = app.remaining();
  if (!options.command.empty() && options.command.front() == "--") {
    options.command.erase(options.command.begin());
  } else if (!options.command.empty() && options.command.front().starts_with("-")) {
    return fail("unknown option " + options.command.front() + "; see --help", mercury::kWrongUsage);
  }
  if (options.command.empty() == options.check.empty()) {
    return fail("expected a program to run, or one to --check; see --help", mercury::kWrongUsage);
  }
  return std::nullopt;
}

// Beside an installed program; of one that was only built, in the build folder.
Result<std::string> preload_path() {
  std::error_code none;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", none);
  const auto installed = (program.parent_path() / INSTALLED_PRELOAD).lexically_normal();
  for (const std::string& path : {installed.string(), std::string(PRELOAD)}) {
    if (::access(path.c_str(), R_OK) != 0) continue;
    if (path.find_first_of(": ") == path.npos) return path;
    return mercury::Error(mercury::Errc::kUnsupported, "LD_PRELOAD cannot name " + path +
                                                           ": expected a path without colons "
                                                           "and spaces; install Mercury elsewhere");
  }
  return mercury::Error(mercury::Errc::kNotFound, "there is no " + installed.string() +
                                                      ": install libmercury_preload.so there");
}

void set_variable(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): there is one thread
}

// Before others: whatever they do with sockets, they do with Mercury's.
void set_preload(const std::string& path) {
  const char* const before = std::getenv("LD_PRELOAD");  // NOLINT(concurrency-mt-unsafe)
  set_variable("LD_PRELOAD", before && *before ? path + ":" + before : path);
}

int check(const std::string& name) {
  const auto path = mercury::find_program(name);
  if (!path) return fail(path.error().message);
  const auto found = mercury::what_will_not_work(*path);
  if (!found) return fail(found.error().message);
  for (const std::string& finding : *found) std::printf("%s\n", finding.c_str());
  if (found->empty()) std::printf("%s: nothing is in the way\n", path->c_str());
  return found->empty() ? 0 : 1;
}

int run(const RunOptions& options) {
  const auto preload = preload_path();
  if (!preload) return fail(preload.error().message);
  if (!options.rules.empty()) {
    const auto rules = mercury::read_rules_file(options.rules);
    if (!rules) return fail(rules.error().message);
    set_variable("MERCURY_PRELOAD_RULES", *rules);
  }
  if (!options.socket.empty()) set_variable("MERCURY_PRELOAD_SOCKET", options.socket);
  if (!options.on_error.empty()) set_variable("MERCURY_PRELOAD_ON_ERROR", options.on_error);
  // Its sockets would be the kernel's without a word.
  if (const auto path = mercury::find_program(options.command.front())) {
    const auto found = mercury::what_will_not_work(*path);
    if (found) {
      for (const std::string& finding : *found) fail("warning: " + finding);
    }
  }
  set_preload(*preload);
  std::vector<char*> arguments;
  for (const std::string& word : options.command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  return fail("cannot run " + options.command.front() + ": " + mercury::errno_text(errno));
}

}  // namespace

// Out of memory, and a broken description of the options, end the program.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  RunOptions options;
  if (const auto status = parse(argc, argv, options)) return *status;
  return options.check.empty() ? run(options) : check(options.check);
}
