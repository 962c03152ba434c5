#!/usr/bin/env python3
"""Trains a classifier of handwritten digits with MXNet's parameter server, kvstore='dist_sync'.

It knows nothing of Mercury: docs/pslite.md says how it is started over it. Each process of the job runs this
file with ps-lite's variables, DMLC_ROLE among them: a scheduler or server becomes one as it imports mxnet, and
ends there. Each worker trains on its share of every batch and prints the loss of each epoch, then the share
of the test images that are right and a digest of the weights, which is the same on all workers.

Needs mxnet 1.9.1 and numpy before 1.24 (pip install mxnet==1.9.1 'numpy<1.24').
"""
import argparse
import hashlib
import os

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, init

DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digits", "digits.csv")

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", default=DIGITS, help="lines of 64 pixels from 0 to 16 and a digit (default: %(default)s)")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch", type=int, default=128, help="images of an iteration, of all workers together")
parser.add_argument("--update-on", choices=("servers", "workers"), default="servers",
                    help="who adds gradients to weights: the servers send weights back, or sums of gradients")
arguments = parser.parse_args()

rows = np.loadtxt(arguments.data, dtype=np.float32, delimiter=",")
images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64]
is_test = np.arange(len(rows)) % 5 == 4
order = np.random.RandomState(1).permutation(np.flatnonzero(~is_test))  # the file is ordered by writer

mx.random.seed(1)  # the first worker's weights are everybody's
# All shapes are given: MXNet 1.9.1 loses weights on their way to the servers that a pass without recording has used.
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(32, 3, padding=1, in_channels=1, activation="relu"),
        gluon.nn.Conv2D(64, 3, padding=1, in_channels=32, activation="relu"), gluon.nn.MaxPool2D(),
        gluon.nn.Dense(256, in_units=64 * 4 * 4, activation="relu"), gluon.nn.Dense(10, in_units=256))
net.initialize(init.Xavier())

store = mx.kv.create("dist_sync")
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=store,
                        update_on_kvstore=arguments.update_on == "servers")
if arguments.update_on == "workers":
    # MXNet would ask for the first weights and push gradients at the same time, and may then get the first sum of
    # gradients in the weights' place. There is no public way to have them before the first step.
    trainer._init_kvstore()
    trainer._init_params()
    mx.nd.waitall()
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

for epoch in range(arguments.epochs):
    total, seen = 0.0, 0
    for start in range(0, len(order) - arguments.batch + 1, arguments.batch):
        mine = order[start + store.rank:start + arguments.batch:store.num_workers]
        with autograd.record():
            loss = cross_entropy(net(mx.nd.array(images[mine])), mx.nd.array(labels[mine]))
        loss.backward()
        trainer.step(arguments.batch)
        total, seen = total + float(loss.sum().asscalar()), seen + len(mine)
    print(f"worker {store.rank}: epoch {epoch}: loss {total / seen!r}", flush=True)

weights = b"".join(parameter.data().asnumpy().tobytes() for parameter in net.collect_params().values())
right = net(mx.nd.array(images[is_test])).argmax(axis=1).asnumpy() == labels[is_test]
print(f"worker {store.rank}: right {right.mean():.4f}, weights {hashlib.sha256(weights).hexdigest()}", flush=True)
