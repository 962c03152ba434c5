#include "tests/disaster/program.h"

#include <algorithm>

#include "tests/milliseconds.h"

namespace mercury::disaster {
namespace {

constexpr uint32_t kClientJob = 1;

// Errors that no fault excuses: honest members never earn them.
bool never_excused(Errc code) {
  switch (code) {
    case Errc::kProtocol:
    case Errc::kWrongSecret:
    case Errc::kTensorMismatch:
    case Errc::kVersionMismatch:
    case Errc::kWrongSizes:
    case Errc::kInvalidArgument:
    case Errc::kNotFound:
    case Errc::kBusy:
    case Errc::kNoMemory:
      return true;
    default:
      return false;
  }
}

}  // namespace

DisasterProgram::DisasterProgram(const Scenario& scenario, uint32_t index, uint32_t job,
                                 uint32_t rank, Surroundings& around)
    : scenario_(scenario),
      plan_(scenario.jobs[job]),
      job_(job),
      wanted_rank_(rank),
      host_(plan_.worker_hosts[rank]),
      client_base_((uint64_t{index} + 1) << 20),
      name_("program " + std::to_string(index) + " (" + plan_.name + " worker " +
            std::to_string(rank) + " on host " + std::to_string(host_) + ")"),
      around_(around),
      random_(scenario.seed * 1'000'003 + index) {
  wake_ns_ = plan_.recovery ? kNever : random_.below(random_.chance(0.2) ? 300 * kMs : 5 * kMs);
  if (plan_.attempts == 0) state_ = State::kDone;
}

bool DisasterProgram::can_run() { return !stalled_ && host().programs_run(); }

void DisasterProgram::enter(State state) {
  if (state_ != State::kWaiting && state_ != State::kDone) {
    note_wait(since_ns_);
  }
  state_ = state;
  since_ns_ = around_.now_ns();
  around_.note(name_, "state", static_cast<uint64_t>(state), attempts_);
}

void DisasterProgram::stall(bool still) {
  stalled_ = still;
  if (!still) resumed_ns_ = around_.now_ns();
}

// Not what it let others wait for.
void DisasterProgram::note_wait(uint64_t since_ns) {
  if (since_ns < resumed_ns_) return;
  longest_wait_ns_ = std::max(longest_wait_ns_, around_.now_ns() - since_ns);
}

uint64_t DisasterProgram::next_ns() const {
  if (stalled_) return kNever;
  uint64_t next = state_ == State::kWaiting ? wake_ns_ : kNever;
  if (state_ == State::kTraining && !job_failed_) {
    for (const TensorProgress& tensor : tensors_) {
      if (tensor.phase == Phase::kReady) next = std::min(next, tensor.ready_ns);
    }
  }
  return next;
}

void DisasterProgram::run() {
  if (state_ == State::kDone || !can_run()) return;
  if (state_ == State::kWaiting && wake_ns_ <= around_.now_ns()) open();
  if (state_ == State::kTraining) {
    collect();
    if (state_ == State::kTraining) train();
  }
}

// --- joining ---------------------------------------------------------------------------------

void DisasterProgram::open() {
  ++attempts_;
  ++turn_;
  enter(State::kOpening);
  client_ = client_base_ + attempts_;
  OpenJob request;
  request.name = plan_.name;
  request.secret = plan_.secret;
  request.rank = plan_.any_rank ? -1 : static_cast<int>(wanted_rank_);
  request.workers = static_cast<uint16_t>(plan_.worker_hosts.size());
  request.servers = static_cast<uint16_t>(plan_.server_hosts.size());
  for (uint32_t server : plan_.server_hosts) {
    request.rendezvous.push_back(around_.host_at(server).endpoint(0));
  }
  request.terms.deterministic = plan_.deterministic;
  request.terms.policy = plan_.fifo ? "mercury-fifo" : "";
  request.terms.weight = plan_.weight;
  request.timeout_ns = plan_.open_timeout_ns;
  request.terms.rejoin_ms = to_ms(plan_.rejoin_ns);
  request.terms.quorum = plan_.quorum;
  request.terms.patience_ms = to_ms(plan_.quorum > 0 ? plan_.patience_ns : 0);
  request.terms.stall_timeout_ms = to_ms(plan_.stall_ns);
  request.client_job = kClientJob;
  for (size_t lane = 0; lane < host().lanes(); ++lane) {
    Result<std::shared_ptr<ChannelMemory>> memory = ChannelMemory::create({16, 16}, false);
    if (!memory) return wrong("no memory for a channel: " + memory.error().message);
    channels_.push_back(
        {std::make_unique<EngineChannel>(*memory), std::make_unique<ClientChannel>(*memory)});
    request.channels.push_back(channels_.back().engine.get());
  }
  host().ask([this, request = std::move(request), client = client_, turn = turn_] {
    DisasterHost& at = host();
    for (size_t lane = 0; lane < request.channels.size(); ++lane) {
      at.host().send(LaneId(static_cast<uint16_t>(lane)),
                     command::AttachChannel{request.channels[lane]});
    }
    at.jobs().open_job(client, request, at.local_ns(around_.now_ns()),
                       [this, turn](Result<OpenedJob> opened) {
                         if (turn == turn_) on_opened(opened);
                       });
  });
  around_.wake(host_);
}

void DisasterProgram::on_opened(const Result<OpenedJob>& opened) {
  if (state_ != State::kOpening) return wrong("a second reply to open");
  if (!opened) {
    failed(opened.error().code, "open: " + opened.error().message);
    return detach();
  }
  slot_ = opened->slot;
  rank_ = opened->rank;
  if (rank_ >= plan_.worker_hosts.size() || (!plan_.any_rank && rank_ != wanted_rank_)) {
    return wrong("was given rank " + std::to_string(rank_));
  }
  instance_ = around_.ledger().enrol(job_, rank_);
  company_.assign(plan_.worker_hosts.size(), std::nullopt);
  company_[rank_] = instance_;
  declare();
}

void DisasterProgram::declare() {
  enter(State::kDeclaring);
  std::vector<TensorDeclaration> declarations;
  for (const TensorPlan& plan : plan_.tensors) {
    TensorProgress tensor;
    tensor.memory = std::make_unique<GuardedMemory>(plan.numel * size_of(plan.dtype));
    declarations.push_back({TensorId(plan.number), plan.numel, plan.dtype, plan.op, plan.priority,
                            tensor.memory->bytes().data()});
    tensors_.push_back(std::move(tensor));
  }
  // Two calls where there is enough to declare: the second begins when servers know the first.
  host().ask([this, declarations = std::move(declarations), turn = turn_] {
    host().jobs().declare(client_, slot_, declarations, host().local_ns(around_.now_ns()),
                          [this, turn](Status status) {
                            if (turn == turn_) on_declared(status);
                          });
  });
  around_.wake(host_);
}

void DisasterProgram::on_declared(const Status& status) {
  if (state_ != State::kDeclaring) return wrong("a second reply to declare");
  if (!status) {
    failed(status.error().code, "declare: " + status.error().message);
    return close();
  }
  enter(State::kTraining);
  refused_ = false;
  around_.let_in(job_);
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    TensorProgress& tensor = tensors_[t];
    tensor.ready_ns = around_.now_ns();
    const TensorId id(plan_.tensors[t].number);
    tensor.round = host().jobs().first_round(client_, slot_, id).previous().value;
    if (tensor.round > 0 && plan_.rejoin_ns == 0 && plan_.quorum == 0) {
      wrong("joined a job that runs");
    }
    if (tensor.round < plan_.rounds) continue;
    tensor.phase = Phase::kFinished;  // the last life was through
    tensor.memory->seal();
  }
}

