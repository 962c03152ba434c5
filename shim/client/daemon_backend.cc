#include "shim/client/daemon_backend.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "shim/channel/seqpacket.h"
#include "shim/client/client_log.h"
#include "shim/host/thread.h"
#include "transport/base/signal_block.h"

namespace mercury::client {
namespace {

using Clock = std::chrono::steady_clock;

// A daemon that accepts but does not greet is stopped or not a daemon.
constexpr time_t kGreetingSeconds = 5;

// A daemon says nothing as long as nothing ends. After a tenth of the time-out without a word, who
// waits asks it whether it still runs, and again after each; when more such tenths than these
// follow without a word, it stands still, or an engine of its does: stopped, frozen, or stuck.
constexpr int kTenths = 10;

Error unexpected_reply() {
  return Error(Errc::kProtocol, "mercury-stackd gave an answer of another kind than asked for");
}

Status status_of(const attach::Reply& reply) {
  if (std::holds_alternative<attach::Ok>(reply)) return {};
  if (const auto* failed = std::get_if<attach::Failed>(&reply)) {
    return Error(failed->code, failed->text);
  }
  return unexpected_reply();
}
Status status_of(const Result<attach::Reply>& reply) {
  return reply ? status_of(*reply) : Status(reply.error());
}

std::string text_of(std::chrono::milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

// Requests and replies by sequence number; a thread reads the socket.
class DaemonBackend final : public Backend {
 public:
  DaemonBackend(UniqueFd socket, std::chrono::milliseconds timeout)
      : timeout_(timeout),
        socket_(std::move(socket)),
        lost_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~DaemonBackend() override {
    DaemonBackend::leave();
    if (reader_.joinable()) reader_.join();
  }

  Status greet();

  std::span<const std::unique_ptr<ClientChannel>> channels() const override { return channels_; }
  bool sees_program_memory() const override { return false; }

  Result<std::unique_ptr<Region>> add_region(uint32_t id, uint64_t bytes) override {
    bytes = Region::whole_pages(bytes);
    UniqueFd memfd;
    const Status made = status_of(call(attach::RegionAdd{id, bytes}, nullptr, &memfd));
    if (!made) return made.error();
    Result<std::unique_ptr<Region>> region =
        memfd ? Region::adopt(memfd.get(), bytes)
              : Error::system(EMFILE, "no descriptor is left for shared memory (ulimit -n)");
    Status sealed = region ? Region::seal(memfd.get()) : Status(region.error());
    if (sealed) sealed = ask(attach::RegionSealed{id});
    if (sealed) return region;
    (void)remove_region(id);
    return sealed.error();
  }
  Status remove_region(uint32_t id) override { return ask(attach::RegionDel{id}); }

  Result<attach::JobOpened> open_job(const attach::JobOpen& job) override {
    Result<attach::Reply> reply = call(job);
    if (!reply) return reply.error();
    if (auto* opened = std::get_if<attach::JobOpened>(&*reply)) {
      {
        const std::lock_guard order(order_);
        open_.insert(job.client_job);
      }
      return *opened;
    }
    const Status status = status_of(*reply);
    return status.ok() ? unexpected_reply() : status.error();
  }

  Status declare(HostJob job, std::span<const TensorSpec> tensors,
                 std::vector<Round>& rounds) override {
    size_t done = 0;
    while (!tensors.empty()) {
      attach::Declare batch;
      batch.slot = job.slot;
      const size_t count = std::min(tensors.size(), attach::kMaxTensorsPerDeclare);
      for (const TensorSpec& tensor : tensors.first(count)) batch.tensors.push_back(tensor.wire);
      Result<attach::Reply> reply = call(std::move(batch), &job);
      if (!reply) return reply.error();
      if (Status status = status_of(*reply); !status) return status;
      const auto& answered = std::get<attach::Ok>(*reply).rounds;
      if (!answered.empty()) {
        rounds.resize(done, Round(1));  // batches of which nothing was said begin at 1
        rounds.insert(rounds.end(), answered.begin(), answered.end());
      }
      done += count;
      tensors = tensors.subspan(count);
    }
    return {};
  }

  void close_job(HostJob job) override;
  Status wait_job(HostJob job, int timeout_ms) override;
  Status job_status(HostJob job) override { return ask(attach::JobStatus{job.slot}, &job); }

  Status set_policy(HostJob job, const std::string& policy) override {
    return ask(attach::SetPolicy{job.slot, policy}, &job);
  }

  // The daemon lets go of whose connection ends.
  void leave() override {
    leaving_ = true;
    ::shutdown(socket_.get(), SHUT_RDWR);
  }

  std::string host_name() const { return "mercury-stackd " + version_; }

  void watch(const std::shared_ptr<const std::atomic<uint32_t>>& operations) override {
    const std::lock_guard lock(mutex_);
    operations_ = operations;
  }
  bool lost() const noexcept override { return lost_.load(std::memory_order_acquire); }
  int lost_fd() const noexcept override { return lost_fd_.get(); }

 private:
  // What calls fail with once no answer can come.
  Error gone_error() const { return leaving_.load() ? left_error() : lost_error(); }
  struct Pending {
    std::optional<attach::Reply> reply;
    UniqueFd descriptor;  // that came with it
    uint32_t users = 1;   // threads that wait for it
  };

  uint32_t next_sequence_locked();
  Result<uint32_t> reserve_locked();
  void transmit(uint32_t sequence, attach::Request request, const HostJob* of);
  void send(uint32_t sequence, attach::Request request);
  void answer(uint32_t sequence, const Error& error);
  // `of`: the job that it is of, if it is of one that has to be open. `descriptor`: gets that of
  // the reply, if it has one.
  Result<attach::Reply> call(attach::Request request, const HostJob* of = nullptr,
                             UniqueFd* descriptor = nullptr);
  Status ask(attach::Request request, const HostJob* of = nullptr) {
    return status_of(call(std::move(request), of));
  }
  Result<attach::Packet> next_packet();
  void read_replies();
  bool deliver(attach::Packet& packet);
  bool is_awaited();
  void ask_whether_it_runs();

  const std::chrono::milliseconds timeout_;
  UniqueFd socket_;
  UniqueFd lost_fd_;
  std::string version_;
  std::vector<std::unique_ptr<ClientChannel>> channels_;
  std::thread reader_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> leaving_{false};  // it is this program that ends the connection
  // Held while what is asked of a job is sent, so that the daemon gets it before its JOB_CLOSE or
  // not at all. Never taken under mutex_.
  std::mutex order_;
  std::set<uint32_t> open_;  // numbers of the jobs
  std::mutex mutex_;         // guards what follows
  std::condition_variable answered_;
  uint32_t last_sequence_ = 0;
  std::map<uint32_t, Pending> pending_;
  std::map<uint32_t, uint32_t> waits_;  // a job's number -> sequence of its one JOB_WAIT
  std::shared_ptr<const std::atomic<uint32_t>> operations_;  // how many are held
};

Status DaemonBackend::greet() {
  if (!lost_fd_) return Error::system(errno, "eventfd");
  const timeval limit{kGreetingSeconds, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  attach::Hello hello;
  hello.pid = static_cast<uint32_t>(::getpid());
  const auto bytes = attach::encode(attach::RequestMessage{++last_sequence_, hello});
  if (Status s = attach::send_packet(socket_.get(), bytes, {}, attach::Wait::kYes); !s) return s;
  Result<attach::Packet> packet =
      attach::receive_packet(socket_.get(), attach::kMaxDescriptors, attach::Wait::kYes);
  if (!packet && packet.error().code == Errc::kAgain) {
    return Error(Errc::kTimedOut, "mercury-stackd accepted the connection but does not answer");
  }
  if (!packet) return packet.error();
  if (packet->bytes.empty()) return lost_error();
  Result<attach::ReplyMessage> reply = attach::decode_reply(packet->bytes);
  if (!reply) return reply.error();
  const auto* welcome = std::get_if<attach::HelloOk>(&reply->body);
  if (!welcome) {
    const Status status = status_of(reply->body);
    return status.ok() ? unexpected_reply() : status;
  }
  if (Status known = attach::check_hello_ok(*welcome); !known) return known;
  if (packet->lacks_descriptors) {
    return Error::system(EMFILE, "no descriptors are left for mercury-stackd's (ulimit -n)");
  }
  version_ = welcome->version;
  auto& fds = packet->descriptors;
  if (fds.size() != welcome->engines * attach::kDescriptorsPerEngine) return unexpected_reply();
  for (size_t i = 0; i < fds.size(); i += attach::kDescriptorsPerEngine) {
    auto memory = ChannelMemory::adopt(fds[i].release(), fds[i + 1].release(), fds[i + 2].release(),
                                       fds[i + 3].release());
    if (!memory) return memory.error();
    channels_.push_back(std::make_unique<ClientChannel>(*memory));
  }
  // A daemon that stands still takes no requests, and whoever waits to send one is not woken. Twice
  // the time-out: by then the reader has decided, but on a core so busy that its tenths take
  // longer.
  const auto most_ms = 2 * timeout_.count();
  const timeval most{most_ms / 1000, most_ms % 1000 * 1000};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
  const SignalBlock blocked;
  Result<std::thread> reader = start_thread([this] { read_replies(); });
  if (!reader) return reader.error();
  reader_ = std::move(*reader);
  ::pthread_setname_np(reader_.native_handle(), "mercury-attach");
  return {};
}

// kAgain: none came for a tenth of the time-out. By poll, as SO_RCVTIMEO is rounded up to ticks of
// the kernel: twelve tenths of 800 ms were more than a second.
Result<attach::Packet> DaemonBackend::next_packet() {
  const auto tenth = timeout_ / kTenths;
  pollfd readable{socket_.get(), POLLIN, 0};
  for (bool stood_still = false;;) {
    const auto since = Clock::now();
    const int ready = ::poll(&readable, 1, static_cast<int>(tenth.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) std::this_thread::sleep_for(tenth);  // no poll where RLIMIT_NOFILE is 0
    Result<attach::Packet> packet = attach::receive_packet(socket_.get(), 1, attach::Wait::kNo);
    if (packet || packet.error().code != Errc::kAgain) return packet;
    if (ready > 0) continue;
    // This process stood still itself, maybe with its daemon. Not twice in turn: on a busy core
    // each tenth may be as late.
    stood_still = !stood_still && Clock::now() - since > 2 * tenth;
    if (!stood_still) return packet;
  }
}

// Tenths are counted as they are waited for: one in which this process stood still itself, with or
// without the daemon, is none.
void DaemonBackend::read_replies() {
  int unanswered = 0;
  for (;;) {
    Result<attach::Packet> packet = next_packet();
    if (packet && !packet->bytes.empty() && deliver(*packet)) {
      unanswered = 0;
      continue;
    }
    const bool silent = !packet && packet.error().code == Errc::kAgain;
    if (silent && unanswered == 0 && !is_awaited()) continue;
    if (silent && unanswered <= kTenths) {
      ++unanswered;
      ask_whether_it_runs();
      continue;
    }
    if (silent) {
      log_line(MERCURY_LOG_WARNING,
               "mercury-stackd has not answered for " + text_of(timeout_) + ": it stands still");
    } else if (!leaving_.load()) {
      log_line(MERCURY_LOG_WARNING, "mercury-stackd has gone, or does not keep to the protocol");
    }
    // When it goes on it lets go of this program, as of one that has died.
    ::shutdown(socket_.get(), SHUT_RDWR);
    const std::lock_guard lock(mutex_);
    lost_.store(true, std::memory_order_release);
    ::eventfd_write(lost_fd_.get(), 1);
    answered_.notify_all();
    return;
  }
}

// False: the daemon does not keep to the protocol, as good as gone.
bool DaemonBackend::deliver(attach::Packet& packet) {
  Result<attach::ReplyMessage> message = attach::decode_reply(packet.bytes);
  if (!message) return false;
  const std::lock_guard lock(mutex_);
  const auto it = pending_.find(message->sequence);
  // Nobody waits for a notice: completions carry the code, and job_status fetches the text.
  if (it == pending_.end()) return true;
  if (!it->second.reply) it->second.reply = std::move(message->body);
  if (!packet.descriptors.empty()) it->second.descriptor = std::move(packet.descriptors.front());
  answered_.notify_all();
  return true;
}

// Whether anybody would wait for ever for a daemon that stands still.
bool DaemonBackend::is_awaited() {
  const std::lock_guard lock(mutex_);
  return !pending_.empty() || (operations_ && operations_->load(std::memory_order_relaxed) > 0);
}

// A daemon answers it at once, or as soon as no engine of its stands still. One that takes nothing
// more does not answer either.
void DaemonBackend::ask_whether_it_runs() {
  std::unique_lock lock(mutex_);
  const uint32_t sequence = next_sequence_locked();
  lock.unlock();
  const auto bytes =
      attach::encode(attach::RequestMessage{sequence, attach::JobStatus{attach::kNoSlot}});
  (void)attach::send_packet(socket_.get(), bytes, {}, attach::Wait::kNo);
}

uint32_t DaemonBackend::next_sequence_locked() {
  do {
    ++last_sequence_;
  } while (last_sequence_ == 0 || pending_.count(last_sequence_) != 0);
  return last_sequence_;
}

// A sequence number with its place in pending_.
Result<uint32_t> DaemonBackend::reserve_locked() {
  if (lost()) return gone_error();
  const uint32_t sequence = next_sequence_locked();
  pending_.emplace(sequence, Pending{});
  return sequence;
}

void DaemonBackend::transmit(uint32_t sequence, attach::Request request, const HostJob* of) {
  if (!of) return send(sequence, std::move(request));
  const std::lock_guard order(order_);
  const bool closes = std::holds_alternative<attach::JobClose>(request);
  if (closes ? open_.erase(of->number) == 0 : open_.count(of->number) == 0) {
    return answer(sequence, closed_error());
  }
  send(sequence, std::move(request));
}

// What cannot be sent is answered here.
void DaemonBackend::send(uint32_t sequence, attach::Request request) {
  attach::RequestMessage message{sequence, std::move(request)};
  const auto bytes = attach::encode(message);
  attach::wipe(message.body);
  const Status sent = attach::send_packet(socket_.get(), bytes, {}, attach::Wait::kYes);
  if (sent.ok()) return;
  // It takes nothing, or the thread that reads has not seen yet that its end is closed.
  const bool gone = sent.error().code == Errc::kAgain || sent.error().code == Errc::kDaemonLost;
  answer(sequence, gone || leaving_.load() ? gone_error() : sent.error());
}

void DaemonBackend::answer(uint32_t sequence, const Error& error) {
  const std::lock_guard lock(mutex_);
  if (const auto it = pending_.find(sequence); it != pending_.end() && !it->second.reply) {
    it->second.reply = attach::Failed{error.code, error.message};
  }
  answered_.notify_all();
}

Result<attach::Reply> DaemonBackend::call(attach::Request request, const HostJob* of,
                                          UniqueFd* descriptor) {
  std::unique_lock lock(mutex_);
  Result<uint32_t> sequence = reserve_locked();
  if (!sequence) {
    attach::wipe(request);
    return sequence.error();
  }
  lock.unlock();
  transmit(*sequence, std::move(request), of);
  lock.lock();
  const auto it = pending_.find(*sequence);
  answered_.wait(lock, [&] { return it->second.reply || lost(); });
  Result<attach::Reply> result =
      it->second.reply ? Result<attach::Reply>(std::move(*it->second.reply)) : gone_error();
  if (descriptor != nullptr) *descriptor = std::move(it->second.descriptor);
  pending_.erase(it);
  return result;
}

// One JOB_WAIT per job, however often and from however many threads the program asks.
Status DaemonBackend::wait_job(HostJob job, int timeout_ms) {
  std::unique_lock lock(mutex_);
  uint32_t sequence = 0;
  if (const auto known = waits_.find(job.number); known != waits_.end()) {
    sequence = known->second;
    ++pending_[sequence].users;
  } else {
    Result<uint32_t> fresh = reserve_locked();
    if (!fresh) return fresh.error();
    sequence = *fresh;
    waits_[job.number] = sequence;
    lock.unlock();
    transmit(sequence, attach::JobWait{job.slot}, &job);
    lock.lock();
  }
  Pending& pending = pending_[sequence];
  const auto done = [&] { return pending.reply || lost(); };
  if (timeout_ms < 0) {
    answered_.wait(lock, done);
  } else if (!answered_.wait_until(lock, Clock::now() + std::chrono::milliseconds(timeout_ms),
                                   done)) {
    --pending.users;  // the request stays for the next caller
    return Error(Errc::kTimedOut, "the job is still running");
  }
  Status status = pending.reply ? status_of(*pending.reply) : Status(gone_error());
  if (--pending.users == 0) {
    pending_.erase(sequence);
    if (const auto it = waits_.find(job.number); it != waits_.end() && it->second == sequence) {
      waits_.erase(it);
    }
  }
  return status;
}

void DaemonBackend::close_job(HostJob job) {
  (void)ask(attach::JobClose{job.slot}, &job);  // a daemon that has gone has let go, too
  const std::lock_guard lock(mutex_);
  const auto wait = waits_.find(job.number);
  if (wait == waits_.end()) return;
  Pending& pending = pending_[wait->second];
  if (pending.users == 0) {
    pending_.erase(wait->second);
  } else if (!pending.reply) {
    pending.reply = attach::Failed{Errc::kClosed, closed_error().message};
  }
  waits_.erase(wait);
  answered_.notify_all();
}

}  // namespace

Result<std::unique_ptr<Backend>> make_daemon_backend(const std::string& socket,
                                                     std::chrono::milliseconds timeout) {
  Result<UniqueFd> connected = attach::connect_socket(socket);
  if (!connected) return connected.error();
  auto backend = std::make_unique<DaemonBackend>(std::move(*connected), timeout);
  if (Status status = backend->greet(); !status) return status.error();
  log_line(MERCURY_LOG_INFO, "attached to " + backend->host_name() + " at " + socket);
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace mercury::client
