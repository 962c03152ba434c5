// One job of two workers on a fuzzed cluster: its programs, their tensors, their rounds.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shim/channel/channel.h"
#include "tests/fuzz/cluster.h"

namespace mercury::fuzz {

class TwoWorkerJob {
 public:
  // Its programs are clients `first_client` and the next of their hosts.
  TwoWorkerJob(Cluster& cluster, std::string name, std::string secret, ClientId first_client)
      : cluster_(cluster),
        name_(std::move(name)),
        secret_(std::move(secret)),
        first_client_(first_client) {}

  // `options`: what of a request is neither the job's name nor a worker's own.
  void open(std::array<size_t, 2> hosts, size_t server, const OpenJob& options = {}) {
    options_ = options;
    options_.name = name_;
    options_.secret = secret_;
    options_.workers = 2;
    options_.servers = 1;
    options_.rendezvous = {cluster_.address(server)};
    options_.client_job = kClientJob;
    for (size_t i = 0; i < hosts.size(); ++i) {
      workers_[i].host = hosts[i];
      ask(i);
    }
    must(
        cluster_.run([this] { return workers_[0].answered && workers_[1].answered; }, 30 * kSecond),
        "a job does not open");
  }
  // A program's next life, where the last one has gone.
  void reopen(size_t index) {
    WorkerProgram& worker = workers_[index];
    if (!worker.gone) return;
    past_.push_back(std::move(worker.channel));  // its engine may use it until it has read Detach
    const size_t host = worker.host;
    const uint64_t lives = worker.lives + 1;
    worker = {};
    worker.host = host;
    worker.lives = lives;
    ask(index);
  }

