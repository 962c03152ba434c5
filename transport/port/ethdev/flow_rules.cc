#include "transport/port/ethdev/flow_rules.h"

#include <netinet/in.h>
#include <rte_byteorder.h>
#include <rte_flow.h>

#include <array>
#include <vector>

namespace mercury::ethdev {
namespace {

// What a rule says of a frame. That the next header is UDP follows from the pattern: some drivers
// (i40e, ice) do not take rules that name it, others (ixgbe) take all protocols where none does.
struct Match {
  bool v6 = false;
  bool tagged = false;
  bool names_udp = false;
};

class Rule {
 public:
  Rule(const Match& match, uint16_t udp_port, uint16_t queue) : queue_{.index = queue} {
    attributes_.ingress = 1;
    udp_.hdr.dst_port = rte_cpu_to_be_16(udp_port);
    udp_mask_.hdr.dst_port = 0xffff;
    v4_.hdr.next_proto_id = IPPROTO_UDP;
    v4_mask_.hdr.next_proto_id = 0xff;
    v6_.hdr.proto = IPPROTO_UDP;
    v6_mask_.hdr.proto = 0xff;
    add(RTE_FLOW_ITEM_TYPE_ETH);
    if (match.tagged) add(RTE_FLOW_ITEM_TYPE_VLAN);
    if (!match.names_udp) {
      add(match.v6 ? RTE_FLOW_ITEM_TYPE_IPV6 : RTE_FLOW_ITEM_TYPE_IPV4);
    } else if (match.v6) {
      add(RTE_FLOW_ITEM_TYPE_IPV6, &v6_, &v6_mask_);
    } else {
      add(RTE_FLOW_ITEM_TYPE_IPV4, &v4_, &v4_mask_);
    }
    add(RTE_FLOW_ITEM_TYPE_UDP, &udp_, &udp_mask_);
    add(RTE_FLOW_ITEM_TYPE_END);
    actions_[0] = {RTE_FLOW_ACTION_TYPE_QUEUE, &queue_};
    actions_[1] = {RTE_FLOW_ACTION_TYPE_END, nullptr};
  }
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;

  // Null: the device does not take it.
  rte_flow* make(uint16_t dpdk_port) const {
    rte_flow_error error{};
    return rte_flow_create(dpdk_port, &attributes_, items_.data(), actions_.data(), &error);
  }

 private:
  void add(rte_flow_item_type type, const void* spec = nullptr, const void* mask = nullptr) {
    items_[item_count_++] = {type, spec, nullptr, mask};
  }

  rte_flow_attr attributes_{};
  rte_flow_item_ipv4 v4_{}, v4_mask_{};
  rte_flow_item_ipv6 v6_{}, v6_mask_{};
  rte_flow_item_udp udp_{}, udp_mask_{};
  rte_flow_action_queue queue_;
  std::array<rte_flow_item, 5> items_{};
  size_t item_count_ = 0;
  std::array<rte_flow_action, 2> actions_{};
};

bool make_all(uint16_t dpdk_port, const FlowPorts& ports, const Match& match) {
  std::vector<rte_flow*> made;
  for (uint16_t engine = 0; engine < ports.engines; ++engine) {
    const Rule rule(match, static_cast<uint16_t>(ports.first + engine),
                    static_cast<uint16_t>(engine % ports.queues));
    rte_flow* const flow = rule.make(dpdk_port);
    if (flow == nullptr) {
      rte_flow_error error{};
      for (rte_flow* one : made) rte_flow_destroy(dpdk_port, one, &error);
      return false;
    }
    made.push_back(flow);
  }
  return true;
}

// Drivers that take no rule with a tag may take one without. Whether their NICs then look behind
// tags is theirs to say: nobody has tried.
bool steer_family(uint16_t dpdk_port, const FlowPorts& ports, bool v6) {
  const auto steer = [&](bool tagged) {
    return make_all(dpdk_port, ports, {v6, tagged, true}) ||
           make_all(dpdk_port, ports, {v6, tagged, false});
  };
  return steer(ports.tagged) || (ports.tagged && steer(false));
}

}  // namespace

Steered steer_to_engines(uint16_t dpdk_port, const FlowPorts& ports) {
  return {ports.v4 && steer_family(dpdk_port, ports, false),
          ports.v6 && steer_family(dpdk_port, ports, true)};
}

}  // namespace mercury::ethdev
