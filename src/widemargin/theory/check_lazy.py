"""Inequalities of LR along runs: two-layer networks near their start, by SGD and by gradient flow.

Near the start everything is measured against a transport of the outer weights (E-LR-4): thetabar with |thetabar_j| <= 1/sqrt(m),
found by linear programming at the first parameters W_0, and gamma sqrt(m) = min_i <thetabar, dp_i(W_0)>. With ReLU units and
|thetabar| <= 1, <thetabar, dp_i(W)> >= gamma sqrt(m) - |W - W_0| max |x|, so the bounds of the proofs hold on a ball of known
radius, without a probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ._records import (
    Params,
    cost,
    costs,
    ever,
    flows_freely,
    honest,
    integral,
    joined_fitted,
    of_loss,
    slopes,
    stretch,
    summed,
)
from ._rooms import flows, losses, torch
from .check_mirror import FOREVER, PRINTED
from .inequality import Part, check, part, precision
from .track import Track

DELTA = 0.05  # failure probability where a statement has one


# ---------------------------------------------------------------- the run against a transport of the outer weights


@dataclass(frozen=True)
class _Lazy:
    track: Track

    @cached_property
    def theta(self) -> np.ndarray | None:
        """thetabar (B, m) on the outer weights."""
        from scipy.optimize import linprog

        track, m = self.track, self.track.net.m
        F = track.net.features(dict(track.start), track.problem.X) * track.problem.y[:, :, None]  # (B, n, m)
        rows = []
        for Z in F.numpy():
            A = np.hstack([-Z, np.ones((len(Z), 1))])
            limits = [(-1 / math.sqrt(m), 1 / math.sqrt(m))] * m + [(None, None)]
            solution = linprog(-np.eye(m + 1)[-1], A, np.zeros(len(Z)), bounds=limits)
            if solution.x is None:
                return None
            rows.append(solution.x[:-1].clip(-1 / math.sqrt(m), 1 / math.sqrt(m)))
        return np.stack(rows)

    def toward(self, W: Params) -> np.ndarray:
        """<thetabar, dp_i(W)> (B, n)."""
        F = self.track.net.features(W, self.track.problem.X) * self.track.problem.y[:, :, None]
        return (F @ torch.as_tensor(self.theta)[:, :, None])[:, :, 0].numpy()

    @cached_property
    def pull(self) -> np.ndarray:
        """gamma sqrt(m) (B,), measured."""
        return self.toward(dict(self.track.start)).min(1)

    @cached_property
    def gamma(self) -> np.ndarray:
        return self.pull / math.sqrt(self.track.net.m)

    @cached_property
    def width(self) -> np.ndarray:
        """max |x_i| (B,)."""
        return self.track.problem.X.norm(dim=2).amax(1).expand(self.track.shape[1]).numpy()

    @cached_property
    def moved(self) -> np.ndarray:
        """|W - W_0| (T, B), as it was recorded."""
        return np.sqrt(self.track.run["moved_a"] ** 2 + self.track.run["moved_V"] ** 2)

    @cached_property
    def outer(self) -> np.ndarray:
        """|a_0| (B,)."""
        return self.track.start["a"].norm(dim=1).numpy()

    @cached_property
    def inner(self) -> np.ndarray:
        """|V_0| (B,)."""
        return self.track.start["V"].flatten(1).norm(dim=1).numpy()

    @cached_property
    def ordinary(self) -> np.ndarray:
        """Where |x| <= 1, |a_0| <= 2 and |V_0| <= 2 sqrt(m), which LR's law gives with high probability (B,)."""
        return (self.width <= 1 + 1e-12) & (self.outer <= 2) & (self.inner <= 2 * math.sqrt(self.track.net.m))

    def ball(self, share: float) -> np.ndarray:
        """Where the run has stayed so near that <thetabar, dp_i> >= (1 - share) gamma sqrt(m), up to each record (T, B)."""
        far = np.maximum.accumulate(self.moved, axis=0) * self.width
        return (self.pull > 0) & (far <= share * self.pull)

    @cached_property
    def reach(self) -> np.ndarray:
        """|W| max |x| (T, B): no sum over neurons of <thetabar, dp_i> has more."""
        return self.length * self.width

    @cached_property
    def length(self) -> np.ndarray:
        """|W_0| + |W - W_0| (T, B), which what is said about differences of weights is rounded by."""
        return self.moved + np.hypot(self.outer, self.inner)

    @property
    def numbers(self) -> dict[str, list[float]]:
        return {"gamma": self.gamma.tolist(), "radius": (self.pull / 32).tolist()}

    def shift(self, W: Params, r: np.ndarray) -> Params:
        """W_0 + r thetabar."""
        start = self.track.start
        return {"a": start["a"] + torch.as_tensor(r[:, None] * self.theta), "V": start["V"]}  # type: ignore[operator]


