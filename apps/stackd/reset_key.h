// The keys by which the peers of a daemon that was killed learn of its next life at once
// (transport/engine/reset_tokens.h). Each life leaves its own in a file beside the attach socket,
// which the next one reads.
//
// Owner/thread: pure functions of files; before the engines begin.
#pragma once

#include <string>

#include "transport/base/result.h"
#include "transport/engine/reset_tokens.h"

namespace mercury {

// PATH.reset of attach.socket = PATH.
std::string reset_key_path(const std::string& attach_socket);
// A new key for this life, and the last one's, if there is a file. kConfig: it is not one that a
// daemon of this user left; the text names it, and what to run. kSystem: it cannot be read.
Result<ResetKeys> read_reset_keys(const std::string& path);
// For the next life: as soon as no other daemon has this place, and before any peer is told. The
// file is there whole or not at all. kSystem, with its name.
Status keep_reset_key(const std::string& path, const ResetKey& own);

}  // namespace mercury
