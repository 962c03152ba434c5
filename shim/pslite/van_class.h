// The van's class, for its sources: mercury_van.cc sends and receives, van_connections.cc finds the
// peers, van_sums.cc sums. It is compiled in a tree of ps-lite, and is nothing outside of one.
#pragma once

#if __has_include(<ps/ps.h>)

#include <ps/internal/postoffice.h>
#include <ps/internal/van.h>
#include <ps/ps.h>
#include <zmq_van.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shim/pslite/job_sums.h"
#include "shim/pslite/merger.h"
#include "shim/pslite/message_link.h"
#include "shim/pslite/summed.h"

// BytePS's tree and dmlc's declare the same functions with other arguments.
#if __has_include(<van_common.h>)
#define MERCURY_VAN_OF_BYTEPS 1
#else
#define MERCURY_VAN_OF_BYTEPS 0
#endif

namespace ps {

using mercury_van::Bytes;
using mercury_van::Incarnation;
using mercury_van::JobPlace;
using mercury_van::JobSums;
using mercury_van::KeyPart;
using mercury_van::KeyRequest;
using mercury_van::Merger;
using mercury_van::MessageLink;
using mercury_van::Mode;
using mercury_van::Outgoing;
using mercury_van::SumChooser;
using mercury_van::SumRule;
using mercury_van::ValueType;
using mercury_van::WorkerRequest;

// How long one look for something waits that comes by another thread.
constexpr int kPatienceMs = 200;

// The first byte of what a message says: a push that is a part of a sum, or any other message.
constexpr char kPlain = 'p', kContribution = 'c';

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
  std::chrono::steady_clock::time_point next_try;  // not before: it may refuse at once
  int accepted = -1;                               // a server's: the next connection
  bool is_ending = false;
  std::unique_ptr<MessageLink> link;  // last: its threads end before the rest goes
};

class MercuryVan : public ZMQVan {
 public:
  MercuryVan();
  ~MercuryVan() override = default;

#if MERCURY_VAN_OF_BYTEPS
  std::string GetType() const override { return "mercury"; }
  void Start(int customer_id, bool standalone) override {
    check_start(customer_id);
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
    check_start(customer_id);
    ZMQVan::Start(customer_id);
  }
  int SendMsg(const Message& msg) override { return send(const_cast<Message&>(msg)); }
  void Stop() override { stop(); }
  int Bind(const Node& node, int max_retry) override { return bind(node, max_retry); }
  void Connect(const Node& node) override { connect(node); }
  int RecvMsg(Message* msg) override { return receive(msg); }
#endif

 private:
  void check_start(int customer_id);
  void check_words(const Meta& meta) const;
  int bind(const Node& node, int max_retry);
  void connect(const Node& node);
  int send(Message& msg);
  // What a server remembers of a request until it answers.
  struct Asked {
    int priority = 0;
    Incarnation process = 0;  // whose it is; 0: whichever is the peer
    int timestamp = 0;        // as the worker counts
  };
  int send_tensor(const Message& msg, char kind, const Asked& asked);
  Asked asked_by(const Message& answer);
  void hand_on(Message request, int bytes);
  int receive(Message* msg);
  void stop();

  // A worker's sums, by Mercury's aggregators.
  void aggregate(const Message& msg, const KeyRequest& what, const std::vector<KeyPart>& parts);
  Message answer_to(const Message& request) const;
  uint64_t number_of(const KeyRequest& what, const KeyPart& part, int server) const;
  JobSums& sums();
  bool find_place(JobPlace* out);
  // A server's, by itself.
  void merge(int sender, char kind, Message msg, std::string meta, int bytes);
  Message message_of(const Merger::ToServer& merged);
  int answer_all(const Message& msg);

  void open_listener(const Node& node);
  void accept_workers();
  void greet_worker(int fd);
  void check_rule(int worker, uint64_t rule);
  void announce(int worker);
  bool hear(const Message& msg);  // whether it was an announcement
  int next_connection(int id, Peer& peer);
  int connect_to_server(int id, Peer& peer);
  Peer& peer(int id);
  void pump();
  void deliver(int sender, std::string meta, std::vector<Bytes> data);
  void push(Message msg, int bytes);
  // An application with its customer.
  using Receiver = std::pair<int, int>;
  bool has_receiver(const Meta& meta, std::set<Receiver>* absent);
  void note_absence(const Receiver& receiver);
  static uint64_t request_of(const Meta& meta);

  Incarnation own_;
  SumRule rule_;
  bool is_server_ = false;

  std::mutex chooser_mutex_;
  std::unique_ptr<SumChooser> chooser_;  // a worker's
  std::unique_ptr<JobSums> sums_;
  std::mutex merger_mutex_;  // held until what comes of it is in its queue: rounds keep their order
  std::unique_ptr<Merger> merger_;  // a server's
  int listener_ = -1, port_ = 0;
  std::thread acceptor_, pump_;
  // The acceptor's: whom it has warned of, and the worker that came first, with its rule.
  std::set<Incarnation> refused_;
  std::pair<int, uint64_t> first_rule_{Node::kEmpty, 0};

  std::mutex peers_mutex_;
  std::map<int, std::unique_ptr<Peer>> peers_;
  std::map<int, std::string> server_hosts_;

  std::mutex arrived_mutex_;
  std::condition_variable arrived_changed_;
  std::deque<std::pair<Message, int>> arrived_;
  std::set<Receiver> receivers_;  // that are here
  std::map<Receiver, std::chrono::steady_clock::time_point> absent_since_;

  // A server's, by worker and request as its program knows them: answers are as urgent as what
  // they answer, and for the process that asked, though ps-lite says neither. What a program never
  // answers stays here.
  std::mutex asked_mutex_;
  std::map<std::pair<int, uint64_t>, Asked> asked_;
  int free_timestamp_ = Node::kEmpty;  // no worker counts so far
};

}  // namespace ps

#endif
