"""UH's reproductions at tiny sizes: files, verdicts, definitions recomputed, and that wrong inputs make verdicts false."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from checks import resize, verdict
from widemargin import data, margins
from widemargin.papers import REPRODUCTIONS, Job, run, uh
from widemargin.papers.verdicts import NOT_INFORMATIVE, UNDECIDED, Holds

TINY: dict[str, dict[str, Any]] = {
    "uh-parity": {
        "f1": ((2, 2), (2, 3)),
        "odd": ((3, 3),),
        "kernels": (2, 4),
        "dims": (3, 4),
        "seeds": 2,
        "width": 8,
        "steps": 8,
    },
    "uh-monotone": {"seeds": 2, "until": 0.8, "steps": (0.2, 0.1), "n": 6, "looks": 3},
    "uh-mirror": {"seeds": 2, "width": 8, "time": 4.0, "steps": (0.4, 0.2, 0.1)},
    "uh-constants": {"shallow": (8, 16), "deep": (8, 16), "seeds": 2, "points": 2},
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    resize(monkeypatch, TINY)


@pytest.mark.parametrize("id", TINY)
def test_reproduction_writes_its_folder(id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second seed takes as long again; tests/papers/test_bn.py runs one.
    monkeypatch.setattr(sys.modules[run.__module__], "_again", lambda one, job, verdicts: verdicts)
    verdicts = run(REPRODUCTIONS[id], tmp_path)
    for name in (f"{id}.png", f"{id}.pdf", "data.npz", "README.md", "settings.json"):
        assert (tmp_path / id / name).stat().st_size > 0
    written = json.loads((tmp_path / id / "verdict.json").read_text())
    assert len(written) == len(verdicts) and any(one.holds for one in verdicts)


def test_exact_parity_margins() -> None:
    assert_allclose(uh.parity.parity_f1(8, 2), 1 / 8)
    assert_allclose(uh.parity.parity_f1(9, 4), 1 / 24)
    assert uh.parity.parity_f1(5, 3) == 0
    assert_allclose(uh.parity.parity_f1(5, 5, bias=True), 0.0367719, rtol=1e-5)
    golden = {(4, "outer"): 0.053281, (8, "outer"): 0.018265, (4, "total"): 0.184632, (8, "total"): 0.080238}
    for (d, part), value in golden.items():
        assert_allclose(uh.parity.parity_kernel_margin(d, 2, part), value, rtol=5e-5)
    cube = data.parity(6, k=4, marginal="full")
    assert_allclose(uh.parity.parity_kernel_margin(6, 4), margins.f2(cube).lower, rtol=1e-5)
    assert_allclose(uh.parity.parity_kernel_margin(6, 4, "total"), margins.ntk(cube, transport="l2").lower, rtol=1e-5)
    assert_allclose(uh.parity.parity_kernel_margin(400, 2), 400**-1.5 / math.sqrt(2 * math.pi), rtol=0.02)


def learners(**powers: float) -> dict[str, np.ndarray]:
    """Fabricated test errors: 1/2, then 0 from d^power / 2 samples on, in three trials that differ by a few percent."""
    dims = (4, 8, 16)
    out: dict[str, np.ndarray] = {"dims": np.array(dims)}
    powers = {"net": 1.0, "biased": 1.0, "kernel": 2.0} | powers
    for d in dims:
        n = np.round(2 * 2 ** (np.arange(27) / 4)).astype(int)
        out[f"n_{d}"] = n
        for who, power in powers.items():
            need = d**power / 2 * np.array([1.0, 1.05, 1.1])
            out[f"{who}_{d}"] = np.where(n[:, None] >= need, 0.0, 0.5)
    return out


@pytest.fixture(scope="module")
def cubes() -> dict[str, np.ndarray]:
    return uh.parity.parity_margins(TINY["uh-parity"])


def test_every_verdict_of_parities(cubes: dict[str, np.ndarray]) -> None:
    found = cubes | learners()

    def holds(claim: str, **other: np.ndarray) -> Holds:
        return verdict(uh.parity.judge_parities(found | other), claim)

    f1, plain = found["f1"], found["odd_plain"]
    printed = 1 / (found["cubes"][:, 0] * np.sqrt(found["cubes"][:, 1]))[:, None]
    solver, kernels, margin, power, odd, bias = (
        "the exact F1", "F2 and tangent", "the F1 margin of k", "the F1 margin of 2", "odd k", "with a bias"
    )  # fmt: skip
    assert [holds(one) for one in (solver, kernels, bias)] == [NOT_INFORMATIVE] * 3
    assert holds(solver, f1=f1 / 2) is False  # M2 passed off as M1
    assert holds(kernels, kernel=found["kernel"] * 1.001) is False
    assert holds(bias, odd_biased=found["odd_biased"] / 2) is False
    assert holds(margin) is False  # E-UH-17
    assert holds(margin, f1=printed * [1.0, 1.1]) is True
    assert holds(margin, f1=printed * [0.9, 1.1]) is UNDECIDED
    assert holds(power) is True
    assert holds(power, f1=f1 * np.array([[1.0], [1.1]])) is False
    assert holds(power, f1=f1 * [0.9, 1.1]) is UNDECIDED
    assert holds(odd) is False  # E-UH-17
    assert holds(odd, odd_plain=plain + np.array([0.1, 0.2])) is True
    assert holds(odd, odd_plain=plain * [1, 0] + np.array([0, 0.2])) is UNDECIDED


def test_exponents_of_kernel_margins_can_be_wrong(
    cubes: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, margin = cubes | learners(), uh.parity.parity_kernel_margin

    def holds() -> list[Holds]:
        return [
            one.holds
            for one in uh.parity.judge_parities(found)
            if "falls as d^(-" in one.claim and "exponent" in one.claim
        ][-4:]

    assert holds() == [True, NOT_INFORMATIVE] * 2  # of both layers; of the output layer, which is not claimed (E-UH-18)
    monkeypatch.setattr(uh.parity, "parity_kernel_margin", lambda d, k, part="outer": margin(d, k, part) * d**0.5)
    assert holds() == [False, False] * 2


@pytest.mark.parametrize(
    ("claim", "cases"),
    [
        ("k = 2, uniform", {True: {}, False: {"net": 2.0}, UNDECIDED: {"net": 1.25}}),
        ("k = 2, biased", {True: {}, False: {"biased": 2.0}, UNDECIDED: {"biased": 1.25}}),
        ("k = 2: samples the tangent", {True: {}, False: {"kernel": 1.0}, UNDECIDED: {"kernel": 1.75}}),
        ("at d = 16", {True: {}, False: {"net": 2.0, "kernel": 1.0}, UNDECIDED: {"net": 2.0}}),
    ],
)
def test_every_verdict_of_samples(claim: str, cases: dict[Holds, dict[str, float]]) -> None:
    for holds, powers in cases.items():
        assert verdict(uh.parity.judge_samples(learners(**powers)), claim) is holds, powers


def test_a_learner_that_does_not_learn_is_not_true() -> None:
    """More samples than were tried count as what was tried, here d^2: too many for the network; nothing is said of the kernel."""
    found = learners(net=9.0, kernel=9.0) | {f"n_{d}": np.linspace(d, d**2, 27) for d in (4, 8, 16)}
    said = uh.parity.judge_samples(found)
    assert verdict(said, "k = 2, uniform") is False
    assert verdict(said, "k = 2: samples the tangent") is UNDECIDED and verdict(said, "at d = 16") is UNDECIDED


def test_first_below_interpolates_in_log_n() -> None:
    n, errors = np.array([10, 40]), np.array([[0.3, 0.05, 0.4], [0.0, 0.0, 0.2]])
    found = uh.parity.first_below(n, errors)
    assert_allclose(found[:2], [10 * 4 ** (2 / 3), 10])
    assert np.isnan(found[2])


@pytest.mark.parametrize("kind", uh.deep_networks.MAPS)
def test_outputs_are_homogeneous_in_the_last_layers_only(kind: str) -> None:
    """f(c w_hat) = c^2 f, while scaling an inner matrix does something else; features are normalised."""
    W = {name: torch.as_tensor(value[0]) for name, value in uh.deep_networks.start(kind, 1, 0).items()}
    x = torch.randn((5, 8) if kind == "resnet" else (5, 4, 8), generator=torch.Generator().manual_seed(0)).double()

    def outputs(W: dict[str, torch.Tensor]) -> torch.Tensor:
        F = uh.deep_networks.MAPS[kind](W, x) * W["gain"]
        return (F + W["shift"] if "shift" in W else F) @ W["head"]

    scaled = {name: 1.7 * value if name in uh.monotone.HATS[kind] else value for name, value in W.items()}
    assert_allclose(outputs(scaled), 1.7**2 * outputs(W), rtol=1e-12)
    other = W | {"E": 1.7 * W["E"]}
    assert float((outputs(other) - 1.7**2 * outputs(W)).abs().max()) > 0.01
    assert_allclose(uh.deep_networks.MAPS[kind](W, x).square().mean(1), np.ones(5), rtol=1e-3)
    p = uh.monotone.soft_margins(kind, W, x, torch.tensor([0, 1, 2, 0, 1]))
    entropy = torch.nn.functional.cross_entropy(outputs(W), torch.tensor([0, 1, 2, 0, 1]), reduction="none")
    assert_allclose(torch.log1p(torch.exp(-p)), entropy, rtol=1e-12)


def monotone(
    rate: float = 0.1, growth: float = 0.1, left: float = 0.25, seeds: int = 3, control: float = 0.5
) -> dict[str, np.ndarray]:
    """Fabricated series at two steps: `seeds` of three fall by 0.1 and 0.1 `left` (and some percent); least rates."""
    found: dict[str, np.ndarray] = {"steps": np.array([0.1, 0.05])}
    for kind in uh.deep_networks.MAPS:
        for h, fall in ((0.1, 0.1), (0.05, 0.1 * left)):
            series = np.ones((3, 3, 4))
            series[1, :, 0] -= fall * np.array([1.0, 1.0 if h == 0.1 else 1.1, 1.0]) * (np.arange(3) < seeds)
            series[2, :, 1] = control
            found[f"{kind}_{h}_series"] = series
            found[f"{kind}_{h}_rates"] = np.tile([rate, -0.1, growth, 0.1], (2, 3, 1))
    return found


@pytest.mark.parametrize("kind", uh.deep_networks.MAPS)
@pytest.mark.parametrize(
    ("claim", "cases"),
    [
        ("psi/|w_hat|^2 does", {True: {}, False: {"rate": -0.01}}),
        ("|w_hat| grows", {True: {}, False: {"growth": -0.01}}),
        ("falls under GD", {True: {}, False: {"left": 0.9}, UNDECIDED: {"seeds": 1}}),
        ("control", {NOT_INFORMATIVE: {}, False: {"control": 1.0}}),
    ],
)
def test_every_verdict_of_monotone_margins(kind: str, claim: str, cases: dict[Holds, dict[str, Any]]) -> None:
    for holds, other in cases.items():
        assert verdict(uh.monotone.judge_monotone(monotone(**other)), f"{kind}: {claim}") is holds, other
    assert verdict(uh.monotone.judge_monotone(monotone(seeds=0)), f"{kind}: falls under GD") is True  # no fall at all


def test_what_is_said_of_monotone_margins_is_measured() -> None:
    """The rate of ln(psi/|w_hat|^2) along the flow from one tiny step, and that wrong powers fall."""
    found = uh.monotone.descend("resnet", 1e-4, TINY["uh-monotone"] | {"until": 2e-4, "looks": 1}, 0, "cpu")
    ahead = np.log(found["series"][1] / found["series"][0]) / 1e-4
    assert_allclose(found["rates"][0], ahead, rtol=0.02, atol=2e-3)


def test_mirror_form_from_definitions() -> None:
    """One step of each, written out; and the flows of three factors agree with their own form only."""
    rng = np.random.default_rng(0)
    Z, u = rng.standard_normal((5, 3)), np.array([0.2, 0.5, 0.3])
    slope = -np.array([Z[i] / (1 + np.exp(Z[i] @ u)) for i in range(5)]).mean(axis=0)  # d risk / du
    assert_allclose(uh.mirror.pull(Z, u), -slope)
    w = np.stack([np.sqrt(u), np.sqrt(u)])
    assert_allclose(uh.mirror.descend_product(Z, w, 0.1, 1)[1, 0], w[0] - 0.1 * slope * w[1])
    assert_allclose(uh.mirror.descend_mirror(Z, u, 0.1, 1, 2, 0.0, 1.0)[1], u * np.exp(-0.2 * slope))


def powers(x: tuple[float, ...], power: float, spread: float = 0.01) -> np.ndarray:
    """x^power in three trials whose exponents differ by `spread`: (k, 3)."""
    return np.array(x)[:, None] ** (power + spread * np.array([-1, 0, 1]))


def mirrored(**other: Any) -> dict[str, np.ndarray]:
    """Fabricated differences at three steps."""
    steps = (0.4, 0.2, 0.1)
    exponents = {"moving": 1.0, "two": 1.0, "drift": 1.0, "three": 1.0, "three_plain": 0.0, "unbalanced": 0.0}
    found = {name: powers(steps, other.get(name, power)) for name, power in exponents.items()}
    return found | {"steps": np.array(steps), "signs": np.array(other.get("signs", [True, True, True]))}


@pytest.mark.parametrize(
    ("claim", "cases"),
    [
        ("moving", {True: {}, False: {"moving": 0.0}, UNDECIDED: {"moving": 0.75}}),
        ("frozen", {True: {}, False: {"two": 0.0}, UNDECIDED: {"two": 0.75}}),
        ("an unbalanced start", {True: {}, False: {"drift": 0.0}, UNDECIDED: {"drift": 0.75}}),
        ("three factors in the form", {True: {}, False: {"three_plain": 1.0}, UNDECIDED: {"three_plain": 0.25}}),
        ("three factors, factor", {NOT_INFORMATIVE: {}, False: {"three": 0.0}}),
        ("control", {NOT_INFORMATIVE: {}, False: {"unbalanced": 1.0}}),
        ("signs", {NOT_INFORMATIVE: {}, False: {"signs": [True, True, False]}}),
    ],
)
def test_every_verdict_of_the_mirror_flow(claim: str, cases: dict[Holds, dict[str, Any]]) -> None:
    for holds, other in cases.items():
        assert verdict(uh.mirror.judge_mirror(mirrored(**other)), claim) is holds, other


def test_the_mirror_flow_at_a_tiny_size() -> None:
    said = uh.mirror.judge_mirror(dict(uh.mirror.reproduce(Job()).data))
    assert [one.holds for one in said] == [True] * 4 + [NOT_INFORMATIVE] * 3


def test_constants_against_their_definition() -> None:
    """C1 and C2 of a tiny transformer from gradients one by one; of the shallow net from the closed form."""
    found = uh.constants.deep_constants("transformer", 4, 1, 2, 0, "cpu")
    W = uh.deep_networks.start("transformer", 1, 0, 4, 8)
    inner = list(uh.deep_networks.shapes("transformer", 4, 8))
    x = torch.as_tensor(
        np.random.default_rng([0, 2]).standard_normal((2, uh.deep_networks.TOKENS, uh.deep_networks.INPUTS))
    )
    P = {name: torch.as_tensor(W[name][0]).requires_grad_() for name in inner}
    for which in ("standard", "ntk"):
        rows = []
        for i in range(2):
            for j in range(4):
                g = torch.autograd.grad(uh.deep_networks.transformer(P, x)[i, j], list(P.values()))
                scale = [math.sqrt(one.shape[0]) if one.dim() == 2 and which == "ntk" else 1.0 for one in P.values()]
                rows.append(torch.cat([one.flatten() / by for one, by in zip(g, scale)]))
        gram = (torch.stack(rows) @ torch.stack(rows).mT).abs().reshape(2, 4, 2, 4).amax((0, 2)).numpy()
        assert_allclose(found[f"C1_{which}"][0], gram.diagonal().max(), rtol=1e-10)
        assert_allclose(found[f"C2_{which}"][0], (gram - np.diag(gram.diagonal())).max(), rtol=1e-10)
    shallow = uh.constants.shallow_constants((8,), 1, 0)
    assert_allclose(shallow["shallow_C1_autodiff"], shallow["shallow_C1"][0, 0, 0], rtol=1e-12)
    assert shallow["shallow_C2"] == 0


def constants(**other: Any) -> dict[str, np.ndarray]:
    """Fabricated constants at three widths."""
    m = (8, 16, 32)
    shallow = np.repeat(powers(m, other.get("C1", 0.0), other.get("spread", 0.001))[:, :, None], 2, axis=2)
    found = {
        "shallow_widths": np.array(m),
        "widths": np.array(m),
        "shallow_C1": shallow * other.get("most", 1.0) / shallow.max(),
        "shallow_C2": np.array(other.get("C2", 0.0)),
        "wanted": np.array(1e-6),
    }
    for kind in uh.deep_networks.DEEP:
        for which in ("ntk", "standard"):
            found |= {f"{kind}_C1_{which}": powers(m, 0.0), f"{kind}_C2_{which}": powers(m, other.get(kind, -0.5))}
    return found


DEEP_CASES = [
    (f"{kind}, ntk", {True: {}, False: {kind: 0.0}, UNDECIDED: {kind: -0.1}}) for kind in ("resnet", "transformer", "many heads")
]  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "cases"),
    [
        ("shallow: C2", {NOT_INFORMATIVE: {}, False: {"C2": 0.1}}),
        ("shallow: C1 <=", {NOT_INFORMATIVE: {}, False: {"most": 1.4}}),
        ("shallow: C1 falls", {True: {"C1": -0.5}, False: {}, UNDECIDED: {"C1": -0.05}}),
        ("resnet, standard", {NOT_INFORMATIVE: {}}),
        ("transformer, standard", {NOT_INFORMATIVE: {}}),
        ("a deep network here", {NOT_INFORMATIVE: {}}),
        *DEEP_CASES,
    ],
)
def test_every_verdict_of_the_constants(claim: str, cases: dict[Holds, dict[str, Any]]) -> None:
    for holds, other in cases.items():
        assert verdict(uh.constants.judge_constants(constants(**other)), claim) is holds, other


def test_heads_of_attention() -> None:
    """Two heads are heads of half the width each, and four heads are another network."""
    W = {name: torch.as_tensor(value[0]) for name, value in uh.deep_networks.start("transformer", 1, 0, 16, 32).items()}
    x = torch.randn((3, 4, 8), generator=torch.Generator().manual_seed(0)).double()
    assert_allclose(uh.deep_networks.transformer(W, x), uh.deep_networks.transformer(W, x, 8))
    assert float((uh.deep_networks.transformer(W, x) - uh.deep_networks.DEEP["many heads"](W, x)).abs().max()) > 1e-3
