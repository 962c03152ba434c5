// Messages between two processes of ps-lite, over one connection at a time: each is delivered once,
// whatever becomes of connections, as long as both processes live.
//
// A message is sent in pieces, of the most urgent message first; one that has keys never overtakes
// an earlier one of the same first key. What the peer has not acknowledged is kept, and sent again
// on the next connection.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mercury_van {

struct Bytes {
  std::shared_ptr<const void> owner;  // keeps the memory while anybody has this
  char* data = nullptr;
  size_t size = 0;
};

// Who speaks: drawn anew by each process, so that one that was started again is known.
using Incarnation = uint64_t;

// More in one part of a message is no message: whoever gets it ends the connection.
constexpr uint64_t kMostPartBytes = uint64_t{1} << 31;

struct Outgoing {
  std::string meta;         // as ps-lite packs it
  std::vector<Bytes> data;  // left unchanged by whoever owns it until an answer has come
  int priority = 0;         // the greater, the sooner
  uint64_t request = 0;     // of a request: what its answer settles; 0: none
  Incarnation peer = 0;     // the process that it is for; 0: whichever is the peer
};

class MessageLink {
 public:
  // Called by a thread of the link's, for each message, in the order in which they are complete.
  using Deliver = std::function<void(std::string meta, std::vector<Bytes> data)>;
  // The next connection's descriptor, greeted, which the link then owns; -1: none yet, ask again.
  // Called by a thread of the link's, and may wait for some 100 ms.
  using Connect = std::function<int()>;
  // For people: why a connection was ended. Called by a thread of the link's.
  using Warn = std::function<void(const std::string& what)>;

  MessageLink(Connect connect, Deliver deliver, Warn warn);
  ~MessageLink();  // without waiting for what is unsent
  MessageLink(const MessageLink&) = delete;
  MessageLink& operator=(const MessageLink&) = delete;

  // Any thread; returns at once. What is for another process than the peer is dropped.
  void send(Outgoing message);
  // The answer to it has come: its data is the owner's again when this returns.
  void settle(uint64_t request);
  // The peer is this process. If it was another one, what was meant for that is dropped.
  void set_peer(Incarnation peer);
  Incarnation peer();
  // Whether this process was the peer before the one that is.
  bool was_replaced(Incarnation process);
  // Ends the connection that is there, so that connect() is asked for another.
  void disconnect();
  // Until the peer has all; false: not within that time.
  bool drain(int milliseconds);

 private:
  struct Pending {
    Outgoing message;
    uint64_t id = 0;
    int priority = 0;
    bool begun = false, acknowledged = false;
    size_t part = 0, offset = 0;  // what is to be sent next
  };
  // Less is sooner.
  using Turn = std::pair<int64_t, uint64_t>;

  // Of the connection that is there.
  struct Arriving {
    std::string meta;
    std::vector<Bytes> data;
    size_t part = 0, offset = 0;
  };
  using Arrivals = std::map<uint64_t, Arriving>;

  static Turn turn_of(const Pending& pending);
  void run();
  void serve(int fd);
  void send_all(int fd);
  bool send_next(int fd, std::unique_lock<std::mutex>& lock);
  bool send_piece(int fd, uint64_t id, std::unique_lock<std::mutex>& lock);
  void receive_all(int fd);
  bool receive_frame(int fd, Arrivals& arriving);
  bool receive_start(int fd, uint64_t id, uint64_t meta_bytes, uint64_t parts, Arrivals& arriving);
  bool receive_piece(int fd, Arriving& message, uint64_t bytes);
  void complete(uint64_t id, Arriving message);
  bool note(uint64_t id);  // false: it had come before
  bool refuse(const char* what);
  void forget(std::map<uint64_t, Pending>::iterator which);

  const Connect connect_;
  const Deliver deliver_;
  const Warn warn_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false, broken_ = true;
  int fd_ = -1;
  Incarnation peer_ = 0;
  std::set<Incarnation> replaced_;

  // To the peer: unacknowledged, by id; those not wholly sent by turn; by first key how many, and
  // the least priority of them.
  std::map<uint64_t, Pending> pending_;
  std::set<Turn> ready_;
  std::unordered_map<uint64_t, std::pair<size_t, int>> keys_;
  std::unordered_map<uint64_t, uint64_t> requests_;  // to the id
  std::vector<uint64_t> acknowledge_;
  uint64_t next_id_ = 1;
  uint64_t writing_ = 0;

  // From the peer: all below `next_`, and these.
  uint64_t next_ = 1;
  std::set<uint64_t> complete_;

  std::thread thread_;
};

}  // namespace mercury_van
