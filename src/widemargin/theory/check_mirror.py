"""Inequalities of UH along runs: the mirror flow of product networks, its regret and margins, and partial homogeneity.

A run of a product network is followed as u = |a b| and z_i = y_i sgn(a b) F(x_i), so that margins are <u, z_i>; a network with
frozen directions (CB-13) is the same flow with u = r^2 / m in a clock that is 2/m times as fast. The comparator p is found by
linear programming on the features along the run; its margin gamma(t) = min over records up to t of min_i <p, z_i> is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from ._records import (
    Params,
    cost,
    costs,
    duals_known,
    flows_freely,
    free_flow,
    honest,
    integral,
    joined_fitted,
    never_falls,
    of_loss,
    ratio,
    rounded,
    since,
    slopes,
    stretch,
    summed,
)
from ._rooms import flows, losses, torch
from .inequality import Part, check, part, precision
from .simplex import best_mixture
from .track import Track

if TYPE_CHECKING:
    from torch import Tensor

PICKED = 8  # records whose features the comparator is chosen on
LARGE = 4_000_000  # numbers in a Jacobian of the features, up to which its constants are computed
FOREVER = 1e250  # beyond it time is not a number to work with
PRINTED = "printed form, not proved"
SEEN = "gamma is measured at the records"
KNOWN = "right is how well the integral is known from the records"


# ---------------------------------------------------------------- the run as a mirror flow


@dataclass(frozen=True)
class _Mirror:
    """u (T, B, m) and what belongs to it along a run of a network with products of outer weights."""

    track: Track

    @cached_property
    def speed(self) -> float:
        """Time of the mirror flow d ln u = -2 grad L per time of the run."""
        return 2 / self.track.net.m if isinstance(self.track.net, flows.Frozen) else 1.0

    @cached_property
    def t(self) -> np.ndarray:
        return np.minimum(self.speed * self.track.t_mean, FOREVER)

    @cached_property
    def sound(self) -> np.ndarray:
        """Where the run is a flow and its clock a number (T, B)."""
        return honest(self.track) & (self.t < FOREVER)

    @cached_property
    def s(self) -> np.ndarray:
        """Integral of the risk over t: CB's clock."""
        return self.speed * self.track.run["t_cb"]

    @cached_property
    def weights(self) -> list[Params]:
        assert self.track.W is not None
        return self.track.W

    @cached_property
    def u(self) -> np.ndarray:
        return np.stack([self.mass_of(W).numpy() for W in self.weights])

    def mass_of(self, W: Params) -> Tensor:
        net = self.track.net
        return net.outer(W) if isinstance(net, flows.Frozen) else net.u(W)  # type: ignore[attr-defined]

    def z(self, W: Params) -> Tensor:
        """(B, n, m)."""
        net = self.track.net
        F = net.features(W, self.track.problem.X)
        if not isinstance(net, flows.Frozen):
            F = F * net.beta(W)[:, None, :]  # type: ignore[attr-defined]
        return self.track.problem.y[:, :, None] * F

    @cached_property
    def comparator(self) -> np.ndarray | None:
        """p (B, m)."""
        picked = _picked(self.track)
        Z = np.concatenate([self.z(self.weights[k]).expand(self.track.shape[1], -1, -1).numpy() for k in picked], 1)
        mixtures = [best_mixture(features) for features in Z]
        return None if any(mixture is None for mixture in mixtures) else np.stack(mixtures)  # type: ignore[arg-type]

    @cached_property
    def along(self) -> np.ndarray:
        """<p, z_i> (T, B, n)."""
        p = torch.as_tensor(self.comparator)[:, :, None]
        return np.stack([(self.z(W) @ p)[:, :, 0].numpy() for W in self.weights])

    @cached_property
    def gamma(self) -> np.ndarray:
        """The margin of the comparator up to each record (T, B)."""
        return np.minimum.accumulate(self.along.min(2), axis=0)

    @cached_property
    def pull(self) -> np.ndarray:
        """sum_i |l'_i| z_i / sum_i l_i (T, B, m): half of d ln u / ds."""
        w = torch.as_tensor(slopes(self.track))
        return np.stack([(w[k][:, None, :] @ self.z(W))[:, 0].numpy() for k, W in enumerate(self.weights)])

    @cached_property
    def slope_share(self) -> np.ndarray:
        """G / L (T, B), G the mean of |l'|."""
        return np.exp(_log_G(self.track) - self.track.log_risk)

    @cached_property
    def size(self) -> np.ndarray:
        """|u|_1 (T, B)."""
        return self.u.sum(2)

    @cached_property
    def cross(self) -> np.ndarray:
        """sum_j p_j ln u_j (T, B)."""
        p = self.comparator
        return np.where(p > 0, p * np.log(self.u), 0.0).sum(2)  # type: ignore[operator]

    @cached_property
    def entropy(self) -> np.ndarray:
        """sum_j p_j ln p_j (B,)."""
        return _xlogx(self.comparator).sum(1)  # type: ignore[arg-type]

    def divergence(self, c: np.ndarray) -> np.ndarray:
        """D(c p, u) (T, B), c (T, B) or (B,)."""
        return c * (self.entropy + np.log(c) - self.cross - 1) + self.size

    @cached_property
    def costs(self) -> tuple[np.ndarray, np.ndarray]:
        """What finite steps may cost in sum_j p_j ln u_j and in |u|_1: in D(c p, u), c times the first plus the second."""
        p = torch.as_tensor(self.comparator)
        of_cross = cost(self.track, lambda W: torch.where(p > 0, p * self.mass_of(W).log(), 0.0).sum(1))
        of_size = cost(self.track, lambda W: self.mass_of(W).sum(1))
        return of_cross, of_size

    def owed(self, c: np.ndarray) -> np.ndarray:
        return c * self.costs[0] + self.costs[1]

    @cached_property
    def fixed(self) -> np.ndarray:
        """|ubar|_1 (B,) for what holds with every comparator: that of Lemma 3.4 at the end of the run where there is one."""
        n, end, gamma = self.track.n, self.t[-1], self.gamma[-1]
        good = (gamma > 0) & (end * n > 1)
        return np.where(good, np.log(np.maximum(end * n, math.e)) / np.where(good, gamma, 1.0), 1.0)

    def risk_of(self, c: np.ndarray) -> np.ndarray:
        """L_s(c p) (T, B) at the features of every record."""
        return np.exp(of_loss(self.track, "log", c[..., None] * self.along)).mean(2)

    @cached_property
    def lemma(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """|ubar|_1 = ln(tn) / gamma and R = D(ubar, u(0)) / |ubar|_1 of Lemma 3.4 at every record, and where they exist."""
        n = self.track.n
        good = (self.gamma > 0) & (self.t * n > 1) & self.sound
        c = np.where(good, np.log(np.where(good, self.t * n, math.e)) / np.where(good, self.gamma, 1.0), 1.0)
        return c, _at_start(self, c) / c, good


def _mirror(track: Track) -> _Mirror | None:
    """The mirror flow of a run, computed once; None where the run is none or there is no comparator."""
    net = track.net
    known = isinstance(net, flows.Scalar | flows.Normalized | flows.Product | flows.Frozen)
    if not known or not flows_freely(track) or track.W is None or len(track.t) < 2 or track.get("t_cb") is None:
        return None
    if not isinstance(net, flows.Frozen):
        a, b = track.start["a"].abs(), track.start["b"].abs()
        if not (torch.allclose(a, b, rtol=1e-9, atol=0) and bool((a > 0).all())):
            return None
    view: _Mirror = track.once("mirror", _Mirror)
    if not np.isfinite(view.u).all() or view.comparator is None:
        return None
    return view


def _picked(track: Track) -> np.ndarray:
    """PICKED of the records."""
    return np.unique(np.linspace(0, len(track.t) - 1, PICKED).round().astype(int))


def _log_G(track: Track) -> np.ndarray:
    value = track.of_p(losses.log_G)
    assert value is not None
    return value


def _xlogx(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x * np.log(np.where(x > 0, x, 1.0)), 0.0)


def kl(r: np.ndarray, q: np.ndarray) -> np.ndarray:
    """sum r ln(r/q) - r + q over the last axis (UH-8), q > 0."""
    return (_xlogx(r) - np.where(r > 0, r * np.log(q), 0.0) - r + q).sum(-1)


# ---------------------------------------------------------------- at every record


@check("UH-6", "UH Lemma A.1 (5), E-UH-11")
def derivative_sandwich(track: Track, psi: np.ndarray, p: np.ndarray) -> Iterator[Part]:
    """G <= |l'(psi)| <= min(1, nG), and G <= risk"""
    slope, mean = of_loss(track, "log_slope", psi), _log_G(track)
    more = math.log(track.n) + mean
    if track.loss != "exp":  # |l'| <= 1
        more = np.minimum(0.0, more)
    says = partial(
        part,
        applies=np.isfinite(slope) & np.isfinite(mean),
        reference="UH Lemma A.1 (5)",
        # logarithms: an error of eps in a loss, a slope or a margin is one of about eps times the size of the margin here
        terms=1 + np.abs(psi) + np.abs(p).max(2) + track.summands,
    )
    yield says("ln G <= ln |l'(psi)|", mean, slope)
    yield says("ln |l'(psi)| <= ln min(1, nG)", slope, more)
    yield says("ln G <= ln risk", mean, track.log_risk)


@check("UH-8", "UH Lemma A.2, E-UH-14", reads=_mirror)
def divergence_bounds(view: _Mirror) -> Iterator[Part]:
    """decomposition and lower bounds of the unnormalised KL

    KL(r, q) with q = u(t) and two r of the run: u(0), and the comparator at the size of u(t)/3 (so that all cases occur).
    """
    u, q = view.u, view.size
    assert view.comparator is not None
    for name, r in (("u(0)", np.broadcast_to(u[0], u.shape)), ("|u| p / 3", q[..., None] / 3 * view.comparator)):
        R = r.sum(2)
        whole, shape = kl(r, u), kl(r / R[..., None], u / q[..., None])
        parts = R * shape + R * (np.log(R / q) + q / R - 1)
        apart = np.abs(r / R[..., None] - u / q[..., None]).sum(2)
        far = np.where(q >= R, R / 2 * (np.sqrt(R / q) - np.sqrt(q / R)) ** 2, 0.0)
        farther = np.where(q >= 2 * R, q / 8, 0.0)
        terms = np.abs(_xlogx(r)).sum(2) + np.abs(r * np.log(u)).sum(2) + R + q
        for says, left, right in (
            ("KL(r, u) is its parts", np.abs(whole - parts), np.zeros_like(R)),
            ("KL(r, u) >= |r| KL(r~, u~) / 2 + (|r| / 2)(sqrt(|r|/|u|) - sqrt(|u|/|r|))^2", R / 2 * shape + far, whole),
            ("KL(r, u) >= |r| KL(r~, u~) / 2 + |u| / 8 if |u| >= 2 |r|", R / 2 * shape + farther, whole),
            ("KL(r~, u~) >= |r~ - u~|_1^2 / 2", apart**2 / 2, shape),
        ):
            yield part(
                f"{says}, r = {name}", left, right, np.isfinite(whole),
                reference="UH Lemma A.2", terms=terms, identity=says.endswith("parts"),
            )  # fmt: skip


@check("UH-9", "UH Lemma 3.2", reads=_mirror)
def mirror_form(view: _Mirror) -> Iterator[Part]:
    """a^2 = b^2 = u, constant signs, d ln u = -2 grad L"""
    track, start = view.track, view.track.start
    frozen = isinstance(track.net, flows.Frozen)
    if not frozen:

        def gap(W: Params) -> Tensor:
            return W["a"] ** 2 - W["b"] ** 2

        yes = honest(track)
        size = np.stack([(W["a"] ** 2 + W["b"] ** 2).numpy() for W in view.weights])
        gaps = np.stack([gap(W).numpy() for W in view.weights])
        owed = cost(track, gap, lambda W: 2 * (W["a"] ** 2 + W["b"] ** 2).sqrt())
        yield part(
            "a_j^2 - b_j^2 stays, worst j", np.abs(gaps - gaps[0]), rounded(track, size), yes,
            identity=True, allowance=owed, scale=size,
        )  # fmt: skip
        signs = np.stack([(W["a"] * W["b"]).sign().numpy() for W in view.weights])
        flips = (signs != start["a"].sign().numpy() * start["b"].sign().numpy()).sum(2)
        yield part("signs of a_j b_j that changed", flips, 0.0, yes)

    def steep(W: Params) -> Tensor:
        return 2 / W["r"].abs() if frozen else (W["a"] ** -2.0 + W["b"] ** -2.0).sqrt()

    owed = cost(track, lambda W: view.mass_of(W).log(), steep)
    value, off = integral(view.s, 2 * view.pull)
    change = np.log(view.u) - np.log(view.u[0])
    blur = precision(track) * (1 + np.abs(np.log(view.u)) + np.abs(np.log(view.u[0])))
    yield part(
        "ln u_j(t) - ln u_j(0) = 2 int (1/n) sum_i |l'_i| z_ij, worst j",
        np.abs(change - value), off + blur, duals_known(track),
        identity=True, note=KNOWN, allowance=owed, scale=np.maximum(1, np.abs(change)),
    )  # fmt: skip


# ---------------------------------------------------------------- regret


@check("UH-10", "UH Lemma 3.3 (1), eq. (8), E-UH-1", reads=_mirror)
def regret(view: _Mirror) -> Iterator[Part]:
    """regret of the mirror flow with f = 2 L"""
    track, yes, c = view.track, view.sound, view.fixed
    D, owed = view.divergence(c), view.owed(c)
    fall = D - D[0]
    toward = c[:, None] * view.comparator - view.u  # type: ignore[operator]
    value, off = integral(view.s, -2 * (view.pull * toward).sum(2))
    terms = 1 + np.abs(D) + np.abs(D[0]) + c * (np.abs(view.cross) + np.abs(view.cross[0]))
    theirs, unsure = integral(view.t, 2 * view.risk_of(c))
    lead = 2 * (np.exp(track.log_risk) - view.risk_of(c))  # f_s(u_s) - f_s(ubar)
    least = np.minimum.accumulate(lead, axis=0)
    t = np.where(view.t > 0, view.t, 1.0)
    size = D[0] + np.abs(fall)  # the bounds are about how much of D(ubar, u_0) is left
    numbers = {"size of the comparator": c.tolist(), "gamma": view.gamma[-1].tolist()}
    says = partial(part, reference="UH Lemma 3.3 (1)", numbers=numbers)
    yield says(
        "D(ubar, u_t) - D(ubar, u_0) = int <grad f, ubar - u>", np.abs(fall - value), off, yes & duals_known(track),
        allowance=owed, note=KNOWN, terms=terms, scale=size, identity=True,
    )  # fmt: skip
    yield says(
        "D(ubar, u_t) - D(ubar, u_0) <= int f_s(ubar) - f_s(u_s)", fall, theirs - 2 * view.s, yes,
        allowance=owed + unsure, terms=terms + theirs + 2 * view.s, scale=size,
    )  # fmt: skip
    yield says(
        "min_s f_s(u_s) - f_s(ubar) <= (D(ubar, u_0) - D(ubar, u_t)) / t", least, -fall / t, yes & (view.t > 0),
        allowance=(owed + unsure + _coarse(view, lead)) / t, terms=terms / t, scale=size / t,
    )  # fmt: skip


def _coarse(view: _Mirror, lead: np.ndarray) -> np.ndarray:
    """What the minimum over records instead of all times may cost, times t: the minimum is at most the mean, known to this."""
    return integral(view.t, lead)[1] + np.abs(2 * view.s - integral(view.t, 2 * np.exp(view.track.log_risk))[0])


@check("UH-11", "UH Lemma 3.3 (2)", reads=_mirror)
def biased_regret(view: _Mirror) -> Part:
    """regret that keeps the norm"""
    c = view.fixed
    norm = np.where(view.size >= 2 * c, view.size / 8, 0.0)
    theirs, unsure = integral(view.t, 2 * view.risk_of(c))
    D = view.divergence(c)
    return part(
        "|u_t|/8 [|u_t| >= 2 |ubar|] + int f_s(u_s) <= KL(ubar, u_0) + int f_s(ubar)",
        norm + 2 * view.s, D[0] + theirs, view.sound, allowance=view.owed(c) + unsure, terms=c * np.abs(view.cross[0]),
        numbers={"size of the comparator": c.tolist()},
    )  # fmt: skip


def _falls(track: Track) -> np.ndarray:
    """Where the risk has never risen up to each record (T, B)."""
    return np.logical_and.accumulate(np.diff(track.log_risk, axis=0, prepend=track.log_risk[:1]) <= 1e-9, axis=0)


@check("UH-12", "UH Lemma 3.4, E-UH-4, E-UH-9", reads=_mirror)
def budgets(view: _Mirror) -> Iterator[Part]:
    """budgets of norm and loss"""
    track, n = view.track, view.track.n
    c, R, good = view.lemma
    owed = view.owed(c)
    G, off = integral(view.s, view.slope_share)
    most = np.maximum.accumulate(view.size, axis=0)
    inside = np.stack([view.z(W).abs().amax((1, 2)).expand(track.shape[1]).numpy() for W in view.weights]) <= 1 + 1e-12
    small = view.sound & np.logical_and.accumulate(inside, axis=0)
    t = np.where(view.t > 0, view.t, 1.0)
    log, first = np.log(view.size), view.size[0]
    parts = [
        ("sup |u_s|_1 <= (8R + 2)|ubar|_1 + 16/n", most, (8 * R + 2) * c + 16 / n, good, 8 * owed),
        ("2 int L <= R |ubar|_1 + 2/n", 2 * view.s, R * c + 2 / n, good, owed),
        ("2 int G <= 2 int L", 2 * G, 2 * view.s, view.sound, 2 * off),
        ("ln |u_t|_1 <= ln |u_0|_1 + 2 int G", log, np.log(first) + 2 * G, small, 2 * off + view.costs[1] / first),
        (
            "risk <= R |ubar|_1 / (2t) + 1/(tn)", np.exp(track.log_risk), (R * c / 2 + 1 / n) / t,
            good & _falls(track), owed / t,
        ),
    ]  # fmt: skip
    numbers = {"R": R[-1].tolist(), "gamma": view.gamma[-1].tolist(), "size of the comparator": c[-1].tolist()}
    for says, left, right, yes, room in parts:
        yield part(
            says, left, right, yes, reference="UH Lemma 3.4", allowance=room, note=SEEN,
            terms=1.0 if "ln" in says else 0.0, numbers=numbers,
        )  # fmt: skip


@check("UH-13", "UH Lemma 3.4 (1), (2), E-UH-7", reads=_mirror)
def margin_from_budgets(view: _Mirror, p: np.ndarray) -> Iterator[Part]:
    """margin from the budgets"""
    track, n = view.track, view.track.n
    c, R, good = view.lemma
    owed = view.owed(c)
    t = np.where(view.t > 0, view.t, 1.0)
    total = np.log((n * (R * c + owed) / 2 + 1) / t)  # the cost of the steps goes into the budget
    smooth = of_loss(track, "inverse", total)
    margin = p.min(2) / view.size
    yes = good & _falls(track) & (smooth > 0)
    late = good & (t >= (20 * R / np.where(good, view.gamma, 1.0)) ** 4)
    own = np.asarray(view.size / c)
    says = partial(part, right=margin, reference="UH Lemma 3.4", terms=np.abs(p).max(2) / view.size)
    proved, printed = partial(says, note=SEEN), partial(says, id="UH-13 printed", note=PRINTED, proved=False)
    yield proved(
        "margin >= l^{-1}((nR|ubar|/2 + 1)/t) / ((8R + 2)|ubar| + 16/n)",
        smooth / ((8 * R + 2) * c + 16 / n + 8 * owed), applies=yes,
    )  # fmt: skip
    words = "margin >= l^{-1}((nR|ubar|/2 + 1)/t) / (C |ubar|), C = |u_t|/|ubar|"
    yield proved(words, smooth / view.size, applies=yes)
    words = "margin >= gamma / (2(1 + R)) from t = (20R/gamma)^4 on"
    yield printed(words, view.gamma / (2 * (1 + R)), applies=late)
    words = "margin >= gamma / (2C) from t = (20R/gamma)^4 on, C = |u_t|/|ubar| <= 4 + R"
    yield printed(words, view.gamma / (2 * own), applies=late & (own <= 4 + R))


@check("UH-14", "UH Lemma 3.5, A.3, corrected (E-UH-8)", reads=_mirror)
def smooth_margin_rate(view: _Mirror, psi: np.ndarray) -> Iterator[Part]:
    """rate of the smooth margin in |u|_1

    psi_t/|u_t| >= gamma - KL(p, u~_{s0})/(2 xi) - k int (omega/|u|)/xi, omega = |l'(psi)|/n, xi = int omega from s0, psi >= 0.

    <q, p_i> <= psi + k with k = ln n for the exponential loss (LR-24), 2 ln n + 1 for the logistic one.
    """
    track, n, size = view.track, view.track.n, view.size
    assert view.comparator is not None
    k = math.log(n) if track.loss == "exp" else 2 * math.log(n) + 1
    begun = track.fitted & honest(track)
    first = stretch(begun, joined_fitted(track))
    begin = np.minimum(first, len(psi) - 1)
    share = ratio(track, psi)  # omega dt = share ds
    ds = np.diff(view.s, axis=0)
    xi = since(summed(ds * np.minimum(share[1:], share[:-1])), first)  # from below
    over = since(summed(ds * np.maximum(share[1:], share[:-1]) / np.minimum(size[1:], size[:-1])), first)  # from above
    gamma = np.zeros(track.shape)
    for i, least in enumerate(view.along.min(2)):  # the least of the stretch
        gamma[i] = np.where(first[i] < i, np.minimum(gamma[i - 1], least), least)
    entropy = (view.cross - np.log(size))[begin, np.arange(track.shape[1])]  # sum_j p_j ln u~_j there
    far = view.entropy - entropy  # KL(p, u~_{s0})
    yes = begun & (xi > 0)
    safe = np.where(xi > 0, xi, 1.0)

    def normalised(W: Params) -> Tensor:
        assert track.problem.loss is not None
        return losses.psi(track.problem.loss, track.problem.margins(W)) / view.mass_of(W).sum(1)

    p = torch.as_tensor(view.comparator)

    def spread(W: Params) -> Tensor:
        u = view.mass_of(W)
        return u.sum(1).log() - torch.where(p > 0, p * u.log(), 0.0).sum(1)

    owed_margin, owed_kl = cost(track, normalised), cost(track, spread)
    owed = since(owed_margin, first).clip(0) + since(owed_kl, first).clip(0) / (2 * safe)
    own = psi / size
    terms = np.abs(track.p).max(2) / size + np.abs(view.along).max(2)  # type: ignore[arg-type]
    yield part(
        "psi/|u|_1 >= gamma - KL(p, u~_{s0}) / (2 xi) - k int (omega / |u|_1) / xi",
        gamma - far / (2 * safe) - k * over / safe, own, yes, reference="UH Lemma 3.5, corrected (E-UH-8)",
        allowance=owed, note=SEEN, terms=terms, numbers={"gamma": gamma[-1].tolist(), "xi": xi[-1].tolist()},
    )  # fmt: skip
    whole = summed(np.diff(view.s, axis=0) * share[1:])  # from 0, share taken at the better end
    there = np.where(whole > 0, whole, 1.0)
    ever = begun & (whole > 0) & (view.gamma > 0)
    log = (1 + 2 * math.log(n)) / size
    tail = kl(view.comparator, view.u[0])
    sized = _at_start(view, size)
    for says, rest in (
        ("psi/|u|_1 >= gamma - (1 + 2 ln n)/|u|_1 - KL(p, u_0)/xi (Lemma 3.5)", tail / there),
        ("psi/|u|_1 >= gamma - (1 + 2 ln n)/|u|_1 - D(|u| p, u_0)/(|u|_1 xi) (Lemma A.3)", sized / size / there),
    ):
        yield part(
            says, view.gamma - log - rest, own, ever,
            id="UH-14 printed", reference="UH Lemma 3.5, A.3", note=PRINTED, proved=False, terms=terms,
        )  # fmt: skip


def _at_start(view: _Mirror, c: np.ndarray) -> np.ndarray:
    """D(c p, u(0)) (T, B) for c (T, B)."""
    return c * (view.entropy + np.log(c) - view.cross[0] - 1) + view.size[0]


# ---------------------------------------------------------------- features


def _constants(track: Track, W: Params) -> tuple[np.ndarray, np.ndarray] | None:
    """C1 = max |<grad F_j(x_i), grad F_j(x_r)>| and C2 = the same over j != k (B,), from the Jacobian by autodiff."""
    net, X = track.net, track.problem.X
    inner = [name for name in net.trained if name.startswith("V")]
    B = track.shape[1]
    if not inner:
        return np.zeros(B), np.zeros(B)
    parameters = sum(W[name][0].numel() for name in inner)
    if track.n * net.m * parameters > LARGE or track.n * net.m > 4000:
        return None
    own_pairs, other_pairs = [], []
    for b in range(B):
        here = {name: value[b] for name, value in W.items()}
        point = X[b % len(X)]

        def features(P: Params, here: Params = here, point: Tensor = point) -> Tensor:
            return net.features({k: v[None] for k, v in (here | P).items()}, point[None])[0]  # (n, m)

        parts = torch.func.jacrev(features)({name: here[name] for name in inner})
        J = torch.cat([part.flatten(2) for part in parts.values()], 2)  # (n, m, P)
        own = torch.einsum("ijp,rjp->irj", J, J).abs().amax()
        flat = J.flatten(0, 1)  # (n m, P)
        gram = (flat @ flat.mT).abs().reshape(track.n, net.m, track.n, net.m).amax((0, 2))
        own_pairs.append(float(own))
        other_pairs.append(float(gram.fill_diagonal_(0).amax()))
    return np.array(own_pairs), np.array(other_pairs)


@check("UH-17", "UH proof of Theorem 3.1", reads=_mirror)
def feature_drift(view: _Mirror) -> Part | None:
    """drift of the features along the comparator"""
    track, p = view.track, view.comparator
    if not isinstance(track.net, flows.Normalized | flows.Product):
        return None
    constants = [_constants(track, W) for W in view.weights]
    if any(pair is None for pair in constants):
        return None
    C1, C2 = (np.maximum.accumulate(np.stack([pair[k] for pair in constants]), axis=0) for k in (0, 1))  # type: ignore[index]
    G, off = integral(view.s, view.slope_share)
    drift = np.abs(view.along - view.along[0]).max(2)
    most = np.maximum.accumulate(view.size, axis=0)
    begin = torch.as_tensor(view.along[0])
    mix = torch.as_tensor(p)[:, :, None]
    owed = cost(track, lambda W: ((view.z(W) @ mix)[:, :, 0] - begin).abs().amax(1))
    scale = (C1 * p.max(1) + C2) * most  # type: ignore[union-attr]
    return part(
        "max_i |<p, z_i(t) - z_i(0)>| <= (C1 |p|_inf + C2) int G sup |u|_1",
        drift, scale * G, view.sound, allowance=scale * off + owed, terms=np.abs(view.along).max(2),
        note="C1 and C2 are measured at the records", numbers={"C1": C1[-1].tolist(), "C2": C2[-1].tolist()},
    )  # fmt: skip


@check("UH-22", "UH Theorem 4.1")
def gradient_constants(track: Track, W: list[Params]) -> Iterator[Part]:
    """gradient constants of the shallow net: C1 <= max |x|^2 / min |v|^2, C2 = 0

    |v_j| never falls (it stays along the flow, UH-2), so its value at the start serves for all times.
    """
    if not isinstance(track.net, flows.Normalized) or not flows_freely(track) or not len(track.t):
        return
    C1, C2 = np.full(track.shape, np.nan), np.full(track.shape, np.nan)
    for k in _picked(track):
        pair = _constants(track, W[k])
        if pair is None:
            return
        C1[k], C2[k] = pair
    largest = (track.problem.X**2).sum(2).amax(1).expand(track.shape[1]).numpy()
    shortest = (track.start["V"] ** 2).sum(2).amin(1).numpy()
    bound = np.broadcast_to(largest / shortest, track.shape)
    owed = cost(track, lambda W: (W["V"] ** 2).sum(2).amin(1))
    room = bound * owed / shortest if track.rule == "GradientFlow" else 0.0
    says = partial(part, reference="UH proof of Theorem 4.1", applies=np.isfinite(C1))
    yield says("C1 <= max |x_i|^2 / min |v_j(0)|^2", C1, bound, allowance=room)
    yield says("C2 = 0", C2, 0.0, identity=True)


# ---------------------------------------------------------------- partial homogeneity


@check("UH-18", "UH Theorem 3.6", reads=free_flow)
def partial_margin(track: Track, psi: np.ndarray, log_norm: np.ndarray) -> Iterator[Part]:
    """psi/|w|^L and |w| never fall once fitted, psi never falls"""
    L, (owed, owed_psi, owed_norm) = track.net.degree, costs(track)
    estimated = "what finite steps cost is estimated from psi, norm and risk, as parameters were not recorded"
    note = estimated if track.W is None else ""
    yes = honest(track) & np.isfinite(psi) & np.isfinite(log_norm)
    once, joined = yes & track.fitted, joined_fitted(track)
    large = (np.abs(psi) if track.p is None else np.abs(track.p).max(2)) + track.summands
    shrink = np.exp(-L * log_norm)
    normalised = never_falls(psi * shrink, owed, once, joined)
    yield part(f"psi / |w|^{L} never falls", **normalised, terms=large * shrink, note=note)
    yield part("ln |w| never falls", **never_falls(log_norm, owed_norm, once, joined, 1.0), terms=1.0, note=note)
    yield part("psi never falls", **never_falls(psi, owed_psi, yes, unit=1.0), terms=1 + large, note=note)


@check("UH-19", "UH Theorem 3.6, E-UH-19", reads=free_flow)
def norm_rate(track: Track, log_norm: np.ndarray, t_cb: np.ndarray, psi: np.ndarray) -> Part:
    """d ln |w|^2 / dt >= 2L psi |l'(psi)| / (n |w|^2) once fitted

    In CB's clock the right side is 2L psi r / |w|^2 with r = |l'(psi)|/l(psi): the least of its values at the two ends of an
    interval, over the intervals in which all points stay fitted. Along a flow that is the first, as psi, r and |w| grow, and
    for L >= 2 psi/|w|^2 does.
    """
    L, norm = track.net.degree, log_norm
    once = track.fitted & honest(track) & np.isfinite(psi)
    stays = (joined_fitted(track) & once)[1:] & once[:-1]
    least, longest = np.minimum(psi[1:], psi[:-1]), np.maximum(norm[1:], norm[:-1])
    rate = np.minimum(
        *(2 * L * psi[k] * ratio(track, psi[k]) * np.exp(-2 * norm[k]) for k in (slice(-1), slice(1, None)))
    )
    if L < 2:
        rate = 2 * L * least * ratio(track, least) * np.exp(-2 * longest)
    owed = 2 * costs(track)[2]
    each = (np.diff(t_cb, axis=0) * rate, np.diff(2 * norm, axis=0), np.diff(owed, axis=0))
    left, right, lost = (summed(np.where(stays, side, 0.0)) for side in each)
    return part(
        f"ln |w_t|^2 - ln |w_tau|^2 >= int {2 * L} psi |l'(psi)| / (n |w|^2)",
        left, right, np.concatenate([np.zeros_like(stays[:1]), stays]), reference="UH Theorem 3.6",
        allowance=lost, terms=1 + np.abs(norm), scale=np.maximum(1, np.maximum(np.abs(left), np.abs(right))),
        numbers={"|w| at the end": np.exp(norm[-1]).tolist()},
    )  # fmt: skip


@check("UH-26", "UH Section 3.3", reads=_mirror)
def phases(view: _Mirror) -> Part:
    """one switch from the early to the asymptotic phase

    Early while |u_t|_1 <= 8 |ubar|_1, ubar that of Lemma 3.4 at time t; looked at from t n = e on, where |ubar|_1 >= 1.

    Where the clock has left floating point |ubar|_1 is not known: such records are undecided, and no ratio is reported of them.
    """
    track = view.track
    c, _, good = view.lemma
    good = good & (view.t * track.n >= math.e)
    beyond = honest(track) & (view.t >= FOREVER) & (view.gamma > 0)
    late = good & (view.size > 8 * c)
    early = np.logical_or.accumulate(good & ~late, axis=0)
    was = np.logical_or.accumulate(late & early, axis=0)
    back = was & good & ~late
    begins = [
        float(view.t[late[:, b] & early[:, b], b][0]) if (late & early)[:, b].any() else None
        for b in range(late.shape[1])
    ]
    last = [float((view.size / c)[good[:, b], b][-1]) if good[:, b].any() else None for b in range(late.shape[1])]
    return part(
        "|u_t|_1 > 8 |ubar|_1 does not end once begun", back, 0.0, good | beyond,
        allowance=np.where(beyond, 1.0, 0.0), scale=1.0, proved=False,
        note="a picture of the paper, not proved; undecided where the time is beyond floating point",
        numbers={"switch time": begins, "ratio": last},
    )  # fmt: skip
