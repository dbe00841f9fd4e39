"""Transports of the NTK margin: their value with confidence intervals, and the constructions of LR.

A transport is a function theta of rows w = (a, v), (N, D + 1) -> (N, D + 1), with |theta(w)| <= 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from widemargin.dataset import takes_data
from widemargin.errors import brief, show
from widemargin.spaces import ReLU, as_numbers
from widemargin.types import Dataset, InputError, Measure

from .door import check_count, check_number, check_seed, enter

Transport = Callable[[np.ndarray], np.ndarray]

FAR = 7.0  # weights beyond this radius are left out and paid for with TAIL
# E |w| 1[|w| > 7] <= max_{r >= 7} r exp(-0.4 r^2) * E exp(0.4 |w|^2), and the last factor is at most 5 (D = 1)
TAIL = 5 * FAR * math.exp(-0.4 * FAR**2)
BLOCK = 2**20  # numbers in one array


@dataclass(frozen=True)
class Estimate:
    """Means over the sample, one per point (n,), and bounds that hold for all points at once."""

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    @property
    def margin(self) -> tuple[float, float]:
        """An interval that contains min_i of the true values."""
        return float(self.lower.min()), float(self.upper.min())

    def __str__(self) -> str:
        return f"{self.mean.min():.6g} in [{self.margin[0]:.6g}, {self.margin[1]:.6g}]"


@dataclass(frozen=True)
class TransportMargin:
    """The margin of a transport, and its parts from the outer and the inner weights.

    All 3 n intervals hold together with probability at least `confidence` over the samples.
    """

    outer: Estimate
    inner: Estimate
    total: Estimate
    samples: int
    confidence: float
    radius: float

    __repr__ = brief

    def at_width(self, m: float) -> Estimate:
        """sqrt(m) outer + inner: what thetabar_j = theta(sqrt(m) a_j, v_j) / sqrt(m) gives at the network's a_j ~ N(0, 1/m).

        LR Lemma A.3 (1) states sqrt(m) (outer + inner), which needs a_j ~ N(0, 1) instead (E-LR-4).
        """
        root = math.sqrt(m)
        ends = ((getattr(self.outer, name), getattr(self.inner, name)) for name in ("mean", "lower", "upper"))
        return Estimate(*(root * outer + inner for outer, inner in ends))

    def __str__(self) -> str:
        parts = f"total {self.total}, outer {self.outer}, inner {self.inner}"
        return f"transport margin (M8): {parts}; probability {self.confidence:g}, {self.samples} samples"


@takes_data()
def transport_margin(
    data: Dataset,
    theta: Transport,
    samples: int = 1_000_000,
    *,
    confidence: float = 0.99,
    bias: bool = False,
    radius: float = 2.0,
    seed: int = 0,
) -> TransportMargin:
    """min_i E <theta(w), dp_i(w)>, dp_i(w) = (y_i relu(v.x_i), y_i a 1[v.x_i > 0] x_i), over a ~ N(0, 1), v ~ N(0, I/D).

    theta(w) counts as 0 for |w| >= `radius` (2 in LR; math.inf: no truncation). Intervals are the empirical Bernstein
    bounds of Maurer and Pontil (2009), Theorem 4, for variables of size at most radius |x_i|.

    LR Assumption 1.3 (LR-9), with |theta| <= 1 (E-LR-3) and both parts apart (E-LR-4).

    `samples` independent w are drawn; all intervals hold together with probability at least `confidence`. `bias` and `seed` are
    those of `ntk`. What is returned has `outer`, `inner` and `total`, each with `mean`, `lower` and `upper` (n,) and the interval
    `margin` of the smallest, in convention M8.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> data = wm.Dataset([[1.0, 0.0]], [1])
    >>> always = lambda w: np.hstack([np.ones((len(w), 1)), np.zeros((len(w), 2))])  # theta = (1, 0): E relu(v.x)
    >>> low, high = wm.margins.transport_margin(data, always, samples=20_000, radius=np.inf).total.margin
    >>> bool(low <= 1 / np.sqrt(4 * np.pi) <= high)  # E relu(v_1) for v_1 ~ N(0, 1/2)
    True
    """
    check_confidence(confidence)
    if isinstance(samples, bool) or not isinstance(samples, int | np.integer) or samples < 2:
        raise InputError(f"samples must be a whole number of at least 2, not {show(samples)}")
    radius = check_number("radius", radius, "be positive", lambda size: size > 0)
    check_seed("transport_margin", seed)
    door = enter(data, ReLU(bias=bias), 0.5, None)
    X, y, (n, D) = door.X, door.y, door.X.shape
    reach, tail = (float(radius), 0.0) if radius <= FAR else (FAR, TAIL)
    rng = np.random.default_rng(seed)
    moments = Moments((3, n))
    block = max(1, BLOCK // (n + D))
    for start in range(0, samples, block):
        m = min(block, samples - start)
        W = rng.standard_normal((m, D + 1))
        W[:, 1:] /= math.sqrt(D)
        values = _values(theta, W)
        values[np.linalg.norm(W, axis=1) >= reach] = 0
        P = W[:, 1:] @ X.T  # (m, n)
        outer = P.clip(0) * (values[:, :1] * y)
        inner = (P > 0) * ((values[:, 1:] @ X.T) * (W[:, :1] * y))
        moments.add(np.stack([outer, inner, outer + inner], axis=1))
    width = bernstein(moments, 2 * reach * door.size, 6 * n, confidence)
    width += tail * door.size
    mean = moments.mean
    ends = np.ldexp(np.stack([mean, mean - width, mean + width]), door.shift)  # (3, parts, n)
    parts = [Estimate(*ends[:, k]) for k in range(3)]
    return TransportMargin(parts[0], parts[1], parts[2], int(samples), confidence, float(radius))


class Moments:
    """Means and variances, merged block by block: sums of squares would cancel where a variance is small."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(shape), np.zeros(shape)  # squares of deviations

    def add(self, block: np.ndarray) -> None:
        """Samples along the first axis."""
        mean, total = block.mean(axis=0), self.count + len(block)
        step = mean - self.mean
        self.squares += ((block - mean) ** 2).sum(axis=0) + step**2 * (self.count * len(block) / total)
        self.mean += step * (len(block) / total)
        self.count = total

    def variance(self) -> np.ndarray:
        return np.asarray(self.squares / max(self.count - 1, 1))


