// mercury-sim: what an iteration of training takes under a policy and on a network, without either.
// docs/simulator.md.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/sim/model_command.h"
#include "apps/sim/options.h"

namespace {

int finish(const mercury::Status& done) {
  if (done) return 0;
  std::fprintf(stderr, "mercury-sim: %s\n", done.error().message.c_str());
  return 1;
}

}  // namespace

// Status 0; 1 for a trace, file or question that fails; 2 for a wrong command line.
int main(int argc, char** argv) {
  mercury::simulator::SimOptions options;
  mercury::simulator::ModelOptions model;
  CLI::App app{"Predicts iterations of distributed training: any model, policy and network"};
  app.name("mercury-sim");
  app.require_subcommand(1);
  const CLI::App* model_command = mercury::simulator::add_model_command(app, options, model);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (model_command->parsed()) return finish(run_model(options, model));
  return 2;
}
