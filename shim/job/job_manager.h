// The control plane of a host, without I/O: which jobs there are, who belongs to them, what they
// declared. Programs ask (open_job, declare, close_job), engines report (on_event), and it answers
// both by commands to the engines and by replies to the programs. mercury-stackd drives it from its
// Asio loop, an embedded program from a thread, the simulator in virtual time.
//
// Owner/thread: one control thread (or the simulator). Allocates and throws nothing outward.
// Rendezvous, declarations and their messages: docs/protocol.md, "Jobs".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/terms/element.h"
#include "scheduler/terms/job_terms.h"
#include "scheduler/terms/members.h"
#include "shim/job/command.h"
#include "shim/proof/secret.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/wire/hello.h"

namespace mercury {

// A job that this host knows beforehand.
struct KnownJob {
  std::string name;
  std::string secret;  // empty = none
  uint64_t memory_limit_bytes = 0;
  uint32_t fixed_weight = 0;      // on this host's links, whatever programs ask; 0 = as they ask
  uint64_t bytes_per_second = 0;  // that this host may send for each member; 0 = no limit
};

struct JobPolicy {
  bool serve = true;      // this host's engines aggregate for jobs (a server host's daemon)
  bool open_jobs = true;  // jobs that are not in `known`, without a secret, are served too
  std::vector<KnownJob> known;
  // An open job is a stranger's: no [[job]] lists it, and no program here has opened it. Whom it
  // may have this host invite as servers; nothing: anybody.
  std::optional<std::vector<IpPrefix>> networks;
  // Sessions of one engine, of which open jobs have three quarters; 0: no bound.
  uint32_t max_sessions = 0;
  uint32_t max_jobs = 64;
  uint32_t max_tensors = 65536;     // per job
  uint64_t memory_limit_bytes = 0;  // per job, where KnownJob has none; 0 = none
  uint64_t total_memory_bytes = 0;  // what the engines have for all jobs, to be named; 0 = no limit
  uint32_t max_weight = kMostWeight;  // what programs may ask for, where KnownJob has none
  uint64_t bytes_per_second = 0;      // of each member of a job that is not known; 0 = none
  // How long a HELLO, or a local worker, waits for a job that is not known here. 0 (daemons): not
  // at all. Embedded hosts of server programs wait, so that nobody has to start first.
  uint64_t hold_unknown_ns = 0;
  // After a worker left in order: operations of the others that wait fail with kPeerLeft once
  // nothing of the job has moved for so long (looked at once in that time). 0: at once, and a slow
  // link loses the last round.
  uint64_t leave_grace_ns = 5'000'000'000;
  // The sessions' of this host (HostOf sets it): so long after its end a worker is known as lost.
  // Half as long again its next life waits for that, before a job has begun.
  uint64_t peer_timeout_ns = 10'000'000'000;
  Authentication authentication = Authentication::kOff;  // of frames of jobs with a secret
  // What the sessions of jobs may use of wire::Feature. Less of it, and this host speaks as one of
  // an earlier release: how releases meet is tested so.
  uint32_t wire_features = ~uint32_t{0};
  // The sessions' of this host (HostOf sets it): what HELLOs to members of jobs say.
  wire::Versions wire_versions;
};

struct OpenJob {
  std::string name;
  std::string secret;
  Role role = Role::kWorker;
  int rank = -1;  // -1: the coordinator gives out the lowest free one
  uint16_t workers = 0;
  uint16_t servers = 0;
  // Server 0's first lane first; as many as servers: where each server is, else where the first is.
  std::vector<Endpoint> rendezvous;
  JobTerms terms;
  uint64_t timeout_ns = 30'000'000'000;
  // Worker: one channel per engine of this host, the caller's. They live until each engine has
  // answered DetachChannel (event::ChannelDetached), which the caller sends once client_gone has
  // replied: until then the engines go on using them.
  std::vector<EngineChannel*> channels;
  uint32_t client_job = 0;  // the program's number for the job in its submissions
};

struct OpenedJob {
  JobSlot slot;
  uint16_t rank = 0;
  uint16_t workers = 0;
  uint16_t servers = 0;
  uint32_t chunk_bytes = 0;      // payload per frame that the job agreed on
  uint32_t server_features = 0;  // what all its servers know (kKnowsParts and the like)
};

struct TensorDeclaration {
  TensorId tensor;
  uint64_t numel = 0;
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  uint16_t priority = 0;
  std::byte* data = nullptr;  // as the engine sees it, in memory that was validated
};

using ClientId = uint64_t;  // one attached program, chosen by the caller

// What a line for the host's log is about. Strangers and programs cause such lines as fast as they
// like: who writes them bounds each kind by itself, so that no kind hides another.
enum class NoticeKind : uint8_t {
  kRefusal,  // somebody was refused, and why
  kJob,      // a job opened here, or ended in order
  kTrouble,  // a job failed, lost a member or is unsafe; what this host cannot do
};
inline constexpr size_t kNoticeKinds = 3;
// Printable; names who and why.
using Notice = std::function<void(NoticeKind kind, const std::string& line)>;

// What `mercuryctl jobs` shows.
struct JobSnapshot {
  std::string name;
  Role role = Role::kWorker;
  uint16_t rank = 0;
  uint16_t workers = 0;
  uint16_t servers = 0;
  std::string state;  // "gathering", "running", "failed: ..."
  uint32_t tensors = 0;
  uint64_t tensor_bytes = 0;
  uint32_t chunk_bytes = 0;
  std::vector<std::string> members;  // "worker 0 10.0.0.1:7470", or "worker 1 missing"
};

// What a host's control plane has done since it began: what a job's start costs it.
struct ControlWork {
  uint64_t events = 0;             // of its engines
  uint64_t commands = 0;           // to them
  uint64_t messages_received = 0;  // of other hosts, and their bytes
  uint64_t received_bytes = 0;
  uint64_t messages_sent = 0;
  uint64_t sent_bytes = 0;
  uint64_t invitations_seen = 0;  // of jobs that it coordinates: each look at one
};

class JobManager {
 public:
  // `send` hands a command to the engine of lane N; `lanes` is where peers reach each engine.
  struct Host {
    std::vector<Endpoint> lanes;
    std::function<void(LaneId, Command)> send;
    std::function<uint64_t()> random;  // nonces and incarnations; a seed in the simulator
    Notice notice;                     // takes lines for the host's log; may be empty
  };
  JobManager(Host host, JobPolicy policy);
  ~JobManager();
  JobManager(const JobManager&) = delete;
  JobManager& operator=(const JobManager&) = delete;

