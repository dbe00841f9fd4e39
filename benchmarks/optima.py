"""Certified optima of training with weight decay, beside what training reaches: one line for every data set, loss and decay.

    python benchmarks/optima.py [--rows moons iris ...] [--shares .1] [--device cuda] [--no-verify] [--seed 0]
    python benchmarks/optima.py --peers [--seconds 60] [--clock cpu] [--rows ...] [--json FILE]

Ours: the gap between the network and the proof, and the seconds. All data are standardised; share is weight_decay over the
largest decay. One thread on a CPU.

`--peers`: side by side in one run, with a time axis of every second from 1 to `--seconds`. Of each method the best network
until then is judged, by the same function: mean loss + wd sum_j |a_j| |v_j|, which is mean loss + (wd / 2) |weights|^2 at the
best scaling of the layers, so that nobody pays for unbalanced ones. Entries are objective / (our proved lower bound at the
end) - 1. Imports, a warm-up and the building of problems are not timed; `--clock cpu` counts processor seconds, for a machine
with other work.

- widemargin     `optima.f1` to tol 1e-6: its best network so far, which Ctrl-C would return
- Adam           PyTorch, width 200, ten starts trained at once, full batches; the best of the ten
- MLP            MLPClassifier or MLPRegressor of scikit-learn, width 200, lbfgs, start after start; its biases are not decayed
- pyscnn         the package, squared loss only: sampled gates, group norm, augmented Lagrangian; several numbers of gates, each
                 with the whole time for itself. It has no output bias, so it is given the best one: the least value is the same
- sampled gates  our own writing of that method, for both losses: a group lasso over the patterns of sampled Gaussian gates with
                 every neuron in the cone of its pattern, by FISTA with restarts in an augmented Lagrangian; several numbers of
                 gates, each with the whole time for itself

pyscnn is installed on first use, in an environment of its own under benchmarks/.venv (benchmarks/margins.py).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import WAIT
from sklearn import datasets

import margins as beside
from widemargin import optima
from widemargin.margins.engine import threads
from widemargin.optima import problem
from widemargin.optima.solver import Solver
from widemargin.types import Certificate, Dataset, extend

Arrays = tuple[np.ndarray, np.ndarray]
Curve = list[tuple[float, float]]  # (seconds, objective)


def of(load: Callable[..., Arrays], classes: tuple[int, int]) -> Arrays:
    X, y = load(return_X_y=True)
    keep = np.isin(y, classes)
    return X[keep], np.where(y[keep] == classes[1], 1.0, -1.0)


def plane() -> Arrays:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (10_000, 2))
    return X, np.where(X[:, 0] * X[:, 1] + 0.2 * rng.standard_normal(10_000) > 0, 1.0, -1.0)


def diabetes() -> Arrays:
    X, y = datasets.load_diabetes(return_X_y=True)
    return X, (y - y.mean()) / y.std()


def signs(X: np.ndarray, y: np.ndarray) -> Arrays:
    return X, np.where(y > 0, 1.0, -1.0)


SETS: dict[str, Callable[[], Arrays]] = {
    "moons": lambda: signs(*datasets.make_moons(200, noise=0.25, random_state=0)),
    "iris": lambda: of(datasets.load_iris, (1, 2)),
    "wine": lambda: of(datasets.load_wine, (0, 1)),
    "cancer": lambda: signs(*datasets.load_breast_cancer(return_X_y=True)),
    "noisy": lambda: signs(*datasets.make_classification(400, 8, n_informative=5, flip_y=0.1, random_state=3)),
    "plane": plane,
    "diabetes": diabetes,
    "digits": lambda: of(datasets.load_digits, (3, 8)),
}


@dataclass(frozen=True)
class Row:
    data: str
    loss: str
    share: float
    goal: float
    seconds: float
    gpu: bool = False


ROWS = [
    *(
        Row(name, loss, share, 1e-3, 10)
        for name in ("iris", "wine", "moons")
        for loss in ("logistic", "squared")
        for share in (0.1, 0.02)
    ),
    Row("cancer", "logistic", 0.1, 3e-3, 60, True),
    Row("cancer", "logistic", 0.02, 3e-2, 60, True),
    Row("cancer", "squared", 0.1, 1e-2, 60, True),
    Row("cancer", "squared", 0.02, 0.1, 60, True),
    Row("noisy", "logistic", 0.1, 3e-3, 60, True),
    Row("noisy", "logistic", 0.02, 3e-2, 60, True),
    Row("plane", "logistic", 0.05, 1e-3, 60),
    Row("diabetes", "squared", 0.1, 1e-2, 60),
    Row("digits", "logistic", 0.1, 2e-2, 60),
]


def standardised(name: str) -> Dataset:
    X, y = SETS[name]()
    size = X.std(axis=0)
    return Dataset((X - X.mean(axis=0)) / np.where(size > 0, size, 1.0), y, name=name)


# ---------------------------------------------------------------- peers


@dataclass(frozen=True)
class Task:
    """What every method is given: points with a coordinate 1, so that biases of neurons are decayed; the output bias is free."""

    data: Dataset
    X: np.ndarray  # (n, d + 1)
    loss: str
    decay: float
    seconds: float
    clock: Callable[[], float]
    seed: int

    def fit(self, t: np.ndarray) -> np.ndarray:
        """(n,) losses at outputs t."""
        y = self.data.y
        return 0.5 * (t - y) ** 2 if self.loss == "squared" else np.logaddexp(0, -y * t)

    def judge(self, W: np.ndarray, a: np.ndarray, b: float) -> float:
        """The objective of x -> sum_j a_j relu(W_j . x) + b."""
        t = np.maximum(self.X @ W.T, 0) @ a + b
        return float(self.fit(t).mean() + self.decay * np.abs(a) @ np.linalg.norm(W, axis=1))


class Watched(Solver):
    """The solver, with a note of every network that becomes its best one, which Ctrl-C would return.

    `progress` is called after a round, when that network has been priced, and may be seconds later.
    """

    note: Callable[[float], None]

    def keep(self) -> None:
        super().keep()
        self.note(self.shown()[1])


def ours(task: Task) -> tuple[Curve, Certificate, float]:
    """The curve, the certificate, and the seconds until `progress` told a network other than the constant."""
    small = np.random.default_rng(0).standard_normal((12, task.data.d))
    optima.f1(Dataset(small, np.sign(small[:, 0])), loss=task.loss, weight_decay=0.1, time_limit=5, bias=True)
    curve: Curve = []
    told: list[float] = []
    began = task.clock()
    limit = task.seconds * (WAIT if task.clock is time.process_time else 1.0)
    entered = problem.enter(task.data, task.loss, task.decay, True, "free", None, 1e-6, limit)
    with threads(1):
        solver = Watched(entered, 1e-6, task.seed, "cpu", lambda *_: told.append(task.clock() - began))
        solver.note = lambda value: curve.append((task.clock() - began, value))
        found = solver.run()
    curve.append((task.clock() - began, found.upper))
    return curve, found, (told[1:] or [task.clock() - began])[0]


def adam(task: Task, width: int = 200, starts: int = 10) -> Curve:
    """Networks that are trained side by side. Their own objective has the weights as they are; judged they are balanced."""
    torch.manual_seed(task.seed)
    X, y = torch.tensor(task.X), torch.tensor(task.data.y)
    W = (torch.randn(starts, X.shape[1], width, dtype=torch.float64) / task.data.d**0.5).requires_grad_()
    a = (torch.randn(starts, width, 1, dtype=torch.float64) / width**0.5).requires_grad_()
    c = torch.zeros(starts, 1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([W, a, c], lr=1e-2)
    curve: Curve = []
    began, step = task.clock(), 0
    while task.clock() - began < task.seconds:
        t = (torch.relu(X @ W) @ a).squeeze(2) + c  # (starts, n)
        fit = 0.5 * (t - y) ** 2 if task.loss == "squared" else torch.nn.functional.softplus(-y * t)
        means = fit.mean(1)
        objective = means + task.decay / 2 * ((W**2).sum((1, 2)) + (a**2).sum((1, 2)))
        if step % 20 == 0:
            with torch.no_grad():
                norms = (torch.linalg.vector_norm(W, dim=1) * a[:, :, 0].abs()).sum(1)
                curve.append((task.clock() - began, float((means + task.decay * norms).min())))
        optimiser.zero_grad()
        objective.sum().backward()
        optimiser.step()
        step += 1
        if step % 1000 == 0:
            for group in optimiser.param_groups:
                group["lr"] *= 0.7
    return curve


def multilayer(task: Task) -> Curve:
    """scikit-learn's network, one start after the other."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    kind = MLPRegressor if task.loss == "squared" else MLPClassifier
    curve: Curve = []
    began, start = task.clock(), task.seed
    while task.clock() - began < task.seconds:
        model = kind(
            hidden_layer_sizes=(200,), solver="lbfgs", alpha=task.decay * task.data.n, max_iter=5000, random_state=start
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(task.data.X, task.data.y)
        (W, a), (b, c) = model.coefs_, model.intercepts_
        curve.append((task.clock() - began, task.judge(np.hstack([W.T, b[:, None]]), a.ravel(), float(c[0]))))
        start += 1
    return [(s, v) for s, v in curve if s <= task.seconds]


def gates(task: Task, count: int, checks: Sequence[float]) -> Curve:
    """The convex program over the patterns of `count` sampled gates, and its network at the seconds `checks`."""
    X, y, (n, D) = task.X, task.data.y, task.X.shape
    P = np.unique(X @ np.random.default_rng(task.seed).standard_normal((D, count)) > 0, axis=1)
    P = P[:, P.any(axis=0)].astype(np.float64)  # (n, K)
    K = P.shape[1]
    P, sign = np.hstack([P, P]), np.repeat([1.0, -1.0], K)  # a neuron of either sign for each pattern
    A = 2 * P - 1

    def slopes(t: np.ndarray) -> np.ndarray:
        return (t - y) / n if task.loss == "squared" else -y / (1 + np.exp(np.clip(y * t, -700, 700))) / n

    # The largest curvature, by the power method on the design, with a column for the output bias.
    v, c, size = np.ones((2 * K, D)), 1.0, 1.0
    for _ in range(30):
        g = ((X @ v.T) * P) @ sign + c
        v, c = (P * g[:, None]).T @ X * sign[:, None], float(g.sum())
        size = float(np.sqrt((v**2).sum() + c * c))
        v, c = v / size, c / size
    curvature = size / n * (1.0 if task.loss == "squared" else 0.25)
    rho = curvature / float(np.linalg.norm(X, 2)) ** 2
    step = 1 / (1.05 * (curvature + rho * float(np.linalg.norm(X, 2)) ** 2))
    mu = np.zeros((n, 2 * K))  # multipliers of A_k X v_k >= 0

    def proximal(V: np.ndarray, c: float) -> tuple[np.ndarray, float]:
        Z = X @ V.T  # (n, 2 K)
        g = slopes((Z * P) @ sign + c)
        G = P * g[:, None] * sign - A * np.maximum(mu - rho * A * Z, 0)
        new = V - step * (G.T @ X)
        size = np.linalg.norm(new, axis=1, keepdims=True)
        return new * np.maximum(0, 1 - step * task.decay / np.maximum(size, 1e-300)), c - step * float(g.sum())

    curve: Curve = []
    U, b = np.zeros((2 * K, D)), 0.0
    V, c, k, steps = U, b, 1.0, 0
    began, pending = task.clock(), list(checks)
    while pending:
        if task.clock() - began >= pending[0]:
            curve.append((float(pending.pop(0)), task.judge(U, sign, b)))
        new, b_new = proximal(V, c)
        if k > 1 and float(((V - new) * (new - U)).sum()) + (c - b_new) * (b_new - b) > 0:
            k = 1.0  # the momentum points uphill: begin again
            new, b_new = proximal(U, b)
        after = (1 + np.sqrt(1 + 4 * k * k)) / 2
        V, c = new + (k - 1) / after * (new - U), b_new + (k - 1) / after * (b_new - b)
        U, b, k, steps = new, b_new, after, steps + 1
        if steps % 200 == 0:
            mu, V, c, k = np.maximum(mu - rho * A * (X @ U.T), 0), U, b, 1.0
    return curve


def pyscnn(task: Task, best: float, python: Path, sizes: Sequence[int]) -> Curve:
    """The package, with the output bias `best` taken off the targets."""
    curve: Curve = []
    args = argparse.Namespace(threads=1, clock="cpu" if task.clock is time.process_time else "wall")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "data.npz"
        np.savez(source, X=task.X, y=task.data.y - best)
        for size in sizes:
            setting = {"gates": size, "lam": task.decay, "solver": "al", "tol": 1e-6}
            saved = beside.execute(python, "pyscnn", setting, source, task.seconds, args)
            if isinstance(saved, str):
                print(f"  . pyscnn, {size} gates: {saved}", flush=True)
                break  # more gates take longer
            curve.append((float(saved["seconds"][0]), task.judge(saved["W"], saved["a"], best)))
    return curve


def at(curve: Curve, second: float) -> float:
    return min([np.inf, *(value for s, value in curve if s <= second)])


def compare(row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """All methods on one row: a table, and at which seconds somebody is below our network."""
    data = standardised(row.data)
    decay = row.share * optima.largest_decay(data, loss=row.loss, bias=True).upper
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    task = Task(data, extend(data.X, bias=True), row.loss, decay, args.seconds, clock, args.seed)
    seconds = list(range(1, round(args.seconds) + 1))
    mine, found, told = ours(task)
    shown = [s for s in (1, 2, 5, 10, 20, 60) if s <= args.seconds]
    curves = {"Adam": adam(task), "MLP": multilayer(task)}
    sampled = [gates(task, count, shown) for count in args.gates]
    curves["sampled gates"] = [point for curve in sampled for point in curve]
    if row.loss == "squared" and args.pyscnn is not None:
        curves["pyscnn"] = pyscnn(task, float(found.extra["offset"]), args.pyscnn, args.gates)
    lower = found.lower
    print(
        f"\n{row.data}, {row.loss}, share {row.share:g}: best objective in [{lower:.7g}, {found.upper:.7g}], {found.status} "
        f"after {mine[-1][0]:.1f} s; above the proved bound after ..."
    )
    print(f"  {'':15}" + "".join(f"{f'{s} s':>10}" for s in shown))
    for title, curve in {"widemargin": mine, **curves}.items():
        cells = (at(curve, s) / lower - 1 for s in shown)
        print(f"  {title:15}" + "".join(f"{'-' if np.isinf(v) else f'{v:.1e}':>10}" for v in cells))
    lost = {
        title: [(s, at(mine, s) / at(curve, s) - 1) for s in seconds if at(curve, s) < at(mine, s)]
        for title, curve in curves.items()
    }
    said = "; ".join(
        f"{title} is lower at {spans([s for s, _ in some])} s, by at most {max(v for _, v in some):.1e}"
        for title, some in lost.items()
        if some
    )
    print(f"  our network is at or below every other at every second: {f'NO, {said}' if said else 'yes'}", flush=True)
    first = next((s for s, v in mine if v < mine[0][1]), mine[-1][0])
    print(f"  our first network is there after {first:.2f} s, and told after {told:.2f} s", flush=True)
    if args.verbose:
        print("  . ours: " + ", ".join(f"{s:.2f} s {v / lower - 1:.1e}" for s, v in mine[:40]))
    return {"row": [row.data, row.loss, row.share], "lower": lower, "upper": found.upper, "status": found.status,
            "curves": {"widemargin": mine, **curves}}  # fmt: skip


def spans(seconds: Sequence[int]) -> str:
    """1-3, 7."""
    parts: list[list[int]] = []
    for s in seconds:
        if parts and s == parts[-1][-1] + 1:
            parts[-1].append(s)
        else:
            parts.append([s])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)


def line(row: Row, args: argparse.Namespace) -> str:
    data = standardised(row.data)
    decay = row.share * optima.largest_decay(data, loss=row.loss, bias=True).upper
    began = time.perf_counter()
    found = optima.f1(
        data, loss=row.loss, weight_decay=decay, time_limit=row.seconds, seed=args.seed, device=args.device, bias=True
    )
    seconds, gap = time.perf_counter() - began, found.upper / found.lower - 1
    said = "yes" if gap <= row.goal and seconds <= 1.1 * row.seconds + 0.5 else "NO"
    out = f"{row.data:9} {row.loss:9} {row.share:<5g} [{found.lower:.6g}, {found.upper:.6g}] gap {gap:.2g} in {seconds:.1f} s"
    out += f", {found.status} ({found.bound}), {len(found.primal.mass) if found.primal else 0} neurons"
    if not args.no_verify:
        began = time.perf_counter()
        out += f", {found.verify(data).answer} in {time.perf_counter() - began:.1f} s"
    out += f"  [goal: {row.goal:g} in {row.seconds:g} s]  {said}"
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(SETS))
    parser.add_argument("--losses", nargs="+", choices=("logistic", "squared"))
    parser.add_argument("--shares", nargs="+", type=float)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--peers", action="store_true", help="all methods side by side, over time")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the time axis with --peers [60]")
    parser.add_argument("--gates", nargs="+", type=int, default=[100, 500, 2000], help="that the peers sample")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--json", type=Path, help="with --peers: write all curves to this file")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{args.device}, 1 thread, torch {torch.__version__}, {args.clock} seconds", flush=True)
    if args.peers:
        try:
            args.pyscnn = beside.environment("pyscnn", beside.HERE / ".venv")
        except (RuntimeError, OSError) as error:
            print(f"pyscnn: {error}")
            args.pyscnn = None
    record = []
    for row in ROWS:
        chosen = row.data in args.rows if args.rows else args.device != "cpu" or not row.gpu
        chosen &= row.loss in (args.losses or [row.loss]) and row.share in (args.shares or [row.share])
        if chosen and args.peers:
            record.append(compare(row, args))
            if args.json:
                args.json.write_text(json.dumps(record))
        elif chosen:
            print(line(row, args), flush=True)


if __name__ == "__main__":
    main()
