// The C functions: checks of what C lets through, and the border that no exception crosses.
#include "shim/client/mercurystack/mercury.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "shim/client/context.h"
#include "shim/client/daemon_backend.h"
#include "shim/client/embedded_backend.h"
#include "shim/client/last_error.h"
#include "shim/client/launcher.h"
#include "shim/client/options.h"
#include "transport/base/environment.h"

using mercury::Errc;
using mercury::Error;
using mercury::Result;
using mercury::Role;
using mercury::Status;
using mercury::SubmitOp;
using mercury::client::Backend;
using mercury::client::Context;
using mercury::client::fail;
using mercury::client::Job;

namespace {

Context* unwrap(mercury_context* context) { return reinterpret_cast<Context*>(context); }
Job* unwrap(mercury_job* job) { return reinterpret_cast<Job*>(job); }

template <class F>
int guarded(F&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return mercury::client::fail_errno(-ENOMEM, "out of memory");
  } catch (const std::exception& e) {
    return mercury::client::fail_errno(-EIO, e.what());
  }
}

int result_of(const Status& status) { return status.ok() ? 0 : fail(status.error()); }
int null_argument(const char* what) {
  return fail(Errc::kInvalidArgument, std::string(what) + " may not be NULL");
}
int in_child() {
  return mercury::client::fail_errno(-ENOTCONN,
                                     "the parent attached, not this process; attach after fork");
}

// Calls body(Context&) where a call is possible at all.
template <class F>
int with_context(mercury_context* context, F&& body) noexcept {
  return guarded([&] {
    if (!context) return null_argument("context");
    if (unwrap(context)->in_child()) return in_child();
    return body(*unwrap(context));
  });
}
template <class F>
int with_job(mercury_job* job, F&& body) noexcept {
  return guarded([&] {
    if (!job) return null_argument("job");
    if (unwrap(job)->context->in_child()) return in_child();
    return body(*unwrap(job)->context, *unwrap(job));
  });
}

// A misspelt variable would be ignored, and the program wait for members that nobody starts.
Status check_variables() {
  const auto misspelt =
      mercury::find_misspelt(mercury::mercury_variables(), mercury::kProgramVariables);
  if (!misspelt) return {};
  return Error(Errc::kInvalidArgument, mercury::describe(*misspelt));
}

std::string or_environment(const char* value, const char* variable, const char* fallback) {
  if (value && *value) return value;
  const char* set = std::getenv(variable);
  return set && *set ? set : fallback;
}

Result<std::unique_ptr<Backend>> make_backend(const mercury_attach_options& options,
                                              mercury_mode& mode) {
  if (mode != MERCURY_EMBEDDED) {
    const std::string named = or_environment(options.socket, "MERCURY_SOCKET", "");
    auto daemon = mercury::client::make_daemon_backend(
        named.empty() ? mercury::attach::kDefaultSocket : named);
    // Only where nobody asked for a daemon and none is there: one that refuses, or whose socket
    // this program may not open, or that was named and is not there, is not to be passed over in
    // silence.
    if (daemon || mode == MERCURY_DAEMON || !named.empty() ||
        daemon.error().code != Errc::kDaemonLost) {
      mode = MERCURY_DAEMON;
      return daemon;
    }
  }
  mode = MERCURY_EMBEDDED;
  return mercury::client::make_embedded_backend(
      or_environment(options.listen, "MERCURY_LISTEN", ""));
}

int submit(mercury_job* job, SubmitOp op, uint32_t tensor, int priority, mercury_handle* out) {
  return with_job(job, [&](Context& context, Job& j) {
    return result_of(context.submit(j, op, mercury::TensorId(tensor), priority, out));
  });
}

}  // namespace

