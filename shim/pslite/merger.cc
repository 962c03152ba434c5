#include "shim/pslite/merger.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace mercury_van {
namespace {

template <typename T>
void add(const Bytes& from, const Bytes& to) {
  const T* const more = reinterpret_cast<const T*>(from.data);
  T* const sum = reinterpret_cast<T*>(to.data);
  for (size_t i = 0; i < to.size / sizeof(T); ++i) sum[i] += more[i];
}

// Whole numbers wrap around, as unsigned ones do.
void add_values(ValueType type, const Bytes& from, const Bytes& to) {
  if (type == ValueType::kFloat32) {
    add<float>(from, to);
  } else if (type == ValueType::kFloat64) {
    add<double>(from, to);
  } else if (type == ValueType::kInt32) {
    add<uint32_t>(from, to);
  } else {
    add<uint64_t>(from, to);
  }
}

uint64_t first_key_of(const WorkerRequest& request) {
  uint64_t key = 0;
  if (!request.what.data.empty() && request.what.data[0].size >= sizeof key) {
    std::memcpy(&key, request.what.data[0].data, sizeof key);
  }
  return key;
}

bool is_same(const Bytes& one, const Bytes& other) {
  return one.size == other.size &&
         (one.size == 0 || std::memcmp(one.data, other.data, one.size) == 0);
}

}  // namespace

std::string Merger::difference(const WorkerRequest& one, const WorkerRequest& other) {
  const std::string of = "key " + std::to_string(first_key_of(one)) + ": workers " +
                         std::to_string(one.worker) + " and " + std::to_string(other.worker) +
                         " push ";
  const KeyRequest& a = one.what;
  const KeyRequest& b = other.what;
  if (a.command != b.command) return of + "with different commands";
  if (a.type != b.type) return of + "values of different types";
  if (a.pull != b.pull) return of + "one with a pull and one without";
  if (a.data.size() != b.data.size() || !is_same(a.data[0], b.data[0])) {
    return of + "it together with different keys";
  }
  if (a.data[1].size != b.data[1].size) {
    return of + std::to_string(a.data[1].size) + " and " + std::to_string(b.data[1].size) +
           " bytes";
  }
  if (a.data.size() > 2 && !is_same(a.data[2], b.data[2])) return of + "values of other lengths";
  return "";
}

Merger::OpenRound& Merger::round_without(int worker, OpenRounds& rounds) {
  const size_t place = static_cast<size_t>(worker);
  for (OpenRound& round : rounds) {
    if (!round.is_there[place]) return round;
  }
  rounds.emplace_back();
  rounds.back().pushes.resize(workers_);
  rounds.back().is_there.resize(workers_);
  return rounds.back();
}

std::vector<Merger::ToServer> Merger::push(WorkerRequest request, Incarnation process,
                                           std::string* error) {
  error->clear();
  std::vector<ToServer> out;
  const size_t place = static_cast<size_t>(request.worker);
  if (processes_.at(place) != process) return out;
  const uint64_t key = first_key_of(request);
  OpenRounds& rounds = open_[key];
  OpenRound& round = round_without(request.worker, rounds);
  for (size_t i = 0; i < workers_ && error->empty(); ++i) {
    if (!round.is_there[i]) continue;
    const WorkerRequest& other = round.pushes[i];
    *error = i < place ? difference(other, request) : difference(request, other);
  }
  if (!error->empty()) return out;
  round.pushes[place] = std::move(request);
  round.is_there[place] = true;
  if (++round.count < workers_) return out;
  // Whoever pushes a round has pushed the one before: the oldest is complete first.
  out.push_back(merge(round));
  for (WorkerRequest& pull : round.pulls) out.push_back(ToServer{std::move(pull), 0});
  rounds.pop_front();
  if (rounds.empty()) open_.erase(key);
  return out;
}

Merger::ToServer Merger::merge(OpenRound& round) {
  std::vector<WorkerRequest>& waiting = unanswered_[++last_merged_];
  const Bytes& sums = round.pushes[0].what.data[1];
  for (size_t i = 0; i < workers_; ++i) {
    if (i > 0) add_values(round.pushes[i].what.type, round.pushes[i].what.data[1], sums);
    waiting.push_back(round.pushes[i]);
    waiting.back().what.data.clear();
  }
  return ToServer{std::move(round.pushes[0]), last_merged_};
}

bool Merger::hold(const WorkerRequest& pull, Incarnation process) {
  const size_t place = static_cast<size_t>(pull.worker);
  const auto rounds = open_.find(first_key_of(pull));
  if (processes_.at(place) != process || rounds == open_.end()) return false;
  for (auto round = rounds->second.rbegin(); round != rounds->second.rend(); ++round) {
    if (!round->is_there[place] || round->pushes[place].what.app != pull.what.app) continue;
    round->pulls.push_back(pull);
    return true;
  }
  return false;
}

std::vector<WorkerRequest> Merger::answer(int merged) {
  const auto found = unanswered_.find(merged);
  if (found == unanswered_.end()) return {};
  std::vector<WorkerRequest> waiting = std::move(found->second);
  unanswered_.erase(found);
  return waiting;
}

void Merger::replace(int worker, Incarnation process) {
  const size_t place = static_cast<size_t>(worker);
  if (processes_.at(place) == process) return;
  processes_[place] = process;
  const auto is_its = [worker](const WorkerRequest& request) { return request.worker == worker; };
  for (auto& each : unanswered_) {
    std::vector<WorkerRequest>& waiting = each.second;
    waiting.erase(std::remove_if(waiting.begin(), waiting.end(), is_its), waiting.end());
  }
  for (auto key = open_.begin(); key != open_.end();) {
    OpenRounds& rounds = key->second;
    for (OpenRound& round : rounds) {
      std::vector<WorkerRequest>& pulls = round.pulls;
      pulls.erase(std::remove_if(pulls.begin(), pulls.end(), is_its), pulls.end());
      if (!round.is_there[place]) continue;
      round.pushes[place] = WorkerRequest();
      round.is_there[place] = false;
      --round.count;
    }
    // Only the last ones can be empty now: a later round is of those who gave to the ones before.
    while (!rounds.empty() && rounds.back().count == 0) rounds.pop_back();
    key = rounds.empty() ? open_.erase(key) : std::next(key);
  }
}

}  // namespace mercury_van
