"""An iteration by arithmetic alone, fast enough to search: messages of any size over links without packets, every
worker like the other, and as many servers as workers.
"""
import heapq
import math

import models

SPREAD_ELEMENTS = 1_000_000  # MXNet puts a smaller array on one server


def chain(model, total_ms=None):
    """[(forward s, backward s, [(bytes, index)])] of the layers, first to last."""
    layers = {}
    for index, (layer, _, numel, flops) in enumerate(models.rows_of(model)):
        found = layers.setdefault(layer, [0.0, []])
        found[0] += flops
        found[1].append((4 * numel, index))
    flops = sum(work for work, _ in layers.values())
    seconds = 1e-3 * (total_ms or models.GTX_1080_TI_MS[model])
    return [(seconds / 3 * work / flops, 2 * seconds / 3 * work / flops, tensors)
            for work, tensors in layers.values()]


def readiness(layers):
    """[(ready s, index, bytes)] as the backward pass gives them, and when it ends."""
    now, ready = 0.0, []
    for _, backward, tensors in reversed(layers):
        now += backward
        ready += [(now, index, size) for size, index in tensors]
    return ready, now


def forward_ends(layers, backward_end, pulled):
    now = backward_end
    for forward, _, tensors in layers:
        now = max(now, *(pulled[index] for _, index in tensors)) + forward
    return now


def least(layers, rate):
    """Algorithm 1 of the paper: packets of no size, the most urgent first."""
    ready, backward_end = readiness(layers)
    waiting, left, pulled = [], {}, {}
    now = 0.0
    for at in range(len(ready) + 1):
        until = ready[at][0] if at < len(ready) else math.inf
        while waiting and now < until:
            index = waiting[0]
            if now + left[index] / rate <= until:
                now += left[index] / rate
                pulled[heapq.heappop(waiting)] = now
            else:
                left[index] -= (until - now) * rate
                now = until
        now = max(now, until) if at < len(ready) else now
        if at < len(ready):
            left[ready[at][1]] = ready[at][2]
            heapq.heappush(waiting, ready[at][1])
    return forward_ends(layers, backward_end, pulled)


class Candidate:
    def __init__(self, starts, placement, credit, fixed_s, per_byte_s=0.0, share=0.0, sum_s=0.0,
                 library="partitions"):
        self.starts, self.placement, self.credit, self.library = starts, placement, credit, library
        self.fixed_s, self.per_byte_s, self.share, self.sum_s = fixed_s, per_byte_s, share, sum_s

    def title(self):
        cost = f"{1e3 * self.fixed_s:.2g} ms"
        if self.per_byte_s:
            cost += f" + {1e9 * self.per_byte_s:.2g} ns a byte"
        if self.share:
            cost += f" + {100 * self.share:.0f} % of its time on the link"
        if self.sum_s:
            cost += f", sums of {1e9 * self.sum_s:.2g} ns a byte"
        return f"{self.starts}, {self.placement}, {self.credit}, {self.library}: {cost}"

    def partitioned(self, layers, gbps, servers, partition, credit):
        """ByteScheduler: the iteration in s; the share of the link used from the first push to the last pull;
        and the same to the end of the last push.
        """
        ready, backward_end = readiness(layers)
        channels = servers if self.placement == "one" else 1
        inverse = channels * 8 / (gbps * 1e9)  # s a byte, of a connection
        slope = self.per_byte_s + self.share * inverse
        fixed, thread, connection = self.fixed_s, self.starts == "thread", self.starts == "connection"
        of_pull = self.credit == "pull"
        # Of a byte that each of as many workers as servers has sent; spread, each server has its part of it.
        summing = self.sum_s * (servers if self.placement == "one" else 1)
        up, down, sums = [0.0] * channels, [0.0] * channels, [0.0] * channels
        waiting, left, acks, pulled = [], {}, [], {}
        now, arrived, out, turn = ready[0][0], 0, 0.0, 0
        push, pop = heapq.heappush, heapq.heappop
        while True:
            while arrived < len(ready) and ready[arrived][0] <= now:
                left[ready[arrived][1]] = ready[arrived][2]
                push(waiting, ready[arrived][1])
                arrived += 1
            if not waiting:
                if arrived == len(ready):
                    break
                now = ready[arrived][0]
                continue
            index = waiting[0]
            size = min(left[index], partition)
            while acks and acks[0][0] <= now:
                out -= pop(acks)[1]
            if acks and out + size > credit * 1.000001:
                now = acks[0][0]
                continue
            left[index] -= size
            if not left[index]:
                pop(waiting)
            start, spent = fixed + slope * size, size * inverse
            channel = turn % channels
            turn += 1
            if connection:
                begin = max(now, up[channel]) + start
            else:
                begin = max(now + start, up[channel])
                if thread:
                    now += start
            up[channel] = pushed = begin + spent
            summed = pushed
            if summing:
                sums[channel] = summed = max(pushed, sums[channel]) + summing * size
            down[channel] = last = max(summed, down[channel]) + spent
            pulled[index] = max(pulled.get(index, 0.0), last)
            out += size
            push(acks, (last if of_pull else pushed, size))
        sent_s = sum(size for _, _, size in ready) * 8 / (gbps * 1e9)
        begin = ready[0][0]
        return (forward_ends(layers, backward_end, pulled), sent_s / (max(pulled.values()) - begin),
                sent_s / (max(up) - begin))

    def native(self, layers, gbps, servers):
        """First-in first-out, a message a tensor and server, sums of whole tensors. The iteration in s."""
        ready, backward_end = readiness(layers)
        channels = servers if self.placement == "one" else 1
        inverse = channels * 8 / (gbps * 1e9)
        costs = self.library == "messages"
        summing = self.sum_s * (servers if self.placement == "one" else 1) if costs else 0.0
        up, down, sums = [0.0] * channels, [0.0] * channels, [0.0] * channels
        thread, pulled = 0.0, {}
        for turn, (now, index, size) in enumerate(ready):
            pieces = [(turn % channels, size)]
            if size >= 4 * SPREAD_ELEMENTS:
                pieces = [(channel, size / channels) for channel in range(channels)]
            pushed = now
            for channel, piece in pieces:
                spent = piece * inverse
                start = self.fixed_s + self.per_byte_s * piece + self.share * spent if costs else 0.0
                if self.starts == "thread":
                    thread = max(thread, now) + start
                    begin = max(thread, up[channel])
                elif self.starts == "connection":
                    begin = max(now, up[channel]) + start
                else:
                    begin = max(now + start, up[channel])
                up[channel] = begin + spent
                sums[channel] = max(up[channel], sums[channel]) + summing * piece
                pushed = max(pushed, sums[channel])
            for channel, piece in pieces:
                down[channel] = max(pushed, down[channel]) + piece * inverse
                pulled[index] = max(pulled.get(index, 0.0), down[channel])
        return forward_ends(layers, backward_end, pulled)
