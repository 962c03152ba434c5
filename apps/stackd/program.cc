#include "apps/stackd/program.h"

#include <algorithm>
#include <string>
#include <utility>

#include "apps/stackd/version.h"
#include "scheduler/policy.h"
#include "shim/host/open_job.h"

namespace mercury {

Program::Program(ClientId id, Host& host, Memory memory, Send send)
    : id_(id), host_(host), memory_(std::move(memory)), send_(std::move(send)) {}

void Program::reply(uint32_t sequence, attach::Reply body, std::span<const int> descriptors) {
  if (sequence != 0) --unanswered_;
  if (!gone_) send_({sequence, std::move(body)}, descriptors);
}

void Program::reply(uint32_t sequence, const Status& status) {
  if (status) {
    reply(sequence, attach::Ok{});
  } else {
    reply(sequence, attach::Failed{status.error().code, status.error().message});
  }
}

Status Program::on_packet(std::span<const std::byte> bytes) {
  Result<attach::RequestMessage> request = attach::decode_request(bytes);
  if (!request) {
    reply(0, attach::Failed{request.error().code, request.error().message});
    return request.error();
  }
  Status good = on_request(*request);
  attach::wipe(request->body);
  return good;
}

Status Program::on_request(const attach::RequestMessage& request) {
  const uint32_t sequence = request.sequence;
  ++unanswered_;
  if (unanswered_ > kMostUnanswered) {
    reply(sequence,
          Status(Error(Errc::kLimit, "a program may have " + std::to_string(kMostUnanswered) +
                                         " requests waiting for their answers")));
    return {};
  }
  if (const auto* hello = std::get_if<attach::Hello>(&request.body)) {
    Status greeting =
        greeted_ ? Status(Error(Errc::kProtocol, "a second HELLO")) : attach::check_hello(*hello);
    if (greeting) {
      greet(sequence);
    } else {
      reply(sequence, greeting);
    }
    return greeting;
  }
  if (!greeted_) {
    const Error error(Errc::kProtocol, "the first request must be HELLO");
    reply(sequence, Status(error));
    return error;
  }
  std::visit(
      [this, sequence](const auto& body) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(body)>, attach::Hello>) {
          on(sequence, body);
        }
      },
      request.body);
  return {};
}

void Program::greet(uint32_t sequence) {
  std::vector<int> descriptors;
  for (size_t lane = 0; lane < host_.lane_count(); ++lane) {
    Result<std::shared_ptr<ChannelMemory>> memory = ChannelMemory::create(ChannelGeometry{}, true);
    if (!memory) {
      channels_.clear();
      return reply(sequence, Status(memory.error()));
    }
    channels_.push_back({*memory, std::make_unique<EngineChannel>(*memory)});
    for (int fd : (*memory)->program_descriptors()) descriptors.push_back(fd);
  }
  greeted_ = true;
  reply(sequence,
        attach::HelloOk{static_cast<uint32_t>(channels_.size()), kMercuryVersion, id_,
                        attach::kAbiMinor},
        descriptors);
}

// An engine waits for what a program can do to memory that it has not sealed. False, and a reply.
bool Program::attach_channels(uint32_t sequence) {
  if (attached_) return true;
  for (const ProgramChannel& channel : channels_) {
    if (Status closed = channel.memory->close_a(); !closed) {
      reply(sequence, closed);
      return false;
    }
  }
  attached_ = true;
  for (size_t lane = 0; lane < channels_.size(); ++lane) {
    host_.send(LaneId(static_cast<uint16_t>(lane)),
               command::AttachChannel{channels_[lane].engine.get()});
  }
  return true;
}

void Program::on(uint32_t sequence, const attach::RegionAdd& request) {
  const auto refuse = [this, sequence](Errc code, std::string text) {
    reply(sequence, Status(Error(code, std::move(text))));
  };
  if (regions_.count(request.region) > 0) {
    return refuse(Errc::kExists, "a region of that number is shared");
  }
  if (unsealed_) {
    return refuse(Errc::kBusy, "region " + std::to_string(*unsealed_) + " is not sealed yet");
  }
  if (regions_.size() >= kMostRegions) {
    return refuse(Errc::kLimit, "a program may share " + std::to_string(kMostRegions) + " regions");
  }
  const uint64_t bytes = Region::whole_pages(request.bytes);
  const uint64_t own_left = bytes_left(memory_.limit_bytes, shared_bytes_, *unmapping_bytes_);
  const uint64_t host_left = memory_.host_has_left();
  if (const uint64_t left = std::min(own_left, host_left); bytes > left) {
    return refuse(Errc::kLimit,
                  "a region of " + std::to_string(request.bytes) + " bytes exceeds the " +
                      std::to_string(left) + " bytes that are left" +
                      (own_left <= host_left ? " (attach.program_memory)"
                                             : " for all programs (attach.total_memory)"));
  }
  if (memory_.reads_replies && !memory_.reads_replies()) {
    return refuse(Errc::kBusy, "too many replies are not read yet");
  }
  Result<std::unique_ptr<Region>> region = Region::create(bytes);
  if (!region) return refuse(region.error().code, region.error().message);
  shared_bytes_ += bytes;
  const int memfd = (*region)->fd();
  regions_[request.region].memory = std::move(*region);
  unsealed_ = request.region;
  reply(sequence, attach::Ok{}, std::span(&memfd, 1));
}

