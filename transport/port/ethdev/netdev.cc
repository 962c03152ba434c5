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
#include <cstring>

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

bool flag(int fd, const std::string& name, uint32_t command) {
  ethtool_value value{};
  value.cmd = command;
  return ethtool(fd, name, value) && value.data != 0;
}

void read_addresses(const std::string& name, NetdevFacts& facts) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || name != at->ifa_name) continue;
    if (at->ifa_addr->sa_family == AF_INET && !facts.v4) {
      uint8_t raw[4];
      std::memcpy(raw, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, 4);
      facts.v4 = IpAddress::v4(raw[0], raw[1], raw[2], raw[3]);
    } else if (at->ifa_addr->sa_family == AF_INET6 && !facts.v6) {
      IpAddress ip;
      std::memcpy(ip.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr,
                  16);
      const bool link_local = ip.bytes[0] == 0xfe && (ip.bytes[1] & 0xc0) == 0x80;
      if (!link_local) facts.v6 = ip;
    }
  }
  ::freeifaddrs(list);
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

uint16_t served_queues(const NetdevFacts& facts, uint16_t engines) {
  return std::min(facts.queues, facts.combined ? engines : uint16_t{1});
}

std::string channels_command(const std::string& name, const NetdevFacts& facts, uint16_t queues) {
  const std::string count = std::to_string(queues);
  return "ethtool -L " + name +
         (facts.combined ? " combined " + count : " rx " + count + " tx " + count);
}

Result<NetdevOffloads> read_offloads(const std::string& name) {
  const ControlSocket control;
  if (control.fd < 0) return Error::system(errno, "socket for interface " + name);
  NetdevOffloads offloads;
  // Not from /sys: a process that entered a namespace may see the interfaces of another one there.
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  offloads.is_virtual = !ethtool(control.fd, name, driver) || driver.bus_info[0] == '\0';
  offloads.checksum = flag(control.fd, name, ETHTOOL_GTXCSUM);
  offloads.segmentation =
      flag(control.fd, name, ETHTOOL_GTSO) || flag(control.fd, name, ETHTOOL_GGSO);
  return offloads;
}

}  // namespace mercury::ethdev
