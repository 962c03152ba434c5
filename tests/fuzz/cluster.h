// A few production hosts on the simulated network, with an eavesdropper on every wire who may say
// anything to anyone: the ground that the fuzzers of the engine and of the attach socket stand on.
// Everything is decided by the input; nothing reads a clock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "shim/host/host.h"
#include "tests/fuzz/fuzz_input.h"
#include "transport/flow/frame_tag.h"
#include "transport/port/sim/sim_network.h"
#include "transport/port/sim/sim_port.h"
#include "transport/wire/control.h"
#include "transport/wire/header.h"

namespace mercury::fuzz {

inline constexpr uint64_t kSecond = 1'000'000'000;

struct Heard {
  Endpoint source;
  Endpoint target;
  std::vector<std::byte> bytes;
};

// One direction of a session: what frames that are to be taken for its own must say.
struct Direction {
  Endpoint source;
  Endpoint target;
  uint32_t session = 0;         // that the target chose
  wire::Header last;            // the last frame's
  FrameTag tag;                 // as the last frame shows it
  uint64_t next_packet = 0;     // beyond all that were heard
  uint64_t control_offset = 0;  // where the control stream goes on
  bool forgeable = true;        // the attacker may speak for it

  FrameTag known_tag() const { return forgeable ? tag : FrameTag{}; }
};

// What the eavesdropper knows.
class Ear {
 public:
  void hear(const Endpoint& source, const Endpoint& target, std::span<const std::byte> bytes);
  // Sessions that are known now belong to the innocent: their frames may be repeated. What is
  // forged for them lacks the tag.
  void protect_known();

  const std::deque<Heard>& frames() const { return frames_; }
  std::vector<Direction*> ways();
  // Of the session that the frame names; zero if the attacker is not to know it.
  FrameTag tag_for(const Endpoint& target, std::span<const std::byte> frame) const;

 private:
  using Key = std::pair<Endpoint, uint32_t>;
  static constexpr size_t kMostFrames = 512;
  Direction& direction(const Endpoint& source, const Endpoint& target, uint32_t session);

  std::deque<Heard> frames_;
  std::map<Key, Direction> directions_;
};

// A SimPort with the ear at its receiving side. Models Port.
class TapPort {
 public:
  TapPort(std::unique_ptr<sim::SimPort> port, Ear& ear) : port_(std::move(port)), ear_(ear) {}

  const PortInfo& info() const { return port_->info(); }
  uint64_t link_bytes_per_second() const noexcept { return port_->link_bytes_per_second(); }
  uint32_t rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept {
    const uint32_t count = port_->rx_burst(burst, now_ns);
    for (uint32_t i = 0; i < count; ++i) ear_.hear(burst[i].source, info().local, burst[i].payload);
    return count;
  }
  void rx_release() noexcept { port_->rx_release(); }
  bool tx_alloc(TxFrame& frame) noexcept { return port_->tx_alloc(frame); }
  void tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept {
    port_->tx_send(frame, path, bytes);
  }
  void tx_send_shared(TxFrame& frame, uint32_t bytes, PathId path,
                      std::span<const std::byte> payload, PayloadPin& pin) noexcept {
    port_->tx_send_shared(frame, bytes, path, payload, pin);
  }
  void tx_cancel(TxFrame& frame) noexcept { port_->tx_cancel(frame); }
  bool pin_busy(PayloadPin& pin) noexcept { return port_->pin_busy(pin); }
  void tx_flush(uint64_t now_ns) noexcept { port_->tx_flush(now_ns); }
  Result<MemoryKey> map(std::span<std::byte> memory) { return port_->map(memory); }
  void unmap(MemoryKey key) { port_->unmap(key); }
  Result<PathId> open_path(const Endpoint& remote) { return port_->open_path(remote); }
  void close_path(PathId path) { port_->close_path(path); }
  bool path_ready(PathId path) const { return port_->path_ready(path); }
  uint32_t path_max_payload(PathId path) const { return port_->path_max_payload(path); }
  uint32_t buffers_in_use() const noexcept { return port_->buffers_in_use(); }
  void tick(uint64_t now_ns) { port_->tick(now_ns); }
  int wait_fd() const { return port_->wait_fd(); }
  bool prepare_sleep() noexcept { return port_->prepare_sleep(); }

 private:
  std::unique_ptr<sim::SimPort> port_;
  Ear& ear_;
};
static_assert(Port<TapPort>);

using FuzzHost = HostOf<TapPort>;

class Cluster {
 public:
  Cluster();
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Hosts are 10.0.0.1, 10.0.0.2, ..., each with one engine on port 7470.
  FuzzHost& add_host(const JobPolicy& policy);
  // An address without an engine, whose arrivals are heard: the attacker's own.
  Endpoint add_listener();
  FuzzHost& host(size_t index) { return *hosts_[index]; }
  size_t host_count() const { return hosts_.size(); }
  Endpoint address(size_t index) const;

  // Each pass of the world also calls this: programs collect their completions.
  std::function<void()> each_pass;
  // Until `until` holds; false if `limit_ns` of virtual time passed first. Aborts when engines work
  // for ever without time passing.
  bool run(const std::function<bool()>& until, uint64_t limit_ns);
  void run_for(uint64_t ns);
  // The host's control plane does nothing for so long; its engine goes on.
  void stall(size_t host, uint64_t ns) { asleep_until_ns_[host] = now_ns() + ns; }

  // The attacker's frame.
  void inject(const Endpoint& source, const Endpoint& target, std::span<const std::byte> bytes,
              uint64_t delay_ns = 0);

  sim::SimNetwork& network() { return network_; }
  Ear& ear() { return ear_; }
  uint64_t now_ns() const { return network_.now_ns(); }
  // Once the attacker's last frame has arrived, nothing is left of any session, job or frame after
  // `limit_ns` at most.
  void must_become_empty(uint64_t limit_ns);

 private:
  bool pass();
  uint64_t next_ns() const;

  sim::SimNetwork network_;
  Ear ear_;
  Random random_{1};
  std::vector<std::unique_ptr<FuzzHost>> hosts_;
  std::vector<uint64_t> asleep_until_ns_;  // by host
  std::unique_ptr<TapPort> listener_;
  uint64_t last_injected_ns_ = 0;  // when the attacker's last frame arrives
};

// A frame with both checksums right, in a session with this tag.
std::vector<std::byte> frame_of(wire::Header header, std::span<const std::byte> payload,
                                FrameTag tag = {});
// The same frame with everything right that lets it be looked at: magic, version, type, length,
// checksums. Too short: unchanged.
void repair(std::vector<std::byte>& frame, bool payload_too, FrameTag tag = {});

}  // namespace mercury::fuzz
