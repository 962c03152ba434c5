#include "transport/flow/control_stream.h"

#include "transport/wire/be.h"
#include "transport/wire/stream.h"

namespace mercury {
namespace {

constexpr size_t kPrefixBytes = sizeof(wire::Be32);

}  // namespace

bool ControlSender::push(std::span<const std::byte> message) {
  const size_t total = kPrefixBytes + message.size();
  if (out_.unacknowledged_bytes() + total > kMaxControlUnacknowledgedBytes) return false;
  const wire::Be32 length(static_cast<uint32_t>(message.size()));
  out_.append(std::as_bytes(std::span(&length, 1)));
  out_.append(message);
  return true;
}

std::optional<StreamSender::Segment> ControlSender::next() const noexcept {
  const std::optional<StreamSender::Segment> segment =
      out_.next(segment_bytes_, wire::kMaxStreamBytes);
  // What does not fit is not cut smaller: it waits until it does.
  if (segment && segment->offset + segment->bytes > out_.base() + kControlWindowBytes) return {};
  return segment;
}

bool ControlReceiver::on_bytes(uint64_t offset, std::span<const std::byte> bytes) {
  // Written so that a hostile offset near 2^64 cannot wrap.
  const uint64_t next = in_.arrived();
  if (bytes.size() > kControlWindowBytes) return false;
  if (offset > next && offset - next > kControlWindowBytes - bytes.size()) return false;
  return in_.on_bytes(offset, bytes);
}

ControlReceiver::Next ControlReceiver::next_message(std::vector<std::byte>& message) {
  if (in_.readable() < kPrefixBytes) return Next::kNone;
  wire::Be32 length;
  in_.peek(std::as_writable_bytes(std::span(&length, 1)));
  if (length.value() > kMaxControlMessageBytes) return Next::kBad;
  if (in_.readable() - kPrefixBytes < length.value()) return Next::kNone;
  in_.read(std::as_writable_bytes(std::span(&length, 1)));
  message.resize(length.value());
  in_.read(message);
  return Next::kMessage;
}

}  // namespace mercury
