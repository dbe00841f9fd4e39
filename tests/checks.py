"""What several test files share. Everything here is computed from definitions, without the solvers."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linprog

from widemargin import Certificate, Dataset, verify

ROUNDING = 1e-12  # what float64 may lose in the sums below


# What the checks along runs use of the default records, which costs less than all of them.
OBSERVE = (
    "step t_cb t_mean log_risk psi margin norm log_norm moved honesty sums q weights".split()  # noqa: SIM905
)


def repeated(names: str, cases: Iterable[Any], *kept: int, **keys: Any) -> pytest.MarkDecorator:
    """`parametrize` for cases that say the same again: `make test` runs those at the places `kept`, `make test-all` all."""
    single, found = "," not in names, list(cases)
    assert kept and {range(len(found))[place] for place in kept} < set(range(len(found)))
    often = {range(len(found))[place] for place in kept}
    marked = [
        case if k in often else pytest.param(*([case] if single else case), marks=pytest.mark.long)
        for k, case in enumerate(found)
    ]
    return pytest.mark.parametrize(names, marked, **keys)


class Clock:
    """In place of `time` in some rooms: every look at it is `step` seconds later, so that time limits fall at the same step of a
    search on every machine. In the modules `still` a look takes no time: what they do is one step."""

    def __init__(self, step: float, monkeypatch: Any, *rooms: str, still: tuple[str, ...] = ()) -> None:
        self.step, self.now = step, 0.0
        inside = SimpleNamespace(perf_counter=lambda: self.now, monotonic=lambda: self.now)
        for name, module in list(sys.modules.items()):
            if name.startswith(rooms) and getattr(module, "time", None) is time:
                monkeypatch.setattr(module, "time", inside if name in still else self)

    def perf_counter(self) -> float:
        self.now += self.step
        return self.now

    monotonic = time = perf_counter


def files_entered(call: Callable[[], Any]) -> KeysView[str]:
    """Files of the package, from its folder on, in the order in which this thread enters them while `call` runs; imports do not
    count."""
    entered: dict[str, None] = {}
    root, before = f"{Path(verify.__file__).parents[1]}{os.sep}", sys.getprofile()

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and code.co_name != "<module>":
            entered.setdefault(Path(code.co_filename.removeprefix(root)).as_posix())

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered.keys()


def noise(n: int, d: int, seed: int) -> Dataset:
    """Gaussian points with independent labels."""
    rng = np.random.default_rng(seed)
    return Dataset(rng.standard_normal((n, d)), rng.choice([-1.0, 1.0], n), f"noise(n={n}, d={d}, seed={seed})")


def seal(body: dict[str, Any]) -> dict[str, Any]:
    """A payload with the digest that belongs to it."""
    return body | {"digest": verify.digest(body)}


def circle(*degrees: float) -> np.ndarray:
    """Unit vectors of the plane at these angles: (k, 2)."""
    angle = np.radians(degrees)
    return np.column_stack([np.cos(angle), np.sin(angle)])


def unit(V: np.ndarray) -> np.ndarray:
    """Rows divided by their lengths; rows of zeros stay."""
    return V / np.linalg.norm(V, axis=1, keepdims=True).clip(1e-300)


def features(V: np.ndarray, X: np.ndarray, degree: int = 1, slope: float = 0.0) -> np.ndarray:
    """phi(v_j . x_i): (n, m); phi(t) = relu(t)^degree - slope relu(-t)."""
    T = X @ V.T
    return T.clip(0) ** degree - slope * (-T).clip(0)


def dual_values(V: np.ndarray, X: np.ndarray, c: np.ndarray, degree: int = 1, slope: float = 0.0) -> np.ndarray:
    """sum_i c_i phi(v . x_i) of every row v of V."""
    return c @ features(V, X, degree, slope)


def ascended(
    X: np.ndarray, c: np.ndarray, V: np.ndarray, degree: int = 1, steps: int = 60, slope: float = 0.0
) -> np.ndarray:
    """Unit vectors no worse than those of V for sum_i c_i phi(v . x_i): gradient steps, kept where they help."""
    V, step = unit(V), np.ones((len(V), 1))
    value = dual_values(V, X, c, degree, slope)
    for _ in range(steps):
        h = features(V, X, degree=1)  # (n, m)
        G = (c[:, None] * (np.where(h > 0, 1.0, slope) if degree == 1 else 2 * h)).T @ X
        new = unit(V + step * unit(G))
        better = dual_values(new, X, c, degree, slope) > value
        V = np.where(better[:, None], new, V)
        value = dual_values(V, X, c, degree, slope)
        step = np.where(better[:, None], 1.3 * step, 0.5 * step)
    return V


def directions(X: np.ndarray, m: int, seed: int) -> np.ndarray:
    """Random unit vectors, the points and their opposites, and mixtures and differences of points: (>= m, D)."""
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((m, X.shape[1]))
    P = unit(X[X.any(axis=1)])
    if len(P):
        mixed = rng.standard_normal((200, len(P))) @ P  # in the span of the points
        pairs = P[rng.integers(len(P), size=200)] - P[rng.integers(len(P), size=200)]
        V = np.vstack([V, P, -P, mixed, pairs])
    return unit(V[np.linalg.norm(V, axis=1) > 1e-9])


def check_certificate(
    certificate: Certificate, data: Dataset, *, tol: float | None = None, status: str | None = None, samples: int = 2000
) -> None:
    """An F1 certificate against the definition of the margin.

    It verifies exactly; lower <= upper; the network's margin, computed here, reaches lower and stays below upper; the
    dual value of no sampled or ascended direction exceeds upper. With `tol` the gap must be that small.
    """
    assert certificate.kind == "f1" and certificate.convention == "M1"
    word, _, given = certificate.activation.partition(":")
    degree, slope = {"relu": (1, 0.0), "srelu": (2, 0.0), "leaky": (1, float(given or 0.01))}[word]
    assert (certificate.n, certificate.d) == (data.n, data.d)
    assert certificate.data_sha256 == data.sha256()
    assert certificate.proved, "no proved upper bound"
    assert 0 <= certificate.lower <= certificate.upper < math.inf
    assert 0 <= certificate.gap <= 1
    if status is not None:
        assert certificate.status == status, str(certificate)
    if tol is not None:
        assert certificate.upper - certificate.lower <= tol * certificate.upper, str(certificate)
    assert (certificate.status == "not-separable") == (certificate.upper == 0)
    assert "\n" not in str(certificate)

    verdict = certificate.verify(data)
    assert verdict.ok, str(verdict)
    assert str(verdict).startswith("verified exactly"), str(verdict)

    X = np.hstack([data.X, np.ones((data.n, 1))]) if certificate.bias else data.X  # (n, D)
    shift = math.frexp(float(np.abs(X).max()))[1]
    X = np.ldexp(X, -shift)
    lower, upper = (math.ldexp(value, -shift * degree) for value in (certificate.lower, certificate.upper))

    q = np.asarray(certificate.dual)
    assert q.shape == (data.n,) and (q >= 0).all() and q.sum() > 0
    c = q / q.sum() * data.signs()
    V = directions(X, samples, seed=data.n)
    if certificate.primal is not None:
        theta, mass = certificate.primal.theta, certificate.primal.mass
        assert theta.shape == (len(mass), X.shape[1]) and certificate.atoms == len(mass)
        assert_allclose(np.linalg.norm(theta, axis=1), 1, rtol=1e-12)
        margin = float((data.y * (features(theta, X, degree, slope) @ mass)).min() / np.abs(mass).sum())
        assert margin >= lower * (1 - ROUNDING), "the network does not reach the lower bound"
        assert margin <= upper * (1 + ROUNDING), "the network beats the upper bound"
        V = np.vstack([V, theta])
    else:
        assert lower == 0
    room = upper * (1 + ROUNDING) + ROUNDING * float(np.abs(c) @ np.linalg.norm(X, axis=1) ** degree)
    for sign in (1.0, -1.0):
        values = dual_values(V, X, sign * c, degree, slope)
        assert values.max() <= room, "a direction beats the upper bound"
        best = V[np.argsort(-values)[:100]]
        climbed = ascended(X, sign * c, best, degree, slope=slope)
        assert dual_values(climbed, X, sign * c, degree, slope).max() <= room


def meet(a: Certificate, b: Certificate, slack: float = 1e-9) -> bool:
    """Whether the intervals of two certificates meet, up to rounding of the data."""
    return a.lower <= b.upper * (1 + slack) and b.lower <= a.upper * (1 + slack)


def assert_overlap(a: Certificate, b: Certificate, factor: float = 1.0, slack: float = ROUNDING) -> None:
    """The intervals of a and of factor * b have a common point, up to the rounding of the data."""
    assert a.lower / factor <= b.upper * (1 + slack), f"{a} against {factor} * ({b})"
    assert b.lower <= a.upper / factor * (1 + slack), f"{a} against {factor} * ({b})"


def assert_encloses(certificate: Certificate, value: float, slack: float = ROUNDING) -> None:
    assert certificate.lower <= value * (1 + slack) and value * (1 - slack) <= certificate.upper, (
        f"{value!r} is not in [{certificate.lower!r}, {certificate.upper!r}]"
    )


def changed(certificate: Certificate, **fields: Any) -> dict[str, Any]:
    """The saved form with some fields replaced and a fresh digest."""
    body = json.loads(json.dumps(copy.deepcopy(certificate.payload()) | fields))
    return body | {"digest": verify.digest(body)}


def lp_margin(Z: np.ndarray) -> tuple[float, float, np.ndarray]:
    """The margin of signed measures on columns Z (n, m) with labels in Z: evaluated bounds around it, and the dual."""
    n, m = Z.shape
    both = np.hstack([Z, -Z])
    A = np.vstack([np.hstack([-both, np.ones((n, 1))]), np.append(np.ones(2 * m), 0.0)[None]])
    sharp = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    limits = [(0, None)] * (2 * m) + [(None, None)]
    result = linprog(np.append(np.zeros(2 * m), -1.0), A, np.eye(n + 1)[n], bounds=limits, options=sharp)
    assert result.status == 0, result.message
    a = result.x[:-1].clip(0)
    q = np.maximum(-result.ineqlin.marginals[:n], 0)
    q /= q.sum()
    return float((both @ a).min() / a.sum()), float(np.abs(q @ Z).max()), q


def brute_force(X: np.ndarray, c: np.ndarray, linear: np.ndarray | None = None) -> tuple[float, np.ndarray]:
    """max_{|v| <= 1} sum_i c_i relu(v . x_i) + linear . v for a few points, and a maximiser.

    The maximum lies inside some face {v . x_i = 0 for i in T} of the arrangement of hyperplanes, with the other signs
    constant. There the objective is g . v, so v is the projection of g on the face. All T and all signs are tried.
    """
    n, d = X.shape
    pattern = np.array(list(itertools.product([0.0, 1.0], repeat=n)))  # (2^n, n)
    linear = np.zeros(d) if linear is None else linear
    G = (pattern * c) @ X + linear  # (2^n, d)
    best, arg = 0.0, np.zeros(d)
    for size in range(d):
        for T in itertools.combinations(range(n), size):
            Q = np.linalg.qr(X[list(T)].T)[0] if T else np.zeros((d, 0))
            V = G - (G @ Q) @ Q.T
            length = np.linalg.norm(V, axis=1)
            V = V[length > 1e-13] / length[length > 1e-13, None]
            if len(V):
                values = dual_values(V, X, c) + V @ linear
                if values.max() > best:
                    best, arg = float(values.max()), V[values.argmax()]
    return best, arg


def reference_margin(X: np.ndarray, y: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The F1 margin of a few points between two evaluated bounds: column generation with `brute_force` as oracle."""
    V = directions(X, 300, seed)
    low, high = 0.0, math.inf
    for _ in range(80):
        value, _, q = lp_margin(y[:, None] * features(V, X))
        found = [brute_force(X, s * q * y) for s in (1.0, -1.0)]
        low, high = max(low, value), min(high, max(found[0][0], found[1][0]))
        if high - low <= 1e-7 * high:
            break
        V = np.vstack([V, *(v for _, v in found if v.any())])
    return low, high


