#include "tests/shim/client_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace mercury::testing {
namespace {

constexpr int kReadyMs = 20'000;
constexpr char kPort[] = ":17470";

int open_notifications(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

}  // namespace

std::string fresh_address() {
  static std::atomic<int> last{0};
  const int pid = ::getpid();
  const int n = ++last;
  return "127." + std::to_string(1 + pid / 256 % 254) + "." + std::to_string(pid % 256) + "." +
         std::to_string(1 + n % 254);
}

std::string name_of(Engines engines) {
  return engines == Engines::kEmbedded ? "Embedded" : "Daemon";
}

// --- daemons ---------------------------------------------------------------------------------

StackDaemon::StackDaemon(std::string address, const std::string& extra)
    : address_(std::move(address)), extra_(extra) {
  char folder[] = "/tmp/mercury-client-XXXXXX";
  folder_ = ::mkdtemp(folder);
  start();
}

void StackDaemon::start() {
  const std::string config = folder_ + "/stackd.toml", notify = folder_ + "/notify";
  std::ofstream(config) << "[port]\nkind = \"uring\"\naddress = [\"" << address_
                        << "/8\"]\nudp_port = 17470\nengines = 2\n"
                        << "[attach]\nsocket = \"" << socket() << "\"\n"
                        << extra_;
  std::filesystem::remove(notify);
  const int notifications = open_notifications(notify);
  pid_ = ::fork();
  if (pid_ == 0) {
    const int log = ::open((folder_ + "/log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ::dup2(log, STDERR_FILENO);
    ::setenv("NOTIFY_SOCKET", notify.c_str(), 1);
    const bool says_open = extra_.find("\nopen = ") != std::string::npos;
    const char* const open = says_open ? nullptr : "jobs.open=true";  // the tests' jobs are
    ::execl(STACKD, STACKD, "--config", config.c_str(), says_open ? nullptr : "--set", open,
            nullptr);
    ::_exit(127);
  }
  if (!wait_until_ready(notifications)) {
    ADD_FAILURE() << "mercury-stackd is not ready: " << log();
  }
  ::close(notifications);
}

bool StackDaemon::wait_until_ready(int notifications) const {
  pollfd ready{notifications, POLLIN, 0};
  char said[64] = {};
  return ::poll(&ready, 1, kReadyMs) == 1 && ::recv(notifications, said, sizeof said - 1, 0) > 0 &&
         std::string(said).find("READY=1") == 0;
}

std::string StackDaemon::log() const {
  std::ifstream log(folder_ + "/log");
  return {std::istreambuf_iterator<char>(log), {}};
}

bool StackDaemon::has_in_memory(std::string_view bytes) const {
  constexpr uint64_t kMostLookedAt = uint64_t{1} << 30;  // beyond: addresses that nothing fills
  const std::string process = "/proc/" + std::to_string(pid_);
  std::ifstream maps(process + "/maps");
  std::ifstream memory(process + "/mem", std::ios::binary);
  EXPECT_TRUE(maps && memory);
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    char mode[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, mode) != 3 || mode[1] != 'w' ||
        mode[3] == 's' || end - begin > kMostLookedAt) {
      continue;
    }
    std::string there(end - begin, 0);
    memory.clear();
    memory.seekg(static_cast<std::streamoff>(begin));
    memory.read(there.data(), static_cast<std::streamsize>(there.size()));
    if (there.find(bytes) != std::string::npos) return true;
  }
  return false;
}

StackDaemon::~StackDaemon() {
  end(SIGTERM);
  std::filesystem::remove_all(folder_);
}

void StackDaemon::kill() { end(SIGKILL); }
// It stands still when this returns: a thread of it may run on for a while after the signal.
void StackDaemon::stop() {
  EXPECT_EQ(::kill(pid_, SIGSTOP), 0);
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
  EXPECT_TRUE(WIFSTOPPED(status));
}
void StackDaemon::go_on() { EXPECT_EQ(::kill(pid_, SIGCONT), 0); }

// A signal would stop all of the process: a debugger stops one thread.
void StackDaemon::stop_engine() {
  const std::string tasks = "/proc/" + std::to_string(pid_) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "mercury-eng0") stopped_ = std::stoi(task.path().filename());
  }
  ASSERT_GT(stopped_, 0);
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, stopped_, nullptr, nullptr), 0);
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, stopped_, nullptr, nullptr), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(stopped_, &status, __WALL), stopped_);
  ASSERT_TRUE(WIFSTOPPED(status));
}
void StackDaemon::engine_goes_on() {
  EXPECT_EQ(::ptrace(PTRACE_DETACH, stopped_, nullptr, nullptr), 0);
}

