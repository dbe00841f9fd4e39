"""Checks of BN's lemmas along runs of batch-normalised networks f = sum_j a_j relu(c_j <v_j / N(v_j), x - mu>).

The lemmas are about a ball around the start whose radius R = gamma^(1/3) m^(1/6) / (27 eps_N) must be at least 8, which takes
a width beyond (216 eps_N)^6 / gamma^2 (E-BN-3). So each is checked in the form in which its proof gives it at any width, with
the measured movements |a - a_0|, |c - c_0|, D = |V - V_0| and c = D eps_N < 1 in place of R, R and 1/2; the printed constants
are entries of their own, which apply where the measured hypotheses are enough for them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._records import QUIET, before, entry, precision, steps, worst
from ._rooms import torch
from .inequality import Inequality, check
from .normalized_run import BatchNormed, batch_normed
from .track import Track

CHANCE = 1e-3  # failure probability of the martingale lemma
PRINTED = "printed form, not proved"


def _numbers(B: BatchNormed) -> dict[str, Any]:
    return {"gamma": B.gamma.tolist(), "R": B.R.tolist(), "eps_N": B.eps_N.tolist()}


# ---------------------------------------------------------------- exact


@check("BN-3", says="<a, df/da> = <c, df/dc> = f; <v_j, df/dv_j> vanishes with eps", reference="BN Section 1.4")
@QUIET
def euler(track: Track) -> list[Inequality] | None:
    """The pull-back of the points' weights by the network's own gradients, against its outputs."""
    B = batch_normed(track)
    if B is None:
        return None
    weights = B.slope / track.n
    pulled = [track.problem.pull(W, torch.as_tensor(w)) for W, w in zip(track.W or [], weights)]
    total = (weights * track.p).sum(2)  # type: ignore[operator]
    size = precision(track) * (1e-300 + (weights * np.abs(B.d_a * B.W["a"][..., None, :]).sum(3)).sum(2))
    along = {name: np.stack([one[name].numpy() for one in pulled]) for name in ("a", "c", "V")}
    reference = "BN Section 1.4"
    found = [
        entry(
            track,
            f"BN-3 {name}",
            f"<{name}, df/d{name}> = f",
            reference,
            np.abs((along[name] * B.W[name]).sum(2) - total),
            size,
            identity=True,
        )
        for name in ("a", "c")
    ]
    inner = (B.W["V"] * along["V"]).sum(3)  # (T, B, m)
    weighed = (weights * B.y)[..., None] * B.on
    exact = B.W["a"] * B.W["c"] * B.eps / B.Nt**2 * (weighed * B.P).sum(2)
    scale = (np.abs(B.W["V"] * along["V"])).sum(3) + np.abs(B.W["a"] * B.W["c"]) * (np.abs(weighed * B.P)).sum(2)
    nearest = worst(np.abs(inner - exact), precision(track) * (1e-300 + scale))
    found.append(
        entry(
            track, "BN-3", "<v_j, df/dv_j> = a_j c_j o_j <v_j, xbar> eps / N_j^3", reference, identity=True, **nearest
        )
    )
    return found


@check(
    "BN-13",
    says="|v|_Sigma <= |v|, |Sigma v| <= |v|_Sigma <= N(v), |N(u) - N(v)| <= |u - v|_Sigma",
    reference="BN Lemma B.1",
)
@QUIET
def sigma_norms(track: Track) -> list[Inequality] | None:
    B = batch_normed(track)
    if B is None:
        return None
    Sigma, V = B.statistics[1], B.W["V"]
    image = V @ Sigma
    inner = np.sqrt(np.maximum((image * V).sum(-1), 0))  # |v_j|_Sigma (T, B, m)
    gone = V - B.first["V"]
    change = np.sqrt(np.maximum(((gone @ Sigma) * gone).sum(-1), 0))
    rough = np.sqrt((V**2).sum((2, 3)))  # a root of a difference near 0
    parts = [
        ("BN-13 norm", "|v|_Sigma <= |v|", inner, np.linalg.norm(V, axis=3)),
        ("BN-13 Sigma", "|Sigma v| <= |v|_Sigma", np.linalg.norm(image, axis=3), inner),
        ("BN-13 N", "|v|_Sigma <= N(v)", inner, B.Nt),
        ("BN-13", "|N(v(t)) - N(v(0))| <= |v(t) - v(0)|_Sigma", np.abs(B.Nt - B.N0), change),
    ]
    return [
        entry(track, id, words, "BN Lemma B.1", applies=B.small, terms=rough, **worst(left, right))
        for id, words, left, right in parts
    ]


# ---------------------------------------------------------------- near the start


@check(
    "BN-14",
    says="how far 1 / N(v_j), the projection of x and the preactivations can be from their start while |V - V_0| < 1 / eps_N",
    reference="BN Lemma B.2",
)
@QUIET
def normalizers_near(track: Track) -> list[Inequality] | None:
    B = batch_normed(track)
    if B is None:
        return None
    gone = np.linalg.norm(B.W["V"] - B.first["V"], axis=3)  # (T, B, m)
    beta_N = (B.rho_N * B.eps_N**2)[..., None]
    parts = [
        ("BN-14", "1 / N'_j <= rho_N / N_j", 1 / B.Nt, B.rho_N[..., None] / B.N0),
        ("BN-14 difference", "|1/N'_j - 1/N_j| <= beta_N |v'_j - v_j|", np.abs(1 / B.Nt - 1 / B.N0), beta_N * gone),
        (
            "BN-14 projection",
            "|(I - Sigma v'v''/N'^2) xbar_i| <= beta_Pi",
            np.sqrt(B.projected2),
            B.beta_Pi[..., None, None],
        ),
        (
            "BN-14 ratio",
            "|<v_j / N_j, xbar_i>| <= eps_V eps_N at the start",
            np.abs(B.P0)[None],
            np.broadcast_to(B.ratio[None, :, None, None], (*track.shape, 1, 1)),
        ),
    ]
    return [
        entry(
            track,
            id,
            words,
            "BN Lemma B.2",
            applies=B.near,
            terms=B.eps_N + B.ratio,
            note="c = |V - V_0| eps_N",
            **worst(left, right),
        )
        for id, words, left, right in parts
    ]


@check(
    "BN-17",
    says="preactivations move by at most K |v'_j - v_j|, K = rho_N eps_N + beta_N eps_V",
    reference="BN Lemma D.1 (E-BN-7)",
)
@QUIET
def preactivations(track: Track) -> list[Inequality] | None:
    B = batch_normed(track)
    if B is None:
        return None
    gone = np.linalg.norm(B.W["V"] - B.first["V"], axis=3)[..., None, :]
    reference = "BN Lemma D.1 (E-BN-7)"
    K = B.K[..., None, None]
    printed = (B.rho_N * B.eps_N + B.rho_N * B.eps_N**2 * B.ratio)[..., None, None]
    ratio = B.ratio[:, None, None]
    start = B.P0 * (B.P0 > 0)
    parts = [
        ("BN-17", "|<v'/N', xbar> - <v/N, xbar>| <= K |v' - v|", np.abs(B.P - B.P0), K * gone, B.near),
        ("BN-17 (2)", "|<v'/N', xbar>| <= K |v' - v| + eps_ratio", np.abs(B.P), K * gone + ratio, B.near),
        (
            "BN-17 (5)",
            "|o' <v'/N', xbar> - o <v/N, xbar>| <= K |v' - v| + eps_ratio",
            np.abs(B.P * B.on - start),
            K * gone + ratio,
            B.near,
        ),
        (
            "BN-17 printed",
            "the first with beta_N eps_ratio in K, for eps_N >= 1",
            np.abs(B.P - B.P0),
            printed * gone,
            B.near & (B.eps_N >= 1),
        ),
    ]
    return [
        entry(
            track,
            id,
            words,
            reference,
            applies=where,
            terms=B.ratio,
            proved="printed" not in id,
            **worst(left, right),
        )
        for id, words, left, right, where in parts
    ]


@check(
    "BN-18",
    says="|<a_0, dp/da>| + |<c - c_0, dp/dc>| + alpha |<V - V_0, dp/dV>| is small near the start",
    reference="BN Lemma D.2",
)
@QUIET
def small_terms(track: Track) -> list[Inequality] | None:
    """The chain of the proof with measured movements. The last sum of (25) keeps its |a_j||c_j|, which the proof drops."""
    B = batch_normed(track)
    if B is None:
        return None
    gone = B.W["V"] - B.first["V"]
    left = (
        np.abs((B.d_a * B.first["a"][:, None, :]).sum(3))
        + np.abs((B.d_c * (B.W["c"] - B.first["c"])[..., None, :]).sum(3))
        + B.alpha[:, None] * np.abs(B.along_V(gone))
    ).max(2)
    size, D, a, c = np.linalg.norm(B.first["a"], axis=1), B.moved("V"), B.moved("a"), B.moved("c")
    wide = B.K * D + B.ratio
    start = np.abs((B.P0 * (B.P0 > 0) * B.first["a"][:, None, :]).sum(2)).max(1)  # max_i |p_i(W_0)|
    one = size * c * wide + size * B.K * D + start
    two = c * (a + size) * wide
    three = B.alpha * B.beta_Pi * B.rho_N * B.eps_N * D * (a * c + a + size * c + size)
    reference = "BN Lemma D.2"
    own = B.inside & (B.beta_V >= D)
    chain = B.R * B.root / 32
    hypotheses = (B.eps_N >= 1) & (B.eps_V <= 2) & (size <= 2)
    N, R = B.eps_N, B.R
    sum_of_proof = 36 * N**3 * (R**4 + 3 * R**3 + 2 * R**2) + 5 * N**2 * (R**2 + 4 * R) + 6 * N**2 + start
    statement = "|<a_0, dp_i/da>| + |<c - c_0, dp_i/dc>| + alpha |<V - V_0, dp_i/dV>| <= "
    return [
        entry(
            track,
            "BN-18",
            statement + "the sum of the proof, measured",
            reference,
            left,
            one + two + three,
            B.near,
            terms=size * B.ratio * math.sqrt(track.net.m),
        ),
        entry(
            track,
            "BN-18 polynomial",
            statement + "36 eps_N^3 (R^4 + 3 R^3 + 2 R^2) + 5 eps_N^2 (R^2 + 4 R) + 6 eps_N^2 + max |p_i(W_0)|",
            reference,
            left,
            sum_of_proof,
            own & hypotheses,
            note="with the 72 eps_N^3 R^2 that the proof drops",
        ),
        entry(
            track,
            "BN-18 printed",
            statement + "R gamma sqrt m / 32",
            reference,
            left,
            chain,
            own,
            proved=False,
            note="" if (hypotheses & (sum_of_proof <= chain)).all() else PRINTED,
            numbers=_numbers(B),
        ),
    ]


@check(
    "BN-19",
    says="the comparator Uvec of the start stays aligned: <Uvec, dp_i/dU> >= gamma sqrt m - what the movements cost",
    reference="BN Lemma D.3, (33)",
)
@QUIET
def alignment(track: Track) -> list[Inequality] | None:
    B = batch_normed(track)
    if B is None:
        return None
    least = B.alignment.min(2)
    reference = "BN Lemma D.3, (33)"
    enough = B.near & (B.loss_of_alignment <= B.root / 4)
    other = np.abs(B.good - (B.R / 8)[:, None] * B.alignment).max(2)
    rough = 1 + np.abs(B.alignment).max(2) + B.ratio * math.sqrt(track.net.m)
    positive = B.gamma > 0
    return [
        entry(
            track,
            "BN-19",
            "gamma sqrt m - cost of |a - a_0|, |c - c_0|, |V - V_0| <= <Uvec, dp_i/dU>",
            reference,
            B.root - B.loss_of_alignment,
            least,
            B.near & positive,
            terms=rough,
            numbers=_numbers(B)
            | {"least_over_gamma_sqrt_m": (least.min(0) / np.where(positive, B.root, np.nan)).tolist()},
        ),
        entry(
            track,
            "BN-19 (1)",
            "(3/4) gamma sqrt m <= <Uvec, dp_i/dU>",
            reference,
            0.75 * B.root,
            least,
            enough & positive,
            terms=rough,
            note="applies where the movements cost at most a quarter",
        ),
        entry(
            track,
            "BN-19 (2)",
            "r gamma sqrt m / 2 <= <Ubar, dp_i/dU> - p_i + alpha <V_0 - V, dp_i/dV>",
            reference,
            B.R / 8 * B.root / 2,
            B.good.min(2),
            enough & positive & (other <= B.R / 8 * B.root / 4),
            terms=rough + np.abs(B.good).max(2) + B.R * rough,
            note="applies where the terms of Lemma D.2 are at most r gamma sqrt m / 4",
        ),
    ]


@check(
    "BN-20",
    says="gradient norms near the start: |dp/dU|^2 = O(eps_N^4 m), |dp/dV|^2 = O(eps_N^4 R^4), and those of the risk",
    reference="BN Lemmas E.1, F.3",
)
@QUIET
def gradient_norms(track: Track) -> list[Inequality] | None:
    B = batch_normed(track)
    if B is None:
        return None
    m, size = track.net.m, np.linalg.norm(B.first["a"], axis=1)
    a, c = B.moved("a"), B.moved("c")
    steep = ((B.eps_V + B.moved("V")) * B.rho_N * B.eps_N) ** 2
    bound_U = ((c + math.sqrt(m)) ** 2 + (a + size) ** 2) * steep
    bound_V = (a + size) ** 2 * (c + 1) ** 2 * (B.rho_N * B.eps_N * B.beta_Pi) ** 2
    U2, V2 = (B.d_a**2 + B.d_c**2).sum(3).max(2), B.norm2_V.max(2)
    mean = B.slope.mean(2)
    risk_U, risk_V = B.gradient
    reference = "BN Lemmas E.1, F.3"
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
    return [
        entry(track, id, words, reference, left, right, where, note=note) for id, words, left, right, where in parts
    ]


# ---------------------------------------------------------------- sums over steps


def _step_size(track: Track) -> float | None:
    """eta of plain GD or SGD, None for other rules."""
    plain = track.rule in ("GD", "SGD") and not track.options.get("weight_decay") and not track.options.get("schedule")
    return float(track.options["lr"]) if plain else None


def _slopes(B: BatchNormed, eta: float) -> np.ndarray | None:
    """sum_{s < t} |l'_s| (T, B): recorded by SGD, from the weights at every step of GD."""
    kept = B.track.get("slopes")
    if kept is not None:
        return kept
    if B.track.rule != "GD" or not B.track.every_step or B.track.W is None:
        return None
    return np.cumsum(steps(B.track.run["step"]) * before(B.slope.mean(2)), axis=0)


