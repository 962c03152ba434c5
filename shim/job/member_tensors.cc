// Member: the tensors that programs declare, and that every engine then has.
#include <algorithm>

#include "scheduler/plan/plan.h"
#include "shim/job/member.h"

namespace mercury {

Status Member::check(const std::vector<TensorDeclaration>& tensors) const {
  if (spec_.role != Role::kWorker) {
    return Error(Errc::kInvalidArgument, "only workers declare tensors");
  }
  if (!status_) return status_;
  if (phase_ != Phase::kRunning || closing_) return Error(Errc::kClosed, "the job is not open");
  std::unordered_set<TensorId> batch;
  for (const TensorDeclaration& t : tensors) {
    const std::string name = "tensor " + std::to_string(t.tensor.value);
    if (t.tensor > kMaxTensorId) {
      return Error(Errc::kInvalidArgument, name + ": numbers go to 2^31 - 1");
    }
    if (tensors_.contains(t.tensor) || !batch.insert(t.tensor).second) {
      return Error(Errc::kExists, name + " is declared already");
    }
    if (t.numel == 0 || t.numel > kMaxElements || !t.data) {
      return Error(Errc::kInvalidArgument, name + " needs memory and 1 to 2^56 elements");
    }
    if (size_of(t.dtype) == 0 || !is_reduce_op(t.op)) {
      return Error(Errc::kInvalidArgument, name + ": no such element type or operation");
    }
    if (!applies(t.op, t.dtype)) {
      return Error(Errc::kUnsupported, name + ": integers have no averages");
    }
    if (!is_old(t.dtype, t.op) && (roster_.server_features & kKnowsReductions) == 0) {
      return Error(Errc::kVersionMismatch, name +
                                               ": a server of the job is of a version that does "
                                               "not know " +
                                               name_of(t.dtype) + " " + name_of(t.op));
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
  declarations_.push_back({std::move(tensors), 0, {}, {}, std::move(reply)});
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
  const size_t before = declaration.agreed;
  declaration.agreed = std::min(declaration.tensors.size(), before + kDeclareBatch);
  const bool agreed = answer.code == Errc::kOk;
  if (agreed && !fits_plan(answer.first_shards, declaration.agreed - before)) return;
  for (size_t i = before; agreed && i < declaration.agreed; ++i) {
    declaration.first_shards.push_back(answer.first_shards.empty()
                                           ? shard_of(declaration.tensors[i].tensor)
                                           : answer.first_shards[i - before]);
  }
  auto& rounds = declaration.rounds;
  rounds.insert(rounds.end(), answer.rounds.begin(), answer.rounds.end());
  if (agreed && declaration.agreed < declaration.tensors.size()) return send_batch();
  if (agreed) {
    for (size_t i = 0; i < declaration.tensors.size(); ++i) {
      const TensorDeclaration& t = declaration.tensors[i];
      const Round first_round = i < rounds.size() ? rounds[i] : Round(1);
      if (first_round != Round(1)) first_rounds_[t.tensor] = first_round;
      add_tensor({t.tensor, t.numel, t.dtype, t.op}, declaration.first_shards[i], t.priority,
                 t.data, first_round);
    }
    return confirm();
  }
  for (const TensorDeclaration& t : declaration.tensors) tensors_.erase(t.tensor);
  answer_declaration(Error(answer.code, answer.text));
}

void Member::answer_declaration(const Status& status) {
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

// As many as tensors, of shards that there are; or none, from a coordinator that names none.
bool Member::fits_plan(const std::vector<Shard>& first_shards, size_t tensors) {
  const uint16_t shards = roster_.shards();
  const bool fits = std::all_of(first_shards.begin(), first_shards.end(),
                                [shards](Shard shard) { return shard.value < shards; });
  if (fits && (first_shards.empty() || first_shards.size() == tensors)) return true;
  fail(Error(Errc::kProtocol, "the job's coordinator has put tensors where no shard is"));
  return false;
}

Shard Member::shard_of(TensorId tensor) const {
  return ShardTurn::of_number(tensor, roster_.shards());
}

void Member::define(const message::Define& message) {
  const auto& first_shards = message.first_shards;
  if (!fits_plan(first_shards, message.tensors.size())) return;
  size_t place = 0;
  for (const message::TensorShape& t : message.tensors) {
    if (tensors_.size() >= context_.policy.max_tensors) {
      return fail_self(Error(Errc::kLimit, "a job has at most " +
                                               std::to_string(context_.policy.max_tensors) +
                                               " tensors here (jobs.max_tensors)"));
    }
    if (!tensors_.insert(t.id).second) {
      return fail(Error(Errc::kProtocol, "the job's coordinator defined a tensor twice"));
    }
    add_tensor(t, first_shards.empty() ? shard_of(t.id) : first_shards[place++], 0, nullptr, 1);
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

Round Member::first_round(TensorId tensor) const {
  const auto known = first_rounds_.find(tensor);
  return known == first_rounds_.end() ? Round(1) : known->second;
}

void Member::add_tensor(const message::TensorShape& t, Shard first_shard, uint16_t priority,
                        std::byte* data, Round first_round) {
  tensor_bytes_ += t.numel * size_of(t.dtype);
  for (size_t lane = 0; lane < lanes_used_; ++lane) {
    to_lane(lane, command::AddTensor{slot_, t.id, t.numel, t.dtype, t.op, priority, chunk_bytes_,
                                     data, first_round, first_shard});
    const auto hopeless = hopeless_.find(t.id);
    if (hopeless == hopeless_.end()) continue;
    to_lane(lane, command::FailRounds{slot_, {t.id, hopeless->second}, Errc::kPeerLeft});
  }
}

}  // namespace mercury
