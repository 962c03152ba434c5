// The host inside a program: one engine on a thread of its own over the uring port, and a control
// thread. No daemon, no root.
#pragma once

#include <memory>

#include "shim/host/control_thread.h"
#include "shim/host/link_register.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury {

class EmbeddedHost {
 public:
  // `listen`: this program's address; port 0 = any. `link_bytes_per_second`: as a Port's; the hosts
  // of one process that listen at one address share it, and 0 is what the first of them said.
  // `notice` takes lines for a log, on the control thread. Errors: as UringPort::create;
  // kInvalidArgument: another rate than they have; kLimit.
  static Result<std::unique_ptr<EmbeddedHost>> create(const Endpoint& listen,
                                                      uint64_t link_bytes_per_second,
                                                      Notice notice);
  // Closes all sessions (peers are told), then ends both threads.
  ~EmbeddedHost();
  EmbeddedHost(const EmbeddedHost&) = delete;
  EmbeddedHost& operator=(const EmbeddedHost&) = delete;

  void post(ControlThread::Task task) { control_->post(std::move(task)); }
  // Hands a command to the engine; on the control thread only.
  void send(HostCommand command) { host_->send(LaneId(0), std::move(command)); }
  const PortInfo& port_info() const { return host_->port_info(0); }

 private:
  EmbeddedHost() = default;
  LinkSeat seat_;
  std::unique_ptr<Host> host_;
  std::unique_ptr<ControlThread> control_;
};

}  // namespace mercury
