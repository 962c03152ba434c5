// mercury-sim: what an iteration of training takes under a policy and on a network, without either.
// docs/simulator.md.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/command_line.h"
#include "apps/sim/model_command.h"
#include "apps/sim/options.h"
#include "apps/sim/run_command.h"

namespace {

int finish(const mercury::Status& done) {
  if (!done) {
    std::fprintf(stderr, "mercury-sim: %s\n", done.error().message.c_str());
    return 1;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::perror("mercury-sim: standard output");
    return 1;
  }
  return 0;
}

}  // namespace

// What CLI11 throws outside read_command_line() is a mistake in the options below.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  using namespace mercury::simulator;
  SimOptions run_cluster, model_cluster;
  RunOptions run;
  ModelOptions model;
  CLI::App app{
      "Simulates iterations of distributed training with Mercury's own engine, or predicts them "
      "from equations: any model, policy and network"};
  app.name("mercury-sim");
  describe_run(app, run_cluster, run);
  const CLI::App* model_command = add_model_command(app, model_cluster, model);
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  const bool from_equations = model_command->parsed();
  const mercury::Status sensible =
      from_equations ? check_model(model_cluster) : check_run(run_cluster, run);
  if (!sensible && sensible.error().code == mercury::Errc::kInvalidArgument) {
    std::fprintf(stderr, "mercury-sim: %s\nRun with --help for more information.\n",
                 sensible.error().message.c_str());
    return mercury::kWrongUsage;
  }
  if (!sensible) return finish(sensible);
  return finish(from_equations ? run_model(model_cluster, model)
                               : run_simulation(run_cluster, run));
}
