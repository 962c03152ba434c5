// What a listener does when accept() fails for want of descriptors or memory: the connection stays
// in the backlog and the socket readable, so trying again at once would spin.
//
// Owner/thread: the control thread, whose io_context this runs on.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <string>

namespace mercury {

class AcceptPause {
 public:
  // `listener` names the socket in the log.
  AcceptPause(boost::asio::io_context& io, std::string listener);
  // Whether accept()'s errno will not pass by trying again at once.
  static bool is_needed(int error);
  // Calls `again` a while later. The first of a row of failures is logged with its cause and fix.
  void wait(int error, std::function<void()> again);
  void cancel();

 private:
  const std::string listener_;
  boost::asio::steady_timer timer_;
  uint64_t last_failure_ns_ = 0;
};

}  // namespace mercury
