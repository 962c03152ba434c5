"""The models of Table II as trace files, with the computing times of the paper's GPUs.

mercury-sim's shipped traces are ImageNet models (1000 classes) on a V100-class GPU, which stand in
for the GTX 3090 of the paper's section V. Its section VI trains with 101 classes of Caltech-101 on
a GTX 1080 Ti; the paper does not print how long a layer takes there. The totals below do, from
where they are named; a layer's time is its share of the arithmetic, as in the shipped ones.
"""
import sys

from lab import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import make_traces  # noqa: E402

PAPER_MODELS = ("vgg16", "vgg19", "alexnet", "resnet50", "bert-base")
TITLES = {"vgg16": "VGG-16", "vgg19": "VGG-19", "alexnet": "AlexNet", "resnet50": "ResNet-50",
          "mobilenet": "MobileNet", "bert-base": "BERT-Base", "vgg16-cifar": "VGG-16 (Cifar10)"}
CLASSES = 101

# Forward and backward of an iteration on a GTX 1080 Ti, ms. PHub (SoCC 2018), Table 6.1, measured
# with MXNet: VGG-19 268 and ResNet-50 161 with batches of 32, AlexNet 16 with one of 32.
GTX_1080_TI_MS = {
    "vgg19": 268,
    "resnet50": 161,
    "alexnet": 16 * 512 / 32,  # the paper's batch is 512
    "vgg16": 268 * 30.94 / 39.26,  # as VGG-19, by their arithmetic
    "vgg16-cifar": 268 * 30.94 / 39.26 / 49 * 128 / 32,  # 32 x 32 pixels, a batch of 128
    "mobilenet": 44.8,  # estimated, as the shipped trace's: ResNet-50's by their arithmetic, twice
    "bert-base": 214.5,  # estimated: the shipped trace's
}
# "a local iteration only takes 0.580 s in a NVIDIA GTX 1080Ti" (section II.A), which PHub's
# measurement contradicts; the paper's Fig. 15 needs it, see docs/papers.md.
PRINTED_VGG16_MS = 580


def rows_of(model):
    """(layer, name, elements, FLOPs of one sample) of the model that Table II counts."""
    cifar = model == "vgg16-cifar"
    rows = list(make_traces.MODELS["vgg16" if cifar else model][0].rows)
    if model == "bert-base":
        return rows
    classes = 10 if cifar else CLASSES
    if cifar:  # a 49th of the pixels everywhere, so that one is left before fc6
        rows = [(layer, name, numel, flops / 49 if name.startswith("conv") else flops)
                for layer, name, numel, flops in rows]
        rows = [(layer, name, numel // 49, flops / 49) if name == "fc6.weight" else
                (layer, name, numel, flops) for layer, name, numel, flops in rows]
    for index in (-2, -1):  # the classifier's weight and bias
        layer, name, numel, flops = rows[index]
        rows[index] = (layer, name, numel // 1000 * classes, flops / 1000 * classes)
    return rows


def parameters(model):
    return sum(row[2] for row in rows_of(model))


def table2_trace(lab, model, total_ms=None, dense=1):
    """Writes the trace of a Table II model that computes so long, by default as the GTX 1080 Ti;
    the file's path. `dense`: by how much the backward pass of fully connected layers is longer than their share.
    """
    total_ms = total_ms or GTX_1080_TI_MS[model]
    rows = rows_of(model)
    # Whole numbers, as the shares are cut with: a thousandth of a FLOP is exact enough.
    weights = [round(1000 * flops) for *_, flops in rows]
    forward = make_traces.shares(round(total_ms / 3 * 1e6), weights)
    backward = make_traces.shares(round(2 * total_ms / 3 * 1e6), [
        weight * (dense if name.startswith("fc") else 1) for weight, (_, name, *_) in zip(weights, rows)])
    lines = [f"# {TITLES[model]} of Table II: {parameters(model)} parameters; {total_ms:.1f} ms.",
             make_traces.COLUMNS]
    for priority, (layer, name, numel, _) in enumerate(rows):
        lines.append(f"{layer},{name},{numel},f32,{forward[priority]},{backward[priority]},"
                     f"{priority}")
    path = lab.out / "traces" / f"{model}-{total_ms:.0f}ms{f'-dense{dense}' if dense > 1 else ''}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path
