// `mercury-sim model`: an iteration predicted from equations alone (scheduler/model).
#pragma once

#include <CLI/CLI.hpp>

#include "apps/sim/options.h"

namespace mercury::simulator {

struct ModelOptions {
  bool tune = false;  // take the best partition and credit of the grid
  double reach = 0;   // a speed to find the bandwidth for; 0: none
};

// Adds the command to the program; the options must outlive it.
CLI::App* add_model_command(CLI::App& app, SimOptions& options, ModelOptions& model);

// What its command line as a whole must not say. Errors: kInvalidArgument; of files to write,
// kSystem.
Status check_model(const SimOptions& options);
// Errors: what is wrong with the trace, a file that cannot be written, a question without answer.
Status run_model(const SimOptions& options, const ModelOptions& model);

}  // namespace mercury::simulator
