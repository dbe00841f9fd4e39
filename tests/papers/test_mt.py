"""The reproductions of MT at a tiny scale, what they are made of, and that their verdicts can fail."""

import json
import math

import numpy as np
import pytest
import torch

from widemargin import flows, margins
from widemargin.data import mt_distribution, mt_one_dimensional
from widemargin.papers import UNDECIDED, Job, find, mt, run, wideresnet
from widemargin.spaces import ReLU
from widemargin.types import InputError, Measure

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = {
    "mt-1": {"n": 60},
    "mt-2": {"n": 6, "m": 10, "trials": 2, "inner": 100, "rungs": 6},
    "mt-3": {"ns": (20, 30), "trials": 2, "m": 10, "rungs": 2, "steps": 60, "limit": 0.1},
    "mt-gap": {"ds": (3, 4), "ns": (36, 64), "seeds": 2, "limit": 0.5},
    "mt-regression-gap": {"d": 3, "ns": (5, 10), "draws": 200, "l1": 1, "limit": 0.3},
    "mt-table1": {"train": 60, "test": 40, "epochs": 2, "depth": 10, "widen": 1, "batch": 20, "seeds": 1},
}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(mt, "SIZES", {id: {"quick": size, "paper": size} for id, size in TINY.items()})


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A file with the shape of CIFAR-10 whose classes differ in brightness."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 60), ("test", 40)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        noise = rng.integers(0, 20, (count, 32, 32, 3))
        arrays |= {
            f"{part}_images": (20 * labels[:, None, None, None] + noise).astype(np.uint8),
            f"{part}_labels": labels,
        }
    np.savez(tmp_path / "images.npz", **arrays)
    monkeypatch.setenv(wideresnet.VARIABLE["cifar10"], str(tmp_path / "images.npz"))
    return arrays


@pytest.mark.parametrize("id", list(TINY))
def test_a_tiny_run_writes_everything(id, tiny, images, tmp_path):
    verdicts = run(find([id])[0], tmp_path)
    folder = tmp_path / id
    written = json.loads((folder / "verdict.json").read_text())
    assert len(written) == len(verdicts) > 1
    assert all(one["claim"] and one["paper"] for one in written)
    assert all(one["reason"] for one in written if one["holds"] == "undecided")
    assert (folder / "figure.png").stat().st_size > 10_000
    assert (folder / "figure.pdf").is_file()
    assert json.loads((folder / "settings.json").read_text())["settings"]
    with np.load(folder / "data.npz") as data:
        assert len(data.files) > 2


def test_what_was_kept_is_not_computed_again(tiny, tmp_path, monkeypatch):
    job = Job(folder=tmp_path)
    first = mt.regression_gap(job)
    monkeypatch.setattr(mt.margins, "min_norm_l1", lambda *args, **keys: pytest.fail("it was computed again"))
    again = mt.regression_gap(job)
    assert [verdict.measured for verdict in again.verdicts] == [verdict.measured for verdict in first.verdicts]


# ---------------------------------------------------------------- Figures 1 and 2


@pytest.mark.parametrize("d", [2, 3, 10])
def test_four_relus_have_the_margin_of_lemma_d1(d):
    assert mt.four_relus(d).margin(mt_distribution(d, 50, reject=False)) == pytest.approx(math.sqrt(2) / 4, rel=1e-14)
    assert mt.four_relus(d).norm == pytest.approx(1)


def test_largest_correlation_against_a_grid():
    rng = np.random.default_rng(3)
    for _ in range(5):
        Z, c = np.column_stack([rng.uniform(-1, 1, 9), np.ones(9)]), rng.standard_normal(9)
        angle = np.linspace(0, 2 * math.pi, 100_001)
        grid = np.abs((np.column_stack([np.cos(angle), np.sin(angle)]) @ Z.T).clip(0) @ c).max()
        exact = mt.largest_correlation(Z, c)
        assert grid <= exact * (1 + 1e-12)
        assert exact <= grid * (1 + 1e-7)


def test_dual_value_is_below_the_objective_of_any_network():
    data = mt_one_dimensional(9)
    Z = np.hstack([data.X, np.ones((9, 1))])
    rng = np.random.default_rng(0)
    for lam in (1e-1, 1e-3, 1e-6):
        bounds, values = [], []
        for _ in range(20):
            a, V = 3 * rng.standard_normal(6), 3 * rng.standard_normal((6, 2))
            p = data.y * ((Z @ V.T).clip(0) @ a)
            values.append(np.logaddexp(0, -p).mean() + lam * ((a**2).sum() + (V**2).sum()))
            bounds.append(mt.dual_value(Z, data.y, p, lam))
        assert max(bounds) <= min(values)


