// Congestion control in the simulator: many senders into one server through a shallow marking
// queue, a bottleneck that becomes ten times slower and faster again, random loss, jobs beside each
// other. Virtual time, one seed: the same figures on every machine.
//
//   incast_sim            all settings, a table and JSON
//   incast_sim --check    a few of them; fails where a promise of docs/reliability.md is broken, or
//                         where senders that obey nothing are said to keep one
//   incast_sim --seed N   with another seed than 1: when hosts look at their ports
//
// Goodput is what the server took, as a share of the payload that full frames carry at the
// bottleneck's rate.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/congestion/incast_world.h"
#include "benchmarks/congestion/settling.h"

namespace mercury::congestion {
namespace {

constexpr uint64_t kRate = 1'250'000'000;  // 10 Gb/s
constexpr uint64_t kLinkDelayNs = 5'000;   // four of them in a round trip
constexpr uint64_t kQueueBytes = 200'000;  // 160 us at 10 Gb/s
constexpr uint64_t kMarkBytes = 97'500;    // 65 packets, as DCTCP's authors at 10 Gb/s; 78 us
constexpr uint64_t kSampleNs = 10'000;
// Converged is a path from when on every two loaded round trips carry so much, the queue stays
// below three quarters of its room, and nothing is dropped, until the rate changes again.
constexpr double kConverged = 0.9;
constexpr double kWindowRtts = 2;
constexpr double kMostQueueBytes = 1.5 * kMarkBytes;
constexpr double kNeverConverged = 9999;  // in the table and in JSON

struct Setting {
  std::string name;
  std::vector<uint32_t> jobs;
  uint32_t mtu_bytes = 1500;
  double loss = 0;  // of what passes the server's link, either way
  bool steps = false;
  bool marks = true;
  WindowKind window = WindowKind::kAdaptive;
  uint64_t delay_target_ns = SessionConfig().delay_target_ns;
  bool credit = true;
  uint64_t phase_ns = 60'000'000;
  uint64_t seed = 1;
};

// What docs/reliability.md promises of each phase of a setting.
constexpr uint64_t kAny = ~uint64_t{0};

struct Promise {
  double least_goodput = 0.9;
  double most_rtts = 20;
  double least_session_jain = 0.95;
  uint64_t most_retransmits = 0;
  uint64_t most_drops = 0;
  bool converges = true;  // if not, it is there to show that one can fail
};

struct Phase {
  double goodput = 0;
  uint64_t timeouts = 0;
  uint64_t drops = 0;
  uint64_t retransmits = 0;
  double mean_queue_ns = 0;  // in the second half
  uint64_t most_queue_ns = 0;
  double loaded_rtt_ns = 0;
  double rtts_to_converge = 0;  // since the rate changed; 0: it does not
  double jain = 1;              // between jobs
  double session_jain = 1;      // between all workers' sessions
};

double jain_index(const std::vector<double>& shares) {
  double sum = 0;
  double squares = 0;
  for (const double share : shares) {
    sum += share;
    squares += share * share;
  }
  return squares == 0 ? 0 : sum * sum / (static_cast<double>(shares.size()) * squares);
}

class Run {
 public:
  explicit Run(const Setting& setting) : setting_(setting), world_(world_config(setting)) {}

  Status start() { return world_.start(); }

  void lose() {
    sim::Faults faults;
    faults.loss = setting_.loss;
    sim::SimNetwork& network = world_.network();
    uint32_t workers = 0;
    for (const uint32_t job : setting_.jobs) workers += job;
    network.set_faults(world_.bottleneck(), faults);
    network.set_faults(network.uplink(sim::HostId(workers)), faults);
  }

