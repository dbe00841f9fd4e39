"""Checks of CB: norms and directions of neurons, smooth margins, and the ascents with frozen features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ._records import QUIET, before, duals_known, entry, eps, never_falls, precision, slopes, steps, trapezoid, worst
from ._rooms import losses, qp, rules, torch
from .inequality import Inequality, check
from .simplex import best_mixture
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
        rows = []
        for W in self.track.W or []:
            parts = [W[name].reshape(*W[name].shape[:2], -1) for name in self.track.net.trained]
            rows.append(torch.cat(parts, 2).numpy())
        return np.stack(rows).astype(float)

    @cached_property
    def q(self) -> np.ndarray:
        """|l'_i| / sum l (T, B, n)."""
        return slopes(self.track)

    @cached_property
    def v(self) -> np.ndarray:
        """Velocities of the neurons in CB's own time (T, B, m, k): 1 / factor times grad S."""
        rows = []
        for W, q in zip(self.track.W or [], self.q):
            F = self.track.problem.pull(W, torch.as_tensor(q))
            parts = [F[name].reshape(*F[name].shape[:2], -1) for name in self.track.net.trained]
            rows.append(torch.cat(parts, 2).numpy() / self.factor)
        return np.stack(rows)

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


@check(
    "CB-8",
    says="d|w_j|^2/dt = 4 |w_j|^2 J'(theta_j) in CB's clock",
    reference="CB (11), (12)",
)
@QUIET
def wfr_rates(track: Track) -> list[Inequality] | None:
    """Exact for explicit steps (the change of |w_j|^2 is 4 h |w_j|^2 J' + h^2 |v_j|^2), by trapezoids along a flow."""
    A = ascent(track)
    if A is None or track.W is None or track.get("t_cb") is None or len(track.t) < 2:
        return None
    dt = steps(A.time)[..., None]
    rate = 4 * A.size2 * A.J
    change = steps(A.size2)
    accuracy = precision(track) * (A.size2 + before(A.size2))
    reference = "CB (11), (12)"
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
        return None
    moved = (dt[..., 0] > 0) & usable(track) & duals_known(track)
    radial = entry(
        track,
        "CB-8",
        "change of |w_j|^2 = integral of 4 |w_j|^2 J'(theta_j) dt",
        reference,
        applies=moved,
        identity=True,
        note=note,
        **worst(left, right, scale=np.maximum(A.size2, before(A.size2))),
    )
    # Radial part of the velocity, J' from the features: <w_j, v_j> = 2 |w_j|^2 J'(theta_j)
    push = np.abs((A.w * A.v).sum(3) - 2 * A.size2 * A.J)
    scale = precision(track) * (A.size2 + np.abs(A.w * A.v).sum(3))
    euler = entry(
        track,
        "CB-8 Euler",
        "<w_j, grad F'(w_j)> = 2 |w_j|^2 J'(theta_j)",
        reference,
        applies=usable(track),
        identity=True,
        **worst(push, scale),
    )
    return [radial, euler]


@check(
    "CB-12",
    says="|a_j|^2 - b_j^2 of every neuron is constant along the flow of both layers, so the cone |a| = |b| is invariant",
    reference="CB Lemma 26",
)
@QUIET
def cone(track: Track) -> Inequality | None:
    balance = track.get("balance")
    net = track.net
    both = net.name == "relu" and set(net.trained) == {"a", "V"}
    if balance is None or not both or track.problem.loss is None or not len(track.t):
        return None
    A = ascent(track)
    if A is not None and track.rule == "GradientFlow":
        rtol, size = float(track.options["rtol"]), track.run["norm"] ** 2
        right = np.cumsum(2 * rtol * steps(track.run["step"]) * np.maximum(size, before(size)), axis=0)
        note = "accuracy: rtol |W|^2 for every step"
    elif A is not None and track.W is not None and A.explicit:
        outer, inner = (A.v[..., :1] ** 2).sum(3), (A.v[..., 1:] ** 2).sum(3)
        right = np.cumsum(steps(A.time) ** 2 * before(np.abs(outer - inner).max(2)), axis=0)
        note = "accuracy: h^2 (| |dv|^2 - da^2 |) of every explicit step"
    else:
        return None
    right = right + precision(track) * (1 + track.run["norm"] ** 2)
    return entry(
        track,
        "CB-12",
        "max_j |change of |v_j|^2 - a_j^2| = 0",
        "CB Lemma 26",
        balance,
        right,
        usable(track),
        identity=True,
        scale=A.mass / A.factor if track.W is not None else track.run["norm"] ** 2,
        note=note,
    )


