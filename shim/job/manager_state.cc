// JobManager: its tables of members and coordinators, and the way of an event to one of them.
#include "shim/job/manager_state.h"

#include <algorithm>

namespace mercury {

// --- tables ----------------------------------------------------------------------------------

JobManager::State::State(Host host, JobPolicy policy)
    : context(counted(std::move(host)), std::move(policy)) {
  for (KnownJob& job : context.policy.known) {
    JobLimits limits = limits_of_others();
    if (job.memory_limit_bytes > 0) limits.memory_bytes = job.memory_limit_bytes;
    limits.bytes_per_second = job.bytes_per_second;
    if (job.fixed_weight > 0) limits.least_weight = limits.most_weight = job.fixed_weight;
    known[job.name] = {derive_job_key(job.name, job.secret), limits};
    wipe(job.secret);
  }
  if (context.host.lanes.size() > kMaxLanes) context.host.lanes.resize(kMaxLanes);
}

JobManager::Host JobManager::State::counted(Host host) {
  host.send = [this, send = std::move(host.send)](LaneId lane, Command command) {
    ++context.work.commands;
    if (const auto* control = std::get_if<command::SendControl>(&command)) {
      ++context.work.messages_sent;
      context.work.sent_bytes += control->message.size();
    }
    send(lane, std::move(command));
  };
  return host;
}

JobLimits JobManager::State::limits_of_others() const {
  return {context.policy.memory_limit_bytes, 1, context.policy.max_weight,
          context.policy.bytes_per_second};
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

Error JobManager::State::no_room_for(const std::string& job) const {
  const bool full = std::max(coordinators.size(), members.size()) >= context.policy.max_jobs;
  Error why = full ? too_many_jobs()
                   : Error(Errc::kLimit, context.host.lanes.front().to_string() + " is in " +
                                             std::to_string(context.most_open_jobs()) +
                                             " open jobs already, three quarters of jobs.max_jobs: "
                                             "list the job there under [[job]]");
  context.note(NoticeKind::kRefusal, job, "refused: " + why.message);
  return why;
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
  if (slot >= context.policy.max_jobs || slot >= kNoJob.value) {
    return no_room_for(spec.name);
  }
  const auto it = known.find(spec.name);
  const JobLimits limits = it != known.end() ? it->second.limits : limits_of_others();
  const bool open = it == known.end() && spec.timeout_ns == 0;  // no program asks for it
  const auto is_strangers = [](const auto& entry) { return entry.second->open(); };
  if (open && std::ranges::count_if(members, is_strangers) >= context.most_open_jobs()) {
    return no_room_for(spec.name);
  }
  auto made =
      std::make_unique<Member>(context, JobSlot(slot), std::move(spec), key, limits, open, now_ns);
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
  if (link.connected) {
    if (Status agreed = context.check_features(link.job, link.key, opened.answer.features);
        !agreed) {
      context.links.drop(opened.token, agreed.error());
      return close_to(link, opened.token, agreed.error(), now_ns);
    }
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
                                       : member->on_data_closed(id, why, now_ns);
  }
}

void JobManager::State::on_control(const event::ControlReceived& received, uint64_t now_ns) {
  ++context.work.messages_received;
  context.work.received_bytes += received.message.size();
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
    invite_where_due(now_ns);
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
    deadline_ns.reset();  // it was found when this reply, too, was due
    reply();
  }
}

}  // namespace mercury
