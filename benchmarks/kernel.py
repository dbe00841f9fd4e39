"""Kernel margins side by side: widemargin, Clarabel and OSQP on the same Gram matrix, LinearSVC on its Cholesky factor.

    python benchmarks/kernel.py [--sizes 500 2000] [--limit 120] [--repeats 3] [--clock cpu]

Random labels on Gaussian points in R^50 (nearly every point is a support vector) and labels of a small network in R^20
(few are). Every solver gets the same K, whose time is in its own column; `f2` includes it, and the certificate. The
gap of a solver is (upper - its margin) / upper, its margin evaluated from its weights by the definition, upper from
f2's certificate; "-" means no answer. The factor of LinearSVC is made outside its time, with ridge 1e-12.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np


def points(kind: str, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if kind == "random":
        return rng.standard_normal((n, 50)), rng.choice([-1.0, 1.0], n)
    X, W, a = rng.standard_normal((n, 20)), rng.standard_normal((6, 20)), np.array([1, 1, 1, -1, -1, -1.0])
    return X, np.where((X @ W.T).clip(0) @ a > 0, 1.0, -1.0)


def clarabel_weights(K: np.ndarray, limit: float) -> np.ndarray | None:
    import clarabel
    from scipy import sparse

    n = len(K)
    A = sparse.vstack([sparse.csc_matrix(np.ones((1, n))), -sparse.identity(n, format="csc")], format="csc")
    b = np.concatenate([[1.0], np.zeros(n)])
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.time_limit = False, limit
    settings.tol_gap_abs, settings.tol_gap_rel, settings.tol_feas = 1e-13, 1e-8, 1e-10  # the optimum may be 1e-6
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n)]
    solver = clarabel.DefaultSolver(sparse.csc_matrix(np.triu(K)), np.zeros(n), A, b, cones, settings)
    solution = solver.solve()
    return np.array(solution.x).clip(0) if "Solved" in str(solution.status) else None


def osqp_weights(K: np.ndarray, limit: float) -> np.ndarray | None:
    import osqp
    from scipy import sparse

    n = len(K)
    A = sparse.vstack([sparse.csc_matrix(np.ones((1, n))), sparse.identity(n, format="csc")], format="csc")
    low, high = np.concatenate([[1.0], np.zeros(n)]), np.concatenate([[1.0], np.full(n, np.inf)])
    solver = osqp.OSQP()
    P = sparse.csc_matrix(np.triu(K))
    options = {"verbose": False, "eps_abs": 1e-9, "eps_rel": 1e-9, "max_iter": 100_000, "time_limit": limit}
    solver.setup(P, np.zeros(n), A, low, high, **options)
    q = solver.solve().x
    return None if q is None or not np.isfinite(q).all() else q.clip(0)


def svc_scores(L: np.ndarray, y: np.ndarray, iterations: int) -> np.ndarray:
    """y_i f(x_i) / ||f|| of LinearSVC on the rows of a factor L of k."""
    from sklearn.svm import LinearSVC

    svc = LinearSVC(fit_intercept=False, loss="hinge", C=1e6, dual=True, tol=1e-6, max_iter=iterations, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says when max_iter stops it; the gap shows it
        w = svc.fit(L, y).coef_[0]
    return y * (L @ w) / np.linalg.norm(w)


def timed(work: Callable[[], object], repeats: int) -> tuple[object, str]:
    seconds, result = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
        if seconds[-1] > 20:
            break
    spread = f" +-{(max(seconds) - min(seconds)) / 2:.2f}" if len(seconds) > 1 else ""
    return result, f"{statistics.median(seconds):.2f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--limit", type=float, default=120, help="seconds for one solve")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--largest", type=int, default=2000, help="largest n for Clarabel and OSQP")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine with other work")
    parser.add_argument("--epochs", type=int, default=1000, help="max_iter of LinearSVC")
    args = parser.parse_args()
    if args.clock == "cpu":
        time.perf_counter = time.process_time

    import torch

    from widemargin import Dataset
    from widemargin.margins import f2, qp
    from widemargin.spaces import ReLU

    print(
        f"{platform.machine()}, {os.cpu_count()} cores, torch threads {torch.get_num_threads()}, numpy {np.__version__}, "
        f"{args.clock} seconds"
    )
    qp.solve(ReLU().kernel(np.random.default_rng(0).standard_normal((600, 30))), 1e-6)  # warm up
    print(f"{'labels':8} {'n':>5} {'solver':22} {'seconds':>16} {'gap':>9}")
    for kind in ("random", "teacher"):
        for n in args.sizes:
            X, y = points(kind, n)
            data = Dataset(X, y)
            certificate, seconds = timed(lambda data=data: f2(data), args.repeats)  # type: ignore[misc]
            rows: list[tuple[str, str, float | None]] = [("f2 (with kernel)", seconds, certificate.gap)]  # type: ignore[attr-defined]
            upper = certificate.upper  # type: ignore[attr-defined]
            K, seconds = timed(lambda X=X: ReLU().kernel(X), args.repeats)  # type: ignore[misc]
            rows.append(("kernel matrix only", seconds, None))
            scale = K.diagonal().max()  # type: ignore[attr-defined]
            K = K / scale * y * y[:, None]  # type: ignore[operator]

            def gap(q: np.ndarray | None, K: np.ndarray = K, top: float = upper / np.sqrt(scale)) -> float | None:
                return None if q is None else 1 - float((K @ q).min() / np.sqrt(q @ K @ q)) / top

            progress, seconds = timed(lambda K=K: qp.solve(K, 1e-6), args.repeats)  # type: ignore[misc]
            rows.append(("f2, quadratic program", seconds, gap(progress.q)))  # type: ignore[attr-defined]
            if n <= args.largest:
                for name, solver in (("Clarabel", clarabel_weights), ("OSQP", osqp_weights)):
                    q, seconds = timed(lambda K=K, solver=solver: solver(K, args.limit), 1)  # type: ignore[misc]
                    rows.append((name, seconds, gap(q)))  # type: ignore[arg-type]
            plain = torch.from_numpy(K * y * y[:, None] + 1e-12 * np.eye(n))
            L = torch.linalg.cholesky(plain).numpy()
            scores, seconds = timed(lambda L=L, y=y: svc_scores(L, y, args.epochs), 1)  # type: ignore[misc]
            rows.append(("LinearSVC on factor", seconds, 1 - float(np.min(scores)) / (upper / np.sqrt(scale))))  # type: ignore[call-overload]
            for name, taken, value in rows:
                print(f"{kind:8} {n:5} {name:22} {taken:>16} {'-' if value is None else f'{value:.1e}':>9}", flush=True)


if __name__ == "__main__":
    main()
