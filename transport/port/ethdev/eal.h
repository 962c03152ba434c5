// Starts DPDK's environment once per process, without taking anything from the machine that it does
// not need: no files, no telemetry, no PCI scan unless a PCI device is configured, no pinned
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/base/result.h"
#include "transport/port/ethdev/config.h"

namespace mercury::ethdev {

struct EalOptions {
  Hugepages hugepages = Hugepages::kAuto;
  uint32_t memory_mb = 256;
  std::string pci_address;  // empty: no PCI bus
};

// The first call starts it, later calls check that it can serve (a PCI device cannot be added to an
// EAL that was started without the bus). Thread-safe. Errors: kSystem, kConfig.
Status start_eal(const EalOptions& options);

// Bytes of hugepages, of any size, that nobody uses.
uint64_t free_hugepage_bytes();

// True if DPDK's memory lies in hugepages; only after start_eal.
bool eal_has_hugepages();

// What drivers and EAL have complained about since the last call, in one line; goes into the
// messages of errors.
std::string take_driver_log();

// For libraries that drivers use: adds to that log.
void add_driver_log(std::string_view text);

// Gives the calling thread a DPDK number (and with it a cache of each buffer pool) until it ends.
// Cheap when called again. Does nothing where no number is left.
void register_thread() noexcept;

}  // namespace mercury::ethdev
