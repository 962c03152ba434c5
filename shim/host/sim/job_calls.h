// What programs on a virtual cluster ask of their hosts' control planes to open a job and to
// declare its tensors, and the wait until all of them have had their answer. One thread.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shim/host/sim/virtual_cluster.h"

namespace mercury::sim {

template <class H = VirtualHost<>>
class JobCalls {
 public:
  explicit JobCalls(VirtualCluster<H>& cluster) : cluster_(cluster) {}

  // Attaches `request.channels`, one to a lane, and opens the job. `opened` is called if it opens.
  void open(uint32_t host, ClientId client, const OpenJob& request,
            std::function<void(const OpenedJob&)> opened) {
    uint16_t lane = 0;
    for (EngineChannel* channel : request.channels) {
      cluster_[host].host().send(LaneId(lane++), command::AttachChannel{channel});
    }
    cluster_[host].host().jobs().open_job(
        client, request, cluster_.now_ns(),
        [answer = add(), opened = std::move(opened)](Result<OpenedJob> result) {
          if (result) {
            opened(*result);
            answer->emplace();
          } else {
            answer->emplace(result.error());
          }
        });
    cluster_.called(host);
  }
  void declare(uint32_t host, ClientId client, JobSlot slot,
               const std::vector<TensorDeclaration>& tensors) {
    cluster_[host].host().jobs().declare(
        client, slot, tensors, cluster_.now_ns(),
        [answer = add()](Status status) { answer->emplace(std::move(status)); });
    cluster_.called(host);
  }

  // Runs until all that were called since the last wait have answered. Errors: of the calls that
  // failed the one that was made first; kTimedOut, if one has no answer by `end_ns`, or never will.
  Status wait(uint64_t end_ns = kNever) {
    const auto answers = std::exchange(answers_, {});
    const auto all = [&answers] {
      return std::all_of(answers.begin(), answers.end(),
                         [](const auto& a) { return a->has_value(); });
    };
    if (!cluster_.run(all, end_ns)) {
      return Error(Errc::kTimedOut, "a program had no answer from its host's control plane");
    }
    for (const auto& answer : answers) {
      if (!**answer) return **answer;
    }
    return {};
  }

 private:
  using Answer = std::optional<Status>;  // none: not yet
  // The control plane's, too: it may answer when nobody waits any more.
  std::shared_ptr<Answer> add() { return answers_.emplace_back(std::make_shared<Answer>()); }

  VirtualCluster<H>& cluster_;
  std::vector<std::shared_ptr<Answer>> answers_;
};

}  // namespace mercury::sim
