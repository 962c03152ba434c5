#!/usr/bin/env python3
"""Trains a small transformer to write a licence, letter by letter, with PyTorch and with other workers over Mercury.

Each process of the job runs this; its launcher says which it is (docs/pytorch.md). With --alone one process trains by
itself on the whole of every batch: the losses are the same, up to how sums are rounded. The text is one that every
Debian has. Embedding and output share their weights.
"""
import argparse

import torch
from torch import nn

import mercurystack
from mercurystack.torch import ScheduledOptimizer

TEXT = "/usr/share/common-licenses/GPL-3"
BATCH = 16
LENGTH = 64  # letters that it sees
WIDTH = 64


class Transformer(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
                                    for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, letters, bias=False)
        self.output.weight = self.letters.weight
        nn.init.normal_(self.letters.weight, std=WIDTH ** -0.5)

    def forward(self, text):
        later = torch.full((text.shape[1], text.shape[1]), float("-inf")).triu(1)
        values = self.letters(text) + self.places(torch.arange(text.shape[1]))
        for block in self.blocks:
            values = block(values, src_mask=later)
        return self.output(self.norm(values))


def train(arguments, rank, workers, wrap):
    with open(arguments.text, encoding="utf-8") as file:
        text = file.read()
    letters = sorted(set(text))
    numbers = torch.tensor([letters.index(letter) for letter in text])
    order = torch.Generator().manual_seed(1)  # the same on every worker
    torch.manual_seed(1 + rank)  # worker 0's weights are everybody's
    model = Transformer(len(letters))
    optimizer = wrap(torch.optim.AdamW(model.parameters(), lr=0.003), model)
    for i in range(arguments.iterations):
        mine = torch.randint(len(text) - LENGTH, (BATCH,), generator=order)[rank::workers]
        pieces = torch.stack([numbers[begin:begin + LENGTH + 1] for begin in mine])
        loss = nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 5 == 4:
            print(f"worker {rank}: iteration {i + 1}: loss {float(loss):.6f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", default=TEXT, help="what it learns (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--alone", action="store_true", help="without other workers, and without Mercury")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.alone:
        train(arguments, 0, 1, lambda optimizer, model: optimizer)
        return
    with mercurystack.Context() as context, context.open_job("transformer", serve=True) as job:
        train(arguments, job.rank, job.workers, lambda optimizer, model: ScheduledOptimizer(optimizer, model, context, job))


if __name__ == "__main__":
    main()
