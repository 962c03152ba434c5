// For instructions_test.py: what the exchange's part of two passes takes that have much that is
// cold to do, while frames wait. In one, server's jobs replace a worker, follow another policy and
// end, a worker's job ends, sums wait no longer, and programs fill the pass with what they push. In
// the other a worker's job ends with all of its operations. And what commands take that are about
// all of a job's tensors, of which there are thousands: they leave them to later passes. Kernels do
// not count. Prints that it was one pass of each, and what compiled all this.
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "apps/sim/elision.h"
#include "shim/exchange/gradient_exchange.h"
#include "tests/shim/chunk_frame.h"
#include "tests/shim/fake_engine.h"
#include "transport/wire/crc32c.h"

namespace mercury {

// By these names callgrind knows what to count. (Two of the same body were one function otherwise.)
[[gnu::noipa]] uint32_t counted_all_at_once(GradientExchange& exchange, uint64_t now_ns) {
  return exchange.poll(now_ns);
}
[[gnu::noipa]] uint32_t counted_operations_end(GradientExchange& exchange, uint64_t now_ns) {
  return exchange.poll(now_ns);
}
[[gnu::noipa]] void counted_many_tensors(const std::function<void()>& commands) { commands(); }

namespace {

constexpr uint32_t kChunks = 16'384;  // of each server's job: many passes' worth
constexpr uint32_t kTensors = 4'096;  // of the worker's job that ends
constexpr uint32_t kPushed = 128;     // of each that pushes
constexpr uint32_t kPrograms = 20;    // of those: more than a pass takes from
constexpr uint32_t kRanges = Worker::kMostWaitingRanges;
constexpr uint32_t kChunkBytes = 64;
constexpr uint64_t kPatienceMs = 1;
constexpr uint64_t kLaterNs = 10'000'000;
enum Slot : uint16_t { kReplacing, kOtherPolicy, kEnding, kImpatient, kLeaving, kMany, kPushing };
constexpr char kLittleCredit[] = "bytescheduler:partition=1KB,credit=1KB,startup=10s";

enum class Scene : uint8_t { kAll, kOperationsEnd, kManyTensors };

struct RingEnds {
  explicit RingEnds(const std::shared_ptr<ChannelMemory>& memory)
      : engine(memory), client(memory) {}
  EngineChannel engine;
  ClientChannel client;
};

class ColdPass {
 public:
  explicit ColdPass(Scene scene) {
    const bool all = scene == Scene::kAll;
    if (all) serve_all();
    work(kLeaving, kTensors);
    if (scene == Scene::kManyTensors) serve_many();
    for (uint16_t i = 0; i < kPrograms; ++i) work(kPushing + i, kPushed);
    submit(0, kTensors);
    while (good_ && exchange_.poll(0) > 0) {
    }
    if (scene == Scene::kOperationsEnd) {  // all is under way
      exchange_.unblock(SessionSlot(session(kLeaving, 0)));
      for (OutgoingDatagram out; exchange_.next(out);) {
      }
    }
    if (all) {
      for (uint16_t i = 1; i <= kPrograms; ++i) submit(i, kPushed);
      run(command::ReplaceWorker{JobSlot(kReplacing), 0, 2});
      run(command::SetPolicy{JobSlot(kOtherPolicy), "wfbp"});
      run(command::RemoveJob{JobSlot(kEnding)});
    }
    if (scene != Scene::kManyTensors) run(command::RemoveJob{JobSlot(kLeaving)});
    taken_ = counters_.get(Counter::kSubmissions);
  }
  // Whether so many were taken of what programs push, so many operations ended, and more is left.
  bool was_full(uint64_t pushed, uint32_t ended) {
    for (Completion done; programs_[0]->client.pop(done);) --ended;
    return good_ && ended == 0 && counters_.get(Counter::kSubmissions) - taken_ == pushed &&
           exchange_.next_deadline_ns() == 0;
  }
  GradientExchange& exchange() { return exchange_; }
  // Each of them is about all tensors of a worker's job, which wait for its credit, or of a
  // server's.
  void command_many() {
    good_ = good_ && exchange_.usage().ranges == 0 && taken_ == kTensors;
    run(command::SetPolicy{JobSlot(kLeaving), "mercury"});
    run(command::SetPolicy{JobSlot(kLeaving), kLittleCredit});
    run(command::Refill{JobSlot(kLeaving)});
    declare(kLeaving, kTensors, 1, gradient_.data());  // the table is half full
    run(command::FailJob{JobSlot(kLeaving), Errc::kPeerLost});
    run(command::RemoveJob{JobSlot(kLeaving)});
    run(command::SetPolicy{JobSlot(kMany), "mercury"});
    run(command::SetPolicy{JobSlot(kMany), "wfbp"});
    run(command::ReplaceWorker{JobSlot(kMany), 0, 2});
    declare(kMany, kTensors, 1, nullptr);
    run(command::RemoveJob{JobSlot(kMany)});
  }
  bool good() const { return good_; }

