// Member: from the roster on, what the engines are told and what programs declare.
#include <algorithm>
#include <limits>

#include "transport/job/member.h"
#include "transport/job/plan.h"

namespace mercury {
namespace {

// A worker that comes back needs paths as wide as the job's frames are; a probe that was lost, or
// ended a few bytes below, is no proof that they are not.
constexpr int kPathAttempts = 4;

}  // namespace

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
    withdraw(lost->rank);
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

// --- sessions --------------------------------------------------------------------------------

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
  if (worker && (roster.rejoin_ms != spec_.rejoin_ns / 1'000'000 || roster.quorum != spec_.quorum ||
                 roster.patience_ms != spec_.patience_ns / 1'000'000)) {
    return fail(Error(Errc::kVersionMismatch,
                      "the job's coordinator, host of " + server_name(0) +
                          ", is of a version that knows neither rejoin_ms nor quorum"));
  }
  roster_ = roster;
  rank_ = roster.rank;
  phase_ = Phase::kConnecting;
  worker ? enter_as_worker() : enter_as_server();
}

void Member::enter_as_worker() {
  lanes_used_ = context_.host.lanes.size();
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    command::AddWorkerJob add;
    add.job = slot_;
    add.rank = rank_;
    add.workers = spec_.workers;
    add.incarnation = incarnation_;
    add.shards = roster_.shards();
    add.weight = spec_.weight;
    // A coordinator of an earlier version names none: a worker can still follow its own side of it.
    add.policy = roster_.policy.empty() ? spec_.policy : roster_.policy;
    add.channel = spec_.channels[lane];
    add.client_job = spec_.client_job;
    add.quorum = roster_.quorum > 0;
    to_lane(lane, add);
  }
  for (uint16_t shard = 0; shard < roster_.shards(); ++shard) connect_to(shard, 1);
}

void Member::connect_to(uint16_t shard, int attempt) {
  const auto lane = static_cast<uint16_t>(shard % lanes_used_);
  const auto server_lane = static_cast<uint16_t>(shard % roster_.lanes());
  wire::Hello hello;
  hello.kind = wire::SessionKind::kData;
  hello.role = Role::kWorker;
  hello.rank = rank_;
  hello.lane = server_lane;
  hello.incarnation = incarnation_;
  hello.job = spec_.name;
  const LinkId link = context_.links.connect(
      Link::Owner::kData, slot_.value, LaneId(lane), slot_,
      roster_.servers[shard / roster_.lanes()].lanes[server_lane], hello, key_);
  data_.emplace(link, Data{LaneId(lane), shard, attempt});
}

void Member::enter_as_server() {
  lanes_used_ = roster_.lanes();
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    command::AddServerJob add;
    add.job = slot_;
    add.workers = spec_.workers;
    add.shards = roster_.shards();
    add.shard = static_cast<uint16_t>(rank_ * lanes_used_ + lane);
    add.deterministic = spec_.deterministic;
    if (memory_limit_bytes_ > 0) {
      add.memory_limit_bytes = std::max<uint64_t>(1, memory_limit_bytes_ / lanes_used_);
    }
    add.weight = roster_.weight;
    add.incarnation = incarnation_;
    add.policy = roster_.policy;
    add.quorum = roster_.quorum;
    add.patience_ns = roster_.patience_ms * 1'000'000;
    to_lane(lane, add);
  }
}

Result<Member::Admission> Member::admit(LaneId lane, const wire::Hello& hello) const {
  if (!verify(key_, hello)) {
    return Error(Errc::kWrongSecret, "the secret of job '" + spec_.name + "' is another one");
  }
  if (phase_ < Phase::kConnecting) return Admission::kHold;
  if (hello.role != Role::kWorker || hello.incarnation == 0 ||
      hello.rank >= roster_.workers.size() ||
      roster_.workers[hello.rank].incarnation != hello.incarnation) {
    return Error(Errc::kRankTaken, "job '" + spec_.name + "' has no such worker in its roster");
  }
  if (hello.lane != lane.value || lane.value >= lanes_used_) {
    return Error(Errc::kProtocol, "lane " + std::to_string(hello.lane) + " was addressed, lane " +
                                      std::to_string(lane.value) + " got it");
  }
  if (left_.contains(hello.rank)) {
    return Error(Errc::kRankTaken, "worker " + std::to_string(hello.rank) + " has left");
  }
  return Admission::kAccept;
}

// Anybody may repeat a worker's HELLO: the session that it has stays until the new one is open.
void Member::accept(LaneId lane, const event::HelloReceived& hello) {
  drop_oldest_greeting({lane, hello.body.rank});
  const LinkId link = context_.links.accept(Link::Owner::kData, slot_.value, lane, slot_,
                                            hello.hello, hello.body.nonce, incarnation_, key_);
  data_.emplace(link, Data{lane, hello.body.rank});
}

