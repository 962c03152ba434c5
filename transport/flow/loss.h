// Which packets in flight were acknowledged, which are lost, and when to probe.
//
// A packet is lost when a later one was acknowledged and either `packet_threshold` numbers or the
// time threshold lie between them. Both thresholds grow when the path proves to reorder (a packet
// acknowledged late, or after it was declared lost), so that multipath does not look like loss; the
// packet threshold is never lowered again, as the time threshold bounds what that costs. Round
// trips are the newest packets', so the fastest path's: where paths differ in delay a packet is
// given an eighth more than late ones took, and what is a probe time-out then at most; after
// kTripsRemembered round trips half of that, or as long as late ones took in these if that is more;
// half, too, when kRemembered in a row were lost in earnest. Of a session whose packets take
// several paths in turn (take_paths), which the sender can tell apart, this is so among those of
// one path; what packets of other paths alone have overtaken is given a probe time-out. When
// nothing is acknowledged for a probe time-out, a PING asks for an acknowledgement, with
// exponential back-off. The first in a row comes early: it only asks, and where few frames are in
// flight most of what is lost, or an acknowledgement of it, has nothing behind it that would tell.
// From the second on the oldest packet that is not a PING is declared lost too, so that a path that
// eats everything of one size still gets other packets to carry. PINGs keep their records until
// something tells; where that leaves none for the next PING, those in reserve are given back.
//
// Paper: RFC 9002 section 6; RFC 8985 (RACK) sections 3.3.2 and 6.2 for reordering.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/base/types.h"
#include "transport/flow/ack_tracker.h"
#include "transport/flow/rtt.h"
#include "transport/flow/sent_history.h"

namespace mercury {

struct LossConfig {
  uint64_t initial_rtt_ns = 10'000'000;
  uint64_t max_ack_delay_ns = 500'000;        // of the peer
  uint64_t min_probe_timeout_ns = 2'000'000;  // the first in a row may take an eighth
  uint64_t max_probe_timeout_ns =
      250'000'000;  // back-off ends here: a path that heals is found soon
  uint64_t jitter_seed = 0;
};

enum class LossCause : uint8_t {
  kOvertaken,  // later packets arrived and this one did not
  kSilence,    // probe time-outs: nothing arrives
};

// What the detector reports to, by template: `packet_acked(const SentRecord&)`,
// `packet_refused(const SentRecord&)` and `packet_lost(const SentRecord&, LossCause)`, noexcept,
// which may send but not receive.
class LossDetector {
 public:
  LossDetector(const LossConfig& config, const SentSource& source)
      : config_(config), rtt_(config.initial_rtt_ns), history_(source) {}

  bool has_room(SentKind kind) const noexcept { return history_.has_room(kind); }
  // False: no record left (has_room was false); the packet must not be sent.
  bool on_sent(SentKind kind, uint64_t number, const SentTag& tag, uint32_t bytes,
               uint64_t now_ns) noexcept;

  // `ranges` as acknowledged, highest first, all of numbers that were sent; the acknowledgement
  // waited at the peer for `ack_delay_ns`, as it says, and here for `waited_ns` (Arrival), or at
  // most that.
  template <class Sink>
  void on_ack(std::span<const NumberRange> ranges, uint64_t ack_delay_ns, uint64_t now_ns,
              Sink& sink, uint64_t waited_ns = 0) noexcept;

  // Before on_ack of the same acknowledgement: those of its packets that arrived, and whose
  // datagrams were refused for now. `largest` is the highest number that it names.
  template <class Sink>
  [[gnu::cold]] void on_refused(std::span<const NumberRange> ranges, uint64_t largest,
                                uint64_t ack_delay_ns, uint64_t now_ns, Sink& sink,
                                uint64_t waited_ns = 0) noexcept;

  uint64_t deadline_ns() const noexcept;  // kNever when nothing is in flight
  // Past the deadline: declares losses, or makes probes due.
  template <class Sink>
  void on_timer(uint64_t now_ns, Sink& sink) noexcept;

  // PINGs with kFlagAckNow that must be sent.
  uint32_t probes_due() const noexcept { return probes_due_; }
  void probe_sent() noexcept { --probes_due_; }

