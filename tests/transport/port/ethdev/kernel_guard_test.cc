// Ports that are held against other programs, here by another guard: no root.
#include "transport/port/ethdev/kernel_guard.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace mercury::ethdev {
namespace {

TEST(KernelGuard, SaysOfWhichSettingAPortIsThatAnotherProgramHas) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    // One that is free, as far as one can know.
    KernelGuard other;
    Endpoint port{*IpAddress::parse(address), 20'000};
    while (!other.hold(port) && port.port < 30'000) ++port.port;
    KernelGuard guard;
    const Status own = guard.hold(port);
    const Status source = guard.hold(port, true);
    ASSERT_TRUE(!own && !source);
    EXPECT_EQ(own.error().code, Errc::kBusy);
    EXPECT_EQ(source.error().code, Errc::kBusy);
    EXPECT_EQ(own.error().message, "UDP port " + port.to_string() +
                                       " is in use; find the program with: ss -ulpn, or choose "
                                       "another udp_port");
    EXPECT_EQ(source.error().message,
              "UDP port " + port.to_string() +
                  ", one of port.source_ports, is in use; find the program with: ss -ulpn, or set "
                  "port.source_ports = 1, or another port.udp_port");
  }
}

}  // namespace
}  // namespace mercury::ethdev
