#include "shim/exchange/gradient_exchange.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/milliseconds.h"
#include "tests/shim/chunk_frame.h"
#include "tests/shim/fake_engine.h"
#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

// One program whose rings are small. It has no job, so that each of its operations completes at
// once, with an error.
class GradientExchangeTest : public testing::Test {
 protected:
  static constexpr uint32_t kCompletions = 4;

  void SetUp() override {
    auto memory = ChannelMemory::create({64, kCompletions}, false);
    ASSERT_TRUE(memory) << memory.error().message;
    engine_ = std::make_unique<EngineChannel>(*memory);
    program_ = std::make_unique<ClientChannel>(*memory);
    ASSERT_TRUE(does(command::AttachChannel{engine_.get()}));
  }
  void submit(uint64_t first_cookie, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(program_->submit({SubmitOp::kPushPull, 0, 1, 1, first_cookie + i}));
    }
  }
  std::vector<uint64_t> completed() {
    std::vector<uint64_t> cookies;
    Completion completion;
    while (program_->pop(completion)) cookies.push_back(completion.cookie);
    return cookies;
  }

  // Tensor 0 of the job, all of it, in chunks of 16 elements.
  void serve(uint16_t workers, uint64_t numel, JobSlot slot = {}, const JobTerms& terms = {}) {
    command::AddServerJob job;
    job.job = slot;
    job.workers = workers;
    job.shards = 1;
    job.terms = terms;
    ASSERT_TRUE(does(job));
    command::AddTensor tensor;
    tensor.job = slot;
    tensor.numel = numel;
    tensor.chunk_bytes = 64;
    ASSERT_TRUE(does(tensor));
  }

  // False: the command failed.
  template <class OneCommand>
  bool does(const OneCommand& command) {
    exchange_.on_command(command, host_);
    bool failed = false;
    while (const auto event = exchange_.take_event()) {
      failed = failed || std::holds_alternative<event::CommandFailed>(*event);
    }
    return !failed;
  }
  bool bind_worker(JobSlot job, Rank rank, uint32_t incarnation, Token token) {
    return does(command::BindWorker{job, rank, incarnation, token});
  }

  FakeEngine host_;
  // The port: what it says, and has been told.
  struct PortState {
    bool reads = false;  // the sums that were sent last
    bool maps = true;
    int mapped = 0;
  };
  PortState port_;
  static constexpr PortMemory kPort{
      [](void* port, PayloadPin&) { return static_cast<PortState*>(port)->reads; }, nullptr,
      [](void* port, std::span<std::byte>) -> Result<MemoryKey> {
        auto& state = *static_cast<PortState*>(port);
        if (!state.maps) return Error(Errc::kLimit, "no more mappings");
        ++state.mapped;
        return MemoryKey();
      },
      [](void* port, MemoryKey) { --static_cast<PortState*>(port)->mapped; }};
  PortMemory memory() {
    PortMemory memory = kPort;
    memory.context = &port_;
    return memory;
  }

  Counters counters_;
  GradientExchange exchange_{ExchangeConfig(), counters_, memory()};
  std::unique_ptr<EngineChannel> engine_;
  std::unique_ptr<ClientChannel> program_;
};

TEST_F(GradientExchangeTest, CompletionsThatFoundNoRoomWakeTheProgramWhenTheyCome) {
  submit(1, kCompletions + 2);
  EXPECT_GT(exchange_.poll(0), 0U);
  EXPECT_EQ(completed(), (std::vector<uint64_t>{1, 2, 3, 4}));
  ASSERT_TRUE(program_->park());
  EXPECT_FALSE(readable(program_->client_doorbell()));
  EXPECT_GT(exchange_.poll(0), 0U) << "to deliver is work: the engine does not sleep over it";
  EXPECT_TRUE(readable(program_->client_doorbell()));
  program_->unpark();
  EXPECT_EQ(completed(), (std::vector<uint64_t>{5, 6}));
  EXPECT_EQ(exchange_.usage().completions, 0U);
}

