// The production engine, with all above it, driven by a sequence of packets. One server host, two
// hosts whose programs exchange an innocent job, and a second job whose every session the attacker
// speaks for: he hears every wire, may send any frame from any address, and what he forges has
// checksums, session numbers, packet numbers, tags and proofs right unless the input says
// otherwise. Of the innocent job he may repeat every frame from anywhere, and forge any, with the
// tags that he reads there, but for their seals: its frames are authenticated, and he has not its
// secret. The other job has a secret that he knows, or none, as the input says; payloads of jobs
// with a secret are encrypted, or not.
//
// Beyond not crashing: no engine works without end; the innocent job's operations end in order
// with correct sums, during the attack and after it; when all programs have left, no session, job,
// frame or timer is left.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shim/proof/secret.h"
#include "tests/fuzz/attacker.h"
#include "tests/fuzz/cluster.h"
#include "tests/fuzz/member.h"

namespace mercury::fuzz {
namespace {

constexpr size_t kMostRecords = 200;
constexpr uint64_t kPatienceNs = 120 * kSecond;  // a peer that is lost is noticed after 10 s
constexpr uint32_t kElements = 700;              // two chunks at the job's size

enum HostIndex : size_t { kServer, kFirst, kSecond_, kEvil };

class World {
 public:
  // `setup`: how the attacked job is opened.
  explicit World(Input setup)
      : evil_options_(options(setup)),
        evil_secret_(setup.flag() ? "known" : ""),
        encrypted_(setup.flag()),
        good_(cluster_, "good", "secret", 1),
        evil_(cluster_, "evil", evil_secret_, 11) {
    JobPolicy serving;
    serving.authentication = encrypted_ ? Authentication::kEncrypted : Authentication::kOffered;
    serving.known.push_back({"good", "secret", 1 << 20});
    if (!evil_secret_.empty()) serving.known.push_back({"evil", evil_secret_, 1 << 20});
    serving.memory_limit_bytes = 1 << 20;
    serving.max_jobs = 6;
    serving.max_tensors = 64;
    cluster_.add_host(serving);
    JobPolicy plain;
    plain.serve = false;
    plain.open_jobs = false;
    plain.authentication = Authentication::kOffered;
    for (size_t i = kFirst; i <= kEvil; ++i) cluster_.add_host(plain);
    attacker_.emplace(cluster_, cluster_.add_listener(), evil_secret_);
    cluster_.ear().learn("good", derive_job_key("good", "secret"));
    cluster_.ear().learn("evil", derive_job_key("evil", evil_secret_));
    cluster_.each_pass = [this] { good_.collect(), evil_.collect(); };
    good_.open({kFirst, kSecond_}, kServer);
    good_.declare(0, kElements);
    good_.declare(1, 1);
    must(good_.settle(kPatienceNs) && good_.healthy(), "the innocent job does not open");
    must(cluster_.ear().sealed_frames() > 0, "the innocent job's frames are not authenticated");
    must((cluster_.ear().encrypted_frames() > 0) == encrypted_,
         "the innocent job is not encrypted as asked");
    cluster_.ear().protect_known();
    evil_.open({kEvil, kFirst}, kServer, evil_options_);
    evil_.declare(0, kElements);
    must(evil_.settle(kPatienceNs) && evil_.healthy(), "the other job does not open");
    good_.begin_round();
  }

  void step(Input record) {
    switch (record.byte() % 16) {
      case 0:
        return cluster_.run_for(uint64_t{1} << record.byte() % 34);  // to 17 s
      case 1:
        return cluster_.run_for(uint64_t{record.take<uint16_t>()} * 1'000);
      case 2:
        return evil_.submit(record.below(2), record.byte(), record.byte() % 3, record.byte());
      case 3:
        return evil_.declare(record.byte(), record.take<uint32_t>() % 2'000'000);
      case 4:
        switch (record.byte() % 8) {
          case 0:
            return evil_.leave(record.below(2), record.flag());
          case 1:
            return evil_.reopen(record.below(2));
          default:
            return;
        }
      case 5:
        if (good_.round_done()) good_.begin_round();
        return;
      case 6:
        return cluster_.stall(record.below(4), uint64_t{1} << record.byte() % 31);  // to 1 s
      default:
        return attacker_->act(record);
    }
  }

  void end() {
    must(cluster_.run([this] { return good_.round_done(); }, kPatienceNs),
         "the innocent job hangs");
    good_.begin_round();
    must(cluster_.run([this] { return good_.round_done(); }, kPatienceNs),
         "the innocent job hangs after the attack");
    evil_.leave(0, true);
    evil_.leave(1, true);
    good_.leave(0, false);
    good_.leave(1, false);
    cluster_.must_become_empty(kPatienceNs);
    must(good_.left() && evil_.left(), "a program cannot leave");
  }

 private:
  static OpenJob options(Input& setup) {
    static constexpr std::array<const char*, 3> kPolicies{"", "mercury-fifo", "p3"};
    OpenJob options;
    options.terms.rejoin_ms = setup.take<uint16_t>() % 20'000U;
    options.terms.quorum = setup.byte() % 3;
    if (options.terms.quorum > 0) {
      options.terms.patience_ms = 1U + setup.take<uint16_t>();
    }
    if (setup.flag()) options.terms.stall_timeout_ms = 1U + setup.take<uint16_t>();
    options.terms.policy = kPolicies[setup.below(kPolicies.size())];
    options.terms.deterministic = options.terms.quorum == 0 && setup.flag();
    return options;
  }

  Cluster cluster_;
  const OpenJob evil_options_;
  const std::string evil_secret_;  // which the attacker knows; empty: none
  const bool encrypted_;           // sessions with a secret
  TwoWorkerJob good_;
  TwoWorkerJob evil_;
  std::optional<Attacker> attacker_;
};

}  // namespace
}  // namespace mercury::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mercury::fuzz;
  Input input(data, size);
  // An input may begin with a record of its own about the job's options.
  constexpr uint8_t kSetup = 0xff;
  Input setup;
  if (size >= 2 && data[0] > 0 && data[1] == kSetup) {
    setup = next_record(input);
    (void)setup.byte();
  }
  World world(setup);
  for (size_t i = 0; i < kMostRecords && !input.empty(); ++i) world.step(next_record(input));
  world.end();
  return 0;
}
