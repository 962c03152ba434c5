// Member: what the coordinator says, from the roster on, and what the engines are told.
#include <algorithm>

#include "aggregator/frame/contributors.h"
#include "scheduler/plan/plan.h"
#include "shim/job/member.h"

namespace mercury {

void Member::on_message(const Message& message, uint64_t now_ns) {
  const bool worker = spec_.role == Role::kWorker;
  const auto* roster = std::get_if<message::Roster>(&message);
  const auto* start = std::get_if<message::Start>(&message);
  const auto* declared = std::get_if<message::Declared>(&message);
  const auto* define_new = std::get_if<message::Define>(&message);
  const auto* peer_left = std::get_if<message::PeerLeft>(&message);
  const auto* replaced = std::get_if<message::Replace>(&message);
  const auto* policy = std::get_if<message::SetPolicy>(&message);
  const auto* lost = std::get_if<message::Lost>(&message);
  const bool refill = std::holds_alternative<message::Refill>(message);
  if (const auto* failed = std::get_if<message::Fail>(&message)) {
    const bool leaving = phase_ == Phase::kLeaving;
    drop_control(Error(Errc::kClosed, "the job has failed"));
    if (leaving) return release(Error(Errc::kClosed, who() + " left the job"));
    if (phase_ != Phase::kFailed) fail(Error(failed->code, failed->text));
  } else if (std::holds_alternative<message::Left>(message) && phase_ == Phase::kLeaving) {
    drop_control(Error(Errc::kClosed, "it left the job"));
    release(Error(Errc::kClosed, who() + " left the job"));
  } else if (std::holds_alternative<message::End>(message) && !worker &&
             phase_ == Phase::kRunning) {
    end_in_order();
  } else if (roster && phase_ == Phase::kJoined) {
    on_roster(*roster);
  } else if (start && phase_ == Phase::kConnecting && ready_said_) {
    on_start(*start);
  } else if (peer_left && phase_ >= Phase::kRunning) {
    on_peer_left(*peer_left, now_ns);
  } else if (declared && worker && phase_ >= Phase::kRunning) {
    on_declared(*declared);
  } else if (define_new && !worker && phase_ == Phase::kRunning && unconfirmed_ == 0) {
    define(*define_new);
  } else if (replaced && !worker && phase_ == Phase::kRunning && !replacing_) {
    replace(*replaced);
  } else if (lost && !worker && phase_ == Phase::kRunning) {
    withdraw(lost->rank, false);
  } else if (refill && worker && phase_ >= Phase::kRunning) {
    for (size_t lane = 0; lane < lanes_used_; ++lane) to_lane(lane, command::Refill{slot_});
  } else if (policy) {
    if (phase_ < Phase::kConnecting || phase_ > Phase::kRunning) return;  // the roster says it
    for (size_t lane = 0; lane < lanes_used_; ++lane) {
      to_lane(lane, command::SetPolicy{slot_, policy->policy});
    }
  } else {
    fail(Error(Errc::kProtocol, std::string("the job's coordinator sent '") + name_of(message) +
                                    "' when it may not"));
  }
}

// --- the roster ------------------------------------------------------------------------------

void Member::on_roster(const message::Roster& roster) {
  const bool worker = spec_.role == Role::kWorker;
  const size_t ranks = worker ? roster.workers.size() : roster.servers.size();
  const bool right = roster.workers.size() == spec_.workers &&
                     roster.servers.size() == spec_.servers && roster.rank < ranks &&
                     (spec_.rank < 0 || spec_.rank == roster.rank) &&
                     (worker ? roster.workers[roster.rank].incarnation == incarnation_
                             : roster.servers[roster.rank].incarnation == incarnation_ &&
                                   roster.lanes() <= context_.host.lanes.size());
  if (!right) return fail(Error(Errc::kProtocol, "the job's coordinator sent a wrong roster"));
  // A coordinator of an earlier version does not see what is asked for, and so does not say it.
  const TermsApart unheard = apart(roster.terms, spec_.terms, [&](const Term& term) {
    return worker && term.servers_need != 0;
  });
  if (!unheard.first.empty()) {
    return fail(Error(Errc::kVersionMismatch, "the job's coordinator, host of " + server_name(0) +
                                                  ", is of a version that does not know " +
                                                  unheard.second));
  }
  roster_ = roster;
  rank_ = roster.rank;
  phase_ = Phase::kConnecting;
  worker ? enter_as_worker() : enter_as_server();
}

// The job's, what this member knows better, and no larger share of this host's links than the host
// gives it: programs, also those of other hosts, only ask.
JobTerms Member::terms_here() const {
  JobTerms terms = roster_.terms;
  copy_terms(SaidBy::kMembers, spec_.terms, terms);
  if (spec_.role == Role::kWorker) copy_terms(SaidBy::kWorker, spec_.terms, terms);
  terms.weight = std::clamp(terms.weight, limits_.least_weight, limits_.most_weight);
  if (spec_.role == Role::kServer) return terms;
  // A coordinator of an earlier version names none: a worker can still follow its own side of it.
  if (terms.policy.empty()) terms.policy = spec_.terms.policy;
  return terms;
}

uint64_t Member::rate_of_lane() const {
  const uint64_t rate = limits_.bytes_per_second;
  return rate == 0 ? 0 : std::max<uint64_t>(1, rate / lanes_used_);
}

void Member::enter_as_worker() {
  lanes_used_ = context_.host.lanes.size();
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    command::AddWorkerJob add;
    add.job = slot_;
    add.rank = Rank(rank_);
    add.workers = spec_.workers;
    add.incarnation = incarnation_;
    add.shards = roster_.shards();
    add.server_lanes = roster_.lanes();
    add.lanes = static_cast<uint16_t>(lanes_used_);
    add.terms = terms_here();
    add.bytes_per_second = rate_of_lane();
    add.channel = spec_.channels[lane];
    add.client_job = spec_.client_job;
    to_lane(lane, add);
  }
  for (uint16_t shard = 0; shard < roster_.shards(); ++shard) connect_to(Shard(shard), 1);
}

