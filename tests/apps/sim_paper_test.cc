// The model on the shipped traces, beside what "Accelerating Distributed DNN Training via Transport
// Layer Scheduling" (Mercury, TPDS 2023) says of it in section V.C. The paper measured layers on a
// GTX 3090 and prints curves; the traces' layers are shares of a V100's total. So what is compared
// is order and reduction, and beside them the model's own figures stand so that a change shows.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "apps/sim/workload.h"
#include "apps/trace/shipped.h"
#include "scheduler/model/equations.h"
#include "scheduler/model/search.h"

namespace mercury::simulator {
namespace {

SimOptions options_at(double gbps, uint32_t mtu = 9000) {
  SimOptions options;
  options.bandwidth_bps = static_cast<uint64_t>(gbps * 1e9);
  options.mtu = mtu;
  return with_all_links(options);
}

Trace shipped(const std::string& model) {
  const Result<Trace> trace = read_trace(trace_path(model));
  EXPECT_TRUE(trace) << trace.error().message;
  return *trace;
}

double iteration_s(const model::Chain& chain, double gbps, const char* policy) {
  const auto prediction =
      predict(chain, rates_of(cluster_of(options_at(gbps))), *parse_policy(policy));
  EXPECT_TRUE(prediction) << prediction.error().message;
  return prediction->iteration_s;
}

TEST(Framing, IsWireFormatV1OverEthernet) {
  // 9000 - 20 (IPv4) - 8 (UDP) - 48 (chunk header) - 8 (contributors of up to 64 workers) = 8916
  // bytes: 2229 floats, of which 139 vectors of 16 are used, 8896 bytes. Around them 8 + 14 + 4 +
  // 12 of Ethernet, 20 + 8 + 48 of headers = 114.
  const Framing framing = framing_of(options_at(10));
  EXPECT_EQ(framing.payload_bytes, 8916U);
  EXPECT_EQ(framing.overhead_bytes, 114U);
  TraceTensor tensor;
  tensor.numel = 2224;
  EXPECT_EQ(frames_of(tensor, framing), 1U);
  tensor.numel = 2225;
  EXPECT_EQ(frames_of(tensor, framing), 2U);
  tensor.dtype = Dtype::kF64;  // 1114 doubles fit, 1104 are used
  tensor.numel = 1104 * 3 + 1;
  EXPECT_EQ(frames_of(tensor, framing), 4U);

  SimOptions ipv6 = options_at(10, 1500);
  ipv6.ipv6 = true;
  ipv6.workers = 65;
  EXPECT_EQ(framing_of(ipv6).payload_bytes, 1500U - 40 - 8 - 48 - 16);
  EXPECT_EQ(framing_of(ipv6).overhead_bytes, 134U);
}

TEST(Framing, IsInTheChainAndCanBeTakenOut) {
  const Trace trace = shipped("vgg16");
  const Framing framing = framing_of(options_at(10));
  const model::Chain chain = chain_of(trace, framing);
  ASSERT_EQ(chain.size(), trace.tensors.size());
  for (size_t n = 0; n < chain.size(); ++n) {
    const uint64_t framed =
        trace.tensors[n].bytes() + frames_of(trace.tensors[n], framing) * framing.overhead_bytes;
    EXPECT_EQ(chain[n].wire_bytes, static_cast<double>(framed));
    EXPECT_EQ(chain[n].priority, trace.tensors[n].priority);
  }
  // Large frames are 1.3 % more than what they carry.
  const double share =
      iteration_s(chain, 1, "mercury") / iteration_s(without_framing(chain), 1, "mercury");
  EXPECT_NEAR(share, 1 + 114.0 / 8896, 1e-4);
}

// Fig. 10: at 20 Gb/s the fully connected layers of VGG-16 take far longer to send than to compute.
TEST(Paper, Figure10LayerTimes) {
  const Trace trace = shipped("vgg16");
  const model::Chain chain = without_framing(chain_of(trace, framing_of(options_at(20))));
  const model::Times push = transfer_times(chain, rates_of(cluster_of(options_at(20))).push);
  for (size_t n = 0; n < chain.size(); ++n) {
    if (trace.tensors[n].name != "fc6.weight") continue;
    EXPECT_DOUBLE_EQ(push[n], 102'760'448.0 * 4 * 8 / 20e9);  // 164.4 ms
    EXPECT_GT(push[n], 100 * (chain[n].forward_s + chain[n].backward_s));
  }
}

// Fig. 11: normalised speed from 1 to 100 Gb/s.
TEST(Paper, Figure11OrderOfPolicies) {
  for (const std::string& name : shipped_models()) {
    const model::Chain chain = chain_of(shipped(name), framing_of(options_at(10)));
    double before = HUGE_VAL;
    for (double gbps = 1; gbps <= 100; gbps *= 1.25) {
      const double mercury = iteration_s(chain, gbps, "mercury");
      const double fifo = iteration_s(chain, gbps, "mercury-fifo");
      const double rounding = 1e-12;
      EXPECT_GE(mercury, oracle_s(chain) - rounding) << name << " at " << gbps;
      EXPECT_LE(mercury, before + rounding) << name << " at " << gbps;
      EXPECT_LE(mercury, fifo + rounding) << name << " at " << gbps;
      EXPECT_LE(fifo, iteration_s(chain, gbps, "wfbp-eq7") + rounding) << name << " at " << gbps;
      EXPECT_LE(fifo, iteration_s(chain, gbps, "wfbp") + rounding) << name << " at " << gbps;
      for (const char* partitions : {"p3", "byteps", "bytescheduler"}) {
        EXPECT_LE(mercury, iteration_s(chain, gbps, partitions) + rounding) << name << partitions;
      }
      before = mercury;
    }
  }
}

// Fig. 12: the least bandwidth for 0.99 of a lone worker's speed, 0.90 for BERT-Base. The paper:
// Mercury needs "up to ~50 %" less than WFBP, which it models by equation 7. With pulls that share
// the downlink WFBP needs more still.
TEST(Paper, Figure12MinimumBandwidth) {
  struct Row {
    const char* model;
    double speed, mercury, fifo, wfbp, wfbp_eq7;  // Gb/s, MTU 9000
  };
  constexpr std::array kRows = {Row{"vgg16", 0.99, 35.24, 50.93, 88.75, 57.81},
                                Row{"vgg19", 0.99, 31.26, 45.40, 77.87, 49.35},
                                Row{"alexnet", 0.99, 123.23, 183.92, 297.55, 199.43},
                                Row{"resnet50", 0.99, 7.67, 12.68, 13.85, 12.68},
                                Row{"bert-base", 0.90, 33.22, 33.22, 65.09, 65.09}};
  for (const Row& row : kRows) {
    const model::Chain chain = chain_of(shipped(row.model), framing_of(options_at(1)));
    const auto least_gbps = [&](const char* policy) {
      const auto factor = factor_for_speed(chain, rates_of(cluster_of(options_at(1))),
                                           *parse_policy(policy), row.speed);
      EXPECT_TRUE(factor) << factor.error().message;
      return *factor;
    };
    const double mercury = least_gbps("mercury"), printed = least_gbps("wfbp-eq7");
    EXPECT_NEAR(mercury, row.mercury, 0.01 * row.mercury) << row.model;
    EXPECT_NEAR(least_gbps("mercury-fifo"), row.fifo, 0.01 * row.fifo) << row.model;
    EXPECT_NEAR(least_gbps("wfbp"), row.wfbp, 0.01 * row.wfbp) << row.model;
    EXPECT_NEAR(printed, row.wfbp_eq7, 0.01 * row.wfbp_eq7) << row.model;
    EXPECT_GT(1 - mercury / printed, 0.30) << row.model;
    EXPECT_LT(1 - mercury / printed, 0.55) << row.model;
  }
}

// Fig. 13 and its text, at 10 Gb/s: Mercury is ahead of the native server by "up to 130 %" and of
// itself without preemption by "up to 15 %". What order is worth depends on how long the GPU
// computes, which the paper does not print: with a V100's 126 ms the second is 8 %, which is
// inside, and with 425 ms, where the link hides least behind the GPU, 28 %, which is not. These are
// the model's own figures.
TEST(Paper, Figure13SpeedUpsOfVgg16) {
  Trace trace = shipped("vgg16");
  const auto gain = [&](const char* policy) {
    const model::Chain chain = chain_of(trace, framing_of(options_at(10, 1500)));
    return iteration_s(chain, 10, policy) / iteration_s(chain, 10, "mercury");
  };
  EXPECT_NEAR(gain("wfbp"), 1.825, 0.01);
  EXPECT_NEAR(gain("mercury-fifo"), 1.082, 0.005);
  for (TraceTensor& tensor : trace.tensors) {
    tensor.forward_ns = tensor.forward_ns * 425 / 126;
    tensor.backward_ns = tensor.backward_ns * 425 / 126;
  }
  EXPECT_NEAR(gain("wfbp"), 2.019, 0.01);
  EXPECT_NEAR(gain("mercury-fifo"), 1.276, 0.005);
}

}  // namespace
}  // namespace mercury::simulator
