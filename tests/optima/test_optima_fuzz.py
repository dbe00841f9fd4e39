"""Hostile arguments, data, files and clocks: one sentence, or bounds that hold and verify."""

import copy
import itertools
import json
import math
import os
import time

import numpy as np
import pytest
import torch

from widemargin import Dataset, InputError, optima
from widemargin import verify as exact
from widemargin.cli import main
from widemargin.optima import bounds, groups, losses, outputs
from widemargin.optima.master import l1_quadratic
from widemargin.optima.problem import enter
from widemargin.optima.wide_networks import solver
from widemargin.pricing import several
from widemargin.pricing.points import Terms
from widemargin.types import write_atomically
from widemargin.verify.logs import ONE, log_ends, rest_below

X = np.array([[2.0, 0.5], [1.5, -0.4], [1.0, 1.9], [-1.0, 1.2]])
DATA, CLASSES = Dataset(X, [1, -1, 1, -1]), Dataset(X, [0, 1, 2, 1])


class Odd:
    """It can be neither shown nor turned into a number."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __float__(self):
        raise ZeroDivisionError

    def __array__(self, *args, **keys):
        raise RuntimeError("no array")


BAD = [
    "x" * 10**6,
    10**400,
    -(10**400),
    math.nan,
    -1,
    True,
    np.zeros((4, 4)),
    np.zeros(0),
    torch.zeros(3),
    Odd(),
    [10**400] * 4,
    {},
]


@pytest.mark.parametrize("function", ["f1", "f2", "path", "largest_decay", "gap"])
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_every_bad_argument_is_one_sentence(function, loss):
    """A value may be fine (True for a bias), but what is refused is refused by an InputError of one short line."""
    data = DATA if loss == "squared" else CLASSES
    K = 1 if loss == "squared" else 3
    keys = {"data": data, "loss": loss, "output_bias": "free", "weights": None, "tol": 0.1, "time_limit": 0.2}
    keys |= {"bias": True} if function != "gap" else {}
    keys |= {"progress": None} if function != "largest_decay" else {}
    keys |= {"device": "cpu", "seed": 0} if function != "f2" else {}
    keys |= {"weight_decay": 0.1} if function in ("f1", "f2", "gap") else {}
    keys |= {"decays": [0.1]} if function == "path" else {}
    if function == "gap":
        del keys["data"]
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, K))
        keys |= {"model": net, "X": data.X, "y": data.y}
    refused = 0
    for name in keys:
        for value in BAD:
            try:
                getattr(optima, function)(**keys | {name: value})
            except InputError as error:
                refused += 1
                assert "\n" not in str(error) and len(str(error)) < 400, (name, str(error)[:500])
    assert refused > 6 * len(keys)


def test_the_active_set_ends_where_the_penalty_is_below_rounding():
    """Signs that rounding decides went in circles: with a penalty of 1e-25 it took minutes, and no clock was looked at."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((12, 4)) @ rng.standard_normal((4, 60))
    H = Z.T @ Z + 1e-12 * np.eye(60)
    q = Z.T @ rng.standard_normal(12)
    began = time.perf_counter()
    x = l1_quadratic(H, q, np.full(60, 1e-25), np.zeros(60), until=began)
    assert not x.any()  # the clock was over before the first sign
    x = l1_quadratic(H, q, np.full(60, 1e-25), np.zeros(60))
    assert np.abs(H @ x - q).max() < 1e-6 * np.abs(q).max()


def test_no_step_where_floats_do_not_hold_the_model():
    H, x = np.diag([1e-310, 1.0]), np.array([1.0, 2.0])
    for q in (np.array([np.nan, 1.0]), np.array([1e200, 1.0])):
        with np.errstate(all="ignore"):
            assert (l1_quadratic(H, q, np.array([1e200, 1.0]), x) == x).all()


def test_weights_whose_square_is_beyond_every_double():
    """Of a network whose exponential loss is 1e304, with a decayed output bias: an OverflowError of Python."""
    data = Dataset(np.eye(4), [1, -1, 1, -1])
    points = enter(data, "exp", 1e-3, False, "decayed", None, 1e-3, None).points
    assert (
        points.ridge and bounds.dual_value(points, losses.LOSSES["exp"], np.array([-1e304, 0.1, 0.1, 0.1])) == -math.inf
    )


def test_no_step_where_every_class_is_sure():
    """Outputs of 1e15 have no curvature left, and the step was measured by it: 0 divided."""
    y = np.arange(9) % 3
    points = outputs.ClassPoints(y, 3, np.ones(9), 1e-3, False, 0.0)
    Z, A = np.eye(9), 1e15 * np.eye(3)[y]
    for scale in (1.0, 1e-13):  # the losses are 0, and nearly
        assert (
            groups._model(points, Z, scale * A, np.zeros(3), scale * A, points.pull(scale * A), 0.0, 1.0) is None
            or scale < 1
        )
        masses, b = groups.fit(points, Z, scale * A, np.zeros(3), 1.0)
        assert np.isfinite(masses).all() and not b.any()