TEST_F(GradientExchangeTest, GrantsAreByUrgencyUnlessTheJobsPolicyDiffers) {
  command::AddServerJob server;
  server.workers = server.shards = 1;
  server.terms.policy = "mercury:grants=even";
  ASSERT_TRUE(does(server));
  command::AddWorkerJob worker;
  worker.job = JobSlot(1);
  worker.shards = 1;
  worker.terms.policy = "mercury:grants=even";
  ASSERT_TRUE(does(worker));
  for (uint16_t job = 0; job < 2; ++job) {
    EXPECT_FALSE(host_.heeds.at(job));
    ASSERT_TRUE(does(command::SetPolicy{JobSlot(job), "mercury:answers=fifo"}));
    EXPECT_TRUE(host_.heeds.at(job));
  }
}

TEST_F(GradientExchangeTest, NothingIsTakenFromAProgramThatDoesNotReadItsCompletions) {
  submit(1, kCompletions + 1);
  exchange_.poll(0);
  submit(100, 1);
  EXPECT_EQ(exchange_.poll(0), 0U);
  EXPECT_EQ(counters_.get(Counter::kSubmissions), kCompletions + 1);
  EXPECT_EQ(completed(), (std::vector<uint64_t>{1, 2, 3, 4}));
  exchange_.poll(0);  // makes room
  exchange_.poll(0);  // and takes the next
  EXPECT_EQ(completed(), (std::vector<uint64_t>{5, 100}));
}

TEST_F(GradientExchangeTest, OnePassTakesFewSubmissionsThatAreRefused) {
  auto memory = ChannelMemory::create({64, 64}, false);
  ASSERT_TRUE(memory) << memory.error().message;
  EngineChannel engine(*memory);
  program_ = std::make_unique<ClientChannel>(*memory);
  ASSERT_TRUE(does(command::AttachChannel{&engine}));
  submit(1, 60);
  for (uint64_t taken = 0; taken < 60;) {
    EXPECT_GT(exchange_.poll(0), 0U);
    const uint64_t now = counters_.get(Counter::kSubmissions);
    ASSERT_GT(now, taken);
    ASSERT_LE(now, taken + 8);
    taken = now;
  }
  EXPECT_EQ(completed().size(), 60U);
}

// A thousand chunks whose patience ends at once, none of them with enough contributions: frames are
// received and sent between them.
TEST_F(GradientExchangeTest, OnePassLooksAtFewOfTheChunksWhoseTimeIsUp) {
  constexpr uint32_t kChunks = 1000;
  constexpr uint64_t kPatienceNs = 1'000'000;
  command::AddServerJob job;
  job.workers = 3;
  job.shards = 1;
  job.terms.quorum = 2;
  job.terms.patience_ms = to_ms(kPatienceNs);
  ASSERT_TRUE(does(job));
  command::AddTensor tensor;
  tensor.numel = kChunks * 16;
  tensor.chunk_bytes = 64;
  ASSERT_TRUE(does(tensor));
  ASSERT_TRUE(bind_worker(JobSlot(0), 0, 7, 0));
  const std::vector<std::byte> elements(64);
  test::ChunkFrame header;
  header.round = 1;
  header.incarnation = 7;
  header.payload_crc = wire::crc32c(elements);
  for (header.chunk = 0; header.chunk.value < kChunks; ++header.chunk.value) {
    ASSERT_EQ(exchange_.on_datagram(SessionSlot(0), header, elements, 0), Taken::kYes);
  }
  uint32_t looked = 0;
  while (exchange_.next_deadline_ns() <= kPatienceNs) {
    const uint32_t work = exchange_.poll(kPatienceNs);
    ASSERT_GT(work, 0U);
    ASSERT_LE(work, 64U);
    looked += work;
  }
  EXPECT_EQ(looked, kChunks);
  EXPECT_EQ(exchange_.next_deadline_ns(), kNever);
}

struct Refused {
  const char* what;
  void (*change)(test::ChunkFrame&);
  Counter counter;
  Taken taken;  // kYes: sending it again would not help
};

