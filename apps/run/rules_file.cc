#include "apps/run/rules_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "shim/socket/api/rules.h"

namespace mercury {
namespace {

std::string described(const toml::node& node) {
  std::stringstream text;
  node.visit([&text](const auto& value) { text << value; });
  return text.str();
}

// A list of a rule: its key, the condition that it becomes, and what an entry is.
struct List {
  std::string_view key;
  std::string_view condition;
  bool (*fits)(std::string_view);
  std::string_view expected;
};
constexpr std::array<List, 3> kLists = {{
    {"programs", "program", sockets::is_program_glob,
     "a list of programs' names without folders, such as [\"ssh\", \"sshd*\"]"},
    {"addresses", "address", sockets::is_address_prefix,
     "a list of addresses, such as [\"10.0.0.0/8\", \"fd00::1\"]"},
    {"ports", "port", sockets::is_port_range, "a list of ports, such as [22, \"8000-8999\"]"},
}};

class RulesFile {
 public:
  explicit RulesFile(std::string path) : path_(std::move(path)) {}

  Result<std::string> read() {
    // Reading one gives nothing, and no error.
    if (std::error_code unknown; std::filesystem::is_directory(path_, unknown)) {
      return Error(Errc::kConfig, path_ + ": expected a file of rules, got a folder");
    }
    toml::table file;
    try {
      file = toml::parse_file(path_);
    } catch (const toml::parse_error& error) {
      return Error(Errc::kConfig, path_ + ":" + std::to_string(error.source().begin.line) + ": " +
                                      std::string(error.description()));
    }
    std::string otherwise = "mercury";
    for (const auto& [key, node] : file) {
      if (key == "otherwise") {
        const auto word = through(node, "otherwise");
        if (!word) return word.error();
        otherwise = *word;
      } else if (key == "rule") {
        if (Status added = add_rules(node); !added) return added.error();
      } else {
        return wrong(node, std::string(key.str()), "rule or otherwise, as keys of the file");
      }
    }
    rules_ += otherwise;
    if (rules_.size() > sockets::kMostRulesBytes) {
      return Error(Errc::kConfig, path_ + ": expected rules of at most " +
                                      std::to_string(sockets::kMostRulesBytes) +
                                      " bytes as they are handed on, got " +
                                      std::to_string(rules_.size()));
    }
    return rules_;
  }

 private:
  Error wrong(const toml::node& node, const std::string& key, std::string_view expected) const {
    return {Errc::kConfig, path_ + ":" + std::to_string(node.source().begin.line) + ": " + key +
                               ": expected " + std::string(expected) + ", got " + described(node)};
  }

  Result<std::string> through(const toml::node& node, const std::string& key) const {
    const auto word = node.value_exact<std::string>();
    if (!word || (*word != "mercury" && *word != "kernel")) {
      return wrong(node, key, R"("mercury" or "kernel")");
    }
    return *word;
  }

  Status add_rules(const toml::node& node) {
    const toml::array* const rules = node.as_array();
    if (!rules) return wrong(node, "rule", "[[rule]], once for each");
    for (const toml::node& rule : *rules) {
      const toml::table* const table = rule.as_table();
      if (!table) return wrong(rule, "rule", "[[rule]], once for each");
      if (Status added = add_rule(*table); !added) return added;
    }
    return {};
  }

  Status add_rule(const toml::table& rule) {
    std::string conditions, word;
    for (const auto& [key, node] : rule) {
      if (key == "through") {
        const auto said = through(node, "rule.through");
        if (!said) return said.error();
        word = *said;
        continue;
      }
      const auto list = std::find_if(kLists.begin(), kLists.end(),
                                     [&k = key](const List& known) { return k == known.key; });
      if (list == kLists.end()) {
        return wrong(node, "rule." + std::string(key.str()),
                     "through, programs, addresses or ports, as keys of a rule");
      }
      if (Status added = add_list(*list, node, conditions); !added) return added;
    }
    if (word.empty()) {
      return Error(Errc::kConfig, path_ + ":" + std::to_string(rule.source().begin.line) +
                                      ": rule.through: expected \"mercury\" or \"kernel\", got "
                                      "nothing");
    }
    rules_ += word + conditions + ";";
    return {};
  }

  Status add_list(const List& list, const toml::node& node, std::string& conditions) const {
    const std::string key = "rule." + std::string(list.key);
    const toml::array* const entries = node.as_array();
    if (!entries || entries->empty()) return wrong(node, key, list.expected);
    char before = '=';
    conditions += " " + std::string(list.condition);
    for (const toml::node& entry : *entries) {
      const auto number = entry.value_exact<int64_t>();
      const std::string text = number && list.key == "ports"
                                   ? std::to_string(*number)
                                   : entry.value_exact<std::string>().value_or("");
      if (!list.fits(text)) return wrong(entry, key, list.expected);
      conditions += before + text;
      before = ',';
    }
    return {};
  }

  std::string path_;
  std::string rules_;
};

}  // namespace

Result<std::string> read_rules_file(const std::string& path) { return RulesFile(path).read(); }

}  // namespace mercury
