#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/replay/clock.h"
#include "apps/replay/options.h"
#include "apps/replay/report.h"
#include "apps/replay/scale.h"
#include "apps/replay/timeline.h"

namespace mercury {
namespace {

struct Parsed {
  std::optional<int> status;
  ReplayOptions options;
  std::string message;  // on standard error
};

Parsed parse(std::vector<const char*> words, ReplayOptions options = {}) {
  words.insert(words.begin(), "mercury-replay");
  Parsed parsed;
  parsed.options = std::move(options);
  testing::internal::CaptureStderr();
  parsed.status = parse_command_line(static_cast<int>(words.size()), words.data(), parsed.options);
  parsed.message = testing::internal::GetCapturedStderr();
  return parsed;
}

// With what every worker needs.
Parsed worker(std::vector<const char*> words) {
  words.insert(words.end(), {"--trace", "resnet50", "--rendezvous", "127.0.0.1:7470"});
  return parse(std::move(words));
}

TEST(ReplayOptions, ReadsEveryOption) {
  const Parsed parsed = parse({"--trace",
                               "m.csv",
                               "--role",
                               "server",
                               "--workers",
                               "4",
                               "--servers",
                               "3",
                               "--rank",
                               "2",
                               "--rendezvous",
                               "a:1,b:2",
                               "--job",
                               "j",
                               "--mode",
                               "embedded",
                               "--listen",
                               "127.0.0.2",
                               "--iterations",
                               "7",
                               "--warmup",
                               "0",
                               "--policy",
                               "mercury-fifo",
                               "--time-scale",
                               "0.5",
                               "--size-scale",
                               "200",
                               "--dtype",
                               "bf16",
                               "--no-verify",
                               "--report",
                               "r",
                               "--timeline",
                               "t"});
  ASSERT_FALSE(parsed.status) << parsed.message;
  const ReplayOptions& options = parsed.options;
  EXPECT_EQ(options.trace, "m.csv");
  EXPECT_EQ(options.role, "server");
  EXPECT_EQ(options.workers, 4);
  EXPECT_EQ(options.servers, 3);
  EXPECT_EQ(options.rank, 2);
  EXPECT_EQ(options.rendezvous, "a:1,b:2");
  EXPECT_EQ(options.job, "j");
  EXPECT_EQ(options.mode, "embedded");
  EXPECT_EQ(options.listen, "127.0.0.2");
  EXPECT_EQ(options.iterations, 7);
  EXPECT_EQ(options.warmup, 0);
  EXPECT_EQ(options.policy, "mercury-fifo");
  EXPECT_EQ(options.time_scale, 0.5);
  EXPECT_EQ(options.size_scale, 200);
  EXPECT_EQ(dtype_named(options.dtype), Dtype::kBf16);
  EXPECT_FALSE(options.verify);
  EXPECT_EQ(options.report, "r");
  EXPECT_EQ(options.timeline, "t");
}

TEST(ReplayOptions, KeepsWhatTheLauncherSetUnlessAnOptionSaysOtherwise) {
  ReplayOptions launcher;
  launcher.role = "server";
  launcher.rendezvous = "127.0.0.1:7470";
  launcher.workers = 5;
  launcher.servers = 6;
  launcher.rank = 5;
  EXPECT_FALSE(parse({}, launcher).status);
  EXPECT_EQ(parse({}, launcher).options.workers, 5);
  EXPECT_EQ(parse({"--workers", "2"}, launcher).options.workers, 2);
  EXPECT_TRUE(parse({}).options.verify);
}

TEST(ReplayOptions, RefusesWhatIsWrongWithStatus2) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> cases = {
      {{"--no-such"}, "--no-such"},
      {{"--role", "boss"}, "--role"},
      {{"--mode", "fast"}, "--mode"},
      {{"--policy", "mercury-lifo"}, "--policy"},
      {{"--policy", "wfbp-eq7"}, "the model alone"},
      {{"--dtype", "f8"}, "--dtype"},
      {{"--workers", "0"}, "--workers"},
      {{"--workers", "1025"}, "--workers"},
      {{"--workers", "two"}, "--workers"},
      {{"--servers", "-1"}, "--servers"},
      {{"--rank", "-2"}, "--rank"},
      {{"--rank", "2", "--workers", "2"}, "--rank 2 is not below the 2 workers"},
      {{"--iterations", "0"}, "--iterations"},
      {{"--warmup", "-1"}, "--warmup"},
      {{"--time-scale", "-0.1"}, "'-0.1' is not a number from 0"},
      {{"--time-scale", "nan"}, "'nan' is not a number from 0"},
      {{"--size-scale", "0.5"}, "'0.5' is not a number from 1"},
      {{"--size-scale", "big"}, "'big' is not a number from 1"},
      {{"--iterations"}, "--iterations"},
  };
  for (const auto& [words, text] : cases) {
    const Parsed parsed = worker(words);
    EXPECT_EQ(parsed.status, 2) << words[0];
    EXPECT_NE(parsed.message.find(text), std::string::npos) << parsed.message;
  }
}

TEST(ReplayOptions, SaysWhatIsMissing) {
  EXPECT_NE(parse({"--rendezvous", "a:1"}).message.find("--trace is missing"), std::string::npos);
  EXPECT_NE(parse({"--trace", "vgg16"}).message.find("--rendezvous is missing"), std::string::npos);
  ReplayOptions launcher;
  launcher.rendezvous = "a:1";
  launcher.workers = 0;
  launcher.rank = 1;
  EXPECT_NE(parse({"--trace", "vgg16"}, launcher).message.find("MERCURY_WORKERS"),
            std::string::npos);
  EXPECT_FALSE(parse({"--trace", "vgg16", "--workers", "2"}, launcher).status);
  launcher.workers = 2;
  launcher.servers = 0;
  EXPECT_NE(parse({"--trace", "vgg16"}, launcher).message.find("MERCURY_SERVERS"),
            std::string::npos);
  EXPECT_FALSE(parse({"--list"}).status);
  EXPECT_FALSE(parse({"--role", "server", "--rendezvous", "a:1"}).status);
}

Trace small_trace() {
  Trace trace;
  TraceTensor tensor;
  tensor.name = "fc.weight";
  tensor.numel = 1001;
  tensor.forward_ns = 100;
  tensor.backward_ns = 301;
  tensor.update_ns = 7;
  trace.tensors = {tensor, tensor};
  trace.tensors[1].name = "fc.bias";
  trace.tensors[1].numel = 3;
  return trace;
}

TEST(ScaleTrace, DividesElementsAndMultipliesTimes) {
  Trace trace = small_trace();
  ReplayOptions options;
  scale_trace(trace, options);
  EXPECT_EQ(trace.tensors[0].numel, 1001U);
  EXPECT_EQ(trace.tensors[0].forward_ns, 100U);
  EXPECT_EQ(trace.tensors[0].dtype, Dtype::kF32);
  options.size_scale = 10;
  options.time_scale = 0.5;
  options.dtype = "f16";
  scale_trace(trace, options);
  EXPECT_EQ(trace.tensors[0].numel, 100U);
  EXPECT_EQ(trace.tensors[1].numel, 1U);
  EXPECT_EQ(trace.tensors[0].forward_ns, 50U);
  EXPECT_EQ(trace.tensors[0].backward_ns, 151U);
  EXPECT_EQ(trace.tensors[0].update_ns, 4U);
  EXPECT_EQ(trace.tensors[0].dtype, Dtype::kF16);
}

TEST(Clock, NeverReturnsBeforeTheDeadline) {
  for (const uint64_t wait_ns : {0U, 1'000U, 60'000U, 2'000'000U}) {
    const uint64_t deadline_ns = monotonic_ns() + wait_ns;
    wait_until_ns(deadline_ns);
    EXPECT_GE(monotonic_ns(), deadline_ns);
  }
  wait_until_ns(0);
}

// A file of this test's own.
std::string scratch(const char* name) {
  return testing::TempDir() + std::to_string(getpid()) + name;
}
nlohmann::json read_back(const std::string& path) {
  std::ifstream file(path);
  nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  std::remove(path.c_str());
  return json;
}

TEST(Timeline, WritesChromeTraceEvents) {
  const std::string name = "fc";
  Timeline timeline;
  timeline.span(name, Timeline::Kind::kForward, 0, 1000, 2000);  // not kept
  timeline.enable();
  timeline.span(name, Timeline::Kind::kForward, 1, 1000, 3500);
  timeline.span(name, Timeline::Kind::kExchange, 2, 5000, 9000);
  const std::string path = scratch("timeline.json");
  ASSERT_TRUE(timeline.write(path));
  const nlohmann::json events = read_back(path)["traceEvents"];
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["name"], "forward fc");
  EXPECT_EQ(events[0]["cat"], "compute");
  EXPECT_DOUBLE_EQ(events[0]["ts"], 1.0);
  EXPECT_DOUBLE_EQ(events[0]["dur"], 2.5);
  EXPECT_EQ(events[1]["name"], "fc");
  EXPECT_EQ(events[1]["cat"], "exchange");
  EXPECT_EQ(events[1]["args"]["iteration"], 2);
  EXPECT_FALSE(timeline.write("/no/such/folder/t.json"));
}

