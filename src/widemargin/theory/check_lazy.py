"""Inequalities of LR along runs: two-layer networks near their start (SGD and flow), and the potentials of large margins.

Near the start everything is measured against a transport of the outer weights (E-LR-4): thetabar with |thetabar_j| <= 1/sqrt(m),
found by linear programming at the first parameters W_0, and gamma sqrt(m) = min_i <thetabar, dp_i(W_0)>. With ReLU units and
|thetabar| <= 1, <thetabar, dp_i(W)> >= gamma sqrt(m) - |W - W_0| max |x|, so the bounds of the proofs hold on a ball of known
radius, without a probability.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from widemargin.types import Dataset, InputError

from ._records import (
    UNSEEN,
    Params,
    cost,
    costs_from_records,
    duals_known,
    entry,
    eps,
    ever,
    flows_freely,
    honest,
    integral,
    joined_fitted,
    never_falls,
    of_loss,
    precision,
    psi_cost,
    slopes,
    stretch,
    summed,
    taken,
    worst,
)
from ._rooms import flows, losses, margins, torch
from .check_mirror import FOREVER, PRINTED, _mirror
from .inequality import Inequality, check
from .track import Track

if TYPE_CHECKING:
    from torch import Tensor

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
            found = linprog(-np.eye(m + 1)[-1], A, np.zeros(len(Z)), bounds=limits)
            if found.x is None:
                return None
            rows.append(found.x[:-1].clip(-1 / math.sqrt(m), 1 / math.sqrt(m)))
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
    if "_lazy" not in track.__dict__:  # as cached_property does it
        track.__dict__["_lazy"] = _Lazy(track)
    view: _Lazy = track.__dict__["_lazy"]
    return None if view.theta is None else view


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


@check(
    "LR-13",
    says="SGD near its start: (B.2), (B.3), gradient norms, the step of the potential",
    reference="LR Theorem 2.1",
)
def sgd_certificates(track: Track) -> list[Inequality] | None:
    view = _lazy(track)
    if view is None or not _plain_sgd(track):
        return None
    eta, reference, m = float(track.options["lr"]), "LR proof of Theorem 2.1", track.net.m
    total, norm = track.run["slopes"], track.get("norm")
    half = view.ball(0.5)
    if not track.every_step:  # how far the run may have gone between records: each step is at most eta |l'| max |x| |W|
        if norm is None:
            return None
        a = eta * np.diff(total, axis=0) * view.width
        detour = np.where(a < 1, a * norm[:-1] / np.where(a < 1, 1 - a, 1.0), np.inf)
        far = (view.moved[:-1] + detour) * view.width <= 0.5 * view.pull
        half = half & np.concatenate([half[:1], np.logical_and.accumulate(far, axis=0)])
    safe = np.where(view.pull > 0, view.pull, 1.0)
    found = [
        entry(
            track, "LR-13", "(B.3) sum_s |l'_s| <= 4 |W - W_0| / (eta gamma sqrt m)", reference, total,
            4 * view.moved / (eta * safe), half, numbers=view.numbers, terms=4 * view.length / (eta * safe),
        )
    ]  # fmt: skip
    if track.W is None:
        return found
    least = np.stack([view.toward(W).min(1) for W in track.W])
    near = (view.pull > 0) & (view.moved * view.width <= 0.5 * view.pull)
    found.append(
        entry(
            track,
            "LR-13",
            "(B.2) <thetabar, dp_i(W_s)> >= gamma sqrt m / 2",
            reference,
            view.pull / 2,
            least,
            near,
            terms=view.reach,
        )
    )
    steep = np.stack([_gradient_norms(track, W).max(1) for W in track.W])
    tame = view.ordinary & (2 * view.moved**2 + 8 * m + 8 <= 10 * m)
    found.append(entry(track, "LR-13", "|dp_i(W_s)|^2 <= 10 m", reference, steep, np.full(track.shape, 10.0 * m), tame))
    if track.every_step and track.options["batch"] == 1:
        found += _potential_step(track, view, eta)
    return found


def _potential_step(track: Track, view: _Lazy, eta: float) -> list[Inequality]:
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
    reference = "LR proof of Theorem 2.1"
    return [
        entry(
            track, "LR-13", "every step is eta |l'_i| dp_i of one example", "LR-3, eq. (1.1)", missing, blur, moves,
            identity=True,
        ),
        entry(
            track, "LR-13", "|W_{s+1} - Wbar|^2 <= |W_s - Wbar|^2 + 2 eta (1/t - l_s) + eta^2 l'_s^2 |dp_s|^2", reference,
            left, right, yes, numbers={"r": r.tolist()},
        ),
    ]  # fmt: skip


@check("LR-14", says="sum of mean slopes <= 4 sum of sampled slopes + 4 ln(1/delta)", reference="LR Lemma B.1")
def martingale(track: Track) -> Inequality | None:
    if not _plain_sgd(track) or track.options.get("order") != "replacement" or not track.every_step or track.p is None:
        return None
    mean = np.exp(of_loss(track, "log_slope", track.p)).mean(2)
    if track.loss == "exp":  # slopes of at most 1 are what Freedman's inequality is used for
        return None
    steps = np.diff(track.run["step"], axis=0)
    return entry(
        track, "LR-14", f"sum_s E|l'(p(W_s))| <= 4 sum_s |l'_s| + 4 ln(1/{DELTA})", "LR Lemma B.1", summed(steps * mean[:-1]),
        4 * track.run["slopes"] + 4 * math.log(1 / DELTA), np.ones(track.shape, bool),
        note=f"with probability {1 - DELTA:g} at each record",
    )  # fmt: skip


# ---------------------------------------------------------------- gradient flow near the start


@check("LR-16", says="training error and movement of the flow", reference="LR Lemma 2.3, E-LR-8")
def training_error(track: Track) -> list[Inequality] | None:
    """The regret is checked in the form it has before widths are put in: for every r,
    |W_t - W_0|^2 + 2 int risk <= 2 int mean_i l(<Wbar, dp_i> - p_i) + 2 r <thetabar, a_t - a_0>, Wbar = W_0 + r thetabar."""
    view = _lazy(track)
    s = track.get("t_cb")
    if view is None or not flows_freely(track) or s is None:
        return None
    reference, m, n = "LR Lemma 2.3", track.net.m, track.n
    t, found = np.minimum(track.t_mean, FOREVER), []
    yes = honest(track) & (t < FOREVER)
    safe = np.where(view.pull > 0, view.pull, 1.0)
    late = yes & (view.gamma > 0) & (t >= n) & view.ordinary
    wide = late & (m >= (640 * np.log(np.maximum(t, 1) / DELTA) / np.where(view.gamma > 0, view.gamma, 1.0)) ** 2)
    chance = f"with probability {1 - 7 * DELTA:g}; gamma is that of the first parameters"
    found.append(
        entry(
            track,
            "LR-16",
            "risk <= 1 / (5t)",
            reference,
            np.exp(track.log_risk),
            0.2 / np.maximum(t, 1e-300),
            wide,
            note=chance,
        )
    )
    found.append(
        entry(
            track, "LR-16", "|W_t - W_0| <= gamma sqrt m / 80", reference, view.moved, view.pull / 80, wide, note=chance
        )
    )
    if track.W is None or track.p is None:
        return found
    theta = torch.as_tensor(view.theta)
    G, off = integral(s, slopes(track).sum(2))  # G / risk over CB's clock
    owed = cost(track, lambda W: (theta * W["a"]).sum(1))
    found.append(
        entry(
            track, "LR-16", "int mean |l'| <= 4 |W_t - W_0| / (gamma sqrt m)", reference, G, 4 * view.moved / safe,
            honest(track) & view.ball(0.5), allowance=off + 2 * owed / safe, numbers=view.numbers, terms=4 * view.length / safe,
        )
    )  # fmt: skip
    end = np.max(np.where(yes, t, 0.0), axis=0)
    r = np.where(view.pull > 0, 4 * (1 + np.log1p(end)) / safe, 1.0)
    target = view.shift(dict(track.start), r)
    linear = np.stack([track.problem.push(W, target).numpy() for W in track.W]) - track.p
    theirs, unsure = integral(t, np.exp(of_loss(track, "log", linear)).mean(2))
    gained = np.stack([(theta * (W["a"] - track.start["a"])).sum(1).numpy() for W in track.W])
    owed = cost(track, lambda W: sum(((W[name] - target[name]) ** 2).flatten(1).sum(1) for name in ("a", "V")))  # type: ignore[arg-type,return-value]
    found.append(
        entry(
            track, "LR-16", "|W_t - W_0|^2 + 2 int risk <= 2 int mean l(<Wbar, dp_i> - p_i) + 2r <thetabar, a_t - a_0>",
            reference, view.moved**2 + 2 * s, 2 * theirs + 2 * r * gained, yes, allowance=owed + 2 * unsure,  
            numbers={"r": r.tolist()}, terms=2 * (r + view.length) * view.length,
        )
    )  # fmt: skip
    return found


@check("LR-17", says="margin after moving R = gamma sqrt m / 32", reference="LR Lemma 2.4, E-LR-9")
def margin_at_radius(track: Track) -> list[Inequality] | None:
    """|grad psi| >= gamma sqrt m / 4 holds as far as 3/4 of gamma sqrt m / max |x|, since the weights q sum to at least 1.

    That the run stays at a distance of R is printed too, but the proof has only that |W| grows, not |W - W_0|.
    """
    view = _lazy(track)
    psi, norm = track.psi, track.get("norm")
    if view is None or psi is None or norm is None or not flows_freely(track):
        return None
    reference, loss = "LR Lemma 2.4", track.problem.loss
    assert loss is not None
    found, yes, inside = [], honest(track), view.ball(0.75)
    ratio = psi / norm**2
    if track.W is None:
        owed, owed_psi, _ = costs_from_records(track)
    else:
        rows = []
        for W in track.W:
            F = track.problem.pull(W, losses.weights(loss, track.problem.margins(W), "psi"))
            rows.append(sum((part**2).flatten(1).sum(1) for part in F.values()).sqrt().numpy())  # type: ignore[union-attr]
        near = (view.pull > 0) & (view.moved * view.width <= 0.75 * view.pull)
        owed_psi = psi_cost(track)
        owed = cost(track, lambda W: losses.psi(loss, track.problem.margins(W)) / track.net.norm2(W))
        found += [
            entry(
                track, "LR-17", "|grad psi| >= gamma sqrt m / 4", reference, view.pull / 4, np.stack(rows), near,
                numbers=view.numbers, terms=view.reach,
            ),
            entry(
                track, "LR-17", "psi(W_t) - psi(W_0) >= (gamma sqrt m / 4) |W_t - W_0|", reference, view.pull / 4 * view.moved,
                psi - psi[0], yes & inside, allowance=owed_psi, numbers=view.numbers,
                terms=np.abs(psi) + np.abs(psi[0]) + view.pull * view.length,
            ),
        ]  # fmt: skip
    # Fitted within R/2 of the start, then at R, and fitted all the time between and since: psi / |W|^2 grows only there.
    R, fits = view.pull / 32, track.fitted & yes
    first = stretch(fits, joined_fitted(track))
    soon = fits & ever(view.moved <= R / 2, first)
    reached = fits & ever(soon & (view.moved >= R), first) & view.ordinary & (view.pull > 0)
    shortest = np.minimum.accumulate(norm, axis=0)
    found += [
        entry(
            track, "LR-17", "psi / |W|^2 >= gamma^2 / 4096 from |W - W_0| = R on", reference, view.gamma**2 / 4096, ratio,
            reached, allowance=owed_psi / shortest**2 + owed, note="fitted within R/2 of the start and since",
        ),
        entry(
            track, "LR-17 printed", "|W_s - W_0| >= R from then on", reference, R, view.moved, reached, note=PRINTED, proved=False
        ),
    ]  # fmt: skip
    return found


@check("LR-22", says="alignment with the comparator near the start", reference="LR Lemma A.3 (2), E-LR-10")
def comparator_alignment(track: Track) -> list[Inequality] | None:
    """With gamma and p_i(W_0) measured at the first parameters the statement has no probability."""
    view = _lazy(track)
    if view is None or track.W is None or track.p is None:
        return None
    reference, R = "LR Lemma A.3 (2)", view.moved
    yes = np.broadcast_to(view.ordinary & (view.pull > 0), track.shape)
    start = {name: track.start[name] for name in ("a", "V")}
    first = np.abs(track.problem.margins(dict(track.start)).numpy()).max(1)
    toward = np.stack([view.toward(W) for W in track.W])
    back = np.stack([track.problem.push(W, start).numpy() for W in track.W]) - track.p  # <W_0, dp_i> - p_i
    found = []
    for says, r_theta, r_w in (("r_theta = 1, r_w = 0", np.ones_like(R), 0.0), ("r_theta = R/8, r_w = 1", R / 8, 1.0)):
        value = (r_theta[..., None] * toward + r_w * back).min(2)
        bound = r_theta * (view.pull - 4 * R - 4) - r_w * (first + 4 * R + R**2)
        terms = (r_theta + r_w * view.length) * view.reach
        sharp = r_theta * (view.pull - R * view.width) - r_w * (first + 2 * view.outer * R + R**2)
        found += [
            entry(
                track, "LR-22", f"<r_theta thetabar + r_w W_0, dp_i> - r_w p_i >= gamma r_theta sqrt m - ..., {says}",
                reference, bound, value, yes, numbers=view.numbers, terms=terms,
            ),
            entry(track, "LR-22", f"the same with constants of its own, {says}", reference, sharp, value, yes, terms=terms),
        ]  # fmt: skip
    return found


# ---------------------------------------------------------------- homogeneity and growth


def _neurons(track: Track, W: Params) -> tuple[Tensor, Tensor] | None:
    """Margins p_i(w_j) (B, n, m) of single neurons and |w_j|^2 (B, m), for networks that are sums of 2-homogeneous neurons."""
    net, y = track.net, track.problem.y
    if type(net) is flows.TwoLayer and net.activation == "relu" and set(net.trained) == {"a", "V"}:
        size = W["a"] ** 2 + (W["V"] ** 2).sum(2)
    elif isinstance(net, flows.Scalar | flows.Normalized):
        size = W["a"] ** 2 + W["b"] ** 2
    else:
        return None
    return y[:, :, None] * net.features(W, track.problem.X) * net.outer(W)[:, None, :], size


@check("LR-7", says="2-homogeneity, and a_j^2 - |v_j|^2 along the flow", reference="LR Sections 1.2, 3.1")
def homogeneity(track: Track) -> list[Inequality] | None:
    net, reference = track.net, "LR Section 1.2"
    if track.W is None or track.p is None or net.outputs > 1 or not len(track.t):
        return None
    found = []
    L, margin = net.degree, track.get("margin")
    with contextlib.suppress(NotImplementedError, InputError):
        still = {name: torch.zeros_like(track.start[name]) for name in net.trained}
        own = np.stack([track.problem.push(W, still | {k: W[k] for k in net.homogeneous}).numpy() for W in track.W])
        size = np.stack([_size(net, W) for W in track.W])[..., None]
        scale = (np.abs(own) + L * np.abs(track.p) + size).max(2)
        found.append(
            entry(
                track, "LR-7", f"<w, dp_i> = {L} p_i", reference, np.abs(own - L * track.p).max(2), precision(track) * scale,
                identity=True,
            )
        )  # fmt: skip
        if margin is not None:
            found.append(
                entry(
                    track, "LR-7", f"min_i <w, dp_i> = {L} times the recorded margin", reference,
                    np.abs(own.min(2) - L * margin), precision(track) * scale, identity=True,
                )
            )  # fmt: skip
    parts = [_neurons(track, W) for W in track.W]
    if parts[0] is None:
        return found or None
    each = [one for one in parts if one is not None]
    whole = np.stack([one[0].sum(2).numpy() for one in each])
    total = np.stack([one[0].abs().sum(2).numpy() for one in each])
    found.append(
        entry(
            track, "LR-7", "p_i = sum_j |w_j|^2 p~_i(w_j)", reference, np.abs(whole - track.p).max(2),
            precision(track) * total.max(2), identity=True,
        )
    )  # fmt: skip
    inner = {"Scalar": "b", "Normalized": "b"}.get(type(net).__name__, "V")

    def squares(W: Params) -> tuple[Tensor, Tensor]:
        return W["a"] ** 2, (W[inner] ** 2).reshape(*W["a"].shape, -1).sum(2)

    pairs = [squares(W) for W in track.W]
    A, B = (np.stack([pair[k].numpy() for pair in pairs]) for k in (0, 1))
    product = 2 * np.sqrt(A) * np.sqrt(B)  # A B has no digits left where |w_j| is below 1e-75
    found.append(entry(track, "LR-7", "2 |a_j| |v_j| <= |w_j|^2, nearest j", reference, **worst(product, A + B)))
    if flows_freely(track):
        owed = cost(
            track, lambda W: squares(W)[0] - squares(W)[1], lambda W: 2 * (squares(W)[0] + squares(W)[1]).sqrt()
        )
        first = track.start
        begun = (squares(dict(first))[0] - squares(dict(first))[1]).numpy()
        blur = 500 * eps(track) * (1 + summed(taken(track)))[..., None] * (A + B)
        found.append(
            entry(
                track, "LR-7", "a_j^2 - |v_j|^2 stays, worst j", "LR Section 3.1", applies=honest(track), identity=True,
                **worst(np.abs(A - B - begun), blur, owed, A + B),
            )
        )  # fmt: skip
    return found


def _size(net: flows.Net, W: Params) -> np.ndarray:
    """|W|^L (B,)."""
    return net.norm2(W).numpy() ** (net.degree / 2)


@check("LR-23", says="the norm grows once fitted", reference="LR Lemma A.4")
def norm_growth(track: Track) -> list[Inequality] | None:
    norm = track.get("log_norm")
    if norm is None or track.psi is None or not flows_freely(track) or len(track.t) < 2:
        return None
    once, reference = track.fitted & honest(track), "LR Lemma A.4"
    # without weights: descent makes the norm larger than the flow does; the solver of the flow is off by rtol a step
    if track.W is None:
        owed = summed((0.0 if track.rule == "GD" else float(track.options["rtol"])) * taken(track))
    else:
        owed = cost(track, lambda W: 0.5 * track.net.norm2(W).log())
    joined = joined_fitted(track)
    found = [never_falls(track, "LR-23", "ln |w| grows", reference, norm, owed, once, joined, 1.0, terms=1.0)]
    if track.W is not None and track.problem.loss is not None:
        loss, rates, sizes = track.problem.loss, [], []
        for W in track.W:
            F = track.problem.pull(W, losses.weights(loss, track.problem.margins(W), "soft_margin"))
            parts = [(F[name] * W[name]).flatten(1) for name in track.net.homogeneous]
            rates.append(sum(one.sum(1) for one in parts).numpy())  # type: ignore[union-attr]
            sizes.append(sum(one.abs().sum(1) for one in parts).numpy())  # type: ignore[union-attr]
        shrink = np.exp(-2 * norm)
        found.append(
            entry(
                track, "LR-23", "<w, w'> > 0, over |w|^2 in CB's clock", reference, 0.0, np.stack(rates) * shrink, once,
                terms=np.stack(sizes) * shrink,
            )
        )  # fmt: skip
    return found


@check("LR-24", says="sum_i q_i p_i <= psi + ln n", reference="LR Lemma A.5")
def gradient_margin_gap(track: Track) -> list[Inequality] | None:
    """For the logistic loss 2 ln n + 1 takes the place of ln n where psi >= 0 (CLAIMS 0.4)."""
    if track.p is None or track.psi is None or track.problem.loss is None:
        return None
    psi: np.ndarray = track.psi
    q = losses.weights(track.problem.loss, torch.as_tensor(track.p), "psi").numpy()
    mixed, n = (q * track.p).sum(2), track.n
    exp = track.loss == "exp"
    k = math.log(n) if exp else 2 * math.log(n) + 1
    yes = np.isfinite(mixed) & np.isfinite(psi)
    if not exp:
        yes = yes & (psi >= 0)
    reference = "LR Lemma A.5" if exp else "Ji and Telgarsky, as in UH Lemma A.3"
    hard = track.p.min(2)
    large = np.abs(track.p).max(2)
    terms = k + np.abs(psi) + large + track.summands
    weighed = terms + large**2  # q_i is an exponential of margins, which makes their rounding a relative one of q_i
    return [
        entry(track, "LR-24", f"sum_i q_i p_i <= psi + {k:.4g}", reference, mixed, psi + k, yes, terms=weighed),
        entry(track, "LR-24", f"sum_i q_i p_i <= min_i p_i + {k:.4g}", reference, mixed, hard + k, yes, terms=weighed),
        entry(track, "LR-24", "psi <= min_i p_i", "LR Section 1.2", psi, hard, np.isfinite(psi), terms=terms),
    ]


@check(
    "LR-25", says="the norm grows no faster than the margin allows; potentials force margins", reference="LR Lemma A.6"
)
def abstract_potential(track: Track) -> list[Inequality] | None:
    """(1/L) d ln |w| / ds <= (min p + ln n) / |w|^2 in CB's clock (Lemma A.5), exponential loss; with a potential
    Phi <= (1/2) ln |w| that grows at the rate gamma_hat, L = 2, the mean of the right side is at least gamma_hat - (...)/s."""
    norm, s, margin = track.get("log_norm"), track.get("t_cb"), track.get("margin")
    if norm is None or s is None or margin is None or track.loss != "exp" or not flows_freely(track):
        return None
    if track.W is None or track.net.outputs > 1 or len(track.t) < 2:
        return None
    L, reference, yes = track.net.degree, "LR Lemma A.6", honest(track) & np.isfinite(norm)
    value, off = integral(s, (margin + math.log(track.n)) * np.exp(-2 * norm))
    owed = cost(track, lambda W: track.net.norm2(W).log() / (2 * L))
    found = [
        entry(
            track, "LR-25", "(ln |w_t| - ln |w_0|) / L <= int (min p + ln n) / |w|^2", reference, (norm - norm[0]) / L, value,
            yes, allowance=off + owed, terms=1 + np.abs(norm) + np.abs(norm[0]),
        )
    ]  # fmt: skip
    view = _mirror(track)
    if view is not None and isinstance(track.net, flows.Scalar):
        phi, rate, lost = _potential(track)
        good = yes & (rate > 0)
        safe = np.where(s > 0, s, 1.0)
        behind = norm[0] / 2 - phi[0]
        found += [
            entry(track, "LR-25", "Phi <= ln |w| / 2", reference, phi, norm / 2, yes, terms=1.0),
            entry(
                track, "LR-25", "mean of (min p + ln n) / |w|^2 >= gamma_hat - (ln |w_0| / 2 - Phi_0) / s", reference,
                rate - behind / safe, value / safe, good & (s > 0), allowance=(off + owed + lost) / safe,
                terms=(1 + np.abs(norm)) / safe,
                numbers={"gamma_hat": rate[-1].tolist()},
            ),
        ]  # fmt: skip
    return found


def _potential(track: Track) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Phi = (1/4) sum_j alpha_j ln |w_j|^2 (T, B) of a scalar network, its rate gamma/2 so far, and what steps cost it."""
    view = _mirror(track)
    assert view is not None and track.W is not None
    alpha = torch.as_tensor(view.comparator)

    def phi(W: Params) -> Tensor:
        return 0.25 * torch.where(alpha > 0, alpha * (W["a"] ** 2 + W["b"] ** 2).log(), 0.0).sum(1)

    owed = cost(track, phi)
    return np.stack([phi(W).numpy() for W in track.W]), view.gamma / 2, owed


