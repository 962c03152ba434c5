#!/usr/bin/env python3
"""Writes the model traces in apps/trace/traces, which mercury-replay and mercury-sim read.

    tools/make_traces.py [--check] [FOLDER]     --check: compare, write nothing, fail if one differs

Sizes come from the public definitions of the models. A layer's time is its share of the model's
arithmetic (multiply-adds, 2 FLOPs each) times a total that somebody measured, named in SOURCES: right
for the order of things and for the totals, not for what a single layer takes on a GPU, where
fully connected, normalisation and embedding layers are bound by memory. Rows stand in the order of
the forward pass, the first is the most urgent; a layer's time stands at its weight.
"""
import argparse
import pathlib
import sys

# Total forward and backward time of an iteration in ms, and where it is from.
_MEASURED = "measured: TensorFlow on one V100-class GPU, a public benchmark trace"
SOURCES = {
    "vgg16": (39.2, 86.8, f"batch 32; {_MEASURED}"),
    "vgg19": (46.4, 101.1, f"batch 32; {_MEASURED}"),
    "resnet50": (42.7, 64.3, f"batch 32; {_MEASURED}"),
    "alexnet": (16 / 3, 32 / 3, "batch 32; 16 ms in all on a GTX 1080 Ti with MXNet (PHub, "
                                "Table 6.1), split 1 to 2"),
    "mobilenet": (12.0, 18.0, "batch 32; estimated, not measured: twice its arithmetic's share of "
                              "ResNet-50's, as depthwise convolutions are bound by memory"),
    "bert-base": (71.5, 143.0, "batch 32, 128 tokens; estimated, not measured: 715 GFLOP at 10 "
                               "TFLOP/s (a V100's fp32 peak is 15.7), backward twice forward"),
}
TITLES = {
    "vgg16": "VGG-16, ImageNet with 1000 classes",
    "vgg19": "VGG-19, ImageNet with 1000 classes",
    "alexnet": "AlexNet (one tower), ImageNet with 1000 classes",
    "resnet50": "ResNet-50 v1.5, ImageNet with 1000 classes",
    "mobilenet": "MobileNet v1 (1.0, 224 pixels), ImageNet with 1000 classes",
    "bert-base": "BERT-Base uncased",
}
COLUMNS = "layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority"


class Model:
    """Tensors in the order of the forward pass: (layer, name, elements, FLOPs of one sample)."""

    def __init__(self):
        self.rows = []
        self.layers = 0

    def layer(self, *tensors):
        self.rows += [(self.layers, name, numel, flops) for name, numel, flops in tensors]
        self.layers += 1

    def affine(self, name, weight, bias, positions, more_flops=0):
        """A convolution or fully connected layer applied at so many positions of a sample."""
        tensors = [(f"{name}.weight", weight, 2 * weight * positions + more_flops)]
        if bias:
            tensors.append((f"{name}.bias", bias, 0))
        self.layer(*tensors)

    def norm(self, name, channels):
        self.layer((f"{name}.weight", channels, 0), (f"{name}.bias", channels, 0))


def vgg(blocks):
    """`blocks`: convolutions in each of the five blocks, of 224, 112, 56, 28 and 14 pixels."""
    model, inputs, number = Model(), 3, 0
    for block, (channels, count) in enumerate(zip((64, 128, 256, 512, 512), blocks)):
        for _ in range(count):
            number += 1
            model.affine(f"conv{number}", 9 * inputs * channels, channels, (224 >> block) ** 2)
            inputs = channels
    model.affine("fc6", 512 * 7 * 7 * 4096, 4096, 1)
    model.affine("fc7", 4096 * 4096, 4096, 1)
    model.affine("fc8", 4096 * 1000, 1000, 1)
    return model


def alexnet():
    model = Model()
    for name, weight, bias, side in (("conv1", 3 * 64 * 121, 64, 55),
                                     ("conv2", 64 * 192 * 25, 192, 27),
                                     ("conv3", 192 * 384 * 9, 384, 13),
                                     ("conv4", 384 * 256 * 9, 256, 13),
                                     ("conv5", 256 * 256 * 9, 256, 13)):
        model.affine(name, weight, bias, side * side)
    model.affine("fc6", 256 * 6 * 6 * 4096, 4096, 1)
    model.affine("fc7", 4096 * 4096, 4096, 1)
    model.affine("fc8", 4096 * 1000, 1000, 1)
    return model