  // The session ends: nothing is in flight any more, nothing is reported.
  void clear() noexcept;

  // The peer is elsewhere, and `number` is the next to be sent. What is in flight was sent where it
  // was: it is reported as ever, but weighs nothing, and says nothing of round trips and
  // reordering. `other_path`: nor does what was learnt before.
  [[gnu::cold]] void move(uint64_t number, bool other_path, uint64_t now_ns) noexcept;
  // Whether a packet was sent where the peer was before.
  bool sent_before_move(uint64_t number) const noexcept { return number < moved_number_; }
  // Whether any such packet is in flight. Cold.
  bool any_before_move() const noexcept {
    const SentRecord* const record = history_.oldest().record();
    return record != nullptr && sent_before_move(record->number);
  }

  // From now on packets take several paths, as their tags say (SentTag::path), of which each keeps
  // their order as one path does. Again where the peer has moved, as the paths are others then.
  // Cold.
  void take_paths() { newest_ = std::make_unique<std::array<uint64_t, kMostPaths>>(); }
  static constexpr size_t kMostPaths = 16;

  // What a late packet is given at most.
  [[gnu::cold]] uint64_t most_delay_ns() const noexcept;

  RttEstimator& rtt() noexcept { return rtt_; }
  const RttEstimator& rtt() const noexcept { return rtt_; }
  uint64_t bytes_in_flight() const noexcept { return history_.bytes_in_flight(); }
  uint32_t packets_in_flight() const noexcept { return history_.packets_in_flight(); }
  uint64_t spurious_losses() const noexcept { return spurious_losses_; }
  uint64_t probe_timeouts() const noexcept { return probe_timeouts_; }
  uint32_t packet_threshold() const noexcept { return packet_threshold_; }

 private:
  // With 8 senders of 9,000 bytes, two frames in flight each, and 5 % random loss goodput is 0.58
  // of lossless with a whole time-out and 0.78 with an eighth.
  static constexpr uint64_t kFirstProbePart = 8;
  static constexpr uint32_t kFirstPacketThreshold = 3;  // RFC 9002 6.1.1
  static constexpr uint32_t kMaxPacketThreshold =
      1024;  // beyond, the time threshold decides anyway
  static constexpr uint32_t kWholeEighths = 8;
  static constexpr uint32_t kFirstTimeEighths = 9;  // RFC 9002 6.1.2: 9/8
  static constexpr uint32_t kMaxTimeEighths = 16;   // RFC 8985 6.2: at most one more round trip
  static constexpr uint32_t kRemembered = 16;
  // 16 source ports that take turns by runs have each had several. What one frame that was held up
  // for a probe time-out of 2 ms costs at round trips of 50 us ends after 400.
  static constexpr uint32_t kTripsRemembered = 64;

  struct Declared {  // a packet declared lost: if it is acknowledged after all, the path reorders
    uint64_t number = 0;
    uint64_t sent_ns = 0;
    uint32_t distance = 0;  // behind the largest acknowledged of its path when it was declared
    uint8_t path = 0;
  };