@check("LR-26", says="slopes of at most 1/8 bound the loss by twice the slope", reference="LR Lemma B.2, E-LR-12")
def loss_by_slope(track: Track) -> Inequality | None:
    if track.p is None or track.problem.loss is None:
        return None
    slope = of_loss(track, "log_slope", track.p)
    small: np.ndarray = np.all(slope <= math.log(1 / 8), axis=2)
    mean = track.of_p(losses.log_G)
    assert mean is not None
    return entry(
        track,
        "LR-26",
        "ln risk <= ln 2G where all |l'_i| <= 1/8",
        "LR Lemma B.2",
        track.log_risk,
        math.log(2) + mean,
        small,
        terms=1 + np.abs(track.p).max(2) + track.summands,
    )


# ---------------------------------------------------------------- potentials of large margins


@dataclass(frozen=True)
class _Cones:
    """Directions beta_k with signs, and for each an angle phi_k: what points within phi_k of beta_k is caught (LR-27, E-LR-14).

    Every point is in the own cone of k (sign y_i, angle theta_i) or at an angle of at least 90 degrees + phi_k from beta_k, and
    tan(phi/2) >= cos(phi) tan(theta) on the own ones: then a caught neuron is off on all others and is pulled towards beta_k.
    """

    beta: np.ndarray  # (r, d)
    signs: np.ndarray  # (r,)
    phi: np.ndarray  # (r,)
    gamma: float  # min_i |x_i| cos(theta_i + phi_k): the least activation of a caught neuron on an own point