def _lazy(track: Track) -> _Lazy | None:
    """The view of a two-layer ReLU network whose layers are both trained, computed once."""
    net = track.net
    plain = type(net) is flows.TwoLayer and net.activation == "relu" and set(net.trained) == {"a", "V"}
    if not plain or net.factor != 1 or track.problem.loss is None or len(track.t) < 2:  # type: ignore[attr-defined]
        return None
    if track.get("moved_a") is None or track.get("moved_V") is None:
        return None
    view: _Lazy = track.once("lazy", _Lazy)
    return None if view.theta is None else view


def _lazy_flow(track: Track) -> _Lazy | None:
    """The view of a run that is a gradient flow too."""
    return _lazy(track) if flows_freely(track) else None


def _gradient_norms(track: Track, W: Params) -> np.ndarray:
    """|dp_i(W)|^2 (B, n)."""
    return track.problem.gram(W).diagonal(dim1=1, dim2=2).numpy()


# ---------------------------------------------------------------- SGD


def _plain_sgd(track: Track) -> bool:
    options = track.options
    return (
        track.rule == "SGD"
        and not options.get("weight_decay")
        and options.get("schedule") is None
        and options.get("sampler") is None
        and track.get("slopes") is not None
    )


@check("LR-13", "LR Theorem 2.1", reads=_lazy)
def sgd_certificates(view: _Lazy) -> Iterator[Part]:
    """SGD near its start: (B.2), (B.3), gradient norms, the step of the potential"""
    track, m = view.track, view.track.net.m
    if not _plain_sgd(track):
        return
    says = partial(part, reference="LR proof of Theorem 2.1")
    eta = float(track.options["lr"])
    total, norm = track.run["slopes"], track.get("norm")
    half = view.ball(0.5)
    if not track.every_step:  # how far the run may have gone between records: each step is at most eta |l'| max |x| |W|
        if norm is None:
            return
        a = eta * np.diff(total, axis=0) * view.width
        detour = np.where(a < 1, a * norm[:-1] / np.where(a < 1, 1 - a, 1.0), np.inf)
        far = (view.moved[:-1] + detour) * view.width <= 0.5 * view.pull
        half = half & np.concatenate([half[:1], np.logical_and.accumulate(far, axis=0)])
    safe = eta * np.where(view.pull > 0, view.pull, 1.0)
    yield says(
        "(B.3) sum_s |l'_s| <= 4 |W - W_0| / (eta gamma sqrt m)", total, 4 * view.moved / safe, half,
        numbers=view.numbers, terms=4 * view.length / safe,
    )  # fmt: skip
    if track.W is None:
        return
    least = np.stack([view.toward(W).min(1) for W in track.W])
    near = (view.pull > 0) & (view.moved * view.width <= 0.5 * view.pull)
    yield says("(B.2) <thetabar, dp_i(W_s)> >= gamma sqrt m / 2", view.pull / 2, least, near, terms=view.reach)
    steep = np.stack([_gradient_norms(track, W).max(1) for W in track.W])
    tame = view.ordinary & (2 * view.moved**2 + 8 * m + 8 <= 10 * m)
    yield says("|dp_i(W_s)|^2 <= 10 m", steep, 10.0 * m, tame)
    if track.every_step and track.options["batch"] == 1:
        yield from _potential_step(track, view, eta)


