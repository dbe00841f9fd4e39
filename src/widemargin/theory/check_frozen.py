"""Inequalities of CB along ascent on frozen features: Propositions 6 and 7, mirror ascent, growth (CB-14 to CB-18, CB-32)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ._records import before, steps
from ._rooms import losses, rules, torch
from .check_ascent import usable
from .inequality import Part, check, eps, part, precision
from .normalized_run import unit_direction
from .simplex import best_mixture
from .track import Track


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
        mixtures = [best_mixture(z) for z in self.Z]
        best = [np.full(z.shape[1], 1 / z.shape[1]) if a is None else a for z, a in zip(self.Z, mixtures)]
        return np.array([(z @ a).min() for z, a in zip(self.Z, best)]), np.stack(best)

    @cached_property
    def ball(self) -> np.ndarray:
        """gamma_2^(m) = max over sqrt(m) |a| <= 1 of min_i z_i . a (B,)."""
        return np.array([unit_direction(z)[1] for z in self.Z])

    @cached_property
    def a(self) -> np.ndarray | None:
        """CB's a (T, B, m) at every record."""
        if self.track.W is None:
            return None
        return np.stack([self.track.net.outer(W).numpy() for W in self.track.W]).astype(float)


def _recorded(track: Track) -> Features | None:
    """Features of a run under the exponential loss, None for other losses and where there are no margins."""
    if track.loss != "exp" or not len(track.t) or track.get("margin") is None:
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


@check("CB-14", "CB Proposition 6", reads=_recorded)
def proposition6(F: Features, margin_M6: np.ndarray) -> Part | None:
    """Proposition 6: the best margin so far of the ascent on frozen directions is within O(1 / sqrt t) of gamma_1^(m)"""
    track = F.track
    if track.rule != "NeuronNormAscent":
        return None
    gamma, _ = F.simplex
    t = track.run["step"]
    beta = _mass(track)
    # beta grows between records (CB-16), so the value at the left end bounds 1 / beta from above
    growth = np.cumsum(steps(_harmonic(t)) / before(beta), axis=0)
    root = np.sqrt(t)
    bound = gamma - F.size / root * (8 * math.log(track.net.m) + np.log(t) + 1) - 4 * math.log(track.n) / root * growth
    rising = np.logical_and.accumulate(steps(beta) >= 0, axis=0) if not track.every_step else np.ones(track.shape, bool)
    best = _so_far(margin_M6)
    note = "" if track.every_step else "the best margin is the best recorded one; beta at the left end of each interval"
    return part(
        "gamma_1^(m) - (|z| / sqrt t)(8 ln m + ln t + 1) - (4 ln n / sqrt t) sum 1 / (beta sqrt(s + 1)) <= best margin",
        bound, best, (t > 0) & np.isfinite(best) & rising & (track.options["lr"] == 1), terms=F.size, note=note,
        numbers={"gamma": gamma.tolist(), "growth": growth[-1].tolist(), "best": best[-1].tolist()},
    )  # fmt: skip


def _mass(track: Track) -> np.ndarray:
    """beta = |a|_1 = (1/m) sum_j r_j^2 (T, B) of frozen directions."""
    return track.run["norm"] ** 2 / track.net.m


@check("CB-15", "CB (14), Appendix E (E-CB-5)", reads=_recorded)
def mirror_ascent(F: Features) -> Iterator[Part]:
    """the smooth margin G_beta lies within ln n / beta of the margin, and its ascent is a mirror ascent on the simplex"""
    track = F.track
    if track.net.name != "frozen":
        return
    beta, where = _mass(track), usable(track)
    G, least = -track.log_risk / beta, track.run["margin"] / beta
    terms, most = F.size + (1 + math.log(track.n)) / beta, least + math.log(track.n) / beta
    yield part("min_i z_i . abar <= G_beta(abar)", least, G, where, id="CB-15 below", terms=terms)
    yield part("G_beta(abar) <= min_i z_i . abar + ln n / beta", G, most, where, id="CB-15 above", terms=terms)
    if (
        track.rule not in ("NeuronNormAscent", "SmoothMarginAscent")
        or not track.every_step
        or F.a is None
        or len(track.t) < 2
    ):
        return
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
    says = "abar_j(t + 1) is proportional to abar_j(t) (1 + 2 eta g_j)^2"
    yield part(says, np.abs(abar - should).max(2), precision(track), moved, identity=True)
    # One step towards the best mixture, in Kullback-Leibler divergence
    _, star = F.simplex
    terms = np.where(star > 0, star * (np.log(abar) - np.log(before(abar))), 0.0)
    gained = terms.sum(2)  # D(a*, abar(t)) - D(a*, abar(t + 1))
    push = 4 * eta * ((star - before(abar)) * before(g)).sum(2)
    yield part(
        "4 eta g.(a* - abar) <= D(a*, abar(t)) - D(a*, abar(t + 1)) + 24 eta^2 |z|^2",
        push, gained + 24 * eta**2 * F.size**2, moved & (eta * F.size <= 1 / 16 * (1 + 1e-12)),
        id="CB-15 step", terms=1.0,
    )  # fmt: skip


