#include "transport/engine/farewells.h"

#include <algorithm>
#include <utility>

namespace mercury {

void Farewells::keep(uint32_t number, Peer peer, std::span<const std::byte> close,
                     uint64_t now_ns) {
  expire(now_ns);
  while (order_.size() >= kMost) {
    kept_.erase(order_.front().first);
    order_.pop_front();
  }
  Farewell& farewell = kept_[number];
  farewell.peer = std::move(peer);
  farewell.ended_ns = now_ns;
  farewell.close.assign(close.begin(), close.end());
  order_.emplace_back(number, now_ns);
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
  while (!order_.empty() && now_ns >= order_.front().second + kept_ns_) {
    kept_.erase(order_.front().first);
    order_.pop_front();
  }
}

}  // namespace mercury
