#include "shim/job/member.h"

#include <algorithm>
#include <utility>

namespace mercury {
namespace {

constexpr uint64_t kRendezvousRetryNs = 500'000'000;  // between attempts to reach a coordinator
constexpr uint32_t kMostRetryDoublings = 3;           // while it does not know the job
constexpr uint64_t kLeaveNs = 5'000'000'000;          // how long Leave waits for its answer
// The coordinator names who is missing when the time limit passes; its word needs time to arrive.
constexpr uint64_t kPatienceNs = 2'000'000'000;

uint32_t make_incarnation(const JobManager::Host& host) {
  const auto number = static_cast<uint32_t>(host.random());
  return number == 0 ? 1 : number;  // 0 is "none" on the wire
}

}  // namespace

Member::Member(JobContext& context, JobSlot slot, OpenJob spec, const JobKey& key,
               const JobLimits& limits, bool open, uint64_t now_ns)
    : context_(context),
      slot_(slot),
      spec_(std::move(spec)),
      key_(key),
      limits_(limits),
      incarnation_(make_incarnation(context.host)),
      open_(open),
      served_(spec_.timeout_ns == 0) {
  wipe(spec_.secret);
  if (spec_.rank >= 0) rank_ = static_cast<uint16_t>(spec_.rank);
  if (spec_.timeout_ns > 0) open_until_ns_ = now_ns + spec_.timeout_ns;
}

void Member::own(ClientId owner, OpenReply reply) {
  owner_ = owner;
  if (phase_ == Phase::kRunning) {
    context_.replies.emplace_back([reply = std::move(reply), value = opened()] { reply(value); });
  } else {
    open_reply_ = std::move(reply);
  }
}

OpenedJob Member::opened() const {
  return {slot_, rank_, spec_.workers, spec_.servers, chunk_bytes_, roster_.server_features};
}

std::string Member::who() const {
  return describe(spec_.role, rank_, total(), context_.host.lanes.front());
}

std::string Member::server_name(uint16_t rank) const {
  if (rank < roster_.servers.size()) {
    return describe(Role::kServer, rank, spec_.servers, roster_.servers[rank].lanes.front());
  }
  return describe(Role::kServer, rank, spec_.servers, spec_.rendezvous.front());
}

std::string Member::worker_name(Rank rank) const {
  return describe(Role::kWorker, rank.value, spec_.workers, roster_.workers[rank.value].address);
}

// --- the way in ------------------------------------------------------------------------------

void Member::connect() {
  wire::Hello hello;
  hello.kind = wire::SessionKind::kControl;
  hello.role = static_cast<uint8_t>(spec_.role);
  hello.rank = rank_;
  hello.incarnation = incarnation_;
  hello.job = spec_.name;
  retry_ns_ = kNever;
  control_ = context_.links.connect(Link::Owner::kMember, slot_.value, LaneId(0), kNoJob,
                                    spec_.rendezvous.front(), hello, key_);
}

void Member::attach(LinkId control, uint64_t now_ns) {
  control_ = control;
  phase_ = Phase::kJoined;
  message::Join join;
  join.role = spec_.role;
  join.rank = spec_.rank;
  join.workers = spec_.workers;
  join.servers = spec_.servers;
  join.terms = spec_.terms;
  join.incarnation = incarnation_;
  if (!served_) {
    const uint64_t left_ns = open_until_ns_ > now_ns ? open_until_ns_ - now_ns : 0;
    join.timeout_ms = std::max<uint64_t>(1, left_ns / 1'000'000);
  }
  join.served = served_;
  join.features = kKnowsPolicies | kKnowsStalls | kKnowsFirstShards |
                  (spec_.role == Role::kServer ? kKnowsLostWorkers | kKnowsEndings |
                                                     kKnowsReductions | kKnowsParts | kKnowsScatters
                                               : 0);
  join.lanes = context_.host.lanes;
  join.rendezvous = spec_.rendezvous;
  context_.links.send(control_, join);
}

void Member::on_control_closed(const Error& why, uint64_t now_ns) {
  control_ = 0;
  if (phase_ == Phase::kLeaving) return release(Error(Errc::kClosed, who() + " left the job"));
  const bool coordinator_is_here = std::find(context_.host.lanes.begin(), context_.host.lanes.end(),
                                             spec_.rendezvous.front()) != context_.host.lanes.end();
  const bool waiting = phase_ == Phase::kSeeking || phase_ == Phase::kJoined;
  // Its last life's sessions may have the last places there, until they end.
  const bool has_its_place =
      why.code == Errc::kLimit && phase_ == Phase::kSeeking && may_come_back();
  if (waiting && !served_ && !coordinator_is_here &&
      (has_its_place || is_transient(why.code))) {  // it is not up yet, or was started again
    if (has_its_place && last_attempt_.code != why.code) {
      context_.note(NoticeKind::kTrouble, spec_.name, who() + " waits for a place: " + why.message);
    }
    phase_ = Phase::kSeeking;
    last_attempt_ = why;
    retry_ns_ = now_ns + kRendezvousRetryNs;
    return;
  }
  // Server 0's program makes the job known there, and may start later. Workers are told at once:
  // theirs is the name or the secret that somebody has mistyped.
  if (phase_ == Phase::kSeeking && !served_ && spec_.role == Role::kServer &&
      why.code == Errc::kUnknownJob && !coordinator_is_here) {
    last_attempt_ = why;
    retry_ns_ = now_ns + (kRendezvousRetryNs << std::min(refused_++, kMostRetryDoublings));
    return;
  }
  if (waiting && why.code == Errc::kVersionMismatch) {  // its text names versions, not hosts
    return fail(Error(why.code, server_name(0) + ": " + why.message));
  }
  if (waiting) return fail(why);
  fail(Error(why.code == Errc::kClosed ? Errc::kPeerLeft : why.code,
             "the job's coordinator, host of " + server_name(0) + ": " + why.message));
}

void Member::on_timer(uint64_t now_ns) {
  if (leave_until_ns_ <= now_ns) {
    leave_until_ns_ = kNever;
    drop_control(Error(Errc::kClosed, "it left the job"));
    release(Error(Errc::kClosed, who() + " left the job"));
  }
  if (grace_until_ns_ <= now_ns) {
    grace_until_ns_ = kNever;
    if (phase_ == Phase::kRunning) count_chunks(now_ns);
  }
  if (phase_ >= Phase::kRunning) return;
  const bool heard = phase_ != Phase::kSeeking;  // then the coordinator says who is missing
  if (open_until_ns_ <= now_ns && (!heard || open_until_ns_ + kPatienceNs <= now_ns)) {
    const std::string why = last_attempt_.message.empty() ? "" : ": " + last_attempt_.message;
    const bool no_room = !heard && last_attempt_.code == Errc::kLimit;
    return fail(Error(no_room ? Errc::kLimit : Errc::kMissingMembers,
                      "missing when the time limit passed: " + server_name(0) +
                          (heard ? ", the coordinator, does not answer" : why)));
  }
  if (retry_ns_ <= now_ns) connect();
  redial(now_ns);
}

uint64_t Member::next_deadline_ns() const {
  uint64_t next = std::min(leave_until_ns_, grace_until_ns_);
  if (phase_ >= Phase::kRunning) return next;
  next = std::min(next, retry_ns_);
  for (const Redial& one : redials_) next = std::min(next, one.at_ns);
  if (open_until_ns_ == kNever) return next;
  return std::min(next, phase_ == Phase::kSeeking ? open_until_ns_ : open_until_ns_ + kPatienceNs);
}

// --- the ways out ----------------------------------------------------------------------------

void Member::fail(const Error& why) { fail_as(why, why.message); }

void Member::fail_self(const Error& why) {
  fail_as(Error(why.code, why.sys_errno, who() + ": " + why.message), why.message);
}

// Engines have shares of limits, and do not know the keys.
void Member::on_command_failed(Error why) {
  if (why.code == Errc::kLimit && limits_.memory_bytes > 0) {
    why.message += "; jobs.memory, or memory of its [[job]], is " +
                   std::to_string(limits_.memory_bytes) + " bytes";
  }
  if (why.code == Errc::kLimit && context_.policy.total_memory_bytes > 0) {
    why.message += "; jobs.total_memory, for all jobs, is " +
                   std::to_string(context_.policy.total_memory_bytes) + " bytes";
  }
  fail_self(why);
}

// `told` is what the coordinator hears; it adds who said it.
void Member::fail_as(const Error& why, const std::string& told) {
  if (phase_ >= Phase::kLeaving) return;
  const bool opened = phase_ == Phase::kRunning;
  note_end(why);
  phase_ = Phase::kFailed;
  status_ = why;
  drop_control(Error(why.code, told));
  finish_declaration(status_);
  answer_waiters(status_);
  if (spec_.role == Role::kServer || !opened) return release(why);
  for (size_t lane = 0; lane < lanes_used_; ++lane) {  // its program still holds the job
    to_lane(lane, command::FailJob{slot_, why.code});
  }
}

void Member::end_in_order() {  // server: all workers have left
  note_end(status_);
  phase_ = Phase::kEnded;
  drop_control(Error(Errc::kClosed, "the job has ended"));
  answer_waiters(status_);
  release(Error(Errc::kClosed, "the job has ended"));
}

void Member::wait(StatusReply reply) {
  waiters_.push_back(std::move(reply));
  // A server serves on for those who have sums to come, whatever cannot be complete.
  const bool failed = phase_ == Phase::kFailed || (spec_.role == Role::kWorker && !status_);
  if (phase_ == Phase::kEnded || failed) answer_waiters(status_);
  if (closing_) answer_waiters(Error(Errc::kClosed, "the job was closed"));
}

void Member::close(uint64_t now_ns, DoneReply reply) {
  close_replies_.push_back(std::move(reply));
  if (released_) return finish_release();
  if (closing_) return;
  closing_ = true;
  const Error closed(Errc::kClosed, "the job was closed");
  finish_declaration(closed);
  answer_waiters(closed);
  if (spec_.role == Role::kWorker && control_ != 0 && chunk_bytes_ != 0) {
    note_end({});
    phase_ = Phase::kLeaving;
    leave_until_ns_ = now_ns + kLeaveNs;
    return context_.links.send(control_, message::Leave{});
  }
  note_end(Error(Errc::kPeerLeft, who() + " closed it"));
  if (phase_ < Phase::kEnded) phase_ = Phase::kFailed;
  drop_control(Error(Errc::kPeerLeft, "it closed the job"));
  release(Error(spec_.role == Role::kServer ? Errc::kPeerLeft : Errc::kClosed,
                who() + " closed the job"));
}

void Member::abandon() {
  if (released_ && closing_) return;
  closing_ = true;
  leave_until_ns_ = kNever;
  const std::string why = context_.host_ends ? "its daemon was stopped" : "its program ended";
  note_end(Error(Errc::kPeerLeft, who() + ": " + why));
  if (phase_ < Phase::kEnded) {
    phase_ = Phase::kFailed;
    status_ = Error(Errc::kClosed, "the program has gone");
  }
  finish_declaration(status_);
  answer_waiters(status_);
  drop_control(Error(Errc::kPeerLeft, why));
  if (released_) return finish_release();
  release(Error(Errc::kPeerLeft, who() + ": " + why));
}

// Once, whatever happens while it ends.
void Member::note_end(const Status& end) {
  if (std::exchange(end_noted_, true)) return;
  const bool opened = chunk_bytes_ != 0;
  if (end) return context_.note(NoticeKind::kJob, spec_.name, "ended for " + who());
  const std::string code = std::string(" (") + name_of(end.error().code) + "): ";
  context_.note(NoticeKind::kTrouble, spec_.name,
                (opened ? "failed" : "did not open") + code + end.error().message);
}

void Member::drop_control(const Error& why) {
  context_.links.drop(control_, why);
  control_ = 0;
}

// The engines let go of the job; their sessions close with `why`, which is how peers hear of it.
void Member::release(const Error& why) {
  if (releasing_) return;
  releasing_ = true;
  grace_until_ns_ = kNever;
  leave_until_ns_ = kNever;
  for (const auto& [link, data] : data_) context_.links.forget(link);
  data_.clear();
  redials_.clear();
  unreleased_ = lanes_used_;
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    to_lane(lane, command::RemoveJob{slot_, why.code, shortened(why.message, wire::kMaxReason)});
  }
  if (unreleased_ == 0) finish_release();
}

