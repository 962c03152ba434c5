#include "shim/pslite/mercury_van.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <random>

#include "shim/pslite/van_class.h"
#include "shim/pslite/van_messages.h"

namespace ps {
namespace {

constexpr int kEndMs = 5000, kLookMs = 5;
// An application that comes later than this may never come, and whoever waits for it should know.
constexpr std::chrono::seconds kLate{5};

bool is_set(const char* name) {
  const char* const value = Environment::Get()->find(name);
  return value != nullptr && *value != 0 && std::string(value) != "0";
}

// What would be wrong is refused before anything is sent.
SumRule check_environment(int customer) {
  for (const char* name : {"PS_RESEND", "PS_DROP_MSG"}) {
    CHECK(!is_set(name)) << name
                         << " is set: the mercury van delivers each message once by itself, "
                         << "and ps-lite's resender would send tensors twice; unset it";
  }
  CHECK(!is_set("DMLC_LOCAL")) << "DMLC_LOCAL is set: the mercury van finds servers by their "
                               << "addresses; unset it, programs of one host are fast without";
#if MERCURY_VAN_OF_BYTEPS
  const char* const rdma = Environment::Get()->find("DMLC_ENABLE_RDMA");
  CHECK(!is_set("DMLC_ENABLE_RDMA") || std::string(rdma) == "zmq")
      << "DMLC_ENABLE_RDMA is set: workers would wait for pulls that another van writes into their "
      << "memory; unset it, or unset DMLC_PS_VAN_TYPE";
#endif
  SumRule rule;
  const std::string wrong = mercury_van::read_rule(
      [](const char* name) { return Environment::Get()->find(name); }, &rule);
  CHECK(wrong.empty()) << wrong;
  CHECK(rule.mode == Mode::kTransparent || customer == 0)
      << "MERCURY_PSLITE_MODE is " << name_of(rule.mode) << ", and customer " << customer
      << " of this process is a worker of its own: a sum has one push of each process; start a "
      << "process for each worker";
  return rule;
}

// MXNet hands its optimiser to servers by words with this head, pickled.
constexpr int kControllerHead = 0;

}  // namespace

MercuryVan::MercuryVan() {
  std::random_device device;
  own_ = (static_cast<Incarnation>(device()) << 32) | device() | 1;
}

void MercuryVan::check_start(int customer_id) { rule_ = check_environment(customer_id); }

void MercuryVan::check_words(const Meta& meta) const {
  const bool is_optimiser = meta.simple_app && meta.request && meta.head == kControllerHead &&
                            meta.body.find("optimizer") != std::string::npos;
  CHECK(rule_.mode != Mode::kAggregate || !is_optimiser)
      << "an optimiser is sent to the servers, and MERCURY_PSLITE_MODE is aggregate: servers get "
      << "no gradients there, and it would never run; set update_on_kvstore to False "
      << "(MXNET_UPDATE_ON_KVSTORE=0), or MERCURY_PSLITE_MODE=notify";
}

int MercuryVan::bind(const Node& node, int max_retry) {
  const int port = ZMQVan::Bind(node, max_retry);
  if (port == -1) return port;
  is_server_ = node.role == Node::SERVER;
  if (is_server_ && rule_.mode == Mode::kNotify) {
    merger_.reset(new Merger(static_cast<size_t>(Postoffice::Get()->num_workers())));
  }
  if (is_server_) open_listener(node);
  pump_ = std::thread(&MercuryVan::pump, this);
  return port;
}

uint64_t MercuryVan::request_of(const Meta& meta) {
  // Applications and customers are few, as timestamps never are.
  return (static_cast<uint64_t>(static_cast<uint16_t>(meta.app_id)) << 48) |
         (static_cast<uint64_t>(static_cast<uint16_t>(meta.customer_id)) << 32) |
         (static_cast<uint32_t>(meta.timestamp) + 1U);
}

MercuryVan::Asked MercuryVan::asked_by(const Message& answer) {
  std::lock_guard<std::mutex> lock(asked_mutex_);
  Asked asked;
  asked.priority = priority_of(answer.meta, 0);
  asked.timestamp = answer.meta.timestamp;
  const auto found = asked_.find({answer.meta.recver, request_of(answer.meta)});
  if (found == asked_.end()) return asked;
  asked = found->second;
  asked_.erase(found);
  return asked;
}

// To the server's program, which will answer.
void MercuryVan::hand_on(Message request, int bytes) {
  Asked asked;
  asked.priority = priority_of(request.meta, 0);
  asked.process = peer(request.meta.sender).link->peer();
  asked.timestamp = request.meta.timestamp;
  {
    std::lock_guard<std::mutex> lock(asked_mutex_);
    // The process before it, in this worker's place, may have no answer yet to one of this name.
    if (asked_.count({request.meta.sender, request_of(request.meta)}) > 0) {
      request.meta.timestamp = --free_timestamp_;
    }
    asked_[{request.meta.sender, request_of(request.meta)}] = asked;
  }
  push(std::move(request), bytes);
}

int MercuryVan::send(Message& msg) {
  const bool is_tensor = msg.meta.control.empty() && !msg.meta.simple_app;
  check_words(msg.meta);
  if (!is_tensor) return ZMQVan::SendMsg(msg);
  if (merger_ && msg.meta.recver == kWorkerGroup) return answer_all(msg);
  if (!msg.meta.request) {
    Message answer = msg;
    const Asked of = asked_by(msg);
    answer.meta.timestamp = of.timestamp;
    return send_tensor(answer, kPlain, of);
  }
  Asked asked;
  asked.priority = priority_of(msg.meta, 0);
  if (is_server_ || rule_.mode == Mode::kTransparent) return send_tensor(msg, kPlain, asked);
  const KeyRequest what = request_of_worker(msg, msg.meta.recver);
  std::vector<KeyPart> parts;
  std::string wrong;
  bool is_summed = false;
  {
    std::lock_guard<std::mutex> lock(chooser_mutex_);
    if (!chooser_) chooser_.reset(new SumChooser(rule_, Postoffice::IDtoRank(my_node_.id)));
    is_summed = chooser_->is_summed(what, &parts, &wrong);
  }
  CHECK(wrong.empty()) << wrong;
  if (!is_summed) return send_tensor(msg, kPlain, asked);
  if (rule_.mode == Mode::kNotify) return send_tensor(msg, kContribution, asked);
  aggregate(msg, what, parts);
  return msg.meta.data_size;
}

int MercuryVan::send_tensor(const Message& msg, char kind, const Asked& asked) {
  Outgoing out;
  char* meta = nullptr;
  int meta_bytes = 0;
  PackMeta(msg.meta, &meta, &meta_bytes);
  out.meta.assign(1, kind).append(meta, static_cast<size_t>(meta_bytes));
  delete[] meta;
  out.priority = asked.priority;
  out.peer = asked.process;
  if (msg.meta.request) out.request = request_of(msg.meta);
  size_t bytes = static_cast<size_t>(meta_bytes);
  for (const SArray<char>& part : msg.data) {
    CHECK(part.size() <= mercury_van::kMostPartBytes)
        << "node " << msg.meta.recver << " is sent " << part.size()
        << " bytes in one push or answer: the mercury van has room for "
        << mercury_van::kMostPartBytes << "; cut the tensor into several keys";
    out.data.push_back(bytes_of(part));
    bytes += part.size();
  }
  peer(msg.meta.recver).link->send(std::move(out));
  return static_cast<int>(bytes);  // for ps-lite's statistics
}

void MercuryVan::deliver(int sender, std::string meta, std::vector<Bytes> data) {
  Message msg;
  const char kind = meta.empty() ? kPlain : meta[0];
  meta.erase(0, 1);
  UnpackMeta(meta.data(), static_cast<int>(meta.size()), &msg.meta);
  msg.meta.sender = sender;
  msg.meta.recver = my_node_.id;
  int bytes = static_cast<int>(meta.size());
  for (const Bytes& part : data) {
    msg.data.push_back(array_of(part));
    bytes += static_cast<int>(part.size);
  }
  if (!msg.meta.request) {
    peer(sender).link->settle(request_of(msg.meta));
    return push(std::move(msg), bytes);
  }
  if (merger_) return merge(sender, kind, std::move(msg), std::move(meta), bytes);
  hand_on(std::move(msg), bytes);
}

void MercuryVan::push(Message msg, int bytes) {
  {
    std::lock_guard<std::mutex> lock(arrived_mutex_);
    arrived_.emplace_back(std::move(msg), bytes);
  }
  arrived_changed_.notify_one();
}

// A tensor may be here before its application is, which may wait for a barrier's end that comes by
// libzmq: ps-lite would wait for the application and read no more, and end with an error. Whoever
// is in `absent` is not asked for again: one that comes in between would get its second message
// first.
bool MercuryVan::has_receiver(const Meta& meta, std::set<Receiver>* absent) {
  if (!meta.control.empty()) return true;
  const int customer = Postoffice::Get()->is_worker() ? meta.customer_id : meta.app_id;
  const Receiver receiver(meta.app_id, customer);
  if (receivers_.count(receiver) > 0) return true;
  if (absent->count(receiver) > 0) return false;
  if (Postoffice::Get()->GetCustomer(meta.app_id, customer, 0) != nullptr) {
    receivers_.insert(receiver);
    return true;
  }
  absent->insert(receiver);
  note_absence(receiver);
  return false;
}

void MercuryVan::note_absence(const Receiver& receiver) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point& since = absent_since_.emplace(receiver, Clock::now()).first->second;
  if (Clock::now() - since < kLate) return;
  since = Clock::time_point::max();  // said once
  LOG(WARNING) << "mercury van: messages wait for application " << receiver.first << ", customer "
               << receiver.second << ", which this process has not started yet";
}

