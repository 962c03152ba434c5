#include "apps/stackd/admin_server.h"

#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <istream>
#include <nlohmann/json.hpp>

#include "apps/stackd/descriptors.h"
#include "apps/stackd/ping_answer.h"
#include "apps/stackd/version.h"
#include "shim/channel/seqpacket.h"

namespace mercury {

using boost::asio::local::stream_protocol;
using boost::system::error_code;
using nlohmann::json;

namespace {

constexpr size_t kLongestQuestion = 256;
// Who asks has so long for question and answer, and so many may ask at once: others are turned
// away.
constexpr std::chrono::seconds kPatience(5);
constexpr size_t kMostClients = 64;

constexpr std::string_view kPing = "ping ";

struct ProcessUse {
  size_t descriptors = 0;  // beside the one that counts them
  uint64_t resident_bytes = 0;
  uint64_t heap_bytes = 0;  // allocated; pools that were never touched count, too
};

ProcessUse process_use() {
  ProcessUse use;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++use.descriptors;
  }
  if (use.descriptors > 0) --use.descriptors;
  uint64_t all_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> all_pages >> resident_pages;
  use.resident_bytes = resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const struct mallinfo2 heap = mallinfo2();
  use.heap_bytes = heap.uordblks + heap.hblkhd;
  return use;
}

// Those that happened: [below so many nanoseconds, how many], the shortest first.
json passes_of(const PassTimes& passes) {
  json classes = json::array();
  for (size_t i = 0; i < PassTimes::kClasses; ++i) {
    if (passes.count(i) > 0) classes.push_back({PassTimes::below_ns(i), passes.count(i)});
  }
  return {
      {"total_ns", passes.total_ns()}, {"longest_ns", passes.longest_ns()}, {"below_ns", classes}};
}

// Names of interfaces need not be UTF-8.
std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string admin_socket(const std::string& attach_socket) { return attach_socket + ".admin"; }

struct AdminServer::Client : std::enable_shared_from_this<Client> {
  Client(AdminServer& server, stream_protocol::socket s)
      : seat(server.seats_), socket(std::move(s)), deadline(server.io_), buffer(kLongestQuestion) {}
  // Ends what is under way, and so the client.
  void limit_time(std::chrono::nanoseconds more = {}) {
    deadline.expires_after(kPatience + more);
    deadline.async_wait([weak = weak_from_this()](const error_code& done) {
      error_code ignored;
      if (const auto client = weak.lock(); client && !done) client->socket.close(ignored);
    });
  }

