// A server's: makes one push of those of all workers. Round n of a key is made of each worker's
// n-th push of it; values are added in the order of workers when the last one is there, so that
// sums have the same bits whatever the order of arrival.
//
// A push counts once: what a worker had given to rounds that are not complete is taken out when
// another process takes its place, and that is never answered for the one before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "shim/pslite/message_link.h"
#include "shim/pslite/summed.h"

namespace mercury_van {

// What has arrived of one worker.
struct WorkerRequest {
  int worker = 0;    // its place, from 0
  std::string meta;  // as ps-lite packs it
  KeyRequest what;
};

// Not thread-safe: whoever calls, also hands on what comes of it before anybody else calls.
class Merger {
 public:
  explicit Merger(size_t workers) : workers_(workers), processes_(workers) {}

  struct ToServer {
    WorkerRequest request;  // of a merged push: the first worker's, with the sums
    int merged = 0;         // the number by which the server answers it; 0: a pull
  };

  // What the server gets of it now, in order: a round that is complete, and pulls that waited for
  // it. `error` says how the push differs from another worker's. A push of a process that is not
  // its worker's any more is dropped.
  std::vector<ToServer> push(WorkerRequest request, Incarnation process, std::string* error);
  // A pull behind a push of the same worker and application, and of the same first key, waits for
  // that push's round. False: none of its pushes is open, and nothing was done.
  bool hold(const WorkerRequest& pull, Incarnation process);
  // Whom the answer to a merged push is for: each worker's request, without data. Taken once.
  std::vector<WorkerRequest> answer(int merged);
  // The worker is this process from now on.
  void replace(int worker, Incarnation process);

 private:
  struct OpenRound {
    std::vector<WorkerRequest> pushes;  // by worker
    std::vector<bool> is_there;
    size_t count = 0;
    std::vector<WorkerRequest> pulls;
  };
  // Of one first key: those that lack a worker's push, the oldest first.
  using OpenRounds = std::deque<OpenRound>;

  static std::string difference(const WorkerRequest& one, const WorkerRequest& other);
  OpenRound& round_without(int worker, OpenRounds& rounds);
  ToServer merge(OpenRound& round);

  const size_t workers_;
  std::vector<Incarnation> processes_;
  std::map<uint64_t, OpenRounds> open_;
  std::map<int, std::vector<WorkerRequest>> unanswered_;
  int last_merged_ = 0;
};

}  // namespace mercury_van
