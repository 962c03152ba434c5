// Writes the frames of a simulation to a file that Wireshark and tcpdump read: pcap with
// nanoseconds, Ethernet. The simulated network carries UDP payloads; the headers in front of them
// are made here, with MAC addresses that are made of the IP addresses. Time 0 is the simulation's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury::simulator {

class PcapWriter {
 public:
  // Errors: kSystem.
  Status open(const std::string& path);
  void write(uint64_t now_ns, const Endpoint& source, const Endpoint& target,
             std::span<const std::byte> payload);
  // Errors: kSystem, for anything that failed since open().
  Status close();
  // For SimNetwork::set_tap; `writer` is a PcapWriter.
  static void tap(void* writer, uint64_t now_ns, const Endpoint& source, const Endpoint& target,
                  std::span<const std::byte> payload);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace mercury::simulator
