// A program of ps-lite's whose workers push the same keys and pull their sums, in some twenty-five
// ways. Each sum is compared exactly: its numbers are whole. It compiles with BytePS's tree and
// with dmlc's, and is the same for each mode of the van; the servers' part counts what it sees.
//
// usage: pslite_sums MODE ROUNDS [PATTERN...]     with ps-lite's environment (DMLC_ROLE, ...)
//   MODE: transparent, aggregate, notify: who sums, as MERCURY_PSLITE_MODE says
//
// Status 0: every sum was right. 3: one was not, and standard error says which.
#include <ps/ps.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/programs/pslite/pslite_program.h"

namespace {

// What servers do with a push: keep it; keep the sum of all workers'; add that to what they have.
enum Command { kSet, kSum, kTotal };

std::string mode;

// Servers' queues may change the order of a worker's requests for one key.
bool keeps_order() { return !kHasPriority || mode == "aggregate"; }

// A server's: sums the rounds of each key, whoever has summed before.
class Summer {
 public:
  void handle(const ps::KVMeta& request, const ps::KVPairs<float>& data,
              ps::KVServer<float>* server) {
    if (!request.push) {
      ++pulls;
      Open* const open = data.keys.empty() ? nullptr : last_with(request, open_[data.keys[0]]);
      if (open == nullptr) return kept_.answer_pull(request, data, server);
      open->pulls.emplace_back(request, data);
    } else if (request.cmd == kSet || data.vals.empty() || are_first_values(request)) {
      ++plain_pushes;
      kept_.take(data, false);
      server->Response(request);
    } else {
      add(request, data, server);
    }
  }

  std::atomic<int> pulls{0}, plain_pushes{0}, contributions{0}, merged_pushes{0};

 private:
  struct Open {
    ps::KVPairs<float> sum;
    std::vector<ps::KVMeta> pushes;
    std::vector<std::pair<ps::KVMeta, ps::KVPairs<float>>> pulls;
    bool has(const ps::KVMeta& request) const {
      return std::any_of(pushes.begin(), pushes.end(),
                         [&](const ps::KVMeta& push) { return push.sender == request.sender; });
    }
  };

  // By the command of all rounds; only the van knows them.
  static bool are_first_values(const ps::KVMeta& request) {
    return mode != "transparent" && std::getenv("MERCURY_PSLITE_FIRST") != nullptr &&
           request.sender != ps::kWorkerGroup;
  }

  static Open* last_with(const ps::KVMeta& request, std::deque<Open>& rounds) {
    const auto found = std::find_if(rounds.rbegin(), rounds.rend(),
                                    [&request](const Open& one) { return one.has(request); });
    return found == rounds.rend() ? nullptr : &*found;
  }

  void add(const ps::KVMeta& request, const ps::KVPairs<float>& data, ps::KVServer<float>* server) {
    const bool is_merged = request.sender == ps::kWorkerGroup;
    expect(mode != "aggregate", "a server sees a push that Mercury sums");
    expect(is_merged == (mode == "notify"), "a push of another sender than the mode says");
    ++(is_merged ? merged_pushes : contributions);
    std::deque<Open>& rounds = open_[data.keys[0]];
    auto at = std::find_if(rounds.begin(), rounds.end(),
                           [&request](const Open& one) { return !one.has(request); });
    if (at == rounds.end()) at = rounds.insert(at, Open());
    Open& open = *at;
    if (open.pushes.empty()) {
      open.sum.keys.CopyFrom(data.keys);
      open.sum.vals.CopyFrom(data.vals);
      open.sum.lens.CopyFrom(data.lens);
    } else {
      expect(data.vals.size() == open.sum.vals.size(), "pushes of different lengths in a round");
      for (size_t i = 0; i < data.vals.size(); ++i) open.sum.vals[i] += data.vals[i];
    }
    open.pushes.push_back(request);
    if (!is_merged && open.pushes.size() < static_cast<size_t>(ps::NumWorkers())) return;
    const Open whole = open;
    rounds.erase(at);
    kept_.take(whole.sum, request.cmd == kTotal);
    for (const ps::KVMeta& push : whole.pushes) answer_push(push, whole.sum, server, 0);
    for (const auto& pull : whole.pulls) kept_.answer_pull(pull.first, pull.second, server);
  }