def _cones(X: np.ndarray, y: np.ndarray) -> _Cones | None:
    """Cones around the means of groups of points that are linked by acute angles, or else those of `margins.collapse`."""
    group = np.arange(len(y))
    for i in range(len(y)):
        for j in range(i):
            if y[i] == y[j] and X[i] @ X[j] > 0:
                group[group == group[i]] = group[j]
    means = [X[group == g].mean(0) for g in np.unique(group)]
    if all(np.linalg.norm(mean) > 0 for mean in means):
        beta = np.stack([mean / np.linalg.norm(mean) for mean in means])
        found = _fit_cones(X, y, beta, np.array([y[group == g][0] for g in np.unique(group)]))
        if found is not None:
            return found
    with contextlib.suppress(InputError, AttributeError, KeyError, TypeError, ValueError):
        certificate = margins.collapse(Dataset(X, y))  # type: ignore[attr-defined]
        return _fit_cones(X, y, np.asarray(certificate.extra["beta"]), np.asarray(certificate.extra["signs"]))
    return None


def _fit_cones(X: np.ndarray, y: np.ndarray, beta: np.ndarray, signs: np.ndarray) -> _Cones | None:
    length = np.linalg.norm(X, axis=1)
    if not length.all():
        return None
    angle = np.arccos(np.clip(X @ beta.T / length[:, None], -1, 1))  # (n, r)
    own = (angle < math.pi / 2) & (signs == y[:, None])
    if not own.any(1).all() or not own.any(0).all() or (angle[~own] <= math.pi / 2).any():
        return None
    # the largest angle that the other points allow; 60 degrees where there are none
    phi = np.array([min(np.append(angle[~own[:, k], k] - math.pi / 2, math.pi / 3)) for k in range(len(beta))]) * (
        1 - 1e-9
    )
    narrow = np.where(own, np.tan(phi / 2) - np.cos(phi) * np.tan(np.where(own, angle, 0.0)), 0.0)
    gamma = np.where(own, length[:, None] * np.cos(angle + phi), np.inf).min()
    return None if (narrow < 0).any() or gamma <= 0 else _Cones(beta, signs, phi, float(gamma))