void Member::on_job_removed() {
  if (unreleased_ > 0 && --unreleased_ == 0) finish_release();
}

void Member::finish_release() {
  released_ = true;
  if (open_reply_) {
    // It never opened: the program has no number to close it by.
    Error why = status_ ? Error(Errc::kClosed, "the job was closed") : status_.error();
    context_.replies.emplace_back([reply = std::move(open_reply_), why] { reply(why); });
    open_reply_ = nullptr;
    closing_ = true;
  }
  for (DoneReply& reply : close_replies_) context_.replies.push_back(std::move(reply));
  if (!close_replies_.empty()) closing_ = true;
  close_replies_.clear();
}

void Member::answer_waiters(const Status& status) {
  for (StatusReply& reply : waiters_) {
    context_.replies.emplace_back([reply = std::move(reply), status] { reply(status); });
  }
  waiters_.clear();
}

JobSnapshot Member::snapshot() const {
  static constexpr const char* kStates[] = {"gathering", "gathering", "connecting", "running",
                                            "leaving",   "ended",     "failed"};
  JobSnapshot out;
  out.name = spec_.name;
  out.role = spec_.role;
  out.rank = rank_;
  out.workers = spec_.workers;
  out.servers = spec_.servers;
  out.state = kStates[static_cast<size_t>(phase_)];
  if (!status_) out.state += ": " + status_.error().message;
  out.tensors = static_cast<uint32_t>(tensors_.size());
  out.tensor_bytes = tensor_bytes_;
  out.chunk_bytes = chunk_bytes_;
  for (size_t i = 0; i < roster_.workers.size(); ++i) {
    out.members.push_back("worker " + std::to_string(i) + " " +
                          (left_.contains(Rank(static_cast<uint16_t>(i)))
                               ? "left"
                               : roster_.workers[i].address.to_string()));
  }
  for (size_t i = 0; i < roster_.servers.size(); ++i) {
    out.members.push_back("server " + std::to_string(i) + " " +
                          roster_.servers[i].lanes.front().to_string());
  }
  return out;
}

}  // namespace mercury
