"""The types every room shares: Dataset, Measure, Certificate, Trajectory, and the one exception for bad input.

All are frozen dataclasses that store numpy float64 arrays and print as one readable line.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin import kernels, kinds, notebooks, references, saved
from widemargin import verify as exact
from widemargin.dataset import Dataset as Dataset
from widemargin.dataset import as_dataset, kept, listed
from widemargin.disk import write_atomically as write_atomically
from widemargin.errors import InputError as InputError  # every room takes them from here
from widemargin.errors import NotRecorded, as_path, brief
from widemargin.errors import show as show
from widemargin.saved import FORMAT as FORMAT
from widemargin.spaces import Space, as_numbers, as_space, extend

__all__ = ["Certificate", "Dataset", "InputError", "Measure", "Trajectory"]

# How a margin in M1 (signed unit mass on unit inner weights) reads in the conventions of the papers (docs/notation.md): the only
# place that knows these factors. Only for activations of degree 1: networks of squared ReLUs are 3-homogeneous and have none.
F1_CONVERSIONS = {
    "M2": 0.5,  # all parameters in one Euclidean norm: min_i y_i f(x_i) / ||W||^2
    "M3": 0.5,  # (a, b) on one sphere; the papers add a bias coordinate here
    "M4": 0.5,  # product parameterisation: min_i y_i h(x_i) / (||a||^2 + ||b||^2)
    "M5": 1.0,  # l1-normalised outer weights
    "M6": 0.5,  # balanced (a, b) directions
}
TOGETHER = 2**23  # features of a network's neurons at a time
MULTICLASS_CONVERSIONS = {"MT2": 0.5}  # of several classes: MT's gamma*, all parameters in one Euclidean norm


# What a margin is divided by, in one line each.
CONVENTIONS = {
    "M1": "sum of |mass| at most 1 on unit inner weights",
    "M7": "unit ball of the random feature kernel, uniform probability on the sphere",
    "M8": "transports of Gaussian initial weights, at most 1 everywhere and 0 beyond norm 2",
    "M8-l2": "transports of Gaussian initial weights, mean square at most 1: the unit ball of the NTK kernel",
    "gram": "unit ball of the space of a kernel that was given by its matrix",
    "tangent": "unit Euclidean norm of a step in all parameters of a network",
    "norm": "least norm of a function that takes the targets",
    "objective": "mean loss + (weight decay / 2) |weights|^2 of the best network",
    "M9": "unit outer weights on batch-normalised features, over sqrt(m)",
    "M11": "unit Euclidean norm of u",
    "M11-l1": "sum of the entries of u, without their signs, at most 1",
    "M11-linf": "entries of u between -1 and 1",
    "MT2": "all parameters in one Euclidean norm; own score minus the largest other",
    "MT2-linear": "unit Frobenius norm of U; own score minus the largest other",
    "MT2-linear-max": "entries of U between -1 and 1; own score minus the largest other",
    "MT2-linear-l1": "sum of the entries of U, without their signs, at most 1; own score minus the largest other",
    "MT2-linear-spectral": "largest singular value of U at most 1; own score minus the largest other",
    "MT2-linear-nuclear": "sum of the singular values of U at most 1; own score minus the largest other",
    "NC": "radius of the cones over their number: a lower bound of the F1 margin (M1)",
    "distance": "smallest distance between the classes after a projection of rank r",
}


@dataclass(frozen=True)
class Measure:
    """f(x) = sum_j mass_j phi(theta_j . x), phi that of `activation`; with `bias`, theta's last entry meets a constant 1.

    `norm` is sum_j |mass_j| ||theta_j||^k, k the degree of phi: the variation norm of f. Solvers return unit theta.

    A network of any width as a signed measure: theta (m, d), or (m, d + 1) with `bias`, and the mass (m,) of each neuron.
    Margins are in convention M1: min_i y_i f(x_i) / norm.

    >>> import widemargin as wm
    >>> xor = wm.Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    >>> net = wm.Measure(xor.X, xor.y / 4)  # a neuron at each point
    >>> net(xor.X).tolist(), round(net.norm, 12) == round(2**0.5, 12)
    ([0.5, 0.5, -0.5, -0.5], True)
    >>> abs(net.margin(xor) - 2**0.5 / 4) < 1e-12
    True
    """

    theta: np.ndarray  # (m, d) or (m, d + 1)
    mass: np.ndarray  # (m,)
    activation: str = "relu"
    bias: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", self.space.activation)  # its usual form, or an InputError
        object.__setattr__(self, "theta", np.atleast_2d(np.asarray(self.theta, dtype=np.float64)))
        object.__setattr__(self, "mass", np.asarray(self.mass, dtype=np.float64))

    @property
    def space(self) -> Space:
        """The neurons that it is made of."""
        return as_space(self.activation, bias=self.bias)

    def features(self, X: ArrayLike) -> np.ndarray:
        """phi(theta_j . x_i): (n, m)."""
        return self.space.phi(extend(X, bias=self.bias) @ self.theta.T)

    def __call__(self, X: ArrayLike) -> np.ndarray:
        points, phi = extend(X, bias=self.bias), self.space.phi
        rows = max(1, TOGETHER // max(1, len(self.mass)))  # the features of all points may not fit into memory
        starts = range(0, len(points), rows)
        parts = [phi(points[start : start + rows] @ self.theta.T) @ self.mass for start in starts]
        return np.concatenate(parts or [np.zeros(0)])  # (n,)

    @property
    def norm(self) -> float:
        """sum_j |mass_j| ||theta_j||^k."""
        return float(np.abs(self.mass) @ np.linalg.norm(self.theta, axis=1) ** self.space.degree)

    def margin(self, data: Dataset | ArrayLike, y: ArrayLike | None = None) -> float:
        """min_i y_i f(x_i) / norm, straight from the definition (convention M1); of `data`, or of points X and labels `y`."""
        data = as_dataset(data, y).labelled("signs")
        return float((data.signs() * self(data.X)).min()) / self.norm

    def normalized(self) -> Measure:
        """The same function with unit theta (zero atoms dropped)."""
        size = np.linalg.norm(self.theta, axis=1)
        keep = (size > 0) & (self.mass != 0)
        theta = self.theta[keep] / size[keep, None]
        return Measure(theta, self.mass[keep] * size[keep] ** self.space.degree, self.activation, self.bias)

    def to_network(self) -> tuple[np.ndarray, np.ndarray]:
        """Balanced two-layer weights (W (m, k), a (m,)) with sum_j a_j phi(W_j . x) = f(x) and |a_j| = ||W_j||.

        Then ||W||^2 + ||a||^2 = 2 norm, so the network's margin in convention M2 is half of the measure's in M1
        (MT Theorem 3.3, CB Proposition 9).
        """
        if self.space.degree != 1:
            raise InputError(
                "to_network needs activation relu: a squared ReLU unit has no balanced two-layer form of degree 2"
            )
        unit = self.normalized()
        size = np.sqrt(np.abs(unit.mass))
        return unit.theta * size[:, None], np.sign(unit.mass) * size

    @staticmethod
    def from_network(W: ArrayLike, a: ArrayLike, *, bias: bool = False) -> Measure:
        """The measure of x -> sum_j a_j relu(W_j . x): mass a_j ||W_j|| at W_j / ||W_j||."""
        return Measure(np.asarray(W), np.asarray(a), "relu", bias).normalized()

    def __str__(self) -> str:
        return f"{neurons(len(self.mass))}, norm {self.norm:.6g}"

    __repr__ = brief


@dataclass(frozen=True)
class Certificate:
    """lower <= margin <= upper.

    `lower` is the margin of `primal`, evaluated. `upper` is what the dual weights `dual` (n,) prove with `proof`;
    `bound` names the argument, and `proved` is false where no rigorous bound was found. Of a smallest norm and of a least
    objective it is `lower` that is proved and `upper` that is evaluated. docs/certificates.md describes the saved form.

    `kind` names the margin, `convention` what it is divided by (docs/notation.md; `bounds("M2")` converts). `status` says how the
    search ended, `reason` why where it failed. It is about `n` points of R^d with the hash `data_sha256`, called `data_name`, and
    networks of `activation`, with `bias` or without; `data_called` says what labels and columns were called. `extra` has what
    other kinds need beside (alpha, u, ...), `stats` seconds, seed, tol, date and version.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    >>> cert = wm.margins.f1(data)
    >>> cert.status, cert.lower <= 2**0.5 / 4 <= cert.upper, cert.verify(data).ok
    ('certified', True, True)
    >>> cert.save("cert.json")
    >>> wm.Certificate.load("cert.json").bounds("M2") == (cert.lower / 2, cert.upper / 2)
    True
    """

    kind: str
    lower: float
    upper: float
    dual: np.ndarray
    # certified, time-limit, stalled, interrupted, not-separable, rounding, no-interpolation, found, not-found
    status: str
    proved: bool
    bound: str
    n: int
    d: int
    primal: Measure | None = None
    bias: bool = False
    activation: str = "relu"
    convention: str = "M1"
    data_sha256: str = ""
    data_name: str = "data"
    data_called: Mapping[str, Any] = field(
        default_factory=dict
    )  # labels, label, columns, standardized (`Dataset.called`)
    reason: str = ""
    proof: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)  # what the primal of other kinds needs (alpha, u, ...)
    stats: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "version" not in self.stats:  # it is new, and not read from a file
            facts = {
                "version": sys.modules["widemargin"].__version__,
                "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            }
            object.__setattr__(self, "stats", {**self.stats, **facts})

    @property
    def gap(self) -> float:
        """(upper - lower) / upper: 0 when exact, 1 when nothing is known below."""
        if not math.isfinite(self.upper):
            return 1.0
        return max(0.0, (self.upper - self.lower) / self.upper) if self.upper > 0 else 0.0

    @property
    def atoms(self) -> int:
        """Neurons of the network, 0 where it has none."""
        if self.primal is None:
            return len(self.extra.get("outer", ())) if self.convention == "objective" else 0
        return len(self.primal.mass)

    def bounds(self, convention: str | None = None) -> tuple[float, float]:
        """(lower, upper) in a convention of docs/notation.md; in the certificate's own when none is given.

        Of ReLU networks, leaky or not, M1 is converted to M2 ... M6, and for several classes to MT2. An InputError where there
        is no factor.
        """
        factors = self._factors()
        if convention is not None and not (isinstance(convention, str) and convention in factors):
            raise InputError(
                f"a certificate of kind {self.kind} ({self.convention}, {self.activation}) has no bounds in convention "
                f"{str(convention)[:40]!r}, only in {', '.join(factors)}"
            )
        factor = 1.0 if convention is None else factors[convention]
        return factor * self.lower, factor * self.upper

    def _factors(self) -> dict[str, float]:
        """What the bounds are multiplied by for each convention."""
        others: dict[str, float] = {}
        if self.convention == "M1" and as_space(self.activation).degree == 1:
            others = {"f1": F1_CONVERSIONS, "frozen": F1_CONVERSIONS, "f1-multiclass": MULTICLASS_CONVERSIONS}.get(
                self.kind, {}
            )
        return {self.convention: 1.0, **others}

    @property
    def conversions(self) -> dict[str, dict[str, float]]:
        """The same margin of two classes in the conventions M2 ... M6, as {"M2": {"lower": ..., "upper": ...}, ...}."""
        names = [name for name in self._factors() if name in F1_CONVERSIONS]
        return {name: dict(zip(("lower", "upper"), self.bounds(name))) for name in names}

    def function(self, X: ArrayLike, data: Dataset | None = None) -> np.ndarray:
        """Values f(x) (n,) at raw points X (n, d) of the function whose margin is `lower`; (n, K) of several outputs.

        A certificate about standardised points takes such points: `data_called["standardized"]` has `mean` and `scale`.

        Its size in the certificate's convention is 1, so that min_i y_i f(x_i) is `lower` up to rounding. A certificate of a
        smallest norm gives its interpolant as it is, one of a least objective its network with the output bias. Kinds with
        weights on the data (f2, ntk with transport l2, l2-regression, f2-optimum), and bn, whose normalisation is that of the
        data, need `data`. An InputError where the certificate holds no function.
        """
        names = [kept(name) for name in getattr(X, "columns", ()) if isinstance(name, str)]
        known = list(self.data_called.get("columns", ()))
        if names != known and len(names) == len(known):
            raise InputError(
                f"X has the columns {listed(names)}, and this certificate {listed(known)}; give those, in that order"
            )
        X = as_numbers(f"X, an array (n, {self.d}),", X)
        if X.ndim != 2 or X.shape[1] != self.d:
            raise InputError(f"points must have shape (n, {self.d}) for this certificate, not {X.shape}")
        why = self._no_function()
        if why:
            raise InputError(f"this certificate of kind {self.kind} holds no function{why}")
        if self.primal is not None:
            if kinds.quantity(self.convention) != "margin":
                return self.primal(X) + float(self.extra.get("offset", 0.0))
            return self.primal(X) / self.primal.norm
        if self.kind in _STORED:
            return _STORED[self.kind](self, X)
        data = None if data is None else self._own(as_dataset(data))
        if data is None or data.sha256() != self.data_sha256:
            lacks = "give" if data is None else f"{data.name} is other data; give"
            raise InputError(f"the function of kind {self.kind} is made of the data's points; {lacks} {self.data_name}")
        return _ON_DATA[self.kind](self, X, data)

    def _own(self, data: Dataset) -> Dataset:
        """The data with labels as this certificate has them, and standardised if it is about such."""
        data = data.labelled(kinds.labels(self.kind, self.extra))
        known = self.data_called.get("standardized")
        if known is None or data.standardized is not None or data.sha256() == self.data_sha256:
            return data
        return data.rescale(known["mean"], known["scale"])

    def _no_function(self) -> str:
        """Why there is no function, as the end of a sentence; empty where there is one."""
        if self.kind == "projected":
            return ", only a projection"
        if self.extra.get("kernel") in ("given", "jacobian"):
            return ", only weights for a kernel of which it knows no values beside those between the data's points"
        if self.bound == "confidence":
            return ", since its transport moves infinitely many random neurons; transport l2 has one"
        known = self.lower > 0
        if kinds.quantity(self.convention) != "margin":
            known = self.status != "no-interpolation"
        if known and (self.primal is not None or self.kind in _STORED or self.kind in _ON_DATA):
            return ""
        return f" ({self.status})"

    def summary(self) -> dict[str, Any]:
        """What `widemargin margin --json` prints; `conversions` are those of `lower`."""
        return {
            "kind": self.kind,
            "lower": self.lower,
            "upper": self.upper,
            "gap": self.gap,
            "status": self.status,
            "proved": self.proved,
            "bound": self.bound,
            "convention": self.convention,
            "n": self.n,
            "d": self.d,
            "bias": self.bias,
            "activation": self.activation,
            "atoms": self.atoms,
            "seconds": self.stats.get("seconds"),
            "seed": self.stats.get("seed"),
            "conversions": {name: both["lower"] for name, both in self.conversions.items()},
            "reason": self.reason,
        }

    def payload(self) -> dict[str, Any]:
        """The saved form (docs/certificates.md), with its digest."""
        body = self.summary() | {
            "format": FORMAT,
            "data": {"name": self.data_name, "sha256": self.data_sha256, **self.data_called},
            "tol": self.stats.get("tol"),
            "run": {key: self.stats[key] for key in ("version", "date") if self.stats.get(key) is not None},
            "primal": None
            if self.primal is None
            else {"theta": self.primal.theta.tolist(), "mass": self.primal.mass.tolist()},
            "dual": np.asarray(self.dual).tolist(),
            "proof": dict(self.proof),
            "extra": {
                name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in self.extra.items()
            },
        }
        if self.stats.get("version", "") is None:  # written by a version whose digest covers the seconds
            del body["run"]
        return body | {"digest": exact.digest(body)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON, gzipped when the name ends in .gz, to a temporary name first."""
        path = Path(as_path(path))
        text = json.dumps(self.payload(), allow_nan=False).encode()
        write_atomically(path, gzip.compress(text, 6) if path.suffix == ".gz" else text)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Certificate:
        """A certificate that `save` wrote, complete and unchanged; `stats["path"]` says where it was read.

        Nothing is proved by reading it: `verify` does that. A file of another form, or changed since, raises an InputError.
        """
        return from_payload(saved.read(as_path(path)), str(path))

    def verify(self, data: Dataset | ArrayLike, y: ArrayLike | None = None) -> exact.Verdict:
        """Re-check both bounds in exact rational arithmetic, from the saved form alone, for `data` or points X and labels `y`."""
        data = as_dataset(data, y).labelled(kinds.labels(self.kind, self.extra))
        return exact.check(json.loads(json.dumps(self.payload())), data.X, data.y)

    @property
    def what(self) -> str:
        """What the bounds are about, in words: "largest margin (F1)", "least training objective"."""
        named = kinds.label(self.kind)
        return f"largest margin ({named})" if kinds.quantity(self.convention) == "margin" else named

    @property
    def proof_in_words(self) -> str:
        """Whether the bound that needs a proof has one."""
        if self.proved:
            return "proved"
        chance = self.extra.get("confidence") if self.proof.get("type") == "samples" else None
        if chance is not None:
            return f"NOT proved: probability {chance!r}"
        return f"{kinds.argued(self.convention)} bound not proved"

    @property
    def status_in_words(self) -> str:
        """How the search ended, in words."""
        held = self.proved and self.status in ("time-limit", "stalled", "interrupted", "rounding")
        near = self.status == "not-separable" and self.upper > 0  # the margin is at most that, which need not be 0
        return kinds.ENDED.get(self.status, self.status) + ", up to rounding" * near + "; both bounds hold" * held

    def __str__(self) -> str:
        line = f"{self.what} in [{self.lower:.7g}, {self.upper:.7g}], gap {self.gap:.2g}"
        size = f", {neurons(self.atoms)}" if self.atoms else ""
        ended = "" if self.status == "certified" else f"; {self.status_in_words}"
        return f"{line}{size}, {self.proof_in_words}{ended}"

    __repr__ = brief

    def _repr_html_(self) -> str:
        """What notebooks show: the interval drawn, how the search ended, how to save it."""
        facts = {
            "bounds": f"{self.lower:.7g} to {self.upper:.7g} (gap {self.gap:.2g})",
            "proof": self.proof_in_words,
            "search": self.status_in_words,
            "network": neurons(self.atoms) if self.atoms else "",
            "data": f"{self.data_name[:200]}: {self.n} points of {self.d} features",
            "size": CONVENTIONS.get(self.convention, self.convention),
            "because": self.reason,
        }
        note = 'save it: cert.save("certificate.json")   check it: cert.verify(X, y)   cite it: print(cert.cite())'
        return notebooks.card(self.what, notebooks.interval(self.lower, self.upper), facts, note)

    def cite(self) -> str:
        """BibTeX: widemargin in the version that made this certificate, with its digest, and the papers behind what it bounds."""
        digest, version = self.payload()["digest"], str(self.stats.get("version") or "")
        date = str(self.stats.get("date") or "")
        name = "".join(c if c.isalnum() or c in " .,:=-+" else "-" for c in self.data_name[:80])
        note = f"{self.what} of {name} in [{self.lower:.9g}, {self.upper:.9g}]; certificate of {date[:10]}, SHA-256 {digest}"
        own = references.software(version, date, note)
        return "\n\n".join([own, *(references.PAPERS[key].bibtex() for key in references.BEHIND.get(self.kind, ()))])


