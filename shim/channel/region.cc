#include "shim/channel/region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

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

Result<std::unique_ptr<Region>> Region::create(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (bytes == 0 || bytes > kMaxBytes) {
    return Error(Errc::kInvalidArgument, "cannot allocate " + std::to_string(bytes) + " bytes");
  }
  bytes = (bytes + page - 1) / page * page;
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

Result<std::unique_ptr<Region>> Region::adopt(UniqueFd memfd, uint64_t bytes, uint64_t max_bytes) {
  if (bytes == 0 || bytes > max_bytes || bytes > kMaxBytes) {
    return Error(Errc::kLimit, "a region of " + std::to_string(bytes) + " bytes exceeds the " +
                                   std::to_string(max_bytes) + " bytes that are left");
  }
  const int seals = ::fcntl(memfd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
    return Error(Errc::kProtocol, "a region must be a memfd sealed against shrinking and growing");
  }
  if ((seals & (F_SEAL_SEAL | F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return Error(Errc::kProtocol,
                 "a region must be left to be sealed against holes (F_SEAL_FUTURE_WRITE) when it "
                 "is mapped; earlier libmercurystacks do not");
  }
  struct statfs filesystem {};
  if (::fstatfs(memfd.get(), &filesystem) != 0 || filesystem.f_type != TMPFS_MAGIC) {
    return Error(Errc::kProtocol, "a region must be ordinary shared memory");
  }
  struct stat info {};
  if (::fstat(memfd.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes) {
    return Error(Errc::kProtocol, "a region has another size than announced");
  }
  Result<MappedMemory> memory = map(memfd.get(), bytes);
  if (!memory) return memory.error();
  return std::unique_ptr<Region>(new Region(std::move(*memory), std::move(memfd)));
}

Status Region::seal() {
  if (::fcntl(fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) return {};
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
