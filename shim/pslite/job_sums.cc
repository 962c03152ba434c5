#include "shim/pslite/job_sums.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace mercury_van {
namespace {

constexpr int kOpenMs = 10000;     // one attempt; others may come to it much later
constexpr int kPauseMs = 300;      // between attempts
constexpr int kLookMs = 500;       // an idle job tells nobody that it has failed
constexpr int kRoomMs = 1;         // nothing says when a ring has room again
constexpr size_t kAlignment = 64;  // of counts behind values

// The next attempt may be better: somebody is not there yet, or is being started again.
bool is_passing(int error) {
  static constexpr std::array<int, 10> kPassing = {
      EPIPE, ETIME, ECONNRESET, EHOSTDOWN, ETIMEDOUT, EADDRINUSE, EAGAIN, ENODEV, EIO, ESHUTDOWN};
  return std::find(kPassing.begin(), kPassing.end(), -error) != kPassing.end();
}

size_t bytes_of(mercury_dtype type) {
  return type == MERCURY_DTYPE_F64 || type == MERCURY_DTYPE_I64 ? 8 : 4;
}

size_t rounded_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Mercury's tensors of a key: its values, and how many sums each worker has.
uint32_t values_of(uint64_t number) { return static_cast<uint32_t>(number * 2); }
uint32_t counts_of(uint64_t number) { return values_of(number) + 1; }

// Mercury's most urgent priority is 0; ps-lite's the greatest, and 0 that of whoever says nothing.
int mercury_priority(int priority) {
  constexpr int kMiddle = 32768, kLeastUrgent = 65535;
  if (priority >= kMiddle) return 0;
  return priority <= kMiddle - kLeastUrgent ? kLeastUrgent : kMiddle - priority;
}

}  // namespace

std::pair<std::string, int> rendezvous_of(const std::vector<std::string>& hosts) {
  std::vector<std::string> known;
  std::string words;
  for (const std::string& host : hosts) {
    if (std::find(known.begin(), known.end(), host) != known.end()) continue;
    known.push_back(host);
    if (!words.empty()) words += ",";
    words += host.find(':') == std::string::npos ? host : "[" + host + "]";
  }
  return {words, static_cast<int>(known.size())};
}

JobSums::JobSums(FindPlace find_place, Say warn, Say fail)
    : find_place_(std::move(find_place)),
      warn_(std::move(warn)),
      fail_(std::move(fail)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_ < 0) fail_("no eventfd: " + std::generic_category().message(errno));
  read_secret();
  thread_ = std::thread(&JobSums::run, this);
}

JobSums::~JobSums() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  ::eventfd_write(wake_, 1);
  thread_.join();
  ::close(wake_);
}

void JobSums::push(uint64_t number, mercury_dtype type, const char* values, size_t bytes,
                   int priority, const Taken& taken) {
  std::string wrong;
  bool is_taken = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    OfKey& key = keys_[number];
    if (key.bytes == 0) {
      key.number = number;
      key.type = type;
      key.bytes = bytes;
    } else if (key.type != type || key.bytes != bytes) {
      wrong = "it was pushed with " + std::to_string(key.bytes) + " bytes before, now with " +
              std::to_string(bytes) + (key.type == type ? "" : " of another type");
    }
    if (wrong.empty()) {
      ++key.pushed;
      is_taken = key.waiting.size() < kMostAhead;
      key.waiting.push_back(Contribution{std::vector<char>(values, values + bytes), priority,
                                         is_taken ? Taken() : taken});
      news_.push_back(&key);
    }
  }
  if (!wrong.empty()) fail_("key number " + std::to_string(number) + ": " + wrong);
  if (is_taken) taken();
  ::eventfd_write(wake_, 1);
}

void JobSums::pull(const std::vector<uint64_t>& numbers, Take take) {
  const std::shared_ptr<Pull> pull = std::make_shared<Pull>();
  pull->take = std::move(take);
  pull->sums.resize(numbers.size());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < numbers.size(); ++i) {
      OfKey& key = keys_[numbers[i]];
      if (key.summed == key.pushed && key.last) {
        pull->sums[i] = key.last;
      } else {
        // Before any push: another thread is about to push it.
        key.pulls.push_back(Waiting{std::max<uint64_t>(key.pushed, 1), pull, i});
        ++pull->missing;
      }
    }
    if (pull->missing > 0) return;
  }
  pull->take(pull->sums);
}

bool JobSums::drain(int milliseconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [this] {
    return std::all_of(keys_.begin(), keys_.end(),
                       [](const auto& each) { return each.second.waiting.empty(); });
  });
}

bool JobSums::is_ending() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ending_;
}

void JobSums::run() {
  while (!is_ending()) {
    if (job_ == nullptr && !open()) {
      pause();
      continue;
    }
    look_at_news();
    if (!is_broken_) submit_all();
    if (!is_broken_) wait_for_news();
    if (!is_broken_) take_completions();
    if (!is_broken_) continue;
    close();
    pause();
  }
  close();
}

void JobSums::pause() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(kPauseMs), [this] { return ending_; });
}

