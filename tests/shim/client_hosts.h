// Real hosts on 127.0.0.0/8 for the client's tests: engines embedded in this process, or processes
// of mercury-stackd over the uring port, and jobs on them.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shim/client/mercurystack/mercury.h"

namespace mercury::testing {

// An address that nobody else in this process or in another test run uses now.
std::string fresh_address();

// A mercury-stackd of its own, with two engines; ready when the constructor returns.
class StackDaemon {
 public:
  // `extra` is appended to the configuration.
  explicit StackDaemon(std::string address, const std::string& extra = "");
  ~StackDaemon();
  StackDaemon(const StackDaemon&) = delete;
  StackDaemon& operator=(const StackDaemon&) = delete;

  void kill();   // as a crash does
  void stop();   // it stands still...
  void go_on();  // ...and does no longer
  // The same, of the thread of its first engine alone. By one thread of the test.
  void stop_engine();
  void engine_goes_on();
  std::string log() const;
  // Whether these bytes stand somewhere in what it can write.
  bool has_in_memory(std::string_view bytes) const;
  void start();  // again, on the same address and socket
  const std::string& address() const { return address_; }
  std::string socket() const { return folder_ + "/stackd.sock"; }

 private:
  void end(int signal);
  bool wait_until_ready(int notifications) const;

  const std::string address_;
  const std::string extra_;
  std::string folder_;
  pid_t pid_ = -1;
  pid_t stopped_ = -1;  // the engine's thread
};

// `timeout_ms`: mercury_attach_options.daemon_timeout_ms.
mercury_context* attach_daemon(const std::string& socket, int32_t timeout_ms = 0);
mercury_context* attach_embedded(const std::string& listen = "");

enum class Engines { kEmbedded, kDaemon };
std::string name_of(Engines engines);

// A job of `workers` and `servers`. With daemons: one per server, worker r attached to daemon
// r mod servers. Embedded: all members in this process, each with its own engine.
class RealJob {
 public:
  struct Options {
    int workers = 2;
    int servers = 2;
    std::string name = "test";
    std::string secret;
    std::string daemon_config;
    bool deterministic = false;
    int32_t first_timeout_ms = 0;  // daemon_timeout_ms of who is attached where worker 0 is
  };
  explicit RealJob(Engines engines) : RealJob(engines, Options()) {}
  RealJob(Engines engines, Options options);
  // Leaves what is still open. Servers must then end in order, or as expect_servers_end says.
  ~RealJob();
  RealJob(const RealJob&) = delete;
  RealJob& operator=(const RealJob&) = delete;

  mercury_context* context(int rank) { return contexts_[static_cast<size_t>(rank)]; }
  mercury_context* server_context(int rank) { return server_contexts_[static_cast<size_t>(rank)]; }
  mercury_job* job(int rank) { return jobs_[static_cast<size_t>(rank)]; }
  int workers() const { return options_.workers; }
  Engines engines() const { return engines_; }
  StackDaemon& daemon(int i) { return *daemons_[static_cast<size_t>(i)]; }
  const std::string& rendezvous() const { return rendezvous_; }
  // What a further member would open.
  mercury_job_options member_options() const;
  // One more program, attached where worker `rank` is.
  mercury_context* attach(int rank) const;

  // Opens another job, of the same members, on the same contexts.
  std::vector<mercury_job*> open_again(const std::string& name);
  void close(int rank);
  void detach(int rank);
  void forget(int rank) { jobs_[static_cast<size_t>(rank)] = nullptr; }  // the test has closed it
  // Joins the servers, if they are in this process: what mercury_job_wait_end said to each.
  std::vector<int> server_results();

  void expect_servers_end(int status) { servers_end_with_ = status; }

  // f(rank) on a thread for each worker.
  void each_worker(const std::function<void(int rank)>& f) const;

 private:
  void serve(const std::string& name, int rank);

  const Engines engines_;
  const Options options_;
  std::string rendezvous_;
  std::vector<std::unique_ptr<StackDaemon>> daemons_;
  std::vector<mercury_context*> server_contexts_;
  std::vector<std::thread> servers_;
  std::mutex mutex_;
  std::vector<int> server_results_;
  int servers_end_with_ = 0;
  std::vector<mercury_context*> contexts_;
  std::vector<mercury_job*> jobs_;
};

// Memory for tensor `id` of worker `rank`, declared.
void* declare(RealJob& job, int rank, uint32_t id, size_t numel,
              mercury_dtype dtype = MERCURY_DTYPE_F32, mercury_reduce_op op = MERCURY_REDUCE_SUM,
              uint16_t priority = 5);
// The same on all workers: their memories by rank, of floats.
std::vector<float*> declare_everywhere(RealJob& job, uint32_t id, size_t numel,
                                       uint16_t priority = 5);
mercury_tensor_options tensor_options(uint32_t id, void* data, size_t numel,
                                      mercury_dtype dtype = MERCURY_DTYPE_F32);

// Of memory that is the program's own.
int declare_at(mercury_job* job, uint32_t id, void* data, size_t numel);

mercury_handle push_pull(mercury_job* job, uint32_t tensor);

// The last call's message has all of `parts`.
bool said(std::initializer_list<const char*> parts);

}  // namespace mercury::testing
