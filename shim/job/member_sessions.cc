// Member: its data sessions, which it opens as a worker and admits as a server.
#include <algorithm>
#include <limits>

#include "shim/job/member.h"

namespace mercury {
namespace {

// Of a worker that comes back the job's frames go whole over paths that are as wide; a probe that
// was lost, or ended a few bytes below, is no proof that they are not.
constexpr int kPathAttempts = 4;

}  // namespace

void Member::connect_to(Shard shard, int attempt, uint32_t refused) {
  const auto lane = static_cast<uint16_t>(shard.value % lanes_used_);
  const auto server_lane = static_cast<uint16_t>(shard.value % roster_.lanes());
  wire::Hello hello;
  hello.kind = wire::SessionKind::kData;
  hello.role = static_cast<uint8_t>(Role::kWorker);
  hello.rank = rank_;
  hello.lane = server_lane;
  hello.incarnation = incarnation_;
  hello.job = spec_.name;
  const LinkId link = context_.links.connect(
      Link::Owner::kData, slot_.value, LaneId(lane), slot_,
      roster_.servers[shard.value / roster_.lanes()].lanes[server_lane], hello, key_);
  data_.emplace(link, Data{LaneId(lane), shard, {}, attempt, refused});
}

void Member::redial(uint64_t now_ns) {
  std::vector<Redial> due;
  for (const Redial& one : redials_) {
    if (one.at_ns <= now_ns) due.push_back(one);
  }
  std::erase_if(redials_, [&](const Redial& one) { return one.at_ns <= now_ns; });
  for (const Redial& one : due) connect_to(one.data.shard, one.data.attempt, one.data.refused);
}

// Whether the job goes on when it has lost this worker.
bool Member::may_come_back() const {
  return spec_.role == Role::kWorker && spec_.terms.rejoin_ms + spec_.terms.quorum > 0;
}

Result<Member::Admission> Member::admit(LaneId lane, const wire::Hello& hello) const {
  if (!admits()) return Admission::kHold;
  if (hello.role != static_cast<uint8_t>(Role::kWorker) || hello.incarnation == 0 ||
      hello.rank >= roster_.workers.size() ||
      roster_.workers[hello.rank].incarnation != hello.incarnation) {
    return Error(Errc::kRankTaken, "job '" + spec_.name + "' has no such worker in its roster");
  }
  if (hello.lane != lane.value || lane.value >= lanes_used_) {
    return Error(Errc::kProtocol, "lane " + std::to_string(hello.lane) + " was addressed, lane " +
                                      std::to_string(lane.value) + " got it");
  }
  if (left_.contains(Rank(hello.rank))) {
    return Error(Errc::kRankTaken, "worker " + std::to_string(hello.rank) + " has left");
  }
  return Admission::kAccept;
}

// Anybody may repeat a worker's HELLO: the session that it has stays until the new one is open.
void Member::accept(LaneId lane, const event::HelloReceived& hello) {
  const Data seat{lane, {}, Rank(hello.body.rank)};
  drop_oldest_greeting(seat);
  const LinkId link = context_.links.accept(Link::Owner::kData, slot_.value, lane, slot_, hello,
                                            incarnation_, key_, open());
  data_.emplace(link, seat);
  seated_[seat_of(seat)].push_back(link);
}

// Those that there are of the same worker and lane.
std::vector<LinkId>& Member::sessions_like(const Data& seat) {
  std::vector<LinkId>& links = seated_[seat_of(seat)];
  std::erase_if(links, [this](LinkId link) { return !data_.contains(link); });
  return links;
}

void Member::on_data_opened(LinkId link, const wire::HelloAck& answer) {
  const auto it = data_.find(link);
  if (it == data_.end()) return;
  if (spec_.role == Role::kServer) drop_sessions(it->second);
  Data& data = it->second;
  data.open = true;
  ++heard_of_data_;
  if (spec_.role == Role::kServer) {
    to_lane(
        data.lane.value,
        command::BindWorker{slot_, data.rank, roster_.workers[data.rank.value].incarnation, link});
  } else {
    const auto server = static_cast<uint16_t>(data.shard.value / roster_.lanes());
    if (answer.incarnation != roster_.servers[server].incarnation) {
      return fail(Error(Errc::kPeerLeft, server_name(server) + " was started again"));
    }
    to_lane(data.lane.value, command::BindShard{slot_, data.shard, link});
  }
  say_ready();
}

// At most so many wait for their first frame, of which one may be the worker's own: it asks again.
void Member::drop_oldest_greeting(const Data& seat) {
  constexpr size_t kMostGreetings = 4;
  LinkId oldest = 0;
  size_t waiting = 0;
  for (const LinkId link : sessions_like(seat)) {
    if (data_.at(link).open) continue;
    oldest = waiting++ == 0 ? link : std::min(oldest, link);
  }
  if (waiting < kMostGreetings) return;
  context_.links.drop(oldest, Error(Errc::kAgain, "others asked for this session since"));
  data_.erase(oldest);
}

// A worker that opens a session which it has in our eyes has given that one up.
void Member::drop_sessions(const Data& seat) {
  for (const LinkId link : sessions_like(seat)) {
    if (!data_.at(link).open) continue;
    context_.links.drop(link, Error(Errc::kClosed, "the worker opened another session"));
    data_.erase(link);
  }
}

void Member::drop_sessions_of(Rank rank, const Error& why) {
  std::erase_if(data_, [&](const auto& entry) {
    if (entry.second.rank != rank) return false;
    context_.links.drop(entry.first, why);
    return true;
  });
}

void Member::on_path(const event::PathProbed& probed) {
  const LinkId link = probed.token;
  const auto it = data_.find(link);
  if (it == data_.end()) return;
  const Data data = it->second;
  if (probed.max_udp_payload < roster_.frame_bytes && data.attempt < kPathAttempts &&
      phase_ == Phase::kConnecting) {
    data_.erase(it);
    context_.links.drop(link, Error(Errc::kClosed, "its path is probed again"));
    return connect_to(data.shard, data.attempt + 1);
  }
  it->second.max_udp_payload = probed.max_udp_payload;
  it->second.in_parts = probed.in_parts;
  ++heard_of_data_;
  say_ready();
}

// Once: when all sessions are open, and this side's probes have come to an end. Looks at all of
// them only where enough has been heard of them for that.
void Member::say_ready() {
  const bool worker = spec_.role == Role::kWorker;
  const size_t sessions = worker ? roster_.shards() : size_t{spec_.workers} * lanes_used_;
  if (ready_said_ || phase_ != Phase::kConnecting || heard_of_data_ < 2 * sessions) return;
  uint16_t payload = std::numeric_limits<uint16_t>::max();
  uint16_t in_parts = payload;
  size_t probed = 0;
  for (const auto& [link, data] : data_) {
    if (!data.open) continue;
    if (data.max_udp_payload == 0) return;
    payload = std::min(payload, data.max_udp_payload);
    in_parts = std::min(in_parts, data.in_parts);
    ++probed;
  }
  if (probed != sessions) return;
  ready_said_ = true;
  if (payload >= roster_.frame_bytes) in_parts = 0;
  ready_payload_ = std::max(payload, in_parts);
  context_.links.send(control_, message::Ready{payload, in_parts});
}

void Member::on_data_closed(LinkId link, const Error& why, uint64_t now_ns) {
  const auto it = data_.find(link);
  if (it == data_.end()) return;
  const Data data = it->second;
  data_.erase(it);
  if (phase_ >= Phase::kLeaving) return;
  if (spec_.role == Role::kServer) {
    // A worker that leaves or fails says so to the coordinator; only silence is news.
    if (why.code != Errc::kPeerLost || left_.contains(data.rank)) return;
    if (roster_.terms.rejoin_ms + roster_.terms.quorum > 0 && phase_ == Phase::kRunning) {
      return context_.links.send(
          control_, message::Lost{data.rank, roster_.workers[data.rank.value].incarnation});
    }
    return fail_self(Error(why.code, said_of(worker_name(data.rank), why.message)));
  }
  if (why.code == Errc::kAgain && phase_ == Phase::kConnecting) {  // until the time limit passes
    const uint64_t pause_ns = kRedialNs << std::min<uint32_t>(data.refused, 16);
    Redial again{data, now_ns + std::min(pause_ns, kLongestRedialNs)};
    ++again.data.refused;
    redials_.push_back(again);
    return;
  }
  const std::string server = server_name(static_cast<uint16_t>(data.shard.value / roster_.lanes()));
  // A server closes with the job's own error, which names who failed; the rest is between us.
  const bool gave_us_up = why.code == Errc::kClosed || why.code == Errc::kAgain;
  const bool between_us = why.code == Errc::kPeerLost || gave_us_up ||
                          why.code == Errc::kTimedOut || why.code == Errc::kProtocol ||
                          phase_ == Phase::kConnecting;
  fail(Error(gave_us_up ? Errc::kPeerLeft : why.code,
             between_us ? said_of(server, why.message) : why.message));
}

}  // namespace mercury