extern "C" {

int mercury_attach(const mercury_attach_options* options, mercury_context** out) {
  return guarded([&] {
    if (!out) return null_argument("out");
    *out = nullptr;
    const mercury_attach_options defaults = MERCURY_ATTACH_OPTIONS_INIT;
    auto read =
        mercury::client::read_sized(options ? options : &defaults, "mercury_attach_options");
    if (!read) return fail(read.error());
    const int asked = mercury::client::raw_value(read->mode);
    if (asked != MERCURY_AUTO && asked != MERCURY_DAEMON && asked != MERCURY_EMBEDDED) {
      return fail(Errc::kInvalidArgument, "mercury_attach_options.mode is unknown");
    }
    if (Status known = check_variables(); !known) return fail(known.error());
    auto mode = static_cast<mercury_mode>(asked);
    auto backend = make_backend(*read, mode);
    if (!backend) return fail(backend.error());
    auto context = Context::create(std::move(*backend), mode);
    if (!context) return fail(context.error());
    *out = reinterpret_cast<mercury_context*>(context->release());
    return 0;
  });
}

void mercury_detach(mercury_context* context) {
  if (!context) return;
  (void)with_context(context, [](Context& c) {
    if (Context::in_callback()) {
      return fail(Errc::kBusy, "mercury_detach was called from a callback");
    }
    delete &c;
    return 0;
  });
}

mercury_mode mercury_mode_of(const mercury_context* context) {
  return context ? reinterpret_cast<const Context*>(context)->mode() : MERCURY_AUTO;
}

int mercury_alloc(mercury_context* context, size_t bytes, void** out) {
  return with_context(context, [&](Context& c) {
    if (!out) return null_argument("out");
    *out = nullptr;
    auto memory = c.memory().allocate(bytes);
    if (!memory) return fail(memory.error());
    *out = *memory;
    return 0;
  });
}

int mercury_free(mercury_context* context, void* memory) {
  return with_context(context,
                      [&](Context& c) { return memory ? result_of(c.memory().free(memory)) : 0; });
}

int mercury_register(mercury_context* context, void* memory, size_t bytes) {
  return with_context(context,
                      [&](Context& c) { return result_of(c.memory().add_foreign(memory, bytes)); });
}

int mercury_deregister(mercury_context* context, void* memory) {
  return with_context(context,
                      [&](Context& c) { return result_of(c.memory().remove_foreign(memory)); });
}

void mercury_job_options_init_sized(mercury_job_options* options, size_t size) {
  if (!options || size < mercury::client::kFirstSize<mercury_job_options>) return;
  mercury_job_options defaults{};
  defaults.size = size;
  defaults.rank = -1;
  defaults.timeout_ms = 30000;
  mercury::client::set_preset_terms(defaults);
  std::memset(options, 0, size);
  std::memcpy(options, &defaults, std::min(size, sizeof defaults));
}

int mercury_job_options_from_env(mercury_job_options* options) {
  return guarded([&] {
    auto read = mercury::client::read_sized(options, "mercury_job_options");
    if (!read) return fail(read.error());
    if (Status known = check_variables(); !known) return fail(known.error());
    const auto getenv = [](const char* name) -> const char* { return std::getenv(name); };
    thread_local mercury::client::LaunchedMember member;  // owns the strings
    auto found = mercury::client::read_launcher(getenv);
    if (!found) return fail(found.error());
    member = std::move(*found);
    if (member.role)
      options->role = *member.role == Role::kWorker ? MERCURY_WORKER : MERCURY_SERVER;
    if (member.rank) options->rank = *member.rank;
    if (member.workers) options->workers = *member.workers;
    if (member.servers) options->servers = *member.servers;
    if (member.name) options->name = member.name->c_str();
    if (member.secret) options->secret = member.secret->c_str();
    if (member.rendezvous) options->rendezvous = member.rendezvous->c_str();
    return 0;
  });
}

int mercury_job_open(mercury_context* context, const mercury_job_options* options,
                     mercury_job** out) {
  return with_context(context, [&](Context& c) {
    if (!out) return null_argument("out");
    *out = nullptr;
    auto request = mercury::client::read_job(options);
    if (!request) return fail(request.error());
    auto job = c.open_job(*request);
    if (!job) return fail(job.error());
    *out = reinterpret_cast<mercury_job*>(*job);
    return 0;
  });
}

int mercury_job_rank(const mercury_job* job) {
  return job ? reinterpret_cast<const Job*>(job)->rank : null_argument("job");
}

int mercury_job_workers(const mercury_job* job) {
  return job ? reinterpret_cast<const Job*>(job)->workers : null_argument("job");
}

void mercury_job_close(mercury_job* job) {
  if (!job) return;
  (void)with_job(job, [](Context& context, Job& j) {
    if (context.close_job(&j)) return 0;
    return fail(Errc::kBusy, "mercury_job_close was called from a callback");
  });
}

int mercury_job_wait(mercury_job* job, int timeout_ms) {
  return with_job(
      job, [&](Context& context, Job& j) { return result_of(context.wait_job(j, timeout_ms)); });
}

int mercury_job_set_policy(mercury_job* job, const char* policy) {
  return with_job(job, [&](Context& context, Job& j) {
    if (!policy) return null_argument("policy");
    return result_of(context.set_policy(j, policy));
  });
}

int mercury_declare(mercury_job* job, const mercury_tensor_options* tensors, size_t count) {
  return with_job(job, [&](Context& context, Job& j) {
    auto read = mercury::client::read_tensors(tensors, count);
    return read ? result_of(context.declare(j, *read)) : fail(read.error());
  });
}

int mercury_tensor_round(mercury_job* job, uint32_t tensor, uint32_t* out) {
  return with_job(job, [&](Context& context, Job& j) {
    if (!out) return null_argument("out");
    const auto round = context.tensor_round(j, mercury::TensorId(tensor));
    if (!round) return fail(round.error());
    *out = round->value;
    return 0;
  });
}

int mercury_get_contributors(mercury_job* job, uint32_t tensor, mercury_contributors* out) {
  return with_job(job, [&](Context& context, Job& j) {
    if (!out) return null_argument("out");
    const size_t size = out->size;
    const Status fits =
        mercury::client::check_size<mercury_contributors>(size, "mercury_contributors");
    if (!fits) return fail(fits.error());
    const auto contributors = context.contributors(j, mercury::TensorId(tensor));
    if (!contributors) return fail(contributors.error());
    mercury::client::write_sized(*contributors, out, size);
    return 0;
  });
}

int mercury_push_pull(mercury_job* job, uint32_t tensor, int priority, mercury_handle* out) {
  return submit(job, SubmitOp::kPushPull, tensor, priority, out);
}
int mercury_push(mercury_job* job, uint32_t tensor, int priority, mercury_handle* out) {
  return submit(job, SubmitOp::kPush, tensor, priority, out);
}
int mercury_pull(mercury_job* job, uint32_t tensor, int priority, mercury_handle* out) {
  return submit(job, SubmitOp::kPull, tensor, priority, out);
}

int mercury_wait(mercury_job* job, mercury_handle handle, int timeout_ms) {
  return with_job(job, [&](Context& context, Job& j) {
    return result_of(context.wait(j, handle, timeout_ms));
  });
}

int mercury_poll_sized(mercury_job* job, mercury_completion* out, size_t count, size_t size) {
  return with_job(job, [&](Context& context, Job& j) {
    if (!out && count > 0) return null_argument("out");
    const Status fits = mercury::client::check_size<mercury_completion>(size, "mercury_completion");
    if (!fits) return fail(fits.error());
    return context.poll(j, out, count, size);
  });
}

int mercury_set_callback(mercury_job* job, mercury_callback callback, void* user) {
  return with_job(job, [&](Context& context, Job& j) {
    context.set_callback(j, callback, user);
    return 0;
  });
}

int mercury_eventfd(mercury_job* job) {
  return with_job(job, [&](Context& context, Job& j) {
    auto fd = context.event_fd(j);
    return fd ? *fd : fail(fd.error());
  });
}

int mercury_job_get_stats(mercury_job* job, mercury_job_stats* out) {
  return with_job(job, [&](Context& context, Job& j) {
    if (!out) return null_argument("out");
    const size_t size = out->size;
    const Status fits = mercury::client::check_size<mercury_job_stats>(size, "mercury_job_stats");
    if (!fits) return fail(fits.error());
    mercury::client::write_sized(context.stats(j), out, size);
    return 0;
  });
}

const char* mercury_last_error(void) { return mercury::client::last_error(); }
const char* mercury_version(void) { return MERCURY_VERSION; }

}  // extern "C"
