"""Margins of batch-normalised networks on CIFAR-10 cats against dogs (BN Figure 1), beside BN's own estimate with Adam.

    WIDEMARGIN_CIFAR10=cifar.npz python benchmarks/batchnorm.py [1024 8192] [--n 1000] [--steps 10000] [--verify]

One row per width: bounds and gap of gamma_a and gamma_c at the drawn inner weights, seconds and peak memory so far, the
margin of the networks that Adam finds, and, with `--displacement`, the bounds when inner weights may move by gamma / 32.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time

import numpy as np
import torch

from widemargin.data import cifar_cats_dogs
from widemargin.flows import BatchNorm
from widemargin.margins.batchnorm_networks import batchnorm
from widemargin.types import Dataset


def show(both: dict[str, float]) -> str:
    return f"[{both['lower']:.6g}, {both['upper']:.6g}] gap {1 - both['lower'] / both['upper']:.1e}"


def peak() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB"


def adam(data: Dataset, m: int, part: str, steps: int, lr: float, seed: int) -> float:
    """The margin of outer weights that Adam finds on the logistic loss, in the units of gamma_a or gamma_c (BN-24)."""
    net = BatchNorm.with_data(data.X, m)
    W = {name: torch.from_numpy(value) for name, value in net.init(1, seed).items()}
    Z = torch.tensor(data.y)[:, None] * net.features(W, torch.tensor(data.X)[None])[0]  # (n, m)
    Z = Z if part == "a" else Z * W["a"]
    points = Z.float()
    u = W[part][0].float().requires_grad_()
    optimizer = torch.optim.Adam([u], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.softplus(-(points @ u)).mean().backward()
        optimizer.step()
    found = u.detach().double()
    return float((Z @ (found / found.norm())).min()) / m**0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("widths", nargs="*", type=int, default=[1024])
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=10_000, help="of Adam; 0 leaves it out")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--displacement", action="store_true", help="also with inner weights free within gamma / 32")
    parser.add_argument("--verify", action="store_true", help="also check the certificate in exact arithmetic")
    options = parser.parse_args()

    data = cifar_cats_dogs(n=options.n, seed=options.seed, unit=True)  # BN scales to ||x|| <= 1
    print(f"{platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}; {data}")
    for m in options.widths:
        start = time.perf_counter()
        certificate = batchnorm(data, m, seed=options.seed, tol=options.tol)
        seconds = time.perf_counter() - start
        extra = certificate.extra
        print(f"m={m}: {seconds:.1f} s, peak {peak()}, {certificate.status}, eps_N {extra['eps_N']:.4g}")
        for part in "ac":
            print(f"  gamma_{part} {show(extra[f'gamma_{part}'])}, {certificate.stats[f'method_{part}']}", flush=True)
            if options.steps:
                start = time.perf_counter()
                found = adam(data, m, part, options.steps, options.lr, options.seed)
                share = found / extra[f"gamma_{part}"]["upper"]
                took = time.perf_counter() - start
                print(
                    f"    Adam, {options.steps} steps: {found:.6g}, {share:.1%} of upper, {took:.1f} s",
                    flush=True,
                )
                assert share <= 1
        if options.displacement:
            start = time.perf_counter()
            moved = batchnorm(data, m, seed=options.seed, tol=options.tol, displacement=certificate.lower / 32)
            took = time.perf_counter() - start
            print(f"  Delta_V <= gamma / 32 = {certificate.lower / 32:.3g}: {took:.1f} s, peak {peak()}")
            for part in "ac":
                print(f"  gamma_{part} {show(moved.extra[f'gamma_{part}'])}", flush=True)
        if options.verify:
            start = time.perf_counter()
            verdict = certificate.verify(data)
            print(f"  {verdict}; {time.perf_counter() - start:.1f} s, peak {peak()}", flush=True)


if __name__ == "__main__":
    main()
