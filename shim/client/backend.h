// What the client library asks of the host behind it: a daemon on the other end of a socket, or an
// engine on threads of this process. Cold path; operations go through the channels.
//
// A daemon that says nothing for some 10 s, while it is asked for something or operations are held,
// counts as lost.
//
// Owner/thread: any thread may call, several at once; calls block until answered, so callers hold
// no lock that a completion needs. When the host is lost every call fails with kDaemonLost at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shim/channel/attach.h"
#include "shim/channel/channel.h"
#include "shim/channel/region.h"
#include "transport/base/result.h"

namespace mercury::client {

// A tensor and where it lies: for a daemon `wire.region` and `wire.offset_bytes` count, for an
// engine in this process `data`.
struct TensorSpec {
  attach::DeclaredTensor wire;
  std::byte* data = nullptr;
};

// A job of this attachment. The host gives its slot to another one once it is closed; the number is
// the program's (attach::JobOpen::client_job), and no other job's.
struct HostJob {
  uint16_t slot = 0;
  uint32_t number = 0;
};

// What is asked of a job fails with once close_job() has begun: another job may have its slot.
inline Error closed_error() { return Error(Errc::kClosed, "the job was closed"); }

// What everything fails with once the host has gone.
inline Error lost_error() {
  return Error(Errc::kDaemonLost,
               "mercury-stackd has gone, or stands still; attach again when it is back");
}

// What calls fail with that leave() ended.
inline Error left_error() { return Error(Errc::kClosed, "the context has been closed"); }

class Backend {
 public:
  // Leaves all jobs and ends the attachment.
  virtual ~Backend() = default;

  // One channel per engine; every operation goes to all of them. Constant, lives as the backend.
  virtual std::span<const std::unique_ptr<ClientChannel>> channels() const = 0;
  // True: engines read and write tensors wherever they lie.
  virtual bool sees_program_memory() const = 0;

  // Memory of at least so many bytes that engines see. kLimit, kNoMemory.
  virtual Result<std::unique_ptr<Region>> add_region(uint32_t id, uint64_t bytes) = 0;
  virtual Status remove_region(uint32_t id) = 0;

  // Blocks until every member is there, at most job.timeout_ms.
  virtual Result<attach::JobOpened> open_job(const attach::JobOpen& job) = 0;
  // Any number of tensors; those before the one that failed may have been declared. `rounds`: what
  // the first push of each belongs to; stays empty where all begin at 1.
  virtual Status declare(HostJob job, std::span<const TensorSpec> tensors,
                         std::vector<Round>& rounds) = 0;
  // Returns when no engine touches the job's memory any more; ends its wait_job with kClosed.
  // Whatever is asked of the job from then on fails with kClosed.
  virtual void close_job(HostJob job) = 0;
  // Ok when the job ended in order, kTimedOut after timeout_ms (-1: never), else why it failed.
  virtual Status wait_job(HostJob job, int timeout_ms) = 0;
  // Ok while the job runs, else why it failed.
  virtual Status job_status(HostJob job) = 0;

  // Tells the job's coordinator. The text has been checked.
  virtual Status set_policy(HostJob job, const std::string& policy) = 0;

  // The program ends: calls under way end with kClosed, and so do those that come. Its memory stays
  // where it is. Returns when no engine works for it any more.
  virtual void leave() = 0;

  // How many operations are in flight, or completed and not collected, is to be read there from now
  // on. Only a host that can stand still needs it.
  virtual void watch(const std::shared_ptr<const std::atomic<uint32_t>>&) {}
  // True once the host has gone; lost_fd() is readable from then on.
  virtual bool lost() const noexcept = 0;
  virtual int lost_fd() const noexcept = 0;
};

}  // namespace mercury::client
