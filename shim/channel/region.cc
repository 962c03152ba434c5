#include "shim/channel/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

namespace mercury {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 46;

Result<MappedMemory> map(int fd, uint64_t bytes) {
  MappedMemory memory = MappedMemory::shared(fd, bytes);
  if (memory) return memory;
  return Error(Errc::kNoMemory, errno,
               "cannot map " + std::to_string(bytes) + " bytes of shared memory");
}

}  // namespace

uint64_t Region::whole_pages(uint64_t bytes) noexcept {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

Result<std::unique_ptr<Region>> Region::create(uint64_t bytes) {
  if (bytes == 0 || bytes > kMaxBytes) {
    return Error(Errc::kInvalidArgument, "cannot allocate " + std::to_string(bytes) + " bytes");
  }
  bytes = whole_pages(bytes);
  UniqueFd fd(::memfd_create("mercury-tensors", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Error::system(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return Error(Errc::kNoMemory, errno,
                 "cannot create " + std::to_string(bytes) + " bytes of shared memory");
  }
  Result<MappedMemory> memory = map(fd.get(), bytes);
  if (!memory) return memory.error();
  return std::unique_ptr<Region>(new Region(std::move(*memory), std::move(fd)));
}

Result<std::unique_ptr<Region>> Region::adopt(int memfd, uint64_t bytes) {
  struct stat info {};
  if (::fstat(memfd, &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes) {
    return Error(Errc::kProtocol, "a region has another size than asked for");
  }
  Result<MappedMemory> memory = map(memfd, bytes);
  if (!memory) return memory.error();
  return std::unique_ptr<Region>(new Region(std::move(*memory)));
}

Status Region::seal(int memfd) {
  if (::fcntl(memfd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) return {};
  return Error::system(errno, "cannot seal shared memory against holes");
}

Status Region::check_sealed() const {
  const int seals = ::fcntl(fd(), F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_FUTURE_WRITE) != 0) return {};
  return Error(Errc::kProtocol, "the region is not sealed against holes (F_SEAL_FUTURE_WRITE)");
}

Status Region::lock() {
  if (::mlock2(data(), bytes(), MLOCK_ONFAULT) == 0) return {};
  return Error(Errc::kNoMemory, errno,
               "cannot keep " + std::to_string(bytes()) + " bytes in memory");
}

Status Region::populate(std::byte* data, uint64_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(data) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes + page - 1) / page * page;
  int failed = 0;
  do {
    failed = ::madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE);
  } while (failed != 0 && errno == EINTR);
  if (failed == 0) return {};
  if (errno != EINVAL) {
    return Error(Errc::kNoMemory, errno, "no memory for " + std::to_string(bytes) + " bytes");
  }
  for (uintptr_t at = first; at < end; at += page) {  // an older kernel
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(at), 0, __ATOMIC_RELAXED);
  }
  return {};
}

bool Region::discard(uint64_t offset, uint64_t bytes) noexcept {
  std::byte* const range = resolve(offset, bytes);
  return range != nullptr && ::madvise(range, bytes, MADV_REMOVE) == 0;
}

}  // namespace mercury