void StackDaemon::end(int signal) {
  if (pid_ <= 0) return;
  ::kill(pid_, signal);
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
  if (signal == SIGTERM) {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  pid_ = -1;
}

mercury_context* attach_daemon(const std::string& socket, int32_t timeout_ms) {
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  options.mode = MERCURY_MODE_DAEMON;
  options.socket = socket.c_str();
  options.daemon_timeout_ms = timeout_ms;
  mercury_context* context = nullptr;
  EXPECT_EQ(mercury_attach(&options, &context), 0) << mercury_last_error();
  return context;
}

mercury_context* attach_embedded(const std::string& listen) {
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  options.mode = MERCURY_MODE_EMBEDDED;
  options.listen = listen.c_str();
  mercury_context* context = nullptr;
  EXPECT_EQ(mercury_attach(&options, &context), 0) << mercury_last_error();
  return context;
}

// --- jobs ------------------------------------------------------------------------------------

RealJob::RealJob(Engines engines, Options options)
    : engines_(engines), options_(std::move(options)) {
  std::vector<std::string> addresses;
  for (int i = 0; i < options_.servers; ++i) {
    addresses.push_back(fresh_address());
    rendezvous_ += (i > 0 ? "," : "") + addresses.back() + kPort;
  }
  for (const std::string& address : addresses) {
    if (engines_ == Engines::kDaemon) {
      daemons_.push_back(std::make_unique<StackDaemon>(address, options_.daemon_config));
    } else {
      server_contexts_.push_back(attach_embedded());  // listens where the rendezvous says
    }
  }
  contexts_.resize(static_cast<size_t>(options_.workers));
  for (int rank = 0; rank < options_.workers; ++rank) {
    contexts_[static_cast<size_t>(rank)] = attach(rank);
  }
  jobs_ = open_again(options_.name);
}

mercury_context* RealJob::attach(int rank) const {
  if (engines_ == Engines::kEmbedded) return attach_embedded();
  return attach_daemon(daemons_[static_cast<size_t>(rank) % daemons_.size()]->socket(),
                       rank == 0 ? options_.first_timeout_ms : 0);
}

mercury_job_options RealJob::member_options() const {
  mercury_job_options open;
  mercury_job_options_init(&open, sizeof open);
  open.name = options_.name.c_str();
  if (!options_.secret.empty()) open.secret = options_.secret.c_str();
  open.workers = options_.workers;
  open.servers = options_.servers;
  open.rendezvous = rendezvous_.c_str();
  open.deterministic = options_.deterministic;
  return open;
}

void RealJob::serve(const std::string& name, int rank) {
  mercury_job_options open = member_options();
  open.name = name.c_str();
  open.role = MERCURY_ROLE_SERVER;
  open.rank = rank;
  mercury_job* job = nullptr;
  EXPECT_EQ(mercury_job_open(server_contexts_[static_cast<size_t>(rank)], &open, &job), 0)
      << mercury_last_error();
  const int result = mercury_job_wait_end(job, MERCURY_FOREVER);
  {
    const std::lock_guard lock(mutex_);
    server_results_.push_back(result);
  }
  mercury_job_close(job);
}

std::vector<mercury_job*> RealJob::open_again(const std::string& name) {
  for (size_t i = 0; i < server_contexts_.size(); ++i) {
    servers_.emplace_back([this, name, i] { serve(name, static_cast<int>(i)); });
  }
  std::vector<mercury_job*> jobs(contexts_.size());
  each_worker([&](int rank) {
    mercury_job_options open = member_options();
    open.name = name.c_str();
    open.rank = rank;
    mercury_job*& job = jobs[static_cast<size_t>(rank)];
    EXPECT_EQ(mercury_job_open(context(rank), &open, &job), 0) << mercury_last_error();
  });
  return jobs;
}

void RealJob::close(int rank) {
  mercury_job_close(std::exchange(jobs_[static_cast<size_t>(rank)], nullptr));
}

void RealJob::detach(int rank) {
  jobs_[static_cast<size_t>(rank)] = nullptr;
  mercury_detach(std::exchange(contexts_[static_cast<size_t>(rank)], nullptr));
}

std::vector<int> RealJob::server_results() {
  for (std::thread& server : servers_) server.join();
  servers_.clear();
  return server_results_;
}

RealJob::~RealJob() {
  for (int rank = 0; rank < options_.workers; ++rank) close(rank);
  const std::vector<int> results = server_results();
  for (const int result : results) EXPECT_EQ(result, servers_end_with_);
  for (int rank = 0; rank < options_.workers; ++rank) detach(rank);
  for (mercury_context* server : server_contexts_) mercury_detach(server);
}

void RealJob::each_worker(const std::function<void(int rank)>& f) const {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options_.workers; ++rank) threads.emplace_back([&f, rank] { f(rank); });
  for (std::thread& thread : threads) thread.join();
}