  // Replies come later, from within on_event or on_timer, exactly once each.
  void open_job(ClientId client, OpenJob request, uint64_t now_ns,
                std::function<void(Result<OpenedJob>)> reply);
  void declare(ClientId client, JobSlot job, std::vector<TensorDeclaration> tensors,
               uint64_t now_ns, std::function<void(Status)> reply);
  // Replies when the engines have let go of the job's memory.
  void close_job(ClientId client, JobSlot job, uint64_t now_ns, std::function<void()> reply);
  // A worker's wish: all members of the job follow `policy` (as OpenJob's, and checked by the
  // caller) as soon as they hear of it, without losing a chunk. Errors: kNotFound, kClosed,
  // kInvalidArgument (empty, or a server's).
  Status set_policy(ClientId client, JobSlot job, std::string policy, uint64_t now_ns);
  // A member that waits for the job's end: kOk when all workers left in order.
  void wait_job(ClientId client, JobSlot job, std::function<void(Status)> reply);
  // The program ended or broke: its jobs are left with kPeerLeft. Replies when the engines have let
  // go of its jobs and their memory; its channels are the caller's to detach (OpenJob::channels).
  void client_gone(ClientId client, uint64_t now_ns, std::function<void()> reply);
  // The daemon is being stopped: peers are told that of the programs that go from now on.
  void host_ends();
  // Why a job failed, for programs that ask after a failed operation; empty while it runs.
  Status job_status(ClientId client, JobSlot job) const;
  // The round that this program's first push of a declared tensor belongs to: 1, unless the program
  // took a lost worker's place in a job that runs (JobTerms::rejoin_ms).
  Round first_round(ClientId client, JobSlot job, TensorId tensor) const;

  void on_event(LaneId lane, Event event, uint64_t now_ns);
  // When on_timer has something to do. Keeps what it has found: the owning thread's, as all else.
  uint64_t next_deadline_ns() const;
  void on_timer(uint64_t now_ns);

  std::vector<JobSnapshot> snapshot() const;
  // Nothing is kept for any job, peer or program: a host can stop without anyone noticing.
  bool idle() const;
  // How often a HELLO was looked at: once as it came, and again as what it waits for may be there.
  uint64_t hellos_tried() const;
  const ControlWork& work() const;

 private:
  struct State;
  class Change;
  std::unique_ptr<State> state_;
};

}  // namespace mercury