const Refused kRefused[] = {
    {"the round that has just ended", [](test::ChunkFrame& h) { h.round = 1; },
     Counter::kDropRoundOld, Taken::kYes},
    {"a round long gone", [](test::ChunkFrame& h) { h.round.value -= 1000; },
     Counter::kDropRoundOld, Taken::kYes},
    {"the round after the next", [](test::ChunkFrame& h) { h.round.value += 1; },
     Counter::kDropRoundNew, Taken::kLater},
    {"a chunk that it has added to", [](test::ChunkFrame& h) { h.chunk = 0; },
     Counter::kDropContributedTwice, Taken::kYes},
    {"a tensor that nobody declared", [](test::ChunkFrame& h) { h.tensor = 1; },
     Counter::kDropUnknownTensor, Taken::kLater},
    {"a chunk behind the last", [](test::ChunkFrame& h) { h.chunk = 2; }, Counter::kDropChunkRange,
     Taken::kYes},
    {"another worker's", [](test::ChunkFrame& h) { h.sender = 1; }, Counter::kDropWorkerRank,
     Taken::kYes},
    {"its last life's", [](test::ChunkFrame& h) { h.incarnation -= 1; }, Counter::kDropIncarnation,
     Taken::kYes},
    {"a damaged one", [](test::ChunkFrame& h) { h.payload_crc ^= 1; }, Counter::kDropPayloadCrc,
     Taken::kNo},
    {"a result", [](test::ChunkFrame& h) { h.type = kResultFrame; }, Counter::kDropNotOpen,
     Taken::kLater},
};

// Round 1 is complete, and in round 2 the worker has sent one of two chunks.
TEST_F(GradientExchangeTest, EachPushThatIsRefusedIsCountedUnderItsReasonAndChangesNothing) {
  serve(2, 32);
  const std::vector<std::byte> elements(64);
  test::ChunkFrame header;
  header.payload_crc = wire::crc32c(elements);
  const auto push = [&](test::ChunkFrame sent) {
    return exchange_.on_datagram(SessionSlot(uint32_t{sent.sender}), sent, elements, 0);
  };
  for (header.sender = 0; header.sender < 2; ++header.sender) {
    header.incarnation = 7 + header.sender;
    ASSERT_TRUE(bind_worker(JobSlot(0), Rank(header.sender), header.incarnation,
                            Token(uint64_t{header.sender})));
    for (header.chunk = 0; header.chunk.value < 2; ++header.chunk.value) {
      header.round = 1;
      // The second worker's is what the first's waited for.
      ASSERT_EQ(push(header), header.sender == 0 ? Taken::kYes : Taken::kLast);
    }
  }
  header.sender = 0;
  header.incarnation = 7;
  header.round = 2;
  header.chunk = 0;
  ASSERT_EQ(push(header), Taken::kYes);
  header.chunk = 1;
  for (const Refused& row : kRefused) {
    test::ChunkFrame wrong = header;
    row.change(wrong);
    const uint64_t before = counters_.get(row.counter);
    EXPECT_EQ(exchange_.on_datagram(SessionSlot(0), wrong, elements, 0), row.taken) << row.what;
    EXPECT_EQ(counters_.get(row.counter), before + 1) << row.what;
    EXPECT_EQ(counters_.get(Counter::kPushChunks), 5U) << row.what;
    if (row.taken == Taken::kNo) continue;
    // Nobody reads its payload: if it is not the sender's, it has not arrived.
    wrong.payload_crc ^= 1;
    const uint64_t damaged = counters_.get(Counter::kDropPayloadCrc);
    EXPECT_EQ(exchange_.on_datagram(SessionSlot(0), wrong, elements, 0), Taken::kNo) << row.what;
    EXPECT_EQ(counters_.get(row.counter), before + 1) << row.what;
    EXPECT_EQ(counters_.get(Counter::kDropPayloadCrc), damaged + 1) << row.what;
  }
  EXPECT_EQ(push(header), Taken::kYes) << "what was right with it is still awaited";
  EXPECT_EQ(counters_.get(Counter::kPushChunks), 6U);
}

