#include "apps/output.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace mercury {

Status check_output(const std::string& path) {
  if (path.empty() || path == "-") return {};
  std::error_code unknown;
  const bool made = !std::filesystem::exists(path, unknown) && !unknown;
  errno = 0;
  if (!std::ofstream(path, std::ios::app)) return Error::system(errno, "cannot write " + path);
  if (made) std::filesystem::remove(path, unknown);
  return {};
}

Status write_output(const std::string& path, const std::string& text) {
  errno = 0;
  if (path == "-") {
    if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return {};
    return Error::system(errno, "cannot write to standard output");
  }
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) return Error::system(errno, "cannot write " + path);
  return {};
}

}  // namespace mercury
