#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <new>
#include <string>

#include "shim/channel/channel_state.h"
#include "shim/channel/region.h"

namespace mercury {
namespace {

bool valid_slots(uint32_t slots) {
  return slots >= kMinRingSlots && slots <= kMaxRingSlots && std::has_single_bit(slots);
}

Status map_area(int fd, size_t bytes, bool writable, MappedMemory& memory, ChannelArea*& area) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  memory = fd < 0 ? MappedMemory::anonymous(bytes, protection, MAP_POPULATE)
                  : MappedMemory::shared(fd, bytes, protection, MAP_POPULATE);
  if (!memory) return Error::system(errno, "cannot map a channel's memory");
  area = reinterpret_cast<ChannelArea*>(memory.data());
  return {};
}

void write_header(ChannelArea& area, uint32_t side, const ChannelGeometry& geometry) {
  new (&area) ChannelArea{};
  area.header.side = side;
  area.header.submissions = geometry.submissions;
  area.header.completions = geometry.completions;
}

Result<UniqueFd> create_memfd(const char* name, size_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Error::system(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Error::system(errno, "cannot size a channel's memory");
  }
  return fd;
}

Status seal(int fd, int seals) {
  if (::fcntl(fd, F_ADD_SEALS, seals) == 0) return {};
  return Error::system(errno, "cannot seal a channel's memory");
}

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
// All but what is mapped already: nobody else can write to it, or punch a hole.
constexpr int kLastSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

Status check_seals(int fd, int needed) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && (seals & needed) == needed) return {};
  return Error(Errc::kProtocol, "a channel's memory is not sealed");
}

// Size of a received memfd; the header is read only after this.
Result<size_t> checked_size(int fd, int seals) {
  if (Status sealed = check_seals(fd, seals); !sealed) return sealed.error();
  struct stat info {};
  if (::fstat(fd, &info) != 0) return Error::system(errno, "fstat");
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes < area_bytes(kMinRingSlots) || bytes > area_bytes(kMaxRingSlots)) {
    return Error(Errc::kProtocol, "a channel's memory has " + std::to_string(bytes) + " bytes");
  }
  return bytes;
}

Status check_headers(const AreaHeader& a, const AreaHeader& b) {
  for (const AreaHeader* header : {&a, &b}) {
    if (header->magic != kChannelMagic) {
      return Error(Errc::kProtocol, "a channel's memory has the wrong magic number");
    }
    if (header->abi != kChannelAbi) {
      return Error(Errc::kVersionMismatch, "the daemon's channels have version " +
                                               std::to_string(header->abi) + ", this library's " +
                                               std::to_string(kChannelAbi));
    }
  }
  const bool same = a.submissions == b.submissions && a.completions == b.completions;
  if (a.side != kChannelSideA || b.side != kChannelSideB || !same || !valid_slots(a.submissions) ||
      !valid_slots(a.completions)) {
    return Error(Errc::kProtocol, "a channel's two memories do not belong together");
  }
  return {};
}

}  // namespace

Status ChannelMemory::State::map(size_t a_bytes, size_t b_bytes, bool b_writable) {
  if (Status s = map_area(memfd_a.get(), a_bytes, true, a_memory, a); !s) return s;
  return map_area(memfd_b.get(), b_bytes, b_writable, b_memory, b);
}

ChannelMemory::ChannelMemory(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChannelMemory::~ChannelMemory() = default;

Result<std::shared_ptr<ChannelMemory>> ChannelMemory::create(const ChannelGeometry& geometry,
                                                             bool shared) {
  if (!valid_slots(geometry.submissions) || !valid_slots(geometry.completions)) {
    return Error(Errc::kInvalidArgument, "a channel's rings must have a power of two slots, 4 to " +
                                             std::to_string(kMaxRingSlots));
  }
  auto state = std::make_unique<State>();
  state->geometry = geometry;
  const size_t a_bytes = area_bytes(geometry.submissions);
  const size_t b_bytes = area_bytes(geometry.completions);
  if (shared) {
    Result<UniqueFd> a = create_memfd("mercury-channel-a", a_bytes);
    if (!a) return a.error();
    Result<UniqueFd> b = create_memfd("mercury-channel-b", b_bytes);
    if (!b) return b.error();
    state->memfd_a = std::move(*a);
    state->memfd_b = std::move(*b);
  }
  if (Status s = state->map(a_bytes, b_bytes, true); !s) return s.error();
  write_header(*state->a, kChannelSideA, geometry);
  write_header(*state->b, kChannelSideB, geometry);
  if (shared) {
    if (Status s = seal(state->memfd_a.get(), kSizeSeals); !s) return s.error();
    if (Status s = seal(state->memfd_b.get(), kSizeSeals | kLastSeals); !s) return s.error();
    // An engine that looks at a page waits for it. Where nobody may lock they may be swapped.
    (void)::mlock(state->a, a_bytes);
    (void)::mlock(state->b, b_bytes);
  }
  state->engine_doorbell.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->engine_doorbell) return Error::system(errno, "eventfd");
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) return Error::system(errno, "pipe");
  state->client_doorbell_read.reset(pipe_ends[0]);
  state->client_doorbell_write.reset(pipe_ends[1]);
  return std::shared_ptr<ChannelMemory>(new ChannelMemory(std::move(state)));
}

Result<std::shared_ptr<ChannelMemory>> ChannelMemory::adopt(int memfd_a, int memfd_b,
                                                            int engine_doorbell,
                                                            int client_doorbell) {
  auto state = std::make_unique<State>();
  state->memfd_a.reset(memfd_a);
  state->memfd_b.reset(memfd_b);
  state->engine_doorbell.reset(engine_doorbell);
  state->client_doorbell_read.reset(client_doorbell);
  Result<size_t> a_bytes = checked_size(memfd_a, kSizeSeals);
  if (!a_bytes) return a_bytes.error();
  Result<size_t> b_bytes = checked_size(memfd_b, kSizeSeals | kLastSeals);
  if (!b_bytes) return b_bytes.error();
  if (Status s = state->map(*a_bytes, *b_bytes, false); !s) return s.error();
  if (Status s = check_headers(state->a->header, state->b->header); !s) return s.error();
  state->geometry = {state->a->header.submissions, state->a->header.completions};
  if (*a_bytes != area_bytes(state->geometry.submissions) ||
      *b_bytes != area_bytes(state->geometry.completions)) {
    return Error(Errc::kProtocol, "a channel's memory has another size than its header says");
  }
  if (Status s = seal(memfd_a, kLastSeals); !s) return s.error();
  // A forked child has no use for rings that its parent writes.
  ::madvise(state->a, *a_bytes, MADV_DONTFORK);
  ::madvise(state->b, *b_bytes, MADV_DONTFORK);
  return std::shared_ptr<ChannelMemory>(new ChannelMemory(std::move(state)));
}

Status ChannelMemory::close_a() {
  if (Status sealed = check_seals(state_->memfd_a.get(), kLastSeals); !sealed) return sealed;
  // Whatever holes there are, no more come.
  return Region::populate(state_->a_memory.data(), state_->a_memory.bytes());
}

void ChannelMemory::leave_to(MemoryThread& thread) noexcept {
  state_->a_memory.leave_to(thread);
  state_->b_memory.leave_to(thread);
}

std::array<int, 4> ChannelMemory::program_descriptors() const {
  return {state_->memfd_a.get(), state_->memfd_b.get(), state_->engine_doorbell.get(),
          state_->client_doorbell_read.get()};
}

}  // namespace mercury
