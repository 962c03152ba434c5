#include "scheduler/terms/job_terms.h"

#include <algorithm>
#include <string_view>

#include "scheduler/terms/members.h"

namespace mercury {
namespace {

constexpr uint32_t kMostMs = 0x7fffffff;  // what an int holds: 24 days
// Where nobody says another: 30 minutes, as PyTorch's Gloo waits, is longer than what a checkpoint
// or an evaluation on one rank takes, and shorter than a night.
constexpr uint32_t kStallTimeoutMs = 30 * 60 * 1000;

constexpr Term kTerms[] = {
    {.name = "deterministic",
     .control = "deterministic",
     .field = &JobTerms::deterministic,
     .preset = 0,
     .least = 0,
     .most = 1,
     .said_by = SaidBy::kMembers,
     .since = 0,
     .meaning = "1: sums have the same bits whatever the order of arrival"},
    {.name = "policy",
     .control = "policy",
     .field = &JobTerms::policy,
     .preset = 0,
     .least = 0,
     .most = kMaxPolicyBytes,
     .said_by = SaidBy::kWorkers,
     .since = 1,
     .silence = "mercury",
     .meaning = "how gradients are exchanged, as docs/simulator.md names it"},
    {.name = "weight",
     .control = "weight",
     .field = &JobTerms::weight,
     .preset = 1,
     .least = 1,
     .most = kMostWeight,
     .said_by = SaidBy::kWorker,
     .since = 0,
     .meaning = "the job's share among jobs on a link"},
    {.name = "rejoin_ms",
     .control = "rejoin_ms",
     .field = &JobTerms::rejoin_ms,
     .preset = 0,
     .least = 0,
     .most = kMostMs,
     .said_by = SaidBy::kWorkers,
     .since = 1,
     .servers_need = kKnowsLostWorkers,
     .meaning = "how long the job waits for lost workers to come back; 0: it fails at once"},
    {.name = "quorum",
     .control = "quorum",
     .field = &JobTerms::quorum,
     .preset = 0,
     .least = 0,
     .most = kMaxWorkers,
     .said_by = SaidBy::kWorkers,
     .since = 1,
     .servers_need = kKnowsLostWorkers,
     .meaning = "how many workers' contributions are enough for a sum; 0: all"},
    {.name = "patience_ms",
     .control = "patience_ms",
     .field = &JobTerms::patience_ms,
     .preset = 0,
     .least = 0,
     .most = kMostMs,
     .said_by = SaidBy::kWorkers,
     .since = 1,
     .servers_need = kKnowsLostWorkers,
     .meaning =
         "how long after the first contribution a quorum is enough; 1 or more with a quorum"},
    {.name = "stall_timeout_ms",
     .control = "stall_ms",
     .field = &JobTerms::stall_timeout_ms,
     .preset = kStallTimeoutMs,
     .least = 0,
     .most = kMostMs,
     .said_by = SaidBy::kWorkers,
     .since = 2,
     .counts_with = kKnowsStalls,
     .meaning =
         "after how long without a push that others have made workers count as lost; 0: never"},
};

Error wrong(std::string what) { return {Errc::kInvalidArgument, std::move(what)}; }

}  // namespace

std::span<const Term> job_terms() noexcept { return kTerms; }

const Term* find_term(std::string_view name) noexcept {
  const auto* const found = std::find_if(std::begin(kTerms), std::end(kTerms),
                                         [&](const Term& term) { return name == term.name; });
  return found == std::end(kTerms) ? nullptr : found;
}

JobTerms preset_terms() {
  JobTerms terms;
  for (const Term& term : kTerms) {
    visit_term(term, terms, [&](auto& value) {
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::is_integral_v<Value>) value = static_cast<Value>(term.preset);
    });
  }
  return terms;
}

std::string print(const Term& term, const JobTerms& terms) {
  const std::string value = visit_term(term, terms, [&](const auto& v) -> std::string {
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(v)>>) {
      return std::to_string(v);
    } else {
      return v.empty() ? term.silence : v;
    }
  });
  return std::string(term.name) + " = " + value;
}

bool same(const Term& term, const JobTerms& a, const JobTerms& b) {
  return print(term, a) == print(term, b);
}

bool is_silent(const Term& term, const JobTerms& terms) {
  static const JobTerms kSilent;
  return std::visit([&](auto field) { return terms.*field == kSilent.*field; }, term.field);
}

TermsApart apart(const JobTerms& first, const JobTerms& second,
                 const std::function<bool(const Term&)>& counts) {
  TermsApart out;
  for (const Term& term : kTerms) {
    if (!counts(term) || same(term, first, second)) continue;
    const char* comma = out.first.empty() ? "" : ", ";
    out.first += comma + print(term, first);
    out.second += comma + print(term, second);
  }
  return out;
}

void copy_term(const Term& term, const JobTerms& from, JobTerms& to) {
  std::visit([&](auto field) { to.*field = from.*field; }, term.field);
}

void copy_terms(SaidBy said_by, const JobTerms& from, JobTerms& to) {
  for (const Term& term : kTerms) {
    if (term.said_by == said_by) copy_term(term, from, to);
  }
}

void keep_largest(const JobTerms& of_worker, JobTerms& of_job) {
  for (const Term& term : kTerms) {
    if (term.said_by != SaidBy::kWorker) continue;
    std::visit([&](auto field) { of_job.*field = std::max(of_job.*field, of_worker.*field); },
               term.field);
  }
}

Status set_number(const Term& term, int64_t value, JobTerms& terms) {
  return visit_term(term, terms, [&](auto& field) -> Status {
    using Value = std::remove_cvref_t<decltype(field)>;
    if constexpr (kIsNumber<Value>) {
      if (value < term.least || value > term.most) {
        return wrong(std::string(term.name) + " is " + std::to_string(value) + ", must be " +
                     std::to_string(term.least) + " to " + std::to_string(term.most) + " (" +
                     term.meaning + ")");
      }
    }
    if constexpr (std::is_same_v<Value, bool>) {
      field = value != 0;
    } else if constexpr (kIsNumber<Value>) {
      field = static_cast<Value>(value);
    }
    return {};
  });
}

std::string contradiction(const JobTerms& terms, uint32_t workers) {
  if (terms.quorum == 0) return {};
  if (terms.quorum > workers) {
    return "quorum is " + std::to_string(terms.quorum) + ", must be at most the " +
           std::to_string(workers) + " workers";
  }
  if (terms.patience_ms == 0) return "patience_ms is 0, must be 1 or more with a quorum";
  if (terms.deterministic) {
    return "quorum is " + std::to_string(terms.quorum) +
           ", must be 0 in a deterministic job: who is in a sum would differ between runs";
  }
  return {};
}

std::string superfluous(const JobTerms& terms) {
  return terms.quorum == 0 && terms.patience_ms > 0 ? "patience_ms without a quorum" : "";
}

Status check_terms(const JobTerms& terms, uint32_t workers) {
  for (const Term& term : kTerms) {
    JobTerms unused;
    Status fits = visit_term(term, terms, [&](const auto& value) -> Status {
      if constexpr (kIsNumber<decltype(value)>) return set_number(term, value, unused);
      return {};
    });
    if (!fits) return fits;
  }
  const std::string wrong_together = contradiction(terms, workers);
  return wrong_together.empty() ? Status() : Status(wrong(wrong_together));
}

void normalise(JobTerms& terms, uint32_t workers) {
  if (terms.quorum > 0 && terms.quorum < workers) return;
  terms.quorum = 0;
  terms.patience_ms = 0;
}

}  // namespace mercury