@check("LR-28", says="neurons are caught by the cones of collapsed data", reference="LR Theorem 3.2, E-LR-13, E-LR-14")
def collapse_potential(track: Track) -> list[Inequality] | None:
    """phi_kj = clip(s_k a_j relu(v_j . beta_k) - cos(phi_k) |a_j v_j|, 0, 1) never falls, and the potential
    Phi = (1/4r) sum_k ln sum_j phi_kj |a_j v_j| grows at least at the rate gamma/(2r) in CB's clock (times sum |l'| / sum l,
    1 for the exponential loss)."""
    view, s, norm = _lazy(track), track.get("t_cb"), track.get("log_norm")
    if (
        view is None
        or track.W is None
        or s is None
        or norm is None
        or not flows_freely(track)
        or len(track.problem.X) > 1
    ):
        return None
    cones = _cones(track.problem.X[0].numpy(), track.problem.y[0].numpy())
    if cones is None:
        return None
    beta, signs, c = (torch.as_tensor(one, dtype=torch.float64) for one in (cones.beta, cones.signs, np.cos(cones.phi)))
    r, reference = len(beta), "LR Theorem 3.2, corrected (E-LR-14)"

    def catch(W: Params) -> tuple[Tensor, Tensor]:
        mass = W["a"].abs() * W["V"].norm(dim=2)  # (B, m)
        onto = (W["V"] @ beta.mT).clamp_min(0)  # (B, m, r)
        return (W["a"][:, :, None] * onto * signs - c * mass[:, :, None]).clamp(0, 1), mass

    def flat(W: Params) -> Tensor:
        return catch(W)[0].flatten(1)

    def steep(W: Params) -> Tensor:
        size = (W["a"] ** 2 + (W["V"] ** 2).sum(2)).sqrt()
        return (2 * size)[:, :, None].expand(-1, -1, r).flatten(1)

    def phi(W: Params) -> Tensor:
        caught, mass = catch(W)
        return (caught * mass[:, :, None]).sum(1).log().mean(1) / 4

    numbers = {"directions": r, "gamma": cones.gamma, "angles": cones.phi.tolist()}
    seen = np.stack([flat(W).numpy() for W in track.W])
    terms = np.stack([catch(W)[1].amax(1).numpy() for W in track.W])  # largest |a_j v_j|
    owed_each, before = cost(track, flat, steep), np.maximum.accumulate(seen, axis=0)
    when = np.maximum.accumulate(np.where(seen >= before, np.arange(len(seen))[:, None, None], 0), axis=0)
    since = owed_each[1:] - np.take_along_axis(owed_each, when, 0)[:-1]
    nearest = worst(before[:-1], seen[1:], since, 1.0)  # phi_kj lies in [0, 1]
    nearest = {name: np.concatenate([np.zeros_like(one[:1]), one]) for name, one in nearest.items()}
    yes = honest(track)
    later = yes.copy()
    later[0] = False
    Phi = np.stack([phi(W).numpy() for W in track.W])
    alive = yes & np.isfinite(Phi[0])
    owed = cost(track, phi)
    value, off = integral(s, cones.gamma / (2 * r) * slopes(track).sum(2))
    with np.errstate(invalid="ignore"):
        rise = Phi - Phi[0]
    return [
        entry(
            track, "LR-28", "phi_kj never falls, worst (k, j)", reference, applies=later, numbers=numbers, terms=terms, **nearest
        ),
        entry(
            track, "LR-28", "Phi_t - Phi_0 >= int Q gamma / (2r)", reference, value, rise, alive, allowance=off + owed,
            numbers=numbers, terms=1 + np.abs(Phi) + np.abs(Phi[0]),
        ),
        entry(track, "LR-28", "Phi <= ln |W| / 2", reference, Phi, norm / 2, alive, numbers=numbers, terms=1.0),
    ]  # fmt: skip


