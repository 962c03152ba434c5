#include "tests/shim/job/hosts.h"

#include <algorithm>

namespace mercury::test {

JobManager& Hosts::add(int number, int lanes, JobPolicy policy) {
  auto made = std::make_unique<HostModel>();
  HostModel* host = made.get();
  host->number = number;
  host->lanes.resize(static_cast<size_t>(lanes));
  JobManager::Host interface;
  for (int lane = 0; lane < lanes; ++lane) interface.lanes.push_back(address(number, lane));
  interface.send = [host](LaneId lane, Command command) {
    host->lanes.at(lane.value).commands.push_back(std::move(command));
  };
  interface.random = [this] { return random_(); };
  interface.notice = [this, number](NoticeKind, const std::string& line) {
    log.push_back(std::to_string(number) + ": " + line);
  };
  host->manager = std::make_unique<JobManager>(std::move(interface), std::move(policy));
  hosts_[number] = std::move(made);
  return *host->manager;
}

void Hosts::kill(int number) {
  HostModel& dead = host(number);
  dead.dead = true;
  for (auto& session : sessions_) {
    for (int end = 0; end < 2; ++end) {
      if (session->ends[end].host != number || session->ends[end].closed) continue;
      session->ends[end].closed = true;
      if (!session->ends[1 - end].closed) {
        const std::string from = address(number, session->ends[end].lane).to_string();
        timers_.emplace(now_ns_ + peer_timeout_ns,
                        Timer{session.get(),
                              1 - end,
                              {0, session->open ? Errc::kPeerLost : Errc::kTimedOut,
                               "nothing heard from " + from + " for 10 s"}});
      }
    }
  }
}

std::pair<SessionModel*, int> Hosts::find(const HostModel& host, uint16_t lane, Token token) {
  for (auto& session : sessions_) {
    for (int end = 0; end < 2; ++end) {
      const SessionModel::End& e = session->ends[end];
      if (e.host == host.number && e.lane == lane && e.token == token && !e.closed) {
        return {session.get(), end};
      }
    }
  }
  return {nullptr, 0};
}

void Hosts::connect(HostModel& host, uint16_t lane, const command::Connect& c) {
  auto made = std::make_unique<SessionModel>();
  SessionModel* session = made.get();
  session->ends[0] = {host.number, lane, c.token, c.job.value, false, {}};
  session->hello = c.hello;
  sessions_.push_back(std::move(made));
  for (auto& [number, remote] : hosts_) {
    for (size_t i = 0; i < remote->lanes.size(); ++i) {
      if (address(number, static_cast<int>(i)) != c.remote || remote->dead) continue;
      session->ends[1].host = number;
      session->ends[1].lane = static_cast<uint16_t>(i);
      session->hello_id = ++last_hello_;
      session->ends[1].inbox.push_back(
          event::HelloReceived{session->hello_id, address(host.number, lane), c.hello});
    }
  }
  // Unless somebody answers.
  timers_.emplace(
      now_ns_ + kPeerTimeoutNs,
      Timer{session, 0, {0, Errc::kTimedOut, "no answer from " + c.remote.to_string()}});
}

void Hosts::accept(HostModel& host, uint16_t lane, const command::Accept& c) {
  for (auto& session : sessions_) {
    SessionModel::End& end = session->ends[1];
    if (session->hello_id != c.hello || end.host != host.number || end.lane != lane) continue;
    if (end.token != 0) violation(host, "a HELLO was answered twice");
    if (session->ends[0].closed) break;
    end.token = c.token;
    end.job = c.job.value;
    session->open = true;
    wire::HelloAck answer = c.answer;
    if (answered) answered(session->hello, answer);
    session->ends[0].inbox.push_back(event::SessionOpened{0, answer});
    if (session->mute || (mutes && mutes(*session))) return;
    end.inbox.push_back(event::SessionOpened{0, c.answer});
    if (!probes) return;
    const event::PathProbed probed{0, path_payload, std::max(path_payload, in_parts)};
    session->ends[0].inbox.push_back(probed);
    end.inbox.push_back(probed);
    return;
  }
  host.lanes[lane].events.push_back(
      event::SessionClosed{c.token, Errc::kTimedOut, "the HELLO is no longer waiting"});
}

// CLOSE overtakes what waits to be sent again: some of it is lost.
void Hosts::drop_pending(SessionModel& session, int end) {
  auto& inbox = session.ends[end].inbox;
  const size_t keep = inbox.empty() ? 0 : random_() % (inbox.size() + 1);
  while (inbox.size() > keep) inbox.pop_back();
}

void Hosts::close(SessionModel& session, int end, Errc code, const std::string& text) {
  SessionModel::End& here = session.ends[end];
  SessionModel::End& there = session.ends[1 - end];
  here.closed = true;
  here.inbox.clear();
  if (here.token != 0 && here.host != 0) {
    hosts_.at(here.host)->lanes[here.lane].events.push_back(
        event::SessionClosed{here.token, code, text});
  }
  if (there.closed || !session.open) return;
  drop_pending(session, 1 - end);
  there.inbox.push_back(event::SessionClosed{0, code, text});
}

// Another session may take a binding over when the last one is closed.
template <class Peer>
void Hosts::bind(HostModel& host, uint16_t lane, std::map<Peer, Token>& sessions, Peer peer,
                 Token token) {
  const auto bound = sessions.find(peer);
  if (bound != sessions.end() && find(host, lane, bound->second).first) {
    violation(host, "bound twice");
  }
  sessions[peer] = token;
}

// A worker's incarnations do not come back.
void Hosts::bind_worker(HostModel& host, uint16_t lane, HostModel::EngineJob& job,
                        const command::BindWorker& w) {
  uint32_t& incarnation = job.incarnations[w.rank];
  if (incarnation != 0 && incarnation != w.incarnation) violation(host, "an old life is bound");
  if (job.withdrawn.contains(w.rank)) violation(host, "a withdrawn worker is bound");
  incarnation = w.incarnation;
  bind(host, lane, job.to_workers, w.rank, w.token);
}

namespace {

event::WorkerReplaced replace_worker(HostModel::EngineJob& job, const command::ReplaceWorker& p) {
  job.incarnations[p.rank] = p.incarnation;
  job.to_workers.erase(p.rank);
  job.withdrawn.erase(p.rank);
  event::WorkerReplaced replaced{p.job, p.rank, p.incarnation, {}};
  for (const auto& [tensor, round] : job.rounds) {
    replaced.rounds.push_back({TensorId(tensor), Round(round)});
  }
  return replaced;
}

}  // namespace

// With all its sessions.
void Hosts::remove_job(HostModel& host, uint16_t lane, const command::RemoveJob& r) {
  for (auto& session : sessions_) {
    for (int end = 0; end < 2; ++end) {
      const SessionModel::End& e = session->ends[end];
      if (e.host == host.number && e.lane == lane && e.token != 0 && e.job == r.job.value &&
          !e.closed) {
        close(*session, end, r.code, r.text);
      }
    }
  }
  host.lanes[lane].jobs.erase(r.job.value);
  host.lanes[lane].events.push_back(event::JobRemoved{r.job});
}

void Hosts::job_command(HostModel& host, uint16_t lane, const Command& any) {
  auto& jobs = host.lanes[lane].jobs;
  auto& events = host.lanes[lane].events;
  const auto need = [&](JobSlot job, const char* what) -> HostModel::EngineJob* {
    const auto it = jobs.find(job.value);
    if (it == jobs.end()) violation(host, std::string(what) + " for a job that was not added");
    return it == jobs.end() ? nullptr : &it->second;
  };
  if (const auto* c = std::get_if<command::AddWorkerJob>(&any)) {
    if (jobs.contains(c->job.value)) violation(host, "AddWorkerJob twice");
    jobs[c->job.value].worker = true;
    jobs[c->job.value].worker_spec = *c;
    jobs[c->job.value].policy = c->terms.policy;
  } else if (const auto* d = std::get_if<command::AddServerJob>(&any)) {
    if (jobs.contains(d->job.value)) violation(host, "AddServerJob twice");
    jobs[d->job.value].server_spec = *d;
    jobs[d->job.value].policy = d->terms.policy;
  } else if (const auto* b = std::get_if<command::BindShard>(&any)) {
    auto* job = need(b->job, "BindShard");
    if (job) bind(host, lane, job->to_shards, b->shard, b->token);
  } else if (const auto* w = std::get_if<command::BindWorker>(&any)) {
    if (auto* job = need(w->job, "BindWorker")) bind_worker(host, lane, *job, *w);
  } else if (const auto* t = std::get_if<command::AddTensor>(&any)) {
    auto* job = need(t->job, "AddTensor");
    if (!job) return;
    if (job->tensors.size() >= host.lanes[lane].tensor_limit) {
      events.push_back(event::CommandFailed{t->job, Errc::kNoMemory, "no memory for a tensor"});
    } else if (!job->tensors.emplace(t->tensor.value, *t).second) {
      violation(host, "AddTensor twice");
    }
  } else if (const auto* o = std::get_if<command::Confirm>(&any)) {
    if (need(o->job, "Confirm")) events.push_back(event::Confirmed{o->job, o->number});
  } else if (const auto* m = std::get_if<command::CountChunks>(&any)) {
    if (auto* job = need(m->job, "CountChunks")) {
      events.push_back(event::ChunksMoved{m->job, job->chunks_moved});
    }
  } else if (const auto* p = std::get_if<command::ReplaceWorker>(&any)) {
    auto* job = need(p->job, "ReplaceWorker");
    if (!job) return;
    event::WorkerReplaced replaced = replace_worker(*job, *p);
    if (job->fences) events.push_back(std::move(replaced));
  } else if (const auto* x = std::get_if<command::WithdrawWorker>(&any)) {
    if (auto* job = need(x->job, "WithdrawWorker")) {
      job->withdrawn.insert(x->rank);
      job->ending = x->ending;
    }
  } else if (const auto* l = std::get_if<command::Refill>(&any)) {
    if (auto* job = need(l->job, "Refill")) ++job->refills;
  } else if (const auto* s = std::get_if<command::SetPolicy>(&any)) {
    if (auto* job = need(s->job, "SetPolicy")) job->policy = s->policy;
  } else if (const auto* f = std::get_if<command::FailJob>(&any)) {
    if (auto* job = need(f->job, "FailJob")) job->failed = f->code;
  } else if (const auto* n = std::get_if<command::FailRounds>(&any)) {
    auto* job = need(n->job, "FailRounds");
    if (job) job->failed_rounds[n->from.tensor.value] = *n;
  } else if (const auto* r = std::get_if<command::RemoveJob>(&any)) {
    need(r->job, "RemoveJob");
    remove_job(host, lane, *r);
  }
}

void Hosts::execute(HostModel& host, uint16_t lane, Command any) {
  if (const auto* c = std::get_if<command::Connect>(&any)) return connect(host, lane, *c);
  if (const auto* a = std::get_if<command::Accept>(&any)) return accept(host, lane, *a);
  if (const auto* r = std::get_if<command::Refuse>(&any)) {
    for (auto& session : sessions_) {
      if (session->hello_id != r->hello || session->ends[0].closed) continue;
      if (session->ends[1].token != 0) violation(host, "a HELLO was answered twice");
      session->refusal = r->text;
      session->ends[0].inbox.push_back(event::SessionClosed{0, r->code, r->text});
    }
    return;
  }
  if (const auto* s = std::get_if<command::SendControl>(&any)) {
    auto [session, end] = find(host, lane, s->token);
    if (session && !session->ends[1 - end].closed) {
      session->ends[1 - end].inbox.push_back(event::ControlReceived{0, s->message});
    }
    return;
  }
  if (const auto* c = std::get_if<command::CloseSession>(&any)) {
    auto [session, end] = find(host, lane, c->token);
    if (session) close(*session, end, c->code, c->text);
    return;
  }
  job_command(host, lane, any);
}

// What was on the wire arrives at the engine and becomes an event with the end's own token.
void Hosts::deliver(SessionModel& session, int end) {
  SessionModel::End& e = session.ends[end];
  Event event = std::move(e.inbox.front());
  e.inbox.pop_front();
  if (e.closed) return;
  if (e.host == 0) {  // a raw peer: it has no ears
    if (std::holds_alternative<event::SessionClosed>(event)) e.closed = true;
    return;
  }
  if (auto* o = std::get_if<event::SessionOpened>(&event)) o->token = e.token;
  if (auto* p = std::get_if<event::PathProbed>(&event)) p->token = e.token;
  if (auto* c = std::get_if<event::ControlReceived>(&event)) {
    c->token = e.token;
    if (translate) translate(c->message);
  }
  if (auto* c = std::get_if<event::SessionClosed>(&event)) {
    c->token = e.token;
    e.closed = true;
    session.ends[1 - end].closed = true;
  }
  hosts_.at(e.host)->lanes[e.lane].events.push_back(std::move(event));
}

bool Hosts::step() {
  struct Choice {
    HostModel* host = nullptr;
    uint16_t lane = 0;
    bool command = false;
    SessionModel* session = nullptr;
    int end = 0;
  };
  std::vector<Choice> choices;
  for (auto& [number, host] : hosts_) {
    if (host->dead) continue;
    for (uint16_t lane = 0; lane < host->lanes.size(); ++lane) {
      if (!host->lanes[lane].commands.empty()) choices.push_back({host.get(), lane, true});
      if (!host->lanes[lane].events.empty()) choices.push_back({host.get(), lane, false});
    }
    if (host->manager->next_deadline_ns() <= now_ns_) choices.push_back({host.get(), 0xffff});
  }
  for (auto& session : sessions_) {
    for (int end = 0; end < 2; ++end) {
      if (!session->ends[end].inbox.empty())
        choices.push_back({nullptr, 0, false, session.get(), end});
    }
  }
  if (choices.empty()) return false;
  const Choice choice = choices[random_() % choices.size()];
  if (choice.session) {
    deliver(*choice.session, choice.end);
  } else if (choice.lane == 0xffff) {
    choice.host->manager->on_timer(now_ns_);
  } else if (choice.command) {
    auto& queue = choice.host->lanes[choice.lane].commands;
    Command command = std::move(queue.front());
    queue.pop_front();
    execute(*choice.host, choice.lane, std::move(command));
  } else {
    auto& queue = choice.host->lanes[choice.lane].events;
    Event event = std::move(queue.front());
    queue.pop_front();
    choice.host->manager->on_event(LaneId(choice.lane), std::move(event), now_ns_);
  }
  return true;
}

void Hosts::run(uint64_t until_ns) {
  for (;;) {
    while (step()) {
    }
    uint64_t next = timers_.empty() ? kNever : timers_.begin()->first;
    for (auto& [number, host] : hosts_) {
      if (!host->dead) next = std::min(next, host->manager->next_deadline_ns());
    }
    if (next == kNever || next > until_ns) break;
    now_ns_ = std::max(now_ns_, next);
    while (!timers_.empty() && timers_.begin()->first <= now_ns_) {
      const Timer timer = timers_.begin()->second;
      timers_.erase(timers_.begin());
      const bool handshake = timer.what.code == Errc::kTimedOut;
      if (timer.session->ends[timer.end].closed || (handshake && timer.session->open)) continue;
      timer.session->ends[timer.end].inbox.push_back(timer.what);
    }
    std::erase_if(sessions_, [&](const auto& session) {
      const bool over = session->ends[0].closed && (session->ends[1].closed || !session->open);
      if (over) {
        std::erase_if(timers_, [&](const auto& t) { return t.second.session == session.get(); });
      }
      return over && session->ends[0].inbox.empty() && session->ends[1].inbox.empty();
    });
  }
  if (until_ns != kNever) now_ns_ = std::max(now_ns_, until_ns);
}

SessionModel& Hosts::connect_raw(const Endpoint& to, const wire::Hello& hello,
                                 const Endpoint& from) {
  HostModel nobody;
  connect(nobody, 0, command::Connect{Token(~uint64_t{0}), JobSlot(), to, hello});
  for (Event& event : sessions_.back()->ends[1].inbox) {
    std::get<event::HelloReceived>(event).remote = from;
  }
  return *sessions_.back();
}

void Hosts::send_raw(SessionModel& session, std::vector<std::byte> message) {
  session.ends[1].inbox.push_back(event::ControlReceived{0, std::move(message)});
}

size_t Hosts::open_sessions() const {
  return static_cast<size_t>(
      std::count_if(sessions_.begin(), sessions_.end(), [](const auto& session) {
        return !session->ends[0].closed || (session->open && !session->ends[1].closed);
      }));
}

size_t Hosts::unanswered_from(int number) const {
  return static_cast<size_t>(
      std::count_if(sessions_.begin(), sessions_.end(), [number](const auto& session) {
        return session->ends[0].host == number && !session->ends[0].closed && !session->open;
      }));
}

std::string Hosts::leftovers() const {
  std::string text;
  for (const auto& [number, host] : hosts_) {
    if (host->dead) continue;
    const std::string name = "host " + std::to_string(number);
    if (!host->manager->idle()) text += name + " is not idle; ";
    for (const JobSnapshot& job : host->manager->snapshot())
      text += job.name + " " + job.state + "; ";
    for (const auto& lane : host->lanes) {
      if (!lane.jobs.empty()) text += name + " has a job in an engine; ";
    }
  }
  if (open_sessions() > 0) text += std::to_string(open_sessions()) + " sessions; ";
  for (const std::string& violation : violations) text += violation + "; ";
  return text;
}

void ProgramModel::open(OpenJob request) {
  if (request.role == Role::kWorker && request.channels.empty()) {
    request.channels.resize(hosts->host(host).lanes.size());
  }
  hosts->manager(host).open_job(client, std::move(request), hosts->now_ns(),
                                [this](Result<OpenedJob> result) {
                                  ++opens;
                                  if (result) {
                                    opened = *result;
                                    slot = opened.slot;
                                  } else {
                                    open_code = result.error().code;
                                    open_text = result.error().message;
                                  }
                                });
}

void ProgramModel::declare(const std::vector<TensorDeclaration>& tensors) {
  hosts->manager(host).declare(client, slot, tensors, hosts->now_ns(), [this](Status status) {
    ++declares;
    declared = std::move(status);
  });
}

void ProgramModel::wait() {
  hosts->manager(host).wait_job(client, slot, [this](Status status) {
    ++waits;
    waited = std::move(status);
  });
}

void ProgramModel::close() {
  hosts->manager(host).close_job(client, slot, hosts->now_ns(), [this] { ++closes; });
}

void ProgramModel::gone() {
  hosts->manager(host).client_gone(client, hosts->now_ns(), [this] { ++gones; });
}

}  // namespace mercury::test
