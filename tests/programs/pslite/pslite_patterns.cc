// A program of ps-lite's that checks what it gets: some twenty ways in which workers and servers
// talk. It knows nothing of Mercury, and compiles with BytePS's tree and with dmlc's.
//
// usage: pslite_patterns ROUNDS [PATTERN...]     with ps-lite's environment (DMLC_ROLE, ...)
//   PSLITE_TAKES_A_PLACE=1: started later, for one that has gone
//
// Status 0: every answer was right. 3: one was not, and standard error says which.
#include <ps/ps.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/programs/pslite/pslite_program.h"

namespace {

// What the servers do with a push. One that is held is answered when words ask for it.
enum Command { kSet, kAdd, kSumOfAll, kReverse, kHold };
constexpr int kRelease = 10;  // the head of those words

bool takes_a_place() { return std::getenv("PSLITE_TAKES_A_PLACE") != nullptr; }

// The servers' part: what is pushed is kept by key.
class Store {
 public:
  void handle(const ps::KVMeta& request, const ps::KVPairs<float>& data,
              ps::KVServer<float>* server) {
    if (!request.push) return kept_.answer_pull(request, data, server);
    kept_.take(data, request.cmd != kSet);
    answer_push(request, data, server);
  }

  void release(ps::KVServer<float>* server) {
    for (const ps::KVMeta& one : held_) server->Response(one);
    held_.clear();
  }

 private:
  void answer_push(const ps::KVMeta& request, const ps::KVPairs<float>& data,
                   ps::KVServer<float>* server) {
    if (request.cmd == kSet || request.cmd == kAdd) return server->Response(request);
    if (request.cmd == kHold) return held_.push_back(request);
    // All are answered when the last worker has pushed it.
    std::vector<ps::KVMeta>& waiting = waiting_[data.keys[0]];
    waiting.push_back(request);
    if (waiting.size() < static_cast<size_t>(ps::NumWorkers())) return;
    if (request.cmd == kReverse) std::reverse(waiting.begin(), waiting.end());
    for (const ps::KVMeta& one : waiting) server->Response(one);
    waiting.clear();
  }

  Kept kept_;
  std::map<Key, std::vector<ps::KVMeta>> waiting_;
  std::vector<ps::KVMeta> held_;
};

// A server's application that comes when a worker asks for it: its messages are there before it is.
class LateApplication {
 public:
  static constexpr int kId = 2, kBegin = 9;  // the words that ask for it

  // By one thread: application 0's.
  void begin() {
    if (customer_) return;
    customer_.reset(
        new ps::Customer(kId, kId, [this](const ps::Message& push) { take_and_answer(push); }));
  }

 private:
  void take_and_answer(const ps::Message& push) {
    float value = 0;
    std::memcpy(&value, push.data.at(1).data(), sizeof value);
    float& last = last_[push.meta.sender];
    expect(kHasPriority || value == last + 1, "a push overtook another one of its key");
    last = value;
    ps::Message answer;
    answer.meta.app_id = kId;
    answer.meta.customer_id = push.meta.customer_id;
    answer.meta.request = false;
    answer.meta.push = true;
    answer.meta.timestamp = push.meta.timestamp;
    answer.meta.recver = push.meta.sender;
    ps::Postoffice::Get()->van()->Send(answer);
  }

  std::map<int, float> last_;  // by worker
  std::unique_ptr<ps::Customer> customer_;
};

class PatternWorker {
 public:
  explicit PatternWorker(int app) : kv(app, 0) {}

  // Keys that only this worker has, or that all have: new ones for each pattern and round.
  std::vector<Key> keys(size_t per_server, bool own) const {
    const auto& ranges = ps::Postoffice::Get()->GetServerKeyRanges();
    std::vector<Key> out;
    for (const auto& range : ranges) {
      for (size_t i = 0; i < per_server; ++i) {
        out.push_back(range.begin() + base + i * 64 +
                      (own ? static_cast<Key>(ps::MyRank()) + 1 : 0));
      }
    }
    return out;
  }

  // Whole numbers, so that sums are exact.
  Values values(size_t count, int salt = 0) const {
    Values out(count);
    for (size_t i = 0; i < count; ++i) {
      out[i] = static_cast<float>((i * 7 + static_cast<size_t>(salt) * 131 + iteration) % 4096 +
                                  static_cast<size_t>(ps::MyRank()));
    }
    return out;
  }

