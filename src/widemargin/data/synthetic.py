"""Data sets with a formula. Each function returns a Dataset whose name is the spec that draws it again.

Letters in the docstrings name the papers of docs/notation.md: UH, LR, MT, BN, CB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from widemargin.types import Dataset, InputError

from . import checks

Marginal = Callable[[np.random.Generator, int, int], ArrayLike]

MARGINALS = ("uniform", "biased", "subset", "full")
LABEL_GAP = 0.05  # half-width of the empty band around each label change of three_intervals


def parity(
    d: int,
    n: int | None = None,
    k: int = 2,
    seed: int = 0,
    marginal: str | Marginal = "uniform",
    S: Sequence[int] | None = None,
    p: float = 0.7,
) -> Dataset:
    """Parity of k bits: x on the corners {-1/sqrt(d), +1/sqrt(d)}^d, y = prod_{i in S} sign(x_i).

    `marginal` is the law of the signs, which the papers leave free: "uniform"; "biased", each sign +1 with
    probability `p`; "subset", n different corners, all subsets equally likely; "full", all 2^d corners once, with
    no use of n; or a function (rng, n, d) -> signs. S defaults to the first k coordinates (counted from 0), and
    sets k if given. On the full cube the best ReLU margin for k = 2 is 1/sqrt(8 d); for odd k >= 3 it is 0
    without a bias.

    UH Example 4.1 (UH-25), LR Proposition 1.6 (LR-11).

    X is (n, d) with rows of norm 1.

    >>> import widemargin as wm
    >>> cube = wm.data.parity(d=3, marginal="full")
    >>> cube.X.shape, bool((abs(cube.X[:, 0] * cube.X[:, 1] * 3 - cube.y) < 1e-12).all())
    ((8, 3), True)
    >>> found = wm.margins.f1(cube)
    >>> found.lower <= (8 * 3) ** -0.5 * (1 + 1e-12) and found.upper >= (8 * 3) ** -0.5
    True
    """
    name = "parity"
    if marginal == "full":
        d = checks.integer(name, "d", d, 1, 20)
        n = 2**d
    elif n is None:
        raise InputError("parity: the number of points n is missing, so give n or marginal=full")
    n, d = checks.shape(name, n, d)
    if S is None:
        subset = tuple(range(checks.integer(name, "k", k, 1, d)))
    else:
        subset = tuple(checks.integer(name, "S", i, 0, d - 1) for i in np.atleast_1d(np.asarray(S)).tolist())
        if not subset or len(set(subset)) < len(subset):
            raise InputError(f"parity: S must list different coordinates, not {checks.show(S)}")
    p = checks.number(name, "p", p, 0, 1)
    rng = np.random.default_rng(checks.seed(name, seed))

    if callable(marginal):
        signs = np.asarray(marginal(rng, n, d))
        if signs.shape != (n, d) or not np.isin(signs, (-1, 1)).all():
            raise InputError(f"parity: marginal must return an array of -1 and +1 with shape ({n}, {d})")
    elif checks.choice(name, "marginal", marginal, MARGINALS) == "uniform":
        signs = rng.choice([-1, 1], size=(n, d))
    elif marginal == "biased":
        signs = np.where(rng.random((n, d)) < p, 1, -1)
    else:
        signs = _corners(rng, n, d)

    uniform = marginal == "uniform"
    spec = checks.spec_name(
        name,
        d=d,
        n=None if marginal == "full" else n,
        k=len(subset),
        seed=None if marginal == "full" else seed,
        marginal=None if uniform else "callable" if callable(marginal) else marginal,
        S=None if S is None else subset,
        p=p if marginal == "biased" else None,
    )
    return Dataset(signs / np.sqrt(d), np.prod(signs[:, subset], axis=1), spec)


def _corners(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """n different rows of {-1, +1}^d; all of them, in order, when n = 2^d."""
    if d <= 62:
        if n > 2**d:
            raise InputError(f"parity: n = {n} different corners do not exist in d = {d}, so choose n <= {2**d}")
        index = np.arange(n) if n == 2**d else rng.choice(2**d, size=n, replace=False)
        return 1 - 2 * ((index[:, None] >> np.arange(d)) & 1)  # (n, d)
    while True:
        signs = rng.choice([-1, 1], size=(n, d))
        if len(np.unique(signs, axis=0)) == n:
            return signs


def bad_kkt_plane(alpha: float = 0.1) -> Dataset:
    """Three points of the plane, all labelled +1, on which a linear predictor is a bad KKT point.

    Unit vectors v1 at angle 0, v2 at 135 degrees, z at 90 degrees + arccos(alpha), 0 < alpha <= 1/sqrt(2). The
    linear margin sin(arcsin(alpha)/2) vanishes with alpha, while the best ReLU margin stays above
    cos(pi/8) / (1 + cos(pi/8)) = 0.480.

    LR Proposition 2.6, Figure 2 (LR-19).

    >>> import math
    >>> import widemargin as wm
    >>> found = wm.margins.linear(wm.data.bad_kkt_plane(alpha=0.1))
    >>> abs(found.lower - math.sin(math.asin(0.1) / 2)) < 1e-6
    True
    """
    alpha = _alpha("bad_kkt_plane", alpha)
    angle = np.array([0.0, 0.75 * math.pi, 0.5 * math.pi + math.acos(alpha)])
    X = np.column_stack([np.cos(angle), np.sin(angle)])  # (3, 2)
    return Dataset(X, np.ones(3), checks.spec_name("bad_kkt_plane", alpha=alpha))


def bad_kkt_cones(
    d: int = 2, n1: int = 10, n2: int = 10, half_angle: float = 0.1, alpha: float = 0.1, seed: int = 0
) -> Dataset:
    """Two narrow cones and a point z between them, all labelled +1, on which a linear predictor is a bad KKT point.

    Rows: n1 unit vectors of the cone S1, n2 of S2, then z. Both cones have `half_angle` (radians, below pi/16 so
    that a linear predictor exists), and their axes lie 3 pi/4 + 2 half_angle apart, so every inner product between
    S1 and S2 is at most -1/sqrt(2). The first rows v1 of S1 and v2 of S2 lie on the outer edges, which makes them
    the support vectors of the largest linear margin of S1 and S2, with direction u = v1 + v2. With
    v0 = (I - v1 v1^T) u, normalised,

        z = alpha v0 - sqrt(1 - alpha^2) v1,    0 < alpha <= 1/sqrt(2).

    Two ReLUs at -v1 and -v2 with weight 1/2 have margin at least 1/(2 sqrt(2)), where the paper prints 1/sqrt(2)
    (E-LR-16); the linear margin vanishes with alpha.

    LR Proposition 2.6 (LR-19).

    X is (n1 + n2 + 1, d).

    >>> import numpy as np
    >>> import widemargin as wm
    >>> data = wm.data.bad_kkt_cones(d=3, n1=4, n2=5, seed=1)
    >>> data.X.shape, np.allclose(np.linalg.norm(data.X, axis=1), 1)
    ((10, 3), True)
    >>> bool((data.X[:4] @ data.X[4:9].T).max() <= -np.sqrt(0.5) + 1e-12)
    True
    """
    name = "bad_kkt"
    n1, d = checks.shape(name, n1, d, least_d=2)
    n2, d = checks.shape(name, n2, d, least_d=2)
    checks.shape(name, n1 + n2 + 1, d)
    half_angle = checks.number(name, "half_angle", half_angle, 0, 0.999 * math.pi / 16)
    alpha = _alpha(name, alpha)
    rng = np.random.default_rng(checks.seed(name, seed))

    def in_plane(angle: float) -> np.ndarray:
        x = np.zeros(d)
        x[:2] = math.cos(angle), math.sin(angle)
        return x

    def cone(angle: float, edge: float, n: int) -> np.ndarray:
        axis = in_plane(angle)
        side = rng.standard_normal((n, d))
        side -= np.outer(side @ axis, axis)
        side /= np.linalg.norm(side, axis=1, keepdims=True)
        tilt = half_angle * rng.random((n, 1)) ** (1 / (d - 1))  # uniform in the cone to first order
        rows = np.cos(tilt) * axis + np.sin(tilt) * side
        rows[0] = in_plane(edge)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    wide = 0.75 * math.pi + 2 * half_angle
    S1, S2 = cone(0.0, -half_angle, n1), cone(wide, wide + half_angle, n2)
    v0 = in_plane(0.5 * math.pi - half_angle)  # orthogonal to v1, on the side of v2
    z = alpha * v0 - math.sqrt(1 - alpha**2) * S1[0]
    spec = checks.spec_name(name, d=d, n1=n1, n2=n2, half_angle=half_angle, alpha=alpha, seed=seed)
    return Dataset(np.vstack([S1, S2, z]), np.ones(n1 + n2 + 1), spec)


def _alpha(name: str, alpha: float) -> float:
    return checks.number(name, "alpha", alpha, 1e-12, math.sqrt(0.5) * (1 + 1e-15))


def simplex_directions(r: int, d: int) -> np.ndarray:
    """r unit vectors of R^d with all pairwise inner products -1/(r - 1), for r <= d + 1; shape (r, d).

    >>> import widemargin as wm
    >>> B = wm.data.simplex_directions(3, 4)
    >>> (B @ B.T).round(12).tolist()
    [[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]]
    """
    d = checks.integer("collapse", "d", d, 1, 10**4)
    r = checks.integer("collapse", "r", r, 1, min(d + 1, 1000))
    beta = np.zeros((r, d))
    if r == 1:
        beta[0, 0] = 1
    for k in range(r - 1):
        beta[k, k] = math.sqrt(1 - beta[k, :k] @ beta[k, :k])
        beta[k + 1 :, k] = (-1 / (r - 1) - beta[k + 1 :, :k] @ beta[k, :k]) / beta[k, k]
    return beta


def neural_collapse(
    d: int = 2,
    r: int = 3,
    n: int = 30,
    gamma_nc: float = 0.8,
    eps: float = 0.1,
    labels: str | Sequence[int] | None = None,
    seed: int = 0,
    noise: float = 1.0,
) -> Dataset:
    """Points near the r directions beta_k of a regular simplex, one label per direction.

    Point i belongs to k = i mod r and is x = s beta_k + g: s is uniform on [gamma_nc, max(1, gamma_nc)], g is
    orthogonal to beta_k with a norm up to `noise` times the largest allowed. The assumption, which `check_nc`
    tests, is that for each i and k either the sign of k is y_i, beta_k . x_i >= gamma_nc and
    ||(I - beta_k beta_k^T) x_i|| <= gamma_nc sqrt(eps/2), or beta_k . x_i <= -eps. It implies a best ReLU margin
    of at least gamma_nc / r. `labels` are r signs, as numbers or as text like "+-+"; by default they alternate.

    LR Assumption 3.1, read without the factor y_i and with weights 1/r (LR-27, E-LR-13).

    X is (n, d), and r is at most d + 1.

    >>> import widemargin as wm
    >>> data = wm.data.neural_collapse(d=2, r=3, n=12, gamma_nc=0.8, eps=0.1, labels="+-+")
    >>> data.X.shape, data.y[:3].tolist()
    ((12, 2), [1.0, -1.0, 1.0])
    >>> network = wm.Measure(wm.data.simplex_directions(3, 2), [1.0, -1.0, 1.0])
    >>> network.margin(data) >= 0.8 / 3 - 1e-12
    True
    """
    name = "collapse"
    n, d = checks.shape(name, n, d)
    r = checks.integer(name, "r", r, 2, d + 1)
    beta = simplex_directions(r, d)
    gamma_nc = checks.number(name, "gamma_nc", gamma_nc, 1e-6, 1e6)
    eps = checks.number(name, "eps", eps, 0, gamma_nc)
    noise = checks.number(name, "noise", noise, 0, 1)
    if not 0 < eps <= gamma_nc / (r - 1) or eps == gamma_nc:
        raise InputError(
            f"collapse: eps must be positive, below gamma_nc and at most gamma_nc/(r-1) = {gamma_nc / (r - 1):g}"
        )
    signs = _signs(labels, r)
    rng = np.random.default_rng(checks.seed(name, seed))

    k = np.arange(n) % r
    scale = rng.uniform(gamma_nc, max(1.0, gamma_nc), n)
    side = rng.standard_normal((n, d))
    side -= np.einsum("ij,ij->i", side, beta[k])[:, None] * beta[k]
    length = np.linalg.norm(side, axis=1)
    largest = np.full(n, gamma_nc * math.sqrt(eps / 2))
    if r > 2:  # other directions must stay below -eps: -s/(r-1) + |g| sqrt(1 - 1/(r-1)^2) <= -eps
        largest = np.minimum(largest, (scale / (r - 1) - eps) / math.sqrt(1 - 1 / (r - 1) ** 2))
    radius = noise * (1 - 1e-12) * largest * rng.random(n)
    # In d = 1 nothing is orthogonal to beta_k.
    side = side * (radius / length)[:, None] if d > 1 else np.zeros((n, 1))
    spec = checks.spec_name(
        name,
        d=d,
        r=r,
        n=n,
        gamma_nc=gamma_nc,
        eps=eps,
        labels="".join("+" if sign > 0 else "-" for sign in signs),
        seed=seed,
        noise=None if noise == 1 else noise,
    )
    return Dataset(scale[:, None] * beta[k] + side, signs[k], spec)


def _signs(labels: str | Sequence[int] | None, r: int) -> np.ndarray:
    if labels is None:
        return 1 - 2 * (np.arange(r) % 2)
    table = {"+": 1, "-": -1} if isinstance(labels, str) else {1: 1, -1: -1}
    try:
        signs = [table[sign] for sign in labels]  # type: ignore[index]
    except (KeyError, TypeError):
        signs = []
    if len(signs) != r:
        raise InputError(
            f"collapse: labels must be r = {r} signs like {'+-' * (r // 2) + '+' * (r % 2)}, not {checks.show(labels)}"
        )
    return np.array(signs)


def check_nc(
    X: ArrayLike, y: ArrayLike, beta: ArrayLike, signs: ArrayLike, gamma_nc: float, eps: float, *, tol: float = 1e-12
) -> bool:
    """Whether every point and direction satisfy the assumption in `neural_collapse`, up to rounding `tol`.

    Every point must lie in a cone of its own: without that, which the paper leaves to the reader, the margin can be 0.

    X (n, d), y (n,); beta (r, d) and signs (r,) are the directions and their labels, `gamma_nc` and `eps` the numbers of the
    assumption.

    >>> import widemargin as wm
    >>> data = wm.data.neural_collapse(d=2, r=3, gamma_nc=0.8, eps=0.1, labels="+-+")
    >>> beta = wm.data.simplex_directions(3, 2)
    >>> [wm.data.check_nc(data.X, data.y, beta, signs, gamma_nc=0.8, eps=0.1) for signs in ([1, -1, 1], [1, 1, -1])]
    [True, False]
    """
    X, y, beta, signs = (np.asarray(array, dtype=np.float64) for array in (X, y, beta, signs))
    inner = X @ beta.T  # (n, r)
    across = np.sqrt(((X[:, None] - inner[:, :, None] * beta) ** 2).sum(axis=2))  # (n, r)
    own = (signs == y[:, None]) & (inner >= gamma_nc - tol) & (across <= gamma_nc * math.sqrt(eps / 2) + tol)
    unit = np.abs(np.linalg.norm(beta, axis=1) - 1) <= tol
    covered = own.any(axis=1).all()
    return bool(0 < eps < gamma_nc and unit.all() and covered and (own | (inner <= tol - eps)).all())


def xor_with_noise(d: int, n: int, reject: bool = True, seed: int = 0) -> Dataset:
    """XOR in the first two coordinates, noise in the others.

    (x1, x2, y) is uniform on (1, 1, +), (-1, -1, +), (1, -1, -), (-1, 1, -) and x3, ..., xd are N(0, 1). With
    `reject`, a point is drawn again until ||x||^2 <= d log n. The best ReLU margin of the support is sqrt(2)/4 in
    any d, while kernel margins fall with d.

    MT Section 3.4 and the proof of Theorem 3.5 (MT-17).

    X is (n, d).

    >>> import widemargin as wm
    >>> data = wm.data.xor_with_noise(d=3, n=50)
    >>> data.X.shape, bool((data.X[:, 0] * data.X[:, 1] == data.y).all())
    ((50, 3), True)
    """
    from scipy.special import chdtr  # where used: the command line should start at once

    name = "mt"
    n, d = checks.shape(name, n, d, least_d=2)
    most = d * math.log(n)
    rate = 1.0 if not reject else float(most >= 2) if d == 2 else float(chdtr(d - 2, max(most - 2, 0)))
    if rate < 1e-3:
        raise InputError(
            f"mt: with n = {n} almost no point has ||x||^2 <= d log n, so choose a larger n or reject=false"
        )
    rng = np.random.default_rng(checks.seed(name, seed))

    X = np.empty((n, d))
    todo = np.arange(n)
    while len(todo):
        X[todo, :2] = rng.choice([-1, 1], size=(len(todo), 2))
        X[todo, 2:] = rng.standard_normal((len(todo), d - 2))
        todo = todo[np.einsum("ij,ij->i", X[todo], X[todo]) > most] if reject else todo[:0]
    spec = checks.spec_name(name, d=d, n=n, reject=None if reject else False, seed=seed)
    return Dataset(X, X[:, 0] * X[:, 1], spec)


def teacher_network(d: int = 20, units: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The teacher W (units, d), a (units,) of `relu_teacher`: rows of W uniform on the sphere, a = 1, -1, 1, ...

    >>> import widemargin as wm
    >>> W, a = wm.data.teacher_network(d=5, units=3)
    >>> (W**2).sum(axis=1).round(12).tolist(), a.tolist()
    ([1.0, 1.0, 1.0], [1.0, -1.0, 1.0])
    """
    units, d = checks.integer("teacher", "units", units, 1, 1000), checks.integer("teacher", "d", d, 1, 10**4)
    W = np.random.default_rng(checks.seed("teacher", seed)).standard_normal((units, d))
    return W / np.linalg.norm(W, axis=1, keepdims=True), 1.0 - 2.0 * (np.arange(units) % 2)


