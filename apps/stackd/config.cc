#include "apps/stackd/config.h"

#include <sys/un.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "apps/stackd/config_table.h"
#include "apps/stackd/port_kinds.h"
#include "scheduler/terms/job_terms.h"
#include "shim/socket/request.h"
#include "transport/base/environment.h"
#include "transport/base/job_name.h"
#include "transport/base/secret_file.h"
#include "transport/port/traffic_classes.h"

namespace mercury {
namespace {

constexpr char kFlag[] = "--set";
constexpr char kHidden[] = "(hidden)";  // instead of a secret
constexpr uint64_t kLeastJobRate = 1'000'000;
constexpr char kLeastJobRateText[] = "1Mbps";

std::string join(const ConfigRow& row) { return std::string(row.section) + "." + row.key; }

const ConfigRow* find(std::string_view section, std::string_view key) {
  for (const ConfigRow& row : config_rows()) {
    if (section == row.section && key == row.key) return &row;
  }
  return nullptr;
}

std::string nearest(const std::string& section, const std::string& key) {
  std::vector<std::string> keys;
  for (const ConfigRow& row : config_rows()) keys.push_back(join(row));
  const std::vector<std::string_view> known(keys.begin(), keys.end());
  return std::string(closest_name(section + "." + key, known));
}

Error wrong(const std::string& where, const ConfigRow& row, const std::string& got) {
  return Error(Errc::kConfig,
               where + ": " + join(row) + ": expected " + expected(row) + ", got " + got);
}

bool is_choice(const char* choices, const std::string& value) {
  if (!choices) return true;
  std::stringstream all(choices);
  for (std::string one; std::getline(all, one, '|');) {
    if (one == value) return true;
  }
  return false;
}

// The lists: what holds of one of them holds of the other.
template <class T>
Status set_list(std::vector<T>& list, const std::vector<std::string>& items, const ConfigRow& row,
                const std::string& where, const std::string& got) {
  list.clear();
  for (const std::string& item : items) {
    T value;
    if (item.empty() || !parse_value(item, value)) return wrong(where, row, got);
    list.push_back(value);
  }
  return {};
}

bool is_list(const ConfigRow& row) {
  return std::holds_alternative<std::vector<IpPrefix> StackdConfig::*>(row.member) ||
         std::holds_alternative<std::vector<uint32_t> StackdConfig::*>(row.member);
}

Status set_items(StackdConfig& config, const ConfigRow& row, const std::vector<std::string>& items,
                 const std::string& where, const std::string& got) {
  if (auto* prefixes = std::get_if<std::vector<IpPrefix> StackdConfig::*>(&row.member)) {
    return set_list(config.**prefixes, items, row, where, got);
  }
  return set_list(config.*std::get<std::vector<uint32_t> StackdConfig::*>(row.member), items, row,
                  where, got);
}

// TOML, which print_config() writes, can say nothing else.
bool is_utf8(const std::string& text) {
  using nlohmann::json;
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::ignore)) == text;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

// a,b and ["a", "b"], of which a shell leaves [a, b].
std::vector<std::string> split_list(std::string text) {
  text = trimmed(text);
  if (text.size() > 1 && text.front() == '[' && text.back() == ']') {
    text = text.substr(1, text.size() - 2);
  }
  std::vector<std::string> items;
  std::stringstream all(text);
  for (std::string one; std::getline(all, one, ',');) {
    one = trimmed(one);
    if (one.size() > 1 && (one.front() == '"' || one.front() == '\'') &&
        one.front() == one.back()) {
      one = one.substr(1, one.size() - 2);
    }
    items.push_back(one);
  }
  return items;
}

// A value given as text: from a flag, the environment, or a TOML string.
Status set_text(StackdConfig& config, const ConfigRow& row, const std::string& text,
                const std::string& where) {
  const std::string got = row.secret ? kHidden : "\"" + text + "\"";
  if (is_list(row)) return set_items(config, row, split_list(text), where, got);
  if (auto* flag = std::get_if<bool StackdConfig::*>(&row.member)) {
    if (text != "true" && text != "false") return wrong(where, row, got);
    config.** flag = text == "true";
  } else if (auto* number = std::get_if<uint64_t StackdConfig::*>(&row.member)) {
    const std::optional<uint64_t> value = parse_quantity(text, row.unit);
    if (!value || *value < row.min || *value > row.max) return wrong(where, row, got);
    config.** number = *value;
  } else if (auto* ip = std::get_if<IpAddress StackdConfig::*>(&row.member)) {
    if (!parse_value(text, config.**ip)) return wrong(where, row, got);
  } else {
    if (!is_choice(row.choices, text)) return wrong(where, row, got);
    if (!is_utf8(text)) {
      return Error(Errc::kConfig,
                   where + ": " + join(row) + ": expected text in UTF-8, got " + got);
    }
    config.*std::get<std::string StackdConfig::*>(row.member) = text;
  }
  return {};
}

std::string describe(const toml::node& node) {
  std::stringstream text;
  node.visit([&text](const auto& value) { text << value; });
  return text.str();
}

Status set_node(StackdConfig& config, const ConfigRow& row, const toml::node& node,
                const std::string& where) {
  const bool quantity = std::holds_alternative<uint64_t StackdConfig::*>(row.member);
  if (is_list(row)) {
    const toml::array* array = node.as_array();
    if (!array) return wrong(where, row, describe(node));
    std::vector<std::string> items;
    for (const toml::node& item : *array) {
      items.emplace_back();
      if (item.is_integer()) items.back() = std::to_string(item.as_integer()->get());
      if (item.is_string()) items.back() = item.as_string()->get();
    }
    return set_items(config, row, items, where, describe(node));
  }
  if (node.is_boolean() && std::holds_alternative<bool StackdConfig::*>(row.member)) {
    return set_text(config, row, node.as_boolean()->get() ? "true" : "false", where);
  }
  if (node.is_integer() && quantity) {
    const int64_t value = node.as_integer()->get();
    // A bare number is only right where there is no unit, or where it is zero.
    if (value < 0) return wrong(where, row, std::to_string(value));
    return set_text(config, row, std::to_string(value), where);
  }
  if (node.is_string() && !std::holds_alternative<bool StackdConfig::*>(row.member) &&
      !(quantity && row.unit == Unit::kNone)) {
    return set_text(config, row, node.as_string()->get(), where);
  }
  return wrong(where, row, row.secret ? kHidden : describe(node));
}

Status set_weight(StackdConfig::JobSection& job, const toml::node& node, const std::string& where) {
  const auto weight = node.value_exact<int64_t>();
  if (!weight || *weight < 1 || *weight > static_cast<int64_t>(kMostWeight)) {
    return Error(Errc::kConfig, where + ": expected a number from 1 to " +
                                    std::to_string(kMostWeight) + ", got " + describe(node));
  }
  job.weight = static_cast<uint64_t>(*weight);
  return {};
}

Status set_memory(StackdConfig::JobSection& job, const toml::node& node, const std::string& where) {
  const auto memory = parse_quantity(node.value_exact<std::string>().value_or(""), Unit::kBytes);
  if (!memory) {
    return Error(Errc::kConfig,
                 where + ": expected a size such as \"64MiB\", got " + describe(node));
  }
  job.memory_bytes = *memory;
  return {};
}

Status set_rate(StackdConfig::JobSection& job, const toml::node& node, const std::string& where) {
  const auto rate =
      parse_quantity(node.value_exact<std::string>().value_or(""), Unit::kBitsPerSecond);
  if (!rate || (*rate != 0 && *rate < kLeastJobRate)) {
    return Error(Errc::kConfig, where + ": expected \"0\" or a rate of " + kLeastJobRateText +
                                    " or more, such as \"10Gbps\", got " + describe(node));
  }
  job.bits_per_second = *rate;
  return {};
}

Status add_job(StackdConfig& config, const toml::table& table, const std::string& file) {
  StackdConfig::JobSection job;
  const auto at = [&file](const toml::node& node) {
    return file + ":" + std::to_string(node.source().begin.line);
  };
  for (const auto& [key, node] : table) {
    const std::string where = at(node) + ": job." + std::string(key.str());
    if (key == "memory" || key == "weight" || key == "rate") {
      Status set = key == "memory"   ? set_memory(job, node, where)
                   : key == "weight" ? set_weight(job, node, where)
                                     : set_rate(job, node, where);
      if (!set) return set;
      continue;
    }
    if (key != "name" && key != "secret" && key != "secret_file") {
      return Error(
          Errc::kConfig,
          where + ": unknown key; a [[job]] has name, secret, secret_file, memory, weight, rate");
    }
    if (!node.is_string()) {  // what it is instead may be a secret
      return Error(Errc::kConfig, where + ": expected a string");
    }
    const std::string& text = node.as_string()->get();
    if (key == "name") job.name = text;
    if (key == "secret") job.secret = text;
    if (key == "secret_file") {
      Result<std::string> secret = read_secret_file(text);
      if (!secret) {
        return Error(Errc::kConfig, at(node) + ": job.secret_file: " + secret.error().message);
      }
      job.secret = *secret;
    }
  }
  if (!is_job_name(job.name)) {
    return Error(Errc::kConfig, at(table) +
                                    ": job.name: expected 1 to 63 of A-Z a-z 0-9 _ . -, got " +
                                    (job.name.empty() ? "nothing" : "\"" + job.name + "\""));
  }
  for (const StackdConfig::JobSection& other : config.jobs) {
    if (other.name == job.name) {
      return Error(Errc::kConfig, at(table) + ": job.name: expected each job once, got \"" +
                                      job.name + "\" again");
    }
  }
  if (table.contains("secret") && table.contains("secret_file")) {
    return Error(Errc::kConfig, at(table) +
                                    ": job.secret: expected one of secret and secret_file, "
                                    "got both");
  }
  config.jobs.push_back(std::move(job));
  return {};
}

// IPv6's smallest, which every path carries.
constexpr uint64_t kLeastMtu = 1280;
// Behind attach.socket: where programs ask for their sockets, beside it.
constexpr char kSocketsSuffix[] = ".tcp";
// What a socket's address holds, less the ".admin" of mercuryctl's socket beside it.
constexpr size_t kLongestSocket = sizeof(sockaddr_un::sun_path) - sizeof(".admin");
static_assert(sizeof kSocketsSuffix <= sizeof(".admin"));

Status read_file(StackdConfig& config, const std::string& path) {
  toml::table file;
  try {
    file = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    return Error(Errc::kConfig, path + ":" + std::to_string(error.source().begin.line) + ": " +
                                    std::string(error.description()));
  }
  const auto at = [&path](const toml::node& node) {
    return path + ":" + std::to_string(node.source().begin.line);
  };
  for (const auto& [section, node] : file) {
    if (section == "job") {
      const toml::array* jobs = node.as_array();
      if (!jobs)
        return Error(Errc::kConfig, at(node) + ": job: expected [[job]], got one table or value");
      for (const toml::node& job : *jobs) {
        if (!job.is_table())
          return Error(Errc::kConfig, at(job) + ": job: expected [[job]] tables");
        if (Status added = add_job(config, *job.as_table(), path); !added) return added;
      }
      continue;
    }
    if (!node.is_table()) {
      return Error(Errc::kConfig, at(node) + ": " + std::string(section.str()) +
                                      ": expected a [section], got a value");
    }
    for (const auto& [key, value] : *node.as_table()) {
      const ConfigRow* row = find(section.str(), key.str());
      if (!row) {
        return Error(Errc::kConfig,
                     at(value) + ": unknown key " + std::string(section.str()) + "." +
                         std::string(key.str()) + "; did you mean " +
                         nearest(std::string(section.str()), std::string(key.str())) + "?");
      }
      if (Status set = set_node(config, *row, value, at(value)); !set) return set;
      config.places[join(*row)] = at(value);
    }
  }
  return {};
}

Status check_classes(const StackdConfig& config) {
  if (TrafficClasses::parse(config.dscp)) return {};
  return wrong_value(config, "port.dscp",
                     "expected up to " + std::to_string(TrafficClasses::kMost) +
                         " of PRIORITY:DSCP with a comma between, priorities growing from 1 to " +
                         std::to_string(TrafficClasses::kPriorities) +
                         ", DSCPs from 0 to 63, as in \"16:46, 256:26\"; got \"" + config.dscp +
                         "\"");
}

// Of a socket's frames the kernel knows the VLAN by the address.
Status check_vlan(const StackdConfig& config) {
  if (config.vlan == 0 || !port_kind(config.port_kind).one_address) return {};
  const std::string vlan = std::to_string(config.vlan);
  return wrong_value(
      config, "port.vlan",
      "expected 0 with kind \"" + config.port_kind + "\", got " + vlan +
          ": set port.address to one of the kernel's interface for the VLAN (ip link "
          "add link INTERFACE name INTERFACE." +
          vlan + " type vlan id " + vlan + ")");
}

Status check_source_ports(const StackdConfig& config) {
  const uint64_t all = config.engines * config.source_ports;
  if (config.udp_port + all <= 65'536) return {};
  return wrong_value(config, "port.source_ports",
                     "expected at most 65535 for the last of " + std::to_string(all) +
                         " UDP ports (port.engines times port.source_ports) from " +
                         std::to_string(config.udp_port) + " (port.udp_port) on, got " +
                         std::to_string(config.udp_port + all - 1));
}

// Limits of a job's rate are kept at its turns.
Status check_rates(const StackdConfig& config) {
  if (config.job_bits_per_second != 0 && config.job_bits_per_second < kLeastJobRate) {
    return wrong_value(config, "jobs.rate",
                       std::string("expected 0 or at least ") + kLeastJobRateText);
  }
  if (config.turns == "fair") return {};
  const bool limited = config.job_bits_per_second != 0 ||
                       std::ranges::any_of(config.jobs, [](const StackdConfig::JobSection& job) {
                         return job.bits_per_second.value_or(0) != 0;
                       });
  if (!limited) return {};
  return wrong_value(config, "engine.turns",
                     "expected \"fair\" where a job has a rate (jobs.rate, job.rate), got \"" +
                         config.turns + "\"");
}

Status check_together(const StackdConfig& config) {
  if (!config.cores.empty() && config.cores.size() != config.engines) {
    return wrong_value(config, "engine.cores",
                       "expected one CPU for each of the " + std::to_string(config.engines) +
                           " engines (port.engines), got " + std::to_string(config.cores.size()));
  }
  if (Status rates = check_rates(config); !rates) return rates;
  const auto v4 = std::count_if(config.addresses.begin(), config.addresses.end(),
                                [](const IpPrefix& address) { return address.ip.is_v4(); });
  for (const IpPrefix& address : config.addresses) {
    if (address.ip.is_unspecified() || address.ip.is_multicast()) {
      return wrong_value(config, "port.address",
                         "expected an address of this host, got " + address.ip.to_string());
    }
  }
  if (v4 > 1 || std::ssize(config.addresses) - v4 > 1) {
    return wrong_value(config, "port.address", "expected one address of each family, got more");
  }
  if (config.gateway != IpAddress() && !config.gateway.is_v4()) {
    return wrong_value(config, "port.gateway",
                       "expected an IPv4 address, got " + print_value(config.gateway));
  }
  if (config.gateway6 != IpAddress() && config.gateway6.is_v4()) {
    return wrong_value(config, "port.gateway6",
                       "expected an IPv6 address, got " + print_value(config.gateway6));
  }
  if (config.mtu != 0 && config.mtu < kLeastMtu) {
    return wrong_value(config, "port.mtu",
                       "expected 0 or at least " + std::to_string(kLeastMtu) + ", got " +
                           std::to_string(config.mtu));
  }
  if (config.socket.empty() || config.socket.size() > kLongestSocket) {
    return wrong_value(config, "attach.socket",
                       "expected a path of 1 to " + std::to_string(kLongestSocket) +
                           " characters, got " + std::to_string(config.socket.size()));
  }
  if (config.sockets_socket.size() >= sizeof(sockaddr_un::sun_path)) {
    return wrong_value(config, "sockets.socket",
                       "expected a path of at most " +
                           std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " characters, got " +
                           std::to_string(config.sockets_socket.size()));
  }
  if (!config.sockets_secret_file.empty() && !config.sockets_secret.empty()) {
    return wrong_value(config, "sockets.secret_file",
                       "expected one of sockets.secret and sockets.secret_file, got both");
  }
  if (config.sockets_serve && sockets_path(config) == config.socket) {
    return wrong_value(config, "sockets.socket", "expected another path than attach.socket");
  }
  if (port_kind(config.port_kind).one_address && config.addresses.size() != 1) {
    return wrong_value(config, "port.address",
                       std::string("expected the address to listen on, got ") +
                           (config.addresses.empty() ? "none" : "two"));
  }
  if (Status vlan = check_vlan(config); !vlan) return vlan;
  if (Status ports = check_source_ports(config); !ports) return ports;
  return check_classes(config);
}

std::string environment_name(const ConfigRow& row) {
  std::string name = "MERCURY_" + std::string(row.section) + "_" + row.key;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

Status read_environment(StackdConfig& config) {
  std::vector<std::string> names;
  for (const ConfigRow& row : config_rows()) names.push_back(environment_name(row));
  // Programs' variables may be here as well: whoever starts both exports them for both.
  std::vector<std::string_view> known(kProgramVariables.begin(), kProgramVariables.end());
  known.insert(known.end(), names.begin(), names.end());
  if (const auto misspelt = find_misspelt(mercury_variables(), known)) {
    return Error(Errc::kConfig, describe(*misspelt));
  }
  for (const ConfigRow& row : config_rows()) {
    const std::string name = environment_name(row);
    if (const char* text = std::getenv(name.c_str())) {
      if (Status set = set_text(config, row, text, "$" + name); !set) return set;
      config.places[join(row)] = "$" + name;
    }
  }
  return {};
}

// As an error of the command line.
Error in_command_line(const Error& error) { return Error(Errc::kInvalidArgument, error.message); }

Status read_overrides(StackdConfig& config, const std::vector<std::string>& overrides) {
  for (const std::string& item : overrides) {
    const size_t dot = item.find('.'), equals = item.find('=');
    if (equals == std::string::npos || dot > equals) {
      return Error(Errc::kInvalidArgument, "--set " + item + ": expected SECTION.KEY=VALUE");
    }
    const std::string section = item.substr(0, dot);
    const std::string key = item.substr(dot + 1, equals - dot - 1);
    const ConfigRow* row = find(section, key);
    if (!row) {
      return Error(Errc::kInvalidArgument, "--set " + item + ": unknown key " + section + "." +
                                               key + "; did you mean " + nearest(section, key) +
                                               "?");
    }
    if (Status set = set_text(config, *row, item.substr(equals + 1), kFlag); !set) {
      return in_command_line(set.error());
    }
    config.places[join(*row)] = kFlag;
  }
  return {};
}

std::string quoted(const std::string& text) {
  // Several lines would lose a newline in front, and 'literal' ones cannot have them.
  constexpr auto kOneLine =
      toml::toml_formatter::default_flags &
      ~(toml::format_flags::allow_multi_line_strings | toml::format_flags::allow_literal_strings);
  const toml::value<std::string> value(text);
  std::stringstream out;
  out << toml::toml_formatter(value, kOneLine);
  return out.str();
}

std::string print_items(const StackdConfig& config, const ConfigRow& row) {
  std::string text;
  const auto add = [&text](const std::string& item) { text += (text.empty() ? "" : ", ") + item; };
  if (auto* prefixes = std::get_if<std::vector<IpPrefix> StackdConfig::*>(&row.member)) {
    for (const IpPrefix& prefix : config.**prefixes) add(quoted(print_value(prefix)));
  } else {
    for (uint32_t cpu : config.*std::get<std::vector<uint32_t> StackdConfig::*>(row.member)) {
      add(print_value(cpu));
    }
  }
  return text;
}

}  // namespace

std::vector<IpPrefix> private_networks() {
  std::vector<IpPrefix> networks;
  for (const char* text : {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16",
                           "fc00::/7", "fe80::/10"}) {
    parse_value(text, networks.emplace_back());
  }
  return networks;
}

std::string sockets_path(const StackdConfig& config) {
  if (!config.sockets_socket.empty()) return config.sockets_socket;
  if (config.socket == StackdConfig().socket) return sockets::kDefaultSocketsPath;
  return config.socket + kSocketsSuffix;
}

bool has_sockets_secret(const StackdConfig& config) {
  return !config.sockets_secret.empty() || !config.sockets_secret_file.empty();
}

bool speaks_to_others(const StackdConfig& config) {
  return config.sockets_serve && (config.sockets_open || has_sockets_secret(config));
}

Result<StackdConfig> load_config(const std::string& path,
                                 const std::vector<std::string>& overrides) {
  StackdConfig config;
  config.file = path;
  if (!path.empty()) {
    std::error_code none;
    if (!std::ifstream(path) || std::filesystem::is_directory(path, none)) {
      return Error(Errc::kConfig,
                   path + ": cannot be read; --config names the file, --print-config shows one");
    }
    if (Status read = read_file(config, path); !read) return read.error();
  }
  if (Status read = read_environment(config); !read) return read.error();
  if (Status read = read_overrides(config, overrides); !read) return read.error();
  if (Status fits = check_together(config); !fits) return fits.error();
  if (!config.sockets_secret_file.empty()) {
    Result<std::string> secret = read_secret_file(config.sockets_secret_file);
    if (!secret) return wrong_value(config, "sockets.secret_file", secret.error().message);
    config.sockets_file_secret = std::move(*secret);
  }
  return config;
}

Error wrong_value(const StackdConfig& config, const std::string& key, const std::string& what) {
  const auto place = config.places.find(key);
  const std::string where = place != config.places.end() ? place->second
                            : config.file.empty()        ? "defaults"
                                                         : config.file;
  const Error error(Errc::kConfig, where + ": " + key + ": " + what);
  return where == kFlag ? in_command_line(error) : error;
}

std::string print_config(const StackdConfig& config, bool with_secrets) {
  std::stringstream out;
  std::string section;
  for (const ConfigRow& row : config_rows()) {
    if (section != row.section) {
      out << (section.empty() ? "" : "\n") << "[" << row.section << "]\n";
      section = row.section;
    }
    out << "# " << row.help << "\n#   " << expected(row) << "\n" << row.key << " = ";
    if (auto* flag = std::get_if<bool StackdConfig::*>(&row.member)) {
      out << (config.**flag ? "true" : "false");
    } else if (auto* number = std::get_if<uint64_t StackdConfig::*>(&row.member)) {
      const std::string text = print_quantity(config.**number, row.unit);
      out << (row.unit == Unit::kNone || text == "0" ? text : "\"" + text + "\"");
    } else if (auto* string = std::get_if<std::string StackdConfig::*>(&row.member)) {
      const bool hidden = row.secret && !with_secrets && !(config.**string).empty();
      out << quoted(hidden ? kHidden : config.**string);
    } else if (auto* ip = std::get_if<IpAddress StackdConfig::*>(&row.member)) {
      out << quoted(print_value(config.**ip));
    } else {
      out << "[" << print_items(config, row) << "]";
    }
    out << "\n";
  }
  for (const StackdConfig::JobSection& job : config.jobs) {
    out << "\n[[job]]\nname = " << quoted(job.name)
        << "\nsecret = " << quoted(with_secrets || job.secret.empty() ? job.secret : kHidden)
        << "\nmemory = \"" << print_quantity(job.memory_bytes, Unit::kBytes) << "\"\n";
    if (job.weight != 0) out << "weight = " << job.weight << "\n";
    if (job.bits_per_second) {
      out << "rate = \"" << print_quantity(*job.bits_per_second, Unit::kBitsPerSecond) << "\"\n";
    }
  }
  return out.str();
}

}  // namespace mercury