@pytest.mark.slow
def test_the_path_reaches_the_certified_margin_and_the_dual_bound():
    data = mt_one_dimensional(10)
    cert = margins.f1(data, bias=True, tol=1e-5)
    found = mt.regularized_path(data, flows.TwoLayer(2, 30), np.geomspace(1e-1, 1e-14, 8), 3, 400, 0)
    assert 0.99 * cert.lower / 2 < found["margin"][-1] <= cert.upper / 2
    assert (found["objective"] >= found["bound"]).all()
    assert (found["objective"] <= 1.01 * found["bound"]).all()
    # margin and norm from the definition
    net = Measure.from_network(found["V"][-1], found["a"][-1], bias=True)
    size = (found["a"][-1] ** 2).sum() + (found["V"][-1] ** 2).sum()
    assert (data.y * net(data.X)).min() / size == pytest.approx(found["margin"][-1], rel=1e-9)
    assert found["norm"][-1] ** 2 == pytest.approx(size, rel=1e-9)


def test_output_layer_training_passed_off_as_both_layers_fails():
    data = mt_one_dimensional(10)
    cert = margins.f1(data, bias=True, tol=1e-5)
    lambdas = np.geomspace(1e-1, 1e-10, 3)
    found = mt.regularized_path(data, flows.TwoLayer(2, 40, train="output"), lambdas, 2, 200, 0)
    size = (found["a"] ** 2).sum(1) + (found["V"] ** 2).sum((1, 2))
    Z = np.hstack([data.X, np.ones((10, 1))])
    f = np.einsum("rnm,rm->rn", np.einsum("nd,rmd->rnm", Z, found["V"]).clip(0), found["a"])
    found |= {
        "margin": (data.y * f).min(1) / size,
        "f1": np.array([cert.lower, cert.upper]),
        "grid": np.array([1.0, 1.0]),
    }
    x = np.linspace(-1, 1, 50)
    svm = cert.primal(x[:, None])
    verdicts = mt.verdicts_2(found, np.full(3, -1.0), 0 * x, svm)
    assert verdicts[0].holds is False  # margin
    assert verdicts[3].holds is False  # functions


# ---------------------------------------------------------------- Figure 3


def test_net_and_kernel_rows_from_the_definitions():
    from widemargin.data import mt_teacher

    data, held = mt_teacher(5, 30, seed=1), mt_teacher(5, 500, seed=1, sample=1)
    K = ReLU().kernel(data.X)
    ours = mt._kernel_row(data, held, False)
    b = np.asarray(margins.f2(data).extra["alpha"]) * data.y
    assert (data.y * (K @ b)).min() / math.sqrt(b @ K @ b) == pytest.approx(ours[1], rel=1e-6)
    assert 0 < ours[0] < 0.5
    assert ours[2] == pytest.approx(2 * math.sqrt(2) / ours[1] * np.linalg.norm(data.X) / (30 * math.sqrt(5)))
    smooth = mt_teacher(5, 30, seed=1, regression=True)
    smooth_held = mt_teacher(5, 500, seed=1, regression=True, sample=1)
    b = np.linalg.solve(K := ReLU().kernel(smooth.X), smooth.y)
    wrong = ReLU().kernel(smooth_held.X, smooth.X) @ b - smooth_held.y
    row = mt._kernel_row(smooth, smooth_held, True)
    np.testing.assert_allclose(row[:2], [(wrong**2).mean(), math.sqrt(b @ K @ b)], rtol=1e-5)


def test_teacher_is_its_own_net_row():
    from widemargin.data import mt_teacher, teacher_network

    W, a = teacher_network(20, 6, 4)
    data, held = (mt_teacher(20, 50, seed=4, sample=k) for k in (0, 1))
    error, margin, leading, fit = mt._net_row(Measure.from_network(W, a), data, held, False)
    assert error == 0
    assert fit >= 0.1  # the margin by which points were rejected
    assert margin == pytest.approx(fit / 12)  # norm 6, and half for M2
    assert leading == pytest.approx(6 / margin * math.sqrt((data.X**2).sum() / 50 / 50))