  template <class Sink>
  void detect(uint64_t now_ns, Sink& sink) noexcept;
  template <class Sink>
  void declare_oldest(Sink& sink) noexcept;
  template <class Sink>
  void make_room_for_probes(Sink& sink) noexcept;
  void note_round_trip(const SentRecord& record, uint64_t ack_delay_ns, uint64_t waited_ns,
                       uint64_t now_ns) noexcept {
    if (sent_before_move(record.number)) [[unlikely]]
      return;
    if (ack_delay_ns + waited_ns > config_.min_probe_timeout_ns) [[unlikely]]
      return note_long_wait(record, ack_delay_ns, waited_ns, now_ns);
    rtt_.sample(now_ns - record.sent_ns, ack_delay_ns, config_.max_ack_delay_ns);
  }
  [[gnu::cold]] void note_long_wait(const SentRecord& record, uint64_t ack_delay_ns,
                                    uint64_t waited_ns, uint64_t now_ns) noexcept;
  // It has arrived; `largest`, too, before. Late is what its own path's packets overtook.
  void note_acked(const SentRecord& record, bool had_largest, uint64_t largest,
                  uint64_t now_ns) noexcept {
    if (newest_ != nullptr) [[unlikely]] {
      largest = newest_of_path(record);
      had_largest = record.number < largest;
    }
    if (!had_largest || record.number >= largest || sent_before_move(record.number)) return;
    note_reordering(largest - record.number, now_ns - record.sent_ns);
  }
  void note_newest(const SentRecord& record) noexcept {
    if (newest_ == nullptr) [[likely]]
      return;
    uint64_t& newest = (*newest_)[record.tag.path() % kMostPaths];
    newest = std::max(newest, record.number);
  }
  // The largest number that was acknowledged of its path; 0: none yet.
  uint64_t newest_of_path(const SentRecord& record) const noexcept {
    return newest_ == nullptr ? largest_acked_ : (*newest_)[record.tag.path() % kMostPaths];
  }
  [[gnu::cold]] void note_reordering(uint64_t distance, uint64_t took_ns) noexcept;
  // After which one that others have overtaken is lost.
  uint64_t loss_delay_ns() const noexcept {
    const uint64_t delay_ns = rtt_.loss_delay_ns(time_eighths_);
    return late_ns_ <= delay_ns ? delay_ns
                                : std::max(delay_ns, std::min(late_ns_, most_delay_ns()));
  }
  [[gnu::cold]] void age_lateness(uint64_t now_ns) noexcept;  // something was acknowledged
  void note_loss(const SentRecord& record) noexcept;
  void note_spurious(std::span<const NumberRange> ranges, uint64_t now_ns) noexcept;
  void note_progress(uint64_t now_ns) noexcept {
    timeouts_in_a_row_ = 0;
    probes_due_ = 0;
    probe_base_ns_ = now_ns;
  }
  uint64_t backed_off_ns() const noexcept;

