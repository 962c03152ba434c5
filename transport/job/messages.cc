#include "transport/job/messages.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "transport/wire/hello.h"

namespace mercury {
namespace {

using Json = nlohmann::json;

// Join and Roster nest three deep. Deeper input is refused before it is built: the library's parser
// calls itself once per level, and a peer must not choose how deep our stack grows.
constexpr int kMaxDepth = 6;

class DepthCheck final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return ++depth_ <= kMaxDepth; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return ++depth_ <= kMaxDepth; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  int depth_ = 0;
};

// --- endpoints: 16 bytes of address, 2 of port, all big-endian, in one byte string --------------
constexpr size_t kEndpointBytes = 18;

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

Json to_json(const std::vector<message::Tensor>& tensors) {
  Json rows = Json::array();
  for (const message::Tensor& t : tensors) {
    rows.push_back({t.id, t.numel, static_cast<int>(t.dtype), static_cast<int>(t.op)});
  }
  return rows;
}

// --- reading, with every field checked; what is wrong first is kept in `wrong` -------------------
class Reader {
 public:
  explicit Reader(const Json& map) : map_(map) {}
  const std::string& wrong() const { return wrong_; }
  void fail(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }

  const Json* find(const char* key) {
    const auto it = map_.find(key);
    return it == map_.end() ? nullptr : &*it;
  }
  int64_t number(const char* key, int64_t least, int64_t most) {
    return number(find(key), key, least, most);
  }
  int64_t number(const Json* value, const char* what, int64_t least, int64_t most) {
    if (value && value->is_number_unsigned() &&
        value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      value = nullptr;
    }
    if (value && value->is_number_integer()) {
      const auto read = value->get<int64_t>();
      if (read >= least && read <= most) return read;
    }
    fail(std::string("'") + what + "' is not a number from " + std::to_string(least) + " to " +
         std::to_string(most));
    return least;
  }
  template <class N>
  void read(const char* key, N& out, int64_t least, int64_t most) {
    out = static_cast<N>(number(key, least, most));
  }
  // A field that senders of an earlier version, or without a use for it, leave out.
  template <class N>
  void read_optional(const char* key, N& out, int64_t least, int64_t most) {
    if (find(key)) read(key, out, least, most);
  }
  void read(const char* key, bool& out) {
    const Json* value = find(key);
    if (!value || !value->is_boolean()) return fail(std::string("'") + key + "' is not a boolean");
    out = value->get<bool>();
  }
  void read(const char* key, std::string& out) {
    const Json* value = find(key);
    if (!value || !value->is_string() || value->get_ref<const std::string&>().size() > kMaxText) {
      return fail(std::string("'") + key + "' is not a short text");
    }
    out = value->get<std::string>();
    // It will be printed on terminals, in logs and as JSON.
    std::replace_if(
        out.begin(), out.end(), [](char c) { return c < 32 || c > 126; }, '?');
  }
  void read_optional(const char* key, std::string& out) {
    if (find(key)) read(key, out);
  }
  void read(const char* key, Errc& out, bool ok_allowed) {
    const auto code = static_cast<uint16_t>(number(key, ok_allowed ? 0 : 1, 65535));
    if (!is_known_errc(code)) return fail(std::string("'") + key + "' is no error code");
    out = static_cast<Errc>(code);
  }
  void read(const char* key, std::vector<Endpoint>& out, size_t most) {
    endpoints(find(key), key, out, most);
  }
  void endpoints(const Json* value, const char* what, std::vector<Endpoint>& out, size_t most) {
    const bool binary = value && value->is_binary();
    const size_t bytes = binary ? value->get_binary().size() : 0;
    if (bytes == 0 || bytes % kEndpointBytes != 0 || bytes / kEndpointBytes > most) {
      return fail(std::string("'") + what + "' is not a list of addresses");
    }
    out.resize(bytes / kEndpointBytes);
    const uint8_t* at = value->get_binary().data();
    for (Endpoint& endpoint : out) {
      std::memcpy(endpoint.ip.bytes.data(), at, 16);
      endpoint.port = static_cast<uint16_t>(at[16] << 8 | at[17]);
      if (endpoint.port == 0) fail(std::string("'") + what + "' has an address without a port");
      at += kEndpointBytes;
    }
  }
  // Calls row(const Json& element) for each of 1 to `most` elements.
  template <class F>
  void rows(const char* key, size_t most, F row) {
    const Json* value = find(key);
    if (!value || !value->is_array() || value->empty() || value->size() > most) {
      return fail(std::string("'") + key + "' is not a list of 1 to " + std::to_string(most));
    }
    for (const Json& element : *value) row(element);
  }

