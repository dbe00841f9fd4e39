"""BN's figure and propositions at tiny sizes: files, verdicts, and that wrong inputs make verdicts false."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from widemargin import data, margins
from widemargin.margins.batchnorm import adam_reference
from widemargin.papers import REPRODUCTIONS, Job, bn, run
from widemargin.papers.reproduction import HOLDS
from widemargin.types import InputError

TINY = {
    "bn-1": {"n": 24, "widths": (48, 96, 192), "seeds": 3, "steps": 200, "moved": 48},
    "bn-dyadic": {"dims": (2, 4, 6, 8), "width": 512, "seeds": 2},
    "bn-movement": {"widths": (16, 64, 256), "seeds": 3, "steps": 40, "n": 16, "d": 6},
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setitem(bn.SIZES, "quick", TINY)


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file like CIFAR-10's with 60 small random images, half of them brighter on one side."""
    rng = np.random.default_rng(0)
    labels = np.tile(np.array([3, 5], dtype=np.uint8), 30)
    pictures = rng.integers(0, 200, (60, 4, 4, 3)).astype(np.uint8)
    pictures[labels == 5, :2] += 55
    np.savez(
        tmp_path / "images.npz", train_images=pictures, train_labels=labels, test_images=pictures, test_labels=labels
    )
    monkeypatch.setenv("WIDEMARGIN_CIFAR10", str(tmp_path / "images.npz"))


def check_folder(folder: Path, id: str) -> None:
    """The figure, the data, the settings and the verdicts are there and can be read."""
    for name in (f"{id}.png", f"{id}.pdf", "data.npz", "README.md"):
        assert (folder / name).stat().st_size > 0
    assert json.loads((folder / "settings.json").read_text())["id"] == id
    verdicts = json.loads((folder / "verdict.json").read_text())
    assert verdicts and all(one["holds"] in HOLDS for one in verdicts)


@pytest.mark.parametrize("id", TINY)
def test_reproduction_writes_its_folder(id: str, tmp_path: Path, images: None) -> None:
    verdicts = run(REPRODUCTIONS[id], tmp_path)
    check_folder(tmp_path / id, id)
    assert any(one.holds for one in verdicts)
    if id == "bn-dyadic":
        again = run(REPRODUCTIONS[id], tmp_path)  # from what was kept
        assert [one.to_dict() for one in again] == [one.to_dict() for one in verdicts]


def test_without_the_images_the_sentence_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WIDEMARGIN_CIFAR10", raising=False)
    with pytest.raises(InputError, match="WIDEMARGIN_CIFAR10"):
        run(REPRODUCTIONS["bn-1"], tmp_path)


def test_adam_is_that_of_the_margins_room() -> None:
    """All seeds and rates at once are the networks of `adam_reference` one by one, up to float32."""
    sets = [data.parity(5, 14, seed=s, marginal="subset") for s in range(2)]
    found = bn.reference(sets, 40, 60, 3, "cpu")
    for s, one in enumerate(sets):
        for r, rate in enumerate(bn.RATES):
            for part in ("a", "c"):
                expected = adam_reference(one, 40, part=part, steps=60, lr=rate, seed=3, trial=s).margin
                assert_allclose(found[f"adam_{part}"][s, r], expected, rtol=1e-3, atol=1e-5)


def test_verdicts_of_figure_1_can_fail(images: None) -> None:
    found = dict(bn.figure_1(Job()).data)
    found["gamma_c"] = found["gamma_c"] / 10  # networks this narrow have a large gamma_c
    found["adam_c"] = found["adam_c"] / 10
    good = {one.claim[:12]: one.holds for one in bn.judge_figure_1(found, 200)}
    assert good["Adam's margi"] is True and good["gamma_a carr"] is True
    swapped = found | {
        "adam_a": found["adam_c"],
        "adam_c": found["adam_a"],
    }  # the a-network passed off as the c-network
    assert any(one.holds is False and one.claim.startswith("Adam's margins") for one in bn.judge_figure_1(swapped, 200))
    exchanged = found | {"gamma_a": found["gamma_c"], "gamma_c": found["gamma_a"]}
    assert any(
        one.holds is False and one.claim.startswith("gamma_a carries") for one in bn.judge_figure_1(exchanged, 200)
    )
    backwards = {name: values[::-1] for name, values in found.items()}
    assert any(one.holds is False and "rises" in one.claim for one in bn.judge_figure_1(backwards, 200))


def test_dyadic_row_against_definitions_and_golden_values() -> None:
    row = bn.dyadic_row(4, 256, 2, 0)
    assert_allclose(row["linear"], 0.0542326, rtol=1e-6)
    assert_allclose(row["sign"] / row["linear"], 1.11773, rtol=1e-5)
    assert_allclose(bn.dyadic_row(6, 64, 1, 0)["sign"] / math.sqrt(3 / (4**7 - 4)), 1.34750, rtol=1e-5)
    assert (
        row["sign_finite"] <= row["gamma_a"][:, 1]
    ).all()  # the best weights are at least as good as those of the proof
    assert_allclose(row["gamma_a"][0, 0], margins.batchnorm(data.dyadic(4), 256, part="a").lower)


def test_verdicts_of_the_dyadic_set_can_fail() -> None:
    found = dict(bn.dyadic(Job()).data)
    assert [one.holds for one in bn.judge_dyadic(found)].count(False) == 0
    wrong = found | {"sign": found["sign"] / 100, "gamma_a": found["gamma_a"] / 100}  # without the factor sqrt(d)/40
    assert [one.holds for one in bn.judge_dyadic(wrong)].count(False) == 2


def test_verdicts_of_movement_can_fail() -> None:
    found = dict(bn.movement(Job()).data)
    m = found["widths"][:, None, None]
    fast = {name: values * m**0.5 if name in ("SGD", "GD") else values for name, values in found.items()}
    assert sum(one.holds is False for one in bn.judge_movement(fast)) >= 2
    assert all(
        one.holds is not False
        for one in bn.judge_movement(found | {"SGD": 0 * m + 1.0 + 0 * found["SGD"]})
        if "SGD:" in one.claim
    )


def test_slope_finds_an_exponent_and_its_error() -> None:
    rng = np.random.default_rng(0)
    x = np.array([1.0, 2.0, 4.0, 8.0])
    exact = slope_of(x, np.ones(5), 0.0, rng)
    assert_allclose(exact, (0.3, 0.0), atol=1e-12)
    power, half = slope_of(x, np.ones(400), 0.1, rng)
    assert abs(power - 0.3) < half < 0.02  # one fixed seed; the interval covers in 95% of them


def slope_of(x: np.ndarray, trials: np.ndarray, noise: float, rng: np.random.Generator) -> tuple[float, float]:
    return bn.slope(x, x[:, None] ** 0.3 * np.exp(noise * rng.standard_normal((len(x), len(trials)))))