@check(
    "CB-25",
    says="S_beta(h(nubar)) - ln n / beta, beta = ||nu||, never falls once all points are fitted; its rate at fixed beta",
    reference="CB Corollary 11 (E-CB-4, F-CB-1)",
)
@QUIET
def smooth_margin(track: Track) -> list[Inequality] | None:
    """For the exponential loss. The proof needs ||nu|| to grow, which it does as soon as sum l < 1 (F-CB-1)."""
    A = ascent(track)
    if A is None:
        return None
    reference, found = "CB Corollary 11 (E-CB-4)", []
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
        found.append(
            never_falls(
                track, "CB-25", "S_beta - ln n / beta never falls, beta = ||nu||", reference, quantity, dip, where, terms=terms,
                note="left: the largest value since all points are fitted",
            )
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
        where = usable(track) & (A.mass > 0)
        found.append(
            entry(
                track,
                "CB-25 rate",
                "d/dt S_beta(h(nubar)) at fixed beta = int |grad J'|^2 + 4 Var J'",
                reference,
                np.abs(rate - formula),
                precision(track) * size,
                where,
                terms=(A.q * (np.abs(rise) + np.abs(u * grown[..., None]))).sum(2) / A.mass,
                identity=True,
            )
        )
    return found or None


@check(
    "CB-26",
    says="S_beta tends to the minimum at rate ln n / beta, its gradient does not vanish and sits on the smallest margins",
    reference="CB Lemmas 13-15, 23, 24",
)
@QUIET
def soft_minimum(track: Track) -> list[Inequality] | None:
    """With rates. Logistic loss: e^-p ln 2 <= l(p) <= e^-p and e^-p / 2 <= |l'(p)| <= e^-p for p >= 0."""
    margin, log_risk, norm = track.get("margin"), track.get("log_risk"), track.get("norm")
    if margin is None or log_risk is None or norm is None or track.loss not in ("exp", "logistic"):
        return None
    if not len(track.t) or track.net.outputs > 1:
        return None
    n, exp = track.n, track.loss == "exp"
    where = np.isfinite(log_risk) & np.isfinite(margin) & usable(track)
    fitted = where & (exp | (margin >= 0))
    beta = norm**track.net.degree
    beta = np.where((beta > 0) & np.isfinite(beta), beta, np.nan)
    offset = math.log(n) + (0.0 if exp else -math.log(LN2))
    large = (np.abs(margin) if track.p is None else np.abs(track.p).max(2)) + track.summands
    terms = (1 + offset + large) / beta
    found = [
        entry(
            track,
            "CB-26 below",
            "min u <= S_beta(u)",
            "CB Lemma 13, (14)",
            margin / beta,
            -log_risk / beta,
            where,
            terms=terms,
        ),
        entry(
            track,
            "CB-26",
            "S_beta(u) <= min u + ln n / beta" if exp else "S_beta(u) <= min u + (ln n + ln(1 / ln 2)) / beta",
            "CB Lemma 13, (14)",
            -log_risk / beta,
            (margin + offset) / beta,
            fitted,
            terms=terms,
        ),
    ]
    if track.p is not None and track.problem.loss is not None:
        q = losses.weights(track.problem.loss, torch.as_tensor(track.p), "soft_margin").numpy()
        found.append(
            entry(
                track,
                "CB-26 gradient",
                "sum_i grad_i S >= 1 (exp), 1 / (2 ln 2) (logistic, fitted)",
                "CB Lemma 14",
                (1 - precision(track)) * (1 if exp else 0.5 / LN2),
                q.sum(2),
                fitted,
            )
        )
        kept = track.get("q")
        if kept is not None:
            # The records of a flow use the dual that it solved for when |W|^L is large; before, they are the softmax.
            own = np.ones(track.shape, bool) if track.rule != "GradientFlow" else beta < 100
            gap = track.p - track.p.min(2, keepdims=True)
            normal = kept > np.finfo(track.run.config.get("dtype", "float64")).tiny  # below, digits are missing
            excess = np.where(normal, np.log(kept) + gap, -np.inf).max(2)
            found.append(
                entry(
                    track,
                    "CB-26 argmin",
                    "q_i <= exp(min p - p_i) (exp), 2 exp(min p - p_i) (logistic, fitted)",
                    "CB Lemmas 15, 24",
                    excess,
                    0.0 if exp else LN2,
                    fitted & own,
                    terms=1 + np.abs(track.p).max(2) + track.summands,
                    scale=1.0,
                    note="logarithms",
                )
            )
    return found


@check(
    "CB-24",
    says="the gap max_theta sum_i q_i y_i phi(theta, x_i) - min_i margin of a network is not negative; 0 at the optimum",
    reference="CB Propositions 12, 29",
)
@QUIET
def certificate_gap(track: Track) -> list[Inequality] | None:
    """In convention M1. The search starts at the network's own neurons, which already give at least the margin."""
    found, reference = [], "CB Propositions 12, 29"
    margin, dual = track.get("margin_M1"), track.get("dual_estimate")
    if margin is not None and dual is not None:
        gap = dual - margin
        last = [float(one[np.isfinite(one)][-1]) if np.isfinite(one).any() else math.nan for one in gap.T]
        found.append(
            entry(
                track,
                "CB-24",
                "min_i y_i f(x_i) / |f|_M1 <= max_theta |sum_i q_i y_i phi(theta, x_i)|",
                reference,
                margin,
                dual,
                note="the maximum is an estimate from below",
                numbers={"last_gap": last},
            )
        )
    if track.p is not None and track.problem.loss is not None and track.net.outputs == 1:
        parts = [track.net.neurons(W) for W in track.W or []]
        if parts and parts[0] is not None:
            q = losses.weights(track.problem.loss, torch.as_tensor(track.p), "unit")
            X, y = track.problem.X, track.problem.y
            degree = 2 if getattr(track.net, "activation", "relu") == "srelu" else 1
            best, size = [], []
            for (mass, theta), weight in zip(parts, q):  # type: ignore[misc]
                phi = (theta @ X.mT).clamp_min(0) ** degree  # (B, m, n)
                best.append((phi * (weight * y)[:, None, :]).sum(2).abs().amax(1).numpy())
                size.append(mass.abs().sum(1).numpy())
            mass_now = np.stack(size)
            mean = (q.numpy() * track.p).sum(2) / np.where(mass_now > 0, mass_now, np.nan)
            where = usable(track)
            found.append(
                entry(
                    track,
                    "CB-24 neurons",
                    "sum_i q_i u_i <= max_j |sum_i q_i y_i phi(theta_j, x_i)|",
                    reference,
                    mean,
                    np.stack(best),
                    where,
                    terms=np.abs(track.p).max(2) / np.where(mass_now > 0, mass_now, np.nan),
                )
            )
    return found or None


# ---------------------------------------------------------------- frozen features


@dataclass(frozen=True)
class Features:
    """Frozen features z_ij = y_i phi_j(x_i) and the best margins of their mixtures, for each trial."""

    track: Track

    @cached_property
    def Z(self) -> list[np.ndarray]:
        track = self.track
        z = track.net.features(dict(track.start), track.problem.X) * track.problem.y[:, :, None]
        return list(z.expand(track.run.trials, *z.shape[1:]).double().numpy())

    @cached_property
    def size(self) -> np.ndarray:
        """|z|_inf (B,)."""
        return np.array([np.abs(z).max() for z in self.Z])

    @cached_property
    def simplex(self) -> tuple[np.ndarray, np.ndarray]:
        """gamma_1^(m) = max over the simplex of min_i z_i . a (B,), attained by the returned a (B, m)."""
        found = [best_mixture(z) for z in self.Z]
        best = [np.full(z.shape[1], 1 / z.shape[1]) if a is None else a for z, a in zip(self.Z, found)]
        return np.array([(z @ a).min() for z, a in zip(self.Z, best)]), np.stack(best)

    @cached_property
    def ball(self) -> np.ndarray:
        """gamma_2^(m) = max over sqrt(m) |a| <= 1 of min_i z_i . a (B,)."""
        values = []
        for z in self.Z:
            if not z.any(axis=1).all():  # no function of the features is other than 0 there
                values.append(0.0)
                continue
            u = qp.direction(z, qp.solve_factor(z, 1e-10).q, 1e-10)
            values.append((z @ u).min() / (np.linalg.norm(u) or 1.0) / math.sqrt(z.shape[1]))
        return np.array(values)

    @cached_property
    def a(self) -> np.ndarray | None:
        """CB's a (T, B, m) at every record."""
        if self.track.W is None:
            return None
        return np.stack([self.track.net.outer(W).numpy() for W in self.track.W]).astype(float)


def _frozen_run(track: Track, rule: str) -> Features | None:
    if track.rule != rule or track.loss != "exp" or not len(track.t) or track.get("margin") is None:
        return None
    return Features(track)


def _so_far(values: np.ndarray) -> np.ndarray:
    """Largest value at the records before (T, B); -inf at the first."""
    top = np.maximum.accumulate(values, axis=0)
    return np.concatenate([np.full_like(top[:1], -np.inf), top[:-1]])


def _harmonic(k: np.ndarray) -> np.ndarray:
    """sum_{s < k} 1 / sqrt(s + 1)."""
    table = np.concatenate([[0.0], np.cumsum(1 / np.sqrt(np.arange(1, int(k.max()) + 1)))])
    return table[k.astype(int)]


@check(
    "CB-14",
    says="Proposition 6: the best margin so far of the ascent on frozen directions is within O(1 / sqrt t) of gamma_1^(m)",
    reference="CB Proposition 6",
)
@QUIET
def proposition6(track: Track) -> Inequality | None:
    F = _frozen_run(track, "NeuronNormAscent")
    if F is None or track.get("margin_M6") is None:
        return None
    gamma, _ = F.simplex
    t = track.run["step"]
    beta = _mass(track)
    # beta grows between records (CB-16), so the value at the left end bounds 1 / beta from above
    growth = np.cumsum(steps(_harmonic(t)) / before(beta), axis=0)
    root = np.sqrt(t)
    bound = gamma - F.size / root * (8 * math.log(track.net.m) + np.log(t) + 1) - 4 * math.log(track.n) / root * growth
    rising = np.logical_and.accumulate(steps(beta) >= 0, axis=0) if not track.every_step else np.ones(track.shape, bool)
    best = _so_far(track.run["margin_M6"])
    note = "" if track.every_step else "the best margin is the best recorded one; beta at the left end of each interval"
    return entry(
        track,
        "CB-14",
        "gamma_1^(m) - (|z| / sqrt t)(8 ln m + ln t + 1) - (4 ln n / sqrt t) sum 1 / (beta sqrt(s + 1)) <= best margin",
        "CB Proposition 6",
        bound,
        best,
        (t > 0) & np.isfinite(best) & rising & (track.options["lr"] == 1),
        terms=F.size,
        note=note,
        numbers={"gamma": gamma.tolist(), "growth": growth[-1].tolist(), "best": best[-1].tolist()},
    )


def _mass(track: Track) -> np.ndarray:
    """beta = |a|_1 = (1/m) sum_j r_j^2 (T, B) of frozen directions."""
    return track.run["norm"] ** 2 / track.net.m


@check(
    "CB-15",
    says="the smooth margin G_beta lies within ln n / beta of the margin, and its ascent is a mirror ascent on the simplex",
    reference="CB (14), Appendix E (E-CB-5)",
)
@QUIET
def mirror_ascent(track: Track) -> list[Inequality] | None:
    if track.loss != "exp" or track.net.name != "frozen" or track.get("margin") is None or not len(track.t):
        return None
    reference = "CB (14), Appendix E (E-CB-5)"
    beta, where = _mass(track), usable(track)
    G, least = -track.log_risk / beta, track.run["margin"] / beta
    F = Features(track)
    terms = F.size + (1 + math.log(track.n)) / beta
    found = [
        entry(track, "CB-15 below", "min_i z_i . abar <= G_beta(abar)", reference, least, G, where, terms=terms),
        entry(
            track,
            "CB-15 above",
            "G_beta(abar) <= min_i z_i . abar + ln n / beta",
            reference,
            G,
            least + math.log(track.n) / beta,
            where,
            terms=terms,
        ),
    ]
    if (
        track.rule not in ("NeuronNormAscent", "SmoothMarginAscent")
        or not track.every_step
        or F.a is None
        or len(track.t) < 2
    ):
        return found
    abar = F.a / F.a.sum(2, keepdims=True)
    s = before(track.run["step"])
    if track.rule == "NeuronNormAscent":
        eta = track.options["lr"] / (16 * F.size * np.sqrt(s + 1))
    else:
        eta = track.options["lr"] / np.sqrt(s + (2 if track.options["variant"] == "code" else 1))
    eta = np.where(steps(track.run["step"]) > 0, eta, 0.0)  # (T, B)
    q = losses.weights(losses.EXP, torch.as_tensor(track.p), "soft_margin").numpy()
    g = np.stack([[q[k, b] @ z for b, z in enumerate(F.Z)] for k in range(len(q))])  # grad G (T, B, m)
    grown = before(abar) * (1 + 2 * eta[..., None] * before(g)) ** 2
    should = grown / grown.sum(2, keepdims=True)
    moved = eta > 0
    found.append(
        entry(
            track,
            "CB-15",
            "abar_j(t + 1) is proportional to abar_j(t) (1 + 2 eta g_j)^2",
            reference,
            np.abs(abar - should).max(2),
            precision(track),
            moved,
            identity=True,
        )
    )
    # One step towards the best mixture, in Kullback-Leibler divergence
    _, star = F.simplex
    terms = np.where(star > 0, star * (np.log(abar) - np.log(before(abar))), 0.0)
    gained = terms.sum(2)  # D(a*, abar(t)) - D(a*, abar(t + 1))
    push = 4 * eta * ((star - before(abar)) * before(g)).sum(2)
    found.append(
        entry(
            track,
            "CB-15 step",
            "4 eta g.(a* - abar) <= D(a*, abar(t)) - D(a*, abar(t + 1)) + 24 eta^2 |z|^2",
            reference,
            push,
            gained + 24 * eta**2 * F.size**2,
            moved & (eta * F.size <= 1 / 16 * (1 + 1e-12)),
            terms=1.0,
        )
    )
    return found


@check(
    "CB-16",
    says="the norm of the ascent on frozen directions grows: ln beta(t) / beta(0) >= sum ln(1 + 4 eta min_i z_i . abar)",
    reference="CB Lemmas 17, 18",
)
@QUIET
def norm_growth(track: Track) -> Inequality | None:
    """beta(t+1) = beta sum_j abar_j (1 + 2 eta g_j)^2 >= beta (1 + 4 eta g.abar), and g.abar = sum_i q_i u_i >= min_i u_i."""
    if track.net.name != "frozen" or track.rule != "NeuronNormAscent" or track.loss != "exp" or not track.every_step:
        return None
    if track.get("margin_M6") is None or not len(track.t):
        return None
    F = Features(track)
    s = before(track.run["step"])
    eta = np.where(steps(track.run["step"]) > 0, track.options["lr"] / (16 * F.size * np.sqrt(s + 1)), 0.0)
    gain = 4 * eta * before(track.run["margin_M6"])
    fine = np.logical_and.accumulate(gain > -1, axis=0)
    beta = _mass(track)
    growth = np.cumsum(np.where(eta > 0, 1 / (before(beta) * np.sqrt(s + 1)), 0.0), axis=0)
    gamma = F.simplex[0]
    t = track.run["step"]
    slope = np.log(beta[-1] / beta[0]) / np.sqrt(t[-1]) / np.minimum(1, gamma)
    return entry(
        track,
        "CB-16",
        "sum_{s < t} ln(1 + 4 eta(s) min_i z_i . abar(s)) <= ln beta(t) / beta(0)",
        "CB Lemmas 17, 18",
        np.cumsum(np.log1p(np.maximum(gain, -0.999999)), axis=0),
        np.log(beta / beta[0]),
        fine & (t > 0),
        terms=1 + np.abs(np.log(beta)),
        numbers={"growth": growth[-1].tolist(), "ln_beta_over_min(1,gamma)_sqrt_t": slope.tolist()},
    )


def _output_layer(track: Track) -> tuple[Features, np.ndarray] | None:
    """Features and beta(t) = max(1, max_{s <= t} sqrt(m) |a(s)|) of a run that trains an output layer from 0."""
    net = track.net
    if track.loss != "exp" or net.degree != 1 or net.outputs > 1 or not len(track.t) or track.get("margin") is None:
        return None
    if len(net.trained) != 1 or not hasattr(net, "train") or bool(track.start[net.trained[0]].any()):
        return None
    factor = 1 / net.m if rules.mean_field(net) else 1.0
    size = math.sqrt(net.m) * factor * track.run["norm"]
    return Features(track), np.maximum(1.0, np.maximum.accumulate(size, axis=0))


@check(
    "CB-18",
    says="Proposition 7: the best margin so far of the ascent on the output layer is within O(1 / sqrt t) of gamma_2^(m)",
    reference="CB Proposition 7 (E-CB-6, F-CB-2)",
)
@QUIET
def proposition7(track: Track) -> list[Inequality] | None:
    parts = _output_layer(track)
    if parts is None or track.rule != "OutputLayerAscent":
        return None
    F, beta = parts
    gamma, t = F.ball, track.run["step"]
    bound = gamma - F.size / np.sqrt(t) * (2 * math.sqrt(2) + math.sqrt(3) * math.log(track.n) / gamma)
    best = _so_far(track.run["margin"] / beta)
    reference = "CB Proposition 7 (E-CB-6, F-CB-2)"
    proved = (gamma > 0) & (track.options["lr"] == 1)
    note = "" if track.every_step else "best margin and beta are those of the records"
    total = track.run["t_cb"] / rules.ascent_scale(track.net)  # sum_{s < t} eta(s)
    factor = 1 / track.net.m if rules.mean_field(track.net) else 1.0
    return [
        entry(
            track,
            "CB-18",
            "gamma_2^(m) - (|z| / sqrt t)(2 sqrt 2 + sqrt 3 ln n / gamma_2^(m)) <= best margin",
            reference,
            bound,
            best,
            (t > 0) & proved & np.isfinite(best),
            terms=F.size,
            note=note,
            numbers={"gamma": gamma.tolist(), "best": best[-1].tolist()},
        ),
        entry(
            track,
            "CB-18 norm",
            "gamma_2^(m) sum_{s < t} eta(s) <= sqrt m |a(t)|",
            reference,
            gamma * total,
            math.sqrt(track.net.m) * factor * track.run["norm"],
            (gamma > 0) & (np.abs(track.log_risk) < 1e6),
            allowance=gamma * total * 4 * eps(track) * (1 + np.abs(track.log_risk)),
            note="while the clock is accurate: its steps round by |ln risk| eps",
        ),
    ]


@check(
    "CB-32",
    says="training the output layer reaches gamma_2^(m) at about 1 / sqrt t with steps 1 / sqrt t or beta(t) / sqrt t",
    reference="CB Section 5",
)
@QUIET
def step_insensitivity(track: Track) -> Inequality | None:
    """A remark without constants: the shortfall times sqrt t is reported; the bound of Proposition 7 is checked for its steps."""
    parts = _output_layer(track)
    if parts is None or track.rule not in ("OutputLayerAscent", "SmoothMarginAscent"):
        return None
    F, beta = parts
    size = F.size
    gamma, t = F.ball, track.run["step"]
    own = beta if track.rule == "OutputLayerAscent" else np.where(beta > 1, beta, np.nan)
    short = gamma - _so_far(np.where(np.isfinite(own), track.run["margin"] / beta, -np.inf))
    right = size / np.sqrt(t) * (2 * math.sqrt(2) + math.sqrt(3) * math.log(track.n) / gamma)
    numbers: dict[str, Any] = {"gamma": gamma.tolist(), "shortfall_sqrt_t": (short[-1] * np.sqrt(t[-1])).tolist()}
    late = (t >= t[-1] / 10) & (t > 0) & (short > 0) & np.isfinite(short)
    numbers["exponent"] = [
        float(np.polyfit(np.log(t[one, b]), np.log(short[one, b]), 1)[0]) if one.sum() > 2 else math.nan
        for b, one in enumerate(late.T)
    ]
    return entry(
        track,
        "CB-32",
        "gamma_2^(m) - best margin <= C / sqrt t, C of Proposition 7",
        "CB Section 5",
        short,
        right,
        (t > 0) & (gamma > 0) & (track.rule == "OutputLayerAscent") & (track.options["lr"] == 1),
        terms=size,
        note="" if track.rule == "OutputLayerAscent" else "no constant is known for these steps: numbers only",
        numbers=numbers,
    )
