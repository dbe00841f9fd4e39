"""Steepest descent in any norm along runs: the margin in the rule's own norm (WM-5 to WM-7, docs/steepest.md)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from widemargin.types import Dataset

from ._records import UNSEEN, Params, _nearby, never_falls, summed, taken
from ._rooms import flows, losses, margins, torch
from .inequality import Part, check, part
from .track import Track

GEOMETRIES = {"SignDescent": "linf", "CoordinateDescent": "l1", "Spectral": "spectral"}
LOST = 1e3  # what a step costs ln psi that undoes the fit
SYMBOLS = {"linf": "max|w|", "l1": "|w|_1", "spectral": "|w|_op", "l2": "|w|"}


def geometry(track: Track) -> str | None:
    """The norm of a run of steepest descent without momentum and with exact directions; None for others."""
    norm = GEOMETRIES.get(track.rule, track.options.get("norm") if track.rule == "Steepest" else None)
    plain = not track.options.get("momentum") and not track.options.get("iterations")
    return norm if plain and track.problem.loss is not None and len(track.t) > 1 else None


def steepest_run(track: Track) -> Track | None:
    return track if geometry(track) is not None and track.get("step") is not None else None


def _rates(track: Track) -> np.ndarray:
    """The length (T, B) of the step that follows each record."""
    return float(track.options["lr"]) * (track.run["step"] + 1.0) ** -float(track.options["power"])


def _step(track: Track, W: Params, h: np.ndarray, norm: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How far ln psi falls short of its first order (B,) in a step, N of the homogeneous parameters, and that of all."""
    from widemargin.flows import geometry as norms

    problem, decay = track.problem, float(track.options["weight_decay"])
    assert problem.loss is not None
    names, rate = track.net.trained, torch.as_tensor(h)
    p, saved = problem.look(W)
    psi = losses.psi(problem.loss, p)
    grad = problem.pull(W, losses.weights(problem.loss, p, "psi"), saved)
    move = norms.steepest({name: grad[name] for name in names}, norm)
    move = {name: move[name] - decay * W[name] for name in names}
    wide = {name: rate.view(-1, *[1] * (move[name].ndim - 1)) for name in names}
    then = losses.psi(problem.loss, problem.margins(W | {name: W[name] + wide[name] * move[name] for name in names}))
    first = rate * sum((grad[name] * move[name]).flatten(1).sum(1) for name in names)
    short = torch.where(then > 0, first / psi - (then / psi).log(), LOST).where(psi > 0, 0.0)
    own = norms.size({name: W[name] for name in track.net.homogeneous}, norm)
    return short.clamp_min(0).numpy(), own.numpy(), norms.size({name: W[name] for name in names}, norm).numpy()


@check("WM-5", "WM-6", "widemargin, docs/steepest.md", reads=steepest_run)
def own_norm_margin(track: Track, psi: np.ndarray, W: list[Params]) -> Iterator[Part]:
    """psi / N(w)^L never falls along steepest descent in the norm N once fitted, with decoupled decay while N <= 1 / decay"""
    norm, L, decay = geometry(track), track.net.degree, float(track.options["weight_decay"])
    assert norm is not None
    h = _rates(track)
    with torch.no_grad():
        each = [_step(track, Wt, h[k], norm) for k, Wt in enumerate(W)]
    short, own, everything = (np.stack(column) for column in zip(*each))
    if not track.every_step:
        short = UNSEEN * short
    owed = summed(taken(track) * _nearby(np.maximum(short[:-1], short[1:])))
    f = np.log(np.where(psi > 0, psi, np.nan)) - L * np.log(own)
    once = track.fitted & (decay * everything <= 1)
    joined = np.concatenate([once[:1], once[1:] & once[:-1]])
    word = f"psi / {SYMBOLS[norm]}^{L} never falls" + (f" while {SYMBOLS[norm]} <= {1 / decay:.4g}" if decay else "")
    large = np.abs(track.p).max(2) if track.p is not None else np.abs(psi)
    terms = 1 + (large + track.summands) / np.where(psi > 0, psi, np.inf)
    yield part(
        word, **never_falls(f, owed, once, joined, 1.0), id="WM-6" if decay else "WM-5", terms=terms,
        estimated=not track.every_step, note="logarithms of it are compared",
    )  # fmt: skip


@check("WM-7", "widemargin, docs/steepest.md", reads=steepest_run)
def linear_rate(track: Track, margin: np.ndarray, W: list[Params]) -> Part | None:
    """a linear predictor under steepest descent has nearly the largest margin in that norm, at a rate

    The discrete statement: steps of any size, exponential loss, from any start."""
    from widemargin.flows import geometry as norms

    net, norm = track.net, geometry(track)
    linear = isinstance(net, flows.MLP) and net.depth == net.outputs == 1 and track.loss == "exp"
    if not linear or norm is None or track.options["weight_decay"] or len(track.problem.X) > 1:
        return None
    X, y = track.problem.X[0].numpy(), track.problem.y[0].numpy()
    vector = "l2" if norm == "spectral" else norm  # a matrix with one row
    gamma = margins.linear(Dataset(X, y), norm=vector).lower
    radius = {"l2": np.linalg.norm(X, axis=1), "linf": np.abs(X).sum(1), "l1": np.abs(X).max(1)}[vector].max()
    count = int(np.nanmax(track.run["step"]))
    h = float(track.options["lr"]) * np.arange(1.0, count + 1) ** -float(track.options["power"])
    at = track.run["step"].astype(int)
    A, B = (np.concatenate([[0.0], np.cumsum(one)])[at] for one in (h, h**2))  # (T, B)
    A, B = A - A[:1], B - B[:1]  # since the first record, whose psi and norm are the start
    size = np.stack([norms.size(one, norm).numpy() for one in W])
    psi = track.of_p(losses.psi)
    assert psi is not None
    bound = (psi[0] + gamma * A - radius**2 * B / 2) / (size[0] + A)
    return part(
        f"margin / {SYMBOLS[norm]} >= (psi_0 + gamma A - radius^2 B / 2) / (N_0 + A)", bound, margin / size,
        (bound > 0) & (A > 0), terms=np.abs(margin) / size + gamma + radius, numbers={"gamma": gamma, "radius": float(radius)},
    )  # fmt: skip