@check(
    "BN-21",
    says="sum_{s < t} |l'_s| <= 4 |U_t - U_0| / (eta gamma sqrt m)",
    reference="BN (50), (66)",
)
@QUIET
def perceptron(track: Track) -> list[Inequality] | None:
    """Needs <Uvec, dp_i/dU> >= |Uvec| gamma sqrt m / 4 at every step: measured where weights are kept, else from movements."""
    B, eta = batch_normed(track, weights=False), _step_size(track)
    if B is None or eta is None or track.options.get("sampler"):
        return None
    total = _slopes(B, eta)
    if total is None:
        return None
    size = B.length
    promised = np.where(B.near, B.root - B.loss_of_alignment, -np.inf)
    least = promised if track.W is None else B.alignment.min(2)
    worst_so_far = np.minimum.accumulate(least, axis=0)
    need = size * B.root / 4
    where = (before(worst_so_far) >= need) & (B.gamma > 0) & (total > 0)
    note = "" if track.every_step else "alignment between the records is not known"
    right = 4 * B.moved_U / (eta * B.root)
    found = [
        entry(
            track,
            "BN-21",
            "sum |l'_s| <= 4 |U_t - U_0| / (eta gamma sqrt m)",
            "BN (50), (66)",
            total,
            right,
            where,
            note=note,
            numbers=_numbers(B),
        )
    ]
    if track.every_step and track.W is not None:
        exact = eta * np.minimum.accumulate(before(least), axis=0) * total
        found.append(
            entry(
                track,
                "BN-21 measured",
                "eta min_s <Uvec, dp/dU> sum |l'_s| <= |Uvec| |U_t - U_0|",
                "BN (50), (66)",
                exact,
                size * B.moved_U,
                (B.gamma > 0) & (total > 0),
            )
        )
    return found