// Every second chunk, and it acknowledges none of their sums: each is a range of its own.
TEST_F(GradientExchangeTest, AMemberThatTakesNoSumsLeavesRoomForOtherJobs) {
  constexpr uint32_t kRanges = Scheduler::Limits().max_ranges;
  const std::vector<std::byte> elements(64);
  test::ChunkFrame header;
  header.incarnation = 7;
  header.round = 1;
  header.payload_crc = wire::crc32c(elements);
  serve(1, uint64_t{16} * 3 * kRanges);
  ASSERT_TRUE(bind_worker(JobSlot(0), 0, 7, 0));
  const auto flood = [&] {
    uint32_t taken = 0;
    while (exchange_.on_datagram(SessionSlot(0), header, elements, 0) == Taken::kYes) {
      header.chunk.value += 2;
      ++taken;
    }
    return taken;
  };
  command::AddServerJob other;
  other.job = JobSlot(1);
  other.workers = 2;
  other.shards = 1;
  ASSERT_TRUE(does(other));
  EXPECT_EQ(flood(), kRanges / 2 + 1);
  command::AddTensor tensor;
  tensor.job = JobSlot(1);
  tensor.numel = 16;
  tensor.chunk_bytes = 64;
  ASSERT_TRUE(does(tensor));
  test::ChunkFrame innocent = header;
  innocent.chunk = 0;
  for (const uint16_t rank : {uint16_t{0}, uint16_t{1}}) {
    ASSERT_TRUE(bind_worker(JobSlot(1), Rank(rank), 7, Token(uint64_t{1} + rank)));
    innocent.sender = rank;
    EXPECT_EQ(exchange_.on_datagram(SessionSlot(1u + rank), innocent, elements, 0),
              rank == 0 ? Taken::kYes : Taken::kLast);
  }
  command::RemoveJob end;
  end.job = JobSlot(1);
  ASSERT_TRUE(does(end));
  EXPECT_EQ(flood(), 0U) << "alone it has no more: others may come";
}

// Every second chunk is complete, for all workers, and none of them is sent: the members of a large
// job push in other orders than each other.
class SumsOutOfOrder : public GradientExchangeTest {
 protected:
  void join(uint16_t workers, uint32_t priorities = 1) {
    priorities_ = priorities;
    header_.incarnation = 7;
    header_.round = 1;
    header_.payload_crc = wire::crc32c(elements_);
    join_job(JobSlot(0), workers);
  }
  // Whose sums come next.
  void join_job(JobSlot slot, uint16_t workers, const JobTerms& terms = {}) {
    serve(workers, uint64_t{16} * 2 * kMost, slot, terms);
    first_session_ += workers_;
    workers_ = workers;
    for (uint16_t rank = 0; rank < workers; ++rank) {
      ASSERT_TRUE(bind_worker(slot, Rank(rank), 7, Token(uint64_t{session_of(rank).value})));
    }
    header_.chunk = 0;
  }
  SessionSlot session_of(uint16_t rank) const { return SessionSlot(first_session_ + rank); }
  // Job after job takes all leaves that it may.
  void take_leaves(uint16_t first_job, uint16_t jobs, uint16_t workers) {
    priorities_ = kPriorities / 64;
    priority_step_ = 64;
    for (uint16_t job = first_job; job < first_job + jobs; ++job) {
      join_job(JobSlot(job), workers);
      sums(kMost);
    }
  }
  // Until one is refused, or `most` are there, less urgent ones first. How many.
  uint32_t sums(uint32_t most) {
    for (uint32_t complete = 0; complete < most; header_.chunk.value += 2, ++complete) {
      const uint32_t urgency = priorities_ - 1 - (header_.chunk.value / 2) % priorities_;
      header_.priority = static_cast<uint16_t>(urgency * priority_step_);
      for (header_.sender = 0; header_.sender < workers_; ++header_.sender) {
        const SessionSlot session = session_of(header_.sender);
        if (exchange_.on_datagram(session, header_, elements_, 0) > Taken::kLast) return complete;
      }
    }
    return most;
  }
  static constexpr uint32_t kMost = 8192;
  const std::vector<std::byte> elements_ = std::vector<std::byte>(64);
  test::ChunkFrame header_;
  uint16_t workers_ = 0;
  uint32_t first_session_ = 0;
  uint32_t priorities_ = 1, priority_step_ = 1;
};

