#include "shim/channel/channel.h"

#include "shim/channel/channel_layout.h"
#include "shim/channel/channel_state.h"

namespace mercury {
namespace {

// Submission: word 0 is op (8 bits), zero (8), priority (16), job (32); word 1 is tensor (32),
// zero (32); word 2 is the cookie. Completion: word 0 is the cookie; word 1 is tensor (32), round
// (32); word 2 is job (32), status (16), part (16).
ChannelWords encode(const Submission& s) noexcept {
  return {static_cast<uint64_t>(s.op) | uint64_t{s.priority} << 16 | uint64_t{s.job} << 32,
          uint64_t{s.tensor.value}, s.cookie};
}

bool decode(const ChannelWords& words, Submission& out) noexcept {
  const auto op = static_cast<uint8_t>(words[0]);
  if (op < static_cast<uint8_t>(SubmitOp::kPush) ||
      op > static_cast<uint8_t>(SubmitOp::kPushPull) || (words[0] >> 8 & 0xff) != 0 ||
      words[1] >> 31 != 0) {
    return false;
  }
  out.op = static_cast<SubmitOp>(op);
  out.priority = static_cast<uint16_t>(words[0] >> 16);
  out.job = static_cast<uint32_t>(words[0] >> 32);
  out.tensor.value = static_cast<uint32_t>(words[1]);
  out.cookie = words[2];
  return true;
}

ChannelWords encode(const Completion& c) noexcept {
  return {c.cookie, uint64_t{c.tensor.value} | uint64_t{c.round.value} << 32,
          uint64_t{c.job} | static_cast<uint64_t>(c.status) << 32 | uint64_t{c.part} << 48};
}

void decode(const ChannelWords& words, Completion& out) noexcept {
  out.cookie = words[0];
  out.tensor.value = static_cast<uint32_t>(words[1]);
  out.round.value = static_cast<uint32_t>(words[1] >> 32);
  out.job = static_cast<uint32_t>(words[2]);
  out.status = static_cast<Errc>(words[2] >> 32 & 0xffff);
  out.part = static_cast<uint16_t>(words[2] >> 48);
}

}  // namespace

EngineChannel::EngineChannel(std::shared_ptr<ChannelMemory> memory) : memory_(std::move(memory)) {
  const ChannelMemory::State& s = *memory_->state_;
  end_ = std::make_unique<ChannelEnd>(
      ChannelEnd::Setup{s.b, s.a, s.geometry.completions, s.geometry.submissions,
                        s.engine_doorbell.get(), s.client_doorbell_write.get(), false});
}
EngineChannel::~EngineChannel() = default;

EngineChannel::Pop EngineChannel::pop(Submission& out) noexcept {
  if (end_->broken()) return Pop::kBroken;
  ChannelWords words;
  if (!end_->pop(words)) return Pop::kEmpty;
  if (decode(words, out)) return Pop::kOne;
  end_->set_broken();
  return Pop::kBroken;
}

bool EngineChannel::complete(const Completion& completion) noexcept {
  if (!end_->has_room()) return end_->broken();
  end_->push(encode(completion));
  return true;
}

bool EngineChannel::ring() noexcept { return end_->ring(); }
bool EngineChannel::park() noexcept { return end_->park(); }
void EngineChannel::unpark() noexcept { end_->unpark(); }
int EngineChannel::engine_doorbell() const noexcept { return end_->sleep_fd(); }

ClientChannel::ClientChannel(std::shared_ptr<ChannelMemory> memory) : memory_(std::move(memory)) {
  const ChannelMemory::State& s = *memory_->state_;
  end_ = std::make_unique<ChannelEnd>(
      ChannelEnd::Setup{s.a, s.b, s.geometry.submissions, s.geometry.completions,
                        s.client_doorbell_read.get(), s.engine_doorbell.get(), true});
}
ClientChannel::~ClientChannel() = default;

bool ClientChannel::has_room() noexcept { return end_->has_room(); }

bool ClientChannel::submit(const Submission& submission) noexcept {
  if (!end_->has_room()) return false;
  end_->push(encode(submission));
  return true;
}

void ClientChannel::ring() noexcept { end_->ring(); }

bool ClientChannel::pop(Completion& out) noexcept {
  ChannelWords words;
  if (!end_->pop(words)) return false;
  decode(words, out);
  return true;
}

bool ClientChannel::park() noexcept { return end_->park(); }
void ClientChannel::unpark() noexcept { end_->unpark(); }
int ClientChannel::client_doorbell() const noexcept { return end_->sleep_fd(); }

}  // namespace mercury