@check(
    "BN-12",
    says="the potential |U - Ubar|^2 - |U_0 - Ubar|^2 + alpha |V - V_0|^2 grows by second-order terms only",
    reference="BN Section 2, (44)-(51)",
)
@QUIET
def potential(track: Track) -> list[Inequality] | None:
    """Phi <= 2 eta sum (l(X - p) - l(p)) + eta^2 sum (|dl/dU|^2 + alpha |dl/dV|^2), X - p of Lemma D.3: convexity alone.

    Exact for GD when every step is recorded; for SGD with the largest summand over the points in place of the drawn one.
    """
    B, eta = batch_normed(track), _step_size(track)
    if B is None or eta is None or not track.every_step or track.options.get("sampler"):
        return None
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
    reference = "BN Section 2, (44)-(51)"
    rough = B.moved_U**2 + B.alpha * B.moved("V") ** 2 + 2 * r * B.moved_U
    return [
        entry(
            track,
            "BN-12",
            "Phi(t) <= 2 eta sum (l(X - p) - l(p)) + eta^2 sum (|dl/dU|^2 + alpha |dl/dV|^2)",
            reference,
            Phi,
            total,
            B.small & (B.gamma > 0),
            terms=rough,
            numbers=_numbers(B),
        ),
        entry(
            track,
            "BN-12 printed",
            "Phi(t) <= 2 eta / 5 + eta (2^13 eps_N^4 sqrt m / gamma + 2^18 eps_N^6 R^6 / (gamma sqrt m)) |U_t - U_0|",
            reference,
            Phi,
            printed,
            B.inside & (B.gamma > 0),
            terms=rough,
            proved=False,
            note="" if before(proved).all() else PRINTED,
        ),
    ]


