// Whole jobs in random topologies, orders and with random deaths: every question gets exactly one
// answer, what can succeed does, and nothing is left at the end.
#include "tests/seeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "tests/shim/job/hosts.h"

namespace mercury {
namespace {

using test::address;
using test::Hosts;
using test::ProgramModel;

class Scenario {
 public:
  explicit Scenario(uint64_t seed) : hosts_(seed) {
    workers_ = static_cast<uint16_t>(1 + pick(3));
    servers_ = static_cast<uint16_t>(1 + pick(3));
    by_daemons_ = pick(2) == 0;
    ask_ranks_ = pick(2) == 0;
    one_address_ = !by_daemons_ && pick(2) == 0;
    secret_ = pick(3) == 0 ? "s" : "";
    for (int i = 0; i < servers_; ++i) {
      if (i == 0 || !one_address_) rendezvous_.push_back(address(server_host(i)));
    }
    JobPolicy worker_policy;
    worker_policy.serve = false;
    worker_policy.open_jobs = false;
    JobPolicy server_policy = worker_policy;
    server_policy.serve = by_daemons_;
    server_policy.hold_unknown_ns = by_daemons_ ? 0 : 30'000'000'000;
    if (by_daemons_) server_policy.known = {{"train", secret_, 0}};
    for (int i = 0; i < workers_; ++i) hosts_.add(worker_host(i), lanes(), worker_policy);
    for (int i = 0; i < servers_; ++i) hosts_.add(server_host(i), lanes(), server_policy);
  }

  uint64_t pick(uint64_t below) { return hosts_.random()() % below; }

  void open_all() {
    std::vector<std::pair<Role, int>> members;
    for (int i = 0; i < workers_; ++i) members.emplace_back(Role::kWorker, i);
    for (int i = 0; i < servers_ && !by_daemons_; ++i) members.emplace_back(Role::kServer, i);
    std::shuffle(members.begin(), members.end(), hosts_.random());
    for (const auto& [role, index] : members) {
      auto p = std::make_unique<ProgramModel>();
      p->hosts = &hosts_;
      p->host = role == Role::kWorker ? worker_host(index) : server_host(index);
      p->client = programs_.size() + 1;
      OpenJob request;
      request.name = "train";
      request.secret = secret_;
      request.role = role;
      request.rank = ask_ranks_ ? index : -1;
      request.workers = workers_;
      request.servers = servers_;
      request.rendezvous = rendezvous_;
      request.timeout_ns = 30'000'000'000 + pick(5) * 1'000'000'000;
      p->open(request);
      programs_.push_back(std::move(p));
      steps(pick(200));
    }
  }
  void steps(uint64_t count) {
    while (count-- > 0 && hosts_.step()) {
    }
  }
  void settle() { hosts_.run_for(1'000'000'000); }

  void declare_all() {
    static std::byte memory[8];
    for (auto& p : programs_) {
      if (!p->is_open() || !is_worker(*p)) continue;
      std::vector<TensorDeclaration> list(1 + pick(4));
      for (uint32_t i = 0; i < list.size(); ++i) {
        list[i].tensor = TensorId(i);
        list[i].numel = 100 + i;
        list[i].data = memory;
      }
      p->declare(list);
      ++declared_;
      steps(pick(50));
    }
  }

  // Something dies now.
  void strike() {
    const uint64_t what = pick(3);
    if (what == 0) {
      ProgramModel& p = *programs_[pick(programs_.size())];
      if (dead_host_ != p.host) p.gone();
    } else {
      const int victim = what == 1 ? worker_host(static_cast<int>(pick(workers_)))
                                   : server_host(static_cast<int>(pick(servers_)));
      hosts_.kill(victim);
      dead_host_ = victim;
    }
  }

  void close_all() {
    std::shuffle(programs_.begin(), programs_.end(), hosts_.random());
    for (auto& p : programs_) {
      if (p->host == dead_host_) continue;
      if (p->is_open() && pick(4) != 0) {
        p->close();
        steps(pick(100));
      }
    }
    hosts_.run_for(pick(2) * 20'000'000'000);
    for (auto& p : programs_) {
      if (p->host != dead_host_) p->gone();
      steps(pick(20));
    }
    hosts_.run();
  }

  static bool is_worker(const ProgramModel& p) { return p.host < 100; }
  bool all_open() const {
    return std::all_of(programs_.begin(), programs_.end(),
                       [](const auto& p) { return p->is_open(); });
  }
  void expect_clean() {
    EXPECT_EQ(hosts_.leftovers(), "");
    for (const auto& p : programs_) {
      if (p->host == dead_host_) continue;
      EXPECT_EQ(p->opens, 1) << "host " << p->host;
      EXPECT_GE(p->gones, 1);
      EXPECT_LE(p->closes, 1);
    }
  }
  std::string why() const {
    std::string text;
    for (const auto& p : programs_) {
      text += "host " + std::to_string(p->host) + ": " + std::to_string(p->opens) + " " +
              p->open_text + "\n";
    }
    return text;
  }
  int declared() const { return declared_; }
  int declare_replies() const {
    int count = 0;
    for (const auto& p : programs_) count += p->declares;
    return count;
  }
  bool all_declared() const {
    return std::all_of(programs_.begin(), programs_.end(),
                       [](const auto& p) { return p->declared.ok(); });
  }

 private:
  int worker_host(int i) const { return 1 + i; }
  int server_host(int i) const { return 100 + i; }
  int lanes() { return static_cast<int>(1 + pick(3)); }

  Hosts hosts_;
  uint16_t workers_ = 0;
  uint16_t servers_ = 0;
  bool by_daemons_ = false;
  bool ask_ranks_ = false;
  bool one_address_ = false;
  std::string secret_;
  std::vector<Endpoint> rendezvous_;
  std::vector<std::unique_ptr<ProgramModel>> programs_;
  int declared_ = 0;
  int dead_host_ = 0;
};

TEST(JobSeeds, WithoutFaultsEveryJobRunsAndNothingIsLeft) {
  for_each_seed(500, [](uint64_t seed) {
    Scenario run(seed);
    run.open_all();
    run.settle();
    ASSERT_TRUE(run.all_open()) << run.why();
    run.declare_all();
    run.settle();
    ASSERT_EQ(run.declare_replies(), run.declared());
    ASSERT_TRUE(run.all_declared());
    run.close_all();
    run.expect_clean();
  });
}

TEST(JobSeeds, WhateverDiesWhenEveryQuestionIsAnsweredAndNothingIsLeft) {
  for_each_seed(3000, [](uint64_t seed) {
    Scenario run(seed);
    const uint64_t when = run.pick(3);
    run.open_all();
    if (when == 0) run.strike();  // in the middle of gathering
    run.settle();
    if (when == 1) run.strike();
    run.declare_all();
    if (when == 2) run.strike();
    run.settle();
    run.close_all();
    run.expect_clean();
  });
}

}  // namespace
}  // namespace mercury