mercury_tensor_options tensor_options(uint32_t id, void* data, size_t numel, mercury_dtype dtype) {
  mercury_tensor_options options{};
  options.size = sizeof options;
  options.id = id;
  options.numel = numel;
  options.dtype = dtype;
  options.priority = 5;
  options.data = data;
  return options;
}

void* declare(RealJob& job, int rank, uint32_t id, size_t numel, mercury_dtype dtype,
              mercury_reduce_op op, uint16_t priority) {
  void* memory = nullptr;
  EXPECT_EQ(mercury_alloc(job.context(rank), numel * 8, &memory), 0) << mercury_last_error();
  mercury_tensor_options options = tensor_options(id, memory, numel, dtype);
  options.op = op;
  options.priority = priority;
  EXPECT_EQ(mercury_declare(job.job(rank), &options, 1), 0) << mercury_last_error();
  return memory;
}

std::vector<float*> declare_everywhere(RealJob& job, uint32_t id, size_t numel, uint16_t priority) {
  std::vector<float*> memories(static_cast<size_t>(job.workers()));
  job.each_worker([&](int rank) {
    memories[static_cast<size_t>(rank)] = static_cast<float*>(
        declare(job, rank, id, numel, MERCURY_DTYPE_F32, MERCURY_REDUCE_SUM, priority));
  });
  return memories;
}

int declare_at(mercury_job* job, uint32_t id, void* data, size_t numel) {
  const mercury_tensor_options options = tensor_options(id, data, numel);
  return mercury_declare(job, &options, 1);
}

mercury_handle push_pull(mercury_job* job, uint32_t tensor) {
  mercury_handle handle = 0;
  EXPECT_EQ(mercury_push_pull(job, tensor, MERCURY_DEFAULT_PRIORITY, &handle), 0)
      << mercury_last_error();
  return handle;
}

bool said(std::initializer_list<const char*> parts) {
  const std::string message = mercury_last_error();
  for (const char* part : parts) {
    if (message.find(part) == std::string::npos) {
      ADD_FAILURE() << "'" << message << "' does not say '" << part << "'";
      return false;
    }
  }
  return true;
}

}  // namespace mercury::testing
