#include "apps/sim/run_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

#include "apps/trace/shipped.h"
#include "scheduler/terms/members.h"
#include "transport/base/quantity.h"

namespace mercury::simulator {
namespace {

Error bad(std::string_view text, std::string_view expected) {
  return {Errc::kInvalidArgument,
          std::string(1, '\'').append(text.substr(0, 60)).append("': expected ").append(expected)};
}

Result<Slowdown> parse_slowdown(std::string_view text) {
  constexpr std::string_view kForm = "RANK=FACTOR, the factor from 0.01 to 100";
  Slowdown slow;
  const char* const end = text.data() + text.size();
  const auto rank = std::from_chars(text.data(), end, slow.rank);
  if (rank.ec != std::errc() || rank.ptr == end || *rank.ptr != '=') return bad(text, kForm);
  const auto factor = std::from_chars(rank.ptr + 1, end, slow.factor);
  if (factor.ec != std::errc() || factor.ptr != end) return bad(text, kForm);
  if (!(slow.factor >= 0.01 && slow.factor <= 100)) return bad(text, kForm);
  return slow;
}

// CLI11 takes a negative number for a very large one.
Result<uint64_t> parse_seed(std::string_view text) {
  uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, seed);
  if (read.ec != std::errc() || read.ptr != end) return bad(text, "a number from 0 to 2^64 - 1");
  return seed;
}

// What is simulated is the engine.
Result<Policy> parse_run_policy(std::string_view text) {
  if (text.empty()) return parse_policy(text);
  Result<Policy> policy = parse_engine_policy(text);
  if (policy || policy.error().code != Errc::kUnsupported) return policy;
  return Error(Errc::kUnsupported,
               "policy '" + std::string(text) + "' is for `mercury-sim model` alone");
}

Result<OtherJob> parse_other(std::string_view text) {
  OtherJob job;
  const size_t at = text.rfind('@');
  job.trace = text.substr(0, at);
  if (job.trace.empty()) return bad(text, "TRACE or TRACE@POLICY");
  if (at == std::string_view::npos) return job;
  const Result<Policy> policy = parse_run_policy(text.substr(at + 1));
  if (!policy) return policy.error();
  job.policy = *policy;
  job.has_policy = true;
  return job;
}

// Any number of times; each value is checked where it is read.
template <class Value>
void add_list(CLI::App& app, const std::string& name, std::vector<Value>& values,
              Result<Value> (*parse)(std::string_view), const std::string& help) {
  const auto read = [&values, parse](const std::string& text) {
    Result<Value> parsed = parse(text);
    if (!parsed) return parsed.error().message;
    values.push_back(std::move(*parsed));
    return std::string();
  };
  app.add_option_function<std::vector<std::string>>(
         name, [](const std::vector<std::string>&) {}, help)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::Validator(read, ""));
}

// A host that is not heard for seconds counts as lost, and a full frame that does not arrive as a
// path that carries smaller ones: real networks have neither for so long.
constexpr double kLongestFrameS = 0.1;

Status check_rates(const SimOptions& options, const RunOptions& run) {
  const auto least_bps = static_cast<uint64_t>(8 * (options.mtu + 38) / kLongestFrameS);
  const auto check = [&](const std::string& what, uint64_t bps) -> Status {
    if (bps >= least_bps) return {};
    return Error(Errc::kInvalidArgument,
                 what + ": " + print_bits_per_second(bps) + " is too slow: a frame of " +
                     std::to_string(options.mtu) + " bytes would take over 100ms; at least " +
                     print_bits_per_second(least_bps) + ", or a smaller --mtu");
  };
  const SimOptions links = with_all_links(options);
  for (const auto& [name, given, bps] :
       {std::tuple("--worker-up", options.worker_up_bps, links.worker_up_bps),
        std::tuple("--worker-down", options.worker_down_bps, links.worker_down_bps),
        std::tuple("--server-up", options.server_up_bps, links.server_up_bps),
        std::tuple("--server-down", options.server_down_bps, links.server_down_bps)}) {
    if (Status fast = check(given == 0 ? "--bandwidth" : name, bps); !fast) return fast;
  }
  for (const LinkRule& rule : run.links) {
    if (Status fast = check("--link " + rule.text, rule.schedule.least_bps()); !fast) return fast;
  }
  return {};
}

}  // namespace

