// The rules file of mercury-run: which programs, addresses and ports go through Mercury. TOML:
//
//   otherwise = "mercury"            # or "kernel": what no rule fits; mercury if it is not said
//   [[rule]]                         # the first that fits decides
//   through = "kernel"               # or "mercury"
//   programs = ["ssh", "sshd*"]      # names by which programs are started: * and ?
//   addresses = ["10.0.0.0/8"]       # the peer's, of who connects; the own, of who listens
//   ports = [22, "8000-8999"]        # the listener's
//
// Of each list one entry must fit; a list that is not there fits everything.
#pragma once

#include <string>

#include "transport/base/result.h"

namespace mercury {

// As shim/socket/api/rules.h has them. kConfig: "FILE:LINE: what was expected".
Result<std::string> read_rules_file(const std::string& path);

}  // namespace mercury
