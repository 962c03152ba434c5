// A program attached to a fuzzed host: its connection's far end is the daemon's own Program.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "apps/stackd/program.h"
#include "shim/channel/channel_layout.h"
#include "tests/fuzz/cluster.h"
#include "transport/base/mapped_memory.h"

namespace mercury::fuzz {

inline constexpr uint64_t kProgramMemory = 1 << 20;

class Attached {
 public:
  Attached(Cluster& cluster, size_t host, ClientId id);
  ~Attached();
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;

  // What the attach server does with a packet: it may end the connection.
  void packet(std::span<const std::byte> bytes);
  // A request with its own sequence number.
  uint32_t ask(attach::Request body);
  // Null while there is none.
  const attach::Reply* reply_to(uint32_t sequence) const;
  void hang_up();
  void on_channel_event(const Event& event);

  bool connected() const { return connected_; }
  bool gone() const { return gone_; }  // the daemon has let go of everything
  Program& program() { return *program_; }
  // Of the first engine's channel; null before HELLO was answered.
  ClientChannel* channel() { return channel_.get(); }
  // The program's own copies of what HELLO brought; -1 before.
  int descriptor(size_t which) const { return descriptors_[which].get(); }
  // What it may write to of the first engine's channel, mapped for as long as this lives; null
  // before HELLO was answered.
  ChannelArea* area() const { return reinterpret_cast<ChannelArea*>(area_.data()); }
  // Of the last memory that the daemon made for it; -1 before.
  int memory() const { return memory_.get(); }

 private:
  void take(const attach::ReplyMessage& message, std::span<const int> descriptors);

  std::shared_ptr<Program> program_;
  std::map<uint32_t, attach::Reply> replies_;
  std::map<uint32_t, size_t> asked_;  // how often each number was used
  std::array<UniqueFd, 4> descriptors_;
  UniqueFd memory_;
  MappedMemory area_;
  std::unique_ptr<ClientChannel> channel_;
  uint32_t last_sequence_ = 1'000'000;
  bool connected_ = true;
  bool gone_ = false;
};

}  // namespace mercury::fuzz
