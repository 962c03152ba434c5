#include "examples/digits/session.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "apps/interruption.h"

namespace digits {

void AttachedJob::close() {
  mercury_job_close(std::exchange(job, nullptr));
  mercury_detach(std::exchange(context, nullptr));
}

AttachedJob& attached_job() {
  static AttachedJob only;
  return only;
}

void fail(const std::string& text, int status) {
  std::fprintf(stderr, "digits-train: %s\n", text.c_str());
  attached_job().close();
  std::exit(status);
}

void check(int status, const char* what) {
  if (status < 0) fail(std::string(what) + ": " + mercury_last_error());
}

void stop_if_interrupted() {
  if (!mercury::interrupted()) return;
  fail("interrupted by " + mercury::interruption_name(), mercury::interruption_status());
}

}  // namespace digits