def relu_teacher(
    d: int = 20,
    n: int = 100,
    units: int = 6,
    margin: float = 0.1,
    seed: int = 0,
    regression: bool = False,
    sample: int = 0,
) -> Dataset:
    """Labels of a random two-layer ReLU network f(x) = sum_j a_j relu(w_j . x), x ~ N(0, I).

    Classification: points with |f(x)| < margin are drawn again, y = sign f(x). With `regression`, y = f(x) and no
    point is rejected. `seed` draws the teacher; `sample` draws the points, so a test set is the same call with
    another `sample`. The paper gives 6 units, d = 20 and margin 0.1, but not the law of the teacher and inputs;
    ours is in `teacher_network` (signs alternate so that both classes occur).

    MT Section 5, Figure 3 (MT-33, E-MT-11).

    X is (n, d).

    >>> import widemargin as wm
    >>> data = wm.data.relu_teacher(d=5, n=20, units=4, margin=0.1, seed=2)
    >>> W, a = wm.data.teacher_network(d=5, units=4, seed=2)
    >>> bool((data.y * ((data.X @ W.T).clip(0) @ a)).min() >= 0.1)
    True
    """
    name = "teacher"
    n, d = checks.shape(name, n, d)
    W, a = teacher_network(d, units, seed)
    checks.shape(name, n, max(d, units))
    margin = checks.number(name, "margin", margin, 0, 1e6)
    sample = checks.integer(name, "sample", sample, 0, 2**31)
    rng = np.random.default_rng([checks.seed(name, seed), sample + 1])

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((count, d))
        f = (X @ W.T).clip(0) @ a
        keep = np.full(count, True) if regression else (np.abs(f) >= margin) & (f != 0)
        return X[keep], f[keep]

    batch = max(n, 2000)
    X, f = draw(batch)
    if len(X) < batch / 100:
        raise InputError(f"teacher: almost no point has |f(x)| >= margin = {margin:g}, so choose a smaller margin")
    while len(X) < n:
        more = draw(batch)
        X, f = np.vstack([X, more[0]]), np.concatenate([f, more[1]])
    spec = checks.spec_name(
        name,
        d=d,
        n=n,
        units=units,
        margin=None if regression else margin,
        seed=seed,
        regression=True if regression else None,
        sample=sample or None,
    )
    return Dataset(X[:n], f[:n] if regression else np.sign(f[:n]), spec)


