#include "shim/socket/api/settings.h"

#include <sys/auxv.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "shim/socket/request.h"

namespace mercury::sockets {
namespace {

// False: longer than there is room for.
template <size_t kBytes>
bool keep(std::array<char, kBytes>& out, std::string_view text) {
  if (text.size() >= kBytes) return false;
  std::memcpy(out.data(), text.data(), text.size());
  out[text.size()] = 0;
  return true;
}

std::string_view variable(const char* name) {
  // Whoever changes the environment while another thread uses sockets has the same trouble with
  // the C library.
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value ? value : "";
}

// As the program was started; a title that it gives itself later changes argv[0], not this.
std::string_view program_name() {
  const unsigned long at = getauxval(AT_EXECFN);
  if (at == 0) return "";
  const std::string_view path = reinterpret_cast<const char*>(at);
  return path.substr(path.rfind('/') + 1);
}

void leave_all_to_kernel(Settings& settings, std::string_view variable_name,
                         std::string_view expected) {
  warn(variable_name, expected, "; all sockets are the kernel's");
  keep(settings.rules, "kernel");
}

}  // namespace

bool Settings::allows(const Endpoint& endpoint) const {
  return decide(rules.data(), program.data(), endpoint) == Through::kMercury;
}

void read_environment(Settings& settings) {
  keep(settings.path, kDefaultSocketsPath);
  keep(settings.rules, kDefaultRules);
  keep(settings.program, program_name());
  const std::string_view rules = variable("MERCURY_PRELOAD_RULES");
  if (!rules.empty() && !(is_rules(rules) && keep(settings.rules, rules))) {
    leave_all_to_kernel(settings, "MERCURY_PRELOAD_RULES",
                        " is not as mercury-run writes it: expected rules such as "
                        "\"kernel port=22;mercury\"");
  }
  const std::string_view path = variable("MERCURY_PRELOAD_SOCKET");
  if (!path.empty() && !keep(settings.path, path)) {
    leave_all_to_kernel(settings, "MERCURY_PRELOAD_SOCKET",
                        " is too long for a socket: expected a path of at most 107 bytes");
  }
  const std::string_view on_error = variable("MERCURY_PRELOAD_ON_ERROR");
  settings.on_error = on_error == "fail" ? OnError::kFail : OnError::kKernel;
  if (!on_error.empty() && on_error != "fail" && on_error != "kernel") {
    leave_all_to_kernel(settings, "MERCURY_PRELOAD_ON_ERROR",
                        " says what to do without a daemon: expected kernel or fail");
  }
}

void warn(std::string_view first, std::string_view second, std::string_view third) {
  std::array<iovec, 5> parts;
  size_t count = 0;
  for (const std::string_view part :
       {std::string_view("mercury: "), first, second, third, std::string_view("\n")}) {
    parts[count++] = {const_cast<char*>(part.data()), part.size()};
  }
  [[maybe_unused]] const ssize_t written =
      ::writev(STDERR_FILENO, parts.data(), static_cast<int>(count));
}

}  // namespace mercury::sockets
