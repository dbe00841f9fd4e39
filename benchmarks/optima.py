"""Certified optima of training with weight decay, beside what training reaches: one line for every data set, loss and decay.

    python benchmarks/optima.py [--rows moons iris ...] [--device cuda] [--peers] [--no-verify] [--seed 0]

Ours: the gap between the network and the proof, and the seconds. `--peers`: Adam on width 200 with ten starts at once (PyTorch)
in the time that we had, and MLPClassifier or MLPRegressor of scikit-learn (lbfgs, width 200); their objective, mean
loss + (wd / 2) |weights|^2, as a distance to our proved lower bound. All data are standardised; share is weight_decay over the
largest decay. One thread on a CPU.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn import datasets

from widemargin import optima
from widemargin.types import Dataset

Arrays = tuple[np.ndarray, np.ndarray]


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


def adam(
    data: Dataset, loss: str, decay: float, seconds: float, seed: int, width: int = 200, starts: int = 10
) -> float:
    """The best objective of `starts` networks that are trained side by side; the output bias is not decayed."""
    torch.manual_seed(seed)
    X, y = torch.tensor(data.X), torch.tensor(data.y)
    W = (torch.randn(starts, data.d, width, dtype=torch.float64) / data.d**0.5).requires_grad_()
    b, c = (
        torch.zeros(starts, 1, width, dtype=torch.float64, requires_grad=True),
        torch.zeros(starts, 1, dtype=torch.float64, requires_grad=True),
    )
    a = (torch.randn(starts, width, 1, dtype=torch.float64) / width**0.5).requires_grad_()
    optimiser = torch.optim.Adam([W, b, a, c], lr=1e-2)
    best, until, step = np.inf, time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        t = (torch.relu(X @ W + b) @ a).squeeze(2) + c  # (starts, n)
        fit = 0.5 * (t - y) ** 2 if loss == "squared" else torch.nn.functional.softplus(-y * t)
        objective = fit.mean(1) + decay / 2 * ((W**2).sum((1, 2)) + (b**2).sum((1, 2)) + (a**2).sum((1, 2)))
        best = min(best, float(objective.detach().min()))
        optimiser.zero_grad()
        objective.sum().backward()
        optimiser.step()
        step += 1
        if step % 1000 == 0:
            for group in optimiser.param_groups:
                group["lr"] *= 0.7
    return best


def multilayer(data: Dataset, loss: str, decay: float, seed: int) -> float:
    """scikit-learn's network, its weights taken out: its own penalty leaves the biases alone, ours does not."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    kind = MLPRegressor if loss == "squared" else MLPClassifier
    model = kind((200,), solver="lbfgs", alpha=decay * data.n, max_iter=5000, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data.X, data.y)
    (W, a), (b, c) = model.coefs_, model.intercepts_
    t = (np.maximum(data.X @ W + b, 0) @ a).ravel() + c
    fit = 0.5 * (t - data.y) ** 2 if loss == "squared" else np.logaddexp(0, -data.y * t)
    return float(fit.mean() + decay / 2 * ((W**2).sum() + (a**2).sum() + (b**2).sum()))


def line(row: Row, args: argparse.Namespace) -> str:
    data = standardised(row.data)
    decay = row.share * optima.largest_decay(data, loss=row.loss).upper
    began = time.perf_counter()
    found = optima.f1(
        data, loss=row.loss, weight_decay=decay, time_limit=row.seconds, seed=args.seed, device=args.device
    )
    seconds, gap = time.perf_counter() - began, found.upper / found.lower - 1
    said = "yes" if gap <= row.goal and seconds <= 1.1 * row.seconds + 0.5 else "NO"
    out = f"{row.data:9} {row.loss:9} {row.share:<5g} [{found.lower:.6g}, {found.upper:.6g}] gap {gap:.2g} in {seconds:.1f} s"
    out += f", {found.status} ({found.bound}), {len(found.primal.mass) if found.primal else 0} neurons"
    if not args.no_verify:
        began = time.perf_counter()
        out += f", {found.verify(data).answer} in {time.perf_counter() - began:.1f} s"
    out += f"  [goal: {row.goal:g} in {row.seconds:g} s]  {said}"
    if args.peers:
        trained = adam(data, row.loss, decay, row.seconds, args.seed) / found.lower - 1
        other = multilayer(data, row.loss, decay, args.seed) / found.lower - 1
        out += f"\n{'':25}Adam {trained:.2g} above the proved bound, MLP {other:.2g}"
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=list(SETS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--no-verify", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{args.device}, 1 thread, torch {torch.__version__}", flush=True)
    for row in ROWS:
        if row.data in args.rows if args.rows else args.device != "cpu" or not row.gpu:
            print(line(row, args), flush=True)


if __name__ == "__main__":
    main()
