// A daemon for the client's tests: the real attach messages, descriptors, regions and channels, and
// engines that pretend that every worker of the job pushed what this one did. One thread.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shim/channel/attach.h"
#include "shim/channel/channel.h"
#include "shim/channel/region.h"
#include "shim/channel/seqpacket.h"
#include "tests/shim/client_tensor.h"

namespace mercury::testing {

class TestDaemon {
 public:
  struct Options {
    uint32_t engines = 2;
    uint32_t features = kKnowsReductions | kKnowsParts | kKnowsScatters;
    ChannelGeometry geometry;
    uint64_t max_region_bytes = uint64_t{1} << 30;
    uint32_t minor = attach::kAbiMinor;
    attach::Reply greeting = attach::Ok{};  // anything but Ok instead of HelloOk
    attach::Reply opening = attach::Ok{};   // anything but Ok instead of JobOpened
    bool opens = true;                      // false: members are missing, for ever
    bool declares = true;                   // false: servers do not answer
  };
  TestDaemon() : TestDaemon(Options()) {}
  explicit TestDaemon(Options options) : options_(std::move(options)) {
    char folder[] = "/tmp/mercury-client-XXXXXX";
    folder_ = ::mkdtemp(folder);
    auto listener = attach::listen_socket(path());
    if (listener) listener_ = std::move(*listener);
    wake_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    thread_ = std::thread([this] { run(); });
  }
  ~TestDaemon() {
    kill();
    std::filesystem::remove_all(folder_);
  }

  std::string path() const { return folder_ + "/stackd.sock"; }
  // Ends as a daemon that is killed does: every descriptor closes at once.
  void kill() {
    if (!thread_.joinable()) return;
    post([this] { stopping_ = true; });
    thread_.join();
    listener_.reset();
    clients_.clear();
  }
  // Runs f on the daemon's thread and waits for it.
  void sync(std::function<void()> f) {
    std::promise<void> done;
    post([&] {
      f();
      done.set_value();
    });
    done.get_future().wait();
  }
  // Operations stay in flight while held.
  void hold(bool on) {
    sync([this, on] { holding_ = on; });
  }
  // Programs can send nothing any more, and are not told that it ends: they read on.
  void stop_reading() {
    sync([this] {
      deaf_ = true;
      for (const auto& client : clients_) ::shutdown(client->socket.get(), SHUT_RD);
    });
  }
  // Whoever asks whether it runs is not answered.
  void say_nothing() {
    sync([this] { mute_ = true; });
  }
  // Regions are sealed, but their programs are not told before this is over.
  void hold_regions(bool on) { hold(on, holding_regions_, held_regions_); }
  // What was asked is not answered before this is over.
  void hold_opens(bool on) { hold(on, holding_opens_, held_opens_); }
  void hold_closes(bool on) { hold(on, holding_closes_, held_closes_); }
  // All later completions carry `code`, and JOB_STATUS and JOB_WAIT `text`; waiting ones at once.
  void fail_jobs(Errc code, const std::string& text) {
    sync([=, this] {
      failure_ = {code, text};
      answer_waits(failure_);
    });
  }
  void end_jobs() {
    sync([this] { answer_waits(attach::Ok{}); });
  }
  size_t clients() {
    size_t n = 0;
    sync([&] { n = clients_.size(); });
    return n;
  }
  size_t regions() {
    size_t n = 0;
    sync([&] {
      for (const auto& client : clients_) n += client->regions.size();
    });
    return n;
  }
  // Requests that came.
  int opens() { return read(opens_); }
  int closes() { return read(closes_); }
  int declarations() { return read(declarations_); }
  int waits() { return read(waits_); }
  int questions() { return read(questions_); }  // whether it runs
  attach::JobOpen last_job() {
    attach::JobOpen job;
    sync([&] { job = last_job_; });
    return job;
  }
  std::vector<uint16_t> priorities() {
    std::vector<uint16_t> out;
    sync([&] { out = priorities_; });
    return out;
  }

 private:
  struct ClientJob {
    attach::JobOpen open;
    uint32_t wait_sequence = 0;
    std::vector<uint32_t> declarations;  // without an answer
    std::map<uint32_t, ClientTensor> tensors;
  };
  struct Client {
    UniqueFd socket;
    std::vector<std::unique_ptr<EngineChannel>> engines;
    std::vector<std::vector<Completion>> refused;  // per engine: the ring was full
    std::map<uint32_t, std::unique_ptr<Region>> regions;
    std::map<uint16_t, ClientJob> jobs;
    bool gone = false;
  };

