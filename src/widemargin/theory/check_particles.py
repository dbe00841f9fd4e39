"""Checks of MT's inequalities: the weakly regularised path, and particles that follow the (perturbed) Wasserstein flow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from widemargin.types import Dataset, InputError

from ._records import before, steps, trapezoid
from ._rooms import flows, margins, torch
from .inequality import Inequality, Part, check, part, precision
from .track import Track
from .wasserstein import Regularity

POINTS = 500  # of the sphere, beside the directions of the particles, where L' is looked at
NOISE = 5.0  # standard deviations that random births may take
TIME_LIMIT = 20.0  # seconds for the best margin

APPENDIX = "MT Appendix E"


# ---------------------------------------------------------------- the weakly regularised path


@check("MT-4", "MT (A.4), (A.5)")
def weak_path(
    track: Track, path_norm: np.ndarray, path_margin: np.ndarray, path_loss: np.ndarray
) -> Iterator[Inequality]:
    """the sandwich of the objective by the normalised margin, and n l(|Theta|^a gamma*) >= l(|Theta|^a gamma_lambda)

    At the end of a weakly regularised path. `t` of these inequalities is lambda of the mean loss, not time.

    The second needs Theta_lambda to be at least as good as |Theta_lambda| times a best direction, which is measured.
    """
    fields = {"first", "last", "per_decade", "power", "reduction"}
    if track.problem.loss is None or not len(track.t) or not fields <= set(track.options):  # a path by another rule
        return
    rule = flows.WeaklyRegularized(**{key: track.options[key] for key in fields})
    scale = track.n if rule.reduction == "sum" else 1.0
    lam = np.array(rule.lambdas)[:, None] / scale  # (R, 1), of the mean loss
    M, g = path_norm[-1].T, path_margin[-1].T  # (R, B)
    objective = path_loss[-1].T - math.log(scale)  # ln of mean loss + lam M^r
    classes = max(track.net.outputs, 2)
    degree = track.net.degree
    penalty = np.log(lam) + rule.power * np.log(M)
    known = np.isfinite(objective) & np.isfinite(M) & np.isfinite(g)
    t, reference = lam[:, 0], "MT (A.4), (A.5)"

    def value(margins: np.ndarray, times: float = 1.0) -> np.ndarray:
        """ln of l at p = M^a margins; with K classes the others together weigh `times` = K - 1."""
        return track.problem.loss.log(torch.as_tensor(M**degree * margins - math.log(times))).numpy()  # type: ignore[union-attr]

    low = np.logaddexp(value(g) - math.log(track.n), penalty)
    high = np.logaddexp(value(g, classes - 1), penalty)
    best, where = _best_margin(track, g)
    terms = 1 + M**degree * track.reach  # ln l has slope at most 1 in the margins, and those are sums of such terms

    def compare(
        id: str, says: str, left: np.ndarray, right: np.ndarray, applies: np.ndarray, **more: Any
    ) -> Inequality:
        rounding = precision(track) * (terms + np.abs(left) + np.abs(right)) + more.pop("slip", 0.0)
        scale = np.maximum(1, np.maximum(np.abs(left), np.abs(right)))
        return Inequality(id, says, reference, t, left, right, applies, rounding=rounding, scale=scale, **more)

    # `reached` compares objectives up to rounding. Where the penalty is most of both, that says little of the losses below it:
    # l(M^a gamma_lambda) <= n (l + delta (l + penalty)), l = l(M^a gamma*), delta the rounding
    aim = value(best, classes - 1)
    delta = 2 * precision(track) * (terms + np.abs(objective))
    reached = known & (objective <= np.logaddexp(aim, penalty) + precision(track))
    slip = np.logaddexp(0, np.log(delta) + np.logaddexp(0, penalty - aim))
    yield compare(
        "MT-4 lower", "(1/n) l(M^a gamma) + lambda M^r <= objective", low, objective, known, note="logarithms"
    )
    yield compare("MT-4 upper", "objective <= l(M^a gamma) + lambda M^r", objective, high, known, note="logarithms")
    yield compare(
        "MT-4", "l(M^a gamma_lambda) <= n l(M^a gamma*)", value(g), aim + math.log(track.n), reached, slip=slip,
        note=f"logarithms; gamma* {where}",
        numbers={"gamma_star": best[0].tolist(), "shortfall": (best[0] - g[-1]).tolist()},
    )  # fmt: skip


def _best_margin(track: Track, g: np.ndarray) -> tuple[np.ndarray, str]:
    """gamma* from below (1, B): half the certified F1 margin for a two-layer net, else the best of the path itself."""
    path = np.fmax.reduce(np.where(np.isfinite(g), g, np.nan), axis=0, keepdims=True)  # NaN where no lambda is done yet
    net = track.net
    if (net.name, getattr(net, "train", ""), getattr(net, "activation", "")) != ("relu", "both", "relu"):
        return path, "is the best margin of the path"
    if net.m < track.n:
        return path, "is the best margin of the path (fewer neurons than points)"
    size = net.m if getattr(net, "mean_field", False) else 1
    values = []
    for X, y in zip(track.problem.X, track.problem.y):
        try:
            cert = margins.f1(Dataset(X.numpy(), y.numpy(), "path"), time_limit=TIME_LIMIT)
        except InputError:
            return path, "is the best margin of the path"
        values.append(cert.bounds("M2")[0] / size)
    return np.maximum(path, np.array(values)[None]), "is half the certified F1 margin"


# ---------------------------------------------------------------- particles


@dataclass(frozen=True)
class Particles:
    """Particles theta = (a, v) of a run of WassersteinFlow or PerturbedWassersteinFlow at every record, float64 numpy arrays.

    L'[rho](theta) = -sum_i s_i y_i a relu(v . x_i) + lam |theta|^2, s_i = |l'(p_i)| (divided by n for the mean of losses).
    """

    track: Track

    @cached_property
    def theta(self) -> np.ndarray:
        """(T, B, m, d + 1)."""
        W = self.track.W or []
        return np.stack([np.concatenate([Wt["a"].numpy()[..., None], Wt["V"].numpy()], 2) for Wt in W]).astype(float)

    @property
    def X(self) -> np.ndarray:
        """(1 or B, n, d)."""
        return self.track.problem.X.numpy()

    @cached_property
    def sum_or_mean(self) -> float:
        return 1.0 if self.track.options["reduction"] == "sum" else 1.0 / self.track.n

    @property
    def lam(self) -> float:
        return float(self.track.options["lam"])

    @property
    def sigma(self) -> float:
        return float(self.track.options.get("sigma", 0.0))

    @property
    def eta(self) -> float:
        return float(self.track.options["eta"])

    @cached_property
    def time(self) -> np.ndarray:
        """(T, B)."""
        return self.eta * self.track.run["step"]

    @cached_property
    def H(self) -> np.ndarray:
        """relu(v_j . x_i) (T, B, m, n)."""
        return np.maximum(self.theta[..., 1:] @ self.X.swapaxes(1, 2), 0)

    @cached_property
    def Phi(self) -> np.ndarray:
        """a_j relu(v_j . x_i) (T, B, m, n)."""
        return self.theta[..., :1] * self.H

    @cached_property
    def Q(self) -> np.ndarray:
        """int Phi d rho (T, B, n)."""
        return self.Phi.mean(2)

    @cached_property
    def weights(self) -> np.ndarray:
        """-grad R = s_i y_i (T, B, n)."""
        y = self.track.problem.y.numpy()
        slope = torch.as_tensor(y * self.Q)
        return y * self.sum_or_mean * self.track.problem.loss.log_slope(slope).exp().numpy()  # type: ignore[union-attr]

    @cached_property
    def L(self) -> np.ndarray:
        y = self.track.problem.y.numpy()
        loss = self.track.problem.loss.log(torch.as_tensor(y * self.Q)).exp().numpy()  # type: ignore[union-attr]
        return self.sum_or_mean * loss.sum(2) + self.lam * self.W2

    @cached_property
    def W2(self) -> np.ndarray:
        """E |theta|^2 (T, B)."""
        return (self.theta**2).sum(3).mean(2)

    @cached_property
    def slope(self) -> np.ndarray:
        """L'[rho](theta_j) (T, B, m)."""
        return -(self.Phi @ self.weights[..., None])[..., 0] + self.lam * (self.theta**2).sum(3)

    @cached_property
    def v(self) -> np.ndarray:
        """-grad L' at the particles (T, B, m, d + 1)."""
        return self._velocity(self.theta, self.H, self.weights)

    def _velocity(self, theta: np.ndarray, H: np.ndarray, weights: np.ndarray) -> np.ndarray:
        outer = (H @ weights[..., None])[..., 0]
        inner = theta[..., :1] * ((H > 0) * weights[..., None, :] @ self.X)
        return np.concatenate([outer[..., None], inner], -1) - 2 * self.lam * theta

    def heun(self) -> np.ndarray:
        """Mean velocity of a step of the continuous scheme (T, B, m, d + 1)."""
        late = self.theta + self.eta * self.v
        H = np.maximum(late[..., 1:] @ self.X.swapaxes(1, 2), 0)
        y = self.track.problem.y.numpy()
        p = torch.as_tensor(y * (late[..., :1] * H).mean(2))
        weights = y * self.sum_or_mean * self.track.problem.loss.log_slope(p).exp().numpy()  # type: ignore[union-attr]
        return (self.v + self._velocity(late, H, weights)) / 2

    @cached_property
    def speed2(self) -> np.ndarray:
        """E |v|^2 (T, B)."""
        return (self.v**2).sum(3).mean(2)

    @cached_property
    def mean_slope(self) -> np.ndarray:
        """E_rho L' (T, B)."""
        return self.slope.mean(2)

    @cached_property
    def rate(self) -> np.ndarray:
        """dL/dt of E.7 (T, B). On the uniform sphere a and -a are alike, so E_U L' = lam."""
        return -self.sigma * self.mean_slope + self.sigma * self.lam - self.speed2

    @cached_property
    def sizes(self) -> np.ndarray:
        """|x_i| (1 or B, n)."""
        return np.linalg.norm(self.X, axis=2)

    @cached_property
    def constants(self) -> Regularity:
        """Of MT-24: B_Phi and M_Phi (1 or B,)."""
        M_R, B_Phi = math.sqrt(self.track.n) * self.sum_or_mean, np.linalg.norm(self.X, axis=(1, 2)) / 2
        rest = (self.sizes.max(1), self.lam, self.lam, 2 * self.lam)
        return Regularity(self.track.n, M_R, self.sum_or_mean / 4, B_Phi, *rest)

    # What finite steps and random births may do

    @cached_property
    def defect(self) -> tuple[np.ndarray, np.ndarray]:
        """L_t - L_0 minus the integral of the rate (T, B), and how large it may be.

        An Euler step differs from the flow by half of |v| H v eta^2 = |change of E|v|^2| eta / 4, inside what `trapezoid`
        allows; and by `kinks` where it crosses some. A birth, with probability eta sigma for each particle and step, changes L
        by (L'(new) - L'(old)) / m to first order: a martingale around the rate, allowed five standard deviations, and
        C_R |change of Q|^2 / 2 beyond it.
        """
        dt = steps(self.time)
        integral, off = trapezoid(dt, self.rate)
        m = self.theta.shape[2]
        new = (self.slope_on_sphere**2).mean(2)[..., None]
        variance = self.sigma * dt / m**2 * before(2 * self.slope**2 + 2 * new).sum(2)
        sizes = (np.linalg.norm(before(self.Phi), axis=3) + self.constants.B_Phi[:, None]) ** 2
        spread = self.constants.C_R / 2 * self.sigma * dt / m**2 * sizes.sum(2)
        pull = (
            self.sigma * dt * self.eta * self.sigma * (self.constants.B_L * (before(self.W2) + 1)) ** 2
        )  # several births at once
        count = steps(self.track.run["step"])
        crossed = count * (self.kinks + before(self.kinks))
        may = np.cumsum(off + spread + pull + crossed, axis=0) + NOISE * np.sqrt(np.cumsum(variance, axis=0))
        rough = precision(self.track) * (1 + np.abs(self.L).max(0))
        return np.cumsum(steps(self.L) - integral, axis=0), may + rough

    @cached_property
    def kinks(self) -> np.ndarray:
        """sum_i s_i (1/m) sum_j |a_j| |v_j . x_i| over the units that the next Euler step turns on or off (T, B).

        By so much the output after the step is off the linear prediction. Particles that slide along v . x_i = 0 jump across
        it in every step, so that E|v|^2 is not what L loses.
        """
        late = self.theta + self.eta * self.v
        image = late[..., 1:] @ self.X.swapaxes(1, 2)  # (T, B, m, n)
        turned = ((image > 0) != (self.H > 0)) * np.abs(image)
        size = np.maximum(np.abs(late[..., :1]), np.abs(self.theta[..., :1]))
        return (np.abs(self.weights) * (size * turned).mean(2)).sum(2)

    @cached_property
    def sphere(self) -> np.ndarray:
        """Uniform points of the sphere (POINTS, d + 1), always the same."""
        z = np.random.default_rng(0).standard_normal((POINTS, self.theta.shape[3]))
        return z / np.linalg.norm(z, axis=1, keepdims=True)

    @cached_property
    def slope_on_sphere(self) -> np.ndarray:
        """L'[rho] at `sphere` (T, B, POINTS)."""
        Phi = self.sphere[:, :1] * np.maximum(self.sphere[:, 1:] @ self.X.swapaxes(1, 2), 0)  # (1 or B, POINTS, n)
        return -(Phi @ self.weights[..., None])[..., 0] + self.lam

    @cached_property
    def unit(self) -> tuple[np.ndarray, np.ndarray]:
        """Directions of the particles (T, B, m, d + 1) and L' there (T, B, m)."""
        size = np.linalg.norm(self.theta, axis=3, keepdims=True)
        safe = np.where(size > 0, size, 1.0)
        return self.theta / safe, np.where(size > 0, self.slope[..., None] / safe**2, np.nan)[..., 0]