def _potential_step(track: Track, view: _Lazy, eta: float) -> Iterator[Part]:
    """|W_{s+1} - Wbar|^2 - |W_s - Wbar|^2 <= 2 eta (1/t - l_s) + eta^2 l'_s^2 |dp_s|^2, Wbar = W_0 + r thetabar.

    The example of a step is the one whose step explains it; that some example does is checked too. Applies where
    <Wbar, dp_s> - p_s >= ln t, which (B.1) is about; r = 10 eta sqrt(m) / gamma.
    """
    assert track.W is not None and track.p is not None
    T = track.shape[0]
    steps = np.maximum(track.run["step"][-1], 1.0)
    good = view.pull > 0
    r = np.where(good, 10 * eta * track.net.m / np.where(good, view.pull, 1.0), 1.0)
    left, right, yes = np.zeros(track.shape), np.zeros(track.shape), np.zeros(track.shape, bool)
    missing, blur = np.zeros(track.shape), np.zeros(track.shape)
    target = view.shift(dict(track.start), r)
    slope, loss = np.exp(of_loss(track, "log_slope", track.p)), np.exp(of_loss(track, "log", track.p))  # (T, B, n)
    rows = np.arange(track.shape[1])
    for k in range(T - 1):
        W, then = track.W[k], track.W[k + 1]
        move = {name: then[name] - W[name] for name in ("a", "V")}
        length = sum((part**2).flatten(1).sum(1) for part in move.values()).numpy()  # type: ignore[union-attr]
        along, steep, c = track.problem.push(W, move).numpy(), _gradient_norms(track, W), eta * slope[k]
        residual = length[:, None] - 2 * c * along + c**2 * steep  # |move - c_i dp_i|^2
        i = residual.argmin(1)
        missing[k + 1] = residual[rows, i]
        blur[k + 1] = precision(track) * (length + (c**2 * steep)[rows, i])
        linear = track.problem.push(W, target).numpy() - track.p[k]  # <Wbar, dp_i> - p_i
        mid = {name: then[name] + W[name] - 2 * target[name] for name in ("a", "V")}
        left[k + 1] = sum((move[name] * mid[name]).flatten(1).sum(1) for name in ("a", "V")).numpy()  # type: ignore[union-attr]
        right[k + 1] = 2 * eta * (1 / steps - loss[k][rows, i]) + (c**2 * steep)[rows, i]
        yes[k + 1] = good & (length > 0) & (linear[rows, i] >= np.log(steps))
    moves = np.zeros(track.shape, bool)
    moves[1:] = np.diff(track.run["step"], axis=0) == 1
    says = "every step is eta |l'_i| dp_i of one example"
    yield part(says, missing, blur, moves, reference="LR-3, eq. (1.1)", identity=True)
    yield part(
        "|W_{s+1} - Wbar|^2 <= |W_s - Wbar|^2 + 2 eta (1/t - l_s) + eta^2 l'_s^2 |dp_s|^2", left, right, yes,
        reference="LR proof of Theorem 2.1", numbers={"r": r.tolist()},
    )  # fmt: skip


@check("LR-14", "LR Lemma B.1")
def martingale(track: Track, p: np.ndarray) -> Part | None:
    """sum of mean slopes <= 4 sum of sampled slopes + 4 ln(1/delta)"""
    if not _plain_sgd(track) or track.options.get("order") != "replacement" or not track.every_step:
        return None
    if track.loss == "exp":  # slopes of at most 1 are what Freedman's inequality is used for
        return None
    mean = np.exp(of_loss(track, "log_slope", p)).mean(2)
    steps = np.diff(track.run["step"], axis=0)
    return part(
        f"sum_s E|l'(p(W_s))| <= 4 sum_s |l'_s| + 4 ln(1/{DELTA})",
        summed(steps * mean[:-1]), 4 * track.run["slopes"] + 4 * math.log(1 / DELTA),
        note=f"with probability {1 - DELTA:g} at each record",
    )  # fmt: skip


