// Sums: a worker's by Mercury's aggregators, a server's by itself.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <sstream>
#include <tuple>

#include "shim/pslite/van_class.h"
#include "shim/pslite/van_messages.h"

namespace ps {

// --- sums by Mercury's aggregators -------------------------------------------------------------

Message MercuryVan::answer_to(const Message& request) const {
  Message answer;
  answer.meta = request.meta;
  answer.meta.request = false;
  answer.meta.sender = request.meta.recver;
  answer.meta.recver = my_node_.id;
  answer.meta.data_type.clear();
  answer.meta.data_size = 0;
  return answer;
}

// Workers give a key the same number without asking each other.
uint64_t MercuryVan::number_of(const KeyRequest& what, const KeyPart& part, int server) const {
  const uint64_t servers = static_cast<uint64_t>(Postoffice::Get()->num_servers());
  const uint64_t rank = static_cast<uint64_t>(Postoffice::IDtoRank(server));
  const uint64_t place = part.key - what.first_key;
  CHECK_LE(place, (JobSums::kMostNumber - rank) / servers)
      << "key " << part.key << " is " << place << " from the beginning of its server's range: "
      << "MERCURY_PSLITE_MODE=aggregate has room for " << JobSums::kMostNumber / servers
      << "; name lower keys by MERCURY_PSLITE_KEYS";
  return place * servers + rank;
}

void MercuryVan::aggregate(const Message& msg, const KeyRequest& what,
                           const std::vector<KeyPart>& parts) {
  Message answer = answer_to(msg);
  const bool is_pull = what.pull;
  const auto untaken = std::make_shared<std::atomic<size_t>>(parts.size());
  const auto taken = [this, answer, is_pull, untaken] {
    if (--*untaken == 0 && !is_pull) push(answer, 0);
  };
  std::vector<uint64_t> numbers;
  for (const KeyPart& part : parts) {
    numbers.push_back(number_of(what, part, msg.meta.recver));
    if (!what.push) continue;
    sums().push(numbers.back(), mercury_type(what.type), what.data[1].data + part.at, part.bytes,
                what.priority, taken);
  }
  if (!what.pull) return;
  SArray<char> keys;
  keys.CopyFrom(msg.data[0]);
  answer.data.push_back(keys);
  const size_t value_bytes = what.value_bytes;
  sums().pull(numbers, [this, answer, value_bytes](const std::vector<JobSums::Sum>& found) {
    Message complete = answer;
    SArray<int> lengths;
    size_t bytes = 0;
    for (const JobSums::Sum& sum : found) {
      lengths.push_back(static_cast<int>(sum->size() / value_bytes));
      bytes += sum->size();
    }
    SArray<char> values(bytes);
    char* at = values.data();
    for (const JobSums::Sum& sum : found) at = std::copy(sum->begin(), sum->end(), at);
    complete.data.push_back(values);
    complete.data.push_back(SArray<char>(lengths));
    push(std::move(complete), static_cast<int>(bytes));
  });
}

JobSums& MercuryVan::sums() {
  std::lock_guard<std::mutex> lock(chooser_mutex_);
  if (!sums_) {
    sums_.reset(
        new JobSums([this](JobPlace* out) { return find_place(out); },
                    [](const std::string& what) { LOG(WARNING) << "mercury van: " << what; },
                    [](const std::string& why) { LOG(FATAL) << "mercury van: " << why; }));
  }
  return *sums_;
}

// The job meets at the servers' hosts, and is called after the first server's process: another run
// of the same program is another job.
bool MercuryVan::find_place(JobPlace* out) {
  std::vector<std::string> hosts;
  int first = 0;
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    // At the end ps-lite knows of no worker any more.
    if (server_hosts_.empty() || Postoffice::Get()->num_workers() == 0) return false;
    first = server_hosts_.begin()->first;
    for (const auto& each : server_hosts_) hosts.push_back(each.second);
  }
  Peer& it = peer(first);
  std::unique_lock<std::mutex> lock(it.mutex);
  if (!it.changed.wait_for(lock, std::chrono::milliseconds(kPatienceMs),
                           [&it] { return it.server != 0; })) {
    return false;
  }
  std::ostringstream name;
  name << "pslite-" << std::hex << it.server;
  out->name = name.str();
  std::tie(out->rendezvous, out->servers) = mercury_van::rendezvous_of(hosts);
  if (const char* const given = Environment::Get()->find("MERCURY_RENDEZVOUS")) {
    out->rendezvous = given;
    out->servers =
        1 + static_cast<int>(std::count(out->rendezvous.begin(), out->rendezvous.end(), ','));
  }
  out->rank = Postoffice::IDtoRank(my_node_.id);
  out->workers = Postoffice::Get()->num_workers();
  return true;
}

// --- sums by this server's van -----------------------------------------------------------------

void MercuryVan::merge(int sender, char kind, Message msg, std::string meta, int bytes) {
  WorkerRequest request;
  request.worker = Postoffice::IDtoRank(sender);
  request.meta = std::move(meta);
  request.what = request_of_worker(msg, my_node_.id);
  const Incarnation process = peer(sender).link->peer();
  std::lock_guard<std::mutex> lock(merger_mutex_);
  if (kind == kContribution) {
    std::string wrong;
    for (const Merger::ToServer& one : merger_->push(std::move(request), process, &wrong)) {
      if (one.merged != 0) {
        push(message_of(one), bytes);
      } else {
        hand_on(message_of(one), bytes);
      }
    }
    CHECK(wrong.empty()) << wrong;
  } else if (msg.meta.push || !merger_->hold(request, process)) {
    hand_on(std::move(msg), bytes);
  }
}

Message MercuryVan::message_of(const Merger::ToServer& merged) {
  Message msg;
  const WorkerRequest& request = merged.request;
  UnpackMeta(request.meta.data(), static_cast<int>(request.meta.size()), &msg.meta);
  msg.meta.sender = Postoffice::WorkerRankToID(request.worker);
  msg.meta.recver = my_node_.id;
  if (merged.merged != 0) {
    msg.meta.sender = kWorkerGroup;
    msg.meta.timestamp = -merged.merged;
    msg.meta.customer_id = 0;
  }
  for (const Bytes& part : request.what.data) msg.data.push_back(array_of(part));
  return msg;
}

int MercuryVan::answer_all(const Message& msg) {
  std::lock_guard<std::mutex> lock(merger_mutex_);
  int bytes = 0;
  for (const WorkerRequest& each : merger_->answer(-msg.meta.timestamp)) {
    Meta asked;
    UnpackMeta(each.meta.data(), static_cast<int>(each.meta.size()), &asked);
    Message answer = msg;
    answer.meta.recver = Postoffice::WorkerRankToID(each.worker);
    answer.meta.timestamp = asked.timestamp;
    answer.meta.customer_id = asked.customer_id;
    repeat(asked, &answer.meta, 0);
    Asked contribution;
    contribution.priority = each.what.priority;
    bytes += send_tensor(answer, kPlain, contribution);
  }
  return bytes;
}

}  // namespace ps
