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

class Job {
 public:
  // Its programs are clients `first_client` and the next of their hosts.
  Job(Cluster& cluster, std::string name, std::string secret, ClientId first_client)
      : cluster_(cluster),
        name_(std::move(name)),
        secret_(std::move(secret)),
        first_client_(first_client) {}

  // Asks; settle() waits.
  void open(std::array<size_t, 2> hosts, size_t server) {
    for (size_t i = 0; i < hosts.size(); ++i) {
      Worker& worker = workers_[i];
      worker.host = hosts[i];
      worker.memory = *ChannelMemory::create({64, 128}, false);
      worker.engine = std::make_unique<EngineChannel>(worker.memory);
      worker.client = std::make_unique<ClientChannel>(worker.memory);
      OpenJob request;
      request.name = name_;
      request.secret = secret_;
      request.rank = static_cast<int>(i);
      request.workers = 2;
      request.servers = 1;
      request.rendezvous = {cluster_.address(server)};
      request.channels = {worker.engine.get()};
      request.client_job = kClientJob;
      host_of(worker).send(LaneId(0), command::AttachChannel{worker.engine.get()});
      ++asked_;
      host_of(worker).jobs().open_job(id_of(i), request, cluster_.now_ns(),
                                      [this, &worker](Result<OpenedJob> opened) {
                                        --asked_;
                                        worker.open = opened.has_value();
                                        if (opened) worker.slot = opened->slot;
                                      });
    }
    must(settle(30 * kSecond), "a job does not open");
  }

  // 32-bit integers; tensors that exist already stay as they are.
  void declare(uint32_t tensor, uint32_t numel) {
    for (size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      if (!worker.open || worker.gone || worker.tensors.count(tensor) > 0 || numel == 0) continue;
      std::vector<int32_t>& values = worker.tensors[tensor];
      values.resize(numel);
      TensorDeclaration declaration;
      declaration.tensor = tensor;
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
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.open; });
  }

  // Push-pull of every tensor on both workers. Every later collect() checks what has arrived.
  void begin_round() {
    ++round_;
    for (size_t i = 0; i < workers_.size(); ++i) {
      for (auto& [tensor, values] : workers_[i].tensors) {
        for (size_t e = 0; e < values.size(); ++e) values[e] = element(i, tensor, e);
        ++workers_[i].waiting;
        must(workers_[i].client->submit(
                 {SubmitOp::kPushPull, static_cast<uint16_t>(tensor), kClientJob, tensor, round_}),
             "an innocent program's ring is full");
      }
    }
    checking_ = true;
  }
  bool round_done() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const Worker& w) { return w.waiting == 0; });
  }
  void submit(size_t worker, uint32_t tensor, uint8_t op, uint8_t priority) {
    if (workers_[worker].gone) return;
    (void)workers_[worker].client->submit(
        {static_cast<SubmitOp>(1 + op % 3), priority, kClientJob, tensor, 0});
  }
  void collect() {
    for (Worker& worker : workers_) {
      Completion completion;
      while (!worker.gone && worker.client && worker.client->pop(completion)) {
        if (checking_) check(worker, completion);
      }
    }
  }

  // Leaves in order, or as a program that has died.
  void leave(size_t index, bool died) {
    Worker& worker = workers_[index];
    if (worker.leaving) return;
    worker.leaving = true;
    const auto then = [this, &worker, index] {
      host_of(worker).jobs().client_gone(id_of(index), cluster_.now_ns(), [&worker] {
        worker.gone = true;  // nobody uses its memory any more
      });
    };
    if (died) return then();
    host_of(worker).jobs().close_job(id_of(index), worker.slot, cluster_.now_ns(), then);
  }
  bool left() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.gone; });
  }

 private:
  static constexpr uint32_t kClientJob = 1;
  struct Worker {
    size_t host = 0;
    std::shared_ptr<ChannelMemory> memory;
    std::unique_ptr<EngineChannel> engine;
    std::unique_ptr<ClientChannel> client;
    std::map<uint32_t, std::vector<int32_t>> tensors;
    JobSlot slot;
    size_t waiting = 0;
    bool open = false;
    bool leaving = false;
    bool gone = false;
  };

  FuzzHost& host_of(const Worker& worker) { return cluster_.host(worker.host); }
  ClientId id_of(size_t worker) const { return first_client_ + worker; }
  int32_t element(size_t worker, uint32_t tensor, size_t i) const {
    const uint64_t x = (worker + 3) * 7919 + tensor * 104'729 + round_ * 611'953 + i * 31;
    return static_cast<int32_t>(x % 1'000'003) - 500'000;
  }
  void check(Worker& worker, const Completion& completion) {
    must(completion.cookie == round_ && completion.status == Errc::kOk,
         "an innocent operation fails");
    must(worker.waiting > 0, "an innocent operation ends twice");
    --worker.waiting;
    const std::vector<int32_t>& values = worker.tensors.at(completion.tensor);
    for (size_t e = 0; e < values.size(); ++e) {
      must(values[e] == element(0, completion.tensor, e) + element(1, completion.tensor, e),
           "an innocent sum is wrong");
    }
  }

  Cluster& cluster_;
  const std::string name_;
  const std::string secret_;
  const ClientId first_client_;
  std::array<Worker, 2> workers_;
  size_t asked_ = 0;
  uint64_t round_ = 0;
  bool checking_ = false;
};

}  // namespace mercury::fuzz
