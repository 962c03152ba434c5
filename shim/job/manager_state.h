// JobManager's insides: the tables of a host's control plane, and the routing between engines,
// programs, members and coordinators.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shim/job/coordinator.h"
#include "shim/job/job_manager.h"
#include "shim/job/links.h"
#include "shim/job/member.h"

namespace mercury {

struct JobManager::State {
  State(Host host, JobPolicy policy);
  Host counted(Host host);  // what goes through it is in `work`

  // --- admission (admission.cc) ---------------------------------------------------------------
  struct PendingHello {  // waits for its job, or its job's roster
    LaneId lane;
    event::HelloReceived hello;
    uint64_t deadline_ns = kNever;
  };
  struct Greeting {  // a control session whose first message is awaited
    std::string job;
    JobKey key{};  // what its HELLO proved
    uint64_t deadline_ns = kNever;
  };
  // The key that proves membership of a job whose coordinator, or member, this host may be.
  std::optional<JobKey> authority(const std::string& job) const;
  bool is_known(const std::string& job) const;
  void on_hello(LaneId lane, event::HelloReceived hello, uint64_t now_ns);
  bool try_hello(const PendingHello& pending, uint64_t now_ns);  // false: hold it
  bool try_control_hello(const PendingHello& pending, uint64_t now_ns);
  bool try_data_hello(const PendingHello& pending);
  void drop_oldest_greeting();
  void refuse(const PendingHello& pending, const Error& why, const char* noted = nullptr);
  void note_refusal(const Endpoint& remote, const std::string& job, const std::string& why);
  bool has_many_like(const PendingHello& pending) const;
  // All that are held if what they wait for may have come, and those whose time is up: to verify
  // one costs two hashes, and a job's start brings thousands of events.
  void retry_hellos(uint64_t now_ns);
  uint64_t whom_hellos_await() const;  // another number when that may have changed
  void on_first_message(LinkId link, const Message& message, uint64_t now_ns);
  void on_invite(LinkId link, const Greeting& greeting, const message::Invite& invite,
                 uint64_t now_ns);
  bool attach_locally(Member& member, uint64_t now_ns);
  Coordinator* coordinator_for(const std::string& job, const JobKey& key, bool local);
  // A stranger's (JobPolicy::networks).
  bool is_open(const std::string& job) const;
  void invite_where_due(uint64_t now_ns);
  void serve_where_due(uint64_t now_ns);

  // --- tables (manager_state.cc) -----------------------------------------------------------------
  Coordinator* find_coordinator(const std::string& job) const;  // the one that has not ended
  Member* find_server(const std::string& job) const;            // live
  Member* find_member(ClientId client, JobSlot slot) const;
  // Errors: kLimit.
  Result<Member*> add_member(OpenJob spec, const JobKey& key, uint64_t now_ns);
  JobLimits limits_of_others() const;  // of jobs that are not in `known`
  Error too_many_jobs() const;
  // That, and a line in the log, where no member is there whose end would be one.
  Error no_room_for(const std::string& job) const;
  bool is_here(const Endpoint& endpoint) const;

  // --- routing (manager_state.cc) ----------------------------------------------------------------
  Member* member_of(const Link& link) const;
  Coordinator* coordinator_of(const Link& link) const;
  void on_opened(const event::SessionOpened& opened, uint64_t now_ns);
  void on_closed(LinkId id, const Error& why, uint64_t now_ns);
  void on_control(const event::ControlReceived& received, uint64_t now_ns);
  void deliver(LinkId id, const Message& message, uint64_t now_ns);
  void close_to(const Link& link, LinkId id, const Error& why, uint64_t now_ns);
  // Until nothing is left to do within this host; then what has ended is erased.
  void settle(uint64_t now_ns);
  void reap();
  void reply_all();

  JobContext context;
  struct Known {
    JobKey key{};
    JobLimits limits;
  };
  std::unordered_map<std::string, Known> known;
  std::map<uint16_t, std::unique_ptr<Member>> members;  // by slot
  std::map<uint64_t, std::unique_ptr<Coordinator>> coordinators;
  std::unordered_map<LinkId, Greeting> greetings;
  std::vector<PendingHello> hellos;
  uint64_t hellos_saw = 0;    // whom_hellos_await(), when all were tried
  uint64_t hellos_tried = 0;  // JobManager::hellos_tried
  std::vector<std::pair<ClientId, std::function<void()>>> leaving_clients;
  uint64_t last_coordinator = 0;
  uint64_t last_inviting = 0;  // coordinator
  // JobManager::next_deadline_ns, until something changes: it is asked far more often than that.
  std::optional<uint64_t> deadline_ns;
  uint64_t find_deadline_ns() const;
};

}  // namespace mercury
