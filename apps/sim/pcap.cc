#include "apps/sim/pcap.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "transport/port/port.h"

namespace mercury::simulator {
namespace {

constexpr uint32_t kMagicNanoseconds = 0xa1b23c4d;
constexpr uint32_t kLinkTypeEthernet = 1;
constexpr uint32_t kLongestFrame = 65'535 + 18;
constexpr uint8_t kUdp = 17, kHops = 64;

class Bytes {
 public:
  void u8(uint32_t value) { data_.push_back(static_cast<uint8_t>(value)); }
  void be16(uint32_t value) {
    u8(value >> 8);
    u8(value & 0xff);
  }
  void add(std::span<const uint8_t> bytes) {
    data_.insert(data_.end(), bytes.begin(), bytes.end());
  }
  void set_be16(size_t at, uint32_t value) {
    data_[at] = static_cast<uint8_t>(value >> 8);
    data_[at + 1] = static_cast<uint8_t>(value);
  }
  const std::vector<uint8_t>& all() const { return data_; }
  size_t size() const { return data_.size(); }
  std::span<const uint8_t> from(size_t at) const { return std::span(data_).subspan(at); }

 private:
  std::vector<uint8_t> data_;
};

// RFC 1071; every part but the last is even.
uint32_t add_words(uint32_t sum, std::span<const uint8_t> bytes) {
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) sum += uint32_t{bytes[i]} << 8 | bytes[i + 1];
  if (bytes.size() % 2 != 0) sum += uint32_t{bytes.back()} << 8;
  return sum;
}
uint32_t folded(uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint32_t>(~sum & 0xffff);
}

std::span<const uint8_t> address_bytes(const IpAddress& ip) {
  const auto* all = reinterpret_cast<const uint8_t*>(ip.bytes.data());
  return ip.is_v4() ? std::span(all + 12, 4) : std::span(all, 16);
}

void add_mac(Bytes& out, const IpAddress& ip) {
  out.u8(0x02);  // locally administered
  out.u8(0x4d);
  out.add(address_bytes(ip).last(4));
}

void add_ip(Bytes& out, const IpAddress& source, const IpAddress& target, uint32_t udp_bytes) {
  const size_t begin = out.size();
  if (source.is_v4()) {
    out.u8(0x45);
    out.u8(kEcnCapable);
    out.be16(20 + udp_bytes);
    out.be16(0);       // identification
    out.be16(0x4000);  // don't fragment
    out.u8(kHops);
    out.u8(kUdp);
    out.be16(0);
  } else {
    out.be16(0x6000 | kEcnCapable << 4);
    out.be16(0);
    out.be16(udp_bytes);
    out.u8(kUdp);
    out.u8(kHops);
  }
  out.add(address_bytes(source));
  out.add(address_bytes(target));
  if (source.is_v4()) out.set_be16(begin + 10, folded(add_words(0, out.from(begin))));
}

}  // namespace

Status PcapWriter::open(const std::string& path) {
  path_ = path;
  errno = 0;
  file_.open(path, std::ios::binary | std::ios::trunc);
  if (!file_) return Error::system(errno, "cannot write " + path);
  const uint32_t head[] = {kMagicNanoseconds, 2 | 4 << 16, 0, 0, kLongestFrame, kLinkTypeEthernet};
  file_.write(reinterpret_cast<const char*>(head), sizeof head);
  return {};
}

void PcapWriter::write(uint64_t now_ns, const Endpoint& source, const Endpoint& target,
                       std::span<const std::byte> payload) {
  const auto udp_bytes = static_cast<uint32_t>(8 + payload.size());
  const std::span body(reinterpret_cast<const uint8_t*>(payload.data()), payload.size());
  Bytes frame;
  add_mac(frame, target.ip);
  add_mac(frame, source.ip);
  frame.be16(source.ip.is_v4() ? 0x0800 : 0x86dd);
  add_ip(frame, source.ip, target.ip, udp_bytes);
  const size_t udp = frame.size();
  frame.be16(source.port);
  frame.be16(target.port);
  frame.be16(udp_bytes);
  frame.be16(0);
  uint32_t sum = add_words(kUdp + udp_bytes, address_bytes(source.ip));
  sum = add_words(add_words(sum, address_bytes(target.ip)), frame.from(udp));
  const uint32_t checksum = folded(uint64_t{sum} + add_words(0, body));
  frame.set_be16(udp + 6, checksum == 0 ? 0xffff : checksum);

  const auto bytes = static_cast<uint32_t>(frame.size() + payload.size());
  const uint32_t head[] = {static_cast<uint32_t>(now_ns / 1'000'000'000),
                           static_cast<uint32_t>(now_ns % 1'000'000'000), bytes, bytes};
  file_.write(reinterpret_cast<const char*>(head), sizeof head);
  file_.write(reinterpret_cast<const char*>(frame.all().data()),
              static_cast<std::streamsize>(frame.size()));
  file_.write(reinterpret_cast<const char*>(payload.data()),
              static_cast<std::streamsize>(payload.size()));
}

Status PcapWriter::close() {
  errno = 0;
  file_.close();
  if (!file_) return Error::system(errno, "cannot write " + path_);
  return {};
}

void PcapWriter::tap(void* writer, uint64_t now_ns, const Endpoint& source, const Endpoint& target,
                     std::span<const std::byte> payload) {
  static_cast<PcapWriter*>(writer)->write(now_ns, source, target, payload);
}

}  // namespace mercury::simulator