void Member::enter_as_server() {
  lanes_used_ = roster_.lanes();
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    command::AddServerJob add;
    add.job = slot_;
    add.workers = spec_.workers;
    add.shards = roster_.shards();
    add.lanes = static_cast<uint16_t>(lanes_used_);
    add.shard = Shard(static_cast<uint16_t>(rank_ * lanes_used_ + lane));
    add.terms = terms_here();
    add.bytes_per_second = rate_of_lane();
    if (limits_.memory_bytes > 0) {
      add.memory_limit_bytes = std::max<uint64_t>(1, limits_.memory_bytes / lanes_used_);
    }
    add.incarnation = incarnation_;
    to_lane(lane, add);
  }
}

void Member::on_start(const message::Start& start) {
  constexpr uint32_t kHeader = sizeof(wire::DatagramHeader);
  const uint32_t quorum = roster_.terms.quorum;
  const uint32_t beside = quorum > 0 ? chunk_overhead(spec_.workers, quorum) : kHeader;
  const uint32_t frame = start.chunk_bytes + beside;
  if (frame > ready_payload_) {
    return fail(Error(Errc::kProtocol, "the job's coordinator wants frames of " +
                                           std::to_string(frame) + " bytes, the paths here carry " +
                                           std::to_string(ready_payload_)));
  }
  phase_ = Phase::kRunning;
  chunk_bytes_ = start.chunk_bytes;
  const uint32_t asked = spec_.role == Role::kWorker ? spec_.terms.weight : roster_.terms.weight;
  const uint32_t given = terms_here().weight;
  std::string line = "opened for " + who();
  if (given != asked) {
    line += "; its weight here is " + std::to_string(given) + ", not " + std::to_string(asked) +
            " as asked for (jobs.max_weight, job.weight)";
  }
  context_.note(NoticeKind::kJob, spec_.name, line);
  if (!open_reply_) return;
  context_.replies.emplace_back(
      [reply = std::move(open_reply_), value = opened()] { reply(value); });
  open_reply_ = nullptr;
}

