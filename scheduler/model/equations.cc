#include "scheduler/model/equations.h"

#include <algorithm>
#include <limits>

namespace mercury::model {
namespace {

// The variables of Algorithm 1, under the paper's names; indexes from 0.
struct Buffer {
  std::vector<size_t> buf;  // in the order in which they became ready
  Times t_push;             // "t-hat": what is left
  Times tau_push;

  // Line 14, and its change for Mercury W/O Preemption.
  size_t next(Policy::Order order) const {
    return order == Policy::Order::kFifo ? buf.front() : *std::min_element(buf.begin(), buf.end());
  }

  // Function CONSUME, lines 12 to 24.
  void consume(Policy::Order order, double now, double interval) {
    while (interval > 0 && !buf.empty()) {
      const size_t l = next(order);
      if (interval >= t_push[l]) {
        interval -= t_push[l];
        now += t_push[l];
        t_push[l] = 0;
        buf.erase(std::find(buf.begin(), buf.end(), l));
        tau_push[l] = now;
      } else {
        t_push[l] -= interval;
        interval = 0;
      }
    }
  }
};

}  // namespace

Times transfer_times(const Chain& chain, double rate) {
  Times times;
  for (const Layer& layer : chain) times.push_back(layer.wire_bytes / rate);
  return times;
}

Times backward_ends(const Chain& chain) {
  Times ends(chain.size());
  double now = 0;
  for (size_t l = chain.size(); l-- > 0;) ends[l] = now += chain[l].backward_s;
  return ends;
}

Times forward_ends(const Chain& chain, const Times& pulled) {
  Times ends(chain.size());
  double now = 0;
  for (size_t l = 0; l < chain.size(); ++l) {
    ends[l] = now = std::max(pulled[l], now) + chain[l].update_s + chain[l].forward_s;
  }
  return ends;
}

Times wfbp_pushed(const Times& ready, const Times& push) {
  Times pushed(ready.size());
  double now = 0;
  for (size_t l = ready.size(); l-- > 0;) pushed[l] = now = std::max(ready[l], now) + push[l];
  return pushed;
}

Times wfbp_pulled(const Times& pushed, const Times& pull) {
  Times pulled(pushed);
  for (size_t l = 0; l < pulled.size(); ++l) pulled[l] += pull[l];
  return pulled;
}

Times algorithm_1(const Chain& chain, const Times& push, Policy::Order order) {
  const Times tau_bp = backward_ends(chain);
  Buffer buffer{{}, push, Times(chain.size())};
  for (size_t l = chain.size(); l-- > 0;) {
    buffer.buf.push_back(l);
    const double interval =
        l == 0 ? std::numeric_limits<double>::infinity() : chain[l - 1].backward_s;
    buffer.consume(order, tau_bp[l], interval);
  }
  return buffer.tau_push;
}

double oracle_s(const Chain& chain) {
  if (chain.empty()) return 0;
  // All tensors there at once, after the backward pass.
  const Times at_once(chain.size(), backward_ends(chain).front());
  return forward_ends(chain, at_once).back();
}

double optimum_s(const Chain& chain, Rates rates) {
  const Times push = transfer_times(chain, std::min(rates.push, rates.pull));
  const Times pulled = algorithm_1(chain, push, Policy::Order::kPriority);
  return chain.empty() ? 0 : forward_ends(chain, pulled).back();
}

}  // namespace mercury::model
