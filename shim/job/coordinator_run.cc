// Coordinator: from the roster to the end of the job.
#include <algorithm>
#include <utility>

#include "aggregator/frame/contributors.h"
#include "shim/job/coordinator.h"
#include "transport/wire/hello.h"
#include "transport/wire/seal.h"

namespace mercury {
namespace {

std::string shape_text(const message::TensorShape& t) {
  return std::to_string(t.numel) + " x " + name_of(t.dtype) + ", " + name_of(t.op);
}

}  // namespace

void Coordinator::on_message(LinkId link, const Message& message, uint64_t now_ns) {
  Seat* seat = seat_of(link);
  if (const auto* m = std::get_if<message::Join>(&message); m && !seat && !parts(link)) {
    if (applies(link)) return;  // once is enough
    return join(link, *m, now_ns);
  }
  if (!seat) return;  // its last word was said: what it sent meanwhile is of no interest
  const bool worker = seat->join.role == Role::kWorker;
  if (const auto* m = std::get_if<message::Ready>(&message);
      m && seat->returns_to && !fences(link)) {
    return started_again(*seat, *m, now_ns);
  }
  if (const auto* m = std::get_if<message::Ready>(&message);
      m && phase_ == Phase::kConnecting && !seat->ready &&
      m->max_udp_payload >= wire::kMinUdpPayload - wire::kSealBytes) {
    return ready(*seat, *m);
  }
  if (const auto* m = std::get_if<message::Lost>(&message); m && !worker) {
    return lost(*m, *seat, now_ns);
  }
  if (const auto* m = std::get_if<message::Stalled>(&message); m && !worker) {
    return m->gone ? waits_in_vain(*m) : stalled(*m, now_ns);
  }
  if (const auto* m = std::get_if<message::Replaced>(&message);
      m && std::find(awaited_fence_.begin(), awaited_fence_.end(), link) != awaited_fence_.end()) {
    const bool known = std::all_of(m->rounds.begin(), m->rounds.end(),
                                   [&](const auto& row) { return tensors_.contains(row.tensor); });
    if (known) return fenced(link, *m, now_ns);
  }
  if (phase_ == Phase::kRunning && worker && !seat->returns_to) {
    if (std::holds_alternative<message::Leave>(message)) return leave(*seat, now_ns);
    if (const auto* m = std::get_if<message::SetPolicy>(&message)) return set_policy(*m);
    if (const auto* m = std::get_if<message::Declare>(&message); m && !seat->declaring) {
      seat->declaring = true;
      declarations_.push_back({link, m->tensors});
      return process_declarations();
    }
  }
  if (std::holds_alternative<message::Defined>(message) && !worker &&
      std::find(awaited_servers_.begin(), awaited_servers_.end(), link) != awaited_servers_.end()) {
    return defined(link);
  }
  const Error why(Errc::kProtocol, std::string("sent '") + name_of(message) + "' when it may not");
  context_.links.drop(link, why);
  on_closed(link, why, now_ns);
}

void Coordinator::ready(Seat& seat, const message::Ready& message) {
  seat.ready = true;
  seat.max_udp_payload = message.max_udp_payload;
  if (++ready_ == seats_.size()) start();
}

void Coordinator::start() {
  phase_ = Phase::kRunning;
  uint16_t payload = 65535;
  for (const Seat& seat : seats_) payload = std::min(payload, seat.max_udp_payload);
  chunk_bytes_ = payload - chunk_overhead(shape_->workers, shape_->terms.quorum);
  for (const Seat& seat : seats_) context_.links.send(seat.link, message::Start{chunk_bytes_});
}

// Not while somebody is here who would take it for a breach of the protocol.
void Coordinator::set_policy(const message::SetPolicy& message) {
  if (std::any_of(seats_.begin(), seats_.end(),
                  [](const Seat& s) { return (s.join.features & kKnowsPolicies) == 0; })) {
    return;
  }
  roster_.terms.policy = message.policy;
  for (const Seat& seat : seats_) context_.links.send(seat.link, message);
}

uint32_t Coordinator::needed_payload() const {
  return chunk_bytes_ + chunk_overhead(shape_->workers, shape_->terms.quorum);
}

void Coordinator::leave(Seat& leaver, uint64_t now_ns) {
  const Rank rank = rank_of(leaver);
  const LinkId link = leaver.link;
  erase_seat(link);
  dismiss(link, message::Left{}, now_ns);
  if (!ending_ && !has_quorum()) {
    ending_ = true;
    end_rejoining(now_ns);
    if (ended()) return;
  }
  const bool all_left = std::none_of(seats_.begin(), seats_.end(), [](const Seat& seat) {
    return seat.join.role == Role::kWorker;
  });
  message::PeerLeft& left = left_[rank];
  left = {rank, tensors_lacked(rank), refusal_of(rank), ending_ && servers_know_endings(), {}};
  lacked_of_[rank] = tensors_.size();
  for (const Seat& seat : seats_) {
    if (all_left) {
      dismiss(seat.link, message::End{}, now_ns);
    } else if (ending_ || seat.join.role == Role::kServer) {
      context_.links.send(seat.link, left);
    }
  }
  if (all_left) {
    seats_.clear();
    declarations_.clear();
    phase_ = Phase::kEnded;
  }
}

bool Coordinator::servers_know_endings() const {
  return std::all_of(seats_.begin(), seats_.end(), [](const Seat& seat) {
    return seat.join.role == Role::kWorker || (seat.join.features & kKnowsEndings) != 0;
  });
}

// A server has a push of a round that those who have left would have to push, too. All are told, as
// any of them may wait for it, or will; what they wait for besides still comes.
void Coordinator::waits_in_vain(const message::Stalled& message) {
  const auto row = std::find_if(message.workers.begin(), message.workers.end(),
                                [this](const auto& worker) { return left_.contains(worker.rank); });
  if (phase_ != Phase::kRunning || row == message.workers.end() ||
      !tensors_.contains(message.at.tensor)) {
    return;
  }
  const auto [entry, fresh] = hopeless_.emplace(message.at.tensor, message.at.round);
  if (!fresh && message.at.round.since(entry->second) >= 0) return;
  entry->second = message.at.round;
  message::PeerLeft& known = left_.at(row->rank);
  // Looked for again where tensors have been declared since, not for each that waits.
  if (std::exchange(lacked_of_[row->rank], tensors_.size()) != tensors_.size()) {
    known.lacked = tensors_lacked(row->rank);
  }
  message::PeerLeft left = known;
  if (contains(tensors_.at(message.at.tensor).declared, row->rank)) left.lacked.clear();
  left.waiting = message.at;
  for (const Seat& seat : seats_) context_.links.send(seat.link, left);
}

// One batch at a time goes to the servers, so that what waits for one of them stays within one
// message however many workers declare at once, and no two servers see two declarations of a tensor
// in different orders.
void Coordinator::process_declarations() {
  while (awaited_servers_.empty() && !declarations_.empty()) {
    const Declaration& declaration = declarations_.front();
    Seat* seat = seat_of(declaration.link);
    if (!seat) {  // it has left meanwhile
      declarations_.pop_front();
      continue;
    }
    std::vector<message::TensorShape> fresh;
    const Rank rank = rank_of(*seat);
    const Status agreed = check_declaration(declaration, rank, fresh);
    if (agreed && !fresh.empty()) {
      const message::Define news = define(fresh, rank);
      for (const Seat& server : seats_) {
        if (server.join.role != Role::kServer) continue;
        context_.links.send(server.link, news);
        awaited_servers_.push_back(server.link);
      }
      return;
    }
    seat->declaring = false;
    message::Declared answer;
    if (!agreed) {
      answer = {agreed.error().code, agreed.error().message, {}, {}};
      refusals_[rank] = answer.text;
      context_.note(NoticeKind::kTrouble, job_,
                    "refused a declaration of " + who(*seat) + ": " + answer.text);
    } else {
      answer = declared(declaration, *seat);
    }
    context_.links.send(declaration.link, answer);
    declarations_.pop_front();
  }
}

void Coordinator::defined(LinkId server) {
  std::erase(awaited_servers_, server);
  if (!awaited_servers_.empty()) return;
  if (Seat* seat = seat_of(declarations_.front().link)) {
    seat->declaring = false;
    context_.links.send(seat->link, declared(declarations_.front(), *seat));
  }
  declarations_.pop_front();
  process_declarations();
}

message::Define Coordinator::define(const std::vector<message::TensorShape>& fresh,
                                    Rank declared_by) {
  message::Define news{fresh, {}};
  for (const message::TensorShape& t : fresh) {
    Known& known = tensors_[t.id] = {t, declared_by, {}, {}};
    if (!turn_) continue;
    const uint32_t elems = chunk_elems(chunk_bytes_, static_cast<uint32_t>(size_of(t.dtype)));
    known.first_shard = turn_->take(chunk_count(t.numel, elems));
    news.first_shards.push_back(known.first_shard);
  }
  return news;
}

message::Declared Coordinator::declared(const Declaration& declaration, const Seat& seat) {
  message::Declared answer;
  refusals_.erase(rank_of(seat));
  for (const message::TensorShape& t : declaration.tensors) {
    Known& known = tensors_[t.id];
    insert(known.declared, rank_of(seat));
    if (turn_) answer.first_shards.push_back(known.first_shard);
  }
  if (seat.came_back) answer.rounds = rounds_of(declaration, seat);
  return answer;
}

std::string Coordinator::refusal_of(Rank rank) const {
  const auto refusal = refusals_.find(rank);
  return refusal == refusals_.end() ? "" : refusal->second;
}

std::string Coordinator::refused_text(const Seat& worker) const {
  const std::string refusal = refusal_of(rank_of(worker));
  return refusal.empty() ? "" : "; its declaration was refused: " + refusal;
}

// What a worker that leaves has not declared: the others wait in vain for its part of these.
std::string Coordinator::tensors_lacked(Rank rank) const {
  size_t count = 0;
  TensorId lowest = kMaxTensorId;
  for (const auto& [id, known] : tensors_) {
    if (contains(known.declared, rank)) continue;
    ++count;
    lowest = std::min(lowest, id);
  }
  if (count == 0) return "";
  return "tensor " + std::to_string(lowest.value) +
         (count == 1 ? "" : " and " + std::to_string(count - 1) + " more");
}

Status Coordinator::check_declaration(const Declaration& declaration, Rank rank,
                                      std::vector<message::TensorShape>& fresh) const {
  std::unordered_map<TensorId, const message::TensorShape*> batch;
  for (const message::TensorShape& t : declaration.tensors) {
    const std::string name = "tensor " + std::to_string(t.id.value);
    if (const auto known = tensors_.find(t.id); known != tensors_.end()) {
      if (t == known->second.tensor) continue;
      return Error(Errc::kTensorMismatch, name + " is declared by worker " +
                                              std::to_string(rank.value) + " as " + shape_text(t) +
                                              ", by worker " +
                                              std::to_string(known->second.declared_by.value) +
                                              " as " + shape_text(known->second.tensor));
    }
    const uint32_t elems = chunk_elems(chunk_bytes_, static_cast<uint32_t>(size_of(t.dtype)));
    if (chunk_count(t.numel, elems) == 0) {
      return Error(Errc::kInvalidArgument,
                   name + " has more than 2^32 - 1 chunks of " + std::to_string(elems));
    }
    if (!batch.emplace(t.id, &t).second) {
      return Error(Errc::kExists, name + " is declared twice");
    }
    fresh.push_back(t);
  }
  if (tensors_.size() + fresh.size() > context_.policy.max_tensors) {
    return Error(Errc::kLimit, "a job has at most " + std::to_string(context_.policy.max_tensors) +
                                   " tensors here (jobs.max_tensors)");
  }
  return {};
}

}  // namespace mercury
