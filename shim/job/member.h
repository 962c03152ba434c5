// One member of a job on this host: a worker, or a server of this host's engines. It joins the
// job's coordinator, opens or accepts the data sessions, tells the engines what they need to know,
// and keeps what the program asks and is to be told.
//
// Phases: seeking (no coordinator yet) -> joined (waiting for the others) -> connecting (roster
// known, sessions opening) -> running -> leaving -> over; or failed at any time.
// Owner/thread: the control thread, from within JobManager.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "shim/job/links.h"
#include "shim/job/open_rounds.h"

namespace mercury {

// How long a worker waits whose session a server had no place for, before it asks again: at first,
// and at most, as it doubles.
inline constexpr uint64_t kRedialNs = 100'000'000;
inline constexpr uint64_t kLongestRedialNs = 16 * kRedialNs;

// What this host gives a job.
struct JobLimits {
  uint64_t memory_bytes = 0;  // for its sums; 0 = no limit of its own
  // Of its share of links: what is asked for counts between these.
  uint32_t least_weight = 1;
  uint32_t most_weight = 1;
  uint64_t bytes_per_second = 0;  // that it may send for a member; 0 = no limit
};

class Member {
 public:
  using OpenReply = std::function<void(Result<OpenedJob>)>;
  using DoneReply = std::function<void()>;
  using StatusReply = std::function<void(Status)>;

  // `spec.secret` is not used: `key` stands for it. Without an owner it serves for this host;
  // `open`: a stranger's job (JobPolicy::networks).
  Member(JobContext& context, JobSlot slot, OpenJob spec, const JobKey& key,
         const JobLimits& limits, bool open, uint64_t now_ns);
  void own(ClientId owner, OpenReply reply);  // replies when running, or failed and released

  // --- what it is ---
  JobSlot slot() const { return slot_; }
  const std::string& job() const { return spec_.name; }
  Role role() const { return spec_.role; }
  const JobKey& key() const { return key_; }
  bool served() const { return served_; }
  bool open() const { return open_ && !owner_; }
  const OpenJob& spec() const { return spec_; }
  std::optional<ClientId> owner() const { return owner_; }
  bool live() const { return phase_ < Phase::kEnded && !closing_; }
  bool admits() const { return phase_ >= Phase::kConnecting; }  // else HELLOs of workers are held
  bool seeking() const { return phase_ == Phase::kSeeking; }
  // Nobody asks for it any more and the engines have let go of it.
  bool gone() const { return released_ && (closing_ || !owner_); }
  const Status& status() const { return status_; }
  // The round that this worker's first push of a tensor belongs to; 1 unless it came back.
  Round first_round(TensorId tensor) const;
  JobSnapshot snapshot() const;

  // --- programs ---
  void declare(std::vector<TensorDeclaration> tensors, StatusReply reply);
  Status set_policy(std::string policy);
  void wait(StatusReply reply);
  void close(uint64_t now_ns, DoneReply reply);
  void abandon();  // its program has gone

  // --- the coordinator ---
  void connect();                                // over a session, to the first rendezvous address
  void attach(LinkId control, uint64_t now_ns);  // says Join over a link that is open
  void fail(const Error& why);                   // an end that this member does not cause
  void fail_self(const Error& why);  // one that it does: the others hear that it was this member
  void on_control_opened(uint64_t now_ns) { attach(control_, now_ns); }
  void on_message(const Message& message, uint64_t now_ns);
  void on_control_closed(const Error& why, uint64_t now_ns);

  // --- data sessions ---
  enum class Admission : uint8_t { kHold, kAccept };
  // Server: whether the HELLO of a data session, which proves the key, is one that the roster
  // promises.
  Result<Admission> admit(LaneId lane, const wire::Hello& hello) const;
  void accept(LaneId lane, const event::HelloReceived& hello);
  void on_data_opened(LinkId link, const wire::HelloAck& answer);
  void on_data_closed(LinkId link, const Error& why, uint64_t now_ns);
  void on_path(const event::PathProbed& probed);

  // --- engines ---
  void on_job_removed();
  void on_confirmed(uint32_t number);
  void on_chunks_moved(uint64_t chunks, uint64_t now_ns);
  void on_worker_replaced(const event::WorkerReplaced& event);
  void on_workers_stalled(const event::WorkersStalled& event);
  void on_round_hopeless(const event::RoundHopeless& event);
  void on_command_failed(Error why);

  void on_timer(uint64_t now_ns);
  uint64_t next_deadline_ns() const;

 private:
  enum class Phase : uint8_t {
    kSeeking,
    kJoined,
    kConnecting,
    kRunning,
    kLeaving,
    kEnded,
    kFailed
  };
  struct Data {  // a session to a shard (worker), or from a worker (server)
    LaneId lane;
    Shard shard;  // a worker's: where it leads
    Rank rank;    // a server's: whose it is
    int attempt = 1;
    uint32_t refused = 0;  // in a row, for now
    bool open = false;
    uint16_t max_udp_payload = 0;  // 0: not probed yet
    uint16_t in_parts = 0;
  };
  struct Redial {  // a worker's session that a server refused for now
    Data data;
    uint64_t at_ns = 0;
  };
  struct Declaration {
    std::vector<TensorDeclaration> tensors;
    size_t agreed = 0;                // so many of them; the next batch is on its way
    std::vector<Round> rounds;        // of those agreed, if this worker came back
    std::vector<Shard> first_shards;  // of those agreed
    StatusReply reply;
  };