// --- training --------------------------------------------------------------------------------

void DisasterProgram::train() {
  bool all_finished = true;
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    TensorProgress& tensor = tensors_[t];
    if (tensor.phase == Phase::kReady && !job_failed_ && tensor.ready_ns <= around_.now_ns()) {
      start_round(t);
    }
    all_finished = all_finished && tensor.phase == Phase::kFinished;
  }
  if (job_failed_ ? operations_.empty() : all_finished) {
    succeeded_ = !job_failed_;
    close();
  }
}

void DisasterProgram::start_round(uint32_t t) {
  TensorProgress& tensor = tensors_[t];
  if (tensor.exchanged && !tensor.memory->unchanged()) {
    wrong("tensor " + std::to_string(plan_.tensors[t].number) + " changed after round " +
          std::to_string(tensor.round) + " was complete");
  }
  ++tensor.round;
  tensor.absent = {0, plan_.quorum > 0 ? ~uint64_t{0} : 0};
  tensor.damaged = host().total(Counter::kDropPayloadCrc);
  around_.ledger().contribute(job_, rank_, instance_, t, tensor.round, tensor.memory->bytes());
  const bool split = plan_.tensors[t].split;
  tensor.phase = split ? Phase::kPushing : Phase::kExchanging;
  submit(split ? SubmitOp::kPush : SubmitOp::kPushPull, t);
}

