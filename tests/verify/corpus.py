"""Real certificates of every kind and proof type, and what is known about each margin.

`written_before.json.gz` holds certificates that an earlier version wrote (every kind its solvers had); `hand_made` adds the
proof types that no solver writes for so small data, `written_now` what this version writes in another form.
"""

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from checks import seal
from widemargin import margins, optima, verify
from widemargin.pricing import products, signs, write, writing
from widemargin.pricing.cones import Cones
from widemargin.pricing.pairing import solve as pair_up
from widemargin.pricing.points import Points
from widemargin.pricing.writing import cones_side
from widemargin.types import Dataset

BEFORE = Path(__file__).parent / "written_before.json.gz"


def written_before():
    """(name, payload, X, y)"""
    with gzip.open(BEFORE, "rt") as file:
        return [(one["name"], one["payload"], np.array(one["X"]), np.array(one["y"])) for one in json.load(file)]


def saved(cert):
    return json.loads(json.dumps(cert.payload()))


def written_now():
    data = Dataset(*next((X, y) for name, _, X, y in written_before() if name == "f2"))
    twice = Dataset([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -3.0]], [1.0, 4.0, 3.0, 1.0, 2.5])
    classes = Dataset(np.random.default_rng(5).standard_normal((9, 6)), np.arange(9) % 3)
    norms = ("max", "l1", "spectral", "nuclear")
    found = [
        ("f2 srelu now", margins.f2(data, activation="srelu"), data),
        ("f2 own kernel now", margins.f2(data, kernel=lambda A, B: (1 + A @ B.T) ** 2), data),
        ("ntk l2 now", margins.ntk(data, transport="l2"), data),
        ("ntk sup now", margins.ntk(data, samples=2000), data),
        ("ntk sup inner now", margins.ntk(data, samples=2000, part="inner"), data),
        ("l2 srelu now", margins.min_norm_l2(twice, activation="srelu"), twice),
        ("f2 leaky", margins.f2(data, activation="leaky"), data),
        ("frozen leaky", margins.frozen(data, 30, activation="leaky:0.25"), data),
        ("rf leaky", margins.random_features(data, 30, activation="leaky:0.25", bias=True), data),
        ("l2 leaky", margins.min_norm_l2(data, activation="leaky:0.25"), data),
        ("linear linf", margins.linear(data, norm="linf", bias=True), data),
        ("linear l1", margins.linear(data, norm="l1", bias=True), data),
        *((f"classes {norm}", margins.multiclass_linear(classes, norm=norm, tol=1e-8), classes) for norm in norms),
        ("l2 leaky relation", margins.min_norm_l2(twice, activation="leaky:0.25"), twice),
    ]
    return [(name, saved(cert), one.X, one.y) for name, cert, one in found] + leaky_now() + optima_made()


def leaky_now():
    """Leaky f1 margins by every proof that there is, most of them forced: linear and quadratic leaves, roots, mirrors, cones."""
    before = {name: (payload, X, y) for name, payload, X, y in written_before()}
    _, X, y = before["f1 plane bias"]
    plane = Dataset(X, y)
    out = [
        (f"f1 {activation} plane bias", saved(margins.f1(plane, activation=activation, bias=True)), X, y)
        for activation in ("leaky", "leaky:0.25")
    ]
    Z, payload = np.hstack([X, np.ones((len(X), 1))]), out[-1][1]
    q = np.array(payload["dual"])
    size = q @ np.linalg.norm(Z, axis=1)
    norm = {"upper": float(size), "proof": {"type": "norm"}, "status": "rounding"}
    out.append(("f1 leaky norm", seal(payload | norm), X, y))
    rng = np.random.default_rng(3)
    X = rng.integers(-3, 4, (9, 4)).astype(float)
    mirrored = Dataset(np.vstack([X, -X[:4]]), np.append(np.ones(5), -np.ones(8)))
    cube = np.array(list(itertools.product([-1.0, 1.0], repeat=4)))
    cube = Dataset(cube, cube[:, 0] * cube[:, 1])
    for name, data, way in (
        ("tree", mirrored, "linear"),
        ("roots", cube, "linear"),
        ("quadratic", mirrored, "quadratic"),
        ("cones", mirrored, "cones"),
    ):
        cert = margins.f1(data, activation="leaky:0.25")
        proof, upper = forced(data, np.asarray(cert.dual), 0.25, way)
        body = json.loads(json.dumps(saved(cert) | {"proof": proof, "upper": upper, "status": "rounding"}))
        out.append((f"f1 leaky {name}", seal(body), data.X, data.y))
    return out


