// The tag of a session: 64 bits that both of its ends derive from the job's key and the nonces of
// the handshake, and that the two CRCs of every frame are combined with. A frame from whoever does
// not know it passes once in 2^64 times; who reads the session's frames can compute it
// (docs/security.md). It costs two exclusive ors for each frame.
//
// Cold. Owner/thread: a pure function, any thread.
#pragma once

#include <cstdint>

#include "transport/wire/header.h"
#include "transport/wire/hello.h"

namespace mercury {

struct FrameTag {
  uint32_t header = 0;
  uint32_t payload = 0;
};

// `asked` is the HELLO's nonce, `answered` the HELLO_ACK's.
FrameTag derive_frame_tag(const wire::Key& key, const wire::Nonce& asked,
                          const wire::Nonce& answered);

// What the tokens of both sides travel combined with (exclusive or), so that who reads the wire and
// does not have the key knows none: of the side that said HELLO, and of the one that answered.
struct ResetMasks {
  uint64_t asking = 0;
  uint64_t answering = 0;
};
ResetMasks derive_reset_masks(const wire::Key& key, const wire::Nonce& asked,
                              const wire::Nonce& answered);

}  // namespace mercury