  Values pulled(const std::vector<Key>& keys, size_t count) {
    ps::SArray<float> out(count);
    kv.Wait(kv.ZPull(ps::SArray<Key>(keys), &out));
    return Values(out.begin(), out.end());
  }

  void round_trip(const std::vector<Key>& keys, size_t count_each, int salt = 0) {
    const Values sent = values(keys.size() * count_each, salt);
    kv.Wait(kv.Push(keys, sent, {}, kSet));
    expect(pulled(keys, sent.size()) == sent, "another value than was pushed");
  }

  ps::KVWorker<float> kv;
  ps::KVWorker<float>* late = nullptr;
  Key base = 0;
};

void sum_of_all(PatternWorker& w, int command, size_t count) {
  const std::vector<Key> keys = w.keys(1, false);
  const Values own(count * keys.size(), static_cast<float>(ps::MyRank() + 1));
  w.kv.Wait(w.kv.Push(keys, own, {}, command));
  if (command == kAdd) barrier();
  const int n = ps::NumWorkers();
  expect(w.pulled(keys, own.size()) == Values(own.size(), static_cast<float>(n * (n + 1) / 2)),
         "another sum than that of all workers");
  barrier();
}

void sizes(PatternWorker& w, const std::vector<size_t>& counts) {
  const std::vector<Key> keys = w.keys(counts.size(), true);
  for (size_t i = 0; i < counts.size(); ++i)
    w.round_trip({keys[i]}, counts[i], static_cast<int>(i));
}

void lengths_differ(PatternWorker& w) {
  const std::vector<Key> keys = w.keys(5, true);
  std::vector<int> lens;
  size_t total = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    lens.push_back(static_cast<int>(i * i * 100 + 1));
    total += i * i * 100 + 1;
  }
  const Values sent = w.values(total);
  w.kv.Wait(w.kv.Push(keys, sent, lens, kSet));
  ps::SArray<float> got;
  ps::SArray<int> got_lens;
  w.kv.Wait(w.kv.ZPull(ps::SArray<Key>(keys), &got, &got_lens));
  expect(Values(got.begin(), got.end()) == sent, "another value than was pushed");
  expect(std::vector<int>(got_lens.begin(), got_lens.end()) == lens, "other lengths than pushed");
}

void outstanding(PatternWorker& w) {
  constexpr size_t kRequests = 40, kCount = 1000;
  const std::vector<Key> keys = w.keys(kRequests, true);
  std::vector<int> sent;
  for (size_t i = 0; i < kRequests; ++i) {
    sent.push_back(w.kv.Push({keys[i]}, w.values(kCount, static_cast<int>(i)), {}, kSet));
  }
  std::reverse(sent.begin(), sent.end());
  for (const int timestamp : sent) w.kv.Wait(timestamp);
  std::vector<ps::SArray<float>> got(kRequests);
  std::vector<int> pulls;
  for (size_t i = 0; i < kRequests; ++i) {
    got[i].resize(kCount);
    pulls.push_back(w.kv.ZPull(ps::SArray<Key>({keys[i]}), &got[i]));
  }
  for (const int timestamp : pulls) w.kv.Wait(timestamp);
  for (size_t i = 0; i < kRequests; ++i) {
    expect(Values(got[i].begin(), got[i].end()) == w.values(kCount, static_cast<int>(i)),
           "another value than was pushed");
  }
}

void pull_behind_push(PatternWorker& w) {
  if (kHasPriority) return;  // no order is promised there
  const std::vector<Key> keys = w.keys(1, true);
  for (int i = 0; i < 4; ++i) {
    const Values sent = w.values(keys.size() * 3000, i);
    ps::SArray<float> got(sent.size());
    const int push = w.kv.Push(keys, sent, {}, kSet);
    const int pull = w.kv.ZPull(ps::SArray<Key>(keys), &got);
    w.kv.Wait(pull);
    w.kv.Wait(push);
    expect(Values(got.begin(), got.end()) == sent, "a pull overtook the push before it");
  }
}

void callbacks(PatternWorker& w) {
  const std::vector<Key> keys = w.keys(1, true);
  std::atomic<int> called{0};
  for (int i = 0; i < 8; ++i) {
    w.kv.Wait(w.kv.Push(keys, w.values(keys.size()), {}, kSet, [&called] { ++called; }));
  }
  expect(called == 8, "callbacks ran " + std::to_string(called) + " times in 8 requests");
}

