"""Checks of BN's lemmas along runs of batch-normalised networks f = sum_j a_j relu(c_j <v_j / N(v_j), x - mu>).

The lemmas are about a ball around the start whose radius R = gamma^(1/3) m^(1/6) / (27 eps_N) must be at least 8, which takes
a width beyond (216 eps_N)^6 / gamma^2 (E-BN-3). So each is checked in the form in which its proof gives it at any width, with
the measured movements |a - a_0|, |c - c_0|, D = |V - V_0| and c = D eps_N < 1 in place of R, R and 1/2; the printed constants
are entries of their own, which apply where the measured hypotheses are enough for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ._records import before, steps
from ._rooms import torch
from .inequality import Part, check, part, precision
from .normalized_run import BatchNormed, batch_normed
from .track import Track

CHANCE = 1e-3  # failure probability of the martingale lemma
PRINTED = "printed form, not proved"


def _numbers(B: BatchNormed) -> dict[str, Any]:
    return {"gamma": B.gamma.tolist(), "R": B.R.tolist(), "eps_N": B.eps_N.tolist()}


# ---------------------------------------------------------------- exact


@check("BN-3", "BN Section 1.4", reads=batch_normed)
def euler(B: BatchNormed) -> Iterator[Part]:
    """<a, df/da> = <c, df/dc> = f; <v_j, df/dv_j> vanishes with eps

    The pull-back of the points' weights by the network's own gradients, against its outputs.
    """
    track = B.track
    weights = B.slope / track.n
    pulled = [track.problem.pull(W, torch.as_tensor(w)) for W, w in zip(track.W or [], weights)]
    total = (weights * track.p).sum(2)  # type: ignore[operator]
    size = precision(track) * (1e-300 + (weights * np.abs(B.d_a * B.W["a"][..., None, :]).sum(3)).sum(2))
    along = {name: np.stack([part[name].numpy() for part in pulled]) for name in ("a", "c", "V")}
    for name in ("a", "c"):
        off = np.abs((along[name] * B.W[name]).sum(2) - total)
        yield part(f"<{name}, df/d{name}> = f", off, size, id=f"BN-3 {name}", identity=True)
    inner = (B.W["V"] * along["V"]).sum(3)  # (T, B, m)
    weighed = (weights * B.y)[..., None] * B.on
    exact = B.W["a"] * B.W["c"] * B.eps / B.Nt**2 * (weighed * B.P).sum(2)
    scale = (np.abs(B.W["V"] * along["V"])).sum(3) + np.abs(B.W["a"] * B.W["c"]) * (np.abs(weighed * B.P)).sum(2)
    off, size = np.abs(inner - exact), precision(track) * (1e-300 + scale)
    yield part("<v_j, df/dv_j> = a_j c_j o_j <v_j, xbar> eps / N_j^3", off, size, identity=True)


@check("BN-13", "BN Lemma B.1", reads=batch_normed)
def sigma_norms(B: BatchNormed) -> Iterator[Part]:
    """|v|_Sigma <= |v|, |Sigma v| <= |v|_Sigma <= N(v), |N(u) - N(v)| <= |u - v|_Sigma"""
    Sigma, V = B.statistics[1], B.W["V"]
    image = V @ Sigma
    inner = np.sqrt(np.maximum((image * V).sum(-1), 0))  # |v_j|_Sigma (T, B, m)
    gone = V - B.first["V"]
    change = np.sqrt(np.maximum(((gone @ Sigma) * gone).sum(-1), 0))
    rough = np.sqrt((V**2).sum((2, 3)))  # a root of a difference near 0
    says = partial(part, applies=B.small, terms=rough)
    yield says("|v|_Sigma <= |v|", inner, np.linalg.norm(V, axis=3), id="BN-13 norm")
    yield says("|Sigma v| <= |v|_Sigma", np.linalg.norm(image, axis=3), inner, id="BN-13 Sigma")
    yield says("|v|_Sigma <= N(v)", inner, B.Nt, id="BN-13 N")
    yield says("|N(v(t)) - N(v(0))| <= |v(t) - v(0)|_Sigma", np.abs(B.Nt - B.N0), change)


# ---------------------------------------------------------------- near the start


@check("BN-14", "BN Lemma B.2", reads=batch_normed)
def normalizers_near(B: BatchNormed) -> Iterator[Part]:
    """how far 1 / N(v_j), the projection of x and the preactivations can be from their start while |V - V_0| < 1 / eps_N"""
    gone = np.linalg.norm(B.W["V"] - B.first["V"], axis=3)  # (T, B, m)
    beta_N = (B.rho_N * B.eps_N**2)[..., None]
    apart = np.abs(1 / B.Nt - 1 / B.N0)
    projected, preactivations = np.sqrt(B.projected2), np.abs(B.P0)[None]
    says = partial(part, applies=B.near, terms=B.eps_N + B.ratio, note="c = |V - V_0| eps_N")
    yield says("1 / N'_j <= rho_N / N_j", 1 / B.Nt, B.rho_N[..., None] / B.N0)
    yield says("|1/N'_j - 1/N_j| <= beta_N |v'_j - v_j|", apart, beta_N * gone, id="BN-14 difference")
    limit = B.beta_Pi[..., None, None]
    yield says("|(I - Sigma v'v''/N'^2) xbar_i| <= beta_Pi", projected, limit, id="BN-14 projection")
    limit = B.ratio[:, None, None]
    yield says("|<v_j / N_j, xbar_i>| <= eps_V eps_N at the start", preactivations, limit, id="BN-14 ratio")


@check("BN-17", "BN Lemma D.1 (E-BN-7)", reads=batch_normed)
def preactivations(B: BatchNormed) -> Iterator[Part]:
    """preactivations move by at most K |v'_j - v_j|, K = rho_N eps_N + beta_N eps_V"""
    gone = np.linalg.norm(B.W["V"] - B.first["V"], axis=3)[..., None, :]
    K = B.K[..., None, None]
    printed = (B.rho_N * B.eps_N + B.rho_N * B.eps_N**2 * B.ratio)[..., None, None]
    wide = K * gone + B.ratio[:, None, None]
    change = np.abs(B.P - B.P0)
    switched = np.abs(B.P * B.on - B.P0 * (B.P0 > 0))
    says = partial(part, applies=B.near, terms=B.ratio)
    yield says("|<v'/N', xbar> - <v/N, xbar>| <= K |v' - v|", change, K * gone)
    yield says("|<v'/N', xbar>| <= K |v' - v| + eps_ratio", np.abs(B.P), wide, id="BN-17 (2)")
    yield says("|o' <v'/N', xbar> - o <v/N, xbar>| <= K |v' - v| + eps_ratio", switched, wide, id="BN-17 (5)")
    yield part(
        "the first with beta_N eps_ratio in K, for eps_N >= 1", change, printed * gone, B.near & (B.eps_N >= 1),
        id="BN-17 printed", terms=B.ratio, proved=False,
    )  # fmt: skip