 private:
  static ExchangeConfig config() {
    ExchangeConfig config;
    config.sends.scheduler.max_jobs = 32;
    return config;
  }
  template <class OneCommand>
  void run(const OneCommand& command) {
    exchange_.on_command(command, host_);
    while (const auto event = exchange_.take_event()) {
      good_ = good_ && !std::holds_alternative<event::CommandFailed>(*event);
    }
  }
  void declare(uint16_t slot, uint32_t tensor, uint32_t chunks, std::byte* data) {
    command::AddTensor one;
    one.job = JobSlot(slot);
    one.tensor = TensorId(tensor);
    one.numel = uint64_t{chunks} * kChunkBytes / sizeof(float);
    one.chunk_bytes = kChunkBytes;
    one.data = data;
    run(one);
  }
  static uint32_t session(uint16_t slot, uint16_t rank) { return slot * 2U + rank; }

  void serve_all() {
    for (const Slot slot : {kReplacing, kOtherPolicy, kEnding, kImpatient}) serve(slot);
    push(kReplacing, 0, kChunks);
    push(kOtherPolicy, 0, kChunks / 2);
    push(kOtherPolicy, 1, kChunks / 4);
    // Sums that nobody has taken yet, of chunks that are not neighbours.
    push(kEnding, 0, kChunks, 2);
    push(kEnding, 1, kChunks, 2);
    push(kImpatient, 0, kChunks);
  }
  // With a gate that knows all tensors; and the worker's job gets a credit.
  void serve_many() {
    serve(kMany);
    for (uint32_t tensor = 1; tensor < kTensors; ++tensor) declare(kMany, tensor, 1, nullptr);
    run(command::SetPolicy{JobSlot(kMany), "wfbp"});
    run(command::SetPolicy{JobSlot(kLeaving), kLittleCredit});
  }
  void serve(Slot slot) {
    command::AddServerJob job;
    job.job = JobSlot(slot);
    job.workers = 2;
    job.shards = 1;
    if (slot == kImpatient) {
      job.terms.quorum = 1;
      job.terms.patience_ms = kPatienceMs;
    }
    run(job);
    declare(slot, 0, kChunks, nullptr);
    for (uint16_t rank = 0; rank < 2; ++rank) {
      run(command::BindWorker{job.job, Rank(rank), 1, Token(uint64_t{session(slot, rank)})});
    }
  }
  void push(Slot slot, uint16_t rank, uint32_t chunks, uint32_t step = 1) {
    test::ChunkFrame header;
    header.round = Round(1);
    header.sender = rank;
    header.incarnation = 1;
    header.payload_crc = wire::crc32c(elements_);
    for (uint32_t chunk = 0; chunk < chunks; chunk += step) {
      header.chunk = ChunkIndex(chunk);
      good_ = good_ && exchange_.on_datagram(SessionSlot(session(slot, rank)), header, elements_,
                                             0) <= Taken::kLast;
    }
  }

  void work(uint16_t slot, uint32_t tensors) {
    auto memory = ChannelMemory::create({2 * kTensors, 2 * kTensors}, false);
    good_ = good_ && memory;
    if (!good_) return;
    programs_.push_back(std::make_unique<RingEnds>(*memory));
    run(command::AttachChannel{&programs_.back()->engine});
    command::AddWorkerJob job;
    job.job = JobSlot(slot);
    job.workers = job.shards = 1;
    job.channel = &programs_.back()->engine;
    run(job);
    run(command::BindShard{job.job, 0, Token(uint64_t{session(slot, 0)})});
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      declare(slot, tensor, 1, gradient_.data());
    }
  }
  void submit(size_t program, uint32_t tensors) {
    ClientChannel& client = programs_[program]->client;
    for (uint32_t tensor = 0; good_ && tensor < tensors; ++tensor) {
      good_ = client.submit({SubmitOp::kPushPull, 1, 0, TensorId(tensor), tensor + 1});
    }
  }

  const std::vector<std::byte> elements_ = std::vector<std::byte>(kChunkBytes);
  std::vector<std::byte> gradient_ = std::vector<std::byte>(kChunkBytes);
  FakeEngine host_;
  Counters counters_;
  std::vector<std::unique_ptr<RingEnds>> programs_;
  GradientExchange exchange_{config(), counters_,
                             PortMemory{[](void*, PayloadPin&) { return false; }}};
  uint64_t taken_ = 0;  // submissions, before the pass
  bool good_ = true;
};

}  // namespace
}  // namespace mercury

int main() {
  using namespace mercury;
  const simulator::PayloadElision elision;
  const auto all = std::make_unique<ColdPass>(Scene::kAll),
             one = std::make_unique<ColdPass>(Scene::kOperationsEnd),
             many = std::make_unique<ColdPass>(Scene::kManyTensors);
  counted_many_tensors([&many] { many->command_many(); });
  (void)counted_all_at_once(all->exchange(), kLaterNs);
  (void)counted_operations_end(one->exchange(), kLaterNs);
  if (!all->was_full(kRanges, ColdSteps::kLeast) || !one->was_full(0, ColdSteps::kAll) ||
      !many->good()) {
    std::fprintf(stderr, "cold_cost: a pass did not do what it may, or left nothing\n");
    return 1;
  }
  std::printf("1 pass, compiled with %s\n", COMPILED_WITH);
  return 0;
}
