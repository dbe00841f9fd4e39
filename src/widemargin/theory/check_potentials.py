"""Inequalities of LR along runs that select features: neural collapse, scalar networks, ratios of norms (LR-28 to LR-30)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from widemargin.types import Dataset, InputError

from ._records import UNSEEN, Params, cost, duals_known, flows_freely, free_flow, honest, integral, rounded, slopes
from ._rooms import flows, margins, torch
from .check_homogeneous import _inner, _margins, _potential, _squares
from .check_lazy import _lazy
from .check_mirror import _Mirror, _mirror
from .inequality import Part, check, part, precision, worst
from .track import Track

if TYPE_CHECKING:
    from torch import Tensor


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
        cones = _fit_cones(X, y, beta, np.array([y[group == g][0] for g in np.unique(group)]))
        if cones is not None:
            return cones
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


@check("LR-28", "LR Theorem 3.2, E-LR-13, E-LR-14")
def collapse_potential(track: Track, W: list[Params], t_cb: np.ndarray, log_norm: np.ndarray) -> Iterator[Part]:
    """neurons are caught by the cones of collapsed data

    phi_kj = clip(s_k a_j relu(v_j . beta_k) - cos(phi_k) |a_j v_j|, 0, 1) never falls, and the potential
    Phi = (1/4r) sum_k ln sum_j phi_kj |a_j v_j| grows at least at the rate gamma/(2r) in CB's clock (times sum |l'| / sum l,
    1 for the exponential loss).
    """
    if _lazy(track) is None or not flows_freely(track) or len(track.problem.X) > 1:
        return
    cones = _cones(track.problem.X[0].numpy(), track.problem.y[0].numpy())
    if cones is None:
        return
    beta, signs, c = (torch.as_tensor(v, dtype=torch.float64) for v in (cones.beta, cones.signs, np.cos(cones.phi)))
    r = len(beta)

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

    says = partial(
        part,
        reference="LR Theorem 3.2, corrected (E-LR-14)",
        numbers={"directions": r, "gamma": cones.gamma, "angles": cones.phi.tolist()},
    )
    seen = np.stack([flat(Wt).numpy() for Wt in W])
    terms = np.stack([catch(Wt)[1].amax(1).numpy() for Wt in W])  # largest |a_j v_j|
    owed_each, before = cost(track, flat, steep), np.maximum.accumulate(seen, axis=0)
    when = np.maximum.accumulate(np.where(seen >= before, np.arange(len(seen))[:, None, None], 0), axis=0)
    since = owed_each[1:] - np.take_along_axis(owed_each, when, 0)[:-1]
    nearest = worst(before[:-1], seen[1:], since, 1.0)  # phi_kj lies in [0, 1]
    nearest = {name: np.concatenate([np.zeros_like(rows[:1]), rows]) for name, rows in nearest.items()}
    yes = honest(track)
    later = yes & (np.arange(len(yes)) > 0)[:, None]
    yield says("phi_kj never falls, worst (k, j)", applies=later, terms=terms, **nearest)
    Phi = np.stack([phi(Wt).numpy() for Wt in W])
    alive = yes & np.isfinite(Phi[0])
    owed = cost(track, phi)
    value, off = integral(t_cb, cones.gamma / (2 * r) * slopes(track).sum(2))
    terms = 1 + np.abs(Phi) + np.abs(Phi[0])
    yield says("Phi_t - Phi_0 >= int Q gamma / (2r)", value, Phi - Phi[0], alive, allowance=off + owed, terms=terms)
    yield says("Phi <= ln |W| / 2", Phi, log_norm / 2, alive, terms=1.0)


@check("LR-29", "LR Theorem 3.3, E-LR-15", reads=_mirror)
def scalar_potential(view: _Mirror, log_norm: np.ndarray, W: list[Params]) -> Iterator[Part]:
    """scalar networks: balance, signs, and the growth of the comparator's neurons

    dPhi/ds = (1/2) sum_i w_i <alpha, z_i> >= (gamma/2) sum_i w_i, w_i = |l'_i| / sum l, gamma the margin of alpha.
    """
    track, start = view.track, view.track.start
    if not isinstance(track.net, flows.Scalar):
        return
    yes, says = honest(track), partial(part, reference="LR Theorem 3.3")
    numbers = {"gamma": view.gamma[-1].tolist()}
    size = np.stack([(Wt["a"] ** 2 + Wt["b"] ** 2).numpy() for Wt in W])
    gap = np.stack([(Wt["a"] ** 2 - Wt["b"] ** 2).abs().numpy() for Wt in W])
    room = cost(track, lambda W: W["a"] ** 2 - W["b"] ** 2, lambda W: 2 * (W["a"] ** 2 + W["b"] ** 2).sqrt())
    accuracy = rounded(track, size)
    yield says("a_j^2 = b_j^2, worst j", gap, accuracy, yes, identity=True, allowance=room, scale=size)
    flips = np.stack(
        [((Wt["a"].sign() != start["a"].sign()) | (Wt["b"].sign() != start["b"].sign())).sum(1).numpy() for Wt in W]
    )
    # A step of descent multiplies a_j and b_j by 1 +- lr |l'|-mean of z_j, which a flow keeps positive and a large step does not
    steady = yes
    if track.rule == "GD":
        turn = float(track.options["lr"]) * np.abs(view.pull).max(2) * np.exp(track.log_risk)
        far = (1.0 if track.every_step else UNSEEN) * turn >= 1
        steady = yes & ~np.logical_or.accumulate(far, axis=0)
    yield says("signs that changed", flips, 0.0, steady)
    Phi, rate, owed = _potential(track)
    value, off = integral(track.run["t_cb"], rate * slopes(track).sum(2))
    yield says(
        "Phi_t - Phi_0 >= (gamma / 2) int Q sum_i q_i", value, Phi - Phi[0], yes & (rate > 0),
        allowance=off + owed, numbers=numbers, terms=1 + np.abs(Phi) + np.abs(Phi[0]),
    )  # fmt: skip
    yield says("Phi <= ln |W| / 2", Phi, log_norm / 2, yes, terms=1.0)
    hard = track.get("margin")
    if hard is not None:
        # gamma is the largest margin of the features of the run, which are those of the signs at the start as long as they stay
        shrink = np.exp(-2 * log_norm)
        terms = 0 if track.p is None else np.abs(track.p).max(2) * shrink
        same = yes & ~flips.any(0)
        yield says(
            "min_i p_i / |W|^2 <= gamma / 2", hard * shrink, view.gamma[0] / 2, same, numbers=numbers, terms=terms
        )


@check("LR-30", "LR Section 3.2", reads=free_flow)
def norm_ratio(track: Track, W: list[Params], p: np.ndarray, t_cb: np.ndarray) -> Part | None:
    """ratios of norms follow the margins of single neurons

    ln(|w_j|^2 / |w_k|^2) changes by 4 int sum_i w_i (p~_i(w_j) - p~_i(w_k)) ds, k the largest neuron at the end.
    """
    if _inner(track.net) is None:
        return None

    def sizes(W: Params) -> Tensor:
        """|w_j|^2 (B, m)."""
        return sum(_squares(track, W))  # type: ignore[return-value]

    def positive(W: Params) -> Tensor:
        return torch.where(sizes(W) > 0, sizes(W), 1.0)

    size = np.stack([sizes(Wt).numpy() for Wt in W])  # (T, B, m)
    safe = np.where(size > 0, size, 1.0)
    w = torch.as_tensor(slopes(track))
    rate = 4 * np.stack([(w[k][:, :, None] * _margins(track, Wt)).sum(1).numpy() for k, Wt in enumerate(W)]) / safe
    alive = (size > 0).all(0)  # neurons of trials that are narrower than the others are 0
    top = np.broadcast_to(size[-1].argmax(1)[None, :, None], (*size.shape[:2], 1))
    log, rate = (values - np.take_along_axis(values, top, 2) for values in (np.log(safe), rate))
    value, off = integral(t_cb, rate)
    owed = cost(track, lambda W: positive(W).log(), lambda W: 2 / positive(W).sqrt())
    owed = owed + np.take_along_axis(owed, top, 2)
    change = log - log[0]
    blur = precision(track) * (1 + np.abs(log) + np.abs(log[0]))
    return part(
        "ln |w_j|^2/|w_k|^2 changes by 4 int sum_i w_i (p~_i(w_j) - p~_i(w_k)), worst j",
        np.where(alive, np.abs(change - value), 0.0), off + blur, duals_known(track),
        allowance=owed, scale=np.maximum(1, np.abs(change)),
        identity=True, note="right is how well the integral is known from the records",
    )  # fmt: skip
