// What a program's file says of how it is loaded.
#pragma once

#include <string>
#include <vector>

#include "transport/base/result.h"

namespace mercury {

struct ElfFacts {
  bool is_elf = false;
  int bits = 0;             // 32 or 64
  int machine = 0;          // as elf.h numbers them
  std::string interpreter;  // the dynamic linker; empty: none
  std::vector<std::string> libraries;
  // Of what it imports and exports: all strings of its table of names, libraries among them.
  std::vector<std::string> names;
  bool is_go = false;
  bool may_set_up_io_uring = false;  // its code seems to make that call, by syscall() or by itself
  std::string script;                // no ELF, but a script: what stands behind #!
};

// kSystem: it cannot be read. What a file says of itself is checked against its length; one that
// is cut short says less.
Result<ElfFacts> read_elf(const std::string& path);

}  // namespace mercury
