// The engine's end of a channel against a program that writes anything into the memory they share,
// between any two calls and during them. Also adoption: a program's end given anything at all.
//
// Beyond not crashing: what pop() returns is valid; no call works without end; a broken channel
// stays broken and swallows completions; the engine's own memory holds only what the engine wrote,
// and its positions never go back; as long as nobody has written anything dishonest, submissions
// and completions arrive exactly as they were sent.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

#include "shim/channel/channel.h"
#include "shim/channel/channel_layout.h"
#include "tests/fuzz/fuzz_input.h"

namespace mercury::fuzz {
namespace {

constexpr auto kOps = static_cast<uint8_t>(kLastSubmitOp);

constexpr size_t kMostRecords = 512;

int copy_of(int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, 0); }

// The program's thread, one for all inputs: AddressSanitizer keeps 2 KB of each that there was, and
// a thread per race used up the memory that a search may have in a quarter of an hour.
class Writer {
 public:
  void begin(std::function<void()> work) {
    work_ = std::move(work);
    begun_.release();
  }
  void join() { done_.acquire(); }
  ~Writer() {
    begin(nullptr);
    thread_.join();
  }

 private:
  void run() {
    for (;;) {
      begun_.acquire();
      if (!work_) return;
      work_();
      done_.release();
    }
  }
  std::function<void()> work_;
  std::binary_semaphore begun_{0};
  std::binary_semaphore done_{0};
  std::thread thread_{[this] { run(); }};
};

class Harness {
 public:
  explicit Harness(const ChannelGeometry& geometry) : geometry_(geometry) {
    Result<std::shared_ptr<ChannelMemory>> memory = ChannelMemory::create(geometry, true);
    must(memory.has_value(), "a channel cannot be made");
    const std::array<int, 4> fds = (*memory)->program_descriptors();
    a_bytes_ = area_bytes(geometry.submissions);
    b_bytes_ = area_bytes(geometry.completions);
    a_ = static_cast<ChannelArea*>(
        ::mmap(nullptr, a_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0));
    b_ = static_cast<const ChannelArea*>(
        ::mmap(nullptr, b_bytes_, PROT_READ, MAP_SHARED, fds[1], 0));
    must(a_ != MAP_FAILED && b_ != MAP_FAILED, "a channel cannot be mapped");
    Result<std::shared_ptr<ChannelMemory>> theirs =
        ChannelMemory::adopt(copy_of(fds[0]), copy_of(fds[1]), copy_of(fds[2]), copy_of(fds[3]));
    must(theirs.has_value(), "a channel cannot be adopted");
    must(::mmap(nullptr, b_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0) == MAP_FAILED,
         "a program may map the engine's memory for writing");
    doorbells_ = {fds[2], fds[3]};
    engine_ = std::make_unique<EngineChannel>(*memory);
    client_ = std::make_unique<ClientChannel>(*theirs);
  }
  ~Harness() {
    ::munmap(a_, a_bytes_);
    ::munmap(const_cast<ChannelArea*>(b_), b_bytes_);
  }
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  void step(Input record) {
    switch (record.byte() % 12) {
      case 0:
        return submit(record);
      case 1:
        return pop(1 + record.below(8));
      case 2:
        return complete(record);
      case 3:
        engine_->ring();
        return;
      case 4:
        return park();
      case 5:
        return collect();
      case 6:
        return forge_descriptor(record);
      case 7:
        return write_word(record);
      case 8:
        return write_header(record);
      case 9:
        return race(record);
      case 10:
        if (doorbells_good_) client_->ring();
        return;
      default:
        return misuse_doorbells(record);
    }
  }

  void end() {
    pop(2 * size_t{geometry_.submissions});
    if (!honest_) return;
    collect();
    must(submitted_.empty(), "a submission did not arrive");
    must(completed_.empty(), "a completion did not arrive");
  }

  void check() {
    must(b_->header.magic == kChannelMagic && b_->header.side == kChannelSideB &&
             b_->header.submissions == geometry_.submissions,
         "the engine's header has changed");
    const uint64_t position = b_->read_position.load();
    // What broke the channel was read, too.
    must(position >= last_position_ && position <= popped_ + (broken_ ? 1 : 0),
         "the engine's position went astray");
    last_position_ = position;
  }

 private:
  void submit(Input& record) {
    const Submission s{static_cast<SubmitOp>(1 + record.byte() % kOps), record.take<uint16_t>(),
                       record.take<uint32_t>(), TensorId(record.take<uint32_t>() >> 1),
                       record.take<uint64_t>()};
    if (client_->submit(s) && honest_) submitted_.push_back(s);
  }

