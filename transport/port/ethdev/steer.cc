#include "transport/port/ethdev/steer.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/port/ethdev/eal.h"
#include "transport/port/ethdev/steer_object.h"

namespace mercury::ethdev {
namespace {

// As in steer.bpf.c, which is in the byte order of this machine.
struct SteerPorts {
  char marker[8];
  uint32_t first;
  uint32_t count;
};
constexpr SteerPorts kBlank = {"MERCURY", 0, 0};

sockaddr_un claim_address(uint32_t interface_index, socklen_t& bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "mercury/af_xdp/" + std::to_string(interface_index);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // abstract: a leading zero byte
  bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// A socket bound to the claim's name; -1 and errno if it is taken.
int bind_claim(uint32_t interface_index) {
  socklen_t bytes = 0;
  const sockaddr_un address = claim_address(interface_index, bytes);
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

}  // namespace

Result<SteerObject> SteerObject::create(uint16_t first, uint16_t count) {
  const auto embedded = std::as_bytes(std::span(kSteerObject));
  std::vector<std::byte> object(embedded.begin(), embedded.end());
  const auto blank = std::as_bytes(std::span(&kBlank, 1));
  const auto at = std::search(object.begin(), object.end(), blank.begin(), blank.end());
  if (at == object.end()) {
    return Error(Errc::kSystem, "the embedded XDP program has no port range; rebuild Mercury");
  }
  SteerPorts ports = kBlank;
  ports.first = first;
  ports.count = count;
  std::ranges::copy(std::as_bytes(std::span(&ports, 1)), at);
  SteerObject result(::memfd_create("mercury_steer.o", MFD_CLOEXEC));
  if (result.fd_ < 0) return Error::system(errno, "memfd for the XDP program");
  if (::write(result.fd_, object.data(), object.size()) != static_cast<ssize_t>(object.size())) {
    return Error::system(errno, "writing the XDP program");
  }
  return result;
}

SteerObject::SteerObject(SteerObject&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
SteerObject::~SteerObject() {
  if (fd_ >= 0) ::close(fd_);
}
std::string SteerObject::path() const { return "/proc/self/fd/" + std::to_string(fd_); }

std::optional<std::string> attached_program(uint32_t interface_index) {
  uint32_t id = 0;
  if (bpf_xdp_query_id(static_cast<int>(interface_index), 0, &id) != 0 || id == 0) return {};
  const int fd = bpf_prog_get_fd_by_id(id);
  if (fd < 0) return "?";
  bpf_prog_info info{};
  uint32_t bytes = sizeof(info);
  const bool read = bpf_obj_get_info_by_fd(fd, &info, &bytes) == 0;
  ::close(fd);
  if (!read || info.name[0] == '\0') return "?";
  return std::string(info.name, ::strnlen(info.name, sizeof(info.name)));
}

// "xdp off" is silent about a generic program, and leaves it, where the driver knows native ones.
std::string detach_command(const std::string& name, uint32_t interface_index) {
  bpf_xdp_query_opts facts{};
  facts.sz = sizeof facts;
  const bool known = bpf_xdp_query(static_cast<int>(interface_index), 0, &facts) == 0;
  const bool generic = known && facts.attach_mode == XDP_ATTACHED_SKB;
  return "ip link set dev " + name + (generic ? " xdpgeneric off" : " xdp off");
}

Result<InterfaceClaim> InterfaceClaim::take(uint32_t interface_index, const std::string& name) {
  const int fd = bind_claim(interface_index);
  if (fd >= 0) return InterfaceClaim(fd);
  if (errno == EADDRINUSE) {
    return Error(Errc::kBusy,
                 "interface " + name +
                     " is in use by another Mercury process over af_xdp; find it with: "
                     "ss -xlp | grep mercury/af_xdp");
  }
  return Error::system(errno, "claiming interface " + name);
}

bool InterfaceClaim::is_taken(uint32_t interface_index) {
  const int fd = bind_claim(interface_index);
  if (fd < 0) return errno == EADDRINUSE;
  ::close(fd);
  return false;
}

InterfaceClaim::InterfaceClaim(InterfaceClaim&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}
InterfaceClaim& InterfaceClaim::operator=(InterfaceClaim&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
InterfaceClaim::~InterfaceClaim() {
  if (fd_ >= 0) ::close(fd_);
}

void capture_libbpf_log() {
  libbpf_set_print([](libbpf_print_level level, const char* format, va_list arguments) {
    if (level != LIBBPF_WARN) return 0;
    char text[256];
    const int bytes = std::vsnprintf(text, sizeof(text), format, arguments);
    if (bytes > 0) add_driver_log({text, std::min<size_t>(static_cast<size_t>(bytes), 255)});
    return 0;
  });
}

Status clear_leftover(uint32_t interface_index, const std::string& name) {
  const auto program = attached_program(interface_index);
  if (!program) return {};
  if (*program != kSteerProgramName) {
    return Error(Errc::kBusy,
                 "interface " + name + " already runs the XDP program \"" + *program +
                     "\"; if nothing needs it: " + detach_command(name, interface_index) +
                     "; or use af_packet:" + name);
  }
  const int failed = bpf_xdp_detach(static_cast<int>(interface_index), 0, nullptr);
  if (failed == 0) return {};
  return Error(Errc::kPermission, -failed,
               "taking the leftover XDP program off " + name + ": " + errno_text(-failed) +
                   "; run: " + detach_command(name, interface_index));
}

}  // namespace mercury::ethdev
