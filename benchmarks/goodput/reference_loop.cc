// What the port could carry: payload from application memory to application memory, both ways at
// once as a push-pull does, over Mercury's own port and with no protocol. No acknowledgement, no
// engine; a frame is the index of its chunk, room for a CRC, and the chunk. While it copies it
// fetches what the next copy reads or writes, as Mercury does, if its warm-up was faster so. What
// is lost on the way is lost: only what arrived counts. With --check frames have a CRC-32C of the
// chunk, made and compared in the pass that copies, as Mercury's are.
//
// Prints {"goodput_bytes_per_s": payload received per second, "frames": received, "sent_frames",
// "payload_bytes": per frame, "fetching": whether it fetched ahead, "verified": the working set
// holds what was sent}.
#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <vector>

#include "apps/command_line.h"
#include "benchmarks/goodput/ports.h"
#include "shim/host/clock.h"
#include "transport/wire/crc32c.h"

namespace mercury::goodput {
namespace {

constexpr uint64_t kGreeting = ~uint64_t{0};  // in place of a chunk's index: "I am here"
constexpr uint32_t kReceiveLimit = 256;       // frames taken before some are sent
constexpr uint32_t kSendBurst = 32;
// Frames under way in each direction. A frame that arrives lets the next one go, as a sum does in
// a push-pull, so a ring that would overflow does not waste the cores on frames that are lost.
constexpr uint32_t kInFlight = 256;
constexpr uint64_t kCreditTimeoutNs = 1'000'000;  // nothing arrives: what was under way is lost
constexpr size_t kCopiedAtOnce = 512;             // between fetches of as many bytes
constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kPeerTimeoutNs = 20'000 * kMillisecond;
// Without work for so long, it lets others run: on a machine with too few cores the peer is one of
// them, and Mercury's engine sleeps there too.
constexpr uint64_t kSpinNs = 20'000;
constexpr uint64_t kWarmUpNs = 150 * kMillisecond;
constexpr uint64_t kTryNs = 100 * kMillisecond;  // of each way to copy
// Goes on sending for so long after its own measurement, so that the peer's is under load too.
constexpr uint64_t kLingerNs = 300 * kMillisecond;

struct LoopOptions {
  PortOptions port;
  std::string peer;
  uint32_t frame_bytes = 0;
  uint64_t working_set_bytes = 1 << 20;
  double seconds = 2;
  bool hold = false;
  bool check = false;
};

// Before each chunk.
struct FrameHead {
  uint64_t index = 0;
  uint64_t crc = 0;  // --check
};

// Copies while about as many bytes at `next` come into the cache: a hint, a line for each line, as
// wire::copy_crc32c_fetching's.
void copy_fetching(std::byte* target, const std::byte* source, size_t bytes,
                   const std::byte* next) {
  size_t done = 0;
  for (; done + kCacheLine <= bytes; done += kCacheLine) {
    __builtin_prefetch(next + done);
    std::memcpy(target + done, source + done, kCacheLine);  // of fixed size: some moves, no call
  }
  std::memcpy(target + done, source + done, bytes - done);
}

uint64_t pattern(uint64_t word) { return word * 0x9e3779b97f4a7c15; }

template <Port P>
class ReferenceLoop {
 public:
  ReferenceLoop(P& port, const LoopOptions& options) : port_(port), options_(options) {}

  Status run() {
    const Result<Endpoint> peer = Endpoint::parse(options_.peer, port_.info().local.port);
    if (!peer) return peer.error();
    const Result<PathId> path = port_.open_path(*peer);
    if (!path) return path.error();
    path_ = *path;
    Status status = size_chunks();
    if (!status) return status;
    status = meet();
    if (!status) return status;
    exchange(monotonic_ns() + kWarmUpNs);
    choose_copy();
    const auto length_ns = static_cast<uint64_t>(options_.seconds * 1e9);
    const uint64_t frames_before = received_;
    const uint64_t sent_before = sent_;
    const uint64_t begin_ns = monotonic_ns();
    exchange(begin_ns + length_ns);
    const uint64_t frames = received_ - frames_before;
    const double taken_s = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    const uint64_t sent = sent_ - sent_before;
    exchange(monotonic_ns() + kLingerNs);
    const bool verified = verify();
    std::printf(
        "{\"goodput_bytes_per_s\": %.0f, \"frames\": %lu, \"sent_frames\": %lu, "
        "\"payload_bytes\": %u, \"fetching\": %s, \"verified\": %s}\n",
        static_cast<double>(frames) * chunk_bytes_ / taken_s, frames, sent, chunk_bytes_,
        fetching_ ? "true" : "false", verified ? "true" : "false");
    if (!verified) return Error(Errc::kProtocol, "the working set does not hold what was sent");
    return {};
  }

