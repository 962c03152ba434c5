#include "tests/disaster/hostile.h"

#include <algorithm>
#include <array>

#include "aggregator/frame/chunk_header.h"
#include "shim/host/sim/virtual_host.h"
#include "transport/wire/ack.h"
#include "transport/wire/source_ports.h"

namespace mercury::disaster {
namespace {

using wire::FrameType;

constexpr size_t kMostAsked = 2'048;
constexpr uint64_t kAddresses = 300;  // of his own, where nobody but him listens

std::vector<std::byte> zeros(size_t bytes) { return std::vector<std::byte>(bytes); }

}  // namespace

Hostile::Hostile(sim::SimNetwork& network, const Scenario& scenario)
    : network_(network), scenario_(scenario), random_(scenario.seed * 7'919 + 1) {
  for (const JobPlan& job : scenario.jobs) {
    if (knows_secret(job)) ear_.learn(job.name, derive_job_key(job.name, job.secret));
    if (!job.hostile) continue;
    evil_ = &job;
    evil_ip_ = place_of(job.worker_hosts.front(), 0, 0, scenario.ipv6).ip;
  }
}

void Hostile::hear(const Endpoint& source, const Endpoint& target,
                   std::span<const std::byte> bytes) {
  ear_.hear(source, target, bytes);
  wire::Header header;
  std::span<const std::byte> payload;
  if (wire::decode(bytes, header, payload) != wire::DecodeError::kNone) return;
  if (header.type == FrameType::kRefuse) on_refusal(header, payload);
  if (header.type == FrameType::kHelloAck) on_answer(header, payload, source);
  if (header.type == FrameType::kHello && is_evil(source)) {
    const auto said = wire::decode_hello(payload);
    if (said && said->kind == wire::SessionKind::kData) seats_.push_back(*said);
  }
  if (is_evil(source)) remember(target, bytes);
  if (copying_ > 0 && wire::is_tagged(header.type) && random_.chance(0.7)) {
    inject(elsewhere(random_.below(2)), target, bytes);  // before the frame itself
  }
}

void Hostile::begin(const Fault& fault, uint64_t now_ns) {
  constexpr uint64_t kPauses[] = {100'000, kMs, 5 * kMs};
  const uint64_t pause_ns =
      std::max(kPauses[random_.below(std::size(kPauses))], fault.for_ns / 200);
  running_.push_back({&fault, now_ns, pause_ns});
  copying_ += fault.attack == Attack::kCopies;
}

void Hostile::end(const Fault& fault) {
  const size_t ended =
      std::erase_if(running_, [&fault](const Running& one) { return one.fault == &fault; });
  if (ended > 0 && fault.attack == Attack::kCopies) --copying_;
}

uint64_t Hostile::next_ns() const {
  uint64_t next_ns = kNever;
  for (const Running& one : running_) next_ns = std::min(next_ns, one.next_ns);
  return next_ns;
}

void Hostile::act(uint64_t now_ns) {
  for (Running& one : running_) {
    if (one.next_ns > now_ns) continue;
    one.next_ns = now_ns + one.pause_ns;
    step(one.fault->attack);
  }
}

void Hostile::step(Attack attack) {
  switch (attack) {
    case Attack::kHellos:
      for (uint64_t left = 1 + random_.below(random_.chance(0.2) ? 100 : 20); left > 0; --left) {
        hello();
      }
      return;
    case Attack::kReplay:
      return replay();
    case Attack::kForge:
      for (int left = 0; left < 4; ++left) forge();
      return;
    default:
      break;
  }
  for (Direction* way : ear_.ways()) {
    if (!is_evil(way->source) || way->back == nullptr || way->next_packet == 0) continue;
    if (attack == Attack::kHoard) hoard(*way);
    if (attack == Attack::kFarAhead) jump_ahead(*way);
    if (attack == Attack::kChatter) chatter(*way);
  }
}

Endpoint Hostile::elsewhere(uint64_t which) const {
  constexpr uint32_t kFirst = 3'000;  // beyond hosts and where they move to
  return {sim::virtual_address(kFirst + static_cast<uint32_t>(which), scenario_.ipv6),
          sim::kVirtualUdpPort};
}

// An engine that there may be.
Endpoint Hostile::somebody() {
  const auto host = static_cast<uint32_t>(random_.below(scenario_.hosts.size()));
  return place_of(host, random_.below(scenario_.hosts[host].lanes), 0, scenario_.ipv6);
}

void Hostile::inject(const Endpoint& source, const Endpoint& target,
                     std::span<const std::byte> bytes, uint64_t delay_ns) {
  (void)network_.inject(source, target, bytes, delay_ns);
}

// --- a stranger ------------------------------------------------------------------------------

// Of a job that he may join, of one whose secret he has not, or of none.
void Hostile::hello() {
  const JobPlan& job = scenario_.jobs[random_.below(scenario_.jobs.size())];
  Asked asked{elsewhere(random_.below(kAddresses)), somebody(), {}};
  wire::Hello& hello = asked.hello;
  hello.kind = random_.chance(0.5) ? wire::SessionKind::kControl : wire::SessionKind::kData;
  hello.role = static_cast<uint8_t>(random_.below(2));
  hello.features = random_.chance(0.5) ? static_cast<uint32_t>(random_.below(64)) : 0;
  hello.session = 1 + static_cast<uint32_t>(random_.below(1 << 20));
  hello.rank = static_cast<uint16_t>(random_.below(4));
  hello.lane = static_cast<uint16_t>(random_.below(2));
  hello.incarnation = static_cast<uint32_t>(random_.next());
  hello.max_udp_payload = 1'472;
  hello.job = random_.chance(0.1) ? "nobody" : job.name;
  for (uint8_t& byte : hello.nonce) byte = static_cast<uint8_t>(random_.next());
  hello.proof = prove(derive_job_key(hello.job, knows_secret(job) ? job.secret : "a guess"), hello);
  if (!seats_.empty() && random_.chance(0.3)) say_as_member(asked);
  asked_.push_back(asked);
  if (asked_.size() > kMostAsked) asked_.pop_front();
  ask(asked, 0);
}

// On whichever engine.
void Hostile::say_as_member(Asked& asked) {
  const wire::Hello& seat = seats_[random_.below(seats_.size())];
  wire::Hello& hello = asked.hello;
  hello.kind = seat.kind;
  hello.role = seat.role;
  hello.features = seat.features;
  hello.rank = seat.rank;
  hello.incarnation = seat.incarnation;
  hello.job = seat.job;
  const uint64_t lane = random_.below(2);
  const uint64_t server = random_.below(evil_->server_hosts.size());
  asked.target = place_of(evil_->server_hosts[server], lane, 0, scenario_.ipv6);
  hello.lane = static_cast<uint16_t>(lane);
  hello.proof = prove(derive_job_key(hello.job, evil_->secret), hello);
}

void Hostile::ask(const Asked& asked, uint64_t token) {
  std::array<std::byte, wire::kMaxHandshakeBytes> body{};
  const size_t bytes = wire::encode(asked.hello, body);
  wire::Header header;
  header.type = FrameType::kHello;
  header.packet_number = token;
  const std::vector<std::byte> frame = fuzz::frame_of(header, std::span(body).first(bytes));
  ear_.hear(asked.source, asked.target, frame);
  inject(asked.source, asked.target, frame);
}

// He hears what goes to his addresses, so tokens do not keep him out.
void Hostile::on_refusal(const wire::Header& header, std::span<const std::byte> payload) {
  const auto reason = wire::decode_reason(payload);
  if (!reason || reason->code != Errc::kRetry) return;
  const auto token = wire::token_of(reason->text);
  for (const Asked& asked : asked_) {
    if (token && wire::echo_of(asked.hello.nonce) == header.packet_number) {
      return ask(asked, *token);
    }
  }
}

// Half of the sessions that he may open he opens, and says nothing more in them.
void Hostile::on_answer(const wire::Header& header, std::span<const std::byte> payload,
                        const Endpoint& source) {
  const auto answer = wire::decode_hello_ack(payload);
  const auto asked = std::find_if(asked_.begin(), asked_.end(), [&header](const Asked& one) {
    return wire::echo_of(one.hello.nonce) == header.packet_number;
  });
  if (!answer || asked == asked_.end() || random_.chance(0.5)) return;
  for (const JobPlan& job : scenario_.jobs) {
    if (job.name != asked->hello.job || !knows_secret(job)) continue;
    if (Direction* way = ear_.way_to(source, answer->session)) {
      const JobKey key = derive_job_key(job.name, job.secret);
      way->tag = derive_frame_tag(key, asked->hello.nonce, answer->nonce);
      return ping(*way);
    }
  }
}

void Hostile::replay() {
  const auto& frames = ear_.frames();
  if (frames.empty()) return;
  for (uint64_t left = 1 + random_.below(8); left > 0; --left) {
    const fuzz::Heard& heard = frames[random_.below(frames.size())];
    const uint64_t delay_ns = random_.below(random_.chance(0.8) ? 20 * kMs : 2 * kSecond);
    const bool moved = random_.chance(0.25);
    inject(moved ? elsewhere(random_.below(kAddresses)) : heard.source, heard.target, heard.bytes,
           delay_ns);
  }
}

// All is right but what only those know who have the secret, and who have read the session's tag.
void Hostile::forge() {
  constexpr std::array kTypes{FrameType::kHelloAck,
                              FrameType::kRefuse,
                              FrameType::kClose,
                              FrameType::kAck,
                              FrameType::kPing,
                              FrameType::kControl,
                              kPushFrame,
                              kResultFrame,
                              FrameType::kReset,
                              FrameType::kResetToken,
                              FrameType::kPart,
                              FrameType::kPathChallenge,
                              FrameType::kPathResponse,
                              FrameType::kSourcePorts};
  const std::vector<Direction*> ways = ear_.ways();
  if (ways.empty()) return;
  const Direction& way = *ways[random_.below(ways.size())];
  if (is_evil(way.source)) return;
  wire::Header header = way.last;
  header.type = kTypes[random_.below(kTypes.size())];
  header.flags = 0;
  header.session = way.session;
  header.packet_number =
      way.next_packet + (random_.chance(0.8) ? random_.below(64) : random_.next() >> 1);
  const std::vector<std::byte> payload = lie_of(header, way);
  inject(way.source, way.target, fuzz::frame_of(header, payload));
}

// The body that the header's type has; of some a word of the header, too.
std::vector<std::byte> Hostile::lie_of(wire::Header& header, const Direction& way) {
  std::vector<std::byte> body = zeros(wire::kMaxHandshakeBytes);
  const uint32_t of_sender = way.back != nullptr ? way.back->session : 1;
  switch (header.type) {
    case FrameType::kRefuse:
    case FrameType::kClose:
      body.resize(wire::encode(wire::Reason{of_sender, Errc::kClosed, "so he says"}, body));
      return body;
    case FrameType::kReset:
      header.session = of_sender;
      return {};
    case FrameType::kAck: {
      wire::Ack ack;
      ack.count = 1;
      ack.ranges[0] = {0, way.back != nullptr ? way.back->next_packet : 0};
      body.resize(wire::encode(ack, body));
      return body;
    }
    case FrameType::kPing:
      return {};
    case FrameType::kPathChallenge:
    case FrameType::kPathResponse:
    case FrameType::kResetToken:
      return zeros(sizeof(uint64_t));
    case FrameType::kSourcePorts: {
      body.resize(wire::kSourcePortsBytes);
      const auto first = static_cast<uint16_t>(1 + random_.below(65'535 - wire::kMostFurtherPorts));
      wire::encode_source_ports({first, wire::kMostFurtherPorts}, body.data());
      return body;
    }
    default:
      return zeros(random_.below(1'200));
  }
}

// --- a member --------------------------------------------------------------------------------

void Hostile::remember(const Endpoint& target, std::span<const std::byte> bytes) {
  wire::Header header;
  std::span<const std::byte> payload;
  (void)wire::decode(bytes, header, payload);
  const Direction* const way = ear_.way_of(target, bytes);
  if (way == nullptr) return;
  std::vector<std::byte> buffer;
  if (way->seal && !fuzz::open_seal(*way, bytes, header, payload, buffer)) return;
  Member& member = members_[way];
  if (header.type == kPushFrame) {
    member.push = header;
    member.elements.assign(payload.begin(), payload.end());
  } else if (header.type == FrameType::kControl) {
    const auto piece = wire::decode_control(payload);
    if (piece) member.said.assign(piece->bytes.begin(), piece->bytes.end());
  }
}

void Hostile::say(Direction& way, wire::Header header, std::span<const std::byte> payload) {
  header.flags = 0;
  header.session = way.session;
  header.packet_number = way.next_packet++;
  inject(way.source, way.target, fuzz::frame_of(header, payload, way));
}

void Hostile::acknowledge(Direction& way, uint64_t number) {
  wire::Ack ack;
  ack.count = 1;
  ack.ranges[0] = {number, number};
  std::vector<std::byte> body = zeros(wire::ack_bytes(1));
  body.resize(wire::encode(ack, body));
  wire::Header header;
  header.type = FrameType::kAck;
  say(way, header, body);
}

void Hostile::ping(Direction& way) {
  wire::Header header;
  header.type = FrameType::kPing;
  say(way, header, {});
}

// The same push again is answered with its sum again. Of what is sent to him he acknowledges now
// and then the oldest, so that nothing counts as lost and all of it is held.
void Hostile::hoard(Direction& way) {
  Member& member = members_[&way];
  if (!member.elements.empty()) {
    for (int copies = 0; copies < 8; ++copies) say(way, member.push, member.elements);
  }
  if (random_.chance(0.2)) ping(way);
  if (member.oldest == 0) member.oldest = way.back->next_packet;
  if (member.oldest >= way.back->next_packet || !random_.chance(0.4)) return;
  acknowledge(way, member.oldest);
  ++member.oldest;
}

// Numbers that no honest session comes to, of frames and in acknowledgements.
void Hostile::jump_ahead(Direction& way) {
  switch (random_.below(4)) {
    case 0:
      way.next_packet += random_.below(uint64_t{1} << 31);
      return ping(way);
    case 1: {
      const uint64_t next = way.next_packet;
      way.next_packet += uint64_t{1} << (33 + random_.below(20));
      ping(way);
      way.next_packet = next;
      return;
    }
    case 2: {
      const Member& member = members_[&way];
      way.next_packet += random_.below(1'000);
      if (!member.elements.empty()) say(way, member.push, member.elements);
      return;
    }
    default:
      if (random_.chance(0.05)) acknowledge(way, way.back->next_packet + random_.below(1 << 20));
  }
}

// What it has said before, again, whether or not messages end where that did.
void Hostile::chatter(Direction& way) {
  const Member& member = members_[&way];
  if (member.said.empty()) return;
  std::vector<std::byte> payload = zeros(wire::kControlHeaderBytes);
  wire::encode_control_offset(way.control_offset, payload.data());
  for (uint64_t times = 1 + random_.below(8); times > 0; --times) {
    if (payload.size() + member.said.size() > 1'200) break;
    payload.insert(payload.end(), member.said.begin(), member.said.end());
  }
  if (payload.size() == wire::kControlHeaderBytes) return;
  way.control_offset += payload.size() - wire::kControlHeaderBytes;
  wire::Header header;
  header.type = FrameType::kControl;
  say(way, header, payload);
}

}  // namespace mercury::disaster
