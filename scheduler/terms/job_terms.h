// What the members of a job agree on besides its size: one value, and one table that says of each
// term all that must be known of it where it is only handed on. Whoever carries, checks, compares,
// prints or explains terms walks the table and names none of them; whoever follows a term reads its
// field. A new term is a field here, a row in job_terms.cc, and its use.
//
// Units: durations are milliseconds, as users say them and messages carry them. Clocks count in
// nanoseconds: to_ns is the one way there.
// Owner/thread: values; the table never changes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "transport/base/result.h"

namespace mercury {

// As of a member that says nothing, so also of one whose version does not know the term.
struct JobTerms {
  // Same bits of every sum whatever the order of arrival.
  bool deterministic = false;
  // How gradients are exchanged, as scheduler/policy.h reads it. Empty: the first of its table.
  std::string policy;
  // Of a link that jobs share.
  uint32_t weight = 1;
  // How long the job waits for a worker that was lost to be started again: meanwhile operations
  // wait, and its next life joins under the same rank. 0: the job fails at once.
  uint32_t rejoin_ms = 0;
  // Not 0: a chunk's sum is complete with so many workers' contributions once `patience_ms` have
  // passed since its first one, and says who is in it; and the job goes on as long as so many
  // workers are there.
  uint16_t quorum = 0;
  uint32_t patience_ms = 0;
  // Not 0: workers that have not pushed a round of a tensor for so long since others did count as
  // lost; without rejoin_ms or a quorum the job fails then, with the tensor and their names.
  uint32_t stall_timeout_ms = 0;
  friend bool operator==(const JobTerms&, const JobTerms&) = default;
};

constexpr uint64_t to_ns(uint32_t ms) noexcept { return uint64_t{ms} * 1'000'000; }

inline constexpr uint32_t kMaxPolicyBytes = 255;
inline constexpr uint32_t kMostWeight = 1000;

enum class SaidBy : uint8_t {
  kMembers,  // all members say the same
  kWorkers,  // all workers say the same; servers learn it when the job begins
  kWorker,   // each worker says its own; servers follow the largest
};

// Bits of message::Join::features: what the version of a member knows.
inline constexpr uint32_t kKnowsLostWorkers =
    1;                                         // servers fence lost workers off, sum without them
inline constexpr uint32_t kKnowsPolicies = 2;  // set_policy; all members
inline constexpr uint32_t kKnowsStalls = 4;    // stall_ms; all members
// Servers: they say which rounds those who have left would have to push (PeerLeft::ending).
inline constexpr uint32_t kKnowsEndings = 8;
// Servers: element types of one byte, the lesser and the greater (element.h: is_old).
inline constexpr uint32_t kKnowsReductions = 16;
inline constexpr uint32_t kKnowsParts = 32;  // servers: pushes without elements
// Servers: pushes of those who want their own part of the sum.
inline constexpr uint32_t kKnowsScatters = 64;
// That the coordinator says which shard has a tensor's first chunks; all members.
inline constexpr uint32_t kKnowsFirstShards = 128;

using TermField = std::variant<bool JobTerms::*, uint16_t JobTerms::*, uint32_t JobTerms::*,
                               std::string JobTerms::*>;

// A row of the table.
struct Term {
  const char* name;     // in mercury_job_options, attach messages and whatever people read
  const char* control;  // in control messages
  TermField field;
  uint32_t preset;  // where a program does not say; of texts: 0, empty
  uint32_t least;   // of numbers; of texts: 0
  uint32_t most;    // of numbers; of texts: bytes
  SaidBy said_by;
  // The minor version of attach messages that has it. Of 0: control messages say it always, else
  // only where it is not what silence means.
  uint32_t since;
  // Bits of features: every server of a job that asks for it must have these...
  uint32_t servers_need = 0;
  // ...and what is said by a worker without these does not count: it is bound by what others say.
  uint32_t counts_with = 0;
  const char* silence = "0";  // what people read where a text is empty
  const char* meaning = "";   // half a sentence: errors and docs/api.md have it
};

std::span<const Term> job_terms() noexcept;
// Null: there is no term of this name.
const Term* find_term(std::string_view name) noexcept;

// As of a program that says nothing.
JobTerms preset_terms();

// Calls use(field of `terms`), a reference of the field's type.
template <class Terms, class Use>
decltype(auto) visit_term(const Term& term, Terms& terms, Use&& use) {
  return std::visit([&](auto field) -> decltype(auto) { return use(terms.*field); }, term.field);
}
template <class Value>
inline constexpr bool kIsNumber = std::is_integral_v<std::remove_cvref_t<Value>> &&
                                  !std::is_same_v<std::remove_cvref_t<Value>, bool>;

// "rejoin_ms = 5000".
std::string print(const Term& term, const JobTerms& terms);
// Whether both mean the same.
bool same(const Term& term, const JobTerms& a, const JobTerms& b);
// Whether nothing needs to be said.
bool is_silent(const Term& term, const JobTerms& terms);
// The terms in which two members differ, as each of them prints them.
struct TermsApart {
  std::string first;  // "rejoin_ms = 5000, quorum = 2"; empty: they agree
  std::string second;
};
// Of the terms for which `counts` is true.
TermsApart apart(const JobTerms& first, const JobTerms& second,
                 const std::function<bool(const Term&)>& counts);
void copy_term(const Term& term, const JobTerms& from, JobTerms& to);
// All that are said by these.
void copy_terms(SaidBy said_by, const JobTerms& from, JobTerms& to);
// What servers follow of terms that each worker has of its own.
void keep_largest(const JobTerms& of_worker, JobTerms& of_job);

// What a user has set. Errors: kInvalidArgument, with the term, the value, what it may be and what
// it means. Of a flag every number but 0 is true, as in C.
Status set_number(const Term& term, int64_t value, JobTerms& terms);
// What no single term can tell, in a job of so many workers; empty: nothing is wrong.
std::string contradiction(const JobTerms& terms, uint32_t workers);
// What users may say and members do not: it says nothing (normalise). Empty: nothing is.
std::string superfluous(const JobTerms& terms);
// Both. Errors: kInvalidArgument.
Status check_terms(const JobTerms& terms, uint32_t workers);
// Without a quorum, and where it is everybody, all are waited for: nothing is said of either.
void normalise(JobTerms& terms, uint32_t workers);

}  // namespace mercury