def three_intervals(n: int = 12, seed: int = 0) -> Dataset:
    """Three intervals of the line: y = +1 for |x| > 1/3 and y = -1 for |x| < 1/3, x in [-1, 1].

    Point i is uniform on interval i mod 3, with no point closer than 0.05 to a change of label. Margins need a
    bias here. The paper does not give its data; this is our choice.

    MT Section 5, Figure 2 (MT-32, E-MT-11).

    `n` points: X is (n, 1).

    >>> import numpy as np
    >>> import widemargin as wm
    >>> data = wm.data.three_intervals(n=12)
    >>> data.X.shape, bool((np.sign(np.abs(data.X[:, 0]) - 1 / 3) == data.y).all())
    ((12, 1), True)
    """
    n, _ = checks.shape("mt1d", n, 1)
    third = 1 / 3
    low = np.array([-1, -third + LABEL_GAP, third + LABEL_GAP])[np.arange(n) % 3]
    high = np.array([-third - LABEL_GAP, third - LABEL_GAP, 1])[np.arange(n) % 3]
    x = np.random.default_rng(checks.seed("mt1d", seed)).uniform(low, high)
    return Dataset(x[:, None], np.where(np.abs(x) > third, 1, -1), checks.spec_name("mt1d", n=n, seed=seed))