def forced(data, q, slope, way):
    """A proof of both sides in a given way, and what it shows."""
    import torch

    points = Points(data.X.copy(), data.y, 0, torch.device("cpu"), np.eye(data.d), slope)
    sides = []
    for sign in (1, -1):
        folded, linear = points.folded(sign * q * data.y)
        terms, rest = torch.as_tensor(folded), torch.as_tensor(linear @ points.X)
        if way == "cones":
            frame = torch.as_tensor(points.frame.astype(float))
            found = Cones(points.Xt, terms, frame, rest).run(0.0, 1e-3, deadline=float("inf"), batch=64)
        else:
            tree = signs.Tree(points.Xt, terms, torch.as_tensor(points.roots.astype(float)), rest)
            found = tree.run(0.0, 1e-3, deadline=float("inf"), batch=64, quadratic=way == "quadratic")
        sides.append(found)
    enough = -1.0 if way == "quadratic" else max(one.bound for one in sides)
    return write(points, q * data.y, tuple(sides), np.arange(data.n), enough)


def optima_made():
    """Least objectives: every loss, every output bias, with and without weights; proofs by a list, signs and cones."""
    rng = np.random.default_rng(3)
    flat = Dataset(rng.standard_normal((9, 2)).round(2), [1, -1, 1, 1, -1, -1, 1, -1, 1])
    values = Dataset(flat.X, rng.standard_normal(9).round(2))
    more = Dataset(rng.standard_normal((12, 3)).round(2), np.where(rng.random(12) < 0.5, 1, -1))
    weights = rng.uniform(0, 2, 9).round(3)
    weights[4] = 0
    asked = [
        (flat, {"loss": "logistic", "weight_decay": 0.03}),
        (flat, {"loss": "logistic", "weight_decay": 0.03, "output_bias": None, "bias": False}),
        (flat, {"loss": "exp", "weight_decay": 0.1, "output_bias": "decayed", "weights": weights}),
        (flat, {"loss": "hinge", "weight_decay": 0.05, "output_bias": "decayed"}),
        (flat, {"loss": "squared-hinge", "weight_decay": 0.05, "output_bias": None, "weights": weights}),
        (values, {"loss": "squared", "weight_decay": 0.05, "weights": weights}),
        (more, {"loss": "logistic", "weight_decay": 0.05}),
        (more, {"loss": "squared", "weight_decay": 0.02, "output_bias": None}),
    ]
    out = []
    for data, keys in asked:
        cert = optima.f1(data, tol=1e-6, time_limit=20, **({"bias": True} | keys))
        name = " ".join(["optimum", *[str(v) for v in keys.values() if not isinstance(v, np.ndarray)], str(data.d)])
        out.append((name, saved(cert), data.X, data.y))
    name, payload, X, y = out[-2]
    c = np.array(payload["dual"])
    sides, bounds, _ = cone_sides(np.hstack([X, np.ones((len(X), 1))]), c, tol=1e-4, max_nodes=2000)
    most, scale = max(bounds) * (1 + 1e-6), payload["extra"]["scale"]
    s = scale * min(1, 0.05 * len(y) / (scale * most)) * c * y
    low = float(np.mean(-s * np.log(s) - (1 - s) * np.log1p(-s))) * (1 - 1e-9)
    proof = {"type": "cones", "sides": sides, "maximum": most}
    out.append((f"{name} cones", seal(payload | {"lower": low, "proof": proof, "status": "rounding"}), X, y))
    classes = rng.integers(0, 3, 9).astype(float)
    for data, keys in [
        (Dataset(flat.X, classes), {"weight_decay": 0.05, "output_bias": None, "bias": False, "weights": weights}),
        (Dataset(flat.X, classes), {"weight_decay": 0.05, "output_bias": "free"}),
        (Dataset(more.X[:9], classes), {"weight_decay": 0.04, "output_bias": "decayed", "bias": False}),
    ]:
        cert = optima.f1(data, loss="cross-entropy", tol=1e-2, time_limit=20, **({"bias": True} | keys))
        name = f"optimum of classes {keys['output_bias']} {data.d}"
        out.append((name, saved(cert), data.X, data.y))
    targets = rng.standard_normal((9, 3)).round(2)
    for data, keys in [
        (Dataset(flat.X, targets), {"weight_decay": 0.05, "output_bias": None, "bias": False, "weights": weights}),
        (Dataset(flat.X, targets[:, :2]), {"weight_decay": 0.05, "output_bias": "free"}),
        (Dataset(more.X[:9], targets[:, :2]), {"weight_decay": 0.04, "output_bias": "decayed", "weights": weights}),
    ]:
        cert = optima.f1(data, loss="squared", tol=1e-2, time_limit=20, **({"bias": True} | keys))
        name = f"optimum of targets {keys['output_bias']} {data.d}"
        out.append((name, saved(cert), data.X, data.y))
    for data, keys in asked[:6]:
        cert = optima.f2(data, **({"bias": True} | keys))
        name = " ".join(["kernel optimum", *[str(v) for v in keys.values() if not isinstance(v, np.ndarray)]])
        out.append((name, saved(cert), data.X, data.y))
    return out


