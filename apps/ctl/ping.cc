#include "apps/ctl/ping.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "apps/ctl/ask.h"
#include "apps/ctl/rate.h"
#include "transport/base/result.h"

namespace mercury {
namespace {

using Json = nlohmann::ordered_json;

constexpr unsigned kMostPings = 100'000;
constexpr std::chrono::milliseconds kBetween{200};  // two questions
constexpr uint64_t kUdpHeaderBytes = 8, kIpv4HeaderBytes = 20, kIpv6HeaderBytes = 40;

int ping_error(const std::string& why) {
  std::fprintf(stderr, "mercuryctl: %s\n", why.c_str());
  return 1;
}

Result<std::string> address_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return Error(Errc::kInvalidArgument, "no host " + host + ": " + ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  std::array<char, NI_MAXHOST> text{};
  const int error = ::getnameinfo(found->ai_addr, found->ai_addrlen, text.data(), text.size(),
                                  nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return Error(Errc::kInvalidArgument, host + ": " + ::gai_strerror(error));
  return std::string(text.data());
}

uint64_t number(const Json& answer, const char* name) {
  const auto found = answer.find(name);
  return found != answer.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

std::string text_at(const Json& answer, const char* name) {
  const auto found = answer.find(name);
  return found != answer.end() && found->is_string() ? found->get<std::string>() : "";
}

double ms(uint64_t ns) { return static_cast<double>(ns) * 1e-6; }

// One question's; of a host that refuses the next would have the same answer.
struct Pinged {
  std::string address;
  std::vector<Json> answers;
  std::vector<uint64_t> round_trips_ns;
  bool refused = false;
};

void print_answer(const Pinged& pinged) {
  const Json& answer = pinged.answers.back();
  const std::string outcome = text_at(answer, "outcome"), why = text_at(answer, "why");
  const char* address = pinged.address.c_str();
  if (outcome == "answered") {
    std::printf("%s: answered in %.3f ms", address, ms(number(answer, "round_trip_ns")));
    const uint64_t session_ns = number(answer, "session_ns");
    if (session_ns > 0) std::printf(", after %.3f ms for a session", ms(session_ns));
    std::printf("\n");
  } else if (outcome == "refused_here") {
    std::printf("%s: refused by this host: %s\n", address, why.c_str());
  } else if (outcome == "refused_there") {
    std::printf("%s: refused by that host: %s\n", address, why.c_str());
  } else {
    std::printf("%s: %s: %s\n", address, outcome.c_str(), why.c_str());
  }
  std::fflush(stdout);
}

void print_path(const Json& answer, bool ipv6) {
  const uint64_t payload = number(answer, "udp_payload");
  std::printf("path        IP packets up to %lu bytes (UDP payload %lu)\n",
              payload + kUdpHeaderBytes + (ipv6 ? kIpv6HeaderBytes : kIpv4HeaderBytes), payload);
  const uint64_t frame_ns = number(answer, "frame_round_trip_ns");
  std::printf(
      "frames      round trip %.3f ms, at least %.3f ms; %lu packets lost since the session "
      "began\n",
      ms(frame_ns), ms(number(answer, "least_frame_round_trip_ns")),
      number(answer, "lost_packets"));
  const uint64_t rate = number(answer, "link_bytes_per_second");
  std::printf("rate        %s; ", rate > 0 ? ("this host paces at " + rate_text(rate)).c_str()
                                           : "this host does not pace (port.rate)");
  const uint64_t window = number(answer, "window_bytes");
  std::printf("%lu bytes may be under way to that host", window);
  if (frame_ns > 0) {
    std::printf(", at most %s", rate_text(static_cast<uint64_t>(static_cast<double>(window) * 1e9 /
                                                                static_cast<double>(frame_ns)))
                                    .c_str());
  }
  std::printf("\n            what gets through: mercury-perf stream\n");
}

void print_summary(const Pinged& pinged) {
  const size_t asked = pinged.answers.size(), answered = pinged.round_trips_ns.size();
  std::printf("\n%zu asked, %zu answered, %.0f %% without an answer\n", asked, answered,
              100.0 * static_cast<double>(asked - answered) / static_cast<double>(asked));
  if (answered == 0) return;
  std::vector<uint64_t> sorted = pinged.round_trips_ns;
  std::sort(sorted.begin(), sorted.end());
  std::printf("round trip  %.3f ms least, %.3f ms median, %.3f ms most, between both daemons\n",
              ms(sorted.front()), ms(sorted[sorted.size() / 2]), ms(sorted.back()));
  const auto last =
      std::find_if(pinged.answers.rbegin(), pinged.answers.rend(),
                   [](const Json& answer) { return text_at(answer, "outcome") == "answered"; });
  print_path(*last, pinged.address.find(':') != std::string::npos);
}

Status ask_once(const std::string& admin, unsigned timeout_s, Pinged& pinged) {
  const Result<std::string> answer = ask_daemon(admin, "ping " + pinged.address, timeout_s);
  if (!answer) return answer.error();
  if (answer->empty()) {
    return Error(Errc::kLimit,
                 "the daemon at " + admin + " turned the question away: too many ask it");
  }
  Json json = Json::parse(*answer, nullptr, false);
  if (!json.is_object() || text_at(json, "outcome").empty()) {
    return Error(Errc::kVersionMismatch, "the daemon at " + admin + " is of another version");
  }
  const std::string outcome = text_at(json, "outcome");
  if (outcome == "answered") pinged.round_trips_ns.push_back(number(json, "round_trip_ns"));
  pinged.refused = outcome.starts_with("refused");
  pinged.answers.push_back(std::move(json));
  return {};
}

}  // namespace

void describe_ping(CLI::App& command, PingOptions& options) {
  command.add_option("HOST", options.host, "its address, or its name")->required();
  command.add_option("--count", options.count, "questions, one after the other")
      ->check(CLI::Range(1U, kMostPings))
      ->capture_default_str();
}

int run_ping(const std::string& socket, const PingOptions& options, unsigned timeout_s,
             bool as_json) {
  const Result<std::string> address = address_of(options.host);
  if (!address) return ping_error(address.error().message);
  Pinged pinged{*address, {}, {}, false};
  for (unsigned n = 0; n < options.count && !pinged.refused; ++n) {
    if (n > 0) std::this_thread::sleep_for(kBetween);
    if (Status asked = ask_once(socket + ".admin", timeout_s, pinged); !asked) {
      return ping_error(asked.error().message);
    }
    if (!as_json) print_answer(pinged);
  }
  if (as_json) {
    const Json json = {{"address", pinged.address},
                       {"asked", pinged.answers.size()},
                       {"answered", pinged.round_trips_ns.size()},
                       {"answers", pinged.answers}};
    std::printf("%s\n", json.dump(1, ' ', false, Json::error_handler_t::replace).c_str());
  } else if (!pinged.refused) {
    print_summary(pinged);
  }
  return pinged.round_trips_ns.empty() ? 1 : 0;
}

}  // namespace mercury
