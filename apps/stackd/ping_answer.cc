#include "apps/stackd/ping_answer.h"

#include <nlohmann/json.hpp>

namespace mercury {
namespace {

// For programs: mercuryctl has words for people.
const char* name_of(PingReport::Outcome outcome) {
  switch (outcome) {
    case PingReport::Outcome::kAnswered:
      return "answered";
    case PingReport::Outcome::kRefusedHere:
      return "refused_here";
    case PingReport::Outcome::kRefusedThere:
      return "refused_there";
    case PingReport::Outcome::kSilent:
      return "silent";
    case PingReport::Outcome::kLost:
      return "lost";
  }
  return "?";
}

}  // namespace

std::string ping_answer(const PingReport& report, uint64_t link_bytes_per_second) {
  const nlohmann::json answer = {{"outcome", name_of(report.outcome)},
                                 {"why", report.why},
                                 {"engine", report.lane.value},
                                 {"round_trip_ns", report.round_trip_ns},
                                 {"session_ns", report.session_ns},
                                 {"frame_round_trip_ns", report.info.rtt_ns},
                                 {"least_frame_round_trip_ns", report.info.least_rtt_ns},
                                 {"udp_payload", report.info.segment_bytes},
                                 {"window_bytes", report.info.window_bytes},
                                 {"lost_packets", report.info.lost_packets},
                                 {"link_bytes_per_second", link_bytes_per_second}};
  // What another host says need not be UTF-8.
  return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace mercury
