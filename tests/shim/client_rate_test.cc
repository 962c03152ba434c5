// The rate of an embedded engine's link: what is understood, and that what a process's engines send
// together is no faster. Nothing here depends on how fast this machine is: no more than that the
// link that was told may not be exceeded.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/shim/client_hosts.h"

namespace mercury::testing {
namespace {

int attach(const char* listen, const char* rate, mercury_context*& context) {
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  options.mode = MERCURY_MODE_EMBEDDED;
  options.listen = listen;
  options.rate = rate;
  return mercury_attach(&options, &context);
}

TEST(ClientRate, IsANumberWithAUnitThatAnErrorNames) {
  mercury_context* context = nullptr;
  ASSERT_EQ(attach("127.0.0.1", "10Gbps", context), 0) << mercury_last_error();
  mercury_detach(context);
  EXPECT_EQ(attach("127.0.0.1", "10 gigabit", context), -EINVAL);
  EXPECT_EQ(std::string(mercury_last_error()).find("rate: "), 0U) << mercury_last_error();
  ::setenv("MERCURY_RATE", "fast", 1);
  EXPECT_EQ(attach("127.0.0.1", nullptr, context), -EINVAL);
  EXPECT_NE(std::string(mercury_last_error()).find("fast"), std::string::npos);
  for (const char* rate : {"1Gbps", "0"}) {
    EXPECT_EQ(attach("127.0.0.1", rate, context), 0) << "what a program says goes first";
    mercury_detach(context);
  }
  ::unsetenv("MERCURY_RATE");
  EXPECT_EQ(attach("127.0.0.1", "999kbps", context), -EINVAL);
  EXPECT_NE(std::string(mercury_last_error()).find("1Mbps or more"), std::string::npos)
      << mercury_last_error();
}

constexpr double kBytesPerSecond = 100e6 / 8;
constexpr int kHosts = 2;
constexpr size_t kBytes = 3'000'000;

mercury_job* open_member(mercury_context* context, mercury_role role, const std::string& places) {
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  options.name = "rate";
  options.role = role;
  options.workers = kHosts;
  options.servers = kHosts;
  options.rendezvous = places.c_str();
  mercury_job* job = nullptr;
  EXPECT_EQ(mercury_job_open(context, &options, &job), 0) << mercury_last_error();
  return job;
}

void serve(const std::string& place, const std::string& places) {
  mercury_context* context = nullptr;
  ASSERT_EQ(attach(place.c_str(), "100Mbps", context), 0) << mercury_last_error();
  mercury_job* const job = open_member(context, MERCURY_ROLE_SERVER, places);
  EXPECT_EQ(mercury_job_wait_end(job, MERCURY_FOREVER), 0) << mercury_last_error();
  mercury_job_close(job);
  mercury_detach(context);
}

// How long the exchange of a tensor took.
void work(const std::string& address, const std::string& places, double& seconds) {
  mercury_context* context = nullptr;
  ASSERT_EQ(attach(address.c_str(), "100Mbps", context), 0) << mercury_last_error();
  mercury_job* const job = open_member(context, MERCURY_ROLE_WORKER, places);
  void* memory = nullptr;
  ASSERT_EQ(mercury_alloc(context, kBytes, &memory), 0) << mercury_last_error();
  mercury_tensor_options tensor{};
  tensor.size = sizeof tensor;
  tensor.numel = kBytes / sizeof(float);
  tensor.dtype = MERCURY_DTYPE_F32;
  tensor.data = memory;
  ASSERT_EQ(mercury_declare(job, &tensor, 1), 0) << mercury_last_error();
  const auto begin = std::chrono::steady_clock::now();
  mercury_handle handle = 0;
  ASSERT_EQ(mercury_push_pull(job, 0, 0, &handle), 0) << mercury_last_error();
  ASSERT_EQ(mercury_wait(job, handle, MERCURY_FOREVER), 0) << mercury_last_error();
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  mercury_job_close(job);
  mercury_detach(context);
}

// Two hosts, each an address at which a worker and a server listen, with engines of their own. Half
// of a gradient, and half of the sums, go to the other host: over one link.
TEST(ClientRate, EnginesOfOneProcessAtOneAddressShareALink) {
  std::string addresses[kHosts];
  std::string places;
  for (std::string& address : addresses) {
    address = fresh_address();
    places += (places.empty() ? "" : ",") + address + ":7470";
  }
  double seconds[kHosts] = {};
  std::vector<std::thread> members;
  for (int i = 0; i < kHosts; ++i) {
    members.emplace_back([&, i] { serve(addresses[i] + ":7470", places); });
    members.emplace_back([&, i] { work(addresses[i], places, seconds[i]); });
  }
  for (std::thread& member : members) member.join();
  // But for what may be ahead of the link when the last frame leaves, and a frame of each engine.
  constexpr double kAhead = 64 * 1024 + 100e-6 * kBytesPerSecond + 2 * 9216;
  for (const double took : seconds) EXPECT_GE(took, (kBytes - kAhead) / kBytesPerSecond);
}

// A job to which nobody comes.
mercury_job_options job_at(const std::string& place, int role) {
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  options.name = "rate";
  options.role = role;
  options.workers = options.servers = 1;
  options.rendezvous = place.c_str();
  options.timeout_ms = 1;
  return options;
}

// A server's context whose engine has started.
int serve_alone(const std::string& place, const char* rate, mercury_context*& context) {
  EXPECT_EQ(attach(place.c_str(), rate, context), 0) << mercury_last_error();
  const mercury_job_options options = job_at(place, MERCURY_ROLE_SERVER);
  mercury_job* job = nullptr;
  return mercury_job_open(context, &options, &job);
}

// Each engine has a turn among those that wait for the link. There are 64.
TEST(ClientRate, OneEngineTooManyForALinkIsRefusedByName) {
  constexpr uint32_t kTurns = 64;
  const std::string address = fresh_address();
  const auto place = [&](uint32_t i) { return address + ":" + std::to_string(7470 + i); };
  std::vector<mercury_context*> contexts(kTurns);
  for (uint32_t i = 0; i < kTurns; ++i) {
    ASSERT_EQ(serve_alone(place(i), "100Mbps", contexts[i]), -ETIME) << mercury_last_error();
  }
  const auto one_more = [&](const char* rate) {
    mercury_context* context = nullptr;
    const int opened = serve_alone(place(kTurns), rate, context);
    const std::string why = mercury_last_error();
    mercury_detach(context);
    return std::pair(opened, why);
  };
  for (const char* rate : {"100Mbps", static_cast<const char*>(nullptr)}) {
    const auto [opened, why] = one_more(rate);
    EXPECT_EQ(opened, -ENOSPC);
    EXPECT_EQ(why, "rate: at most 64 contexts of a process share the link of " + address);
  }
  mercury_detach(contexts.back());
  contexts.pop_back();
  EXPECT_EQ(one_more("100Mbps").first, -ETIME) << "there is room again";
  for (mercury_context* context : contexts) mercury_detach(context);
}

// Engines start with their first job.
TEST(ClientRate, AnotherRateAtOneAddressIsRefusedByName) {
  const std::string address = fresh_address();
  const std::string place = address + ":7470";
  mercury_context* serving = nullptr;
  ASSERT_EQ(serve_alone(place, "100Mbps", serving), -ETIME) << mercury_last_error();
  const mercury_job_options options = job_at(place, MERCURY_ROLE_WORKER);
  mercury_job* job = nullptr;
  for (const char* rate : {"200Mbps", "100Mbps", static_cast<const char*>(nullptr)}) {
    mercury_context* working = nullptr;
    ASSERT_EQ(attach(address.c_str(), rate, working), 0) << mercury_last_error();
    const bool other = rate != nullptr && std::string(rate) == "200Mbps";
    EXPECT_EQ(mercury_job_open(working, &options, &job), other ? -EINVAL : -ETIME)
        << mercury_last_error();
    if (other) {
      EXPECT_EQ(std::string(mercury_last_error()),
                "rate: the link of " + address +
                    " carries 100Mbps, another context of this process says, not 200Mbps");
    }
    mercury_detach(working);
  }
  mercury_detach(serving);
}

}  // namespace
}  // namespace mercury::testing