  // Overloads: only dmlc's trees have a push that is a pull, too.
  template <typename M>
  auto answer_push(const M& request, const ps::KVPairs<float>& data, ps::KVServer<float>* server,
                   int) -> decltype(request.pull, void()) {
    if (request.pull) return kept_.answer_pull(request, data, server);
    server->Response(request);
  }
  template <typename M>
  void answer_push(const M& request, const ps::KVPairs<float>&, ps::KVServer<float>* server, long) {
    server->Response(request);
  }

  Kept kept_;
  std::map<Key, std::deque<Open>> open_;
};

class SumWorker {
 public:
  SumWorker(int app, int customer) : kv(app, customer) {}

  // New ones for each pattern and round, the same on all workers.
  std::vector<Key> keys(size_t per_server) const {
    std::vector<Key> out;
    for (const auto& range : ps::Postoffice::Get()->GetServerKeyRanges()) {
      for (size_t i = 0; i < per_server; ++i) out.push_back(range.begin() + base + i);
    }
    return out;
  }

  static Values base_values(size_t count, int salt) {
    Values out(count);
    for (size_t i = 0; i < count; ++i) {
      out[i] = static_cast<float>((i * 7 + static_cast<size_t>(salt * 131 + iteration)) % 4096);
    }
    return out;
  }
  static Values own(size_t count, int salt = 0) {
    Values out = base_values(count, salt);
    for (float& value : out) value += static_cast<float>(ps::MyRank());
    return out;
  }
  static Values sum(size_t count, int salt = 0) {
    Values out = base_values(count, salt);
    const auto n = static_cast<float>(ps::NumWorkers());
    for (float& value : out) value = value * n + n * (n - 1) / 2;
    return out;
  }

  int push(const std::vector<Key>& keys, size_t each, int salt = 0, int command = kSum,
           const std::function<void()>& done = nullptr) {
    return kept(kv.Push(keys, own(keys.size() * each, salt), {}, command, done));
  }
  int kept(int timestamp) {
    timestamps.push_back(timestamp);
    return timestamp;
  }
  Values pulled(const std::vector<Key>& keys, size_t each) {
    ps::SArray<float> out(keys.size() * each);
    kv.Wait(kept(kv.ZPull(ps::SArray<Key>(keys), &out)));
    return Values(out.begin(), out.end());
  }
  void expect_sum(const std::vector<Key>& keys, size_t each, int salt = 0) {
    expect(pulled(keys, each) == sum(keys.size() * each, salt),
           "another sum than that of all workers");
  }
  void exchange(const std::vector<Key>& keys, size_t each, int salt = 0) {
    kv.Wait(push(keys, each, salt));
    expect_sum(keys, each, salt);
  }
  // However late one more would come.
  void expect_one_answer_each() {
    for (const int timestamp : timestamps) {
      expect(kv.get_customer()->NumResponse(timestamp) == ps::NumServers(),
             "more answers than servers");
    }
    timestamps.clear();
  }

  ps::KVWorker<float> kv;
  Key base = 0;
  std::vector<int> timestamps;
};

void sizes(SumWorker& w, const std::vector<size_t>& counts) {
  const std::vector<Key> keys = w.keys(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) w.exchange({keys[i]}, counts[i], static_cast<int>(i));
}

void lengths_differ(SumWorker& w) {
  const std::vector<Key> keys = w.keys(5);
  std::vector<int> lens;
  size_t total = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    lens.push_back(static_cast<int>(i * i * 100 + 1));
    total += i * i * 100 + 1;
  }
  w.kv.Wait(w.kv.Push(keys, SumWorker::own(total), lens, kSum));
  ps::SArray<float> got;
  ps::SArray<int> got_lens;
  w.kv.Wait(w.kv.ZPull(ps::SArray<Key>(keys), &got, &got_lens));
  expect(Values(got.begin(), got.end()) == SumWorker::sum(total), "another sum");
  expect(std::vector<int>(got_lens.begin(), got_lens.end()) == lens, "other lengths than pushed");
}

// Overloads: only dmlc's trees know these.
template <typename Kv>
auto push_pull(Kv& kv, SumWorker& w, int) -> decltype(kv.ZPushPull({}, {}, nullptr), void()) {
  const std::vector<Key> keys = w.keys(2);
  for (int i = 0; i < 3; ++i) {
    const Values sent = SumWorker::own(keys.size() * 700, i);
    ps::SArray<float> got(sent.size());
    kv.Wait(
        w.kept(kv.ZPushPull(ps::SArray<Key>(keys), ps::SArray<float>(sent), &got, nullptr, kSum)));
    expect(Values(got.begin(), got.end()) == SumWorker::sum(sent.size(), i), "another sum");
  }
}
void push_pull(ps::KVWorker<float>&, SumWorker&, long) {}

