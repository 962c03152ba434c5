// Two services on one engine: one of datagrams, one of byte streams. Nothing is asked of a frame to
// tell whose it is: datagrams are the first's, streams the second's. A session is of both as far as
// the engine is concerned; each knows its own (claim(), on_session_open()).
//
// Owner/thread: the engine's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "transport/engine/stream_service.h"

namespace mercury {

// Whether a variant may hold a T.
template <class Variant, class T>
inline constexpr bool kHas = false;
template <class... Types, class T>
inline constexpr bool kHas<std::variant<Types...>, T> = (std::is_same_v<Types, T> || ...);

namespace detail {
template <class Variant, class T, bool kKnown>
struct Added;
template <class... Types, class T>
struct Added<std::variant<Types...>, T, true> {
  using type = std::variant<Types...>;
};
template <class... Types, class T>
struct Added<std::variant<Types...>, T, false> {
  using type = std::variant<Types..., T>;
};

template <class First, class Second>
struct Joined;
template <class First>
struct Joined<First, std::variant<>> {
  using type = First;
};
template <class First, class Next, class... Rest>
struct Joined<First, std::variant<Next, Rest...>> {
  using type = typename Joined<typename Added<First, Next, kHas<First, Next>>::type,
                               std::variant<Rest...>>::type;
};
}  // namespace detail

// All that either may hold, each once.
template <class First, class Second>
using JoinedVariant = typename detail::Joined<First, Second>::type;

// The same in a variant that may hold more; and in one that may hold less, if it may hold this.
template <class Wide, class Narrow>
Wide widened(Narrow&& from) {
  return std::visit([](auto&& one) { return Wide(std::forward<decltype(one)>(one)); },
                    std::forward<Narrow>(from));
}
template <class Narrow, class Wide>
std::optional<Narrow> narrowed(Wide&& from) {
  return std::visit(
      [](auto&& one) -> std::optional<Narrow> {
        if constexpr (kHas<Narrow, std::remove_cvref_t<decltype(one)>>) {
          return Narrow(std::forward<decltype(one)>(one));
        } else {
          return std::nullopt;
        }
      },
      std::forward<Wide>(from));
}

template <Service Datagrams, StreamService Streams>
class ServicePair {
 public:
  using Command = JoinedVariant<typename Datagrams::Command, typename Streams::Command>;
  using Event = JoinedVariant<typename Datagrams::Event, typename Streams::Event>;

  // Made of what each is made of, as neither may move.
  template <class... First, class... Second>
  ServicePair(std::tuple<First...> first, std::tuple<Second...> second)
      : datagrams_(std::make_from_tuple<Datagrams>(std::move(first))),
        streams_(std::make_from_tuple<Streams>(std::move(second))) {}
  Datagrams& datagrams() noexcept { return datagrams_; }
  Streams& streams() noexcept { return streams_; }

  // --- datagrams ---
  Taken on_datagram(SessionSlot session, const wire::Header& header,
                    std::span<const std::byte> payload, uint64_t now_ns) noexcept {
    return datagrams_.on_datagram(session, header, payload, now_ns);
  }
  bool next(OutgoingDatagram& out) noexcept { return datagrams_.next(out); }
  bool wants_to_send() const noexcept { return datagrams_.wants_to_send(); }
  void charge(JobSlot job, uint32_t bytes) noexcept { datagrams_.charge(job, bytes); }
  void on_acked(SessionSlot session, const SentTag& tag) noexcept {
    datagrams_.on_acked(session, tag);
  }
  void on_lost(SessionSlot session, const SentTag& tag) noexcept {
    datagrams_.on_lost(session, tag);
  }
  void block(SessionSlot session) noexcept { datagrams_.block(session); }
  void unblock(SessionSlot session) noexcept { datagrams_.unblock(session); }

  // --- both ---
  uint32_t poll(uint64_t now_ns) noexcept {
    return datagrams_.poll(now_ns) + streams_.poll(now_ns);
  }
  bool awaits_nic() noexcept { return datagrams_.awaits_nic() || streams_.awaits_nic(); }
  uint64_t next_deadline_ns() noexcept {
    return std::min(datagrams_.next_deadline_ns(), streams_.next_deadline_ns());
  }
  void forget(SessionSlot session) {
    datagrams_.forget(session);
    streams_.forget(session);
  }
  std::optional<Event> take_event() {
    if (auto event = datagrams_.take_event()) return widened<Event>(std::move(*event));
    if (auto event = streams_.take_event()) return widened<Event>(std::move(*event));
    return std::nullopt;
  }
  template <class OneCommand>
  void on_command(OneCommand& command, SessionHost& host) {
    if constexpr (kHas<typename Datagrams::Command, OneCommand>) {
      datagrams_.on_command(command, host);
    } else {
      streams_.on_command(command, host);
    }
  }

  // --- streams ---
  StreamConfig stream_config() const { return streams_.stream_config(); }
  void attach(StreamHost& host) { streams_.attach(host); }
  void on_session_open(SessionSlot session, Token token) {
    streams_.on_session_open(session, token);
  }
  void on_stream_opened(SessionSlot session, StreamId stream) {
    streams_.on_stream_opened(session, stream);
  }
  void on_stream_readable(SessionSlot session, StreamId stream) {
    streams_.on_stream_readable(session, stream);
  }
  void on_stream_writable(SessionSlot session, StreamId stream) {
    streams_.on_stream_writable(session, stream);
  }
  void on_stream_closed(SessionSlot session, StreamId stream, Errc code) {
    streams_.on_stream_closed(session, stream, code);
  }
  void on_streams_available(SessionSlot session) { streams_.on_streams_available(session); }

 private:
  Datagrams datagrams_;
  Streams streams_;
};

}  // namespace mercury
