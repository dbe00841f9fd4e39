"""The reproductions of MT at a tiny scale, what they are made of, and that their verdicts can fail."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from checks import resize
from widemargin import flows, margins, optima
from widemargin.data import three_intervals, xor_with_noise
from widemargin.papers import NOT_INFORMATIVE, UNDECIDED, Job, find, mt, run
from widemargin.papers.mt import wideresnet
from widemargin.papers.statistics import over_trials
from widemargin.spaces import ReLU
from widemargin.types import Dataset, InputError, Measure

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = {
    "mt-1": {"n": 60},
    "mt-2": {"n": 6, "m": 10, "trials": 2, "inner": 20, "rungs": 3},
    "mt-path": {"line": 4, "law": 5, "plane": 4, "rungs": 2, "tol": 1e-2, "limit": 2.0},
    "mt-3": {"ns": (20, 30), "trials": 2, "m": 10, "rungs": 2, "inner": 8, "steps": 20, "limit": 0.02},
    "mt-gap": {"ds": (3, 4), "ns": (12, 24), "seeds": 2, "limit": 0.05},
    "mt-regression-gap": {"d": 3, "ns": (4, 6), "draws": 100, "students": 2, "m": 8, "limit": 0.05},
    "mt-table1": {"train": 60, "test": 40, "epochs": 2, "depth": 10, "widen": 1, "batch": 20, "seeds": 1},
}


@pytest.fixture
def tiny(monkeypatch):
    resize(monkeypatch, TINY, ("quick", "paper"))


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
    assert all(one["reason"] for one in written if one["holds"] in (UNDECIDED, NOT_INFORMATIVE))
    assert all(one["again"] for one in written if one["chosen_after"])  # so no claim has a number of one seed
    assert (folder / "figure.png").stat().st_size > 10_000
    assert (folder / "figure.pdf").is_file()
    assert json.loads((folder / "settings.json").read_text())["settings"]
    with np.load(folder / "data.npz") as data:
        assert len(data.files) > 2


def test_what_was_kept_is_not_computed_again(tiny, tmp_path, monkeypatch):
    job = Job(folder=tmp_path)
    first = mt.regression_gap.reproduce(job)
    monkeypatch.setattr(margins, "min_norm_l1", lambda *args, **keys: pytest.fail("it was computed again"))
    again = mt.regression_gap.reproduce(job)
    assert [verdict.measured for verdict in again.verdicts] == [verdict.measured for verdict in first.verdicts]


def test_what_was_kept_and_is_damaged_is_computed_again(tmp_path):
    """Whatever the damage: numpy raises nearly anything then, or gives fewer numbers."""
    job, numbers = Job(folder=tmp_path), np.random.default_rng(0).integers(0, 9, 3000) / 8
    job.keep("x", {}, lambda: {"v": numbers})
    (path,) = (tmp_path / "kept").iterdir()
    whole = path.read_bytes()
    for k in range(0, len(whole), 37):
        for damage in (b"\x00" * 20, bytes([whole[k] ^ 1])):
            path.write_bytes(whole[:k] + damage + whole[k + len(damage) :])
            assert job.keep("x", {}, lambda: {"v": numbers})["v"].tolist() == numbers.tolist()


# ---------------------------------------------------------------- the rules


def said(verdicts, part):
    """The one verdict whose claim has this part."""
    found = [one for one in verdicts if part in one.claim]
    assert len(found) == 1
    return found[0].holds


def test_interval_of_a_mean_is_students():
    x = np.random.default_rng(0).standard_normal(7)
    whole, low, high = over_trials(np.mean, x)
    expected = stats.t.interval(0.95, 6, x.mean(), stats.sem(x))
    np.testing.assert_allclose([whole, low, high], [x.mean(), *expected])
    assert np.isnan(over_trials(np.mean, x[:1])[1:]).all()
    assert np.isnan(over_trials(np.mean, x[:0])).all()


def test_interval_of_a_ratio_of_means_covers_it():
    """With 8 trials 95 percent of intervals should have the truth: nearly so for ours, and fewer for a bootstrap."""
    rng = np.random.default_rng(1)
    ours = boot = 0
    for _ in range(400):
        k, e = np.exp(0.5 * rng.standard_normal((2, 8)))  # equal laws: ln of the ratio of the true means is 0
        _, low, high = over_trials(mt.students.advantage, k, e)
        ours += low < 0 < high
        some = rng.integers(0, 8, (300, 8))
        low, high = np.quantile(np.log(k[some].mean(1) / e[some].mean(1)), [0.025, 0.975])
        boot += low < 0 < high
    assert 0.92 < ours / 400 < 0.99
    assert boot < ours


def test_advantage_is_that_of_the_plotted_means():
    """One student that fails is in the mean: with a mean of logarithms it would nearly vanish."""
    kernel, net = np.full(10, 0.1), np.append(np.full(9, 1e-7), 1.4)
    assert mt.students.advantage(kernel, net) == pytest.approx(math.log(0.1 / net.mean()))
    assert mt.students.advantage(kernel, net) < 0 < np.log(kernel / net).mean()


def test_rules():
    assert [mt.judging.above(*one) for one in ((0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1), (math.nan, math.nan))] == [
        True, False, UNDECIDED, UNDECIDED,
    ]  # fmt: skip
    intervals = ((0.9, 1.2), (1.1, 1.3), (0.9, 1.3), (1.05, 1.2), (math.nan, math.nan))
    assert [mt.judging.grows_at_most(1, *one) for one in intervals] == [True, False, UNDECIDED, True, UNDECIDED]


# ---------------------------------------------------------------- Figures 1 and 2


def test_figure_1_verdicts_hold_and_fail():
    def judge(linear, four):
        return [
            one.holds
            for one in mt.figure_1.judge_figure_1({"linear": np.array(linear), "f1": np.array([0.35, 0.36])}, four)
        ]

    assert judge([0.0, 1e-14], math.sqrt(2) / 4) == [True, True, NOT_INFORMATIVE]
    assert judge([0.1, 0.2], math.sqrt(2) / 2) == [False, False, NOT_INFORMATIVE]
    assert judge([0.0, 0.2], math.sqrt(2) / 4)[0] == UNDECIDED


@pytest.mark.parametrize("d", [2, 3, 10])
def test_four_relus_have_the_margin_of_lemma_d1(d):
    assert mt.distribution.four_relus(d).margin(xor_with_noise(d, 50, reject=False)) == pytest.approx(
        math.sqrt(2) / 4, rel=1e-14
    )
    assert mt.distribution.four_relus(d).norm == pytest.approx(1)


def test_least_objectives_are_those_of_the_objective_that_is_trained():
    """lambda |Theta|^2 is weight decay 2 lambda: every network is above, and the balanced certified one has the upper bound."""
    data, lambdas = three_intervals(9), np.array([1e-1, 1e-3, 1e-6])
    Z = np.hstack([data.X, np.ones((9, 1))])
    rng = np.random.default_rng(0)
    for lam, (low, high) in zip(lambdas, mt.figure_2.least_objectives(data, lambdas)):

        def value(a, V, lam=lam):
            return np.logaddexp(0, -data.y * ((Z @ V.T).clip(0) @ a)).mean() + lam * ((a**2).sum() + (V**2).sum())

        assert min(value(3 * rng.standard_normal(6), 3 * rng.standard_normal((6, 2))) for _ in range(20)) > high
        best = optima.f1(data, weight_decay=2 * lam, output_bias=None, tol=1e-6, bias=True).primal
        size = np.sqrt(np.abs(best.mass))
        assert value(np.sign(best.mass) * size, size[:, None] * best.theta) == pytest.approx(high, rel=1e-4)
        assert low <= high <= low * (1 + 1e-4)


def made_path(margin=0.995, excess=1e-4, worse=0.0, grid=0.9996):
    """A path of four lambdas whose last margin, objective above the least one's lower and upper bound, and grid are these."""
    share = np.array([0.5, 0.8, 0.9, 1.0]) * margin
    objective = np.full(4, 1.0)
    return {
        "f1": np.array([0.2, 0.2]), "grid": np.array([grid * 0.2, 0.2]), "margin": 0.1 * share,
        "objective": objective, "least": np.column_stack([objective / (1 + excess), objective / (1 + worse)]),
    }  # fmt: skip