  void pop(size_t most) {
    Submission got;
    for (size_t i = 0; i < most; ++i) {
      const EngineChannel::Pop result = engine_->pop(got);
      must(!broken_ || result == EngineChannel::Pop::kBroken, "a broken channel has recovered");
      if (result == EngineChannel::Pop::kEmpty) return;
      if (result == EngineChannel::Pop::kBroken) {
        must(!honest_, "an honest channel is broken");
        broken_ = true;
        return;
      }
      ++popped_;
      must(got.op >= SubmitOp::kPush && got.op <= kLastSubmitOp && got.tensor.value >> 31 == 0,
           "an invalid submission was taken");
      if (!honest_) continue;
      must(!submitted_.empty(), "a submission came from nowhere");
      const Submission& sent = submitted_.front();
      must(got.op == sent.op && got.priority == sent.priority && got.job == sent.job &&
               got.tensor == sent.tensor && got.cookie == sent.cookie,
           "a submission has changed");
      submitted_.pop_front();
    }
    // Nobody has written since, so a ring holds no more than its slots.
    must(most <= geometry_.submissions, "a ring gives without end");
  }

  void complete(Input& record) {
    const size_t count = 1 + record.below(2 * size_t{geometry_.completions});
    const uint64_t cookie = record.take<uint64_t>();
    size_t taken = 0;
    for (size_t i = 0; i < count; ++i) {
      const Completion c{cookie + i, Errc::kOk, record.take<uint32_t>(),
                         TensorId(record.take<uint32_t>()), Round(record.take<uint32_t>())};
      if (!engine_->complete(c)) break;
      ++taken;
      if (honest_) completed_.push_back(c);
    }
    // A program that says it has read what is still to come loses that, and harms nobody; a broken
    // channel swallows everything.
    must(taken <= geometry_.completions || !honest_, "a full ring takes more");
  }

  void collect() {
    if (!doorbells_good_) return;
    Completion got;
    for (size_t i = 0; i <= geometry_.completions && client_->pop(got); ++i) {
      if (!honest_) continue;
      must(!completed_.empty(), "a completion came from nowhere");
      const Completion& sent = completed_.front();
      must(got.cookie == sent.cookie && got.status == sent.status && got.job == sent.job &&
               got.tensor == sent.tensor && got.round == sent.round,
           "a completion has changed");
      completed_.pop_front();
    }
  }

  void park() {
    if (engine_->park()) must(b_->parked.load() % 2 == 1, "parked, but nobody is told");
    engine_->unpark();
    must(b_->parked.load() % 2 == 0, "awake, but nobody is told");
  }

  // A descriptor that may be taken: any words, the right turn or one beside it.
  void forge_descriptor(Input& record) {
    honest_ = false;
    const uint64_t at = popped_ + record.below(geometry_.submissions);
    ChannelDescriptor& slot = a_->ring()[at & (geometry_.submissions - 1)];
    const uint8_t how = record.byte();
    for (auto& word : slot.words) word.store(record.take<uint64_t>());
    if ((how & 1) != 0) slot.words[0].store(1 + (how >> 1) % 3 + (slot.words[0].load() << 16));
    if ((how & 8) != 0) slot.words[1].store(slot.words[1].load() >> 33);
    slot.turn.store(at + 1 + ((how & 16) != 0 ? record.take<uint64_t>() : 0));
  }

  void write_word(Input& record) {
    honest_ = false;
    const size_t words = a_bytes_ / sizeof(uint64_t);
    word(record.below(words)).store(record.take<uint64_t>());
  }

  void write_header(Input& record) {
    honest_ = false;
    switch (record.byte() % 4) {
      case 0:
        a_->parked.store(record.take<uint32_t>());
        return;
      case 1:
        a_->blocked.store(record.take<uint32_t>());
        return;
      case 2:  // near the truth, or anywhere
        a_->read_position.store(a_->read_position.load() + record.take<uint8_t>());
        return;
      default:
        a_->read_position.store(record.take<uint64_t>());
        return;
    }
  }

  // The program writes while the engine reads. What happens is not the same in each run; what must
  // hold is.
  void race(Input& record) {
    honest_ = false;
    const std::span<const uint8_t> bytes = record.rest();
    std::vector<uint8_t> copy(bytes.begin(), bytes.end());
    static Writer writer;
    writer.begin([this, copy = std::move(copy)] {
      Input values(copy.data(), copy.size());
      while (!values.empty()) {
        const size_t at = values.below(a_bytes_ / sizeof(uint64_t));
        word(at).store(values.take<uint64_t>());
      }
    });
    Submission got;
    for (size_t i = 0; i < 4 * size_t{geometry_.submissions}; ++i) {
      const EngineChannel::Pop result = engine_->pop(got);
      must(!broken_ || result == EngineChannel::Pop::kBroken, "a broken channel has recovered");
      broken_ = result == EngineChannel::Pop::kBroken;
      if (result == EngineChannel::Pop::kOne) ++popped_;
      (void)engine_->complete({i, Errc::kOk, 0, 0, 0});
      engine_->ring();
      if (engine_->park()) engine_->unpark();
    }
    writer.join();
  }

