#include "shim/pslite/mercury_van.h"

#include <mercurystack/socket.h>
#include <netdb.h>
#include <netinet/in.h>
#include <ps/internal/postoffice.h>
#include <ps/internal/van.h>
#include <ps/ps.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <zmq_van.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shim/pslite/message_link.h"

// BytePS's tree and dmlc's declare the same functions with other arguments.
#if __has_include(<van_common.h>)
#define MERCURY_VAN_OF_BYTEPS 1
#else
#define MERCURY_VAN_OF_BYTEPS 0
#endif

namespace ps {
namespace {

using mercury_van::Bytes;
using mercury_van::Incarnation;
using mercury_van::MessageLink;
using mercury_van::Outgoing;

// Servers say by libzmq where they listen. It is no application's: the van takes it away.
constexpr int kAnnouncement = 0x4d564e31;
constexpr char kAnnouncementWords[] = "mercury-van";
constexpr int kPatienceMs = 200, kEndMs = 5000, kLookMs = 5;

struct Greeting {
  uint32_t magic;
  int32_t node;  // who connects
  Incarnation server, worker;
};
constexpr time_t kGreetingSeconds = 5;
constexpr uint32_t kMagic = 0x4d564731;

template <typename M>
auto priority_of(const M& meta, int) -> decltype(meta.priority) {
  return meta.priority;
}
template <typename M>
int priority_of(const M&, long) {
  return 0;  // BytePS's tree has none
}

bool is_set(const char* name) {
  const char* const value = Environment::Get()->find(name);
  return value != nullptr && *value != 0 && std::string(value) != "0";
}

// What would be wrong is refused before anything is sent.
void check_environment() {
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
}

sockaddr_storage address_of(const std::string& host, int port, socklen_t* length) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  CHECK_EQ(error, 0) << "no address of host " << host << ": " << gai_strerror(error);
  sockaddr_storage address = {};
  *length = found->ai_addrlen;
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

// Of each send and receive, and of connecting. 0: for ever.
void set_patience(int fd, time_t seconds) {
  const timeval patience = {seconds, 0};
  mercury_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  mercury_setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

bool exchange_greeting(int fd, Greeting* greeting, bool sends) {
  set_patience(fd, kGreetingSeconds);
  const ssize_t moved = sends ? mercury_send(fd, greeting, sizeof *greeting, MSG_NOSIGNAL)
                              : mercury_recv(fd, greeting, sizeof *greeting, MSG_WAITALL);
  set_patience(fd, 0);
  return moved == sizeof *greeting && greeting->magic == kMagic;
}

// One worker of a server's, or one server of a worker's.
struct Peer {
  std::mutex mutex;
  std::condition_variable changed;
  // A worker's: whether ps-lite has told of the server, and so of this worker's own number; where
  // it listens; empty: it has not said so yet.
  bool is_known = false;
  std::string host;
  int port = 0;
  Incarnation server = 0;
  int accepted = -1;  // a server's: the next connection
  bool is_ending = false;
  std::unique_ptr<MessageLink> link;  // last: its threads end before the rest goes
};

class MercuryVan : public ZMQVan {
 public:
  MercuryVan() {
    std::random_device device;
    own_ = (static_cast<Incarnation>(device()) << 32) | device() | 1;
  }
  ~MercuryVan() override = default;

#if MERCURY_VAN_OF_BYTEPS
  std::string GetType() const override { return "mercury"; }
  void Start(int customer_id, bool standalone) override {
    check_environment();
    ZMQVan::Start(customer_id, standalone);
  }
  int SendMsg(Message& msg) override { return send(msg); }
  void Stop() override { stop(); }
  int Bind(const Node& node, int max_retry) override { return bind(node, max_retry); }
  void Connect(const Node& node) override { connect(node); }
  int RecvMsg(Message* msg) override { return receive(msg); }
#else
 protected:
  void Start(int customer_id) override {
    check_environment();
    ZMQVan::Start(customer_id);
  }
  int SendMsg(const Message& msg) override { return send(const_cast<Message&>(msg)); }
  void Stop() override { stop(); }
  int Bind(const Node& node, int max_retry) override { return bind(node, max_retry); }
  void Connect(const Node& node) override { connect(node); }
  int RecvMsg(Message* msg) override { return receive(msg); }
#endif

 private:
  int bind(const Node& node, int max_retry);
  void connect(const Node& node);
  int send(Message& msg);
  int receive(Message* msg);
  void stop();

  void open_listener(const Node& node);
  void accept_workers();
  void greet_worker(int fd);
  void announce(int worker);
  void hear(int server, const std::string& words);
  int next_connection(int id, Peer& peer);
  int connect_to_server(int id, Peer& peer);
  Peer& peer(int id);
  void pump();
  void deliver(int sender, std::string meta, std::vector<Bytes> data);
  void push(Message msg, int bytes);
  bool has_receiver(const Meta& meta);
  int priority_for(const Message& msg);
  static uint64_t request_of(const Meta& meta);

  Incarnation own_;
  bool is_server_ = false;
  int listener_ = -1, port_ = 0;
  std::thread acceptor_, pump_;

  std::mutex peers_mutex_;
  std::map<int, std::unique_ptr<Peer>> peers_;

  std::mutex arrived_mutex_;
  std::condition_variable arrived_changed_;
  std::deque<std::pair<Message, int>> arrived_;
  std::set<std::pair<int, int>> receivers_;  // applications that are here, with their customers

  // A server's: answers are as urgent as what they answer, though ps-lite does not say so.
  std::mutex urgent_mutex_;
  std::map<std::pair<int, uint64_t>, int> urgent_;
};

int MercuryVan::bind(const Node& node, int max_retry) {
  const int port = ZMQVan::Bind(node, max_retry);
  if (port == -1) return port;
  is_server_ = node.role == Node::SERVER;
  if (is_server_) open_listener(node);
  pump_ = std::thread(&MercuryVan::pump, this);
  return port;
}

void MercuryVan::open_listener(const Node& node) {
  socklen_t length = 0;
  sockaddr_storage address = address_of(node.hostname, 0, &length);
  listener_ = mercury_socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr* const at = reinterpret_cast<sockaddr*>(&address);
  CHECK(listener_ >= 0 && mercury_bind(listener_, at, length) == 0 &&
        mercury_listen(listener_, 1024) == 0)
      << "the mercury van cannot listen at " << node.hostname << ": " << strerror(errno);
  length = sizeof address;
  CHECK_EQ(mercury_getsockname(listener_, at, &length), 0) << strerror(errno);
  port_ = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(at)->sin6_port
                                              : reinterpret_cast<sockaddr_in*>(at)->sin_port);
  acceptor_ = std::thread(&MercuryVan::accept_workers, this);
}

void MercuryVan::accept_workers() {
  while (true) {
    const int fd = mercury_accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) {
      greet_worker(fd);
    } else if (errno == EINVAL || errno == EBADF) {
      return;  // stop() has shut it
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kPatienceMs));
    }
  }
}

