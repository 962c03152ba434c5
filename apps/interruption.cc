#include "apps/interruption.h"

#include <csignal>

namespace mercury {
namespace {

volatile std::sig_atomic_t g_signal = 0;  // the first that came

void on_signal(int signal) {
  g_signal = signal;
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

bool interrupted() { return g_signal != 0; }

int interruption_status() { return interrupted() ? 128 + g_signal : 0; }

std::string interruption_name() {
  if (!interrupted()) return {};
  return g_signal == SIGINT ? "SIGINT" : "SIGTERM";
}

}  // namespace mercury