Status Member::set_policy(std::string policy) {
  if (spec_.role != Role::kWorker) {
    return Error(Errc::kInvalidArgument, "only workers change a job's policy");
  }
  if (policy.empty()) return Error(Errc::kInvalidArgument, "no policy is named");
  if (!status_) return status_;
  if (phase_ != Phase::kRunning || closing_) return Error(Errc::kClosed, "the job is not open");
  context_.links.send(control_, message::SetPolicy{std::move(policy)});
  return {};
}

void Member::on_peer_left(const message::PeerLeft& left, uint64_t now_ns) {
  const Rank rank = left.rank;
  if (rank.value >= roster_.workers.size()) return;
  if (left_.emplace(rank, roster_.workers[rank.value].incarnation).second &&
      spec_.role == Role::kServer) {
    withdraw(rank, left.ending);
  }
  if (left.waiting) return fail_rounds(left, now_ns);
  if (left.ending || spec_.role == Role::kServer) return;
  // A server of an earlier version says nothing: who waits in vain is found out by waiting.
  if (!peer_left_.empty() || phase_ != Phase::kRunning) return;  // the first is the reason
  peer_left_ = worker_name(rank) + " left the job" +
               (left.lacked.empty() ? "" : " and had not declared " + left.lacked);
  grace_until_ns_ = now_ns + context_.policy.leave_grace_ns;
  if (context_.policy.leave_grace_ns > 0) count_chunks(now_ns);
}

// All of the job's operations but these go on: what needs nothing more of who has left still comes.
void Member::fail_rounds(const message::PeerLeft& left, uint64_t now_ns) {
  if (phase_ != Phase::kRunning) return;
  const auto [tensor, round] = *left.waiting;
  if (status_) {
    std::string why = worker_name(left.rank) + " left the job while tensor " +
                      std::to_string(tensor.value) + " waits for it in round " +
                      std::to_string(round.value);
    if (!left.refused.empty()) {
      why += "; its declaration was refused: " + left.refused;
    } else if (!left.lacked.empty()) {
      why += "; it had not declared " + left.lacked;
    }
    status_ = Error(Errc::kPeerLeft, std::move(why));
    note_end(status_);
  }
  if (spec_.role == Role::kServer) return;
  answer_waiters(status_);
  const auto [known, fresh] = hopeless_.emplace(tensor, round);
  if (!fresh && round.since(known->second) < 0) known->second = round;
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    to_lane(lane, command::FailRounds{slot_, *left.waiting, Errc::kPeerLeft});
  }
  if (!peer_left_.empty() || context_.policy.leave_grace_ns == 0) return;
  // All workers are told, and their programs push nothing new: what one of them had not pushed by
  // then the others wait for in vain. It is found out as of an earlier version's servers.
  peer_left_ = status_.error().message;
  grace_until_ns_ = now_ns + context_.policy.leave_grace_ns;
  count_chunks(now_ns);
}

// Whether anything still comes: a slow path brings what is complete without the one that left for
// as long as it takes.
void Member::count_chunks(uint64_t now_ns) {
  if (context_.policy.leave_grace_ns == 0) return end_grace();
  if (uncounted_ > 0) {  // an engine is late: there is nothing to compare with
    grace_until_ns_ = now_ns + context_.policy.leave_grace_ns;
    return;
  }
  chunks_counted_ = 0;
  uncounted_ = lanes_used_;
  for (size_t lane = 0; lane < lanes_used_; ++lane) to_lane(lane, command::CountChunks{slot_});
}

void Member::on_chunks_moved(uint64_t chunks, uint64_t now_ns) {
  chunks_counted_ += chunks;
  if (uncounted_ == 0 || --uncounted_ > 0 || phase_ != Phase::kRunning) return;
  const bool first = !chunks_moved_;
  if (chunks_moved_ == chunks_counted_) return end_grace();
  chunks_moved_ = chunks_counted_;
  if (!first) grace_until_ns_ = now_ns + context_.policy.leave_grace_ns;
}

