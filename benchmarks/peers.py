"""One run of one method of benchmarks/margins.py, in a process and often in an environment of its own.

    python benchmarks/peers.py METHOD SETTING DATA.npz OUT.npz LIMIT

DATA holds X (n, d) and y (n,), and for widemargin the same points as the library loads them. SETTING is JSON. The
clock of a method starts when its problem is ready: imports, a warm-up on a small problem, the sampling of neurons and
patterns and the building of constraint objects are outside. A run past LIMIT seconds is ended by the alarm signal. OUT
holds networks f(x) = sum_j a_j relu(W_j . x), stacked: `which` (M,) says which network a neuron belongs to, `seconds`
(K,) when each network was there. No margin is computed here: margins.py judges all networks with the same function.

METHODS names the packages each method needs; this file must run with numpy alone, up to the imports inside a method.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

Run = dict[str, Any]  # networks [(W, a), ...], seconds [...], and extra arrays to save


# Wall seconds, or processor seconds of all threads: the better clock for one thread on a machine with other work.
WAIT = 3.0  # with the clock of the processor, widemargin's time limit, in wall seconds, is this times the budget
CPU = os.environ.get("WIDEMARGIN_BENCH_CLOCK") == "cpu"


def alarm(seconds: float) -> None:
    """End the process after `seconds`; 0 takes the alarm back."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF if CPU else signal.ITIMER_REAL, seconds)


def clock(limit: float) -> Callable[[], float]:
    """Start the clock: a function that tells the seconds since now. The process ends `limit` seconds from now."""
    alarm(limit)
    now = time.process_time if CPU else time.perf_counter
    start = now()
    return lambda: now() - start


def sampled_patterns(X: np.ndarray, count: int) -> np.ndarray:
    """The distinct activation patterns (n, K) of `count` Gaussian neurons, those without any active point left out."""
    gates = np.random.default_rng(0).standard_normal((X.shape[1], count))
    P = np.unique(X @ gates >= 0, axis=1)  # (n, K)
    return P[:, P.any(axis=0)]


def toy() -> tuple[np.ndarray, np.ndarray]:
    """A small separable problem to warm up with: it loads what a first call loads."""
    X = np.random.default_rng(0).standard_normal((8, 3))
    return X, np.where(X[:, 0] * X[:, 1] > 0, 1.0, -1.0)


def widemargin(X: np.ndarray, y: np.ndarray, limit: float, tol: float = 1e-6) -> Run:
    """The library itself: both bounds after every round, the network and the exact check of the certificate."""
    from widemargin import Dataset
    from widemargin.margins import f1

    f1(Dataset(*toy()), time_limit=5.0)
    trace: list[tuple[float, float, float]] = []
    data = Dataset(X, y)
    tell = clock(4 * limit + 30)
    certificate = f1(
        data,
        tol=tol,
        time_limit=limit * (WAIT if CPU else 1.0),
        progress=lambda s, low, up, _: trace.append((tell(), low, up)),
    )
    trace.append((tell(), certificate.lower, certificate.upper if certificate.proved else np.inf))
    alarm(0)
    seconds, lower, upper = np.array(trace).T
    verdict = certificate.verify(data)
    return {
        "networks": [] if certificate.primal is None else [certificate.primal.to_network()],
        "seconds": [trace[-1][0]],
        "extra": {
            "trace_seconds": seconds,
            "lower": np.maximum.accumulate(lower),
            "upper": np.minimum.accumulate(upper),
            "status": certificate.status,
            "verified": bool(verdict.ok and certificate.proved),
        },
    }


def pyscnn(X: np.ndarray, y: np.ndarray, limit: float, gates: int, lam: float, solver: str, tol: float = 1e-6) -> Run:
    """Squared loss plus lam * group norm over sampled patterns; its default norm (unitize_data) is another one."""
    from scnn.activations import sample_gate_vectors
    from scnn.metrics import Metrics
    from scnn.models import ConvexReLU
    from scnn.optimize import optimize_model
    from scnn.regularizers import NeuronGL1
    from scnn.solvers import AL, CVXPYSolver

    def solve(X: np.ndarray, y: np.ndarray, model: Any) -> tuple[np.ndarray, np.ndarray]:
        method = (
            AL(model, tol=tol, constraint_tol=tol)
            if solver == "al"
            else CVXPYSolver(model, solver, {"max_iters": 500} if solver == "ecos" else {})
        )
        network, _ = optimize_model(
            model, method, Metrics(), X, y, regularizer=NeuronGL1(lam), unitize_data=False, dtype="float64"
        )
        W, a = (np.asarray(p, dtype=np.float64) for p in network.parameters)
        return W, a.ravel()

    small, labels = toy()
    solve(small, labels, ConvexReLU(sample_gate_vectors(0, small.shape[1], 5)))
    model = ConvexReLU(sample_gate_vectors(0, X.shape[1], gates))
    tell = clock(limit)
    network = solve(X, y, model)
    return {"networks": [network], "seconds": [tell()]}