@check(
    "LR-29",
    says="scalar networks: balance, signs, and the growth of the comparator's neurons",
    reference="LR Theorem 3.3, E-LR-15",
)
def scalar_potential(track: Track) -> list[Inequality] | None:
    """dPhi/ds = (1/2) sum_i w_i <alpha, z_i> >= (gamma/2) sum_i w_i, w_i = |l'_i| / sum l, gamma the margin of alpha."""
    view, norm = _mirror(track), track.get("log_norm")
    if view is None or norm is None or not isinstance(track.net, flows.Scalar) or track.W is None:
        return None
    s, yes, reference = track.run["t_cb"], honest(track), "LR Theorem 3.3"
    Phi, rate, owed = _potential(track)
    value, off = integral(s, rate * slopes(track).sum(2))
    size = np.stack([(W["a"] ** 2 + W["b"] ** 2).numpy() for W in track.W])
    gap = np.stack([(W["a"] ** 2 - W["b"] ** 2).abs().numpy() for W in track.W])
    room = cost(track, lambda W: W["a"] ** 2 - W["b"] ** 2, lambda W: 2 * (W["a"] ** 2 + W["b"] ** 2).sqrt())
    blur = 500 * eps(track) * (1 + summed(taken(track)))[..., None] * size
    start = track.start
    flips = np.stack(
        [((W["a"].sign() != start["a"].sign()) | (W["b"].sign() != start["b"].sign())).sum(1).numpy() for W in track.W]
    )
    numbers = {"gamma": view.gamma[-1].tolist()}
    # A step of descent multiplies a_j and b_j by 1 +- lr |l'|-mean of z_j, which a flow keeps positive and a large step does not
    steady = yes
    if track.rule == "GD":
        turn = float(track.options["lr"]) * np.abs(view.pull).max(2) * np.exp(track.log_risk)
        far = (1.0 if track.every_step else UNSEEN) * turn >= 1
        steady = yes & ~np.logical_or.accumulate(far, axis=0)
    found = [
        entry(
            track, "LR-29", "a_j^2 = b_j^2, worst j", reference, applies=yes, identity=True, **worst(gap, blur, room, size)
        ),
        entry(track, "LR-29", "signs that changed", reference, flips.astype(float), np.zeros(track.shape), steady),
        entry(
            track, "LR-29", "Phi_t - Phi_0 >= (gamma / 2) int Q sum_i q_i", reference, value, Phi - Phi[0], yes & (rate > 0),
            allowance=off + owed, numbers=numbers, terms=1 + np.abs(Phi) + np.abs(Phi[0]),
        ),
        entry(track, "LR-29", "Phi <= ln |W| / 2", reference, Phi, norm / 2, yes, terms=1.0),
    ]  # fmt: skip
    hard = track.get("margin")
    if hard is not None:
        # gamma is the largest margin of the features of the run, which are those of the signs at the start as long as they stay
        top = np.broadcast_to(view.gamma[0] / 2, track.shape)
        same = ~flips.any(0)
        found.append(
            entry(
                track,
                "LR-29",
                "min_i p_i / |W|^2 <= gamma / 2",
                reference,
                hard * np.exp(-2 * norm),
                top,
                yes & same,
                numbers=numbers,
                terms=0 if track.p is None else np.abs(track.p).max(2) * np.exp(-2 * norm),
            )
        )
    return found