# ---------------------------------------------------------------- gradient flow near the start


@check("LR-16", "LR Lemma 2.3, E-LR-8", reads=_lazy_flow)
def training_error(view: _Lazy, t_cb: np.ndarray) -> Iterator[Part]:
    """training error and movement of the flow

    The regret is checked in the form it has before widths are put in: for every r,
    |W_t - W_0|^2 + 2 int risk <= 2 int mean_i l(<Wbar, dp_i> - p_i) + 2 r <thetabar, a_t - a_0>, Wbar = W_0 + r thetabar.
    """
    track, m, n = view.track, view.track.net.m, view.track.n
    says = partial(part, reference="LR Lemma 2.3")
    t = np.minimum(track.t_mean, FOREVER)
    yes = honest(track) & (t < FOREVER)
    safe = np.where(view.pull > 0, view.pull, 1.0)
    late = yes & (view.gamma > 0) & (t >= n) & view.ordinary
    wide = late & (m >= (640 * np.log(np.maximum(t, 1) / DELTA) / np.where(view.gamma > 0, view.gamma, 1.0)) ** 2)
    chance = f"with probability {1 - 7 * DELTA:g}; gamma is that of the first parameters"
    yield says("risk <= 1 / (5t)", np.exp(track.log_risk), 0.2 / np.maximum(t, 1e-300), wide, note=chance)
    yield says("|W_t - W_0| <= gamma sqrt m / 80", view.moved, view.pull / 80, wide, note=chance)
    if track.W is None or track.p is None:
        return
    theta = torch.as_tensor(view.theta)
    G, off = integral(t_cb, slopes(track).sum(2))  # G / risk over CB's clock
    owed = cost(track, lambda W: (theta * W["a"]).sum(1))
    yield says(
        "int mean |l'| <= 4 |W_t - W_0| / (gamma sqrt m)", G, 4 * view.moved / safe, honest(track) & view.ball(0.5),
        allowance=off + 2 * owed / safe, numbers=view.numbers, terms=4 * view.length / safe,
    )  # fmt: skip
    end = np.max(np.where(yes, t, 0.0), axis=0)
    r = np.where(view.pull > 0, 4 * (1 + np.log1p(end)) / safe, 1.0)
    target = view.shift(dict(track.start), r)
    linear = np.stack([track.problem.push(W, target).numpy() for W in track.W]) - track.p
    theirs, unsure = integral(t, np.exp(of_loss(track, "log", linear)).mean(2))
    gained = np.stack([(theta * (W["a"] - track.start["a"])).sum(1).numpy() for W in track.W])
    owed = cost(track, lambda W: sum(((W[name] - target[name]) ** 2).flatten(1).sum(1) for name in ("a", "V")))  # type: ignore[arg-type,return-value]
    yield says(
        "|W_t - W_0|^2 + 2 int risk <= 2 int mean l(<Wbar, dp_i> - p_i) + 2r <thetabar, a_t - a_0>",
        view.moved**2 + 2 * t_cb, 2 * theirs + 2 * r * gained, yes, allowance=owed + 2 * unsure,
        numbers={"r": r.tolist()}, terms=2 * (r + view.length) * view.length,
    )  # fmt: skip


