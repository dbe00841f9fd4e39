"""Did training find the best network? Training runs over width, and the line below which nothing can be.

python examples/did_training_find_the_optimum.py [--quick] [--out did_training_find_the_optimum.png]
"""

from __future__ import annotations

import argparse
import math

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, make_moons

import widemargin as wm

COLOURS = {"gradient descent": "#0072b2", "Adam": "#d55e00"}  # told apart by eyes that do not tell red from green
WITHIN = (0.001, 0.01, 0.1)


def data_sets() -> dict[str, tuple[wm.Dataset, float, float]]:
    """Standardised points with labels -1, +1, the weight decay, and how tight the certificate should be."""
    found = {}
    moons = make_moons(100, noise=0.25, random_state=0)
    cancer = tuple(part[:100] for part in load_breast_cancer(return_X_y=True))
    for name, (X, y), decay, tol in (("two moons", moons, 0.01, 1e-5), ("breast cancer", cancer, 0.03, 1e-3)):
        found[name] = wm.Dataset((X - X.mean(0)) / X.std(0), 2.0 * y - 1, name), decay, tol
    return found


def train(data: wm.Dataset, width: int, decay: float, rule: str, starts: int, steps: int, seed: int) -> np.ndarray:
    """Least objectives (starts,) of runs of nn.Sequential(Linear, ReLU, Linear) from PyTorch's own starts, all at once.

    Full batches, single precision; the objective at the end in double. The step size falls to 0 along a cosine. The last bias is
    not decayed: `output_bias="free"`.
    """
    draw = torch.Generator().manual_seed(seed)
    n, d = data.X.shape
    X = torch.tensor(np.hstack([data.X, np.ones((n, 1))]))  # (n, d + 1)
    y = torch.tensor(data.y)  # (n,)

    def uniform(*shape: int, fan: int) -> torch.Tensor:
        return ((2 * torch.rand(*shape, generator=draw) - 1) / math.sqrt(fan)).requires_grad_()

    W = uniform(starts * width, d + 1, fan=d)  # the last column is the bias
    a, b = uniform(starts, width, fan=width), uniform(starts, fan=width)

    def objectives(X: torch.Tensor, W: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        hidden = (X @ W.T).relu().view(n, starts, width)
        t = torch.einsum("nsk,sk->sn", hidden, a) + b[:, None]
        squares = W.square().sum(1).view(starts, width).sum(1) + a.square().sum(1)
        return torch.nn.functional.softplus(-y.to(t) * t).mean(1) + decay / 2 * squares  # (starts,)

    if rule == "Adam":
        optimiser: torch.optim.Optimizer = torch.optim.Adam([W, a, b], lr=0.02)
    else:
        optimiser = torch.optim.SGD([W, a, b], lr=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    single = X.float()
    for _ in range(steps):
        optimiser.zero_grad()
        objectives(single, W, a, b).sum().backward()
        optimiser.step()
        schedule.step()
    return objectives(X, *(weights.detach().double() for weights in (W, a, b))).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps, starts and widths: to see that it runs")
    parser.add_argument("--out", default="did_training_find_the_optimum.png", help="the picture")
    options = parser.parse_args()
    widths, starts, steps = ((2, 5), 2, 50) if options.quick else ((2, 5, 20, 100, 500), 10, 3000)
    torch.set_num_threads(1)

    sets = data_sets()
    if options.quick:
        del sets["breast cancer"]
    figure, panels = plt.subplots(1, len(sets), figsize=(5.5 * len(sets), 4.4), layout="constrained", squeeze=False)
    scatter = np.random.default_rng(0)
    for axes, (name, (data, decay, tol)) in zip(panels[0], sets.items()):
        cert = wm.optima.f1(data, loss="logistic", weight_decay=decay, tol=tol)
        print(f"{name}: n={data.n}, d={data.d}, weight decay {decay:g}")
        print(
            f"  best of any width between {cert.lower:.6f} and {cert.upper:.6f} ({cert.status}, {cert.atoms} neurons)"
        )
        print("  share of runs that end within 0.1 %, 1 %, 10 % of the best:")
        for j, (rule, colour) in enumerate(COLOURS.items()):
            for width in widths:
                ends = train(data, width, decay, rule, starts, steps, seed=width)
                assert (ends >= cert.lower).all(), "a run below the proved bound"
                above = ends / cert.lower - 1
                shares = "  ".join(f"{(above <= within).mean():4.0%}" for within in WITHIN)
                print(f"    {rule:16}  width {width:4}:  {shares}   least {above.min():.4%}, most {above.max():.2%}")
                place = width * np.exp(0.25 * (j - 0.5) + 0.08 * scatter.uniform(-1, 1, starts))
                axes.plot(
                    place, ends, "o", color=colour, ms=5, alpha=0.6, mew=0, label=rule if width == widths[0] else None
                )
        axes.axhspan(cert.lower, cert.upper, color="black", lw=1.5, label="certified optimum of all widths")
        bottom, top = axes.get_ylim()
        bottom = cert.lower - 0.12 * (top - cert.lower)
        axes.axhspan(bottom, cert.lower, color="0.85", lw=0, zorder=0)
        axes.text(
            math.sqrt(widths[0] * widths[-1]),
            (bottom + cert.lower) / 2,
            "nothing can be here",
            ha="center",
            va="center",
        )
        axes.set_ylim(bottom, top)
        axes.set_xscale("log", base=10)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
        axes.set_xlabel("width")
        axes.set_title(f"{name}, weight decay {decay:g}")
    panels[0, 0].set_ylabel("mean logistic loss + (weight decay / 2) |weights|²")
    panels[0, 0].legend()
    figure.savefig(options.out, dpi=110)
    print(f"picture written to {options.out}")


if __name__ == "__main__":
    main()
