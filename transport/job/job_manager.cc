#include "transport/job/job_manager.h"

#include <algorithm>

#include "transport/job/manager_state.h"

namespace mercury {
namespace {

Status check(const OpenJob& request, size_t lanes) {
  const auto wrong = [](const std::string& what) { return Error(Errc::kInvalidArgument, what); };
  const bool worker = request.role == Role::kWorker;
  const int ranks = worker ? request.workers : request.servers;
  if (!valid_job_name(request.name)) {
    return wrong("a job's name is 1 to 63 of A-Z, a-z, 0-9, '_', '.', '-'");
  }
  if (request.workers == 0 || request.workers > kMaxWorkers) return wrong("workers: 1 to 256");
  if (request.servers == 0 || request.servers > kMaxServers) return wrong("servers: 1 to 256");
  if (request.rank < -1 || request.rank >= ranks) {
    return wrong("rank " + std::to_string(request.rank) + ": expected -1 to " +
                 std::to_string(ranks - 1));
  }
  if (request.weight == 0 || request.weight > kMaxWeight) return wrong("weight: 1 to 1000");
  if (request.quorum > 0) {
    if (request.quorum > request.workers) return wrong("quorum: at most the number of workers");
    if (request.patience_ns < 1'000'000) return wrong("a quorum needs a patience of 1 ms or more");
    if (request.deterministic) {
      return wrong("a deterministic job has no quorum: who is in a sum would differ between runs");
    }
  }
  if (request.timeout_ns == 0) return wrong("the time limit must not be zero");
  if (request.rendezvous.empty() || request.rendezvous.size() > kMaxServers) {
    return wrong("rendezvous: 1 to 256 addresses");
  }
  for (const Endpoint& endpoint : request.rendezvous) {
    if (endpoint.port == 0 || endpoint.ip.is_unspecified()) {
      return wrong("rendezvous: " + endpoint.to_string() + " is not where a host can be reached");
    }
  }
  if (worker && request.channels.size() != lanes) {
    return wrong("a worker needs one channel per engine of its host");
  }
  return {};
}

}  // namespace

// --- tables ----------------------------------------------------------------------------------

JobManager::State::State(Host host, JobPolicy policy)
    : context(std::move(host), std::move(policy)) {
  for (KnownJob& job : context.policy.known) {
    known[job.name] = {derive_job_key(job.name, job.secret), job.memory_limit_bytes};
    job.secret.clear();
  }
  if (context.host.lanes.size() > kMaxLanes) context.host.lanes.resize(kMaxLanes);
}

bool JobManager::State::is_here(const Endpoint& endpoint) const {
  return std::find(context.host.lanes.begin(), context.host.lanes.end(), endpoint) !=
         context.host.lanes.end();
}

Error JobManager::State::too_many_jobs() const {
  return Error(Errc::kLimit, context.host.lanes.front().to_string() + " is in " +
                                 std::to_string(context.policy.max_jobs) +
                                 " jobs already (jobs.max_jobs)");
}

Coordinator* JobManager::State::find_coordinator(const std::string& job) const {
  for (const auto& [number, coordinator] : coordinators) {
    if (coordinator->job() == job && !coordinator->ended()) return coordinator.get();
  }
  return nullptr;
}

Member* JobManager::State::find_server(const std::string& job) const {
  for (const auto& [slot, member] : members) {
    if (member->role() == Role::kServer && member->job() == job && member->live()) {
      return member.get();
    }
  }
  return nullptr;
}

Member* JobManager::State::find_member(ClientId client, JobSlot slot) const {
  const auto it = members.find(slot.value);
  return it != members.end() && it->second->owner() == client ? it->second.get() : nullptr;
}

Result<Member*> JobManager::State::add_member(OpenJob spec, const JobKey& key, uint64_t now_ns) {
  uint16_t slot = 0;
  while (members.contains(slot)) ++slot;
  if (slot >= context.policy.max_jobs || slot >= kControlSlot.value) {
    return too_many_jobs();
  }
  const auto it = known.find(spec.name);
  const uint64_t limit = it != known.end() && it->second.memory_limit_bytes > 0
                             ? it->second.memory_limit_bytes
                             : context.policy.memory_limit_bytes;
  auto made = std::make_unique<Member>(context, JobSlot(slot), std::move(spec), key, limit, now_ns);
  return (members[slot] = std::move(made)).get();
}

// --- routing ---------------------------------------------------------------------------------

Member* JobManager::State::member_of(const Link& link) const {
  const auto it = members.find(static_cast<uint16_t>(link.owner_id));
  return it == members.end() ? nullptr : it->second.get();
}

Coordinator* JobManager::State::coordinator_of(const Link& link) const {
  const auto it = coordinators.find(link.owner_id);
  return it == coordinators.end() ? nullptr : it->second.get();
}

void JobManager::State::on_opened(const event::SessionOpened& opened, uint64_t now_ns) {
  const Link* found = context.links.find(opened.token);
  if (!found) return;
  const Link link = *found;
  if (link.connected && !context.links.verify(opened.token, opened.answer)) {
    return close_to(link, opened.token,
                    Error(Errc::kWrongSecret, "the peer does not prove the job's secret"), now_ns);
  }
  Coordinator* coordinator =
      link.owner == Link::Owner::kCoordinator ? coordinator_of(link) : nullptr;
  Member* member = link.owner == Link::Owner::kMember || link.owner == Link::Owner::kData
                       ? member_of(link)
                       : nullptr;
  if (coordinator) {
    coordinator->on_opened(opened.token);
  } else if (member && link.owner == Link::Owner::kMember) {
    member->on_control_opened(now_ns);
  } else if (member) {
    member->on_data_opened(opened.token, opened.answer);
  }
}

void JobManager::State::on_closed(LinkId id, const Error& why, uint64_t now_ns) {
  const Link* found = context.links.find(id);
  if (!found) return;
  const Link link = *found;
  context.links.forget(id);
  close_to(link, id, why, now_ns);
}

void JobManager::State::close_to(const Link& link, LinkId id, const Error& why, uint64_t now_ns) {
  if (link.owner == Link::Owner::kGreeting) {
    greetings.erase(id);
  } else if (link.owner == Link::Owner::kCoordinator) {
    if (Coordinator* coordinator = coordinator_of(link)) coordinator->on_closed(id, why, now_ns);
  } else if (Member* member = member_of(link)) {
    link.owner == Link::Owner::kMember ? member->on_control_closed(why, now_ns)
                                       : member->on_data_closed(id, why);
  }
}

void JobManager::State::on_control(const event::ControlReceived& received, uint64_t now_ns) {
  const Link* link = context.links.find(received.token);
  if (!link) return;
  Result<Message> message = decode_message(received.message);
  if (message && link->owner != Link::Owner::kData) {
    return deliver(received.token, *message, now_ns);
  }
  const Error why =
      message ? Error(Errc::kProtocol, "a control message on a data session") : message.error();
  const Link lost = *link;
  context.links.drop(received.token, why);
  close_to(lost, received.token, why, now_ns);
}

void JobManager::State::deliver(LinkId id, const Message& message, uint64_t now_ns) {
  const Link* link = context.links.find(id);
  if (!link) return;
  if (link->owner == Link::Owner::kGreeting) return on_first_message(id, message, now_ns);
  if (link->owner == Link::Owner::kCoordinator) {
    if (Coordinator* coordinator = coordinator_of(*link)) {
      coordinator->on_message(id, message, now_ns);
    }
  } else if (Member* member = member_of(*link)) {
    member->on_message(message, now_ns);
  }
}

void JobManager::State::settle(uint64_t now_ns) {
  do {
    Links::Delivery delivery;
    while (context.links.take_local(delivery)) {
      if (const auto* message = std::get_if<Message>(&delivery.what)) {
        deliver(delivery.to, *message, now_ns);
      } else {
        on_closed(delivery.to, std::get<Error>(delivery.what), now_ns);
      }
    }
    for (const auto& [slot, member] : members) {
      if (member->owner() && member->live() && member->seeking() &&
          is_here(member->spec().rendezvous.front())) {
        attach_locally(*member, now_ns);
      }
    }
    serve_where_due(now_ns);
    retry_hellos(now_ns);
  } while (context.links.has_local());
  reap();
}

void JobManager::State::reap() {
  std::erase_if(coordinators, [](const auto& entry) { return entry.second->done(); });
  std::erase_if(members, [](const auto& entry) { return entry.second->gone(); });
  std::erase_if(leaving_clients, [&](auto& leaving) {
    for (const auto& [slot, member] : members) {
      if (member->owner() == leaving.first) return false;
    }
    context.replies.push_back(std::move(leaving.second));
    return true;
  });
}

void JobManager::State::reply_all() {
  while (!context.replies.empty()) {  // a program may ask for more from within its reply
    std::function<void()> reply = std::move(context.replies.front());
    context.replies.pop_front();
    reply();
  }
}

// --- the interface ---------------------------------------------------------------------------

JobManager::JobManager(Host host, JobPolicy policy)
    : state_(std::make_unique<State>(std::move(host), std::move(policy))) {}
JobManager::~JobManager() = default;

void JobManager::open_job(ClientId client, OpenJob request, uint64_t now_ns,
                          std::function<void(Result<OpenedJob>)> reply) {
  const auto fail = [&](const Error& why) {
    state_->context.replies.emplace_back([reply = std::move(reply), why] { reply(why); });
  };
  if (Status fits = check(request, state_->context.host.lanes.size()); !fits) {
    return fail(fits.error());
  }
  const JobKey key = derive_job_key(request.name, request.secret);
  if (Member* server = state_->find_server(request.name); server && request.role == Role::kServer) {
    // This host serves the job already: the program waits for its end, and its leaving ends it.
    const OpenJob& spec = server->spec();
    if (!same_key(server->key(), key)) {
      return fail(Error(Errc::kWrongSecret,
                        "the secret of job '" + request.name + "' on this host is another one"));
    }
    if (server->owner() || (request.rank >= 0 && request.rank != spec.rank)) {
      return fail(Error(Errc::kExists, "this host is a server of job '" + request.name +
                                           "' already; a host can be one server of a job"));
    }
    if (request.workers != spec.workers || request.servers != spec.servers ||
        request.deterministic != spec.deterministic) {
      return fail(Error(Errc::kWrongSizes, "job '" + request.name + "' was opened with " +
                                               std::to_string(spec.workers) + " workers, " +
                                               std::to_string(spec.servers) + " servers" +
                                               (spec.deterministic ? ", deterministic" : "")));
    }
    return server->own(client, std::move(reply));
  }
  if (request.quorum == 0 || request.quorum == request.workers) {
    request.quorum = 0;  // everybody is waited for
    request.patience_ns = 0;
  }
  const bool here = state_->is_here(request.rendezvous.front());
  Result<Member*> member = state_->add_member(std::move(request), key, now_ns);
  if (!member) return fail(member.error());
  (*member)->own(client, std::move(reply));
  if (!here) (*member)->connect();
  state_->settle(now_ns);
}

void JobManager::declare(ClientId client, JobSlot job, std::vector<TensorDeclaration> tensors,
                         uint64_t now_ns, std::function<void(Status)> reply) {
  if (Member* member = state_->find_member(client, job)) {
    member->declare(std::move(tensors), std::move(reply));
    return state_->settle(now_ns);
  }
  state_->context.replies.emplace_back(
      [reply = std::move(reply)] { reply(Error(Errc::kNotFound, "no such job")); });
}

void JobManager::close_job(ClientId client, JobSlot job, uint64_t now_ns,
                           std::function<void()> reply) {
  if (Member* member = state_->find_member(client, job)) {
    member->close(now_ns, std::move(reply));
    return state_->settle(now_ns);
  }
  state_->context.replies.push_back(std::move(reply));
}

void JobManager::wait_job(ClientId client, JobSlot job, std::function<void(Status)> reply) {
  if (Member* member = state_->find_member(client, job)) return member->wait(std::move(reply));
  state_->context.replies.emplace_back(
      [reply = std::move(reply)] { reply(Error(Errc::kNotFound, "no such job")); });
}

void JobManager::client_gone(ClientId client, uint64_t now_ns, std::function<void()> reply) {
  for (const auto& [slot, member] : state_->members) {
    if (member->owner() == client) member->abandon();
  }
  state_->leaving_clients.emplace_back(client, std::move(reply));
  state_->settle(now_ns);
}

Status JobManager::set_policy(ClientId client, JobSlot job, std::string policy, uint64_t now_ns) {
  Member* member = state_->find_member(client, job);
  if (!member) return Error(Errc::kNotFound, "no such job");
  const Status sent = member->set_policy(std::move(policy));
  state_->settle(now_ns);
  return sent;
}

Status JobManager::job_status(ClientId client, JobSlot job) const {
  const Member* member = state_->find_member(client, job);
  return member ? member->status() : Status(Error(Errc::kNotFound, "no such job"));
}

uint32_t JobManager::first_round(ClientId client, JobSlot job, uint32_t tensor) const {
  const Member* member = state_->find_member(client, job);
  return member ? member->first_round(tensor) : 1;
}

void JobManager::on_event(LaneId lane, Event event, uint64_t now_ns) {
  State& state = *state_;
  if (auto* hello = std::get_if<event::HelloReceived>(&event)) {
    state.on_hello(lane, std::move(*hello), now_ns);
  } else if (const auto* refused = std::get_if<event::HelloRefused>(&event)) {
    state.note_refusal(refused->remote, refused->job, refused->text);
  } else if (const auto* opened = std::get_if<event::SessionOpened>(&event)) {
    state.on_opened(*opened, now_ns);
  } else if (const auto* closed = std::get_if<event::SessionClosed>(&event)) {
    const Errc code = closed->code == Errc::kOk ? Errc::kClosed : closed->code;
    state.on_closed(closed->token, Error(code, closed->text), now_ns);
  } else if (const auto* received = std::get_if<event::ControlReceived>(&event)) {
    state.on_control(*received, now_ns);
  } else if (const auto* probed = std::get_if<event::PathProbed>(&event)) {
    const Link* link = state.context.links.find(probed->token);
    Member* member = link && link->owner == Link::Owner::kData ? state.member_of(*link) : nullptr;
    if (member) member->on_path(probed->token, probed->max_udp_payload);
  } else if (const auto* confirmed = std::get_if<event::Confirmed>(&event)) {
    const auto it = state.members.find(confirmed->job.value);
    if (it != state.members.end()) it->second->on_confirmed(confirmed->number);
  } else if (const auto* replaced = std::get_if<event::WorkerReplaced>(&event)) {
    const auto it = state.members.find(replaced->job.value);
    if (it != state.members.end()) it->second->on_worker_replaced(*replaced);
  } else if (const auto* removed = std::get_if<event::JobRemoved>(&event)) {
    const auto it = state.members.find(removed->job.value);
    if (it != state.members.end()) it->second->on_job_removed();
  } else if (const auto* failed = std::get_if<event::CommandFailed>(&event)) {
    const auto it = state.members.find(failed->job.value);
    if (it != state.members.end()) it->second->on_command_failed(Error(failed->code, failed->text));
  }
  state.settle(now_ns);
  state.reply_all();
}

uint64_t JobManager::next_deadline_ns() const {
  if (!state_->context.replies.empty()) return 0;
  uint64_t next = kNever;
  for (const auto& [slot, member] : state_->members) {
    next = std::min(next, member->next_deadline_ns());
  }
  for (const auto& [number, coordinator] : state_->coordinators) {
    next = std::min(next, coordinator->next_deadline_ns());
  }
  for (const auto& [link, greeting] : state_->greetings) {
    next = std::min(next, greeting.deadline_ns);
  }
  for (const auto& pending : state_->hellos) next = std::min(next, pending.deadline_ns);
  return next;
}

void JobManager::on_timer(uint64_t now_ns) {
  State& state = *state_;
  for (const auto& [slot, member] : state.members) member->on_timer(now_ns);
  for (const auto& [number, coordinator] : state.coordinators) coordinator->on_timer(now_ns);
  std::erase_if(state.greetings, [&](const auto& entry) {
    if (entry.second.deadline_ns > now_ns) return false;
    state.context.links.drop(entry.first, Error(Errc::kTimedOut, "the session said nothing"));
    return true;
  });
  state.settle(now_ns);
  state.reply_all();
}

bool JobManager::idle() const {
  const State& s = *state_;
  return s.members.empty() && s.coordinators.empty() && s.greetings.empty() && s.hellos.empty() &&
         s.leaving_clients.empty() && s.context.replies.empty() && s.context.links.size() == 0;
}

std::vector<JobSnapshot> JobManager::snapshot() const {
  std::vector<JobSnapshot> jobs;
  for (const auto& [slot, member] : state_->members) {
    jobs.push_back(member->snapshot());
    const Coordinator* coordinator = state_->find_coordinator(member->job());
    if (coordinator && member->live()) jobs.back().members = coordinator->members();
  }
  return jobs;
}

}  // namespace mercury
