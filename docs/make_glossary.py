"""The pictures of docs/glossary.md, into docs/glossary/ as PNG and PDF.

    python docs/make_glossary.py

One small data set in the plane without a bias, so that a neuron is an angle and the whole proof fits into one curve.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import widemargin as wm
from widemargin.plots.style import INK, MINUS, PLUS, QUIET, THIRD, figure_of

HERE = Path(__file__).resolve().parent / "glossary"
SIDE = 1.45  # of the plane that is drawn


def four_directions() -> wm.Dataset:
    """Twelve points in four directions, labels in turn."""
    rng = np.random.default_rng(3)
    angles = np.repeat([0.3, 1.7, 3.5, 4.9], 3) + 0.16 * rng.standard_normal(12)
    radii = 0.8 + 0.4 * rng.random(12)
    X = radii[:, None] * np.column_stack([np.cos(angles), np.sin(angles)])
    return wm.Dataset(X, np.tile(np.repeat([1, -1], 3), 2), "four directions")


def plane(axes: Any, data: wm.Dataset, f: np.ndarray | None = None) -> None:
    line = np.linspace(-SIDE, SIDE, 241)
    if f is not None:
        axes.contourf(line, line, f, levels=[-np.inf, 0, np.inf], colors=[MINUS, PLUS], alpha=0.16)
        axes.contour(line, line, f, levels=[0], colors=[INK], linewidths=1.6)
    for sign, colour, mark in ((1, PLUS, "o"), (-1, MINUS, "^")):
        axes.plot(*data.X[data.y == sign].T, mark, color=colour, ms=6, mec="white", mew=0.6, zorder=3)
    axes.set(xlim=(-SIDE, SIDE), ylim=(-SIDE, SIDE), xticks=[], yticks=[], aspect="equal")
    axes.spines[["top", "right"]].set_visible(True)


def grid() -> np.ndarray:
    line = np.linspace(-SIDE, SIDE, 241)
    return np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)  # (241 * 241, 2)


def titled(axes: Any, letter: str, words: str) -> None:
    axes.set_title(f"({letter}) {words}", loc="left", fontsize=10.5)


def neuron(data: wm.Dataset) -> Any:
    figure, (left, right) = figure_of(9.0, 3.9, 2)
    v = np.array([np.cos(0.6), np.sin(0.6)])
    value = (grid() @ v).clip(0).reshape(241, 241)
    line = np.linspace(-SIDE, SIDE, 241)
    left.contourf(line, line, value, levels=12, cmap="Greens")
    left.plot([-3 * v[1], 3 * v[1]], [3 * v[0], -3 * v[0]], color=INK, lw=1.4)
    plane(left, data)
    left.annotate("", v, (0, 0), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 2})
    left.text(*(1.12 * v), "v", fontsize=12)
    left.text(-1.38, 1.28, "off: 0", fontsize=9.5)
    left.text(0.18, 1.28, "on: grows along v", fontsize=9.5)
    titled(left, "a", "one neuron over the plane, and its kink")
    at = np.linspace(-1.2, 1.2, 201)
    right.plot(at, at.clip(0), color=THIRD, lw=2.2)
    right.axvline(0, color=QUIET, lw=0.8)
    right.set(xlabel="v . x", ylabel="relu(v . x)", xlim=(-1.2, 1.2))
    titled(right, "b", "the same along v")
    return figure


def spaces(data: wm.Dataset, f1: wm.Certificate, f2: wm.Certificate) -> Any:
    figure, (left, right) = figure_of(9.0, 4.4, 2)
    assert f1.primal is not None
    plane(left, data, f1.primal(grid()).reshape(241, 241))
    for v, mass in zip(f1.primal.theta, f1.primal.mass, strict=True):
        end = 1.25 * v * np.sqrt(abs(mass) / np.abs(f1.primal.mass).max())
        left.annotate(
            "", end, (0, 0), arrowprops={"arrowstyle": "-|>", "color": PLUS if mass > 0 else MINUS, "lw": 1.8}
        )
    titled(left, "a", f"F1: {len(f1.primal.mass)} neurons, margin {f1.lower:.3f}")
    plane(right, data, kernel_classifier(data, f2).reshape(241, 241))
    turn = np.linspace(0, 2 * np.pi, 49)[:-1]
    for angle in turn:
        right.plot([0, 0.22 * np.cos(angle)], [0, 0.22 * np.sin(angle)], color=QUIET, lw=0.8)
    titled(right, "b", f"F2: all neurons at once, margin {f2.lower:.3f}")
    return figure


def kernel_classifier(data: wm.Dataset, f2: wm.Certificate) -> np.ndarray:
    """Its values on the grid, from a fine sum over directions."""
    turn = np.linspace(0, 2 * np.pi, 721)[:-1]
    V = np.column_stack([np.cos(turn), np.sin(turn)])  # (720, 2)
    weights = np.asarray(f2.extra["alpha"]) * data.y  # (n,)
    return (grid() @ V.T).clip(0) @ ((data.X @ V.T).clip(0).T @ weights) / len(V)


def dual(data: wm.Dataset, cert: wm.Certificate) -> Any:
    figure, (left, right) = figure_of(9.0, 4.2, 2, [1, 1.2])
    assert cert.primal is not None
    q = np.asarray(cert.dual)
    plane(left, data, cert.primal(grid()).reshape(241, 241))
    left.scatter(*data.X.T, s=2400 * q, facecolors="none", edgecolors=INK, linewidths=1.2, zorder=4)
    for i, x in enumerate(data.X):
        left.text(x[0] + 0.07, x[1] + 0.06, str(i + 1), fontsize=8)
    titled(left, "a", "rings: weights of the points")
    at = np.arange(1, len(q) + 1)
    values = data.y * cert.primal(data.X)
    right.bar(at - 0.2, q, 0.38, color=INK, label="weight $q_i$")
    right.bar(at + 0.2, values, 0.38, color=THIRD, label="$y_i f(x_i)$ of the best network")
    right.axhline(cert.lower, color=THIRD, lw=1, ls="--")
    right.set(xlabel="point", xticks=at, ylim=(0, 1.35 * max(q.max(), values.max())))
    right.legend(frameon=False, fontsize=9, loc="upper left", ncols=2)
    titled(right, "b", "weight only where the margin is met (dashed)")
    return figure


def proof(data: wm.Dataset, cert: wm.Certificate) -> Any:
    figure, (axes,) = figure_of(9.0, 4.0)
    assert cert.primal is not None
    turn = np.linspace(0, 2 * np.pi, 2001)
    V = np.column_stack([np.cos(turn), np.sin(turn)])
    g = (data.X @ V.T).clip(0).T @ (np.asarray(cert.dual) * data.y)  # (2001,)
    for sign in (1, -1):
        axes.axhline(sign * cert.upper, color=THIRD, lw=1.6, ls="--")
    axes.plot(turn, g, color=INK, lw=1.8)
    kinks = np.sort(np.concatenate([np.arctan2(*data.X.T[::-1]) + side for side in (np.pi / 2, -np.pi / 2)])) % (
        2 * np.pi
    )
    axes.plot(kinks, np.full(len(kinks), -1.44 * cert.upper), "|", color=QUIET, ms=8)
    for v, mass in zip(cert.primal.theta, cert.primal.mass, strict=True):
        angle = np.arctan2(v[1], v[0]) % (2 * np.pi)
        height = float((data.X @ v).clip(0) @ (np.asarray(cert.dual) * data.y))
        axes.plot(angle, height, "o", color=PLUS if mass > 0 else MINUS, ms=9, mec="white", zorder=3)
    axes.text(6.33, cert.upper, "upper", color=THIRD, va="center")
    axes.text(6.33, -cert.upper, "- upper", color=THIRD, va="center")
    axes.text(6.33, -1.44 * cert.upper, "kinks of g", color=QUIET, va="center", fontsize=9)
    axes.set(
        xlabel="direction v, as an angle", ylabel=r"$g(v) = \sum_i q_i y_i\,\mathrm{relu}(v \cdot x_i)$",
        xlim=(0, 2 * np.pi), ylim=(-1.6 * cert.upper, 1.35 * cert.upper),
    )  # fmt: skip
    axes.set_xticks(np.arange(5) * np.pi / 2, ["0", "π/2", "π", "3π/2", "2π"])
    axes.set_title(
        "no direction leaves the band; the neurons of the best network (dots) touch it", loc="left", fontsize=10.5
    )
    return figure


def main() -> None:
    HERE.mkdir(exist_ok=True)
    data = four_directions()
    f1, f2 = wm.margins.f1(data, tol=1e-8), wm.margins.f2(data, tol=1e-8)
    pictures = {
        "neuron": neuron(data),
        "spaces": spaces(data, f1, f2),
        "dual": dual(data, f1),
        "proof": proof(data, f1),
    }
    for name, figure in pictures.items():
        for ending in ("png", "pdf"):
            figure.savefig(HERE / f"{name}.{ending}", metadata={"CreationDate": None} if ending == "pdf" else None)
    print(f1, f2, f"written to {HERE}", sep="\n")


if __name__ == "__main__":
    main()
