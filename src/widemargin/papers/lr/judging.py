"""Verdicts on the rows of Table 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from widemargin.papers.verdicts import NOT_INFORMATIVE, UNDECIDED, Holds, Verdict

from .exponents import ERROR, LEVELS, SLACK, Cells, Exponent, decide, decide_equal, fit
from .own_width import theorem_2_1
from .rows import CHOSEN, CLAIMED, ROWS

ENOUGH = 1.15  # a width, or a number of steps, is enough if a quarter, or twice, of it changes samples by less than this factor


def judge_exponent(row: str, what: str, against: str, exponent: Exponent) -> Verdict:
    """An exponent against the claimed one, by the rule of `decide`."""
    words = {"n": "samples grow", "m": "the width grows", "t": "steps grow"}[what]
    claimed = float(CLAIMED[what][row][0 if against == "d" else 1])
    base = "d" if against == "d" else "(1/eps)"
    holds = decide(exponent, claimed)
    reason = ""
    if holds == UNDECIDED:
        reason = (
            "a test error was not reached with the samples tried, in too many trials"
            if math.isinf(exponent.high)
            else f"the interval has {claimed:g} or {claimed + SLACK:g} inside with {exponent.trials} trials, the most allowed"
        )
    return Verdict(
        f"row {row}, {ROWS[row][0]}: {words} at most like {base}^{claimed:g}",
        exponent.value if math.isfinite(exponent.value) else "not reached",
        ROWS[row][{"m": 2, "n": 3, "t": 4}[what]],
        holds,
        f"[{exponent.low:.2f}, {exponent.high:.2f}]; trials alone [{exponent.sampled[0]:.2f}, {exponent.sampled[1]:.2f}], "
        f"{exponent.trials} of them",
        reason,
        CHOSEN.get(row, ""),
    )


def judge_order(row: str, slow: Cells, fast: Mapping[str, Cells]) -> list[Verdict]:
    """Whether a margin row needs samples that grow more slowly with d than row a's, and fewer at the largest d."""
    ours, theirs = fit(slow), fit(fast["a"])
    grows: Holds = True if ours.high < theirs.low else False if ours.low > theirs.high else UNDECIDED
    verdicts = [
        Verdict(
            f"samples grow more slowly with d in row {row} (margins) than in row a (kernel): the intervals are apart",
            f"{ours.value:.2f} against {theirs.value:.2f}",
            "d/eps against d^2/eps",
            grows,
            f"[{ours.low:.2f}, {ours.high:.2f}] against [{theirs.low:.2f}, {theirs.high:.2f}]",
            "the intervals meet" if grows == UNDECIDED else "",
            CHOSEN["a"],
        )
    ]
    common = sorted(set(slow.d.tolist()) & set(fast["a"].d.tolist()))
    if not common:
        return verdicts
    at = LEVELS.index(ERROR)

    def value(cells: Cells) -> tuple[float, float, float]:
        k = cells.d.tolist().index(common[-1])
        low, high = cells.spread()[:, k, at]
        return float(cells.needed[k, at]), float(low), float(high)

    mine, other = value(slow), min((value(cells) for cells in fast.values()), key=lambda item: item[0])
    fewer: Holds = True if mine[2] < other[1] else False if mine[1] > other[2] else UNDECIDED
    verdicts.append(
        Verdict(
            f"at the largest d = {common[-1]} row {row} needs fewer samples for test error 0.1 than row a at every step tried",
            f"{mine[0]:.0f} against {other[0]:.0f}",
            "d/eps against d^2/eps",
            fewer,
            f"95 percent in [{mine[1]:.0f}, {mine[2]:.0f}] against [{other[1]:.0f}, {other[2]:.0f}]",
            "the intervals meet" if fewer == UNDECIDED else "",
        )
    )
    return verdicts


