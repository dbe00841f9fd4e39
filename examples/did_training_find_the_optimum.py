"""Did training find the best network? Training runs over width, and the line below which nothing can be.

python examples/did_training_find_the_optimum.py [--quick] [--out did_training_find_the_optimum.png]

The objective is mean logistic loss + (weight_decay / 2) |weights|^2 of a two-layer ReLU network. `optima.f1` proves a
bound that no width and no training gets below. Ten starts at each width, 3000 full-batch steps, of size 0.2 (gradient
descent) or 0.02 (Adam) at first and 0 at last. Two minutes of one core. What is seen with these settings:

- Two moons, noise 0.25, 100 points: the certified network has 7 neurons. No run of width 2 or 5 ends within 0.1 % of
  the bound. All Adam runs of width 100 and 500 end within 0.005 %; of width 20 six of ten do within 0.1 %. Gradient
  descent ends 0.4 % to 0.8 % above at widths 100 and 500.
- Breast cancer, first 100 points: the certified network has one neuron, and the bounds are 0.05 % apart. All Adam runs
  from width 5 on end 0.0481 % above the lower one; of width 2 one in ten ends 56 % above. From width 5 on gradient
  descent ends the higher the wider the network is, 1.6 % to 3.6 % above at width 5 and 4.3 % to 4.5 % at width 500. It
  was not tried with more steps or other sizes.
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
WITHIN = (0.1, 1, 10)  # per cent


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
    figure, panels = plt.subplots(
        1, len(sets), figsize=(5.5 * len(sets), 4.6), layout="constrained", squeeze=False, sharey=True
    )
    scatter = np.random.default_rng(0)
    for axes, (name, (data, decay, tol)) in zip(panels[0], sets.items()):
        cert = wm.optima.f1(data, loss="logistic", weight_decay=decay, tol=tol, bias=True)
        print(f"{name}: n={data.n}, d={data.d}, weight decay {decay:g}")
        print(
            f"  best of any width between {cert.lower:.6f} and {cert.upper:.6f} ({cert.status}, {cert.atoms} neurons)"
        )
        print("  share of runs that end within 0.1 %, 1 %, 10 % of the proved bound, and the best and the worst run:")
        for j, (rule, colour) in enumerate(COLOURS.items()):
            for width in widths:
                ends = train(data, width, decay, rule, starts, steps, seed=width)  # both rules from the same starts
                assert (ends >= cert.lower).all(), "a run below the proved bound"
                above = 100 * (ends / cert.lower - 1)
                shares = "  ".join(f"{(above <= within).mean():4.0%}" for within in WITHIN)
                print(f"    {rule:16}  width {width:4}:  {shares}   {above.min():8.4f} %  {above.max():8.4f} %")
                place = width * np.exp(0.3 * (j - 0.5) + 0.1 * scatter.uniform(-1, 1, starts))
                label = rule if width == widths[0] else None
                axes.plot(place, above, "o", color=colour, ms=5, alpha=0.6, mew=0, label=label)
        axes.axhspan(
            0, 100 * (cert.upper / cert.lower - 1), color="black", lw=2, label="the optimum of all widths is in here"
        )
        axes.axhspan(-1, 0, color="0.85", lw=0, zorder=0)
        axes.text(math.sqrt(widths[0] * widths[-1]), -0.03, "proved: no network is here", ha="center", va="center")
        axes.set_xscale("log")
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
        axes.set_xlabel("width")
        axes.set_title(f"{name}, weight decay {decay:g}: optimum {cert.upper:.4f}")
    axes = panels[0, 0]
    axes.set_yscale("symlog", linthresh=0.1)  # linear up to 0.1 %, logarithmic above
    axes.set_yticks([0, 0.1, 1, 10, 100], ["0 %", "0.1 %", "1 %", "10 %", "100 %"])
    axes.set_ylim(-0.06, 300)
    axes.set_ylabel("loss + weight decay, above the proved bound")
    axes.legend()
    figure.savefig(options.out, dpi=110)
    print(f"picture written to {options.out}")


if __name__ == "__main__":
    main()