// The coordinator is not told: this member, too, can still leave in order.
void Member::end_grace() {
  phase_ = Phase::kFailed;
  status_ = Error(Errc::kPeerLeft, peer_left_);
  note_end(status_);
  finish_declaration(status_);
  answer_waiters(status_);
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    to_lane(lane, command::FailJob{slot_, Errc::kPeerLeft});
  }
}

// Server: the others' sums need not wait for it, if the job has a quorum; and if the job is ending,
// nothing is to wait for it without being told.
void Member::withdraw(Rank rank, bool ending) {
  if ((roster_.terms.quorum == 0 && !ending) || rank.value >= roster_.workers.size()) return;
  drop_sessions_of(rank, Error(Errc::kPeerLeft, "the job goes on without it"));
  roster_.workers[rank.value].incarnation = 0;  // nobody's
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    to_lane(lane, command::WithdrawWorker{slot_, rank, ending});
  }
}

// Server: somebody has pushed what who has left would have to push, too.
void Member::on_round_hopeless(const event::RoundHopeless& event) {
  if (phase_ != Phase::kRunning) return;
  message::Stalled stalled{event.at, 0, {}, true};
  for (const auto& [rank, incarnation] : left_) {
    if (contains(event.missing, rank) && incarnation != 0)
      stalled.workers.push_back({rank, incarnation});
  }
  if (!stalled.workers.empty()) context_.links.send(control_, stalled);
}

// Server: the coordinator knows who is waited for anyway.
void Member::on_workers_stalled(const event::WorkersStalled& event) {
  if (phase_ != Phase::kRunning || replacing_) return;
  message::Stalled stalled{event.at, event.waited_ns / 1'000'000, {}};
  for (uint16_t i = 0; i < static_cast<uint16_t>(roster_.workers.size()); ++i) {
    const Rank rank(i);
    const uint32_t incarnation = roster_.workers[i].incarnation;
    if (contains(event.awaited, rank) && incarnation != 0) {
      stalled.workers.push_back({rank, incarnation});
    }
  }
  if (!stalled.workers.empty()) context_.links.send(control_, stalled);
}

// --- a worker's next life --------------------------------------------------------------------

// Server: its last life's sessions end, and each engine fences it off and says where its rounds
// are.
void Member::replace(const message::Replace& message) {
  if (message.rank.value >= roster_.workers.size()) {
    return fail(Error(Errc::kProtocol, "the job's coordinator replaced a worker that is not one"));
  }
  drop_sessions_of(message.rank, Error(Errc::kPeerLeft, describe(Role::kWorker, message.rank.value,
                                                                 spec_.workers, message.address) +
                                                            " was started again"));
  roster_.workers[message.rank.value] = {message.incarnation, message.address};
  replacing_ = message;
  rounds_.clear();
  unreplaced_ = lanes_used_;
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    to_lane(lane, command::ReplaceWorker{slot_, message.rank, message.incarnation});
  }
}

void Member::on_worker_replaced(const event::WorkerReplaced& event) {
  if (!replacing_ || unreplaced_ == 0) return;
  for (const auto& row : event.rounds) {
    note(rounds_, row.tensor, row.round);
  }
  if (--unreplaced_ > 0) return;
  message::Replaced answer{replacing_->rank, replacing_->incarnation, false, {}};
  const auto say = [&](TensorId tensor, Round round) {
    answer.rounds.push_back({tensor, round});
    if (answer.rounds.size() < kDeclareBatch) return;
    context_.links.send(control_, answer);
    answer.rounds.clear();
  };
  for (const auto& [tensor, open] : rounds_) {
    say(tensor, open.lowest());
    if (open.highest() != open.lowest()) say(tensor, open.highest());
  }
  answer.last = true;
  context_.links.send(control_, answer);
  replacing_.reset();
  rounds_.clear();
}

}  // namespace mercury
