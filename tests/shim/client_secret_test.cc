// The secret that a program gives to whoever opens its job: nothing of it stays in memory that is
// given back, on this side or the daemon's.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/shim/client_hosts.h"

namespace {

// Longer than what a string holds in itself, and unlike all else. Not one string: what the daemon
// is asked for is compared with it.
constexpr char kSecret[] =
    "Uqd7vFxT2mWc9LrKz4HnBp8sJgYe3aNt5oXi6uQ1RbVhMfDwEyCkSjZlGP0A"
    "Uqd7vFxT2mWc9LrKz4HnBp8sJgYe3aNt5oXi6uQ1RbVhMfDwEyCkSjZlGP0A";
constexpr size_t kPart = 24;  // of which none is to be found

std::atomic<bool> g_watching = false;
std::atomic<int> g_given_back = 0;  // blocks that had a part of it

void look_at(const void* memory) {
  if (memory == nullptr || !g_watching) return;
  const std::string_view block(static_cast<const char*>(memory),
                               ::malloc_usable_size(const_cast<void*>(memory)));
  if (block.find(std::string_view(kSecret, kPart)) != std::string_view::npos) ++g_given_back;
}

}  // namespace

// Not inlined: GCC would take malloc and delete for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (void* memory = std::malloc(bytes)) return memory;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  look_at(memory);
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  look_at(memory);
  std::free(memory);
}

namespace mercury::testing {
namespace {

mercury_job_options options_for(const std::string& rendezvous) {
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  options.role = MERCURY_ROLE_WORKER;
  options.workers = options.servers = 1;
  options.name = "test";
  options.secret = kSecret;
  options.rendezvous = rendezvous.c_str();
  options.timeout_ms = 500;
  return options;
}

int opened_watched(mercury_context* context, const mercury_job_options& options) {
  mercury_job* job = nullptr;
  g_given_back = 0;
  g_watching = true;
  const int rc = mercury_job_open(context, &options, &job);
  g_watching = false;
  mercury_job_close(job);
  return rc;
}

TEST(ClientSecret, TheWatchSeesIt) {
  g_watching = true;
  { const std::string given_back(kSecret); }
  g_watching = false;
  EXPECT_EQ(g_given_back, 1);
}

TEST(ClientSecret, NothingStaysOfItHereOrInTheDaemon) {
  StackDaemon daemon(fresh_address());
  ASSERT_FALSE(daemon.has_in_memory(std::string_view(kSecret, kPart)));
  mercury_context* const context = attach_daemon(daemon.socket());
  ASSERT_NE(context, nullptr);
  const std::string rendezvous = daemon.address() + ":7470";
  mercury_job_options options = options_for(rendezvous);
  EXPECT_LT(opened_watched(context, options), 0) << "no server of it is there";
  EXPECT_EQ(g_given_back, 0);
  EXPECT_FALSE(daemon.has_in_memory(std::string_view(kSecret, kPart)));
  EXPECT_TRUE(daemon.has_in_memory(daemon.address())) << "so it is found where it stands";
  options.policy = "no such policy";
  EXPECT_EQ(opened_watched(context, options), -EINVAL);
  EXPECT_EQ(g_given_back, 0);
  mercury_detach(context);
}

TEST(ClientSecret, NorInAProgramThatIsAHostItself) {
  mercury_context* const context = attach_embedded();
  ASSERT_NE(context, nullptr);
  const std::string rendezvous = fresh_address() + ":7470";
  EXPECT_LT(opened_watched(context, options_for(rendezvous)), 0) << "no server of it is there";
  EXPECT_EQ(g_given_back, 0);
  mercury_detach(context);
}

}  // namespace
}  // namespace mercury::testing
