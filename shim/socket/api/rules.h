// Which sockets go through Mercury: rules of which the first that fits decides. They travel from
// mercury-run to libmercury_preload.so as text, which is read where it lies, without memory of its
// own:
//
//   RULE [; RULE]...       RULE is mercury or kernel, then conditions, all of which must hold:
//   program=GLOB[,GLOB]    the name by which the program was started, without folders; * and ?
//   address=IP[/BITS],...  the peer's, of who connects; the own, of who listens
//   port=PORT[-PORT],...   the listener's
//
// What no rule fits goes through Mercury.
#pragma once

#include <optional>
#include <string_view>

#include "transport/base/endpoint.h"

namespace mercury::sockets {

inline constexpr size_t kMostRulesBytes = 4096;

// A remote shell is how one mends what does not work.
inline constexpr std::string_view kDefaultRules =
    "kernel program=ssh,sshd,sshd-*,scp,sftp,sftp-server,ssh-*,mosh*;kernel port=22;mercury";

enum class Through : bool { kKernel, kMercury };

// Nothing: the text is no rules.
std::optional<Through> decide(std::string_view rules, std::string_view program,
                              const Endpoint& endpoint);
bool is_rules(std::string_view rules);

// For whoever writes rules.
bool is_program_glob(std::string_view text);    // 1 to 255 characters, none of which means more
bool is_address_prefix(std::string_view text);  // "10.0.0.0/8", "fd00::1"
bool is_port_range(std::string_view text);      // "22", "8000-8999"

}  // namespace mercury::sockets
