#include "tests/disaster/tables.h"

#include <algorithm>
#include <array>
#include <vector>

namespace mercury::disaster {
namespace {

using Lanes = std::array<uint32_t, 2>;  // sessions of a host's engines; none has more engines

// Of the job's members when all are in it, added to `hosts`.
void add_sessions(const Scenario& s, const JobPlan& job, std::vector<Lanes>& hosts) {
  const uint32_t coordinator = job.server_hosts.front();
  const auto add_control = [&hosts, coordinator](uint32_t host) {
    if (host == coordinator) return;  // they speak within the host
    ++hosts[host][0];
    ++hosts[coordinator][0];
  };
  uint32_t lanes = s.hosts[coordinator].lanes;
  for (const uint32_t server : job.server_hosts) lanes = std::min(lanes, s.hosts[server].lanes);
  for (const uint32_t server : job.server_hosts) add_control(server);
  for (const uint32_t worker : job.worker_hosts) {
    add_control(worker);
    for (uint32_t shard = 0; shard < job.server_hosts.size() * lanes; ++shard) {
      ++hosts[worker][shard % s.hosts[worker].lanes];
      ++hosts[job.server_hosts[shard / lanes]][shard % lanes];
    }
  }
}

void at_least(std::vector<Lanes>& hosts, const std::vector<Lanes>& others) {
  for (size_t host = 0; host < hosts.size(); ++host) {
    for (size_t lane = 0; lane < hosts[host].size(); ++lane) {
      hosts[host][lane] = std::max(hosts[host][lane], others[host][lane]);
    }
  }
}

}  // namespace

// Of a table open jobs, which these are that have no secret, may fill three quarters.
uint32_t open_sessions(uint32_t sessions) { return sessions - sessions / 4; }

// One job more is there when the others are over. In some scenarios of several jobs each has room,
// but not all of them.
void draw_tables(Scenario& s, Random random) {
  const size_t others = static_cast<size_t>(
      std::ranges::count_if(s.jobs, [](const JobPlan& job) { return !job.recovery; }));
  s.contended = others > 1 && random.chance(0.3);
  std::vector<Lanes> needed(s.hosts.size());
  std::vector<Lanes> together(s.hosts.size());
  for (const JobPlan& job : s.jobs) {
    std::vector<Lanes> alone(s.hosts.size());
    add_sessions(s, job, alone);
    at_least(needed, alone);
    if (!job.recovery) add_sessions(s, job, together);
  }
  if (!s.contended) at_least(needed, together);
  const uint64_t most_spare = random.chance(0.5) ? 1 : 4;
  for (size_t host = 0; host < s.hosts.size(); ++host) {
    const uint32_t most = std::ranges::max(needed[host]);
    uint32_t sessions = most;
    while (!s.listed() && open_sessions(sessions) < most) ++sessions;
    s.hosts[host].sessions =
        std::max(sessions, 1U) + static_cast<uint32_t>(random.below(most_spare));
  }
}

}  // namespace mercury::disaster
