// A socket on which programs connect, with the mode and group that the configuration gives it.
//
// Owner/thread: the control thread, whose io_context this runs on.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <string>

#include "apps/stackd/accept_pause.h"
#include "apps/stackd/config.h"
#include "shim/channel/unique_fd.h"
#include "transport/base/result.h"

namespace mercury {

class ProgramSocket {
 public:
  ProgramSocket(boost::asio::io_context& io, std::string path)
      : path_(std::move(path)), socket_(io), pause_(io, path_) {}
  ProgramSocket(const ProgramSocket&) = delete;
  ProgramSocket& operator=(const ProgramSocket&) = delete;

  // Listens at the path, whose folder is made if it is not there; attach.mode and attach.group.
  // `accepted` gets each program until close(). Errors: kExists (another daemon), kPermission,
  // kConfig (no such group).
  Status listen(const StackdConfig& config, std::function<void(UniqueFd)> accepted);
  void close();
  int descriptor() { return socket_.native_handle(); }

 private:
  void accept();

  const std::string path_;
  boost::asio::posix::stream_descriptor socket_;
  AcceptPause pause_;
  std::function<void(UniqueFd)> accepted_;
};

}  // namespace mercury
