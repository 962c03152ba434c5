#include "tests/disaster/runner.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>

#include "tests/disaster/world.h"

namespace mercury::disaster {
namespace {

constexpr uint64_t kBatch = 64;  // seeds a child runs; small, so that stragglers are few

// What a child writes when a seed begins (`ended` false) and when it has ended: one write each, at
// most PIPE_BUF, so nothing is torn.
struct Report {
  uint64_t seed = 0;
  bool ended = false;
  uint64_t frames = 0;
  uint64_t sums = 0;
  uint64_t virtual_ns = 0;
  uint64_t longest_wait_ns = 0;
  uint32_t programs = 0;
  uint32_t succeeded = 0;
  char violation[400] = {};
};

void say(int fd, const Report& report) {
  if (::write(fd, &report, sizeof report) != static_cast<ssize_t>(sizeof report)) ::_exit(2);
}

void run_one(int fd, uint64_t seed, const Reduction& reduction, unsigned seconds) {
  // The limit counts processor time, so a busy machine makes no failures.
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto used = static_cast<rlim_t>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec);
  const rlimit limit{used + seconds + 1, RLIM_INFINITY};
  ::setrlimit(RLIMIT_CPU, &limit);
  Report report;
  report.seed = seed;
  say(fd, report);
  const Verdict verdict = run_seed(seed, reduction);
  report.ended = true;
  report.frames = verdict.frames;
  report.sums = verdict.sums;
  report.virtual_ns = verdict.virtual_ns;
  report.longest_wait_ns = verdict.longest_wait_ns;
  report.programs = verdict.programs;
  report.succeeded = verdict.succeeded;
  std::snprintf(report.violation, sizeof report.violation, "%s", verdict.violation.c_str());
  say(fd, report);
}

struct Child {
  pid_t pid = -1;
  int fd = -1;
  uint64_t next = 0;  // first seed of its batch that has not ended
  uint64_t end = 0;
};

std::optional<Child> spawn(uint64_t from, uint64_t end, const Reduction& reduction,
                           unsigned seconds) {
  int fds[2];
  if (::pipe(fds) != 0) return std::nullopt;
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(fds[0]);
    for (uint64_t seed = from; seed < end; ++seed) run_one(fds[1], seed, reduction, seconds);
    ::_exit(0);
  }
  ::close(fds[1]);
  if (pid < 0) {
    ::close(fds[0]);
    return std::nullopt;
  }
  return Child{pid, fds[0], from, end};
}

bool read_report(int fd, Report& report) {
  size_t have = 0;
  while (have < sizeof report) {
    const ssize_t got = ::read(fd, reinterpret_cast<char*>(&report) + have, sizeof report - have);
    if (got <= 0) return false;
    have += static_cast<size_t>(got);
  }
  return true;
}

// Empty when the child ended by itself.
std::string reap(const Child& child) {
  ::close(child.fd);
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  if (WIFSIGNALED(status)) {
    if (WTERMSIG(status) == SIGXCPU) return "an endless loop";
    return std::string("killed by ") + ::strsignal(WTERMSIG(status));
  }
  if (WEXITSTATUS(status) != 0) return "exit status " + std::to_string(WEXITSTATUS(status));
  return "";
}

void add_failure(RangeResult& result, const RangeOptions& options, const Failure& failure) {
  if (options.found) options.found(failure);
  result.failures.push_back(failure);
}

void add(RangeResult& result, const RangeOptions& options, const Report& report) {
  ++result.seeds;
  result.frames += report.frames;
  result.sums += report.sums;
  result.programs += report.programs;
  result.succeeded += report.succeeded;
  result.virtual_seconds += static_cast<double>(report.virtual_ns) / 1e9;
  const double wait = static_cast<double>(report.longest_wait_ns) / 1e9;
  if (wait > result.longest_wait_seconds) {
    result.longest_wait_seconds = wait;
    result.longest_wait_seed = report.seed;
  }
  if (report.violation[0] != 0) add_failure(result, options, {report.seed, report.violation});
}

class Range {
 public:
  explicit Range(const RangeOptions& options)
      : options_(options), next_(options.from), end_(options.from + options.seeds) {}

  RangeResult run() {
    for (;;) {
      while (children_.size() < options_.jobs && next_ < end_ && !enough()) {
        if (!start(next_, std::min(next_ + kBatch, end_))) break;
        next_ = std::min(next_ + kBatch, end_);
      }
      if (children_.empty()) break;
      wait();
    }
    std::sort(result_.failures.begin(), result_.failures.end(),
              [](const Failure& a, const Failure& b) { return a.seed < b.seed; });
    return std::move(result_);
  }

 private:
  bool enough() const {
    return options_.stop_after > 0 && result_.failures.size() >= options_.stop_after;
  }
  bool start(uint64_t from, uint64_t end) {
    std::optional<Child> child = spawn(from, end, Reduction(), options_.seconds_a_seed);
    if (child) children_.push_back(*child);
    if (!child && children_.empty()) {
      result_.failures.push_back({from, "no process for it"});
      next_ = end_;
    }
    return child.has_value();
  }
  void wait() {
    std::vector<pollfd> fds;
    for (const Child& child : children_) fds.push_back({child.fd, POLLIN, 0});
    ::poll(fds.data(), fds.size(), -1);
    for (size_t i = children_.size(); i-- > 0;) {
      if (fds[i].revents != 0) hear(i);
    }
  }
  void hear(size_t index) {
    Child& child = children_[index];
    Report report;
    if (read_report(child.fd, report)) {
      if (!report.ended) return;
      child.next = report.seed + 1;
      add(result_, options_, report);
      progress();
      return;
    }
    const Child gone = child;
    children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(index));
    const std::string why = reap(gone);
    if (gone.next >= gone.end) return;
    // The seed that it was at has brought it down; the rest of its batch goes on without it.
    ++result_.seeds;
    add_failure(result_, options_, {gone.next, why.empty() ? "the process ended" : why});
    if (gone.next + 1 < gone.end && !enough()) start(gone.next + 1, gone.end);
  }
  void progress() {
    if (!options_.progress || result_.seeds % 1000 != 0) return;
    std::fprintf(stderr, "%llu seeds, %zu failures\n",
                 static_cast<unsigned long long>(result_.seeds), result_.failures.size());
  }

  const RangeOptions& options_;
  uint64_t next_;
  const uint64_t end_;
  std::vector<Child> children_;
  RangeResult result_;
};

}  // namespace

RangeResult run_range(const RangeOptions& options) { return Range(options).run(); }

std::string run_apart(uint64_t seed, const Reduction& reduction, unsigned seconds) {
  const std::optional<Child> child = spawn(seed, seed + 1, reduction, seconds);
  if (!child) return "no process for it";
  Report report;
  std::string violation;
  bool ended = false;
  while (read_report(child->fd, report)) {
    ended = report.ended;
    violation = report.violation;
  }
  const std::string why = reap(*child);
  if (ended && why.empty()) return violation;
  return why.empty() ? "the process ended" : why;
}

}  // namespace mercury::disaster
