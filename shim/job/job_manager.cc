#include "shim/job/job_manager.h"

#include <algorithm>

#include "shim/job/manager_state.h"

namespace mercury {
namespace {

Status check(const OpenJob& request, size_t lanes) {
  const auto wrong = [](const std::string& what) { return Error(Errc::kInvalidArgument, what); };
  const auto out_of_range = [&wrong](const char* what, size_t given, uint32_t most) {
    return wrong(what + (" is " + std::to_string(given)) + ", expected 1 to " +
                 std::to_string(most));
  };
  const bool worker = request.role == Role::kWorker;
  const int ranks = worker ? request.workers : request.servers;
  if (!is_job_name(request.name)) {
    return wrong("a job's name is 1 to 63 of A-Z, a-z, 0-9, '_', '.', '-'");
  }
  if (is_service_name(request.name)) {
    return wrong("job '" + request.name + "': names that begin with \"mercury.\" are not for jobs");
  }
  if (request.workers == 0 || request.workers > kMaxWorkers) {
    return out_of_range("workers", request.workers, kMaxWorkers);
  }
  if (request.servers == 0 || request.servers > kMaxServers) {
    return out_of_range("servers", request.servers, kMaxServers);
  }
  if (request.rank < -1 || request.rank >= ranks) {
    return wrong("rank " + std::to_string(request.rank) + ": expected -1 to " +
                 std::to_string(ranks - 1));
  }
  if (Status fits = check_terms(request.terms, request.workers); !fits) return fits;
  if (request.timeout_ns == 0) return wrong("the time limit must not be zero");
  if (request.rendezvous.empty() || request.rendezvous.size() > kMaxServers) {
    return out_of_range("rendezvous: the number of addresses", request.rendezvous.size(),
                        kMaxServers);
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

// Whether a program can own a server that was opened without it.
Status check_shape(const OpenJob& asked, const OpenJob& opened) {
  const TermsApart terms = apart(opened.terms, asked.terms,
                                 [](const Term& term) { return term.said_by == SaidBy::kMembers; });
  if (asked.workers == opened.workers && asked.servers == opened.servers && terms.first.empty()) {
    return {};
  }
  const auto text = [](const OpenJob& job, const std::string& differ) {
    return std::to_string(job.workers) + " workers, " + std::to_string(job.servers) + " servers" +
           (differ.empty() ? "" : ", " + differ);
  };
  return Error(Errc::kWrongSizes, "job '" + asked.name + "' was opened with " +
                                      text(opened, terms.first) + "; this program asks for " +
                                      text(asked, terms.second));
}

}  // namespace

// For as long as a call may change when the next timer is due: replies call back into the manager.
class JobManager::Change {
 public:
  explicit Change(State& state) : state_(state) {}
  ~Change() { state_.deadline_ns.reset(); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  State& state_;
};

JobManager::JobManager(Host host, JobPolicy policy)
    : state_(std::make_unique<State>(std::move(host), std::move(policy))) {}
JobManager::~JobManager() = default;

void JobManager::open_job(ClientId client, OpenJob request, uint64_t now_ns,
                          std::function<void(Result<OpenedJob>)> reply) {
  const Change change(*state_);
  const auto fail = [&](const Error& why) {
    state_->context.replies.emplace_back([reply = std::move(reply), why] { reply(why); });
  };
  if (Status fits = check(request, state_->context.host.lanes.size()); !fits) {
    wipe(request.secret);
    return fail(fits.error());
  }
  const JobKey key = derive_job_key(request.name, request.secret);
  wipe(request.secret);
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
    if (Status fits = check_shape(request, spec); !fits) return fail(fits.error());
    return server->own(client, std::move(reply));
  }
  normalise(request.terms, request.workers);
  const bool here = state_->is_here(request.rendezvous.front());
  Result<Member*> member = state_->add_member(std::move(request), key, now_ns);
  if (!member) return fail(member.error());
  (*member)->own(client, std::move(reply));
  if (!here) (*member)->connect();
  state_->settle(now_ns);
}

void JobManager::declare(ClientId client, JobSlot job, std::vector<TensorDeclaration> tensors,
                         uint64_t now_ns, std::function<void(Status)> reply) {
  const Change change(*state_);
  if (Member* member = state_->find_member(client, job)) {
    member->declare(std::move(tensors), std::move(reply));
    return state_->settle(now_ns);
  }
  state_->context.replies.emplace_back(
      [reply = std::move(reply)] { reply(Error(Errc::kNotFound, "no such job")); });
}

void JobManager::close_job(ClientId client, JobSlot job, uint64_t now_ns,
                           std::function<void()> reply) {
  const Change change(*state_);
  if (Member* member = state_->find_member(client, job)) {
    member->close(now_ns, std::move(reply));
    return state_->settle(now_ns);
  }
  state_->context.replies.push_back(std::move(reply));
}

void JobManager::wait_job(ClientId client, JobSlot job, std::function<void(Status)> reply) {
  const Change change(*state_);
  if (Member* member = state_->find_member(client, job)) return member->wait(std::move(reply));
  state_->context.replies.emplace_back(
      [reply = std::move(reply)] { reply(Error(Errc::kNotFound, "no such job")); });
}

void JobManager::client_gone(ClientId client, uint64_t now_ns, std::function<void()> reply) {
  const Change change(*state_);
  for (const auto& [slot, member] : state_->members) {
    if (member->owner() == client) member->abandon();
  }
  state_->leaving_clients.emplace_back(client, std::move(reply));
  state_->settle(now_ns);
}

void JobManager::host_ends() { state_->context.host_ends = true; }

Status JobManager::set_policy(ClientId client, JobSlot job, std::string policy, uint64_t now_ns) {
  const Change change(*state_);
  Member* member = state_->find_member(client, job);
  if (!member) return Error(Errc::kNotFound, "no such job");
  Status sent = member->set_policy(std::move(policy));
  state_->settle(now_ns);
  return sent;
}

Status JobManager::job_status(ClientId client, JobSlot job) const {
  const Member* member = state_->find_member(client, job);
  return member ? member->status() : Status(Error(Errc::kNotFound, "no such job"));
}

Round JobManager::first_round(ClientId client, JobSlot job, TensorId tensor) const {
  const Member* member = state_->find_member(client, job);
  return member ? member->first_round(tensor) : Round(1);
}

void JobManager::on_event(LaneId lane, Event event, uint64_t now_ns) {
  const Change change(*state_);
  State& state = *state_;
  ++state.context.work.events;
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
    if (member) member->on_path(*probed);
  } else if (const auto* confirmed = std::get_if<event::Confirmed>(&event)) {
    const auto it = state.members.find(confirmed->job.value);
    if (it != state.members.end()) it->second->on_confirmed(confirmed->number);
  } else if (const auto* moved = std::get_if<event::ChunksMoved>(&event)) {
    const auto it = state.members.find(moved->job.value);
    if (it != state.members.end()) it->second->on_chunks_moved(moved->chunks, now_ns);
  } else if (const auto* replaced = std::get_if<event::WorkerReplaced>(&event)) {
    const auto it = state.members.find(replaced->job.value);
    if (it != state.members.end()) it->second->on_worker_replaced(*replaced);
  } else if (const auto* stalled = std::get_if<event::WorkersStalled>(&event)) {
    const auto it = state.members.find(stalled->job.value);
    if (it != state.members.end()) it->second->on_workers_stalled(*stalled);
  } else if (const auto* hopeless = std::get_if<event::RoundHopeless>(&event)) {
    const auto it = state.members.find(hopeless->job.value);
    if (it != state.members.end()) it->second->on_round_hopeless(*hopeless);
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
  if (!state_->deadline_ns) state_->deadline_ns = state_->find_deadline_ns();
  return *state_->deadline_ns;
}

uint64_t JobManager::State::find_deadline_ns() const {
  if (!context.replies.empty()) return 0;
  uint64_t next = kNever;
  for (const auto& [slot, member] : members) next = std::min(next, member->next_deadline_ns());
  for (const auto& [number, coordinator] : coordinators) {
    next = std::min(next, coordinator->next_deadline_ns());
  }
  for (const auto& [link, greeting] : greetings) next = std::min(next, greeting.deadline_ns);
  for (const auto& pending : hellos) next = std::min(next, pending.deadline_ns);
  return next;
}

void JobManager::on_timer(uint64_t now_ns) {
  const Change change(*state_);
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

uint64_t JobManager::hellos_tried() const { return state_->hellos_tried; }
const ControlWork& JobManager::work() const { return state_->context.work; }

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
