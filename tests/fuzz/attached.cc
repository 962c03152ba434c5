#include "tests/fuzz/attached.h"

#include <fcntl.h>

namespace mercury::fuzz {
namespace {

int copy_of(int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, 0); }

}  // namespace

Attached::Attached(Cluster& cluster, size_t host, ClientId id) {
  program_ = std::make_shared<Program>(
      id, cluster.host(host),
      Program::Memory{
          kProgramMemory, [] { return uint64_t{kProgramMemory}; }, nullptr, nullptr, {}, {}},
      [this](const attach::ReplyMessage& message, std::span<const int> descriptors) {
        take(message, descriptors);
      });
}

Attached::~Attached() { must(gone_, "a program is destroyed while the engines know it"); }

void Attached::take(const attach::ReplyMessage& message, std::span<const int> descriptors) {
  must(connected_, "a reply to a program that has gone");
  const std::vector<std::byte> bytes = attach::encode(message);
  must(bytes.size() <= attach::kMaxMessageBytes, "a reply is too long");
  must(message.sequence == 0 || attach::decode_reply(bytes).has_value(), "a reply is malformed");
  if (message.sequence != 0) {
    must(asked_[message.sequence] > 0, "a reply that nobody asked for");
    --asked_[message.sequence];
  }
  replies_.insert_or_assign(message.sequence, message.body);
  if (std::holds_alternative<attach::HelloOk>(message.body)) {
    must(descriptors.size() == descriptors_.size(), "HELLO's descriptors");
    for (size_t i = 0; i < descriptors.size(); ++i) descriptors_[i].reset(copy_of(descriptors[i]));
    area_ = MappedMemory::shared(descriptors[0], area_bytes(ChannelGeometry{}.submissions));
    must(bool(area_), "a channel cannot be mapped");
    Result<std::shared_ptr<ChannelMemory>> memory =
        ChannelMemory::adopt(copy_of(descriptors[0]), copy_of(descriptors[1]),
                             copy_of(descriptors[2]), copy_of(descriptors[3]));
    must(memory.has_value(), "a channel cannot be adopted");
    channel_ = std::make_unique<ClientChannel>(*memory);
  } else if (!descriptors.empty()) {
    must(std::holds_alternative<attach::Ok>(message.body) && descriptors.size() == 1,
         "descriptors nobody asked for");
    memory_.reset(copy_of(descriptors[0]));
  }
}

void Attached::packet(std::span<const std::byte> bytes) {
  if (!connected_) return;
  if (const auto request = attach::decode_request(bytes)) ++asked_[request->sequence];
  if (!program_->on_packet(bytes)) hang_up();
  must(program_->shared_bytes() <= kProgramMemory, "a program shares more than its limit");
  must(program_->unanswered() <= Program::kMostUnanswered, "more requests wait than may");
}

uint32_t Attached::ask(attach::Request body) {
  const uint32_t sequence = ++last_sequence_;
  packet(attach::encode(attach::RequestMessage{sequence, std::move(body)}));
  return sequence;
}

const attach::Reply* Attached::reply_to(uint32_t sequence) const {
  const auto found = replies_.find(sequence);
  return found == replies_.end() ? nullptr : &found->second;
}

void Attached::hang_up() {
  if (!connected_) return;
  connected_ = false;
  program_->on_gone([this] { gone_ = true; });
}

void Attached::on_channel_event(const Event& event) {
  if (const auto* detached = std::get_if<event::ChannelDetached>(&event)) {
    if (program_->owns(detached->channel)) program_->on_detached();
  }
  if (const auto* broken = std::get_if<event::ChannelBroken>(&event)) {
    if (program_->owns(broken->channel)) hang_up();
  }
}

}  // namespace mercury::fuzz