def neurons(count: int) -> str:
    """So many neurons, in words."""
    return f"{count} neuron{'' if count == 1 else 's'}"


PLAIN = ("kind", "lower", "upper", "status", "proved", "bound", "n", "d", "bias", "activation", "convention")


def from_payload(saved: Mapping[str, Any], path: str) -> Certificate:
    """A certificate from its saved form, as `saved.read` gives it."""
    kept, primal = saved["dual"], None
    whole = any(type(w) is int and abs(w) > 2**53 for w in kept)
    dual = np.array(kept, dtype=object if whole else np.float64)  # weights of a relation may be large integers
    if saved["primal"] is not None:
        mass = np.array(saved["primal"]["mass"], dtype=np.float64)
        shape = len(mass), saved["d"] + saved["bias"]
        theta = np.array(saved["primal"]["theta"], dtype=np.float64) if len(mass) else np.zeros(shape)
        primal = Measure(theta, mass, saved["activation"], saved["bias"])
    plain: dict[str, Any] = {key: saved[key] for key in PLAIN}
    plain |= {key: float(saved[key]) for key in ("lower", "upper")}  # a file may have whole numbers there
    return Certificate(
        **plain,
        dual=dual,
        primal=primal,
        data_sha256=saved["data"]["sha256"],
        data_name=saved["data"]["name"],
        data_called={key: value for key, value in saved["data"].items() if key not in ("name", "sha256")},
        reason=saved.get("reason", ""),
        proof=saved["proof"],
        extra=saved["extra"],
        stats={key: saved.get(key) for key in ("seconds", "seed", "tol")}
        | {"path": path}
        | {key: saved.get("run", {}).get(key) for key in ("version", "date")},
    )


