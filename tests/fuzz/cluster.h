// A few production hosts on the simulated network, with an eavesdropper on every wire who may say
// anything to anyone: the ground that the fuzzers of the engine and of the attach socket stand on.
// Everything is decided by the input; nothing reads a clock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shim/host/sim/virtual_cluster.h"
#include "tests/fuzz/fuzz_input.h"
#include "transport/flow/frame_tag.h"
#include "transport/port/port_decorator.h"
#include "transport/wire/control.h"
#include "transport/wire/header.h"
#include "transport/wire/hello.h"
#include "transport/wire/seal.h"

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
  // Of its frames, where they have one; it is the ear's own, with the ends' keys.
  std::unique_ptr<wire::FrameSeal> seal;

  // A tag that the attacker has read helps him nothing where there are seals: there he uses it.
  FrameTag known_tag() const { return forgeable || seal ? tag : FrameTag{}; }
};

// What the eavesdropper knows.
class Ear {
 public:
  // The key of a job whose sessions may have seals: he follows them, and seals what he may forge.
  void learn(const std::string& job, const wire::Key& key) { keys_[job] = key; }
  void hear(const Endpoint& source, const Endpoint& target, std::span<const std::byte> bytes);
  // Sessions that are known now belong to the innocent: their frames may be repeated. What is
  // forged for them lacks the tag.
  void protect_known();

  const std::deque<Heard>& frames() const { return frames_; }
  std::vector<Direction*> ways();
  // The session that the frame names, or null.
  const Direction* way_of(const Endpoint& target, std::span<const std::byte> frame) const;
  // How many frames had a seal that fits. Others in a session with seals are a forger's.
  uint64_t sealed_frames() const { return sealed_frames_; }

 private:
  using Key = std::pair<Endpoint, uint32_t>;
  struct Asked {  // a HELLO
    Endpoint source;
    wire::Hello hello;
    std::vector<std::byte> body;
  };
  static constexpr size_t kMostFrames = 512;
  Direction& direction(const Endpoint& source, const Endpoint& target, uint32_t session);
  void on_answer(const wire::HelloAck& ack, std::span<const std::byte> body, Direction& asking,
                 Direction& answering);

  std::deque<Heard> frames_;
  std::map<Key, Direction> directions_;
  std::map<std::string, wire::Key> keys_;  // by job
  std::deque<Asked> asked_;
  uint64_t sealed_frames_ = 0;
};

// A SimPort with the ear at its receiving side.
class TapPort : public PortDecorator<sim::SimPort> {
 public:
  TapPort(std::unique_ptr<sim::SimPort> port, Ear& ear)
      : PortDecorator(std::move(port)), ear_(ear) {}

  uint32_t rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept {
    const uint32_t count = PortDecorator::rx_burst(burst, now_ns);
    for (uint32_t i = 0; i < count; ++i) ear_.hear(burst[i].source, info().local, burst[i].payload);
    return count;
  }

 private:
  Ear& ear_;
};
static_assert(Port<TapPort>);

using FuzzHost = HostOf<TapPort>;

class Cluster {
 public:
  Cluster();

  // Hosts are 10.0.0.1, 10.0.0.2, ..., each with one engine on port 7470.
  FuzzHost& add_host(const JobPolicy& policy);
  // An address without an engine, whose arrivals are heard: the attacker's own.
  Endpoint add_listener();
  FuzzHost& host(size_t index) { return cluster_[static_cast<uint32_t>(index)].host(); }
  size_t host_count() const { return cluster_.size(); }
  Endpoint address(size_t index) const {
    return {sim::virtual_address(static_cast<uint32_t>(index), false), sim::kVirtualUdpPort};
  }

  // Each pass of the world also calls this: programs collect their completions.
  std::function<void()> each_pass;
  // Until `until` holds; false if `limit_ns` of virtual time passed first. Aborts when engines work
  // for ever without time passing.
  bool run(const std::function<bool()>& until, uint64_t limit_ns);
  void run_for(uint64_t ns);
  // The host's control plane does nothing for so long; its engine goes on.
  void stall(size_t host, uint64_t ns) {
    cluster_[static_cast<uint32_t>(host)].deafen(now_ns() + ns);
  }

  // The attacker's frame.
  void inject(const Endpoint& source, const Endpoint& target, std::span<const std::byte> bytes,
              uint64_t delay_ns = 0);

  sim::SimNetwork& network() { return cluster_.network(); }
  Ear& ear() { return ear_; }
  uint64_t now_ns() const { return cluster_.now_ns(); }
  // Once the attacker's last frame has arrived, nothing is left of any session, job or frame after
  // `limit_ns` at most.
  void must_become_empty(uint64_t limit_ns);

 private:
  void after_round(uint32_t round);
  // Whether it holds for every host.
  bool all(bool (*holds)(FuzzHost& host));

  Ear ear_;
  sim::VirtualCluster<sim::VirtualHost<TapPort>> cluster_;
  std::unique_ptr<TapPort> listener_;
  uint64_t last_injected_ns_ = 0;  // when the attacker's last frame arrives
};

// A frame with both checksums right, in a session with this tag.
std::vector<std::byte> frame_of(wire::Header header, std::span<const std::byte> payload,
                                FrameTag tag = {});
// The same as one of `way`, with its tag and seal as far as the attacker may forge them.
std::vector<std::byte> frame_of(wire::Header header, std::span<const std::byte> payload,
                                const Direction& way);
// The same frame with everything right that lets it be looked at: magic, version, type, length,
// checksums; if `way` is not null, also what of its tag and seal the attacker may forge. Too short:
// unchanged.
void repair(std::vector<std::byte>& frame, bool payload_too, const Direction* way = nullptr);

}  // namespace mercury::fuzz
