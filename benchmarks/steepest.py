"""The numbers of docs/steepest.md: what is left of the statement for Adam, momentum and decay; linear margins beside cvxpy; four
geometries and four norms.

    python benchmarks/steepest.py [dips] [margins] [phases] [--picture FILE]

`dips`      a two-layer ReLU network (n = 40, d = 10, m = 60, exponential loss, float64): the largest fall of psi / N^2 below its
            best, once psi > 0, along a short and a long path, at three steps each
`margins`   `margins.linear` and `margins.multiclass_linear` in every norm, against cvxpy with Clarabel, in processor time
`phases`    one network under four geometries, its margin in four norms
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from widemargin import Dataset, flows, margins
from widemargin import data as datasets
from widemargin.flows import geometry, losses

# lengths of paths (lr times steps), and steps
PATHS = ((2.5, (2e-3, 1e-3, 5e-4)), (10.0, (1e-2, 5e-3, 2.5e-3)))


def trial(seed: int = 0, n: int = 40, d: int = 10) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.standard_normal((n, d)), np.sign(rng.standard_normal(n)), "trial")


def path(
    rule: Any, data: Dataset, length: float, norms: tuple[str, ...], m: int = 60, activation: str = "relu"
) -> np.ndarray:
    """psi and the norms (T, 1 + k) after every step."""
    net = flows.TwoLayer(data.d, m, activation=activation)
    problem = flows.pose(net, data, "exp")
    W = {name: torch.as_tensor(value) for name, value in net.init(1, 0).items()}
    state, rows = rule.init(problem, W), []
    for _ in range(round(length / rule.lr)):
        W, state = rule.step(problem, W, state)
        psi = losses.psi(problem.loss, problem.margins(W)).item()  # type: ignore[arg-type]
        w = {name: W[name] for name in net.homogeneous}
        rows.append([psi, *(geometry.size(w, norm).item() for norm in norms)])
    return np.array(rows)


def fall(psi: np.ndarray, size: np.ndarray, degree: int = 2) -> float:
    """How far psi / N^L falls below its best after psi > 0, as a share; NaN where it never is."""
    start = np.flatnonzero(psi > 0)
    if not len(start):
        return float("nan")
    f = psi[start[0] :] / size[start[0] :] ** degree
    return float((1 - f / np.maximum.accumulate(f)).max())


def dips() -> None:
    data = trial()
    signs: dict[str, Callable[[float], Any]] = {
        "sign descent": lambda lr: flows.SignDescent(lr),
        "sign descent, momentum 0.9": lambda lr: flows.SignDescent(lr, momentum=0.9),
        "Adam 0, 0.95": lambda lr: flows.AdamW(lr, 0.0, 0.95, 0.0, 0.0),
        "Adam 0.9, 0.95": lambda lr: flows.AdamW(lr, 0.9, 0.95, 0.0, 0.0),
        "Adam 0.9, 0.99": lambda lr: flows.AdamW(lr, 0.9, 0.99, 0.0, 0.0),
        "Adam 0.9, 0.999": lambda lr: flows.AdamW(lr, 0.9, 0.999, 0.0, 0.0),
        "Adam 0.9, 0.999, eps 1e-8": lambda lr: flows.AdamW(lr, 0.9, 0.999, 1e-8, 0.0),
        "sign descent, decay 0.5": lambda lr: flows.SignDescent(lr, weight_decay=0.5),
        "AdamW 0.9, 0.95, decay 0.5": lambda lr: flows.AdamW(lr, 0.9, 0.95, 0.0, 0.5),
    }
    polar: dict[str, Callable[[float], Any]] = {
        "spectral": lambda lr: flows.Spectral(lr),
        "Muon (momentum 0.95, 5 steps)": lambda lr: flows.Spectral(lr, 0.95, True, iterations=5),
    }
    for length, steps in PATHS:
        for ways, norm, factor in ((signs, "linf", 1), (polar, "spectral", 4)):
            print(
                f"largest fall of psi / N^2 after psi > 0, N {norm} | Euclidean; path of length {max(1, factor // 2) * length}"
            )
            print(f"{'':30}" + "".join(f"lr {factor * lr:<16g}" for lr in steps))
            for name, make in ways.items():
                cells = []
                for lr in steps:
                    found = path(make(factor * lr), data, max(1, factor // 2) * length, (norm, "l2"))
                    cells.append(f"{fall(found[:, 0], found[:, 1]):.1e} | {fall(found[:, 0], found[:, 2]):.1e}")
                print(f"{name:30}" + "".join(f"{cell:19}" for cell in cells), flush=True)


# ---------------------------------------------------------------- linear margins


def two_classes(n: int, d: int) -> Dataset:
    rng = np.random.default_rng(1)
    X, u = rng.standard_normal((n, d)), rng.standard_normal(d)
    return Dataset(X + 0.2 * np.sign(X @ u)[:, None] * u, np.sign(X @ u))


def classes(n: int, d: int, K: int) -> Dataset:
    rng = np.random.default_rng(2)
    y = np.arange(n) % K
    return Dataset(3.0 * rng.standard_normal((K, d))[y] + rng.standard_normal((n, d)), y)


def by_cvxpy(data: Dataset, norm: str, several: bool) -> float:
    import cvxpy as cp

    if several:
        y = data.y.astype(int)
        K = y.max() + 1
        A, t = cp.Variable((K, data.d)), cp.Variable()
        scores = data.X @ A.T
        own = cp.sum(cp.multiply(scores, np.eye(K)[y]), axis=1)
        gaps = [own[y != j] - scores[y != j, j] >= t for j in range(K)]
    else:
        A, t = cp.Variable(data.d), cp.Variable()
        gaps = [(data.X * data.y[:, None]) @ A >= t]
    sizes = {
        "l1": lambda: cp.sum(cp.abs(A)), "linf": lambda: cp.norm_inf(A), "max": lambda: cp.max(cp.abs(A)),
        "spectral": lambda: cp.sigma_max(A), "nuclear": lambda: cp.normNuc(A),
    }  # fmt: skip
    problem = cp.Problem(cp.Maximize(t), [sizes[norm]() <= 1, *gaps])
    problem.solve(solver="CLARABEL")
    return float(problem.value)


def compare() -> None:
    print("processor seconds: widemargin, its exact check, cvxpy (Clarabel); lower bound; cvxpy's difference to it")
    cases = [(two_classes(n, d), norm, False) for n, d in ((3000, 20), (20_000, 50)) for norm in ("l1", "linf")]
    cases += [(classes(3000, 20, 5), norm, True) for norm in ("max", "l1", "spectral", "nuclear")]
    digits = datasets.load("digits", multiclass=True)  # too many pairs for cvxpy's cones in a few minutes
    cases += [(digits, norm, True) for norm in ("max", "l1", "spectral", "nuclear")]
    for data, norm, several in cases:
        begun = time.process_time()
        cert = (margins.multiclass_linear if several else margins.linear)(data, norm=norm, bias=data is digits)
        ours = time.process_time() - begun
        begun = time.process_time()
        assert cert.verify(data).ok
        check = time.process_time() - begun
        begun, value = time.process_time(), float("nan")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if data is not digits:
                    value = by_cvxpy(data, norm, several)
            except Exception as error:  # a solver that gives up is a result too
                print(f"  cvxpy: {type(error).__name__}: {str(error)[:80]}")
        theirs = time.process_time() - begun
        print(
            f"n {data.n:6} d {data.d:3} {norm:9} {ours:7.2f} {check:7.2f} {theirs:8.2f}   {cert.lower:.9g} gap {cert.gap:.1e}"
            f"   {value / cert.lower - 1:+.1e}",
            flush=True,
        )


# ---------------------------------------------------------------- phases


def phases(picture: str | None) -> None:
    data = trial(seed=3, n=16, d=6)
    ways = {
        "linf": flows.SignDescent(2e-3),
        "spectral": flows.Spectral(1e-2),
        "l2": flows.Steepest(2e-2, norm="l2"),
        "l1": flows.CoordinateDescent(2e-2),
    }
    lengths = {"linf": 2.0, "spectral": 10.0, "l2": 20.0, "l1": 120.0}
    table, curves = {}, {}
    for own, rule in ways.items():
        found = path(
            rule, data, lengths[own], tuple(ways), m=40, activation="srelu"
        )  # inner weights, degree 2; at kinks l1 would stop
        values = found[:, :1] / found[:, 1:] ** 2
        table[own], curves[own] = values[-1], values
    print("psi / N(w)^2 at the end: rows are the geometry that trained, columns the norm N")
    print(f"{'':10}" + "".join(f"{norm:>12}" for norm in ways))
    for own, row in table.items():
        print(f"{own:10}" + "".join(f"{value:12.4g}" for value in row))
    for k, norm in enumerate(ways):
        best = max(table, key=lambda own: table[own][k])
        print(f"largest in {norm}: {best}" + (", its own" if best == norm else ", NOT its own"))
    if picture is not None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt

        figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), constrained_layout=True)
        for k, (norm, axis) in enumerate(zip(ways, axes)):
            for own, values in curves.items():
                share = np.linspace(0, 1, len(values))
                axis.plot(share, values[:, k].clip(0), lw=2.2 if own == norm else 1.0, label=own)
            axis.set(title=f"margin in {norm}", xlabel="share of the path", ylabel="psi / N(w)^2")
        axes[0].legend(title="trained in", fontsize=8)
        figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["dips", "margins", "phases"])
    parser.add_argument("--picture")
    options = parser.parse_args()
    for what in options.what:
        {"dips": dips, "margins": compare, "phases": lambda: phases(options.picture)}[what]()


if __name__ == "__main__":
    main()