  // --- joining and running (member_run.cc) ---
  void on_roster(const message::Roster& roster);
  JobTerms terms_here() const;
  uint64_t rate_of_lane() const;  // JobLimits'
  void enter_as_worker();
  void enter_as_server();
  void on_start(const message::Start& start);
  void on_peer_left(const message::PeerLeft& left, uint64_t now_ns);
  void count_chunks(uint64_t now_ns);
  void end_grace();
  void withdraw(Rank rank, bool ending);
  void fail_rounds(const message::PeerLeft& left, uint64_t now_ns);
  void replace(const message::Replace& message);

  // --- data sessions (member_sessions.cc) ---
  bool may_come_back() const;
  void connect_to(Shard shard, int attempt, uint32_t refused = 0);
  void redial(uint64_t now_ns);
  static uint32_t seat_of(const Data& data) {
    return uint32_t{data.lane.value} << 16 | data.rank.value;
  }
  std::vector<LinkId>& sessions_like(const Data& seat);
  void drop_sessions(const Data& seat);
  void drop_sessions_of(Rank rank, const Error& why);
  void drop_oldest_greeting(const Data& seat);
  void say_ready();

  // --- tensors (member_tensors.cc) ---
  Status check(const std::vector<TensorDeclaration>& tensors) const;
  void send_batch();
  void on_declared(const message::Declared& answer);
  void answer_declaration(const Status& status);  // the first
  void finish_declaration(const Status& status);
  void define(const message::Define& message);
  bool fits_plan(const std::vector<Shard>& first_shards, size_t tensors);
  Shard shard_of(TensorId tensor) const;  // that has its first chunks, where nobody says
  void add_tensor(const message::TensorShape& tensor, Shard first_shard, uint16_t priority,
                  std::byte* data, Round first_round);
  void confirm();

  // --- ending (member.cc) ---
  void fail_as(const Error& why, const std::string& told);
  void end_in_order();
  void release(const Error& why);
  void finish_release();
  void answer_waiters(const Status& status);
  void note_end(const Status& end);
  void drop_control(const Error& why);

  std::string who() const;
  std::string server_name(uint16_t rank) const;
  std::string worker_name(Rank rank) const;
  uint16_t total() const { return spec_.role == Role::kWorker ? spec_.workers : spec_.servers; }
  OpenedJob opened() const;
  void to_lane(size_t lane, Command command) {
    context_.host.send(LaneId(static_cast<uint16_t>(lane)), std::move(command));
  }

  JobContext& context_;
  const JobSlot slot_;
  OpenJob spec_;
  const JobKey key_;
  const JobLimits limits_;
  const uint32_t incarnation_;
  const bool open_;
  const bool served_;  // by this host for its coordinator, which has called it: nothing to seek
  std::optional<ClientId> owner_;
  Phase phase_ = Phase::kSeeking;
  Status status_;
  uint16_t rank_ = 0;  // among the members of its role
  message::Roster roster_;
  uint32_t chunk_bytes_ = 0;

  LinkId control_ = 0;
  Error last_attempt_{Errc::kOk, ""};  // why the coordinator could not be reached
  uint64_t retry_ns_ = kNever;
  uint32_t refused_ = 0;  // by a host that does not know the job, so often
  uint64_t open_until_ns_ = kNever;
  uint64_t leave_until_ns_ = kNever;  // without an answer to Leave we go all the same
  // A worker has left: when to look whether chunks still move.
  uint64_t grace_until_ns_ = kNever;
  size_t uncounted_ = 0;                  // engines that have not said yet
  uint64_t chunks_counted_ = 0;           // by those that have
  std::optional<uint64_t> chunks_moved_;  // when it was last looked
  std::string peer_left_;

  std::unordered_map<LinkId, Data> data_;
  // Server: those of each lane's worker, and some that are gone (seat_of).
  std::unordered_map<uint32_t, std::vector<LinkId>> seated_;
  size_t heard_of_data_ = 0;  // that a session is open, or its path is probed
  std::vector<Redial> redials_;
  std::unordered_map<Rank, uint32_t> left_;       // workers that have left in order: incarnations
  std::unordered_map<TensorId, Round> hopeless_;  // the lowest round of a tensor that is
  bool ready_said_ = false;
  uint16_t ready_payload_ = 0;  // that all its paths carry, as it said then
  size_t lanes_used_ = 0;       // engines that know the job: the first so many
  size_t unreleased_ = 0;       // engines whose JobRemoved is awaited
  bool releasing_ = false;
  bool released_ = false;
  bool closing_ = false;
  bool end_noted_ = false;

  // One batch of AddTensor at a time is awaited: its number, and the engines that have not said yet
  // that they have it.
  uint32_t confirmation_ = 0;
  size_t unconfirmed_ = 0;
  std::optional<message::Replace> replacing_;         // server: the fence that is being put up
  size_t unreplaced_ = 0;                             // engines that have not put it up
  OpenRoundsOf rounds_;                               // server: what those that have said
  std::unordered_map<TensorId, Round> first_rounds_;  // worker that came back

  std::unordered_set<TensorId> tensors_;
  uint64_t tensor_bytes_ = 0;
  std::deque<Declaration> declarations_;
  OpenReply open_reply_;
  std::vector<StatusReply> waiters_;
  std::vector<DoneReply> close_replies_;
};

}  // namespace mercury
