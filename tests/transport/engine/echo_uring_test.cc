// The echo service over UDP sockets on loopback.
#include "tests/transport/engine/echo_suite.h"
#include "transport/port/uring/uring_port.h"

namespace mercury::echo {
namespace {

template <bool kV4>
struct UringLab {
  std::unique_ptr<uring::UringPort> open(int, Counters& counters) {
    auto port = uring::UringPort::create(
        {.local = *Endpoint::parse(kV4 ? "127.0.0.1:0" : "[::1]:0")}, counters);
    EXPECT_TRUE(port) << (port ? "" : port.error().message);
    return port ? std::move(*port) : nullptr;
  }
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(UringV4, EchoSuite, UringLab<true>);
INSTANTIATE_TYPED_TEST_SUITE_P(UringV6, EchoSuite, UringLab<false>);

}  // namespace mercury::echo
