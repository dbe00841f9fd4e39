"""UH's reproductions at tiny sizes: files, verdicts, definitions recomputed, and that wrong inputs make verdicts false."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from widemargin import data, margins
from widemargin.papers import REPRODUCTIONS, Job, run, uh

TINY: dict[str, dict[str, Any]] = {
    "uh-parity": {
        "f1": ((2, 2), (2, 3)),
        "odd": ((3, 3),),
        "sub": (2, 3, 1),
        "kernels": (2, 4),
        "dims": (4, 6),
        "seeds": 2,
        "width": 20,
        "steps": 25,
    },
    "uh-monotone": {"seeds": 2, "until": 1.2, "steps": (0.2, 0.1), "n": 8, "looks": 3},
    "uh-mirror": {"seeds": 2, "width": 8, "time": 4.0, "steps": (0.4, 0.2, 0.1)},
    "uh-constants": {"shallow": (8, 16), "deep": (8, 16), "seeds": 2, "points": 2},
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setitem(uh.SIZES, "quick", TINY)


@pytest.mark.parametrize("id", TINY)
def test_reproduction_writes_its_folder(id: str, tmp_path: Path) -> None:
    verdicts = run(REPRODUCTIONS[id], tmp_path)
    for name in (f"{id}.png", f"{id}.pdf", "data.npz", "README.md", "settings.json"):
        assert (tmp_path / id / name).stat().st_size > 0
    written = json.loads((tmp_path / id / "verdict.json").read_text())
    assert len(written) == len(verdicts) and any(one.holds for one in verdicts)


def test_exact_parity_margins() -> None:
    assert_allclose(uh.parity_f1(8, 2), 1 / 8)
    assert_allclose(uh.parity_f1(9, 4), 1 / 24)
    assert uh.parity_f1(5, 3) == 0
    assert_allclose(uh.parity_f1(5, 5, bias=True), 0.0367719, rtol=1e-5)
    golden = {(4, "outer"): 0.053281, (8, "outer"): 0.018265, (4, "total"): 0.184632, (8, "total"): 0.080238}
    for (d, part), value in golden.items():
        assert_allclose(uh.parity_kernel_margin(d, 2, part), value, rtol=5e-5)
    cube = data.parity(6, k=4, marginal="full")
    assert_allclose(uh.parity_kernel_margin(6, 4), margins.f2(cube).lower, rtol=1e-5)
    assert_allclose(uh.parity_kernel_margin(6, 4, "total"), margins.ntk(cube, transport="l2").lower, rtol=1e-5)
    assert_allclose(uh.parity_kernel_margin(400, 2), 400**-1.5 / math.sqrt(2 * math.pi), rtol=0.02)


def test_verdicts_of_parities_can_fail() -> None:
    samples = {"dims": np.array([4, 6])}
    samples |= {f"n_{d}": np.array([d]) for d in (4, 6)}
    samples |= {f"{who}_{d}": np.zeros((1, 2)) for who in ("net", "kernel") for d in (4, 6)}
    found = uh.parity_margins(TINY["uh-parity"], 0) | samples
    by = {one.claim[:22]: one.holds for one in uh.judge_parities(found)}
    assert by["the exact F1 values of"] is True
    assert by["the F1 margin of k bit"] is False  # E-UH-17
    wrong = found | {"f1": found["f1"] / 2}  # M2 passed off as M1
    assert next(one for one in uh.judge_parities(wrong) if one.claim.startswith("the exact F1")).holds is False
    n = np.array([4, 8, 16, 32, 64])

    def learner(power: float) -> dict[str, np.ndarray]:
        """Test errors 1/2, then 0 from 2^-1 d^power samples on."""
        out: dict[str, np.ndarray] = {}
        for d in (4, 8):
            out |= {f"n_{d}": n, f"x_{d}": np.repeat(np.where(n >= d**power / 2, 0.0, 0.5)[:, None], 2, axis=1)}
        return out

    one, two = learner(1), learner(2)
    both = {"dims": np.array([4, 8])} | {key: value for key, value in one.items() if key.startswith("n_")}
    good = both | {f"net_{d}": one[f"x_{d}"] for d in (4, 8)} | {f"kernel_{d}": two[f"x_{d}"] for d in (4, 8)}
    assert [verdict.holds for verdict in uh.judge_samples(good)] == [True, True, True]
    bad = both | {f"net_{d}": two[f"x_{d}"] for d in (4, 8)} | {f"kernel_{d}": one[f"x_{d}"] for d in (4, 8)}
    assert [verdict.holds for verdict in uh.judge_samples(bad)] == [False, False, False]


def test_first_below_interpolates_in_log_n() -> None:
    n, errors = np.array([10, 40]), np.array([[0.3, 0.05, 0.4], [0.0, 0.0, 0.2]])
    found = uh.first_below(n, errors)
    assert_allclose(found[:2], [10 * 4 ** (2 / 3), 10])
    assert np.isnan(found[2])


@pytest.mark.parametrize("kind", uh.MAPS)
def test_outputs_are_homogeneous_in_the_last_layers_only(kind: str) -> None:
    """f(c w_hat) = c^2 f, while scaling an inner matrix does something else; features are normalised."""
    W = {name: torch.as_tensor(value[0]) for name, value in uh.start(kind, 1, 0).items()}
    x = torch.randn((5, 8) if kind == "resnet" else (5, 4, 8), generator=torch.Generator().manual_seed(0)).double()

    def outputs(W: dict[str, torch.Tensor]) -> torch.Tensor:
        F = uh.MAPS[kind](W, x) * W["gain"]
        return (F + W["shift"] if "shift" in W else F) @ W["head"]

    scaled = {name: 1.7 * value if name in uh.HATS[kind] else value for name, value in W.items()}
    assert_allclose(outputs(scaled), 1.7**2 * outputs(W), rtol=1e-12)
    other = W | {"E": 1.7 * W["E"]}
    assert float((outputs(other) - 1.7**2 * outputs(W)).abs().max()) > 0.01
    assert_allclose(uh.MAPS[kind](W, x).square().mean(1), np.ones(5), rtol=1e-3)
    p = uh.soft_margins(kind, W, x, torch.tensor([0, 1, 2, 0, 1]))
    entropy = torch.nn.functional.cross_entropy(outputs(W), torch.tensor([0, 1, 2, 0, 1]), reduction="none")
    assert_allclose(torch.log1p(torch.exp(-p)), entropy, rtol=1e-12)


def test_verdicts_of_monotone_margins_can_fail() -> None:
    found = dict(uh.monotone(Job()).data)
    wrong = {
        name: values[:, :, [1, 0, 2, 3]] if "series" in name or "rates" in name else values
        for name, values in found.items()
    }  # the wrong power passed off as the right one
    for name in wrong:
        if "rates" in name:
            wrong[name] = wrong[name] - 1.0
        if "series" in name:  # after a long time it falls
            wrong[name] = wrong[name].copy()
            wrong[name][:, :, 0] *= np.linspace(1, 0.01, len(wrong[name]))[:, None]
    holds = [one.holds for one in uh.judge_monotone(wrong) if "control" not in one.claim]
    assert holds.count(False) >= 4


def test_mirror_form_from_definitions() -> None:
    """One step of each, written out; and the flows of three factors agree with their own form only."""
    rng = np.random.default_rng(0)
    Z, u = rng.standard_normal((5, 3)), np.array([0.2, 0.5, 0.3])
    slope = -np.array([Z[i] / (1 + np.exp(Z[i] @ u)) for i in range(5)]).mean(axis=0)  # d risk / du
    assert_allclose(uh.pull(Z, u), -slope)
    w = np.stack([np.sqrt(u), np.sqrt(u)])
    assert_allclose(uh.descend_product(Z, w, 0.1, 1)[1, 0], w[0] - 0.1 * slope * w[1])
    assert_allclose(uh.descend_mirror(Z, u, 0.1, 1, 2, 0.0, 1.0)[1], u * np.exp(-0.2 * slope))


def test_verdicts_of_the_mirror_flow_can_fail() -> None:
    found = dict(uh.mirror(Job()).data)
    assert all(one.holds for one in uh.judge_mirror(found))
    wrong = found | {
        "two": found["unbalanced"],
        "unbalanced": found["two"],
    }  # an unbalanced start passed off as balanced
    assert [one.holds for one in uh.judge_mirror(wrong)].count(False) == 2


def test_constants_against_their_definition() -> None:
    """C1 and C2 of a tiny transformer from gradients one by one; of the shallow net from the closed form."""
    found = uh.deep_constants("transformer", 4, 1, 2, 0, "cpu")
    W = uh.start("transformer", 1, 0, 4, 8)
    inner = list(uh.shapes("transformer", 4, 8))
    x = torch.as_tensor(np.random.default_rng([0, 2]).standard_normal((2, uh.TOKENS, uh.INPUTS)))
    P = {name: torch.as_tensor(W[name][0]).requires_grad_() for name in inner}
    for which in ("standard", "ntk"):
        rows = []
        for i in range(2):
            for j in range(4):
                g = torch.autograd.grad(uh.transformer(P, x)[i, j], list(P.values()))
                scale = [math.sqrt(one.shape[0]) if one.dim() == 2 and which == "ntk" else 1.0 for one in P.values()]
                rows.append(torch.cat([one.flatten() / by for one, by in zip(g, scale)]))
        gram = (torch.stack(rows) @ torch.stack(rows).mT).abs().reshape(2, 4, 2, 4).amax((0, 2)).numpy()
        assert_allclose(found[f"C1_{which}"][0], gram.diagonal().max(), rtol=1e-10)
        assert_allclose(found[f"C2_{which}"][0], (gram - np.diag(gram.diagonal())).max(), rtol=1e-10)
    shallow = uh.shallow_constants((8,), 1, 0)
    assert_allclose(shallow["shallow_C1_autodiff"], shallow["shallow_C1"][0, 0, 0], rtol=1e-12)
    assert shallow["shallow_C2"] == 0


def test_verdicts_of_the_constants_can_fail() -> None:
    found = dict(uh.constants(Job()).data)
    wrong = found | {"shallow_C1": 2 * found["shallow_C1"], "shallow_C2": np.array(0.1)}  # points of norm 1.4
    assert [one.holds for one in uh.judge_constants(wrong)][:2] == [False, False]