@check(
    "BN-22",
    says="sum_s E|l'(W_s)| <= 4 sum_s |l'_s| + 4 ln(1 / delta) for examples drawn with replacement",
    reference="BN Lemma E.2, Corollary E.3",
)
@QUIET
def martingale(track: Track) -> Inequality | None:
    """The law is the data itself; the expectation is the mean over the points at every step. Holds with probability 1 - delta."""
    kept = track.get("slopes")
    if kept is None or track.rule != "SGD" or not track.every_step or track.p is None or track.loss != "logistic":
        return None
    if track.options.get("order") != "replacement" or track.options.get("sampler"):
        return None
    slope = track.problem.loss.log_slope(torch.as_tensor(track.p)).exp().numpy().mean(2)  # type: ignore[union-attr]
    expected = np.cumsum(steps(track.run["step"]) * before(slope), axis=0)
    return entry(
        track,
        "BN-22",
        "sum_{s < t} E|l'(W_s)| <= 4 sum_{s < t} |l'_s| + 4 ln(1 / delta)",
        "BN Lemma E.2, Corollary E.3",
        expected,
        4 * kept + 4 * math.log(1 / CHANCE),
        kept > 0,
        note=f"with probability 1 - {CHANCE:g} at each record",
    )


@check(
    "BN-25",
    says="the normalised weights stay within 1 / (2 eps_N) of their start while U may move by R = O(m^(1/6))",
    reference="BN Section 2",
)
@QUIET
def trapped(track: Track) -> Inequality | None:
    """Inside the ball of the exit test this is its definition (here from the weights, where they are kept); what a run does
    is in the numbers."""
    B = batch_normed(track, weights=False)
    if B is None:
        return None
    out = ~B.inside
    exits = [float(track.t[np.flatnonzero(one)[0]]) if one.any() else math.inf for one in out.T]
    numbers = _numbers(B) | {
        "largest_moved_U": B.moved_U.max(0).tolist(),
        "largest_moved_V": B.moved("V").max(0).tolist(),
        "beta_V": B.beta_V.tolist(),
        "exit": exits,
    }
    return entry(
        track,
        "BN-25",
        "|V_t - V_0| <= 1 / (2 eps_N) until sqrt(|U - U_0|^2 + alpha |V - V_0|^2) reaches R",
        "BN Section 2",
        B.moved("V") if track.W is None else np.sqrt(((B.W["V"] - B.first["V"]) ** 2).sum((2, 3))),
        B.beta_V,
        B.inside,
        numbers=numbers,
    )
