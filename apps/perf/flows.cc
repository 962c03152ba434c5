#include "apps/perf/flows.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <system_error>
#include <thread>

#include "apps/interruption.h"
#include "apps/perf/messages.h"
#include "apps/perf/talk.h"
#include "apps/replay/clock.h"
#include "shim/host/thread.h"
#include "shim/socket/api/mercurystack/socket.h"

namespace mercury::perf {
namespace {

constexpr std::chrono::milliseconds kLook{100};  // between two looks at whether a signal has come

// What all flows of a repeat share.
class Repeat {
 public:
  explicit Repeat(size_t flows) : left_(flows) {}

  void start(uint64_t end_ns) {
    end_ns_ = end_ns;
    start_.count_down();
  }
  void wait_for_start() { start_.wait(); }
  bool go_on() const { return !stop_ && monotonic_ns() < end_ns_; }
  void ended(const Flow& flow) {
    const std::lock_guard lock(mutex_);
    --left_;
    if (!flow.failed && first_failed_ == nullptr) {
      first_failed_ = &flow;
      stop_ = true;
    }
    changed_.notify_all();
  }
  // Until all have ended; after a failure, or a signal, the others are made to.
  void wait_for_end(const std::vector<UniqueFd>& fds) {
    std::unique_lock lock(mutex_);
    while (left_ > 0) {
      changed_.wait_for(lock, kLook);
      if (interrupted()) stop_ = true;
      if (!stop_ || left_ == 0) continue;
      for (const UniqueFd& fd : fds) mercury_shutdown(fd.get(), SHUT_RDWR);
      changed_.wait(lock, [this] { return left_ == 0; });
    }
  }
  // What the others have failed of then is this.
  const Flow* first_failed() const { return first_failed_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::latch start_{1};
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> end_ns_ = 0;
  size_t left_;
  const Flow* first_failed_ = nullptr;
};

// Of the server; an `error` in it is one.
Result<nlohmann::json> receive_answer(int fd) {
  Result<nlohmann::json> answer = receive_json(fd);
  if (!answer) return answer;
  const auto error = answer->find("error");
  if (error == answer->end()) return answer;
  return Error(Errc::kPeerLost,
               "the server says: " + (error->is_string() ? error->get<std::string>() : "an error"));
}

Status ask_for(int fd, const FlowRequest& request) {
  if (Status sent = send_json(fd, json_of(request)); !sent) return sent;
  const Result<nlohmann::json> answer = receive_answer(fd);
  return answer ? Status() : Status(answer.error());
}

// What is sent, made before anything is measured.
struct FlowContents {
  BlockContents sent, replies;
};

Result<BlockCount> carry(int fd, Flow& flow, const FlowContents& made, const Repeat& repeat) {
  const FlowRequest& request = flow.request;
  const BlockContents& contents = made.sent;
  const auto go_on = [&repeat] { return repeat.go_on(); };
  switch (request.kind) {
    case FlowRequest::Kind::kSink:
      return send_blocks(fd, contents, request.compare, go_on);
    case FlowRequest::Kind::kSource: {
      if (Status sent = send_json(fd, {{"go", true}}); !sent) return sent.error();
      Result<BlockCount> got = receive_blocks(fd, contents, request.compare);
      if (!got) return got;
      flow.end_ns = monotonic_ns();
      if (Status sent = send_json(fd, {{"done", true}}); !sent) return sent.error();
      return got;
    }
    case FlowRequest::Kind::kEcho:
      return ask_messages(fd, contents, made.replies, request.compare, flow.latency, go_on);
  }
  return Error(Errc::kProtocol, "no such kind");
}

// Whoever sends may see that the connection is lost before he reads why.
Status finish(int fd, Flow& flow, const Result<BlockCount>& carried) {
  if (!carried && carried.error().code != Errc::kPeerLost) return carried.error();
  const Result<nlohmann::json> report = receive_answer(fd);
  if (!report) return report.error();
  if (!carried) return carried.error();
  if (flow.end_ns == 0) flow.end_ns = monotonic_ns();
  flow.count = *carried;
  const auto blocks = report->find("blocks"), cpu = report->find("cpu_ns"),
             compared = report->find("compared_bytes");
  bool whole = true;
  for (const auto& figure : {blocks, cpu, compared}) {
    whole = whole && figure != report->end() && figure->is_number_unsigned();
  }
  if (!whole) return Error(Errc::kProtocol, "the server's report is none");
  flow.peer_cpu_ns = cpu->get<uint64_t>();
  const auto daemon = report->find("daemon_ns");
  if (daemon != report->end() && daemon->is_number_unsigned()) {
    flow.peer_daemon_ns = daemon->get<uint64_t>();
  }
  flow.count.compared_bytes += compared->get<uint64_t>();
  if (blocks->get<uint64_t>() == carried->blocks) return {};
  return Error(Errc::kProtocol, "one end counts " + std::to_string(carried->blocks) +
                                    " blocks, the other " + blocks->dump());
}

std::vector<Flow> flows_of(const FlowOptions& options, uint64_t bytes, uint64_t time_ns,
                           bool compare) {
  using Kind = FlowRequest::Kind;
  std::vector<Kind> kinds = {Kind::kEcho};
  if (!options.messages && options.direction == "up") kinds = {Kind::kSink};
  if (!options.messages && options.direction == "down") kinds = {Kind::kSource};
  if (!options.messages && options.direction == "both") kinds = {Kind::kSink, Kind::kSource};
  std::vector<Flow> flows;
  for (const std::string& host : options.hosts) {
    for (int n = 0; n < options.flows; ++n) {
      for (const Kind kind : kinds) {
        Flow& flow = flows.emplace_back();
        flow.host = host;
        const uint64_t reply_bytes = options.reply_bytes > 0 ? options.reply_bytes : bytes;
        flow.request = {kind, bytes, reply_bytes, time_ns, compare};
      }
    }
  }
  return flows;
}

Status connect_all(const FlowOptions& options, std::vector<Flow>& flows,
                   std::vector<UniqueFd>& fds) {
  for (Flow& flow : flows) {
    Result<UniqueFd> fd = connect_to(flow.host, options.port, options.over_kernel());
    if (!fd) return fd.error();
    if (Status asked = ask_for(fd->get(), flow.request); !asked) {
      return Error(asked.error().code, flow.host + ": " + asked.error().message);
    }
    fds.push_back(std::move(*fd));
    if (interrupted()) return Error(Errc::kClosed, "interrupted by " + interruption_name());
  }
  return {};
}

}  // namespace

Result<FlowsDone> run_flows(const FlowOptions& options, uint64_t bytes, uint64_t time_ns,
                            bool compare) {
  FlowsDone done;
  done.flows = flows_of(options, bytes, time_ns, compare);
  const FlowContents contents{
      BlockContents(bytes),
      BlockContents(options.messages ? done.flows[0].request.reply_bytes : 0)};
  std::vector<UniqueFd> fds;
  if (Status connected = connect_all(options, done.flows, fds); !connected)
    return connected.error();
  for (const UniqueFd& fd : fds) {
    done.within_host |= !options.over_kernel() && is_within_host(fd.get());
  }
  Repeat repeat(done.flows.size());
  std::vector<std::jthread> threads;
  try {
    for (size_t n = 0; n < fds.size(); ++n) {
      threads.emplace_back([&flow = done.flows[n], fd = fds[n].get(), &contents, &repeat] {
        repeat.wait_for_start();
        flow.failed = finish(fd, flow, carry(fd, flow, contents, repeat));
        repeat.ended(flow);
      });
    }
  } catch (const std::system_error& refused) {
    for (const UniqueFd& fd : fds) mercury_shutdown(fd.get(), SHUT_RDWR);
    repeat.start(0);  // those that are there end
    return Error::system(refused.code().value(), kThreadRefused);
  }
  done.begin_ns = monotonic_ns();
  repeat.start(done.begin_ns + time_ns);
  repeat.wait_for_end(fds);
  threads.clear();  // joins
  if (interrupted()) return Error(Errc::kClosed, "interrupted by " + interruption_name());
  if (const Flow* failed = repeat.first_failed(); failed != nullptr) {
    return Error(failed->failed.error().code, failed->host + ": " + failed->failed.error().message);
  }
  for (const Flow& flow : done.flows) done.end_ns = std::max(done.end_ns, flow.end_ns);
  return done;
}

}  // namespace mercury::perf
