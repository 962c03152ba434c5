#include "scheduler/policy.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "transport/base/quantity.h"

namespace mercury {
namespace {

using Release = Policy::Release;
using Order = Policy::Order;
using Forward = Policy::Forward;
using Grants = Policy::Grants;
using Place = Policy::Place;

constexpr uint64_t kKB = 1000, kMB = 1000 * kKB;
// Mercury, section III.A: "less than 1 ms estimated in our testbed". With 1 ms, ResNet-50's 161
// tensors would take a quarter longer than with WFBP at 10 Gb/s, which Fig. 13(e) does not show.
constexpr uint64_t kStartupNs = 500'000;
// Ours: a round trip of the kernel's TCP and a message header. P3 sends below the framework's
// engine, whose delays are most of the above.
constexpr uint64_t kP3StartupNs = 50'000;

constexpr std::array kPolicies = {
    Policy{.name = "mercury"},
    Policy{.name = "mercury-fifo", .order = Order::kFifo},
    Policy{.name = "wfbp", .order = Order::kFifo, .forward = Forward::kTensor},
    Policy{.name = "wfbp-eq7",
           .order = Order::kFifo,
           .forward = Forward::kTensor,
           .pulls_share_link = false},
    // P3 cuts at 40,000 parameters of 4 bytes.
    Policy{.name = "p3",
           .release = Release::kPartition,
           .forward = Forward::kPartition,
           .partition_bytes = 160 * kKB,
           .credit_bytes = 160 * kKB,
           .startup_ns = kP3StartupNs},
    // The credit is that of its first releases: a group of four partitions and one more.
    Policy{.name = "byteps",
           .release = Release::kPartition,
           .forward = Forward::kPartition,
           .partition_bytes = 4 * kMB,
           .credit_bytes = 20 * kMB,
           .startup_ns = kStartupNs},
    // What its tuner found for VGG-16 at 10 Gb/s (Mercury, Fig. 4).
    Policy{.name = "bytescheduler",
           .release = Release::kPartition,
           .forward = Forward::kPartition,
           .partition_bytes = 4 * kMB,
           .credit_bytes = 20 * kMB,
           .startup_ns = kStartupNs},
};

constexpr std::array<std::string_view, 2> kOrders = {"fifo", "priority"};
constexpr std::array<std::string_view, 3> kForwards = {"tensor", "partition", "chunk"};
constexpr std::array<std::string_view, 2> kGrants = {"even", "urgency"};
constexpr std::array<std::string_view, 2> kPlaces = {"spread", "key"};
constexpr std::string_view kPartitionKnobs[] = {"partition", "credit", "startup"};
constexpr std::string_view kTensorKnobs[] = {"answers", "grants", "unit", "place"};

Error bad(std::string reason) { return Error(Errc::kInvalidArgument, std::move(reason)); }
std::string quoted(std::string_view text) {
  return std::string(1, '\'').append(text.substr(0, 40)).append(1, '\'');
}
std::string listed(std::span<const std::string_view> words) {
  std::string list;
  for (std::string_view word : words) list.append(list.empty() ? "" : ", ").append(word);
  return list;
}

const Policy* find(std::string_view name) {
  const auto* const found = std::find_if(kPolicies.begin(), kPolicies.end(),
                                         [&](const Policy& row) { return row.name == name; });
  return found == kPolicies.end() ? nullptr : found;
}

Error unknown(std::string_view name, const std::string& names) {
  return bad("unknown policy " + quoted(name) + ": expected one of " + names);
}

template <class Knob>
Status choose(std::string_view key, std::string_view text, std::span<const std::string_view> words,
              Knob& out) {
  const auto found = std::find(words.begin(), words.end(), text);
  if (found == words.end()) {
    return bad(std::string(key) + " " + quoted(text) + ": expected one of " + listed(words));
  }
  out = static_cast<Knob>(found - words.begin());
  return {};
}

Status measure(std::string_view key, const Result<uint64_t>& value, uint64_t& out) {
  if (!value) return bad(std::string(key) + " " + value.error().message);
  out = *value;
  return {};
}

bool among(std::span<const std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Status set_tensor_knob(Policy& policy, std::string_view key, std::string_view text) {
  if (policy.release != Release::kTensor) {
    return bad(std::string(policy.name) + " releases partitions and has no " + std::string(key));
  }
  if (key == "answers") return choose(key, text, kOrders, policy.answers);
  if (key == "grants") return choose(key, text, kGrants, policy.grants);
  if (key == "place") return choose(key, text, kPlaces, policy.place);
  if (Status read = measure(key, parse_bytes(text), policy.unit_bytes); !read) return read;
  if (policy.unit_bytes != 0) return {};
  return bad("unit 0: a unit is a frame where none is named");
}

Status set_partition_knob(Policy& policy, std::string_view key, std::string_view text) {
  if (policy.release == Release::kTensor) {
    return bad(std::string(policy.name) + " releases whole tensors and has no " + std::string(key));
  }
  if (key == "partition") return measure(key, parse_bytes(text), policy.partition_bytes);
  if (key == "credit") return measure(key, parse_bytes(text), policy.credit_bytes);
  return measure(key, parse_ns(text), policy.startup_ns);
}

Status set(Policy& policy, std::string_view key, std::string_view text) {
  if (key == "order") return choose(key, text, kOrders, policy.order);
  if (key == "forward") return choose(key, text, kForwards, policy.forward);
  if (among(kPartitionKnobs, key)) return set_partition_knob(policy, key, text);
  if (among(kTensorKnobs, key)) return set_tensor_knob(policy, key, text);
  return bad("unknown knob " + quoted(key) + ": expected one of order, forward, " +
             listed(kPartitionKnobs) + ", " + listed(kTensorKnobs));
}

// "a,b,c": cuts off "a" and the comma.
std::string_view cut(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view head = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return head;
}

Status check_tensors(const Policy& policy) {
  if (policy.forward == Forward::kPartition) {
    return bad(std::string(policy.name) + " has no partitions to forward: forward=tensor or chunk");
  }
  if ((policy.partition_bytes | policy.credit_bytes | policy.startup_ns) != 0) {
    return bad(std::string(policy.name) + " releases whole tensors and has no partitions");
  }
  const uint64_t unit = policy.unit_bytes;
  if (unit != 0 && (unit < kMinUnitBytes || unit > kMaxUnitBytes)) {
    return bad("unit " + print_bytes(unit) + " is not from " + print_bytes(kMinUnitBytes) + " to " +
               print_bytes(kMaxUnitBytes));
  }
  return {};
}

Status check_partitions(const Policy& policy) {
  const Policy none;
  if (policy.answers != none.answers || policy.grants != none.grants ||
      policy.unit_bytes != none.unit_bytes || policy.place != none.place) {
    return bad(std::string(policy.name) + " releases partitions and has no " +
               listed(kTensorKnobs));
  }
  if (policy.partition_bytes < kMinPartitionBytes || policy.partition_bytes > kMaxPartitionBytes) {
    return bad("partition " + print_bytes(policy.partition_bytes) + " is not from " +
               print_bytes(kMinPartitionBytes) + " to 1TiB");
  }
  if (policy.credit_bytes < policy.partition_bytes) {
    return bad("credit " + print_bytes(policy.credit_bytes) + " is less than a partition of " +
               print_bytes(policy.partition_bytes));
  }
  if (policy.credit_bytes > kMaxCreditBytes) {
    return bad("credit " + print_bytes(policy.credit_bytes) + " is more than 1024TiB");
  }
  if (policy.startup_ns > kMaxStartupNs) {
    return bad("startup " + print_ns(policy.startup_ns) + " is more than " +
               print_ns(kMaxStartupNs));
  }
  return {};
}

}  // namespace

Status check_policy(const Policy& policy) {
  const Policy* row = find(policy.name);
  if (row == nullptr || row->release != policy.release) {
    return bad("no policy " + quoted(policy.name) + " of this release");
  }
  if (!policy.pulls_share_link || !row->pulls_share_link) {
    if (policy == *row) return {};
    return bad(std::string(policy.name) + " stands for one printed equation and has no knobs");
  }
  return policy.release == Release::kPartition ? check_partitions(policy) : check_tensors(policy);
}

Result<Policy> parse_policy(std::string_view text) {
  std::string_view rest = text;
  const std::string_view name = cut(rest, ':');
  const Policy* row = find(name);
  if (row == nullptr) return unknown(name, policy_names());
  if (rest.empty() && text.size() > name.size()) return bad("nothing stands behind the ':'");
  Policy policy = *row;
  std::string seen = ",";
  while (!rest.empty()) {
    if (rest.front() == ',' || rest.back() == ',') return bad("a knob is missing beside a ','");
    std::string_view value = cut(rest, ',');
    const bool assigned = value.find('=') != std::string_view::npos;
    const std::string_view key = cut(value, '=');
    if (!assigned) return bad("knob " + quoted(key) + " without a value: expected KEY=VALUE");
    const std::string mark = std::string(key) + ",";
    if (seen.find("," + mark) != std::string::npos) return bad(std::string(key) + " stands twice");
    seen += mark;
    if (Status ok = set(policy, key, value); !ok) return ok.error();
  }
  if (Status ok = check_policy(policy); !ok) return ok.error();
  return policy;
}

std::string print_policy(const Policy& policy) {
  const Policy* row = find(policy.name);
  std::string text(policy.name);
  if (row == nullptr) return text;
  char separator = ':';
  const auto knob = [&](const char* key, bool differs, std::string_view value) {
    if (!differs) return;
    text.append(1, separator).append(key).append(1, '=').append(value);
    separator = ',';
  };
  // All three or none: one alone says little.
  const bool partitions = policy.partition_bytes != row->partition_bytes ||
                          policy.credit_bytes != row->credit_bytes ||
                          policy.startup_ns != row->startup_ns;
  knob("partition", partitions, print_bytes(policy.partition_bytes));
  knob("credit", partitions, print_bytes(policy.credit_bytes));
  knob("startup", partitions, print_ns(policy.startup_ns));
  knob("order", policy.order != row->order, kOrders[static_cast<size_t>(policy.order)]);
  knob("forward", policy.forward != row->forward, kForwards[static_cast<size_t>(policy.forward)]);
  knob("answers", policy.answers != row->answers, kOrders[static_cast<size_t>(policy.answers)]);
  knob("grants", policy.grants != row->grants, kGrants[static_cast<size_t>(policy.grants)]);
  knob("unit", policy.unit_bytes != row->unit_bytes, print_bytes(policy.unit_bytes));
  knob("place", policy.place != row->place, kPlaces[static_cast<size_t>(policy.place)]);
  return text;
}

Result<Policy> parse_engine_policy(std::string_view text) {
  if (text.empty()) return Policy();
  const std::string_view name = text.substr(0, text.find(':'));
  if (find(name) == nullptr) return unknown(name, engine_policy_names());
  Result<Policy> policy = parse_policy(text);
  if (policy && !policy->pulls_share_link) {
    return Error(Errc::kUnsupported, "policy '" + std::string(text) + "' is for the model alone");
  }
  return policy;
}

Result<std::string> canonical_policy(std::string_view text) {
  const Result<Policy> policy = parse_engine_policy(text);
  if (!policy) return policy.error();
  const std::string printed = print_policy(*policy);
  return printed == kPolicies.front().name ? std::string() : printed;
}

uint32_t unit_frames(const Policy& policy, uint32_t frame_bytes) {
  if (policy.unit_bytes == 0 || frame_bytes == 0) return 1;
  const uint64_t frames = (policy.unit_bytes + frame_bytes / 2) / frame_bytes;
  return static_cast<uint32_t>(std::max<uint64_t>(frames, 1));
}

std::string policy_names() {
  std::array<std::string_view, kPolicies.size()> names;
  std::transform(kPolicies.begin(), kPolicies.end(), names.begin(),
                 [](const Policy& row) { return row.name; });
  return listed(names);
}

std::string engine_policy_names() {
  std::vector<std::string_view> names;
  for (const Policy& row : kPolicies) {
    if (row.pulls_share_link) names.push_back(row.name);
  }
  return listed(names);
}

}  // namespace mercury
