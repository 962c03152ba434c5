#include "transport/base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

namespace mercury {
namespace {

constexpr std::string_view kPrefix = "MERCURY_";
// No name is half as long; comparing more of a very long one would take its time.
constexpr size_t kLongestCompared = 64;

// NAME_SERVICE_HOST, NAME_SERVICE_PORT_..., NAME_PORT_443_UDP_ADDR.
bool is_of_kubernetes(std::string_view name) {
  if (name.find("_SERVICE_HOST") != name.npos || name.find("_SERVICE_PORT") != name.npos)
    return true;
  constexpr std::string_view kPort = "_PORT_";
  const size_t at = name.find(kPort);
  return at != name.npos && at + kPort.size() < name.size() && name[at + kPort.size()] >= '0' &&
         name[at + kPort.size()] <= '9';
}

// In which a name may differ from `meant` and be it, misspelt.
size_t most_changes(std::string_view meant) {
  return meant.size() <= kPrefix.size() ? 0 : (meant.size() - kPrefix.size()) / 3;
}

// The one of `known` that `name` may be, misspelt; empty: none.
std::string_view meant_by(std::string_view name, std::span<const std::string_view> known) {
  std::vector<std::string_view> near;
  for (const std::string_view candidate : known) {
    if (edit_distance(name.substr(0, kLongestCompared), candidate) <= most_changes(candidate)) {
      near.push_back(candidate);
    }
  }
  return closest_name(name, near);
}

}  // namespace

std::vector<std::string> mercury_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with(kPrefix)) names.emplace_back(text.substr(0, text.find('=')));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Row i: the distances of a's first i characters to each beginning of b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row.back();
}

std::string_view closest_name(std::string_view name, std::span<const std::string_view> known) {
  const auto distance = [&](std::string_view candidate) {
    return edit_distance(name.substr(0, kLongestCompared), candidate);
  };
  std::string_view best;
  size_t least = 0;
  for (const std::string_view candidate : known) {
    const size_t changes = distance(candidate);
    if (!best.empty() && changes >= least) continue;
    best = candidate;
    least = changes;
  }
  return best;
}

std::string describe(const MisspeltVariable& misspelt) {
  return "$" + misspelt.name + " is not a variable of Mercury's; did you mean $" + misspelt.meant +
         "?";
}

std::optional<MisspeltVariable> find_misspelt(std::span<const std::string> names,
                                              std::span<const std::string_view> known) {
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (is_of_kubernetes(name)) continue;
    const std::string_view meant = meant_by(name, known);
    if (!meant.empty()) return MisspeltVariable{name, std::string(meant)};
  }
  return std::nullopt;
}

}  // namespace mercury
