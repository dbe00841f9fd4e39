"""Hostile data and settings for every kind of the table: what solvers answer to them must verify."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np

import widemargin
from widemargin import Certificate, Dataset, kinds

SCALES = [10.0**k for k in (-300, -200, -150, -100, -79, -40, -16, -8, 0, 0, 0, 0, 8, 16, 40, 79, 100, 150, 200, 300)]
# The values that each option of the table may be drawn from; an option that is new there needs a line here.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "bias": (False, True),
    "activation": ("relu", "relu", "srelu", "leaky", "leaky:0.7"),
    "seed": (0, 1, 7),
    "device": ("cpu",),
    "width": (1, 2, 5, 30),
    "part": ("total", "outer", "inner"),
    "transport": ("sup", "l2"),
    "samples": (None, 2, 100, 3000),
    "confidence": (0.5, 0.99, 1 - 1e-9),
    "eps": (0.0, 0.0, 1e-300, 1e-12, 1.0, 1e40, 1e100, 1e300),
    "displacement": (0.0, 0.0, 0.0, 1e-300, 1e-200, 1e-9, 1.0, 1e30, 1e200),
    "rank": (1, 1, 2, 3),
}
NORMS = {"linear": tuple(kinds.VECTOR_NORMS), "linear-multiclass": tuple(kinds.MATRIX_NORMS)}
LIMITS = (1e-9, 1e-4, 1e-3, 0.01, 0.05, 0.2)  # seconds
LOSSES = ("logistic", "squared", "hinge", "squared-hinge", "exp")


def points(rng: np.random.Generator) -> np.ndarray:
    """A few points that are bad in some way: (n, d)."""
    with np.errstate(over="ignore"):
        return _points(rng)


def _points(rng: np.random.Generator) -> np.ndarray:
    n, d = int(rng.integers(1, 13)), int(rng.integers(1, 5))
    X = rng.standard_normal((n, d))
    for _ in range(int(rng.integers(1, 4))):
        X = X.clip(-1e300, 1e300)
        way = int(rng.integers(16))
        i, j, k = int(rng.integers(n)), int(rng.integers(n)), int(rng.integers(d))
        if way == 0:
            X = X * rng.choice(SCALES)
        elif way == 1:
            X[i] *= rng.choice(SCALES)  # one row that is large or small
        elif way == 2:
            X[:, k] *= rng.choice(SCALES)
        elif way == 3:
            X[:, k] = rng.choice([0.0, 1.0, -1e10, 1e-200])  # a constant column
        elif way == 4:
            X[i] = X[j]
        elif way == 5:
            X[i] = X[j] * (1 + rng.choice([1e-16, 1e-12, 1e-9, 1e-6]))
        elif way == 6:
            X[i] = X[j] + rng.choice([1e-16, 1e-12, 1e-9, 1e-5]) * np.abs(X).max() * rng.standard_normal(d)
        elif way == 7:
            X[i] = -X[j]
        elif way == 8:
            X[i] = -X[j] + rng.choice([1e-16, 1e-12, 1e-9]) * np.abs(X).max() * rng.standard_normal(d)
        elif way == 9:
            X[i] = 0.0
        elif way == 10:
            X = np.rint(2 * X)  # integers: ties everywhere
        elif way == 11:
            X = 5e-324 * np.rint(rng.choice([1.0, 3.0, 1e5]) * X)  # denormals
        elif way == 12:
            X[i] = X[j] * rng.choice([2.0, 3.0, 1e-5, 0.1])  # on one ray
        elif way == 13:
            X = X + rng.choice([1e4, 1e8, 1e15])  # far from the origin
        elif way == 14:
            X = np.outer(X[:, 0], np.ones(d))  # rank one
        else:
            X = np.vstack([X, X[: n // 2 + 1]])
            n = len(X)
    return X.clip(-1e300, 1e300)


def bundles(rng: np.random.Generator) -> np.ndarray:
    """Points (n, d) in one to three bundles of nearly parallel ones."""
    n, d, k = int(rng.integers(2, 16)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    axes = rng.choice([-1.0, 1.0], (k, d)) if rng.random() < 0.5 else rng.standard_normal((k, d))
    X = 10.0 ** rng.uniform(4, 12) * axes[rng.integers(k, size=n)]
    return X + rng.choice([1e-3, 1.0, 1e3]) * rng.standard_normal((n, d))


def varied(rng: np.random.Generator) -> np.ndarray:
    """Up to 300 points in up to 100 dimensions, and at times thousands in a few, of the kinds that tables have: (n, d)."""
    n, d = int(10 ** rng.uniform(0, 2.5)), int(10 ** rng.uniform(0, 2))
    if rng.random() < 0.03:
        n, d = int(rng.integers(1000, 5001)), int(rng.integers(1, 6))
    way = int(rng.integers(12))
    X = rng.standard_normal((n, d))
    with np.errstate(over="ignore"):
        if way == 0:
            X = X[rng.integers(max(1, n // 5), size=n)]  # every point several times
        elif way == 1:
            X = rng.choice([1.0, 10.0, 1e4]) * X[rng.integers(min(n, 4), size=n)] + 10.0 ** rng.uniform(-12, 0) * X
        elif way == 2:
            X = rng.integers(-2, 3, (n, d)).astype(float)  # a grid
        elif way == 3:
            X = np.eye(d)[rng.integers(d, size=n)]  # one-hot
        elif way == 4:
            X = (rng.random((n, d)) < rng.choice([0.02, 0.2, 0.8])).astype(float)
        elif way == 5:
            X = rng.standard_cauchy((n, d))
        elif way == 6:
            X = np.sign(X) * np.exp(rng.choice([10.0, 30.0, 50.0]) * rng.standard_normal((n, d)))
        elif way == 7:
            X = X * 10.0 ** (rng.choice([3.0, 20.0, 70.0, 150.0]) * rng.uniform(-1, 1, d))  # columns of other sizes
        elif way == 8:
            X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)  # on a sphere
        elif way == 9:
            rank = int(rng.integers(1, 4))
            X = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d)) + rng.choice([0.0, 0.0, 1.0, 1e6])
        elif way == 10:
            X = np.arange(n)[:, None] * X[:1] + X[-1:]  # on one line, in even steps
        if rng.random() < 0.2:
            X = X * 10.0 ** rng.uniform(-140, 140)
    return X.clip(-1e300, 1e300)


def tables(rng: np.random.Generator) -> np.ndarray:
    """Up to 130 points as real tables have them, in other units and rounded to other digits, and some of textbooks."""
    n, d, way = int(10 ** rng.uniform(0.3, 2.1)), int(10 ** rng.uniform(0, 1.2)), int(rng.integers(16))
    k, X = int(rng.integers(2, 6)), rng.standard_normal((n, d))
    if way == 0:  # seconds since 1970, a flag, an amount
        X = np.column_stack([1.7e9 + rng.integers(10**7, size=n), rng.integers(2, size=n), np.exp(5 * X[:, 0])])
    elif way == 1:  # other units and other origins
        X = X * 10.0 ** rng.integers(-6, 10, d) + 10.0 ** rng.integers(-6, 10, d) * rng.integers(2, size=d)
    elif way == 2:  # standardised, with ties
        X = rng.integers(4, size=(n, d)).astype(float)
        X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 0.1)
    elif way == 3:
        X = rng.integers(256, size=(n, d)) / 255
    elif way == 4:
        X = X.astype(rng.choice([np.float16, np.float32])).astype(float)
    elif way == 5:
        X = np.rint(100 * np.exp(3 * X)) / 100  # money
    elif way == 6:
        X = np.column_stack([np.arange(n), 2000 + rng.integers(25, size=n), rng.integers(2, size=n)]).astype(float)
    elif way == 7:  # all sign patterns, and the products of their bits
        X = np.array([[1.0 - 2 * (i >> j & 1) for j in range(k)] for i in range(2**k)])
        X = np.column_stack([X, X.prod(axis=1)]) if rng.random() < 0.5 else X
    elif way == 8:
        X = np.vstack([np.eye(k), -np.eye(k)]) if rng.random() < 0.5 else np.eye(k) - 1 / k
    elif way == 9:  # a regular polygon
        turn = 2 * np.pi * (np.arange(8 * k) + rng.choice([0.0, 0.5, 0.3])) / (8 * k)
        X = np.column_stack([np.cos(turn), np.sin(turn), *([np.ones(8 * k)] * int(rng.integers(2)))])
    elif way == 10:
        X = np.vander(np.linspace(rng.choice([-1.0, 0.0, 1.0]), rng.choice([2.0, 10.0]), min(n, 40)), 2 * k)
    elif way == 11:
        X = 1 / (1.0 + np.arange(3 * k)[:, None] + np.arange(3 * k))  # Hilbert's matrix
    elif way == 12:
        X = np.array([np.roll(X[:, 0], j) for j in range(min(n, 24))])[:, :24]  # circulant
    elif way == 13:
        X = np.column_stack([X, X @ rng.standard_normal((d, 2))])  # columns that depend on others
    elif way == 14:
        X = np.cumsum(np.full((n, d), 0.1), axis=0) * np.rint(3 * X[:1])  # rounded again and again
    else:
        X = np.column_stack([np.eye(d)[rng.integers(d, size=n)], rng.integers(18, 90, size=n)])
    return np.vstack([X, X[: len(X) // 4 + 1]]) if rng.random() < 0.2 else X


def varied_targets(rng: np.random.Generator, X: np.ndarray, what: str) -> np.ndarray:
    """Targets of `varied` points: one point against all others, many classes, outputs of other sizes."""
    n, way = len(X), int(rng.integers(4))
    if what == "signs":
        with np.errstate(all="ignore"):
            scores = X @ rng.standard_normal(X.shape[1])
        if way == 0:
            return np.where(np.arange(n) == rng.integers(n), 1.0, -1.0)
        return (
            rng.choice([-1.0, 1.0], n) if way == 1 else np.where(scores > (0.0, np.median(scores))[way % 2], 1.0, -1.0)
        )
    if what == "classes":
        K = min(n, int(rng.choice([2, 3, 10, 30])))
        some = rng.integers(K if way else 1, size=n)  # or one class has nearly all
        if way == 1:
            some = np.unique(X, axis=0, return_inverse=True)[1].ravel() % K  # equal points agree
        some[rng.permutation(n)[:K]] = np.arange(K)
        return np.unique(some, return_inverse=True)[1].astype(float)
    y = rng.standard_normal((n, int(rng.integers(2, 6))) if what == "several values" else n)
    if way == 0:
        y = np.rint(y)
    elif way == 1:
        y = y * 10.0 ** rng.uniform(-100, 100, y.shape[1:])
    elif way == 2:
        y = np.exp(10 * y)
    return y


def varied_settings(rng: np.random.Generator, row: kinds.Kind, X: np.ndarray) -> dict[str, Any]:
    """As `settings`, with any decay and tolerance, limits of memory and weights of the points."""
    keys = settings(rng, row, X)
    known = inspect.signature(getattr(getattr(widemargin, row.room), row.function)).parameters
    if "time_limit" in keys:
        keys["time_limit"] = float(10 ** (rng.uniform(-9, -3) if rng.random() < 0.1 else rng.uniform(-3, -0.5)))
    keys["tol"] = float(10 ** rng.uniform(-9, -0.5))
    if "memory" in known and rng.random() < 0.3:
        keys["memory"] = float(10 ** rng.uniform(5, 9))
    if "weight_decay" in keys:
        keys["weight_decay"] = float(10 ** rng.uniform(-12, 6))
        keys["output_bias"] = ("free", None, "decayed")[int(rng.integers(3))]
        if rng.random() < 0.2:
            keys["weights"] = 10 ** rng.uniform(-3, 3, len(X)) * (rng.random(len(X)) < 0.9)
    return keys


def targets(rng: np.random.Generator, X: np.ndarray, what: str) -> np.ndarray:
    n = len(X)
    if what == "signs":
        way = int(rng.integers(4))
        if way == 0:
            return np.where(np.arange(n) % 2, 1.0, -1.0)
        if way == 1:
            return np.ones(n) * rng.choice([1.0, -1.0])  # one class only
        if way == 2:
            return np.where(X[:, 0] > np.median(X[:, 0]), 1.0, -1.0)
        return rng.choice([-1.0, 1.0], n)
    if what == "classes":
        K = int(rng.integers(2, 4))
        y = rng.integers(K, size=n).astype(float)
        y[: min(n, K)] = np.arange(min(n, K))
        return np.unique(y, return_inverse=True)[1].astype(float)
    shape = (n, int(rng.integers(2, 4))) if what == "several values" else n
    return rng.standard_normal(shape) * rng.choice([0.0, 1.0, 1.0, 1e-150, 1e150, 1e-300, 1e300])


def settings(rng: np.random.Generator, row: kinds.Kind, X: np.ndarray) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    function = getattr(getattr(widemargin, row.room), row.function)
    known = inspect.signature(function).parameters
    for option, (argument, _) in row.options.items():
        values = NORMS[row.name] if option == "norm" else OPTIONS[option]
        keys[argument] = values[int(rng.integers(len(values)))]
    if "rank" in keys:
        keys["rank"] = min(keys["rank"], X.shape[1])
    if row.name == "bn":
        keys["part"] = rng.choice(["a", "c", "sum"])
    if row.needs == "weight_decay":
        keys["weight_decay"] = float(rng.choice([1e-300, 1e-8, 0.01, 1.0, 1e8]))
        drawn = str(rng.choice(LOSSES))
        keys["loss"] = {"classes": "cross-entropy", "several values": "squared"}.get(row.targets, drawn)
    elif row.needs == "jacobian":
        J = rng.standard_normal((len(X), int(rng.integers(1, 8)))) * rng.choice(SCALES)
        J[int(rng.integers(len(X)))] = J[0] * rng.choice([1.0, 1 + 1e-12, -1.0])
        keys["jacobian"] = J
    elif row.needs:
        raise AssertionError(f"kind {row.name} needs {row.needs}: say here what hostile values it may have")
    if "time_limit" in known:
        keys["time_limit"] = float(rng.choice(LIMITS))
    if rng.random() < 0.5:
        keys["tol"] = float(rng.choice([1e-9, 1e-6, 1e-3, 0.3]))
    return keys


def draw(seed: int, names: tuple[str, ...] = tuple(kinds.KINDS)) -> tuple[str, Dataset, dict[str, Any]]:
    """Kind, data and settings of one seed."""
    rng = np.random.default_rng([seed, 1])
    name = names[seed % len(names)]
    row = kinds.KINDS[name]
    X = points(rng)
    return name, Dataset(X, targets(rng, X, row.targets), f"hostile {seed}"), settings(rng, row, X)


def answer(name: str, data: Dataset, keys: dict[str, Any]) -> Certificate:
    row = kinds.KINDS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*What would help")  # advice, where the time was short
        certificate: Certificate = getattr(getattr(widemargin, row.room), row.function)(data, **keys)
    return certificate


def complaint(certificate: Certificate, data: Dataset) -> str:
    """What is wrong with an answer; empty where nothing is."""
    if not certificate.lower <= certificate.upper:
        return f"lower {certificate.lower} > upper {certificate.upper}"
    verdict = certificate.verify(data)
    said = f"{certificate}: {verdict}"[:400]
    if certificate.status in ("certified", "not-separable", "no-interpolation") and not certificate.proved:
        statistical = certificate.kind == "ntk" and verdict.answer == "holds with a probability"
        return "" if statistical or (certificate.status == "no-interpolation" and verdict.failed is None) else said
    if verdict.failed is not None:
        return said
    return said if certificate.proved and not verdict.ok else ""
