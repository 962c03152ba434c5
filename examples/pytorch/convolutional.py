#!/usr/bin/env python3
"""Trains a residual convolutional network on handwritten digits with PyTorch, and with other workers over Mercury.

Each process of the job runs this; its launcher says which it is (docs/pytorch.md). With --alone one process trains by
itself on the whole of every batch: the losses are the same, up to how sums are rounded. Layers are normalised by
groups of channels, not over the batch, as each worker sees only its share of that.
"""
import argparse
import os

import numpy as np
import torch
from torch import nn

import mercurystack
from mercurystack.torch import ScheduledOptimizer

DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digits", "digits.csv")
BATCH = 64


class Block(nn.Module):
    def __init__(self, channels, stride):
        super().__init__()
        self.way = nn.Sequential(nn.Conv2d(channels, stride * channels, 3, stride, padding=1, bias=False),
                                 nn.GroupNorm(4, stride * channels), nn.ReLU(),
                                 nn.Conv2d(stride * channels, stride * channels, 3, padding=1, bias=False),
                                 nn.GroupNorm(4, stride * channels))
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(channels, stride * channels, 1, stride, bias=False)

    def forward(self, values):
        return torch.relu(self.way(values) + self.short(values))


def network():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), Block(16, 1), Block(16, 2), Block(32, 1), Block(32, 2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def train(iterations, rank, workers, wrap):
    rows = torch.from_numpy(np.loadtxt(DIGITS, dtype=np.float32, delimiter=","))
    images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    order = torch.Generator().manual_seed(1)  # the same on every worker
    torch.manual_seed(1 + rank)  # worker 0's weights are everybody's
    model = network()
    optimizer = wrap(torch.optim.AdamW(model.parameters(), lr=0.003), model)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=iterations + 1)
    for i in range(iterations):
        mine = torch.randint(len(labels), (BATCH,), generator=order)[rank::workers]
        loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
        if i % 5 == 4:
            print(f"worker {rank}: iteration {i + 1}: loss {float(loss):.6f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--alone", action="store_true", help="without other workers, and without Mercury")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.alone:
        train(arguments.iterations, 0, 1, lambda optimizer, model: optimizer)
        return
    with mercurystack.Context() as context, context.open_job("convolutional", serve=True) as job:
        train(arguments.iterations, job.rank, job.workers,
              lambda optimizer, model: ScheduledOptimizer(optimizer, model, context, job))


if __name__ == "__main__":
    main()
