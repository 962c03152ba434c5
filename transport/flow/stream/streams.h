// The byte streams of one session beside its control stream: several, ordered and reliable each,
// independent of one another. Sans-I/O like the session that owns them: it hands frames in and asks
// for frames.
//
// Credit. A receiver says of each stream up to which offset it may go, and raises that as its
// program reads: a program that does not read stops its own stream alone. Windows beyond the
// initial one are divided from a budget of the session before they are promised
// (StreamConfig::shared_window_bytes), a half of what is left at most, so that the sum of all
// promises is bounded and none is made that another stream could use up: what RFC 9000 counts on
// the wire as the connection's limit, the receiver counts here, and no stream waits for another.
// Credit only grows, so a frame of it that is lost is followed by the newest.
//
// Ending. Each side finishes its direction (the flag `end`, then a final size which nothing may
// contradict), or resets both: who gets a reset answers with one, unless all of his has arrived, so
// that both know what the other has sent at most.
//
// Whoever breaks these rules (more than his credit, more streams than allowed, another final size)
// ends the session; what is malformed is dropped.
//
// Paper: RFC 9000 sections 2 to 4 and 19.4 to 19.11; wire/stream.h says what is different.
// Owner/thread: one engine. Streams allocate as they open, and as more is under way than a few
// short messages: what that needed goes back when the stream is at rest.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "transport/base/fifo.h"
#include "transport/base/priority_fifo.h"
#include "transport/base/result.h"
#include "transport/flow/stream/stream_events.h"
#include "transport/flow/stream/stream_receiver.h"
#include "transport/flow/stream/stream_sender.h"
#include "transport/wire/header.h"
#include "transport/wire/stream.h"

namespace mercury {

class Streams {
 public:
  // `events` outlives it. `active`: this side has sent HELLO.
  Streams(SessionSlot session, bool active, const StreamConfig& config, StreamEvents& events);
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // --- the service's; a stream that is not open, or reset, takes and gives nothing ---
  // Errors: kAgain (as many are open as either side allows; on_streams_available follows), kLimit
  // (the session has no numbers left: open another).
  Result<StreamId> open();
  // Returns how many bytes were taken; if not all, on_stream_writable follows.
  size_t write(StreamId stream, std::span<const std::byte> bytes);
  StreamRead read(StreamId stream, std::span<std::byte> out);
  // Both without a copy, for whoever reads or writes by iovec. What room() gave is valid until
  // wrote(), which says how much of it was written, maybe nothing; no room: on_stream_writable
  // follows. At most `most` bytes, and where that is more than a segment, so many that no segment
  // is left half full.
  size_t room(StreamId stream, size_t most, std::span<iovec> parts);
  void wrote(StreamId stream, size_t bytes);
  struct Peeked {
    size_t parts = 0;
    bool end = false;  // the peer has finished, and nothing is left: there are no parts
  };
  // What has come in order; it stays until took(). Nothing there: on_stream_readable follows.
  Peeked peek(StreamId stream, std::span<iovec> parts);
  void took(StreamId stream, size_t bytes);
  void finish(StreamId stream);  // nothing is written any more
  void reset(StreamId stream, Errc code);
  // Below kStreamPriorities. Segments that wait go by it too.
  void prioritise(StreamId stream, uint8_t priority);

  // --- the session's ---
  enum class Verdict : uint8_t {
    kTaken,    // acknowledge it
    kDropped,  // malformed, or too fragmented to keep: do not
    kBroken,   // the peer broke the protocol, as broken() says: close the session
  };
  Verdict on_frame(wire::FrameType type, std::span<const std::byte> payload);
  // From now on payloads stay where they are until keep() is called: what a service takes before is
  // not copied.
  void borrow() noexcept { borrows_ = true; }
  void keep();
  const char* broken() const noexcept { return broken_; }

  // What goes next; its body is written where the calls below are told to. Credit and resets
  // (signals) are small and go like control frames; segments go where there is room for their
  // bytes.
  struct Frame {
    wire::FrameType type = wire::FrameType::kStream;
    uint32_t body_bytes = 0;
    uint32_t stream = 0;  // both are to come back in on_acked and on_lost
    uint32_t segment = 0;
    // Of a segment: the stream ends with it, or has no room for much more until it is acknowledged.
    bool awaited = false;
    uint32_t crc = 0;  // of a segment's body: CRC-32C
  };
  bool signal_due() const noexcept { return count_due_ || !signals_.empty(); }
  Frame build_signal(std::span<std::byte> body);
  // Body of the next segment, none larger than `most`; 0: none waits.
  uint32_t segment_bytes(uint32_t most) const noexcept;
  // Of the next segment, if one waits.
  uint8_t segment_priority() const noexcept {
    return ready_.empty() ? uint8_t{0} : ready_.priority();
  }
  Frame build_segment(std::span<std::byte> body, uint32_t most);
  void on_acked(const Frame& frame);
  void on_lost(const Frame& frame);

