"""The map of docs/pricing.md: how far f1 closes the gap in ten seconds, and by which proof, over points and dimensions.

    python benchmarks/map.py [--seconds 10] [--processes 2] [--seed 0] [--save map.json]
    python benchmarks/map.py --draw map.json docs/pricing.png

Three kinds of data: labels at random on Gaussian points (noise), two Gaussian clouds (clouds), and nonnegative points with much
in common and a little that tells the classes apart (images). One thread each.
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from widemargin.margins import f1
from widemargin.types import Dataset

POINTS = [10, 20, 40, 80, 160, 320, 640]
RANKS = [2, 3, 4, 5, 6, 8, 12, 20, 40, 80, 160]
KINDS = ["noise", "clouds", "images"]
LETTERS = {"enumeration": "E", "cones": "C", "tree": "T", "mixed": "M", "pairing": "2", "products": "P", "norm": "n"}


def points(kind: str, n: int, d: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, d)), np.resize([1, -1], n)
    if kind == "clouds":
        X += 2.0 * np.outer(y, np.eye(d)[0])
    elif kind == "images":
        X = np.abs(1 + X / 2 + 0.3 * np.outer(y, rng.standard_normal(d)))
    return Dataset(X, y, name=f"{kind}:{n},{d}")


def cell(task: tuple[str, int, int, int, float]) -> dict:
    kind, n, d, seed, seconds = task
    torch.set_num_threads(1)
    found = f1(points(kind, n, d, seed), time_limit=seconds)
    gap = found.upper / found.lower - 1 if found.lower > 0 else math.inf
    zero = found.status == "not-separable"
    return {"kind": kind, "n": n, "d": d, "gap": 0.0 if zero else gap, "seconds": found.stats["seconds"]} | {
        "proof": "" if zero else found.bound if found.proof.get("type") != "mixed" else "mixed",
        "closed": zero or found.status == "certified",
    }


def draw(cells: list[dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(12.5, 4.6), sharey=True, layout="constrained")
    titles = {"noise": "labels at random", "clouds": "two clouds", "images": "nonnegative, as images are"}
    for axis, letter, kind in zip(axes, "abc", KINDS):
        table = np.full((len(POINTS), len(RANKS)), np.nan)
        for one in (one for one in cells if one["kind"] == kind):
            i, j = POINTS.index(one["n"]), RANKS.index(one["d"])
            table[i, j] = math.log10(min(max(one["gap"] or 0.0, 1e-3), 1.0))
            said = LETTERS.get(one["proof"], one["proof"][:1]) if one["proof"] else "0"
            axis.text(
                j, i, said, ha="center", va="center", color="white" if table[i, j] > -1.2 else "black", fontsize=9
            )
            if one["closed"] and one["proof"]:
                axis.text(j, i + 0.36, f"{one['seconds']:.1f}", ha="center", va="center", color="black", fontsize=6)
        image = axis.imshow(table, origin="lower", cmap="viridis_r", vmin=-3, vmax=0, aspect="auto")
        axis.set_xticks(range(len(RANKS)), RANKS)
        axis.set_yticks(range(len(POINTS)), POINTS)
        axis.set_xlabel("dimensions")
        axis.set_title(f"({letter}) {titles[kind]}", fontsize=10, loc="left")
    axes[0].set_ylabel("points")
    bar = fig.colorbar(image, ax=axes, ticks=[-3, -2, -1, 0], shrink=0.9)
    bar.ax.set_yticklabels(["closed", "1 %", "10 %", "100 %"])
    fig.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", default="map.json")
    parser.add_argument("--draw", nargs=2, metavar=("JSON", "PNG"))
    args = parser.parse_args()
    if args.draw:
        draw(json.loads(Path(args.draw[0]).read_text()), args.draw[1])
        return
    tasks = [(kind, n, d, args.seed, args.seconds) for kind in KINDS for n in POINTS for d in RANKS]
    with ProcessPoolExecutor(args.processes) as pool:
        cells = list(pool.map(cell, tasks))
    Path(args.save).write_text(json.dumps(cells))
    print(f"{sum(one['closed'] for one in cells)} of {len(cells)} closed to 1e-3 in {args.seconds:g} s")


if __name__ == "__main__":
    main()
