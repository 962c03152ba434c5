// Runs a host's control plane on a thread of its own, for programs that embed the engine.
#pragma once

#include <poll.h>

#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "shim/channel/unique_fd.h"
#include "shim/host/clock.h"
#include "shim/host/host.h"
#include "shim/host/thread.h"

namespace mercury {

class ControlThread {
 public:
  // What runs on the thread: everything that touches the control plane.
  using Task = std::function<void(JobManager& jobs, uint64_t now_ns)>;

  // `doorbell`: an eventfd that does not block.
  ControlThread(Host& host, UniqueFd doorbell) : host_(host), doorbell_(std::move(doorbell)) {}
  ~ControlThread() {
    if (!thread_.joinable()) return;
    post([this](JobManager&, uint64_t) { ending_ = true; });
    thread_.join();
  }
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  // Once.
  Status start() {
    Result<std::thread> thread = start_thread([this] { run(); });
    if (!thread) return thread.error();
    thread_ = std::move(*thread);
    return {};
  }
  // From any thread; tasks run in order.
  void post(Task task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    eventfd_write(doorbell_.get(), 1);
  }

 private:
  void run() {
    while (!ending_) {
      const uint64_t now_ns = monotonic_ns();
      const uint64_t deadline_ns = host_.next_deadline_ns();
      // Rounded up: a timer that is due in less than a millisecond is not polled for.
      const int wait_ms = deadline_ns == kNever ? -1
                          : deadline_ns <= now_ns
                              ? 0
                              : static_cast<int>(std::min<uint64_t>(
                                    (deadline_ns - now_ns + 999'999) / 1'000'000, 1000));
      pollfd fds[] = {{doorbell_.get(), POLLIN, 0}, {host_.event_fd(), POLLIN, 0}};
      poll(fds, 2, wait_ms);
      eventfd_t value;
      eventfd_read(doorbell_.get(), &value);
      std::vector<Task> tasks;
      {
        const std::lock_guard lock(mutex_);
        tasks.swap(tasks_);
      }
      for (Task& task : tasks) task(host_.jobs(), monotonic_ns());
      host_.process(monotonic_ns());
    }
  }

  Host& host_;
  const UniqueFd doorbell_;
  std::mutex mutex_;
  std::vector<Task> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace mercury