def check_all(estimator: Any, expected: Mapping[str, str] | None = None) -> None:
    """All of scikit-learn's checks, none expected to fail but those named, with the reason."""
    from sklearn.utils.estimator_checks import check_estimator

    results = check_estimator(estimator, on_skip=None, expected_failed_checks=dict(expected or {}))
    skipped = {result["check_name"] for result in results if result["status"] != "passed"}
    assert skipped - set(expected or {}) <= {"check_array_api_input"}, skipped  # that one needs another package


def verdict(verdicts: Sequence[Any], begins: str) -> Any:
    """What the only verdict of a reproduction says whose claim begins so."""
    (only,) = (each for each in verdicts if each.claim.startswith(begins))
    return only.holds


def assert_refuted(hypotheses: dict[str, Any], conclusion: Any) -> None:
    """A statement as printed is wrong: on one instance every hypothesis holds and the conclusion does not."""
    assert hypotheses and all(bool(holds) for holds in hypotheses.values()), hypotheses
    assert not bool(conclusion)


def bn_features(data: Dataset, m: int, part: str, seed: int = 0, trial: int = 0) -> np.ndarray:
    """Signed features (n, m), without the 1/sqrt(m), of which gamma_a or gamma_c is the margin; from the network of flows."""
    import torch

    from widemargin.flows import BatchNorm

    net = BatchNorm.with_data(data.X, m)
    W = {name: torch.from_numpy(value) for name, value in net.init([trial], seed).items()}
    Z = data.y[:, None] * net.features(W, torch.tensor(data.X)[None])[0].numpy()
    return Z if part == "a" else Z * W["a"].numpy()


