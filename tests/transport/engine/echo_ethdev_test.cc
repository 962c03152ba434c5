// The echo service over DPDK ports: net_ring, which needs neither root nor hugepages.
#include "tests/transport/engine/echo_suite.h"
#include "transport/port/ethdev/ethdev_port.h"

namespace mercury::echo {
namespace {

struct RingLab {
  std::string ring = "echo" + std::to_string(next++);
  static inline int next = 0;
  std::vector<std::shared_ptr<ethdev::Device>> devices;

  std::unique_ptr<ethdev::EthdevPort> open(int host, Counters& counters) {
    ethdev::EthdevConfig config;
    config.kind = ethdev::DeviceKind::kRing;
    config.device = ring;
    config.mtu = 1500;
    config.hugepages = ethdev::Hugepages::kNever;
    config.memory_mb = 512;
    config.v4 =
        ethdev::LocalAddress{IpAddress::v4(10, 0, 0, static_cast<uint8_t>(host + 1)), 24, {}};
    auto device = ethdev::Device::create(config);
    EXPECT_TRUE(device) << (device ? "" : device.error().message);
    if (!device) return nullptr;
    devices.push_back(*device);
    auto port = ethdev::EthdevPort::open(*device, 0, counters);
    EXPECT_TRUE(port) << (port ? "" : port.error().message);
    return port ? std::move(*port) : nullptr;
  }
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(EthdevRing, EchoSuite, RingLab);

}  // namespace mercury::echo