void own_buffers(PatternWorker& w) {
  const std::vector<Key> keys = w.keys(1, true);
  Values buffer(keys.size() * 20000);
  for (int i = 0; i < 3; ++i) {
    const Values sent = w.values(buffer.size(), i);
    std::copy(sent.begin(), sent.end(), buffer.begin());
    const ps::SArray<float> view(buffer.data(), buffer.size());
    w.kv.Wait(w.kv.ZPush(ps::SArray<Key>(keys), view, ps::SArray<int>(), kSet));
    std::fill(buffer.begin(), buffer.end(), -1.F);  // ours again
    expect(w.pulled(keys, buffer.size()) == sent, "a buffer was read after its push");
  }
}

void threads(PatternWorker& w) {
  const std::vector<Key> keys = w.keys(4, true);
  std::vector<std::thread> all;
  for (int i = 0; i < 4; ++i) {
    all.emplace_back([&w, &keys, i] {
      for (int j = 0; j < 4; ++j) w.round_trip({keys[static_cast<size_t>(i)]}, 500, j);
    });
  }
  for (std::thread& thread : all) thread.join();
}

void requests_of_words(PatternWorker& w) {
  std::atomic<int> answers{0};
  w.kv.set_response_handle([&answers](const ps::SimpleData& answer, ps::SimpleApp*) {
    if (answer.body == std::string(3000, 'x') + "!") ++answers;
  });
  w.kv.Wait(w.kv.Request(7, std::string(3000, 'x'), ps::kServerGroup));
  expect(answers == ps::NumServers(), "other words than the servers answer");
}

