"""Many steps of a rule at little cost per step: in pieces that fit the cache on a CPU, as a replayed CUDA graph on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch

from .contract import Rule, State, each
from .nets import Params
from .own_parts import begun, stepped
from .problem import Problem

T = TypeVar("T")

WARM = 3  # steps taken before recording: kernels compile and libraries set themselves up
CACHE = 150_000  # activations (trials * points * neurons) worked on at once on a CPU


class Stepper:
    """Takes steps of `rule` for all trials. Trials do not know of each other, so the pieces change nothing but the speed.

    A rule whose steps neither ask the host nor depend on Python numbers that change (`rule.graph`) is recorded on a GPU after
    a few ordinary steps. Replays run the same kernels, so the results are those of ordinary steps.
    """

    def __init__(self, problem: Problem, rule: Rule, W: Params, state: State | None = None, graph: bool | None = None):
        self.problem, self.rule = problem, rule
        self.wanted = (problem.X.is_cuda and rule.graph) if graph is None else graph
        self.load(W, begun(rule, problem, W) if state is None else state)

    def load(self, W: Params, state: State) -> None:
        """Go on from here."""
        self.graph: Any = None
        self.taken = 0
        trials = len(next(iter(W.values())))
        size = max(1, CACHE // (self.problem.n * self.problem.net.m))
        if self.problem.X.is_cuda or trials <= size:
            self.parts = [(self.problem, dict(W), state)]
            return
        cuts = [slice(i, i + size) for i in range(0, trials, size)]
        self.parts = [
            (_piece(self.problem, cut, trials), _slice(W, cut, trials), _slice(state, cut, trials)) for cut in cuts
        ]

    @property
    def W(self) -> Params:
        return _join([part[1] for part in self.parts])

    @property
    def state(self) -> State:
        return _join([part[2] for part in self.parts])

    def __call__(self, steps: int = 1) -> None:
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
                problem, W, state = self.parts[0]
                self.parts = [
                    (problem, W, replace(state, step=state.step + 1))
                ]  # the tensors are those of the recording
                continue
            self.parts = [(problem, *stepped(self.rule, problem, W, state)) for problem, W, state in self.parts]
            self.taken += 1
            if self.wanted and self.taken == WARM:
                self._record()

    def _record(self) -> None:
        problem, W, state = self.parts[0]
        W, state = each(torch.clone, W), each(torch.clone, state)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            moved, after = self.rule.step(problem, W, state)
            for old, new in ((W, moved), (state, after)):
                each(lambda here, value: here if value is here else here.copy_(value), old, new)
        self.parts, self.graph = [(problem, W, state)], graph


def _slice(values: T, cut: slice, trials: int) -> T:
    return each(lambda v: v[cut] if v.dim() and len(v) == trials else v, values)


def _piece(problem: Problem, cut: slice, trials: int) -> Problem:
    """The problem of some trials only: data of their own is cut too."""
    X = problem.X if len(problem.X) == 1 else problem.X[cut]
    y = problem.y if len(problem.y) == 1 else problem.y[cut]
    return replace(problem, X=X, y=y)


def _join(parts: list[T]) -> T:
    if len(parts) == 1:
        return parts[0]
    return each(lambda *pieces: torch.cat(pieces) if pieces[0].dim() else pieces[0], *parts)
