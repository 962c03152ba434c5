#include "apps/stackd/reset_key.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace mercury {
namespace {

Error failed(const char* what, const std::string& path) {
  return {Errc::kSystem,
          std::string("cannot ") + what + " " + path + ": " + strerrordesc_np(errno)};
}

Error wrong(const std::string& path, const std::string& found) {
  return {Errc::kConfig, path + ": expected " + std::to_string(sizeof(ResetKey)) +
                             " bytes that only this user may read, as a daemon leaves them for its "
                             "next life, got " +
                             found + "; run: rm -r " + path};
}

// What is wrong with it; empty: nothing.
std::string fault_of(const struct stat& file) {
  if (!S_ISREG(file.st_mode)) return "something that is no file";
  if (file.st_uid != geteuid()) return "a file of the user " + std::to_string(file.st_uid);
  if ((file.st_mode & 077) != 0) return "a file that others may read or write";
  if (file.st_size != sizeof(ResetKey)) return std::to_string(file.st_size) + " bytes";
  return "";
}

Result<ResetKey> read_key(int file, const std::string& path) {
  struct stat now {};
  if (fstat(file, &now) != 0) return failed("read", path);
  if (const std::string fault = fault_of(now); !fault.empty()) {
    return wrong(path, fault);
  }
  ResetKey key{};
  if (pread(file, key.data(), key.size(), 0) != ssize_t{sizeof key}) return failed("read", path);
  return key;
}

bool write_key(int file, const ResetKey& key) {
  return write(file, key.data(), key.size()) == ssize_t{sizeof key} && fsync(file) == 0;
}

}  // namespace

std::string reset_key_path(const std::string& attach_socket) { return attach_socket + ".reset"; }

Result<ResetKeys> read_reset_keys(const std::string& path) {
  ResetKeys keys;
  keys.own.emplace();
  randombytes_buf(keys.own->data(), keys.own->size());
  // What it is is looked at before it is read: not to wait for the writer of a pipe.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0 && errno == ENOENT) return keys;
  if (file < 0 && errno == ELOOP) return wrong(path, "a symbolic link");
  if (file < 0) return failed("open", path);
  const Result<ResetKey> last = read_key(file, path);
  close(file);
  if (!last) return last.error();
  keys.last = *last;
  return keys;
}

Status keep_reset_key(const std::string& path, const ResetKey& own) {
  const std::string made = path + ".new";
  unlink(made.c_str());  // of a life that ended here
  const int file =
      open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (file < 0) return failed("make", made);
  Status whole = write_key(file, own) ? Status() : failed("write", made);
  close(file);
  if (!whole) return whole;
  if (rename(made.c_str(), path.c_str()) != 0) return failed("make", path);
  return {};
}

}  // namespace mercury