def judge_limit(d: int, m: int, own: bool, network: np.ndarray, limit: np.ndarray) -> Verdict:
    """Whether the limit in which rows b0 and b1 are run is what a network does: outputs (steps, 2^d) of both."""
    apart = float(np.abs(network - limit).max() / np.abs(limit).max())
    where = "Theorem 2.1's own width" if own else f"{m} neurons (with Theorem 2.1's step times width)"
    return Verdict(
        f"the limit of rows b0 and b1 is the network (ours): at d = {d} and {where} outputs on the cube after {len(network)} "
        "examples are those of the kernel, with the same slopes, up to 1 percent of the largest",
        apart,
        f"width at least (64 ln(t/delta)/gamma)^2, here m = {m:.3g}",
        apart < 0.01,
        chosen_after="the same slopes, after 3.0 percent with their own ones at 2^20 neurons, d = 3, seed 0",
    )


def judge_table(
    samples: Mapping[str, Cells],
    widths: Mapping[str, Cells],
    steps: Mapping[str, Cells],
    rest: float,
    tried: Mapping[str, Mapping[float, Cells]],
    longer: Mapping[str, float],
) -> list[Verdict]:
    """`rest`: by which factor row f needs more samples at a quarter of the width, at its largest d. `tried`: all settings.

    `longer`: by which factor a row that is not supported needs more samples than with twice the steps, at its largest d.
    """
    kernel = fit(samples["a"])
    verdicts = [
        Verdict(
            "the kernel row a really grows like d^2: the whole interval lies within 0.25 of 2",
            kernel.value,
            "d^2/eps, optimal within kernels",
            decide_equal(kernel, 2.0),
            f"[{kernel.low:.2f}, {kernel.high:.2f}]",
            chosen_after=CHOSEN["a"],
        )
    ]
    for row, cells in samples.items():
        for against in ("d", "eps"):
            verdict = judge_exponent(row, "n", against, fit(cells, against))
            if row == "f" and not rest <= ENOUGH:
                reason = f"the width is not large enough: a quarter of it needs {rest:.2f} times the samples at the largest d"
                verdict = replace(verdict, holds=UNDECIDED, reason=reason)
            elif verdict.holds is False and longer.get(row, 1.0) > ENOUGH:  # the claim is about the end of a flow
                reason = f"the flow is not at its end: twice the steps need {1 / longer[row]:.2f} of the samples at the largest d"
                verdict = replace(verdict, holds=UNDECIDED, reason=reason)
            verdicts.append(verdict)
    verdicts.append(_bound_of_theorem(samples["b0"]))
    kernels = {"a": samples["a"]} | {f"a, {step:g}": cells for step, cells in tried.get("a", {}).items()}
    for row in "de":
        verdicts += judge_order(row, samples[row], kernels)
    verdicts += [judge_exponent(row, "m", "d", fit(widths[row])) for row in CLAIMED["m"]]
    for row, most, where in (("a", "d^8", "at every d"), ("f", "d^d", "at all d but the smallest")):
        verdicts.append(
            Verdict(
                f"row {row}, {ROWS[row][0]}: a width of at most {most} is enough at every d",
                ", ".join(f"{m:.3g} at d = {d}" for d, m in zip(widths[row].d, widths[row].needed[:, 0])),
                most,
                NOT_INFORMATIVE,
                reason=f"all widths tried are below {most} {where}: this cannot come out false",
            )
        )
    verdicts += [judge_exponent("c", "t", against, fit(steps["c"], against)) for against in ("d", "eps")]
    return verdicts


def _bound_of_theorem(cells: Cells) -> Verdict:
    """Theorem 2.1's own bound on the steps."""
    share = cells.needed[:, -1] / [theorem_2_1(int(d))["t"] for d in cells.d]
    return Verdict(
        f"row b0: test error {min(LEVELS):g} within the t = (8 ln(1/delta) + 2560/gamma^2)/eps steps of Theorem 2.1 at every d",
        f"at most {share.max():.1e} of t",
        "2560/(t gamma^2) + 8 ln(1/delta)/t",
        NOT_INFORMATIVE,
        reason="t is thousands of times what SGD needs and more than is run: this cannot come out false",
    )


def settled(row: str, what: str, cells: Cells) -> bool:
    """Whether the verdicts on a row's samples, steps or width are decided. Widths are at one test error."""
    powers = zip(("d",) if what == "m" else ("d", "eps"), CLAIMED[what][row])
    words = [decide(fit(cells, against), claimed) for against, claimed in powers]
    words += [decide_equal(fit(cells), 2.0)] if (row, what) == ("a", "n") else []
    return UNDECIDED not in words