void JobSums::warn_once(const std::string& what) {
  if (what != warned_) warn_(what);
  warned_ = what;
}

// --- the job -----------------------------------------------------------------------------------

bool JobSums::attach() {
  mercury_attach_options options;
  mercury_attach_options_init(&options, sizeof options);
  options.mode = mode_;
  const int done = mercury_attach(&options, &context_);
  if (done == 0) {
    mode_ = mercury_context_get_mode(context_);
    return true;
  }
  context_ = nullptr;
  const std::string why = std::string("cannot attach to Mercury: ") + mercury_last_error();
  if (!is_passing(done)) fail_(why);
  warn_once(why);
  return false;
}

// The library reads the file, which needs ps-lite's variables beside it; without a file they need
// not be the environment's. Once: the file may go while jobs are opened again.
void JobSums::read_secret() {
  const auto set = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  secret_ = set("MERCURY_SECRET");
  if (*set("MERCURY_SECRET_FILE") == '\0') return;
  mercury_job_options said;
  mercury_job_options_init(&said, sizeof said);
  if (mercury_job_options_from_env(&said) != 0) return fail_(mercury_last_error());
  if (said.secret != nullptr) secret_ = said.secret;
}

bool JobSums::open() {
  if (!find_place_(&place_) || !attach()) return false;
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  options.name = place_.name.c_str();
  options.secret = secret_.empty() ? nullptr : secret_.c_str();
  options.role = MERCURY_ROLE_WORKER;
  options.rank = place_.rank;
  options.workers = place_.workers;
  options.servers = place_.servers;
  options.rendezvous = place_.rendezvous.c_str();
  options.timeout_ms = kOpenMs;
  const int done = mercury_job_open(context_, &options, &job_);
  if (done == 0) {
    warned_.clear();
    return true;
  }
  job_ = nullptr;
  const std::string why = "job " + place_.name + ": " + mercury_last_error();
  if (!is_passing(done)) fail_(why);
  warn_once(why);
  close();
  return false;
}

void JobSums::close() {
  mercury_job_close(job_);
  mercury_detach(context_);
  job_ = nullptr;
  context_ = nullptr;
  is_broken_ = false;
  unsubmitted_.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  news_.clear();
  for (auto& each : keys_) {
    each.second.step = Step::kUndeclared;
    news_.push_back(&each.second);
  }
}

void JobSums::broke(const std::string& what, int error) {
  const std::string why = what + ": " + mercury_last_error();
  if (!is_passing(error)) fail_(why);
  warn_once(why + "; a new job is opened");
  is_broken_ = true;
}

// --- what was pushed ---------------------------------------------------------------------------

void JobSums::look_at_news() {
  std::deque<OfKey*> news;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    news.swap(news_);
  }
  std::vector<OfKey*> undeclared;
  for (OfKey* const key : news) {
    if (key->step == Step::kUndeclared) {
      key->step = Step::kComparing;
      place_in_memory(*key);
      undeclared.push_back(key);
    } else if (key->step == Step::kReady) {
      contribute(*key);
    }
    if (is_broken_) return;
  }
  if (!undeclared.empty()) declare(undeclared);
}

void JobSums::place_in_memory(OfKey& key) {
  const size_t counts_at = rounded_up(key.bytes);
  void* memory = nullptr;
  const int done = mercury_alloc(
      context_, counts_at + static_cast<size_t>(place_.workers) * sizeof(int64_t), &memory);
  if (done < 0) return broke("no memory for key number " + std::to_string(key.number), done);
  key.values = static_cast<char*>(memory);
  key.counts = reinterpret_cast<int64_t*>(key.values + counts_at);
}

void JobSums::declare(const std::vector<OfKey*>& keys) {
  std::vector<mercury_tensor_options> tensors;
  for (const OfKey* const key : keys) {
    mercury_tensor_options tensor;
    mercury_tensor_options_init(&tensor, sizeof tensor);
    tensor.id = values_of(key->number);
    tensor.numel = key->bytes / bytes_of(key->type);
    tensor.dtype = key->type;
    tensor.data = key->values;
    tensors.push_back(tensor);
    tensor.id = counts_of(key->number);
    tensor.numel = static_cast<uint64_t>(place_.workers);
    tensor.dtype = MERCURY_DTYPE_I64;
    tensor.data = key->counts;
    tensors.push_back(tensor);
  }
  const int done = mercury_declare(job_, tensors.data(), tensors.size());
  // Mercury names tensors; a key's has twice its number.
  if (done == -EPROTOTYPE) return broke("workers push a key differently", done);
  if (done < 0) return broke("keys are not declared", done);
  for (OfKey* const key : keys) {
    if (!is_broken_) compare(*key);
  }
}

void JobSums::submit(OfKey& key, Step step) {
  key.step = step;
  unsubmitted_.push_back(&key);
  submit_all();
}