TEST_F(SumsOutOfOrder, ThousandsMayWaitFor64Workers) {
  join(64);
  EXPECT_EQ(sums(kMost), kMost);
  EXPECT_EQ(exchange_.usage().ranges, kMost) << "each is one range";
}

TEST_F(SumsOutOfOrder, NoFewerMayWaitForTheMostWorkers) {
  join(kMaxWorkers);
  EXPECT_EQ(sums(kMost), kMost);
  EXPECT_EQ(exchange_.usage().ranges, kMost) << "each is one range";
}

// As many layers as large models have, the last of them first.
TEST_F(SumsOutOfOrder, OfThousandsOfPrioritiesToo) {
  join(kMaxWorkers, 4096);
  EXPECT_EQ(sums(kMost), kMost);
}

// Priorities so far apart that each worker needs a leaf for each sum: there are 262,144, of which
// one job gets a half, whether another is served or will be.
TEST_F(SumsOutOfOrder, FarApartTheyLeaveRoomForOtherJobs) {
  constexpr uint16_t kWorkers = 512;
  constexpr uint32_t kLeaves = Scheduler::Limits().max_ranges;
  join(kWorkers, kPriorities / 64);
  priority_step_ = 64;
  command::AddServerJob other;
  other.job = JobSlot(1);
  other.workers = 2;
  other.shards = 1;
  ASSERT_TRUE(does(other));
  const uint32_t waiting = sums(kMost);
  EXPECT_EQ(waiting, kLeaves / 2 / kWorkers + 1);
  command::AddTensor tensor;
  tensor.job = JobSlot(1);
  tensor.numel = 16;
  tensor.chunk_bytes = 64;
  ASSERT_TRUE(does(tensor));
  test::ChunkFrame innocent = header_;
  innocent.chunk = 0;
  for (const uint16_t rank : {uint16_t{0}, uint16_t{1}}) {
    ASSERT_TRUE(bind_worker(JobSlot(1), Rank(rank), 7, Token(uint64_t{kWorkers} + rank)));
    innocent.sender = rank;
    EXPECT_EQ(exchange_.on_datagram(SessionSlot(uint32_t{kWorkers} + rank), innocent, elements_, 0),
              rank == 0 ? Taken::kYes : Taken::kLast);
  }
  command::RemoveJob end;
  end.job = JobSlot(1);
  ASSERT_TRUE(does(end));
  exchange_.poll(0);
  EXPECT_EQ(sums(kMost), 0U) << "alone it has no more";
  for (uint32_t session = 0; session < kWorkers; ++session) exchange_.unblock(SessionSlot(session));
  OutgoingDatagram out;
  for (uint32_t i = 0; i < waiting * kWorkers; ++i) ASSERT_TRUE(exchange_.next(out)) << i;
  EXPECT_FALSE(exchange_.next(out));
  EXPECT_EQ(exchange_.usage().ranges, 0U);
  header_.sender = 0;
  EXPECT_EQ(exchange_.on_datagram(SessionSlot(0), header_, elements_, 0), Taken::kYes)
      << "what was refused is taken now";
}

// A job of one worker needs a leaf as others do: what finds none is refused, not kept.
TEST_F(SumsOutOfOrder, WithoutLeavesJobsOfOneWorkerAreRefusedToo) {
  constexpr uint16_t kLarge = 6;
  join(512);
  take_leaves(1, kLarge, 512);
  uint32_t refused = 0;
  for (uint16_t job = kLarge + 1; job <= kLarge + 10; ++job) {
    join_job(JobSlot(job), 1);
    header_.sender = 0;
    for (uint32_t sum = 0; sum < kPriorities / 64; ++sum, header_.chunk.value += 2) {
      header_.priority = static_cast<uint16_t>(64 * sum);
      refused += exchange_.on_datagram(session_of(0), header_, elements_, 0) > Taken::kLast ? 1 : 0;
    }
  }
  EXPECT_GT(refused, 0U);
  EXPECT_EQ(exchange_.usage().lost_chunks, 0U);
}

