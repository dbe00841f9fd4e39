"""The frame of a certificate: format, digest, data, bounds, status, and the verdict (docs/certificates.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .batchnorm import bn
from .collapse import collapse
from .exact import root_down, squares
from .kernels import f2, tangent
from .multiclass import NORMS, f1_multiclass, linear_multiclass
from .networks import LINEAR, f1, frozen, linear, rf
from .optimum import optimum
from .projected import projected
from .reading import (
    MULTICLASS,
    OPTIMA,
    REGRESSION,
    SEVERAL,
    Problem,
    Refused,
    Rules,
    activation_of,
    any_targets,
    classes,
    listed,
    need,
    number,
    read_problem,
    rows_of,
    show,
    vector,
)
from .regression import ESTIMATE, regression
from .transport import ntk

FORMAT = "widemargin-certificate-1"

# The rule of each kind, and the conventions in which its bounds may be stated; the first is the usual one.
KINDS: dict[str, tuple[Callable[[Problem, Mapping[str, Any]], Rules] | None, tuple[str, ...]]] = {
    "f1": (f1, ("M1",)),
    "frozen": (frozen, ("M1",)),
    "f2": (f2, ("M7", "gram")),
    "rf": (rf, ("M7",)),
    "bn": (bn, ("M9",)),
    "ntk": (ntk, ("M8", "M8-l2")),
    "tangent": (tangent, ("tangent",)),
    "linear": (linear, tuple(LINEAR.values())),
    "projected": (projected, ("distance",)),
    "collapse": (collapse, ("NC",)),
    "linear-multiclass": (linear_multiclass, tuple(NORMS.values())),
    "f1-multiclass": (f1_multiclass, ("M1",)),
    "l1-regression": (None, ("norm",)),
    "l2-regression": (None, ("norm",)),
    "f1-optimum": (None, ("objective",)),
    "f2-optimum": (None, ("objective",)),
    "f1-multiclass-optimum": (None, ("objective",)),
    "f1-multitarget-optimum": (None, ("objective",)),
}
# What a certificate is about, besides kind, convention and bias: fields of `extra` that its rule has read.
ABOUT = {
    "linear": ("norm",),
    "linear-multiclass": ("norm",),
    "bn": ("part", "width", "eps", "displacement"),
    "ntk": ("transport", "part"),
    "projected": ("rank",),
    "collapse": ("strict",),
    "f2": ("kernel",),
    "tangent": ("kernel",),
    "l2-regression": ("kernel",),
    "f1-optimum": ("loss", "weight_decay", "output_bias"),
    "f2-optimum": ("kernel", "loss", "weight_decay", "output_bias"),
    "f1-multiclass-optimum": ("loss", "weight_decay", "output_bias"),
    "f1-multitarget-optimum": ("loss", "weight_decay", "output_bias"),
}
# A word that says nothing about the bounds; the others are checked.
SILENT = ("time-limit", "stalled", "interrupted", "rounding")
# What the bounds of a sample are about, too.
SAMPLED = ("samples", "confidence", "seed")
# "not-separable" needs upper <= 2^-SEPARABLE of what the weighted points could reach; kernels round to 2^-26 or so.
SEPARABLE = 20

PROVED, CHANCE, UNPROVED, REFUSED = "proved exactly", "holds with a probability", "not proved", "refused"
EXIT = {PROVED: 0, REFUSED: 1, CHANCE: 3, UNPROVED: 4}  # exit statuses of the command verify; 2 is bad input


@dataclass(frozen=True)
class Verdict:
    """What the checker found.

    `answer`: "proved exactly"; "holds with a probability" (`probability`); "not proved": nothing is wrong, but a
    bound is an estimate, or is about a matrix that was not computed from the data; "refused": `failed` names the
    first item that does not hold. Only the first is `ok`, and true. `about` is the quantity in words; `checks` are
    (item, detail) pairs.

    >>> import widemargin as wm
    >>> verdict = wm.verify.Verdict("refused", "the upper bound", about="f1 margin")
    >>> bool(verdict), verdict.failed
    (False, 'the upper bound')
    """

    answer: str
    failed: str | None
    checks: tuple[tuple[str, str], ...] = ()
    about: str = ""
    probability: float | None = None

    @property
    def ok(self) -> bool:
        """Whether both bounds are proved exactly."""
        return self.answer == PROVED

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if self.answer == REFUSED:
            detail = next((d for name, d in self.checks if name == self.failed and d), "")
            return f"NOT verified, {self.failed}" + (f" ({detail})" if detail else "")
        said = "; ".join(f"{name} {detail}" for name, detail in self.checks if name.endswith("bound"))
        start = {
            PROVED: "verified exactly",
            CHANCE: f"NOT a proof, holds with probability at least {self.probability!r}",
            UNPROVED: "NOT proved",
        }
        return f"{start[self.answer]}: {self.about}: {said}"

    def to_dict(self) -> dict[str, Any]:
        """What `widemargin verify --json` prints of it."""
        return {
            "ok": self.ok,
            "answer": self.answer,
            "probability": self.probability,
            "about": self.about,
            "failed": self.failed,
            "checks": [list(pair) for pair in self.checks],
        }


def data_hash(X: ArrayLike, y: ArrayLike) -> str:
    r"""SHA-256 of "n d\n", X row by row, y; numbers as little-endian float64. It says which data a certificate is about.

    X is (n, d), y (n,) or (n, K); 64 hexadecimal digits.

    >>> import widemargin as wm
    >>> one = wm.verify.data_hash([[1.0, 2.0]], [1.0])
    >>> len(one), one == wm.verify.data_hash([[1, 2]], [1]), one == wm.verify.data_hash([[1.0, 2.0]], [-1.0])
    (64, True, False)
    """
    X, y = np.asarray(X, dtype="<f8"), np.asarray(y, dtype="<f8")
    state = hashlib.sha256(f"{X.shape[0]} {X.shape[1]}\n".encode())
    state.update(np.ascontiguousarray(X).tobytes())
    state.update(np.ascontiguousarray(y).tobytes())
    return state.hexdigest()


def digest(body: Mapping[str, Any]) -> str:
    """SHA-256 of the JSON text of all fields except `digest`, keys sorted, without spaces.

    Where there is a field `run`, that and `seconds` are left out: they are about the run, not about what it found.

    It tells a changed or damaged certificate `body` from the one that was saved: 64 hexadecimal digits.

    >>> import widemargin as wm
    >>> one = wm.verify.digest({"kind": "f1", "lower": 0.5})
    >>> len(one), one == wm.verify.digest({"lower": 0.5, "kind": "f1", "digest": one}), one == wm.verify.digest({"kind": "f1"})
    (64, True, False)
    """
    without = ("digest", "run", "seconds") if "run" in body else ("digest",)
    rest = {k: v for k, v in body.items() if k not in without}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def restored(payload: Any, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The points X (n, d) as the certificate `payload` has them: standardised by its numbers, where they are not already.

    y is (n,) or (n, K). Nothing is trusted: `check` does this with the points that it is given, compares the hash of what comes
    out, and says in its verdict where it is not what it was given.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> raw = wm.Dataset([[10.0, 3.0], [30.0, 3.5], [20.0, 1.0]], [1, -1, 1])
    >>> body = wm.margins.f1(raw.standardize()).payload()
    >>> X = wm.verify.restored(body, raw.X, raw.y)
    >>> np.array_equal(X, raw.standardize().X), wm.verify.check(body, X, raw.y).about
    (True, 'f1 margin (M1, activation relu, no bias)')
    >>> wm.verify.check(body, raw.X, raw.y).about  # of other points than these
    'f1 margin (M1, activation relu, no bias), of points that the certificate standardises'
    """
    data = payload.get("data") if isinstance(payload, Mapping) else None
    known = data.get("standardized") if isinstance(data, Mapping) else None
    if data is None or not isinstance(known, Mapping) or data_hash(X, y) == data.get("sha256"):
        return X
    try:
        mean, scale = (
            [float(number(v, name)) for v in listed(known.get(name), name, X.shape[1])] for name in ("mean", "scale")
        )
    except (Refused, OverflowError):
        return X
    with np.errstate(all="ignore"):
        return (X - np.array(mean)) / np.array(scale)


