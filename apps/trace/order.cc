#include "apps/trace/order.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>

namespace mercury {
namespace {

constexpr size_t kNamedInCycle = 12;  // of a longer cycle the rest is "..."

Error at_line(const TraceTensor& row, const std::string& reason) {
  return Error(Errc::kConfig, std::to_string(row.line) + ": " + reason);
}

// Names to row numbers.
Result<std::vector<std::vector<uint32_t>>> resolve(
    const std::vector<TraceTensor>& rows, const std::vector<std::vector<std::string>>& depends) {
  std::unordered_map<std::string_view, uint32_t> by_name;
  for (uint32_t i = 0; i < rows.size(); ++i) by_name.emplace(rows[i].name, i);
  std::vector<std::vector<uint32_t>> needs(rows.size());
  for (uint32_t i = 0; i < rows.size(); ++i) {
    for (const std::string& name : depends[i]) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) {
        return at_line(rows[i], "depends on '" + name + "', which no row names");
      }
      needs[i].push_back(found->second);
    }
    std::sort(needs[i].begin(), needs[i].end());
    const auto twice = std::adjacent_find(needs[i].begin(), needs[i].end());
    if (twice != needs[i].end()) {
      return at_line(rows[i], "depends on '" + rows[*twice].name + "' twice");
    }
  }
  return needs;
}

// Some rows wait for each other: follows what they wait for until a row comes up again.
Error cycle_among(const std::vector<TraceTensor>& rows,
                  const std::vector<std::vector<uint32_t>>& needs, const std::vector<bool>& done) {
  const auto waiting = [&done](uint32_t row) { return !done[row]; };
  auto row = static_cast<uint32_t>(std::find(done.begin(), done.end(), false) - done.begin());
  std::vector<uint32_t> path;
  std::vector<bool> seen(rows.size());
  while (!seen[row]) {
    seen[row] = true;
    path.push_back(row);
    row = *std::find_if(needs[row].begin(), needs[row].end(), waiting);
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), row));
  // From its first row in the file on, so that the message does not depend on where we began.
  std::rotate(path.begin(), std::min_element(path.begin(), path.end()), path.end());
  std::string names;
  for (size_t i = 0; i < std::min(path.size(), kNamedInCycle); ++i) {
    names += rows[path[i]].name + " -> ";
  }
  if (path.size() > kNamedInCycle) names += "... -> ";
  return at_line(rows[path.front()],
                 "a cycle, each depends on the next: " + names + rows[path.front()].name);
}

}  // namespace

Result<Trace> order_by_dependency(std::vector<TraceTensor> rows,
                                  const std::vector<std::vector<std::string>>& depends) {
  const auto needs = resolve(rows, depends);
  if (!needs) return needs.error();
  const auto count = static_cast<uint32_t>(rows.size());
  std::vector<std::vector<uint32_t>> needed_by(count);
  std::vector<size_t> missing(count);
  // Kahn's algorithm; of the rows that could be next the one with the lowest layer_index, then the
  // first.
  using Key = std::pair<uint32_t, uint32_t>;
  std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
  for (uint32_t i = 0; i < count; ++i) {
    missing[i] = (*needs)[i].size();
    for (uint32_t need : (*needs)[i]) needed_by[need].push_back(i);
    if (missing[i] == 0) ready.emplace(rows[i].layer_index, i);
  }
  Trace trace;
  std::vector<bool> done(count);
  std::vector<uint32_t> place(count);
  while (!ready.empty()) {
    const uint32_t row = ready.top().second;
    ready.pop();
    done[row] = true;
    place[row] = static_cast<uint32_t>(trace.tensors.size());
    std::vector<uint32_t>& depends_on = trace.tensors.emplace_back(rows[row]).depends;
    for (uint32_t need : (*needs)[row]) depends_on.push_back(place[need]);
    std::sort(depends_on.begin(), depends_on.end());
    for (uint32_t next : needed_by[row]) {
      if (--missing[next] == 0) ready.emplace(rows[next].layer_index, next);
    }
  }
  if (trace.tensors.size() != count) return cycle_among(rows, *needs, done);
  return trace;
}

}  // namespace mercury
