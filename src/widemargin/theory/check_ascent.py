"""Checks of CB: norms and directions of neurons, smooth margins. Those of frozen features are in `check_frozen`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ._records import Params, before, duals_known, never_falls, slopes, steps, trapezoid
from ._rooms import losses, rules, torch
from .inequality import Part, check, part, precision
from .track import Track

EXPLICIT = (
    "GD",
    "SmoothMarginAscent",
    "NeuronNormAscent",
    "OutputLayerAscent",
    "NormalizedGD",
)  # W moves by h times the direction of CB's flow, h = change of t_cb
LN2 = math.log(2)


@dataclass(frozen=True)
class Ascent:
    """Neurons w_j of a 2-homogeneous net at every record, and the direction in which CB's flow moves them.

    Without the 1/m of the mean field W_j = w_j / sqrt(m), and everything below is the same with sums instead of means: nu has
    mass ||nu|| = sum_j |W_j|^2, u = p / ||nu||, J'(theta) = sum_i q_i y_i phi(theta, x_i), q_i = |l'_i| / sum l.
    """

    track: Track

    @cached_property
    def factor(self) -> float:
        """||nu|| over sum_j |w_j|^2."""
        return 1 / self.track.net.m if rules.mean_field(self.track.net) else 1.0

    @cached_property
    def w(self) -> np.ndarray:
        """(T, B, m, k)."""
        return np.stack([self._flat(W) for W in self.track.W or []]).astype(float)

    def _flat(self, W: Params) -> np.ndarray:
        """(B, m, k)."""
        return torch.cat([W[name].reshape(*W[name].shape[:2], -1) for name in self.track.net.trained], 2).numpy()

    @cached_property
    def q(self) -> np.ndarray:
        """|l'_i| / sum l (T, B, n)."""
        return slopes(self.track)

    @cached_property
    def v(self) -> np.ndarray:
        """Velocities of the neurons in CB's own time (T, B, m, k): 1 / factor times grad S."""
        pull, weights = self.track.problem.pull, torch.as_tensor(self.q)
        return np.stack([self._flat(pull(W, q)) for W, q in zip(self.track.W or [], weights)]) / self.factor

    @cached_property
    def time(self) -> np.ndarray:
        """CB's own time (T, B)."""
        return self.factor * self.track.run["t_cb"]

    @cached_property
    def size2(self) -> np.ndarray:
        """|w_j|^2 (T, B, m)."""
        return (self.w**2).sum(3)

    @cached_property
    def mass(self) -> np.ndarray:
        """||nu|| (T, B)."""
        return self.factor * self.size2.sum(2)

    @cached_property
    def J(self) -> np.ndarray:
        """J'(theta_j) (T, B, m), from the features and not from the gradients; 0 where w_j = 0."""
        y = self.track.problem.y
        rows = []
        for W, q in zip(self.track.W or [], self.q):
            phi = self.track.net.features(W, self.track.problem.X)  # (B, n, m)
            pulled = ((torch.as_tensor(q) * y)[:, None, :] @ phi)[:, 0]
            outer = self.track.net.outer(W) / self.factor
            rows.append((pulled * outer).numpy())
        return np.stack(rows) / np.where(self.size2 > 0, self.size2, 1.0)

    @cached_property
    def explicit(self) -> bool:
        return self.track.rule in EXPLICIT and self.track.every_step and not self.track.options.get("weight_decay")

    @cached_property
    def dip(self) -> np.ndarray:
        """By how much the steps of finite size may lower (S - ln n) / ||nu|| since the first record (T, B).

        A step h of the flow on W gives p + h p' + rest, so S rises by at least h q.p' - (max p' - min p')^2 h^2 / 8 - max |rest|,
        and ||nu|| by 2 h <w, v> + h^2 |v|^2. What is beyond the first order is the allowance. For the flow itself it is rtol
        times how fast the quantity changes with W, for every step.
        """
        track = self.track
        S = -track.log_risk - math.log(track.n)
        if self.explicit:
            h = steps(self.time)
            p = track.p
            assert p is not None
            rise = self._push()
            rest = np.abs(p - before(p) - h[..., None] * before(rise)).max(2)
            spread = h**2 * (before(rise).max(2) - before(rise).min(2)) ** 2 / 8
            growth = self.factor * h**2 * before((self.v**2).sum((2, 3)))
            later = (np.abs(S) + np.abs(before(S))) / np.minimum(self.mass, before(self.mass))
            lost = (rest + spread + growth * later) / np.minimum(self.mass, before(self.mass))
            return np.cumsum(np.where(h > 0, lost, 0.0), axis=0)
        rtol = float(track.options.get("rtol", math.nan))
        quantity = np.abs(track.run["psi_normalized"]) / self.factor
        force = np.sqrt(self.factor * (self.v**2).sum((2, 3)) / self.mass)  # |grad S| |W| / ||nu|| <= this
        each = rtol * (2 * quantity + np.where(np.isfinite(force), force, 2 * quantity))
        return np.cumsum(steps(track.run["step"]) * each, axis=0)

    def _push(self) -> np.ndarray:
        """dp/dt in CB's own time (T, B, n)."""
        rows = []
        for W, v in zip(self.track.W or [], self.v):
            V, at = {}, 0
            for name in self.track.net.trained:
                wide = W[name][0, 0].numel()
                V[name] = torch.as_tensor(v[..., at : at + wide]).reshape(W[name].shape)
                at += wide
            rows.append(self.track.problem.push(W, V).numpy())
        return np.stack(rows)