# ---------------------------------------------------------------- functions of certificates without a `primal`


def _array(cert: Certificate, name: str) -> np.ndarray:
    return np.asarray(cert.extra[name], dtype=np.float64)


def _linear(cert: Certificate, X: np.ndarray) -> np.ndarray:
    u = _array(cert, "u" if cert.kind == "linear" else "U")
    norm = cert.extra.get("norm", "l2")
    if norm in ("spectral", "nuclear"):
        size = np.linalg.norm(u, 2 if norm == "spectral" else "nuc")
    else:
        size = np.linalg.norm(u.ravel(), {"l1": 1, "linf": np.inf, "max": np.inf}.get(norm, 2))
    return extend(X, bias=cert.bias) @ (u / size).T


def _rf(cert: Certificate, X: np.ndarray) -> np.ndarray:
    V, a = _array(cert, "directions"), _array(cert, "a")
    unit = Measure(V / np.linalg.norm(V, axis=1, keepdims=True), a, cert.activation, cert.bias)
    return unit(X) / (math.sqrt(len(a)) * float(np.linalg.norm(a)))


def _several(cert: Certificate, X: np.ndarray) -> np.ndarray:
    theta, outer = _array(cert, "theta"), _array(cert, "outer")
    if cert.convention == "objective":
        offset = _array(cert, "offset")
        return (
            (extend(X, bias=cert.bias) @ theta.T).clip(0) @ outer + offset
            if len(theta)
            else np.tile(offset, (len(X), 1))
        )
    size = float(np.linalg.norm(theta, axis=1) @ np.linalg.norm(outer, axis=1))
    return (extend(X, bias=cert.bias) @ theta.T).clip(0) @ (outer / size)


