// Several jobs on one simulated network, whose workers meet in the engines of the same servers: to
// see what one does to another. Hosts may lie about what they have received (MeanPort).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shim/host/sim/job_calls.h"
#include "tests/shim/sim_cluster.h"
#include "transport/port/port_decorator.h"
#include "transport/wire/ack.h"
#include "transport/wire/crc32c.h"

namespace mercury {

// Once it is mean it acknowledges one packet in each ACK, the oldest: nothing seems lost, the peer
// seems to live, and nearly all that it sent stays in flight. It grants as much as there is.
class MeanPort : public PortDecorator<sim::SimPort> {
 public:
  using PortDecorator::PortDecorator;
  void tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept {
    PortDecorator::tx_send(frame, path, acknowledged(frame, bytes));
  }
  bool mean = false;

 private:
  uint32_t acknowledged(TxFrame& frame, uint32_t bytes) {
    wire::Header header;
    std::span<const std::byte> payload;
    wire::Ack ack;
    if (wire::decode({frame.data, bytes}, header, payload) != wire::DecodeError::kNone ||
        header.type != wire::FrameType::kAck || !wire::decode(payload, ack)) {
      return bytes;
    }
    uint64_t& acked = acked_[header.session];
    if (!mean) {
      acked = ack.ranges[0].last;
      return bytes;
    }
    const uint32_t tag = header.payload_crc ^ wire::crc32c(payload);
    acked = std::min(acked + 1, ack.ranges[0].last);
    ack.count = 1;
    ack.ranges[0] = {acked, acked};
    header.grant = header.idle_grant = 0;
    const size_t head = wire::header_bytes(header.type);
    const std::span<std::byte> body(frame.data + head, frame.capacity - head);
    header.payload_bytes = static_cast<uint16_t>(wire::encode(ack, body));
    header.payload_crc = wire::crc32c(body.first(header.payload_bytes)) ^ tag;
    wire::encode(header, frame.data);
    return static_cast<uint32_t>(head) + header.payload_bytes;
  }

  std::map<uint32_t, uint64_t> acked_;  // by session: the newest that was acknowledged
};

class TenantsLab {
 public:
  using Host = sim::VirtualHost<MeanPort>;

  struct Tenant {
    OpenJob job;
    std::vector<uint32_t> hosts;
    std::vector<std::unique_ptr<SimProgram>> programs;
    uint64_t cookie = 0;  // of what was submitted last
    uint64_t rounds = 0;  // that are over, of a tenant that goes on by itself
    bool goes_on = false;
    ClientId client = 0;

    bool done() const {
      for (const auto& program : programs) {
        if (!program->done(cookie)) return false;
      }
      return true;
    }
    bool succeeded() const {
      for (const auto& program : programs) {
        if (!program->done(cookie) || program->status(cookie) != Errc::kOk) return false;
      }
      return true;
    }
  };

  // A server, which is host 0. `policy` is all hosts', but that no other one serves.
  TenantsLab(const LaneConfig& lane, const sim::LinkConfig& link, const JobPolicy& policy = {})
      : lane_(lane), policy_(policy), cluster(config(link)) {
    cluster.after_round = [this](uint32_t) {
      for (auto& tenant : tenants_) attend(*tenant);
      return true;
    };
    (void)add_host(true);
  }

  uint32_t add_host(bool serve = false) {
    sim::VirtualHostConfig host;
    host.host.lane = lane_;
    host.host.policy = policy_;
    host.host.policy.serve = serve;
    const uint32_t index = cluster.add_host(host, [this](std::unique_ptr<sim::SimPort> port) {
      auto made = std::make_unique<MeanPort>(std::move(port));
      ports_.push_back(made.get());
      return made;
    });
    EXPECT_TRUE(cluster.start(index).ok());
    return index;
  }

