"""Inequalities of LR along runs of homogeneous networks: identities of Euler, growth of norms (LR-7, LR-23 to LR-26)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from widemargin.types import InputError

from ._records import (
    Params,
    cost,
    flows_freely,
    free_flow,
    honest,
    integral,
    joined_fitted,
    never_falls,
    of_loss,
    rounded,
    summed,
    taken,
)
from ._rooms import flows, losses, torch
from .check_mirror import _mirror
from .inequality import Part, check, part, precision
from .track import Track

if TYPE_CHECKING:
    from torch import Tensor


def _inner(net: flows.Net) -> str | None:
    """Name of the inner weights of a network that is a sum of 2-homogeneous neurons w_j = (a_j, v_j); None for others."""
    if type(net) is flows.TwoLayer and net.activation == "relu" and set(net.trained) == {"a", "V"}:
        return "V"
    return "b" if isinstance(net, flows.Scalar | flows.Normalized) else None


def _squares(track: Track, W: Params) -> tuple[Tensor, Tensor]:
    """a_j^2 and |v_j|^2 (B, m)."""
    inner = W[_inner(track.net) or ""]
    return W["a"] ** 2, (inner**2).reshape(*W["a"].shape, -1).sum(2)


def _margins(track: Track, W: Params) -> Tensor:
    """Margins p_i(w_j) of single neurons (B, n, m)."""
    net = track.net
    return track.problem.y[:, :, None] * net.features(W, track.problem.X) * net.outer(W)[:, None, :]


def _along_itself(track: Track) -> np.ndarray | None:
    """<w, dp_i> (T, B, n), None for networks without forward derivatives."""
    still = {name: torch.zeros_like(track.start[name]) for name in track.net.trained}
    with contextlib.suppress(NotImplementedError, InputError):
        rows = [track.problem.push(W, still | {k: W[k] for k in track.net.homogeneous}) for W in track.W or []]
        return np.stack([row.numpy() for row in rows])
    return None


@check("LR-7", "LR Sections 1.2, 3.1")
def homogeneity(track: Track, W: list[Params], p: np.ndarray) -> Iterator[Part]:
    """2-homogeneity, and a_j^2 - |v_j|^2 along the flow"""
    net = track.net
    if net.outputs > 1 or not len(track.t):
        return
    L, margin = net.degree, track.get("margin")
    same = partial(part, reference="LR Section 1.2", identity=True)
    own = _along_itself(track)
    if own is not None:
        size = np.stack([net.norm2(Wt).numpy() ** (L / 2) for Wt in W])[..., None]  # |W|^L
        accuracy = precision(track) * (np.abs(own) + L * np.abs(p) + size).max(2)
        yield same(f"<w, dp_i> = {L} p_i", np.abs(own - L * p).max(2), accuracy)
        if margin is not None:
            off = np.abs(own.min(2) - L * margin)
            yield same(f"min_i <w, dp_i> = {L} times the recorded margin", off, accuracy)
    if _inner(net) is None:
        return
    each = [_margins(track, Wt) for Wt in W]
    whole = np.stack([q.sum(2).numpy() for q in each])
    total = np.stack([q.abs().sum(2).numpy() for q in each])
    off = np.abs(whole - p).max(2)
    yield same("p_i = sum_j |w_j|^2 p~_i(w_j)", off, precision(track) * total.max(2))
    pairs = [_squares(track, Wt) for Wt in W]
    A, B = (np.stack([pair[k].numpy() for pair in pairs]) for k in (0, 1))
    product = 2 * np.sqrt(A) * np.sqrt(B)  # A B has no digits left where |w_j| is below 1e-75
    yield part("2 |a_j| |v_j| <= |w_j|^2, nearest j", product, A + B, reference="LR Section 1.2")
    if not flows_freely(track):
        return

    def gap(W: Params) -> Tensor:
        outer, inner = _squares(track, W)
        return outer - inner

    owed = cost(track, gap, lambda W: 2 * sum(_squares(track, W)).sqrt())  # type: ignore[union-attr]
    yield part(
        "a_j^2 - |v_j|^2 stays, worst j", np.abs(A - B - gap(dict(track.start)).numpy()), rounded(track, A + B),
        honest(track), reference="LR Section 3.1", identity=True, allowance=owed, scale=A + B,
    )  # fmt: skip


@check("LR-23", "LR Lemma A.4", reads=free_flow)
def norm_growth(track: Track, log_norm: np.ndarray, psi: np.ndarray) -> Iterator[Part]:
    """the norm grows once fitted"""
    once = track.fitted & honest(track)
    # without weights: descent makes the norm larger than the flow does; the solver of the flow is off by rtol a step
    if track.W is None:
        owed = summed((0.0 if track.rule == "GD" else float(track.options["rtol"])) * taken(track))
    else:
        owed = cost(track, lambda W: 0.5 * track.net.norm2(W).log())
    yield part("ln |w| grows", **never_falls(log_norm, owed, once, joined_fitted(track), 1.0), terms=1.0)
    if track.W is None or track.problem.loss is None:
        return
    loss, rates, sizes = track.problem.loss, [], []
    for W in track.W:
        F = track.problem.pull(W, losses.weights(loss, track.problem.margins(W), "soft_margin"))
        parts = [(F[name] * W[name]).flatten(1) for name in track.net.homogeneous]
        rates.append(sum(part.sum(1) for part in parts).numpy())  # type: ignore[union-attr]
        sizes.append(sum(part.abs().sum(1) for part in parts).numpy())  # type: ignore[union-attr]
    shrink = np.exp(-2 * log_norm)
    rate, terms = np.stack(rates) * shrink, np.stack(sizes) * shrink
    yield part("<w, w'> > 0, over |w|^2 in CB's clock", 0.0, rate, once, terms=terms)


@check("LR-24", "LR Lemma A.5")
def gradient_margin_gap(track: Track, p: np.ndarray, psi: np.ndarray) -> Iterator[Part]:
    """sum_i q_i p_i <= psi + ln n

    For the logistic loss 2 ln n + 1 takes the place of ln n where psi >= 0 (CLAIMS 0.4).
    """
    if track.problem.loss is None:
        return
    q = losses.weights(track.problem.loss, torch.as_tensor(p), "psi").numpy()
    mixed, n = (q * p).sum(2), track.n
    exp = track.loss == "exp"
    k = math.log(n) if exp else 2 * math.log(n) + 1
    yes = np.isfinite(mixed) & np.isfinite(psi)
    if not exp:
        yes = yes & (psi >= 0)
    hard = p.min(2)
    large = np.abs(p).max(2)
    terms = k + np.abs(psi) + large + track.summands
    weighed = terms + large**2  # q_i is an exponential of margins, which makes their rounding a relative one of q_i
    reference = "LR Lemma A.5" if exp else "Ji and Telgarsky, as in UH Lemma A.3"
    mean = partial(part, applies=yes, terms=weighed, reference=reference)
    yield mean(f"sum_i q_i p_i <= psi + {k:.4g}", mixed, psi + k)
    yield mean(f"sum_i q_i p_i <= min_i p_i + {k:.4g}", mixed, hard + k)
    yield part("psi <= min_i p_i", psi, hard, np.isfinite(psi), terms=terms, reference="LR Section 1.2")


@check("LR-25", "LR Lemma A.6", reads=free_flow)
def abstract_potential(
    track: Track, log_norm: np.ndarray, t_cb: np.ndarray, margin: np.ndarray, W: list[Params]
) -> Iterator[Part]:
    """the norm grows no faster than the margin allows; potentials force margins

    (1/L) d ln |w| / ds <= (min p + ln n) / |w|^2 in CB's clock (Lemma A.5), exponential loss; with a potential
    Phi <= (1/2) ln |w| that grows at the rate gamma_hat, L = 2, the mean of the right side is at least gamma_hat - (...)/s.
    """
    if track.loss != "exp" or track.net.outputs > 1:
        return
    L, s, yes = track.net.degree, t_cb, honest(track) & np.isfinite(log_norm)
    value, off = integral(s, (margin + math.log(track.n)) * np.exp(-2 * log_norm))
    owed = cost(track, lambda W: track.net.norm2(W).log() / (2 * L))
    yield part(
        "(ln |w_t| - ln |w_0|) / L <= int (min p + ln n) / |w|^2", (log_norm - log_norm[0]) / L, value, yes,
        allowance=off + owed, terms=1 + np.abs(log_norm) + np.abs(log_norm[0]),
    )  # fmt: skip
    view = _mirror(track)
    if view is None or not isinstance(track.net, flows.Scalar):
        return
    phi, rate, lost = _potential(track)
    safe = np.where(s > 0, s, 1.0)
    behind = log_norm[0] / 2 - phi[0]
    yield part("Phi <= ln |w| / 2", phi, log_norm / 2, yes, terms=1.0)
    yield part(
        "mean of (min p + ln n) / |w|^2 >= gamma_hat - (ln |w_0| / 2 - Phi_0) / s",
        rate - behind / safe, value / safe, yes & (rate > 0) & (s > 0),
        allowance=(off + owed + lost) / safe, terms=(1 + np.abs(log_norm)) / safe, numbers={"gamma_hat": rate[-1].tolist()},
    )  # fmt: skip


def _potential(track: Track) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Phi = (1/4) sum_j alpha_j ln |w_j|^2 (T, B) of a scalar network, its rate gamma/2 so far, and what steps cost it."""
    view = _mirror(track)
    assert view is not None
    alpha = torch.as_tensor(view.comparator)

    def phi(W: Params) -> Tensor:
        return 0.25 * torch.where(alpha > 0, alpha * (W["a"] ** 2 + W["b"] ** 2).log(), 0.0).sum(1)

    return np.stack([phi(W).numpy() for W in view.weights]), view.gamma / 2, cost(track, phi)


@check("LR-26", "LR Lemma B.2, E-LR-12")
def loss_by_slope(track: Track, p: np.ndarray) -> Part | None:
    """slopes of at most 1/8 bound the loss by twice the slope"""
    if track.problem.loss is None:
        return None
    small: np.ndarray = np.all(of_loss(track, "log_slope", p) <= math.log(1 / 8), axis=2)
    mean = track.of_p(losses.log_G)
    assert mean is not None
    return part(
        "ln risk <= ln 2G where all |l'_i| <= 1/8", track.log_risk, math.log(2) + mean, small,
        reference="LR Lemma B.2", terms=1 + np.abs(p).max(2) + track.summands,
    )  # fmt: skip
