// The secret of a job, or of a service without jobs, as a key: what HELLO and HELLO_ACK prove. A
// proof is a keyed BLAKE2b hash (libsodium's crypto_generichash) under a key derived from the job's
// or service's name and secret; one without a secret has a key too, derived from its name alone, so
// both sides always prove the same way.
//
// It proves that a host knows the secret before it joins; what follows carries the session's tag
// and, where there is a secret, seals, both derived from the same key (flow/frame_tag.h,
// flow/frame_keys.h); where a host asks for it, payloads are encrypted.
// Owner/thread: pure functions, any thread. The secret itself is kept nowhere and never printed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "transport/base/result.h"
#include "transport/base/wipe.h"
#include "transport/wire/hello.h"

namespace mercury {

using JobKey = wire::Key;

JobKey derive_job_key(std::string_view job, std::string_view secret);
bool same_key(const JobKey& a, const JobKey& b);  // in constant time

// Of frames between hosts that share a secret: whether they have seals (wire/seal.h).
enum class Authentication : uint8_t {
  kOffered,    // with whoever has them; releases before do not
  kRequired,   // who has none is refused
  kEncrypted,  // who cannot encrypt besides is refused, too
  kOff,
};
// wire::kFeatureSeals and what is known of encryption, if this host offers them under `key` of
// `job`: not without a secret, nor where its CPU cannot.
uint32_t seal_features(Authentication how, std::string_view job, const JobKey& key);
// Whether this host speaks under `key` with a peer whose HELLO, or answer, has these features.
// Error: kUnsupported, whose text is for the peer.
Status check_seals(Authentication how, std::string_view job, const JobKey& key, uint32_t features);

// What a HELLO and its answer carry, of a host's generator.
wire::Nonce draw_nonce(const std::function<uint64_t()>& random);

// Over the encoded HELLO, with these fields taken as zero: the proof itself, and `session` and
// `max_udp_payload`, which the engine fills in after the control plane has signed.
wire::Proof prove(const JobKey& key, const wire::Hello& hello);
// Over the HELLO's nonce and the encoded HELLO_ACK, with the same fields taken as zero and without
// a confirmation, which covers them where frames have seals (flow/frame_keys.h).
wire::Proof prove(const JobKey& key, const wire::Nonce& nonce, const wire::HelloAck& ack);

// Compare in constant time.
bool verify(const JobKey& key, const wire::Hello& hello);
bool verify(const JobKey& key, const wire::Nonce& nonce, const wire::HelloAck& ack);

}  // namespace mercury