void MercuryVan::greet_worker(int fd) {
  Greeting greeting = {};
  if (!exchange_greeting(fd, &greeting, false) || greeting.server != own_) {
    LOG(WARNING) << "mercury van: a connection of none of this job's workers; closed";
    ::close(fd);
    return;
  }
  Peer& worker = peer(greeting.node);
  worker.link->disconnect();
  worker.link->set_peer(greeting.worker);
  std::lock_guard<std::mutex> lock(worker.mutex);
  if (worker.accepted >= 0) ::close(worker.accepted);
  worker.accepted = fd;
  worker.changed.notify_all();
}

void MercuryVan::connect(const Node& node) {
  ZMQVan::Connect(node);
  const bool is_data = (my_node_.role == Node::SERVER && node.role == Node::WORKER) ||
                       (my_node_.role == Node::WORKER && node.role == Node::SERVER);
  if (!is_data) return;
  Peer& it = peer(node.id);
  {
    std::lock_guard<std::mutex> lock(it.mutex);
    it.is_known = true;
    it.changed.notify_all();
  }
  if (is_server_) announce(node.id);
}

void MercuryVan::announce(int worker) {
  std::ostringstream words;
  words << kAnnouncementWords << " " << my_node_.hostname << " " << port_ << " " << own_;
  Message msg;
  msg.meta.recver = worker;
  msg.meta.head = kAnnouncement;
  msg.meta.app_id = kAnnouncement;
  msg.meta.customer_id = 0;
  msg.meta.timestamp = 0;
  msg.meta.request = true;
  msg.meta.simple_app = true;
  msg.meta.body = words.str();
  CHECK_NE(ZMQVan::SendMsg(msg), -1) << "cannot tell worker " << worker << " where to connect";
}

