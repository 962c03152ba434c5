// The C functions about contexts, memory, jobs and errors: checks of what C lets through.
#include "shim/client/mercurystack/mercury.h"

#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "shim/client/border.h"
#include "shim/client/client_log.h"
#include "shim/client/daemon_backend.h"
#include "shim/client/embedded_backend.h"
#include "shim/client/launcher.h"
#include "transport/base/environment.h"

using mercury::Errc;
using mercury::Error;
using mercury::Result;
using mercury::Role;
using mercury::Status;
using mercury::client::Backend;
using mercury::client::Context;
using mercury::client::fail;
using mercury::client::guarded;
using mercury::client::init;
using mercury::client::Job;
using mercury::client::null_argument;
using mercury::client::result_of;
using mercury::client::with_context;
using mercury::client::with_job;
using mercury::client::with_whole_context;

namespace {

// What the header says of its version, as text.
#define MERCURY_TEXT(number) #number
#define MERCURY_VERSION_OF(major, minor, patch) \
  MERCURY_TEXT(major) "." MERCURY_TEXT(minor) "." MERCURY_TEXT(patch)
static_assert(std::string_view(MERCURY_VERSION_OF(MERCURY_VERSION_MAJOR, MERCURY_VERSION_MINOR,
                                                  MERCURY_VERSION_PATCH)) == MERCURY_VERSION,
              "shim/client/meson.build and mercury.h differ in the version");

// A misspelt variable would be ignored, and the program wait for members that nobody starts.
Status check_variables() {
  const auto misspelt =
      mercury::find_misspelt(mercury::mercury_variables(), mercury::kProgramVariables);
  if (!misspelt) return {};
  return Error(Errc::kInvalidArgument, mercury::describe(*misspelt));
}

const char* environment(const char* name) { return std::getenv(name); }
const char* no_variable(const char*) { return nullptr; }

std::string or_environment(const char* value, const char* variable, const char* fallback) {
  if (value && *value) return value;
  const char* set = std::getenv(variable);
  return set && *set ? set : fallback;
}

Result<std::unique_ptr<Backend>> make_backend(const mercury_attach_options& options,
                                              mercury_mode& mode) {
  if (mode != MERCURY_MODE_EMBEDDED) {
    const std::string named = or_environment(options.socket, "MERCURY_SOCKET", "");
    const auto timeout = mercury::client::read_daemon_timeout(options, environment);
    if (!timeout) return timeout.error();
    auto daemon = mercury::client::make_daemon_backend(
        named.empty() ? mercury::attach::kDefaultSocket : named, *timeout);
    // Only where nobody asked for a daemon and none is there: one that refuses, or whose socket
    // this program may not open, or that was named and is not there, is not to be passed over in
    // silence.
    if (daemon || mode == MERCURY_MODE_DAEMON || !named.empty() ||
        daemon.error().code != Errc::kDaemonLost) {
      mode = MERCURY_MODE_DAEMON;
      return daemon;
    }
  }
  mode = MERCURY_MODE_EMBEDDED;
  const auto said = mercury::client::read_daemon_timeout(options, no_variable);
  if (!said) return said.error();
  return mercury::client::make_embedded_backend(
      or_environment(options.listen, "MERCURY_LISTEN", ""),
      or_environment(options.rate, "MERCURY_RATE", ""));
}

// Strings that live as long as the process, each once.
const char* keep(const std::string& text) {
  static std::mutex mutex;
  static auto* const kept = new std::set<std::string>();  // outlives static destruction
  const std::lock_guard lock(mutex);
  return kept->insert(text).first->c_str();
}

}  // namespace

