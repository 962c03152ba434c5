#include "apps/perf/serve.h"

#include <netdb.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "apps/interruption.h"
#include "apps/perf/blocks.h"
#include "apps/perf/costs.h"
#include "apps/perf/flow_request.h"
#include "apps/perf/messages.h"
#include "apps/perf/talk.h"
#include "apps/replay/clock.h"
#include "shim/host/thread.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "transport/base/quantity.h"

namespace mercury::perf {
namespace {

constexpr int kAcceptLookMs = 100;  // between two looks at whether a signal has come

Error serve_error(int number, const std::string& what) { return Error::system(number, what); }

uint64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

Result<BlockCount> source(int fd, const FlowRequest& request, const BlockContents& contents) {
  const Result<nlohmann::json> go = receive_json(fd);
  if (!go) return go.error();
  const uint64_t end_ns = monotonic_ns() + request.time_ns;
  auto sent = send_blocks(fd, contents, request.compare,
                          [end_ns] { return monotonic_ns() < end_ns && !interrupted(); });
  if (!sent) return sent;
  const Result<nlohmann::json> done = receive_json(fd);
  if (!done) return done.error();
  return sent;
}

Result<BlockCount> serve_flow(int fd, const FlowRequest& request, const BlockContents& contents,
                              const BlockContents& replies) {
  switch (request.kind) {
    case FlowRequest::Kind::kSink:
      return receive_blocks(fd, contents, request.compare);
    case FlowRequest::Kind::kSource:
      return source(fd, request, contents);
    case FlowRequest::Kind::kEcho:
      return answer_messages(fd, contents, replies, request.compare);
  }
  return Error(Errc::kProtocol, "no such kind");
}

// Memory for a connection, as long as this lives.
class HeldMemory {
 public:
  HeldMemory(std::atomic<uint64_t>& held, uint64_t bytes) : held_(held), bytes_(bytes) {
    held_ += bytes_;
  }
  ~HeldMemory() { held_ -= bytes_; }
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

 private:
  std::atomic<uint64_t>& held_;
  const uint64_t bytes_;
};

struct Memory {
  const uint64_t most;
  std::atomic<uint64_t> held = 0;
};

// What went wrong is the client's to say: it gets the text if it is still there.
void serve_connection(int fd, Memory& memory, const CostMeter& meter) {
  limit_silence(fd);
  const Result<nlohmann::json> asked = receive_json(fd);
  const Result<FlowRequest> request =
      asked ? flow_request(*asked) : Result<FlowRequest>(asked.error());
  if (!request) {
    (void)send_json(fd, {{"error", request.error().message}});
    return;
  }
  const HeldMemory own(memory.held, held_bytes(*request));
  if (memory.held > memory.most) {
    (void)send_json(fd, {{"error", "mercury-perf serve --memory is " + print_bytes(memory.most) +
                                       ", and all connections would hold more"}});
    return;
  }
  // Before the client begins to measure.
  const bool messages = request->kind == FlowRequest::Kind::kEcho;
  const BlockContents contents(request->bytes), replies(messages ? request->reply_bytes : 0);
  if (!send_json(fd, {{"ok", true}})) return;
  const uint64_t begin_ns = thread_cpu_ns();
  const CostSample before = meter.sample();
  const Result<BlockCount> count = serve_flow(fd, *request, contents, replies);
  if (!count) {
    (void)send_json(fd, {{"error", count.error().message}});
    return;
  }
  nlohmann::json report = {{"blocks", count->blocks},
                           {"compared_bytes", count->compared_bytes},
                           {"cpu_ns", thread_cpu_ns() - begin_ns}};
  const CostSample costs = meter.sample().since(before);
  if (costs.daemon_ns) report["daemon_ns"] = *costs.daemon_ns;
  (void)send_json(fd, report);
}

Result<UniqueFd> listen_at(const ServeOptions& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(options.port);
  // Of a host without IPv6, or of one with both.
  const bool ipv6 = ::access("/proc/net/if_inet6", F_OK) == 0;
  const std::string all = ipv6 ? "::" : "0.0.0.0";
  const std::string address = options.bind.empty() ? all : options.bind;
  if (const int error = ::getaddrinfo(address.c_str(), service.c_str(), &hints, &found);
      error != 0) {
    return Error(Errc::kInvalidArgument,
                 "--bind: '" + address + "' is no address: " + ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> where(found, ::freeaddrinfo);
  UniqueFd fd(mercury_socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return serve_error(errno, "socket");
  const int one = 1, both = 0;
  mercury_setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (options.bind.empty() && ipv6) {
    mercury_setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
  }
  if (mercury_bind(fd.get(), where->ai_addr, where->ai_addrlen) != 0 ||
      mercury_listen(fd.get(), kMostFlows) != 0) {
    return serve_error(errno, "cannot listen at " + address + " port " + service);
  }
  return fd;
}

// Connections under way, each with a thread. Not shared between threads.
class Served {
 public:
  Served(uint64_t memory_bytes, const CostMeter& meter) : memory_{memory_bytes}, meter_(meter) {}
  ~Served() {
    for (const auto& one : all_) mercury_shutdown(one->fd.get(), SHUT_RDWR);  // wakes its thread
  }
  void add(UniqueFd fd) {
    std::erase_if(all_, [](const auto& one) { return one->done.load(); });
    if (all_.size() >= kMostFlows) {
      (void)send_json(fd.get(), {{"error", "mercury-perf serve has " + std::to_string(kMostFlows) +
                                               " connections already"}});
      return;
    }
    One& one = *all_.emplace_back(std::make_unique<One>());
    one.fd = std::move(fd);
    try {
      one.thread = std::jthread([&one, this] {
        serve_connection(one.fd.get(), memory_, meter_);
        // The client's end says so at once, not when room is made for another.
        mercury_shutdown(one.fd.get(), SHUT_RDWR);
        one.done = true;
      });
    } catch (const std::system_error&) {
      (void)send_json(one.fd.get(), {{"error", std::string("serve: ") + kThreadRefused}});
      all_.pop_back();
    }
  }

 private:
  struct One {
    UniqueFd fd;
    std::atomic<bool> done = false;
    std::jthread thread;
  };
  Memory memory_;
  const CostMeter& meter_;
  std::vector<std::unique_ptr<One>> all_;
};

}  // namespace

int run_serve(const ServeOptions& options) {
  const Result<UniqueFd> listener = listen_at(options);
  if (!listener) {
    std::fprintf(stderr, "mercury-perf: %s\n", listener.error().message.c_str());
    return 1;
  }
  catch_interruptions();
  std::printf("listening at port %u; SIGINT or SIGTERM ends it\n", unsigned{options.port});
  std::fflush(stdout);
  CostMeter meter;
  meter.watch_daemon(sockets_path());
  Served served(options.memory_bytes, meter);
  while (!interrupted()) {
    pollfd ready{listener->get(), POLLIN, 0};
    if (mercury_poll_fds(&ready, 1, kAcceptLookMs) <= 0) continue;
    UniqueFd fd(mercury_accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd) {
      served.add(std::move(fd));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      mercury_poll_fds(nullptr, 0, kAcceptLookMs);  // somebody has to go first
    }
  }
  return 0;
}

}  // namespace mercury::perf
