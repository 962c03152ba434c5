#include "transport/port/ethdev/config.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "transport/port/ethdev/checks.h"

namespace mercury::ethdev {
namespace {

EthdevConfig parsed(const char* text) {
  EthdevConfig config;
  EXPECT_TRUE(parse_device(text, config).ok()) << text;
  return config;
}

TEST(ParseDevice, KnowsEveryKind) {
  EXPECT_EQ(parsed("af_xdp:eth1").kind, DeviceKind::kAfXdp);
  EXPECT_EQ(parsed("af_packet:eth1").device, "eth1");
  EXPECT_EQ(parsed("tap:m0").kind, DeviceKind::kTap);
  EXPECT_EQ(parsed("memif:/run/a:b.sock").device, "/run/a:b.sock");
  EXPECT_EQ(parsed("ring:x").kind, DeviceKind::kRing);
  EXPECT_EQ(parsed("0000:03:00.0").kind, DeviceKind::kPci);
  EXPECT_EQ(parsed("03:00.1").device, "0000:03:00.1");
  EXPECT_EQ(parsed("0000:3B:1f.7").device, "0000:3b:1f.7");
  EXPECT_EQ(parsed("10000:01:00.0").device, "10000:01:00.0");  // behind Intel's VMD
}

TEST(DeviceRows, AreFoundByKindAndByName) {
  for (const DeviceRow& row : device_rows()) {
    EXPECT_EQ(&row_of(row.kind), &row);
    const bool bare = row.naming == Naming::kAddress;
    EXPECT_EQ(device_row(row.name), bare ? nullptr : &row) << row.name;
    if (!bare) {
      EXPECT_EQ(parsed((std::string(row.name) + ":x").c_str()).kind, row.kind);
    }
  }
  EXPECT_EQ(device_row("eth0"), nullptr);
}

TEST(ParseDevice, SaysWhatItExpected) {
  for (const char* text : {"", "eth0", "af_xdp:", "af_xdp", "dpdk:eth0", "1.2", "10.0.0.1", "3:0.1",
                           "03:20.0", "03:00.8", "0000:0000:03:00.0", "000:03:00.0"}) {
    EthdevConfig config;
    const Status status = parse_device(text, config);
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.error().message,
              "device \"" + std::string(text) +
                  "\": expected af_xdp:INTERFACE, af_packet:INTERFACE, tap:NAME, memif:PATH, "
                  "ring:NAME or a PCI address such as 0000:03:00.0");
  }
}

TEST(Plan, PacketFramesFillBlocksWithoutGaps) {
  EthdevConfig config = parsed("af_packet:eth0");
  for (uint32_t mtu = 1280; mtu <= 9600; mtu += 13) {
    const BufferPlan plan = plan_buffers(config, mtu, 1);
    EXPECT_EQ(plan.packet_block % 4096, 0u);
    EXPECT_EQ(plan.packet_block % plan.packet_frame, 0u);
    EXPECT_EQ(plan.packet_frame % 16, 0u);
    EXPECT_GE(plan.packet_frame, mtu + 14 + 80);
    EXPECT_GE(plan.data_room - 128, plan.packet_frame - 32);  // the driver's own check
  }
}

TEST(Plan, XdpObjectsAreOnePage) {
  const BufferPlan plan = plan_buffers(parsed("af_xdp:eth0"), 1500, 1);
  EXPECT_EQ(plan.data_room + 128 + 64, 4096u);
}

TEST(Plan, EveryKindHoldsItsLargestFrame) {
  for (const char* text : {"af_xdp:e", "af_packet:e", "tap:e", "memif:e", "ring:e", "03:00.0"}) {
    const EthdevConfig config = parsed(text);
    const uint32_t mtu = config.row().max_mtu;
    const uint32_t kernel = config.row().uses_xdp() ? 256 : 0;
    EXPECT_GE(plan_buffers(config, mtu, 1).data_room, 128 + kernel + mtu + 14 + 4) << text;
  }
}

TEST(VdevArgs, Golden) {
  EthdevConfig config = parsed("af_packet:eth0");
  EXPECT_EQ(vdev_args(config, 1500, 2, plan_buffers(config, 1500, 2), ""),
            "iface=eth0,qpairs=2,blocksz=4096,framesz=2048,framecnt=1024");
  EXPECT_EQ(vdev_args(config, 9000, 1, plan_buffers(config, 9000, 1), ""),
            "iface=eth0,qpairs=1,blocksz=36864,framesz=9216,framecnt=1024");
  config.extra_args = "qdisc_bypass=0";
  EXPECT_TRUE(
      vdev_args(config, 1500, 1, plan_buffers(config, 1500, 1), "").ends_with(",qdisc_bypass=0"));
  config = parsed("af_xdp:eth0");
  EXPECT_EQ(vdev_args(config, 1500, 1, plan_buffers(config, 1500, 1), "/x.o"),
            "iface=eth0,queue_count=1,xdp_prog=/x.o");
  config = parsed("memif:/m.sock");
  config.memif = {true, 3, false};
  EXPECT_EQ(vdev_args(config, 9000, 1, plan_buffers(config, 9000, 1), ""),
            "role=server,id=3,socket=/m.sock,socket-abstract=no,bsize=9024,rsize=8");
  EXPECT_TRUE(vdev_args(config, 1500, 1, plan_buffers(config, 1500, 1), "")
                  .ends_with("bsize=1536,rsize=10"));
  EXPECT_TRUE(vdev_args(config, 9010, 1, plan_buffers(config, 9010, 1), "")
                  .ends_with("bsize=9024,rsize=8"));
  config.vlan = 5;
  EXPECT_TRUE(vdev_args(config, 9010, 1, plan_buffers(config, 9010, 1), "")
                  .ends_with("bsize=9088,rsize=8"));
}

TEST(Validate, RefusesWhatCannotWork) {
  const auto refusal = [](auto change) {
    EthdevConfig config = parsed("memif:/m.sock");
    config.v4 = LocalAddress{IpAddress::v4(10, 0, 0, 1), 24, {}};
    EXPECT_TRUE(validate(config).ok());
    change(config);
    const Status status = validate(config);
    EXPECT_FALSE(status.ok());
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_NE(refusal([](auto& c) { c.v4.reset(); }).find("needs an address"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.mtu = 1279; }).find("1280 to 9600"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.mtu = 9601; }).find("mtu"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.engines = 0; }).find("engines"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.source_ports = 0; }).find("source_ports"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.source_ports = 17; }).find("source_ports"), std::string::npos);
  EXPECT_NE(
      refusal([](auto& c) { c.udp_port = 65'520, c.source_ports = 16, c.engines = 2; }).find("UDP"),
      std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.queues = 2; }).find("queues"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.udp_port = 0; }).find("UDP"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.udp_port = 65535, c.engines = 2; }).find("UDP"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.shared = true; }).find("share"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.v4->prefix_bits = 33; }).find("prefix"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.v6 = c.v4; }).find("v6"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.vlan = 4095; }).find("1 to 4094"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.device = "a,b"; }).find("','"), std::string::npos);
}

