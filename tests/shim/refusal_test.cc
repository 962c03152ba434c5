// A server that has no room for a job's pushes for now, in virtual time: what that costs the job,
// and the job beside it.
#include <gtest/gtest.h>

#include "tests/shim/tenants_lab.h"

namespace mercury {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint32_t kSmallTensors = 1'500;

std::vector<TensorDeclaration> tensors(uint32_t count, uint64_t numel) {
  std::vector<TensorDeclaration> all(count);
  for (uint32_t i = 0; i < count; ++i) {
    all[i].tensor = TensorId(i);
    all[i].numel = numel;
  }
  return all;
}

// A server with little room for sums that wait, and two jobs. One has a member that takes its sums
// so slowly that there is no room for what the others push.
class Refusal : public ::testing::Test {
 protected:
  Refusal() : lab_(lane(), link()) {
    innocent_ = lab_.open("innocent", {}, {lab_.add_host(), lab_.add_host()}, tensors(1, 100'000));
    for (int i = 0; i < 3; ++i) hosts_.push_back(lab_.add_host());
    refused_ = lab_.open("refused", {}, hosts_, tensors(kSmallTensors, 250));
  }
  static LaneConfig lane() {
    LaneConfig lane = ClusterConfig::small_lane();
    lane.exchange.sends.scheduler.max_ranges = 1'024;
    lane.exchange.sends.reserved_ranges = 64;
    return lane;
  }
  static sim::LinkConfig link() {
    sim::LinkConfig link;
    link.bytes_per_second = 1'250'000'000;
    link.delay_ns = 5'000;
    return link;
  }
  uint64_t total(Counter counter) {
    uint64_t sum = 0;
    for (const uint32_t host : hosts_) sum += lab_.cluster[host].total(counter);
    return sum;
  }
  // Another round of every tensor: the server runs out of room while it goes on.
  void push_all() {
    for (uint32_t tensor = 0; tensor < kSmallTensors; ++tensor) {
      lab_.push(*refused_, tensor);
      if (tensor % 128 == 127) lab_.run_for(kMs);
    }
  }

  TenantsLab lab_;
  std::vector<uint32_t> hosts_;
  TenantsLab::Tenant* innocent_ = nullptr;
  TenantsLab::Tenant* refused_ = nullptr;
};

TEST_F(Refusal, IsNoCongestionAndTheJobGoesOnAtOnceWhenThereIsRoom) {
  ASSERT_TRUE(innocent_ && refused_);
  ASSERT_TRUE(lab_.push_all(*refused_, kSmallTensors));
  lab_.go_on(*innocent_);
  lab_.run_for(100 * kMs);
  const uint64_t alone = innocent_->rounds;
  const uint64_t lost_before = total(Counter::kRetransmits);
  lab_.port(hosts_[0]).mean = true;
  push_all();
  const uint64_t rounds = innocent_->rounds;
  lab_.run_for(100 * kMs);
  const uint64_t beside = innocent_->rounds - rounds;
  EXPECT_GT(lab_.cluster[0].total(Counter::kDropSlotBusy), 0U) << "there was room";
  ASSERT_FALSE(refused_->done());
  const uint64_t lost = total(Counter::kRetransmits) - lost_before;
  lab_.port(hosts_[0]).mean = false;
  const uint64_t from_ns = lab_.cluster.now_ns();
  ASSERT_TRUE(lab_.cluster.run([&] { return refused_->done(); }, from_ns + 5'000 * kMs));
  EXPECT_GE(10 * beside, 9 * alone) << "the job beside it";
  const uint64_t refused = lab_.cluster[0].total(Counter::kDatagramsRefused);
  EXPECT_GT(refused, 0U);
  uint64_t sent_back = 0;
  for (uint32_t host = 1; host < lab_.cluster.size(); ++host) {
    sent_back += lab_.cluster[host].total(Counter::kDatagramsSentBack);
  }
  EXPECT_EQ(sent_back, refused) << "both ends count the same";
  EXPECT_EQ(lost, 0U) << "the path has lost nothing";
}

}  // namespace
}  // namespace mercury