void Program::on(uint32_t sequence, const attach::RegionSealed& request) {
  if (unsealed_ != request.region) {
    return reply(sequence, Status(Error(Errc::kNotFound, "no such region is to be sealed")));
  }
  SharedRegion& region = regions_[request.region];
  if (Status sealed = region.memory->check_sealed(); !sealed) return reply(sequence, sealed);
  region.sealed = true;
  region.memory->drop_fd();
  unsealed_.reset();
  if (Status kept = region.memory->lock(); !kept && memory_.may_be_swapped) {
    memory_.may_be_swapped(kept.error());
  }
  reply(sequence, Status());
}

void Program::on(uint32_t sequence, const attach::RegionDel& request) {
  const auto region = regions_.find(request.region);
  if (region == regions_.end()) {
    return reply(sequence, Status(Error(Errc::kNotFound, "no such region")));
  }
  for (const auto& [slot, used] : jobs_) {
    if (used.count(request.region) > 0) {
      return reply(sequence, Status(Error(Errc::kBusy, "a tensor lies in the region")));
    }
  }
  if (unsealed_ == request.region) unsealed_.reset();
  shared_bytes_ -= region->second.memory->bytes();
  unmap(region->second);
  regions_.erase(region);
  reply(sequence, Status());
}

// Whose last descriptor is closed gives all of it back, and takes as long. What this process has
// not touched goes in one step: each waits for a hole that is being punched.
void Program::unmap(SharedRegion& region) {
  region.memory->drop_fd();
  if (memory_.thread == nullptr) return;
  const uint64_t bytes = region.memory->bytes();
  *unmapping_bytes_ += bytes;
  *memory_.unmapping_bytes += bytes;
  region.memory->unmap_by(
      *memory_.thread,
      region.populated.empty() ? MemoryThread::Steps::kOne : MemoryThread::Steps::kMany,
      [own = unmapping_bytes_, all = memory_.unmapping_bytes, bytes] {
        *own -= bytes;
        *all -= bytes;
      });
}

void Program::on(uint32_t sequence, const attach::JobOpen& request) {
  if (!attach_channels(sequence)) return;
  std::vector<EngineChannel*> channels;
  for (ProgramChannel& channel : channels_) channels.push_back(channel.engine.get());
  Result<OpenJob> open = to_open_job(request, std::move(channels));
  if (!open) return reply(sequence, Status(open.error()));
  host_.jobs().open_job(id_, std::move(*open), monotonic_ns(),
                        [self = shared_from_this(), sequence](Result<OpenedJob> opened) {
                          if (!opened) return self->reply(sequence, Status(opened.error()));
                          self->jobs_[opened->slot.value];
                          self->reply(sequence, to_job_opened(*opened));
                        });
}

bool Program::has_job(uint32_t sequence, uint16_t slot) {
  if (jobs_.count(slot) > 0) return true;
  reply(sequence, Status(Error(Errc::kNotFound, "the program has no such job")));
  return false;
}

void Program::on(uint32_t sequence, const attach::Declare& request) {
  if (!has_job(sequence, request.slot)) return;
  std::vector<TensorDeclaration> tensors;
  for (const attach::DeclaredTensor& tensor : request.tensors) {
    const auto region = regions_.find(tensor.region);
    std::byte* data = region == regions_.end() || !region->second.sealed
                          ? nullptr
                          : region->second.memory->resolve(tensor.offset_bytes,
                                                           tensor.numel * size_of(tensor.dtype));
    if (data == nullptr) {
      return reply(sequence, Status(Error(Errc::kInvalidArgument,
                                          "tensor " + std::to_string(tensor.id.value) +
                                              " does not lie in shared memory")));
    }
    tensors.push_back(to_declaration(tensor, data));
  }
  std::vector<TensorId> ids;
  for (const attach::DeclaredTensor& tensor : request.tensors) {
    jobs_[request.slot].insert(tensor.region);
    ids.push_back(tensor.id);
  }
  host_.jobs().declare(
      id_, JobSlot(request.slot), std::move(tensors), monotonic_ns(),
      [self = shared_from_this(), sequence, request, ids = std::move(ids)](const Status& declared) {
        if (!declared) return self->reply(sequence, declared);
        self->populate(request);
        self->reply(sequence, attach::Ok{self->rounds_of(request.slot, ids)});
      });
}