def particles(track: Track) -> Particles | None:
    """The particles of a run, None where there are none: another rule, weights not recorded, a loss without Lipschitz slope."""
    if track.rule not in ("WassersteinFlow", "PerturbedWassersteinFlow") or track.loss != "logistic" or not track.W:
        return None
    if track.get("step") is None or track.net.outputs > 1 or getattr(track.net, "activation", "") != "relu":
        return None
    return Particles(track)


@check("MT-25", "MT-26", "MT (4.1), (4.2)", reads=particles)
def particle_steps(P: Particles) -> Iterator[Part]:
    """a step moves each particle by eta v(theta); with births, the others are on the unit sphere, as many as expected"""
    track = P.track
    if not track.every_step or len(track.t) < 2:
        return
    v = P.v if track.options["scheme"] == "discrete" else P.heun()
    taken = steps(track.run["step"])  # 0 or 1
    should = before(P.theta) + P.eta * before(v) * taken[:, :, None, None]
    error = np.abs(P.theta - should).max(3)  # (T, B, m)
    scale = 1 + np.abs(P.theta).max((2, 3))
    accuracy = (precision(track) * scale)[:, :, None]
    born = error > accuracy
    length = np.abs(np.linalg.norm(P.theta, axis=3) - 1)
    yield part(
        "theta(t + eta) = theta(t) + eta v(theta(t)), or is new on the sphere",
        np.where(born & (P.sigma > 0), length, error), accuracy, taken > 0,
        identity=True, numbers={"births": born.sum((0, 2)).tolist()},
    )  # fmt: skip
    if P.sigma == 0:
        return
    rate = P.eta * P.sigma
    chance = rate if track.options["scheme"] == "discrete" else -math.expm1(-rate)
    count, draws = np.cumsum(born.sum(2), axis=0), np.cumsum(taken, axis=0) * P.theta.shape[2]
    tolerance = NOISE * np.sqrt(draws * chance * (1 - chance)) + 1
    yield part(
        "number of births = eta sigma m per step", np.abs(count - chance * draws), tolerance, draws > 0,
        id="MT-26", reference="MT (4.2)", identity=True, scale=draws,
        note=f"{NOISE:g} standard deviations of the random births",
    )  # fmt: skip