  // A job of a program on each of `hosts`, with these tensors. Null, with a failure: it did not
  // open.
  Tenant* open(const std::string& name, const JobTerms& terms, std::vector<uint32_t> hosts,
               std::vector<TensorDeclaration> tensors, uint32_t server = 0) {
    auto tenant = std::make_unique<Tenant>();
    tenant->hosts = std::move(hosts);
    tenant->job.name = name;
    tenant->job.terms = terms;
    tenant->job.workers = static_cast<uint16_t>(tenant->hosts.size());
    tenant->job.servers = 1;
    tenant->job.rendezvous = {cluster[server].endpoint(0)};
    const ClientId client = tenant->client = tenants_.size() + 1;
    sim::JobCalls<Host> calls(cluster);
    for (const uint32_t host : tenant->hosts) {
      SimProgram* program = tenant->programs.emplace_back(std::make_unique<SimProgram>()).get();
      program->add_channel();
      OpenJob job = tenant->job;
      job.channels = program->engine_ends();
      job.client_job = 1;
      calls.open(host, client, job,
                 [program](const OpenedJob& opened) { program->slot = opened.slot; });
    }
    const Status opened = calls.wait(cluster.now_ns() + kLimitNs);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    if (!opened) return nullptr;
    for (size_t i = 0; i < tenant->hosts.size(); ++i) {
      for (TensorDeclaration& tensor : tensors) {
        auto& memory = tenant->programs[i]->memory(tensor.tensor.value);
        memory.assign(tensor.numel * size_of(tensor.dtype), std::byte{0});
        tensor.data = memory.data();
      }
      calls.declare(tenant->hosts[i], client, tenant->programs[i]->slot, tensors);
    }
    const Status declared = calls.wait(cluster.now_ns() + kLimitNs);
    EXPECT_TRUE(declared.ok()) << declared.error().message;
    if (!declared) return nullptr;
    return tenants_.emplace_back(std::move(tenant)).get();
  }

  // A round of one tensor.
  void push(Tenant& tenant, uint32_t tensor) {
    ++tenant.cookie;
    for (size_t i = 0; i < tenant.hosts.size(); ++i) {
      tenant.programs[i]->submit(SubmitOp::kPushPull, tensor, 0, tenant.cookie);
      cluster.wake(tenant.hosts[i]);
    }
  }
  // A round of each of the first `tensors`, as fast as the rings take them.
  bool push_all(Tenant& tenant, uint32_t tensors) {
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      push(tenant, tensor);
      if (tensor % 128 == 127) run_for(1'000'000);
    }
    return cluster.run([&] { return tenant.done(); }, cluster.now_ns() + kLimitNs);
  }
  // Its programs end, and the server knows of no such job any more.
  bool end(Tenant& tenant) {
    size_t gone = 0;
    for (const uint32_t host : tenant.hosts) {
      cluster[host].host().jobs().client_gone(tenant.client, cluster.now_ns(), [&gone] { ++gone; });
      cluster.called(host);
    }
    const uint32_t before = cluster[0].lane(0).exchange().usage().jobs;
    return cluster.run(
        [&] {
          return gone == tenant.hosts.size() && cluster[0].lane(0).exchange().usage().jobs < before;
        },
        cluster.now_ns() + kLimitNs);
  }
  // Round after round of tensor 0, from now on.
  void go_on(Tenant& tenant) {
    tenant.goes_on = true;
    push(tenant, 0);
  }
  void run_for(uint64_t ns) {
    const uint64_t end_ns = cluster.now_ns() + ns;
    (void)cluster.run([] { return false; }, end_ns);
    cluster.network().advance_to(end_ns);
  }
  MeanPort& port(uint32_t host) { return *ports_[host]; }

 private:
  static constexpr uint64_t kLimitNs = 20'000'000'000;

  static sim::VirtualClusterConfig config(const sim::LinkConfig& link) {
    auto config = sim::VirtualClusterConfig::seeded(1, sim::Look::kWokenByNumber);
    config.network.host_link = link;
    config.least_pause_ns = 1000;
    return config;
  }
  void attend(Tenant& tenant) {
    for (auto& program : tenant.programs) program->collect();
    if (!tenant.goes_on || !tenant.succeeded()) return;
    ++tenant.rounds;
    push(tenant, 0);
  }

  const LaneConfig lane_;
  const JobPolicy policy_;
  std::vector<MeanPort*> ports_;  // by host
  std::vector<std::unique_ptr<Tenant>> tenants_;

 public:
  sim::VirtualCluster<Host> cluster;  // before the programs' memory goes
};

}  // namespace mercury
