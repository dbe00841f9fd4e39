"""Neural collapse: kind collapse, the largest gamma_nc / r over structures of r cones."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from .exact import column, matmul, squares
from .reading import Problem, Rules, integer, listed, need, number, rows_of, vector


def collapse(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """Lower: for each point i and unit direction beta_k, x_i is in cone k (sign_k = y_i, beta_k . x_i >= gamma_nc,
    and |x_i|^2 - (beta_k . x_i)^2 <= gamma_nc^2 eps / 2, strict: gamma_nc^2 eps^2 / 4) or in its polar (beta_k . x_i
    <= -eps), and in some cone; 0 < eps < gamma_nc and lower r <= gamma_nc.

    Upper: the cone of point i has q_i gamma_nc + (sum of the other q) eps <= |z|, z = q_i x_i - sum_j q_j x_j, so
    that z = 0 excludes any such structure, and else gamma_nc <= |z| / q_i. Two points of one cone have equal labels
    and x_j . x_k > 0 (if eps < 2, and so if some |x| <= 2), so that a clique of m points in different cones has r >=
    m, and |z| <= upper q_i m is needed.
    """
    extra, n = payload["extra"], len(problem.y)
    need(not payload["bias"], "format: kind collapse has no bias")
    need(type(extra.get("strict")) is bool, "format: extra.strict is not true or false")

    def lower(bound: Fraction) -> str:
        beta, _ = rows_of(extra.get("beta"), problem.D, "lower bound: extra.beta")
        r = len(beta)
        need(r > 0, "lower bound: no cone is stored")
        signs = [
            integer(v, "lower bound: extra.signs", -1, 1) for v in listed(extra.get("signs"), "lower bound: signs", r)
        ]
        gamma, eps = (number(extra.get(key), f"lower bound: extra.{key}") for key in ("gamma_nc", "eps"))
        need(0 < eps < gamma, "lower bound: not 0 < eps < gamma_nc")
        need(bound * r <= gamma, "lower bound: gamma_nc / r is smaller")
        across2 = gamma**2 * (eps**2 / 4 if extra["strict"] else eps / 2)
        unit = 4**problem.k
        sizes, lengths = squares(problem.grid), squares(beta)
        for k, size in enumerate(lengths):
            need(size > 0, f"lower bound: beta {k} is zero")
        for i in range(n):
            row = matmul(problem.grid[[i]], beta.T)[0]
            inside = 0
            for k, v in enumerate(row):
                # beta is divided by its length: (beta . x)^2 = v^2 / length in units of 4^-k
                own = (
                    signs[k] == problem.y[i]
                    and v > 0
                    and v * v >= gamma**2 * unit * lengths[k]
                    and sizes[i] * lengths[k] - v * v <= across2 * unit * lengths[k]
                )
                polar = v < 0 and v * v >= eps**2 * unit * lengths[k]
                need(own or polar, f"lower bound: point {i} is neither in cone {k} nor in its polar")
                inside += own
            need(inside > 0, f"lower bound: point {i} is in no cone")
        return f"is gamma_nc / r of {r} cones that hold all {n} points"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        need(proof.get("type") == "cone", "upper bound: this kind needs proof.type = cone")
        i = integer(proof.get("point"), "upper bound: point", 0, n - 1)
        q, _ = vector(proof.get("weights"), n, "upper bound: weights")
        need(all(v >= 0 for v in q) and sum(q) > 0, "upper bound: the weights are not nonnegative")
        c = [v if j == i else -v for j, v in enumerate(q)]
        need(
            all(j == i or v == 0 or problem.y[j] != problem.y[i] for j, v in enumerate(q)),
            "upper bound: a point of the same label has a weight",
        )
        size = squares(matmul(column(c).T, problem.grid))[0]
        if size == 0:
            return "holds, since there are no such cones: the weights prove eps <= 0"
        clique = [
            integer(v, "upper bound: clique", 0, n - 1) for v in listed(proof.get("clique"), "upper bound: clique")
        ]
        need(len(set(clique)) == len(clique) > 0, "upper bound: the clique is empty or names a point twice")
        short = min(squares(problem.grid)) <= 4 * 4**problem.k  # then eps < gamma_nc <= 2
        for a, j in enumerate(clique):
            inner = matmul(problem.grid[[j]], problem.grid[clique[:a]].T)[0]
            for k, v in zip(clique[:a], inner):
                apart = problem.y[j] != problem.y[k] or (short and v <= 0)
                need(apart, f"upper bound: points {j} and {k} could be in one cone")
        need(size <= (bound * q[i] * len(clique)) ** 2 * 4**problem.k, "upper bound: the distance is larger")
        return (
            f"is proved by the distance of point {i} from the other class and {len(clique)} points in different cones"
        )

    return Rules(lower, upper)
