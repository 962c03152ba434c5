// The daemon's side of the attach socket: programs that send any message in any order, and do
// anything to the memory they share, beside two programs that exchange an innocent job through the
// same daemon.
//
// Beyond not crashing: one reply at most to a request, and a readable one; no program shares more
// than its limit; the innocent job's sums are right, during and after; when all programs have hung
// up, no session, job, channel or descriptor is left.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "shim/channel/channel_layout.h"
#include "shim/channel/region.h"
#include "tests/fuzz/attached.h"
#include "tests/fuzz/cluster.h"
#include "tests/fuzz/play.h"

namespace mercury::fuzz {
namespace {

constexpr size_t kMostRecords = 200;
constexpr uint64_t kPatienceNs = 120 * kSecond;
constexpr uint32_t kElements = 600;

enum HostIndex : size_t { kServerHost, kSharedHost, kOtherHost };

// One of the two that do everything right.
constexpr std::array<const char*, 4> kPolicies{"", "mercury-fifo", "p3", "?"};

class Honest {
 public:
  Honest(Cluster& cluster, size_t host, uint16_t rank)
      : rank_(rank), attached_(cluster, host, 100 + rank) {
    attached_.ask(attach::Hello{});
    must(attached_.channel() != nullptr, "an honest HELLO is refused");
    ok(attached_.ask(attach::RegionAdd{1, kRegionBytes}));
    region_ = std::move(*Region::adopt(attached_.memory(), kRegionBytes));
    must(Region::seal(attached_.memory()).ok(), "an honest region cannot be sealed");
    ok(attached_.ask(attach::RegionSealed{1}));
    attach::JobOpen open;
    open.client_job = 1;
    open.name = "good";
    open.secret = "secret";
    open.rank = rank;
    open.workers = 2;
    open.servers = 1;
    open.rendezvous = {cluster.address(kServerHost)};
    opening_ = attached_.ask(open);
  }
  bool opened() const { return attached_.reply_to(opening_) != nullptr; }
  void declare() {
    const auto* reply = std::get_if<attach::JobOpened>(attached_.reply_to(opening_));
    must(reply != nullptr, "an honest job does not open");
    slot_ = reply->slot;
    attach::DeclaredTensor tensor;
    tensor.numel = kElements;
    tensor.dtype = Dtype::kI32;
    tensor.region = 1;
    declaring_ = attached_.ask(attach::Declare{slot_, {tensor}});
  }
  bool declared() const { return attached_.reply_to(declaring_) != nullptr; }

  void begin_round(uint32_t round) {
    ok(declaring_);
    round_ = round;
    for (uint32_t i = 0; i < kElements; ++i) values()[i] = element(rank_, i);
    waiting_ = attached_.channel()->submit({SubmitOp::kPushPull, 0, 1, 0, round});
    must(waiting_, "an honest ring is full");
    attached_.channel()->ring();
  }
  void collect() {
    Completion completion;
    while (attached_.channel()->pop(completion)) {
      must(waiting_ && completion.cookie == round_ && completion.status == Errc::kOk,
           "an honest operation fails");
      waiting_ = false;
      for (uint32_t i = 0; i < kElements; ++i) {
        must(values()[i] == element(0, i) + element(1, i), "an honest sum is wrong");
      }
    }
  }
  bool waiting() const { return waiting_; }
  void close() { attached_.ask(attach::JobClose{slot_}); }
  Attached& attached() { return attached_; }

 private:
  static constexpr uint64_t kRegionBytes = 4096;

  void ok(uint32_t sequence) const {
    const attach::Reply* reply = attached_.reply_to(sequence);
    must(reply != nullptr && std::holds_alternative<attach::Ok>(*reply), "an honest request fails");
  }
  int32_t* values() { return reinterpret_cast<int32_t*>(region_->data()); }
  int32_t element(uint16_t rank, uint32_t i) const {
    return static_cast<int32_t>((rank + 5U) * 7919 + round_ * 104'729 + i * 31);
  }

  const uint16_t rank_;
  std::unique_ptr<Region> region_;
  Attached attached_;
  uint32_t opening_ = 0;
  uint32_t declaring_ = 0;
  uint32_t round_ = 0;
  uint16_t slot_ = 0;
  bool waiting_ = false;
};

class Hostile {
 public:
  Hostile(Cluster& cluster, ClientId id)
      : cluster_(cluster), attached_(std::make_unique<Attached>(cluster, kSharedHost, id)) {}
  Attached& attached() { return *attached_; }

  void act(Input record) {
    switch (record.byte() % 8) {
      case 0:
        return raw(record);
      case 1:
        return submit(record);
      case 2:
        return scribble(record);
      case 3:
        return disturb(record);
      default:
        return request(record);
    }
  }

 private:
  static constexpr size_t kAreaBytes = area_bytes(ChannelGeometry{}.submissions);