  // A program may fill, empty and change its doorbells; the engine must not wait for them. (The
  // program's own library would, and is not called any more.)
  void misuse_doorbells(Input& record) {
    honest_ = doorbells_good_ = false;
    const uint64_t full = ~uint64_t{0} - 1;
    uint64_t value = 0;
    const int flags = ::fcntl(doorbells_[0], F_GETFL);
    const uint8_t what = record.byte() % 4;
    // What it does itself must not wait, as nobody else would wake it.
    if (what < 2) ::fcntl(doorbells_[0], F_SETFL, flags | O_NONBLOCK);
    switch (what) {
      case 0:
        (void)!::write(doorbells_[0], &full, sizeof full);
        break;
      case 1:
        (void)!::read(doorbells_[0], &value, sizeof value);
        break;
      case 2:  // of the engine's eventfd, which is one open file for both
        ::fcntl(doorbells_[0], F_SETFL, flags & ~O_NONBLOCK);
        return;
      default:
        ::fcntl(doorbells_[0], F_SETFL, flags | O_NONBLOCK);
        return;
    }
    ::fcntl(doorbells_[0], F_SETFL, flags);
  }

  std::atomic<uint64_t>& word(size_t index) {
    return reinterpret_cast<std::atomic<uint64_t>*>(a_)[index];
  }

  const ChannelGeometry geometry_;
  ChannelArea* a_ = nullptr;
  const ChannelArea* b_ = nullptr;
  size_t a_bytes_ = 0;
  size_t b_bytes_ = 0;
  std::array<int, 2> doorbells_{};
  std::unique_ptr<EngineChannel> engine_;
  std::unique_ptr<ClientChannel> client_;
  std::deque<Submission> submitted_;
  std::deque<Completion> completed_;
  uint64_t popped_ = 0;
  uint64_t last_position_ = 0;
  bool honest_ = true;
  bool doorbells_good_ = true;
  bool broken_ = false;
};

int sealed_memfd(size_t bytes, std::span<const uint8_t> content, int seals) {
  const int fd = ::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  must(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0, "memfd");
  must(::pwrite(fd, content.data(), content.size(), 0) >= 0, "pwrite");
  ::fcntl(fd, F_ADD_SEALS, seals);
  return fd;
}

// Two memories with whatever sizes, seals and headers.
void adopt(Input& input) {
  std::array<int, 2> fds{};
  for (size_t i = 0; i < fds.size(); ++i) {
    const uint8_t how = input.byte();
    AreaHeader header;
    header.side = i == 0 ? kChannelSideA : kChannelSideB;
    header.submissions = 1U << input.byte() % 18;
    header.completions = 1U << input.byte() % 18;
    size_t bytes = area_bytes(i == 0 ? header.submissions : header.completions);
    if ((how & 1) != 0) bytes = input.take<uint32_t>() % (4 << 20);
    if ((how & 2) != 0) {
      const std::span<const uint8_t> raw = input.bytes(sizeof header);
      std::memcpy(&header, raw.data(), raw.size());
    }
    constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
    const int seals = i == 0 ? kSeals : kSeals | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE;
    const std::span<const uint8_t> content(reinterpret_cast<const uint8_t*>(&header),
                                           std::min(bytes, sizeof header));
    fds[i] = sealed_memfd(bytes, content, (how & 4) != 0 ? input.byte() & 0x1f : seals);
  }
  Result<std::shared_ptr<ChannelMemory>> memory =
      ChannelMemory::adopt(fds[0], fds[1], ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                           ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!memory) return;
  ClientChannel client(*memory);
  Completion completion;
  for (int i = 0; i < 8; ++i) {
    (void)client.submit({});
    client.pop(completion);
    client.ring();
    if (client.park()) client.unpark();
  }
}

}  // namespace
}  // namespace mercury::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mercury;
  using namespace mercury::fuzz;
  Input input(data, size);
  Input first = next_record(input);
  const uint8_t kind = first.byte();
  if (kind % 8 == 7) {
    adopt(first);
    return 0;
  }
  Harness harness({4U << first.byte() % 4, 4U << first.byte() % 4});
  for (size_t i = 0; i < kMostRecords && !input.empty(); ++i) {
    harness.step(next_record(input));
    harness.check();
  }
  harness.end();
  return 0;
}
