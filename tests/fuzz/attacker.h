// Who speaks on every wire of a fuzzed cluster (cluster.h): turns records of the input into frames.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shim/job/messages.h"
#include "tests/fuzz/cluster.h"

namespace mercury::fuzz {

class Attacker {
 public:
  // `own`: his address, where nobody but him listens. `secret`: that of the job "evil", if any.
  Attacker(Cluster& cluster, const Endpoint& own, std::string secret)
      : cluster_(cluster), own_(own), secret_(std::move(secret)) {}

  // One frame, or a few.
  void act(Input record);

 private:
  Endpoint pick_address(Input& record) const;
  Direction* pick_direction(Input& record) const;
  // A header as the session's next would be.
  wire::Header header_for(const Direction& way, wire::FrameType type) const;
  void send(const Direction& way, const wire::Header& header, std::span<const std::byte> payload,
            Input& record);

  void raw(Input& record);
  void hello(Input& record);
  void repeat(Input& record);
  void change(Input& record);
  void forge_plain(Input& record);
  void flood(Direction& way, Input& record);
  void forge_chunk(Input& record);
  void say(Input& record);
  uint32_t incarnation(Input& record) const;
  Message message(Input& record) const;
  message::Join join(Input& record) const;
  message::Roster roster(Input& record) const;
  message::Replaced replaced(Input& record) const;
  message::Stalled stalled(Input& record) const;

  std::string secret_of(const std::string& job) const { return job == "evil" ? secret_ : ""; }

  Cluster& cluster_;
  const Endpoint own_;
  const std::string secret_;
};

}  // namespace mercury::fuzz