void DisasterProgram::submit(SubmitOp op, uint32_t t) {
  const uint64_t cookie = ++last_cookie_;
  around_.note(name_, "submit", t, tensors_[t].round);
  operations_[cookie] = {t, around_.now_ns(), std::vector<bool>(channels_.size()), channels_.size(),
                         Errc::kOk};
  const TensorPlan& plan = plan_.tensors[t];
  for (AttachedChannel& channel : channels_) {
    if (!channel.client->submit({op, plan.priority, kClientJob, TensorId(plan.number), cookie})) {
      return wrong("no room for a submission");
    }
  }
  around_.wake(host_);
}

void DisasterProgram::collect() {
  for (size_t lane = 0; lane < channels_.size(); ++lane) {
    Completion completion;
    while (state_ == State::kTraining && channels_[lane].client->pop(completion)) {
      answered(lane, completion);
    }
  }
}

void DisasterProgram::answered(size_t lane, const Completion& completion) {
  const auto at = operations_.find(completion.cookie);
  if (at == operations_.end() || at->second.answered[lane]) {
    return wrong("operation " + std::to_string(completion.cookie) + " was answered twice");
  }
  Operation& operation = at->second;
  const TensorProgress& tensor = tensors_[operation.tensor];
  if (completion.status == Errc::kOk &&
      (completion.round.value != tensor.round ||
       completion.tensor.value != plan_.tensors[operation.tensor].number)) {
    wrong("round " + std::to_string(completion.round.value) + " was answered in round " +
          std::to_string(tensor.round));
  }
  operation.answered[lane] = true;
  if (completion.absent_words > 0) {
    if (plan_.quorum == 0 || completion.absent_words > 1) {
      return wrong("is told of missing workers without reason");
    }
    Ledger::Absent& absent = tensors_[operation.tensor].absent;
    absent.in_some |= completion.absent.in_some[0];
    absent.in_all &= completion.absent.in_all[0];
  }
  if (operation.status == Errc::kOk) operation.status = completion.status;
  if (--operation.missing > 0) return;
  const Operation complete = operation;
  operations_.erase(at);
  finished(completion.cookie, complete);
}

void DisasterProgram::finished(uint64_t cookie, const Operation& operation) {
  const uint64_t now_ns = around_.now_ns();
  around_.note(name_, "finished", cookie, static_cast<uint64_t>(operation.status));
  note_wait(operation.since_ns);
  TensorProgress& tensor = tensors_[operation.tensor];
  if (!tensor.memory->intact()) wrong("wrote beyond a tensor's memory");
  if (operation.status != Errc::kOk) {
    check_failed(operation.tensor);
    check_departure(operation);
    return failed(operation.status, std::string("operation: ") + name_of(operation.status));
  }
  if (tensor.phase == Phase::kPushing) {
    tensor.phase = Phase::kPulling;
    return submit(SubmitOp::kPull, operation.tensor);
  }
  check_sum(operation.tensor);
  tensor.memory->seal();
  tensor.exchanged = true;
  tensor.phase = tensor.round < plan_.rounds ? Phase::kReady : Phase::kFinished;
  tensor.ready_ns = now_ns + random_.below(plan_.compute_ns + 1);
  if (rank_ == plan_.straggler) tensor.ready_ns += random_.below(plan_.straggle_ns + 1);
}

// --- leaving ---------------------------------------------------------------------------------

std::optional<Departure> DisasterProgram::leave() {
  const bool inside = state_ == State::kTraining || state_ == State::kDeclaring;
  if (!inside || job_failed_ || !can_run()) return std::nullopt;
  Departure departure{rank_, {}, around_.now_ns()};
  for (const TensorProgress& tensor : tensors_) {
    const bool complete = tensor.phase == Phase::kReady || tensor.phase == Phase::kFinished;
    departure.rounds.push_back(tensor.round - (complete ? 0 : 1));
  }
  left_early_ = true;
  ++turn_;  // it hears no answer to its declaration
  close();
  return departure;
}

