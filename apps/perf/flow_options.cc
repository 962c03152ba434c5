#include "apps/perf/flow_options.h"

#include "apps/command_line.h"
#include "apps/perf/flow_request.h"
#include "apps/perf/sizes.h"
#include "apps/perf/times.h"
#include "transport/base/quantity.h"

namespace mercury::perf {
namespace {

constexpr const char* kStreamHelp =
    "Bulk over stream sockets: --flows connections with each HOST, where mercury-perf serve runs. "
    "Several HOSTs: one to many, and with --direction down many to one.\n\n"
    "Gbit/s  bytes that the other end has taken, from the start until it said so. With both "
    "directions, of both together; JSON has each.\n"
    "op/s    blocks, each of which is one call of the sender's.\n"
    "spread  (largest - smallest) / median of the repeats; rates are medians.\n"
    "program, daemon  processor time of this program and of this host's daemon, all threads, user "
    "and system; the daemon's is of all that it does. peer, its daemon: the same at the other "
    "ends.\n\n"
    "In the warm-up all bytes are compared with what was sent.";
constexpr const char* kMessagesHelp =
    "Requests and replies over stream sockets: each of --flows connections with each HOST, where "
    "mercury-perf serve runs, has one request under way at a time.\n\n"
    "Gbit/s  bytes of the requests that were answered.\n"
    "us      from the call that sends a request until the whole reply is there, of all repeats.\n"
    "spread  (largest - smallest) / median of the repeats; rates are medians.\n"
    "program, daemon  processor time of this program and of this host's daemon, all threads, user "
    "and system; the daemon's is of all that it does. peer, its daemon: the same at the other "
    "ends.\n\n"
    "In the warm-up all bytes are compared with what was sent.";

void add_common(CLI::App& command, FlowOptions& options, const char* sizes, const char* of_what) {
  options.sizes = *parse_sizes(sizes);
  command.add_option("HOST", options.hosts, "a name or an address; several: one to many")
      ->required();
  command.add_option("--port", options.port, "of mercury-perf serve")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  command.add_option("--flows", options.flows, "connections with each HOST")
      ->check(CLI::Range(1, kMostFlows))
      ->capture_default_str();
  add_parsed(
      command, "--sizes", options.sizes, parse_sizes,
      std::string(of_what) + ": 4KB, or 4,1MiB, or a sweep by fours, 4..1MiB [" + sizes + "]");
  command.add_option("--repeats", options.repeats, "measured ones, of each size")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_parsed(command, "--time", options.time_ns, parse_some_time, "of a repeat [1s]");
  add_parsed(command, "--warmup", options.warmup_ns, parse_some_time, "before them [200ms]");
  command.add_option("--over", options.over, "mercury, or the kernel's TCP, for comparison")
      ->check(CLI::IsMember({"mercury", "kernel"}));
  command.add_flag("--check", options.check,
                   "compare all bytes of the repeats, too, within their time");
  command.add_option("--json", options.json, "file for the figures, or - for standard output");
}

}  // namespace

CLI::App* add_stream_command(CLI::App& app, FlowOptions& options) {
  CLI::App* command = app.add_subcommand("stream", kStreamHelp);
  add_common(*command, options, "128KiB", "of a block, which one call sends");
  command
      ->add_option("--direction", options.direction,
                   "up: to HOST, down: from it, both: as many connections for each")
      ->check(CLI::IsMember({"up", "down", "both"}));
  return command;
}

CLI::App* add_messages_command(CLI::App& app, FlowOptions& options) {
  options.messages = true;
  CLI::App* command = app.add_subcommand("messages", kMessagesHelp);
  add_common(*command, options, "4..1MiB", "of a request");
  const auto parse_one = [](std::string_view text) -> Result<uint64_t> {
    const Result<std::vector<uint64_t>> sizes = parse_sizes(text);
    if (sizes && sizes->size() == 1) return sizes->front();
    return Error(Errc::kInvalidArgument, "'" + std::string(text) + "' is not one size");
  };
  add_parsed(*command, "--reply-size", options.reply_bytes, +parse_one,
             "of a reply, instead of its request's");
  return command;
}

CLI::App* add_serve_command(CLI::App& app, ServeOptions& options) {
  CLI::App* command = app.add_subcommand(
      "serve",
      "The other end of stream and messages, for any number of them, until a signal. Who "
      "reaches its port may have it send and receive.");
  command->add_option("--bind", options.bind, "an address of this host, instead of all");
  command->add_option("--port", options.port)->check(CLI::Range(1, 65535))->capture_default_str();
  add_parsed(*command, "--memory", options.memory_bytes, parse_bytes,
             "for the blocks and messages of all connections [1GiB]");
  return command;
}

Status check_flows(const FlowOptions& options) {
  for (const uint64_t bytes : options.sizes) {
    if (bytes <= kLargestBlock && options.reply_bytes <= kLargestBlock) continue;
    return Error(Errc::kInvalidArgument, "blocks and messages have at most " +
                                             std::to_string(kLargestBlock) +
                                             " bytes, which both ends hold for each flow");
  }
  const int in_all = options.flows * static_cast<int>(options.hosts.size()) *
                     (options.direction == "both" ? 2 : 1);
  const uint64_t largest = options.sizes.back();
  const uint64_t held =
      held_bytes({options.messages ? FlowRequest::Kind::kEcho : FlowRequest::Kind::kSink, largest,
                  options.reply_bytes > 0 ? options.reply_bytes : largest, 0, false});
  if (in_all <= kMostFlows && held * static_cast<uint64_t>(in_all) > kMostHeld) {
    return Error(Errc::kInvalidArgument, std::to_string(in_all) + " connections of " +
                                             print_bytes(largest) + " would hold more than " +
                                             print_bytes(kMostHeld) + " of memory");
  }
  if (in_all <= kMostFlows) return {};
  return Error(Errc::kInvalidArgument,
               std::to_string(in_all) +
                   " connections in all; each has a thread, and there are at most " +
                   std::to_string(kMostFlows));
}

}  // namespace mercury::perf