  // Events are told from here alone, when the session's own state is in order.
  bool has_events() const noexcept { return available_due_ || !noticed_.empty(); }
  void tell();
  // The session is over: so are all its streams.
  void close_all(Errc code);

  size_t count() const noexcept { return streams_.size(); }
  size_t block_bytes() const noexcept { return pool_.in_use() * kStreamBlockBytes; }

 private:
  enum class Reset : uint8_t { kNone, kDue, kSent, kAcked };
  struct Stream {
    explicit Stream(BlockPool* pool) : out(pool), in(pool) {}
    StreamSender out;
    StreamReceiver in;
    uint64_t send_limit = wire::kInitialStreamBytes;     // the peer's word
    uint64_t receive_limit = wire::kInitialStreamBytes;  // ours
    uint64_t extra_bytes = 0;                            // of the shared window
    uint64_t kept_extra_bytes = 0;                       // of what may be written
    uint64_t unsent_bytes = 0;                           // as counted in the session's
    uint64_t final_bytes = kNever;                       // of the peer, once it is known
    Errc code = Errc::kOk;                               // of a reset
    Reset reset = Reset::kNone;
    uint8_t priority = 0;
    bool gone = false;  // the service knows it no more
    bool credit_due = false;
    bool signalled = false;  // in signals_
    bool queued = false;     // in ready_
    bool noticed = false;    // in noticed_
    bool lent = false;       // in lent_
    bool wants_room = false;
    bool wants_bytes = true;
    // What is to be told.
    bool opened_due = false;
    bool readable_due = false;
    bool writable_due = false;
    bool closed_due = false;

    bool ended() const noexcept { return in.consumed() == final_bytes; }
  };

  bool is_ours(uint32_t id) const noexcept { return ((id & 1) != 0) == active_; }
  Stream* find(uint32_t id) noexcept;
  Stream* find_for_service(StreamId stream) noexcept;
  Stream& add(uint32_t id);
  // The stream that a frame names, opened if the peer may; null if it has ended, or was broken().
  Stream* reach(uint32_t id);
  Verdict break_off(const char* why) noexcept;

  Verdict on_bytes(const wire::StreamPiece& piece);
  bool take_bytes(Stream& stream, const wire::StreamPiece& piece);
  Verdict on_credit(const wire::StreamCredit& credit);
  Verdict on_reset(const wire::StreamReset& reset);
  void stop_sending(uint32_t id, Stream& stream, Errc code);
  void note_arrived(uint32_t id, Stream& stream);
  void note_read(uint32_t id, Stream& stream);
  uint64_t room_bytes(const Stream& stream) const noexcept;
  uint64_t unsent_room_bytes(const Stream& stream) const noexcept;
  void note_unsent(Stream& stream) noexcept;
  void note_kept(Stream& stream) noexcept;
  bool lacks_room(const Stream& stream) const noexcept;
  void note_room(uint32_t id, Stream& stream);
  void signal(uint32_t id, Stream& stream);
  void notice(uint32_t id, Stream& stream);
  static uint64_t limit_of(const Stream& stream) noexcept;
  void queue(uint32_t id, Stream& stream);
  void settle(uint32_t id, Stream& stream);  // it may be over
  void erase(uint32_t id, Stream& stream);
  void note_count() noexcept;
  void forget_extra(Stream& stream, uint64_t extra_bytes) noexcept;
  uint64_t send_limit_bytes(const Stream& stream) const noexcept;

  const SessionSlot session_;
  const bool active_;
  const StreamConfig config_;
  StreamEvents& events_;
  BlockPool pool_;
  std::unordered_map<uint32_t, Stream> streams_;
  uint32_t opened_ = 0;                        // by this side, ever
  uint64_t may_open_ = wire::kInitialStreams;  // of them, as the peer says
  uint32_t open_ours_ = 0;                     // of them: not over yet
  uint32_t peer_opened_ = 0;                   // by the peer, ever
  uint64_t peer_may_open_;
  uint64_t peer_told_ = wire::kInitialStreams;  // of that
  uint64_t kept_extra_bytes_ = 0;               // written and not acknowledged, of what is shared
  uint64_t unsent_bytes_ = 0;                   // written and never sent yet
  uint64_t extra_bytes_ = 0;                    // of the shared window, promised
  bool count_due_ = false;                      // the peer is to hear how many it may open
  bool wants_open_ = false;
  bool available_due_ = false;
  const char* broken_ = "";
  bool borrows_ = false;
  uint32_t full_segment_bytes_ = 0;  // that fit into the last segment sent; 0: there was none
  PriorityFifo<uint32_t, kStreamPriorities> ready_;  // streams with a segment to send: by turns
  Fifo<uint32_t> signals_;                           // with credit or a reset to send
  Fifo<uint32_t> noticed_;                           // with something to tell
  std::vector<uint32_t> lent_;                       // may have payloads that are borrowed
};

}  // namespace mercury