 private:
  // Both sides hold the same words, so that chunks in wrong places or with wrong bytes show.
  Status size_chunks() {
    const uint32_t room = port_.path_max_payload(path_);
    const uint32_t frame = options_.frame_bytes == 0 ? room : options_.frame_bytes;
    if (frame > room || frame < sizeof(FrameHead) + sizeof(uint64_t)) {
      return Error(Errc::kInvalidArgument, "--frame-bytes: expected 24 to " + std::to_string(room));
    }
    chunk_bytes_ = (frame - static_cast<uint32_t>(sizeof(FrameHead))) / 8 * 8;
    chunks_ = std::max<uint64_t>(1, options_.working_set_bytes / chunk_bytes_);
    memory_.resize(chunks_ * chunk_bytes_ / sizeof(uint64_t));
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = pattern(i);
    return {};
  }
  bool verify() const {
    if (wrong_ > 0) return false;
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i] != pattern(i)) return false;
    }
    return true;
  }

  Status meet() {
    const uint64_t deadline_ns = monotonic_ns() + kPeerTimeoutNs;
    uint64_t next_ns = 0;
    while (!met_) {
      const uint64_t now_ns = monotonic_ns();
      if (now_ns > deadline_ns) return Error(Errc::kTimedOut, "nothing heard from the peer");
      receive(now_ns);
      if (now_ns >= next_ns) {
        port_.tick(now_ns);
        greet();
        next_ns = now_ns + kMillisecond;
      }
      port_.tx_flush(now_ns);
    }
    greet();  // the peer may have heard none so far
    return {};
  }

  void greet() {
    TxFrame frame;
    if (!port_.path_ready(path_) || !port_.tx_alloc(frame)) return;
    std::memcpy(frame.data, &kGreeting, sizeof kGreeting);
    port_.tx_send(frame, path_, sizeof kGreeting);
  }

  void exchange(uint64_t until_ns) {
    for (;;) {
      const uint64_t now_ns = monotonic_ns();
      if (now_ns >= until_ns) return;
      const uint64_t before = received_ + sent_;
      receive(now_ns);
      send(now_ns);
      if (received_ + sent_ != before) {
        busy_at_ns_ = now_ns;
      } else if (now_ns - busy_at_ns_ > kSpinNs) {
        sched_yield();
      }
      if (now_ns >= next_tick_ns_) {
        port_.tick(now_ns);
        next_tick_ns_ = now_ns + 10 * kMillisecond;
      }
      port_.tx_flush(now_ns);
    }
  }

  // The faster of the two, so that the loop is no slower for what it lacks or for what it does.
  void choose_copy() {
    if (options_.check) return;  // which has one way
    std::array<uint64_t, 2> frames{};
    for (const bool fetching : {false, true}) {
      fetching_ = fetching;
      const uint64_t before = received_;
      exchange(monotonic_ns() + kTryNs);
      frames[fetching] = received_ - before;
    }
    fetching_ = frames[true] > frames[false];
  }

  void receive(uint64_t now_ns) {
    for (uint32_t taken = 0; taken < kReceiveLimit;) {
      const uint32_t count = port_.rx_burst(burst_, now_ns);
      for (uint32_t i = 0; i < count; ++i) {
        if (i + 1 < count) __builtin_prefetch(burst_[i + 1].payload.data());
        take(burst_[i].payload);
      }
      if (count > 0) port_.rx_release();
      if (count < burst_.size()) return;
      taken += count;
    }
  }

  void take(std::span<const std::byte> frame) {
    FrameHead head;
    if (frame.size() < sizeof head.index) return;
    std::memcpy(&head.index, frame.data(), sizeof head.index);
    met_ = true;
    if (head.index >= chunks_ || frame.size() != sizeof head + chunk_bytes_) return;
    std::memcpy(&head, frame.data(), sizeof head);
    const uint64_t crc = copy(chunk(head.index), frame.data() + sizeof head, after(head.index));
    if (options_.check && crc != head.crc) {
      ++wrong_;
      return;
    }
    ++received_;
    credits_ = std::min(credits_ + 1, kInFlight);
  }
  // A chunk. Its CRC, or 0 where none is wanted.
  uint64_t copy(std::byte* target, const std::byte* source, const std::byte* next) {
    if (options_.check) return wire::copy_crc32c_fetching(target, source, chunk_bytes_, next);
    if (fetching_) {
      copy_fetching(target, source, chunk_bytes_, next);
    } else {
      std::memcpy(target, source, chunk_bytes_);
    }
    return 0;
  }

  void send(uint64_t now_ns) {
    if (credits_ > 0 || credits_at_ns_ == 0) credits_at_ns_ = now_ns;
    if (now_ns - credits_at_ns_ > kCreditTimeoutNs) credits_ = kInFlight;
    TxFrame frame;
    for (uint32_t i = 0; i < kSendBurst && credits_ > 0 && port_.tx_alloc(frame); ++i) {
      FrameHead head{.index = next_chunk_};
      head.crc = copy(frame.data + sizeof head, chunk(next_chunk_), after(next_chunk_));
      std::memcpy(frame.data, &head, sizeof head);
      port_.tx_send(frame, path_, static_cast<uint32_t>(sizeof head) + chunk_bytes_);
      if (++next_chunk_ == chunks_) next_chunk_ = 0;
      ++sent_;
      --credits_;
    }
  }

  std::byte* chunk(uint64_t index) {
    return reinterpret_cast<std::byte*>(memory_.data()) + index * chunk_bytes_;
  }

  // Which is the next of most.
  const std::byte* after(uint64_t index) { return chunk(index + 1 == chunks_ ? 0 : index + 1); }

  P& port_;
  const LoopOptions options_;
  PathId path_;
  uint32_t chunk_bytes_ = 0;
  uint64_t chunks_ = 0;
  std::vector<uint64_t> memory_;
  std::array<RxFrame, 32> burst_{};
  uint64_t next_chunk_ = 0;
  uint64_t next_tick_ns_ = 0;
  uint64_t busy_at_ns_ = 0;
  uint32_t credits_ = kInFlight;
  uint64_t credits_at_ns_ = 0;  // when there were some
  uint64_t received_ = 0;
  uint64_t sent_ = 0;
  bool fetching_ = true;
  uint64_t wrong_ = 0;  // frames that came with another CRC
  bool met_ = false;
};