void Member::on_data_opened(LinkId link, const wire::HelloAck& answer) {
  const auto it = data_.find(link);
  if (it == data_.end()) return;
  if (spec_.role == Role::kServer) drop_sessions(it->second);
  Data& data = it->second;
  data.open = true;
  if (spec_.role == Role::kServer) {
    to_lane(data.lane.value,
            command::BindWorker{slot_, data.index, roster_.workers[data.index].incarnation, link});
  } else {
    const auto server = static_cast<uint16_t>(data.index / roster_.lanes());
    if (answer.incarnation != roster_.servers[server].incarnation) {
      return fail(Error(Errc::kPeerLeft, server_name(server) + " was started again"));
    }
    to_lane(data.lane.value, command::BindShard{slot_, data.index, link});
  }
  say_ready();
}

// At most so many wait for their first frame, of which one may be the worker's own.
void Member::drop_oldest_greeting(const Data& seat) {
  constexpr size_t kMostGreetings = 4;
  LinkId oldest = 0;
  size_t waiting = 0;
  for (const auto& [link, data] : data_) {
    if (data.open || data.lane != seat.lane || data.index != seat.index) continue;
    oldest = waiting++ == 0 ? link : std::min(oldest, link);
  }
  if (waiting < kMostGreetings) return;
  context_.links.drop(oldest, Error(Errc::kClosed, "others asked for this session since"));
  data_.erase(oldest);
}

// A worker that opens a session which it has in our eyes has given that one up.
void Member::drop_sessions(const Data& seat) {
  for (auto it = data_.begin(); it != data_.end();) {
    if (it->second.lane != seat.lane || it->second.index != seat.index || !it->second.open) {
      ++it;
      continue;
    }
    context_.links.drop(it->first, Error(Errc::kClosed, "the worker opened another session"));
    it = data_.erase(it);
  }
}

void Member::on_path(LinkId link, uint16_t max_udp_payload) {
  const auto it = data_.find(link);
  if (it == data_.end()) return;
  const Data data = it->second;
  if (max_udp_payload < roster_.frame_bytes && data.attempt < kPathAttempts &&
      phase_ == Phase::kConnecting) {
    data_.erase(it);
    context_.links.drop(link, Error(Errc::kClosed, "its path is probed again"));
    return connect_to(data.index, data.attempt + 1);
  }
  it->second.max_udp_payload = max_udp_payload;
  say_ready();
}

// Once: when all sessions are open, and this side's probes have come to an end.
void Member::say_ready() {
  const bool worker = spec_.role == Role::kWorker;
  const size_t sessions = worker ? roster_.shards() : size_t{spec_.workers} * lanes_used_;
  if (ready_said_ || phase_ != Phase::kConnecting) return;
  uint16_t payload = std::numeric_limits<uint16_t>::max();
  size_t probed = 0;
  for (const auto& [link, data] : data_) {
    if (!data.open) continue;
    if (data.max_udp_payload == 0) return;
    payload = std::min(payload, data.max_udp_payload);
    ++probed;
  }
  if (probed != sessions) return;
  ready_said_ = true;
  context_.links.send(control_, message::Ready{payload});
}

void Member::on_data_closed(LinkId link, const Error& why) {
  const auto it = data_.find(link);
  if (it == data_.end()) return;
  const Data data = it->second;
  data_.erase(it);
  if (phase_ >= Phase::kLeaving) return;
  if (spec_.role == Role::kServer) {
    // A worker that leaves or fails says so to the coordinator; only silence is news.
    if (why.code != Errc::kPeerLost || left_.contains(data.index)) return;
    if (roster_.rejoin_ms + roster_.quorum > 0 && phase_ == Phase::kRunning) {
      return context_.links.send(
          control_, message::Lost{data.index, roster_.workers[data.index].incarnation});
    }
    return fail_self(Error(why.code, describe(Role::kWorker, data.index, spec_.workers,
                                              roster_.workers[data.index].address) +
                                         ": " + why.message));
  }
  const std::string server = server_name(static_cast<uint16_t>(data.index / roster_.lanes()));
  // A server closes with the job's own error, which names who failed; the rest is between us.
  const bool between_us = why.code == Errc::kPeerLost || why.code == Errc::kClosed ||
                          why.code == Errc::kTimedOut || why.code == Errc::kProtocol ||
                          phase_ == Phase::kConnecting;
  fail(Error(why.code == Errc::kClosed ? Errc::kPeerLeft : why.code,
             between_us ? server + ": " + why.message : why.message));
}

