#include <mercurystack/socket.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>

#include "shim/pslite/van_class.h"

namespace ps {
namespace {

// Servers say by libzmq where they listen. It is no application's: the van takes it away.
constexpr int kAnnouncement = 0x4d564e31;
constexpr char kAnnouncementWords[] = "mercury-van";

struct Greeting {
  uint32_t magic;
  int32_t node;  // who connects
  Incarnation server, worker;
  uint64_t rule;  // which pushes this worker takes for parts of sums
};
constexpr time_t kGreetingSeconds = 5;
// What is in the socket no urgent message overtakes; the kernel doubles it, for its own.
constexpr int kSocketBytes = 104 * 1024;
constexpr uint32_t kMagic = 0x4d564732;

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

// Else it is the kernel's, which finds by itself how much a way between hosts needs.
bool is_mercurys(int fd) {
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t length = sizeof name - 1;
  return mercury_getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 &&
         std::strcmp(name, "mercury") == 0;
}

bool exchange_greeting(int fd, Greeting* greeting, bool sends) {
  set_patience(fd, kGreetingSeconds);
  if (is_mercurys(fd)) {
    mercury_setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof kSocketBytes);
  }
  const ssize_t moved = sends ? mercury_send(fd, greeting, sizeof *greeting, MSG_NOSIGNAL)
                              : mercury_recv(fd, greeting, sizeof *greeting, MSG_WAITALL);
  set_patience(fd, 0);
  return moved == sizeof *greeting && greeting->magic == kMagic;
}

}  // namespace

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
      // Nothing says when there is a descriptor again; the worker waits in the queue meanwhile.
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
  if (worker.link->was_replaced(greeting.worker)) {
    if (refused_.insert(greeting.worker).second) {
      LOG(WARNING) << "mercury van: a process comes back as worker " << greeting.node
                   << ", where another one has taken its place; end it";
    }
    ::close(fd);
    return;
  }
  check_rule(greeting.node, greeting.rule);
  if (merger_) {
    std::lock_guard<std::mutex> lock(merger_mutex_);
    merger_->replace(Postoffice::IDtoRank(greeting.node), greeting.worker);
  }
  worker.link->disconnect();
  worker.link->set_peer(greeting.worker);
  std::lock_guard<std::mutex> lock(worker.mutex);
  if (worker.accepted >= 0) ::close(worker.accepted);
  worker.accepted = fd;
  worker.changed.notify_all();
}

void MercuryVan::check_rule(int worker, uint64_t rule) {
  if (first_rule_.first == Node::kEmpty) first_rule_ = {worker, rule};
  CHECK(rule == first_rule_.second)
      << "workers " << first_rule_.first << " and " << worker << " do not take the same pushes for "
      << "parts of sums: set the same MERCURY_PSLITE_MODE, MERCURY_PSLITE_KEYS, "
      << "MERCURY_PSLITE_COMMANDS and MERCURY_PSLITE_FIRST on all workers, in the same words";
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
  if (!is_server_) {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    server_hosts_[node.id] = node.hostname;
  }
  if (is_server_) announce(node.id);
}

void MercuryVan::announce(int worker) {
  std::ostringstream words;
  words << kAnnouncementWords << " " << my_node_.hostname << " " << port_ << " " << own_ << " "
        << name_of(rule_.mode);
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

bool MercuryVan::hear(const Message& msg) {
  const std::string& words = msg.meta.body;
  if (!msg.meta.simple_app || msg.meta.head != kAnnouncement ||
      words.compare(0, sizeof kAnnouncementWords - 1, kAnnouncementWords) != 0) {
    return false;
  }
  const int server = msg.meta.sender;
  std::istringstream in(words);
  std::string name, host, mode;
  int port = 0;
  Incarnation incarnation = 0;
  CHECK(in >> name >> host >> port >> incarnation >> mode)
      << "server " << server << " says where it listens in words of another release: " << words;
  CHECK_EQ(mode, name_of(rule_.mode))
      << "server " << server << " and this worker have different MERCURY_PSLITE_MODE: set the same "
      << "on all processes";
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
  return true;
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
                                   },
                                   [id](const std::string& what) {
                                     LOG(WARNING) << "mercury van: node " << id << ": " << what;
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
  if (peer.changed.wait_until(lock, peer.next_try, [&peer] { return peer.is_ending; })) return -1;
  peer.next_try = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  const std::string host = peer.host;
  const int port = peer.port;
  Greeting greeting = {kMagic, my_node_.id, peer.server, own_, mercury_van::digest_of(rule_)};
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
  return -1;
}

}  // namespace ps
