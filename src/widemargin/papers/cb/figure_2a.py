"""CB, Section 7, drawn in Figure 2a: "The distribution of input variables is a mixture of k^2 uniform distributions on disks of
radius 1/(3k - 1) on a uniform 2-dimensional grid with step 3/(3k - 1)".

The law of the inputs, in the paper's reading and in that of the authors' code (CB-27, E-CB-10).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from widemargin.data import disk_centres, disks
from widemargin.papers.drawing import figure_of, tidy
from widemargin.papers.jobs import Job, Outcome, reproduction
from widemargin.papers.statistics import mean_error
from widemargin.papers.verdicts import NOT_INFORMATIVE, Verdict
from widemargin.plots import MINUS, PLUS

SIZES: dict[str, dict[str, Any]] = {"quick": {"k": 3, "n": 2000}, "paper": {"k": 3, "n": 2000}}


@reproduction(
    "cb-2a", paper="CB", quick=2, full=2, claims=("CB-27", "E-CB-10"),
    shows="Figure 2a: the distribution of the inputs on the two first coordinates",
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    size = SIZES[job.scale]
    k, n, d = size["k"], size["n"], 15
    code = disks(k=k, d=d, n=n, seed=job.seed, reading="code")
    text = disks(k=k, d=d - 1, n=n, seed=job.seed)
    gap = 1 / (3 * k - 1)
    planes = {"code": code.X[:, 1:3], "text": text.X[:, :2]}
    apart = min(_interclass(planes["code"], code.y), _interclass(planes["text"], text.y))
    largest = max(float(np.linalg.norm(code.X[:, 1:], axis=1).max()), float(np.linalg.norm(text.X, axis=1).max()))
    filled = {
        name: _radii(X, k) ** 2 for name, X in planes.items()
    }  # mean 1/2 if uniform by area, 1/3 if the radius is
    means = {name: mean_error(values) for name, values in filled.items()}
    verdicts = [
        Verdict(
            "Distance of the classes in the plane at least 1/(3k-1)",
            apart,
            f"Delta_2 >= 1/(3k-1) = {gap:.4g}",
            bool(apart >= gap * (1 - 1e-12)),
        ),
        Verdict(
            "Largest norm of the inputs at most sqrt(d)",
            largest,
            "R <= sqrt(d)",
            NOT_INFORMATIVE if largest <= math.sqrt(d - 1) else False,
            reason="coordinates lie in [-1/2, 1/2], so norms are at most sqrt(d)/2 whatever is drawn"
            if largest <= math.sqrt(d - 1)
            else "",
        ),
        Verdict(
            "The text's disks are filled uniformly: mean of (r/R)^2 is 1/2 within 4 standard errors",
            means["text"][0],
            "uniform distributions on disks",
            bool(abs(means["text"][0] - 0.5) <= 4 * means["text"][1]),
            means["text"][1],
        ),
        Verdict(
            "The code's disks are filled uniformly: mean of (r/R)^2 is 1/2 within 4 standard errors",
            means["code"][0],
            "uniform distributions on disks",
            bool(abs(means["code"][0] - 0.5) <= 4 * means["code"][1]),
            means["code"][1],
            "the code draws the radius uniformly, which gives 1/3 (E-CB-10)",
        ),
    ]
    figure = figure_of(7.2, 3.8)
    for axes, (name, X), y in zip(figure.subplots(1, 2), planes.items(), (code.y, text.y)):
        for sign, colour, mark in ((1, PLUS, "o"), (-1, MINUS, "^")):
            axes.scatter(*X[y == sign].T, s=5, c=colour, marker=mark, linewidths=0)
        axes.set_aspect("equal")
        axes.set_xlim(-0.55, 0.55)
        axes.set_ylim(-0.55, 0.55)
        axes.set_xlabel("$x_1$")
        axes.set_ylabel("$x_2$")
        axes.set_title(
            "as in the code: radius uniform" if name == "code" else "as in the text: area uniform", fontsize=10
        )
        tidy(axes)
    return Outcome(
        {"figure": figure},
        {"code_X": planes["code"], "code_y": code.y, "text_X": planes["text"], "text_y": text.y},
        size | {"d": d},
        verdicts,
        "Two readings of the same distribution; further coordinates are uniform on [-1/2, 1/2]. All other figures use "
        "the code's.",
    )


def _interclass(X: np.ndarray, y: np.ndarray) -> float:
    from scipy.spatial import cKDTree

    return float(cKDTree(X[y > 0]).query(X[y < 0])[0].min())


def _radii(X: np.ndarray, k: int) -> np.ndarray:
    """Distance of each point from its disk's centre over the radius of the disks."""
    return np.linalg.norm(X[:, None] - disk_centres(k), axis=2).min(1) * (3 * k - 1)
