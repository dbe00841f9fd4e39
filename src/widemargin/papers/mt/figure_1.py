"""MT, Section 3.4, of Figure 1: "From the visualization, it is clear that there is no linear separator for D. As Lemma D.1
shows, a relu network with four neurons can fit this relatively complicated decision boundary".

60 points of D in three dimensions, with certified margins (MT-31, MT-17).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin import margins
from widemargin.data import xor_with_noise
from widemargin.papers.drawing import figure_of
from widemargin.papers.jobs import Job, Outcome, reproduction
from widemargin.papers.verdicts import NOT_INFORMATIVE, UNDECIDED, Verdict
from widemargin.plots import MINUS, PLUS, QUIET
from widemargin.types import Dataset

from .distribution import L1_MARGIN, four_relus
from .judging import interval_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: dict[str, dict[str, Any]] = {"quick": {"n": 60}, "paper": {"n": 60}}


@reproduction(
    "mt-1", paper="MT", shows="Figure 1: 60 points of the distribution D in 3 dimensions", quick=2, full=3,
    claims=("MT-31", "MT-17"),
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    n = SIZES[job.scale]["n"]
    data = xor_with_noise(3, n, reject=False, seed=job.seed)

    def compute() -> Mapping[str, Any]:
        return {"linear": interval_of(margins.linear(data, bias=True)), "f1": interval_of(margins.f1(data, tol=1e-3))}

    measured = job.keep("margins", {"n": n, "sha256": data.sha256(), "linear": "with bias"}, compute)
    four = four_relus(3).margin(data)
    verdicts = judge_figure_1(measured, four)
    words = (
        f"{n} draws of D in d = 3, without the rejection of long points that only the proof needs: (x1, x2) on the"
        " corners of a square, x3 normal, y = x1 x2. Orange is negative and blue positive (red and blue in the"
        " paper)."
    )
    return Outcome(
        {"figure": _draw(data)},
        {"X": data.X, "y": data.y, **measured, "four_relus": np.array(four)},
        {"n": n, "d": 3, "data": data.name},
        verdicts,
        words,
    )


def judge_figure_1(measured: Mapping[str, np.ndarray], four: float) -> list[Verdict]:
    """`measured`: certified intervals of the linear margin and of the l1 margin; `four`: margin of the four ReLUs."""
    low, high = measured["linear"]
    return [
        Verdict(
            "no linear separator for D, with a bias neither: the certified linear margin of the points is 0 (below 1e-9)",
            float(high), "clear from the picture", True if high < 1e-9 else False if low > 0 else UNDECIDED,
            reason="" if high < 1e-9 or low > 0 else "the certified interval has 0 and positive numbers",
        ),
        Verdict(
            "four ReLUs fit D: their margin, evaluated, is sqrt(2)/4 (to 1e-12)",
            four, "Lemma D.1: sqrt(2)/4 = 0.3536", abs(four / L1_MARGIN - 1) < 1e-12,
        ),
        Verdict(
            "no network has a larger margin than sqrt(2)/4 on D (certified upper bound on these points over sqrt(2)/4)",
            float(measured["f1"][1] / L1_MARGIN), "not in the paper, which needs the lower bound only", NOT_INFORMATIVE,
            reason="a sample can confirm this but not refute it: a larger margin on these points says nothing of D",
        ),
    ]  # fmt: skip


def _draw(data: Dataset) -> Figure:
    figure = figure_of(5.2, 4.6)
    axes: Any = figure.add_subplot(projection="3d")
    for sign, colour, mark, name in ((1, PLUS, "o", "positive"), (-1, MINUS, "^", "negative")):
        X = data.X[data.y == sign]
        axes.scatter(X[:, 0], X[:, 1], X[:, 2], c=colour, marker=mark, s=32, depthshade=False, label=name, alpha=0.85)
    for at in ((1, 1), (-1, -1), (1, -1), (-1, 1)):  # the four lines the points lie on
        axes.plot(*([v, v] for v in at), [data.X[:, 2].min(), data.X[:, 2].max()], color=QUIET, lw=0.7)
    axes.set_xlabel("$x_1$")
    axes.set_ylabel("$x_2$")
    axes.set_zlabel("$x_3$")
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])
    axes.view_init(22, -62)
    axes.set_box_aspect(None, zoom=1.0)
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    return figure
