#include "shim/host/open_job.h"

#include <string>
#include <utility>

#include "scheduler/policy.h"

namespace mercury {

Result<OpenJob> to_open_job(const attach::JobOpen& request, std::vector<EngineChannel*> channels) {
  Result<std::string> policy = canonical_policy(request.terms.policy);
  if (!policy) return policy.error();
  OpenJob open;
  open.name = request.name;
  open.secret = request.secret;
  open.role = request.role;
  open.rank = request.rank;
  open.workers = request.workers;
  open.servers = request.servers;
  open.rendezvous = request.rendezvous;
  open.terms = request.terms;
  open.terms.policy = std::move(*policy);
  open.timeout_ns = to_ns(request.timeout_ms);
  open.client_job = request.client_job;
  open.channels = std::move(channels);
  return open;
}

attach::JobOpened to_job_opened(const OpenedJob& opened) {
  return {opened.slot.value, opened.rank,        opened.workers,
          opened.servers,    opened.chunk_bytes, opened.server_features};
}

TensorDeclaration to_declaration(const attach::DeclaredTensor& tensor, std::byte* data) {
  return {tensor.id, tensor.numel, tensor.dtype, tensor.op, tensor.priority, data};
}

}  // namespace mercury