void DisasterProgram::failed(Errc code, const std::string& text) {
  around_.note(name_, "failed", static_cast<uint64_t>(code), attempts_);
  around_.explain(name_, text);
  last_error_ = text;
  job_failed_ = true;
  if (never_excused(code)) wrong("an error that no fault excuses: " + text);
  // The others may be through with all rounds, and leave, while a slow worker is in its last; then
  // it finds nobody to begin anew with.
  left_behind_ = left_behind_ || (code == Errc::kPeerLeft && plan_.quorum > 0);
  if (left_behind_ && (code == Errc::kPeerLeft || code == Errc::kMissingMembers)) return;
  if (code == Errc::kLimit) {
    refused_ = had_no_room(code);
    if (!refused_) wrong("refused for a limit, and nobody may have its place: " + text);
  } else if (!around_.disturbed(job_) && !had_no_room(code)) {
    wrong("failed, but nothing was wrong with its job: " + text);
  }
}

void DisasterProgram::close() {
  enter(State::kClosing);
  host().ask([this, turn = turn_] {
    host().jobs().close_job(client_, slot_, host().local_ns(around_.now_ns()), [this, turn] {
      if (turn != turn_) return;
      if (state_ != State::kClosing) return wrong("a second reply to close");
      detach();
    });
  });
  around_.wake(host_);
}

void DisasterProgram::crash(uint64_t restart_ns) {
  if (state_ == State::kWaiting || state_ == State::kDone || state_ == State::kDying) return;
  restart_ns_ = restart_ns;
  ++turn_;
  enter(State::kDying);
  host().ask([this, turn = turn_] {
    host().jobs().client_gone(client_, host().local_ns(around_.now_ns()), [this, turn] {
      if (turn != turn_) return;
      if (state_ != State::kDying) return wrong("a second reply to client_gone");
      detach();
    });
  });
  around_.wake(host_);
}

bool DisasterProgram::would_come_back() const {
  return trains() && attempts_ < plan_.attempts &&
         std::any_of(tensors_.begin(), tensors_.end(),
                     [this](const TensorProgress& tensor) { return tensor.round < plan_.rounds; });
}

void DisasterProgram::detach() {
  bury();
  enter(State::kDetaching);
  for (size_t lane = 0; lane < channels_.size(); ++lane) {
    host().host().send(LaneId(static_cast<uint16_t>(lane)),
                       command::DetachChannel{channels_[lane].engine.get()});
  }
  around_.wake(host_);
}

void DisasterProgram::on_channel_detached(const EngineChannel* channel) {
  size_t left = 0;
  for (AttachedChannel& c : channels_) {
    if (c.engine.get() == channel) c.attached = false;
    if (c.attached) ++left;
  }
  if (state_ == State::kDetaching && left == 0) over();
}

// The daemon has said that it does not touch the tensors any more.
void DisasterProgram::bury() {
  for (TensorProgress& tensor : tensors_) {
    if (!tensor.memory->intact()) wrong("wrote beyond a tensor's memory");
    if (tensor.phase == Phase::kFinished && !tensor.memory->unchanged()) {
      wrong("a tensor changed after its last round");
    }
    tensor.memory->seal();
    graveyard_.push_back(std::move(tensor.memory));
  }
  tensors_.clear();
  operations_.clear();  // of those tensors
}

void DisasterProgram::daemon_died() {
  if (state_ == State::kWaiting || state_ == State::kDone) return;
  ++turn_;
  for (const auto& [cookie, operation] : operations_) check_failed(operation.tensor);
  if (state_ != State::kDying) failed(Errc::kDaemonLost, "the daemon died");
  bury();
  over();
}

void DisasterProgram::over() {
  channels_.clear();
  ++turn_;
  job_failed_ = false;
  if (succeeded_ || left_early_ || attempts_ >= plan_.attempts) return enter(State::kDone);
  enter(State::kWaiting);
  wake_ns_ = std::max(restart_ns_, around_.now_ns() + random_.below(200 * kMs));
}

}  // namespace mercury::disaster