def resnet50():
    model = Model()

    def conv(block, number, weight, channels, side, downsample=False):
        names = ("downsample.0", "downsample.1") if downsample else (f"conv{number}", f"bn{number}")
        model.affine(block + names[0], weight, 0, side * side)
        model.norm(block + names[1], channels)

    conv("", 1, 3 * 64 * 49, 64, 112)
    inputs, side = 64, 56
    for stage, count in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for index in range(count):
            block = f"layer{stage + 1}.{index}."
            # The 3x3 convolution of a stage's first block halves the picture.
            after = side // 2 if stage > 0 and index == 0 else side
            conv(block, 1, inputs * width, width, side)
            conv(block, 2, 9 * width * width, width, after)
            conv(block, 3, width * 4 * width, 4 * width, after)
            if index == 0:
                conv(block, 0, inputs * 4 * width, 4 * width, after, downsample=True)
            inputs, side = 4 * width, after
    model.affine("fc", 2048 * 1000, 1000, 1)
    return model


def mobilenet():
    model = Model()

    def conv(name, weight, channels, side):
        model.affine(f"{name}.conv", weight, 0, side * side)
        model.norm(f"{name}.bn", channels)

    conv("conv1", 3 * 32 * 9, 32, 112)
    inputs, side = 32, 112
    blocks = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5,
              (1024, 2), (1024, 1)]  # channels after it, stride
    for number, (outputs, stride) in enumerate(blocks, 1):
        side //= stride
        conv(f"block{number}.depthwise", 9 * inputs, inputs, side)
        conv(f"block{number}.pointwise", inputs * outputs, outputs, side)
        inputs = outputs
    model.affine("fc", 1024 * 1000, 1000, 1)
    return model


def bert_base():
    model, hidden, tokens = Model(), 768, 128
    for name, rows in (("word", 30522), ("position", 512), ("type", 2)):
        model.layer((f"embeddings.{name}.weight", rows * hidden, 0))
    model.norm("embeddings.norm", hidden)
    for index in range(12):
        block = f"encoder.{index}."
        for name in ("query", "key", "value"):
            model.affine(f"{block}attention.{name}", hidden * hidden, hidden, tokens)
        # Scores and their weighted sum have no parameters: their work stands at what follows them.
        scores = 2 * 2 * tokens * tokens * hidden
        model.affine(f"{block}attention.output", hidden * hidden, hidden, tokens, scores)
        model.norm(f"{block}attention.norm", hidden)
        model.affine(f"{block}intermediate", hidden * 4 * hidden, 4 * hidden, tokens)
        model.affine(f"{block}output", 4 * hidden * hidden, hidden, tokens)
        model.norm(f"{block}norm", hidden)
    model.affine("pooler", hidden * hidden, hidden, 1)
    return model


# What the definitions must add up to: tensors, parameters, MFLOP of a sample's forward pass.
MODELS = {
    "vgg16": (vgg((2, 2, 3, 3, 3)), 32, 138_357_544, 30_941),
    "vgg19": (vgg((2, 2, 4, 4, 4)), 38, 143_667_240, 39_264),
    "alexnet": (alexnet(), 16, 61_100_840, 1_428),
    "resnet50": (resnet50(), 161, 25_557_032, 8_178),
    "mobilenet": (mobilenet(), 83, 4_231_976, 1_137),
    "bert-base": (bert_base(), 199, 109_482_240, 22_348),
}


def shares(total_ns, weights):
    """`total_ns` cut in proportion to `weights`; the parts add up to it exactly."""
    parts, before, done, whole = [], 0, 0, sum(weights)
    for weight in weights:
        before += weight
        until = (2 * total_ns * before + whole) // (2 * whole)
        parts.append(until - done)
        done = until
    return parts


def trace(key):
    model, tensors, parameters, mflop = MODELS[key]
    flops = [row[3] for row in model.rows]
    found = (len(model.rows), sum(row[2] for row in model.rows), round(sum(flops) / 1e6))
    if found != (tensors, parameters, mflop):
        sys.exit(f"{key}: {found} tensors, parameters and MFLOP; expected "
                 f"{(tensors, parameters, mflop)}")
    forward_ms, backward_ms, source = SOURCES[key]
    forward = shares(round(forward_ms * 1e6), flops)
    backward = shares(round(backward_ms * 1e6), flops)
    lines = [f"# {TITLES[key]}: {tensors} tensors, {parameters} parameters.",
             f"# Forward {forward_ms:.1f} ms, backward {backward_ms:.1f} ms: {source}.",
             "# A layer's time is its share of the arithmetic. Made by tools/make_traces.py.",
             COLUMNS]
    for priority, (layer, name, numel, _) in enumerate(model.rows):
        lines.append(f"{layer},{name},{numel},f32,{forward[priority]},{backward[priority]},"
                     f"{priority}")
    return "\n".join(lines) + "\n"


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path,
                        default=here.parent / "apps" / "trace" / "traces")
    parser.add_argument("--check", action="store_true",
                        help="compare the files with what would be written; write nothing")
    arguments = parser.parse_args()
    differ = []
    for key in MODELS:
        path, text = arguments.folder / f"{key}.csv", trace(key)
        if arguments.check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                differ.append(str(path))
        else:
            arguments.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if differ:
        sys.exit("not what tools/make_traces.py writes: " + ", ".join(differ))


if __name__ == "__main__":
    main()