def one_relu(d: int, n: int, seed: int = 0) -> Dataset:
    """One ReLU as a regression target: x ~ N(0, I), y = relu(u . x), u uniform on the unit sphere.

    It has variation norm 1, but needs a kernel predictor whose squared norm grows like n.

    MT Theorem D.6, Lemma D.7 (MT-23).

    X is (n, d), y (n,) holds real numbers, not labels.

    >>> import widemargin as wm
    >>> data = wm.data.one_relu(d=5, n=20)
    >>> data.X.shape, bool(data.y.min() == 0)
    ((20, 5), True)
    """
    n, d = checks.shape("mt_regression", n, d)
    rng = np.random.default_rng(checks.seed("mt_regression", seed))
    u = rng.standard_normal(d)
    X = rng.standard_normal((n, d))
    y = (X @ (u / np.linalg.norm(u))).clip(0)
    return Dataset(X, y, checks.spec_name("mt_regression", d=d, n=n, seed=seed))


def dyadic(d: int) -> Dataset:
    """2d points (2^-j e_j, +1) and (-2^-j e_j, -1), j = 1, ..., d; the positive ones first.

    The linear margin is sqrt(3 / (4^(d+1) - 4)), in direction (2, 4, ..., 2^d).

    BN Definition 1.1 (BN-8).

    >>> import math
    >>> import widemargin as wm
    >>> found = wm.margins.linear(wm.data.dyadic(3))
    >>> abs(found.lower - math.sqrt(3 / (4**4 - 4))) < 1e-8
    True
    """
    d = checks.integer("dyadic", "d", d, 1, 1000)
    X = np.diag(2.0 ** -np.arange(1, d + 1))
    return Dataset(np.vstack([X, -X]), np.repeat([1, -1], d), checks.spec_name("dyadic", d=d))