@check("BN-18", "BN Lemma D.2", reads=batch_normed)
def small_terms(B: BatchNormed) -> Iterator[Part]:
    """|<a_0, dp/da>| + |<c - c_0, dp/dc>| + alpha |<V - V_0, dp/dV>| is small near the start

    The chain of the proof with measured movements. The last sum of (25) keeps its |a_j||c_j|, which the proof drops.
    """
    gone = B.W["V"] - B.first["V"]
    left = (
        np.abs((B.d_a * B.first["a"][:, None, :]).sum(3))
        + np.abs((B.d_c * (B.W["c"] - B.first["c"])[..., None, :]).sum(3))
        + B.alpha[:, None] * np.abs(B.along_V(gone))
    ).max(2)
    size, D, a, c = np.linalg.norm(B.first["a"], axis=1), B.moved("V"), B.moved("a"), B.moved("c")
    wide = B.K * D + B.ratio
    start = np.abs((B.P0 * (B.P0 > 0) * B.first["a"][:, None, :]).sum(2)).max(1)  # max_i |p_i(W_0)|
    first = size * c * wide + size * B.K * D + start
    second = c * (a + size) * wide
    third = B.alpha * B.beta_Pi * B.rho_N * B.eps_N * D * (a * c + a + size * c + size)
    own = B.inside & (B.beta_V >= D)
    chain = B.R * B.root / 32
    hypotheses = (B.eps_N >= 1) & (B.eps_V <= 2) & (size <= 2)
    N, R = B.eps_N, B.R
    sum_of_proof = 36 * N**3 * (R**4 + 3 * R**3 + 2 * R**2) + 5 * N**2 * (R**2 + 4 * R) + 6 * N**2 + start
    statement = "|<a_0, dp_i/da>| + |<c - c_0, dp_i/dc>| + alpha |<V - V_0, dp_i/dV>| <= "
    yield part(
        statement + "the sum of the proof, measured", left, first + second + third, B.near,
        terms=size * B.ratio * math.sqrt(B.track.net.m),
    )  # fmt: skip
    yield part(
        statement + "36 eps_N^3 (R^4 + 3 R^3 + 2 R^2) + 5 eps_N^2 (R^2 + 4 R) + 6 eps_N^2 + max |p_i(W_0)|",
        left, sum_of_proof, own & hypotheses, id="BN-18 polynomial", note="with the 72 eps_N^3 R^2 that the proof drops",
    )  # fmt: skip
    proved = (hypotheses & (sum_of_proof <= chain)).all()
    yield part(
        statement + "R gamma sqrt m / 32", left, chain, own,
        id="BN-18 printed", proved=False, note="" if proved else PRINTED, numbers=_numbers(B),
    )  # fmt: skip


