#include "apps/sim/link_schedule.h"

#include <algorithm>
#include <charconv>

#include "apps/sim/options.h"
#include "transport/base/quantity.h"

namespace mercury::simulator {
namespace {

Error bad_rule(std::string_view text, std::string_view expected) {
  return {Errc::kInvalidArgument,
          std::string(1, '\'').append(text.substr(0, 60)).append("': ").append(expected)};
}

std::string_view cut(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view head = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return head;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

Result<LinkSchedule> LinkSchedule::parse(std::string_view text) {
  LinkSchedule schedule;
  std::string_view rest = text;
  if (take(rest, "random:")) {
    const Result<uint64_t> least = parse_link_rate(cut(rest, '-'));
    if (!least) return least.error();
    const Result<uint64_t> most = parse_link_rate(cut(rest, '/'));
    if (!most) return most.error();
    const Result<uint64_t> period = parse_ns(rest);
    if (!period) return period.error();
    if (*least > *most) return bad_rule(text, "the lower rate comes first");
    if (*period < 1000) return bad_rule(text, "expected a period of at least 1us");
    schedule.least_bps_ = schedule.bps_ = *least;
    schedule.most_bps_ = *most;
    schedule.period_ns_ = schedule.due_ns_ = *period;
    return schedule;
  }
  const Result<uint64_t> first = parse_link_rate(cut(rest, ','));
  if (!first) return first.error();
  schedule.bps_ = *first;
  while (!rest.empty()) {
    std::string_view step = cut(rest, ',');
    const Result<uint64_t> at = parse_ns(cut(step, ':'));
    if (!at) return at.error();
    const Result<uint64_t> rate = parse_link_rate(step);
    if (!rate) return rate.error();
    if (*at == 0 || (!schedule.steps_.empty() && *at <= schedule.steps_.back().at_ns)) {
      return bad_rule(text, "each step comes after the one before");
    }
    schedule.steps_.push_back({*at, *rate});
  }
  return schedule;
}

uint64_t LinkSchedule::least_bps() const {
  uint64_t least = bps_;
  for (const Step& step : steps_) least = std::min(least, step.bps);
  return least;
}

uint64_t LinkSchedule::change_ns() const {
  if (period_ns_ != 0) return due_ns_;
  return next_ < steps_.size() ? steps_[next_].at_ns : kNever;
}

void LinkSchedule::begin(Random& random) {
  if (period_ns_ != 0) bps_ = least_bps_ + random.below(most_bps_ - least_bps_ + 1);
}

void LinkSchedule::advance(Random& random) {
  if (period_ns_ == 0) {
    bps_ = steps_[next_++].bps;
    return;
  }
  due_ns_ += period_ns_;
  begin(random);
}

Result<LinkRule> LinkRule::parse(std::string_view text) {
  constexpr std::string_view kForm =
      "expected WHO[.up|.down]=BANDWIDTH, WHO one of all, workers, servers, workerN, serverN";
  LinkRule rule;
  rule.text = text;
  std::string_view rest = text;
  std::string_view who = cut(rest, '=');
  if (who.size() == text.size()) return bad_rule(text, kForm);
  std::string_view kind = cut(who, '.');
  if (!who.empty()) {
    if (who != "up" && who != "down") return bad_rule(text, kForm);
    (who == "up" ? rule.down : rule.up) = false;
  }
  if (kind == "all") {
    rule.workers = rule.servers = true;
  } else {
    rule.workers = take(kind, "worker");
    rule.servers = !rule.workers && take(kind, "server");
    if (!rule.workers && !rule.servers) return bad_rule(text, kForm);
    if (kind != "s") {
      const auto [end, code] = std::from_chars(kind.data(), kind.data() + kind.size(), rule.index);
      if (code != std::errc() || end != kind.data() + kind.size() || rule.index < 0 ||
          kind.empty() || rule.index > 255) {
        return bad_rule(text, kForm);
      }
    }
  }
  Result<LinkSchedule> schedule = LinkSchedule::parse(rest);
  if (!schedule) return schedule.error();
  rule.schedule = std::move(*schedule);
  return rule;
}

}  // namespace mercury::simulator