def cone_sides(X, c, tol=1e-3, basis=None, max_nodes=1e5):
    """The sides of a proof by cones for max_v +-sum_i c_i relu(x_i . v), the largest bound and the values found.

    basis: r rows of integers that span the points X (n, D); all of R^D without it. The frame makes the points round.
    """
    import torch

    basis = np.eye(X.shape[1], dtype=int) if basis is None else np.asarray(basis)
    Q = np.linalg.qr(basis.T.astype(float))[0]  # (D, r)
    Z = np.linalg.lstsq(basis.T.astype(float), X.T, rcond=None)[0].T  # (n, r), X = Z basis
    values, vectors = np.linalg.eigh(Z.T @ Z)
    M = (vectors * np.maximum(values, 1e-12 * values[-1]) ** -0.5) @ vectors.T
    M = np.rint(M / np.abs(M).max(axis=1, keepdims=True) * 2**20).astype(int)
    frame = M.astype(object) @ basis.astype(object)
    sides, bounds, found = [], [], []
    for sign in (1, -1):
        tree = Cones(torch.as_tensor(X @ Q), torch.as_tensor(sign * c), torch.as_tensor(frame.astype(float) @ Q))
        out = tree.run(0.0, tol, deadline=float("inf"), batch=256, max_nodes=max_nodes)
        sides.append({"sign": sign} | cones_side(X, frame.tolist(), out.log))
        bounds.append(out.bound)
        found.append(out.value)
    return sides, bounds, found


def cones_made(before):
    """Three dimensions; two in the span of three, with an opposite pair of points; a regression."""
    payload, X, y = before["f1 plane bias"]
    Z = np.hstack([X, np.ones((len(X), 1))])
    sides, bounds, _ = cone_sides(Z, np.array(payload["dual"]) * y, tol=1e-6)
    proof, status = {"type": "cones", "sides": sides}, "time-limit"
    flat = payload | {"upper": max(bounds) * (1 + 1e-6), "proof": proof, "status": status}
    out = [("f1 cones", seal(flat), X, y)]
    X = np.array([[1.0, 0.5], [-1.0, -0.5], [0.25, -2.0], [3.0, 1.0], [-0.5, 1.5], [-2.0, 0.125]])
    X, y = np.hstack([X, X.sum(axis=1, keepdims=True)]), np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0])
    q = np.array([0.25, 0.125, 0.125, 0.125, 0.25, 0.125])
    sides, bounds, _ = cone_sides(X, q * y, tol=1e-6, basis=[[1, 0, 1], [0, 1, 1]])
    mirrored = {"type": "cones", "sides": [side | {"mirrors": [[0, 1]]} for side in sides]}
    data = {"n": 6, "d": 3, "bias": False, "data": {"name": "six", "sha256": verify.data_hash(X, y)}}
    bounds = {"lower": 0.0, "upper": max(bounds) * (1 + 1e-6), "dual": q.tolist(), "proof": mirrored}
    out.append(("f1 cones in a plane", seal(payload | data | bounds | {"primal": None, "status": status}), X, y))
    payload, X, y = before["l1-regression bias"]
    Z = np.hstack([X, np.ones((len(X), 1))]) if payload["bias"] else X
    lam = np.array(payload["dual"])
    sides, bounds, _ = cone_sides(Z, lam, tol=1e-6)
    most = max(bounds) * (1 + 1e-6)
    fit = {"type": "cones", "sides": sides, "maximum": most}
    low = float(y @ lam) / most * (1 - 1e-12)
    out.append(("l1 cones", seal(payload | {"lower": low, "proof": fit, "status": status}), X, y))
    return out