  Phase phase(uint64_t rate) {
    world_.network().set_rate(world_.bottleneck(), rate);
    Phase result;
    const uint64_t began_ns = world_.now_ns();
    const uint64_t pushed = world_.pushed_bytes();
    const uint64_t timeouts = world_.total(Counter::kProbeTimeouts);
    const uint64_t retransmits = world_.total(Counter::kRetransmits);
    const uint64_t drops = world_.network().drops(sim::Drop::kQueueFull);
    std::vector<uint64_t> jobs;
    std::vector<uint64_t> sent;
    for (size_t w = 0; w < world_.workers(); ++w) sent.push_back(world_.sent_bytes(w));
    for (size_t j = 0; j < setting_.jobs.size(); ++j) jobs.push_back(world_.job_bytes(j));
    samples_.clear();
    world_.run(setting_.phase_ns, kSampleNs, [this] {
      samples_.push_back({world_.pushed_bytes(), world_.network().backlog_ns(world_.bottleneck()),
                          world_.network().drops(sim::Drop::kQueueFull)});
    });
    const double seconds = static_cast<double>(world_.now_ns() - began_ns) / 1e9;
    result.goodput =
        static_cast<double>(world_.pushed_bytes() - pushed) / seconds / world_.payload_rate(rate);
    result.timeouts = world_.total(Counter::kProbeTimeouts) - timeouts;
    result.retransmits = world_.total(Counter::kRetransmits) - retransmits;
    result.drops = world_.network().drops(sim::Drop::kQueueFull) - drops;
    std::vector<double> shares;
    for (size_t j = 0; j < jobs.size(); ++j) {
      shares.push_back(static_cast<double>(world_.job_bytes(j) - jobs[j]));
    }
    result.jain = jain_index(shares);
    shares.clear();
    for (size_t w = 0; w < sent.size(); ++w) {
      shares.push_back(static_cast<double>(world_.sent_bytes(w) - sent[w]));
    }
    result.session_jain = jain_index(shares);
    read_samples(rate, result);
    return result;
  }

 private:
  static WorldConfig world_config(const Setting& setting) {
    WorldConfig config;
    config.seed = setting.seed;
    config.jobs = setting.jobs;
    // Small enough that several rounds of each job pass in a phase.
    if (setting.jobs.size() > 1) config.tensor_bytes = 32 * 1024;
    config.link.bytes_per_second = kRate;
    config.link.delay_ns = kLinkDelayNs;
    config.link.queue_bytes = kQueueBytes;
    config.link.ecn_mark_bytes = setting.marks ? kMarkBytes : 0;
    config.link.mtu_bytes = setting.mtu_bytes;
    EngineConfig& engine = config.lane.engine;
    engine.session.window = setting.window;
    engine.session.delay_target_ns = setting.delay_target_ns;
    if (!setting.credit) engine.incast_queue_bytes = uint64_t{1} << 40;
    engine.max_sessions = 256;
    engine.max_in_flight_packets = 65536;
    config.lane.exchange.sends.scheduler = {8, 256, 16384, 65536};
    config.lane.exchange.sends.reserved_ranges = 2048;
    return config;
  }

  void read_samples(uint64_t rate, Phase& result) const {
    const size_t half = samples_.size() / 2;
    for (size_t i = 0; i < samples_.size(); ++i) {
      result.most_queue_ns = std::max(result.most_queue_ns, samples_[i].queue_ns);
      if (i >= half) result.mean_queue_ns += static_cast<double>(samples_[i].queue_ns);
    }
    result.mean_queue_ns /= static_cast<double>(std::max<size_t>(samples_.size() - half, 1));
    const double frame_ns = 1e9 * (setting_.mtu_bytes + 38) / static_cast<double>(rate);
    result.loaded_rtt_ns = 4 * kLinkDelayNs + frame_ns + result.mean_queue_ns;
    if (!setting_.steps) return;
    SettledBand band;
    band.window = static_cast<size_t>(kWindowRtts * result.loaded_rtt_ns / kSampleNs) + 1;
    band.least_bytes =
        kConverged * world_.payload_rate(rate) / 1e9 * static_cast<double>(band.window * kSampleNs);
    band.most_queue_ns = static_cast<uint64_t>(1e9 * kMostQueueBytes / static_cast<double>(rate));
    const size_t settled = samples_until_settled(samples_, band);
    result.rtts_to_converge = settled > samples_.size()
                                  ? kNeverConverged
                                  : static_cast<double>(settled * kSampleNs) / result.loaded_rtt_ns;
  }

