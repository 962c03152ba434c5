// digits-train: data-parallel training of the digits classifier, gradients exchanged through
// Mercury.
//
//   worker     trains on its share of each batch; sums come back from the servers
//   server     an embedded aggregation server (with daemons, they are the servers)
//   reference  the same arithmetic in one process, for comparison bit by bit
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "examples/digits/data.h"
#include "examples/digits/model.h"
#include "examples/digits/reference.h"
#include "shim/client/mercury.h"

namespace {

struct Options {
  std::string role = "worker", mode = "auto", listen, rendezvous, job = "digits",
              order = "priority";
  std::string data = DIGITS_CSV, weights, report, timeline;
  int rank = -1, workers = 2, servers = 2, iterations = 60, batch = 128;
  bool progress = false;
};

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "digits-train: %s\n", text.c_str());
  std::exit(1);
}

void check(int status, const char* what) {
  if (status < 0) fail(std::string(what) + ": " + mercury_last_error());
}

digits::Schedule schedule_of(const Options& options) {
  return {static_cast<size_t>(options.workers), static_cast<size_t>(options.iterations),
          static_cast<size_t>(options.batch)};
}

void write_weights(const Options& options, const digits::Model& model) {
  if (options.weights.empty()) return;
  const std::vector<float> weights = model.weights();
  std::ofstream file(options.weights, std::ios::binary);
  file.write(reinterpret_cast<const char*>(weights.data()),
             static_cast<std::streamsize>(weights.size() * sizeof(float)));
  if (!file) fail("cannot write " + options.weights);
}

// Times of layers and exchanges, in Chrome's trace format.
class Timeline {
 public:
  void span(const std::string& name, const char* category, int iteration, double begin_s,
            double end_s) {
    events_.push_back({{"name", name},
                       {"cat", category},
                       {"ph", "X"},
                       {"pid", 0},
                       {"tid", std::string(category) == "compute" ? 0 : 1},
                       {"ts", begin_s * 1e6},
                       {"dur", (end_s - begin_s) * 1e6},
                       {"args", {{"iteration", iteration}}}});
  }
  void write(const std::string& path) const {
    if (!path.empty()) std::ofstream(path) << nlohmann::json{{"traceEvents", events_}};
  }

 private:
  nlohmann::json events_ = nlohmann::json::array();
};

// One layer's two tensors as Mercury sees them.
struct Exchange {
  std::span<float> weights, bias;
  mercury_handle handles[2]{};
  double begun_s = 0;
  int iteration = 0;
};

class Worker {
 public:
  Worker(const Options& options, mercury_context* context, mercury_job* job,
         const digits::Data& data)
      : options_(options),
        job_(job),
        data_(data),
        rank_(mercury_job_rank(job)),
        model_(digits::initial_model(schedule_of(options))) {
    std::vector<mercury_tensor_options> tensors;
    for (size_t l = 0; l < model_.layer_count(); ++l) {
      Exchange exchange;
      exchange.weights = tensor(context, tensors, l, model_.layer(l).weights.size());
      exchange.bias = tensor(context, tensors, l, model_.layer(l).bias.size());
      exchanges_.push_back(exchange);
    }
    check(mercury_declare(job, tensors.data(), tensors.size()), "declare tensors");
  }

  void train() {
    for (int step = 0; step < options_.iterations; ++step) iterate(step);
    for (size_t l = 0; l < model_.layer_count(); ++l) update(l);
    write_weights(options_, model_);
    timeline_.write(options_.timeline);
    report();
  }

 private:
  std::span<float> tensor(mercury_context* context, std::vector<mercury_tensor_options>& tensors,
                          size_t layer, size_t numel) {
    void* memory = nullptr;
    check(mercury_alloc(context, numel * sizeof(float), &memory), "allocate");
    mercury_tensor_options options{};
    options.size = sizeof options;
    options.id = static_cast<uint32_t>(tensors.size());
    options.numel = numel;
    options.dtype = MERCURY_F32;
    options.op = MERCURY_AVERAGE;
    options.priority = static_cast<uint16_t>(layer);  // the first layer is needed first
    options.data = memory;
    tensors.push_back(options);
    return {static_cast<float*>(memory), numel};
  }

  // Waits for the last iteration's sums of a layer and applies them.
  void update(size_t l) {
    Exchange& exchange = exchanges_[l];
    if (exchange.handles[0] == 0) return;
    for (mercury_handle handle : exchange.handles) {
      check(mercury_wait(job_, handle, -1), "exchange");
    }
    timeline_.span(model_.layer(l).name, "exchange", exchange.iteration, exchange.begun_s, now_s());
    model_.apply(l, exchange.weights, exchange.bias);
  }

  void iterate(int step) {
    const double begun_s = now_s();
    double computed_s = 0;
    digits::take_share(data_.train, schedule_of(options_), static_cast<size_t>(step),
                       static_cast<size_t>(rank_), pixels_, labels_);
    model_.set_input(pixels_);
    for (size_t l = 0; l < model_.layer_count(); ++l) {
      update(l);
      const double from_s = now_s();
      model_.forward(l);
      computed_s += compute("forward " + model_.layer(l).name, step, from_s);
    }
    const float loss = model_.loss(labels_);
    const double right =
        static_cast<double>(model_.right(labels_)) / static_cast<double>(labels_.size());
    for (size_t l = model_.layer_count(); l-- > 0;) {
      Exchange& exchange = exchanges_[l];
      const double from_s = now_s();
      model_.backward(l, exchange.weights, exchange.bias);
      computed_s += compute("backward " + model_.layer(l).name, step, from_s);
      exchange.begun_s = now_s();
      exchange.iteration = step;
      for (uint32_t part = 0; part < 2; ++part) {
        check(mercury_push_pull(job_, static_cast<uint32_t>(2 * l) + part, MERCURY_DEFAULT_PRIORITY,
                                &exchange.handles[part]),
              "push");
      }
    }
    iteration_ms_.push_back((now_s() - begun_s) * 1e3);
    compute_ms_.push_back(computed_s * 1e3);
    if (options_.progress && (step + 1) % std::max(1, options_.iterations / 6) == 0) {
      std::printf("iteration %d of %d: loss %.4f, %.0f %% of its images right\n", step + 1,
                  options_.iterations, static_cast<double>(loss), 100 * right);
      std::fflush(stdout);
    }
  }