@check("BN-19", "BN Lemma D.3, (33)", reads=batch_normed)
def alignment(B: BatchNormed) -> Iterator[Part]:
    """the comparator Uvec of the start stays aligned: <Uvec, dp_i/dU> >= gamma sqrt m - what the movements cost"""
    least = B.alignment.min(2)
    other = np.abs(B.good - (B.R / 8)[:, None] * B.alignment).max(2)
    rough = 1 + np.abs(B.alignment).max(2) + B.ratio * math.sqrt(B.track.net.m)
    positive = B.gamma > 0
    enough = B.near & (B.loss_of_alignment <= B.root / 4) & positive
    ratio = (least.min(0) / np.where(positive, B.root, np.nan)).tolist()
    yield part(
        "gamma sqrt m - cost of |a - a_0|, |c - c_0|, |V - V_0| <= <Uvec, dp_i/dU>",
        B.root - B.loss_of_alignment, least, B.near & positive,
        terms=rough, numbers=_numbers(B) | {"least_over_gamma_sqrt_m": ratio},
    )  # fmt: skip
    yield part(
        "(3/4) gamma sqrt m <= <Uvec, dp_i/dU>", 0.75 * B.root, least, enough,
        id="BN-19 (1)", terms=rough, note="applies where the movements cost at most a quarter",
    )  # fmt: skip
    yield part(
        "r gamma sqrt m / 2 <= <Ubar, dp_i/dU> - p_i + alpha <V_0 - V, dp_i/dV>",
        B.R / 8 * B.root / 2, B.good.min(2), enough & (other <= B.R / 8 * B.root / 4),
        id="BN-19 (2)", terms=rough + np.abs(B.good).max(2) + B.R * rough,
        note="applies where the terms of Lemma D.2 are at most r gamma sqrt m / 4",
    )  # fmt: skip


@check("BN-20", "BN Lemmas E.1, F.3", reads=batch_normed)
def gradient_norms(B: BatchNormed) -> Iterator[Part]:
    """gradient norms near the start: |dp/dU|^2 = O(eps_N^4 m), |dp/dV|^2 = O(eps_N^4 R^4), and those of the risk"""
    m, size = B.track.net.m, np.linalg.norm(B.first["a"], axis=1)
    a, c = B.moved("a"), B.moved("c")
    steep = ((B.eps_V + B.moved("V")) * B.rho_N * B.eps_N) ** 2
    bound_U = ((c + math.sqrt(m)) ** 2 + (a + size) ** 2) * steep
    bound_V = (a + size) ** 2 * (c + 1) ** 2 * (B.rho_N * B.eps_N * B.beta_Pi) ** 2
    U2, V2 = (B.d_a**2 + B.d_c**2).sum(3).max(2), B.norm2_V.max(2)
    mean = B.slope.mean(2)
    risk_U, risk_V = B.gradient
    R = np.maximum.accumulate(B.moved_U, axis=0)
    hypotheses = (B.moved("V") <= B.beta_V) & B.small & (B.eps_N >= 1) & (B.eps_V <= 2) & (size <= 2)
    proved_U = hypotheses & ((R + math.sqrt(m)) ** 2 + (R + 2) ** 2 <= 7 * B.eps_N**2 * m)
    wide = np.maximum(R, 1.5)  # (R + 2)(R + 1) <= 5 R^2 from R = 1.18 on
    eps4 = B.eps_N**4
    parts = [
        ("BN-20", "|dp_i/dU|^2 <= ((c + sqrt m)^2 + (a + |a_0|)^2) kappa^2", U2, bound_U, B.near),
        ("BN-20 V", "|dp_i/dV|^2 <= (a + |a_0|)^2 (c + 1)^2 (rho_N eps_N beta_Pi)^2", V2, bound_V, B.near),
        ("BN-20 risk U", "|grad_U risk|^2 <= bound of |dp/dU|^2 times mean |l'|", risk_U, bound_U * mean, B.near),
        ("BN-20 risk V", "|grad_V risk|^2 <= bound of |dp/dV|^2 times mean |l'|", risk_V, bound_V * mean, B.near),
        ("BN-20 (E.1)", "|dp_i/dU|^2 <= 2^11 eps_N^4 m", U2, 2**11 * eps4 * m, proved_U),
        ("BN-20 (F.3)", "|dp_i/dU|^2 <= 175 eps_N^4 m", U2, 175 * eps4 * m, proved_U),
        ("BN-20 (F.3) V", "|dp_i/dV|^2 <= 8100 eps_N^4 R^4, R >= 1.5", V2, 8100 * eps4 * wide**4, hypotheses),
    ]
    note = "movements as measured: a = |a - a_0|, c = |c - c_0|, kappa = (eps_V + |V - V_0|) rho_N eps_N"
    for id, words, left, right, where in parts:
        yield part(words, left, right, where, id=id, note=note)