// As many as there is room for: more keys may be in flight than the rings hold.
void JobSums::submit_all() {
  while (!unsubmitted_.empty()) {
    const OfKey& key = *unsubmitted_.front();
    int priority = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!key.waiting.empty()) priority = key.waiting.front().priority;
    }
    const uint32_t tensor =
        key.step == Step::kComparing ? counts_of(key.number) : values_of(key.number);
    const int done = mercury_push_pull(job_, tensor, mercury_priority(priority), nullptr);
    if (done == -EAGAIN) return;
    if (done < 0) return broke("key number " + std::to_string(key.number), done);
    unsubmitted_.pop_front();
  }
}

void JobSums::compare(OfKey& key) {
  std::fill(key.counts, key.counts + place_.workers, 0);
  key.counts[place_.rank] = static_cast<int64_t>(key.summed);
  submit(key, Step::kComparing);
}

int64_t JobSums::most_sums(const OfKey& key) const {
  return *std::max_element(key.counts, key.counts + place_.workers);
}

// All know how many sums each has. The first of those that have most hands on its last, as a sum
// with nothing of the others.
void JobSums::catch_up(OfKey& key) {
  const int64_t* const end = key.counts + place_.workers;
  const int64_t* const richest = std::max_element(static_cast<const int64_t*>(key.counts), end);
  if (std::all_of(static_cast<const int64_t*>(key.counts), end,
                  [richest](int64_t count) { return count == *richest; })) {
    return contribute(key);
  }
  if (richest - key.counts == place_.rank) {
    std::memcpy(key.values, key.last->data(), key.bytes);
  } else {
    std::memset(key.values, 0, key.bytes);
  }
  submit(key, Step::kCatchingUp);
}

void JobSums::adopt(OfKey& key) {
  const uint64_t most = static_cast<uint64_t>(most_sums(key));
  // That round had this worker's push, else nobody could have its sum.
  if (key.summed < most && key.has_contributed) return finish(key);
  if (key.summed < most) {
    // Another process was this worker then. What this one has pushed is of the rounds after it.
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t missed = most - key.summed;
    key.summed += missed;
    key.pushed += missed;
    for (Waiting& waiting : key.pulls) waiting.round += missed;
    key.last = copy_of(key);
  }
  contribute(key);
}

void JobSums::contribute(OfKey& key) {
  const Contribution* first = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!key.waiting.empty()) first = &key.waiting.front();
  }
  key.step = Step::kReady;
  if (first == nullptr) return;
  std::memcpy(key.values, first->values.data(), key.bytes);
  key.has_contributed = true;
  submit(key, Step::kSumming);
}

JobSums::Sum JobSums::copy_of(const OfKey& key) const {
  return std::make_shared<const std::vector<char>>(key.values, key.values + key.bytes);
}

void JobSums::finish(OfKey& key) {
  const Sum sum = copy_of(key);
  std::vector<std::shared_ptr<Pull>> complete;
  Taken taken;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    key.last = sum;
    key.waiting.pop_front();
    ++key.summed;
    if (key.waiting.size() >= kMostAhead) taken.swap(key.waiting[kMostAhead - 1].taken);
    for (; !key.pulls.empty() && key.pulls.front().round <= key.summed; key.pulls.pop_front()) {
      const Waiting& waiting = key.pulls.front();
      waiting.pull->sums[waiting.place] = sum;
      if (--waiting.pull->missing == 0) complete.push_back(waiting.pull);
    }
  }
  changed_.notify_all();
  key.has_contributed = false;
  if (taken) taken();
  for (const std::shared_ptr<Pull>& pull : complete) pull->take(pull->sums);
  contribute(key);
}

// --- what comes back ---------------------------------------------------------------------------

void JobSums::wait_for_news() {
  const int completions = mercury_job_get_fd(job_);
  if (completions < 0) return broke("the job", completions);
  std::array<pollfd, 2> looked = {{{completions, POLLIN, 0}, {wake_, POLLIN, 0}}};
  const bool has_room = unsubmitted_.empty();
  const int ready = ::poll(looked.data(), looked.size(), has_room ? kLookMs : kRoomMs);
  eventfd_t value = 0;
  if (looked[1].revents != 0) ::eventfd_read(wake_, &value);
  if (ready != 0 || !has_room) return;
  const int ended = mercury_job_wait_end(job_, 0);
  if (ended != -ETIMEDOUT) broke("the job", ended == 0 ? -ECONNRESET : ended);
}

void JobSums::take_completions() {
  std::array<mercury_completion, 64> completions;
  while (!is_broken_) {
    const int count =
        mercury_poll(job_, completions.data(), completions.size(), sizeof completions[0]);
    if (count < 0) return broke("the job", count);
    if (count == 0) return;
    for (int i = 0; i < count && !is_broken_; ++i) {
      on_completion(completions[static_cast<size_t>(i)]);
    }
  }
}

void JobSums::on_completion(const mercury_completion& completion) {
  const uint64_t number = completion.tensor / 2;
  if (completion.status < 0) {
    return broke("key number " + std::to_string(number), completion.status);
  }
  OfKey* key = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    key = &keys_.at(number);
  }
  if (key->step == Step::kComparing) {
    catch_up(*key);
  } else if (key->step == Step::kCatchingUp) {
    adopt(*key);
  } else {
    finish(*key);
  }
}

}  // namespace mercury_van
