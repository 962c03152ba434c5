// The bandwidth of a simulated link over time, written as
//
//   10Gbps                        constant
//   10Gbps,2s:5Gbps,4s:10Gbps     in steps: 5 Gb/s from 2 s on, and so on
//   random:1Gbps-10Gbps/100ms     another one of that range every 100 ms, evenly distributed
//
// Time begins with the training. And for which links it is: WHO[.up|.down]=SCHEDULE, WHO being all,
// workers, servers, workerN or serverN.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "transport/base/random.h"
#include "transport/base/result.h"
#include "transport/base/types.h"

namespace mercury::simulator {

class LinkSchedule {
 public:
  static Result<LinkSchedule> parse(std::string_view text);

  // The rate at the time of the last advance(), or in the beginning.
  uint64_t bps() const { return bps_; }
  // The lowest that it ever is.
  uint64_t least_bps() const;
  bool changes() const { return period_ns_ != 0 || !steps_.empty(); }
  // When it changes next; kNever if it stays.
  uint64_t change_ns() const;
  // The change takes place.
  void advance(Random& random);
  // A random schedule's first rate.
  void begin(Random& random);

 private:
  struct Step {
    uint64_t at_ns = 0;
    uint64_t bps = 0;
  };
  uint64_t bps_ = 0;
  std::vector<Step> steps_;
  size_t next_ = 0;
  uint64_t least_bps_ = 0, most_bps_ = 0;  // random
  uint64_t period_ns_ = 0, due_ns_ = kNever;
};

struct LinkRule {
  std::string text;
  bool workers = false, servers = false;
  int index = -1;  // -1: all of them
  bool up = true, down = true;
  LinkSchedule schedule;

  static Result<LinkRule> parse(std::string_view text);
  // `index` of the worker or server.
  bool is_for(bool worker, uint32_t number, bool uplink) const {
    return (worker ? workers : servers) && (index < 0 || static_cast<uint32_t>(index) == number) &&
           (uplink ? up : down);
  }
};

}  // namespace mercury::simulator
