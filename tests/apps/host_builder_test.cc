// What a daemon's configuration makes of its engines.
#include "apps/stackd/host_builder.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/wiped.h"
#include "transport/port/sim/sim_port.h"

namespace mercury {
namespace {

// A host of so many engines over one simulated interface.
struct Lab {
  explicit Lab(uint64_t engines) {
    StackdConfig config;
    config.engines = engines;
    settings = host_config(config);
    const sim::HostId id = network.add_host();
    std::vector<HostOf<sim::SimPort>::Part> parts;
    for (uint64_t i = 0; i < engines; ++i) {
      auto counters = std::make_unique<Counters>();
      sim::SimPortConfig port_config;
      port_config.counters = counters.get();
      const Endpoint at{IpAddress::v4(10, 0, 0, 1), static_cast<uint16_t>(7470 + i)};
      auto port = sim::SimPort::create(network, id, at, port_config);
      parts.push_back({std::move(counters), std::move(*port)});
    }
    host = std::make_unique<HostOf<sim::SimPort>>(std::move(parts), settings, [] { return 1; });
  }

  sim::SimNetwork network{{}};
  HostConfig settings;
  std::unique_ptr<HostOf<sim::SimPort>> host;
};

// Each would send at the link's rate otherwise, and grant peers all of it.
TEST(HostBuilder, EnginesOfADaemonShareItsLink) {
  const Lab lab(3);
  ASSERT_NE(lab.settings.lane.engine.link, nullptr);
  EXPECT_EQ(lab.settings.lane.engine.link->engines(), 3U) << "each has a place";
  const HostConfig another = host_config(StackdConfig());
  EXPECT_NE(another.lane.engine.link, lab.settings.lane.engine.link);
}

TEST(HostBuilder, OneThatIsAloneHasTheLinkForItself) {
  const Lab lab(1);
  EXPECT_EQ(lab.settings.lane.engine.link, nullptr);
  EXPECT_EQ(lab.settings.lane.engine.incast_queue_bytes, StackdConfig().incast_queue_bytes);
}

TEST(HostBuilder, TheQueueBeforeTheLinkIsDividedToo) {
  const Lab lab(2);
  EXPECT_EQ(lab.settings.lane.engine.incast_queue_bytes, StackdConfig().incast_queue_bytes / 2);
}

TEST(HostBuilder, OfAConfigurationNoSecretIsLeft) {
  StackdConfig config;
  config.jobs.resize(2);
  std::vector<Room> rooms;
  for (std::string* secret : {&config.jobs[0].secret, &config.jobs[1].secret,
                              &config.sockets_secret, &config.sockets_file_secret}) {
    *secret = long_secret();
    rooms.emplace_back(*secret);
  }
  wipe_secrets(config);
  for (const Room& room : rooms) EXPECT_TRUE(room.is_wiped()) << &room - rooms.data();
}

}  // namespace
}  // namespace mercury
