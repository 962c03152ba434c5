#include "examples/digits/record.h"

#include <time.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace digits {
namespace {

// Rows of the timeline: what computes, what is under way.
constexpr int kComputing = 0, kExchanging = 1;

const char* name_of(Record::Kind kind) {
  switch (kind) {
    case Record::Kind::kForward:
      return "forward";
    case Record::Kind::kBackward:
      return "backward";
    case Record::Kind::kUpdate:
      return "update";
    case Record::Kind::kWait:
      return "wait";
    case Record::Kind::kExchange:
      return "exchange";
  }
  return "";
}

}  // namespace

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void Record::span(Kind kind, size_t layer, size_t iteration, double begin_s, double end_s) {
  spans_.push_back({kind, layer, iteration, begin_s, end_s});
  const bool computing = kind == Kind::kForward || kind == Kind::kBackward || kind == Kind::kUpdate;
  if (computing && !iterations_.empty()) iterations_.back().computing_s += end_s - begin_s;
}

void Record::begin_iteration(const std::string& policy, bool steady) {
  end();
  iterations_.push_back({policy, steady, now_s(), 0, 0});
}

void Record::end() {
  if (iterations_.empty()) return;
  iterations_.back().seconds = now_s() - iterations_.back().begin_s;
}

bool Record::write_timeline(const std::string& path, const Model& model) const {
  if (path.empty()) return true;
  nlohmann::json events = nlohmann::json::array();
  for (const Span& span : spans_) {
    const bool exchange = span.kind == Kind::kExchange;
    const std::string& layer = model.layer(span.layer).name;
    events.push_back({{"name", exchange ? layer : std::string(name_of(span.kind)) + " " + layer},
                      {"cat", name_of(span.kind)},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", exchange ? kExchanging : kComputing},
                      {"ts", span.begin_s * 1e6},
                      {"dur", (span.end_s - span.begin_s) * 1e6},
                      {"args",
                       {{"iteration", span.iteration},
                        {"layer", layer},
                        {"policy", iterations_[span.iteration].policy},
                        {"steady", iterations_[span.iteration].steady}}}});
  }
  return bool(std::ofstream(path) << nlohmann::json{{"traceEvents", events}});
}

double Record::median_s(Kind kind, size_t layer) const {
  std::vector<double> seconds;
  for (const Span& span : spans_) {
    if (span.kind == kind && span.layer == layer) seconds.push_back(span.end_s - span.begin_s);
  }
  return seconds.empty() ? 0 : median(std::move(seconds));
}

bool Record::write_trace(const std::string& path, const Model& model) const {
  if (path.empty()) return true;
  std::ofstream file(path);
  file << "# Digits classifier, medians of " << iterations_.size() << " iterations.\n"
       << "layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority,update_ns\n";
  for (size_t l = 0; l < model.layer_count(); ++l) {
    const auto ns = [&](Kind kind) {
      return std::to_string(static_cast<uint64_t>(median_s(kind, l) * 1e9));
    };
    const Layer& layer = model.layer(l);
    const std::string head = std::to_string(l) + "," + layer.name;
    file << head << ".weight," << layer.weights.size() << ",f32," << ns(Kind::kForward) << ","
         << ns(Kind::kBackward) << "," << l << "," << ns(Kind::kUpdate) << "\n";
    file << head << ".bias," << layer.bias.size() << ",f32,0,0," << l << ",0\n";
  }
  return bool(file.flush());
}

}  // namespace digits
