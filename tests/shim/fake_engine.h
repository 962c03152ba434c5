// The engine that a service sees, without frames or sessions: token N is session N.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "transport/engine/service.h"

namespace mercury {

struct FakeEngine final : SessionHost {
  std::optional<SessionSlot> claim(Token token) override {
    return SessionSlot(static_cast<uint32_t>(token.value));
  }
  void expect(JobSlot, const CreditAllocator::FanIn&) override {}
  void heed_urgency(JobSlot job, bool heed) override { heeds[job.value] = heed; }
  void release(JobSlot, Errc, std::string_view) override {}
  std::map<uint16_t, bool> heeds;  // by job
};

}  // namespace mercury