void Member::on_start(const message::Start& start) {
  phase_ = Phase::kRunning;
  chunk_bytes_ = start.chunk_bytes;
  context_.note(NoticeKind::kJob, spec_.name, "opened for " + who());
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
  const uint16_t rank = left.rank;
  if (rank >= roster_.workers.size()) return;
  left_.insert(rank);
  if (spec_.role == Role::kServer) return withdraw(rank);
  if (grace_until_ns_ != kNever || phase_ != Phase::kRunning) return;
  peer_left_ = describe(Role::kWorker, rank, spec_.workers, roster_.workers[rank].address) +
               " left the job" +
               (left.lacked.empty() ? "" : " and had not declared " + left.lacked);
  grace_until_ns_ = now_ns + context_.policy.leave_grace_ns;
}

// --- tensors ---------------------------------------------------------------------------------

Status Member::check(const std::vector<TensorDeclaration>& tensors) const {
  if (spec_.role != Role::kWorker) {
    return Error(Errc::kInvalidArgument, "only workers declare tensors");
  }
  if (!status_) return status_;
  if (phase_ != Phase::kRunning || closing_) return Error(Errc::kClosed, "the job is not open");
  std::unordered_set<uint32_t> batch;
  for (const TensorDeclaration& t : tensors) {
    const std::string name = "tensor " + std::to_string(t.tensor);
    if (t.tensor > kMaxTensorId) {
      return Error(Errc::kInvalidArgument, name + ": numbers go to 2^31 - 1");
    }
    if (tensors_.contains(t.tensor) || !batch.insert(t.tensor).second) {
      return Error(Errc::kExists, name + " is declared already");
    }
    if (t.numel == 0 || t.numel > kMaxElements || !t.data) {
      return Error(Errc::kInvalidArgument, name + " needs memory and 1 to 2^56 elements");
    }
    if (size_of(t.dtype) == 0 || t.op > ReduceOp::kAverage) {
      return Error(Errc::kInvalidArgument, name + ": no such element type or operation");
    }
    if (t.op == ReduceOp::kAverage && (t.dtype == Dtype::kI32 || t.dtype == Dtype::kI64)) {
      return Error(Errc::kUnsupported, name + ": integers have sums, no averages");
    }
  }
  if (tensors_.size() + tensors.size() > context_.policy.max_tensors) {
    return Error(Errc::kLimit, "a job has at most " + std::to_string(context_.policy.max_tensors) +
                                   " tensors here (jobs.max_tensors)");
  }
  return {};
}

void Member::declare(std::vector<TensorDeclaration> tensors, StatusReply reply) {
  Status fits = check(tensors);
  if (!fits || tensors.empty()) {
    context_.replies.emplace_back([reply = std::move(reply), fits] { reply(fits); });
    return;
  }
  for (const TensorDeclaration& t : tensors) tensors_.insert(t.tensor);
  declarations_.push_back({std::move(tensors), 0, {}, std::move(reply)});
  if (declarations_.size() == 1) send_batch();
}

void Member::send_batch() {
  const Declaration& declaration = declarations_.front();
  message::Declare batch;
  const size_t end = std::min(declaration.tensors.size(), declaration.agreed + kDeclareBatch);
  for (size_t i = declaration.agreed; i < end; ++i) {
    const TensorDeclaration& t = declaration.tensors[i];
    batch.tensors.push_back({t.tensor, t.numel, t.dtype, t.op});
  }
  context_.links.send(control_, batch);
}

void Member::on_declared(const message::Declared& answer) {
  if (declarations_.empty() || unconfirmed_ > 0) return;  // it failed or was closed meanwhile
  Declaration& declaration = declarations_.front();
  declaration.agreed = std::min(declaration.tensors.size(), declaration.agreed + kDeclareBatch);
  const bool agreed = answer.code == Errc::kOk;
  auto& rounds = declaration.rounds;
  rounds.insert(rounds.end(), answer.rounds.begin(), answer.rounds.end());
  if (agreed && declaration.agreed < declaration.tensors.size()) return send_batch();
  if (agreed) {
    for (size_t i = 0; i < declaration.tensors.size(); ++i) {
      const TensorDeclaration& t = declaration.tensors[i];
      const uint32_t first_round = i < rounds.size() ? rounds[i] : 1;
      if (first_round != 1) first_rounds_[t.tensor] = first_round;
      add_tensor({t.tensor, t.numel, t.dtype, t.op}, t.priority, t.data, first_round);
    }
    return confirm();
  }
  for (const TensorDeclaration& t : declaration.tensors) tensors_.erase(t.tensor);
  answer_declaration(Error(answer.code, answer.text));
}