extern "C" {

int mercury_attach_options_init(mercury_attach_options* options, size_t size) {
  return init(options, size, mercury_attach_options{}, "mercury_attach_options");
}

int mercury_attach(const mercury_attach_options* options, mercury_context** out) {
  return guarded([&] {
    if (!out) return null_argument("out");
    *out = nullptr;
    mercury_attach_options defaults{};
    defaults.size = sizeof defaults;
    auto read =
        mercury::client::read_sized(options ? options : &defaults, "mercury_attach_options");
    if (!read) return fail(read.error());
    const int32_t asked = read->mode;
    if (asked != MERCURY_MODE_AUTO && asked != MERCURY_MODE_DAEMON &&
        asked != MERCURY_MODE_EMBEDDED) {
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

int mercury_context_close(mercury_context* context) {
  if (!context) return 0;
  return with_whole_context(context, [](Context& c) {
    if (c.close()) return 0;
    return fail(Errc::kBusy, "mercury_context_close was called from a callback");
  });
}

int mercury_detach(mercury_context* context) {
  if (!context) return 0;
  return with_whole_context(context, [](Context& c) {
    if (!c.close()) return fail(Errc::kBusy, "mercury_detach was called from a callback");
    delete &c;
    return 0;
  });
}

mercury_mode mercury_context_get_mode(const mercury_context* context) {
  return context ? reinterpret_cast<const Context*>(context)->mode() : MERCURY_MODE_AUTO;
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

int mercury_job_options_init(mercury_job_options* options, size_t size) {
  mercury_job_options defaults{};
  defaults.rank = -1;
  defaults.timeout_ms = 30000;
  mercury::client::set_preset_terms(defaults);
  return init(options, size, defaults, "mercury_job_options");
}

int mercury_job_options_from_env(mercury_job_options* options) {
  return guarded([&] {
    auto read = mercury::client::read_sized(options, "mercury_job_options");
    if (!read) return fail(read.error());
    if (Status known = check_variables(); !known) return fail(known.error());
    const auto member = mercury::client::read_launcher(environment);
    if (!member) return fail(member.error());
    if (member->role) {
      options->role = *member->role == Role::kWorker ? MERCURY_ROLE_WORKER : MERCURY_ROLE_SERVER;
    }
    if (member->rank) options->rank = *member->rank;
    if (member->workers) options->workers = *member->workers;
    if (member->servers) options->servers = *member->servers;
    if (member->name) options->name = keep(*member->name);
    if (member->secret) options->secret = keep(*member->secret);
    if (member->rendezvous) options->rendezvous = keep(*member->rendezvous);
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
    mercury::wipe(request->secret);
    if (!job) return fail(job.error());
    *out = reinterpret_cast<mercury_job*>(*job);
    return 0;
  });
}

int mercury_job_get_rank(const mercury_job* job) {
  return job ? reinterpret_cast<const Job*>(job)->rank : null_argument("job");
}

int mercury_job_get_workers(const mercury_job* job) {
  return job ? reinterpret_cast<const Job*>(job)->workers : null_argument("job");
}

int mercury_job_close(mercury_job* job) {
  if (!job) return 0;
  return with_job(job, [](Context& context, Job& j) {
    if (context.close_job(&j)) return 0;
    return fail(Errc::kBusy, "mercury_job_close was called from a callback");
  });
}

int mercury_job_get_servers(const mercury_job* job) {
  return job ? reinterpret_cast<const Job*>(job)->servers : null_argument("job");
}

int mercury_job_get_status(mercury_job* job, char* text, size_t bytes) {
  if (text && bytes > 0) *text = 0;
  return with_job(job, [&](Context& context, Job& j) {
    if (!text && bytes > 0) return null_argument("text");
    const Status status = context.job_status(j);
    if (status.ok()) return 0;
    const int code = fail(status.error());
    if (bytes > 0) {
      const std::string_view why = mercury_last_error();
      const size_t length = why.copy(text, bytes - 1);
      text[length] = 0;
    }
    return code;
  });
}

int mercury_job_wait_end(mercury_job* job, int timeout_ms) {
  return with_job(
      job, [&](Context& context, Job& j) { return result_of(context.wait_job(j, timeout_ms)); });
}

int mercury_job_set_policy(mercury_job* job, const char* policy) {
  return with_job(job, [&](Context& context, Job& j) {
    if (!policy) return null_argument("policy");
    return result_of(context.set_policy(j, policy));
  });
}

const char* mercury_last_error(void) { return mercury::client::last_error(); }
const char* mercury_strerror(int code) { return mercury::client::meaning_of(code); }

int mercury_set_log(mercury_log log, void* user, int32_t level) {
  return guarded([&] {
    if (log && level != MERCURY_LOG_WARNING && level != MERCURY_LOG_INFO) {
      return fail(Errc::kInvalidArgument, "there is no log level " + std::to_string(level));
    }
    mercury::client::set_log(log, user, level);
    return 0;
  });
}

const char* mercury_version(void) { return MERCURY_VERSION; }
int mercury_version_number(void) { return MERCURY_VERSION_NUMBER; }

}  // extern "C"