def _lemma(number: str, statement: str, *sides: Any, **more: Any) -> Part:
    """A part of MT-30."""
    return part(statement, *sides, id=f"MT-30 {number}", reference=f"{APPENDIX}, {number}", **more)


@check("MT-30", "MT Lemmas E.6-E.20", reads=particles)
def perturbed_flow(P: Particles) -> Iterator[Part]:
    """along the perturbed Wasserstein flow: bounds of L', the rate of L, growth of W, Lipschitz and sublevel bounds

    All parts, with the constants of MT-24 and the corrected factors of E-MT-10. W^2 = E |theta|^2 as measured.
    """
    if not len(P.track.t):
        return
    known, s, W2, W = P.constants, P.sigma, P.W2, np.sqrt(P.W2)
    B_L, c_2 = known.B_L, known.c_2
    directions, there = P.unit
    top = np.maximum(np.abs(P.slope_on_sphere).max(2), np.nanmax(np.abs(there), axis=2))
    yield _lemma("E.6", "|L'| <= B_L on the sphere", top, B_L)
    left, right = P.defect
    yield _lemma(
        "E.7", "L(t) - L(0) = integral of -sigma E L' + sigma E_U L' - E|v|^2", np.abs(left), right, P.time > 0,
        identity=True, scale=np.maximum(P.L, P.L[0]),
        note="accuracy: trapezoids between records" + (f", {NOISE:g} standard deviations of births" if s else ""),
    )  # fmt: skip
    noise = s * B_L * (W2 + 1)
    yield _lemma("E.8", "dL/dt <= sigma B_L (W^2 + 1) - E|v|^2", P.rate, noise - P.speed2)
    room = P.lam - P.time * s * B_L
    cost = right / np.where(room > 0, room, np.nan)
    bound = (P.L[0] + s * P.time * B_L) / np.where(room > 0, room, np.nan)
    says = "W^2 <= (L_0 + sigma t B_L) / (b_V - sigma t B_L)"
    yield _lemma("E.9", says, W2, bound, room > 0, allowance=np.nan_to_num(cost))
    climb = P.L - s * B_L * (np.maximum.accumulate(W2, axis=0).max(0) + 1) * P.time
    yield _lemma(
        "E.10", "L(t2) - L(t1) <= sigma (t2 - t1) B_L (max W^2 + 1)", climb, np.minimum.accumulate(climb, axis=0),
        allowance=2 * right, note="left: L - sigma t B_L (max W^2 + 1), right: its least value so far",
    )  # fmt: skip
    turned = P.theta[..., :1] * (P.H > 0) * (P.v[..., 1:] @ P.X.swapaxes(1, 2))  # a_j relu'(v_j . x_i) (dv_j . x_i)
    change = -s * P.Q + (P.v[..., :1] * P.H + turned).mean(2)  # dQ_i/dt (T, B, n); E_U Phi = 0
    push = np.sqrt(np.maximum(noise - P.rate, 0))[..., None]
    limit = s * P.sizes / 2 * (W2 + 1)[..., None] + P.sizes * W[..., None] * push
    says = "|d/dt int Phi_i| <= sigma B (W^2 + 1) + M W (-dL/dt + sigma B_L (W^2 + 1))^(1/2)"
    yield _lemma("E.11", says, np.abs(change), limit)
    far = np.abs(steps(P.slope_on_sphere)).max(2)
    limit = known.C_R * known.B_Phi * np.linalg.norm(steps(P.Q), axis=2)
    yield _lemma("E.12", "change of L' on the sphere <= C_R B_Phi |change of Q|", far, limit)
    other = np.roll(P.sphere, 1, axis=0)
    near = np.abs(P.slope_on_sphere - np.roll(P.slope_on_sphere, 1, axis=2)) / np.linalg.norm(P.sphere - other, axis=1)
    gap = np.linalg.norm(directions - np.roll(directions, 1, axis=2), axis=3)
    neighbours = np.abs(there - np.roll(there, 1, axis=2)) / np.where(gap > 1e-6, gap, np.nan)
    steep = np.fmax(near.max(2), np.nan_to_num(neighbours).max(2))
    yield _lemma("E.13", "|L'(theta) - L'(theta')| <= c_2 |theta - theta'| on the sphere", steep, c_2)
    tau = -np.fmin(P.slope_on_sphere.min(2), np.nanmin(there, axis=2))  # K^(-tau) is not empty
    share = (P.slope_on_sphere <= -tau[..., None] / 2).mean(2)
    d = P.theta.shape[3] - 1
    area = 2 * d * np.log(np.where(tau > 0, tau, np.nan) / 2 / c_2)
    yield _lemma(
        "E.14", "ln m(K^(-tau + delta)) >= -2 d ln(c_2 / delta), delta = tau / 2",
        area, np.log(share), (tau > 0) & (share > 0), note=f"area from {POINTS} points of the sphere",
    )  # fmt: skip
    radial = np.abs((P.theta * P.v).sum(3) + 2 * P.slope).max(2)
    accuracy = precision(P.track) * (1 + np.abs(P.slope).max(2))
    yield _lemma("E.15", "theta . grad L'(theta) = 2 L'(theta)", radial, accuracy, identity=True)
    if s:
        yield _descent(P, tau, right)
    yield _lemma(
        "E.20", "dL/dt <= sigma B_L (W^2 + 1) - 4 (E L')^2 / W^2",
        P.rate, noise - 4 * P.mean_slope**2 / np.where(W2 > 0, W2, np.nan), note="printed without the 4, which is weaker",
    )  # fmt: skip
    # Convexity, with the last record as rho*: E_rho* L' >= W*^2 times the least L' in its own directions.
    last = directions[-1]  # (B, m, d + 1)
    Phi = last[..., :1] * np.maximum(last[..., 1:] @ P.X.swapaxes(1, 2), 0)
    least = (-(Phi @ P.weights[..., None])[..., 0] + P.lam * (last**2).sum(2)).min(2)
    yield _lemma(
        "(E.13)", "L[rho] - L[rho*] <= E_rho L' - W*^2 min(min L', 0)",
        P.L - P.L[-1], P.mean_slope - W2[-1] * np.minimum(least, 0),
        note="rho* is the last record, the minimum over its own particles",
    )  # fmt: skip


