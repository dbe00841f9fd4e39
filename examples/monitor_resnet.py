"""Margins of a ResNet with BatchNorm on CIFAR-10's cats and dogs, measured in eval mode, with and without weight decay.

    python examples/monitor_resnet.py [--out monitor_resnet] [--epochs 70] [--n 500] [--full] [--device cuda] [--quick]

The file of images is an .npz that the environment variable WIDEMARGIN_CIFAR10 names (docs/training.md). The network is
not homogeneous as a whole: BatchNorm's shifts and the branches stand in the way. It is homogeneous of degree 2 in the gain and
shift of its last BatchNorm and its head, which has no bias. By default a ResNet-8 on 500 images: about three minutes on one core.
"""

import argparse
import math
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import relu, softplus

from widemargin import InputError, plots
from widemargin.data import cifar_cats_dogs
from widemargin.monitor import MarginMonitor, Record, falls

BATCH = 50
MEASURED = 250  # images in a batch that is measured
DECAY = {"no weight decay": 0.0, "weight decay 0.0005": 5e-4}
COLOURS = dict(zip(DECAY, (plots.PLUS, plots.MINUS)))


class Block(nn.Module):
    """x + conv(relu(bn(conv(relu(bn(x)))))), with a 1 x 1 convolution on the first branch where the shape changes."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 or before != after else None

    def forward(self, x: Tensor) -> Tensor:
        h = relu(self.bn1(x))
        return (x if self.skip is None else self.skip(h)) + self.conv2(relu(self.bn2(self.conv1(h))))


class ResNet(nn.Module):
    """Three stages with `blocks` blocks each (6 blocks + 2 layers), and one output: positive for a dog."""

    def __init__(self, blocks: int = 1, width: int = 16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        widths = [width] + [width << stage for stage in range(3) for _ in range(blocks)]
        strides = [1 + (stage > 0 and block == 0) for stage in range(3) for block in range(blocks)]
        self.stages = nn.Sequential(*(Block(*shape) for shape in zip(widths, widths[1:], strides)))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(relu(self.norm(self.stages(self.stem(x)))).mean((2, 3)))[:, 0]


def images(n: int | None, split: str, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """(n, 3, 32, 32) with mean near 0 and variance near 1, and labels -1 (cat), 1 (dog)."""
    found = cifar_cats_dogs(n=n, split=split, seed=seed)
    X = torch.tensor(found.X.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2), dtype=torch.float32)
    return ((X - 0.47) / 0.25).to(device), torch.tensor(found.y, dtype=torch.float32).to(device)


def in_parts(X: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(X.split(MEASURED), y.split(MEASURED)))


def picture(runs: dict[str, list[Record]], title: str) -> Figure:
    figure = Figure(figsize=(13.2, 4.1), dpi=100, layout="constrained")
    smooth, errors, levels = axes = figure.subplots(1, 3)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=9)
        one.set_xlabel("epoch")
    for name, records in runs.items():
        on, off = ([r for r in records if r.name == part and r.step > 0] for part in ("train", "test"))
        epochs, colour = [r.step for r in on], COLOURS[name]
        values = [r.psi_normalized if r.fitted else math.nan for r in on]
        smooth.plot(epochs, values, color=colour, lw=1.7, marker=".", ms=4, label=name)
        errors.plot(epochs, [100 * r.error for r in on], color=colour, lw=1.2, ls=":")
        errors.plot([r.step for r in off], [100 * r.error for r in off], color=colour, lw=1.7, label=name)
        for part, style, label in ((on, "-", "training"), (off, "--", "test")):
            for level, width in ((0.1, 1.0), (0.5, 1.9)):
                value = [r.quantiles_normalized[level] for r in part]
                said = f"{label}, {name}" if level == 0.5 else None
                levels.plot([r.step for r in part], value, color=colour, lw=width, ls=style, label=said)
    smooth.axhline(0, color=plots.QUIET, lw=0.7)
    levels.axhline(0, color=plots.QUIET, lw=0.7)
    errors.set_ylim(-1, 1.25 * errors.dataLim.y1)
    smooth.set_title("psi / |w_hat|$^2$ of the training set, where psi > 0", loc="left", fontsize=10.5)
    errors.set_title("Error in %: test (solid), training (dotted)", loc="left", fontsize=10.5)
    levels.set_title("Margins / |w_hat|$^2$: median (thick), 10 % (thin)", loc="left", fontsize=10.5)
    low, high = levels.get_ylim()
    levels.set_ylim(top=high + 0.25 * (high - low))  # room for the legend
    smooth.legend(frameon=False, fontsize=8.5, loc="upper left")
    errors.legend(frameon=False, fontsize=8.5, loc="upper right")
    levels.legend(frameon=False, fontsize=8, loc="upper left", ncols=2, columnspacing=1, handlelength=1.6)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("monitor_resnet"), help="folder of records and picture")
    parser.add_argument("--n", type=int, default=500, help="training images [500]")
    parser.add_argument("--epochs", type=int, default=70, help="[70]")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage [16]")
    parser.add_argument("--blocks", type=int, default=1, help="blocks in each stage: 1 is ResNet-8, 2 is ResNet-14 [1]")
    parser.add_argument("--full", action="store_true", help="all 10,000 images and a ResNet-14; take a GPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--quick", action="store_true", help="100 images, width 4, 12 epochs")
    options = parser.parse_args()
    if options.quick:
        options.n, options.width, options.epochs = 100, 4, 12
    tested: int | None = min(options.n, 250)
    if options.full:
        options.n, options.blocks, tested = None, 2, None
    X, y = images(options.n, "train", options.seed, options.device)
    X_test, y_test = images(tested, "test", options.seed, options.device)
    runs: dict[str, list[Record]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        for label, decay in DECAY.items():
            task = progress.add_task(label, total=options.epochs)
            torch.manual_seed(options.seed)
            model = ResNet(options.blocks, options.width).to(options.device)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=decay)
            with MarginMonitor(model, "auto", loss="bce", out=options.out / label.replace(" ", "-")) as monitor:
                for epoch in range(options.epochs + 1):
                    monitor.measure(in_parts(X, y), "train", step=epoch)
                    monitor.measure(in_parts(X_test, y_test), "test", step=epoch)
                    if epoch == options.epochs:
                        break
                    for rows in torch.randperm(len(X)).to(X.device).split(BATCH):
                        loss = softplus(-y[rows] * model(X[rows])).mean()
                        optimiser.zero_grad()
                        loss.backward()
                        optimiser.step()
                    progress.advance(task)
            runs[label] = monitor.records
            found = monitor.homogeneous
    print(found)
    depth = 6 * options.blocks + 2
    table = Table(
        title=f"ResNet-{depth}, {len(X)} cats and dogs, {len(X_test)} for the test, SGD with momentum, eval mode"
    )
    for heading in (
        "",
        "error 0 at",
        "psi > 0 at",
        "psi/|w|^2 then",
        "at the end",
        "falls",
        "deepest",
        "last",
        "test error",
    ):
        table.add_column(heading, justify="right" if heading else "left")
    for label, records in runs.items():
        on = [r for r in records if r.name == "train"]
        fitted = next((r for r in on if r.fitted), None)
        fell = falls(on)
        table.add_row(
            label,
            next((str(r.step) for r in on if r.error == 0), "never"),
            str(fitted.step) if fitted else "never",
            f"{fitted.psi_normalized:.3g}" if fitted else "",
            f"{on[-1].psi_normalized:.3g}",
            f"{fell.count} of {fell.pairs}",
            f"{fell.deepest:.1%}",
            str(fell.last or ""),
            f"{records[-1].error:.1%}",
        )
    Console(width=120).print(table)
    target = options.out / "monitor_resnet.png"
    picture(runs, f"CIFAR-10 cats and dogs: ResNet-{depth} with BatchNorm, {len(X)} training images").savefig(target)
    print(f"records in {options.out}, picture in {target}")
    return 0


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
