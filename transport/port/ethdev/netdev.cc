#include "transport/port/ethdev/netdev.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

namespace mercury::ethdev {
namespace {

// A descriptor for ioctls on interfaces, closed at the end of its scope.
struct ControlSocket {
  ControlSocket() : fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}
  ~ControlSocket() {
    if (fd >= 0) ::close(fd);
  }
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;
  const int fd;
};

ifreq request_for(const std::string& name) {
  ifreq request{};
  std::memcpy(request.ifr_name, name.data(), std::min<size_t>(name.size(), IFNAMSIZ - 1));
  return request;
}

template <class Command>
bool ethtool(int fd, const std::string& name, Command& command) {
  ifreq request = request_for(name);
  request.ifr_data = reinterpret_cast<char*>(&command);
  return ::ioctl(fd, SIOCETHTOOL, &request) == 0;
}

std::optional<bool> flag(int fd, const std::string& name, uint32_t command) {
  ethtool_value value{};
  value.cmd = command;
  if (!ethtool(fd, name, value)) return std::nullopt;
  return value.data != 0;
}

// Whether it is a device on some bus; a veth, bridge or bond is not.
bool is_nic(int fd, const std::string& name) {
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  return ethtool(fd, name, driver) && driver.bus_info[0] != '\0';
}

std::optional<bool> is_veth(int fd, const std::string& name) {
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  if (ethtool(fd, name, driver)) return std::string_view(driver.driver) == "veth";
  if (errno == EOPNOTSUPP) return false;  // it has no driver to name; a veth has
  return std::nullopt;
}

// Names of an interface's features (those that ethtool -k lists) that are on; nothing: it could not
// be asked.
std::optional<std::vector<std::string>> active_features(int fd, const std::string& name) {
  std::vector<uint64_t> asked(sizeof(ethtool_sset_info) / 8 + 1);  // and one count behind it
  auto& set = *reinterpret_cast<ethtool_sset_info*>(asked.data());
  set.cmd = ETHTOOL_GSSET_INFO;
  set.sset_mask = uint64_t{1} << ETH_SS_FEATURES;
  if (!ethtool(fd, name, set) || set.sset_mask == 0) return std::nullopt;
  const uint32_t count = set.data[0];
  std::vector<uint64_t> named((sizeof(ethtool_gstrings) + size_t{count} * ETH_GSTRING_LEN) / 8 + 1);
  auto& names = *reinterpret_cast<ethtool_gstrings*>(named.data());
  names.cmd = ETHTOOL_GSTRINGS;
  names.string_set = ETH_SS_FEATURES;
  names.len = count;
  const uint32_t blocks = (count + 31) / 32;
  std::vector<uint64_t> held(
      (sizeof(ethtool_gfeatures) + blocks * sizeof(ethtool_get_features_block)) / 8 + 1);
  auto& features = *reinterpret_cast<ethtool_gfeatures*>(held.data());
  features.cmd = ETHTOOL_GFEATURES;
  features.size = blocks;
  if (!ethtool(fd, name, names) || !ethtool(fd, name, features)) return std::nullopt;
  std::vector<std::string> active;
  for (uint32_t i = 0; i < count; ++i) {
    if ((features.features[i / 32].active >> i % 32 & 1) == 0) continue;
    const auto* text = reinterpret_cast<const char*>(names.data) + size_t{i} * ETH_GSTRING_LEN;
    active.emplace_back(text, ::strnlen(text, ETH_GSTRING_LEN));
  }
  return active;
}

std::optional<IpAddress> address_in(const sockaddr* from) {
  if (from == nullptr) return std::nullopt;
  if (from->sa_family == AF_INET) {
    uint8_t raw[4];
    std::memcpy(raw, &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
    return IpAddress::v4(raw[0], raw[1], raw[2], raw[3]);
  }
  if (from->sa_family != AF_INET6) return std::nullopt;
  IpAddress ip;
  std::memcpy(ip.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr, 16);
  return ip;
}

// Calls `see(name, address)` for each address of each interface.
template <class See>
void for_each_address(See see) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (const auto ip = address_in(at->ifa_addr)) see(at->ifa_name, *ip);
  }
  ::freeifaddrs(list);
}

void read_addresses(const std::string& name, NetdevFacts& facts) {
  for_each_address([&](const char* owner, const IpAddress& ip) {
    const bool link_local = ip.bytes[0] == 0xfe && (ip.bytes[1] & 0xc0) == 0x80;
    std::optional<IpAddress>& first = ip.is_v4() ? facts.v4 : facts.v6;
    if (name == owner && !first && !link_local) first = ip;
  });
}

}  // namespace