void describe_run(CLI::App& app, SimOptions& options, RunOptions& run) {
  describe(app, options, parse_run_policy, engine_policy_names());
  // A command such as `model` has its own.
  app.get_option("--trace")->required(false);
  app.get_option("--policy")->required(false);
  app.add_option("--iterations", run.iterations,
                 "to simulate, warm-up included; jobs go on until all have done them")
      ->capture_default_str()
      ->check(CLI::Range(1U, 100'000U));
  app.add_option("--warmup", run.warmup, "of them that the figures leave out")
      ->capture_default_str()
      ->check(CLI::Range(0U, 99'999U));
  app.add_option("--colocated", run.colocated,
                 "of the servers: they run on the hosts of the workers of the same numbers, and "
                 "share their links")
      ->capture_default_str()
      ->check(CLI::Range(0U, kMaxServers));
  add_parsed(app, "--seed", run.seed, parse_seed,
             "of everything random; the same seed, the same output [1]");
  add_parsed(app, "--delay", run.delay_ns, parse_ns, "of each link; a way has two [1us]");
  add_parsed(app, "--queue", run.queue_bytes, parse_bytes,
             "room before each link; what finds none is lost [for all windows]");
  add_parsed(app, "--window", run.window_bytes, parse_bytes,
             "most unacknowledged bytes of a session [1MiB]");
  add_parsed(app, "--ecn", run.ecn_bytes, parse_bytes,
             "links mark frames that find more than this waiting [never]");
  add_parsed(app, "--bucket", run.bucket_bytes, parse_bytes,
             "links that were idle send so much at once, as token buckets do [0]");
  add_parsed(
      app, "--incast-queue", run.incast_queue_bytes, parse_bytes,
      "what receivers let wait before their links; twice as much for each sender while nothing is "
      "marked or lost [128KiB]");
  add_parsed(app, "--frame-cost", run.frame_cost_ns, parse_ns,
             "an engine's processor time for each frame that it receives or sends [0]");
  add_list(app, "--link", run.links, LinkRule::parse,
           "WHO[.up|.down]=BANDWIDTH, WHO one of all, workers, servers, workerN, serverN; "
           "10Gbps,2s:5Gbps in steps, random:1Gbps-10Gbps/100ms");
  add_list(app, "--slow", run.slow, parse_slowdown,
           "RANK=FACTOR: a worker computes so much longer");
  app.add_option("--jitter", run.jitter, "each layer computes up to this share longer or shorter")
      ->check(CLI::Range(0.0, 0.9));
  add_list(app, "--also", run.others, parse_other,
           "TRACE[@POLICY]: one more job on the same hosts");
  app.add_option("--turns", run.turns,
                 "of jobs on the same hosts: fair, or urgency: none, as if all were one job")
      ->capture_default_str()
      ->check(CLI::IsMember({"fair", "urgency"}));
  app.add_flag("--payload", run.payload, "frames carry real bytes, every sum is verified");
  app.add_option("--pcap", run.pcap, "file for all frames; needs --payload");
  app.add_option("--timeline", run.timeline, "file for Perfetto: layers and exchanges");
  app.add_option("--csv", run.csv, "file for one line per job, worker and iteration");
  app.add_flag("--quiet", run.quiet, "no progress");
}

LinkSchedule schedule_of(const SimOptions& options, const RunOptions& run, bool worker,
                         uint32_t number, bool uplink) {
  const uint64_t up_bps = worker ? options.worker_up_bps : options.server_up_bps;
  const uint64_t down_bps = worker ? options.worker_down_bps : options.server_down_bps;
  LinkSchedule schedule = *LinkSchedule::parse(print_bits_per_second(uplink ? up_bps : down_bps));
  for (const LinkRule& rule : run.links) {
    if (rule.is_for(worker, number, uplink)) schedule = rule.schedule;
  }
  return schedule;
}

double slowdown_of(const RunOptions& run, uint32_t rank) {
  double factor = 1;
  for (const Slowdown& slow : run.slow) {
    if (slow.rank == rank) factor = slow.factor;
  }
  return factor;
}

Status check_run(const SimOptions& options, const RunOptions& run) {
  const auto wrong = [](std::string what) {
    return Error(Errc::kInvalidArgument, std::move(what));
  };
  if (options.trace.empty()) return wrong("--trace is required");
  if (options.policy.name.empty()) return wrong("--policy is required");
  if (run.warmup >= run.iterations) return wrong("--warmup leaves no iteration for the figures");
  if (!run.pcap.empty() && !run.payload) return wrong("--pcap needs --payload");
  if (run.window_bytes < 16 * 1024) return wrong("--window is less than 16KiB");
  // A round trip has four of them; from three seconds on the engine asks again before an answer can
  // have come.
  if (run.delay_ns > 500'000'000) return wrong("--delay is more than 500ms");
  // Acknowledgements that wait for longer count as lost.
  if (run.frame_cost_ns > 100'000) return wrong("--frame-cost is more than 100us");
  if (run.queue_bytes != 0 && run.queue_bytes < kMinMtu) {
    return wrong("--queue is less than " + std::to_string(kMinMtu) + "B: no frame would find room");
  }
  if (std::isnan(run.jitter)) return wrong("--jitter is not a number");
  for (const Slowdown& slow : run.slow) {
    if (slow.rank >= options.workers) {
      return wrong("--slow " + std::to_string(slow.rank) + ": there are " +
                   std::to_string(options.workers) + " workers");
    }
  }
  if (run.colocated > std::min(options.workers, options.servers)) {
    return wrong("--colocated " + std::to_string(run.colocated) + ": there are " +
                 std::to_string(options.workers) + " workers and " +
                 std::to_string(options.servers) + " servers");
  }
  if (Status fast = check_rates(options, run); !fast) return fast;
  const bool own_links = run.colocated < options.servers;  // of some server
  if (!own_links && (options.server_up_bps != 0 || options.server_down_bps != 0)) {
    return wrong("--server-up, --server-down: with --colocated no server has a link of its own");
  }
  for (const LinkRule& rule : run.links) {
    if (!own_links && !rule.workers && rule.index < 0) {
      return wrong("--link " + rule.text + ": with --colocated no server has a link of its own");
    }
    if (rule.index < 0) continue;
    const auto number = static_cast<uint32_t>(rule.index);
    if (number >= (rule.workers ? options.workers : options.servers)) {
      return wrong("--link " + rule.text + ": there is no such host");
    }
    if (!rule.workers && number < run.colocated) {
      return wrong("--link " + rule.text + ": with --colocated the link is worker" +
                   std::to_string(number) + "'s");
    }
  }
  if (run.others.size() > 31) return wrong("--also: at most 32 jobs");
  return check_outputs(trace_path(options.trace), {{"--json", options.json, true},
                                                   {"--csv", run.csv, true},
                                                   {"--timeline", run.timeline},
                                                   {"--pcap", run.pcap}});
}

}  // namespace mercury::simulator
