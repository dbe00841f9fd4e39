"""The least objective of training with weight decay, over two-layer networks of any width or a kernel's space: kinds f1-optimum
and f2-optimum; with several outputs f1-multiclass-optimum and f1-multitarget-optimum.

    objective = sum_i w_i loss(y_i, f(x_i) + b) / sum_i w_i + decay N(f) [+ decay b^2 / 2],
    N(f) = sum_j |mass_j| |theta_j| for networks, |f|^2 / 2 in the space of a kernel.

Above: the objective of the function that is stored. Below: for any c weak duality at theta c (docs/certificates.md). Networks:
U >= max over |v| <= 1 of |sum_i c_i relu(v . x_i)| and 0 <= theta <= min(scale, decay sum w / U). Kernel: theta = scale, and
(theta c)' K (theta c) / (2 decay sum w) is taken away.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from .exact import PRECISION, ROOT_BITS, column, sqrt_up, squares
from .kernels import Kernel, kernel
from .logs import exp_above, log_ends, rest_below, softplus_above
from .multiclass import VECTOR_PROOFS, dual_vectors
from .neuron import both_sides
from .reading import Problem, classes, need, network_values, number, rows_of, show, vector

LOSSES = ("logistic", "squared", "hinge", "squared-hinge", "exp")
BOUNDED = ("logistic", "hinge")  # whose slopes are at most 1
OUTPUTS = {"f1-multiclass-optimum": "cross-entropy", "f1-multitarget-optimum": "squared"}  # kinds of several outputs
THETA_BITS = 96
VALUE_BITS = 200  # after the point, of the values of a function in the space of a kernel


def optimum(
    problem: Problem,
    payload: Mapping[str, Any],
    lower: Fraction,
    upper: Fraction,
    done: list[tuple[str, str]],
    stage: list[str],
) -> bool:
    """Both bounds; False, as they are about nothing but the data."""
    if payload["kind"] in OUTPUTS:
        return _several(problem, payload, lower, upper, done, stage)
    stage[0], extra, n = "format", payload["extra"], len(problem.y)
    kernels = payload["kind"] == "f2-optimum"  # that of a leaky ReLU is known too; networks have relu neurons
    need(problem.degree == 1 if kernels else problem.is_relu, "format: no rule to check this activation")
    loss, mode, decay, w, kw, scale = _training(extra, n, LOSSES)
    total = Fraction(sum(w), 1 << kw)
    K = kernel(problem, payload) if kernels else None

    stage[0] = "dual"
    c, kc = vector(payload.get("dual"), n, "dual")
    top, bottom = scale.numerator << kw, scale.denominator << kc
    for i in range(n):
        slope = c[i] if loss == "squared" else c[i] * problem.y[i]
        need(w[i] > 0 or slope == 0, f"dual: entry {i} is not zero, but its point has no weight")
        need(loss == "squared" or slope >= 0, f"dual: entry {i} does not have the sign of its label")
        need(
            loss not in BOUNDED or slope * top <= w[i] * bottom,
            f"dual: entry {i} is larger than the weight of its point",
        )
    need(mode != "free" or sum(c) == 0, "dual: the entries do not sum to zero, which a free output bias needs")
    done.append(("dual", f"{sum(v != 0 for v in c)} of {n} weights are not zero"))

    stage[0] = "lower bound"
    if lower <= 0:
        done.append(("lower bound", f"{show(lower)}, no objective is smaller"))
    else:
        proof = _proof(payload)
        theta, taken = scale, Fraction(0)
        if K is None:
            most = _maximum(proof)
            both_sides(problem, c, 1 << kc, most, proof, "lower bound")
            theta = _feasible(scale, decay * total / most)
        else:
            need(proof["type"] == "dual", "lower bound: this kind needs proof.type = dual")
            taken = theta**2 * _norm2(K, c, kc) / (2 * decay * total**2)
        least = _dual_below(problem, loss, c, kc, w, kw, theta) / total - taken
        if mode == "decayed":
            least -= (theta * Fraction(sum(c), 1 << kc) / total) ** 2 / (2 * decay)
        need(lower <= least, "lower bound: the weights prove less")
        done.append(("lower bound", f"{show(lower)} is proved by the dual weights and {proof['type']}"))

    stage[0] = "upper bound"
    offset = number(extra.get("offset", 0), "upper bound: extra.offset")
    need(mode is not None or offset == 0, "upper bound: extra.offset is not 0, but there is no output bias")
    ridge = decay * offset**2 / 2 if mode == "decayed" else Fraction(0)
    if K is not None:
        alpha, ka = vector(extra.get("alpha"), n, "upper bound: extra.alpha")
        worst = _worst(problem, loss, K, alpha, ka, offset)
        most = _loss_above(problem, loss, worst, VALUE_BITS, offset, w) / (total * (1 << kw))
        most += decay * _norm2(K, alpha, ka) / 2 + ridge
        need(most <= upper, "upper bound: the objective of the function is larger")
        done.append(("upper bound", f"{show(upper)} is reached by sum_j alpha_j k(x_j, .)"))
        return False
    primal = payload.get("primal")
    need(isinstance(primal, Mapping), "upper bound: no primal is stored")
    assert isinstance(primal, Mapping)
    theta_, kt = rows_of(primal.get("theta"), problem.D, "upper bound: primal.theta")
    mass, km = vector(primal.get("mass"), len(theta_), "upper bound: primal.mass")
    norm = Fraction(sum(abs(m) * sqrt_up(s) for m, s in zip(mass, squares(theta_))), 1 << (ROOT_BITS + kt + km))
    values = network_values(problem, theta_, column(mass))[:, 0].tolist()
    most = _loss_above(problem, loss, values, problem.k + kt + km, offset, w) / (total * (1 << kw))
    most += decay * norm + ridge
    need(most <= upper, "upper bound: the objective of the network is larger")
    done.append(("upper bound", f"{show(upper)} is reached by {len(mass)} neurons"))
    return False


def _training(
    extra: Mapping[str, Any], n: int, losses: tuple[str, ...]
) -> tuple[str, str | None, Fraction, list[int], int, Fraction]:
    """Loss, output bias, decay, weights w / 2^kw of the points, and the scale of the dual weights."""
    loss, mode = extra.get("loss"), extra.get("output_bias")
    need(isinstance(loss, str) and loss in losses, "format: extra.loss is no loss that is known")
    need(mode is None or mode in ("free", "decayed"), "format: extra.output_bias is not free, decayed or null")
    decay = number(extra.get("weight_decay"), "format: extra.weight_decay")
    need(decay > 0, "format: extra.weight_decay is not positive")
    w, kw = [1] * n, 0
    if extra.get("weights") is not None:
        w, kw = vector(extra["weights"], n, "format: extra.weights")
        need(all(v >= 0 for v in w), "format: extra.weights: a weight is negative")
    need(any(w), "format: extra.weights: all weights are zero")
    scale = number(extra.get("scale", 1), "format: extra.scale")
    need(scale > 0, "format: extra.scale is not positive")
    assert isinstance(loss, str)
    return loss, mode, decay, w, kw, scale


def _proof(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    proof = payload.get("proof")
    stored = isinstance(proof, Mapping) and proof.get("type") not in (None, "omitted")
    need(stored, "lower bound: the proof is not stored in this certificate")
    assert isinstance(proof, Mapping)
    return proof


def _maximum(proof: Mapping[str, Any]) -> Fraction:
    most = number(proof.get("maximum"), "lower bound: proof.maximum")
    need(most > 0, "lower bound: proof.maximum is not positive")
    return most


def _feasible(scale: Fraction, most: Fraction) -> Fraction:
    """The smaller of both, rounded down to THETA_BITS; over a power of two."""
    theta = min(scale, most)
    bits = THETA_BITS + max(0, theta.denominator.bit_length() - theta.numerator.bit_length())
    return Fraction((theta.numerator << bits) // theta.denominator, 1 << bits)


def _several(
    problem: Problem,
    payload: Mapping[str, Any],
    lower: Fraction,
    upper: Fraction,
    done: list[tuple[str, str]],
    stage: list[str],
) -> bool:
    """Networks with K outputs: the same two bounds, with vectors g_i for the numbers c_i."""
    stage[0], extra, n = "format", payload["extra"], len(problem.y)
    need(problem.is_relu, "format: no rule to check this activation")
    loss, mode, decay, w, kw, scale = _training(extra, n, (OUTPUTS[payload["kind"]],))
    of_classes = loss == "cross-entropy"
    total, K = Fraction(sum(w), 1 << kw), classes(problem) if of_classes else len(problem.y[0])

    stage[0] = "dual"
    rows, kq = rows_of(payload.get("dual"), K, "dual", n)
    q = rows.tolist()
    for i, row in enumerate(q):
        if not of_classes:
            need(w[i] > 0 or not any(row), f"dual: row {i} is not zero, but its point has no weight")
            continue
        need(all(v >= 0 for v in row), f"dual: row {i} has a negative entry")
        fits = sum(row) * scale.numerator << kw <= w[i] * scale.denominator << kq
        need(fits, f"dual: row {i} is larger than the weight of its point")
    g = dual_vectors(problem, rows.ravel().tolist()) if of_classes else rows
    sums = [sum(column) for column in g.T.tolist()]
    need(mode != "free" or not any(sums), "dual: the vectors do not sum to zero, which a free output bias needs")
    done.append(("dual", f"{sum(v != 0 for row in q for v in row)} of {n * K} weights are not zero"))

    stage[0] = "lower bound"
    if lower <= 0:
        done.append(("lower bound", f"{show(lower)}, no objective is smaller"))
    else:
        proof = _proof(payload)
        kind = proof["type"]
        need(isinstance(kind, str) and kind in VECTOR_PROOFS, "lower bound: no such proof type for several outputs")
        most = _maximum(proof)
        VECTOR_PROOFS[kind](problem, g, 1 << kq, most, proof)
        theta = _feasible(scale, decay * total / most)
        least = (_entropy_below if of_classes else _squares_below)(problem, q, kq, w, kw, theta) / total
        if mode == "decayed":
            least -= (theta / total / (1 << kq)) ** 2 * sum(v * v for v in sums) / (2 * decay)
        need(lower <= least, "lower bound: the weights prove less")
        done.append(("lower bound", f"{show(lower)} is proved by the dual weights and {kind}"))

    stage[0] = "upper bound"
    b, kb = vector(extra.get("offset", [0] * K), K, "upper bound: extra.offset")
    need(mode is not None or not any(b), "upper bound: extra.offset is not 0, but there is no output bias")
    theta_, kt = rows_of(extra.get("theta"), problem.D, "upper bound: extra.theta")
    outer, ko = rows_of(extra.get("outer"), K, "upper bound: extra.outer", len(theta_))
    norm = sum(sqrt_up(r * s) for r, s in zip(squares(theta_), squares(outer)))
    bits = max(problem.k + kt + ko, kb, problem.ky)
    values = network_values(problem, theta_, outer) * (1 << (bits - problem.k - kt - ko))
    losses, over = 0, PRECISION if of_classes else 2 * bits + 1
    for weight, y, row in zip(w, problem.y, values.tolist()):
        if not weight:
            continue
        t = [v + (offset << (bits - kb)) for v, offset in zip(row, b)]
        if of_classes:
            losses += weight * _cross_entropy_above([v - t[y] for v in t], bits)
        else:
            losses += weight * sum(((target << (bits - problem.ky)) - v) ** 2 for target, v in zip(y, t))
    objective = Fraction(losses, 1 << (over + kw)) / total + decay * Fraction(norm, 1 << (ROOT_BITS + kt + ko))
    if mode == "decayed":
        objective += decay * Fraction(sum(v * v for v in b), 1 << 2 * kb) / 2
    need(objective <= upper, "upper bound: the objective of the network is larger")
    done.append(("upper bound", f"{show(upper)} is reached by {len(theta_)} neurons"))
    return False


def _squares_below(problem: Problem, q: list[list[int]], kq: int, w: list[int], kw: int, theta: Fraction) -> Fraction:
    """At most sum_i u_i . y_i - |u_i|^2 / (2 w_i), u = theta q; |u|^2 / w is rounded up."""
    scale = theta.denominator.bit_length() - 1  # theta is over a power of two
    bits = max(kq + scale, kw)
    up, rise = theta.numerator << (bits - kq - scale), bits - kw
    sums, curved, more = 0, 0, bits + PRECISION  # bits after the point that are enough for the square of theta
    for row, wi, y in zip(q, w, problem.y):
        if any(row):
            sums += up * sum(v * target for v, target in zip(row, y))
            curved += -((-up * up * sum(v * v for v in row) << more) // (wi << rise))
    return Fraction(sums, 1 << (bits + problem.ky)) - Fraction(curved, 1 << (bits + more + 1))


def _entropy_below(problem: Problem, q: list[list[int]], kq: int, w: list[int], kw: int, theta: Fraction) -> Fraction:
    """At most sum_i sum_k z_k log(w_i / z_k), z_j = theta q_ij and z_{y_i} = w_i - sum_j z_j; logarithms are rounded down."""
    scale = theta.denominator.bit_length() - 1  # theta is over a power of two
    bits = max(kq + scale, kw)
    up, rise = theta.numerator << (bits - kq - scale), bits - kw
    total = 0
    for row, wi, label in zip(q, w, problem.y):
        weight = wi << rise
        z = [v * up for v in row]
        rest, z[label] = sum(z), 0
        total += sum(v * log_ends(weight, v)[0] for v in z if v) + rest_below(weight, rest)
    return Fraction(total, 1 << (bits + PRECISION))


def _cross_entropy_above(t: list[int], bits: int) -> int:
    """At least 2^P log sum_k exp(t_k / 2^bits); one t_k is 0."""
    x = [-((-v << PRECISION) >> bits) for v in t]
    top = max(x)
    return top + max(0, log_ends(sum(exp_above(v - top) for v in x), 1 << PRECISION)[1])


def _norm2(K: Kernel, a: list[int], k: int) -> Fraction:
    """At least |sum_j a_j / 2^k k(x_j, .)|^2."""
    return Fraction(max(K.quadratic(a, K.product(a)), 0)) / K.least / (1 << 2 * k)


def _worst(problem: Problem, loss: str, K: Kernel, a: list[int], k: int, offset: Fraction) -> list[int]:
    """The values of sum_j a_j / 2^k k(x_j, .) at the ends of their enclosures where the loss is larger, over 2^VALUE_BITS."""
    out = []
    for y, low, high in zip(problem.y, *K.product(a)):
        down, up = (
            Fraction(low) / (K.most if low > 0 else K.least),
            Fraction(high) / (K.least if high > 0 else K.most),
        )
        least, most = int(down * (1 << VALUE_BITS) // (1 << k)), -int(-up * (1 << VALUE_BITS) // (1 << k))
        if loss == "squared":  # convex: larger at one of the ends
            centre = 2 * (Fraction(y, 1 << problem.ky) - offset) * (1 << VALUE_BITS)
            out.append(least if abs(2 * least - centre) >= abs(2 * most - centre) else most)
        else:
            out.append(least if y > 0 else most)
    return out


def _loss_above(problem: Problem, loss: str, values: list[int], k: int, offset: Fraction, w: list[int]) -> Fraction:
    """At least sum_i w_i loss(y_i, values_i / 2^k + offset), w as integers.

    All but the squared loss fall with the margin, so a margin may be rounded down; exp and log are rounded up.
    """
    bits = max(k, offset.denominator.bit_length() - 1, problem.ky)
    shift = int(offset * (1 << bits))
    total, P = 0, PRECISION
    rounded = loss in ("logistic", "exp")
    for weight, y, value in zip(w, problem.y, values):
        if not weight:
            continue  # its loss may be beyond every double
        t = (value << (bits - k)) + shift
        if loss == "squared":
            total += weight * ((y << (bits - problem.ky)) - t) ** 2
            continue
        margin = y * t  # labels: ky = 0
        if rounded:
            x = -((margin << P) >> bits)
            total += weight * (softplus_above(x) if loss == "logistic" else exp_above(x))
        else:
            short = max(0, (1 << bits) - margin)
            total += weight * (short if loss == "hinge" else short * short)
    if rounded:
        return Fraction(total, 1 << P)
    return Fraction(total, 1 << bits) if loss == "hinge" else Fraction(total, 1 << (2 * bits + 1))


def _dual_below(problem: Problem, loss: str, c: list[int], kc: int, w: list[int], kw: int, theta: Fraction) -> Fraction:
    """At most sum_i inf_t [ w_i loss(y_i, t) + theta c_i t ]. With u = theta c_i y_i:

    logistic u log(w / u) + (w - u) log(w / (w - u));  exp u + u log(w / u);  hinge u;  squared-hinge u - u^2 / (2 w);
    squared (with u = theta c_i) u y - u^2 / (2 w). Logarithms are rounded down, u^2 / w up.
    """
    scale = theta.denominator.bit_length() - 1  # theta is over a power of two
    bits = max(kc + scale, kw)
    up, rise = theta.numerator << (bits - kc - scale), bits - kw
    # In units of 2^-bits, times 2^P where there are logarithms; u^2 / w in units of 2^-(bits + more), rounded up: of tiny weights
    # the squares have far more bits after the point.
    sums, curved, more = 0, 0, bits + PRECISION
    for ci, wi, y in zip(c, w, problem.y):
        if not ci:
            continue
        weight = wi << rise
        u = ci * up if loss == "squared" else ci * up * y
        if loss == "logistic":
            sums += u * log_ends(weight, u)[0] + rest_below(weight, u)
        elif loss == "exp":
            sums += (u << PRECISION) + u * log_ends(weight, u)[0]
        else:
            sums += u * y if loss == "squared" else u
            if loss != "hinge":
                curved += -((-u * u << more) // weight)
    places = bits + (PRECISION if loss in ("logistic", "exp") else problem.ky if loss == "squared" else 0)
    return Fraction(sums, 1 << places) - Fraction(curved, 1 << (bits + more + 1))
