// mercury-stackd: the daemon that each host runs.
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <systemd/sd-daemon.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/stackd/config.h"
#include "apps/stackd/daemon.h"
#include "apps/stackd/descriptors.h"
#include "apps/stackd/host_builder.h"
#include "apps/stackd/log.h"

namespace {

constexpr char kSystemConfig[] = "/etc/mercury/stackd.toml";

int fail(const mercury::Error& error, int status = 1) {
  mercury::log_fatal(error.message);
  return status;
}

void provide_descriptors(const mercury::StackdConfig& config) {
  if (mercury::Status raised = mercury::raise_descriptor_limit(); !raised) {
    spdlog::warn("{}", raised.error().message);
  }
  const std::string lacking =
      mercury::descriptors_lacking(config, mercury::descriptor_limit().soft);
  if (!lacking.empty()) spdlog::warn("{}", lacking);
  const uint64_t limit = mercury::descriptor_limit().soft;
  const mercury::SocketRoom room = mercury::socket_room(config, limit);
  if (!config.sockets_serve) return;
  if (room.descriptors < config.sockets_max_connections) {
    spdlog::info(
        "{} of sockets.max_connections = {} fit into {} descriptors (ulimit -n); more are the "
        "kernel's",
        room.descriptors, config.sockets_max_connections, limit);
  }
  if (room.programs < config.sockets_max_programs) {
    spdlog::info(
        "{} of sockets.max_programs = {} fit into {} descriptors (ulimit -n); more are not served",
        room.programs, config.sockets_max_programs, limit);
  }
}

// A program that went, a log whose terminal closed or whose file may not grow, and signals that
// other daemons take for requests: none may end what runs on this host. Daemon::start says more of
// the last.
void outlive_signals() {
  for (int one : {SIGPIPE, SIGXFSZ, SIGHUP, SIGUSR1, SIGUSR2}) signal(one, SIG_IGN);
}

// glibc puts off merging most of what is freed in small pieces (its fastbins), until a large piece
// is freed: of a job with tens of thousands of tensors that is a millisecond, in which its engine
// receives no frame. Without fastbins each is merged as it is freed.
void merge_what_is_freed_at_once() {
  ::mallopt(M_MXFAST, 0);  // NOLINT(concurrency-mt-unsafe): there is one thread
}

}  // namespace

// What CLI11 throws outside read_command_line() is a mistake in the options below.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app{"Mercury's daemon: one on each host"};
  std::string path;
  std::vector<std::string> overrides;
  bool check = false, print = false;
  app.add_option("--config", path,
                 std::string("configuration file; default: ") + kSystemConfig + " if it exists");
  app.add_option("--set", overrides, "SECTION.KEY=VALUE over the file; may be repeated");
  app.add_flag("--check", check, "check the configuration and exit");
  app.add_flag("--print-config", print, "print the effective configuration and exit");
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  if (path.empty() && access(kSystemConfig, F_OK) == 0) path = kSystemConfig;

  mercury::Result<mercury::StackdConfig> config = mercury::load_config(path, overrides);
  if (!config) {
    const bool command_line = config.error().code == mercury::Errc::kInvalidArgument;
    return fail(config.error(), command_line ? mercury::kWrongUsage : 1);
  }
  if (print) std::cout << mercury::print_config(*config, false);
  if (check) {
    if (mercury::Status good = mercury::check_host(*config); !good) return fail(good.error());
    std::cout << (path.empty() ? "defaults" : path) << ": good\n";
    const std::string lacking =
        mercury::descriptors_lacking(*config, mercury::descriptor_limit().hard);
    if (!lacking.empty()) std::cerr << "mercury-stackd: warning: " << lacking << "\n";
  }
  if (print || check) return 0;

  mercury::set_up_log(config->log_level);
  provide_descriptors(*config);
  const auto scheduling = mercury::check_scheduling(mercury::scheduling_of(*config));
  if (scheduling) {
    spdlog::info("engines run with {} (engine.scheduling)", *scheduling);
  } else if (scheduling.error().code == mercury::Errc::kUnsupported) {
    return fail(scheduling.error());
  } else {
    spdlog::warn("{}", scheduling.error().message);
  }
  merge_what_is_freed_at_once();
  outlive_signals();
  mercury::Daemon daemon(*config);
  mercury::wipe_secrets(*config);
  if (mercury::Status started = daemon.start(); !started) {
    if (path.empty())
      spdlog::info("there is no {}, and no --config: all is default", kSystemConfig);
    return fail(started.error());
  }
  sd_notify(0, "READY=1");
  daemon.run();
  sd_notify(0, "STOPPING=1");
  return 0;
}