TEST(Validate, LeavesTheTagsOfASharedInterfaceToTheKernel) {
  EthdevConfig config = parsed("af_xdp:eth1");
  config.v4 = LocalAddress{IpAddress::v4(10, 0, 0, 1), 24, {}};
  config.vlan = 5;
  const Status status = validate(config);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(
      status.error().message,
      "device af_xdp:eth1: the kernel has an interface for each VLAN: leave vlan out, and give "
      "interface \"eth1.5\" (ip link add link eth1 name eth1.5 type vlan id 5)");
  config.shared = false;
  EXPECT_TRUE(validate(config).ok());
}

TEST(Checks, NameAMissingInterfaceAndTheCommand) {
  const auto checks = check_device(parsed("af_packet:nosuch0"));
  const auto interface = std::ranges::find(checks, "interface", &Check::name);
  ASSERT_NE(interface, checks.end());
  EXPECT_FALSE(interface->ok);
  EXPECT_NE(interface->message.find("nosuch0"), std::string::npos);
  EXPECT_EQ(interface->fix, "set port.interface to one that ip link shows");
}

TEST(Checks, SayAFixForEveryFault) {
  for (const char* device : {"af_xdp:nosuch0", "af_packet:nosuch0", "memif:/nosuch/m.sock",
                             "0000:ff:1f.7", "af_packet:lo"}) {
    EthdevConfig config = parsed(device);
    config.hugepages = Hugepages::kAlways;
    config.memory_mb = 1U << 30;
    if (!config.has_netdev()) config.v4 = LocalAddress{IpAddress::v4(10, 0, 0, 1), 24, {}};
    bool any = false;
    for (const Check& check : check_device(config)) {
      any = any || !check.ok;
      EXPECT_TRUE(check.ok || !check.fix.empty()) << device << ": " << check.name;
    }
    EXPECT_TRUE(any) << device;
  }
}

TEST(Checks, ReportABadConfigurationInsteadOfGuessing) {
  EthdevConfig config = parsed("memif:/m.sock");  // without an address
  const auto checks = check_device(config);
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].name, "configuration");
  EXPECT_FALSE(checks[0].ok);
}

}  // namespace
}  // namespace mercury::ethdev
