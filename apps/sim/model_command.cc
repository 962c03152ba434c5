#include "apps/sim/model_command.h"

#include <optional>

#include "apps/sim/model_report.h"
#include "apps/sim/workload.h"
#include "apps/trace/shipped.h"
#include "apps/trace/trace.h"
#include "scheduler/model/equations.h"

namespace mercury::simulator {
namespace {

// CLI11's own range check lets "nan" through.
std::string check_speed(const std::string& text) {
  double speed = 0;
  if (CLI::detail::lexical_cast(text, speed) && speed > 0 && speed < 1) return {};
  return "'" + text + "' is not a number between 0 and 1";
}

Result<ModelFindings> predict_all(const SimOptions& options, const ModelOptions& model,
                                  const model::Chain& chain) {
  ModelFindings findings{.policy = options.policy};
  const model::Rates rates = rates_of(cluster_of(options));
  if (model.tune) {
    auto candidates = tune(chain, rates, options.policy);
    if (!candidates) return candidates.error();
    findings.candidates = best_of_each_size(*candidates);
    findings.policy = findings.candidates.front().policy;
  }
  auto prediction = predict(chain, rates, findings.policy);
  if (!prediction) return prediction.error();
  findings.prediction = std::move(*prediction);
  const auto unframed = predict(without_framing(chain), rates, findings.policy);
  if (!unframed) return unframed.error();
  findings.unframed_s = unframed->iteration_s;
  findings.oracle_s = oracle_s(chain);
  findings.optimum_s = optimum_s(without_framing(chain), rates);
  if (model.reach > 0) {
    const auto factor = factor_for_speed(chain, rates, findings.policy, model.reach);
    if (!factor) return factor.error();
    findings.reach = Reach{model.reach, *factor};
  }
  return findings;
}

}  // namespace

CLI::App* add_model_command(CLI::App& app, SimOptions& options, ModelOptions& model) {
  CLI::App* command = app.add_subcommand("model", "predict an iteration from equations alone");
  describe(*command, options, parse_policy, policy_names());
  command->add_flag_callback(
      "--quiet", [] {}, "as for a simulation: there is no progress to show");
  CLI::Option* tune = command->add_flag(
      "--tune", model.tune, "search partition and credit of the policy over a grid, take the best");
  command
      ->add_option("--reach", model.reach,
                   "find the bandwidth where this share of a lone worker's speed is reached")
      ->check(CLI::Validator(check_speed, "SPEED"))
      ->excludes(tune);
  return command;
}

Status check_model(const SimOptions& options) {
  return check_outputs(trace_path(options.trace), {{"--json", options.json, true}});
}

Status run_model(const SimOptions& given, const ModelOptions& model) {
  const SimOptions options = with_all_links(given);
  const Result<Trace> trace = read_trace(trace_path(options.trace));
  if (!trace) return trace.error();
  const Framing framing = framing_of(options);
  const Result<ModelFindings> findings = predict_all(options, model, chain_of(*trace, framing));
  if (!findings) return findings.error();
  return report_model({options, *trace, framing, *findings});
}

}  // namespace mercury::simulator
