// A GradientExchange with one program, and jobs of which it is a server, without an engine.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "shim/exchange/gradient_exchange.h"
#include "tests/shim/fake_engine.h"

namespace mercury {

// One program whose rings are small. It has no job, so that each of its operations completes at
// once, with an error.
class GradientExchangeTest : public testing::Test {
 protected:
  static constexpr uint32_t kCompletions = 4;

  explicit GradientExchangeTest(const ExchangeConfig& config = {})
      : exchange_(config, counters_, memory()) {}

  void SetUp() override {
    auto memory = ChannelMemory::create({64, kCompletions}, false);
    ASSERT_TRUE(memory) << memory.error().message;
    engine_ = std::make_unique<EngineChannel>(*memory);
    program_ = std::make_unique<ClientChannel>(*memory);
    ASSERT_TRUE(does(command::AttachChannel{engine_.get()}));
  }
  void submit(uint64_t first_cookie, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(program_->submit({SubmitOp::kPushPull, 0, 1, 1, first_cookie + i}));
    }
  }
  std::vector<uint64_t> completed() {
    std::vector<uint64_t> cookies;
    Completion completion;
    while (program_->pop(completion)) cookies.push_back(completion.cookie);
    return cookies;
  }

  // Tensor 0 of the job, all of it, in chunks of 16 elements.
  void serve(uint16_t workers, uint64_t numel, JobSlot slot = {}, const JobTerms& terms = {}) {
    command::AddServerJob job;
    job.job = slot;
    job.workers = workers;
    job.shards = 1;
    job.terms = terms;
    ASSERT_TRUE(does(job));
    command::AddTensor tensor;
    tensor.job = slot;
    tensor.numel = numel;
    tensor.chunk_bytes = 64;
    ASSERT_TRUE(does(tensor));
  }

  // False: the command failed.
  template <class OneCommand>
  bool does(const OneCommand& command) {
    exchange_.on_command(command, host_);
    bool failed = false;
    while (const auto event = exchange_.take_event()) {
      failed = failed || std::holds_alternative<event::CommandFailed>(*event);
    }
    return !failed;
  }
  bool bind_worker(JobSlot job, Rank rank, uint32_t incarnation, Token token) {
    return does(command::BindWorker{job, rank, incarnation, token});
  }

  FakeEngine host_;
  // The port: what it says, and has been told.
  struct PortState {
    bool reads = false;  // the sums that were sent last
    bool maps = true;
    int mapped = 0;
  };
  PortState port_;
  static constexpr PortMemory kPort{
      [](void* port, PayloadPin&) { return static_cast<PortState*>(port)->reads; }, nullptr,
      [](void* port, std::span<std::byte>) -> Result<MemoryKey> {
        auto& state = *static_cast<PortState*>(port);
        if (!state.maps) return Error(Errc::kLimit, "no more mappings");
        ++state.mapped;
        return MemoryKey();
      },
      [](void* port, MemoryKey) { --static_cast<PortState*>(port)->mapped; }};
  PortMemory memory() {
    PortMemory memory = kPort;
    memory.context = &port_;
    return memory;
  }

  Counters counters_;
  GradientExchange exchange_;
  std::unique_ptr<EngineChannel> engine_;
  std::unique_ptr<ClientChannel> program_;
};

}  // namespace mercury