def test_points_that_are_all_zero_have_slopes():
    """Their lengths are 0, whose squares divide."""
    tree = Terms(torch.zeros(3, 2, dtype=torch.float64), torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64))
    assert float(tree.lipschitz) > 0 and bool((tree.size**2 > 0).all())


def normal(seed, n, d):
    return np.random.default_rng(seed).standard_normal((n, d))


def powers(seed, n, far):
    return 10.0 ** np.random.default_rng(seed).integers(-far, far, (n, 1))


HOSTILE = {
    "zero rows": (np.vstack([np.zeros((6, 7)), np.eye(7)]), 1e-9, "squared-hinge", None, False),
    "sizes": (normal(1, 12, 2) * powers(1, 12, 40), 3e-4, "logistic", "decayed", True),
    "tiny": (normal(2, 8, 3) * 1e-250, 0.01, "cross-entropy", "free", True),
    "huge": (normal(3, 9, 4) * 1e200, 1e-5, "squared", "decayed", True),
    "one": (np.ones((1, 3)), 0.1, "exp", "decayed", False),
    "sizes, exp": (normal(4, 14, 4) * powers(4, 14, 60), 0.03, "exp", None, False),
}


def test_sizes_at_the_end_of_the_floats():
    """Kernel values of tiny targets have no digits in a check, and weights whose unit no float holds are refused."""
    points, y = normal(6, 6, 3), normal(7, 6, 1)[:, 0]
    with pytest.raises(InputError, match="too tiny"):
        optima.f2(Dataset(points, 1e-180 * y), loss="squared", weight_decay=1e-4, output_bias=None, bias=True)
    data = Dataset(points, 1e-35 * y)
    cert = optima.f2(data, loss="squared", weight_decay=1e-4, output_bias=None, bias=True)
    assert cert.status == "certified" and cert.verify(data).ok
    data = Dataset(X, 1e100 * DATA.y)
    with pytest.raises(InputError, match="beyond what floats hold"):
        optima.f1(data, loss="squared", weight_decay=1e-3, weights=np.full(4, 1e280), time_limit=0.2, bias=True)


@pytest.mark.filterwarnings("error", "ignore:.*What would help")
@pytest.mark.parametrize("name", HOSTILE)
def test_bounds_of_hostile_data_hold(name):
    points, decay, loss, mode, bias = HOSTILE[name]
    n = len(points)
    data = Dataset(points, np.arange(n) % 3 if loss == "cross-entropy" else np.where(np.arange(n) % 3, 1.0, -1.0))
    keys = {"loss": loss, "weight_decay": decay, "output_bias": mode, "bias": bias, "time_limit": 0.3}
    for solve in (optima.f1, optima.f2) if loss != "cross-entropy" else (optima.f1,):
        told = []
        try:
            cert = solve(data, progress=lambda *say, told=told: told.append(say[1:3]), **keys)
        except InputError as error:
            assert solve is optima.f2 and "rescale" in str(error)  # f2 squares sizes
            continue
        assert 0 <= cert.lower <= cert.upper < 1e300
        assert cert.verify(data).ok, cert.verify(data)
        for (low, high), (lower, upper) in itertools.pairwise(told):
            assert lower >= low * (1 - 1e-12) and upper <= high * (1 + 1e-12)


def test_rest_of_an_entropy_is_close_for_tiny_parts():
    """(w - u) log(w / (w - u)) is nearly u: an error of 2^-150 in the logarithm is more than all of a tiny u."""
    for u in (1, 3, 2**40, 2**199, 2**200 - 1, 2**200):
        w = 2**200
        below = rest_below(w, u)
        assert below <= (w - u) * log_ends(w, w - u)[1] if u < w else below == 0
        if u < 2**100:
            assert below << 60 >= u * ONE * (2**60 - 1)


@pytest.mark.parametrize("n", [1, 2, 9, 300])
def test_enumeration_is_that_of_the_definition(n):
    """Its sums over active points are sums along the circle, and of all arcs only the best are compared to the last digit."""
    for seed in range(20):
        rng = np.random.default_rng([seed, n])
        points, g = rng.standard_normal((n, 2)), rng.standard_normal((n, 3))
        if seed % 4 == 1:  # parallel ones, opposite ones and zero
            points = np.round(points) * rng.choice([1.0, 1e-6], n)[:, None]
        elif seed % 4 == 2:
            points[:, 0] *= 1e-9
        elif seed % 4 == 3:
            points = points[:, :1]
        proof, found = several.enumeration(points, g)
        turn = np.append(np.linspace(0, 2 * np.pi, 20001), np.arctan2(points[:, -1], points[:, 0]) + np.pi / 2)
        around = np.column_stack([np.cos(turn), np.sin(turn)]) if points.shape[1] == 2 else np.array([[1.0], [-1.0]])
        seen, met = several.values(points, g, around).max(), several.values(points, g, found[:1])[0]
        size = np.linalg.norm(g, axis=1) @ np.linalg.norm(points, axis=1)
        assert met <= proof.upper <= met * (1 + 1e-9) + 1e-9 * size
        assert seen <= proof.upper and (met <= seen * (1 + 1e-3) + 1e-12 * size or seed % 4 == 2)


