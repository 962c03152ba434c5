#include "apps/run/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "shim/channel/unique_fd.h"

namespace mercury {
namespace {

constexpr size_t kMostSegments = 4096;
constexpr size_t kMostBytes = 64UL << 20;  // of one table; Chromium's names are a tenth of it
constexpr size_t kMostCode = 512UL << 20;  // that is looked through
constexpr size_t kWindow = 16UL << 20;     // of it at a time
constexpr size_t kNear = 48;               // bytes between a number and the call that it is for

class ElfFile {
 public:
  explicit ElfFile(int fd) : fd_(fd) {}

  ElfFacts read() {
    ElfFacts facts;
    std::array<char, 256> first{};
    const ssize_t got = ::pread(fd_, first.data(), first.size(), 0);
    const std::string_view begin(first.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (begin.starts_with("#!")) {
      facts.script = begin.substr(2, begin.find('\n', 2) - 2);
      return facts;
    }
    facts.is_elf = begin.size() > EI_CLASS && begin.starts_with(ELFMAG);
    if (!facts.is_elf) return facts;
    facts.bits = begin[EI_CLASS] == ELFCLASS64 ? 64 : 32;
    const auto header = read_at<Elf64_Ehdr>(0);
    if (!header) return facts;
    facts.machine = header->e_machine;  // at the same place in files of 32 bits
    if (facts.bits == 64) read_segments(*header, facts);
    return facts;
  }

 private:
  template <class T>
  std::optional<T> read_at(uint64_t offset) const {
    T value;
    if (::pread(fd_, &value, sizeof value, static_cast<off_t>(offset)) !=
        static_cast<ssize_t>(sizeof value)) {
      return std::nullopt;
    }
    return value;
  }

  std::string bytes_at(uint64_t offset, uint64_t bytes) const {
    struct stat facts {};
    if (::fstat(fd_, &facts) != 0 || bytes > kMostBytes ||
        offset > static_cast<uint64_t>(facts.st_size)) {
      return {};
    }
    std::string data(std::min(bytes, static_cast<uint64_t>(facts.st_size) - offset), '\0');
    const ssize_t got = ::pread(fd_, data.data(), data.size(), static_cast<off_t>(offset));
    data.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return data;
  }

  void read_segments(const Elf64_Ehdr& header, ElfFacts& facts) {
    std::optional<Elf64_Phdr> dynamic;
    for (size_t i = 0; i < std::min<size_t>(header.e_phnum, kMostSegments); ++i) {
      const auto segment = read_at<Elf64_Phdr>(header.e_phoff + i * sizeof(Elf64_Phdr));
      if (!segment) break;
      if (segment->p_type == PT_LOAD) loaded_.push_back(*segment);
      if (segment->p_type == PT_DYNAMIC) dynamic = segment;
      if (segment->p_type == PT_INTERP) {
        facts.interpreter = bytes_at(segment->p_offset, segment->p_filesz).c_str();
      }
      if (segment->p_type == PT_NOTE) facts.is_go |= has_go_note(*segment);
    }
    if (dynamic) read_names(*dynamic, facts);
    if (header.e_machine != EM_X86_64) return;
    const bool imports_syscall =
        std::find(facts.names.begin(), facts.names.end(), "syscall") != facts.names.end();
    uint64_t most = kMostCode;
    for (const Elf64_Phdr& segment : loaded_) {
      const uint64_t end = segment.p_offset + std::min(segment.p_filesz, most);
      if ((segment.p_flags & PF_X) == 0 || end < segment.p_offset) continue;
      most -= end - segment.p_offset;
      for (uint64_t at = segment.p_offset; at < end && !facts.may_set_up_io_uring; at += kWindow) {
        const uint64_t bytes = std::min<uint64_t>(kWindow + 2 * kNear, end - at);
        facts.may_set_up_io_uring = makes_the_call(bytes_at(at, bytes), imports_syscall);
      }
    }
  }

  // Of code: whether it loads io_uring_setup's number, 425, into %eax not far before a system call;
  // or into %edi before it calls a function, or jumps to one, where it imports syscall(). A guess:
  // the number may be another's, and the function another one.
  static bool makes_the_call(std::string_view code, bool imports_syscall) {
    constexpr std::string_view kNumber("\xa9\x01\0\0", 4), kSystemCall("\x0f\x05");
    constexpr std::array<std::string_view, 4> kCalls = {"\xe8", "\xe9", "\xff\x15", "\xff\x25"};
    for (size_t at = code.find(kNumber); at != code.npos; at = code.find(kNumber, at + 1)) {
      if (at == 0) continue;
      const char register_of = code[at - 1];  // mov $imm32, %reg; or its form with 64 bits
      const std::string_view behind = code.substr(at + kNumber.size(), kNear);
      const bool to_eax = register_of == '\xb8' || register_of == '\xc0';
      const bool to_edi = register_of == '\xbf' || register_of == '\xc7';
      if (to_eax && behind.find(kSystemCall) != behind.npos) return true;
      if (!to_edi || !imports_syscall) continue;
      for (const std::string_view call : kCalls) {
        if (behind.find(call) != behind.npos) return true;
      }
    }
    return false;
  }

  // Go's linker gives each program a note of its build, whoever links the rest.
  bool has_go_note(const Elf64_Phdr& segment) const {
    const std::string notes = bytes_at(segment.p_offset, segment.p_filesz);
    const auto padded = [](size_t bytes) { return (bytes + 3) / 4 * 4; };
    for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
      Elf64_Nhdr note;
      std::memcpy(&note, notes.data() + at, sizeof note);
      const std::string_view name = std::string_view(notes).substr(at + sizeof note, note.n_namesz);
      if (name.starts_with(std::string_view("Go\0", 3))) return true;
      at += sizeof note + padded(note.n_namesz) + padded(note.n_descsz);
    }
    return false;
  }

  std::optional<uint64_t> offset_of(uint64_t address) const {
    for (const Elf64_Phdr& segment : loaded_) {
      if (address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_filesz) {
        return segment.p_offset + (address - segment.p_vaddr);
      }
    }
    return std::nullopt;
  }

  void read_names(const Elf64_Phdr& dynamic, ElfFacts& facts) const {
    const std::string table = bytes_at(dynamic.p_offset, dynamic.p_filesz);
    uint64_t strings_at = 0, strings_bytes = 0;
    std::vector<uint64_t> needed;
    for (size_t at = 0; at + sizeof(Elf64_Dyn) <= table.size(); at += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry;
      std::memcpy(&entry, table.data() + at, sizeof entry);
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_NEEDED) needed.push_back(entry.d_un.d_val);
      if (entry.d_tag == DT_STRTAB) strings_at = entry.d_un.d_ptr;
      if (entry.d_tag == DT_STRSZ) strings_bytes = entry.d_un.d_val;
    }
    const auto offset = offset_of(strings_at);
    if (!offset) return;
    const std::string strings = bytes_at(*offset, strings_bytes);
    for (const uint64_t name : needed) {
      if (name < strings.size()) facts.libraries.emplace_back(strings.c_str() + name);
    }
    for (size_t at = 0; at < strings.size();) {
      facts.names.emplace_back(strings.c_str() + at);
      at += facts.names.back().size() + 1;
    }
  }

  int fd_;
  std::vector<Elf64_Phdr> loaded_;
};

}  // namespace

Result<ElfFacts> read_elf(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return Error::system(errno, "cannot read " + path);
  return ElfFile(fd.get()).read();
}

}  // namespace mercury