int MercuryVan::receive(Message* msg) {
  std::unique_lock<std::mutex> lock(arrived_mutex_);
  while (true) {
    std::set<Receiver> absent;
    for (auto at = arrived_.begin(); at != arrived_.end(); ++at) {
      if (!has_receiver(at->first.meta, &absent)) continue;
      *msg = std::move(at->first);
      const int bytes = at->second;
      arrived_.erase(at);
      return bytes;
    }
    // An application tells nobody that it is there.
    if (arrived_.empty()) {
      arrived_changed_.wait(lock);
    } else {
      arrived_changed_.wait_for(lock, std::chrono::milliseconds(kLookMs));
    }
  }
}

// What comes by libzmq, until this van tells itself to end.
void MercuryVan::pump() {
  while (true) {
    Message msg;
    const int bytes = ZMQVan::RecvMsg(&msg);
    if (bytes != -1 && hear(msg)) continue;
    const bool ends = bytes == -1 || msg.meta.control.cmd == Control::TERMINATE;
    push(std::move(msg), bytes);
    if (ends) return;
  }
}

void MercuryVan::stop() {
  if (sums_ && !sums_->drain(kEndMs)) {
    LOG(WARNING) << "mercury van: pushes are left that other workers have not pushed";
  }
  sums_.reset();
  std::map<int, MessageLink*> links;
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    for (auto& each : peers_) links[each.first] = each.second->link.get();
  }
  for (auto& each : links) {
    if (!each.second->drain(kEndMs)) {
      LOG(WARNING) << "mercury van: node " << each.first << " has not acknowledged all";
    }
  }
  ZMQVan::Stop();
  pump_.join();
  if (listener_ >= 0) {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    listener_ = -1;
  }
  std::map<int, std::unique_ptr<Peer>> ending;
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    ending.swap(peers_);
  }
  for (auto& each : ending) {
    std::lock_guard<std::mutex> lock(each.second->mutex);
    each.second->is_ending = true;
    each.second->changed.notify_all();
  }
  for (auto& each : ending) {
    each.second->link.reset();
    if (each.second->accepted >= 0) ::close(each.second->accepted);
  }
  std::lock_guard<std::mutex> lock(arrived_mutex_);
  arrived_.clear();
  receivers_.clear();
  absent_since_.clear();
}

Van* NewMercuryVan() { return new MercuryVan; }

}  // namespace ps
