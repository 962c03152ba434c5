#include "shim/host/sim/virtual_cluster.h"

namespace mercury {

template class Engine<sim::SimPort, HostServices>;
template class Lane<sim::SimPort>;
template class HostOf<sim::SimPort>;
template class sim::VirtualHost<sim::SimPort>;
template class sim::VirtualCluster<sim::VirtualHost<>>;

}  // namespace mercury
