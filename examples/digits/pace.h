// Computing that is held to a pace. The engines and links of several virtual hosts share this
// machine's cores with the workers; what they take varies with the way of exchanging gradients, and
// on real hosts, which have cores for them, it would not lengthen the computing. So each piece of
// computing lasts as long as a trace says (a little longer than it takes alone), whether engines
// ran meanwhile or not.
#pragma once

#include <vector>

#include "apps/trace/trace.h"
#include "examples/digits/record.h"

namespace digits {

class Pace {
 public:
  Pace() = default;  // as fast as the machine
  // Each layer's times are those of its first tensor, as Record::write_trace() writes them.
  explicit Pace(const mercury::Trace& trace);

  // Returns once what began at `begin_s` has lasted long enough.
  void hold(Record::Kind kind, size_t layer, double begin_s) const;

 private:
  struct Least {
    double forward_s = 0, backward_s = 0, update_s = 0;
  };
  std::vector<Least> layers_;
};

}  // namespace digits
