// Runs one scenario on a virtual cluster: hosts, programs on them, disasters at their times, and
// the checks that never rest. At the end nothing may be left of any job, and one more job must run
// as if nothing had ever happened.
//
// Owner/thread: one thread a world; worlds share nothing.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shim/host/sim/virtual_cluster.h"
#include "tests/disaster/disaster_host.h"
#include "tests/disaster/hostile.h"
#include "tests/disaster/ledger.h"
#include "tests/disaster/program.h"
#include "tests/disaster/scenario.h"
#include "transport/port/sim/fault_schedule.h"

namespace mercury::disaster {

struct Verdict {
  std::string violation;  // empty: all went as it must
  // Hashes, equal in runs that are the same, whatever the machine: when which frame of what size
  // arrived or was lost between whom, with every submission and reply; and what the frames said.
  uint64_t trace = 0;
  uint64_t contents = 0;
  uint64_t virtual_ns = 0;
  uint64_t frames = 0;
  uint64_t sums = 0;
  uint64_t longest_wait_ns = 0;
  uint32_t programs = 0;
  uint32_t succeeded = 0;  // programs that came through all their rounds
  bool ok() const { return violation.empty(); }
};

class World final : private Surroundings {
 public:
  // With `log`, every state and operation of every program is written there.
  explicit World(const Scenario& scenario, std::FILE* log = nullptr);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Verdict run();

 private:
  enum class Stage : uint8_t { kDisasters, kSettling, kRecovery, kLastSettling };
  struct Happening {  // a fault begins or ends, or a daemon starts
    uint64_t at_ns = 0;
    uint32_t fault = 0;
    bool begins = true;
    bool host_starts = false;  // `fault` is the host
  };
  enum Timer : size_t {
    kNetworkFaults,
    kHappenings,
    kInspection,
    kPrograms,
    kAttacks
  };  // in this order

  // --- Surroundings ---
  uint64_t now_ns() const override { return cluster_.now_ns(); }
  DisasterHost& host_at(uint32_t index) override { return cluster_[index]; }
  void wake(uint32_t host) override;
  Ledger& ledger() override { return ledger_; }
  void violation(const std::string& what) override;
  void note(const std::string& who, const char* what, uint64_t a, uint64_t b) override;
  void explain(const std::string& who, const std::string& why) override;
  bool disturbed(uint32_t job) const override;
  bool crowded_out(uint32_t job, uint64_t since_ns, bool limit) override;
  // That one was refused is why others of its attempt failed; some may have heard of it before it.
  void let_in(uint32_t job) override {
    if (crowded_out_.erase(job) > 0) suspected_.erase(job);
  }
  const Departure* departure(uint32_t job) const override;
  uint64_t excused_ns(uint64_t since_ns) const override;

  void on_frame(const Endpoint& source, const Endpoint& target, std::span<const std::byte> frame);
  void read_head(std::span<const std::byte> frame) noexcept;
  void check_freshness(std::span<const std::byte> frame);
  void check_release(const Endpoint& target, std::span<const std::byte> frame);
  void plan_happenings();
  void set_happenings_timer();
  void add_network_fault(const Fault& fault);
  void on_timer(size_t timer);
  void happen(const Happening& happening);
  bool survivable(const Fault& crash) const;
  void leave(uint32_t fault);
  void move(uint32_t fault);
  void attack(const Fault& fault, bool begins);
  void start_host(uint32_t index);
  void kill_host(uint32_t index);
  bool after_round(uint32_t round);
  bool after_moment();
  void inspect();
  void next_stage();
  bool programs_done() const;
  std::string held();
  void end();
  bool crossed(const Fault& move, const JobPlan& job) const;
  bool crowded() const;

  const Scenario scenario_;
  std::FILE* const log_;
  Ledger ledger_;
  std::vector<std::unique_ptr<DisasterProgram>> programs_;
  std::unique_ptr<sim::FaultSchedule> network_faults_;
  std::vector<Happening> happenings_;  // by time
  size_t next_happening_ = 0;
  // By fault: a crash, a program's leaving or a host's move that jobs must survive.
  std::vector<bool> survived_;
  std::map<uint32_t, Departure> departures_;  // by job
  std::set<uint32_t> crowded_out_;  // jobs that were refused a session, and have not begun since
  std::set<uint32_t> suspected_;    // of being among these
  Stage stage_ = Stage::kDisasters;
  uint64_t stage_since_ns_ = 0;
  uint64_t next_inspection_ns_ = 0;
  uint64_t notes_ = 0;
  bool over_ = false;
  Verdict verdict_;
  std::map<wire::Nonce, uint32_t> nonces_;     // of handshakes, with their sessions' numbers
  sim::VirtualCluster<DisasterHost> cluster_;  // before the programs' memory goes
  std::optional<Hostile> hostile_;             // where anybody attacks
};

// The whole of it: draw, cut down, run.
Verdict run_seed(uint64_t seed, const Reduction& reduction, std::FILE* log = nullptr);

}  // namespace mercury::disaster
