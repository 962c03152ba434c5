#include "apps/stackd/accept_pause.h"

#include <spdlog/spdlog.h>

#include <boost/system/error_code.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "apps/stackd/descriptors.h"
#include "shim/host/clock.h"
#include "transport/base/result.h"

namespace mercury {
namespace {

// Long enough to cost nothing, short enough that whoever connects hardly notices.
constexpr std::chrono::milliseconds kPause{100};
// A daemon at its limit fails now and then for long: that is one episode, and one line in the log.
constexpr uint64_t kEpisodeNs = 10'000'000'000;

}  // namespace

AcceptPause::AcceptPause(boost::asio::io_context& io, std::string listener)
    : listener_(std::move(listener)), timer_(io) {}

bool AcceptPause::is_needed(int error) {
  return error != EAGAIN && error != EINTR && error != ECONNABORTED;
}

void AcceptPause::wait(int error, std::function<void()> again) {
  const uint64_t now_ns = monotonic_ns();
  if (last_failure_ns_ == 0 || now_ns - last_failure_ns_ > kEpisodeNs) {
    const bool descriptors = error == EMFILE || error == ENFILE;
    spdlog::error("{}: cannot accept a connection: {}; {}", listener_, errno_text(error),
                  descriptors ? "this daemon may open " + std::to_string(descriptor_limit().soft) +
                                    " descriptors: raise LimitNOFILE in its unit (ulimit -n), or "
                                    "lower attach.max_programs"
                              : "connections wait until there is memory");
  }
  last_failure_ns_ = now_ns;
  timer_.expires_after(kPause);
  timer_.async_wait([again = std::move(again)](const boost::system::error_code& cancelled) {
    if (!cancelled) again();
  });
}

void AcceptPause::cancel() { timer_.cancel(); }

}  // namespace mercury
