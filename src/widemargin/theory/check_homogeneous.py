"""Inequalities of LR along runs of homogeneous networks: identities of Euler, growth of norms (LR-7, LR-23 to LR-26)."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import numpy as np

from widemargin.types import InputError

from ._records import (
    Params,
    cost,
    entry,
    eps,
    flows_freely,
    honest,
    integral,
    joined_fitted,
    never_falls,
    of_loss,
    precision,
    summed,
    taken,
    worst,
)
from ._rooms import flows, losses, torch
from .check_mirror import _mirror
from .inequality import Inequality, check
from .track import Track

if TYPE_CHECKING:
    from torch import Tensor


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
