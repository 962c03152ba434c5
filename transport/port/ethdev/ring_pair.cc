#include "transport/port/ethdev/ring_pair.h"

#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

#include <map>
#include <mutex>
#include <vector>

namespace mercury::ethdev {
namespace {

constexpr unsigned kFrames = 1024;  // per queue and direction

struct Pair {
  std::vector<rte_ring*> rings[2];  // towards the second end, towards the first
  int made = 0;
  int released = 0;
};

std::mutex pairs_mutex;
std::map<std::string, Pair> pairs;

void free_rings(Pair& pair) {
  for (auto& direction : pair.rings) {
    for (rte_ring* ring : direction) {
      void* frame = nullptr;
      while (ring != nullptr && rte_ring_dequeue(ring, &frame) == 0) {
        rte_pktmbuf_free(static_cast<rte_mbuf*>(frame));
      }
      rte_ring_free(ring);
    }
    direction.clear();
  }
}

// Frames of a closed end would outlive their pool.
void drain(Pair& pair) {
  for (auto& direction : pair.rings) {
    for (rte_ring* ring : direction) {
      void* frame = nullptr;
      while (rte_ring_dequeue(ring, &frame) == 0) rte_pktmbuf_free(static_cast<rte_mbuf*>(frame));
    }
  }
}

bool make_rings(Pair& pair, uint16_t queues, const std::string& port_name) {
  for (int direction = 0; direction < 2; ++direction) {
    for (uint16_t queue = 0; queue < queues; ++queue) {
      const std::string name = port_name + (direction == 0 ? "a" : "b") + std::to_string(queue);
      pair.rings[direction].push_back(
          rte_ring_create(name.c_str(), kFrames, 0, RING_F_SP_ENQ | RING_F_SC_DEQ));
      if (pair.rings[direction].back() == nullptr) return false;
    }
  }
  return true;
}

}  // namespace

Result<uint16_t> attach_ring_side(const std::string& name, uint16_t queues,
                                  const std::string& port_name) {
  const std::scoped_lock lock(pairs_mutex);
  Pair& pair = pairs[name];
  if (pair.made == 2) {
    return Error(Errc::kBusy, "ring:" + name + " has two ends, and both are taken");
  }
  if (pair.made == 0 && !make_rings(pair, queues, port_name)) {
    free_rings(pair);
    pairs.erase(name);
    return Error(Errc::kNoMemory, "ring:" + name + ": no memory for its rings; raise memory_mb");
  }
  if (pair.rings[0].size() != queues) {
    return Error(Errc::kConfig, "ring:" + name + ": its two ends have different numbers of queues");
  }
  auto& receive = pair.rings[pair.made == 0 ? 1 : 0];
  auto& transmit = pair.rings[pair.made == 0 ? 0 : 1];
  const int port =
      rte_eth_from_rings(port_name.c_str(), receive.data(), queues, transmit.data(), queues, 0);
  if (port < 0) {
    return Error(Errc::kSystem, rte_errno, "ring:" + name + ": " + rte_strerror(rte_errno));
  }
  ++pair.made;
  return static_cast<uint16_t>(port);
}

void release_ring_side(const std::string& name) {
  const std::scoped_lock lock(pairs_mutex);
  const auto found = pairs.find(name);
  if (found == pairs.end()) return;
  drain(found->second);
  if (++found->second.released < found->second.made) return;
  free_rings(found->second);
  pairs.erase(found);
}

}  // namespace mercury::ethdev
