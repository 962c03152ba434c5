#include "shim/job/messages.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "shim/job/message_reader.h"
#include "transport/base/json_depth.h"
#include "transport/wire/hello.h"

namespace mercury {
namespace {

Json to_json(const std::vector<Endpoint>& endpoints) {
  std::vector<uint8_t> bytes;
  bytes.reserve(endpoints.size() * kEndpointBytes);
  for (const Endpoint& endpoint : endpoints) {
    bytes.insert(bytes.end(), endpoint.ip.bytes.begin(), endpoint.ip.bytes.end());
    bytes.push_back(static_cast<uint8_t>(endpoint.port >> 8));
    bytes.push_back(static_cast<uint8_t>(endpoint.port));
  }
  return Json::binary(std::move(bytes));
}

Json to_json(const std::vector<message::TensorShape>& tensors) {
  Json rows = Json::array();
  for (const message::TensorShape& t : tensors) {
    rows.push_back({t.id.value, t.numel, static_cast<int>(t.dtype), static_cast<int>(t.op)});
  }
  return rows;
}

constexpr int64_t kMax32 = std::numeric_limits<uint32_t>::max();

TensorId read_tensor_id(MessageReader& in, const Json& number) {
  return TensorId(static_cast<uint32_t>(in.number(&number, "tensor", 0, kMaxTensorId.value)));
}
Round read_round(MessageReader& in, const Json& number, const char* name = "round") {
  return Round(static_cast<uint32_t>(in.number(&number, name, 0, kMax32)));
}
TensorRound read_tensor_round(MessageReader& in, const Json& pair) {
  const TensorId tensor = read_tensor_id(in, pair[0]);
  return {tensor, read_round(in, pair[1])};
}
Rank read_rank(MessageReader& in, const Json* number) {
  return Rank(static_cast<uint16_t>(in.number(number, "rank", 0, kMaxWorkers - 1)));
}
Rank read_rank(MessageReader& in) { return read_rank(in, in.find("rank")); }
Json to_json(const TensorRound& at) { return {at.tensor.value, at.round.value}; }

void read_tensors(MessageReader& in, std::vector<message::TensorShape>& out) {
  in.rows("tensors", kDeclareBatch, [&](const Json& row) {
    if (!row.is_array() || row.size() != 4) return in.fail("a tensor is not four numbers");
    message::TensorShape t;
    t.id = read_tensor_id(in, row[0]);
    t.numel = static_cast<uint64_t>(in.number(&row[1], "numel", 1, int64_t{kMaxElements}));
    t.dtype = static_cast<Dtype>(in.number(&row[2], "dtype", 0, kDtypeCount - 1));
    t.op = static_cast<ReduceOp>(in.number(&row[3], "op", 0, kReduceOpCount - 1));
    out.push_back(t);
  });
}

void put_first_shards(Json& out, const std::vector<Shard>& shards) {
  for (const Shard shard : shards) out["first_shards"].push_back(shard.value);
}
void read_first_shards(MessageReader& in, std::vector<Shard>& out) {
  if (!in.find("first_shards")) return;
  in.rows("first_shards", kDeclareBatch, [&](const Json& row) {
    out.emplace_back(static_cast<uint16_t>(in.number(&row, "first_shards", 0, kMaxShards - 1)));
  });
}

constexpr int64_t kMaxMilliseconds = int64_t{1} << 40;  // 34 years

// --- one pair of functions per kind ----------------------------------------------------------
// Terms that the first version of these messages did not have are said only by who asks for them.
template <class Carries>
void put_terms(Json& out, const JobTerms& terms, Carries carries) {
  for (const Term& term : job_terms()) {
    if (!carries(term) || (term.since > 0 && is_silent(term, terms))) continue;
    visit_term(term, terms, [&](const auto& value) { out[term.control] = value; });
  }
}
template <class Carries>
void get_terms(MessageReader& in, JobTerms& terms, Carries carries) {
  for (const Term& term : job_terms()) {
    if (!carries(term) || (term.since > 0 && !in.find(term.control))) continue;
    visit_term(term, terms, [&](auto& value) {
      if constexpr (kIsNumber<decltype(value)>) {
        in.read(term.control, value, term.least, term.most);
      } else {
        in.read(term.control, value);
      }
    });
  }
}
void check_together(MessageReader& in, const JobTerms& terms, uint32_t workers) {
  for (std::string wrong : {contradiction(terms, workers), superfluous(terms)}) {
    if (!wrong.empty()) in.fail(std::move(wrong));
  }
}
// A join has all terms, an invitation what all members say, a roster the rest.
bool any_term(const Term&) { return true; }
bool said_by_members(const Term& term) { return term.said_by == SaidBy::kMembers; }
bool not_by_members(const Term& term) { return !said_by_members(term); }

void put(Json& out, const message::Join& m) {
  out["role"] = static_cast<int>(m.role);
  out["rank"] = m.rank;
  out["workers"] = m.workers;
  out["servers"] = m.servers;
  put_terms(out, m.terms, any_term);
  out["incarnation"] = m.incarnation;
  out["timeout_ms"] = m.timeout_ms;
  out["served"] = m.served;
  out["lanes"] = to_json(m.lanes);
  out["rendezvous"] = to_json(m.rendezvous);
  if (m.features > 0) out["features"] = m.features;
}
void get(MessageReader& in, message::Join& m) {
  m.role = static_cast<Role>(in.number("role", 0, 1));
  in.read("workers", m.workers, 1, kMaxWorkers);
  in.read("servers", m.servers, 1, kMaxServers);
  in.read("rank", m.rank, -1, (m.role == Role::kWorker ? m.workers : m.servers) - 1);
  get_terms(in, m.terms, any_term);
  in.read("incarnation", m.incarnation, 1, kMax32);
  in.read("timeout_ms", m.timeout_ms, 0, kMaxMilliseconds);
  in.read("served", m.served);
  in.read("lanes", m.lanes, kMaxLanes);
  in.read("rendezvous", m.rendezvous, kMaxServers);
  in.read_optional("features", m.features, 0, kMax32);
  check_together(in, m.terms, m.workers);
}

void put(Json& out, const message::Invite& m) {
  out["rank"] = m.rank;
  out["workers"] = m.workers;
  out["servers"] = m.servers;
  put_terms(out, m.terms, said_by_members);
}
void get(MessageReader& in, message::Invite& m) {
  in.read("workers", m.workers, 1, kMaxWorkers);
  in.read("servers", m.servers, 1, kMaxServers);
  in.read("rank", m.rank, 0, m.servers - 1);
  get_terms(in, m.terms, said_by_members);
}

void put(Json& out, const message::Roster& m) {
  out["rank"] = m.rank;
  put_terms(out, m.terms, not_by_members);
  if (m.frame_bytes > 0) out["frame_bytes"] = m.frame_bytes;
  if (m.server_features > 0) out["server_features"] = m.server_features;
  out["workers"] = Json::array();
  for (const auto& w : m.workers) {
    out["workers"].push_back({w.incarnation, to_json(std::vector{w.address})});
  }
  out["servers"] = Json::array();
  for (const auto& s : m.servers) out["servers"].push_back({s.incarnation, to_json(s.lanes)});
}
// Both kinds of row are [incarnation, endpoints].
template <class Row>
void get_member(MessageReader& in, const Json& row, size_t most_lanes, Row use) {
  if (!row.is_array() || row.size() != 2) return in.fail("a member is not two values");
  const auto incarnation =
      static_cast<uint32_t>(in.number(&row[0], "incarnation", 1, ~uint32_t{0}));
  std::vector<Endpoint> lanes;
  in.endpoints(&row[1], "lanes", lanes, most_lanes);
  if (!lanes.empty()) use(incarnation, std::move(lanes));
}
void get(MessageReader& in, message::Roster& m) {
  in.read("rank", m.rank, 0, std::max(kMaxWorkers, kMaxServers) - 1);
  get_terms(in, m.terms, not_by_members);
  check_together(in, m.terms, kMaxWorkers);
  in.read_optional("frame_bytes", m.frame_bytes, 0, 65535);
  in.read_optional("server_features", m.server_features, 0, kMax32);
  in.rows("workers", kMaxWorkers, [&](const Json& row) {
    get_member(in, row, 1, [&](uint32_t incarnation, std::vector<Endpoint> lanes) {
      m.workers.push_back({incarnation, lanes.front()});
    });
  });
  in.rows("servers", kMaxServers, [&](const Json& row) {
    get_member(in, row, kMaxLanes, [&](uint32_t incarnation, std::vector<Endpoint> lanes) {
      m.servers.push_back({incarnation, std::move(lanes)});
    });
  });
  const auto servers = static_cast<uint32_t>(std::max<size_t>(m.servers.size(), 1));
  if (!m.servers.empty() && m.servers.front().lanes.size() > most_lanes(servers)) {
    in.fail("'servers' have more than " + std::to_string(kMaxShards) + " lanes together");
  }
  for (const auto& server : m.servers) {
    if (server.lanes.size() != m.servers.front().lanes.size()) in.fail("'lanes' differ in number");
  }
}

void put(Json& out, const message::Ready& m) {
  out["max_udp_payload"] = m.max_udp_payload;
  if (m.in_parts > 0) out["in_parts"] = m.in_parts;
}
void get(MessageReader& in, message::Ready& m) {
  in.read("max_udp_payload", m.max_udp_payload, 0, 65535);
  in.read_optional("in_parts", m.in_parts, 0, 65535);
}
void put(Json& out, const message::Start& m) { out["chunk_bytes"] = m.chunk_bytes; }
void get(MessageReader& in, message::Start& m) { in.read("chunk_bytes", m.chunk_bytes, 64, 65535); }
void put(Json& out, const message::Declare& m) { out["tensors"] = to_json(m.tensors); }
void get(MessageReader& in, message::Declare& m) { read_tensors(in, m.tensors); }
void put(Json& out, const message::Define& m) {
  out["tensors"] = to_json(m.tensors);
  put_first_shards(out, m.first_shards);
}
void get(MessageReader& in, message::Define& m) {
  read_tensors(in, m.tensors);
  read_first_shards(in, m.first_shards);
}
void put(Json& out, const message::PeerLeft& m) {
  out["rank"] = m.rank.value;
  if (!m.lacked.empty()) out["lacked"] = shortened(m.lacked, kMaxText);
  if (!m.refused.empty()) out["refused"] = shortened(m.refused, kMaxText);
  if (m.ending) out["ending"] = true;
  if (m.waiting) out["waiting"] = to_json(*m.waiting);
}
void get(MessageReader& in, message::PeerLeft& m) {
  m.rank = read_rank(in);
  if (in.find("lacked")) in.read("lacked", m.lacked);
  if (in.find("refused")) in.read("refused", m.refused);
  if (in.find("ending")) in.read("ending", m.ending);
  const Json* waiting = in.find("waiting");
  if (!waiting) return;
  if (!waiting->is_array() || waiting->size() != 2) return in.fail("'waiting' is not two numbers");
  m.waiting = read_tensor_round(in, *waiting);
}
void put(Json& out, const message::Declared& m) {
  out["code"] = static_cast<int>(m.code);
  out["text"] = shortened(m.text, kMaxText);
  for (const Round round : m.rounds) out["rounds"].push_back(round.value);
  put_first_shards(out, m.first_shards);
}
void get(MessageReader& in, message::Declared& m) {
  in.read("code", m.code, true);
  in.read("text", m.text);
  read_first_shards(in, m.first_shards);
  if (!in.find("rounds")) return;
  in.rows("rounds", kDeclareBatch,
          [&](const Json& row) { m.rounds.push_back(read_round(in, row, "rounds")); });
}
void put(Json& out, const message::Fail& m) {
  out["code"] = static_cast<int>(m.code);
  out["text"] = shortened(m.text, kMaxText);
}
void get(MessageReader& in, message::Fail& m) {
  in.read("code", m.code, false);
  in.read("text", m.text);
}
void put(Json& out, const message::Replace& m) {
  out["rank"] = m.rank.value;
  out["incarnation"] = m.incarnation;
  out["address"] = to_json(std::vector{m.address});
}
void get(MessageReader& in, message::Replace& m) {
  m.rank = read_rank(in);
  in.read("incarnation", m.incarnation, 1, kMax32);
  std::vector<Endpoint> address;
  in.read("address", address, 1);
  if (!address.empty()) m.address = address.front();
}
void put(Json& out, const message::Replaced& m) {
  out["rank"] = m.rank.value;
  out["incarnation"] = m.incarnation;
  out["last"] = m.last;
  out["rounds"] = Json::array();
  for (const auto& row : m.rounds) out["rounds"].push_back(to_json(row));
}
void get(MessageReader& in, message::Replaced& m) {
  m.rank = read_rank(in);
  in.read("incarnation", m.incarnation, 1, kMax32);
  in.read("last", m.last);
  const Json* rows = in.find("rounds");
  if (rows && rows->is_array() && rows->empty()) return;  // a server that has no tensor yet
  in.rows("rounds", kDeclareBatch, [&](const Json& row) {
    if (!row.is_array() || row.size() != 2) return in.fail("a round is not two numbers");
    m.rounds.push_back(read_tensor_round(in, row));
  });
}
void put(Json& out, const message::Lost& m) {
  out["rank"] = m.rank.value;
  out["incarnation"] = m.incarnation;
}
void get(MessageReader& in, message::Lost& m) {
  m.rank = read_rank(in);
  in.read("incarnation", m.incarnation, 1, kMax32);
}
void put(Json& out, const message::SetPolicy& m) { out["policy"] = m.policy; }
void get(MessageReader& in, message::SetPolicy& m) { in.read("policy", m.policy); }
void put(Json& out, const message::Stalled& m) {
  out["tensor"] = m.at.tensor.value;
  out["round"] = m.at.round.value;
  out["waited_ms"] = m.waited_ms;
  out["workers"] = Json::array();
  for (const auto& row : m.workers) out["workers"].push_back({row.rank.value, row.incarnation});
  if (m.gone) out["gone"] = true;
}
void get(MessageReader& in, message::Stalled& m) {
  in.read("tensor", m.at.tensor.value, 0, kMaxTensorId.value);
  in.read("round", m.at.round.value, 0, kMax32);
  in.read("waited_ms", m.waited_ms, 0, kMaxMilliseconds);
  in.rows("workers", kMaxWorkers, [&](const Json& row) {
    if (!row.is_array() || row.size() != 2) return in.fail("a worker is not two numbers");
    message::Stalled::Row out;
    out.rank = read_rank(in, &row[0]);
    out.incarnation = static_cast<uint32_t>(in.number(&row[1], "incarnation", 1, kMax32));
    m.workers.push_back(out);
  });
  if (in.find("gone")) in.read("gone", m.gone);
}
template <class Empty>
requires std::is_empty_v<Empty>
void put(Json&, const Empty&) {}
template <class Empty>
requires std::is_empty_v<Empty>
void get(MessageReader&, Empty&) {}

// By the variant's index; these words travel.
constexpr const char* kNames[] = {"join",     "invite",    "roster", "ready",      "start",
                                  "declare",  "declared",  "define", "defined",    "leave",
                                  "left",     "peer_left", "end",    "fail",       "replace",
                                  "replaced", "refill",    "lost",   "set_policy", "stalled"};
static_assert(std::size(kNames) == std::variant_size_v<Message>);

template <size_t... I>
Result<Message> read_as(MessageReader& in, size_t kind, std::index_sequence<I...>) {
  Message out;
  ((kind == I ? get(in, out.emplace<I>()) : void()), ...);
  if (!in.wrong().empty()) {
    return Error(Errc::kProtocol, std::string(kNames[kind]) + " message: " + in.wrong());
  }
  return out;
}

Result<Message> decode_checked(std::span<const std::byte> bytes) {
  const auto* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  JsonDepth<Json> depth(kMessageDepth);
  if (!Json::sax_parse(begin, begin + bytes.size(), &depth, Json::input_format_t::cbor)) {
    return Error(Errc::kProtocol, "a control message is not valid CBOR");
  }
  const Json map = Json::from_cbor(begin, begin + bytes.size(), true, false);
  if (!map.is_object()) return Error(Errc::kProtocol, "a control message is not a CBOR map");
  const auto kind = map.find("kind");
  if (kind == map.end() || !kind->is_string()) {
    return Error(Errc::kProtocol, "a control message does not say its kind");
  }
  const auto& name = kind->get_ref<const std::string&>();
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) {
    return Error(Errc::kProtocol, "a control message of an unknown kind");
  }
  MessageReader in(map);
  return read_as(in, static_cast<size_t>(found - std::begin(kNames)),
                 std::make_index_sequence<std::variant_size_v<Message>>());
}

}  // namespace

const char* name_of(const Message& message) { return kNames[message.index()]; }

std::vector<std::byte> encode(const Message& message) {
  Json out = {{"kind", name_of(message)}};
  std::visit([&](const auto& m) { put(out, m); }, message);
  const std::vector<uint8_t> bytes = Json::to_cbor(out);
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

Result<Message> decode_message(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxControlBytes) {
    return Error(Errc::kProtocol, "a control message is longer than 256 KiB");
  }
  try {
    return decode_checked(bytes);
  } catch (const std::exception&) {  // the library's, and bad_alloc
    return Error(Errc::kProtocol, "a control message could not be read");
  }
}

std::string shortened(std::string text, size_t bytes) {
  if (text.size() <= bytes) return text;
  text.resize(bytes - 3);
  return text + "...";
}

}  // namespace mercury
