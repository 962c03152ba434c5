// What a program asks of its host, in the words of attach messages, as the host's JobManager takes
// it, and its answer: the same whether the program asks a daemon or the engine in its own process.
#pragma once

#include <cstddef>
#include <vector>

#include "shim/channel/attach.h"
#include "shim/job/job_manager.h"
#include "transport/base/result.h"

namespace mercury {

// `channels` as in OpenJob::channels. Errors: kInvalidArgument, a policy that no engine can follow.
Result<OpenJob> to_open_job(const attach::JobOpen& request, std::vector<EngineChannel*> channels);

// `data`: where the tensor lies in this process.
TensorDeclaration to_declaration(const attach::DeclaredTensor& tensor, std::byte* data);

attach::JobOpened to_job_opened(const OpenedJob& opened);

}  // namespace mercury
