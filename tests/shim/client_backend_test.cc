// What is asked of a job that was closed, when its slot is another job's by then.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "shim/client/daemon_backend.h"
#include "shim/client/embedded_backend.h"
#include "tests/shim/client_daemon.h"

namespace mercury::testing {
namespace {

using client::Backend;
using client::HostJob;

attach::JobOpen job_of_one(Role role, const std::string& name, const Endpoint& rendezvous,
                           uint32_t number) {
  attach::JobOpen job;
  job.client_job = number;
  job.name = name;
  job.role = role;
  job.rank = 0;
  job.workers = job.servers = 1;
  job.rendezvous = {rendezvous};
  return job;
}

Errc code_of(const Status& status) { return status ? Errc::kOk : status.error().code; }

// `stale`: the number of a job that was closed, in the slot of one that is open.
void expect_refused(Backend& backend, HostJob stale) {
  const std::vector<client::TensorSpec> tensors(1);
  std::vector<Round> rounds;
  EXPECT_EQ(code_of(backend.declare(stale, tensors, rounds)), Errc::kClosed);
  EXPECT_EQ(code_of(backend.job_status(stale)), Errc::kClosed);
  EXPECT_EQ(code_of(backend.set_policy(stale, "p3")), Errc::kClosed);
  EXPECT_EQ(code_of(backend.wait_job(stale, -1)), Errc::kClosed);
}

TEST(ClientBackend, NothingReachesTheNextJobInAClosedOnesSlotOfADaemon) {
  TestDaemon daemon;
  Result<std::unique_ptr<Backend>> backend =
      client::make_daemon_backend(daemon.path(), std::chrono::seconds(10));
  ASSERT_TRUE(backend);
  std::vector<HostJob> jobs;
  for (const uint32_t number : {1U, 2U}) {
    auto opened = (*backend)->open_job(job_of_one(Role::kWorker, "test", Endpoint(), number));
    ASSERT_TRUE(opened) << opened.error().message;
    jobs.push_back({opened->slot, number});
  }
  (*backend)->close_job(jobs[0]);
  expect_refused(**backend, {jobs[1].slot, jobs[0].number});
  EXPECT_EQ(daemon.declarations() + daemon.waits(), 0);
  EXPECT_EQ(code_of((*backend)->job_status(jobs[1])), Errc::kOk);
  EXPECT_EQ(code_of((*backend)->wait_job(jobs[1], 0)), Errc::kTimedOut);
}

// As long as the thread that reads has not seen it: what is asked meanwhile cannot be sent.
TEST(ClientBackend, ADaemonThatEndsIsSaidToHaveGoneByWhoeverSeesItFirst) {
  TestDaemon daemon;
  Result<std::unique_ptr<Backend>> backend =
      client::make_daemon_backend(daemon.path(), std::chrono::seconds(10));
  ASSERT_TRUE(backend);
  auto opened = (*backend)->open_job(job_of_one(Role::kWorker, "test", Endpoint(), 1));
  ASSERT_TRUE(opened) << opened.error().message;
  daemon.stop_reading();
  const Status status = (*backend)->job_status({opened->slot, 1});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kDaemonLost);
  EXPECT_EQ(status.error().message, client::lost_error().message);
  EXPECT_FALSE((*backend)->lost());
}

TEST(ClientBackend, NothingReachesTheNextJobInAClosedOnesSlotOfAnEmbeddedEngine) {
  const std::string host = "127." + std::to_string(1 + ::getpid() / 256 % 254) + "." +
                           std::to_string(::getpid() % 256) + ".";
  const Result<Endpoint> rendezvous = Endpoint::parse(host + "1:7470");
  ASSERT_TRUE(rendezvous);
  auto server = client::make_embedded_backend(rendezvous->to_string(), "");
  auto worker = client::make_embedded_backend(host + "2", "");
  ASSERT_TRUE(server && worker);
  std::vector<HostJob> jobs;
  for (const uint32_t number : {1U, 2U}) {
    if (!jobs.empty()) (*worker)->close_job(jobs[0]);
    const std::string name = "job" + std::to_string(number);
    auto serving = std::async(std::launch::async, [&] {
      return (*server)->open_job(job_of_one(Role::kServer, name, *rendezvous, number)).has_value();
    });
    auto opened = (*worker)->open_job(job_of_one(Role::kWorker, name, *rendezvous, number));
    EXPECT_TRUE(serving.get());
    ASSERT_TRUE(opened) << opened.error().message;
    jobs.push_back({opened->slot, number});
  }
  expect_refused(**worker, {jobs[1].slot, jobs[0].number});
  EXPECT_EQ(code_of((*worker)->job_status(jobs[1])), Errc::kOk);
  EXPECT_EQ(code_of((*worker)->wait_job(jobs[1], 0)), Errc::kTimedOut) << "what it asked itself";
  (*worker)->close_job(jobs[1]);
}

}  // namespace
}  // namespace mercury::testing