template <typename Kv>
auto urgent(Kv& kv, SumWorker& w, int) -> decltype(kv.Push({}, {}, {}, 0, nullptr, 0), void()) {
  const std::vector<Key> keys = w.keys(20);
  std::vector<int> sent;
  for (size_t i = 0; i < 20; ++i) {
    sent.push_back(kv.Push({keys[i]}, SumWorker::own(50000, static_cast<int>(i)), {}, kSum, nullptr,
                           static_cast<int>(i * 7 % 20) - 10));
  }
  for (const int timestamp : sent) kv.Wait(timestamp);
  for (size_t i = 0; i < 20; ++i) w.expect_sum({keys[i]}, 50000, static_cast<int>(i));
}
void urgent(ps::KVWorker<float>&, SumWorker&, long) {}

void rounds_in_flight(SumWorker& w) {
  if (!keeps_order()) return;
  const std::vector<Key> keys = w.keys(1);
  std::vector<ps::SArray<float>> got(4, ps::SArray<float>(keys.size() * 3000));
  std::vector<int> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(w.push(keys, 3000, i));
    got[static_cast<size_t>(i)] = ps::SArray<float>(keys.size() * 3000);
    all.push_back(w.kept(w.kv.ZPull(ps::SArray<Key>(keys), &got[static_cast<size_t>(i)])));
  }
  for (const int timestamp : all) w.kv.Wait(timestamp);
  for (size_t i = 0; i < 4; ++i) {
    expect(Values(got[i].begin(), got[i].end()) ==
               SumWorker::sum(keys.size() * 3000, static_cast<int>(i)),
           "the sum of another round");
  }
}

void keys_in_flight(SumWorker& w) {
  const std::vector<Key> keys = w.keys(20);
  std::vector<int> sent;
  for (size_t i = 0; i < keys.size(); ++i)
    sent.push_back(w.push({keys[i]}, 1000, static_cast<int>(i)));
  std::reverse(sent.begin(), sent.end());
  for (const int timestamp : sent) w.kv.Wait(timestamp);
  for (size_t i = 0; i < keys.size(); ++i) w.expect_sum({keys[i]}, 1000, static_cast<int>(i));
}

// Each worker begins with another key, and waits for none before it has pushed all.
void other_orders(SumWorker& w) {
  const std::vector<Key> keys = w.keys(5);
  for (int round = 0; round < 3; ++round) {
    std::vector<int> sent;
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t at = (i * 3 + static_cast<size_t>(ps::MyRank()) * 4) % keys.size();
      sent.push_back(w.push({keys[at]}, 2000, static_cast<int>(at) + round));
    }
    for (const int timestamp : sent) w.kv.Wait(timestamp);
    for (size_t i = 0; i < keys.size(); ++i)
      w.expect_sum({keys[i]}, 2000, static_cast<int>(i) + round);
  }
}

void pull_before_push(SumWorker& w) {
  const std::vector<Key> keys = w.keys(1);
  const Values first(keys.size() * 50, 77.F);
  if (ps::MyRank() == 0) w.kv.Wait(w.kv.Push(keys, first, {}, kSet));
  barrier();
  expect(w.pulled(keys, 50) == first, "other first values than the first worker pushed");
  barrier();
  w.exchange(keys, 50);
}

// With MERCURY_PSLITE_FIRST=rank0, by the command of all rounds, but where the van knows of none.
void first_by_rank_zero(SumWorker& w) {
  const std::vector<Key> keys = w.keys(2);
  if (ps::MyRank() == 0) w.kv.Wait(w.push(keys, 40, 5, mode == "transparent" ? kSet : kSum));
  barrier();
  for (int i = 0; i < 3; ++i) w.exchange(keys, 40, i);
}

void own_buffers(SumWorker& w) {
  const std::vector<Key> keys = w.keys(1);
  Values buffer(keys.size() * 20000);
  for (int i = 0; i < 3; ++i) {
    const Values sent = SumWorker::own(buffer.size(), i);
    std::copy(sent.begin(), sent.end(), buffer.begin());
    const ps::SArray<float> view(buffer.data(), buffer.size());
    w.kv.Wait(w.kept(w.kv.ZPush(ps::SArray<Key>(keys), view, ps::SArray<int>(), kSum)));
    std::fill(buffer.begin(), buffer.end(), -1.F);  // ours again
    w.expect_sum(keys, 20000, i);
  }
}

