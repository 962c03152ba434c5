// Requests and replies on one connection: the bytes of one block each (blocks.h), one at a time.
// The last request has the mark of the end, and no reply.
//
// Thread: one. Errors: those of talk.h; kProtocol where a byte is wrong that is compared.
#pragma once

#include <cstdint>
#include <functional>

#include "apps/perf/blocks.h"
#include "apps/perf/latency.h"
#include "transport/base/result.h"

namespace mercury::perf {

// Asks until `go_on` says no.
Result<BlockCount> ask_messages(int fd, const BlockContents& requests, const BlockContents& replies,
                                bool compare, LatencyHistogram& latency,
                                const std::function<bool()>& go_on);
Result<BlockCount> answer_messages(int fd, const BlockContents& requests,
                                   const BlockContents& replies, bool compare);

}  // namespace mercury::perf
