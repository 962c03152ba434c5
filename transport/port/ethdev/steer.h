// The XDP program that steers Mercury's UDP ports to AF_XDP and leaves the rest to the kernel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "transport/base/result.h"

namespace mercury::ethdev {

// Its name in the kernel, by which a leftover of a killed process is known.
inline constexpr const char* kSteerProgramName = "mercury_steer";

// The program as an object file in memory, for a driver that wants a path.
class SteerObject {
 public:
  // Redirects UDP ports first .. first + count - 1.
  static Result<SteerObject> create(uint16_t first, uint16_t count);
  SteerObject(SteerObject&& other) noexcept;
  SteerObject& operator=(SteerObject&&) = delete;
  ~SteerObject();

  // Valid in this process, as long as this object.
  std::string path() const;

 private:
  explicit SteerObject(int fd) : fd_(fd) {}
  int fd_;
};

// Name of the XDP program on an interface; nothing if there is none. "?" if it has no name.
std::optional<std::string> attached_program(uint32_t interface_index);
// The command that takes it off.
std::string detach_command(const std::string& name, uint32_t interface_index);

// Held by the process that uses AF_XDP on an interface: tells a leftover of a killed process from
// the program of a living one. Freed by the kernel when the process ends, however it ends.
class InterfaceClaim {
 public:
  // Errors: kBusy if another process of this network namespace holds it.
  static Result<InterfaceClaim> take(uint32_t interface_index, const std::string& name);
  // True if a process holds it.
  static bool is_taken(uint32_t interface_index);
  InterfaceClaim(InterfaceClaim&& other) noexcept;
  InterfaceClaim& operator=(InterfaceClaim&& other) noexcept;
  ~InterfaceClaim();

 private:
  explicit InterfaceClaim(int fd) : fd_(fd) {}
  int fd_;
};

// What libbpf says goes into take_driver_log() (eal.h) instead of to the terminal.
void capture_libbpf_log();

// Makes room for the program: takes off a leftover of ours, refuses a foreign one by name. To be
// called with the claim held. Errors: kBusy, kPermission.
Status clear_leftover(uint32_t interface_index, const std::string& name);

}  // namespace mercury::ethdev
