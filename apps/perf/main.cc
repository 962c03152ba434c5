// mercury-perf: what Mercury carries between hosts, and what that costs. docs/perf.md.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/attached_job.h"
#include "apps/command_line.h"
#include "apps/perf/costs.h"
#include "apps/perf/flow_options.h"
#include "apps/perf/flow_sweep.h"
#include "apps/perf/serve.h"
#include "apps/perf/tensors.h"

namespace {

int wrong_usage(const mercury::Status& why) {
  std::fprintf(stderr, "mercury-perf: %s\nRun with --help for more information.\n",
               why.error().message.c_str());
  return mercury::kWrongUsage;
}

}  // namespace

// What CLI11 throws outside read_command_line() is a mistake in the options below.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  using namespace mercury::perf;
  CostMeter meter;  // before there are other threads, which it counts
  CLI::App app{"Measures what Mercury carries between hosts, and what that costs"};
  app.name("mercury-perf");
  app.require_subcommand(0, 1);
  TensorOptions tensors;
  const mercury::Status launcher = mercury::take_launcher(tensors);  // an option wins
  FlowOptions stream, messages;
  ServeOptions serve;
  const CLI::App* tensors_command = add_tensors_command(app, tensors);
  const CLI::App* stream_command = add_stream_command(app, stream);
  const CLI::App* messages_command = add_messages_command(app, messages);
  const CLI::App* serve_command = add_serve_command(app, serve);
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  if (serve_command->parsed()) return run_serve(serve);
  if (tensors_command->parsed()) {
    if (!launcher) return wrong_usage(launcher);
    const mercury::Status sensible = check_tensors(*tensors_command, tensors);
    return sensible ? run_tensors(tensors, meter) : wrong_usage(sensible);
  }
  if (!stream_command->parsed() && !messages_command->parsed()) {
    std::fputs(
        "mercury-perf: which command: tensors, stream, messages or serve? --help says more\n",
        stderr);
    return mercury::kWrongUsage;
  }
  const FlowOptions& flows = stream_command->parsed() ? stream : messages;
  const mercury::Status sensible = check_flows(flows);
  return sensible ? run_flow_sweep(flows, meter) : wrong_usage(sensible);
}
