#include "transport/port/ethdev/eal.h"

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <vector>

namespace mercury::ethdev {
namespace {

std::mutex eal_mutex;
bool eal_started = false;
bool eal_has_pci = false;
bool eal_hugepages = false;

std::mutex log_mutex;
std::string log_text;
constexpr size_t kLogBytes = 2048;  // enough for an error message; the first complaint counts

ssize_t keep_log(void*, const char* text, size_t bytes) {
  add_driver_log({text, bytes});
  return static_cast<ssize_t>(bytes);
}

// "0@(0,1)": one logical core that floats over what this process may use.
std::string floating_lcore(const cpu_set_t& cpus) {
  std::string list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &cpus)) list += (list.empty() ? "" : ",") + std::to_string(cpu);
  }
  return "--lcores=0@(" + list + ")";
}

std::vector<std::string> eal_arguments(const EalOptions& options, const cpu_set_t& cpus) {
  std::vector<std::string> args = {"mercury", floating_lcore(cpus), "--no-telemetry",
                                   "--log-level=*:error",
                                   "--file-prefix=mercury" + std::to_string(::getpid())};
  if (eal_hugepages) {
    args.push_back("--in-memory");
    args.push_back("--socket-mem=" + std::to_string(options.memory_mb));
  } else {
    args.insert(args.end(), {"--no-huge", "--no-shconf", "-m", std::to_string(options.memory_mb)});
  }
  if (options.pci_address.empty()) {
    args.insert(args.end(), {"--no-pci", "--iova-mode=va"});
  } else {
    args.insert(args.end(), {"-a", options.pci_address});
  }
  return args;
}

struct ThreadNumber {
  ThreadNumber() noexcept { registered = rte_thread_register() == 0; }
  ~ThreadNumber() {
    if (registered) rte_thread_unregister();
  }
  bool registered = false;
};

}  // namespace

Status start_eal(const EalOptions& options) {
  const std::scoped_lock lock(eal_mutex);
  if (eal_started) {
    if (!options.pci_address.empty() && !eal_has_pci) {
      return Error(Errc::kConfig, "device " + options.pci_address +
                                      ": DPDK already runs without PCI in this process; name the "
                                      "PCI device first");
    }
    return {};
  }
  const uint64_t wanted = uint64_t{options.memory_mb} << 20;
  eal_hugepages = options.hugepages != Hugepages::kNever && free_hugepage_bytes() >= wanted;
  if (options.hugepages == Hugepages::kAlways && !eal_hugepages) {
    return Error(Errc::kSystem, "hugepages: " + std::to_string(options.memory_mb) +
                                    " MB are not free; run: echo " +
                                    std::to_string(options.memory_mb / 2 + 1) +
                                    " > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
  }
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0)
    return Error::system(errno, "sched_getaffinity");
  cookie_io_functions_t functions{};
  functions.write = keep_log;
  if (FILE* stream = fopencookie(nullptr, "w", functions)) {
    setvbuf(stream, nullptr, _IOLBF, 0);
    rte_openlog_stream(stream);
  }
  std::vector<std::string> args = eal_arguments(options, cpus);
  std::vector<char*> argv;
  argv.reserve(args.size());
  for (std::string& arg : args) argv.push_back(arg.data());
  if (rte_eal_init(static_cast<int>(argv.size()), argv.data()) < 0) {
    const int why = rte_errno;
    return Error(Errc::kSystem, why,
                 std::string("DPDK's EAL did not start: ") + rte_strerror(why) +
                     "; it said: " + take_driver_log());
  }
  sched_setaffinity(0, sizeof(cpus), &cpus);  // EAL moved this thread
  eal_started = true;
  eal_has_pci = !options.pci_address.empty();
  return {};
}

uint64_t free_hugepage_bytes() {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/kernel/mm/hugepages", error)) {
    const std::string name = entry.path().filename();  // hugepages-2048kB
    uint64_t size_kb = 0;
    uint64_t pages = 0;
    if (std::sscanf(name.c_str(), "hugepages-%lukB", &size_kb) != 1) continue;
    std::ifstream(entry.path() / "free_hugepages") >> pages;
    bytes += pages * size_kb * 1024;
  }
  return bytes;
}

bool eal_has_hugepages() { return eal_hugepages; }

void add_driver_log(std::string_view text) {
  const std::scoped_lock lock(log_mutex);
  if (log_text.size() < kLogBytes) log_text += text;
}

std::string take_driver_log() {
  const std::scoped_lock lock(log_mutex);
  std::string text;
  text.swap(log_text);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 3) {
    text.replace(at, 1, " / ");
  }
  return text.empty() ? "nothing" : text;
}

void register_thread() noexcept {
  if (rte_lcore_id() != LCORE_ID_ANY) return;
  thread_local ThreadNumber number;
}

}  // namespace mercury::ethdev