def adam_weights(
    data: Dataset, m: int, part: str, steps: int, lr: float = 0.05, seed: int = 0, trial: int = 0
) -> np.ndarray:
    """BN's own way to a lower bound of gamma_a or gamma_c (Appendix A.2, Figure 1, BN-24): outer weights (m,) of norm 1, trained
    with Adam on the logistic loss. The a-network has c = 1 and starts at a; the c-network has a and starts at c = 1."""
    import torch

    from widemargin.margins.batchnorm_networks import initial_weights

    Z = torch.from_numpy(bn_features(data, m, part, seed, trial))
    start = initial_weights(m, data.d, seed, trial)[1] if part == "a" else np.ones(m)
    u = torch.from_numpy(start.copy()).requires_grad_()
    optimizer = torch.optim.Adam([u], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.softplus(-(Z @ u)).mean().backward()
        optimizer.step()
    found = u.detach().numpy()
    return found / np.linalg.norm(found)


def resize(patch: Any, sizes: dict[str, dict[str, Any]], scales: tuple[str, ...] = ("quick",)) -> None:
    """Give reproductions, by id, other sizes at these scales."""
    from widemargin.papers import REPRODUCTIONS

    for id, size in sizes.items():
        theirs = sys.modules[REPRODUCTIONS[id].function.__module__].SIZES
        for scale in scales:
            patch.setitem(theirs, scale, size)


def grouped(**keys: Any) -> dict[str, Any]:
    """Arguments of `flows.train` where those of Stop, Record and Keep stand among the others, for tables of many runs."""
    from widemargin import flows

    kinds = {"stop": flows.Stop, "record": flows.Record, "keep": flows.Keep}
    found = {
        name: kind(**{one.name: keys.pop(one.name) for one in fields(kind) if one.name in keys})
        for name, kind in kinds.items()
    }
    return found | keys


def moved(certificate: Certificate, **changes: object) -> dict:
    """The saved form with other entries (those of extra by name) and a fresh digest."""
    body = json.loads(json.dumps(certificate.payload()))
    for name, value in changes.items():
        if name in body["extra"]:
            body["extra"][name] = value
        else:
            body[name] = value
    return body | {"digest": verify.digest(body)}
