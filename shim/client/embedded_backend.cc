#include "shim/client/embedded_backend.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "shim/client/client_log.h"
#include "shim/host/clock.h"
#include "shim/host/embedded_host.h"
#include "shim/host/notice_limit.h"
#include "shim/host/open_job.h"
#include "transport/base/quantity.h"
#include "transport/base/signal_block.h"

namespace mercury::client {
namespace {

constexpr ClientId kClient = 1;  // the only program of this host
constexpr uint64_t kBitsPerByte = 8;
constexpr uint64_t kLeastRate = 1'000'000;  // bits per second

// What a program says of its engine.
struct Listening {
  std::optional<Endpoint> at;     // none: where the first job's rendezvous is reached from
  uint64_t bytes_per_second = 0;  // of the link; 0: not known
};

// The address from which this machine reaches `remote`; port 0.
Result<Endpoint> address_towards(const Endpoint& remote) {
  const bool v4 = remote.ip.is_v4();
  const UniqueFd probe(socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in four{};
  sockaddr_in6 six{};
  four.sin_family = AF_INET;
  six.sin6_family = AF_INET6;
  four.sin_port = six.sin6_port = htons(remote.port);
  std::memcpy(&four.sin_addr, remote.ip.bytes.data() + 12, 4);
  std::memcpy(&six.sin6_addr, remote.ip.bytes.data(), 16);
  auto* address = v4 ? reinterpret_cast<sockaddr*>(&four) : reinterpret_cast<sockaddr*>(&six);
  socklen_t bytes = v4 ? sizeof four : sizeof six;
  // Connecting a UDP socket sends nothing: it looks up the route.
  if (!probe || connect(probe.get(), address, bytes) != 0 ||
      getsockname(probe.get(), address, &bytes) != 0) {
    return Error::system(errno, "no route to " + remote.to_string());
  }
  Endpoint local;
  if (v4) {
    uint8_t b[4];
    std::memcpy(b, &four.sin_addr, 4);
    local.ip = IpAddress::v4(b[0], b[1], b[2], b[3]);
  } else {
    std::memcpy(local.ip.bytes.data(), &six.sin6_addr, 16);
  }
  return local;
}

// Where a member of the job may listen, best first. A server is where the others look for it; one
// that takes any rank, at the first of those places that is this machine's and free.
Result<std::vector<Endpoint>> places_for(const attach::JobOpen& job) {
  const size_t named = std::min<size_t>(job.rendezvous.size(), job.servers);
  std::vector<Endpoint> places;
  if (job.role == Role::kServer && job.rank < 0) {
    places.assign(job.rendezvous.begin(), job.rendezvous.begin() + static_cast<ptrdiff_t>(named));
  } else if (job.role == Role::kServer && static_cast<size_t>(job.rank) < named) {
    return std::vector{job.rendezvous[static_cast<size_t>(job.rank)]};
  }
  Result<Endpoint> towards = address_towards(job.rendezvous.front());
  if (!towards) return towards.error();
  places.push_back(*towards);
  return places;
}

// Another program's place, or another machine's.
bool is_elsewhere(const Error& error) {
  return error.sys_errno == EADDRINUSE || error.sys_errno == EADDRNOTAVAIL;
}

class EmbeddedBackend final : public Backend {
 public:
  EmbeddedBackend(std::shared_ptr<ChannelMemory> memory, const Listening& listening)
      : engine_end_(memory), listening_(listening) {
    channels_.push_back(std::make_unique<ClientChannel>(std::move(memory)));
  }
  ~EmbeddedBackend() override {
    EmbeddedBackend::leave();
    host_.reset();  // ends the engine's thread: nobody uses the channel any more
  }

  std::span<const std::unique_ptr<ClientChannel>> channels() const override { return channels_; }
  bool sees_program_memory() const override { return true; }
  Result<std::unique_ptr<Region>> add_region(uint32_t, uint64_t bytes) override {
    Result<std::unique_ptr<Region>> region = Region::create(bytes);
    if (region) (*region)->drop_fd();  // the mapping is enough
    return region;
  }
  Status remove_region(uint32_t) override { return {}; }

  Result<attach::JobOpened> open_job(const attach::JobOpen& job) override {
    if (Status started = start(job); !started) return started.error();
    Result<OpenJob> open = to_open_job(job, {&engine_end_});
    if (!open) return open.error();
    Result<OpenedJob> opened =
        ask<Result<OpenedJob>>([&open, &job, this](JobManager& jobs, uint64_t now_ns, auto answer) {
          if (gone_) return answer(left_error());
          jobs.open_job(kClient, std::move(*open), now_ns,
                        [this, answer, number = job.client_job](Result<OpenedJob> made) {
                          if (made) numbers_[made->slot.value] = number;
                          answer(std::move(made));
                        });
        });
    wipe(open->secret);
    if (!opened) return opened.error();
    return to_job_opened(*opened);
  }

  Status declare(HostJob job, std::span<const TensorSpec> specs,
                 std::vector<Round>& rounds) override {
    std::vector<TensorDeclaration> tensors;
    for (const TensorSpec& spec : specs) tensors.push_back(to_declaration(spec.wire, spec.data));
    return ask<Status>([&](JobManager& jobs, uint64_t now_ns, auto answer) {
      if (!is_open(job)) return answer(closed_error());
      const uint16_t slot = job.slot;
      jobs.declare(kClient, JobSlot(slot), std::move(tensors), now_ns,
                   [&jobs, &rounds, specs, slot, answer](Status status) {
                     for (const TensorSpec& spec : specs) {
                       rounds.push_back(jobs.first_round(kClient, JobSlot(slot), spec.wire.id));
                     }
                     answer(std::move(status));
                   });
    });
  }

  void close_job(HostJob job) override {
    ask<bool>([this, job](JobManager& jobs, uint64_t now_ns, auto answer) {
      numbers_.erase(job.slot);
      jobs.close_job(kClient, JobSlot(job.slot), now_ns, [this, job, answer] {
        forget_end(job);
        answer(true);
      });
    });
  }

  Status wait_job(HostJob job, int timeout_ms) override {
    const std::shared_future<Status> ended = end_of(job);
    if (timeout_ms >= 0 &&
        ended.wait_for(std::chrono::milliseconds(timeout_ms)) != std::future_status::ready) {
      return Error(Errc::kTimedOut, "the job is still running");
    }
    return ended.get();
  }

  Status job_status(HostJob job) override {
    return ask<Status>([this, job](JobManager& jobs, uint64_t, auto answer) {
      answer(is_open(job) ? jobs.job_status(kClient, JobSlot(job.slot)) : closed_error());
    });
  }

  Status set_policy(HostJob job, const std::string& policy) override {
    return ask<Status>([this, job, policy](JobManager& jobs, uint64_t now_ns, auto answer) {
      answer(is_open(job) ? jobs.set_policy(kClient, JobSlot(job.slot), policy, now_ns)
                          : closed_error());
    });
  }

  void leave() override {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(left_, true) || !host_) return;
    }
    ask<bool>([this](JobManager& jobs, uint64_t now_ns, auto answer) {
      gone_ = true;
      jobs.client_gone(kClient, now_ns, [answer] { answer(true); });
    });
  }

