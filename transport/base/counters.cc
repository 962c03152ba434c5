#include "transport/base/counters.h"

namespace mercury {
namespace {

constexpr CounterInfo kCounterInfo[] = {
    {"rx_frames", "Mercury frames received"},
    {"rx_bytes", "UDP payload bytes received"},
    {"tx_frames", "Mercury frames sent"},
    {"tx_bytes", "UDP payload bytes sent"},
    {"tx_gathered", "frames whose payload a DPDK device takes from where it lies"},
    {"push_chunks", "gradient chunks summed"},
    {"result_chunks", "result chunks written to a tensor"},
    {"socket_bytes_sent", "bytes that programs' sockets wrote, towards other hosts"},
    {"socket_bytes_received", "bytes that programs' sockets were given, from other hosts"},
    {"retransmits", "chunks sent again"},
    {"datagrams_refused",
     "datagrams that could not be taken for now, of which the peer was told; the drops say why"},
    {"datagrams_sent_back", "datagrams that a peer refused for now: they are sent again"},
    {"acks_sent", "ACK frames sent"},
    {"acks_received", "ACK frames received"},
    {"drop_truncated", "frame shorter than its header"},
    {"drop_magic", "first two bytes are not Mercury's"},
    {"drop_version", "wire version that this build does not speak"},
    {"drop_type", "unknown frame type"},
    {"drop_length", "payload length disagrees with the frame"},
    {"drop_header_crc", "header CRC-32C is wrong"},
    {"drop_payload_crc", "payload CRC-32C is wrong"},
    {"drop_seal", "the seal is not of this frame, session and direction: forged or damaged"},
    {"drop_no_session", "no session has the number in the frame"},
    {"drop_foreign_source", "the session belongs to another address"},
    {"drop_duplicate", "packet number already received"},
    {"drop_far_ahead", "packet number that no peer can have come to"},
    {"drop_not_open", "data before the handshake ended"},
    {"drop_unknown_tensor", "tensor not declared"},
    {"drop_chunk_range", "chunk outside the tensor or of the wrong length"},
    {"drop_worker_rank", "worker rank is not the session's"},
    {"drop_incarnation", "sent by an earlier incarnation of the worker"},
    {"drop_round_old", "push for a round that has ended"},
    {"drop_round_new", "push for a round that cannot have begun"},
    {"drop_contributed_twice", "the worker's contribution to this chunk is already in the sum"},
    {"drop_slot_busy",
     "slot still being sent by the NIC, or its worker's last life still in it; the sender tries "
     "again"},
    {"drop_result_unexpected", "result that this worker does not wait for"},
    {"drop_handshake", "malformed or unexpected handshake frame"},
    {"drop_hello", "HELLO beyond those that one pass of the engine reads"},
    {"drop_forged_answer",
     "HELLO_ACK or REFUSE that does not show that its sender has seen the HELLO, or RESET without "
     "the session's token"},
    {"drop_control", "malformed or out-of-window control frame"},
    {"drop_stream", "malformed frame of a stream, or one that leaves too many gaps to keep"},
    {"drop_not_mercury", "frame for another protocol on an interface of Mercury's own"},
    {"drop_bad_ip", "malformed or fragmented IP packet"},
    {"drop_ip_checksum", "wrong IPv4 header checksum"},
    {"drop_neighbor", "no link-layer address for the next hop yet"},
    {"drop_tx_full", "the port's transmit ring stayed full"},
    {"drop_no_buffer", "found no packet buffer, or no room in the ring of the device or socket"},
    {"handoffs", "frames passed to the engine that owns their UDP port"},
    {"drop_handoff_full", "hand-off ring to the owning engine was full"},
    {"drop_too_large", "frame larger than the port or the interface can send"},
    {"drop_network", "the kernel or the network refused a frame: no route, filtered, unreachable"},
    {"sessions_opened", "handshakes completed"},
    {"sessions_sealed", "of them, those whose frames are authenticated"},
    {"sessions_closed", "sessions closed, for any reason"},
    {"sessions_refused", "handshakes refused"},
    {"refusals_unsaid", "refusals beyond those that are sent in a second"},
    {"tokens_asked", "HELLOs that were to be said again with a token, as many waited"},
    {"closes_repeated", "CLOSE said again to a peer that went on sending after the session's end"},
    {"resets_sent", "frames of sessions that are not known here, of which the sender was told"},
    {"resets_received", "sessions that ended as the peer does not know them any more"},
    {"peers_lost", "sessions closed because nothing was heard for peer_timeout"},
    {"probe_timeouts", "tail probes sent"},
    {"spurious_losses", "packets declared lost that had arrived: the path reorders or delays"},
    {"tx_backpressure", "times the port had no room while something was due"},
    {"quorum_results", "chunks completed by their job's quorum and patience, without all workers"},
    {"bad_descriptors", "invalid submissions from a program; its channel was closed"},
    {"submissions", "operations submitted by programs"},
    {"completions", "operations completed to programs"},
    {"completion_ring_full", "times a program's completion ring had no room"},
    {"wakeups", "doorbells rung for parked programs"},
    {"sleeps", "times the engine slept"},
    {"polls", "passes of the engine loop"},
    {"idle_polls", "passes that found nothing to do"},
};
static_assert(sizeof kCounterInfo / sizeof kCounterInfo[0] == kCounterCount);

constexpr CounterInfo kGaugeInfo[] = {
    {"sessions", "open, opening or closing sessions"},
    {"handshakes", "HELLOs that wait for an answer"},
    {"jobs", "jobs in which this engine works or serves"},
    {"channels", "programs' rings that the engine serves"},
    {"sum_bytes", "memory reserved for sums"},
    {"unmapped_sum_bytes",
     "of it, what could not be mapped for a NIC that gathers: copied for each worker"},
    {"sent_blocks", "blocks of records of packets in flight"},
    {"queued_ranges", "pieces of tensors that wait to be sent"},
    {"packet_buffers", "frames that were received and are read, or wait to be sent"},
    {"connections", "of programs' sockets, with other hosts"},
};
static_assert(sizeof kGaugeInfo / sizeof kGaugeInfo[0] == kGaugeCount);

}  // namespace

const CounterInfo& info_of(Counter counter) { return kCounterInfo[static_cast<size_t>(counter)]; }
const CounterInfo& info_of(Gauge gauge) { return kGaugeInfo[static_cast<size_t>(gauge)]; }

}  // namespace mercury
