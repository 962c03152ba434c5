#include "shim/socket/api/rules.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

namespace mercury::sockets {
namespace {

constexpr std::string_view kBlank = " \t\n";

// Takes what stands before the next separator, or all that is left.
std::string_view take(std::string_view& rest, std::string_view separators) {
  const size_t end = std::min(rest.find_first_of(separators), rest.size());
  const std::string_view taken = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return taken;
}

bool fits_glob(std::string_view glob, std::string_view name) {
  size_t star = glob.npos, tried = 0, g = 0, n = 0;
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      tried = n;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == name[n])) {
      ++g, ++n;
    } else if (star != glob.npos) {
      g = star + 1;
      n = ++tried;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Prefix {
  IpAddress ip;
  unsigned bits = 0;  // of 128
};

std::optional<Prefix> read_prefix(std::string_view text) {
  const size_t slash = std::min(text.find('/'), text.size());
  std::array<char, INET6_ADDRSTRLEN> name{};
  if (slash == 0 || slash >= name.size()) return std::nullopt;
  std::memcpy(name.data(), text.data(), slash);
  Prefix prefix;
  std::array<uint8_t, 4> v4;
  unsigned most = 128;
  if (inet_pton(AF_INET, name.data(), v4.data()) == 1) {
    prefix.ip = IpAddress::v4(v4[0], v4[1], v4[2], v4[3]);
    most = 32;
  } else if (inet_pton(AF_INET6, name.data(), prefix.ip.bytes.data()) != 1) {
    return std::nullopt;
  }
  unsigned bits = most;
  if (slash < text.size()) {
    const auto said = number<unsigned>(text.substr(slash + 1));
    if (!said || *said > most) return std::nullopt;
    bits = *said;
  }
  prefix.bits = bits + 128 - most;
  return prefix;
}

bool fits_prefix(const Prefix& prefix, const IpAddress& ip) {
  for (unsigned bit = 0; bit < prefix.bits; bit += 8) {
    const unsigned left = std::min(prefix.bits - bit, 8U);
    const auto mask = static_cast<uint8_t>(0xff00U >> left);
    if (((prefix.ip.bytes[bit / 8] ^ ip.bytes[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;
};

std::optional<PortRange> read_ports(std::string_view text) {
  const size_t dash = std::min(text.find('-'), text.size());
  const auto first = number<uint16_t>(text.substr(0, dash));
  const auto last = dash < text.size() ? number<uint16_t>(text.substr(dash + 1)) : first;
  if (!first || !last || *first == 0 || *last < *first) return std::nullopt;
  return PortRange{*first, *last};
}

enum class Fit { kNo, kYes, kNoRule };

Fit fit_if(bool fits) { return fits ? Fit::kYes : Fit::kNo; }

Fit fit_value(std::string_view key, std::string_view value, std::string_view program,
              const Endpoint& endpoint) {
  if (key == "program") {
    return is_program_glob(value) ? fit_if(fits_glob(value, program)) : Fit::kNoRule;
  }
  if (key == "address") {
    const auto prefix = read_prefix(value);
    return prefix ? fit_if(fits_prefix(*prefix, endpoint.ip)) : Fit::kNoRule;
  }
  if (key == "port") {
    const auto ports = read_ports(value);
    if (!ports) return Fit::kNoRule;
    return fit_if(ports->first <= endpoint.port && endpoint.port <= ports->last);
  }
  return Fit::kNoRule;
}

// One of its values must fit.
Fit fit_condition(std::string_view condition, std::string_view program, const Endpoint& endpoint) {
  const std::string_view key = take(condition, "=");
  Fit fit = Fit::kNo;
  do {
    const Fit one = fit_value(key, take(condition, ","), program, endpoint);
    if (one == Fit::kNoRule) return one;
    if (one == Fit::kYes) fit = one;
  } while (!condition.empty());
  return fit;
}

// All of its conditions must; each is read, so that what is no rule is one for no program.
Fit fit_rule(std::string_view rule, std::string_view program, const Endpoint& endpoint,
             Through& through) {
  bool named = false;
  Fit fit = Fit::kYes;
  while (!rule.empty()) {
    const std::string_view word = take(rule, kBlank);
    if (word.empty()) continue;
    if (!named) {
      if (word != "mercury" && word != "kernel") return Fit::kNoRule;
      through = word == "mercury" ? Through::kMercury : Through::kKernel;
      named = true;
      continue;
    }
    const Fit one = fit_condition(word, program, endpoint);
    if (one == Fit::kNoRule) return one;
    if (one == Fit::kNo) fit = one;
  }
  return named ? fit : Fit::kNoRule;
}

}  // namespace

std::optional<Through> decide(std::string_view rules, std::string_view program,
                              const Endpoint& endpoint) {
  std::optional<Through> decided;
  while (!rules.empty()) {
    const std::string_view rule = take(rules, ";");
    if (rule.find_first_not_of(kBlank) == rule.npos) continue;
    Through through = Through::kMercury;
    const Fit fit = fit_rule(rule, program, endpoint, through);
    if (fit == Fit::kNoRule) return std::nullopt;
    if (fit == Fit::kYes && !decided) decided = through;
  }
  return decided.value_or(Through::kMercury);
}

bool is_rules(std::string_view rules) {
  return rules.size() <= kMostRulesBytes && decide(rules, "", {}).has_value();
}

bool is_program_glob(std::string_view text) {
  return !text.empty() && text.size() <= 255 && text.find_first_of(" \t\r\n,;=/") == text.npos;
}
bool is_address_prefix(std::string_view text) { return read_prefix(text).has_value(); }
bool is_port_range(std::string_view text) { return read_ports(text).has_value(); }

}  // namespace mercury::sockets
