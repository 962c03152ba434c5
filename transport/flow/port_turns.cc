#include "transport/flow/port_turns.h"

#include <algorithm>

namespace mercury {

PortTurns::PortTurns(uint32_t ports, uint64_t number) : ports_(ports) { turns_[0].first = number; }

bool PortTurns::end_pass(uint64_t number, uint64_t now_ns) noexcept {
  if (number - since_number_ < kRunFrames) return false;
  since_number_ = number;
  const auto count = static_cast<uint32_t>(ports_.size());
  uint32_t next = (current() + 1) % count;  // and where none may send, too
  for (uint32_t step = 0; step < count; ++step) {
    const uint32_t candidate = (next + step) % count;
    if (!may_send(ports_[candidate], now_ns)) continue;
    next = candidate;
    break;
  }
  if (next == current()) return false;
  ++last_;
  turns_[last_ % kTurns] = {number, next};
  return true;
}

// One that is left out has a turn when its pause is over, and none before that has told.
bool PortTurns::may_send(SourcePort& port, uint64_t now_ns) const noexcept {
  if (port.until_ns == 0) return true;
  if (now_ns < port.until_ns) return false;
  port.pause_ns = std::min(2 * port.pause_ns, kMostPauseNs);
  port.until_ns = now_ns + port.pause_ns;
  return true;
}

bool PortTurns::find(uint64_t number, uint64_t& index) noexcept {
  const uint64_t oldest = last_ < kTurns ? 0 : last_ - kTurns + 1;
  if (number < turn(oldest).first) return false;
  found_ = std::max(found_, oldest);
  while (found_ < last_ && turn(found_ + 1).first <= number) ++found_;
  while (turn(found_).first > number) --found_;
  index = found_;
  return true;
}

void PortTurns::on_arrived(uint64_t number) noexcept {
  ++arrived_;
  uint64_t index = 0;
  if (!find(number, index)) return;
  SourcePort& port = ports_[turn(index).port];
  if (port.lost > 0) port = SourcePort();
}

bool PortTurns::on_lost(uint64_t number, uint64_t now_ns) noexcept {
  uint64_t index = 0;
  if (!find(number, index)) return false;
  SourcePort& port = ports_[turn(index).port];
  if (port.lost++ == 0) port.arrived_before = arrived_;
  if (port.turns == 0 || port.last_turn != index) ++port.turns;
  port.last_turn = index;
  const bool others_arrive = arrived_ - port.arrived_before >= kMostLost;
  const bool hopeless = port.lost >= kMostLost && port.turns >= kLeastTurns && others_arrive;
  if (port.until_ns != 0 || !hopeless) return false;
  port.pause_ns = kFirstPauseNs;
  port.until_ns = now_ns + kFirstPauseNs;
  return true;
}

void PortTurns::forgive() noexcept { std::ranges::fill(ports_, SourcePort()); }

}  // namespace mercury