void callbacks(SumWorker& w) {
  const std::vector<Key> keys = w.keys(1);
  std::atomic<int> called{0};
  for (int i = 0; i < 8; ++i) w.kv.Wait(w.push(keys, 1, i, kSum, [&called] { ++called; }));
  expect(called == 8, "callbacks ran " + std::to_string(called) + " times in 8 requests");
}

void threads(SumWorker& w) {
  const std::vector<Key> keys = w.keys(2);
  std::vector<std::thread> all;
  for (size_t i = 0; i < keys.size(); ++i) {
    all.emplace_back([&w, &keys, i] {
      for (int j = 0; j < 4; ++j) {
        w.kv.Wait(w.kv.Push({keys[i]}, SumWorker::own(500, j), {}, kSum));
        ps::SArray<float> got(500);
        w.kv.Wait(w.kv.ZPull(ps::SArray<Key>({keys[i]}), &got));
        expect(Values(got.begin(), got.end()) == SumWorker::sum(500, j), "another sum");
      }
    });
  }
  for (std::thread& thread : all) thread.join();
}

void words(SumWorker& w) {
  std::atomic<int> answers{0};
  w.kv.set_response_handle([&answers](const ps::SimpleData& answer, ps::SimpleApp*) {
    if (answer.body == "words!") ++answers;
  });
  const int sent = w.push(w.keys(1), 1000);
  w.kv.Wait(w.kv.Request(7, "words", ps::kServerGroup));
  w.kv.Wait(sent);
  w.expect_sum(w.keys(1), 1000);
  expect(answers == ps::NumServers(), "other words than the servers answer");
}

// Pushes of this worker alone: what is no sum goes to the servers in each mode.
void own_values(SumWorker& w) {
  std::vector<Key> keys = w.keys(1);
  for (Key& key : keys) key += 100 + static_cast<Key>(ps::MyRank());
  for (int i = 0; i < 3; ++i) {
    w.kv.Wait(w.push(keys, 300, i, kSet));
    expect(w.pulled(keys, 300) == SumWorker::own(keys.size() * 300, i), "another value");
  }
}

void totals(SumWorker& w) {
  if (mode == "aggregate") return;  // servers do nothing there
  const std::vector<Key> keys = w.keys(1);
  Values total(keys.size() * 60, 0.F);
  for (int i = 0; i < 4; ++i) {
    const Values more = SumWorker::sum(total.size(), i);
    for (size_t j = 0; j < total.size(); ++j) total[j] += more[j];
    w.kv.Wait(w.push(keys, 60, i, kTotal));
    expect(w.pulled(keys, 60) == total, "another total of the sums");
    barrier();  // else the other one may be a round ahead
  }
}

void repeated_pulls(SumWorker& w) {
  const std::vector<Key> keys = w.keys(2);
  w.exchange(keys, 500);
  for (int i = 0; i < 3; ++i) w.expect_sum(keys, 500);
  w.expect_sum({keys[0]}, 500);
}

// Each is refused: the van ends a process, and says why.
void refused_lengths(SumWorker& w) {
  w.kv.Wait(w.push({w.keys(1)[0]}, 10 + static_cast<size_t>(ps::MyRank())));
  w.expect_sum({w.keys(1)[0]}, 10);
}
void both_keys(SumWorker& w) { w.kv.Wait(w.push(w.keys(2), 10)); }
void two_customers(SumWorker& w) {
  SumWorker other(0, 2);
  w.kv.Wait(w.push(w.keys(1), 10));
  other.base = w.base;
  other.kv.Wait(other.push(w.keys(1), 10));
}
void refused_optimiser(SumWorker& w) {
  w.kv.Wait(w.kv.Request(0, "cmxnet.optimizer.optimizer\nSGD", ps::kServerGroup));
}

struct Pattern {
  const char* name;
  std::function<void(SumWorker&)> run;
};