  // Hangs up, or asks the same very often.
  void disturb(Input& record) {
    const uint8_t how = record.byte();
    if (how % 8 == 0) attached_->hang_up();
    if (how % 8 != 1) return;
    attach::Request request = body(record);
    const size_t times = 64 * (1 + record.byte() % 8U);
    for (size_t i = 0; i < times && attached_->connected(); ++i) {
      if (auto* region = std::get_if<attach::RegionAdd>(&request)) ++region->region;
      attached_->ask(request);
    }
  }

  void raw(Input& record) { attached_->packet(std::as_bytes(record.rest())); }

  void request(Input& record) {
    const uint8_t how = record.byte();
    attach::RequestMessage message{1U + record.byte() % 32, attach::Hello{}};
    message.body = body(record);
    SecretBytes bytes = attach::encode(message);
    for (size_t changes = how % 16 > 12 ? how % 16 - 12 : 0; changes > 0; --changes) {
      bytes[record.below(bytes.size())] = std::byte{record.byte()};
    }
    attached_->packet(bytes);
    if (std::holds_alternative<attach::RegionAdd>(message.body)) treat_memory(record);
  }

  // Seals it, mostly; or does what the daemon must not suffer from.
  void treat_memory(Input& record) {
    const int fd = attached_->memory();
    switch (record.byte() % 24) {
      case 0:
        ::fcntl(fd, F_ADD_SEALS, record.byte() & 0x1f);
        return;
      case 1:
        (void)!::ftruncate(fd, record.byte());
        return;
      case 2:
        (void)!::ftruncate(fd, off_t{1} << record.byte() % 40);
        return;
      case 3:
        ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096 * (1 + record.byte()));
        return;
      case 4:
        (void)!::pwrite(fd, "x", 1, record.byte());
        return;
      case 5:
        return;
      default:
        (void)Region::seal(fd);
    }
  }

  attach::Request body(Input& record) {
    switch (record.byte() % 12) {
      case 0:
        return attach::Hello{attach::kMagic, 1U + (record.byte() >= 250), record.byte(), 7};
      case 1:
      case 2: {
        const uint8_t how = record.byte();
        return attach::RegionAdd{record.byte() % 4U, how >= 224
                                                         ? record.take<uint64_t>() >> (how % 64)
                                                         : 4096ULL * (1 + how % 8)};
      }
      case 3: {
        const uint8_t region = record.byte();
        if (region >= 128) return attach::RegionSealed{region % 4U};
        return attach::RegionDel{region % 4U};
      }
      case 4:
      case 5:
        return job_open(record);
      case 6:
      case 7:
        return declare(record);
      case 8:
        return attach::JobClose{slot(record)};
      case 9:
        return attach::JobWait{slot(record)};
      case 10:
        return attach::SetPolicy{slot(record), kPolicies[record.below(kPolicies.size())]};
      default:
        return attach::JobStatus{slot(record)};
    }
  }

  // One of its own jobs is likely.
  static uint16_t slot(Input& record) {
    const uint8_t choice = record.byte();
    return choice < 240 ? choice % 8 : record.take<uint16_t>();
  }

  attach::JobOpen job_open(Input& record) {
    static constexpr std::array<const char*, 4> kNames{"evil", "good", "more", "worse"};
    attach::JobOpen open;
    open.client_job = record.byte() % 4;
    open.name = kNames[record.below(kNames.size())];
    open.secret = record.byte() < 200 ? "" : "secret";
    open.role = record.byte() < 224 ? Role::kWorker : Role::kServer;
    open.workers = 1 + record.byte() % 2;
    open.servers = 1 + (record.byte() >= 224);
    open.rank = record.byte() % 2 - 1;
    open.rendezvous = {cluster_.address(record.byte() % 8 < 5 ? kServerHost : record.below(5))};
    if (record.byte() >= 224) open.rendezvous.push_back({IpAddress::v4(10, 0, 9, 9), 1});
    open.terms.deterministic = record.flag();
    open.terms.policy = kPolicies[record.below(kPolicies.size())];
    open.terms.weight = 1 + record.take<uint16_t>() % 1001;
    open.timeout_ms = 1 + record.take<uint16_t>();
    return open;
  }

  attach::Declare declare(Input& record) {
    attach::Declare message{slot(record), {}};
    message.tensors.resize(1 + record.byte() % 4);
    for (attach::DeclaredTensor& t : message.tensors) {
      const uint8_t how = record.byte();
      t.id = TensorId(record.byte() % 16U);
      t.numel = how >= 240 ? record.take<uint64_t>() >> 20 : 1 + record.take<uint16_t>() % 2048;
      t.dtype = static_cast<Dtype>(record.byte() % kDtypeCount);
      t.op = static_cast<ReduceOp>(record.byte() % 2);
      t.priority = record.byte();
      t.region = record.byte() % 4;
      t.offset_bytes = how % 16 == 15 ? record.take<uint64_t>() >> 20 : record.byte() * 8ULL;
    }
    return message;
  }