def bernstein(moments: Moments, span: np.ndarray | float, statements: int, confidence: float) -> np.ndarray:
    """Widths w such that all `statements` one-sided bounds E <= mean + w (or >= mean - w) hold together.

    Each of the N independent variables lies in an interval of length span. w = sqrt(2 V L / N) + 7 span L / (3 (N - 1)), V the
    sample variance, L = ln(2 statements / (1 - confidence)). Maurer and Pontil (2009), Theorem 4.
    """
    L, N = math.log(2 * statements / (1 - confidence)), moments.count
    return np.asarray(np.sqrt(2 * moments.variance() * L / N) + 7 * span * L / (3 * (N - 1)))


def check_confidence(confidence: float) -> None:
    check_number("confidence", confidence, "lie between 0 and 1", lambda level: 0 < level < 1)


def _values(theta: Transport, W: np.ndarray) -> np.ndarray:
    if not callable(theta):
        raise InputError(f"theta must be a function of rows w = (a, v), not {show(theta)}")
    try:
        given = theta(W)
    except (TypeError, ValueError) as error:
        raise InputError(f"theta must map rows w = (a, v) to rows of numbers ({error})") from None
    values = np.array(as_numbers("what theta returns", given))
    if values.shape != W.shape:
        raise InputError(f"theta must return one row per row of its argument, shape {W.shape}, not {values.shape}")
    size = np.linalg.norm(values, axis=1)
    if not (size <= 1 + 1e-9).all():
        raise InputError(f"theta has norm {size.max():.4g} somewhere; divide it so that no value is longer than 1")
    return values


def linear_transports(u: ArrayLike) -> tuple[Transport, Transport, Measure]:
    """Two transports and a network for points with linear margin gamma in the direction u (divided by its norm here).

    theta_1 = (0, sgn(a) u) has margin at least gamma / 32, theta_2 = (sgn(u.v), 0) at least gamma / (16 sqrt(d)), and
    x -> (relu(u.x) - relu(-u.x)) / 2 at least gamma / 2 (M1).

    LR Proposition 1.5 (LR-10).

    u is (d,). A transport maps rows w = (a, v), (N, d + 1), to rows of the same shape.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> data = wm.Dataset([[2.0, 0.0], [-1.0, -1.0]], [1, -1])  # gamma = sqrt(2) in direction (1, 1)
    >>> inner, outer, network = wm.margins.linear_transports([3.0, 3.0])
    >>> abs(network.margin(data) - 2**0.5 / 2) < 1e-12
    True
    >>> w = np.array([[-0.5, 1.0, 1.0]])
    >>> (inner(w) * 2**0.5).round(12).tolist(), outer(w).tolist()
    ([[0.0, -1.0, -1.0]], [[1.0, 0.0, 0.0]])
    """
    u = _vector("u", u)
    size = float(np.linalg.norm(u))
    if size == 0:
        raise InputError("u is zero; give the direction of a linear predictor")
    u = u / size

    def inner(W: np.ndarray) -> np.ndarray:
        return np.hstack([np.zeros((len(W), 1)), np.sign(W[:, :1]) * u])

    def outer(W: np.ndarray) -> np.ndarray:
        return _outer(np.sign(W[:, 1:] @ u), W)

    return inner, outer, Measure(np.stack([u, -u]), np.array([0.5, -0.5]))


