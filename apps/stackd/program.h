// One attached program: its channels to the engines, the memory it shares, its jobs. It is trusted
// in nothing: whatever it sends is checked, and what it breaks is its own.
//
// Owner/thread: the control thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "apps/stackd/covered.h"
#include "shim/channel/attach.h"
#include "shim/channel/channel.h"
#include "shim/channel/region.h"
#include "shim/channel/unique_fd.h"
#include "shim/host/host.h"

namespace mercury {

class Program : public std::enable_shared_from_this<Program> {
 public:
  // Sends a reply; descriptors stay the program's.
  using Send = std::function<void(const attach::ReplyMessage&, std::span<const int> descriptors)>;

  // A request that waits (for a job to open, or to end) costs the daemon memory, and a region one
  // of the mappings that a process may have (65,530): no program gets many. libmercurystack's
  // regions grow by 64 MiB at least once it has that much, so these are 16 GiB.
  static constexpr size_t kMostUnanswered = 256;
  static constexpr size_t kMostRegions = 256;

  // That it shares.
  struct Memory {
    uint64_t limit_bytes = 0;
    std::function<uint64_t()> host_has_left;  // for it and for all others
    // Who takes its pages before engines touch them, and gives it back to the kernel; null: nobody,
    // and the control thread.
    std::shared_ptr<MemoryThread> thread;
    // What that thread has been given of all programs' regions, and the kernel has not got back.
    std::shared_ptr<std::atomic<uint64_t>> unmapping_bytes;
    std::function<void(const Error&)> may_be_swapped;  // is told why
    std::function<bool()> reads_replies;               // so that descriptors may be sent
  };

  Program(ClientId id, Host& host, Memory memory, Send send);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  ClientId id() const { return id_; }
  size_t job_count() const { return jobs_.size(); }
  // None of the host's engines stands still any more: whoever has asked meanwhile is told.
  void engines_go_on();
  size_t unanswered() const { return unanswered_; }  // requests; at most kMostUnanswered
  size_t region_count() const { return regions_.size(); }
  uint64_t shared_bytes() const { return shared_bytes_; }
  // Of a limit. What is given back counts only as far as it is more than that: else who shares
  // other memory at once would be refused.
  static uint64_t bytes_left(uint64_t limit, uint64_t shared, uint64_t given_back) {
    const uint64_t used = shared + (given_back > limit ? given_back - limit : 0);
    return used < limit ? limit - used : 0;
  }

  // A packet from the program, without descriptors. Not Ok: it broke the protocol, and is to be
  // disconnected.
  Status on_packet(std::span<const std::byte> bytes);
  // The connection has ended: leaves the jobs, takes the channels from the engines; `done` when
  // nothing of it is used any more.
  void on_gone(std::function<void()> done);
  bool owns(const EngineChannel* channel) const;
  void on_detached();

 private:
  struct ProgramChannel {
    std::shared_ptr<ChannelMemory> memory;
    std::unique_ptr<EngineChannel> engine;
  };
  struct SharedRegion {
    std::unique_ptr<Region> memory;
    bool sealed = false;
    Covered populated;  // of tensors that were declared in it
  };

  void reply(uint32_t sequence, attach::Reply body, std::span<const int> descriptors = {});
  void reply(uint32_t sequence, const Status& status);
  Status on_request(const attach::RequestMessage& request);
  void greet(uint32_t sequence);
  void on(uint32_t sequence, const attach::RegionAdd& request);
  bool attach_channels(uint32_t sequence);
  void unmap(SharedRegion& region);
  void on(uint32_t sequence, const attach::RegionDel& request);
  void on(uint32_t sequence, const attach::RegionSealed& request);
  void on(uint32_t sequence, const attach::JobOpen& request);
  void on(uint32_t sequence, const attach::Declare& request);
  void on(uint32_t sequence, const attach::JobClose& request);
  void on(uint32_t sequence, const attach::JobWait& request);
  void on(uint32_t sequence, const attach::JobStatus& request);
  void on(uint32_t sequence, const attach::SetPolicy& request);
  void populate(const attach::Declare& declared);
  std::vector<Round> rounds_of(uint16_t slot, const std::vector<TensorId>& tensors) const;
  // Null, and a reply, if the program has no such job.
  bool has_job(uint32_t sequence, uint16_t slot);

  const ClientId id_;
  Host& host_;
  const Memory memory_;
  Send send_;
  bool greeted_ = false;
  bool attached_ = false;  // the engines know its channels
  bool gone_ = false;
  size_t unanswered_ = 0;
  std::optional<uint32_t> asked_;  // whether the daemon runs, while an engine stands still
  uint64_t shared_bytes_ = 0;
  // Its part of Memory::unmapping_bytes.
  std::shared_ptr<std::atomic<uint64_t>> unmapping_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  std::vector<ProgramChannel> channels_;
  std::map<uint32_t, SharedRegion> regions_;
  std::optional<uint32_t> unsealed_;             // of regions_; its memfd is kept until then
  std::map<uint16_t, std::set<uint32_t>> jobs_;  // slot -> regions in which its tensors lie
  size_t detaching_ = 0;
  std::function<void()> on_done_;
};

}  // namespace mercury