def test_figure_2_verdicts_hold_and_fail():
    x = np.linspace(-1, 1, 50)
    none = np.full(4, -math.inf)

    def judge(found, guaranteed=0.04, network=x):
        return mt.figure_2.judge_figure_2(found, np.append(none[:2], [guaranteed] * 2), network, x)

    good = judge(made_path())
    assert [one.holds for one in good] == [True, True, NOT_INFORMATIVE, True, True, True, True]
    bad = judge(made_path(0.9, excess=0.03, worse=0.02, grid=0.99), 0.095, 1.1 * x)
    assert [one.holds for one in bad] == [False, True, NOT_INFORMATIVE, False, False, False, False]
    wavy = made_path()
    wavy["margin"] = wavy["margin"][[0, 2, 1, 3]]
    assert said(judge(wavy), "rises") is False
    # a distance to the lower bound alone does not say that the network is not the minimiser
    for excess, worse, holds in (
        (9e-4, 8e-4, True),
        (0.0011, 9e-4, UNDECIDED),
        (0.5, 0.0, UNDECIDED),
        (0.5, 0.0011, False),
    ):
        one = next(one for one in judge(made_path(excess=excess, worse=worse)) if "global minimisers" in one.claim)
        assert one.holds == holds and bool(one.reason) == (holds is not True) and one.chosen_after
        assert one.measured == pytest.approx(excess)
    assert said(judge(made_path(), -1.0), "Theorem 2.1") == UNDECIDED


