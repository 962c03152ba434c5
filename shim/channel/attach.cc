#include "shim/channel/attach.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "shim/channel/attach_fields.h"

namespace mercury::attach {
namespace {

constexpr uint64_t kMax16 = 0xffff;
constexpr uint64_t kMax32 = 0xffffffff;
constexpr uint64_t kMax64 = ~uint64_t{0};
constexpr size_t kMaxRendezvous = kMaxServers * kMaxEngines;
constexpr uint32_t kMaxTimeoutMs = 0x7fffffff;

std::string cut(const std::string& text) { return text.substr(0, kMaxTextBytes); }

// --- to CBOR ------------------------------------------------------------------------------------

Json body_of(const Hello& m) {
  return {{"type", "hello"},
          {"magic", m.magic},
          {"major", m.abi_major},
          {"minor", m.abi_minor},
          {"pid", m.pid}};
}
Json body_of(const RegionAdd& m) {
  return {{"type", "region_add"}, {"region", m.region}, {"bytes", m.bytes}};
}
Json body_of(const RegionDel& m) { return {{"type", "region_del"}, {"region", m.region}}; }
Json body_of(const RegionSealed& m) { return {{"type", "region_sealed"}, {"region", m.region}}; }
Json body_of(const JobOpen& m) {
  Json rendezvous = Json::array();
  for (const Endpoint& endpoint : m.rendezvous) rendezvous.push_back(endpoint.to_string());
  Json body = {{"type", "job_open"},
               {"client_job", m.client_job},
               {"name", m.name},
               {"secret", m.secret},
               {"role", static_cast<unsigned>(m.role)},
               {"rank", m.rank},
               {"workers", m.workers},
               {"servers", m.servers},
               {"rendezvous", std::move(rendezvous)},
               {"timeout_ms", m.timeout_ms}};
  for (const Term& term : job_terms()) {
    visit_term(term, m.terms, [&](const auto& value) { body[term.name] = value; });
  }
  return body;
}
Json body_of(const Declare& m) {
  Json tensors = Json::array();
  for (const DeclaredTensor& t : m.tensors) {
    tensors.push_back(
        Json::array({t.id.value, t.numel, static_cast<unsigned>(t.dtype),
                     static_cast<unsigned>(t.op), t.priority, t.region, t.offset_bytes}));
  }
  return {{"type", "declare"}, {"slot", m.slot}, {"tensors", std::move(tensors)}};
}
Json body_of(const JobClose& m) { return {{"type", "job_close"}, {"slot", m.slot}}; }
Json body_of(const JobWait& m) { return {{"type", "job_wait"}, {"slot", m.slot}}; }
Json body_of(const JobStatus& m) { return {{"type", "job_status"}, {"slot", m.slot}}; }
Json body_of(const SetPolicy& m) {
  return {{"type", "set_policy"}, {"slot", m.slot}, {"policy", m.policy}};
}

Json body_of(const Ok& m) {
  Json body = {{"type", "ok"}};
  for (const Round round : m.rounds) body["rounds"].push_back(round.value);
  return body;
}
Json body_of(const Failed& m) {
  return {{"type", "failed"}, {"code", static_cast<unsigned>(m.code)}, {"text", cut(m.text)}};
}
Json body_of(const HelloOk& m) {
  return {{"type", "hello_ok"},
          {"engines", m.engines},
          {"version", m.version},
          {"client", m.client},
          {"minor", m.minor}};
}
Json body_of(const JobOpened& m) {
  Json body = {{"type", "job_opened"}, {"slot", m.slot},       {"rank", m.rank},
               {"workers", m.workers}, {"servers", m.servers}, {"chunk_bytes", m.chunk_bytes}};
  if (m.features > 0) body["features"] = m.features;
  return body;
}
Json body_of(const Notice& m) {
  return {{"type", "notice"},
          {"slot", m.slot},
          {"code", static_cast<unsigned>(m.code)},
          {"text", cut(m.text)}};
}

template <class Bytes, class Message>
Bytes encode_message(const Message& message) {
  Json map = std::visit([](const auto& body) { return body_of(body); }, message.body);
  map["seq"] = message.sequence;
  Json::binary_t::container_type cbor;
  Json::to_cbor(map, cbor);
  Bytes bytes(cbor.size());
  std::transform(cbor.begin(), cbor.end(), bytes.begin(), [](uint8_t b) { return std::byte{b}; });
  return bytes;
}

// --- from CBOR ----------------------------------------------------------------------------------

Errc read_errc(Fields& f) {
  const auto number = f.number<uint16_t>("code", 1, kMax16);
  // A newer daemon's code that this library does not know is still an error.
  return is_known_errc(number) ? static_cast<Errc>(number) : Errc::kSystem;
}

Request read_hello(Fields& f) {
  return Hello{f.number<uint32_t>("magic", 0, kMax32), f.number<uint32_t>("major", 0, kMax32),
               f.number<uint32_t>("minor", 0, kMax32), f.number<uint32_t>("pid", 0, kMax32)};
}
Request read_region_add(Fields& f) {
  return RegionAdd{f.number<uint32_t>("region", 0, kMax32),
                   f.number<uint64_t>("bytes", 1, kMaxRegionBytes)};
}
Request read_region_del(Fields& f) { return RegionDel{f.number<uint32_t>("region", 0, kMax32)}; }
Request read_region_sealed(Fields& f) {
  return RegionSealed{f.number<uint32_t>("region", 0, kMax32)};
}
void read_terms(Fields& f, JobTerms& terms) {
  for (const Term& term : job_terms()) {
    if (term.since > 0 && !f.has(term.name)) continue;
    visit_term(term, terms, [&](auto& value) {
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (kIsNumber<Value>) {
        value = f.number<Value>(term.name, term.least, term.most);
      } else if constexpr (std::is_same_v<Value, bool>) {
        value = f.flag(term.name);
      } else {
        value = f.text(term.name, term.most);
      }
    });
  }
}
Request read_job_open(Fields& f) {
  JobOpen m;
  m.client_job = f.number<uint32_t>("client_job", 0, kMax32);
  m.name = f.text("name", kMaxJobNameBytes);
  if (!is_job_name(m.name)) f.fail("name");
  m.secret = f.text("secret", kMaxSecretBytes);
  m.role = f.number<Role>("role", 0, 1);
  m.workers = f.number<uint16_t>("workers", 1, kMaxWorkers);
  m.servers = f.number<uint16_t>("servers", 1, kMaxServers);
  const int64_t members = m.role == Role::kWorker ? m.workers : m.servers;
  m.rank = f.signed_number("rank", -1, members - 1);
  for (const Json& item : f.array("rendezvous", kMaxRendezvous)) {
    const auto endpoint = item.is_string() ? Endpoint::parse(item.get_ref<const Text&>())
                                           : Result<Endpoint>(Error(Errc::kProtocol, ""));
    if (!endpoint) {
      f.fail("rendezvous");
      break;
    }
    m.rendezvous.push_back(*endpoint);
  }
  m.timeout_ms = f.number<uint32_t>("timeout_ms", 0, kMaxTimeoutMs);
  read_terms(f, m.terms);
  return m;
}

Request read_set_policy(Fields& f) {
  return SetPolicy{f.number<uint16_t>("slot", 0, kMax16), f.text("policy", kMaxPolicyBytes)};
}

bool read_tensor(const Json& item, DeclaredTensor& out) {
  constexpr std::array<uint64_t, 7> kMax = {0x7fffffff, kMax64, kDtypeCount - 1, kReduceOpCount - 1,
                                            kMax16,     kMax32, kMaxRegionBytes};
  if (!item.is_array() || item.size() != kMax.size()) return false;
  std::array<uint64_t, 7> v{};
  for (size_t i = 0; i < v.size(); ++i) {
    if (!Fields::in_range(item[i], 0, kMax[i])) return false;
    v[i] = item[i].get<uint64_t>();
  }
  out.id = TensorId(static_cast<uint32_t>(v[0]));
  out.numel = v[1];
  out.dtype = static_cast<Dtype>(v[2]);
  out.op = static_cast<ReduceOp>(v[3]);
  out.priority = static_cast<uint16_t>(v[4]);
  out.region = static_cast<uint32_t>(v[5]);
  out.offset_bytes = v[6];
  const size_t element = size_of(out.dtype);
  return out.numel >= 1 && out.numel <= kMaxRegionBytes / element &&
         out.offset_bytes % element == 0;
}

Request read_declare(Fields& f) {
  Declare m;
  m.slot = f.number<uint16_t>("slot", 0, kMax16);
  const Json& tensors = f.array("tensors", kMaxTensorsPerDeclare);
  m.tensors.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!read_tensor(tensors[i], m.tensors[i])) f.fail("tensors");
  }
  return m;
}
template <class Message>
Request read_slot(Fields& f) {
  return Message{f.number<uint16_t>("slot", 0, kMax16)};
}