@check("CB-16", "CB Lemmas 17, 18")
def norm_growth(track: Track, margin_M6: np.ndarray) -> Part | None:
    """the norm of the ascent on frozen directions grows: ln beta(t) / beta(0) >= sum ln(1 + 4 eta min_i z_i . abar)

    beta(t+1) = beta sum_j abar_j (1 + 2 eta g_j)^2 >= beta (1 + 4 eta g.abar), and g.abar = sum_i q_i u_i >= min_i u_i.
    """
    if track.net.name != "frozen" or track.rule != "NeuronNormAscent" or track.loss != "exp" or not track.every_step:
        return None
    if not len(track.t):
        return None
    F = Features(track)
    s = before(track.run["step"])
    eta = np.where(steps(track.run["step"]) > 0, track.options["lr"] / (16 * F.size * np.sqrt(s + 1)), 0.0)
    gain = 4 * eta * before(margin_M6)
    fine = np.logical_and.accumulate(gain > -1, axis=0)
    beta = _mass(track)
    growth = np.cumsum(np.where(eta > 0, 1 / (before(beta) * np.sqrt(s + 1)), 0.0), axis=0)
    gamma = F.simplex[0]
    t = track.run["step"]
    slope = np.log(beta[-1] / beta[0]) / np.sqrt(t[-1]) / np.minimum(1, gamma)
    return part(
        "sum_{s < t} ln(1 + 4 eta(s) min_i z_i . abar(s)) <= ln beta(t) / beta(0)",
        np.cumsum(np.log1p(np.maximum(gain, -0.999999)), axis=0), np.log(beta / beta[0]), fine & (t > 0),
        terms=1 + np.abs(np.log(beta)),
        numbers={"growth": growth[-1].tolist(), "ln_beta_over_min(1,gamma)_sqrt_t": slope.tolist()},
    )  # fmt: skip


@dataclass(frozen=True)
class OutputLayer(Features):
    """A run that trains an output layer from 0."""

    @cached_property
    def length(self) -> np.ndarray:
        """sqrt(m) |a(t)| (T, B)."""
        net = self.track.net
        factor = 1 / net.m if rules.mean_field(net) else 1.0
        return math.sqrt(net.m) * factor * self.track.run["norm"]

    @cached_property
    def beta(self) -> np.ndarray:
        """max(1, max_{s <= t} sqrt(m) |a(s)|) (T, B)."""
        return np.maximum(1.0, np.maximum.accumulate(self.length, axis=0))

    @property
    def bound(self) -> np.ndarray:
        """How far the best margin may be below gamma_2^(m) with the steps of Proposition 7 (T, B)."""
        rate = 2 * math.sqrt(2) + math.sqrt(3) * math.log(self.track.n) / self.ball
        return self.size / np.sqrt(self.track.run["step"]) * rate


def _output_layer(track: Track) -> OutputLayer | None:
    net = track.net
    if _recorded(track) is None or net.degree != 1 or net.outputs > 1:
        return None
    if len(net.trained) != 1 or not hasattr(net, "train") or bool(track.start[net.trained[0]].any()):
        return None
    return OutputLayer(track)


@check("CB-18", "CB Proposition 7 (E-CB-6, F-CB-2)", reads=_output_layer)
def proposition7(F: OutputLayer) -> Iterator[Part]:
    """Proposition 7: the best margin so far of the ascent on the output layer is within O(1 / sqrt t) of gamma_2^(m)"""
    track = F.track
    if track.rule != "OutputLayerAscent":
        return
    gamma, t = F.ball, track.run["step"]
    best = _so_far(track.run["margin"] / F.beta)
    proved = (gamma > 0) & (track.options["lr"] == 1)
    note = "" if track.every_step else "best margin and beta are those of the records"
    total = track.run["t_cb"] / rules.ascent_scale(track.net)  # sum_{s < t} eta(s)
    yield part(
        "gamma_2^(m) - (|z| / sqrt t)(2 sqrt 2 + sqrt 3 ln n / gamma_2^(m)) <= best margin",
        gamma - F.bound, best, (t > 0) & proved & np.isfinite(best),
        terms=F.size, note=note, numbers={"gamma": gamma.tolist(), "best": best[-1].tolist()},
    )  # fmt: skip
    yield part(
        "gamma_2^(m) sum_{s < t} eta(s) <= sqrt m |a(t)|",
        gamma * total, F.length, (gamma > 0) & (np.abs(track.log_risk) < 1e6), id="CB-18 norm",
        allowance=gamma * total * 4 * eps(track) * (1 + np.abs(track.log_risk)),
        note="while the clock is accurate: its steps round by |ln risk| eps",
    )  # fmt: skip


@check("CB-32", "CB Section 5", reads=_output_layer)
def step_insensitivity(F: OutputLayer) -> Part | None:
    """training the output layer reaches gamma_2^(m) at about 1 / sqrt t with steps 1 / sqrt t or beta(t) / sqrt t

    A remark without constants: the shortfall times sqrt t is reported; the bound of Proposition 7 is checked for its steps.
    """
    track = F.track
    if track.rule not in ("OutputLayerAscent", "SmoothMarginAscent"):
        return None
    gamma, t = F.ball, track.run["step"]
    own = F.beta if track.rule == "OutputLayerAscent" else np.where(F.beta > 1, F.beta, np.nan)
    short = gamma - _so_far(np.where(np.isfinite(own), track.run["margin"] / F.beta, -np.inf))
    numbers: dict[str, Any] = {"gamma": gamma.tolist(), "shortfall_sqrt_t": (short[-1] * np.sqrt(t[-1])).tolist()}
    late = (t >= t[-1] / 10) & (t > 0) & (short > 0) & np.isfinite(short)
    numbers["exponent"] = [
        float(np.polyfit(np.log(t[when, b]), np.log(short[when, b]), 1)[0]) if when.sum() > 2 else math.nan
        for b, when in enumerate(late.T)
    ]
    return part(
        "gamma_2^(m) - best margin <= C / sqrt t, C of Proposition 7",
        short, F.bound, (t > 0) & (gamma > 0) & (track.rule == "OutputLayerAscent") & (track.options["lr"] == 1),
        terms=F.size, note="" if track.rule == "OutputLayerAscent" else "no constant is known for these steps: numbers only",
        numbers=numbers,
    )  # fmt: skip