@pytest.mark.slow
def test_the_path_reaches_the_certified_margin_and_the_least_objective():
    data, lambdas = three_intervals(10), np.geomspace(1e-1, 1e-14, 8)
    cert = margins.f1(data, bias=True, tol=1e-5)
    found = mt.figure_2.regularized_path(data, flows.TwoLayer(2, 30), lambdas, 3, 400, 0)
    lower = mt.figure_2.least_objectives(data, lambdas)[:, 0]
    assert 0.99 * cert.lower / 2 < found["margin"][-1] <= cert.upper / 2
    assert (found["objective"] >= lower).all()
    assert (found["objective"] <= 1.001 * lower).all()
    # margin and norm from the definition
    net = Measure.from_network(found["V"][-1], found["a"][-1], bias=True)
    size = (found["a"][-1] ** 2).sum() + (found["V"][-1] ** 2).sum()
    assert (data.y * net(data.X)).min() / size == pytest.approx(found["margin"][-1], rel=1e-9)
    assert found["norm"][-1] ** 2 == pytest.approx(size, rel=1e-9)


def test_output_layer_training_passed_off_as_both_layers_fails():
    data = three_intervals(10)
    cert = margins.f1(data, bias=True, tol=1e-5)
    lambdas = np.geomspace(1e-1, 1e-10, 3)
    found = mt.figure_2.regularized_path(data, flows.TwoLayer(2, 40, train="output"), lambdas, 2, 200, 0)
    size = (found["a"] ** 2).sum(1) + (found["V"] ** 2).sum((1, 2))
    Z = np.hstack([data.X, np.ones((10, 1))])
    f = np.einsum("rnm,rm->rn", np.einsum("nd,rmd->rnm", Z, found["V"]).clip(0), found["a"])
    found |= {
        "margin": (data.y * f).min(1) / size,
        "f1": np.array([cert.lower, cert.upper]),
        "grid": np.array([1.0, 1.0]),
        "least": mt.figure_2.least_objectives(data, lambdas),
    }
    x = np.linspace(-1, 1, 50)
    svm = cert.primal(x[:, None])
    verdicts = mt.figure_2.judge_figure_2(found, np.full(3, -1.0), 0 * x, svm)
    assert verdicts[0].holds is False  # margin
    assert verdicts[3].holds is False  # functions
    assert verdicts[4].holds is False  # a lower objective is known