Result<NetdevFacts> read_netdev(const std::string& name) {
  const ControlSocket control;
  if (control.fd < 0) return Error::system(errno, "socket for interface " + name);
  NetdevFacts facts;
  ifreq request = request_for(name);
  if (::ioctl(control.fd, SIOCGIFINDEX, &request) != 0) {
    return Error(Errc::kNoDevice, errno,
                 "interface " + name + " does not exist here; list interfaces with: ip link");
  }
  facts.index = static_cast<uint32_t>(request.ifr_ifindex);
  if (::ioctl(control.fd, SIOCGIFMTU, &request) != 0) return Error::system(errno, name + ": MTU");
  facts.mtu = static_cast<uint32_t>(request.ifr_mtu);
  if (::ioctl(control.fd, SIOCGIFHWADDR, &request) != 0) {
    return Error::system(errno, name + ": MAC address");
  }
  std::memcpy(facts.mac.bytes.data(), request.ifr_hwaddr.sa_data, 6);
  if (::ioctl(control.fd, SIOCGIFFLAGS, &request) != 0)
    return Error::system(errno, name + ": flags");
  facts.up = (request.ifr_flags & IFF_UP) != 0;
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  if (ethtool(control.fd, name, channels)) {
    facts.combined = channels.max_combined > 0 || channels.max_rx == 0;
    const uint32_t receive = facts.combined ? channels.combined_count : channels.rx_count;
    facts.queues = static_cast<uint16_t>(std::clamp(receive, 1U, 1024U));
  }
  read_addresses(name, facts);
  return facts;
}

bool netdev_running(const std::string& name) {
  const ControlSocket control;
  ifreq request = request_for(name);
  const int wanted = IFF_UP | IFF_RUNNING;
  return control.fd >= 0 && ::ioctl(control.fd, SIOCGIFFLAGS, &request) == 0 &&
         (request.ifr_flags & wanted) == wanted;
}

uint64_t netdev_link_rate(const std::string& name) {
  const ControlSocket control;
  if (!is_nic(control.fd, name)) return 0;
  // The kernel first says how long its three masks of link modes are, in words of 32 bits.
  ethtool_link_settings asked{};
  asked.cmd = ETHTOOL_GLINKSETTINGS;
  if (!ethtool(control.fd, name, asked) || asked.link_mode_masks_nwords >= 0) return 0;
  const auto words = static_cast<size_t>(-asked.link_mode_masks_nwords);
  std::vector<uint32_t> answer(sizeof asked / sizeof(uint32_t) + 3 * words);
  auto& settings = *reinterpret_cast<ethtool_link_settings*>(answer.data());
  settings.cmd = ETHTOOL_GLINKSETTINGS;
  settings.link_mode_masks_nwords = static_cast<int8_t>(words);
  if (!ethtool(control.fd, name, settings)) return 0;
  if (settings.speed == static_cast<uint32_t>(SPEED_UNKNOWN)) return 0;
  return uint64_t{settings.speed} * 1'000'000 / 8;
}

uint16_t served_queues(const NetdevFacts& facts, uint16_t engines) {
  return std::min(facts.queues, facts.combined ? engines : uint16_t{1});
}

std::string channels_command(const std::string& name, const NetdevFacts& facts, uint16_t queues) {
  const std::string count = std::to_string(queues);
  return "ethtool -L " + name +
         (facts.combined ? " combined " + count : " rx " + count + " tx " + count);
}

std::optional<NetdevBatches> read_batches(const std::string& name) {
  const ControlSocket control;
  const auto active = active_features(control.fd, name);
  const auto veth = is_veth(control.fd, name);
  const auto fills_in_checksums = flag(control.fd, name, ETHTOOL_GTXCSUM);
  if (!active || !veth || !fills_in_checksums) return std::nullopt;
  const auto on = [&](const char* feature) { return std::ranges::count(*active, feature) != 0; };
  NetdevBatches batches;
  // A device that fills in no checksum does not cut either, whatever it says: the kernel does.
  batches.leave_uncut = *veth && on("tx-udp-segmentation") && *fills_in_checksums;
  batches.are_made = on("rx-gro") && on("rx-gro-list");
  return batches;
}

std::optional<std::string> netdev_with(const IpAddress& ip) {
  std::optional<std::string> found;
  for_each_address([&](const char* owner, const IpAddress& held) {
    if (held == ip && !found) found = owner;
  });
  return found;
}

}  // namespace mercury::ethdev