def ascent(track: Track) -> Ascent | None:
    """None for nets that are not 2-homogeneous mixtures of neurons, the squared loss, several outputs."""
    net = track.net
    neurons = net.name == "frozen" or (net.name == "relu" and getattr(net, "train", "") == "both")
    if not neurons or net.outputs > 1 or track.problem.loss is None or not len(track.t):
        return None
    return Ascent(track)


def usable(track: Track) -> np.ndarray:
    """Records (T, B) at which a gradient flow is still one, and all numbers fit into floating point.

    Explicit rules form their steps in CB's clock as exp(ln(h / risk) + ln risk), which rounds by |ln risk| eps.
    """
    honest = track.get("honest")
    fine = np.isfinite(track.run["norm"]) & (track.run["norm"] < 1e100)
    if track.rule in EXPLICIT:
        fine = fine & (np.abs(track.log_risk) < 1e3)
    return fine if honest is None else fine & honest.astype(bool)


# ---------------------------------------------------------------- the flow of neurons


@check("CB-8", "CB (11), (12)", reads=ascent)
def wfr_rates(A: Ascent, W: object, t_cb: np.ndarray) -> Iterator[Part]:
    """d|w_j|^2/dt = 4 |w_j|^2 J'(theta_j) in CB's clock

    Exact for explicit steps (the change of |w_j|^2 is 4 h |w_j|^2 J' + h^2 |v_j|^2), by trapezoids along a flow.
    """
    track = A.track
    if len(track.t) < 2:
        return
    dt = steps(A.time)[..., None]
    rate = 4 * A.size2 * A.J
    change = steps(A.size2)
    accuracy = precision(track) * (A.size2 + before(A.size2))
    if A.explicit:
        second = dt**2 * before((A.v**2).sum(3))
        left, right = np.abs(change - dt * before(rate) - second), accuracy
        note = "explicit steps: with their h^2 |v_j|^2"
    elif track.rule == "GradientFlow":
        integral, off = trapezoid(dt, rate)
        rtol = 2 * float(track.options["rtol"]) * steps(track.run["step"])[..., None]
        left, right = np.abs(change - integral), off + accuracy + rtol * A.mass[..., None] / A.factor
        note = "accuracy: trapezoids between records, rtol in every step"
    else:
        return
    moved = (dt[..., 0] > 0) & usable(track) & duals_known(track)
    says, size = "change of |w_j|^2 = integral of 4 |w_j|^2 J'(theta_j) dt", np.maximum(A.size2, before(A.size2))
    yield part(says, left, right, moved, identity=True, note=note, scale=size)
    # Radial part of the velocity, J' from the features: <w_j, v_j> = 2 |w_j|^2 J'(theta_j)
    push = np.abs((A.w * A.v).sum(3) - 2 * A.size2 * A.J)
    scale = precision(track) * (A.size2 + np.abs(A.w * A.v).sum(3))
    says = "<w_j, grad F'(w_j)> = 2 |w_j|^2 J'(theta_j)"
    yield part(says, push, scale, usable(track), id="CB-8 Euler", identity=True)