@check("LR-17", "LR Lemma 2.4, E-LR-9", reads=_lazy_flow)
def margin_at_radius(view: _Lazy, psi: np.ndarray, norm: np.ndarray) -> Iterator[Part]:
    """margin after moving R = gamma sqrt m / 32

    |grad psi| >= gamma sqrt m / 4 holds as far as 3/4 of gamma sqrt m / max |x|, since the weights q sum to at least 1.

    That the run stays at a distance of R is printed too, but the proof has only that |W| grows, not |W - W_0|.
    """
    track, loss = view.track, view.track.problem.loss
    assert loss is not None
    says, yes = partial(part, reference="LR Lemma 2.4"), honest(track)
    owed, owed_psi, _ = costs(track)
    if track.W is not None:
        rows = []
        for W in track.W:
            F = track.problem.pull(W, losses.weights(loss, track.problem.margins(W), "psi"))
            rows.append(sum((part**2).flatten(1).sum(1) for part in F.values()).sqrt().numpy())  # type: ignore[union-attr]
        near = (view.pull > 0) & (view.moved * view.width <= 0.75 * view.pull)
        yield says(
            "|grad psi| >= gamma sqrt m / 4", view.pull / 4, np.stack(rows), near, numbers=view.numbers, terms=view.reach
        )  # fmt: skip
        yield says(
            "psi(W_t) - psi(W_0) >= (gamma sqrt m / 4) |W_t - W_0|",
            view.pull / 4 * view.moved, psi - psi[0], yes & view.ball(0.75), allowance=owed_psi, numbers=view.numbers,
            terms=np.abs(psi) + np.abs(psi[0]) + view.pull * view.length,
        )  # fmt: skip
    # Fitted within R/2 of the start, then at R, and fitted all the time between and since: psi / |W|^2 grows only there.
    R, fits = view.pull / 32, track.fitted & yes
    first = stretch(fits, joined_fitted(track))
    soon = fits & ever(view.moved <= R / 2, first)
    reached = fits & ever(soon & (view.moved >= R), first) & view.ordinary & (view.pull > 0)
    shortest = np.minimum.accumulate(norm, axis=0)
    yield says(
        "psi / |W|^2 >= gamma^2 / 4096 from |W - W_0| = R on", view.gamma**2 / 4096, psi / norm**2, reached,
        allowance=owed_psi / shortest**2 + owed, note="fitted within R/2 of the start and since",
    )  # fmt: skip
    words = "|W_s - W_0| >= R from then on"
    yield says(words, R, view.moved, reached, id="LR-17 printed", note=PRINTED, proved=False)


@check("LR-22", "LR Lemma A.3 (2), E-LR-10", reads=_lazy)
def comparator_alignment(view: _Lazy, W: list[Params], p: np.ndarray) -> Iterator[Part]:
    """alignment with the comparator near the start

    With gamma and p_i(W_0) measured at the first parameters the statement has no probability.
    """
    track, R = view.track, view.moved
    start = {name: track.start[name] for name in ("a", "V")}
    first = np.abs(track.problem.margins(dict(track.start)).numpy()).max(1)
    toward = np.stack([view.toward(Wt) for Wt in W])
    back = np.stack([track.problem.push(Wt, start).numpy() for Wt in W]) - p  # <W_0, dp_i> - p_i
    says = partial(part, applies=view.ordinary & (view.pull > 0), reference="LR Lemma A.3 (2)")
    for which, r_theta, r_w in (("r_theta = 1, r_w = 0", np.ones_like(R), 0.0), ("r_theta = R/8, r_w = 1", R / 8, 1.0)):
        value = (r_theta[..., None] * toward + r_w * back).min(2)
        bound = r_theta * (view.pull - 4 * R - 4) - r_w * (first + 4 * R + R**2)
        terms = (r_theta + r_w * view.length) * view.reach
        sharp = r_theta * (view.pull - R * view.width) - r_w * (first + 2 * view.outer * R + R**2)
        words = f"<r_theta thetabar + r_w W_0, dp_i> - r_w p_i >= gamma r_theta sqrt m - ..., {which}"
        yield says(words, bound, value, numbers=view.numbers, terms=terms)
        yield says(f"the same with constants of its own, {which}", sharp, value, terms=terms)
