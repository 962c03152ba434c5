// Two devices of one process, for tests; over net_ring: no root, no hugepages, time as the test
// says.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/port/ethdev/ethdev_port.h"

namespace mercury::ethdev {

inline constexpr uint64_t kMs = 1'000'000;
inline constexpr uint64_t kRate = 1'250'000'000;  // bytes per second, said and not kept

// A device with its engines' ports, numbered host `number`.
struct Side {
  std::shared_ptr<Device> device;
  std::vector<Counters> counters;
  std::vector<std::unique_ptr<EthdevPort>> ports;

  Side(const std::string& ring, uint8_t number, uint16_t engines, uint16_t queues,
       uint16_t vlan = 0, const std::string& classes = "", uint16_t source_ports = 1)
      : Side(on_ring(ring, engines, queues, vlan, classes, source_ports), number) {}
  Side(EthdevConfig config, uint8_t number) : counters(config.engines) {
    config.hugepages = Hugepages::kNever;
    config.memory_mb = 512;
    config.v4 = LocalAddress{IpAddress::v4(10, 0, 0, number), 24, {}};
    config.v6 = LocalAddress{*IpAddress::parse("fd00::" + std::to_string(number)), 64, {}};
    auto created = Device::create(config);
    EXPECT_TRUE(created) << (created ? "" : created.error().message);
    if (!created) return;
    device = *created;
    for (uint16_t engine = 0; engine < config.engines; ++engine) {
      ports.push_back(std::move(*EthdevPort::open(device, engine, counters[engine])));
    }
  }
  static EthdevConfig on_ring(const std::string& ring, uint16_t engines, uint16_t queues,
                              uint16_t vlan, const std::string& classes, uint16_t source_ports) {
    EthdevConfig config;
    config.kind = DeviceKind::kRing;
    config.device = ring;
    config.engines = engines;
    config.queues = queues;
    config.mtu = 1500;
    config.link_bytes_per_second = kRate;
    config.vlan = vlan;
    config.source_ports = source_ports;
    config.classes = *TrafficClasses::parse(classes);
    return config;
  }
  Endpoint v4(uint16_t engine = 0) const {
    return {device->local().v4, static_cast<uint16_t>(7470 + engine)};
  }
  Endpoint v6(uint16_t engine = 0) const {
    return {device->local().v6, static_cast<uint16_t>(7470 + engine)};
  }
  uint64_t count(Counter counter) const {
    uint64_t total = 0;
    for (const Counters& each : counters) total += each.get(counter);
    return total;
  }
};

class RingPort : public testing::Test {
 protected:
  void open(uint16_t engines, uint16_t queues, uint16_t source_ports = 1) {
    static int number = 0;
    const std::string ring = "test" + std::to_string(number++);
    a_.emplace(ring, uint8_t{1}, engines, queues, uint16_t{0}, "", source_ports);
    b_.emplace(ring, uint8_t{2}, engines, queues);
    ASSERT_TRUE(a_->device && b_->device);
  }
  // One pass of every engine but `except`; received payloads are appended to `seen_`.
  void pass(const EthdevPort* except = nullptr) {
    now_ += kMs;
    for (Side* side : {&*a_, &*b_}) {
      for (auto& port : side->ports) {
        if (port.get() != except) drive(*port);
      }
    }
  }
  void drive(EthdevPort& port) {
    RxFrame burst[64];
    const uint32_t count = port.rx_burst(burst, now_);
    for (const RxFrame& frame : std::span(burst, count)) {
      const auto* text = reinterpret_cast<const char*>(frame.payload.data());
      seen_.emplace_back(text, frame.payload.size());
      sources_.push_back(frame.source);
    }
    port.rx_release();
    port.tick(now_);
    port.tx_flush(now_);
  }
  PathId ready_path(EthdevPort& port, const Endpoint& to) {
    const auto path = port.open_path(to);
    EXPECT_TRUE(path) << (path ? "" : path.error().message);
    for (int i = 0; i < 20 && !port.path_ready(*path); ++i) pass();
    EXPECT_TRUE(port.path_ready(*path));
    return *path;
  }
  static bool send(EthdevPort& port, PathId path, const std::string& text) {
    TxFrame frame;
    if (!port.tx_alloc(frame)) return false;
    std::memcpy(frame.data, text.data(), text.size());
    port.tx_send(frame, path, static_cast<uint32_t>(text.size()));
    return true;
  }

  std::optional<Side> a_;
  std::optional<Side> b_;
  uint64_t now_ = 1000 * kMs;
  std::vector<std::string> seen_;
  std::vector<Endpoint> sources_;
};

}  // namespace mercury::ethdev
