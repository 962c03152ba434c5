// Which pushes are sums of all workers, and how they are added: what the environment says of it,
// and what workers' requests are by that. The same variables stand on all workers, so all decide
// alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shim/pslite/message_link.h"

namespace mercury_van {

enum class Mode : uint32_t {
  kTransparent,  // servers see each worker's push
  kAggregate,    // Mercury's aggregators sum; servers see nothing
  kNotify,       // a server's van sums; the server sees one push a round
};
const char* name_of(Mode mode);

enum class ValueType { kNone, kFloat32, kFloat64, kInt32, kInt64 };
size_t bytes_of(ValueType type);

// Who pushes first values of a key before the rounds begin; those are no sums.
enum class FirstValues { kNobody, kRankZero, kAll };

struct SumRule {
  Mode mode = Mode::kTransparent;
  // Of keys as they are counted from the beginning of their server's range; first and last.
  std::vector<std::pair<uint64_t, uint64_t>> keys;
  std::vector<std::pair<uint64_t, uint64_t>> commands;
  FirstValues first_values = FirstValues::kNobody;
};

// "": well. Else which variable is wrong, and what was expected. `value_of` gives null for a
// variable that is not set.
std::string read_rule(const std::function<const char*(const char*)>& value_of, SumRule* out);

// The same for rules by which all decide alike, and as good as never for others. Where nothing is
// summed all rules are one.
uint64_t digest_of(const SumRule& rule);

// What frameworks that push bytes say by the command: 0 in it is a plain push, and the type of its
// values is the second number of Cantor's pair. kNone: a type that is not summed, or no plain push.
ValueType type_of_command(int command);

// A request of a worker's to one server, or what arrives of it there.
struct KeyRequest {
  int app = 0, customer = 0, command = 0;
  bool push = false, pull = false;
  ValueType type = ValueType::kNone;
  size_t value_bytes = 1;   // of what ps-lite calls a value: 1 if that is bytes of something
  int priority = 0;         // the greater, the sooner
  uint64_t first_key = 0;   // of the server's range
  std::vector<Bytes> data;  // keys, values, perhaps lengths
};

// One key's part of a request.
struct KeyPart {
  uint64_t key = 0;
  size_t at = 0, bytes = 0;  // of the values
  int length = 0;            // in values, as ps-lite counts them
};
// "": well. Else what is wrong with its keys, values and lengths.
std::string parts_of(const KeyRequest& request, std::vector<KeyPart>* out);

// A worker's: remembers which keys have been pushed.
class SumChooser {
 public:
  SumChooser(SumRule rule, int rank) : rule_(std::move(rule)), rank_(rank) {}

  // Whether the push is a contribution to a sum, or the pull of keys that have contributed; then
  // `parts` are theirs. `error` says why it can be neither that nor an ordinary request. Not
  // thread-safe.
  bool is_summed(const KeyRequest& request, std::vector<KeyPart>* parts, std::string* error);

 private:
  struct Known {
    int customer = 0;
    bool has_contributed = false;  // not first values only
  };

  bool is_push_summed(const KeyRequest& request, const std::vector<KeyPart>& parts,
                      std::string* error);
  bool is_pull_summed(const std::vector<KeyPart>& parts, std::string* error) const;
  bool has_first_values() const;

  const SumRule rule_;
  const int rank_;
  std::map<uint64_t, Known> known_;
};

}  // namespace mercury_van