def adelie(X: np.ndarray, y: np.ndarray, limit: float, gates: int, ratio: float, path: int) -> Run:
    """Logistic loss plus group norm over sampled patterns, `path` values of lam down to `ratio` of the largest."""
    import adelie as ad

    def prepare(X: np.ndarray, y: np.ndarray, gates: int) -> Callable[[Callable[[], float] | None], Run]:
        (n, d), P = X.shape, sampled_patterns(X, gates)
        K = P.shape[1]
        cones = [np.ascontiguousarray(np.where(P[:, [k]], X, -X)) for k in range(K)]  # each (n, d)
        low, high = np.zeros(n), np.full(n, np.inf)
        design = ad.matrix.convex_relu(np.asfortranarray(X), np.asfortranarray(P))
        constraints = [ad.constraint.linear(cones[k], low, high) for _ in range(2) for k in range(K)]
        signs = np.repeat([1.0, -1.0], K)

        def solve(tell: Callable[[], float] | None) -> Run:
            stamps: list[float] = []

            def stamp(_: Any) -> bool:
                stamps.append(0.0 if tell is None else tell())
                return False

            state = ad.grpnet(
                design,
                ad.glm.binomial((y > 0).astype(np.float64)),
                groups=np.arange(0, 2 * K * d, d),
                constraints=constraints,
                penalty=np.ones(2 * K),
                min_ratio=ratio,
                lmda_path_size=path,
                intercept=False,
                early_exit=False,
                progress_bar=False,
                exit_cond=stamp,
            )
            alarm(0)
            betas = np.asarray(state.betas.todense()).reshape(-1, 2 * K, d)
            count = min(len(betas), len(stamps))
            return {"networks": [(b, signs) for b in betas[:count]], "seconds": stamps[:count]}

        return solve

    prepare(*toy(), 5)(None)
    solve = prepare(X, y, gates)
    return solve(clock(limit))


