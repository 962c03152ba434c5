// What it takes for a NIC to read payloads where they lie: memory that is mapped for it, frames of
// two segments, and a driver that can be made to let go of what has been sent. A payload that it
// holds cannot be written again.
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_vfio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <string>
#include <string_view>

#include "transport/port/ethdev/device.h"
#include "transport/port/ethdev/eal.h"

namespace mercury::ethdev {
namespace {

// Drivers that let go of what was sent whenever rte_eth_tx_burst is called, and that have been run
// so. Most keep it until its descriptors are used again, a whole ring later. Those of Intel's newer
// NICs would let go if they were asked to clean up, by the sources of DPDK 22.11: they copy until
// somebody has run one.
struct Driver {
  std::string_view name;
  // QEMU's vmxnet3 drops frames with a segment over pages that are no neighbours behind the IOMMU.
  bool by_page;
};
constexpr std::array kLettingGo{Driver{"net_vmxnet3", true}};
// The headers, and a payload of the largest MTU over four pages: few NICs take less than eight.
constexpr uint16_t kMostSegments = 5;

}  // namespace

Gather Device::gather_of(const rte_eth_dev_info& info) {
  if (row_.gather != Gather::kByDma) return row_.gather;
  const std::string_view name = info.driver_name;
  const auto driver = std::ranges::find(kLettingGo, name, &Driver::name);
  const bool segments = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0 &&
                        info.tx_desc_lim.nb_mtu_seg_max >= kMostSegments;
  // A NIC that is given physical addresses cannot read memory that the kernel may move.
  const bool any_memory = rte_eal_iova_mode() == RTE_IOVA_VA;
  if (driver == kLettingGo.end() || !segments || !any_memory) return Gather::kNever;
  reads_by_page_ = driver->by_page;
  return Gather::kByDma;
}

void Device::let_go(uint16_t queue) const noexcept {
  rte_eth_tx_burst(port_id_, queue, nullptr, 0);
}

namespace {
// DPDK has room for 256, and needs one more to take a piece out of neighbours that it has joined.
constexpr uint32_t kMostMappings = 200;
std::atomic<uint32_t> g_mappings{0};  // of all devices, by all engines
// An unmapping failed: what lies at its addresses later would be taken for what lay there before.
std::atomic<bool> g_lost_track{false};

bool take_mapping() noexcept {
  if (g_lost_track) return false;
  if (++g_mappings <= kMostMappings) return true;
  --g_mappings;
  return false;
}
}  // namespace

// The NIC's addresses are the process's own.
Status Device::map_memory(std::span<std::byte> memory) {
  if (!take_mapping()) {
    return Error(Errc::kLimit, "device " + name_ + ": no more memory can be mapped for NICs");
  }
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  rte_errno = 0;
  if (rte_vfio_container_dma_map(RTE_VFIO_DEFAULT_CONTAINER_FD, address, address, memory.size()) ==
      0) {
    return {};
  }
  --g_mappings;
  const int why = rte_errno;
  return Error(why == ENOMEM ? Errc::kLimit : Errc::kSystem, why,
               "device " + name_ + ": " + std::to_string(memory.size()) +
                   " bytes cannot be mapped; DPDK said: " + take_driver_log());
}

void Device::unmap_memory(std::span<std::byte> memory) {
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  if (rte_vfio_container_dma_unmap(RTE_VFIO_DEFAULT_CONTAINER_FD, address, address,
                                   memory.size()) != 0) {
    g_lost_track = true;
    take_driver_log();
  }
  --g_mappings;
}

}  // namespace mercury::ethdev
