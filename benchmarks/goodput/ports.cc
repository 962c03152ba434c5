#include "benchmarks/goodput/ports.h"

#include <charconv>
#include <utility>

namespace mercury::goodput {
namespace {

constexpr uint16_t kUdpPort = 7470;

Result<AnyPort> open_uring(const PortOptions& options, Counters& counters) {
  const Result<Endpoint> local = Endpoint::parse(options.address, kUdpPort);
  if (!local) return local.error();
  uring::UringConfig config;
  config.local = *local;
  config.mtu = options.mtu;
  auto port = uring::UringPort::create(config, counters);
  if (!port) return port.error();
  return AnyPort(std::move(*port));
}

// "10.0.0.1/24" as the address of a device that the kernel does not have.
Status set_address(const std::string& text, ethdev::EthdevConfig& config) {
  const size_t slash = text.find('/');
  unsigned bits = 0;
  if (slash != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + slash + 1, end, bits);
    if (error != std::errc{} || rest != end) bits = 256;
  }
  const Result<IpAddress> ip = IpAddress::parse(text.substr(0, slash));
  if (!ip || slash == std::string::npos || bits > 128) {
    return Error(Errc::kConfig, "--address " + text + ": expected ADDRESS/PREFIX");
  }
  const ethdev::LocalAddress address{*ip, static_cast<uint8_t>(bits), {}};
  (ip->is_v4() ? config.v4 : config.v6) = address;
  return {};
}

Result<AnyPort> open_device(const PortOptions& options, Counters& counters) {
  ethdev::EthdevConfig config;
  Status status = ethdev::parse_device(options.port, config);
  if (!status) return status.error();
  config.mtu = options.mtu;
  config.udp_port = kUdpPort;
  config.memif.server = options.memif_server;
  if (!options.address.empty()) {
    status = set_address(options.address, config);
    if (!status) return status.error();
  }
  const auto device = ethdev::Device::create(config);
  if (!device) return device.error();
  auto port = ethdev::EthdevPort::open(*device, 0, counters);
  if (!port) return port.error();
  return AnyPort(std::move(*port));
}

}  // namespace

void add_options(CLI::App& app, PortOptions& options) {
  app.add_option(
         "--port", options.port,
         "uring, or a device: af_xdp:INTERFACE, af_packet:INTERFACE, memif:PATH, PCI address")
      ->required();
  app.add_option("--address", options.address,
                 "uring: ADDRESS[:UDP-PORT]; devices of our own (memif, PCI): ADDRESS/PREFIX");
  app.add_option("--mtu", options.mtu, "bytes of IP packet; 0: what the interface carries");
  app.add_flag("--memif-server", options.memif_server, "this end is the server of the memif");
}

Result<AnyPort> open_port(const PortOptions& options, Counters& counters) {
  return options.port == "uring" ? open_uring(options, counters) : open_device(options, counters);
}

}  // namespace mercury::goodput