def sampled_lp(X: np.ndarray, y: np.ndarray, limit: float, neurons: int) -> Run:
    """The best margin over random unit neurons:  max g  s.t.  y_i sum_j a_j relu(v_j . x_i) >= g,  |a|_1 = 1."""
    from scipy.optimize import linprog

    def solve(V: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray | None:
        (n, _), m = X.shape, len(V)
        H = y[:, None] * (X @ V.T).clip(0)  # (n, m)
        A = np.hstack([-H, H, np.ones((n, 1))])  # (n, 2 m + 1)
        cost = np.append(np.zeros(2 * m), -1.0)
        equal = np.append(np.ones(2 * m), 0.0)[None]
        bounds = np.append(np.tile([0.0, np.inf], (2 * m, 1)), [[-np.inf, np.inf]], axis=0)
        x = linprog(cost, A, np.zeros(n), equal, [1.0], bounds, method="highs").x
        return None if x is None else x[:m] - x[m:-1]

    V = np.random.default_rng(0).standard_normal((neurons, X.shape[1]))
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    solve(V[:50, :3], *toy())
    tell = clock(limit)
    a = solve(V, X, y)
    return {"networks": [] if a is None else [(V, a)], "seconds": [tell()] if a is not None else []}


def sampled_cones(X: np.ndarray, y: np.ndarray, limit: float, patterns: int) -> Run:
    """The best margin over sampled activation patterns, a cone program (what pyscnn and adelie tend to as lam -> 0).

    min sum_k |u_k|   s.t.   y_i sum_k s_k P_ik x_i . u_k >= 1,   (2 P_ik - 1) x_i . u_k >= 0;   s = +-1 per pattern.
    """
    import clarabel
    from scipy import sparse

    def solve(X: np.ndarray, y: np.ndarray, P: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        (n, d), P = X.shape, np.hstack([P, P])
        K = P.shape[1]
        signs = np.repeat([1.0, -1.0], K // 2)
        # Variables: t_1, u_1, t_2, u_2, ...; rows A x + s = b with s in the cones.
        wide = np.zeros((n, K, d + 1))
        wide[:, :, 1:] = (y[:, None] * P * signs)[:, :, None] * X[:, None]
        cones = [np.hstack([np.zeros((n, 1)), np.where(P[:, [k]], X, -X)]) for k in range(K)]
        size = K * (d + 1)
        A = -sparse.vstack(
            [sparse.csc_matrix(wide.reshape(n, size)), sparse.block_diag(cones), sparse.identity(size)], format="csc"
        )
        b = np.concatenate([-np.ones(n), np.zeros(n * K + size)])
        cost = np.tile(np.append(1.0, np.zeros(d)), K)
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_threads = False, int(os.environ.get("OMP_NUM_THREADS", 1))
        kinds = [clarabel.NonnegativeConeT(n + n * K), *[clarabel.SecondOrderConeT(d + 1)] * K]
        solution = clarabel.DefaultSolver(sparse.csc_matrix((size, size)), cost, A, b, kinds, settings).solve()
        if "Solved" not in str(solution.status):
            return None
        return np.array(solution.x).reshape(K, d + 1)[:, 1:], signs

    small, labels = toy()
    solve(small, labels, sampled_patterns(small, 10))
    P = sampled_patterns(X, patterns)
    tell = clock(limit)
    network = solve(X, y, P)
    return {"networks": [] if network is None else [network], "seconds": [] if network is None else [tell()]}


def ascent(X: np.ndarray, y: np.ndarray, limit: float, width: int, step: float) -> Run:
    """Gradient ascent on the soft-min of the margins, both layers, steps step / sqrt(t) (Chizat and Bach, 2020).

    S = -log mean_i exp(-y_i f(x_i)), f(x) = (1 / m) sum_j a_j relu(W_j . x), from Gaussian weights. Every 10th network
    is judged; the best so far is kept at about 40 times between 0.1 s and the limit.
    """
    rng = np.random.default_rng(0)
    W, a = rng.standard_normal((width, X.shape[1])), rng.standard_normal(width)
    networks, seconds, best, kept, changed = [], [], 0.0, None, False
    grid = iter(np.append(np.geomspace(0.1, limit * 0.99, 40), np.inf))
    due, t = next(grid), 0
    tell = clock(2 * limit + 5)
    while (now := tell()) < limit:
        H = X @ W.T  # (n, m)
        R = H.clip(0)
        f = y * (R @ a) / width  # (n,)
        if t % 10 == 0:
            margin = f.min() / (np.abs(a) * np.sqrt((W * W).sum(1))).mean()
            if margin > best:
                best, kept, changed = margin, (W.copy(), a.copy()), True
        if now > due:
            if changed and kept is not None:
                networks.append(kept)
                seconds.append(now)
                changed = False
            while due < now:
                due = next(grid)
        q = np.exp(f.min() - f)
        c = y * q / q.sum()
        rate = step / np.sqrt(t + 1.0)
        dW = ((H > 0) * c[:, None]).T @ X * a[:, None]
        a += rate * (c @ R)
        W += rate * dW
        t += 1
    alarm(0)
    return {"networks": networks, "seconds": seconds}


# method: (function, packages its own environment needs, packages installed there without their dependencies)
METHODS: dict[str, tuple[Callable[..., Run], list[str], list[str]]] = {
    "widemargin": (widemargin, [], []),
    "pyscnn": (
        pyscnn,
        ["torch==2.13.0", "numpy", "scipy", "cvxpy", "scikit-learn", "tqdm", "opt_einsum", "typing_extensions", "ecos"],
        ["pyscnn==0.0.10", "linalg_backends"],  # its own list also asks for torchvision, which it does not import
    ),
    "adelie": (adelie, ["adelie==1.1.52", "numpy<2"], []),
    "sampled_lp": (sampled_lp, [], []),
    "sampled_cones": (sampled_cones, [], []),
    "ascent": (ascent, [], []),
}


def main() -> None:
    method, setting, source, target, limit = sys.argv[1:]
    warnings.simplefilter("ignore")
    with np.load(source) as data:
        X, y = data["X"], data["y"]
    run = METHODS[method][0](X, y, float(limit), **json.loads(setting))
    alarm(0)
    networks = [(W[on], a[on]) for W, a in run["networks"] for on in [(a != 0) & W.any(axis=1)]]
    np.savez(
        target,
        W=np.concatenate([W for W, _ in networks]) if networks else np.zeros((0, X.shape[1])),
        a=np.concatenate([a for _, a in networks]) if networks else np.zeros(0),
        which=np.repeat(np.arange(len(networks)), [len(a) for _, a in networks]),
        seconds=np.array(run["seconds"], dtype=np.float64),
        **run.get("extra", {}),
    )


if __name__ == "__main__":
    main()
