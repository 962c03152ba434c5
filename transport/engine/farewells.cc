#include "transport/engine/farewells.h"

#include <algorithm>
#include <utility>

namespace mercury {

void Farewells::keep(uint32_t number, Peer peer, std::span<const std::byte> close,
                     uint64_t now_ns) {
  Order& order = peer.heard ? heard_ : unheard_;
  while (order.size() >= (peer.heard ? kMost : kMostUnheard)) forget_first(order);
  Farewell& farewell = kept_[number];
  farewell.peer = std::move(peer);
  farewell.ended_ns = now_ns;
  farewell.close.assign(close.begin(), close.end());
  order.emplace_back(number, now_ns);
}

std::span<const std::byte> Farewells::answer(const wire::Header& header,
                                             std::span<const std::byte> payload,
                                             const Endpoint& source, uint64_t now_ns) {
  const auto it = kept_.find(header.session);
  if (it == kept_.end() || !wire::is_tagged(header.type)) return {};
  Farewell& farewell = it->second;
  const Peer& peer = farewell.peer;
  if (peer.remote != source || peer.tag != header.tag) return {};
  if (now_ns >= farewell.ended_ns + kept_ns_ || header.type == wire::FrameType::kClose) return {};
  if (now_ns < farewell.answer_ns) return {};
  if (peer.seals != nullptr && !peer.seals->fits(header, payload)) return {};
  farewell.answer_ns = now_ns + farewell.pause_ns;
  farewell.pause_ns = std::min(2 * farewell.pause_ns, kLongestPauseNs);
  return farewell.close;
}

void Farewells::expire(uint64_t now_ns) {
  size_t left = kForgottenAtOnce;
  for (Order* const order : {&heard_, &unheard_}) {
    for (; left > 0 && !order->empty() && now_ns >= order->front().second + kept_ns_; --left) {
      forget_first(*order);
    }
  }
}

void Farewells::forget_first(Order& order) {
  kept_.erase(order.front().first);
  order.pop_front();
}

}  // namespace mercury
