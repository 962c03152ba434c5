#include "apps/stackd/admin_server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <istream>
#include <nlohmann/json.hpp>

#include "apps/stackd/version.h"

namespace mercury {

using boost::asio::local::stream_protocol;
using boost::system::error_code;
using nlohmann::json;

namespace {
constexpr size_t kLongestQuestion = 256;
}

std::string admin_socket(const std::string& attach_socket) { return attach_socket + ".admin"; }

struct AdminServer::Client : std::enable_shared_from_this<Client> {
  explicit Client(stream_protocol::socket s) : socket(std::move(s)), buffer(kLongestQuestion) {}
  stream_protocol::socket socket;
  boost::asio::streambuf buffer;
  std::string reply;
};

AdminServer::AdminServer(boost::asio::io_context& io, const StackdConfig& config, Host& host,
                         const AttachServer& attach)
    : io_(io),
      config_(config),
      host_(host),
      attach_(attach),
      path_(admin_socket(config.socket)),
      started_ns_(monotonic_ns()),
      acceptor_(io) {}

Result<std::unique_ptr<AdminServer>> AdminServer::create(boost::asio::io_context& io,
                                                         const StackdConfig& config, Host& host,
                                                         const AttachServer& attach) {
  std::unique_ptr<AdminServer> server(new AdminServer(io, config, host, attach));
  // The attach socket is ours alone, so whatever is here was left by a daemon that is gone.
  unlink(server->path_.c_str());
  error_code error;
  server->acceptor_.open(stream_protocol(), error);
  if (!error) server->acceptor_.bind(stream_protocol::endpoint(server->path_), error);
  if (!error) server->acceptor_.listen(16, error);
  if (error) return Error::system(error.value(), "cannot listen on " + server->path_);
  chmod(server->path_.c_str(), 0600);
  server->accept();
  return server;
}

void AdminServer::accept() {
  acceptor_.async_accept([this](const error_code& error, stream_protocol::socket socket) {
    if (error == boost::asio::error::operation_aborted) return;
    if (!error) {
      auto client = std::make_shared<Client>(std::move(socket));
      boost::asio::async_read_until(
          client->socket, client->buffer, '\n', [this, client](const error_code& failed, size_t) {
            if (failed) return;
            std::istream stream(&client->buffer);
            std::string question;
            std::getline(stream, question);
            client->reply = answer(question);
            boost::asio::async_write(client->socket, boost::asio::buffer(client->reply),
                                     [client](const error_code&, size_t) {});
          });
    }
    accept();
  });
}

std::string AdminServer::answer(const std::string& question) const {
  if (question == "status") return status();
  if (question == "jobs") return jobs();
  if (question == "stats") return stats();
  return json{{"error", "unknown question; status, jobs or stats"}}.dump();
}

std::string AdminServer::status() const {
  json engines = json::array();
  for (size_t lane = 0; lane < host_.lane_count(); ++lane) {
    const PortInfo& port = host_.port_info(lane);
    engines.push_back({{"port", port.name},
                       {"address", port.local.to_string()},
                       {"max_udp_payload", port.max_udp_payload},
                       {"link_bytes_per_second", port.link_bytes_per_second}});
  }
  return json{{"version", kMercuryVersion},
              {"pid", getpid()},
              {"uptime_s", static_cast<double>(monotonic_ns() - started_ns_) * 1e-9},
              {"serves", config_.serve},
              {"programs", attach_.program_count()},
              {"jobs", host_.jobs().snapshot().size()},
              {"engines", engines}}
      .dump();
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
  return json{{"jobs", all}}.dump();
}

std::string AdminServer::stats() const {
  json engines = json::array();
  for (size_t lane = 0; lane < host_.lane_count(); ++lane) {
    json counters = json::object();
    for (size_t i = 0; i < kCounterCount; ++i) {
      const auto counter = static_cast<Counter>(i);
      counters[info_of(counter).name] = host_.counters(lane).get(counter);
    }
    engines.push_back({{"engine", lane}, {"counters", counters}});
  }
  return json{{"engines", engines}}.dump();
}

void AdminServer::close() {
  error_code ignored;
  acceptor_.close(ignored);
  unlink(path_.c_str());
}

}  // namespace mercury