def _collapse(cert: Certificate, X: np.ndarray) -> np.ndarray:
    """The network of LR Assumption 3.1: one neuron for each cone."""
    beta, signs = _array(cert, "beta"), _array(cert, "signs")
    return (X @ (beta / np.linalg.norm(beta, axis=1, keepdims=True)).T).clip(0) @ (signs / len(signs))


def _expansion(cert: Certificate, X: np.ndarray, data: Dataset) -> np.ndarray:
    """sum_j b_j k(x_j, .), an interpolant or optimum as it is, else of unit norm; units are powers of two: nothing overflows."""
    points = extend(data.X, bias=cert.bias)
    shift = math.frexp(float(np.abs(points).max()))[1]
    points, X = np.ldexp(points, -shift), np.ldexp(extend(X, bias=cert.bias), -shift)
    space = as_space(cert.activation)
    degree = space.degree

    def kernel(X: np.ndarray, Z: np.ndarray | None = None) -> np.ndarray:
        if cert.kind == "ntk":
            return kernels.ntk(X, Z, cert.extra["part"])
        return space.kernel(X, Z)

    if cert.kind == "l2-regression":  # b scales like X^(-2 degree)
        return kernel(X, points) @ np.ldexp(np.asarray(cert.dual, dtype=np.float64), 2 * degree * shift)
    if cert.kind == "f2-optimum":
        values = kernel(X, points) @ np.ldexp(_array(cert, "alpha"), 2 * degree * shift)
        return values + float(cert.extra.get("offset", 0.0))
    b = _array(cert, "alpha") * data.y
    points, b = points[b != 0], b[b != 0]
    return np.ldexp(kernel(X, points) @ (b / math.sqrt(float(b @ kernel(points) @ b))), degree * shift)