def fake_figure_3(net: np.ndarray, kernel: np.ndarray, ns: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shake = 1 + 0.01 * rng.standard_normal((8, len(ns)))
    return {
        "net_error": net * shake,
        "kernel_error": kernel * shake[::-1],
        "net_bound": ns**-0.5 * shake,
        "kernel_bound": np.ones((8, len(ns))),
        "net_value": 0.1 * shake,
        "certified": np.array([0 * ns + 0.2, 0 * ns + 0.3]),
    }


def test_figure_3_verdicts_hold_and_fail():
    ns = np.array([50, 100, 200, 400])
    low, high = 0.3 * (ns / 50.0) ** -1, 0.3 * (ns / 50.0) ** -0.3
    right = mt.verdicts_3("regression", ns, fake_figure_3(low, high, ns))
    assert [one.holds for one in right] == [True] * 5
    swapped = mt.verdicts_3("regression", ns, fake_figure_3(high, low, ns))
    assert [one.holds for one in swapped][:2] == [False, False]
    falling = fake_figure_3(low, high, ns)
    falling["kernel_bound"] = falling["net_bound"]
    assert mt.verdicts_3("classification", ns, falling)[3].holds is False


# ---------------------------------------------------------------- the gaps


def test_kernel_margins_passed_off_as_l1_margins_fail():
    ds, ns = np.array([4, 8]), np.array([64, 256])
    two = np.empty((2, 2, 2, 3))
    for i, d in enumerate(ds.tolist()):
        for j, n in enumerate(ns.tolist()):
            for seed in range(2):
                data = mt_distribution(d, n, seed=seed)
                cert = margins.f2(data)
                K = ReLU().kernel(data.X)
                two[i, j, seed] = cert.lower, cert.upper, math.sqrt(data.y @ K @ data.y) / n
    good = np.full((2, 2, 2), math.sqrt(2) / 4)
    assert mt.verdicts_gap(ds, ns, good, two)[0].holds is True
    wrong = mt.verdicts_gap(ds, ns, two[:, :, 0, :2], two)
    assert wrong[0].holds is False
    assert wrong[4].holds is False  # then the bounds do not separate
    assert mt.verdicts_gap(ds, ns, good, two * [[[[10.0, 10.0, 1.0]]]])[1].holds is False


def test_squared_kernel_norms_have_mean_n_and_another_kernel_fails():
    ns = np.array([5, 10])
    rows = [mt.regression_norms(3, n, 400, 1, 1.0, 0) for n in ns.tolist()]
    found = {name: np.stack([one[name] for one in rows]) for name in rows[0]}
    verdicts = mt.verdicts_regression(ns, 3, found)
    assert [one.holds for one in verdicts[:2]] == [True, True]
    assert mt.verdicts_regression(ns, 3, found | {"squares": 2 * found["squares"]})[0].holds is False
    assert mt.verdicts_regression(ns, 3, found | {"l1": 2 + found["l1"]})[1].holds is False


# ---------------------------------------------------------------- Table 1


def test_table_verdicts():
    def arms(annealed: float, fixed: float, seeds: int) -> dict[str, dict[str, np.ndarray]]:
        shake = 1e-4 * np.arange(seeds)[:, None]
        return {"annealed": {"error": annealed + shake}, "fixed": {"error": fixed + 1.5 * shake}}

    assert mt.verdicts_table(arms(0.05, 0.06, 3), 10000)[0].holds is True
    assert mt.verdicts_table(arms(0.06, 0.05, 3), 10000)[0].holds is False
    one = mt.verdicts_table(arms(0.05, 0.06, 1), 10000)
    assert all(verdict.holds == UNDECIDED and verdict.reason for verdict in one)
    assert one[0].measured == pytest.approx(1.0)


def test_plan_has_the_papers_schedules():
    annealed, fixed = wideresnet.Plan(True), wideresnet.Plan(False)
    assert annealed.rates(161) == pytest.approx((0.1 * 0.2**3, 2.5e-6))
    assert fixed.rates(161) == pytest.approx((0.1 * 0.2**3, 2e-4))
    assert annealed.rates(0) == fixed.rates(0) == pytest.approx((0.1, 2e-4))
    assert wideresnet.Plan(True, epochs=20).rates(6) == annealed.rates(60)


def test_the_network_is_a_wide_resnet_that_starts_at_zero():
    net = wideresnet.WideResNet(16, 4)
    layers = [one for one in net.modules() if isinstance(one, torch.nn.Conv2d | torch.nn.Linear)]
    assert len([one for one in layers if getattr(one, "kernel_size", (0, 0)) != (1, 1)]) == 14  # shortcuts not counted
    assert sum(one.weight.numel() for one in layers) == pytest.approx(2.75e6, rel=0.01)  # WRN-16-4
    assert not any(isinstance(one, torch.nn.BatchNorm2d) for one in net.modules())
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert float(net(x).detach().abs().max()) == 0
    heavy, light = net.decayed()
    assert sum(p.numel() for p in light) == 6 * 6 + 1 + 10
    assert len(heavy) == len(layers)
    with pytest.raises(InputError, match="6 k \\+ 4"):
        wideresnet.WideResNet(15)


def test_augmented_images_are_crops():
    x = torch.arange(1.0, 3 * 32 * 32 + 1).view(1, 3, 32, 32).repeat(6, 1, 1, 1)
    out = wideresnet.augment(x, torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(x[0], (4, 4, 4, 4))
    crops = [padded[:, i : i + 32, j : j + 32] for i in range(9) for j in range(9)]
    for one in out:
        assert any(torch.equal(one, crop) or torch.equal(one, crop.flip(2)) for crop in crops)
    assert len({float(one[0, 16, 16]) for one in out}) > 1


def test_training_resumes_where_it_ended(images, tmp_path):
    plan = wideresnet.Plan(True, epochs=2, depth=10, widen=1, batch=20)
    straight = wideresnet.train(plan, images, "cpu")
    path = tmp_path / "arm.pt"

    class Enough(Exception):
        pass

    def stop(*args: object) -> None:
        saved(*args)
        raise Enough

    saved = wideresnet._save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wideresnet, "_save", stop)
        with pytest.raises(Enough):
            wideresnet.train(plan, images, "cpu", path)
    resumed = wideresnet.train(plan, images, "cpu", path)
    for name in ("loss", "error", "lr", "decay"):
        np.testing.assert_array_equal(resumed[name], straight[name])
    assert len(resumed["seconds"]) == 2
    assert straight["loss"][1] < straight["loss"][0]
    path.write_bytes(path.read_bytes()[:500])  # damaged
    assert len(wideresnet.train(plan, images, "cpu", path)["loss"]) == 2


def test_without_the_images_it_says_what_to_do(tiny, images, monkeypatch, tmp_path):
    monkeypatch.delenv(wideresnet.VARIABLE["cifar10"], raising=False)
    with pytest.raises(InputError, match="WIDEMARGIN_CIFAR10_FULL"):
        mt.table_1(Job(folder=tmp_path))
    monkeypatch.setattr(mt, "SIZES", {"mt-table1": {"quick": TINY["mt-table1"] | {"train": 61}}})
    monkeypatch.setenv(wideresnet.VARIABLE["cifar10"], str(tmp_path / "images.npz"))
    with pytest.raises(InputError, match="has fewer"):
        mt.table_1(Job(folder=tmp_path))
    np.savez(tmp_path / "bad.npz", **{f"{p}_{w}": np.zeros(3) for p in ("train", "test") for w in ("images", "labels")})
    with pytest.raises(InputError, match="uint8"):
        wideresnet.cifar(path=tmp_path / "bad.npz")


def test_images_in_pieces(images, tmp_path):
    folder = tmp_path / "pieces"
    folder.mkdir()
    for k in range(5):
        part = slice(12 * k, 12 * k + 12)
        np.savez(
            folder / f"cifar10_train_{k}.npz", images=images["train_images"][part], labels=images["train_labels"][part]
        )
    np.savez(folder / "cifar10_test.npz", images=images["test_images"], labels=images["test_labels"])
    found = wideresnet.cifar(path=folder)
    for name, value in images.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_hundred_classes_have_their_own_numbers(tiny, images, monkeypatch, tmp_path):
    monkeypatch.delenv(wideresnet.VARIABLE["cifar100"], raising=False)
    with pytest.raises(InputError, match=r"all of CIFAR-100.*WIDEMARGIN_CIFAR100_FULL"):
        mt.table_1_cifar100(Job(folder=tmp_path))
    with pytest.raises(InputError, match="from 0 to 9"):
        np.savez(tmp_path / "many.npz", **images | {"train_labels": images["train_labels"] + np.uint8(90)})
        wideresnet.cifar(path=tmp_path / "many.npz")
    monkeypatch.setenv(wideresnet.VARIABLE["cifar100"], str(tmp_path / "many.npz"))
    outcome = mt.table_1_cifar100(Job(folder=tmp_path))
    assert outcome.verdicts[0].paper == "0.78 points (27.0 - 26.22)"
    assert outcome.data["annealed_decay"][0, 1] == pytest.approx(5e-4 * 0.2)  # epoch 100 of the schedule
    assert wideresnet.WideResNet(10, 1, wideresnet.CLASSES["cifar100"]).end.out_features == 100


def test_results_of_other_images_are_refused(tiny, images, tmp_path, monkeypatch):
    job = Job(folder=tmp_path)
    first = mt.table_1(job)
    np.savez(tmp_path / "other.npz", **images | {"test_labels": images["test_labels"][::-1]})
    monkeypatch.setenv(wideresnet.VARIABLE["cifar10"], str(tmp_path / "other.npz"))
    with pytest.raises(InputError, match="other images"):
        mt.table_1(job)
    monkeypatch.delenv(wideresnet.VARIABLE["cifar10"])  # what was kept can be drawn without any
    assert [one.measured for one in mt.table_1(job).verdicts] == [one.measured for one in first.verdicts]