@check("CB-12", "CB Lemma 26", reads=ascent)
def cone(A: Ascent, balance: np.ndarray) -> Part | None:
    """|a_j|^2 - b_j^2 of every neuron is constant along the flow of both layers, so the cone |a| = |b| is invariant"""
    track, net = A.track, A.track.net
    if net.name != "relu" or set(net.trained) != {"a", "V"}:
        return None
    if track.rule == "GradientFlow":
        rtol, size = float(track.options["rtol"]), track.run["norm"] ** 2
        right = np.cumsum(2 * rtol * steps(track.run["step"]) * np.maximum(size, before(size)), axis=0)
        note = "accuracy: rtol |W|^2 for every step"
    elif track.W is not None and A.explicit:
        outer, inner = (A.v[..., :1] ** 2).sum(3), (A.v[..., 1:] ** 2).sum(3)
        right = np.cumsum(steps(A.time) ** 2 * before(np.abs(outer - inner).max(2)), axis=0)
        note = "accuracy: h^2 (| |dv|^2 - da^2 |) of every explicit step"
    else:
        return None
    right = right + precision(track) * (1 + track.run["norm"] ** 2)
    scale = A.mass / A.factor if track.W is not None else track.run["norm"] ** 2
    says = "max_j |change of |v_j|^2 - a_j^2| = 0"
    return part(says, balance, right, usable(track), identity=True, scale=scale, note=note)


@check("CB-25", "CB Corollary 11 (E-CB-4, F-CB-1)", reads=ascent)
def smooth_margin(A: Ascent) -> Iterator[Part]:
    """S_beta(h(nubar)) - ln n / beta, beta = ||nu||, never falls once all points are fitted; its rate at fixed beta

    For the exponential loss. The proof needs ||nu|| to grow, which it does as soon as sum l < 1 (F-CB-1).
    """
    track, says = A.track, partial(part, reference="CB Corollary 11 (E-CB-4)")
    quantity = track.get("psi_normalized")
    followed = track.rule == "GradientFlow" or (A.explicit and track.W is not None)
    if track.loss == "exp" and quantity is not None and followed:
        quantity = quantity / A.factor
        where = track.fitted & usable(track)
        if track.W is None:  # rtol times how fast the quantity changes with W, to first order 2 + 1 of itself
            rtol = float(track.options["rtol"])
            dip = np.cumsum(4 * rtol * steps(track.run["step"]) * np.abs(quantity), axis=0)
            terms = np.abs(quantity)
        else:
            dip, terms = A.dip, np.abs(track.p).max(2) / A.mass  # type: ignore[arg-type]
        yield says(
            "S_beta - ln n / beta never falls, beta = ||nu||", **never_falls(quantity, dip, where), terms=terms,
            note="left: the largest value since all points are fitted",
        )  # fmt: skip
    if track.W is not None:
        rise = A._push()
        u = track.p / A.mass[..., None]  # type: ignore[operator]
        grown = 2 * A.factor * (A.w * A.v).sum((2, 3))  # d||nu||/dt
        rate = (A.q * (rise - u * grown[..., None])).sum(2) / A.mass
        share = A.factor * A.size2 / A.mass[..., None]
        tangent = np.maximum((A.v**2).sum(3) / np.where(A.size2 > 0, A.size2, np.inf) - 4 * A.J**2, 0)
        mean = (share * A.J).sum(2)
        spread = (share * (A.J - mean[..., None]) ** 2).sum(2)
        formula = (share * tangent).sum(2) + 4 * spread
        size = (share * (A.v**2).sum(3) / np.where(A.size2 > 0, A.size2, np.inf)).sum(2)
        terms = (A.q * (np.abs(rise) + np.abs(u * grown[..., None]))).sum(2) / A.mass
        yield says(
            "d/dt S_beta(h(nubar)) at fixed beta = int |grad J'|^2 + 4 Var J'",
            np.abs(rate - formula), precision(track) * size, usable(track) & (A.mass > 0),
            id="CB-25 rate", terms=terms, identity=True,
        )  # fmt: skip