@check("LR-30", says="ratios of norms follow the margins of single neurons", reference="LR Section 3.2")
def norm_ratio(track: Track) -> Inequality | None:
    """ln(|w_j|^2 / |w_k|^2) changes by 4 int sum_i w_i (p~_i(w_j) - p~_i(w_k)) ds, k the largest neuron at the end."""
    s = track.get("t_cb")
    if track.W is None or track.p is None or s is None or not flows_freely(track) or len(track.t) < 2:
        return None
    parts = [_neurons(track, W) for W in track.W]
    if parts[0] is None:
        return None
    size = np.stack([one[1].numpy() for one in parts if one is not None])  # (T, B, m)
    w = torch.as_tensor(slopes(track))
    rate = np.stack([(w[k][:, :, None] * one[0]).sum(1).numpy() for k, one in enumerate(parts) if one is not None])
    log = np.log(np.where(size > 0, size, 1.0))
    alive = (size > 0).all(0)  # neurons of trials that are narrower than the others are 0
    rate = 4 * rate / np.where(size > 0, size, 1.0)
    top = size[-1].argmax(1)[None, :, None]
    top = np.broadcast_to(top, (len(size), size.shape[1], 1))
    log, rate = (one - np.take_along_axis(one, top, 2) for one in (log, rate))
    value, off = integral(s, rate)

    def logs(W: Params) -> Tensor:
        found = _neurons(track, W)
        assert found is not None
        return torch.where(found[1] > 0, found[1], 1.0).log()

    def steep(W: Params) -> Tensor:
        found = _neurons(track, W)
        assert found is not None
        return 2 / torch.where(found[1] > 0, found[1], 1.0).sqrt()

    owed = cost(track, logs, steep)
    owed = owed + np.take_along_axis(owed, top, 2)
    change = log - log[0]
    left = np.where(alive, np.abs(change - value), 0.0)
    blur = precision(track) * (1 + np.abs(log) + np.abs(log[0]))
    return entry(
        track, "LR-30", "ln |w_j|^2/|w_k|^2 changes by 4 int sum_i w_i (p~_i(w_j) - p~_i(w_k)), worst j", "LR Section 3.2",
        applies=duals_known(track), identity=True, note="right is how well the integral is known from the records",
        **worst(left, off + blur, owed, np.maximum(1, np.abs(change))),
    )  # fmt: skip