# ---------------------------------------------------------------- Theorem 2.1 on certified optima


def made_optima(limit=1.0, slope=1.0, dip=0.0, far=0.3, gap=1e-6, sure=0.4, wide=0.0):
    """20 points of margin 0.1: norms slope ln(0.1/decay)/0.1, margins 0.1 limit - far ln(20)/norm with a dip at the third."""
    decay = np.geomspace(1e-2, 1e-14, 7)
    norm = slope * np.log(0.1 / decay) / 0.1
    margin = 0.1 * limit - far * math.log(20) / norm
    margin[2] -= dip
    return {
        "weight_decay": decay, "lower": 0 * decay + 1.0, "upper": 0 * decay + 1 + gap, "norm": norm, "margin": margin,
        "guaranteed": np.append([-math.inf, -math.inf], np.full(5, 0.1 * sure)), "f1": np.array([0.1 * (1 - wide), 0.1]),
        "n": np.array(20),
    }  # fmt: skip


def test_verdicts_of_certified_paths_hold_and_fail():
    def judge(**changes):
        return [
            one.holds
            for one in mt.weak_decay.verdicts_path({"good": made_optima(), "one": made_optima(**changes)}, 1e-5)
        ]

    good = [True, True, True, True, NOT_INFORMATIVE]
    assert judge() == good
    for place, change in enumerate(({"limit": 0.985}, {"dip": 0.007}, {"slope": 1.1}, {"far": 1.01}, {"sure": 0.99})):
        found = judge(**change)
        assert found[place] is False, change
        if place != 0:  # a lower limit is farther away, too
            assert [one for k, one in enumerate(found) if k != place] == [
                one for k, one in enumerate(good) if k != place
            ]
    for wider in ({"gap": 1e-4}, {"wide": 1e-3}):  # certificates that did not close
        assert judge(**wider) == [UNDECIDED] * 4 + [NOT_INFORMATIVE]
        assert all(one.reason for one in mt.weak_decay.verdicts_path({"one": made_optima(**wider)}, 1e-5))


def test_a_certified_path_is_that_of_the_definition():
    data = three_intervals(6)
    found = mt.weak_decay.certified_path(data, "exp", np.array([1e-2, 1e-9]), 1e-5, 5.0)
    best = margins.f1(data, bias=True, tol=1e-6)
    np.testing.assert_allclose(found["f1"], [best.lower, best.upper], rtol=1e-5)
    for k, decay in enumerate((1e-2, 1e-9)):
        cert = optima.f1(data, loss="exp", weight_decay=decay, output_bias=None, tol=1e-6, bias=True)
        assert found["lower"][k] <= cert.upper and cert.lower <= found["upper"][k]
        assert found["norm"][k] == pytest.approx(cert.primal.norm, rel=1e-3)
        assert found["margin"][k] == pytest.approx(cert.primal.margin(data), rel=1e-2)
    assert 0 < found["guaranteed"][1] < found["margin"][1]


# ---------------------------------------------------------------- Figure 3


def test_net_and_kernel_rows_from_the_definitions():
    from widemargin.data import relu_teacher

    data, held = relu_teacher(5, 30, seed=1), relu_teacher(5, 500, seed=1, sample=1)
    K = ReLU().kernel(data.X)
    ours = mt.figure_3._kernel_row(data, held, False)
    b = np.asarray(margins.f2(data).extra["alpha"]) * data.y
    assert (data.y * (K @ b)).min() / math.sqrt(b @ K @ b) == pytest.approx(ours[1], rel=1e-6)
    assert 0 < ours[0] < 0.5
    assert ours[2] == pytest.approx(2 * math.sqrt(2) / ours[1] * np.linalg.norm(data.X) / (30 * math.sqrt(5)))
    smooth = relu_teacher(5, 30, seed=1, regression=True)
    smooth_held = relu_teacher(5, 500, seed=1, regression=True, sample=1)
    b = np.linalg.solve(K := ReLU().kernel(smooth.X), smooth.y)
    wrong = ReLU().kernel(smooth_held.X, smooth.X) @ b - smooth_held.y
    row = mt.figure_3._kernel_row(smooth, smooth_held, True)
    np.testing.assert_allclose(row[:2], [(wrong**2).mean(), math.sqrt(b @ K @ b)], rtol=1e-5)