# ---------------------------------------------------------------- sums over steps


def _step_size(track: Track) -> float | None:
    """eta of plain GD or SGD, None for other rules."""
    plain = track.rule in ("GD", "SGD") and not any(
        track.options.get(k) for k in ("weight_decay", "schedule", "sampler")
    )
    return float(track.options["lr"]) if plain else None


def _slopes(B: BatchNormed) -> np.ndarray | None:
    """sum_{s < t} |l'_s| (T, B): recorded by SGD, from the weights at every step of GD."""
    kept = B.track.get("slopes")
    if kept is not None:
        return kept
    if B.track.rule != "GD" or not B.track.every_step or B.track.W is None:
        return None
    return np.cumsum(steps(B.track.run["step"]) * before(B.slope.mean(2)), axis=0)


@check("BN-21", "BN (50), (66)", reads=partial(batch_normed, weights=False))
def perceptron(B: BatchNormed) -> Iterator[Part]:
    """sum_{s < t} |l'_s| <= 4 |U_t - U_0| / (eta gamma sqrt m)

    Needs <Uvec, dp_i/dU> >= |Uvec| gamma sqrt m / 4 at every step: measured where weights are kept, else from movements.
    """
    track, eta, total = B.track, _step_size(B.track), _slopes(B)
    if eta is None or total is None:
        return
    size = B.length
    promised = np.where(B.near, B.root - B.loss_of_alignment, -np.inf)
    least = promised if track.W is None else B.alignment.min(2)
    worst_so_far = np.minimum.accumulate(least, axis=0)
    need = size * B.root / 4
    begun = (B.gamma > 0) & (total > 0)
    yield part(
        "sum |l'_s| <= 4 |U_t - U_0| / (eta gamma sqrt m)", total, 4 * B.moved_U / (eta * B.root),
        (before(worst_so_far) >= need) & begun,
        note="" if track.every_step else "alignment between the records is not known", numbers=_numbers(B),
    )  # fmt: skip
    if track.every_step and track.W is not None:
        exact = eta * np.minimum.accumulate(before(least), axis=0) * total
        says = "eta min_s <Uvec, dp/dU> sum |l'_s| <= |Uvec| |U_t - U_0|"
        yield part(says, exact, size * B.moved_U, begun, id="BN-21 measured")