// Pushes of an application that its servers begin while they are there already.
void late_application(PatternWorker& w) {
  constexpr int kPushes = 200;
  std::vector<int> sent;
  for (int i = 1; i <= kPushes; ++i) {
    const auto value = static_cast<float>(iteration * kPushes + i);
    for (const Key key : w.keys(1, true)) sent.push_back(w.late->Push({key}, {value}));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until they wait there
  w.kv.Wait(w.kv.Request(LateApplication::kBegin, "", ps::kServerGroup));
  for (const int timestamp : sent) w.late->Wait(timestamp);
}

// Held until a process that takes another one's place has pushed by the same timestamp.
void held(PatternWorker& w) {
  const std::vector<Key> keys = w.keys(1, true);
  const int sent = w.kv.Push(keys, w.values(keys.size()), {}, takes_a_place() ? kSet : kHold);
  std::cout << "pushed" << std::endl;
  if (takes_a_place()) {
    w.kv.Wait(w.kv.Request(kRelease, "", ps::kServerGroup));
    w.round_trip(w.keys(1, true), 10);  // behind what the servers have answered before
  }
  w.kv.Wait(sent);
  expect(w.kv.get_customer()->NumResponse(sent) == ps::NumServers(), "another process's answer");
}

// Overloads: only dmlc's trees know priorities.
template <typename Kv>
auto urgent(Kv& kv, PatternWorker& w, int) -> decltype(kv.Push({}, {}, {}, 0, nullptr, 0), void()) {
  const std::vector<Key> keys = w.keys(20, true);
  std::vector<int> sent;
  for (size_t i = 0; i < 20; ++i) {
    sent.push_back(kv.Push({keys[i]}, w.values(50000, static_cast<int>(i)), {}, kSet, nullptr,
                           static_cast<int>(i * 7 % 20) - 10));
  }
  for (const int timestamp : sent) kv.Wait(timestamp);
  for (size_t i = 0; i < 20; ++i) {
    expect(w.pulled({keys[i]}, 50000) == w.values(50000, static_cast<int>(i)),
           "another value than was pushed");
  }
}
void urgent(ps::KVWorker<float>&, PatternWorker&, long) {}

struct Pattern {
  const char* name;
  std::function<void(PatternWorker&)> run;
};

const std::vector<Pattern> patterns = {
    {"own_key", [](PatternWorker& w) { w.round_trip(w.keys(1, true), 10); }},
    {"one_server", [](PatternWorker& w) { w.round_trip({w.keys(1, true)[0]}, 10); }},
    {"last_server", [](PatternWorker& w) { w.round_trip({w.keys(1, true).back()}, 10); }},
    {"many_keys", [](PatternWorker& w) { w.round_trip(w.keys(100, true), 3); }},
    {"no_keys", [](PatternWorker& w) { w.kv.Wait(w.kv.Push({}, {})); }},
    {"lengths_differ", lengths_differ},
    {"sum_of_all", [](PatternWorker& w) { sum_of_all(w, kAdd, 1000); }},
    {"sum_of_all_large", [](PatternWorker& w) { sum_of_all(w, kAdd, 300000); }},
    {"answered_when_all_have_pushed", [](PatternWorker& w) { sum_of_all(w, kSumOfAll, 5000); }},
    {"answered_in_reverse", [](PatternWorker& w) { sum_of_all(w, kReverse, 5000); }},
    {"one_number", [](PatternWorker& w) { sizes(w, {1}); }},
    {"around_64_kib",
     [](PatternWorker& w) {
       sizes(w, {16383, 16384, 16385});
     }},
    {"around_256_kib",
     [](PatternWorker& w) {
       sizes(w, {65535, 65536, 65537, 131072});
     }},
    {"large", [](PatternWorker& w) { sizes(w, {2000000}); }},
    {"small_ones_in_a_row",
     [](PatternWorker& w) {
       for (int i = 0; i < 10; ++i) w.round_trip({w.keys(1, true)[0]}, 1, i);
     }},
    {"outstanding", outstanding},
    {"pull_behind_push", pull_behind_push},
    {"pulled_again",
     [](PatternWorker& w) {
       const std::vector<Key> keys = w.keys(2, true);
       w.round_trip(keys, 500);
       for (int i = 0; i < 3; ++i)
         expect(w.pulled(keys, 500 * keys.size()) == w.values(500 * keys.size()), "another value");
     }},
    {"pulled_into_more",
     [](PatternWorker& w) {
       if (kHasPriority) return;  // where there must be as much room as is pulled
       const std::vector<Key> keys = w.keys(1, true);
       w.round_trip(keys, 100);
       ps::SArray<float> got(keys.size() * 100 + 50, -1.F);
       w.kv.Wait(w.kv.ZPull(ps::SArray<Key>(keys), &got));
       expect(std::count(got.end() - 50, got.end(), -1.F) == 50, "more was written than pulled");
     }},
    {"callbacks", callbacks},
    {"own_buffers", own_buffers},
    {"threads", threads},
    {"words", requests_of_words},
    {"urgent", [](PatternWorker& w) { urgent(w.kv, w, 0); }},
    {"barriers",
     [](PatternWorker&) {
       for (int i = 0; i < 5; ++i) barrier();
     }},
    {"late_application", late_application},
};

// Only when it is asked for.
const Pattern held_pattern = {"held", held};

void run_worker(int rounds, const std::vector<std::string>& chosen) {
  PatternWorker first(0), second(1);  // two applications side by side
  ps::KVWorker<float> late(LateApplication::kId, 0);
  first.late = second.late = &late;
  if (chosen == std::vector<std::string>{held_pattern.name}) held_pattern.run(first);
  for (iteration = 0; iteration < rounds; ++iteration) {
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (!chosen.empty() &&
          std::find(chosen.begin(), chosen.end(), patterns[i].name) == chosen.end()) {
        continue;
      }
      pattern = patterns[i].name;
      PatternWorker& worker = i % 8 == 7 ? second : first;
      worker.base = (static_cast<Key>(iteration) * patterns.size() + i) << 20U;
      patterns[i].run(worker);
    }
    std::cout << "round " << iteration << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: pslite_patterns ROUNDS [PATTERN...]\n";
    return 2;
  }
  if (takes_a_place()) {
    ps::StartAsync(0);  // the others have left the first barrier
  } else {
    ps::Start(0);
  }
  Store stores[2];
  LateApplication late;
  std::vector<std::unique_ptr<ps::KVServer<float>>> servers;
  if (ps::IsServer()) {
    for (int app = 0; app < 2; ++app) {
      servers.emplace_back(new ps::KVServer<float>(app));
      Store* const store = &stores[app];
      ps::KVServer<float>* const server = servers.back().get();
      servers.back()->set_request_handle(
          [store](const ps::KVMeta& request, const ps::KVPairs<float>& data,
                  ps::KVServer<float>* of) { store->handle(request, data, of); });
      static_cast<ps::SimpleApp*>(servers.back().get())
          ->set_request_handle(
              [&late, store, server](const ps::SimpleData& words, ps::SimpleApp* app_of_it) {
                if (words.head == LateApplication::kBegin) late.begin();
                if (words.head == kRelease) store->release(server);
                app_of_it->Response(words, words.body + "!");
              });
    }
  }
  if (ps::IsWorker()) {
    run_worker(std::atoi(argv[1]), std::vector<std::string>(argv + 2, argv + argc));
  }
  ps::Finalize(0, true);
  return 0;
}