def test_long_proofs_tell_that_they_go_on():
    """Trees call back at every step, and a solve says a word when a second has passed."""
    rng = np.random.default_rng(0)
    data, said, steps = Dataset(rng.standard_normal((30, 9)), rng.choice([-1.0, 1.0], 30)), [], []
    one = solver(
        enter(data, "squared", 1e-3, True, None, None, 1e-3, 9.0), 1e-3, 0, "cpu", lambda *say: said.append(say)
    )
    one.beat()
    assert not said
    one.told -= 2
    one.beat()
    assert len(said) == 1 and said[0][3] == "proof goes on" and 0 <= said[0][1] <= said[0][2]
    assert one.where.beat == one.beat
    one.where.beat = lambda: steps.append(1)
    one.price(one.pull(), 1.0, known=0.0, tol=1e-9, seconds=0.3)
    assert steps


@pytest.mark.parametrize("at", [1, 2, 3, 5])
@pytest.mark.parametrize("loss", ["logistic", "cross-entropy"])
def test_interrupted_by_progress(at, loss):
    calls = []

    def stop(*say):
        calls.append(say)
        if len(calls) == at:
            raise KeyboardInterrupt

    data = CLASSES if loss == "cross-entropy" else DATA
    path = optima.path(data, [0.1, 0.01, 0.001], loss=loss, time_limit=1, progress=stop, bias=True)
    assert all(point.certificate.verify(data).ok for point in path)
    assert len(calls) < at or path[-1].certificate.status in ("interrupted", "certified")


# ------------------------------------------------------------------ files


def test_models_that_are_none(tmp_path, capsys):
    """A few bytes may claim any shape, and complex weights have no objective."""
    (tmp_path / "data.csv").write_text("a,b,y\n1,2,1\n2,1,-1\n-1,1,1\n")
    good = {"0.weight": torch.ones(3, 2), "2.weight": torch.ones(1, 3)}
    wide = torch.zeros(1).expand(10**9, 2)
    for number, model in enumerate(
        [
            {**good, "0.weight": wide},
            {"a": wide, "b": torch.zeros(1).expand(1, 10**9)},
            {**good, "0.weight": torch.ones(3, 2, dtype=torch.complex64)},
            {"x" * 10**5: torch.ones(2, 2, 2)},
            {"0.weight": torch.ones(0, 2), "2.weight": torch.ones(1, 0)},
            {"0.weight": torch.ones(3, 2), "2.weight": torch.ones(0, 3)},
            b"\x80\x99" + bytes(range(256)),
        ]
    ):
        file = tmp_path / f"{number}.pt"
        file.write_bytes(model) if isinstance(model, bytes) else torch.save(model, file)
        assert main(["gap", str(file), str(tmp_path / "data.csv"), "--weight-decay", "0.1"]) == 2, number
        text = capsys.readouterr().err
        assert len(text.strip().splitlines()) == 1 and len(text) < 600, (number, text[:300])


@pytest.mark.slow
def test_damaged_certificates_get_a_line_and_the_page_stays(tmp_path, capsys):
    folder = tmp_path / "all"
    folder.mkdir()
    optima.f1(DATA, weight_decay=0.05, bias=True).save(folder / "good.json")
    for data, cert in (
        (DATA, optima.f1(DATA, weight_decay=0.05, bias=True)),
        (DATA, optima.f2(DATA, weight_decay=0.05, bias=True)),
        (CLASSES, optima.f1(CLASSES, loss="cross-entropy", weight_decay=0.05, bias=True)),
    ):
        file = folder / "bad.json"
        cert.save(file)
        whole = json.loads(file.read_text())
        for place, value in (
            ("data", {"name": [[1]], "sha256": data.sha256()}),
            ("d", 0),
            ("d", 5),
            ("n", math.nan),
            ("upper", 1e308),
            ("lower", 5e-324),
            ("status", []),
            ("extra", {}),
        ):
            damaged = copy.deepcopy(whole) | {place: value}
            damaged["digest"] = exact.digest(damaged)
            file.write_text(json.dumps(damaged))
            page = tmp_path / "page.html"
            page.unlink(missing_ok=True)
            assert main(["report", str(folder), "--out", str(page)]) == 0, (cert.kind, place, value)
            assert page.exists() and "Traceback" not in page.read_text()
    capsys.readouterr()


def test_what_is_no_file_is_not_replaced(tmp_path):
    """A file is written beside its name and then takes its place: a pipe or a device would be gone."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is no file"):
        write_atomically(pipe, b"x")
    assert pipe.is_fifo()
    (tmp_path / "data.csv").write_text("a,y\n1,1\n2,-1\n")
    assert main(["fit", str(tmp_path / "data.csv"), "--weight-decay", "0.1", "--save", str(pipe)]) == 2
