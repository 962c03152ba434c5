// mercuryctl: what a host's mercury-stackd is doing, and what is missing for it to run.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/command_line.h"
#include "apps/ctl/ask.h"
#include "apps/ctl/doctor.h"
#include "apps/ctl/ping.h"
#include "apps/ctl/rate.h"
#include "shim/channel/attach.h"

namespace {

using nlohmann::json;

constexpr unsigned kLongestTimeoutS = 24 * 60 * 60;

std::string default_socket() {
  const char* named = std::getenv("MERCURY_SOCKET");
  return named && *named ? named : mercury::attach::kDefaultSocket;
}

[[noreturn]] void give_up(const std::string& why) {
  std::cerr << "mercuryctl: " << why << "\n";
  std::exit(1);  // NOLINT(concurrency-mt-unsafe): there is one thread
}

[[noreturn]] void refuse_version(const std::string& socket) {
  give_up("the daemon at " + socket + ".admin is of another version");
}

// The daemon's answer; exits with what is wrong if there is none.
json ask(const std::string& socket, const std::string& question, unsigned timeout_s) {
  const std::string path = socket + ".admin";
  const mercury::Result<std::string> answer = mercury::ask_daemon(path, question, timeout_s);
  if (!answer) give_up(answer.error().message);
  if (answer->empty()) {
    give_up("the daemon at " + path + " turned the question away: too many ask it");
  }
  json parsed = json::parse(*answer, nullptr, false);
  if (parsed.is_discarded() || parsed.contains("error")) refuse_version(socket);
  return parsed;
}

void print_status(const json& status) {
  std::printf("mercury-stackd %s, pid %ld, up %.0f s, %s; %ld programs, %ld jobs\n",
              status.value("version", "?").c_str(), status.value("pid", 0L),
              status.value("uptime_s", 0.0),
              status.value("serves", false) ? "serves jobs" : "serves no jobs",
              status.value("programs", 0L), status.value("jobs", 0L));
  if (const json sockets = status.value("sockets", json()); sockets.is_object()) {
    std::printf(
        "sockets  %ld programs, %ld listeners, %ld sessions, %ld connections with other hosts, "
        "%ld not accepted yet, %ld within this host so far\n",
        sockets.value("programs", 0L), sockets.value("listeners", 0L),
        sockets.value("sessions", 0L), sockets.value("connections", 0L),
        sockets.value("unclaimed", 0L), sockets.value("local_connections", 0L));
  }
  long engine = 0;
  for (const json& port : status.value("engines", json::array())) {
    std::printf("engine %ld  %s  %s  UDP payload up to %ld bytes", engine++,
                port.value("port", "?").c_str(), port.value("address", "?").c_str(),
                port.value("max_udp_payload", 0L));
    const auto rate = port.value("link_bytes_per_second", uint64_t{0});
    if (rate > 0) std::printf(", paced at %s", mercury::rate_text(rate).c_str());
    std::printf(", %ld sessions, %ld jobs\n", port.value("sessions", 0L), port.value("jobs", 0L));
  }
}

void print_jobs(const json& answer) {
  for (const json& job : answer.value("jobs", json::array())) {
    std::printf(
        "%s  %s %ld, %s; %ld workers, %ld servers; %ld tensors, %.1f MB, %ld bytes a chunk\n",
        job.value("name", "?").c_str(), job.value("role", "?").c_str(), job.value("rank", 0L),
        job.value("state", "?").c_str(), job.value("workers", 0L), job.value("servers", 0L),
        job.value("tensors", 0L), job.value("tensor_bytes", 0.0) * 1e-6,
        job.value("chunk_bytes", 0L));
    for (const json& member : job.value("members", json::array())) {
      std::printf("    %s\n", member.get<std::string>().c_str());
    }
  }
}

// The classes' upper ends are what is known of those within.
void print_passes(const json& passes) {
  const auto classes = passes.value("below_ns", std::vector<std::pair<uint64_t, uint64_t>>());
  uint64_t all = 0;
  for (const auto& [below_ns, count] : classes) all += count;
  if (all == 0) return;
  const auto below_us = [&](double part) {
    uint64_t passed = 0;
    for (const auto& [below_ns, count] : classes) {
      passed += count;
      if (static_cast<double>(passed) >= part * static_cast<double>(all)) {
        return static_cast<double>(below_ns) / 1e3;
      }
    }
    return 0.0;
  };
  std::printf(
      "  %lu passes with work: half below %.1f us, 99 %% below %.1f, 99.99 %% below %.1f, "
      "longest %.1f\n",
      all, below_us(0.5), below_us(0.99), below_us(0.9999),
      static_cast<double>(passes.value("longest_ns", uint64_t{0})) / 1e3);
}

void print_stats(const json& stats) {
  for (const json& engine : stats.value("engines", json::array())) {
    std::printf("engine %ld\n", engine.value("engine", 0L));
    print_passes(engine.value("passes", json::object()));
    const json counters = engine.value("counters", json::object());
    for (const auto& [name, value] : counters.items()) {
      if (value.get<uint64_t>() > 0) {
        std::printf("  %-26s %20lu\n", name.c_str(), value.get<uint64_t>());
      }
    }
  }
}

}  // namespace

// What CLI11 throws outside read_command_line() is a mistake in the options below.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app{"What a host's mercury-stackd is doing, and what is missing for it to run"};
  app.require_subcommand(0, 1);
  std::string socket = default_socket();
  bool as_json = false;
  app.add_option("--socket", socket, "the daemon's attach socket")->capture_default_str();
  unsigned timeout_s = 5;
  app.add_option("--timeout", timeout_s, "seconds to wait for the daemon's answer")
      ->check(CLI::Range(1U, kLongestTimeoutS))
      ->capture_default_str();
  const auto add = [&](const char* name, const char* help) {
    CLI::App* command = app.add_subcommand(name, help);
    command->fallthrough();  // --socket and --timeout may follow it
    command->add_flag("--json", as_json, "print JSON");
    return command;
  };
  CLI::App* status = add("status", "version, engines, how many programs and jobs");
  CLI::App* jobs = add("jobs", "the jobs on this host and their members");
  CLI::App* stats = add("stats", "counters of each engine; those that are zero only with --json");
  CLI::App* doctor =
      add("doctor", "what the configuration needs and this machine lacks, with the fix");
  std::string config;
  doctor->add_option("--config", config, "the daemon's configuration file");
  CLI::App* ping =
      add("ping",
          "whether another host speaks Mercury, by which side not, and what the way to it is like");
  mercury::PingOptions pinged;
  mercury::describe_ping(*ping, pinged);
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;

  if (app.get_subcommands().empty()) {
    std::cerr
        << "mercuryctl: which command: status, jobs, stats, ping or doctor? --help says more\n";
    return mercury::kWrongUsage;
  }
  if (doctor->parsed()) return mercury::run_doctor(config, as_json);
  if (ping->parsed()) return mercury::run_ping(socket, pinged, timeout_s, as_json);
  const char* question = status->parsed() ? "status" : jobs->parsed() ? "jobs" : "stats";
  const json answer = ask(socket, question, timeout_s);
  try {
    if (as_json) {
      std::cout << answer.dump(1) << "\n";
    } else if (status->parsed()) {
      print_status(answer);
    } else if (jobs->parsed()) {
      print_jobs(answer);
    } else if (stats->parsed()) {
      print_stats(answer);
    }
  } catch (const json::exception&) {  // JSON, but not of this shape
    refuse_version(socket);
  }
  return 0;
}