def _descent(P: Particles, tau: np.ndarray, may: np.ndarray) -> Part:
    """Lemma E.16: if L' <= -tau somewhere at t*, the objective has fallen at t* + l. Entries at t*; needs births."""
    s, d = P.sigma, P.theta.shape[3] - 1
    W2 = P.W2.max(0)
    wait = (np.log(W2 / s) + 2 * d * np.log(2 * P.constants.c_2 / tau)) / (tau - s) + 1
    wait = np.where(tau > s, wait, np.nan)
    left, right = np.full(P.L.shape, np.nan), np.full(P.L.shape, np.nan)
    allowance = np.zeros(P.L.shape)
    for k, b in np.argwhere(np.isfinite(wait)):
        later = np.flatnonzero(P.time[:, b] >= P.time[k, b] + wait[k, b])
        c_1 = P.constants.c_1[b % len(P.X)]
        if not len(later):
            continue
        j = later[0]
        length = P.time[j, b] - P.time[k, b]  # any l of at least this size will do
        lost = s * length * c_1 * (W2[b] + 1)
        if lost < tau[k, b] / 4:
            left[k, b] = P.L[j, b]
            right[k, b] = P.L[k, b] - (tau[k, b] / 4 - lost) ** 2 / (length * c_1**2 * W2[b]) + lost
            allowance[k, b] = may[j, b] - may[k, b]
    statement = "L(t* + l) <= L(t*) - (tau/4 - sigma l c_1 (W^2 + 1))^2 / (l c_1^2 W^2) + sigma l c_1 (W^2 + 1)"
    return _lemma(
        "E.16", statement, left, right, np.isfinite(left), allowance=allowance,
        note="for the flow of densities; particles may have no birth near the set",
    )  # fmt: skip