  const Setting setting_;
  IncastWorld world_;
  std::vector<PathSample> samples_;
};

struct Row {
  std::string name;
  double gbit;
  Phase phase;
};

bool measure(const Setting& setting, std::vector<Row>& rows) {
  Run run(setting);
  if (Status started = run.start(); !started) {
    std::fprintf(stderr, "%s: %s\n", setting.name.c_str(), started.error().message.c_str());
    return false;
  }
  if (setting.loss > 0) run.lose();
  const std::vector<uint64_t> rates = setting.steps
                                          ? std::vector<uint64_t>{kRate, kRate / 10, kRate}
                                          : std::vector<uint64_t>{kRate};
  for (const uint64_t rate : rates) {
    rows.push_back({setting.name, static_cast<double>(rate) * 8e-9, run.phase(rate)});
    const Phase& p = rows.back().phase;
    std::printf("%-34s %4.0f %7.3f %8lu %6lu %6lu %9.1f %9.1f %9.1f %7.1f %6.3f %8.3f\n",
                setting.name.c_str(), rows.back().gbit, p.goodput, p.timeouts, p.retransmits,
                p.drops, p.mean_queue_ns / 1e3, static_cast<double>(p.most_queue_ns) / 1e3,
                p.loaded_rtt_ns / 1e3, p.rtts_to_converge, p.jain, p.session_jain);
    std::fflush(stdout);
  }
  return true;
}

Setting unbounded() {
  return {"fixed 1 MiB, no credit", {16}, 1500, 0, true, true, WindowKind::kFixed, 0, false};
}

std::vector<Setting> all_settings() {
  std::vector<Setting> all;
  for (const uint32_t mtu : {1500U, 9000U}) {
    for (const uint32_t senders : {8U, 16U, 64U}) {
      all.push_back({std::to_string(senders) + " senders, MTU " + std::to_string(mtu),
                     {senders},
                     mtu,
                     0,
                     true});
    }
  }
  // Whether what is not equal there evens out.
  all.push_back({"16 senders, MTU 9000, 0.6 s", {16}, 9000, 0, true});
  all.back().phase_ns = 600'000'000;
  for (const double loss : {0.0, 0.01, 0.05}) {
    all.push_back({"8 senders, loss " + std::to_string(loss).substr(0, 4), {8}, 1500, loss});
  }
  for (const double loss : {0.01, 0.05}) {
    all.push_back(
        {"8 senders, MTU 9000, loss " + std::to_string(loss).substr(0, 4), {8}, 9000, loss});
  }
  all.push_back({"2 jobs of 8", {8, 8}});
  all.push_back({"4 jobs of 4, MTU 9000", {4, 4, 4, 4}, 9000});
  all.push_back({"2 jobs, of 4 and of 12", {4, 12}});
  const std::vector<uint32_t> many = {16};
  all.push_back(unbounded());
  all.push_back({"fixed 1 MiB, credit", many, 1500, 0, true, true, WindowKind::kFixed, 0, true});
  // A path that says nothing until it loses; and time enough for the receiver to try it again.
  for (const uint32_t mtu : {1500U, 9000U}) {
    all.push_back({"no marks, credit, MTU " + std::to_string(mtu), many, mtu, 0, false, false});
  }
  for (const bool marks : {true, false}) {
    all.push_back({marks ? "marks, 6 s" : "no marks, 6 s", many, 9000, 0, false, marks});
    all.back().phase_ns = 6'000'000'000;
  }
  all.push_back({"marks, no credit", many, 1500, 0, true, true, WindowKind::kAdaptive, 0, false});
  all.push_back(
      {"delay 50 us, no credit", many, 1500, 0, true, false, WindowKind::kAdaptive, 50'000, false});
  all.push_back(
      {"loss alone, no credit", many, 1500, 0, true, false, WindowKind::kAdaptive, 0, false});
  return all;
}

struct Checked {
  Setting setting;
  Promise promise;
};

std::vector<Checked> checked_settings() {
  Promise one_percent;
  one_percent.most_retransmits = kAny;
  Promise five_percent = one_percent;
  five_percent.least_goodput = 0.7;
  // A frame each is more than the path of 1 Gb/s holds below its marks, and sessions go up and down
  // there: what they reach (docs/reliability.md).
  Promise less_than_a_frame;
  less_than_a_frame.most_rtts = 22;
  less_than_a_frame.least_session_jain = 0.88;
  // Three times as many frames as the queue holds, the same; whether a phase settles is chance.
  Promise far_too_many;
  far_too_many.most_rtts = kNeverConverged;
  far_too_many.most_retransmits = far_too_many.most_drops = 300;
  far_too_many.least_session_jain = 0.9;
  Promise control;
  control.converges = false;
  return {{{"8 senders, MTU 1500", {8}, 1500, 0, true}, {}},
          {{"16 senders, MTU 1500", {16}, 1500, 0, true}, {}},
          {{"64 senders, MTU 1500", {64}, 1500, 0, true}, {}},
          {{"8 senders, MTU 9000", {8}, 9000, 0, true}, {}},
          {{"16 senders, MTU 9000", {16}, 9000, 0, true}, less_than_a_frame},
          {{"64 senders, MTU 9000", {64}, 9000, 0, true}, far_too_many},
          {{"8 senders, loss 0.01", {8}, 1500, 0.01}, one_percent},
          {{"8 senders, loss 0.05", {8}, 1500, 0.05}, five_percent},
          {{"8 senders, MTU 9000, loss 0.01", {8}, 9000, 0.01}, one_percent},
          {{"8 senders, MTU 9000, loss 0.05", {8}, 9000, 0.05}, five_percent},
          {{"2 jobs of 8", {8, 8}}, {}},
          {unbounded(), control}};
}

bool keeps(const Promise& promise, const Row& row) {
  const Phase& p = row.phase;
  if (!promise.converges) {
    const bool kept = p.rtts_to_converge > promise.most_rtts;
    if (!kept) std::fprintf(stderr, "passes, and must not: %s\n", row.name.c_str());
    return kept;
  }
  // A time-out after which nothing is sent again has only asked.
  const bool kept = p.goodput >= promise.least_goodput && p.jain >= 0.95 &&
                    p.session_jain >= promise.least_session_jain && p.drops <= promise.most_drops &&
                    p.retransmits <= promise.most_retransmits &&
                    p.rtts_to_converge <= promise.most_rtts;
  if (!kept) std::fprintf(stderr, "broken: %s at %.0f Gb/s\n", row.name.c_str(), row.gbit);
  return kept;
}

void print_json(const std::vector<Row>& rows) {
  std::printf("[");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Phase& p = rows[i].phase;
    std::printf(
        "%s{\"setting\": \"%s\", \"gbit\": %.0f, \"goodput\": %.4f, \"timeouts\": %lu, "
        "\"retransmits\": %lu, \"drops\": %lu, \"mean_queue_ns\": %.0f, \"most_queue_ns\": %lu, "
        "\"loaded_rtt_ns\": %.0f, \"rtts_to_converge\": %.1f, \"jain\": %.4f, \"session_jain\": "
        "%.4f}",
        i == 0 ? "" : ",\n ", rows[i].name.c_str(), rows[i].gbit, p.goodput, p.timeouts,
        p.retransmits, p.drops, p.mean_queue_ns, p.most_queue_ns, p.loaded_rtt_ns,
        p.rtts_to_converge, p.jain, p.session_jain);
  }
  std::printf("]\n");
}

void print_head() {
  std::printf("%-34s %4s %7s %8s %6s %6s %9s %9s %9s %7s %6s %8s\n", "simulated", "Gb/s", "goodput",
              "timeouts", "resent", "drops", "queue us", "most us", "RTT us", "RTTs", "Jain",
              "sessions");
}

int run_all(uint64_t seed) {
  std::vector<Row> rows;
  for (Setting setting : all_settings()) {
    setting.seed = seed;
    if (!measure(setting, rows)) return 1;
  }
  print_json(rows);
  return 0;
}

int run_checks(uint64_t seed) {
  bool kept = true;
  for (Checked checked : checked_settings()) {
    checked.setting.seed = seed;
    std::vector<Row> rows;
    if (!measure(checked.setting, rows)) return 1;
    for (const Row& row : rows) kept = keeps(checked.promise, row) && kept;
  }
  return kept ? 0 : 1;
}

}  // namespace
}  // namespace mercury::congestion

int main(int argc, char** argv) {
  bool check = false;
  uint64_t seed = 1;
  bool understood = true;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--check") == 0) {
      check = true;
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      const std::string_view text = argv[++i];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
      understood = understood && error == std::errc() && end == text.data() + text.size();
    } else {
      understood = false;
    }
  }
  if (!understood) {
    std::fprintf(stderr, "usage: %s [--check] [--seed N]\n", argv[0]);
    return 2;
  }
  mercury::congestion::print_head();
  return check ? mercury::congestion::run_checks(seed) : mercury::congestion::run_all(seed);
}
