"""MT, Appendix F, of Table 1: "The simple change of annealing weight decay can decrease the test error for this architecture".

A wide residual network without batch normalisation on CIFAR-10 and CIFAR-100, weight decay annealed or fixed (MT-34). The
paper leaves most settings open (E-MT-11); each choice is in the settings, with its reason in the words.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin.papers.drawing import panels
from widemargin.papers.jobs import Job, Outcome, reproduction
from widemargin.papers.statistics import over_trials
from widemargin.papers.verdicts import NOT_INFORMATIVE, UNDECIDED, Verdict
from widemargin.plots import MINUS, PLUS, QUIET
from widemargin.types import InputError

from . import wideresnet
from .judging import above, judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: dict[str, dict[str, Any]] = {
    "quick": {"train": 1000, "test": 1000, "epochs": 2, "depth": 10, "widen": 1, "batch": 50, "seeds": 1},
    "paper": {"train": 50000, "test": 10000, "epochs": 200, "depth": 16, "widen": 4, "batch": 128, "seeds": 1},
}


TABLE_1 = {  # percent
    "cifar10": {"annealed": 5.86, "fixed": 6.01},
    "cifar100": {"annealed": 26.22, "fixed": 27.00},
}


@reproduction(
    "mt-table1", paper="MT", shows="Table 1: a wide ResNet on CIFAR-10, weight decay annealed or fixed", quick=15, full=600,
    claims=("MT-34",), alone=True,
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    return _table_1(job, "cifar10")


@reproduction(
    "mt-table1-100", paper="MT", shows="Table 1 on CIFAR-100", quick=15, full=600, claims=("MT-34",), alone=True,
)  # fmt: skip
def reproduce_cifar100(job: Job) -> Outcome:
    return _table_1(job, "cifar100")


def _table_1(job: Job, dataset: str) -> Outcome:
    size = SIZES[job.scale]
    given = os.environ.get(wideresnet.VARIABLE[dataset])
    images = _images(dataset, size, job.seed) if given else None  # results that were kept can be drawn without them

    def arm(name: str, seed: int) -> Mapping[str, Any]:
        some = images or _images(dataset, size, job.seed)
        mark = wideresnet.digest(some)
        plan = wideresnet.Plan(
            name == "annealed", size["epochs"], size["depth"], size["widen"], size["batch"],
            dataset=dataset, seed=job.seed + seed, images=mark,
        )  # fmt: skip
        path = None if job.folder is None else job.folder / "kept" / f"{name}-{seed}-{job.scale}.pt"
        trained = wideresnet.train(plan, some, job.device, path, lambda text: job.say(f"{name}, seed {seed}: {text}"))
        return trained | {"images": np.array(mark)}

    each = {
        name: [
            job.keep(
                f"{name}-{seed}", {"arm": name, "seed": seed, "dataset": dataset, **size}, partial(arm, name, seed)
            )
            for seed in range(size["seeds"])
        ]
        for name in TABLE_1[dataset]
    }
    if images and any(str(run["images"]) != wideresnet.digest(images) for runs in each.values() for run in runs):
        raise InputError(f"the results kept in {job.folder} are those of other images; choose another folder")
    trained = {name: {key: np.stack([run[key] for run in runs]) for key in runs[0]} for name, runs in each.items()}
    seconds = float(np.median([part["seconds"] for part in trained.values()]))
    words = (
        f"A wide residual network of depth {size['depth']} and widen factor {size['widen']} (the paper does not state"
        f" its width) without batch normalisation on {size['train']} training and {size['test']} test images of"
        f" {dataset.upper().replace('CIFAR', 'CIFAR-')}, {size['epochs']} epochs of batches of {size['batch']},"
        " momentum 0.9, crops and mirror images."
        " Without normalisation the network is kept stable by the Fixup initialisation: every residual branch starts"
        " at zero and the first layers are scaled by the number of blocks, so that learning rate 0.1 works from the"
        " first step; gradients are clipped at norm 5. Both arms have the paper's learning rates; weight decay starts"
        f" at {2e-4 if dataset == 'cifar10' else 5e-4:.0e} in both, as the text of the paper has it (for CIFAR-10 the"
        " caption says 5e-4, E-MT-12). The test error is that"
        f" of the last epoch. Median time of an epoch here: {seconds:.1f} s."
    )
    return Outcome(
        {"figure": _draw_table(trained, dataset)},
        {f"{name}_{key}": value for name, part in trained.items() for key, value in part.items()},
        {
            **size,
            "momentum": 0.9,
            "nesterov": True,
            "clip": wideresnet.CLIP,
            "initialisation": "Fixup",
            "dataset": dataset,
        },
        verdicts_table(trained, size["test"], dataset),
        words,
    )


def _images(dataset: str, size: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    images = wideresnet.shrink(wideresnet.cifar(dataset), size["train"], size["test"], seed)
    if len(images["train_labels"]) < size["train"] or len(images["test_labels"]) < size["test"]:
        raise InputError(
            f"Table 1 needs {size['train']} training and {size['test']} test images, but the file of "
            f"{wideresnet.VARIABLE[dataset]} has fewer; give one with all of them"
        )
    return images


def verdicts_table(
    trained: Mapping[str, Mapping[str, np.ndarray]], tests: int, dataset: str = "cifar10"
) -> list[Verdict]:
    """`trained` by arm: error (seeds, epochs), a share."""
    paper = TABLE_1[dataset]
    last = {name: 100 * part["error"][:, -1] for name, part in trained.items()}
    gain = over_trials(np.mean, last["fixed"] - last["annealed"])
    seeds = len(last["fixed"])
    share = float(np.mean([value.mean() for value in last.values()])) / 100
    chance = 100 * math.sqrt(2 * share * (1 - share) / tests)  # of a difference of two test errors on this many images
    learned = all(part["error"][:, -1].mean() < 0.5 for part in trained.values())
    holds = above(*gain[1:]) if learned else UNDECIDED
    few = "one seed decides nothing" if seeds < 2 else "the interval does not decide"
    rows = [
        Verdict(
            f"{name} weight decay: test error in percent", float(last[name].mean()), f"{paper[name]} percent", NOT_INFORMATIVE,
            None if seeds < 2 else "95 percent in [{:.3g}, {:.3g}]".format(*over_trials(np.mean, last[name])[1:]),
            "the paper states neither width nor stabilisation (E-MT-11), so levels are not judged",
        )
        for name in trained
    ]  # fmt: skip
    return [
        judged(
            "annealing lowers the test error: fixed minus annealed, in points, over seeds, above 0",
            gain, f"{paper['fixed'] - paper['annealed']:.2f} points ({paper['fixed']} - {paper['annealed']})", holds,
            f"; {seeds} seeds; by chance of the test set alone one differs by {chance:.2f} points",
            "" if holds != UNDECIDED else few if learned else "the networks did not learn",
        ),
        *rows,
    ]  # fmt: skip


def _draw_table(trained: Mapping[str, Mapping[str, np.ndarray]], dataset: str) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, (left, right) = panels(9.6, 3.8, 2)
    for (name, part), colour, style in zip(trained.items(), (PLUS, MINUS), ("-", "--")):
        epochs = np.arange(1, part["error"].shape[1] + 1)
        for row in part["error"]:
            left.plot(epochs, 100 * row, style, color=colour, lw=1.4)
        left.plot(
            [],
            [],
            style,
            color=colour,
            label=f"{name}: {100 * part['error'][:, -1].mean():.2f} % (paper {TABLE_1[dataset][name]} %)",
        )
        right.step(epochs, part["decay"][0], style, where="mid", color=colour, lw=1.6, label=f"weight decay, {name}")
    right.step(epochs, 1e-3 * part["lr"][0], ":", where="mid", color=QUIET, lw=1.6, label="learning rate / 1000")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_yscale("log")  # the last points of a percent matter
    ticks = [t for t in (5, 6, 7, 8, 10, 15, 20, 30, 50, 90) if left.get_ylim()[0] <= t <= left.get_ylim()[1]]
    left.set_yticks(ticks, [str(t) for t in ticks])
    left.set_yticks([], minor=True)
    left.set_xlabel("epoch")
    left.set_ylabel("test error, percent")
    left.legend(frameon=False, fontsize=9)
    right.set_yscale("log")
    right.set_xlabel("epoch")
    right.legend(frameon=False, fontsize=9)
    return figure
