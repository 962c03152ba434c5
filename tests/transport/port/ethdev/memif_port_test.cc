// Whole ports over memif, whose driver takes a payload from where it lies: no root, no hugepages.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "tests/transport/port/ethdev/ring_ports.h"
#include "transport/port/ethdev/ethdev_port.h"

namespace mercury::ethdev {
namespace {

class MemifPort : public RingPort {
 protected:
  static EthdevConfig on_memif(bool server, uint16_t engines, uint16_t queues) {
    EthdevConfig config;
    config.kind = DeviceKind::kMemif;
    config.device = "mercury-memif-" + std::to_string(getpid());
    config.memif.server = server;
    config.memif.abstract = true;
    config.engines = engines;
    config.queues = queues;
    config.mtu = 1500;
    return config;
  }
  void open(uint16_t engines, uint16_t queues) {
    a_.emplace(on_memif(true, engines, queues), uint8_t{1});
    b_.emplace(on_memif(false, engines, queues), uint8_t{2});
    ASSERT_TRUE(a_->device && b_->device);
    // A thread of DPDK's connects them.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!a_->device->link_up() || !b_->device->link_up()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "the client does not find its server";
      pass();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
};

// A payload's count is not atomic, and a frame that crosses to the queue's owner is freed there:
// only the owner's frames point at payloads, those of others hold them.
TEST_F(MemifPort, WhoSharesAnothersQueueCopiesPayloads) {
  open(2, 1);
  for (uint16_t engine = 0; engine < 2; ++engine) {
    EthdevPort& port = *a_->ports[engine];
    ASSERT_EQ(a_->device->lane(engine).owns_queue, engine == 0);
    const PathId path = ready_path(port, b_->v4());
    const std::string body(1000, 'p');
    PayloadPin pin;
    TxFrame frame;
    ASSERT_TRUE(port.tx_alloc(frame));
    std::memcpy(frame.data, "head:", 5);
    port.tx_send_shared(frame, 5, path, std::as_bytes(std::span(body)), pin);
    EXPECT_EQ(port.pin_busy(pin), engine == 0);
    seen_.clear();
    for (int i = 0; i < 4; ++i) pass();
    EXPECT_EQ(seen_, std::vector<std::string>{"head:" + body});
    EXPECT_FALSE(port.pin_busy(pin));
    EXPECT_EQ(a_->counters[engine].get(Counter::kTxGathered), engine == 0 ? 1U : 0U);
  }
}

}  // namespace
}  // namespace mercury::ethdev