 private:
  const Json& map_;
  std::string wrong_;
};

void read_tensors(Reader& in, std::vector<message::Tensor>& out) {
  in.rows("tensors", kDeclareBatch, [&](const Json& row) {
    if (!row.is_array() || row.size() != 4) return in.fail("a tensor is not four numbers");
    message::Tensor t;
    t.id = static_cast<uint32_t>(in.number(&row[0], "tensor", 0, kMaxTensorId));
    t.numel = static_cast<uint64_t>(in.number(&row[1], "numel", 1, int64_t{kMaxElements}));
    t.dtype = static_cast<Dtype>(in.number(&row[2], "dtype", 0, kDtypeCount - 1));
    t.op = static_cast<ReduceOp>(in.number(&row[3], "op", 0, 1));
    out.push_back(t);
  });
}

constexpr int64_t kMaxMilliseconds = int64_t{1} << 40;  // 34 years
constexpr int64_t kMax32 = std::numeric_limits<uint32_t>::max();

// --- one pair of functions per kind ----------------------------------------------------------
// Options that the first version of these messages did not have: said only by who uses them.
template <class M>
void put_options(Json& out, const M& m) {
  if (m.rejoin_ms > 0) out["rejoin_ms"] = m.rejoin_ms;
  if (m.quorum > 0) out["quorum"] = m.quorum;
  if (m.patience_ms > 0) out["patience_ms"] = m.patience_ms;
}
template <class M>
void get_options(Reader& in, M& m) {
  in.read_optional("rejoin_ms", m.rejoin_ms, 0, kMaxMilliseconds);
  in.read_optional("quorum", m.quorum, 0, kMaxWorkers);
  in.read_optional("patience_ms", m.patience_ms, 0, kMaxMilliseconds);
  if ((m.quorum > 0) != (m.patience_ms > 0)) in.fail("'quorum' and 'patience_ms' belong together");
}

void put(Json& out, const message::Join& m) {
  out["role"] = static_cast<int>(m.role);
  out["rank"] = m.rank;
  out["workers"] = m.workers;
  out["servers"] = m.servers;
  out["deterministic"] = m.deterministic;
  out["weight"] = m.weight;
  out["incarnation"] = m.incarnation;
  out["timeout_ms"] = m.timeout_ms;
  out["served"] = m.served;
  out["lanes"] = to_json(m.lanes);
  out["rendezvous"] = to_json(m.rendezvous);
  if (!m.policy.empty()) out["policy"] = m.policy;
  put_options(out, m);
  if (m.features > 0) out["features"] = m.features;
}
void get(Reader& in, message::Join& m) {
  m.role = static_cast<Role>(in.number("role", 0, 1));
  in.read("workers", m.workers, 1, kMaxWorkers);
  in.read("servers", m.servers, 1, kMaxServers);
  in.read("rank", m.rank, -1, (m.role == Role::kWorker ? m.workers : m.servers) - 1);
  in.read("deterministic", m.deterministic);
  in.read("weight", m.weight, 1, kMaxWeight);
  in.read("incarnation", m.incarnation, 1, kMax32);
  in.read("timeout_ms", m.timeout_ms, 0, kMaxMilliseconds);
  in.read("served", m.served);
  in.read("lanes", m.lanes, kMaxLanes);
  in.read("rendezvous", m.rendezvous, kMaxServers);
  in.read_optional("policy", m.policy);
  get_options(in, m);
  in.read_optional("features", m.features, 0, kMax32);
  if (m.quorum > m.workers || (m.quorum > 0 && m.deterministic)) in.fail("'quorum' is impossible");
}

void put(Json& out, const message::Invite& m) {
  out["rank"] = m.rank;
  out["workers"] = m.workers;
  out["servers"] = m.servers;
  out["deterministic"] = m.deterministic;
}
void get(Reader& in, message::Invite& m) {
  in.read("workers", m.workers, 1, kMaxWorkers);
  in.read("servers", m.servers, 1, kMaxServers);
  in.read("rank", m.rank, 0, m.servers - 1);
  in.read("deterministic", m.deterministic);
}

void put(Json& out, const message::Roster& m) {
  out["rank"] = m.rank;
  out["weight"] = m.weight;
  if (!m.policy.empty()) out["policy"] = m.policy;
  put_options(out, m);
  if (m.frame_bytes > 0) out["frame_bytes"] = m.frame_bytes;
  out["workers"] = Json::array();
  for (const auto& w : m.workers) {
    out["workers"].push_back({w.incarnation, to_json(std::vector{w.address})});
  }
  out["servers"] = Json::array();
  for (const auto& s : m.servers) out["servers"].push_back({s.incarnation, to_json(s.lanes)});
}
// Both kinds of row are [incarnation, endpoints].
template <class Row>
void get_member(Reader& in, const Json& row, size_t most_lanes, Row use) {
  if (!row.is_array() || row.size() != 2) return in.fail("a member is not two values");
  const auto incarnation =
      static_cast<uint32_t>(in.number(&row[0], "incarnation", 1, ~uint32_t{0}));
  std::vector<Endpoint> lanes;
  in.endpoints(&row[1], "lanes", lanes, most_lanes);
  if (!lanes.empty()) use(incarnation, std::move(lanes));
}
void get(Reader& in, message::Roster& m) {
  in.read("rank", m.rank, 0, std::max(kMaxWorkers, kMaxServers) - 1);
  in.read("weight", m.weight, 1, kMaxWeight);
  in.read_optional("policy", m.policy);
  get_options(in, m);
  in.read_optional("frame_bytes", m.frame_bytes, 0, 65535);
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
  for (const auto& server : m.servers) {
    if (server.lanes.size() != m.servers.front().lanes.size()) in.fail("'lanes' differ in number");
  }
}

void put(Json& out, const message::Ready& m) { out["max_udp_payload"] = m.max_udp_payload; }
void get(Reader& in, message::Ready& m) { in.read("max_udp_payload", m.max_udp_payload, 0, 65535); }
void put(Json& out, const message::Start& m) { out["chunk_bytes"] = m.chunk_bytes; }
void get(Reader& in, message::Start& m) { in.read("chunk_bytes", m.chunk_bytes, 64, 65535); }
void put(Json& out, const message::Declare& m) { out["tensors"] = to_json(m.tensors); }
void get(Reader& in, message::Declare& m) { read_tensors(in, m.tensors); }
void put(Json& out, const message::Define& m) { out["tensors"] = to_json(m.tensors); }
void get(Reader& in, message::Define& m) { read_tensors(in, m.tensors); }
void put(Json& out, const message::PeerLeft& m) {
  out["rank"] = m.rank;
  if (!m.lacked.empty()) out["lacked"] = shortened(m.lacked, kMaxText);
}
void get(Reader& in, message::PeerLeft& m) {
  in.read("rank", m.rank, 0, kMaxWorkers - 1);
  if (in.find("lacked")) in.read("lacked", m.lacked);
}
void put(Json& out, const message::Declared& m) {
  out["code"] = static_cast<int>(m.code);
  out["text"] = shortened(m.text, kMaxText);
  if (!m.rounds.empty()) out["rounds"] = m.rounds;
}
void get(Reader& in, message::Declared& m) {
  in.read("code", m.code, true);
  in.read("text", m.text);
  if (!in.find("rounds")) return;
  in.rows("rounds", kDeclareBatch, [&](const Json& row) {
    m.rounds.push_back(static_cast<uint32_t>(in.number(&row, "rounds", 0, kMax32)));
  });
}
void put(Json& out, const message::Fail& m) {
  out["code"] = static_cast<int>(m.code);
  out["text"] = shortened(m.text, kMaxText);
}
void get(Reader& in, message::Fail& m) {
  in.read("code", m.code, false);
  in.read("text", m.text);
}
void put(Json& out, const message::Replace& m) {
  out["rank"] = m.rank;
  out["incarnation"] = m.incarnation;
  out["address"] = to_json(std::vector{m.address});
}
void get(Reader& in, message::Replace& m) {
  in.read("rank", m.rank, 0, kMaxWorkers - 1);
  in.read("incarnation", m.incarnation, 1, kMax32);
  std::vector<Endpoint> address;
  in.read("address", address, 1);
  if (!address.empty()) m.address = address.front();
}
void put(Json& out, const message::Replaced& m) {
  out["rank"] = m.rank;
  out["incarnation"] = m.incarnation;
  out["last"] = m.last;
  out["rounds"] = Json::array();
  for (const auto& row : m.rounds) out["rounds"].push_back({row.tensor, row.round});
}
void get(Reader& in, message::Replaced& m) {
  in.read("rank", m.rank, 0, kMaxWorkers - 1);
  in.read("incarnation", m.incarnation, 1, kMax32);
  in.read("last", m.last);
  const Json* rows = in.find("rounds");
  if (rows && rows->is_array() && rows->empty()) return;  // a server that has no tensor yet
  in.rows("rounds", kDeclareBatch, [&](const Json& row) {
    if (!row.is_array() || row.size() != 2) return in.fail("a round is not two numbers");
    message::Replaced::Row out;
    out.tensor = static_cast<uint32_t>(in.number(&row[0], "tensor", 0, kMaxTensorId));
    out.round = static_cast<uint32_t>(in.number(&row[1], "round", 0, kMax32));
    m.rounds.push_back(out);
  });
}
void put(Json& out, const message::Lost& m) {
  out["rank"] = m.rank;
  out["incarnation"] = m.incarnation;
}
void get(Reader& in, message::Lost& m) {
  in.read("rank", m.rank, 0, kMaxWorkers - 1);
  in.read("incarnation", m.incarnation, 1, kMax32);
}
void put(Json& out, const message::SetPolicy& m) { out["policy"] = m.policy; }
void get(Reader& in, message::SetPolicy& m) { in.read("policy", m.policy); }
template <class Empty>
requires std::is_empty_v<Empty>
void put(Json&, const Empty&) {}
template <class Empty>
requires std::is_empty_v<Empty>
void get(Reader&, Empty&) {}

// By the variant's index; these words travel.
constexpr const char* kNames[] = {"join",     "invite",    "roster", "ready",     "start",
                                  "declare",  "declared",  "define", "defined",   "leave",
                                  "left",     "peer_left", "end",    "fail",      "replace",
                                  "replaced", "refill",    "lost",   "set_policy"};
static_assert(std::size(kNames) == std::variant_size_v<Message>);

template <size_t... I>
Result<Message> read_as(Reader& in, size_t kind, std::index_sequence<I...>) {
  Message out;
  ((kind == I ? get(in, out.emplace<I>()) : void()), ...);
  if (!in.wrong().empty()) {
    return Error(Errc::kProtocol, std::string(kNames[kind]) + " message: " + in.wrong());
  }
  return out;
}

Result<Message> decode_checked(std::span<const std::byte> bytes) {
  const auto* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  DepthCheck depth;
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
  Reader in(map);
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

bool valid_job_name(std::string_view name) {
  return !name.empty() && name.size() <= wire::kMaxJobName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '.' || c == '-';
         });
}

std::string shortened(std::string text, size_t bytes) {
  if (text.size() <= bytes) return text;
  text.resize(bytes - 3);
  return text + "...";
}

}  // namespace mercury