@check("BN-12", "BN Section 2, (44)-(51)", reads=batch_normed)
def potential(B: BatchNormed) -> Iterator[Part]:
    """the potential |U - Ubar|^2 - |U_0 - Ubar|^2 + alpha |V - V_0|^2 grows by second-order terms only

    Phi <= 2 eta sum (l(X - p) - l(p)) + eta^2 sum (|dl/dU|^2 + alpha |dl/dV|^2), X - p of Lemma D.3: convexity alone.

    Exact for GD when every step is recorded; for SGD with the largest summand over the points in place of the drawn one.
    """
    track, eta = B.track, _step_size(B.track)
    if eta is None or not track.every_step:
        return
    avec, cvec, _, _ = B.comparator
    r = B.R / 8
    ahead = ((B.W["a"] - B.first["a"]) * avec + (B.W["c"] - B.first["c"]) * cvec).sum(2)
    Phi = B.moved_U**2 - 2 * r * ahead + B.alpha * B.moved("V") ** 2
    first = 2 * eta * (B.value(B.good) - B.value(B.p))  # (T, B, n)
    if track.rule == "GD":
        risk_U, risk_V = B.gradient
        each = first.mean(2) + eta**2 * (risk_U + B.alpha * risk_V)
    else:
        norms = (B.d_a**2 + B.d_c**2).sum(3) + B.alpha[:, None] * B.norm2_V
        # l(X - p) - l(p) and the square separately: of a batch the first is a mean, the second at most the largest
        each = first.max(2) + eta**2 * (B.slope**2 * norms).max(2)
    total = np.cumsum(steps(track.run["step"]) * before(each), axis=0)
    m, eps = track.net.m, B.eps_N
    factor = 2**13 * eps**4 * math.sqrt(m) / B.gamma + 2**18 * eps**6 * B.R**6 / (B.gamma * math.sqrt(m))
    printed = 2 * eta / 5 + eta * factor * B.moved_U
    steps_left = max(float(track.run["step"].max()), 1.0)
    enough = B.good.min(2) >= math.log(5 * steps_left)
    need = B.length * B.root / 4
    proved = np.logical_and.accumulate(enough & (B.alignment.min(2) >= need), axis=0)
    rough = B.moved_U**2 + B.alpha * B.moved("V") ** 2 + 2 * r * B.moved_U
    yield part(
        "Phi(t) <= 2 eta sum (l(X - p) - l(p)) + eta^2 sum (|dl/dU|^2 + alpha |dl/dV|^2)",
        Phi, total, B.small & (B.gamma > 0), terms=rough, numbers=_numbers(B),
    )  # fmt: skip
    yield part(
        "Phi(t) <= 2 eta / 5 + eta (2^13 eps_N^4 sqrt m / gamma + 2^18 eps_N^6 R^6 / (gamma sqrt m)) |U_t - U_0|",
        Phi, printed, B.inside & (B.gamma > 0), id="BN-12 printed", terms=rough, proved=False,
        note="" if before(proved).all() else PRINTED,
    )  # fmt: skip


@check("BN-22", "BN Lemma E.2, Corollary E.3")
def martingale(track: Track, slopes: np.ndarray, p: np.ndarray) -> Part | None:
    """sum_s E|l'(W_s)| <= 4 sum_s |l'_s| + 4 ln(1 / delta) for examples drawn with replacement

    The law is the data itself; the expectation is the mean over the points at every step. Holds with probability 1 - delta.
    """
    if track.rule != "SGD" or not track.every_step or track.loss != "logistic":
        return None
    if track.options.get("order") != "replacement" or track.options.get("sampler"):
        return None
    slope = track.problem.loss.log_slope(torch.as_tensor(p)).exp().numpy().mean(2)  # type: ignore[union-attr]
    expected = np.cumsum(steps(track.run["step"]) * before(slope), axis=0)
    return part(
        "sum_{s < t} E|l'(W_s)| <= 4 sum_{s < t} |l'_s| + 4 ln(1 / delta)",
        expected, 4 * slopes + 4 * math.log(1 / CHANCE), slopes > 0,
        note=f"with probability 1 - {CHANCE:g} at each record",
    )  # fmt: skip


@check("BN-25", "BN Section 2", reads=partial(batch_normed, weights=False))
def trapped(B: BatchNormed) -> Part:
    """the normalised weights stay within 1 / (2 eps_N) of their start while U may move by R = O(m^(1/6))

    Inside the ball of the exit test this is its definition (here from the weights, where they are kept); what a run does
    is in the numbers.
    """
    track = B.track
    exits = [float(track.t[np.flatnonzero(out)[0]]) if out.any() else math.inf for out in ~B.inside.T]
    numbers = _numbers(B) | {
        "largest_moved_U": B.moved_U.max(0).tolist(),
        "largest_moved_V": B.moved("V").max(0).tolist(),
        "beta_V": B.beta_V.tolist(),
        "exit": exits,
    }
    moved = B.moved("V") if track.W is None else np.sqrt(((B.W["V"] - B.first["V"]) ** 2).sum((2, 3)))
    says = "|V_t - V_0| <= 1 / (2 eps_N) until sqrt(|U - U_0|^2 + alpha |V - V_0|^2) reaches R"
    return part(says, moved, B.beta_V, B.inside, numbers=numbers)
