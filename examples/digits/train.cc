// digits-train: data-parallel training of the digits classifier, gradients exchanged through
// Mercury.
//
//   worker     trains on its share of each batch; sums come back from the servers
//   server     an embedded aggregation server (with daemons, they are the servers)
//   profile    a worker's computing alone: nothing is exchanged
//   reference  the same arithmetic in one process, for comparison bit by bit
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/interruption.h"
#include "examples/digits/session.h"
#include "examples/digits/trainer.h"
#include "transport/base/secret_file.h"

namespace {

struct Options {
  std::string role = "worker", mode = "auto", listen, rendezvous, job = "digits";
  std::string data = DIGITS_CSV, weights, report, timeline, trace, pace;
  int rank = -1, workers = 2, servers = 2, iterations = 60, batch = 128, turn = 0;
  digits::Turns turns;
  bool progress = false;
};

digits::Schedule schedule_of(const Options& options) {
  return {static_cast<size_t>(options.workers), static_cast<size_t>(options.iterations),
          static_cast<size_t>(options.batch)};
}

void written(bool good, const std::string& path) {
  if (!good) digits::fail("cannot write " + path);
}

void write_weights(const Options& options, const digits::Model& model) {
  if (options.weights.empty()) return;
  const std::vector<float> weights = model.weights();
  std::ofstream file(options.weights, std::ios::binary);
  file.write(reinterpret_cast<const char*>(weights.data()),
             static_cast<std::streamsize>(weights.size() * sizeof(float)));
  written(bool(file.flush()), options.weights);
}

// Of each policy: its iterations in milliseconds and how much of them computed, steady ones only.
nlohmann::json iterations_of(const digits::Record& record) {
  nlohmann::json policies = nlohmann::json::object();
  for (const digits::Record::Iteration& iteration : record.iterations()) {
    if (!iteration.steady) continue;
    nlohmann::json& policy = policies[iteration.policy];
    policy["iteration_ms"].push_back(iteration.seconds * 1e3);
    policy["computing_ms"].push_back(iteration.computing_s * 1e3);
  }
  return policies;
}

digits::Pace pace_of(const Options& options) {
  if (options.pace.empty()) return {};
  const mercury::Result<mercury::Trace> trace = mercury::read_trace(options.pace);
  if (!trace) digits::fail(trace.error().message);
  return digits::Pace(*trace);
}

void report(const Options& options, digits::Trainer& worker, const digits::Data& data,
            mercury_job* job) {
  const double accuracy = worker.model().accuracy(data.test);
  if (options.progress) std::printf("test accuracy %.1f %%\n", 100 * accuracy);
  if (options.report.empty()) return;
  mercury_job_stats stats{};
  stats.size = sizeof stats;
  digits::check(mercury_job_get_stats(job, &stats), "statistics");
  std::ofstream file(options.report);
  file << nlohmann::json{{"accuracy", accuracy},
                         {"policies", iterations_of(worker.record())},
                         {"bytes_pushed", stats.bytes_pushed},
                         {"bytes_pulled", stats.bytes_pulled},
                         {"parameters", worker.model().parameters()}};
  written(bool(file.flush()), options.report);
}

void train(const Options& options, const digits::Data& data, mercury_context* context,
           mercury_job* job) {
  const digits::Schedule schedule = schedule_of(options);
  const digits::Pace pace = pace_of(options);
  digits::Trainer worker(context, job, data, schedule, options.turns, pace);
  worker.train([&options](size_t done, float loss, double right) {
    if (!options.progress || done % static_cast<size_t>(std::max(1, options.iterations / 6)) != 0)
      return;
    std::printf("iteration %zu of %d: loss %.4f, %.0f %% of its images right\n", done,
                options.iterations, static_cast<double>(loss), 100 * right);
    std::fflush(stdout);
  });
  write_weights(options, worker.model());
  written(worker.record().write_timeline(options.timeline, worker.model()), options.timeline);
  written(worker.record().write_trace(options.trace, worker.model()), options.trace);
  if (job != nullptr) report(options, worker, data, job);
}

void run_reference(const Options& options, const digits::Data& data) {
  digits::Model model =
      digits::train_reference(data.train, schedule_of(options), [&options](size_t done) {
        if (!options.progress ||
            done % static_cast<size_t>(std::max(1, options.iterations / 3)) != 0)
          return;
        std::printf("iteration %zu of %d\n", done, options.iterations);
        std::fflush(stdout);
      });
  write_weights(options, model);
  std::printf("test accuracy %.1f %%\n", 100 * model.accuracy(data.test));
}

void open_job(const Options& options, mercury_context** context, mercury_job** job) {
  const mercury::Result<std::string> secret = mercury::secret_of_environment();
  if (!secret) digits::fail(secret.error().message);
  mercury_attach_options attach;
  mercury_attach_options_init(&attach, sizeof attach);
  if (options.mode == "daemon") attach.mode = MERCURY_MODE_DAEMON;
  if (options.mode == "embedded") attach.mode = MERCURY_MODE_EMBEDDED;
  if (!options.listen.empty()) attach.listen = options.listen.c_str();
  digits::check(mercury_attach(&attach, context), "attach");
  mercury_job_options open;
  mercury_job_options_init(&open, sizeof open);
  open.name = options.job.c_str();
  open.secret = secret->empty() ? nullptr : secret->c_str();
  open.role = options.role == "server" ? MERCURY_ROLE_SERVER : MERCURY_ROLE_WORKER;
  open.rank = options.rank;
  open.workers = options.workers;
  open.servers = options.servers;
  open.rendezvous = options.rendezvous.c_str();
  open.deterministic = 1;
  open.policy = options.turns.policies.front().c_str();
  digits::check(mercury_job_open(*context, &open, job), "open job");
}

void run(const Options& options) {
  digits::Data data;
  if (const std::string error = digits::load(options.data, data); !error.empty()) {
    digits::fail(error);
  }
  if (options.role == "reference") return run_reference(options, data);
  if (options.role == "profile") return train(options, data, nullptr, nullptr);
  digits::AttachedJob& attached = digits::attached_job();
  open_job(options, &attached.context, &attached.job);
  mercury::catch_interruptions();
  if (options.role == "server") {
    const int ended = digits::wait([&](int ms) { return mercury_job_wait_end(attached.job, ms); });
    digits::check(ended, "serve");
  } else {
    train(options, data, attached.context, attached.job);
  }
  attached.close();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Trains the digits classifier, gradients exchanged through Mercury"};
  app.add_option("--role", options.role)
      ->check(CLI::IsMember({"worker", "server", "profile", "reference"}));
  app.add_option("--mode", options.mode)->check(CLI::IsMember({"auto", "daemon", "embedded"}));
  app.add_option("--listen", options.listen, "embedded: this program's ADDRESS[:PORT]");
  app.add_option("--rendezvous", options.rendezvous, "server 0's ADDRESS:PORT, or all servers'");
  app.add_option("--job", options.job,
                 "the job's name; its secret is that of $MERCURY_SECRET or $MERCURY_SECRET_FILE");
  app.add_option("--rank", options.rank);
  app.add_option("--workers", options.workers)->check(CLI::Range(1, 64));
  app.add_option("--servers", options.servers)->check(CLI::Range(1, 64));
  app.add_option("--iterations", options.iterations)->check(CLI::Range(1, 1'000'000));
  app.add_option("--batch", options.batch, "images per iteration, all workers together")
      ->check(CLI::Range(1, 4096));
  app.add_option("--policies", options.turns.policies,
                 "how gradients are exchanged (docs/simulator.md); several take turns")
      ->delimiter(',');
  app.add_option("--turn", options.turn, "iterations of each policy's turn; 0: all of them")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--pace", options.pace, "trace whose times computing is held to, at least");
  app.add_option("--data", options.data)->capture_default_str();
  app.add_option("--weights", options.weights, "file for the trained weights");
  app.add_option("--report", options.report, "file for the figures, JSON");
  app.add_option("--timeline", options.timeline, "file for a timeline in Chrome's trace format");
  app.add_option("--trace", options.trace, "file for a model trace that mercury-sim reads");
  app.add_flag("--progress", options.progress);
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  if (options.batch % options.workers != 0) {
    digits::fail("--batch must be a multiple of --workers", mercury::kWrongUsage);
  }
  options.turns.iterations =
      static_cast<size_t>(options.turn > 0 ? options.turn : options.iterations);
  run(options);
  return 0;
}