  bool lost() const noexcept override { return false; }
  int lost_fd() const noexcept override { return -1; }

 private:
  // One question per job, however often and from however many threads the program asks.
  std::shared_future<Status> end_of(HostJob job) {
    const std::lock_guard lock(mutex_);
    std::shared_future<Status>& end = ends_[job.number];
    if (!end.valid()) {
      end = begin<Status>([this, job](JobManager& jobs, uint64_t, auto answer) {
        if (!is_open(job)) return answer(closed_error());
        jobs.wait_job(kClient, JobSlot(job.slot), answer);
      });
    }
    return end;
  }
  void forget_end(HostJob job) {
    const std::lock_guard lock(mutex_);
    ends_.erase(job.number);
  }
  // On the control thread.
  bool is_open(HostJob job) const {
    const auto found = numbers_.find(job.slot);
    return found != numbers_.end() && found->second == job.number;
  }

  // The engine starts with the first job, whose rendezvous says where to listen if nothing else
  // does.
  Status start(const attach::JobOpen& job) {
    const std::lock_guard lock(mutex_);
    if (left_) return left_error();
    if (host_) return {};
    Result<std::vector<Endpoint>> places =
        listening_.at ? std::vector{*listening_.at} : places_for(job);
    if (!places) return places.error();
    const SignalBlock blocked;
    const auto notice = [limit = std::make_shared<NoticeLimit>()](NoticeKind kind,
                                                                  const std::string& line) {
      const auto level = kind == NoticeKind::kJob ? MERCURY_LOG_INFO : MERCURY_LOG_WARNING;
      limit->pass(kind, line, monotonic_ns(),
                  [level](const std::string& passed) { log_line(level, passed); });
    };
    const auto create = [&](const Endpoint& place) {
      return EmbeddedHost::create(place, listening_.bytes_per_second, notice);
    };
    Result<std::unique_ptr<EmbeddedHost>> host = create(places->front());
    for (size_t i = 1; !host && is_elsewhere(host.error()) && i < places->size(); ++i) {
      host = create((*places)[i]);
    }
    if (!host) return host.error();
    host_ = std::move(*host);
    log_line(MERCURY_LOG_INFO, "an engine of this program listens at " +
                                   host_->port_info().local.to_string() + " over io_uring");
    host_->post(
        [this](JobManager&, uint64_t) { host_->send(command::AttachChannel{&engine_end_}); });
    return {};
  }

