#include "shim/channel/channel.h"

#include <algorithm>
#include <utility>

#include "shim/channel/channel_layout.h"
#include "shim/channel/channel_state.h"

namespace mercury {
namespace {

// Submission: word 0 is op (8 bits), zero (8), priority (16), job (32); word 1 is tensor (32),
// zero (32); word 2 is the cookie. What an engine tells a program is of one of two kinds; both have
// tensor (32), round (32) in word 1 and job (32), status (16), kind (16) in word 2. Kind 0, a
// completion: word 0 is the cookie. Else an absence, which says something of the completion that
// follows: word 0 is one word of a set of workers, of those that are missing in some chunk if the
// kind is 1 to 4, in all of this engine's if it is 5 to 8. These are the words that releases before
// know; of the others kind 9 is word 4 of the first set, 10 that of the second, and so on.
constexpr uint32_t kFirstWords = 4;

struct Absence {
  uint32_t word = 0;
  bool in_all = false;
};
constexpr uint32_t kind_of(Absence what) noexcept {
  if (what.word < kFirstWords) return 1 + what.word + (what.in_all ? kFirstWords : 0);
  return 1 + 2 * what.word + (what.in_all ? 1 : 0);
}
constexpr Absence absence_of(uint32_t kind) noexcept {  // which is not 0
  if (kind <= 2 * kFirstWords) return {(kind - 1) % kFirstWords, kind > kFirstWords};
  return {(kind - 1) / 2, kind % 2 == 0};
}
static_assert(kind_of({3, true}) == 8 && kind_of({4, false}) == 9 && kind_of({4, true}) == 10);

ChannelWords encode(const Submission& s) noexcept {
  return {static_cast<uint64_t>(s.op) | uint64_t{s.priority} << 16 | uint64_t{s.job} << 32,
          uint64_t{s.tensor.value}, s.cookie};
}

bool decode(const ChannelWords& words, Submission& out) noexcept {
  const auto op = static_cast<uint8_t>(words[0]);
  if (op < static_cast<uint8_t>(SubmitOp::kPush) || op > static_cast<uint8_t>(kLastSubmitOp) ||
      (words[0] >> 8 & 0xff) != 0 || words[1] >> 31 != 0) {
    return false;
  }
  out.op = static_cast<SubmitOp>(op);
  out.priority = static_cast<uint16_t>(words[0] >> 16);
  out.job = static_cast<uint32_t>(words[0] >> 32);
  out.tensor.value = static_cast<uint32_t>(words[1]);
  out.cookie = words[2];
  return true;
}

ChannelWords encode(const Completion& c, uint64_t word, Errc status, uint64_t kind) noexcept {
  return {word, uint64_t{c.tensor.value} | uint64_t{c.round.value} << 32,
          uint64_t{c.job} | static_cast<uint64_t>(status) << 32 | kind << 48};
}

ChannelWords encode(const Completion& c) noexcept { return encode(c, c.cookie, c.status, 0); }

// The first words of both sets, then the second ones, and so on.
ChannelWords encode_absence(const Completion& c, uint32_t index) noexcept {
  const Absence what{index / 2, index % 2 != 0};
  return encode(c, (what.in_all ? c.absent.in_all : c.absent.in_some)[what.word], Errc::kOk,
                kind_of(what));
}

void decode_absence(const ChannelWords& words, Completion& out) noexcept {
  const Absence what = absence_of(static_cast<uint16_t>(words[2] >> 48));
  if (what.word >= kWorkerWords) return;
  (what.in_all ? out.absent.in_all : out.absent.in_some)[what.word] = words[0];
  out.absent_words = std::max(out.absent_words, static_cast<uint16_t>(what.word + 1));
}

bool is_absence(const ChannelWords& words) noexcept { return words[2] >> 48 != 0; }

void decode(const ChannelWords& words, Completion& out) noexcept {
  out.cookie = words[0];
  out.tensor.value = static_cast<uint32_t>(words[1]);
  out.round.value = static_cast<uint32_t>(words[1] >> 32);
  out.job = static_cast<uint32_t>(words[2]);
  out.status = static_cast<Errc>(words[2] >> 32 & 0xffff);
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
  for (; absences_told_ < 2U * completion.absent_words; ++absences_told_) {
    if (!end_->has_room()) return end_->broken();
    end_->push(encode_absence(completion, absences_told_));
  }
  if (!end_->has_room()) return end_->broken();
  end_->push(encode(completion));
  absences_told_ = 0;
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

bool ClientChannel::has_room(uint32_t count) noexcept {
  return count == 1 ? end_->has_room() : end_->has_room_for(count);
}
uint32_t ClientChannel::slots() const noexcept { return end_->slots(); }

bool ClientChannel::submit(const Submission& submission) noexcept {
  if (!end_->has_room()) return false;
  end_->push(encode(submission));
  return true;
}

void ClientChannel::ring() noexcept { end_->ring(); }

bool ClientChannel::pop(Completion& out) noexcept {
  ChannelWords words;
  while (end_->pop(words)) {
    if (is_absence(words)) {
      decode_absence(words, next_);
      continue;
    }
    out = std::exchange(next_, {});
    decode(words, out);
    return true;
  }
  return false;
}

bool ClientChannel::park() noexcept { return end_->park(); }
void ClientChannel::unpark() noexcept { end_->unpark(); }
int ClientChannel::client_doorbell() const noexcept { return end_->sleep_fd(); }

}  // namespace mercury
