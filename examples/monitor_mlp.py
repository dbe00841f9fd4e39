"""The margin of a network without biases goes on rising after its training error is 0, under four optimisers.

    python examples/monitor_mlp.py [--out monitor_mlp] [--epochs 300] [--n 1000] [--quick]

A ReLU network with two hidden layers on MNIST (the .npz file that the environment variable WIDEMARGIN_MNIST names), or on
scikit-learn's 8 x 8 digits. For each optimiser the records lie in a folder of their own, and a picture beside them.
Gradient flow never lowers psi / |w|^3 once psi > 0. These optimisers are not gradient flow: the table counts how often it fell.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from widemargin import InputError, plots
from widemargin.data.files import read_npz
from widemargin.data.real import several_digits
from widemargin.monitor import MarginMonitor, Record, falls

Pair = tuple[Tensor, Tensor]
BATCH = 50
OPTIMISERS = {
    "SGD": lambda w: torch.optim.SGD(w, lr=0.2),
    "SGD, momentum": lambda w: torch.optim.SGD(w, lr=0.02, momentum=0.9),
    "Adam": lambda w: torch.optim.Adam(w, lr=1e-3),
    "Adam, weight decay": lambda w: torch.optim.AdamW(w, lr=1e-3, weight_decay=0.1),
}
COLOURS = dict(zip(OPTIMISERS, (plots.PLUS, plots.INK, plots.MINUS, plots.THIRD)))
QUANTILES = {0.0: "smallest", 0.01: "1 %", 0.1: "10 %", 0.5: "median"}


def data(n: int, seed: int) -> tuple[Pair, Pair, str]:
    """Training and test set: rows of pixels in [0, 1] and labels 0, ..., 9."""
    path = os.environ.get("WIDEMARGIN_MNIST")
    rng = np.random.default_rng(seed)
    if path:
        arrays = read_npz(path, [f"{part}_{what}" for part in ("train", "test") for what in ("images", "labels")])
        rows = rng.permutation(len(arrays["train_images"]))[:n]
        X, y = arrays["train_images"][rows], arrays["train_labels"][rows]
        X_test, y_test, scale, name = arrays["test_images"], arrays["test_labels"], 255, "MNIST"
    else:
        whole = several_digits()
        rows = rng.permutation(len(whole.X))
        n = min(n, len(rows) * 2 // 3)
        X, y, X_test, y_test = whole.X[rows[:n]], whole.y[rows[:n]], whole.X[rows[n:]], whole.y[rows[n:]]
        scale, name = 1, "digits"

    def tensors(images: np.ndarray, labels: np.ndarray) -> Pair:
        return torch.tensor(images.reshape(len(images), -1) / scale, dtype=torch.float32), torch.tensor(labels).long()

    return tensors(X, y), tensors(X_test, y_test), name


def network(d: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(d, 256, bias=False), nn.Linear(256, 256, bias=False), nn.Linear(256, 10, bias=False)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def train(
    model: nn.Module, optimiser: torch.optim.Optimizer, monitor: MarginMonitor, train_set: Pair, test_set: Pair,
    epochs: int, seed: int, tick: Sequence[object],
) -> None:  # fmt: skip
    """Train for so many epochs; the training set is measured after each, the test set at times further and further apart."""
    X, y = train_set
    generator = torch.Generator().manual_seed(seed)
    next_test = 0.0
    for epoch in range(epochs + 1):
        monitor.measure(train_set, "train", step=epoch)
        if epoch >= next_test or epoch == epochs:
            monitor.measure(test_set, "test", step=epoch)
            next_test = max(epoch + 1, 1.08 * epoch)
        if epoch == epochs:
            break
        for rows in torch.randperm(len(X), generator=generator).to(X.device).split(BATCH):
            loss = cross_entropy(model(X[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        progress, task = tick
        progress.advance(task)  # type: ignore[attr-defined]


def picture(runs: dict[str, list[Record]], title: str) -> Figure:
    figure = Figure(figsize=(9.2, 6.2), dpi=100, layout="constrained")
    axes = figure.subplots(2, 2)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=9)
    (smooth, errors), (levels, path) = axes
    for name, records in runs.items():
        colour = COLOURS[name]
        on, off = ([r for r in records if r.name == part] for part in ("train", "test"))
        positive = [r for r in on if r.fitted]
        smooth.plot(
            [r.step for r in positive], [1000 * r.psi_normalized for r in positive], color=colour, lw=1.7, label=name
        )
        after = [r for r in on if r.step > 0]
        errors.plot([r.step for r in after], [100 * r.error for r in after], color=colour, lw=1, ls=":")
        after = [r for r in off if r.step > 0]
        errors.plot([r.step for r in after], [100 * r.error for r in after], color=colour, lw=1.7, label=name)
        tenth = {r.step: 1000 * r.quantiles_normalized[0.1] for r in on}
        path.plot([tenth[r.step] for r in after], [100 * r.error for r in after], color=colour, lw=1.3)
        path.plot(tenth[after[-1].step], 100 * after[-1].error, "o", color=colour, ms=7)
    first = next(iter(runs))
    shown = [r for r in runs[first] if r.name == "train" and r.step > 0]
    for (level, label), style in zip(QUANTILES.items(), ("-", "--", "-.", ":")):
        value = [1000 * r.quantiles_normalized[level] for r in shown]
        levels.plot([r.step for r in shown], value, color=COLOURS[first], ls=style, lw=1.6, label=label)
    levels.axhline(0, color=plots.QUIET, lw=0.7)
    errors.set_yscale("symlog", linthresh=0.1)
    errors.set_ylim(0, 100)
    errors.set_yticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
    path.set_yscale("log")
    ticks = [t for t in (2, 5, 10, 20, 50) if path.get_ylim()[0] <= t <= path.get_ylim()[1]]
    path.set_yticks(ticks, [str(t) for t in ticks])
    path.minorticks_off()
    # One bad epoch may send margins far down: the axes end where the lines leave what matters.
    smooth.set_ylim(top=1.3 * max(smooth.dataLim.y1, 1e-9))
    levels.set_ylim(bottom=-1.1 * levels.dataLim.y1)
    path.set_xlim(left=-0.6 * path.dataLim.x1)
    path.axvline(0, color=plots.QUIET, lw=0.7)
    for one in (errors, levels):
        one.set_xscale("log")
    for one, place in ((smooth, "upper left"), (errors, "lower left"), (levels, "lower right")):
        one.set_xlabel("epoch")
        one.legend(frameon=False, fontsize=8.5, loc=place)
        smooth.set_title("1000 psi / |w|$^3$ of the training set, where psi > 0", loc="left", fontsize=10.5)
    errors.set_title("Error in %: test (solid), training (dotted)", loc="left", fontsize=10.5)
    levels.set_title(f"1000 / |w|$^3$ times training margins ({first})", loc="left", fontsize=10.5)
    path.set_title("Test error in % against training margins, over time", loc="left", fontsize=10.5)
    path.set_xlabel("1000 / |w|$^3$ times 10 % quantile (dot: the end)")
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("monitor_mlp"), help="folder of records and picture [monitor_mlp]"
    )
    parser.add_argument("--n", type=int, default=1000, help="training images [1000]")
    parser.add_argument("--epochs", type=int, default=300, help="[300]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--quick", action="store_true", help="100 images, 100 epochs")
    options = parser.parse_args()
    if options.quick:
        options.n, options.epochs = 100, 100
    train_set, test_set, name = data(options.n, options.seed)
    train_set, test_set = (tuple(part.to(options.device) for part in pair) for pair in (train_set, test_set))
    runs: dict[str, list[Record]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        for label, make in OPTIMISERS.items():
            task = progress.add_task(label, total=options.epochs)
            model = network(train_set[0].shape[1], options.seed).to(options.device)
            folder = options.out / label.replace(", ", "-").replace(" ", "-").lower()
            with MarginMonitor(model, homogeneous="auto", out=folder) as monitor:
                tick = (progress, task)
                train(model, make(model.parameters()), monitor, train_set, test_set, options.epochs, options.seed, tick)
            runs[label] = monitor.records
            found = monitor.homogeneous
    print(found)
    table = Table(title=f"{name}, {len(train_set[0])} training images, {options.epochs} epochs")
    for heading in (
        "optimiser",
        "error 0 at",
        "psi > 0 at",
        "psi/|w|^3 then",
        "at the end",
        "falls",
        "deepest",
        "last",
        "test error",
    ):
        table.add_column(heading, justify="left" if heading == "optimiser" else "right")
    for label, records in runs.items():
        on = [r for r in records if r.name == "train"]
        zero = next((str(r.step) for r in on if r.error == 0), "never")
        fitted = next((r for r in on if r.fitted), None)
        fell = falls(on)
        tests = [r for r in records if r.name == "test"]
        table.add_row(
            label,
            zero,
            str(fitted.step) if fitted else "never",
            f"{fitted.psi_normalized:.2e}" if fitted else "",
            f"{on[-1].psi_normalized:.2e}",
            f"{fell.count} of {fell.pairs}",
            f"{fell.deepest:.1%}",
            str(fell.last or ""),
            f"{tests[-1].error:.2%}",
        )
    Console(width=120).print(table)
    target = options.out / "monitor_mlp.png"
    picture(runs, f"{name}: a ReLU network with 3 layers and no biases, {len(train_set[0])} training images").savefig(
        target
    )
    print(f"records in {options.out}, picture in {target}")
    return 0


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