def parity_transport(
    d: int, S: Sequence[int] = (0, 1), *, part: str = "inner", convention: str = "corrected"
) -> Transport:
    """The transport of LR for 2-sparse parity of the coordinates S = (i, j).

    inner: theta = (0, (sgn(a) / 2) sum_k sgn(alpha_k) beta_k 1[beta_k.v >= 0]), beta_k = (+-e_i +- e_j) / sqrt(2),
    alpha = (1, -1, -1, 1) / 4. Without truncation its margin on the cube {-1, 1}^d / sqrt(d) is exactly

        sqrt(2/d) sqrt(2/pi) / 2 * arcsin(sqrt(2/d)) / pi

    and about 0.2/d with it. convention "printed" lacks sgn(alpha_k), which is negative on the points with y = -1
    (E-LR-5). part "outer" is theta = (sgn(v_i v_j), 0), the part that counts at the network's initialisation (E-LR-4).

    LR Proposition 1.6 (LR-11).

    >>> import math
    >>> import widemargin as wm
    >>> cube = wm.data.parity(d=2, marginal="full")
    >>> found = wm.margins.transport_margin(cube, wm.margins.parity_transport(2), samples=20_000, radius=math.inf)
    >>> low, high = found.total.margin
    >>> low <= math.sqrt(2 / math.pi) / 4 <= high
    True
    """
    if not isinstance(part, str) or part not in ("inner", "outer"):
        raise InputError(f"part must be 'inner' or 'outer', not {show(part)}")
    if not isinstance(convention, str) or convention not in ("corrected", "printed"):
        raise InputError(f"convention must be 'corrected' or 'printed', not {show(convention)}")
    d = check_count("d", d, 2)
    pair = as_numbers("S", S).tolist()
    if not isinstance(pair, list) or len(pair) != 2 or pair[0] == pair[1] or not all(i in range(d) for i in pair):
        raise InputError(f"S must hold two different coordinates of 0..{d - 1}, not {show(S)}")
    pair = [int(i) for i in pair]
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    beta = np.zeros((4, d))
    beta[:, pair] = signs / math.sqrt(2)
    weight = np.array([1, -1, -1, 1]) if convention == "corrected" else np.ones(4)

    def inner(W: np.ndarray) -> np.ndarray:
        active = W[:, 1:] @ beta.T >= 0  # (N, 4)
        return np.hstack([np.zeros((len(W), 1)), np.sign(W[:, :1]) / 2 * ((active * weight) @ beta)])

    def outer(W: np.ndarray) -> np.ndarray:
        return _outer(np.sign(W[:, 1 + pair[0]] * W[:, 1 + pair[1]]), W)

    return inner if part == "inner" else outer


def positive_transport(alpha: ArrayLike, beta: ArrayLike) -> Transport:
    """theta = (sum_k alpha_k 1[beta_k.v >= 0], 0), for points with y = +1 and |x| = 1, and alpha_k > 0 of sum at most 1.

    Its margin is at least gamma / (8 sqrt(d)), gamma = min_i sum_k alpha_k relu(beta_k.x_i), beta_k unit.

    LR Lemma A.1 (LR-20).

    alpha (r,), beta (r, d). The transport maps rows w = (a, v), (N, d + 1), to rows of the same shape.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> theta = wm.margins.positive_transport([0.25, 0.75], [[1.0, 0.0], [0.0, 1.0]])
    >>> theta(np.array([[2.0, 1.0, -1.0], [2.0, 1.0, 1.0]])).tolist()
    [[0.25, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    alpha = _vector("alpha", alpha)
    if not (alpha > 0).all() or alpha.sum() > 1 + 1e-9:
        raise InputError("alpha must hold positive numbers of sum at most 1; divide them by their sum")
    B = np.atleast_2d(np.asarray(beta, dtype=np.float64))
    if B.ndim != 2 or len(B) != len(alpha) or not np.isfinite(B).all():
        raise InputError(f"beta must have one row of finite numbers for each of the {len(alpha)} entries of alpha")

    def theta(W: np.ndarray) -> np.ndarray:
        return _outer(((W[:, 1:] @ B.T >= 0) @ alpha).clip(0, 1), W)

    return theta


def _outer(values: np.ndarray, W: np.ndarray) -> np.ndarray:
    """(values, 0) in the shape of W."""
    theta = np.zeros_like(W)
    theta[:, 0] = values
    return theta


def _vector(name: str, values: ArrayLike) -> np.ndarray:
    vector = np.atleast_1d(as_numbers(name, values))
    if vector.ndim != 1 or len(vector) == 0 or not np.isfinite(vector).all():
        raise InputError(f"{name} must be one row of finite numbers")
    return vector
