#include "transport/base/secret_file.h"

#include <array>
#include <cstdlib>
#include <fstream>

namespace mercury {

Result<std::string> read_secret_file(const std::string& path) {
  std::ifstream file(path);
  std::array<char, kMaxSecretBytes + 1> line{};  // a file may have no end
  const bool read = file && file.getline(line.data(), line.size());
  const std::string secret(line.data());
  // With an empty one, or half of one, the job would be open to who guesses that.
  const auto ending = static_cast<std::streamsize>(file.eof() ? 0 : 1);  // the newline was counted
  if (!read || secret.empty() || std::ssize(secret) + ending != file.gcount()) {
    return Error(Errc::kConfig, "expected a readable file with the secret, 1 to " +
                                    std::to_string(kMaxSecretBytes) +
                                    " bytes without zeros, in its first line, got \"" + path +
                                    "\"");
  }
  return secret;
}

Result<std::string> read_secret(std::string_view secret, std::string_view file) {
  if (file.empty()) return std::string(secret);
  if (!secret.empty()) {
    return Error(Errc::kConfig, "MERCURY_SECRET_FILE: MERCURY_SECRET is set as well");
  }
  Result<std::string> read = read_secret_file(std::string(file));
  if (!read) return Error(read.error().code, "MERCURY_SECRET_FILE: " + read.error().message);
  return read;
}

Result<std::string> secret_of_environment() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string_view(value != nullptr ? value : "");
  };
  return read_secret(variable("MERCURY_SECRET"), variable("MERCURY_SECRET_FILE"));
}

}  // namespace mercury
