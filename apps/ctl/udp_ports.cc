#include "apps/ctl/udp_ports.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "apps/ctl/ask.h"
#include "shim/channel/unique_fd.h"
#include "transport/port/ethdev/netdev.h"
#include "transport/port/uring/socket.h"

namespace mercury {
namespace {

using ethdev::Check;
namespace fs = std::filesystem;

// 0, or the error with which the daemon's own bind() would fail.
int try_bind(const Endpoint& local) {
  const bool v4 = local.ip.is_v4();
  const UniqueFd socket(::socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  const int on = 1;
  if (!v4) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  sockaddr_storage address;
  const socklen_t bytes = uring::write_address(local, address);
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0 ? 0 : errno;
}

// As /proc/net/udp has it: each four bytes are a number of the machine's byte order.
std::string in_proc(const IpAddress& ip) {
  const size_t begin = ip.is_v4() ? IpAddress().bytes.size() - 4 : 0;
  std::string text;
  for (size_t at = begin; at < ip.bytes.size(); at += 4) {
    uint32_t word = 0;
    std::memcpy(&word, &ip.bytes[at], sizeof word);
    std::array<char, 9> hex{};
    std::snprintf(hex.data(), hex.size(), "%08X", word);
    text += hex.data();
  }
  return text;
}

bool is_any(const std::string& address) {
  return address.find_first_not_of('0') == std::string::npos;
}

// The inode of the socket that is in the way of this one. One of IPv6 may hold IPv4's ports, too.
std::optional<std::string> socket_at(const Endpoint& local) {
  for (const char* path : {"/proc/net/udp", "/proc/net/udp6"}) {
    if (!local.ip.is_v4() && path == std::string("/proc/net/udp")) continue;
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);  // names of columns
    while (std::getline(file, line)) {
      // sl local_address rem_address st queues timer retrnsmt uid timeout inode
      std::array<std::string, 10> fields;
      std::istringstream in(line);
      for (std::string& field : fields) in >> field;
      const size_t colon = fields[1].find(':');
      if (colon == std::string::npos) continue;
      const std::string address = fields[1].substr(0, colon);
      uint32_t port = 0;
      std::from_chars(fields[1].data() + colon + 1, fields[1].data() + fields[1].size(), port, 16);
      if (port == local.port && (is_any(address) || address == in_proc(local.ip))) return fields[9];
    }
  }
  return std::nullopt;
}

// As far as it may be read: processes go while they are looked at.
std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    found.push_back(at->path());
  }
  return found;
}

// 0: unknown. Of other users' processes only root may see the descriptors.
pid_t holder_of(const std::string& inode) {
  const std::string wanted = "socket:[" + inode + "]";
  for (const fs::path& process : entries("/proc")) {
    const std::string name = process.filename();
    pid_t pid = 0;
    const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad != std::errc{} || end != name.data() + name.size()) continue;
    for (const fs::path& descriptor : entries(process / "fd")) {
      std::error_code gone;
      if (fs::read_symlink(descriptor, gone) == wanted) return pid;
    }
  }
  return 0;
}

std::string name_of(pid_t pid) {
  std::string name = "a program";
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::getline(file, name);
  return name;
}

Check check_taken(const Endpoint& local, bool is_source, pid_t daemon) {
  const std::string where =
      "UDP " + local.to_string() + (is_source ? ", one of port.source_ports," : "");
  const std::optional<std::string> inode = socket_at(local);
  const pid_t holder = inode ? holder_of(*inode) : 0;
  if (daemon != 0 && (holder == 0 || holder == daemon)) {
    return {"UDP port", true,
            "UDP " + local.to_string() + ": of mercury-stackd, which runs (pid " +
                std::to_string(daemon) + ")",
            ""};
  }
  const std::string other = is_source ? ", or set port.source_ports = 1, or another port.udp_port"
                                      : ", or set port.udp_port to one that is free";
  if (holder == 0) {
    return {"UDP port", false, where + " is held by a program that this user does not see",
            "stop it; ss -ulpn, as root and outside of a container, names it" + other};
  }
  const std::string pid = std::to_string(holder);
  return {"UDP port", false, where + " is held by " + name_of(holder) + " (pid " + pid + ")",
          "stop it (kill " + pid + ")" + other};
}

Check check_ports(const StackdConfig& config, const IpAddress& ip, pid_t daemon) {
  const uint64_t count = config.engines * config.source_ports;
  for (uint64_t i = 0; i < count; ++i) {
    const Endpoint local{ip, static_cast<uint16_t>(config.udp_port + i)};
    const int why = try_bind(local);
    if (why == EADDRINUSE) {
      Check taken = check_taken(local, i >= config.engines, daemon);
      if (!taken.ok || i + 1 == count) return taken;
    }
    if (why == EACCES) {
      return {"UDP port", false, "no permission for UDP " + local.to_string(),
              "run mercury-stackd as root, or set port.udp_port to one from 1024 on"};
    }
    // Others (no such address) are the address's own check's to say.
  }
  const std::string last = count > 1 ? " to " + std::to_string(config.udp_port + count - 1) : "";
  return {"UDP port", true,
          "UDP " + Endpoint{ip, static_cast<uint16_t>(config.udp_port)}.to_string() + last +
              " can be had",
          ""};
}

}  // namespace

std::vector<Check> check_udp_ports(const StackdConfig& config) {
  std::vector<IpAddress> addresses;
  for (const IpPrefix& prefix : config.addresses) addresses.push_back(prefix.ip);
  if (addresses.empty() && !config.interface.empty()) {  // then the interface's are the host's
    if (const auto facts = ethdev::read_netdev(config.interface)) {
      if (facts->v4) addresses.push_back(*facts->v4);
      if (facts->v6) addresses.push_back(*facts->v6);
    }
  }
  const pid_t daemon = running_daemon(config.socket + ".admin").value_or(0);
  std::vector<Check> checks;
  checks.reserve(addresses.size());
  for (const IpAddress& ip : addresses) checks.push_back(check_ports(config, ip, daemon));
  return checks;
}

}  // namespace mercury
