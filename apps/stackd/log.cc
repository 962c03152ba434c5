#include "apps/stackd/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>

namespace mercury {
namespace {

constexpr char kName[] = "mercury-stackd";  // also the journal's SYSLOG_IDENTIFIER
constexpr char kJournal[] = "/run/systemd/journal/socket";

// As systemd.exec(5) says of JOURNAL_STREAM: programs inherit it whose standard error is
// redirected, so device and inode must be standard error's. Where the journal's socket cannot be
// reached (RootDirectory=), what is sent there would be lost without an error.
bool stderr_is_journal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &status) != 0) return false;
  return stream == std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino) &&
         ::access(kJournal, W_OK) == 0;
}

std::shared_ptr<spdlog::logger> make_logger() {
  if (stderr_is_journal()) return spdlog::systemd_logger_st(kName, kName);
  auto logger = spdlog::stderr_color_st(kName);
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
  return logger;
}

}  // namespace

void set_up_log(const std::string& level) {
  spdlog::set_default_logger(make_logger());
  spdlog::set_level(spdlog::level::from_str(level));
}

void log_fatal(const std::string& message) {
  if (!stderr_is_journal()) {
    std::cerr << kName << ": " << message << "\n";
    return;
  }
  if (spdlog::default_logger()->name() != kName) set_up_log("error");
  spdlog::error("{}", message);
}

}  // namespace mercury