Reply read_ok(Fields& f) {
  Ok m;
  if (!f.has("rounds")) return m;
  for (const Json& item : f.array("rounds", kMaxTensorsPerDeclare)) {
    if (!Fields::in_range(item, 0, kMax32)) f.fail("rounds");
    if (!f.ok()) break;
    m.rounds.push_back(Round(item.get<uint32_t>()));
  }
  return m;
}
Reply read_failed(Fields& f) { return Failed{read_errc(f), f.text("text", kMaxTextBytes)}; }
Reply read_hello_ok(Fields& f) {
  return HelloOk{f.number<uint32_t>("engines", 1, kMaxEngines), f.text("version", kMaxNameBytes),
                 f.number<uint64_t>("client", 0, kMax64),
                 f.has("minor") ? f.number<uint32_t>("minor", 0, kMax32) : 0};
}
Reply read_job_opened(Fields& f) {
  return JobOpened{f.number<uint16_t>("slot", 0, kMax16),
                   f.number<uint16_t>("rank", 0, kMax16),
                   f.number<uint16_t>("workers", 1, kMaxWorkers),
                   f.number<uint16_t>("servers", 1, kMaxServers),
                   f.number<uint32_t>("chunk_bytes", 0, kMax32),
                   f.has("features") ? f.number<uint32_t>("features", 0, kMax32) : 0};
}
Reply read_notice(Fields& f) {
  return Notice{f.number<uint16_t>("slot", 0, kMax16), read_errc(f), f.text("text", kMaxTextBytes)};
}