  void submit(Input& record) {
    if (!attached_->connected() || attached_->channel() == nullptr) return;
    for (size_t count = 1 + record.byte() % 4; count > 0; --count) {
      (void)attached_->channel()->submit(
          {static_cast<SubmitOp>(1 + record.byte() % static_cast<uint8_t>(kLastSubmitOp)),
           record.byte(), record.byte() % 4U, TensorId(record.byte() % 16U),
           record.take<uint32_t>()});
    }
    Completion ignored;
    if (record.flag()) attached_->channel()->pop(ignored);
  }

  // Anything, anywhere in its own memory: mostly where the engine looks.
  void scribble(Input& record) {
    ChannelArea* const area = attached_->area();
    if (area == nullptr) return;
    const uint8_t how = record.byte();
    auto* words = reinterpret_cast<std::atomic<uint64_t>*>(area);
    const size_t count = how < 192 ? 64 : kAreaBytes / sizeof(uint64_t);
    for (size_t i = 1 + how % 4; i > 0; --i) {
      std::atomic<uint64_t>& word = words[record.below(count)];
      word.store(how % 8 < 4 ? word.load() + record.byte() : record.take<uint64_t>());
    }
    if (how % 16 == 15) {
      (void)!::ftruncate(attached_->descriptor(record.below(2)), 0);
      area->blocked.store(1);
      area->parked.store(record.byte());
    }
  }

  Cluster& cluster_;
  std::unique_ptr<Attached> attached_;
};

class World {
 public:
  World() {
    JobPolicy serving;
    serving.known.push_back({"good", "secret", 1 << 20});
    serving.memory_limit_bytes = 1 << 20;
    serving.max_jobs = 6;
    cluster_.add_host(serving);
    JobPolicy plain;
    plain.serve = false;
    plain.open_jobs = false;
    plain.max_jobs = 6;
    cluster_.add_host(plain);
    cluster_.add_host(plain);
    for (size_t host : {kSharedHost, kOtherHost}) {
      cluster_.host(host).set_channel_events(
          [this](LaneId, const Event& event) { on_channel_event(event); });
    }
    honest_[0] = std::make_unique<Honest>(cluster_, kSharedHost, 0);
    honest_[1] = std::make_unique<Honest>(cluster_, kOtherHost, 1);
    for (size_t i = 0; i < hostile_.size(); ++i) {
      hostile_[i] = std::make_unique<Hostile>(cluster_, i + 1);
    }
    reach([](const Honest& h) { return h.opened(); }, "an honest job hangs while it opens");
    for (auto& honest : honest_) honest->declare();
    reach([](const Honest& h) { return h.declared(); }, "an honest declaration hangs");
    cluster_.each_pass = [this] {
      for (auto& honest : honest_) honest->collect();
    };
    begin_round();
  }

  void step(Input record) {
    const uint8_t what = record.byte();
    if (what >= 240) return cluster_.run_for(uint64_t{1} << record.byte() % 34);
    if (what >= 224) return cluster_.run_for(uint64_t{record.take<uint16_t>()} * 1'000);
    if (what >= 216) {
      if (quiet()) begin_round();
      return;
    }
    hostile_[what % hostile_.size()]->act(record);
  }

  void end() {
    reach([](const Honest& h) { return !h.waiting(); }, "an honest operation hangs");
    begin_round();
    reach([](const Honest& h) { return !h.waiting(); }, "an honest operation hangs afterwards");
    for (auto& hostile : hostile_) hostile->attached().hang_up();
    for (auto& honest : honest_) honest->close();
    cluster_.run_for(kSecond);
    for (auto& honest : honest_) honest->attached().hang_up();
    cluster_.must_become_empty(kPatienceNs);
    cluster_.each_pass = nullptr;
  }

 private:
  bool quiet() const { return !honest_[0]->waiting() && !honest_[1]->waiting(); }
  void begin_round() {
    ++round_;
    for (auto& honest : honest_) honest->begin_round(round_);
  }
  void reach(bool (*state)(const Honest&), const char* what) {
    must(cluster_.run([&] { return state(*honest_[0]) && state(*honest_[1]); }, kPatienceNs), what);
  }
  void on_channel_event(const Event& event) {
    for (auto& hostile : hostile_) hostile->attached().on_channel_event(event);
    for (auto& honest : honest_) honest->attached().on_channel_event(event);
  }

  // The programs' descriptors and channels go after the engines that know them.
  std::array<std::unique_ptr<Honest>, 2> honest_;
  std::array<std::unique_ptr<Hostile>, 2> hostile_;
  Cluster cluster_;
  uint32_t round_ = 0;
};

}  // namespace
}  // namespace mercury::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mercury::fuzz::play<mercury::fuzz::World>(data, size, mercury::fuzz::kMostRecords);
  return 0;
}
