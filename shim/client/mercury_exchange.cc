// The C functions about tensors and operations.
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "shim/client/border.h"

using mercury::Errc;
using mercury::Error;
using mercury::Result;
using mercury::Status;
using mercury::client::check_out;
using mercury::client::Context;
using mercury::client::fail;
using mercury::client::init;
using mercury::client::Job;
using mercury::client::null_argument;
using mercury::client::Request;
using mercury::client::result_of;
using mercury::client::with_job;

namespace {

int submit(mercury_job* job, Request request, mercury_handle* out) {
  return with_job(job, [&](Context& context, Job& j) {
    const Status submitted = context.submit(j, {&request, 1});
    if (!submitted) return fail(submitted.error());
    if (out) *out = request.handle;
    return 0;
  });
}

Result<std::vector<Request>> requests_of(const std::vector<mercury_operation>& operations) {
  std::vector<Request> requests;
  for (const mercury_operation& operation : operations) {
    if (operation.kind < 0 || operation.kind > MERCURY_OPERATION_REDUCE_SCATTER) {
      return Error(Errc::kInvalidArgument, "operation " + std::to_string(requests.size()) +
                                               ": unknown kind " + std::to_string(operation.kind));
    }
    requests.push_back({static_cast<mercury_operation_kind>(operation.kind),
                        mercury::TensorId(operation.tensor), operation.priority, operation.root,
                        operation.user_data});
  }
  return requests;
}

// Where the program's struct has a member for it.
void write_handle(mercury_operation* operations, size_t stride, size_t index,
                  mercury_handle handle) {
  if (stride < offsetof(mercury_operation, handle) + sizeof handle) return;
  auto* const element = reinterpret_cast<std::byte*>(operations) + index * stride;
  std::memcpy(element + offsetof(mercury_operation, handle), &handle, sizeof handle);
}

}  // namespace