void MercuryVan::hear(int server, const std::string& words) {
  std::istringstream in(words);
  std::string name, host;
  int port = 0;
  Incarnation incarnation = 0;
  CHECK(in >> name >> host >> port >> incarnation)
      << "server " << server << " says where it listens in words of another release: " << words;
  Peer& it = peer(server);
  {
    std::lock_guard<std::mutex> lock(it.mutex);
    it.host.clear();
  }
  it.link->set_peer(incarnation);
  std::lock_guard<std::mutex> lock(it.mutex);
  it.host = host;
  it.port = port;
  it.server = incarnation;
  it.changed.notify_all();
}

Peer& MercuryVan::peer(int id) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  std::unique_ptr<Peer>& found = peers_[id];
  if (!found) {
    found.reset(new Peer);
    Peer* const it = found.get();
    it->link.reset(new MessageLink([this, id, it] { return next_connection(id, *it); },
                                   [this, id](std::string meta, std::vector<Bytes> data) {
                                     deliver(id, std::move(meta), std::move(data));
                                   }));
  }
  return *found;
}

int MercuryVan::next_connection(int id, Peer& peer) {
  std::unique_lock<std::mutex> lock(peer.mutex);
  peer.changed.wait_for(lock, std::chrono::milliseconds(kPatienceMs), [&peer] {
    return peer.is_ending || peer.accepted >= 0 || (peer.is_known && !peer.host.empty());
  });
  if (peer.is_ending) return -1;
  if (is_server_) {
    const int fd = peer.accepted;
    peer.accepted = -1;
    return fd;
  }
  if (!peer.is_known || peer.host.empty()) return -1;
  lock.unlock();
  return connect_to_server(id, peer);
}