def check(payload: Mapping[str, Any], X: ArrayLike, y: ArrayLike, column: str = "", signs: bool = False) -> Verdict:
    """Check both bounds of a certificate for the data X (n, d), y (n,) or (n, K). Never raises on a malformed payload.

    `payload` is the saved form of a certificate, a mapping as JSON has it (docs/certificates.md, with the convention of its
    bounds). Where it was made for these points standardised, it is checked for those, and `about` says so. `column` is the one
    of a table that y is, where only the certificate says which: `about` names it, too; and that y is -1 and +1 in place of two
    other numbers, where `signs` says so.

    >>> import json
    >>> import widemargin as wm
    >>> data = wm.Dataset([[3.0, 4.0], [-3.0, -4.0]], [1, -1])
    >>> body = json.loads(json.dumps(wm.margins.linear(data).payload()))
    >>> wm.verify.check(body, data.X, data.y).answer
    'proved exactly'
    >>> body["upper"] = 4.0
    >>> body["digest"] = wm.verify.digest(body)
    >>> wm.verify.check(body, data.X, data.y).answer  # the margin is 5
    'refused'
    """
    done: list[tuple[str, str]] = []
    stage = ["format"]
    said = f", labels from column {column[:80]!a}" if column else ""
    said += ", targets -1 and +1 in place of the two numbers of the file" if signs else ""
    try:
        need(not (np.iscomplexobj(X) or np.iscomplexobj(y)), "shape: the data hold complex numbers")
        points = X
        if np.ndim(X) == 2:
            X = np.asarray(X, dtype=np.float64)
            points = restored(payload, X, np.asarray(y, dtype=np.float64))
        said += "" if points is X else ", of points that the certificate standardises"
        answer, about, chance = _run(payload, points, y, done, stage)
    except Refused as fail:
        return Verdict(REFUSED, fail.item, (*done, (fail.item, fail.detail)))
    except MemoryError:  # a certificate is not wrong because a machine is small
        raise
    except Exception as error:  # a payload may hold anything; the verdict names the item that could not be read
        item = f"{stage[0]}: malformed"
        return Verdict(REFUSED, item, (*done, (item, f"{type(error).__name__}: {str(error)[:200]}")))
    return Verdict(answer, None, tuple(done), about + said, chance)