  // 32-bit integers; tensors that exist already stay as they are.
  void declare(uint32_t tensor, uint32_t numel) {
    for (size_t i = 0; i < workers_.size(); ++i) {
      WorkerProgram& worker = workers_[i];
      if (!worker.open || worker.leaving || worker.tensors.count(tensor) > 0 || numel == 0)
        continue;
      numel = sizes_.try_emplace(tensor, numel).first->second;  // as the other worker has it
      std::vector<int32_t>& values = worker.tensors[tensor];
      values.resize(numel);
      TensorDeclaration declaration;
      declaration.tensor = TensorId(tensor);
      declaration.numel = numel;
      declaration.dtype = Dtype::kI32;
      declaration.priority = static_cast<uint16_t>(tensor);
      declaration.data = reinterpret_cast<std::byte*>(values.data());
      ++asked_;
      host_of(worker).jobs().declare(id_of(i), worker.slot, {declaration}, cluster_.now_ns(),
                                     [this](Status) { --asked_; });
    }
  }
  bool settle(uint64_t limit_ns) {
    return cluster_.run([this] { return asked_ == 0; }, limit_ns);
  }
  bool healthy() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const WorkerProgram& w) { return w.open; });
  }

  // Push-pull of every tensor on both workers. Every later collect() checks what has arrived.
  void begin_round() {
    ++round_;
    for (size_t i = 0; i < workers_.size(); ++i) {
      for (auto& [tensor, values] : workers_[i].tensors) {
        for (size_t e = 0; e < values.size(); ++e) values[e] = element(i, tensor, e);
        ++workers_[i].waiting;
        must(workers_[i].channel->client.submit({SubmitOp::kPushPull, static_cast<uint16_t>(tensor),
                                                 kClientJob, TensorId(tensor), round_}),
             "an innocent program's ring is full");
      }
    }
    checking_ = true;
  }
  bool round_done() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const WorkerProgram& w) { return w.waiting == 0; });
  }
  void submit(size_t worker, uint32_t tensor, uint8_t op, uint8_t priority) {
    if (workers_[worker].gone) return;
    (void)workers_[worker].channel->client.submit(
        {static_cast<SubmitOp>(1 + op % 3), priority, kClientJob, TensorId(tensor), 0});
  }
  void collect() {
    for (WorkerProgram& worker : workers_) {
      Completion completion;
      while (!worker.gone && worker.channel && worker.channel->client.pop(completion)) {
        if (checking_) check(worker, completion);
      }
    }
  }

  // Leaves in order, or as a program that has died.
  void leave(size_t index, bool died) {
    WorkerProgram& worker = workers_[index];
    if (worker.leaving) return;
    worker.leaving = true;
    const auto then = [this, &worker, index] {
      host_of(worker).jobs().client_gone(id_of(index), cluster_.now_ns(), [this, &worker] {
        worker.gone = true;  // nobody uses its memory any more
        host_of(worker).send(LaneId(0), command::DetachChannel{&worker.channel->engine});
      });
    };
    if (died || !worker.open) return then();
    host_of(worker).jobs().close_job(id_of(index), worker.slot, cluster_.now_ns(), then);
  }
  bool left() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const WorkerProgram& w) { return w.gone; });
  }

 private:
  static constexpr uint32_t kClientJob = 1;
  struct ChannelEnds {
    std::shared_ptr<ChannelMemory> memory = *ChannelMemory::create({64, 128}, false);
    EngineChannel engine{memory};
    ClientChannel client{memory};
  };
  struct WorkerProgram {
    size_t host = 0;
    uint64_t lives = 0;  // before this one
    std::unique_ptr<ChannelEnds> channel;
    std::map<uint32_t, std::vector<int32_t>> tensors;
    JobSlot slot;
    size_t waiting = 0;
    bool answered = false;
    bool open = false;
    bool leaving = false;
    bool gone = false;
  };

  FuzzHost& host_of(const WorkerProgram& worker) { return cluster_.host(worker.host); }
  ClientId id_of(size_t worker) const {
    return first_client_ + worker + 100 * workers_[worker].lives;
  }
  void ask(size_t index) {
    WorkerProgram& worker = workers_[index];
    worker.channel = std::make_unique<ChannelEnds>();
    OpenJob request = options_;
    request.rank = static_cast<int>(index);
    request.channels = {&worker.channel->engine};
    host_of(worker).send(LaneId(0), command::AttachChannel{&worker.channel->engine});
    host_of(worker).jobs().open_job(id_of(index), request, cluster_.now_ns(),
                                    [&worker, life = worker.lives](Result<OpenedJob> opened) {
                                      if (worker.lives != life) return;
                                      worker.answered = true;
                                      worker.open = opened.has_value();
                                      if (opened) worker.slot = opened->slot;
                                    });
  }
  int32_t element(size_t worker, uint32_t tensor, size_t i) const {
    const uint64_t x = (worker + 3) * 7919 + tensor * 104'729 + round_ * 611'953 + i * 31;
    return static_cast<int32_t>(x % 1'000'003) - 500'000;
  }
  void check(WorkerProgram& worker, const Completion& completion) {
    must(completion.cookie == round_ && completion.status == Errc::kOk,
         "an innocent operation fails");
    must(worker.waiting > 0, "an innocent operation ends twice");
    --worker.waiting;
    const std::vector<int32_t>& values = worker.tensors.at(completion.tensor.value);
    for (size_t e = 0; e < values.size(); ++e) {
      must(values[e] ==
               element(0, completion.tensor.value, e) + element(1, completion.tensor.value, e),
           "an innocent sum is wrong");
    }
  }

  Cluster& cluster_;
  const std::string name_;
  const std::string secret_;
  const ClientId first_client_;
  OpenJob options_;
  std::array<WorkerProgram, 2> workers_;
  std::vector<std::unique_ptr<ChannelEnds>> past_;
  std::map<uint32_t, uint32_t> sizes_;  // elements by tensor
  size_t asked_ = 0;
  uint64_t round_ = 0;
  bool checking_ = false;
};

}  // namespace mercury::fuzz
