// The threads of conversation of a host's control plane: sessions of its engines, and pairs of ends
// within the host, where a member and the job's coordinator live side by side. Both kinds are one
// LinkId to those who talk over them.
//
// Owner/thread: the control thread. Messages between ends within the host wait in a queue, so that
// nobody is called back while it calls.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "shim/job/job_manager.h"
#include "shim/job/messages.h"
#include "shim/proof/secret.h"

namespace mercury {

using LinkId = Token;  // of a session; one end within this host has one of the same numbers

struct Link {
  enum class Owner : uint8_t {
    kGreeting,     // accepted; has not said yet what it wants
    kCoordinator,  // `owner_id` is the coordinator's number
    kMember,       // a member's control session; `owner_id` is its slot
    kData,         // a member's data session
  };
  Owner owner = Owner::kGreeting;
  uint64_t owner_id = 0;
  LaneId lane;
  LinkId peer = 0;         // the other end, within this host; 0: a session
  bool connected = false;  // by us: the answer must prove `key` for our HELLO's `nonce`
  JobKey key{};
  wire::Nonce nonce{};
  bool open_job = false;  // a stranger's (JobPolicy::networks)
  std::string job{};      // whose session it is
};

class Links {
 public:
  // Of `policy` it keeps what it needs.
  Links(const JobManager::Host& host, const JobPolicy& policy)
      : host_(host),
        authentication_(policy.authentication),
        features_(policy.wire_features),
        versions_(policy.wire_versions) {}
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // Opens a session; nonce and proof of `hello` are made here.
  LinkId connect(Link::Owner owner, uint64_t owner_id, LaneId lane, JobSlot job,
                 const Endpoint& remote, wire::Hello hello, const JobKey& key,
                 bool open_job = false);
  LinkId accept(Link::Owner owner, uint64_t owner_id, LaneId lane, JobSlot job,
                const event::HelloReceived& hello, uint32_t incarnation, const JobKey& key,
                bool open_job);
  // Two ends within the host: the member's, the coordinator's.
  std::pair<LinkId, LinkId> pair(uint64_t member, uint64_t coordinator);

  Link* find(LinkId id);
  // Whether the answer to connect() proves the key. An end that does not is dropped.
  bool verify(LinkId id, const wire::HelloAck& answer);
  // Both do nothing when the link is gone.
  void send(LinkId id, const Message& message);
  // The other end hears why; this one hears no more.
  void drop(LinkId id, const Error& why);
  void forget(LinkId id);  // the engine has closed it
  // Sessions of open jobs on one engine.
  uint32_t open_job_sessions(LaneId lane) const {
    return lane.value < open_job_sessions_.size() ? open_job_sessions_[lane.value] : 0;
  }
  size_t size() const { return links_.size(); }

  // What waits for an end within this host: a message, or that the other end was dropped.
  struct Delivery {
    LinkId to = 0;
    std::variant<Message, Error> what;
  };
  bool take_local(Delivery& out);
  bool has_local() const { return !local_.empty(); }

 private:
  LinkId add(Link link);
  uint32_t own_features(const std::string& job, const JobKey& key) const;  // in HELLOs and answers
  const JobManager::Host& host_;
  const Authentication authentication_;
  const uint32_t features_;
  const wire::Versions versions_;
  LinkId last_id_ = 0;
  std::unordered_map<LinkId, Link> links_;
  std::vector<uint32_t> open_job_sessions_;  // by lane
  std::deque<Delivery> local_;
};

// What coordinators and members share with the manager around them.
struct JobContext {
  JobContext(JobManager::Host h, JobPolicy p)
      : host(std::move(h)), policy(std::move(p)), links(host, policy) {}
  // Whether one more session of open jobs leaves the others their part of the engine.
  bool has_room_for_open_job(LaneId lane) const {
    return policy.max_sessions == 0 ||
           links.open_job_sessions(lane) < policy.max_sessions - policy.max_sessions / 4;
  }
  Error no_room_for_open_jobs() const;  // what whoever wants one is told
  // Of the jobs that this host may be in, or coordinate.
  uint32_t most_open_jobs() const { return policy.max_jobs - policy.max_jobs / 4; }
  // Whether an open job may have this host invited.
  bool may_invite(const IpAddress& ip) const;
  // "job 'NAME' WHAT" for the host's log, without what could steer a terminal: peers send texts.
  void note(NoticeKind kind, const std::string& job, const std::string& what) const;
  // A session of the job has opened whose peer has these features. Whether it is as this host wants
  // it; if its frames could be authenticated and are not, the log says so, once for each job.
  Status check_features(const std::string& job, const JobKey& key, uint32_t features);

  JobManager::Host host;
  JobPolicy policy;
  bool host_ends = false;  // programs that go now are not to blame
  Links links;
  // Invitations that nobody has answered yet, of open jobs and of the others: each keeps a session,
  // and sends HELLOs to an address that a member has chosen.
  struct {
    uint32_t open = 0;
    uint32_t others = 0;
  } unanswered;
  ControlWork work;                           // of this host
  std::set<std::string> unauthenticated;      // jobs of which the log has said so
  std::deque<std::function<void()>> replies;  // to programs; called when nothing else is under way
};

// A failure that trying again may cure, while there is time.
bool is_transient(Errc code);
// "worker 1 of 2 (10.0.0.2:7470)"
std::string describe(Role role, uint16_t rank, uint16_t total, const Endpoint& address);
// "WHO: WHAT", or WHAT where it names WHO already: what a peer closes a session with may, and what
// this host finds out about the session does not.
std::string said_of(const std::string& who, const std::string& what);

}  // namespace mercury
