#include "transport/flow/port_turns.h"

#include <algorithm>
#include <cmath>

namespace mercury {

PortTurns::PortTurns(uint32_t ports, uint64_t number) : ports_(ports) { turns_[0].first = number; }

bool PortTurns::end_pass(uint64_t number, uint64_t now_ns) noexcept {
  if (number - since_number_ < kRunFrames) return false;
  since_number_ = number;
  if (last_ + 1 - judged_ >= kTurns) judge(judged_++, now_ns);
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
  turn(last_) = {.first = number, .port = next};
  return true;
}

// One of which nothing arrived has a turn when its pause is over, and none before that has told.
bool PortTurns::may_send(SourcePort& port, uint64_t now_ns) const noexcept {
  if (port.until_ns == 0) return true;
  if (now_ns < port.until_ns) return false;
  if (port.is_lossy) {
    const uint64_t pause_ns = port.pause_ns;
    begin_anew(port);
    port.pause_ns = pause_ns;
    return true;
  }
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

void PortTurns::begin_anew(SourcePort& port) const noexcept {
  port = SourcePort();
  port.judged_from = last_ + 1;
}

void PortTurns::on_arrived(uint64_t number) noexcept {
  ++arrived_;
  uint64_t index = 0;
  if (find(number, index)) note_arrived(turn(index));
}

void PortTurns::note_arrived(Turn& turn) noexcept {
  ++turn.arrived;
  SourcePort& port = ports_[turn.port];
  if (port.row.lost == 0) return;
  if (port.until_ns != 0 && !port.is_lossy) {
    begin_anew(port);
  } else {
    port.row = Row();
  }
}

bool PortTurns::on_lost(uint64_t number, uint64_t now_ns) noexcept {
  uint64_t index = 0;
  if (!find(number, index)) return false;
  ++turn(index).lost;
  lost_.add(number);
  SourcePort& port = ports_[turn(index).port];
  Row& row = port.row;
  if (row.lost++ == 0) row.arrived_before = arrived_;
  if (row.turns == 0 || row.last_turn != index) ++row.turns;
  row.last_turn = index;
  const bool others_arrive = arrived_ - row.arrived_before >= kMostLost;
  const bool hopeless = row.lost >= kMostLost && row.turns >= kLeastTurns && others_arrive;
  if (port.until_ns != 0 || !hopeless) return false;
  port.pause_ns = kFirstPauseNs;
  port.until_ns = now_ns + kFirstPauseNs;
  return true;
}

void PortTurns::judge(uint64_t index, uint64_t now_ns) noexcept {
  const Turn& old = turn(index);
  SourcePort& port = ports_[old.port];
  const uint32_t heard_of = old.arrived + old.lost;
  if (heard_of == 0 || port.until_ns != 0 || index < port.judged_from) return;
  port.losses.turns += 1;
  port.losses.lost += static_cast<double>(old.lost) / heard_of;
  if (loses_more(port)) {
    port.pause_ns = std::clamp(2 * port.pause_ns, kFirstPauseNs, kMostPauseNs);
    port.until_ns = now_ns + port.pause_ns;
    port.is_lossy = left_out_ = true;
  }
  if (port.losses.turns < kRemembered) return;
  if (!port.is_lossy) port.pause_ns = 0;
  port.losses.turns /= 2;
  port.losses.lost /= 2;
}

bool PortTurns::loses_more(const SourcePort& port) const noexcept {
  if (port.losses.turns < kLeastTurns) return false;
  Losses others;
  for (const SourcePort& other : ports_) {
    if (&other == &port || other.until_ns != 0) continue;
    others.turns += other.losses.turns;
    others.lost += other.losses.lost;
  }
  if (others.turns == 0) return false;
  const double more = port.losses.lost / port.losses.turns - others.lost / others.turns;
  const double all =
      (port.losses.lost + others.lost) / (port.losses.turns + others.turns);  // if it were chance
  const double deviation = std::sqrt(all * (1 - all) * (1 / port.losses.turns + 1 / others.turns));
  return more > kMarkedly && more > kDeviations * deviation;
}

void PortTurns::on_acked(std::span<const wire::AckRange> ranges) noexcept {
  for (size_t i = 0; i < ranges.size() && !lost_.empty(); ++i) {
    lost_.take(ranges[i].first, ranges[i].last, [this](uint64_t number) {
      uint64_t index = 0;
      if (!find(number, index)) return;
      --turn(index).lost;
      ++arrived_;
      note_arrived(turn(index));
    });
  }
}

}  // namespace mercury
