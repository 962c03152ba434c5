#include "transport/port/ethdev/checks.h"

#include <linux/capability.h>
#include <rte_build_config.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "transport/port/ethdev/eal.h"
#include "transport/port/ethdev/netdev.h"
#include "transport/port/ethdev/steer.h"

namespace mercury::ethdev {
namespace {

using Checks = std::vector<Check>;

// The effective capabilities of this process, as the kernel prints them.
uint64_t capabilities() {
  std::ifstream status("/proc/self/status");
  for (std::string name, value; status >> name && std::getline(status, value);) {
    uint64_t set = 0;
    const size_t digits = value.find_first_not_of(" \t");
    if (name != "CapEff:" || digits == std::string::npos) continue;
    std::from_chars(value.data() + digits, value.data() + value.size(), set, 16);
    return set;
  }
  return 0;
}

bool has(uint64_t set, int capability) { return (set >> capability & 1) != 0; }

void check_privileges(const EthdevConfig& config, Checks& out) {
  const uint64_t set = capabilities();
  std::string missing;
  const auto need = [&](const char* name, bool held) {
    if (!held) missing += std::string(missing.empty() ? "" : ", ") + name;
  };
  const bool admin = has(set, CAP_SYS_ADMIN);
  if (config.has_netdev()) need("CAP_NET_RAW", has(set, CAP_NET_RAW));
  // DPDK's af_packet sets the interface's own address again when it starts.
  const DeviceRow& row = config.row();
  if (row.netdev != Netdev::kNone) need("CAP_NET_ADMIN", has(set, CAP_NET_ADMIN));
  if (row.uses_xdp()) need("CAP_BPF", admin || has(set, CAP_BPF));
  if (row.is_nic()) need("CAP_SYS_ADMIN", admin);
  out.push_back({"privileges", missing.empty(),
                 missing.empty() ? "all that this device needs" : "missing: " + missing,
                 missing.empty() ? ""
                                 : "run mercury-stackd as root, or with AmbientCapabilities= of "
                                   "these in its systemd unit"});
}

// EAL loads from this folder what is named *.so.ABI when it starts.
constexpr std::string_view kDrivers = RTE_EAL_PMD_PATH;

std::string drivers_abi() {
  const std::string name = std::filesystem::path(kDrivers).filename();  // pmds-23.0
  return name.substr(name.find('-') + 1);
}

// Debian has a package for each driver.
void check_driver(const EthdevConfig& config, Checks& out) {
  if (kDrivers.empty() || config.row().linked) return;
  const std::string driver = config.row().driver;
  const std::string abi = drivers_abi();
  const std::string file = "librte_" + driver + ".so." + abi;
  std::error_code error;
  const bool there = std::filesystem::exists(std::filesystem::path(kDrivers) / file, error);
  std::string package = "librte-" + driver + abi.substr(0, abi.find('.'));
  std::ranges::replace(package, '_', '-');
  out.push_back({"DPDK driver", there,
                 there ? driver : "no " + file + " in " + std::string(kDrivers),
                 there ? "" : "apt-get install " + package});
}

namespace fs = std::filesystem;

fs::path pci_device(const EthdevConfig& config) {
  return fs::path("/sys/bus/pci/devices") / config.device;
}

std::string kernel_driver(const fs::path& device) {
  std::error_code error;
  const fs::path link = fs::read_symlink(device / "driver", error);
  return error ? "none" : link.filename().string();
}

// Such a driver hands out memory of the machine by its physical address, which only hugepages keep.
bool is_uio(const std::string& driver) {
  return driver == "uio_pci_generic" || driver == "igb_uio";
}

// Drivers of NICs say in their files which they take, as in "[32902, 5618, 65535, 65535]".
void check_pci_driver(const fs::path& device, Checks& out) {
  if (kDrivers.empty()) return;  // linked into the program
  uint32_t vendor = 0, product = 0;
  std::ifstream(device / "vendor") >> std::hex >> vendor;
  std::ifstream(device / "device") >> std::hex >> product;
  const std::string wanted = "[" + std::to_string(vendor) + ", " + std::to_string(product) + ", ";
  const std::string ending = ".so." + drivers_abi();
  std::error_code error;
  std::string found;
  for (const auto& entry : std::filesystem::directory_iterator(kDrivers, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("librte_net_") || !name.ends_with(ending)) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    if (text.find(wanted) != std::string::npos) found = name;
  }
  out.push_back({"DPDK driver", !found.empty(),
                 found.empty() ? "none in " + std::string(kDrivers) + " takes such a NIC" : found,
                 found.empty() ? "apt-get install librte-meta-allpmds" : ""});
}

void check_kernel_xdp(Checks& out) {
  const int fd = ::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
  const bool lacking = fd < 0 && errno == EAFNOSUPPORT;
  if (fd >= 0) ::close(fd);
  out.push_back({"AF_XDP", !lacking, lacking ? "the kernel has none" : "the kernel has it",
                 lacking ? "set port.device = \"af_packet\", or use a kernel that was built with "
                           "CONFIG_XDP_SOCKETS=y (Debian's are)"
                         : ""});
}

void check_memory(const EthdevConfig& config, uint32_t mtu, Checks& out) {
  const BufferPlan plan = plan_buffers(config, mtu, config.queues ? config.queues : config.engines);
  const uint64_t need_mb = config.memory_mb ? config.memory_mb : memory_mb_for(plan);
  const uint64_t free_mb = free_hugepage_bytes() >> 20;
  const bool enough = free_mb >= need_mb;
  const std::string driver = config.row().is_nic() ? kernel_driver(pci_device(config)) : "";
  const bool needed = is_uio(driver);
  const bool refused = config.hugepages == Hugepages::kNever;
  Check check{"hugepages",
              needed ? enough && !refused : enough || config.hugepages != Hugepages::kAlways,
              std::to_string(free_mb) + " MB free, " + std::to_string(need_mb) + " MB needed", ""};
  if (needed && (refused || !enough)) {
    check.message += "; " + driver + " works with no other pages";
  } else if (refused) {
    check.message += "; not used, as configured";
  } else if (!enough) {
    check.message += "; ordinary pages work, at some cost";
  }
  if (needed && refused) {
    check.fix = "set port.hugepages = \"auto\", or bind it to vfio-pci";
  } else if (!enough && !refused) {
    check.fix = "echo " + std::to_string(need_mb / 2 + 1) +
                " > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
  }
  out.push_back(check);
  if (!config.has_netdev()) return;  // these pin memory in the kernel
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY || has(capabilities(), CAP_IPC_LOCK);
  const bool fits = unlimited || limit.rlim_cur >> 20 >= need_mb;
  out.push_back({"locked memory", fits,
                 unlimited ? "not limited" : std::to_string(limit.rlim_cur >> 20) + " MB allowed",
                 fits ? "" : "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)"});
}

void check_mtu(const EthdevConfig& config, const NetdevFacts& facts, Checks& out) {
  const uint32_t most = config.row().max_mtu;
  const uint32_t wanted = config.mtu ? config.mtu : facts.mtu;
  const bool too_small = config.mtu > facts.mtu;
  const bool too_large = facts.mtu > most;
  const uint32_t right = too_large ? most : wanted;
  out.push_back({"mtu", !too_small && !too_large,
                 "interface " + std::to_string(facts.mtu) + ", Mercury uses " +
                     std::to_string(std::min(right, facts.mtu)) + ", " + config.row().name +
                     " carries up to " + std::to_string(most),
                 too_small || too_large
                     ? "ip link set dev " + config.device + " mtu " + std::to_string(right)
                     : ""});
}

// Of a device without an interface of the kernel. validate() has seen that it is not too large.
void check_own_mtu(const EthdevConfig& config, uint32_t mtu, Checks& out) {
  const DeviceRow& row = config.row();
  out.push_back({"mtu", true,
                 "Mercury uses " + std::to_string(mtu) + ", " + row.name + " carries up to " +
                     std::to_string(row.max_mtu) +
                     (row.is_nic() ? ", or what the NIC says when it starts" : ""),
                 ""});
}

void check_xdp(const EthdevConfig& config, const NetdevFacts& facts, Checks& out) {
  const auto program = attached_program(facts.index);
  const bool taken = InterfaceClaim::is_taken(facts.index);
  if (!program) {
    out.push_back({"xdp", true, "no XDP program on the interface", ""});
  } else if (*program != kSteerProgramName) {
    out.push_back({"xdp", false, "another XDP program is attached: " + *program,
                   detach_command(config.device, facts.index) +
                       ", if nothing needs it; else set port.device = \"af_packet\""});
  } else {
    out.push_back({"xdp", true,
                   taken
                       ? "Mercury's program, of a running process"
                       : "Mercury's program, left by a killed process; the next start takes it off",
                   ""});
  }
  const uint16_t engines = config.queues ? config.queues : config.engines;
  const uint16_t served = served_queues(facts, engines);
  const bool covered = facts.queues <= served;
  out.push_back(
      {"queues", covered,
       "interface has " + std::to_string(facts.queues) + ", engines use " + std::to_string(served),
       covered ? "" : channels_command(config.device, facts, served)});
}

void check_netdev(const EthdevConfig& config, Checks& out) {
  const auto facts = read_netdev(config.device);
  if (!facts) {
    out.push_back({"interface", false, facts.error().message,
                   "set port.interface to one that ip link shows"});
    check_memory(config, 1500, out);
    return;
  }
  out.push_back({"interface", facts->up, config.device + (facts->up ? " is up" : " is down"),
                 facts->up ? "" : "ip link set dev " + config.device + " up"});
  const bool has_address = config.v4 || config.v6 || facts->v4 || facts->v6;
  out.push_back({"address", has_address,
                 has_address ? "the interface has one" : config.device + " has no address",
                 has_address ? "" : "ip address add ADDRESS/PREFIX dev " + config.device});
  check_mtu(config, *facts, out);
  if (config.row().uses_packet_sockets()) {
    if (auto merging = check_merging(config.device)) out.push_back(std::move(*merging));
  }
  if (config.row().uses_xdp()) check_xdp(config, *facts, out);
  check_memory(config, std::min(facts->mtu, config.row().max_mtu), out);
}

void check_pci(const EthdevConfig& config, Checks& out) {
  const fs::path device = pci_device(config);
  const std::string& address = config.device;
  std::error_code error;
  if (!fs::exists(device, error)) {
    out.push_back({"pci", false, "no PCI device " + address,
                   "set port.device to one that dpdk-devbind.py --status-dev net shows"});
    return;
  }
  const std::string driver = kernel_driver(device);
  const bool ok =
      driver == "vfio-pci" || is_uio(driver) || driver == "mlx4_core" || driver == "mlx5_core";
  // vfio-pci takes only what stands behind an IOMMU.
  const std::string right =
      fs::exists(device / "iommu_group", error) ? "vfio-pci" : "uio_pci_generic";
  out.push_back(
      {"driver", ok, "kernel driver of " + address + ": " + driver,
       ok ? "" : "modprobe " + right + " && dpdk-devbind.py -b " + right + " " + address});
  check_pci_driver(device, out);
}

// Both ends may be the first there, but only one makes the socket.
void check_memif(const EthdevConfig& config, Checks& out) {
  if (config.memif.abstract || !config.memif.server) return;
  const std::filesystem::path folder = std::filesystem::path(config.device).parent_path();
  const bool writable = folder.empty() || ::access(folder.c_str(), W_OK) == 0;
  out.push_back({"memif socket", writable,
                 writable ? config.device : folder.string() + " is not there, or not writable",
                 writable ? "" : "mkdir -p " + folder.string() + ", or set port.memif_socket"});
}

}  // namespace

std::vector<Check> check_device(const EthdevConfig& config) {
  Checks out;
  if (Status valid = validate(config); !valid) {
    out.push_back({"configuration", false, valid.error().message, "correct it in [port]"});
    return out;
  }
  check_privileges(config, out);
  const DeviceRow& row = config.row();
  if (!row.is_nic()) check_driver(config, out);
  if (row.uses_xdp()) check_kernel_xdp(out);
  if (config.has_netdev()) {
    check_netdev(config, out);
    return out;
  }
  if (row.is_nic()) check_pci(config, out);
  if (row.naming == Naming::kSocket) check_memif(config, out);
  const uint32_t mtu = config.mtu ? config.mtu : 1500;
  check_own_mtu(config, mtu, out);
  check_memory(config, mtu, out);
  return out;
}

// A packet socket gets as one frame what the kernel merges on the way in. An XDP program comes
// before.
std::optional<Check> check_merging(const std::string& interface) {
  const auto batches = read_batches(interface);
  if (!batches) return std::nullopt;
  const bool bad = batches->are_made;
  return Check{"offload", !bad,
               bad ? interface +
                         " merges datagrams that arrive (rx-gro-list), and af_packet drops "
                         "them merged"
                   : interface + " merges no datagrams that arrive",
               bad ? "ethtool -K " + interface + " rx-gro-list off" : ""};
}

std::optional<Check> check_segmentation(const IpAddress& ip) {
  const auto interface = netdev_with(ip);
  if (!interface || *interface == "lo") return std::nullopt;
  const auto batches = read_batches(*interface);
  if (!batches) return std::nullopt;
  const bool bad = batches->leave_uncut;
  // No trouble for a job without af_packet hosts, and this one does not know the others.
  return Check{"offload", true,
               bad ? "veth " + *interface +
                         " sends batches of frames uncut, which af_packet hosts that get them drop "
                         "(drop_bad_ip, drop_length there); af_xdp and io_uring hosts do not"
                   : "frames leave " + *interface + " one by one",
               bad ? "ethtool -K " + *interface + " tx-udp-segmentation off" : ""};
}

}  // namespace mercury::ethdev