// Off the datapath, and each page once: those that are there stay.
void Program::populate(const attach::Declare& declared) {
  if (memory_.thread == nullptr) return;
  for (const attach::DeclaredTensor& tensor : declared.tensors) {
    const auto found = regions_.find(tensor.region);
    if (found == regions_.end()) continue;
    std::byte* const begin = found->second.memory->data();
    const uint64_t end = tensor.offset_bytes + tensor.numel * size_of(tensor.dtype);
    for (const auto& [from, to] : found->second.populated.add(tensor.offset_bytes, end)) {
      memory_.thread->populate({begin + from, begin + to}, begin);
    }
  }
}

// Empty where all tensors begin at round 1, as they do in every job's first life.
std::vector<Round> Program::rounds_of(uint16_t slot, const std::vector<TensorId>& tensors) const {
  std::vector<Round> rounds;
  rounds.reserve(tensors.size());
  for (const TensorId tensor : tensors) {
    rounds.push_back(host_.jobs().first_round(id_, JobSlot(slot), tensor));
  }
  const bool all_new =
      std::all_of(rounds.begin(), rounds.end(), [](Round round) { return round == Round(1); });
  return all_new ? std::vector<Round>{} : rounds;
}

void Program::on(uint32_t sequence, const attach::JobClose& request) {
  if (!has_job(sequence, request.slot)) return;
  const uint16_t slot = request.slot;
  host_.jobs().close_job(id_, JobSlot(slot), monotonic_ns(),
                         [self = shared_from_this(), sequence, slot] {
                           self->jobs_.erase(slot);
                           self->reply(sequence, Status());
                         });
}

void Program::on(uint32_t sequence, const attach::JobWait& request) {
  if (!has_job(sequence, request.slot)) return;
  host_.jobs().wait_job(
      id_, JobSlot(request.slot),
      [self = shared_from_this(), sequence](const Status& ended) { self->reply(sequence, ended); });
}

void Program::on(uint32_t sequence, const attach::JobStatus& request) {
  if (request.slot == attach::kNoSlot && host_.standing_lane(monotonic_ns())) {
    if (std::exchange(asked_, sequence)) --unanswered_;
    return;
  }
  if (!has_job(sequence, request.slot)) return;
  reply(sequence, host_.jobs().job_status(id_, JobSlot(request.slot)));
}

void Program::engines_go_on() {
  if (const auto asked = std::exchange(asked_, std::nullopt))
    (void)has_job(*asked, attach::kNoSlot);
}

void Program::on(uint32_t sequence, const attach::SetPolicy& request) {
  if (!has_job(sequence, request.slot)) return;
  const Result<Policy> policy = parse_engine_policy(request.policy);
  if (!policy) return reply(sequence, Status(policy.error()));
  reply(sequence,
        host_.jobs().set_policy(id_, JobSlot(request.slot), print_policy(*policy), monotonic_ns()));
}

// Who ends has often touched more than anybody gives back by a request.
Program::~Program() {
  if (memory_.thread == nullptr) return;
  for (const ProgramChannel& channel : channels_) channel.memory->leave_to(*memory_.thread);
  for (auto& [number, region] : regions_) unmap(region);
}

bool Program::owns(const EngineChannel* channel) const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [channel](const ProgramChannel& c) { return c.engine.get() == channel; });
}

void Program::on_gone(std::function<void()> done) {
  if (gone_) return;
  gone_ = true;
  on_done_ = std::move(done);
  // First the jobs, which use the channels; then the channels; then this object goes.
  host_.jobs().client_gone(id_, monotonic_ns(), [self = shared_from_this()] {
    self->detaching_ = self->attached_ ? self->channels_.size() : 0;
    for (size_t lane = 0; lane < self->detaching_; ++lane) {
      self->host_.send(LaneId(static_cast<uint16_t>(lane)),
                       command::DetachChannel{self->channels_[lane].engine.get()});
    }
    if (self->detaching_ == 0) self->on_done_();
  });
}

void Program::on_detached() {
  if (--detaching_ == 0) on_done_();
}

}  // namespace mercury
