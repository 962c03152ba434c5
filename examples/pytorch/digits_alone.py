#!/usr/bin/env python3
"""Trains a classifier of handwritten digits with PyTorch, in one process."""
import argparse
import hashlib
import os

import numpy as np
import torch
from torch import nn

DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digits", "digits.csv")


def images(path):
    """Training and test images and labels. Every fifth is for the test."""
    rows = torch.from_numpy(np.loadtxt(path, dtype=np.float32, delimiter=","))
    pixels, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    test = torch.arange(len(rows)) % 5 == 4
    order = torch.randperm(int((~test).sum()), generator=torch.Generator().manual_seed(1))
    return (pixels[~test][order], labels[~test][order]), (pixels[test], labels[test])


def classifier(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))


def train(arguments):
    (pixels, labels), (test_pixels, test_labels) = images(arguments.data)
    model = classifier(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(arguments.epochs):
        total, batches = 0.0, range(0, len(labels) - arguments.batch + 1, arguments.batch)
        for start in batches:
            mine = slice(start, start + arguments.batch)
            loss = nn.functional.cross_entropy(model(pixels[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss)
        print(f"epoch {epoch}: loss {total / len(batches):.6f}", flush=True)
    with torch.no_grad():
        right = (model(test_pixels).argmax(1) == test_labels).float().mean()
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    print(f"right {right:.4f}, weights {hashlib.sha256(weights).hexdigest()[:16]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=DIGITS, help="lines of 64 pixels from 0 to 16 and a digit (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128, help="images of an iteration")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train(arguments)


if __name__ == "__main__":
    main()