void Member::answer_declaration(Status status) {
  Declaration& declaration = declarations_.front();
  context_.replies.emplace_back([reply = std::move(declaration.reply), status] { reply(status); });
  declarations_.pop_front();
  if (!declarations_.empty()) send_batch();
}

// All that wait: the job has ended for them.
void Member::finish_declaration(const Status& status) {
  for (Declaration& declaration : declarations_) {
    context_.replies.emplace_back(
        [reply = std::move(declaration.reply), status] { reply(status); });
  }
  declarations_.clear();
}

void Member::define(const message::Define& message) {
  for (const message::Tensor& t : message.tensors) {
    if (tensors_.size() >= context_.policy.max_tensors) {
      return fail_self(Error(Errc::kLimit, "a job has at most " +
                                               std::to_string(context_.policy.max_tensors) +
                                               " tensors here (jobs.max_tensors)"));
    }
    if (!tensors_.insert(t.id).second) {
      return fail(Error(Errc::kProtocol, "the job's coordinator defined a tensor twice"));
    }
    add_tensor(t, 0, nullptr, 1);
  }
  confirm();
}

// The answer to a declaration, or a definition, waits until every engine has the tensors: what a
// program submits then never overtakes them, and what fails of them is known.
void Member::confirm() {
  ++confirmation_;
  unconfirmed_ = lanes_used_;
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    to_lane(lane, command::Confirm{slot_, confirmation_});
  }
}

void Member::on_confirmed(uint32_t number) {
  if (number != confirmation_ || unconfirmed_ == 0 || --unconfirmed_ > 0) return;
  if (spec_.role == Role::kServer) return context_.links.send(control_, message::Defined{});
  if (!declarations_.empty()) answer_declaration({});
}

uint32_t Member::first_round(uint32_t tensor) const {
  const auto known = first_rounds_.find(tensor);
  return known == first_rounds_.end() ? 1 : known->second;
}

void Member::add_tensor(const message::Tensor& t, uint16_t priority, std::byte* data,
                        uint32_t first_round) {
  tensor_bytes_ += t.numel * size_of(t.dtype);
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    to_lane(lane, command::AddTensor{slot_, t.id, t.numel, t.dtype, t.op, priority, chunk_bytes_,
                                     data, first_round});
  }
}

// Server: the others' sums need not wait for it, if the job has a quorum.
void Member::withdraw(uint16_t rank) {
  if (roster_.quorum == 0 || rank >= roster_.workers.size()) return;
  drop_sessions_of(rank, Error(Errc::kPeerLeft, "the job goes on without it"));
  roster_.workers[rank].incarnation = 0;  // nobody's
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    to_lane(lane, command::WithdrawWorker{slot_, rank});
  }
}

// --- a worker's next life --------------------------------------------------------------------

// Server: its last life's sessions end, and each engine fences it off and says where its rounds
// are.
void Member::replace(const message::Replace& message) {
  if (message.rank >= roster_.workers.size()) {
    return fail(Error(Errc::kProtocol, "the job's coordinator replaced a worker that is not one"));
  }
  drop_sessions_of(message.rank, Error(Errc::kPeerLeft, describe(Role::kWorker, message.rank,
                                                                 spec_.workers, message.address) +
                                                            " was started again"));
  roster_.workers[message.rank] = {message.incarnation, message.address};
  replacing_ = message;
  rounds_.clear();
  unreplaced_ = lanes_used_;
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    to_lane(lane, command::ReplaceWorker{slot_, message.rank, message.incarnation});
  }
}

void Member::drop_sessions_of(uint16_t rank, const Error& why) {
  std::erase_if(data_, [&](const auto& entry) {
    if (entry.second.index != rank) return false;
    context_.links.drop(entry.first, why);
    return true;
  });
}

void Member::on_worker_replaced(const event::WorkerReplaced& event) {
  if (!replacing_ || unreplaced_ == 0) return;
  for (const auto& row : event.rounds) {
    const auto [entry, fresh] = rounds_.emplace(row.tensor, row.round);
    if (!fresh && static_cast<int32_t>(row.round - entry->second) < 0) entry->second = row.round;
  }
  if (--unreplaced_ > 0) return;
  message::Replaced answer{replacing_->rank, replacing_->incarnation, false, {}};
  for (const auto& [tensor, round] : rounds_) {
    answer.rounds.push_back({tensor, round});
    if (answer.rounds.size() < kDeclareBatch) continue;
    context_.links.send(control_, answer);
    answer.rounds.clear();
  }
  answer.last = true;
  context_.links.send(control_, answer);
  replacing_.reset();
  rounds_.clear();
}

}  // namespace mercury
