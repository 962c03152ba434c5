#include "apps/perf/costs.h"

#include <linux/perf_event.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "transport/base/result.h"

namespace mercury::perf {
namespace {

int open_cycles(bool with_kernel) {
  perf_event_attr counter{};
  counter.size = sizeof counter;
  counter.type = PERF_TYPE_HARDWARE;
  counter.config = PERF_COUNT_HW_CPU_CYCLES;
  counter.inherit = 1;  // threads that are made later
  counter.exclude_kernel = with_kernel ? 0 : 1;
  counter.exclude_hv = 1;
  return static_cast<int>(
      ::syscall(SYS_perf_event_open, &counter, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

std::string why_not(int error) {
  if (error == ENOENT || error == EOPNOTSUPP) {
    return "this machine's processor has no cycle counter that programs may use";
  }
  if (error == EACCES || error == EPERM) {
    return "no permission to count cycles: kernel.perf_event_paranoid, or a container's rules";
  }
  return "perf_event_open: " + errno_text(error);
}

std::optional<uint64_t> clock_ns(clockid_t clock) {
  timespec now{};
  if (clock_gettime(clock, &now) != 0) return std::nullopt;  // the process has ended
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

std::optional<uint64_t> difference(std::optional<uint64_t> later, std::optional<uint64_t> earlier) {
  if (!later || !earlier) return std::nullopt;
  return *later - *earlier;
}

}  // namespace

std::optional<uint64_t> sum(std::optional<uint64_t> one, std::optional<uint64_t> other) {
  if (!one || !other) return std::nullopt;
  return *one + *other;
}

CostSample CostSample::since(const CostSample& before) const {
  return {program_ns - before.program_ns, difference(daemon_ns, before.daemon_ns),
          difference(cycles, before.cycles)};
}

void CostSample::add(const CostSample& more) {
  program_ns += more.program_ns;
  daemon_ns = sum(daemon_ns, more.daemon_ns);
  cycles = sum(cycles, more.cycles);
}

CostMeter::CostMeter() : cycles_(open_cycles(true)), cycles_scope_("user and kernel") {
  if (!cycles_ && (errno == EACCES || errno == EPERM)) {
    cycles_ = UniqueFd(open_cycles(false));
    cycles_scope_ = "user";
  }
  if (!cycles_) why_no_cycles_ = why_not(errno);
}

// Who listens is known without a word to him: the kernel says it of any connection.
void CostMeter::watch_daemon(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  why_no_daemon_ = "the kernel does not say which process listens at " + path;
  if (path.size() >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ucred peer{};
  socklen_t length = sizeof peer;
  clockid_t clock = 0;
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0 ||
      clock_getcpuclockid(peer.pid, &clock) != 0) {
    return;
  }
  daemon_clock_ = clock;
  why_no_daemon_.clear();
}

CostSample CostMeter::sample() const {
  CostSample now;
  now.program_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID).value_or(0);
  if (daemon_clock_) now.daemon_ns = clock_ns(*daemon_clock_);
  uint64_t count = 0;
  if (cycles_ && ::read(cycles_.get(), &count, sizeof count) == sizeof count) now.cycles = count;
  return now;
}

}  // namespace mercury::perf