@check("CB-26", "CB Lemmas 13-15, 23, 24")
def soft_minimum(track: Track, margin: np.ndarray, log_risk: np.ndarray, norm: np.ndarray) -> Iterator[Part]:
    """S_beta tends to the minimum at rate ln n / beta, its gradient does not vanish and sits on the smallest margins

    With rates. Logistic loss: e^-p ln 2 <= l(p) <= e^-p and e^-p / 2 <= |l'(p)| <= e^-p for p >= 0.
    """
    if track.loss not in ("exp", "logistic") or not len(track.t) or track.net.outputs > 1:
        return
    n, exp = track.n, track.loss == "exp"
    where = np.isfinite(log_risk) & np.isfinite(margin) & usable(track)
    fitted = where & (exp | (margin >= 0))
    beta = norm**track.net.degree
    beta = np.where((beta > 0) & np.isfinite(beta), beta, np.nan)
    offset = math.log(n) + (0.0 if exp else -math.log(LN2))
    large = (np.abs(margin) if track.p is None else np.abs(track.p).max(2)) + track.summands
    near = partial(part, reference="CB Lemma 13, (14)", terms=(1 + offset + large) / beta)
    yield near("min u <= S_beta(u)", margin / beta, -log_risk / beta, where, id="CB-26 below")
    says = "S_beta(u) <= min u + ln n / beta" if exp else "S_beta(u) <= min u + (ln n + ln(1 / ln 2)) / beta"
    yield near(says, -log_risk / beta, (margin + offset) / beta, fitted)
    if track.p is None or track.problem.loss is None:
        return
    q = losses.weights(track.problem.loss, torch.as_tensor(track.p), "soft_margin").numpy()
    yield part(
        "sum_i grad_i S >= 1 (exp), 1 / (2 ln 2) (logistic, fitted)",
        (1 - precision(track)) * (1 if exp else 0.5 / LN2), q.sum(2), fitted,
        id="CB-26 gradient", reference="CB Lemma 14",
    )  # fmt: skip
    kept = track.get("q")
    if kept is None:
        return
    # The records of a flow use the dual that it solved for when |W|^L is large; before, they are the softmax.
    own = np.ones(track.shape, bool) if track.rule != "GradientFlow" else beta < 100
    gap = track.p - track.p.min(2, keepdims=True)
    normal = kept > np.finfo(track.run.config.get("dtype", "float64")).tiny  # below, digits are missing
    excess = np.where(normal, np.log(kept) + gap, -np.inf).max(2)
    yield part(
        "q_i <= exp(min p - p_i) (exp), 2 exp(min p - p_i) (logistic, fitted)",
        excess, 0.0 if exp else LN2, fitted & own, id="CB-26 argmin", reference="CB Lemmas 15, 24",
        terms=1 + np.abs(track.p).max(2) + track.summands, scale=1.0, note="logarithms",
    )  # fmt: skip


@check("CB-24", "CB Propositions 12, 29")
def certificate_gap(track: Track) -> Iterator[Part]:
    """the gap max_theta sum_i q_i y_i phi(theta, x_i) - min_i margin of a network is not negative; 0 at the optimum

    In convention M1. The search starts at the network's own neurons, which already give at least the margin.
    """
    margin, dual = track.get("margin_M1"), track.get("dual_estimate")
    if margin is not None and dual is not None:
        gap = dual - margin
        last = [float(gaps[np.isfinite(gaps)][-1]) if np.isfinite(gaps).any() else math.nan for gaps in gap.T]
        yield part(
            "min_i y_i f(x_i) / |f|_M1 <= max_theta |sum_i q_i y_i phi(theta, x_i)|", margin, dual,
            note="the maximum is an estimate from below", numbers={"last_gap": last},
        )  # fmt: skip
    if track.p is None or track.problem.loss is None or track.net.outputs > 1:
        return
    parts = [track.net.neurons(W) for W in track.W or []]
    if not parts or parts[0] is None:
        return
    q = losses.weights(track.problem.loss, torch.as_tensor(track.p), "unit")
    X, y = track.problem.X, track.problem.y
    degree = 2 if getattr(track.net, "activation", "relu") == "srelu" else 1
    best, size = [], []
    for (mass, theta), weight in zip(parts, q):  # type: ignore[misc]
        phi = (theta @ X.mT).clamp_min(0) ** degree  # (B, m, n)
        best.append((phi * (weight * y)[:, None, :]).sum(2).abs().amax(1).numpy())
        size.append(mass.abs().sum(1).numpy())
    mass_now = np.stack(size)
    safe = np.where(mass_now > 0, mass_now, np.nan)
    yield part(
        "sum_i q_i u_i <= max_j |sum_i q_i y_i phi(theta_j, x_i)|",
        (q.numpy() * track.p).sum(2) / safe, np.stack(best), usable(track),
        id="CB-24 neurons", terms=np.abs(track.p).max(2) / safe,
    )  # fmt: skip