  LossConfig config_;
  RttEstimator rtt_;
  SentHistory history_;
  uint64_t largest_acked_ = 0;
  std::unique_ptr<std::array<uint64_t, kMostPaths>> newest_;  // by path; null: there is one
  uint64_t moved_number_ = 0;  // what is below it was sent where the peer was before
  bool any_acked_ = false;
  uint64_t loss_time_ns_ = kNever;  // when the time threshold of the next packet passes
  uint64_t probe_base_ns_ = 0;      // last send, progress or time-out
  uint32_t timeouts_in_a_row_ = 0;
  uint32_t probes_due_ = 0;
  uint32_t packet_threshold_ = kFirstPacketThreshold;
  uint32_t time_eighths_ = kFirstTimeEighths;
  uint64_t late_ns_ = 0;         // 9/8 of the longest that one took which later ones overtook
  uint64_t lately_ns_ = 0;       // the same in the last trips_ round trips
  uint64_t stood_still_ns_ = 0;  // when a host last was found to have stood still
  uint64_t trip_ns_ = 0;         // when a round trip began in which something was acknowledged
  uint32_t trips_ = 0;
  uint32_t real_losses_ = 0;  // in a row, that were not acknowledged after all
  uint64_t spurious_losses_ = 0;
  uint64_t probe_timeouts_ = 0;
  std::array<Declared, kRemembered> declared_;
  uint32_t declared_count_ = 0;
  uint32_t declared_next_ = 0;
};

template <class Sink>
void LossDetector::on_ack(std::span<const NumberRange> ranges, uint64_t ack_delay_ns,
                          uint64_t now_ns, Sink& sink, uint64_t waited_ns) noexcept {
  if (ranges.empty()) return;
  const uint64_t previous_largest = largest_acked_;
  const bool had_largest = any_acked_;
  if (!any_acked_ || ranges.front().last > largest_acked_) largest_acked_ = ranges.front().last;
  any_acked_ = true;
  note_spurious(ranges, now_ns);
  bool progress = false;
  SentHistory::Cursor cursor = history_.oldest();
  for (size_t i = ranges.size(); i > 0; --i) {
    const NumberRange& range = ranges[i - 1];
    for (history_.seek(cursor, range.first); cursor.record() != nullptr;) {
      const SentRecord record = *cursor.record();
      if (record.number > range.last) break;
      history_.remove(cursor);
      progress = true;
      if (record.number == ranges.front().last)
        note_round_trip(record, ack_delay_ns, waited_ns, now_ns);
      note_acked(record, had_largest, previous_largest, now_ns);
      note_newest(record);
      sink.packet_acked(record);
    }
  }
  if (progress) note_progress(now_ns);
  if (progress && late_ns_ != 0) [[unlikely]]
    age_lateness(now_ns);
  detect(now_ns, sink);
}

template <class Sink>
void LossDetector::on_refused(std::span<const NumberRange> ranges, uint64_t largest,
                              uint64_t ack_delay_ns, uint64_t now_ns, Sink& sink,
                              uint64_t waited_ns) noexcept {
  SentHistory::Cursor cursor = history_.oldest();
  for (size_t i = ranges.size(); i > 0; --i) {
    for (history_.seek(cursor, ranges[i - 1].first); cursor.record() != nullptr;) {
      const SentRecord record = *cursor.record();
      if (record.number > ranges[i - 1].last) break;
      history_.remove(cursor);
      note_progress(now_ns);
      if (record.number == largest) note_round_trip(record, ack_delay_ns, waited_ns, now_ns);
      // Those below it that the same ACK acknowledges have not been overtaken: it is no newest yet.
      note_acked(record, any_acked_, largest_acked_, now_ns);
      sink.packet_refused(record);
    }
  }
}

template <class Sink>
void LossDetector::detect(uint64_t now_ns, Sink& sink) noexcept {
  loss_time_ns_ = kNever;
  if (!any_acked_) return;
  const uint64_t delay_of_path_ns = loss_delay_ns();
  const uint64_t delay_of_others_ns =
      newest_ == nullptr
          ? delay_of_path_ns
          : std::max({delay_of_path_ns, most_delay_ns(), rtt_.loss_delay_ns(kWholeEighths)});
  SentHistory::Cursor cursor = history_.oldest();
  while (cursor.record() != nullptr && cursor.record()->number < largest_acked_) {
    const SentRecord record = *cursor.record();
    const uint64_t newest = newest_of_path(record);
    const bool on_its_path = record.number < newest;
    const bool overtaken = on_its_path && newest - record.number >= packet_threshold_;
    const uint64_t delay_ns = on_its_path ? delay_of_path_ns : delay_of_others_ns;
    if (overtaken || now_ns >= record.sent_ns + delay_ns) {
      history_.remove(cursor);
      note_loss(record);
      sink.packet_lost(record, LossCause::kOvertaken);
    } else {
      loss_time_ns_ = std::min(loss_time_ns_, record.sent_ns + delay_ns);
      history_.next(cursor);
    }
  }
}

template <class Sink>
void LossDetector::declare_oldest(Sink& sink) noexcept {
  SentHistory::Cursor cursor = history_.oldest();
  while (cursor.record() != nullptr && cursor.record()->tag.type() == wire::FrameType::kPing) {
    history_.next(cursor);
  }
  if (cursor.record() == nullptr) return;
  const SentRecord record = *cursor.record();
  history_.remove(cursor);
  sink.packet_lost(record, LossCause::kSilence);
}

template <class Sink>
void LossDetector::make_room_for_probes(Sink& sink) noexcept {
  if (history_.has_room(SentKind::kOwn)) return;
  for (SentHistory::Cursor cursor = history_.own_reserve(); history_.in_own_reserve(cursor);) {
    const SentRecord record = *cursor.record();
    history_.remove(cursor);
    sink.packet_lost(record, LossCause::kSilence);
  }
}

template <class Sink>
void LossDetector::on_timer(uint64_t now_ns, Sink& sink) noexcept {
  if (now_ns < deadline_ns()) return;
  if (loss_time_ns_ != kNever) {
    detect(now_ns, sink);
    return;
  }
  ++probe_timeouts_;
  ++timeouts_in_a_row_;
  probe_base_ns_ = now_ns;
  probes_due_ = timeouts_in_a_row_ == 1 ? 1 : 2;
  if (timeouts_in_a_row_ < 2) return;
  declare_oldest(sink);
  make_room_for_probes(sink);
}

}  // namespace mercury
