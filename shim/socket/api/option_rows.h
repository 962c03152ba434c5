// What each option of a stream socket is for one that goes through Mercury: one table of rows.
//
// The bytes go through one end of an AF_UNIX pair, and options that the kernel has for every socket
// are the pair's own. Those of TCP and IP are remembered, so that what was set can be read; what
// they would have asked of TCP (when to send, how often to probe) Mercury decides by itself. What
// would not be true is refused. docs/sockets.md says it for users.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace mercury::sockets {

enum class How : uint8_t {
  kPair,      // the pair's own
  kFlag,      // remembered: 0 or 1
  kNumber,    // remembered: `least` to `most`
  kTraffic,   // remembered: what IP_TOS and IPV6_TCLASS say; its upper bits are a priority
  kComputed,  // option.cc
  kRefused,   // ENOPROTOOPT
};

struct OptionRow {
  int level;
  int name;
  How how;
  int least = 0;
  int most = 0;
  bool copied = false;   // kPair: what the kernel's socket had is the pair's as well
  bool kernels = false;  // a socket that has it set stays the kernel's
};

inline constexpr size_t kOptionRows = 64;
extern const std::array<OptionRow, kOptionRows> kOptions;

// Of remembered options: by the row's place.
using OptionValues = std::array<int, kOptionRows>;

// The row's place. Nothing: an option that is refused with ENOPROTOOPT.
std::optional<size_t> find_option(int family, int level, int name);

// What the kernel would remember of an int. Nothing: EINVAL.
std::optional<int> remembered(const OptionRow& row, int value);

// Some of the rows: a bit for each place.
using OptionRows = uint64_t;
static_assert(kOptionRows <= 64);
constexpr OptionRows bit_of(size_t row) { return OptionRows{1} << row; }

// The kernel's socket has to be asked for `rows`; the remembered ones of the others are known, and
// all else that it has in them is what a new socket has. Without a word: for all.
struct OptionsToAsk {
  OptionRows rows = ~OptionRows{0};
  OptionValues others{};

  bool has(size_t row) const { return (rows & bit_of(row)) != 0; }
  bool has_all() const { return ~rows == 0; }
};

// Of the kernel's socket: what a connection that takes its place begins with.
OptionValues read_values(int fd, int family, const OptionsToAsk& asked);
// Which of those that it copies are not as a new socket has them.
OptionRows copy_options(int from, int to, const OptionsToAsk& asked);
// Rows of a new socket that a connection would not begin with by itself, all the same: what the
// kernel has been told for all sockets of a control group, say.
OptionRows unlike_new(int fd);
// It has an option that no connection of Mercury's could have.
bool must_stay_kernels(int fd, int family, const OptionsToAsk& asked);
// SO_PRIORITY, or what the traffic class asks for.
uint8_t kernel_priority(int fd, int family, const OptionsToAsk& asked);

// 0 to kMostPriority: SO_PRIORITY, or the precedence of a traffic class, whichever is more.
uint8_t priority_of(int priority, int traffic_class);
// What SO_PRIORITY becomes as IP_TOS is set, as Linux has it.
int priority_of_tos(int tos);

}  // namespace mercury::sockets