int MercuryVan::connect_to_server(int id, Peer& peer) {
  std::unique_lock<std::mutex> lock(peer.mutex);
  const std::string host = peer.host;
  const int port = peer.port;
  Greeting greeting = {kMagic, my_node_.id, peer.server, own_};
  lock.unlock();
  socklen_t length = 0;
  const sockaddr_storage address = address_of(host, port, &length);
  const int fd = mercury_socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_GE(fd, 0) << "mercury van: no socket: " << strerror(errno);
  set_patience(fd, kGreetingSeconds);
  if (mercury_connect(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
      exchange_greeting(fd, &greeting, true)) {
    return fd;
  }
  PS_VLOG(1) << "mercury van: server " << id << " at " << host << ":" << port
             << " is not reached: " << strerror(errno);
  ::close(fd);
  lock.lock();
  peer.changed.wait_for(lock, std::chrono::milliseconds(kPatienceMs),
                        [&peer] { return peer.is_ending; });
  return -1;
}

uint64_t MercuryVan::request_of(const Meta& meta) {
  // Applications and customers are few, as timestamps never are.
  return (static_cast<uint64_t>(static_cast<uint16_t>(meta.app_id)) << 48) |
         (static_cast<uint64_t>(static_cast<uint16_t>(meta.customer_id)) << 32) |
         (static_cast<uint32_t>(meta.timestamp) + 1U);
}

int MercuryVan::priority_for(const Message& msg) {
  const int priority = priority_of(msg.meta, 0);
  if (msg.meta.request) return priority;
  std::lock_guard<std::mutex> lock(urgent_mutex_);
  const auto found = urgent_.find({msg.meta.recver, request_of(msg.meta)});
  if (found == urgent_.end()) return priority;
  const int asked = found->second;
  urgent_.erase(found);
  return asked;
}

int MercuryVan::send(Message& msg) {
  const bool is_tensor = msg.meta.control.empty() && !msg.meta.simple_app;
  if (!is_tensor) return ZMQVan::SendMsg(msg);
  Outgoing out;
  char* meta = nullptr;
  int meta_bytes = 0;
  PackMeta(msg.meta, &meta, &meta_bytes);
  out.meta.assign(meta, static_cast<size_t>(meta_bytes));
  delete[] meta;
  out.priority = priority_for(msg);
  if (msg.meta.request) out.request = request_of(msg.meta);
  int bytes = meta_bytes;
  for (const SArray<char>& part : msg.data) {
    out.data.push_back(Bytes{std::make_shared<SArray<char>>(part), part.data(), part.size()});
    bytes += static_cast<int>(part.size());
  }
  peer(msg.meta.recver).link->send(std::move(out));
  return bytes;
}

void MercuryVan::deliver(int sender, std::string meta, std::vector<Bytes> data) {
  Message msg;
  UnpackMeta(meta.data(), static_cast<int>(meta.size()), &msg.meta);
  msg.meta.sender = sender;
  msg.meta.recver = my_node_.id;
  int bytes = static_cast<int>(meta.size());
  for (const Bytes& part : data) {
    const std::shared_ptr<const void> owner = part.owner;
    SArray<char> array;
    array.reset(part.data, part.size, [owner](char*) {});
    msg.data.push_back(array);
    bytes += static_cast<int>(part.size);
  }
  const int priority = priority_of(msg.meta, 0);
  if (msg.meta.request && priority != 0) {
    std::lock_guard<std::mutex> lock(urgent_mutex_);
    urgent_[{sender, request_of(msg.meta)}] = priority;
  }
  if (!msg.meta.request) peer(sender).link->settle(request_of(msg.meta));
  push(std::move(msg), bytes);
}

void MercuryVan::push(Message msg, int bytes) {
  {
    std::lock_guard<std::mutex> lock(arrived_mutex_);
    arrived_.emplace_back(std::move(msg), bytes);
  }
  arrived_changed_.notify_one();
}

// A tensor may be here before its application is, which may wait for a barrier's end that comes by
// libzmq: ps-lite would wait for the application and read no more, and end with an error.
bool MercuryVan::has_receiver(const Meta& meta) {
  if (!meta.control.empty()) return true;
  const int customer = Postoffice::Get()->is_worker() ? meta.customer_id : meta.app_id;
  const std::pair<int, int> receiver(meta.app_id, customer);
  if (receivers_.count(receiver) > 0) return true;
  if (Postoffice::Get()->GetCustomer(meta.app_id, customer, 0) == nullptr) return false;
  receivers_.insert(receiver);
  return true;
}

int MercuryVan::receive(Message* msg) {
  std::unique_lock<std::mutex> lock(arrived_mutex_);
  while (true) {
    for (auto at = arrived_.begin(); at != arrived_.end(); ++at) {
      if (!has_receiver(at->first.meta)) continue;
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
    if (bytes != -1 && msg.meta.simple_app && msg.meta.head == kAnnouncement &&
        msg.meta.body.compare(0, sizeof kAnnouncementWords - 1, kAnnouncementWords) == 0) {
      hear(msg.meta.sender, msg.meta.body);
      continue;
    }
    const bool ends = bytes == -1 || msg.meta.control.cmd == Control::TERMINATE;
    push(std::move(msg), bytes);
    if (ends) return;
  }
}

void MercuryVan::stop() {
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
}

}  // namespace

Van* NewMercuryVan() { return new MercuryVan; }

}  // namespace ps