  double compute(const std::string& name, int step, double from_s) {
    const double to_s = now_s();
    timeline_.span(name, "compute", step, from_s, to_s);
    return to_s - from_s;
  }

  static double median(std::vector<double> values) {
    // The first iteration begins with empty links, as no later one does.
    if (values.size() > 1) values.erase(values.begin());
    std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
  }

  void report() {
    const double accuracy = model_.accuracy(data_.test);
    mercury_job_stats stats{};
    stats.size = sizeof stats;
    check(mercury_job_get_stats(job_, &stats), "statistics");
    if (options_.progress) std::printf("test accuracy %.1f %%\n", 100 * accuracy);
    if (options_.report.empty()) return;
    std::ofstream(options_.report) << nlohmann::json{{"accuracy", accuracy},
                                                     {"iteration_ms_median", median(iteration_ms_)},
                                                     {"compute_ms_median", median(compute_ms_)},
                                                     {"bytes_pushed", stats.bytes_pushed},
                                                     {"bytes_pulled", stats.bytes_pulled},
                                                     {"parameters", model_.parameters()}};
  }

  const Options& options_;
  mercury_job* job_;
  const digits::Data& data_;
  const int rank_;
  digits::Model model_;
  std::vector<Exchange> exchanges_;
  std::vector<float> pixels_;
  std::vector<int> labels_;
  std::vector<double> iteration_ms_, compute_ms_;
  Timeline timeline_;
};

void run_reference(const Options& options, const digits::Data& data) {
  digits::Model model =
      digits::train_reference(data.train, schedule_of(options), [&options](size_t done) {
        if (!options.progress || done % std::max(1, options.iterations / 3) != 0) return;
        std::printf("iteration %zu of %d\n", done, options.iterations);
        std::fflush(stdout);
      });
  write_weights(options, model);
  std::printf("test accuracy %.1f %%\n", 100 * model.accuracy(data.test));
}

void open_job(const Options& options, mercury_context** context, mercury_job** job) {
  mercury_attach_options attach = MERCURY_ATTACH_OPTIONS_INIT;
  if (options.mode == "daemon") attach.mode = MERCURY_DAEMON;
  if (options.mode == "embedded") attach.mode = MERCURY_EMBEDDED;
  if (!options.listen.empty()) attach.listen = options.listen.c_str();
  check(mercury_attach(&attach, context), "attach");
  mercury_job_options open;
  mercury_job_options_init(&open);
  open.name = options.job.c_str();
  open.secret = std::getenv("MERCURY_SECRET");
  open.role = options.role == "server" ? MERCURY_SERVER : MERCURY_WORKER;
  open.rank = options.rank;
  open.workers = options.workers;
  open.servers = options.servers;
  open.rendezvous = options.rendezvous.c_str();
  open.deterministic = 1;
  open.policy = options.order == "fifo" ? "mercury-fifo" : nullptr;
  check(mercury_job_open(*context, &open, job), "open job");
}

void run(const Options& options) {
  digits::Data data;
  if (const std::string error = digits::load(options.data, data); !error.empty()) fail(error);
  if (options.role == "reference") return run_reference(options, data);
  mercury_context* context = nullptr;
  mercury_job* job = nullptr;
  open_job(options, &context, &job);
  if (options.role == "server") {
    check(mercury_job_wait(job, -1), "serve");
  } else {
    Worker(options, context, job, data).train();
  }
  mercury_job_close(job);
  mercury_detach(context);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Trains the digits classifier, gradients exchanged through Mercury"};
  app.add_option("--role", options.role)->check(CLI::IsMember({"worker", "server", "reference"}));
  app.add_option("--mode", options.mode)->check(CLI::IsMember({"auto", "daemon", "embedded"}));
  app.add_option("--listen", options.listen, "embedded: this program's ADDRESS[:PORT]");
  app.add_option("--rendezvous", options.rendezvous, "server 0's ADDRESS:PORT, or all servers'");
  app.add_option("--job", options.job, "the job's name; its secret is taken from $MERCURY_SECRET");
  app.add_option("--rank", options.rank);
  app.add_option("--workers", options.workers)->check(CLI::Range(1, 64));
  app.add_option("--servers", options.servers)->check(CLI::Range(1, 64));
  app.add_option("--iterations", options.iterations)->check(CLI::Range(1, 1'000'000));
  app.add_option("--batch", options.batch, "images per iteration, all workers together")
      ->check(CLI::Range(1, 4096));
  app.add_option("--order", options.order)->check(CLI::IsMember({"priority", "fifo"}));
  app.add_option("--data", options.data)->capture_default_str();
  app.add_option("--weights", options.weights, "file for the trained weights");
  app.add_option("--report", options.report, "file for the figures, JSON");
  app.add_option("--timeline", options.timeline, "file for a timeline in Chrome's trace format");
  app.add_flag("--progress", options.progress);
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  if (options.batch % options.workers != 0) fail("--batch must be a multiple of --workers");
  run(options);
  return 0;
}
