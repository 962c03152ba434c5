// One job of a context. Private to shim/client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "scheduler/policy.h"
#include "scheduler/terms/part.h"
#include "scheduler/terms/worker_set.h"
#include "shim/channel/attach.h"
#include "shim/channel/unique_fd.h"
#include "shim/client/backend.h"
#include "shim/client/mercurystack/mercury.h"
#include "shim/client/operations.h"

namespace mercury::client {

class Context;

struct Tensor {
  attach::DeclaredTensor wire;
  uint64_t bytes = 0;
  Round next_round = 1;
  // Jobs with a quorum: who is missing in the open round, as far as the engines have said; and in
  // the last complete round. Null: nobody ever is.
  struct Missing {
    Absentees now;
    Absentees last;
  };
  std::unique_ptr<Missing> missing;
  Round complete_round;         // 0: none
  std::byte* user = nullptr;    // the program's memory
  std::byte* shadow = nullptr;  // where the engine reads and writes, if it cannot see `user`
  // A round is over when its sum has been taken: by a push_pull, or by the pull after a push. Until
  // then no push is submitted, so that all engines agree on what round it is.
  bool round_over = true;
  bool pull_due = false;  // pushed, not pulled yet
  bool push_in_flight = false;
  bool pull_in_flight = false;
  // With a shadow. A sum in the shadow is taken out by the thread that collects its completion, and
  // the round is not over before. While a thread copies, without the context's mutex, nobody else
  // touches either memory, and no push is taken.
  bool sum_due = false;
  bool copying = false;
  std::optional<SubmitOp> planned;  // by the batch that is being checked, under the mutex
};

// The job's barriers, which are rounds of a tensor of the library's own.
struct Barrier {
  bool entered = false;         // a thread is inside
  std::byte* memory = nullptr;  // of the tensor, once it is declared
  mercury_handle handle = 0;    // of the round that is not over
};

struct Job {
  Context* context = nullptr;
  HostJob host;
  Role role = Role::kWorker;
  int rank = 0;
  int workers = 0;
  int servers = 0;
  bool quorum = false;
  uint32_t features = 0;  // what all servers and the host know (kKnowsParts and the like)
  Policy::Place place = Policy::Place::kSpread;  // of its tensors, as long as it lives

  // Everything below: under the context's mutex.
  std::deque<Tensor> tensors;
  std::unordered_map<TensorId, TensorIndex> index_of;
  Errc failed = Errc::kOk;   // what every operation from now on fails with
  std::string failure_text;  // the host's reason, once somebody has asked; stays as it is then
  bool closing = false;
  bool left = false;   // by the host, too: no engine touches its tensors
  bool ended = false;  // closed with its context: nothing of it is left but this
  int users = 0;       // threads inside a call that may block or call back
  OperationList done;  // for mercury_poll, or for the callback
  mercury_callback callback = nullptr;
  void* callback_argument = nullptr;
  mercury_job_stats stats{};
  Barrier barrier;
  UniqueFd epoll;   // what mercury_job_get_fd returns
  UniqueFd queued;  // readable while `done` is not empty, and from the end on
  bool queued_rung = false;
};

// Of one of the job's tensors, worker `rank`'s.
inline Part part_of(const Job& job, const Tensor& tensor, int rank) {
  return mercury::part_of(tensor.wire.numel, static_cast<uint64_t>(job.workers),
                          Rank(static_cast<uint16_t>(rank)));
}

// What an operation of the job failed of, for people; lives as long as the job. Null: nothing.
const char* reason_of(const Job& job, Errc code);

}  // namespace mercury::client
