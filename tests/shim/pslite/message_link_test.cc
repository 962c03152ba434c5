// Messages between two ends, over pairs of sockets that a test cuts when it likes.
#include "shim/pslite/message_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

using mercury_van::Bytes;
using mercury_van::Incarnation;
using mercury_van::MessageLink;
using mercury_van::Outgoing;

Bytes filled(size_t size, char byte) {
  const auto memory = std::make_shared<std::vector<char>>(size, byte);
  return Bytes{memory, memory->data(), size};
}

class End {
 public:
  End()
      : link_([this] { return next(); },
              [this](const std::string& meta, const std::vector<Bytes>& data) {
                std::lock_guard<std::mutex> lock(mutex_);
                got_.push_back(meta);
                for (const Bytes& part : data) {
                  for (size_t i = 0; i < part.size; ++i) sound_ = sound_ && part.data[i] == meta[0];
                }
                changed_.notify_all();
              },
              [this](const std::string& what) {
                std::lock_guard<std::mutex> lock(mutex_);
                warnings_.push_back(what);
              }) {}

  void connect(int fd) {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(fd);
    changed_.notify_all();
  }

  void send(const std::string& name, uint64_t key, size_t bytes, int priority, uint64_t request = 0,
            Incarnation peer = 0) {
    Outgoing message;
    message.meta = name;
    if (key != 0) message.data = {filled(8, name[0]), filled(bytes, name[0]), Bytes()};
    message.priority = priority;
    message.request = request;
    message.peer = peer;
    link_.send(std::move(message));
  }

  std::vector<std::string> wait_for(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] {
      return got_.size() >= count;
    })) << std::to_string(got_.size()) + " messages of " + std::to_string(count);
    EXPECT_TRUE(sound_) << "other bytes than were sent";
    return got_;
  }

  std::vector<std::string> warnings() {
    std::lock_guard<std::mutex> lock(mutex_);
    return warnings_;
  }

  MessageLink& link() { return link_; }

 private:
  int next() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return !waiting_.empty(); });
    if (waiting_.empty()) return -1;
    const int fd = waiting_.front();
    waiting_.pop_front();
    return fd;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> waiting_;
  std::vector<std::string> got_, warnings_;
  bool sound_ = true;
  MessageLink link_;  // last: its threads end first
};

void join(End& one, End& other) {
  int fds[2];
  EXPECT_TRUE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0) << "no pair of sockets";
  one.connect(fds[0]);
  other.connect(fds[1]);
}

using Names = std::vector<std::string>;

TEST(MessageLink, TheMostUrgentFirst) {
  End sender, receiver;
  sender.send("a bulk", 1, 3 << 20, -5);
  sender.send("b less", 2, 1 << 20, -3);
  sender.send("c more", 3, 1 << 20, 2);
  sender.send("d as b", 4, 1 << 20, -3);
  join(sender, receiver);
  EXPECT_TRUE(receiver.wait_for(4) == Names({"c more", "b less", "d as b", "a bulk"}))
      << "another order";
  EXPECT_TRUE(sender.link().drain(10000)) << "not acknowledged";
}

TEST(MessageLink, OneThatHasBegunIsOvertaken) {
  End sender, receiver;
  sender.send("a bulk", 1, 64 << 20, 0);
  int fds[2];
  EXPECT_TRUE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0) << "no pair of sockets";
  sender.connect(fds[0]);  // nobody reads: it is stuck in its first pieces
  char first;
  EXPECT_TRUE(::recv(fds[1], &first, 1, MSG_PEEK) == 1) << "nothing was begun";
  sender.send("b urgent", 2, 100, 1);
  receiver.connect(fds[1]);
  EXPECT_TRUE(receiver.wait_for(2) == Names({"b urgent", "a bulk"}))
      << "an urgent message waited for bulk";
}

TEST(MessageLink, OneTensorsMessagesKeepTheirOrder) {
  End sender, receiver;
  sender.send("push", 7, 2 << 20, -9);
  sender.send("pull", 7, 8, 5);  // the same first byte, and so the same first key
  sender.send("other", 8, 8, 0);
  join(sender, receiver);
  EXPECT_TRUE(receiver.wait_for(3) == Names({"other", "push", "pull"}))
      << "a pull overtook its push";
}

TEST(MessageLink, EachArrivesOnceWhateverBecomesOfConnections) {
  End sender, receiver;
  sender.link().set_peer(1);
  receiver.link().set_peer(2);
  for (int i = 0; i < 300; ++i) {
    sender.send("m" + std::to_string(i), 1, 200000, 0);
    if (i % 10 == 0) join(sender, receiver);
    if (i % 10 == 3) sender.link().disconnect();
    if (i % 20 == 7) receiver.link().disconnect();
  }
  join(sender, receiver);
  const Names got = receiver.wait_for(300);
  EXPECT_TRUE(sender.link().drain(10000)) << "not acknowledged";
  Names wanted;
  for (int i = 0; i < 300; ++i) wanted.push_back("m" + std::to_string(i));
  EXPECT_TRUE(got == wanted) << "not each once, and in order";
}