def _normalised(cert: Certificate, X: np.ndarray, data: Dataset) -> np.ndarray:
    """The sum of the two batch-normalised networks (BN Assumption 1.2) whose margins are gamma_a and gamma_c."""
    extra, m = cert.extra, int(cert.extra["width"])
    if extra.get("move") == "omitted":
        raise InputError("this certificate of kind bn does not hold its moved inner weights, as they are too many")
    if "directions" in extra:
        V, a = _array(cert, "directions"), _array(cert, "a")
    else:  # drawn with its seed, the outer weights first
        rng = np.random.default_rng([extra["seed"], extra["trial"]])
        a, V = rng.standard_normal(m) / np.sqrt(m), rng.standard_normal((m, cert.d)) / np.sqrt(cert.d)
    mean = data.X.mean(axis=0)
    N = np.sqrt((((data.X - mean) @ V.T) ** 2).mean(axis=0) + extra["eps"])  # (m,)
    omega = V / np.where(N > 0, N, np.inf)[:, None]
    if extra.get("move") is not None:
        omega = omega + _array(cert, "move")
    outer = np.zeros(m)
    for name, sign in (("a", np.ones(m)), ("c", a)):
        if f"weights_{name}" in extra:
            u = _array(cert, f"weights_{name}")
            outer += sign * u / (float(np.linalg.norm(u)) or 1.0)
    return ((X - mean) @ omega.T).clip(0) @ (outer / math.sqrt(m))


