"""UH, before Lemma 3.2: "The following lemma shows that the reparameterized weights are updated via an appropriate mirror flow".

Gradient flow on (a, b) and the mirror flow on u = |a b|, side by side, with smaller and smaller steps (UH-9).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin import data, flows
from widemargin.papers.drawing import figure_of
from widemargin.papers.jobs import Arrays, Job, Outcome, reproduction
from widemargin.papers.statistics import mean_exponent, two_errors
from widemargin.papers.verdicts import Verdict, either, own
from widemargin.plots import INK, MINUS, PLUS, THIRD
from widemargin.types import Dataset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: dict[str, dict[str, Any]] = {
    "quick": {"seeds": 6, "width": 30, "time": 30.0, "steps": (0.8, 0.4, 0.2, 0.1, 0.05)},
    "paper": {"seeds": 8, "width": 200, "time": 30.0, "steps": (0.8, 0.4, 0.2, 0.1, 0.05, 0.025, 0.0125)},
}


@reproduction(
    "uh-mirror", paper="UH", quick=8, full=20, claims=("UH-9",),
    shows="Lemma 3.2: |a b| under gradient descent against the mirror flow, as the step goes to 0",
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    size = SIZES[job.scale]
    cube = data.parity(4, marginal="full")
    net = flows.Normalized(4, size["width"])
    measured: Arrays = {"steps": np.array(size["steps"])}
    moving, signs = [], []
    for lr in size["steps"]:
        count = round(size["time"] / lr)
        times = np.unique(np.linspace(0, count, 13).round().astype(int)).tolist()
        record = flows.Record(["weights"], times=times)
        both = [
            job.train(f"{name}-{lr}", cube, net, rule, stop=count, record=record, trials=size["seeds"])
            for name, rule in (("gd", flows.GD(lr)), ("mirror", flows.Mirror(lr, clock="mean")))
        ]
        u, v = (np.abs(run["W_a"] * run["W_b"]) for run in both)
        moving.append((np.abs(u - v) / v).max(axis=(0, 2)))
        product = both[0]["W_a"] * both[0]["W_b"]
        signs.append(bool((np.sign(product) == np.sign(product[0])).all()))
    measured["moving"], measured["signs"] = np.array(moving), np.array(signs)
    key = {name: size[name] for name in ("seeds", "width", "time", "steps")}
    measured |= job.keep("frozen", key, lambda: frozen_flows(cube, size, job.seed))
    settings = size | {
        "data": cube.name,
        "moving": "UH's normalized shallow network, (a, b, V) trained; largest relative difference of u over neurons and times",
        "frozen": "features frozen at their first values; products of L factors; Euler steps",
    }
    words = (
        "Gradient descent on (a, b) and the mirror descent on u = |a b| differ by their steps only: the largest relative "
        "difference of any u_j at any time falls in proportion to the step, with frozen and with moving features. It does not "
        "for three factors, whose mirror form has the factor u^(1 - 2/L), nor from an unbalanced start |a| != |b|."
    )
    return Outcome({"uh-mirror": draw_mirror(measured)}, measured, settings, judge_mirror(measured), words)


FROZEN = {
    "two": "L = 2, mirror form",
    "three": "L = 3, its own form",
    "three_plain": "L = 3, the form of L = 2",
    "unbalanced": "L = 2, |a| = 2|b| at the start",
}


def frozen_flows(cube: Dataset, size: Mapping[str, Any], seed: int) -> Arrays:
    """Largest relative difference (steps, B) of products of L factors and their mirror descents, features frozen (UH-9).

    d ln u = -L u^(1 - 2/L) d(risk)/du for L balanced factors; `plain` keeps the first value of that factor. Also how far
    a^2 - b^2 of the unbalanced start moves, relative to its first size.
    """
    m = size["width"]
    out: dict[str, list[list[float]]] = {name: [] for name in (*FROZEN, "drift")}
    for lr in size["steps"]:
        rows: dict[str, list[float]] = {name: [] for name in out}
        for trial in range(size["seeds"]):
            rng = np.random.default_rng([seed, trial])
            V = rng.standard_normal((m, cube.d))
            V /= np.linalg.norm(V, axis=1, keepdims=True)
            Z = cube.signs()[:, None] * rng.choice([-1.0, 1.0], m) * (cube.X @ V.T).clip(0)
            count = round(size["time"] / lr)
            balanced = {L: descend_product(Z, np.full((L, m), m ** (-1 / L)), lr, count) for L in (2, 3)}
            tilted = descend_product(
                Z, np.stack([np.full(m, 2 / math.sqrt(2 * m)), np.full(m, 1 / math.sqrt(2 * m))]), lr, count
            )
            power = {2: 0.0, 3: 1 / 3}
            for name, factors, L, plain in (
                ("two", balanced[2], 2, False),
                ("three", balanced[3], 3, False),
                ("three_plain", balanced[3], 3, True),
                ("unbalanced", tilted, 2, False),
            ):
                u = factors.prod(axis=1)  # (times, m)
                mirrored = descend_mirror(
                    Z, u[0], lr, count, L, 0.0 if plain else power[L], u[0] ** power[L] if plain else 1.0
                )
                rows[name].append(float((np.abs(u - mirrored) / mirrored).max()))
            square = tilted[:, 0] ** 2 - tilted[:, 1] ** 2
            rows["drift"].append(float((np.abs(square - square[0]) / square[0]).max()))
        for name, values in rows.items():
            out[name].append(values)
    return {name: np.array(values) for name, values in out.items()}


def pull(Z: np.ndarray, u: np.ndarray) -> np.ndarray:
    """-d(mean logistic risk)/du = mean_i z_i / (1 + exp(z_i . u)): (m,)."""
    return np.asarray((1 / (1 + np.exp(Z @ u))) @ Z / len(Z))


def descend_product(Z: np.ndarray, factors: np.ndarray, lr: float, count: int) -> np.ndarray:
    """Gradient descent on the factors (L, m) of u: all their values (count + 1, L, m)."""
    out = [factors]
    for _ in range(count):
        w = out[-1]
        others = np.stack([np.delete(w, k, axis=0).prod(axis=0) for k in range(len(w))])
        out.append(w + lr * pull(Z, w.prod(axis=0)) * others)
    return np.stack(out)


def descend_mirror(Z: np.ndarray, u: np.ndarray, lr: float, count: int, L: int, power: float, scale: Any) -> np.ndarray:
    """ln u <- ln u + lr L scale u^power (-d risk/du): (count + 1, m)."""
    out = [u]
    for _ in range(count):
        out.append(out[-1] * np.exp(lr * L * scale * out[-1] ** power * pull(Z, out[-1])))
    return np.stack(out)


def judge_mirror(measured: Arrays) -> list[Verdict]:
    """A difference that vanishes with the step has the exponent 1, one that stays 0: the cuts are 3/4 and 1/4."""
    steps, out = measured["steps"], []
    vanish = "vanishes with the step (exponent, 95% interval above 0.75)"
    for name, claim, says in (
        ("moving", f"moving features: the difference to the mirror form {vanish}", "equal along the flow"),
        ("two", f"frozen features: the difference to the mirror form {vanish}", "equal along the flow"),
        ("drift", f"an unbalanced start: the change of a^2 - b^2 {vanish}", "conserved along the flow"),
    ):
        power, half = mean_exponent(steps, measured[name])
        last = float(measured[name][-1].max())
        out.append(
            Verdict(
                claim, power, says, either(power - half > 0.75, power + half < 0.75), half,
                f"largest at the smallest step {last:.2g}",
            )
        )  # fmt: skip
    power, half = mean_exponent(steps, measured["three_plain"])
    out.append(
        Verdict(
            "three factors in the form of two: the difference stays (exponent, 95% interval below 0.25)",
            power, "eq. (3) fails for L != 2", either(power + half < 0.25, power - half > 0.25), half,
            f"difference {float(measured['three_plain'][-1].mean()):.2g}",
        )
    )  # fmt: skip
    power, half = mean_exponent(steps, measured["three"])
    out.append(
        Verdict(
            f"three factors, factor u^(1/3): the difference to the mirror form {vanish}",
            power, "-", own(power - half > 0.75), half, "our form, not the paper's",
        )
    )  # fmt: skip
    power, half = mean_exponent(steps, measured["unbalanced"])
    out.append(
        Verdict(
            "control, |a| = 2|b| at the start: the difference stays (exponent, 95% interval below 0.25)",
            power, "not claimed", own(power + half < 0.25), half, "shows that the tests above can fail",
        )
    )  # fmt: skip
    signs = bool(measured["signs"].all())
    out.append(
        Verdict(
            "signs of a_j b_j never change (1: none did)", float(signs), "never", own(signs),
            reason="a step multiplies a_j and b_j by one number in (0, 2) where steps and features are at most 1",
        )
    )  # fmt: skip
    return out


def draw_mirror(measured: Arrays) -> Figure:
    figure = figure_of(8.4, 4.2)
    axes = figure.subplots()
    steps = measured["steps"]
    styles = {
        "moving": (PLUS, "o-", PLUS),
        "two": (PLUS, "o--", "white"),
        "three": (THIRD, "^-", THIRD),
        "three_plain": (MINUS, "s-", MINUS),
        "unbalanced": (MINUS, "v--", "white"),
    }
    for name, (colour, style, inside) in styles.items():
        label = FROZEN.get(name, "L = 2, mirror form, features move")
        values = measured[name]
        axes.errorbar(
            steps,
            values.mean(1),
            two_errors(values),
            fmt=style,
            color=colour,
            markerfacecolor=inside,
            capsize=3,
            label=label,
        )
    guide = 0.5 * measured["two"].mean(1)[0] * steps / steps[0]
    axes.plot(steps, guide, ":", color=INK, lw=1, label="slope 1")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(steps, [f"{step:g}" for step in steps])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("step size")
    axes.set_ylabel(r"$\max_{t,j}\,|u_j - u_j^{mirror}|\,/\,u_j^{mirror}$")
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside right center")
    return figure
