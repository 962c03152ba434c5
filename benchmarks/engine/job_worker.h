// A worker of a benchmark's job and the program's end of its channel, in one process with its
// engine: what a program asks of the engine without a program around it.
//
// Owner/thread: one, for all of it, which also polls the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "shim/channel/channel.h"
#include "shim/host/host.h"

namespace mercury::bench {

template <class HostType>
class JobWorker {
 public:
  // It has `tensors` of `elems` floats each, which are zeros.
  JobWorker(std::unique_ptr<HostType> host, uint32_t tensors, uint64_t elems)
      : host_(std::move(host)),
        elems_(elems),
        memory_(elems * tensors, 0.0F),
        done_(tensors, 0),
        channel_(*ChannelMemory::create({}, false)),
        engine_end_(channel_),
        program_end_(channel_) {}

  HostType& host() { return *host_; }
  std::vector<float>& memory() { return memory_; }
  // Payload of a frame that the job has agreed on; 0: not yet.
  uint32_t chunk_bytes() const { return chunk_bytes_; }

  // `request` says all but channels and the program's number. `reply` comes from within polls.
  void open(OpenJob request, uint64_t now_ns, std::function<void(Status)> reply) {
    request.channels = {&engine_end_};
    request.client_job = kJob;
    host_->send(LaneId(0), command::AttachChannel{&engine_end_});
    host_->jobs().open_job(kClient, std::move(request), now_ns,
                           [this, reply = std::move(reply)](Result<OpenedJob> opened) {
                             if (!opened) return reply(opened.error());
                             slot_ = opened->slot;
                             chunk_bytes_ = opened->chunk_bytes;
                             reply({});
                           });
  }
  void declare(uint64_t now_ns, std::function<void(Status)> reply) {
    std::vector<TensorDeclaration> tensors;
    for (uint32_t t = 0; t < done_.size(); ++t) {
      tensors.push_back({.tensor = TensorId(t),
                         .numel = elems_,
                         .data = reinterpret_cast<std::byte*>(&memory_[t * elems_])});
    }
    host_->jobs().declare(kClient, slot_, std::move(tensors), now_ns, std::move(reply));
  }

  // False: the ring is full.
  bool submit(uint32_t tensor, SubmitOp op = SubmitOp::kPushPull) {
    return program_end_.submit({op, 0, kJob, TensorId(tensor), kCookie});
  }
  // Of no such tensor: its completion is counted as refused.
  void submit_what_is_refused() {
    (void)program_end_.submit(
        {SubmitOp::kPull, 0, kJob, TensorId(static_cast<uint32_t>(done_.size())), kRefusedCookie});
  }
  // Counts what has completed. False: an operation failed.
  bool collect() {
    Completion completion;
    while (program_end_.pop(completion)) {
      if (completion.cookie == kRefusedCookie) {
        ++refused_;
        continue;
      }
      if (completion.status != Errc::kOk) return false;
      ++done_[completion.tensor.value];
    }
    return true;
  }
  // Whether an operation of the tensor has completed that was not taken yet: it is now, with
  // take().
  bool is_done(uint32_t tensor) const { return done_[tensor] > 0; }
  void take(uint32_t tensor) { --done_[tensor]; }
  uint64_t refused() const { return refused_; }

 private:
  static constexpr ClientId kClient = 1;
  static constexpr uint32_t kJob = 1;
  static constexpr uint64_t kCookie = 1;
  static constexpr uint64_t kRefusedCookie = 1000;

  std::unique_ptr<HostType> host_;
  const uint64_t elems_;
  std::vector<float> memory_;
  std::vector<uint32_t> done_;  // operations that nobody has waited for, by tensor
  uint64_t refused_ = 0;
  JobSlot slot_;
  uint32_t chunk_bytes_ = 0;
  std::shared_ptr<ChannelMemory> channel_;
  EngineChannel engine_end_;
  ClientChannel program_end_;
};

}  // namespace mercury::bench
