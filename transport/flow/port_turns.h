// Which of its source ports a session's datagrams leave from: all in turn, but those of which
// nothing arrives, or markedly less than of the others.
//
// Routers choose a path by the port, so a path that is broken takes all that leaves from some ports
// and nothing of the others. A port is left out when its last kMostLost datagrams were lost, in
// kLeastTurns turns or more, while as many from others arrived: where all are lost alike nothing is
// wrong with one. It has a turn again after kFirstPauseNs, then after twice that each time,
// kMostPauseNs at most; the first of its datagrams that is acknowledged brings it back.
//
// So is one left out whose turns have lost kMarkedly more of their datagrams than those of all
// others that are not left out, when that is not by chance (kDeviations of the difference of two
// proportions). Turns are compared, not datagrams: a full queue takes many of one turn, which say
// no more than one. It is back after such a pause, to be judged anew, and the pauses are from the
// start again when it has lost no more than others in kRemembered turns.
//
// A datagram that is acknowledged after all, as where a path reorders or is held up, was not lost:
// it counts in its turn as one that has arrived, and nothing else changes. So a path that loses a
// part is found out while others, or the same, have losses that turn out to be none.
//
// A run's packets have consecutive numbers, so a turn is remembered by where it begins. Of packets
// older than kTurns turns nothing is known: a turn is judged when it is as old, and what arrives
// later than that was lost.
//
// Owner/thread: one engine. Nothing allocates once it is made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "transport/flow/lost_numbers.h"
#include "transport/wire/ack.h"

namespace mercury {

// As many as an acknowledgement is for: a window of a few of them has all ports within few round
// trips, and a path that is slower than the link has few before it at a time.
inline constexpr uint64_t kRunFrames = 8;

class PortTurns {
 public:
  // A port with half of all datagrams lost by chance would be left out once in 2^32 of its turns. A
  // run that found a queue full is one turn.
  static constexpr uint32_t kMostLost = 32;
  static constexpr uint32_t kLeastTurns = 4;
  // What a turn in vain costs is one run in a second: less than one in ten thousand at 10 Gb/s.
  static constexpr uint64_t kFirstPauseNs = 1'000'000'000;
  static constexpr uint64_t kMostPauseNs = 16 * kFirstPauseNs;
  static constexpr size_t kTurns = 256;
  // What a window takes for chance (AdaptiveWindow); less than this a path may lose and still carry
  // more than none.
  static constexpr double kMarkedly = 0.125;
  // By chance once in 10^15 turns, of which 10 Gb/s are 150,000 in a second; less often, as turns
  // of which a part is lost differ less than turns that are lost or not.
  static constexpr double kDeviations = 8;
  // When so many turns of a port have been judged they weigh half beside the next ones: as many as
  // tell kMarkedly from chance where there are two ports.
  static constexpr uint32_t kRemembered = 512;

  // Of so many ports, at least one; the first has its turn, from packet `number` on, in the pass
  // that goes on.
  PortTurns(uint32_t ports, uint64_t number);

  uint32_t current() const noexcept { return turn(last_).port; }
  // A pass has sent, and `number` is the next packet's. True: it is another port's turn.
  bool end_pass(uint64_t number, uint64_t now_ns) noexcept;
  // Whether end_pass has left out a port since this was asked last.
  bool take_left_out() noexcept { return std::exchange(left_out_, false); }

  // Of datagrams, by their packets' numbers, in any order.
  void on_arrived(uint64_t number) noexcept;
  // True: its port is left out from now on.
  bool on_lost(uint64_t number, uint64_t now_ns) noexcept;
  // As acknowledged: what of it was lost has arrived after all.
  void on_acked(std::span<const wire::AckRange> ranges) noexcept;

 private:
  struct Turn {
    uint64_t first = 0;  // packet number
    uint32_t port = 0;
    uint32_t arrived = 0;  // datagrams
    uint32_t lost = 0;
  };
  struct Row {  // of datagrams that were lost
    uint32_t lost = 0;
    uint32_t turns = 0;  // in which they left
    uint64_t last_turn = 0;
    uint64_t arrived_before = 0;  // from all ports, when the row began
  };
  struct Losses {  // of turns that were judged
    double turns = 0;
    double lost = 0;  // of each the part that was, together
  };
  struct SourcePort {
    Row row;
    Losses losses;
    uint64_t judged_from = 0;  // turns, by index: later than those that left it out
    uint64_t until_ns = 0;     // left out until then; 0: it is not
    uint64_t pause_ns = 0;     // after its next turn
    bool is_lossy = false;     // so it was left out: something of it arrives
  };

  const Turn& turn(uint64_t index) const noexcept { return turns_[index % kTurns]; }
  Turn& turn(uint64_t index) noexcept { return turns_[index % kTurns]; }
  // A turn of which no more will be heard.
  void judge(uint64_t index, uint64_t now_ns) noexcept;
  bool loses_more(const SourcePort& port) const noexcept;
  void note_arrived(Turn& turn) noexcept;
  void begin_anew(SourcePort& port) const noexcept;
  // Where `number` left. False: too long ago.
  bool find(uint64_t number, uint64_t& index) noexcept;
  bool may_send(SourcePort& port, uint64_t now_ns) const noexcept;

  std::vector<SourcePort> ports_;
  std::array<Turn, kTurns> turns_{};
  LostNumbers lost_;
  uint64_t last_ = 0;   // index of the turn that goes on
  uint64_t found_ = 0;  // by find; acknowledgements come mostly in order
  uint64_t since_number_ = 0;
  uint64_t arrived_ = 0;
  uint64_t judged_ = 0;  // turns, by index: those before it
  bool left_out_ = false;
};

}  // namespace mercury
