// Who wishes the jobs of the virtual cluster ill. As a stranger he hears every wire and sends what
// he likes from any address: HELLOs without end, some of which open sessions, frames that he has
// heard, later or from elsewhere, and forged ones for sessions of which he has no tag. As a member
// of the job "evil" he has the sessions of a host that was killed, and all that they need to be
// spoken for: he holds what is in flight to him, says what no member says, and is gone.
//
// Owner/thread: the world. Times are the network's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "shim/proof/secret.h"
#include "tests/disaster/scenario.h"
#include "tests/fuzz/ear.h"
#include "transport/base/random.h"
#include "transport/port/sim/sim_network.h"

namespace mercury::disaster {

class Hostile {
 public:
  // Both outlive him.
  Hostile(sim::SimNetwork& network, const Scenario& scenario);

  // A frame has left a host's NIC.
  void hear(const Endpoint& source, const Endpoint& target, std::span<const std::byte> bytes);
  // An attack of the scenario begins and ends.
  void begin(const Fault& fault, uint64_t now_ns);
  void end(const Fault& fault);
  // When he acts next; kNever if he does not.
  uint64_t next_ns() const;
  void act(uint64_t now_ns);

 private:
  using Direction = fuzz::Direction;
  struct Running {
    const Fault* fault = nullptr;
    uint64_t next_ns = 0;
    uint64_t pause_ns = 0;  // between two steps
  };
  struct Asked {  // a HELLO of his own
    Endpoint source;
    Endpoint target;
    wire::Hello hello;
  };
  struct Member {  // what he knows of a session of the evil host, by the direction from there
    wire::Header push;
    std::vector<std::byte> elements;
    std::vector<std::byte> said;  // in the control stream
    uint64_t oldest = 0;          // number of the peer's that is acknowledged next; 0: none yet
  };

  void step(Attack attack);
  Endpoint elsewhere(uint64_t which) const;
  Endpoint somebody();
  void inject(const Endpoint& source, const Endpoint& target, std::span<const std::byte> bytes,
              uint64_t delay_ns = 0);
  void hello();
  void say_as_member(Asked& asked);
  void ask(const Asked& asked, uint64_t token);
  void on_refusal(const wire::Header& header, std::span<const std::byte> payload);
  void on_answer(const wire::Header& header, std::span<const std::byte> payload,
                 const Endpoint& source);
  void replay();
  void forge();
  std::vector<std::byte> lie_of(wire::Header& header, const Direction& way);
  bool knows_secret(const JobPlan& job) const { return job.secret.empty() || job.hostile; }
  void remember(const Endpoint& target, std::span<const std::byte> bytes);
  void say(Direction& way, wire::Header header, std::span<const std::byte> payload);
  void acknowledge(Direction& way, uint64_t number);
  void ping(Direction& way);
  void hoard(Direction& way);
  void jump_ahead(Direction& way);
  void chatter(Direction& way);
  bool is_evil(const Endpoint& at) const { return at.ip == evil_ip_; }

  sim::SimNetwork& network_;
  const Scenario& scenario_;
  Random random_;
  const JobPlan* evil_ = nullptr;
  IpAddress evil_ip_;
  fuzz::Ear ear_;
  std::vector<Running> running_;
  std::deque<Asked> asked_;
  std::vector<wire::Hello> seats_;  // HELLOs of the evil job's data sessions
  std::map<const Direction*, Member> members_;
  uint32_t copying_ = 0;  // attacks that copy all that they hear
};

}  // namespace mercury::disaster