  const std::shared_ptr<const char> seat;
  stream_protocol::socket socket;
  boost::asio::steady_timer deadline;
  boost::asio::streambuf buffer;
  std::string reply;
};

AdminServer::AdminServer(boost::asio::io_context& io, const StackdConfig& config, Host& host,
                         const AttachServer& attach, SocketServer* sockets)
    : io_(io),
      config_(config),
      host_(host),
      attach_(attach),
      sockets_(sockets),
      path_(admin_socket(config.socket)),
      started_ns_(monotonic_ns()),
      acceptor_(io),
      pause_(io, path_) {}

Result<std::unique_ptr<AdminServer>> AdminServer::create(boost::asio::io_context& io,
                                                         const StackdConfig& config, Host& host,
                                                         const AttachServer& attach,
                                                         SocketServer* sockets) {
  std::unique_ptr<AdminServer> server(new AdminServer(io, config, host, attach, sockets));
  // The attach socket is ours alone, so whatever is here was left by a daemon that is gone.
  unlink(server->path_.c_str());
  error_code error;
  server->acceptor_.open(stream_protocol(), error);
  if (!error) server->acceptor_.bind(stream_protocol::endpoint(server->path_), error);
  if (!error) attach::refuse_descriptors(server->acceptor_.native_handle());
  if (!error) server->acceptor_.listen(16, error);
  if (error) return Error::system(error.value(), "cannot listen on " + server->path_);
  chmod(server->path_.c_str(), 0600);
  server->accept();
  return server;
}

void AdminServer::accept() {
  acceptor_.async_accept([this](const error_code& error, stream_protocol::socket socket) {
    if (error == boost::asio::error::operation_aborted || !acceptor_.is_open()) return;
    if (error && AcceptPause::is_needed(error.value())) {
      return pause_.wait(error.value(), [this] { accept(); });
    }
    if (!error && static_cast<size_t>(seats_.use_count()) <= kMostClients) {
      auto client = std::make_shared<Client>(*this, std::move(socket));
      client->limit_time();
      boost::asio::async_read_until(
          client->socket, client->buffer, '\n', [this, client](const error_code& failed, size_t) {
            if (failed) return;
            std::istream stream(&client->buffer);
            std::string question;
            std::getline(stream, question);
            if (question.starts_with(kPing)) {  // another host has its own time to answer
              client->limit_time(
                  std::chrono::nanoseconds(config_.sockets_probe_ns + config_.sockets_answer_ns));
            }
            answer(question, [client](std::string reply) {
              client->reply = std::move(reply);
              boost::asio::async_write(client->socket, boost::asio::buffer(client->reply),
                                       [client](const error_code&, size_t) {});
            });
          });
    }
    accept();
  });
}

void AdminServer::answer(const std::string& question, const Reply& reply) const {
  if (question == "status") return reply(status());
  if (question == "jobs") return reply(jobs());
  if (question == "stats") return reply(stats());
  if (question.starts_with(kPing)) return ping(question.substr(kPing.size()), reply);
  reply(text_of({{"error", "unknown question; status, jobs, stats or ping ADDRESS"}}));
}

void AdminServer::ping(const std::string& host, const Reply& reply) const {
  const Result<IpAddress> ip = IpAddress::parse(host);
  if (!ip) return reply(text_of({{"outcome", "refused_here"}, {"why", ip.error().message}}));
  if (sockets_ == nullptr) {
    return reply(text_of(
        {{"outcome", "refused_here"}, {"why", "this daemon serves no sockets (sockets.serve)"}}));
  }
  // Nobody's any more once the daemon ends, and so is the report then.
  sockets_->ping(*ip, [this, reply](const PingReport& report) {
    reply(ping_answer(report, host_.link_bytes_per_second(report.lane.value)));
  });
}

std::string AdminServer::status() const {
  json engines = json::array();
  for (size_t lane = 0; lane < host_.lane_count(); ++lane) {
    const PortInfo& port = host_.port_info(lane);
    json engine = {{"port", port.name},
                   {"address", port.local.to_string()},
                   {"max_udp_payload", port.max_udp_payload},
                   {"link_bytes_per_second", host_.link_bytes_per_second(lane)}};
    for (size_t i = 0; i < kGaugeCount; ++i) {
      const auto gauge = static_cast<Gauge>(i);
      engine[info_of(gauge).name] = host_.counters(lane).get(gauge);
    }
    engines.push_back(std::move(engine));
  }
  const AttachServer::Held held = attach_.held();
  const ProcessUse use = process_use();
  return text_of({{"version", kMercuryVersion},
                  {"pid", getpid()},
                  {"uptime_s", static_cast<double>(monotonic_ns() - started_ns_) * 1e-9},
                  {"serves", config_.serve},
                  {"programs", attach_.program_count()},
                  {"leaving", held.leaving},
                  {"regions", held.regions},
                  {"shared_bytes", held.shared_bytes},
                  {"jobs", host_.jobs().snapshot().size()},
                  {"idle", host_.jobs().idle()},
                  {"descriptors", use.descriptors},
                  {"descriptor_limit", descriptor_limit().soft},
                  {"resident_bytes", use.resident_bytes},
                  {"heap_bytes", use.heap_bytes},
                  {"sockets", sockets()},
                  {"engines", engines}});
}

json AdminServer::sockets() const {
  if (sockets_ == nullptr) return nullptr;
  const SocketManager::Snapshot now = sockets_->snapshot();
  return {{"programs", sockets_->program_count()},
          {"listeners", now.listeners},
          {"sessions", now.sessions},
          {"connections", now.connections},
          {"unclaimed", now.unclaimed},
          {"local_connections", now.local_total}};
}

std::string AdminServer::jobs() const {
  json all = json::array();
  for (const JobSnapshot& job : host_.jobs().snapshot()) {
    all.push_back({{"name", job.name},
                   {"role", name_of(job.role)},
                   {"rank", job.rank},
                   {"workers", job.workers},
                   {"servers", job.servers},
                   {"state", job.state},
                   {"tensors", job.tensors},
                   {"tensor_bytes", job.tensor_bytes},
                   {"chunk_bytes", job.chunk_bytes},
                   {"members", job.members}});
  }
  return text_of({{"jobs", all}});
}

std::string AdminServer::stats() const {
  json engines = json::array();
  for (size_t lane = 0; lane < host_.lane_count(); ++lane) {
    json counters = json::object();
    for (size_t i = 0; i < kCounterCount; ++i) {
      const auto counter = static_cast<Counter>(i);
      counters[info_of(counter).name] = host_.counters(lane).get(counter);
    }
    engines.push_back(
        {{"engine", lane}, {"counters", counters}, {"passes", passes_of(host_.passes(lane))}});
  }
  return text_of({{"engines", engines}});
}

void AdminServer::close() {
  error_code ignored;
  pause_.cancel();
  acceptor_.close(ignored);
  unlink(path_.c_str());
}

}  // namespace mercury
