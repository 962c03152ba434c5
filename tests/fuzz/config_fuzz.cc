// The daemon's configuration: the input is a TOML file, then, each behind a zero byte, --set
// overrides.
//
// Beyond not crashing: what was read, printed and read again prints the same; an error names the
// file or the override.
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "apps/stackd/config.h"
#include "tests/fuzz/fuzz_input.h"

namespace mercury::fuzz {
namespace {

// A file in memory, as load_config wants a path.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("config", MFD_CLOEXEC)) {}
  ~MemoryFile() { ::close(fd_); }
  std::string write(const std::string& text) {
    must(::ftruncate(fd_, 0) == 0, "ftruncate");
    must(::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()), "pwrite");
    return "/proc/self/fd/" + std::to_string(fd_);
  }

 private:
  int fd_;
};

}  // namespace
}  // namespace mercury::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mercury;
  using namespace mercury::fuzz;
  static MemoryFile file;
  std::vector<std::string> parts(1);
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == 0) {
      parts.emplace_back();
    } else {
      parts.back().push_back(static_cast<char>(data[i]));
    }
  }
  const std::string path = file.write(parts.front());
  const std::vector<std::string> overrides(parts.begin() + 1, parts.end());
  const Result<StackdConfig> first = load_config(path, overrides);
  if (!first) {
    const std::string& text = first.error().message;
    must(text.find(path) != std::string::npos || text.find("--set") != std::string::npos,
         "an error says neither file nor override");
    return 0;
  }
  (void)print_config(*first, false);
  const std::string printed = print_config(*first, true);
  const Result<StackdConfig> second = load_config(file.write(printed), {});
  must(second.has_value(), "a printed configuration is not read back");
  must(print_config(*second, true) == printed, "a configuration changes when it is read back");
  return 0;
}