def disk_centres(k: int) -> np.ndarray:
    """The k^2 centres of `disks`, shape (k^2, 2): steps of 3/(3k - 1) in [-1/2, 1/2]^2, first coordinate slowest.

    >>> import widemargin as wm
    >>> wm.data.disk_centres(2).round(3).tolist()
    [[-0.3, -0.3], [-0.3, 0.3], [0.3, -0.3], [0.3, 0.3]]
    """
    line = (1 + 3 * np.arange(k)) / (3 * k - 1) - 0.5
    return np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)


def disks(k: int = 3, d: int = 2, n: int = 100, seed: int = 0, reading: str = "text", sample: int = 0) -> Dataset:
    """k^2 disks of radius 1/(3k - 1) on a grid in the first two coordinates, each disk with one random label.

    Every point falls in a uniformly drawn disk; further coordinates are uniform on [-1/2, 1/2]. The paper's text and
    its code differ, so there are two readings:

    - "text": uniform by area in the disk; labels of disks independent (drawn again if all are equal); X has the d
      features, and margins take a bias of their own.
    - "code": the radius is uniform, so points crowd at the centre; exactly floor(k^2 / 2) random disks get -1; d
      counts a constant coordinate, which is the first column of X, so solve without a further bias.

    `seed` draws the labels of the disks; `sample` draws the points, so a test set is the same call with another
    `sample`.

    CB Section 7 (CB-27, E-CB-10).

    X is (n, d), in length units of the square; `reading` is "text" or "code".

    >>> import numpy as np
    >>> import widemargin as wm
    >>> data = wm.data.disks(k=3, d=4, n=50, seed=1)
    >>> away = np.linalg.norm(data.X[:, None, :2] - wm.data.disk_centres(3), axis=2).min(axis=1)  # from the next centre
    >>> data.X.shape, bool(away.max() <= 1 / 8), bool(np.abs(data.X[:, 2:]).max() <= 1 / 2)
    ((50, 4), True, True)
    """
    name = "disks"
    k = checks.integer(name, "k", k, 2, 1000)
    code = checks.choice(name, "reading", reading, ("text", "code")) == "code"
    n, d = checks.shape(name, n, d, least_d=3 if code else 2)
    sample = checks.integer(name, "sample", sample, 0, 2**31)
    rng = np.random.default_rng(checks.seed(name, seed))
    if code:
        labels = rng.permutation(np.where(np.arange(k * k) < k * k // 2, -1, 1))
    else:
        labels = rng.choice([-1, 1], size=k * k)
        while abs(labels.sum()) == k * k:
            labels = rng.choice([-1, 1], size=k * k)

    rng = np.random.default_rng([checks.seed(name, seed), sample + 1])
    cluster = rng.integers(k * k, size=n)
    share = rng.random(n)
    radius = (share if code else np.sqrt(share)) / (3 * k - 1)
    angle = rng.uniform(0, 2 * math.pi, n)
    plane = disk_centres(k)[cluster] + radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    rest = rng.uniform(-0.5, 0.5, (n, d - (3 if code else 2)))
    X = np.hstack([np.ones((n, 1)), plane, rest] if code else [plane, rest])
    spec = checks.spec_name(name, d=d, n=n, k=k, seed=seed, reading="code" if code else None, sample=sample or None)
    return Dataset(X, labels[cluster], spec)


def clusters(n: int = 60, d: int = 2, k: int = 3, sep: float = 3.0, seed: int = 0) -> Dataset:
    """k Gaussian clusters per class in two classes of equal size.

    Centres are N(0, I). All clusters have the same standard deviation s in every direction, chosen so that the
    closest centres of different classes lie 2 sep s apart.

    `n` points in R^d, k of the 2 k clusters in each class.

    >>> import widemargin as wm
    >>> data = wm.data.clusters(n=30, d=5, seed=1)
    >>> data.X.shape, int(data.y.sum())
    ((30, 5), 0)
    """
    name = "clusters"
    n, d = checks.shape(name, n, d)
    k = checks.integer(name, "k", k, 1, 1000)
    checks.shape(name, 2 * k, d)
    sep = checks.number(name, "sep", sep, 1e-3, 1e6)
    rng = np.random.default_rng(checks.seed(name, seed))
    centres = rng.standard_normal((2, k, d))
    closest = min(float(np.linalg.norm(centres[0] - c, axis=1).min()) for c in centres[1])
    side = np.arange(n) % 2
    X = centres[side, rng.integers(k, size=n)] + closest / (2 * sep) * rng.standard_normal((n, d))
    return Dataset(X, 2 * side - 1, checks.spec_name(name, n=n, d=d, k=k, sep=sep, seed=seed))
