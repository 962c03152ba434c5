#include "transport/base/quantity.h"

#include <span>

namespace mercury {
namespace {

struct Suffix {
  std::string_view text;
  uint64_t factor;
};
constexpr uint64_t kKilo = 1000, kMega = 1000 * kKilo, kGiga = 1000 * kMega, kTera = 1000 * kGiga;
// print() takes the first that divides: decimal units from large to small, then the others.
constexpr Suffix kBytes[] = {{"GB", kGiga},    {"MB", kMega},    {"KB", kKilo}, {"GiB", 1 << 30},
                             {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1},      {"", 1}};
constexpr Suffix kTimes[] = {{"s", kGiga}, {"ms", kMega}, {"us", kKilo}, {"ns", 1}};
constexpr Suffix kRates[] = {{"Tbps", kTera}, {"Gbps", kGiga}, {"Mbps", kMega},
                             {"kbps", kKilo}, {"bps", 1},      {"Gbit", kGiga},
                             {"Mbit", kMega}, {"kbit", kKilo}, {"bit", 1}};
constexpr int kMaxDecimals = 9;
__extension__ using Wide = unsigned __int128;

Error bad(std::string_view text, const char* expected) {
  std::string message(1, '\'');
  message.append(text.substr(0, 40)).append("' is not ").append(expected);
  return Error(Errc::kInvalidArgument, std::move(message));
}

struct Decimal {
  uint64_t digits = 0;   // with the point taken out
  uint64_t divisor = 1;  // 10 to the number of digits behind it
  size_t length = 0;     // of the text read; 0: not a number, or too long
};

Decimal decimal(std::string_view text) {
  Decimal number;
  bool point = false, digit = false;
  size_t length = 0;
  int decimals = 0;
  for (; length < text.size(); ++length) {
    const char c = text[length];
    if (c == '.' && !point && digit) {
      point = true;
      digit = false;
      continue;
    }
    if (c < '0' || c > '9') break;
    digit = true;
    if (point && ++decimals > kMaxDecimals) return {};
    if (point) number.divisor *= 10;
    if (__builtin_mul_overflow(number.digits, 10, &number.digits) ||
        __builtin_add_overflow(number.digits, static_cast<uint64_t>(c - '0'), &number.digits)) {
      return {};
    }
  }
  if (digit) number.length = length;  // "1." is no number
  return number;
}

Result<uint64_t> parse(std::string_view text, std::span<const Suffix> suffixes,
                       const char* expected) {
  const Decimal number = decimal(text);
  const std::string_view unit = text.substr(number.length);
  if (number.length == 0) return bad(text, expected);
  if (number.digits == 0 && unit.empty()) return uint64_t{0};
  for (const Suffix& suffix : suffixes) {
    if (unit != suffix.text) continue;
    const Wide value = Wide{number.digits} * suffix.factor;
    const bool whole = value % number.divisor == 0;
    if (!whole || value / number.divisor > ~uint64_t{0}) break;
    return static_cast<uint64_t>(value / number.divisor);
  }
  return bad(text, expected);
}

std::string print(uint64_t value, std::span<const Suffix> suffixes) {
  const Suffix* suffix = suffixes.data();
  while (value % suffix->factor != 0 || (value == 0 && suffix->factor != 1)) ++suffix;
  return std::to_string(value / suffix->factor).append(suffix->text);
}

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
  return parse(text, kBytes, "a number of bytes such as 160KB (B, KB, MB, GB, KiB, MiB or GiB)");
}
Result<uint64_t> parse_ns(std::string_view text) {
  return parse(text, kTimes, "a time such as 50us (ns, us, ms or s)");
}
Result<uint64_t> parse_bits_per_second(std::string_view text) {
  return parse(text, kRates, "a bandwidth such as 10Gbps (bps, kbps, Mbps, Gbps or Tbps)");
}

std::string print_bytes(uint64_t bytes) { return print(bytes, kBytes); }
std::string print_ns(uint64_t ns) { return print(ns, kTimes); }
std::string print_bits_per_second(uint64_t rate) { return print(rate, kRates); }

}  // namespace mercury
