// Fixtures of the job tests: hosts that serve, hosts that do not, programs on them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "shim/job/job_manager.h"
#include "shim/proof/secret.h"
#include "tests/milliseconds.h"
#include "tests/shim/job/hosts.h"

namespace mercury::test {

inline constexpr uint64_t kSecond = 1'000'000'000;
inline constexpr uint64_t kMinute = 60 * kSecond;

inline bool says(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

inline JobPolicy serving() { return {}; }
inline JobPolicy not_serving() {
  JobPolicy policy;
  policy.serve = false;
  policy.open_jobs = false;
  return policy;
}
inline JobPolicy embedded_server() {  // its program will open the job some day
  JobPolicy policy = not_serving();
  policy.hold_unknown_ns = 30 * kSecond;
  return policy;
}

inline OpenJob job(Role role, int rank, uint16_t workers, uint16_t servers,
                   std::vector<Endpoint> rendezvous) {
  OpenJob open;
  open.name = "train";
  open.role = role;
  open.rank = rank;
  open.workers = workers;
  open.servers = servers;
  open.rendezvous = std::move(rendezvous);
  return open;
}

inline std::vector<TensorDeclaration> tensors(uint32_t first, uint32_t count,
                                              uint64_t numel = 1000) {
  static std::byte memory[8];
  std::vector<TensorDeclaration> list;
  for (uint32_t i = 0; i < count; ++i) {
    TensorDeclaration t;
    t.tensor = TensorId(first + i);
    t.numel = numel;
    t.data = memory;
    list.push_back(t);
  }
  return list;
}

// What a peer without a host of its own says first.
inline wire::Hello control_hello(const std::string& name, const std::string& secret) {
  wire::Hello hello;
  hello.job = name;
  hello.proof = prove(derive_job_key(name, secret), hello);
  return hello;
}

class JobTest : public testing::Test {
 protected:
  ProgramModel& program(int host) {
    programs_.push_back(std::make_unique<ProgramModel>());
    programs_.back()->hosts = &hosts;
    programs_.back()->host = host;
    programs_.back()->client = programs_.size();
    return *programs_.back();
  }
  ProgramModel& opens(int host, const OpenJob& request) {
    ProgramModel& p = program(host);
    p.open(request);
    return p;
  }
  // Host 1 for a worker; host 2, which serves, and host 3, of which a program is to: the servers.
  std::vector<Endpoint> add_worker_and_servers() {
    hosts.add(1, 1, not_serving());
    hosts.add(2, 1, serving());
    hosts.add(3, 1, embedded_server());
    return {address(2), address(3)};
  }
  // Everything closed, nothing may be left anywhere.
  void expect_nothing_left() {
    hosts.run();
    EXPECT_EQ(hosts.leftovers(), "");
  }
  HostModel::EngineJob& engine_job(int host, int lane, JobSlot slot) {
    return hosts.host(host).lanes.at(static_cast<size_t>(lane)).jobs.at(slot.value);
  }

  Hosts hosts;
  std::vector<std::unique_ptr<ProgramModel>> programs_;
};

// Two workers (a on host 1, b on host 2) and two serving daemons (3, 4) in a running job, which one
// that is lost may come back to for `rejoin_ns`.
class RunningTest : public JobTest {
 protected:
  explicit RunningTest(uint64_t rejoin_ns = 0) : rejoin_ns_(rejoin_ns) {}
  OpenJob request(int rank) const {
    OpenJob open = job(Role::kWorker, rank, 2, 2, {address(3), address(4)});
    open.terms.rejoin_ms = to_ms(rejoin_ns_);
    return open;
  }
  void start(int lanes = 1, JobPolicy server_policy = serving(),
             JobPolicy worker_policy = not_serving()) {
    for (int host : {1, 2}) hosts.add(host, lanes, worker_policy);
    for (int host : {3, 4}) hosts.add(host, lanes, server_policy);
    a = &opens(1, request(0));
    b = &opens(2, request(1));
    hosts.run_for(kSecond);
    ASSERT_TRUE(a->is_open() && b->is_open()) << a->open_text << b->open_text;
  }
  void end() {
    a->close();
    b->close();
    expect_nothing_left();
  }
  ProgramModel* a = nullptr;
  ProgramModel* b = nullptr;

 private:
  uint64_t rejoin_ns_;
};

}  // namespace mercury::test