  // Runs `task` on the control thread; it calls `answer` once, then or later.
  template <class T, class Task>
  std::future<T> begin(Task task) {
    auto promise = std::make_shared<std::promise<T>>();
    std::future<T> future = promise->get_future();
    host_->post([task = std::move(task), promise](JobManager& jobs, uint64_t now_ns) mutable {
      task(jobs, now_ns, [promise](T value) { promise->set_value(std::move(value)); });
    });
    return future;
  }
  template <class T, class Task>
  T ask(Task task) {
    return begin<T>(std::move(task)).get();
  }

  EngineChannel engine_end_;
  std::vector<std::unique_ptr<ClientChannel>> channels_;
  const Listening listening_;
  // On the control thread.
  bool gone_ = false;                                    // it knows of left_
  std::map<uint16_t, uint32_t> numbers_;                 // of the open jobs, by slot
  std::mutex mutex_;                                     // guards what follows
  bool left_ = false;                                    // leave() has begun
  std::unique_ptr<EmbeddedHost> host_;                   // set once, by the first job
  std::map<uint32_t, std::shared_future<Status>> ends_;  // by the job's number: how it ends
};

}  // namespace

Result<std::unique_ptr<Backend>> make_embedded_backend(const std::string& listen,
                                                       const std::string& rate) {
  Listening listening;
  if (!listen.empty()) {
    Result<Endpoint> parsed = Endpoint::parse(listen);
    if (!parsed) return Error(parsed.error().code, "listen: " + parsed.error().message);
    listening.at = *parsed;
  }
  if (!rate.empty()) {
    Result<uint64_t> parsed = parse_bits_per_second(rate);
    if (!parsed) return Error(parsed.error().code, "rate: " + parsed.error().message);
    if (*parsed != 0 && *parsed < kLeastRate) {
      return Error(Errc::kInvalidArgument, "rate: expected " + print_bits_per_second(kLeastRate) +
                                               " or more, or 0, got \"" + rate + "\"");
    }
    listening.bytes_per_second = *parsed / kBitsPerByte;
  }
  Result<std::shared_ptr<ChannelMemory>> memory = ChannelMemory::create(ChannelGeometry{}, false);
  if (!memory) return memory.error();
  return std::unique_ptr<Backend>(std::make_unique<EmbeddedBackend>(std::move(*memory), listening));
}

}  // namespace mercury::client