const std::vector<Pattern> patterns = {
    {"one_key", [](SumWorker& w) { w.exchange({w.keys(1)[0]}, 10); }},
    {"last_server", [](SumWorker& w) { w.exchange({w.keys(1).back()}, 10); }},
    {"both_servers", [](SumWorker& w) { w.exchange(w.keys(1), 100); }},
    {"many_keys", [](SumWorker& w) { w.exchange(w.keys(50), 3); }},
    {"lengths_differ", lengths_differ},
    {"push_pull", [](SumWorker& w) { push_pull(w.kv, w, 0); }},
    {"rounds_in_a_row",
     [](SumWorker& w) {
       for (int i = 0; i < 10; ++i) w.exchange(w.keys(1), 500, i);
     }},
    {"rounds_in_flight", rounds_in_flight},
    {"keys_in_flight", keys_in_flight},
    {"other_orders", other_orders},
    {"pull_before_push", pull_before_push},
    {"repeated_pulls", repeated_pulls},
    {"barrier_between",
     [](SumWorker& w) {
       w.kv.Wait(w.push(w.keys(1), 200));
       barrier();
       w.expect_sum(w.keys(1), 200);
     }},
    {"callbacks", callbacks},
    {"own_buffers", own_buffers},
    {"no_values", [](SumWorker& w) { w.kv.Wait(w.kept(w.kv.Push(w.keys(1), {}, {}, kSum))); }},
    {"no_keys", [](SumWorker& w) { w.kv.Wait(w.kv.Push({}, {}, {}, kSum)); }},
    {"one_number", [](SumWorker& w) { sizes(w, {1}); }},
    {"around_256_kib",
     [](SumWorker& w) {
       sizes(w, {65535, 65536, 65537, 131072});
     }},
    {"large", [](SumWorker& w) { sizes(w, {4000000}); }},
    {"many_small",
     [](SumWorker& w) {
       for (const Key key : w.keys(30)) w.exchange({key}, 1, static_cast<int>(key % 64));
     }},
    {"threads", threads},
    {"words", words},
    {"own_values", own_values},
    {"urgent", [](SumWorker& w) { urgent(w.kv, w, 0); }},
    {"totals", totals},
};

// Only when they are asked for.
const std::vector<Pattern> special = {
    {"first_by_rank_zero", first_by_rank_zero}, {"refused_lengths", refused_lengths},
    {"refused_optimiser", refused_optimiser},   {"both_keys", both_keys},
    {"two_customers", two_customers},
};

void run_worker(int rounds, const std::vector<std::string>& chosen) {
  SumWorker first(0, 0), second(0, 1);  // two customers of the application whose keys are summed
  SumWorker beside(1, 0);               // and one of which nothing is
  const auto is_chosen = [&chosen](const Pattern& one) {
    return std::find(chosen.begin(), chosen.end(), one.name) != chosen.end();
  };
  std::vector<Pattern> all;
  for (const Pattern& one : patterns) {
    if (chosen.empty() || is_chosen(one)) all.push_back(one);
  }
  for (const Pattern& one : special) {
    if (is_chosen(one)) all.push_back(one);
  }
  for (iteration = 0; iteration < rounds; ++iteration) {
    for (size_t i = 0; i < all.size(); ++i) {
      pattern = all[i].name;
      SumWorker& worker = i % 8 == 7 ? second : first;
      worker.base = beside.base = (static_cast<Key>(iteration) * all.size() + i) << 10U;
      const int aside = beside.push(beside.keys(1), 30, 1, kSet);
      all[i].run(worker);
      beside.kv.Wait(aside);
      worker.expect_one_answer_each();
    }
    beside.expect_one_answer_each();
    std::cout << "round " << iteration << std::endl;
  }
}

void serve(Summer* summer, ps::KVServer<float>* server) {
  server->set_request_handle(
      [summer](const ps::KVMeta& request, const ps::KVPairs<float>& data, ps::KVServer<float>* of) {
        summer->handle(request, data, of);
      });
  static_cast<ps::SimpleApp*>(server)->set_request_handle(
      [](const ps::SimpleData& said, ps::SimpleApp* app) { app->Response(said, said.body + "!"); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: pslite_sums MODE ROUNDS [PATTERN...]\n";
    return 2;
  }
  mode = argv[1];
  ps::Start(0);
  Summer summers[2];
  std::vector<std::unique_ptr<ps::KVServer<float>>> servers;
  for (int app = 0; ps::IsServer() && app < 2; ++app) {
    servers.emplace_back(new ps::KVServer<float>(app));
    serve(&summers[app], servers.back().get());
  }
  // dmlc's server ends at a push that comes before it was told who takes it.
  if (!ps::IsScheduler()) {
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup);
  }
  if (ps::IsWorker()) {
    run_worker(std::atoi(argv[2]), std::vector<std::string>(argv + 3, argv + argc));
  }
  ps::Finalize(0, true);
  if (!servers.empty()) {
    std::cout << "contributions " << summers[0].contributions << " merged "
              << summers[0].merged_pushes << " plain " << summers[0].plain_pushes << " pulls "
              << summers[0].pulls << std::endl;
  }
  return 0;
}