  int read(const int& count) {
    int n = 0;
    sync([&] { n = count; });
    return n;
  }
  struct Held {
    Client* client;
    uint32_t sequence;
    attach::Reply answer;
  };
  void hold(bool on, bool& holding, std::vector<Held>& held) {
    sync([&, on] {
      holding = on;
      for (const Held& one : held) {
        for (const auto& client : clients_) {
          if (client.get() == one.client) reply(*client, one.sequence, one.answer);
        }
      }
      held.clear();
    });
  }

  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    ::eventfd_write(wake_.get(), 1);
  }
  void run_tasks() {
    eventfd_t value;
    ::eventfd_read(wake_.get(), &value);
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex_);
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
  }

  void run() {
    while (!stopping_) {
      std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      bool may_sleep = true;
      for (const auto& client : clients_) {
        fds.push_back({client->socket.get(), POLLIN, 0});
        if (holding_) continue;
        for (const auto& engine : client->engines) {
          may_sleep = engine->park() && may_sleep;
          fds.push_back({engine->engine_doorbell(), POLLIN, 0});
        }
      }
      ::poll(fds.data(), fds.size(), may_sleep ? -1 : 0);
      run_tasks();
      if (stopping_) break;
      if ((fds[0].revents & POLLIN) != 0) accept();
      for (const auto& client : clients_) {
        if (!holding_) serve_rings(*client);
        if (!deaf_) serve_socket(*client);
      }
      std::erase_if(clients_, [](const auto& client) { return client->gone; });
    }
  }

  void accept() {
    auto client = std::make_unique<Client>();
    client->socket.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client->socket) clients_.push_back(std::move(client));
  }

  static void reply(Client& client, uint32_t sequence, attach::Reply body,
                    const std::vector<int>& fds = {}) {
    const auto bytes = attach::encode(attach::ReplyMessage{sequence, std::move(body)});
    (void)attach::send_packet(client.socket.get(), bytes, fds, attach::Wait::kNo);
  }
  void answer_waits(const attach::Reply& with) {
    for (const auto& client : clients_) {
      for (auto& [slot, job] : client->jobs) {
        if (job.wait_sequence != 0) reply(*client, job.wait_sequence, with);
        job.wait_sequence = 0;
      }
    }
  }

  void serve_socket(Client& client) {
    for (;;) {
      auto packet = attach::receive_packet(client.socket.get(), 0, attach::Wait::kNo);
      if (!packet && packet.error().code == Errc::kAgain) return;
      auto request = packet ? attach::decode_request(packet->bytes)
                            : Result<attach::RequestMessage>(packet.error());
      if (!request) {
        client.gone = true;
        return;
      }
      std::visit([&](auto& body) { serve(client, request->sequence, body, *packet); },
                 request->body);
    }
  }

  void serve(Client& client, uint32_t sequence, const attach::Hello& hello, attach::Packet&) {
    if (Status s = attach::check_hello(hello); !s) {
      return reply(client, sequence, attach::Failed{s.error().code, s.error().message});
    }
    if (!std::holds_alternative<attach::Ok>(options_.greeting)) {
      return reply(client, sequence, options_.greeting);
    }
    std::vector<int> fds;
    for (uint32_t i = 0; i < options_.engines; ++i) {
      auto memory = ChannelMemory::create(options_.geometry, true);
      for (const int fd : (*memory)->program_descriptors()) fds.push_back(fd);
      client.engines.push_back(std::make_unique<EngineChannel>(*memory));
    }
    client.refused.resize(options_.engines);
    reply(client, sequence, attach::HelloOk{options_.engines, "test", 1, options_.minor}, fds);
  }
  void serve(Client& client, uint32_t sequence, const attach::RegionAdd& m, attach::Packet&) {
    if (m.bytes > options_.max_region_bytes) {
      return reply(client, sequence, attach::Failed{Errc::kLimit, "larger than may be"});
    }
    std::unique_ptr<Region>& region = client.regions[m.region];
    region = std::move(*Region::create(m.bytes));
    reply(client, sequence, attach::Ok{}, {region->fd()});
  }
  void serve(Client& client, uint32_t sequence, const attach::RegionSealed& m, attach::Packet&) {
    if (!client.regions[m.region]->check_sealed()) return;
    client.regions[m.region]->drop_fd();
    if (holding_regions_) {
      held_regions_.push_back({&client, sequence, attach::Ok{}});
      return;
    }
    reply(client, sequence, attach::Ok{});
  }
  void serve(Client& client, uint32_t sequence, const attach::RegionDel& m, attach::Packet&) {
    client.regions.erase(m.region);
    reply(client, sequence, attach::Ok{});
  }
  void serve(Client& client, uint32_t sequence, const attach::JobOpen& m, attach::Packet&) {
    last_job_ = m;
    ++opens_;
    if (!options_.opens) return;
    if (!std::holds_alternative<attach::Ok>(options_.opening)) {
      return reply(client, sequence, options_.opening);
    }
    const auto slot = static_cast<uint16_t>(next_slot_++);
    client.jobs[slot].open = m;
    const auto rank = static_cast<uint16_t>(std::max(m.rank, 0));
    const attach::JobOpened opened{slot, rank, m.workers, m.servers, 1400, options_.features};
    if (holding_opens_) {
      held_opens_.push_back({&client, sequence, opened});
      return;
    }
    reply(client, sequence, opened);
  }
  void serve(Client& client, uint32_t sequence, const attach::Declare& m, attach::Packet&) {
    ++declarations_;
    if (!options_.declares) {
      client.jobs[m.slot].declarations.push_back(sequence);
      return;
    }
    for (const attach::DeclaredTensor& t : m.tensors) {
      const auto region = client.regions.find(t.region);
      std::byte* data = region == client.regions.end()
                            ? nullptr
                            : region->second->resolve(t.offset_bytes, t.numel * size_of(t.dtype));
      if (!data) {
        return reply(client, sequence, attach::Failed{Errc::kInvalidArgument, "no such memory"});
      }
      client.jobs[m.slot].tensors[t.id.value] = {t, data, std::vector<uint32_t>(options_.engines)};
    }
    reply(client, sequence, attach::Ok{});
  }
  void serve(Client& client, uint32_t sequence, const attach::JobClose& m, attach::Packet&) {
    for (const uint32_t declaration : client.jobs[m.slot].declarations) {
      reply(client, declaration, attach::Failed{Errc::kClosed, "the job was closed"});
    }
    client.jobs.erase(m.slot);
    ++closes_;
    if (holding_closes_) {
      held_closes_.push_back({&client, sequence, attach::Ok{}});
      return;
    }
    reply(client, sequence, attach::Ok{});
  }
  void serve(Client& client, uint32_t sequence, const attach::JobWait& m, attach::Packet&) {
    client.jobs[m.slot].wait_sequence = sequence;
    ++waits_;
  }
  void serve(Client& client, uint32_t sequence, const attach::JobStatus& m, attach::Packet&) {
    questions_ += m.slot == attach::kNoSlot;
    if (mute_) return;
    if (failure_.code == Errc::kOk) return reply(client, sequence, attach::Ok{});
    reply(client, sequence, failure_);
  }

  void serve(Client& client, uint32_t sequence, const attach::SetPolicy&, attach::Packet&) {
    reply(client, sequence, attach::Ok{});
  }

  void serve_rings(Client& client) {
    for (size_t e = 0; e < client.engines.size(); ++e) {
      EngineChannel& engine = *client.engines[e];
      engine.unpark();
      auto& refused = client.refused[e];
      while (!refused.empty() && engine.complete(refused.front())) refused.erase(refused.begin());
      Submission in;
      while (engine.pop(in) == EngineChannel::Pop::kOne) {
        const Completion done = execute(client, e, in);
        if (!refused.empty() || !engine.complete(done)) refused.push_back(done);
      }
      engine.ring();
    }
  }
  Completion execute(Client& client, size_t engine, const Submission& in) {
    if (engine == 0) priorities_.push_back(in.priority);
    Completion done{in.cookie, failure_.code, in.job, in.tensor, 0};
    for (auto& [slot, job] : client.jobs) {
      const auto tensor = job.tensors.find(in.tensor.value);
      if (job.open.client_job != in.job || tensor == job.tensors.end()) continue;
      uint32_t& round = tensor->second.rounds[engine];
      if (in.op != SubmitOp::kPull) {
        ++round;
        if (done.status == Errc::kOk) tensor->second.add_all_workers(engine, job.open.workers);
      }
      done.round = Round(round);
      return done;
    }
    done.status = Errc::kNotFound;
    return done;
  }

  const Options options_;
  std::string folder_;
  UniqueFd listener_;
  UniqueFd wake_;
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;
  // On the daemon's thread.
  bool stopping_ = false, holding_ = false, deaf_ = false, mute_ = false;
  bool holding_regions_ = false, holding_opens_ = false, holding_closes_ = false;
  std::vector<Held> held_regions_, held_opens_, held_closes_;
  attach::Failed failure_{Errc::kOk, ""};
  attach::JobOpen last_job_;
  std::vector<uint16_t> priorities_;
  int opens_ = 0, closes_ = 0, questions_ = 0;
  int declarations_ = 0;
  int waits_ = 0;
  uint32_t next_slot_ = 0;
  std::vector<std::unique_ptr<Client>> clients_;
  std::thread thread_;
};

}  // namespace mercury::testing