TEST(Report, TakesTheMiddleOfTheTwoMedians) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({4, 1}), 2.5);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({9, 1, 7, 2}), 4.5);
}

TEST(Report, TellsFiguresInTableAndFile) {
  const Trace trace = small_trace();
  ReplayOptions options;
  options.trace = "/x/na\xffme.csv";  // no UTF-8
  options.size_scale = 200;
  ReplayFigures figures;
  figures.iteration_s = {0.003, 0.001, 0.002};
  figures.compute_s = {0.001, 0.001, 0.001};
  figures.payload_s = {0, 0, 0};
  figures.tensors = {{{0.5, 0.25, 0.75}, {1, 2, 3}}, {{0.1}, {0.2}}};
  figures.bytes_up = 12'000'000;
  const PayloadWork::Found found{1004, 2, "tensor fc.bias, ..."};
  const ReplaySummary summary{options, trace, figures, found, 1, "embedded"};
  const std::string table = table_text(summary);
  for (const char* text : {"2.00 ms median, 1.00 to 3.00 ms", "elements divided by 200",
                           "1004 elements, 2 wrong", "12.000 MB", "mercury", "2, 0.004 MB"}) {
    EXPECT_NE(table.find(text), std::string::npos) << text << " in\n" << table;
  }
  const std::string path = scratch("report.json");
  ASSERT_TRUE(write_report(summary, path));
  const nlohmann::json report = read_back(path);
  EXPECT_DOUBLE_EQ(report["iteration_s"], 0.002);
  EXPECT_EQ(report["bytes_up"], 12'000'000);
  EXPECT_EQ(report["mismatches"], 2);
  EXPECT_DOUBLE_EQ(report["tensors"][0]["ready_s"], 0.5);
  EXPECT_DOUBLE_EQ(report["tensors"][1]["pulled_s"], 0.2);
  EXPECT_FALSE(write_report(summary, "/no/such/folder/r.json"));
}

}  // namespace
}  // namespace mercury