template <class Body>
struct Kind {
  const char* type;
  Body (*read)(Fields&);
};
constexpr Kind<Request> kRequests[] = {
    {"hello", read_hello},
    {"region_add", read_region_add},
    {"region_del", read_region_del},
    {"region_sealed", read_region_sealed},
    {"job_open", read_job_open},
    {"declare", read_declare},
    {"job_close", read_slot<JobClose>},
    {"job_wait", read_slot<JobWait>},
    {"job_status", read_slot<JobStatus>},
    {"set_policy", read_set_policy},
};
constexpr Kind<Reply> kReplies[] = {
    {"ok", read_ok},
    {"failed", read_failed},
    {"hello_ok", read_hello_ok},
    {"job_opened", read_job_opened},
    {"notice", read_notice},
};

template <class Message, class Kinds>
Result<Message> decode_message(std::span<const std::byte> bytes, const Kinds& kinds) {
  if (bytes.size() > kMaxMessageBytes) {
    return Error(Errc::kProtocol,
                 "attach message: longer than " + std::to_string(kMaxMessageBytes));
  }
  Result<Json> map = parse_map(bytes);
  if (!map) return map.error();
  Fields fields(*map);
  Message message;
  message.sequence = fields.number<uint32_t>("seq", 0, kMax32);
  const std::string type = fields.text("type", kMaxNameBytes);
  const auto kind = std::find_if(std::begin(kinds), std::end(kinds),
                                 [&](const auto& k) { return type == k.type; });
  if (kind == std::end(kinds)) {
    fields.fail("type");
    return fields.error();
  }
  message.body = kind->read(fields);
  if (fields.ok()) return message;
  if constexpr (std::is_same_v<Message, RequestMessage>) wipe(message.body);
  return fields.error();
}

}  // namespace

SecretBytes encode(const RequestMessage& message) { return encode_message<SecretBytes>(message); }
std::vector<std::byte> encode(const ReplyMessage& message) {
  return encode_message<std::vector<std::byte>>(message);
}

Result<RequestMessage> decode_request(std::span<const std::byte> bytes) {
  auto message = decode_message<RequestMessage>(bytes, kRequests);
  if (message && message->sequence == 0) {
    return Error(Errc::kProtocol, "attach message: field 'seq' is missing or wrong");
  }
  return message;
}

Result<ReplyMessage> decode_reply(std::span<const std::byte> bytes) {
  auto message = decode_message<ReplyMessage>(bytes, kReplies);
  if (message && (message->sequence == 0) != std::holds_alternative<Notice>(message->body)) {
    return Error(Errc::kProtocol, "attach message: field 'seq' is missing or wrong");
  }
  return message;
}

void wipe(Request& request) {
  if (auto* const job = std::get_if<JobOpen>(&request)) mercury::wipe(job->secret);
}

namespace {

std::string version_text(uint32_t major, uint32_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

Status check_version(const std::string& other, uint32_t major, uint32_t minor, const char* own) {
  if (major == kAbiMajor && minor >= kLeastMinor) return {};
  return Error(Errc::kVersionMismatch,
               other + " speaks attach version " + version_text(major, minor) + ", " + own + " " +
                   version_text(kAbiMajor, kAbiMinor) +
                   "; install libmercurystack and mercury-stackd of the same release");
}

}  // namespace

Status check_hello(const Hello& hello) {
  if (hello.magic != kMagic) return Error(Errc::kProtocol, "not a Mercury program");
  return check_version("the program", hello.abi_major, hello.abi_minor, "this daemon");
}

Status check_hello_ok(const HelloOk& hello) {
  return check_version("mercury-stackd " + hello.version, kAbiMajor, hello.minor, "this program");
}

}  // namespace mercury::attach
