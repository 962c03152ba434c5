// JobManager: who gets in. HELLOs from other hosts, members of this host whose coordinator is here
// too, and invitations to serve.
#include <algorithm>

#include "shim/job/manager_state.h"

namespace mercury {
namespace {

constexpr int kMostHeldAlike = 4;
// Hosts that wait here for their jobs, and those that have not said yet what they want. Or a
// quarter of what an engine has of sessions, which 256 is by default: where a job of a thousand
// workers starts, all may come at once.
constexpr size_t kLeastWaiting = 256;
size_t most_waiting(const JobPolicy& policy) {
  return std::max<size_t>(kLeastWaiting, policy.max_sessions / 4);
}
constexpr uint64_t kGreetingNs = 10'000'000'000;  // for the first message on a control session
// For the roster: the worker that sent the HELLO has it, so it is on its way.
constexpr uint64_t kRosterNs = 10'000'000'000;

// The same whether the job is there or not: only who proves its secret hears which jobs there are.
Error unknown_job(const std::string& job, const std::string& where, const JobPolicy& policy) {
  const std::string what = "job '" + job + "' is not known on " + where + " with this secret";
  if (!policy.serve) {  // then listing it would not make a server of this host either
    return Error(Errc::kUnknownJob,
                 what +
                     ", and that host serves no jobs: start a server of it there, set "
                     "jobs.serve = true there, or name a host that serves as the rendezvous");
  }
  return Error(Errc::kUnknownJob,
               what +
                   ": start a server of it there, or list it with its secret under [[job]] in the "
                   "daemon's configuration" +
                   (policy.open_jobs ? " (only jobs without a secret are open there)" : ""));
}

// Whether some job could have such a member; which members a job has is asked later. HELLOs for a
// service that this host has do not come here.
Status check_caller(const wire::Hello& hello) {
  if (is_service_name(hello.job)) {
    return Error(Errc::kUnsupported, "this host has no service '" + hello.job + "'");
  }
  if (hello.role > static_cast<uint8_t>(Role::kServer)) {
    return Error(Errc::kProtocol, "a HELLO of role " + std::to_string(hello.role) +
                                      ": 0 is a worker, 1 a server, and this host knows no other");
  }
  const auto role = static_cast<Role>(hello.role);
  const uint32_t most = role == Role::kWorker ? kMaxWorkers : kMaxServers;
  if (hello.rank < most) return {};
  return Error(Errc::kProtocol, std::string("a HELLO of ") + name_of(role) + " " +
                                    std::to_string(hello.rank) + ": a job has at most " +
                                    std::to_string(most));
}

}  // namespace

bool JobManager::State::is_known(const std::string& job) const {
  return known.contains(job) || find_coordinator(job) || find_server(job);
}

bool JobManager::State::is_open(const std::string& job) const {
  if (known.contains(job)) return false;
  if (const Coordinator* coordinator = find_coordinator(job)) return coordinator->open();
  const Member* server = find_server(job);
  return !server || server->open();
}

std::optional<JobKey> JobManager::State::authority(const std::string& job) const {
  if (const auto it = known.find(job); it != known.end()) return it->second.key;
  if (const Coordinator* coordinator = find_coordinator(job)) return coordinator->key();
  if (const Member* server = find_server(job)) return server->key();
  if (context.policy.serve && context.policy.open_jobs) return derive_job_key(job, "");
  return std::nullopt;
}

// --- HELLOs ----------------------------------------------------------------------------------

void JobManager::State::on_hello(LaneId lane, event::HelloReceived hello, uint64_t now_ns) {
  PendingHello pending{lane, std::move(hello), kNever};
  if (!is_job_name(pending.hello.body.job)) {
    return refuse(pending, Error(Errc::kProtocol, "the job's name is not one"));
  }
  if (try_hello(pending, now_ns)) return;
  if (has_many_like(pending)) {
    return refuse(pending, Error(Errc::kAgain, "others asked for the same session before"));
  }
  if (hellos.size() >= most_waiting(context.policy)) {
    return refuse(pending, Error(Errc::kAgain, "too many hosts wait here for their jobs"));
  }
  pending.deadline_ns = now_ns + (pending.hello.body.kind == wire::SessionKind::kData
                                      ? kRosterNs
                                      : context.policy.hold_unknown_ns);
  hellos.push_back(std::move(pending));
}

// Anybody may repeat a worker's HELLO, and those of its earlier lives. None takes the place of one
// that is held; few are held of a life, and from one address and port, so that others find room.
bool JobManager::State::has_many_like(const PendingHello& pending) const {
  const wire::Hello& asked = pending.hello.body;
  if (asked.kind != wire::SessionKind::kData) return false;
  int of_life = 0, from_there = 0;
  for (const PendingHello& other : hellos) {
    const wire::Hello& held = other.hello.body;
    if (held.kind != asked.kind || held.job != asked.job || other.lane != pending.lane ||
        held.rank != asked.rank) {
      continue;
    }
    of_life += held.incarnation == asked.incarnation;
    from_there += other.hello.remote == pending.hello.remote;
  }
  return std::max(of_life, from_there) >= kMostHeldAlike;
}

bool JobManager::State::try_hello(const PendingHello& pending, uint64_t now_ns) {
  ++hellos_tried;
  if (Status caller = check_caller(pending.hello.body); !caller) {
    refuse(pending, caller.error());
    return true;
  }
  return pending.hello.body.kind == wire::SessionKind::kData ? try_data_hello(pending)
                                                             : try_control_hello(pending, now_ns);
}

bool JobManager::State::try_control_hello(const PendingHello& pending, uint64_t now_ns) {
  const wire::Hello& hello = pending.hello.body;
  const std::optional<JobKey> key = authority(hello.job);
  const bool certain = is_known(hello.job);  // else the key is that of any open job
  const bool proven = key && verify(*key, hello);
  if (!proven && !certain && now_ns < pending.deadline_ns && context.policy.hold_unknown_ns > 0) {
    return false;
  }
  if (!proven) {
    const std::string where = context.host.lanes.front().to_string();
    refuse(pending, unknown_job(hello.job, where, context.policy),
           certain ? "the job's secret is another one" : nullptr);
  } else if (Status agreed = context.check_features(hello.job, *key, hello.features); !agreed) {
    refuse(pending, agreed.error());
  } else if (is_open(hello.job) && !context.has_room_for_open_job(pending.lane)) {
    refuse(pending, context.no_room_for_open_jobs());
  } else {
    if (greetings.size() >= most_waiting(context.policy)) drop_oldest_greeting();
    const LinkId link = context.links.accept(Link::Owner::kGreeting, 0, pending.lane, kNoJob,
                                             pending.hello, 0, *key, is_open(hello.job));
    greetings[link] = {hello.job, *key, now_ns + kGreetingNs};
  }
  return true;
}

// Anybody may repeat a member's HELLO, and leave it at that: the newest are let in, as the honest
// have said what they want long before so many others came.
void JobManager::State::drop_oldest_greeting() {
  LinkId oldest = greetings.begin()->first;
  for (const auto& [link, greeting] : greetings) oldest = std::min(oldest, link);
  context.links.drop(oldest, Error(Errc::kAgain, "too many hosts are joining jobs here"));
  greetings.erase(oldest);
}

bool JobManager::State::try_data_hello(const PendingHello& pending) {
  const wire::Hello& hello = pending.hello.body;
  Member* server = find_server(hello.job);
  if (!server || !verify(server->key(), hello)) {
    refuse(
        pending,
        Error(Errc::kUnknownJob, "no server of job '" + hello.job + "' with this secret runs on " +
                                     context.host.lanes.front().to_string()),
        server ? "the job's secret is another one" : nullptr);
    return true;
  }
  const Result<Member::Admission> admission = server->admit(pending.lane, hello);
  if (!admission) {
    refuse(pending, admission.error());
  } else if (Status agreed = context.check_features(hello.job, server->key(), hello.features);
             !agreed) {
    refuse(pending, agreed.error());
  } else if (*admission == Member::Admission::kHold) {
    return false;
  } else if (server->open() && !context.has_room_for_open_job(pending.lane)) {
    refuse(pending, context.no_room_for_open_jobs());
  } else {
    server->accept(pending.lane, pending.hello);
  }
  return true;
}

// `noted`: what the log says where the peer may not know.
void JobManager::State::refuse(const PendingHello& pending, const Error& why, const char* noted) {
  context.host.send(pending.lane, command::Refuse{pending.hello.hello, why.code,
                                                  shortened(why.message, wire::kMaxReason)});
  note_refusal(pending.hello.remote, pending.hello.body.job, noted ? noted : why.message);
}

void JobManager::State::note_refusal(const Endpoint& remote, const std::string& job,
                                     const std::string& why) {
  if (!context.host.notice) return;
  // What does not even have a job's name is not repeated: nothing in a log may steer a terminal.
  const std::string name = is_job_name(job) ? " for job '" + job + "'" : "";
  context.host.notice(NoticeKind::kRefusal, "refused " + remote.to_string() + name + ": " + why);
}

uint64_t JobManager::State::whom_hellos_await() const {
  uint64_t sum = 0;
  const auto add = [&sum](uint64_t part) { sum = (sum ^ part) * 0x100000001b3; };  // FNV-1a's
  for (const auto& [slot, member] : members) {
    add(uint64_t{slot} << 2 | uint64_t{member->live()} << 1 | uint64_t{member->admits()});
  }
  for (const auto& [number, coordinator] : coordinators) {
    add(~number << 1 | uint64_t{coordinator->ended()});
  }
  return sum;
}

void JobManager::State::retry_hellos(uint64_t now_ns) {
  if (hellos.empty()) return;
  const uint64_t seen = std::exchange(hellos_saw, whom_hellos_await());
  std::erase_if(hellos, [&](const PendingHello& pending) {
    if (seen == hellos_saw && pending.deadline_ns > now_ns) return false;
    if (try_hello(pending, now_ns)) return true;
    if (pending.deadline_ns > now_ns) return false;
    refuse(pending, Error(Errc::kAgain, "the job's roster has not arrived here"));
    return true;
  });
}

// --- first words on a control session --------------------------------------------------------

void JobManager::State::on_first_message(LinkId link, const Message& message, uint64_t now_ns) {
  const Greeting greeting = std::move(greetings[link]);
  greetings.erase(link);
  if (const auto* invite = std::get_if<message::Invite>(&message)) {
    return on_invite(link, greeting, *invite, now_ns);
  }
  if (!std::holds_alternative<message::Join>(message)) {
    return context.links.drop(link, Error(Errc::kProtocol, "the first message is no join"));
  }
  // The job may have ended since the HELLO, and another of its name begun.
  const std::optional<JobKey> key = authority(greeting.job);
  if (!key || !same_key(*key, greeting.key)) {
    return context.links.drop(link, Error(Errc::kAgain, "job '" + greeting.job + "' has ended"));
  }
  Coordinator* coordinator = coordinator_for(greeting.job, *key, false);
  if (!coordinator) return context.links.drop(link, no_room_for(greeting.job));
  Link* entry = context.links.find(link);
  entry->owner = Link::Owner::kCoordinator;
  entry->owner_id = coordinator->number();
  coordinator->on_message(link, message, now_ns);
}

void JobManager::State::on_invite(LinkId link, const Greeting& greeting,
                                  const message::Invite& invite, uint64_t now_ns) {
  const auto decline = [&](Errc code, const std::string& why) {
    context.links.drop(link, Error(code, why));
  };
  if (const Member* server = find_server(greeting.job)) {
    if (server->served()) {  // by another coordinator, which has died or ended the job
      return decline(Errc::kAgain, "the last job of this name has not ended on this host yet");
    }
    return decline(Errc::kExists, "a server of the job is on this host and joins by itself");
  }
  if (!context.policy.serve) {
    return decline(Errc::kUnknownJob, "this host serves no jobs (jobs.serve)");
  }
  OpenJob spec;
  spec.name = greeting.job;
  spec.role = Role::kServer;
  spec.rank = invite.rank;
  spec.workers = invite.workers;
  spec.servers = invite.servers;
  spec.terms = invite.terms;
  spec.timeout_ns = 0;
  spec.rendezvous = context.host.lanes;  // of no use: its coordinator has called
  Result<Member*> member = add_member(std::move(spec), greeting.key, now_ns);
  if (!member) return decline(member.error().code, member.error().message);
  Link* entry = context.links.find(link);
  entry->owner = Link::Owner::kMember;
  entry->owner_id = (*member)->slot().value;
  (*member)->attach(link, now_ns);
}

// --- this host's own -------------------------------------------------------------------------

// `local`: a program of this host asks for it.
Coordinator* JobManager::State::coordinator_for(const std::string& job, const JobKey& key,
                                                bool local) {
  if (Coordinator* coordinator = find_coordinator(job)) return coordinator;
  const bool open = !local && is_open(job);
  const auto is_strangers = [](const auto& entry) { return entry.second->open(); };
  if (coordinators.size() >= context.policy.max_jobs ||
      (open && std::ranges::count_if(coordinators, is_strangers) >= context.most_open_jobs())) {
    return nullptr;
  }
  const uint64_t number = ++last_coordinator;
  auto made = std::make_unique<Coordinator>(context, number, job, key, open);
  return (coordinators[number] = std::move(made)).get();
}

// A member whose coordinator is this very host. False: the job is not known here yet.
bool JobManager::State::attach_locally(Member& member, uint64_t now_ns) {
  const std::optional<JobKey> key = authority(member.job());
  if (!key || !same_key(*key, member.key())) {
    const bool certain = is_known(member.job());
    if (!certain && context.policy.hold_unknown_ns > 0) return false;
    member.fail(
        certain
            ? Error(Errc::kWrongSecret, "the secret of job '" + member.job() + "' is another one")
            : unknown_job(member.job(), "this host, which is its coordinator", context.policy));
    return true;
  }
  Coordinator* coordinator = coordinator_for(member.job(), *key, true);
  if (!coordinator) {
    member.fail(too_many_jobs());
    return true;
  }
  member.attach(context.links.pair(member.slot().value, coordinator->number()).first, now_ns);
  return true;
}

// What ended makes room for those whose turn it is.
void JobManager::State::invite_where_due(uint64_t now_ns) {
  auto next = coordinators.upper_bound(last_inviting);
  for (size_t i = 0; i < coordinators.size(); ++i, ++next) {
    if (next == coordinators.end()) next = coordinators.begin();
    if (next->second->invite_due(now_ns)) last_inviting = next->first;
  }
}

// A serving host is server 0 of every job that it coordinates, unless a program here is.
void JobManager::State::serve_where_due(uint64_t now_ns) {
  for (const auto& [number, coordinator] : coordinators) {
    if (!context.policy.serve || !coordinator->ask_host_to_serve()) continue;
    if (find_server(coordinator->job())) continue;
    const message::Join* shape = coordinator->shape();
    OpenJob spec;
    spec.name = coordinator->job();
    spec.role = Role::kServer;
    spec.rank = 0;
    spec.workers = shape->workers;
    spec.servers = shape->servers;
    copy_terms(SaidBy::kMembers, shape->terms, spec.terms);
    spec.timeout_ns = 0;
    spec.rendezvous = context.host.lanes;
    Result<Member*> member = add_member(std::move(spec), coordinator->key(), now_ns);
    if (!member) {
      coordinator->fail(member.error().code, member.error().message, now_ns);
      continue;
    }
    (*member)->attach(context.links.pair((*member)->slot().value, number).first, now_ns);
  }
}

}  // namespace mercury
