// Finds misspelt MERCURY_ variables, which would be ignored otherwise.
//
// A variable that nobody knows is refused only where it is nearly one of Mercury's names. Others
// may be somebody else's: Kubernetes gives each container MERCURY_SERVICE_HOST and MERCURY_PORT_...
// for a service called mercury, and the Mercury language's compiler reads MERCURY_OPTIONS.
//
// Owner/thread: any; nothing may change the environment meanwhile, as for getenv.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mercury {

// What programs read. A daemon's are in its table of keys, and begin with their
// section.
inline constexpr std::array<std::string_view, 15> kProgramVariables = {
    "MERCURY_SOCKET",
    "MERCURY_DAEMON_TIMEOUT_MS",
    "MERCURY_LISTEN",
    "MERCURY_RATE",
    "MERCURY_ROLE",
    "MERCURY_RANK",
    "MERCURY_WORKERS",
    "MERCURY_SERVERS",
    "MERCURY_RENDEZVOUS",
    "MERCURY_JOB",
    "MERCURY_SECRET",
    "MERCURY_SECRET_FILE",
    "MERCURY_PRELOAD_SOCKET",
    "MERCURY_PRELOAD_RULES",
    "MERCURY_PRELOAD_ON_ERROR",
};

// Names, without values, of this process's variables that begin with MERCURY_.
std::vector<std::string> mercury_variables();

// How many characters differ: put in, left out, replaced, or swapped with the next one.
size_t edit_distance(std::string_view a, std::string_view b);

// The one of `known` with the least distance to `name`; empty: there is none. Of longer names the
// first 64 characters count.
std::string_view closest_name(std::string_view name, std::span<const std::string_view> known);

struct MisspeltVariable {
  std::string name;
  std::string meant;
};
// "$NAME is not a variable of Mercury's; did you mean $MEANT?"
std::string describe(const MisspeltVariable& misspelt);

// The first of `names` that is not in `known`, nor one that Kubernetes gives, and differs from one
// there in at most a third of what follows MERCURY_.
std::optional<MisspeltVariable> find_misspelt(std::span<const std::string> names,
                                              std::span<const std::string_view> known);

}  // namespace mercury
