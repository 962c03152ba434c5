// An eavesdropper on a simulated network: what he hears of every session, and frames that say what
// the next ones of a session must.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/base/endpoint.h"
#include "transport/flow/frame_tag.h"
#include "transport/wire/control.h"
#include "transport/wire/header.h"
#include "transport/wire/hello.h"
#include "transport/wire/seal.h"

namespace mercury::fuzz {

struct Heard {
  Endpoint source;
  Endpoint target;
  std::vector<std::byte> bytes;
};

// One direction of a session: what frames that are to be taken for its own must say.
struct Direction {
  Endpoint source;
  Endpoint target;
  uint32_t session = 0;             // that the target chose
  wire::Header last;                // the last frame's
  FrameTag tag;                     // as the last frame shows it
  uint64_t next_packet = 0;         // beyond all that were heard
  uint64_t control_offset = 0;      // where the control stream goes on
  bool forgeable = true;            // the attacker may speak for it
  const Direction* back = nullptr;  // the other one, once its session was answered
  // Of its frames, where they have one; it is the ear's own, with the ends' keys.
  std::unique_ptr<wire::FrameSeal> seal;
  bool encrypted = false;  // and payloads are

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
  // To the end that chose this number for the session, or null.
  Direction* way_to(const Endpoint& target, uint32_t session);
  // The session that the frame names, or null.
  const Direction* way_of(const Endpoint& target, std::span<const std::byte> frame) const;
  // How many frames had a seal that fits. Others in a session with seals are a forger's.
  uint64_t sealed_frames() const { return sealed_frames_; }
  uint64_t encrypted_frames() const { return encrypted_frames_; }  // of them

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
  uint64_t encrypted_frames_ = 0;
};

// A frame with both checksums right, in a session with this tag.
std::vector<std::byte> frame_of(wire::Header header, std::span<const std::byte> payload,
                                FrameTag tag = {});
// Of a frame of `way` that decode() has taken apart: its payload and its CRC become what its target
// will have of it, which lies in `buffer` where it is encrypted. False: its seal does not fit.
bool open_seal(const Direction& way, std::span<const std::byte> frame, wire::Header& header,
               std::span<const std::byte>& payload, std::vector<std::byte>& buffer);
// The same as one of `way`, with its tag and seal as far as the attacker may forge them.
std::vector<std::byte> frame_of(wire::Header header, std::span<const std::byte> payload,
                                const Direction& way);
// The same frame with everything right that lets it be looked at: magic, version, type, length,
// checksums; if `way` is not null, also what of its tag and seal the attacker may forge. Too short:
// unchanged.
void repair(std::vector<std::byte>& frame, bool payload_too, const Direction* way = nullptr);

}  // namespace mercury::fuzz
