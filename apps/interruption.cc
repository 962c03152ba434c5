#include "apps/interruption.h"

#include <csignal>

namespace mercury {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void on_signal(int /*signal*/) {
  g_interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

void catch_interruptions() {
  struct sigaction act {};
  act.sa_handler = on_signal;
  act.sa_flags = SA_RESTART;  // an embedded engine's threads may be the ones that are interrupted
  sigaction(SIGINT, &act, nullptr);
  sigaction(SIGTERM, &act, nullptr);
}

bool interrupted() { return g_interrupted != 0; }

}  // namespace mercury