// It counts until it has ended: as many leaves as its workers would take are kept for its sums.
TEST_F(SumsOutOfOrder, AJobOfManyWorkersThatHasEndedHoldsUpNobodysQuorum) {
  const JobTerms quorum{.quorum = 2, .patience_ms = 1};
  command::AddServerJob many;
  many.job = JobSlot(1);
  many.workers = kMaxWorkers;
  many.shards = 1;
  many.terms = quorum;
  ASSERT_TRUE(does(many));
  command::RemoveJob end;
  end.job = many.job;
  ASSERT_TRUE(does(end));
  join(1);
  join_job(JobSlot(2), 3, quorum);
  for (header_.sender = 0; header_.sender < 2; ++header_.sender) {
    ASSERT_EQ(exchange_.on_datagram(session_of(header_.sender), header_, elements_, 0),
              Taken::kYes);
  }
  take_leaves(3, 7, 500);
  EXPECT_EQ(counters_.get(Counter::kQuorumResults), 0U);
  exchange_.poll(1'000'000'000);
  EXPECT_EQ(counters_.get(Counter::kQuorumResults), 1U);
}

// Sums of rounds that all have passed: frames that have come are read between looks at them.
TEST_F(SumsOutOfOrder, ThoseThatNobodyNeedsAreLeftInSteps) {
  constexpr uint32_t kRounds = 2000;
  constexpr uint16_t kWorkers = 64;
  join(kWorkers);
  for (uint32_t round = 1; round <= kRounds; ++round) {
    header_.round = Round(round);
    for (header_.sender = 0; header_.sender < workers_; ++header_.sender) {
      const SessionSlot session(uint32_t{header_.sender});
      ASSERT_LE(exchange_.on_datagram(session, header_, elements_, 0), Taken::kLast) << round;
    }
  }
  for (uint32_t session = 0; session < kWorkers; ++session) exchange_.unblock(SessionSlot(session));
  OutgoingDatagram out;
  uint32_t steps = 0;
  while (!exchange_.next(out)) {
    ASSERT_EQ(exchange_.next_deadline_ns(), 0U) << "there is more to look at";
    ASSERT_LT(++steps, kRounds * kWorkers);
  }
  EXPECT_GT(steps, 10U);
}

// All are sent, to each worker the most urgent first, and nothing is held any more.
TEST_F(SumsOutOfOrder, EachWorkerIsSentAllOfThem) {
  constexpr uint16_t kWorkers = 100;
  join(kWorkers, 7);
  ASSERT_EQ(sums(700), 700U);
  std::vector<uint32_t> sent(kWorkers);
  std::vector<uint16_t> before(kWorkers);
  OutgoingDatagram out;
  for (uint32_t slow : {0U, 1U}) {  // the first worker's window is full until all others have them
    for (uint32_t session = slow == 0 ? 1 : 0; session < kWorkers; ++session) {
      exchange_.unblock(SessionSlot(session));
    }
    while (exchange_.next(out)) {
      const uint32_t session = out.session.value;
      ++sent[session];
      EXPECT_GE(out.header.priority, before[session]);
      before[session] = out.header.priority;
    }
    for (uint32_t session = 1; session < kWorkers; ++session) ASSERT_EQ(sent[session], 700U);
    EXPECT_EQ(sent[0], 700 * slow);
    EXPECT_EQ(exchange_.usage().ranges, slow == 0 ? 700U : 0U);
  }
}

// Its sums have been waiting for one worker alone: when it is gone they do no more.
TEST_F(SumsOutOfOrder, WhatWaitedForAWorkerThatIsGoneWaitsNoMore) {
  constexpr uint16_t kWorkers = 3;
  join(kWorkers);
  ASSERT_EQ(sums(3000), 3000U);
  OutgoingDatagram out;
  for (uint32_t session : {1U, 2U}) exchange_.unblock(SessionSlot(session));
  while (exchange_.next(out)) {
  }
  EXPECT_EQ(exchange_.usage().ranges, 3000U);
  exchange_.forget(SessionSlot(0));
  for (uint32_t before = 3000; before > 0;) {
    exchange_.poll(0);
    const uint32_t now = exchange_.usage().ranges;
    ASSERT_LT(now, before);
    ASSERT_LE(before - now, 1024U) << "in steps";
    before = now;
  }
  EXPECT_FALSE(exchange_.next(out));
}

TEST_F(GradientExchangeTest, ASumThatTheNicStillReadsIsNotOverwrittenAndItsPushComesAgain) {
  serve(1, 16);
  ASSERT_TRUE(bind_worker(JobSlot(0), 0, 7, 0));
  const std::vector<std::byte> elements(64);
  test::ChunkFrame header;
  header.incarnation = 7;
  header.payload_crc = wire::crc32c(elements);
  for (header.round = 1; header.round.value < 3; ++header.round.value) {
    ASSERT_EQ(exchange_.on_datagram(SessionSlot(0), header, elements, 0), Taken::kYes);
  }
  port_.reads = true;
  EXPECT_EQ(exchange_.on_datagram(SessionSlot(0), header, elements, 0), Taken::kLater);
  EXPECT_EQ(counters_.get(Counter::kDropSlotBusy), 1U);
  port_.reads = false;
  EXPECT_EQ(exchange_.on_datagram(SessionSlot(0), header, elements, 0), Taken::kYes);
  EXPECT_EQ(counters_.get(Counter::kPushChunks), 3U);
}

TEST_F(GradientExchangeTest, SumsStayMappedUntilTheNicHasReadTheLastOfThem) {
  serve(1, 16);
  EXPECT_EQ(port_.mapped, 1);
  EXPECT_GT(counters_.get(Gauge::kSumBytes), 0U);
  EXPECT_EQ(counters_.get(Gauge::kUnmappedSumBytes), 0U);
  port_.reads = true;
  ASSERT_TRUE(does(command::RemoveJob{JobSlot(0)}));
  exchange_.poll(0);
  EXPECT_TRUE(exchange_.awaits_nic());
  EXPECT_EQ(port_.mapped, 1);
  port_.reads = false;
  exchange_.poll(0);
  EXPECT_FALSE(exchange_.awaits_nic());
  EXPECT_EQ(port_.mapped, 0);
}

TEST_F(GradientExchangeTest, SumsThatThePortCannotMapAreSentByCopy) {
  for (const bool maps : {true, false}) {
    port_.maps = maps;
    serve(1, 16);
    EXPECT_EQ(counters_.get(Gauge::kUnmappedSumBytes), maps ? 0U : counters_.get(Gauge::kSumBytes));
    ASSERT_TRUE(bind_worker(JobSlot(0), 0, 7, 0));
    exchange_.unblock(SessionSlot(0));
    const std::vector<std::byte> elements(64, std::byte{0x3f});
    test::ChunkFrame header;
    header.round = 1;
    header.incarnation = 7;
    header.payload_crc = wire::crc32c(elements);
    ASSERT_EQ(exchange_.on_datagram(SessionSlot(0), header, elements, 0), Taken::kYes);
    OutgoingDatagram out;
    ASSERT_TRUE(exchange_.next(out));
    EXPECT_EQ(out.pin != nullptr, maps);
    EXPECT_TRUE(std::ranges::equal(out.payload, elements));
    ASSERT_TRUE(does(command::RemoveJob{JobSlot(0)}));
    exchange_.poll(0);
    EXPECT_EQ(counters_.get(Gauge::kUnmappedSumBytes), 0U);
  }
}

}  // namespace
}  // namespace mercury
