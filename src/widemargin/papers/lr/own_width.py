"""Theorem 2.1 at its own width: what it asks for, its limit of large width (step times width fixed), and a network beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import integrate, stats
from torch import Tensor

from widemargin import data, flows
from widemargin.theory import lazy

from .exponents import LEVELS
from .streams import held_out, looked_at, note

DELTA = 0.01  # Theorem 2.1's delta
START = 4096  # neurons that draw the start of its limit
PIECE = 2**21  # neurons worked on at once


def outer_margin(d: int) -> float:
    """The margin of theta = (sgn(v_1 v_2), 0) 1[|w| < 2] on 2-sparse parity, the part of it that counts at the start (E-LR-4).

    Without the truncation it is E sgn(g_1 g_2) |s| / (2 sqrt d), s a normal variable with correlation 1/sqrt d to both g_1 and
    g_2, and by Price's theorem E sgn(g_1 g_2) |s| = 8 / (pi sqrt(2 pi)) times the integral of arcsin(r / sqrt(1 - r^2)) over
    [0, 1/sqrt d]. Length and direction of v are independent, so the truncation is a factor.
    """
    if d < 2:
        raise ValueError("2-sparse parity has at least two coordinates")
    curve = integrate.quad(lambda r: math.asin(min(1.0, r / math.sqrt(1 - r * r))), 0, 1 / math.sqrt(d))[0]
    root = math.sqrt(d)

    def kept(r: float) -> float:  # |v| = r and |a| < sqrt(4 - r^2)
        return r * root * float(stats.chi.pdf(r * root, d)) * math.erf(math.sqrt((4 - r * r) / 2))

    inside = integrate.quad(kept, 0, 2)[0] / (float(stats.chi.mean(d)) / root)
    return 8 / (math.pi * math.sqrt(2 * math.pi)) * curve / (2 * root) * inside


def theorem_2_1(d: int, error: float = min(LEVELS), delta: float = DELTA) -> dict[str, float]:
    """What Theorem 2.1 asks for on 2-sparse parity: margin, steps t, width m, smallest and largest step size."""
    gamma = outer_margin(d)
    t = lazy.steps_for_sgd(error, gamma, delta)
    numbers = lazy.sgd_test_error(gamma, t, delta).numbers
    low, high = numbers["step_sizes"]
    return {"gamma": gamma, "t": t, "m": numbers["width"], "smallest": low, "largest": high}


def feature_kernel(u: np.ndarray, d: int) -> np.ndarray:
    """E relu(v.x) relu(v.z) for |x| = |z| = 1, x.z = u and v ~ N(0, I/d)."""
    u = np.clip(u, -1, 1)
    return (np.sqrt(1 - u * u) + u * (math.pi - np.arccos(u))) / (2 * math.pi * d)


def limit_of_sgd(
    X: Tensor,
    y: Tensor,
    start: Tensor,
    seen: Tensor,
    seen_start: Tensor,
    rate: float,
    look: Callable[[int, Tensor], bool],
) -> None:
    """SGD on both layers from LR's start as m grows with eta m = `rate` fixed: f <- f + rate |l'(p)| y K(x, .) for each example.

    K = E relu relu is what the outer weights add; the inner ones add eta E (sqrt(m) a)^2 relu' relu' x.z, m/d times smaller.
    X (B, N, d), y (B, N) are the examples in order, `start` (B, N) the outputs on them at the start, `seen` (B or 1, T, d) points
    at which outputs are wanted, seen_start (B, T). look(step, outputs (B, T)) is called after every step; True ends the run.
    """
    B, N, d = X.shape
    table = torch.tensor(feature_kernel(1 - 2 * np.arange(d + 1) / d, d)).to(X)

    def kernel(x: Tensor, Z: Tensor) -> Tensor:  # x (B, d), Z (B or 1, T, d) on the cube: K has d + 1 values
        apart = (d - d * torch.einsum("bd,btd->bt", x, Z.expand(B, -1, -1))) / 2
        return table[apart.round().long()]

    pull = torch.zeros_like(y)  # (B, N) coefficients of K(x_s, .)
    f = seen_start.clone()
    for s in range(N):
        p = y[:, s] * (start[:, s] + (pull[:, :s] * kernel(X[:, s], X[:, :s])).sum(1))
        pull[:, s] = rate * y[:, s] * torch.sigmoid(-p)
        f = f + pull[:, s, None] * kernel(X[:, s], seen)
        if look(s + 1, f):
            return


def examples(d: int, count: int, trials: Sequence[int], seed: int, device: str) -> tuple[Tensor, Tensor]:
    """The first `count` examples (B, count, d), (B, count) of these trials, as SGD sees them."""
    which = torch.tensor(list(trials), device=device)
    X, y = flows.ParityStream(d, seed=seed + 1)(
        which.repeat_interleave(count), torch.arange(count, device=device).repeat(len(which)), 1
    )
    return X.view(-1, count, d), y.view(-1, count)


def limit_hitting_times(d: int, rate: float, steps: int, trials: Sequence[int], seed: int, device: str) -> np.ndarray:
    """`hitting_times` of the limit; the start is drawn with START neurons."""
    X, y = examples(d, steps, trials, seed, device)
    net = flows.TwoLayer(d, START)
    drawn = {name: torch.tensor(value).to(X) for name, value in net.init(list(trials), seed).items()}
    test = held_out(d)
    seen, labels = torch.tensor(test.X[None]).to(X), torch.tensor(test.y[None]).to(X)
    ones = [{name: value[b : b + 1] for name, value in drawn.items()} for b in range(len(X))]
    start = torch.cat([net.forward(start, X[b : b + 1]) for b, start in enumerate(ones)])
    seen_start = torch.cat([net.forward(start, seen) for start in ones])
    first = np.full((len(X), len(LEVELS)), math.inf)
    every = looked_at(d)

    def look(step: int, f: Tensor) -> bool:
        if step % every and step != steps:
            return False
        note(first, (labels * f <= 0).to(f).mean(1).cpu().numpy(), step, LEVELS)
        return bool(np.isfinite(first).all())

    limit_of_sgd(X, y, start, seen, seen_start, rate, look)
    return first


def at_width(d: int, m: int, eta: float, steps: int, seed: int, device: str) -> tuple[np.ndarray, np.ndarray]:
    """SGD on one network of m neurons, outputs on the cube (steps, 2^d), and what the limit makes of the same slopes.

    The limit with slopes of its own would leave the network sooner than their functions differ: at p near 0 a small difference
    becomes one of `eta m` / 4 times it. Neurons lie in pieces, so that widths of 10^8 and more fit: (d + 1) 8 bytes a neuron.
    """
    X, y = (part[0] for part in examples(d, steps, [0], seed, device))
    cube = torch.tensor(data.parity(d, marginal="full").X).to(X)  # (2^d, d)
    rng = torch.Generator(device=device).manual_seed(seed)
    sizes = [PIECE] * (m // PIECE) + ([m % PIECE] if m % PIECE else [])
    pieces = [
        (
            torch.randn(size, generator=rng, dtype=X.dtype, device=device) / math.sqrt(m),
            torch.randn(d, size, generator=rng, dtype=X.dtype, device=device) / math.sqrt(d),
        )
        for size in sizes
    ]

    def outputs() -> Tensor:  # (2^d,)
        return sum((torch.relu(cube @ V) @ a for a, V in pieces), torch.zeros_like(cube[:, 0]))

    products = X @ cube.T  # (steps, 2^d)
    which = products.argmax(1)  # the corner that is the example
    kernel = torch.tensor(feature_kernel(products.cpu().numpy(), d)).to(X)
    f = limit = outputs()
    reached, limits = [], []
    for x, label, here, K in zip(X, y, which, kernel):
        step = eta * label * torch.sigmoid(-label * f[here])
        for a, V in pieces:
            h = x @ V
            move = step * a * (h > 0)  # with a before the step
            a += step * torch.relu(h)
            for j in range(d):
                V[j] += move * x[j]
        f, limit = outputs(), limit + m * step * K
        reached.append(f.cpu().numpy())
        limits.append(limit.cpu().numpy())
    return np.stack(reached), np.stack(limits)
