// Several hosts' control planes over a model of their engines: commands and events move through
// first-in first-out queues whose interleaving a seed decides; sessions join two lanes by endpoint;
// time is virtual and moves only when nothing else can happen.
//
// The model keeps the engine's contract (shim/job/command.h) and checks that the control
// plane does: jobs are added before they are bound, channels are not used after removal.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "shim/job/job_manager.h"

namespace mercury::test {

inline Endpoint address(int host, int lane = 0) {
  return {IpAddress::v4(10, 0, 0, static_cast<uint8_t>(host)), static_cast<uint16_t>(7470 + lane)};
}

class Hosts;

// One host: its manager and the lanes' state as the engines would have it.
struct HostModel {
  struct EngineJob {
    bool worker = false;
    command::AddWorkerJob worker_spec;
    command::AddServerJob server_spec;
    std::map<uint32_t, command::AddTensor> tensors;
    std::map<Shard, Token> to_shards;  // worker: the sessions bound, by token
    std::map<Rank, Token> to_workers;  // server: the same
    Errc failed = Errc::kOk;
    std::map<uint32_t, uint32_t> rounds;    // server: what it will say of its tensors
    std::map<Rank, uint32_t> incarnations;  // server: of the workers bound or replaced last
    bool fences = true;                     // server: false: it never answers ReplaceWorker
    int refills = 0;
    uint64_t chunks_moved = 0;  // worker: what it says when it is asked
    std::string policy;         // as last heard
    std::set<Rank> withdrawn;
    bool ending = false;                                    // server: as WithdrawWorker said last
    std::map<uint32_t, command::FailRounds> failed_rounds;  // worker: by tensor, the last
  };
  struct Lane {
    std::deque<Command> commands;
    std::deque<Event> events;
    std::map<uint16_t, EngineJob> jobs;
    uint32_t tensor_limit = 1u << 20;  // AddTensor beyond it fails
  };
  int number = 0;
  std::vector<Lane> lanes;
  std::unique_ptr<JobManager> manager;
  bool dead = false;
};

struct SessionModel {
  struct End {
    int host = 0;
    uint16_t lane = 0;
    Token token;  // 0: not accepted yet
    uint16_t job = 0;
    bool closed = false;
    std::deque<Event> inbox;  // on the wire, towards this end
  };
  End ends[2];
  bool open = false;
  bool mute = false;  // nobody is there who shows that he knows the key
  uint64_t hello_id = 0;
  wire::Hello hello;
  std::string refusal;
};

class Hosts {
 public:
  explicit Hosts(uint64_t seed = 0) : random_(seed) {}

  JobManager& add(int number, int lanes, JobPolicy policy = {});
  HostModel& host(int number) { return *hosts_.at(number); }
  JobManager& manager(int number) { return *host(number).manager; }
  // Gone without a word: its peers hear nothing for peer_timeout.
  void kill(int number);

  // Until nothing can happen any more, or until virtual time would pass `until_ns`.
  void run(uint64_t until_ns = kNever);
  void run_for(uint64_t ns) { run(now_ns_ + ns); }
  // By the host at `end`.
  void close(SessionModel& session, int end, Errc code, const std::string& text);
  bool step();  // one random thing that can happen now
  uint64_t now_ns() const { return now_ns_; }
  std::mt19937_64& random() { return random_; }

  // Raw access for hostile peers: a session without a manager behind its first end.
  SessionModel& connect_raw(const Endpoint& to, const wire::Hello& hello,
                            const Endpoint& from = address(0));
  void send_raw(SessionModel& session, std::vector<std::byte> message);

  uint16_t path_payload = 1472;
  uint16_t in_parts = 0;  // what a path carries in parts, if that is more
  bool probes = true;     // false: what paths carry is never found out
  // What control messages become on their way: a peer of another version.
  std::function<void(std::vector<std::byte>& message)> translate;
  // What the answer to a HELLO becomes: of one who does not know the secret.
  std::function<void(const wire::Hello& asked, wire::HelloAck& answer)> answered;
  std::function<bool(SessionModel&)> mutes;  // a session that is accepted: as `mute`
  std::vector<std::string> violations;       // of the engine's contract
  std::vector<std::string> log;              // of all hosts: "HOST: LINE"
  size_t open_sessions() const;
  size_t unanswered_from(int number) const;  // HELLOs of this host that are under way
  std::string leftovers() const;             // "" when nothing is kept anywhere

  static constexpr uint64_t kPeerTimeoutNs = 10'000'000'000;
  uint64_t peer_timeout_ns = kPeerTimeoutNs;

 private:
  struct Timer {
    SessionModel* session;
    int end;
    event::SessionClosed what;
  };
  void execute(HostModel& host, uint16_t lane, Command command);
  void deliver(SessionModel& session, int end);
  void connect(HostModel& host, uint16_t lane, const command::Connect& c);
  void accept(HostModel& host, uint16_t lane, const command::Accept& c);
  void drop_pending(SessionModel& session, int end);
  std::pair<SessionModel*, int> find(const HostModel& host, uint16_t lane, Token token);
  void job_command(HostModel& host, uint16_t lane, const Command& command);
  template <class Peer>
  void bind(HostModel& host, uint16_t lane, std::map<Peer, Token>& sessions, Peer peer,
            Token token);
  void bind_worker(HostModel& host, uint16_t lane, HostModel::EngineJob& job,
                   const command::BindWorker& w);
  void remove_job(HostModel& host, uint16_t lane, const command::RemoveJob& r);
  void violation(const HostModel& host, const std::string& what) {
    violations.push_back("host " + std::to_string(host.number) + ": " + what);
  }

  std::mt19937_64 random_;
  std::map<int, std::unique_ptr<HostModel>> hosts_;
  std::vector<std::unique_ptr<SessionModel>> sessions_;
  std::multimap<uint64_t, Timer> timers_;
  uint64_t now_ns_ = 1'000'000'000;
  uint64_t last_hello_ = 0;
};

// A program that opens one job, and what it was told.
struct ProgramModel {
  Hosts* hosts = nullptr;
  int host = 0;
  ClientId client = 0;
  JobSlot slot;
  int opens = 0;  // replies
  Errc open_code = Errc::kOk;
  std::string open_text;
  OpenedJob opened;
  int declares = 0;
  Status declared;
  int waits = 0;
  Status waited;
  int closes = 0;
  int gones = 0;

  bool is_open() const { return opens == 1 && open_code == Errc::kOk; }
  void open(OpenJob request);
  void declare(const std::vector<TensorDeclaration>& tensors);
  void wait();
  void close();
  void gone();
  Status status() const { return hosts->manager(host).job_status(client, slot); }
};

}  // namespace mercury::test