def mixed_made(before):
    """A side by signs, with leaves whose signs no direction has, and a side by cones."""
    import torch

    payload = before["f1 plane bias"][0]
    rng = np.random.default_rng(5)
    X, c = rng.standard_normal((26, 4)) * [0.05, 1.0, 0.05, 60.0], rng.standard_normal(26)
    q, y = np.abs(c) / np.abs(c).sum(), np.sign(c)
    c = q * y
    usual, signs.NEWTON_NODES = signs.NEWTON_NODES, 0
    try:
        found = signs.Tree(torch.as_tensor(X), torch.as_tensor(c)).run(
            0.0, 1e-3, deadline=float("inf"), batch=64, quadratic=False
        )
    finally:
        signs.NEWTON_NODES = usual
    side, bound = writing.write(found.log, X, c, np.zeros(4), np.zeros((0, 4), dtype=int), 1.0)
    assert any(isinstance(leaf, dict) and "empty" in leaf for leaf in side["leaves"])
    sides, bounds, _ = cone_sides(X, c, tol=1e-2, max_nodes=500)
    proof = {"type": "mixed", "sides": [{"sign": 1, "type": "tree"} | side, {"type": "cones"} | sides[1]]}
    data = {"n": 26, "d": 4, "bias": False, "data": {"name": "thin", "sha256": verify.data_hash(X, y)}}
    upper = max(bound, bounds[1]) * (1 + 1e-6)
    most = {"lower": 0.0, "upper": upper, "dual": q.tolist(), "proof": proof, "status": "time-limit", "primal": None}
    return [("f1 mixed", seal(payload | data | most), X, y)]


def hand_made():
    import torch

    before = {name: (payload, X, y) for name, payload, X, y in written_before()}
    out = []
    payload, X, y = before["f1 plane bias"]
    Z, q = np.hstack([X, np.ones((len(X), 1))]), np.array(payload["dual"])
    norm = 0.5 * (np.linalg.norm((q * y) @ Z) + max(q[y == s] @ np.linalg.norm(Z[y == s], axis=1) for s in (1, -1)))
    fields = {"upper": float(norm) * 1.001, "proof": {"type": "norm"}, "status": "time-limit"}
    out.append(("f1 norm", seal(payload | fields), X, y))
    for name in ("f1 plane bias", "f1 cube", "l1-regression bias"):  # their trees' bounds in three dimensions
        payload, X, y = before[name]
        proof = {k: v for k, v in payload["proof"].items() if k != "sides"} | {"type": "enumeration"}
        out.append((f"{name} sphere", seal(payload | {"proof": proof}), X, y))
    payload, X, y = before["f1 quadratic"]
    found = pair_up(torch.as_tensor(X), torch.as_tensor(y), float("inf"))
    proof, upper = found.write(torch.as_tensor(X), 1.0)
    pairing = payload | {"upper": upper, "proof": proof, "dual": found.weights(len(X)).tolist(), "status": "time-limit"}
    out.append(("f1 pairing", seal(json.loads(json.dumps(pairing))), X, y))
    *_, best = products.solve(torch.tensor(X), products.Goal.margin(torch.tensor(y)), float("inf"))
    proof, upper = products.write(best, np.arange(len(X)), 1.0)
    multiplied = payload | {"upper": upper, "proof": proof, "dual": best.q.tolist(), "status": "time-limit"}
    out.append(("f1 products", seal(json.loads(json.dumps(multiplied))), X, y))
    payload, X, y = before["f1 srelu 3"]
    q = np.array(payload["dual"])
    tops = [float(np.linalg.eigvalsh((X * (q * (s * y > 0))[:, None]).T @ X)[-1]) * (1 + 1e-12) for s in (1, -1)]
    eigen = {"type": "eigen", "sides": [{"sign": s, "lam": top} for s, top in zip((1, -1), tops)]}
    out.append(("f1 eigen", seal(payload | {"upper": max(tops), "proof": eigen, "status": "time-limit"}), X, y))
    out += cones_made(before) + mixed_made(before)
    payload, X, y = before["f1-multiclass 3"]
    out.append(("multi norm", seal(payload | {"upper": 10.0, "proof": {"type": "norm"}, "status": "time-limit"}), X, y))
    return out


def question(payload):
    """What a certificate is about: two with the same answer here, for the same data, bound the same number."""
    extra, kind = payload.get("extra") or {}, payload.get("kind")
    fields = {
        "frozen": ["directions"],
        "rf": ["directions"],
        "bn": ["part", "width", "eps", "displacement", "seed", "trial", "directions", "a"],
        "ntk": ["transport", "part"],
        "projected": ["rank"],
        "collapse": ["strict"],
        "tangent": ["gram"],
        "f2": ["gram"] if payload.get("convention") == "gram" else [],
        "f1-optimum": ["loss", "weight_decay", "output_bias", "weights"],
        "f2-optimum": ["loss", "weight_decay", "output_bias", "weights"],
        "f1-multiclass-optimum": ["loss", "weight_decay", "output_bias", "weights"],
        "f1-multitarget-optimum": ["loss", "weight_decay", "output_bias", "weights"],
    }
    convention = payload.get("convention") if kind in ("f2", "linear", "linear-multiclass") else None
    what = [kind, convention, payload.get("activation") if kind != "linear" else None, payload.get("bias")]
    return json.dumps(what + [extra.get(name) for name in fields.get(kind, [])], default=str)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a payload, from the whole to its single values."""
    yield prefix
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*prefix, key))