int run(const LoopOptions& options) {
  Counters counters;
  Result<AnyPort> port = open_port(options.port, counters);
  Status status;
  if (port) {
    status = std::visit([&options](auto& opened) { return ReferenceLoop(*opened, options).run(); },
                        *port);
    std::fflush(stdout);
    while (options.hold && std::getchar() != EOF) {
    }
  } else {
    status = port.error();
  }
  if (status) return 0;
  std::fprintf(stderr, "reference_loop: %s\n", status.error().message.c_str());
  return 1;
}

}  // namespace
}  // namespace mercury::goodput

int main(int argc, char** argv) {
  mercury::goodput::LoopOptions options;
  CLI::App app("Moves payload both ways over one port with no protocol.");
  mercury::goodput::add_options(app, options.port);
  app.add_option("--peer", options.peer, "the other end's ADDRESS[:UDP-PORT]")->required();
  app.add_option("--frame-bytes", options.frame_bytes, "UDP payload; 0: the largest");
  app.add_option("--working-set", options.working_set_bytes, "bytes");
  app.add_flag("--check", options.check, "make and compare a CRC-32C of each frame");
  app.add_option("--seconds", options.seconds)->check(CLI::Range(0.1, 3600.0));
  app.add_flag(
      "--hold", options.hold,
      "keep the port until standard input ends: memif's driver may crash whoever still uses "
      "it when its peer goes");
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  return mercury::goodput::run(options);
}