_STORED = {
    "linear": _linear,
    "linear-multiclass": _linear,
    "rf": _rf,
    "f1-multiclass": _several,
    "f1-multiclass-optimum": _several,
    "f1-multitarget-optimum": _several,
    "collapse": _collapse,
}
_ON_DATA = {
    "f2": _expansion,
    "ntk": _expansion,
    "l2-regression": _expansion,
    "f2-optimum": _expansion,
    "bn": _normalised,
}


@dataclass(frozen=True)
class Trajectory:
    """What training recorded: T records of B trials.

    `t` are the steps (or times) at which records were taken, `records` arrays (T, B, ...) by name; `traj["margin_M2"]` is
    one of them. A trial that has ended keeps its last values in later rows. `final` holds the parameters at the end,
    `status` one word per trial: finished, reached (the event asked for), diverged, or running where training was
    interrupted. `config` is all that is needed to run it again.

    Shapes: t (T,), records (T, B, ...), final (B, ...). `notes` are sentences about what happened, `stats` steps and seconds.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> risk = np.array([[0.7, 0.7], [0.5, 0.3]])  # two records of two trials
    >>> run = wm.Trajectory(np.array([0, 10]), {"risk": risk}, {"a": np.ones((2, 8))}, ("finished", "reached"))
    >>> print(run)
    2 trials (1 finished, 1 reached), 2 records, last risk 0.4 (median)
    >>> run.last(trial=1)
    {'trial': 1, 'status': 'reached', 'risk': 0.3}
    """

    t: np.ndarray  # (T,)
    records: Mapping[str, np.ndarray]  # (T, B, ...)
    final: Mapping[str, np.ndarray]  # (B, ...)
    status: tuple[str, ...]  # (B,)
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.records:
            raise NotRecorded(f"nothing called {name!r} was recorded; there is {', '.join(self.records)}")
        return self.records[name]

    @property
    def trials(self) -> int:
        """How many networks were trained."""
        return len(self.status)

    @property
    def interrupted(self) -> bool:
        """Whether a trial had not ended."""
        return "running" in self.status

    def last(self, trial: int = 0) -> dict[str, Any]:
        """The last records of one trial that are single numbers, and its status."""
        record: dict[str, Any] = {"trial": trial, "status": self.status[trial]}
        for name, values in self.records.items():
            if values.ndim == 2 and len(values):
                record[name] = values[-1, trial].item()
        return record

    def summary(self) -> dict[str, Any]:
        """What `widemargin train --json` prints: the last records of every trial."""
        known = ("loss", "seed", "data", "net", "rule", "device", "dtype", "bias")
        return {
            "trials": [self.last(trial) for trial in range(self.trials)],
            "steps": self.stats.get("steps"),
            "seconds": self.stats.get("seconds"),
            "interrupted": self.interrupted,
            "notes": list(self.notes),
        } | {key: self.config[key] for key in known if key in self.config}

    def __str__(self) -> str:
        counts = {word: self.status.count(word) for word in dict.fromkeys(self.status)}
        how = ", ".join(f"{count} {word}" for word, count in counts.items())
        line = f"{self.trials} trial{'s' * (self.trials > 1)} ({how}), {len(self.t)} records"
        for name in ("margin_M2", "margin_M1", "risk"):
            if name in self.records and len(self.t):
                ends = np.asarray(self.records[name])[-1]
                return f"{line}, last {name} {np.median(ends):.6g}" + (" (median)" if self.trials > 1 else "")
        return line

    __repr__ = brief

    def _repr_html_(self) -> str:
        """What notebooks show: where the trials ended."""
        title = f"{self.trials} trial{'s' * (self.trials > 1)}: {', '.join(dict.fromkeys(self.status))}"
        ends = [(name, value) for name, value in self.last().items() if name not in ("trial", "status")][:12]
        facts = {"records": len(self.t)} | {f"last {name}": f"{value:.6g}" for name, value in ends}
        return notebooks.card(
            title, "", facts, "draw it: widemargin.plots.trajectory(run)   keep it: train(..., keep=folder)"
        )


def check_device(device: str) -> None:
    """InputError where torch has no such device."""
    import torch

    try:
        known = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        known = None
    if known is None or known.type not in ("cpu", "cuda"):
        raise InputError(f"device must be cpu, cuda or cuda:NUMBER, not {show(device)}")
    there = torch.cuda.device_count()
    if known.type == "cuda" and not there:
        raise InputError(f"device {device}: torch finds no CUDA device here; use cpu")
    if known.type == "cuda" and (known.index or 0) >= there:
        raise InputError(f"device {device}: torch finds {there} CUDA device{'s' * (there > 1)} here, numbered from 0")


def content_hash(*arrays: np.ndarray) -> str:
    """A short hash of arrays, to key caches by content."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:16]