def test_teacher_is_its_own_net_row():
    from widemargin.data import relu_teacher, teacher_network

    W, a = teacher_network(20, 6, 4)
    data, held = (relu_teacher(20, 50, seed=4, sample=k) for k in (0, 1))
    error, margin, leading, fit = mt.figure_3._net_row(Measure.from_network(W, a), data, held, False)
    assert error == 0
    assert fit >= 0.1  # the margin by which points were rejected
    assert margin == pytest.approx(fit / 12)  # norm 6, and half for M2
    assert leading == pytest.approx(6 / margin * math.sqrt((data.X**2).sum() / 50 / 50))


def test_curvature_is_the_largest_eigenvalue():
    from widemargin.data import relu_teacher

    net = flows.TwoLayer(20, 8)
    problem = flows.pose(net, [relu_teacher(20, 30, seed=b, regression=True) for b in range(2)], "squared")
    W = {name: torch.tensor(value) for name, value in net.init(2, 0).items()}
    exact = torch.linalg.eigvalsh(net.gram(W, problem.X))[:, -1] / 30
    np.testing.assert_allclose(mt.figure_3.curvature(problem, W), exact, rtol=1e-6)


@pytest.mark.parametrize("regression", [False, True])
def test_descent_agrees_with_a_loop_written_out(regression):
    """Steps against the gradient of mean loss + 1e-8 |Theta|^2, half of it for the squared loss, in plain numpy."""
    from widemargin.data import relu_teacher

    sets = [relu_teacher(20, 30, seed=b, regression=regression) for b in range(2)]
    found, lr = mt.figure_3.descended(sets, 7, 40, regression, "cpu", 3)
    start = flows.TwoLayer(20, 7).init(2, 3)
    X, y = sets[1].X, sets[1].y
    a, V = start["a"][1] / math.sqrt(3), start["V"][1] / math.sqrt(3)
    for _ in range(40):
        H = (X @ V.T).clip(0)
        pull = (y - H @ a) / 30 if regression else y / (1 + np.exp(y * (H @ a))) / 30
        decay = 1e-8 if regression else 2e-8
        a, V = a + lr * (pull @ H - decay * a), V + lr * (a[:, None] * ((H > 0).T @ (pull[:, None] * X)) - decay * V)
    np.testing.assert_allclose(found["a"][1], a, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(found["V"][1], V, rtol=1e-10, atol=1e-11)


def test_students_fit_since_the_path_does_not_begin_at_zero():
    """A path from lambda = 1, where the network zero is the minimiser, left 5 of these 16 students with over 0.3."""
    from widemargin.data import relu_teacher, teacher_network

    sets = [relu_teacher(20, 60, seed=b, regression=True) for b in range(16)]
    for b in range(16):  # lambda = 0.1 is below the correlation with a unit of the teacher, so zero is no minimiser
        big = relu_teacher(20, 800, seed=b, regression=True)
        W = teacher_network(20, 6, b)[0]
        assert np.abs((big.X @ W.T).clip(0).T @ big.y / 800).max() > 0.1
    found = mt.students.minimisers(sets, 20, 4, 100, True, "cpu", 0)
    fits = [
        ((Measure.from_network(V, a)(one.X) - one.y) ** 2).mean() / (one.y**2).mean()
        for V, a, one in zip(found["V"], found["a"], sets)
    ]
    assert mt.students.fitted("regression", np.array(fits)).all()


def test_who_fits():
    assert mt.students.fitted("regression", np.array([0.0, 0.009, 0.02, math.nan])).tolist() == [
        True,
        True,
        False,
        False,
    ]
    assert mt.students.fitted("classification", np.array([0.1, 0.0, -1, math.nan])).tolist() == [
        True,
        False,
        False,
        False,
    ]


NS = np.array([50, 100, 200, 400])
LOW, HIGH = 0.3 * (NS / 50.0) ** -1, 0.3 * (NS / 50.0) ** -0.3


def made_figure(path=LOW, descent=LOW, kernel=HIGH, bound=0.0, noise=0.01, norm=5.5, margin=0.2, fit=0.001):
    """Errors of 8 trials, the exponent of the kernel's bound, norms (or margins) of the minimisers, the descent's being 0.1."""
    rng = np.random.default_rng(0)

    def shake(value):
        return value * np.exp(noise * rng.standard_normal((8, 4)))

    return {
        "path_error": shake(path), "descent_error": shake(descent), "kernel_error": shake(kernel),
        "kernel_bound": shake(NS**bound), "path_value": shake(norm if norm else margin), "descent_value": shake(0.1),
        "path_fit": np.full((8, 4), fit), "descent_fit": np.full((8, 4), fit),
    }  # fmt: skip


def judge_3(task, **changed):
    return [one.holds for one in mt.figure_3.judge_figure_3(task, NS, made_figure(**changed), 2000)]


def test_figure_3_verdicts_hold_fail_and_stay_open():
    # for each student: below the kernel, advantage grows; then kernel falls, its bound flat, norms (regression) or margins
    assert judge_3("regression") == [True] * 7
    assert judge_3("classification", norm=0) == [True] * 7
    assert judge_3("regression", path=HIGH, descent=HIGH, kernel=LOW)[:4] == [False] * 4
    assert judge_3("regression", path=HIGH, kernel=HIGH) == [UNDECIDED, UNDECIDED, *[True] * 5]
    assert judge_3("regression", descent=HIGH, kernel=HIGH)[2:4] == [UNDECIDED, UNDECIDED]
    assert judge_3("regression", kernel=HIGH[::-1])[4] is False
    assert judge_3("regression", kernel=0 * NS + 0.3)[4] == UNDECIDED
    assert [judge_3("regression", bound=k)[5] for k in (0.1, -0.5, 0.5, -0.25)] == [True, False, False, UNDECIDED]
    assert [judge_3("regression", norm=k)[6] for k in (5.0, 7.0, 6.06)] == [True, False, UNDECIDED]
    assert [judge_3("classification", norm=0, margin=k)[6] for k in (0.2, 0.05, 0.1)] == [True, False, UNDECIDED]


def test_failed_students_are_counted_and_included():
    made = made_figure(norm=5.0)
    made["path_error"][3, -1], made["path_fit"][3, -1] = 1.4, 0.5
    made["path_value"][3, -1] = 60.0
    verdicts = mt.figure_3.judge_figure_3("regression", NS, made, 2000)
    assert "1 of 8 students did not fit" in verdicts[0].uncertainty
    assert verdicts[0].measured == pytest.approx(
        math.log(made["kernel_error"][:, -1].mean() / made["path_error"][:, -1].mean())
    )
    assert [one.holds for one in verdicts[:4]] == [UNDECIDED, UNDECIDED, True, True]
    assert verdicts[6].holds is True  # norms are those of students that fit
    made["path_fit"][:, -1] = 0.5  # none does
    assert mt.figure_3.judge_figure_3("regression", NS, made, 2000)[6].holds == UNDECIDED


# ---------------------------------------------------------------- the gaps


DS, NN = np.array([4, 8, 16]), np.array([64, 256, 1024])


def made_gap(power=-0.5, n_power=-0.25, noise=0.01, one=mt.distribution.L1_MARGIN):
    """Kernel margins d^power n^n_power of 6 draws, 1/d along n = 4 d^2; an l1 margin for all d (or one for each)."""
    shake = np.exp(noise * np.random.default_rng(0).standard_normal((3, 3, 6)))
    gamma = 0.3 * (DS**power)[:, None, None] * ((NN / 64.0) ** n_power)[None, :, None] * shake
    l1 = np.broadcast_to(one * np.ones((3, 1, 1)) if np.ndim(one) == 0 else one[:, None, None], (3, 3, 2))
    return l1, np.stack([gamma, gamma, 2 * gamma], -1)


def judge_gap(**changed):
    return [one.holds for one in mt.margin_gap.verdicts_gap(DS, NN, *made_gap(**changed))]


def test_gap_verdicts_hold_fail_and_stay_open():
    none = [NOT_INFORMATIVE] * 2
    assert judge_gap() == [*none, True, True, True]
    assert judge_gap(power=0.0) == [*none, False, True, False]
    assert judge_gap(n_power=0.3)[3] is False
    assert judge_gap(power=1.0, n_power=-1.0)[3] is False  # it grows with d
    assert judge_gap(noise=1.5) == [*none, *[UNDECIDED] * 3]
    assert judge_gap(one=0.3 / DS)[4] is False  # kernel margins passed off as l1 margins: the bounds do not separate


def test_kernel_margins_of_random_labels_do_not_fall_like_the_paper_says():
    """The verdict on real draws: true on D, not so where labels are coins."""
    ds, ns = np.array([4, 8]), np.array([64, 256])
    two = np.empty((2, 2, 3, 3))
    coins = np.empty_like(two)
    for i, d in enumerate(ds.tolist()):
        for j, n in enumerate(ns.tolist()):
            for seed in range(3):
                data = xor_with_noise(d, n, seed=seed)
                K = ReLU().kernel(data.X)
                y = np.random.default_rng(seed).choice([-1.0, 1.0], n)
                for out, one in ((two, data), (coins, Dataset(data.X, y))):
                    cert = margins.f2(one)
                    out[i, j, seed] = cert.lower, cert.upper, math.sqrt(one.y @ K @ one.y) / n
    good = np.full((2, 2, 2), math.sqrt(2) / 4)
    assert said(mt.margin_gap.verdicts_gap(ds, ns, good, two), "at least like 1/d") is True
    assert said(mt.margin_gap.verdicts_gap(ds, ns, good, coins), "at least like 1/d") is not True


def made_regression(norm=1.0, power=0.0, noise=0.01, kernel=0.1, net=0.01, draws=500):
    """Squared kernel norms norm n^(1 + power), test errors."""
    rng = np.random.default_rng(0)
    ns = np.array([10, 20, 40, 80])
    return ns, {
        "squares": norm * ns[:, None] * (ns[:, None] / 10.0) ** power * (1 + noise * rng.standard_normal((4, draws))),
        "kernel_error": kernel * np.exp(noise * rng.standard_normal((4, draws))),
        "net_error": net * np.exp(noise * rng.standard_normal((4, 8))),
        "net_norm": np.ones((4, 8)), "net_fit": np.zeros((4, 8)), "l1": np.tile([0.9, 1.0], (4, 1)),
        "frobenius": np.sqrt(10.0 * ns),
    }  # fmt: skip


def test_regression_gap_verdicts_hold_fail_and_stay_open():
    def judge(**changed):
        ns, found = made_regression(**changed)
        return [one.holds for one in mt.regression_gap.verdicts_regression(ns, 10, found)]

    none = [NOT_INFORMATIVE] * 2
    assert judge() == [True, *none, True, True]
    assert judge(norm=2.0, power=-1.0, net=0.2) == [False, *none, False, False]  # power -1: norms that do not grow
    assert judge(net=0.1)[4] == UNDECIDED
    assert judge(noise=3.0, draws=100)[0] == UNDECIDED
    ns, found = made_regression()
    found["squares"] = np.stack([1.0 * ns, 0 * ns + 10.0], 1)  # one draw says constant, the other falling
    assert mt.regression_gap.verdicts_regression(ns, 10, found)[3].holds == UNDECIDED


@pytest.mark.slow
def test_squared_kernel_norms_have_mean_n_and_another_kernel_fails():
    ns = np.array([5, 10])
    rows = [mt.regression_gap.regression_norms(3, n, 4000, 3, 20, 0.2, "cpu", 0) for n in ns.tolist()]
    found = {name: np.stack([one[name] for one in rows]) for name in rows[0]}
    assert mt.regression_gap.verdicts_regression(ns, 3, found)[0].holds is True
    assert mt.regression_gap.verdicts_regression(ns, 3, found | {"squares": 2 * found["squares"]})[0].holds is False
    assert (found["net_norm"] <= 1.01).all()  # the target neuron has 1
    assert mt.students.fitted("regression", found["net_fit"]).all()


# ---------------------------------------------------------------- Table 1


def test_table_verdicts():
    def arms(annealed: float, fixed: float, seeds: int) -> dict[str, dict[str, np.ndarray]]:
        shake = 1e-4 * np.arange(seeds)[:, None]
        return {"annealed": {"error": annealed + shake}, "fixed": {"error": fixed + 1.5 * shake}}

    assert mt.table_1.verdicts_table(arms(0.05, 0.06, 3), 10000)[0].holds is True
    assert mt.table_1.verdicts_table(arms(0.06, 0.05, 3), 10000)[0].holds is False
    assert mt.table_1.verdicts_table(arms(0.05, 0.04995, 3), 10000)[0].holds == UNDECIDED  # -0.005, 0, 0.005
    assert mt.table_1.verdicts_table(arms(0.8, 0.9, 3), 10000)[0].holds == UNDECIDED  # neither arm learned
    one = mt.table_1.verdicts_table(arms(0.05, 0.06, 1), 10000)
    assert [verdict.holds for verdict in one] == [UNDECIDED, NOT_INFORMATIVE, NOT_INFORMATIVE]
    assert all(verdict.reason for verdict in one)
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
        mt.table_1.reproduce(Job(folder=tmp_path))
    resize(monkeypatch, {"mt-table1": TINY["mt-table1"] | {"train": 61}})
    monkeypatch.setenv(wideresnet.VARIABLE["cifar10"], str(tmp_path / "images.npz"))
    with pytest.raises(InputError, match="has fewer"):
        mt.table_1.reproduce(Job(folder=tmp_path))
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
        mt.table_1.reproduce_cifar100(Job(folder=tmp_path))
    with pytest.raises(InputError, match="from 0 to 9"):
        np.savez(tmp_path / "many.npz", **images | {"train_labels": images["train_labels"] + np.uint8(90)})
        wideresnet.cifar(path=tmp_path / "many.npz")
    monkeypatch.setenv(wideresnet.VARIABLE["cifar100"], str(tmp_path / "many.npz"))
    outcome = mt.table_1.reproduce_cifar100(Job(folder=tmp_path))
    assert outcome.verdicts[0].paper == "0.78 points (27.0 - 26.22)"
    assert outcome.data["annealed_decay"][0, 1] == pytest.approx(5e-4 * 0.2)  # epoch 100 of the schedule
    assert wideresnet.WideResNet(10, 1, wideresnet.CLASSES["cifar100"]).end.out_features == 100


def test_results_of_other_images_are_refused(tiny, images, tmp_path, monkeypatch):
    job = Job(folder=tmp_path)
    first = mt.table_1.reproduce(job)
    np.savez(tmp_path / "other.npz", **images | {"test_labels": images["test_labels"][::-1]})
    monkeypatch.setenv(wideresnet.VARIABLE["cifar10"], str(tmp_path / "other.npz"))
    with pytest.raises(InputError, match="other images"):
        mt.table_1.reproduce(job)
    monkeypatch.delenv(wideresnet.VARIABLE["cifar10"])  # what was kept can be drawn without any
    assert [one.measured for one in mt.table_1.reproduce(job).verdicts] == [one.measured for one in first.verdicts]