extern "C" {

int mercury_tensor_options_init(mercury_tensor_options* options, size_t size) {
  return init(options, size, mercury_tensor_options{}, "mercury_tensor_options");
}

int mercury_declare(mercury_job* job, const mercury_tensor_options* tensors, size_t count) {
  return with_job(job, [&](Context& context, Job& j) {
    auto read = mercury::client::read_tensors(tensors, count);
    return read ? result_of(context.declare(j, *read)) : fail(read.error());
  });
}

int mercury_tensor_get_round(mercury_job* job, uint32_t tensor, uint32_t* out) {
  return with_job(job, [&](Context& context, Job& j) {
    if (!out) return null_argument("out");
    const auto round = context.tensor_round(j, mercury::TensorId(tensor));
    if (!round) return fail(round.error());
    *out = round->value;
    return 0;
  });
}

int mercury_tensor_get_part(mercury_job* job, uint32_t tensor, uint32_t rank, uint64_t* begin,
                            uint64_t* numel) {
  return with_job(job, [&](Context& context, Job& j) {
    if (!begin || !numel) return null_argument(begin ? "numel" : "begin");
    const auto part = context.part(j, mercury::TensorId(tensor), rank);
    if (!part) return fail(part.error());
    *begin = part->begin;
    *numel = part->numel;
    return 0;
  });
}

int mercury_contributors_init(mercury_contributors* contributors, size_t size) {
  return init(contributors, size, mercury_contributors{}, "mercury_contributors");
}

int mercury_tensor_get_contributors(mercury_job* job, uint32_t tensor, mercury_contributors* out) {
  return with_job(job, [&](Context& context, Job& j) {
    if (const Status fits = check_out(out, "mercury_contributors"); !fits) return result_of(fits);
    const auto contributors = context.contributors(j, mercury::TensorId(tensor));
    if (!contributors) return fail(contributors.error());
    mercury::client::write_sized(*contributors, out, out->size);
    return 0;
  });
}

int mercury_operation_init(mercury_operation* operation, size_t size) {
  mercury_operation defaults{};
  defaults.priority = MERCURY_DEFAULT_PRIORITY;
  return init(operation, size, defaults, "mercury_operation");
}

int mercury_submit(mercury_job* job, mercury_operation* operations, size_t count) {
  return with_job(job, [&](Context& context, Job& j) {
    const auto read = mercury::client::read_operations(operations, count);
    if (!read) return fail(read.error());
    if (count == 0) return 0;
    auto requests = requests_of(*read);
    if (!requests) return fail(requests.error());
    const size_t stride = operations->size;
    const Status submitted = context.submit(j, *requests);
    if (!submitted) return fail(submitted.error());
    for (size_t i = 0; i < count; ++i) write_handle(operations, stride, i, (*requests)[i].handle);
    return 0;
  });
}

int mercury_push_pull(mercury_job* job, uint32_t tensor, int priority, mercury_handle* out) {
  return submit(job, {MERCURY_OPERATION_PUSH_PULL, mercury::TensorId(tensor), priority}, out);
}
int mercury_push(mercury_job* job, uint32_t tensor, int priority, mercury_handle* out) {
  return submit(job, {MERCURY_OPERATION_PUSH, mercury::TensorId(tensor), priority}, out);
}
int mercury_pull(mercury_job* job, uint32_t tensor, int priority, mercury_handle* out) {
  return submit(job, {MERCURY_OPERATION_PULL, mercury::TensorId(tensor), priority}, out);
}
int mercury_broadcast(mercury_job* job, uint32_t tensor, uint32_t root, int priority,
                      mercury_handle* out) {
  return submit(job, {MERCURY_OPERATION_BROADCAST, mercury::TensorId(tensor), priority, root}, out);
}
int mercury_all_gather(mercury_job* job, uint32_t tensor, int priority, mercury_handle* out) {
  return submit(job, {MERCURY_OPERATION_ALL_GATHER, mercury::TensorId(tensor), priority}, out);
}
int mercury_reduce_scatter(mercury_job* job, uint32_t tensor, int priority, mercury_handle* out) {
  return submit(job, {MERCURY_OPERATION_REDUCE_SCATTER, mercury::TensorId(tensor), priority}, out);
}

int mercury_barrier(mercury_job* job, int timeout_ms) {
  return with_job(
      job, [&](Context& context, Job& j) { return result_of(context.barrier(j, timeout_ms)); });
}

int mercury_wait(mercury_job* job, mercury_handle handle, int timeout_ms) {
  return with_job(job, [&](Context& context, Job& j) {
    return result_of(context.wait(j, handle, timeout_ms));
  });
}

int mercury_wait_all(mercury_job* job, int timeout_ms) {
  return with_job(
      job, [&](Context& context, Job& j) { return result_of(context.wait_all(j, timeout_ms)); });
}

int mercury_completion_init(mercury_completion* completion, size_t size) {
  return init(completion, size, mercury_completion{}, "mercury_completion");
}

int mercury_poll(mercury_job* job, mercury_completion* out, size_t count, size_t size) {
  return with_job(job, [&](Context& context, Job& j) {
    if (!out && count > 0) return null_argument("out");
    const Status fits = mercury::client::check_size<mercury_completion>(size, "mercury_completion");
    if (!fits) return fail(fits.error());
    return context.poll(j, out, count, size);
  });
}

int mercury_job_set_callback(mercury_job* job, mercury_callback callback, void* user) {
  return with_job(job, [&](Context& context, Job& j) {
    context.set_callback(j, callback, user);
    return 0;
  });
}

int mercury_job_get_fd(mercury_job* job) {
  return with_job(job, [&](Context& context, Job& j) {
    auto fd = context.event_fd(j);
    return fd ? *fd : fail(fd.error());
  });
}

int mercury_job_stats_init(mercury_job_stats* stats, size_t size) {
  return init(stats, size, mercury_job_stats{}, "mercury_job_stats");
}

int mercury_job_get_stats(mercury_job* job, mercury_job_stats* out) {
  return with_job(job, [&](Context& context, Job& j) {
    if (const Status fits = check_out(out, "mercury_job_stats"); !fits) return result_of(fits);
    mercury::client::write_sized(context.stats(j), out, out->size);
    return 0;
  });
}

}  // extern "C"
