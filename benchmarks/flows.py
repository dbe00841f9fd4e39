"""Microseconds per step and network of gradient descent on two-layer ReLU networks: a plain loop, vmap, and widemargin.

    python benchmarks/flows.py [--device cpu|cuda] [--threads 1] [--repeats 5] [--json FILE] [--quick]

All methods take the same step, W <- W - lr d(mean logistic loss)/dW, on the same data, both layers trained:

- plain       one nn.Module and torch.optim.SGD, autograd, networks one after the other: what most people write
- vmap        torch.func: vmap of grad over B stacked networks, updated out of place
- widemargin  flows.GD on a batch of B networks: closed-form gradients; on a GPU fused kernels, and a CUDA graph of the step
- floor       the two matrix products of the step alone, X V' and (activations)' X, timed in the same run

Times are medians over the repeats. The claims: on one CPU thread at n=64, d=20, m=256 in float64 at least 2.5 times the plain
loop; on an H200 at B=100, n=256, d=16, m=1000 at least 150 times, aiming at 500 and at 4 times the floor.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from widemargin.flows._graph import Stepper
from widemargin.flows.nets import TwoLayer
from widemargin.flows.problem import pose
from widemargin.flows.rules import GD
from widemargin.types import Dataset

SHAPES = [(64, 20, 16), (64, 20, 256), (256, 16, 1000)]
BATCHES = [1, 100, 600]
LR = 0.01


def clock(step: Callable[[], object], device: str, repeats: int, least: float = 0.2) -> float:
    """Median seconds of one call, each repeat lasting at least `least` seconds."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        step()
    wait()
    start = time.perf_counter()
    step()
    wait()
    count = max(1, int(least / max(time.perf_counter() - start, 1e-7)))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


def plain(X: torch.Tensor, y: torch.Tensor, m: int, device: str) -> Callable[[], None]:
    net = nn.Sequential(nn.Linear(X.shape[1], m, bias=False), nn.ReLU(), nn.Linear(m, 1, bias=False))
    net = net.to(device=device, dtype=X.dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.softplus(-y * net(X)[:, 0]).mean().backward()
        optimizer.step()

    return step


def mapped(X: torch.Tensor, y: torch.Tensor, W: dict[str, torch.Tensor]) -> Callable[[], None]:
    def loss(a: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(-y * ((X @ V.T).relu() @ a)).mean()

    grads = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)))
    W = dict(W)

    def step() -> None:
        a, V = grads(W["a"], W["V"])
        W["a"], W["V"] = W["a"] - LR * a, W["V"] - LR * V

    return step


def floor(X: torch.Tensor, W: dict[str, torch.Tensor]) -> Callable[[], None]:
    V, B = W["V"], len(W["V"])
    flat = V.reshape(-1, V.shape[2])  # (B m, d): one product for all networks
    H, out = X @ flat.T, torch.empty_like(flat)
    S = H.T.contiguous()
    assert len(flat) == B * V.shape[1]

    def step() -> None:
        torch.mm(X, flat.T, out=H)
        torch.mm(S, X, out=out)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="float64 and batches up to 100 only")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    where = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"{platform.processor()}, {options.threads} thread"
    )
    print(f"{where}; torch {torch.__version__}; microseconds per step and network, median of {options.repeats}\n")
    print(
        f"{'n, d, m':>16} {'B':>4} {'dtype':>8} {'plain':>9} {'vmap':>9} {'widemargin':>10} {'floor':>8}   plain/wm  wm/floor"
    )
    rows = []
    for dtype in [torch.float64] if options.quick else [torch.float32, torch.float64]:
        for n, d, m in SHAPES:
            rng = np.random.default_rng(0)
            data = Dataset(rng.standard_normal((n, d)) / d**0.5, np.resize([-1.0, 1.0], n))
            net = TwoLayer(d, m)
            alone = None
            for B in [b for b in BATCHES if not options.quick or b <= 100]:
                name = str(dtype).removeprefix("torch.")
                problem = pose(net, data, "logistic", device=options.device, dtype=name)
                W = {k: torch.tensor(v, device=options.device, dtype=dtype) for k, v in net.init(B, 0).items()}
                X, y = problem.X[0], problem.y[0]
                measure = lambda step: 1e6 * clock(step, options.device, options.repeats)  # noqa: E731
                if alone is None:
                    alone = measure(plain(X, y, m, options.device))
                row = {"n": n, "d": d, "m": m, "B": B, "dtype": name, "plain": alone}
                row["vmap"] = measure(mapped(X, y, W)) / B
                row["widemargin"] = measure(Stepper(problem, GD(lr=LR), W)) / B
                row["floor"] = measure(floor(X, W)) / B
                rows.append(row)
                times = " ".join(
                    f"{row[k]:{w}.2f}" for k, w in (("plain", 9), ("vmap", 9), ("widemargin", 10), ("floor", 8))
                )
                ratios = f"{row['plain'] / row['widemargin']:9.1f} {row['widemargin'] / row['floor']:9.1f}"
                print(f"{f'{n}, {d}, {m}':>16} {B:>4} {name:>8} {times}  {ratios}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