def _run(
    payload: Mapping[str, Any], X: Any, y: Any, done: list[tuple[str, str]], stage: list[str]
) -> tuple[str, str, float | None]:
    """Every item in order; the answer, the quantity in words, and the probability with which the bounds hold, if not 1."""
    need(isinstance(payload, Mapping), "format: the certificate is not an object")
    need(payload.get("format") == FORMAT, "format", f"expected {FORMAT!r}")
    kind, activation, convention = payload.get("kind"), payload.get("activation"), payload.get("convention")
    need(isinstance(kind, str) and kind in KINDS, f"format: no rule to check kind {str(kind)[:40]!a}")
    assert isinstance(kind, str)
    rule, conventions = KINDS[kind]
    need(convention in conventions, f"format: kind {kind} is stated in convention {' or '.join(conventions)}")
    need(kind == "linear" or activation_of(activation) is not None, "format: unknown activation")
    need(type(payload.get("proved")) is bool, "format: proved is not true or false")
    need(isinstance(payload.get("status"), str), "format: status is not a text")
    need(isinstance(payload.get("extra"), Mapping), "format: extra is not an object")
    gram = payload["extra"].get("kernel") == "given"
    need(convention != "gram" or gram, "format: convention gram needs extra.kernel = given")
    done.append(("format", f"{FORMAT}, kind {kind}"))

    stage[0] = "digest"
    try:
        computed = digest(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused("digest", f"the certificate is not JSON ({error})") from None
    need(payload.get("digest") == computed, "digest", "the certificate was changed after it was written")
    done.append(("digest", computed))

    stage[0] = "shape"
    problem = read_problem(payload, X, y)
    what = "real targets" if any_targets(payload) else "labels -1 and +1"
    if kind in MULTICLASS:
        what = f"{classes(problem)} classes"
    if kind in SEVERAL:
        what = f"{len(problem.y[0])} real targets"
    done.append(("shape", f"n={payload['n']}, d={payload['d']}, bias={payload['bias']}, {what}"))

    stage[0] = "data hash"
    data = payload.get("data")
    need(isinstance(data, Mapping) and data.get("sha256") == data_hash(X, y), "data hash", "made for other data")
    done.append(("data hash", data_hash(X, y)))

    stage[0] = "lower <= upper"
    lower, upper = number(payload.get("lower"), "lower"), number(payload.get("upper"), "upper")
    need(upper >= 0, "lower <= upper: upper is negative", "margins, norms and objectives are at least 0")
    need(lower <= upper, "lower <= upper")
    if rule is None:
        done.append(("lower <= upper", f"[{show(lower)}, {show(upper)}]"))
        given = (optimum if kind in OPTIMA else regression)(problem, payload, lower, upper, done, stage)
        stage[0] = "status"
        done.append(("status", _status(payload, lower, upper, None)))
        return (PROVED if payload["proved"] and not given else UNPROVED), _about(payload), None
    unreachable = payload["status"] == "not-separable"
    need(lower == 0 or not unreachable, "lower <= upper: status not-separable with a nonzero lower bound")
    done.append(("lower <= upper", f"[{show(lower)}, {show(upper)}]"))

    stage[0] = "lower bound"
    rules = rule(problem, payload)
    if lower <= 0:
        done.append(("lower bound", f"{show(lower)}, which the zero function reaches"))
    else:
        done.append(("lower bound", f"{show(lower)} {rules.lower(lower)}"))

    stage[0] = "dual"
    if kind in MULTICLASS:
        rows, bits = rows_of(payload.get("dual"), classes(problem), "dual", len(problem.y))
        weights = rows.ravel().tolist()
    else:
        weights, bits = vector(payload.get("dual"), len(problem.y), "dual")
    for i, w in enumerate(weights):
        need(w >= 0, f"dual: entry {i} is negative")
    total = sum(weights)
    need(total > 0, "dual: all entries are zero")
    off = abs(Fraction(total, 1 << bits) - 1)
    need(unreachable or off <= Fraction(1, 10**9), "dual: the entries do not sum to one", f"off by {show(off)}")
    done.append(("dual", f"{sum(w > 0 for w in weights)} of {len(weights)} weights are positive"))

    stage[0] = "upper bound"
    estimate = not payload["proved"] and rules.chance is None
    if estimate:
        done.append(("upper bound", f"{show(upper)} {ESTIMATE}"))
    else:
        proof = payload.get("proof")
        need(
            isinstance(proof, Mapping) and proof.get("type") not in (None, "omitted"),
            "upper bound: the proof is not stored in this certificate",
        )
        assert isinstance(proof, Mapping)
        done.append(("upper bound", f"{show(upper)} {rules.upper(upper, weights, total, proof)}"))

    stage[0] = "status"
    reach = None
    if unreachable and not estimate:
        each = [sum(row) for row in rows.tolist()] if kind in MULTICLASS else weights
        reach = _reach(problem, each, rules.reach2)
    done.append(("status", _status(payload, lower, upper, reach)))
    if rules.chance is not None:
        return CHANCE, _about(payload), rules.chance
    return (UNPROVED if estimate or rules.given else PROVED), _about(payload), None


def _reach(problem: Problem, weights: list[int], reach2: Sequence[Fraction] | None) -> Fraction:
    """sum_i q_i times what a unit predictor can reach at point i, rounded down: the bound that the weights would prove
    if their points did not contradict each other."""
    if reach2 is None:
        reach2 = [Fraction(s, 4**problem.k) ** problem.degree for s in squares(problem.grid)]
    return sum((w * root_down(r) for w, r in zip(weights, reach2) if w), Fraction(0)) / sum(weights)


def _status(payload: Mapping[str, Any], lower: Fraction, upper: Fraction, reach: Fraction | None) -> str:
    """Whether the numbers bear out the status; `reach` is None where the upper bound was not checked."""
    status, kind = payload["status"], payload["kind"]
    gap = "gap 0" if lower == upper else f"gap {float(1 - max(lower, Fraction(0)) / upper):.2g}" if upper else "gap 1"
    if status in SILENT:
        return f"{status}, {gap}"
    if status == "certified":
        need(payload["proved"] or kind == "ntk", "status: certified, but upper is not proved")
        need(lower > 0 or upper == 0, "status: certified, but nothing is shown from below")
        return f"certified, {gap}"
    if status == "not-separable" and kind not in (*REGRESSION, *OPTIMA, "collapse"):
        small = reach is not None and upper * 2**SEPARABLE <= reach
        need(small, "status: not-separable, but only that the margin is at most upper is shown")
        return "not separable" if upper == 0 else f"not separable, up to rounding: the margin is at most {show(upper)}"
    if status == "no-interpolation" and kind in REGRESSION:
        return "no interpolation" if payload["proved"] else "no interpolation, which was not checked"
    if status in ("found", "not-found") and kind == "collapse":
        need((lower > 0) == (status == "found"), f"status: {status}, but lower says otherwise")
        return status
    raise Refused(f"status: {status[:40]!a} is no status of kind {kind}")


def _about(payload: Mapping[str, Any]) -> str:
    """The quantity that the bounds are about, in words."""
    kind, extra = payload["kind"], payload["extra"]
    named = [payload["convention"]]
    if kind == "ntk" and extra.get("transport") == "l2":
        named = ["M8-l2"]  # certificates of both transports said M8 before
    if kind not in ("linear", "linear-multiclass", "projected", "collapse", "tangent"):
        named.append(f"activation {payload['activation']}")
    named.append("bias" if payload["bias"] else "no bias")
    stored = extra.get("directions")
    if kind in ("frozen", "rf") or (kind == "bn" and stored is not None):
        named.append(f"for the {len(stored)} directions of the certificate")
    names = ABOUT.get(kind, ())
    if kind == "bn" and stored is None:
        names += ("seed", "trial")
    if kind == "ntk" and not payload["proved"]:
        names += SAMPLED
    for name in names:
        value = extra.get(name)
        if name == "kernel" and value not in ("given", "jacobian"):
            value = payload["activation"]  # of a relation; certificates of srelu said relu there before
        if type(value) is int and value.bit_length() > 128:
            value = show(value)  # not cut off
        if value is not None:
            named.append(f"{name} {value!r}" if isinstance(value, float) else f"{name} {value!s}")
    if extra.get("weights") is not None and kind in OPTIMA:
        named.append("with the weights of the certificate")
    what = "least norm" if kind in REGRESSION else "least objective" if kind in OPTIMA else "margin"
    return f"{kind} {what} ({', '.join(named)})"