TEST(MessageLink, WhatWasForAnotherProcessIsDropped) {
  End sender, receiver;
  sender.link().set_peer(1);
  sender.send("for the first", 1, 100, 0);
  sender.link().set_peer(2);
  sender.send("a new one", 2, 100, 0);
  join(sender, receiver);
  EXPECT_TRUE(receiver.wait_for(1) == Names({"a new one"})) << "a message of an earlier process's";
}

TEST(MessageLink, WhatIsForAnotherProcessIsNotEvenTaken) {
  End sender, receiver;
  sender.link().set_peer(1);
  sender.link().set_peer(2);
  sender.send("for the first", 1, 100, 0, 0, 1);
  sender.send("for the second", 2, 100, 0, 0, 2);
  sender.send("for any", 3, 100, 0);
  join(sender, receiver);
  EXPECT_TRUE(receiver.wait_for(2) == Names({"for the second", "for any"})) << "other messages";
}

TEST(MessageLink, AProcessThatWasReplacedIsKnown) {
  End end;
  end.link().set_peer(1);
  EXPECT_TRUE(!end.link().was_replaced(1)) << "it is the peer";
  end.link().set_peer(2);
  end.link().set_peer(3);
  EXPECT_TRUE(end.link().was_replaced(1) && end.link().was_replaced(2)) << "forgotten";
  EXPECT_TRUE(!end.link().was_replaced(3) && !end.link().was_replaced(4)) << "never replaced";
}

// As after a connection's end: the other side has all of it already, and says so while it is sent
// again and nobody reads.
TEST(MessageLink, WhatIsAcknowledgedWhileItIsSentKeepsNobodyFromReading) {
  End end;
  end.send("a bulk", 1, 64 << 20, 0);
  int fds[2];
  EXPECT_TRUE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0) << "no pair of sockets";
  end.connect(fds[0]);
  char some[1 << 16];
  EXPECT_TRUE(::recv(fds[1], some, 1, MSG_PEEK) == 1) << "nothing was begun";
  struct {
    uint64_t acknowledged[3] = {3, 1, 0};
    uint64_t start[3] = {1, 1, 8};
    char meta[8] = {'a', 'n', 'o', 't', 'h', 'e', 'r', '.'};
    uint64_t piece[3] = {2, 1, 0};
  } frames;
  EXPECT_TRUE(::send(fds[1], &frames, sizeof frames, 0) == sizeof frames) << "not sent";
  EXPECT_TRUE(end.wait_for(1) == Names({"another."})) << "another message";
  bool is_done = false;
  for (int i = 0; i < 10000 && !is_done; ++i) {
    ::recv(fds[1], some, sizeof some, MSG_DONTWAIT);
    is_done = end.link().drain(1);
  }
  EXPECT_TRUE(is_done) << "what was acknowledged is still kept";
  ::close(fds[1]);
}

TEST(MessageLink, AnAnswerSettlesItsRequest) {
  End sender;
  sender.send("asked", 1, 100, 0, 77);
  EXPECT_TRUE(!sender.link().drain(20)) << "acknowledged by nobody";
  sender.link().settle(76);
  EXPECT_TRUE(!sender.link().drain(20)) << "settled by another's answer";
  sender.link().settle(77);
  EXPECT_TRUE(sender.link().drain(0)) << "still kept";
}

TEST(MessageLink, NonsenseEndsTheConnectionAlone) {
  End sender, receiver;
  for (const uint64_t kind : {uint64_t{99}, uint64_t{2}, uint64_t{1} | uint64_t{1000} << 32}) {
    int fds[2];
    EXPECT_TRUE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0) << "no pair of sockets";
    receiver.connect(fds[1]);
    const uint64_t frame[3] = {kind, 5, 8};
    EXPECT_TRUE(::send(fds[0], frame, sizeof frame, 0) == sizeof frame) << "not sent";
    char end;
    EXPECT_TRUE(::recv(fds[0], &end, 1, 0) <= 0) << "it reads on";
    ::close(fds[0]);
  }
  EXPECT_TRUE(receiver.warnings() ==
              Names({"a connection is closed, on which came a piece of no message",
                     "a connection is closed, on which came a piece of no message",
                     "a connection is closed, on which came the beginning of no message"}))
      << "other warnings";
  sender.send("sound", 1, 100, 0);
  join(sender, receiver);
  EXPECT_TRUE(receiver.wait_for(1) == Names({"sound"})) << "none after nonsense";
}

}  // namespace
