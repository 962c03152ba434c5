#include "apps/run/check.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "apps/run/elf_file.h"

namespace mercury {
namespace {

constexpr int kMostInterpreters = 4;  // of the kernel: a script's may be a script

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The interpreter of a script; what env is to look for, if it is env.
Result<std::string> interpreter_of(const std::string& script) {
  std::istringstream words(script);
  std::string program, word;
  words >> program;
  if (base_name(program) != "env") return find_program(program);
  while (words >> word) {
    if (word.find('=') == word.npos && word[0] != '-') return find_program(word);
  }
  return find_program(program);
}

bool may_become_another_user(const std::string& path, std::string& how) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return false;
  if ((facts.st_mode & S_ISUID) != 0) how = "setuid";
  if ((facts.st_mode & S_ISGID) != 0 && (facts.st_mode & S_IXGRP) != 0) how = "setgid";
  if (::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0) {
    how = "given capabilities (setcap)";
  }
  return !how.empty();
}

bool uses_io_uring(const ElfFacts& facts) {
  const auto is_of_uring = [](std::string_view name) {
    return name.starts_with("liburing.so") || name.starts_with("liburing-ffi.so") ||
           name == "io_uring_setup" || name.starts_with("io_uring_queue_init");
  };
  return std::any_of(facts.names.begin(), facts.names.end(), is_of_uring);
}

void check_elf(const std::string& path, const ElfFacts& facts, const ElfFacts& own,
               std::vector<std::string>& found) {
  if (facts.bits != own.bits || facts.machine != own.machine) {
    found.push_back(path + " is a program of another kind of machine than libmercury_preload.so: " +
                    "expected one of " + std::to_string(own.bits) + " bits for this processor");
    return;
  }
  if (facts.is_go) {
    found.push_back(path +
                    " is of Go, which asks the kernel without the C library: its sockets "
                    "stay the kernel's");
  }
  if (facts.interpreter.empty()) {
    found.push_back(path +
                    " is linked statically, or a library: nothing would load "
                    "libmercury_preload.so into it");
  } else if (base_name(facts.interpreter) != base_name(own.interpreter)) {
    found.push_back(path + " is loaded by " + facts.interpreter +
                    ", of another C library than libmercury_preload.so, which needs " +
                    own.interpreter);
  }
  if (uses_io_uring(facts) || facts.may_set_up_io_uring) {
    found.push_back(path + (uses_io_uring(facts) ? " uses" : " seems to use") +
                    " io_uring: what it connects or accepts by that stays the "
                    "kernel's");
  }
}

}  // namespace

Result<std::string> find_program(const std::string& name) {
  if (name.find('/') != name.npos) {
    if (::access(name.c_str(), F_OK) == 0) return name;
    return Error(Errc::kNotFound, "there is no " + name);
  }
  const char* const set = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): one thread
  std::istringstream folders(set ? set : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    struct stat facts {};
    if (::access(path.c_str(), X_OK) == 0 && ::stat(path.c_str(), &facts) == 0 &&
        S_ISREG(facts.st_mode)) {
      return path;
    }
  }
  return Error(Errc::kNotFound, "there is no program " + name + " in PATH");
}

Result<std::vector<std::string>> what_will_not_work(const std::string& path) {
  std::vector<std::string> found;
  std::string file = path;
  for (int depth = 0; depth <= kMostInterpreters; ++depth) {
    std::string how;
    const auto facts = read_elf(file);
    if (!facts) return facts.error();
    if (!facts->script.empty()) {  // Linux ignores the bits of scripts
      auto interpreter = interpreter_of(facts->script);
      if (!interpreter) {
        return Error(Errc::kNotFound, file + " is a script: " + interpreter.error().message);
      }
      file = *interpreter;
      continue;
    }
    if (!facts->is_elf) {
      return Error(Errc::kInvalidArgument,
                   file + " is no program: expected an ELF file, or a script that begins with #!");
    }
    const auto own = read_elf("/proc/self/exe");
    if (!own) return own.error();
    if (may_become_another_user(file, how)) {
      found.push_back(file + " is " + how +
                      ": the dynamic linker ignores LD_PRELOAD for it, "
                      "unless who starts it gains nothing by that");
    }
    check_elf(file, *facts, *own, found);
    return found;
  }
  return Error(Errc::kInvalidArgument, path + " is a script of a script of a script, and so on");
}

}  // namespace mercury
