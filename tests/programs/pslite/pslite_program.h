// What the tests' programs of ps-lite share. It compiles in BytePS's tree and in dmlc's, and is
// nothing outside of one.
#pragma once

#if __has_include(<ps/ps.h>)

#include <ps/ps.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using ps::Key;
using Values = std::vector<float>;

template <typename Meta, typename = void>
struct HasPriority : std::false_type {};
template <typename Meta>
struct HasPriority<Meta, decltype(static_cast<void>(std::declval<Meta>().priority))>
    : std::true_type {};
// dmlc's tree has priorities; its queues, of what was received too, do not keep the order of
// equals.
constexpr bool kHasPriority = HasPriority<ps::Meta>::value;

std::string pattern = "start";  // that is tried
int iteration = 0;

// Else the process ends, and standard error says where.
void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::cerr << "wrong: rank " << ps::MyRank() << ", " << pattern << ", round " << iteration << ": "
            << what << std::endl;
  std::_Exit(3);
}

void barrier() { ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup); }

// A server's values by key, and how many of a push are each key's.
class Kept {
 public:
  // Adds the push's values to those that are there, if they are as many; else they replace them.
  void take(const ps::KVPairs<float>& data, bool adds) {
    size_t from = 0;
    for (size_t i = 0; i < data.keys.size(); ++i) {
      const size_t count = data.lens.empty() ? data.vals.size() / data.keys.size()
                                             : static_cast<size_t>(data.lens[i]);
      Values& kept = values_[data.keys[i]];
      if (!adds || kept.size() != count) kept.assign(count, 0);
      for (size_t j = 0; j < count; ++j) kept[j] += data.vals[from + j];
      from += count;
    }
    expect(from == data.vals.size(), "a push of other lengths than it says");
  }

  void answer_pull(const ps::KVMeta& request, const ps::KVPairs<float>& data,
                   ps::KVServer<float>* server) {
    ps::KVPairs<float> answer;
    answer.keys = data.keys;
    Values all;
    std::vector<int> lens;
    for (const Key key : data.keys) {
      const Values& kept = values_[key];
      lens.push_back(static_cast<int>(kept.size()));
      all.insert(all.end(), kept.begin(), kept.end());
    }
    answer.vals = ps::SArray<float>(all);
    answer.lens = ps::SArray<int>(lens);
    server->Response(request, answer);
  }

 private:
  std::map<Key, Values> values_;
};

}  // namespace

#endif
