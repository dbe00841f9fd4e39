"""The table of kinds: everything that reads it knows every row, and what it says is what the functions do."""

from __future__ import annotations

import argparse
import inspect

import numpy as np
import pytest
from numpy.testing import assert_allclose

import widemargin
from widemargin import Certificate, Dataset, InputError, Measure, kinds, margins, verify
from widemargin.cli import margin as command
from widemargin.report import certificates
from widemargin.spaces import ReLU, SReLU
from widemargin.sweep import tasks
from widemargin.types import CONVENTIONS, F1_CONVERSIONS

X = np.array([[2.0, 0.5], [1.5, -0.4], [1.0, 1.9], [-1.0, 1.2], [-2.2, 0.3], [-0.8, -1.7]])
DATA = Dataset(X, [1, 1, 1, -1, -1, -1], "halves")
CLASSES = Dataset(X, [0, 0, 1, 1, 2, 2], "thirds")
VALUES = Dataset(X, [0.5, -1.0, 2.0, 0.3, 1.1, -0.7], "values")
CONES = Dataset([[1.0, 0.01], [1.1, -0.01], [-1.0, 0.02], [-1.2, 0.0]], [1, 1, -1, -1], "cones")
SEVERAL = Dataset(X, np.column_stack([VALUES.y, X[:, 0] * X[:, 1]]), "several values")
TARGETS = {"signs": DATA, "classes": CLASSES, "values": VALUES, "several values": SEVERAL}
PUBLIC = [
    "batchnorm", "collapse", "f1", "f2", "frozen", "linear", "min_norm_l1", "min_norm_l2", "multiclass_f1", "multiclass_linear",
    "ntk", "projected", "random_features", "tangent", "width_margin_curve",
]  # fmt: skip


def options(**changed):
    """What the command line would give."""
    usual = {
        "bias": False, "activation": "relu", "seed": 3, "device": "cpu", "width": 40, "time_limit": 20.0, "tol": None,
        "part": "total", "transport": "l2", "samples": None, "confidence": None, "rank": 1, "eps": 0.0, "displacement": 0.0,
        "multiclass": False,
    }  # fmt: skip
    return argparse.Namespace(**usual | changed)


def given(name: str) -> Dataset:
    """Data of which the margin of a kind is positive."""
    return CONES if name == "collapse" else TARGETS[kinds.KINDS[name].targets]


def solved(name: str, **keys) -> Certificate:
    """One certificate of a kind, from the row of the table alone."""
    row = kinds.KINDS[name]
    function = getattr(getattr(widemargin, row.room), row.function)
    if row.needs == "weight_decay":
        keys |= {"weight_decay": 0.05, "bias": True}
        if row.targets == "classes":
            keys["loss"] = "cross-entropy"
        if row.targets == "several values":
            keys["loss"] = "squared"
    elif row.needs:
        keys[row.needs] = X @ np.array([[1.0, 0.2, 0.0], [0.1, 1.0, -0.3]])
    if "directions" in inspect.signature(function).parameters:
        keys["directions"] = 40
    if name == "ntk":
        keys["transport"] = "l2"
    if name == "bn":
        keys["width"] = 60
    return function(given(name), **keys)


@pytest.fixture(scope="module")
def certs() -> dict[str, Certificate]:
    return {name: solved(name) for name in kinds.KINDS}


def test_every_kind_is_known_everywhere(certs):
    assert set(kinds.KINDS) == set(verify.KINDS)
    for name, row in kinds.KINDS.items():
        cert = certs[name]
        assert cert.kind == name == row.name and cert.convention in row.conventions
        assert row.conventions == verify.KINDS[name][1] and set(row.conventions) <= set(CONVENTIONS)
        assert cert.verify(given(name)).failed is None
        assert set(row.drawn) <= {"neurons", "decision"} and row.targets in TARGETS
        assert kinds.label(name) in str(certificates.intervals([cert]))  # the report
        offered = name in kinds.OFFERED or name in kinds.SEVERAL.values()
        assert offered == (row.targets != "values" and not row.needs)
        assert (f"--kind {name.removesuffix('-multiclass')}" in certificates.again(cert)) == offered
        assert offered or f"by widemargin.{row.room}.{row.function}\n" in certificates.again(cert)
        if name in kinds.OFFERED:
            assert tasks._margin_function({"kind": name}) is getattr(margins, row.function)
    assert kinds.label("of tomorrow") == "of tomorrow"


@pytest.mark.parametrize("name", [*kinds.OFFERED, *kinds.SEVERAL.values()])
def test_the_command_line_solves_every_kind_that_it_offers(name, certs):
    several = name in kinds.SEVERAL.values()
    asked = options(multiclass=several, seed=0, width=60 if name == "bn" else 40, rank=2)
    said = []
    found = command.solve(name.removesuffix("-multiclass"), given(name), asked, lambda *now: said.append(now))
    assert found.kind == name
    assert_allclose(found.bounds(), certs[name].bounds(), rtol=1e-3)
    assert set(kinds.KINDS[name].shown) >= set(command._more(found))
    assert command._more(found).keys() >= {"ntk": {"part"}, "bn": {"gamma_a", "width"}, "projected": {"rank"}}.get(
        name, set()
    )
    if "bias" not in kinds.KINDS[name].options:
        with pytest.raises(InputError, match="--bias does not apply"):
            command.solve(name, DATA, options(bias=True))
    if found.lower > 0 and name not in ("f1", "f1-multiclass", "collapse"):
        seconds, lower, upper, _ = said[-1]
        assert seconds > 0
        assert_allclose((lower, upper), found.bounds(), rtol=1e-9)


@pytest.mark.parametrize("row", kinds.KINDS.values(), ids=kinds.KINDS)
def test_options_are_arguments_of_the_function(row):
    known = inspect.signature(getattr(getattr(widemargin, row.room), row.function)).parameters
    assert {argument for argument, _ in row.options.values()} <= set(known)
    # nothing that the command line has an option for is left out
    for name in ("bias", "seed", "device"):
        assert (name in known) == (name in row.options)


# ---------------------------------------------------------------- keywords


@pytest.mark.parametrize("name", PUBLIC)
def test_the_shared_keywords(name):
    known = inspect.signature(getattr(margins, name)).parameters
    shared = {"tol", "time_limit", "memory", "progress", "seed", "device", "bias", "activation"}
    for one in shared & set(known):
        assert known[one].kind is inspect.Parameter.KEYWORD_ONLY, one
    expected = {"tol", "time_limit", "progress"} | ({"memory"} if name != "width_margin_curve" else set())
    if name not in ("f2", "linear", "multiclass_linear", "tangent", "min_norm_l2"):
        expected |= {"seed"}
    if name in ("f1", "width_margin_curve"):
        expected |= {"device"}
    assert shared & set(known) - {"bias", "activation"} == expected


def test_all_margins_are_looked_at():
    made = {
        name
        for name in margins.__all__
        if "Certificate" in str(inspect.signature(getattr(margins, name)).return_annotation)
    }
    assert made | {"width_margin_curve"} == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_progress_brackets_the_margin(name):
    """Every call is (seconds, lower, upper, message), and no bound contradicts the certificate."""
    if name == "min_norm_l2":
        return
    said = []
    if name == "width_margin_curve":
        cert = margins.width_margin_curve(DATA, [2, 3], tol=0.01, progress=lambda *now: said.append(now)).certificate
    else:
        kind = next(one for one, row in kinds.KINDS.items() if row.function == name)
        cert = solved(kind, progress=lambda *now: said.append(now))
    assert said
    for seconds, lower, upper, message in said:
        assert seconds >= 0 and isinstance(message, str) and message
        assert 0 <= lower <= cert.upper * (1 + 1e-9) and upper >= cert.lower * (1 - 1e-9)


def test_progress_is_in_the_units_of_the_data():
    for scale in (1e-30, 2.0, 1e40):
        said: list[tuple[float, float, float, str]] = []
        data = Dataset(scale * X, DATA.y)
        cert = margins.f2(data, activation="srelu", progress=lambda *now: said.append(now))  # noqa: B023
        assert len(said) > 1
        assert_allclose(said[-2][1:3], cert.bounds(), rtol=1e-5)  # of the solver's last step, before rounding


def test_bias_is_never_given_by_position():
    with pytest.raises(TypeError):
        margins.linear(DATA, True)


# ---------------------------------------------------------------- contradictions


@pytest.mark.parametrize("solve", [margins.f1, margins.f2])
def test_a_space_and_arguments_that_contradict_it_are_refused(solve):
    for keys, word in (
        ({"space": ReLU(bias=True), "bias": False}, "bias=False"),
        ({"space": ReLU(), "bias": True}, "bias=True"),
        ({"space": SReLU(), "activation": "relu"}, "activation='relu'"),
        ({"space": ReLU(), "activation": "srelu"}, "activation='srelu'"),
    ):
        with pytest.raises(InputError, match=f"{word} contradicts the space") as caught:
            solve(DATA, **keys)
        assert str(caught.value).count(". ") == 0
    with pytest.raises(InputError, match="activation must be"):
        solve(DATA, activation="gelu")
    agreed = solve(DATA, ReLU(bias=True), bias=True, activation="relu")
    assert agreed.bias and agreed.activation == "relu"
    plain = solve(DATA, SReLU())
    assert not plain.bias and plain.activation == "srelu"
    assert (solve(DATA).bias, solve(DATA).activation) == (False, "relu")


def test_a_kernel_and_an_activation_that_contradict_each_other_are_refused():
    for keys in (
        {"kernel": "srelu", "activation": "relu"},
        {"kernel": "relu", "space": SReLU()},
        {"kernel": X @ X.T, "activation": "srelu"},
        {"space": X @ X.T, "activation": "srelu"},
    ):
        with pytest.raises(InputError, match="leave one of them out"):
            margins.f2(DATA, **keys)
    assert margins.f2(DATA, kernel="srelu", activation="srelu").activation == "srelu"


def test_a_measure_knows_its_activations():
    with pytest.raises(InputError, match=r"activation must be 'relu', 'srelu', .*, not 'gelu'"):
        Measure([[1.0, 0.0]], [1.0], "gelu")


# ---------------------------------------------------------------- functions, bounds, files


def smallest(values: np.ndarray, data: Dataset) -> float:
    """The margin by its definition, of (n,) or (n, K) values."""
    if values.ndim == 1:
        return float((data.y * values).min())
    own = np.arange(values.shape[1]) == data.y[:, None]
    return float((values[own] - np.where(own, -np.inf, values).max(axis=1)).min())


@pytest.mark.parametrize("name", kinds.KINDS)
def test_the_function_of_a_certificate(name, certs, tmp_path):
    """It has the certified margin, or takes the targets; also after saving and loading, and one point at a time."""
    cert, data = certs[name], given(name)
    X = data.X
    cert.save(tmp_path / "c.json.gz")
    again = Certificate.load(tmp_path / "c.json.gz")
    assert again.payload() == cert.payload() and again.verify(data).answer == cert.verify(data).answer
    if name in ("projected", "tangent"):
        with pytest.raises(InputError, match="holds no function"):
            cert.function(X, data)
        return
    values = again.function(X, data)
    if cert.convention == "norm":
        assert_allclose(values, data.y, rtol=1e-6, atol=1e-6)
    elif cert.convention == "objective":
        loss = np.logaddexp(0, -data.y * values).mean() if values.ndim == 1 else 0.0
        if name == "f1-optimum":
            size = cert.primal.norm
        elif values.ndim == 2:
            if data.y.ndim == 2:
                loss = ((data.y - values) ** 2).sum() / (2 * data.n)
            else:
                own = values[np.arange(data.n), data.y.astype(int)]
                loss = (np.log(np.exp(values).sum(axis=1)) - own).mean()
            theta, outer = (np.linalg.norm(cert.extra[part], axis=1) for part in ("theta", "outer"))
            size = float(theta @ outer)
        else:
            alpha = np.array(cert.extra["alpha"])
            size = float(alpha @ ReLU(bias=True).kernel(X) @ alpha) / 2
        assert_allclose(loss + cert.extra["weight_decay"] * size, cert.upper, rtol=1e-9)
    else:
        assert cert.lower > 0
        assert_allclose(smallest(values, data), cert.lower, rtol=1e-4 if name == "bn" else 1e-6)
        assert smallest(values, data) >= cert.lower * (1 - 1e-9)
    other = np.random.default_rng(0).standard_normal((5, 2))
    together = again.function(other, data)
    assert_allclose(np.array([again.function(z[None], data)[0] for z in other]), together, rtol=1e-10, atol=1e-12)
    with pytest.raises(InputError, match=r"shape \(n, 2\)"):
        cert.function(np.ones((3, 5)), data)
    if name in ("f2", "ntk", "l2-regression", "f2-optimum", "bn"):
        with pytest.raises(InputError, match=f"made of the data's points; give {data.name}"):
            cert.function(X)
        with pytest.raises(InputError, match="is other data"):
            cert.function(X, Dataset(X + 1, data.y))
    else:
        assert_allclose(cert.function(X), values, rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda data, bias: margins.f1(data, bias=bias, activation="srelu"),
        lambda data, bias: margins.f2(data, bias=bias, activation="srelu"),
        lambda data, bias: margins.frozen(data, 50, bias=bias, activation="srelu"),
        lambda data, bias: margins.random_features(data, 50, bias=bias, activation="srelu"),
        lambda data, bias: margins.ntk(data, bias=bias, transport="l2", part="inner"),
        lambda data, bias: margins.batchnorm(data, 50, part="c", displacement=0.01, seed=2),
        lambda data, bias: margins.batchnorm(data, V0=np.random.default_rng(1).standard_normal((50, 2)), eps=0.1),
    ],
    ids=["f1", "f2", "frozen", "rf", "ntk", "bn moved", "bn given"],
)
@pytest.mark.parametrize("scale", [1.0, 1e-90, 1e70])
def test_functions_with_other_options_and_scales(make, scale):
    data = Dataset(scale * X, DATA.y)
    cert = make(data, bias=scale == 1)  # beside a bias such points would all be alike
    assert cert.lower > 0
    assert_allclose(smallest(cert.function(data.X, data), data), cert.lower, rtol=1e-4 if cert.kind == "bn" else 1e-6)


@pytest.mark.parametrize("space", ["f1", "f2", "linear", "l1-regression", "l2-regression"])
def test_the_estimators_agree_with_the_function(space):
    """The estimators compute their values by code of their own."""
    from widemargin.margins.estimators import MinNormRegressor
    from widemargin.optima.estimators import MaxMarginClassifier

    other = np.random.default_rng(1).standard_normal((9, 2))
    if space in kinds.OFFERED:
        model = MaxMarginClassifier(space, bias=True).fit(X, DATA.y)
        values, data = model.decision_function(other), DATA
    else:
        model = MinNormRegressor({"l1-regression": "f1", "l2-regression": "f2"}[space], bias=True).fit(X, VALUES.y)
        values, data = model.predict(other), VALUES
    assert not model.soft_
    assert_allclose(model.certificate_.function(other, data), values, rtol=1e-6, atol=1e-9)


def test_what_was_not_found_is_no_function():
    twins = Dataset([[1.0, 0.0], [1.0, 0.0]], [1, -1])
    for cert in (margins.f1(twins), margins.linear(twins), margins.f2(twins), margins.random_features(twins, 5)):
        with pytest.raises(InputError, match=r"holds no function \(not-separable\)"):
            cert.function(twins.X, twins)
    for cert in (margins.min_norm_l1(twins), margins.min_norm_l2(twins)):
        with pytest.raises(InputError, match=r"holds no function \(no-interpolation\)"):
            cert.function(twins.X, twins)
    with pytest.raises(InputError, match="infinitely many random neurons"):
        margins.ntk(DATA, samples=5000).function(X, DATA)
    with pytest.raises(InputError, match="knows no values"):
        margins.f2(DATA, kernel=X @ X.T).function(X, DATA)


def test_a_network_without_neurons(tmp_path):
    none = margins.min_norm_l1(Dataset(X, np.zeros(6)))
    none.save(tmp_path / "c.json")
    for cert in (none, Certificate.load(tmp_path / "c.json")):
        assert cert.primal is not None and cert.primal.theta.shape == (0, 2)
        assert_allclose(cert.function(X), 0)


def test_bounds_in_other_conventions(certs):
    cert = certs["f1"]
    assert cert.bounds() == cert.bounds("M1") == (cert.lower, cert.upper)
    W, a = cert.primal.to_network()
    own = (DATA.y * ((X @ W.T).clip(0) @ a)).min() / ((W**2).sum() + (a**2).sum())  # M2 by its definition
    low, high = cert.bounds("M2")
    assert low * (1 - 1e-12) <= own <= high
    assert {name: dict(zip(("lower", "upper"), cert.bounds(name))) for name in F1_CONVERSIONS} == cert.conversions
    several = certs["f1-multiclass"]
    assert list(several.bounds("MT2")) == several.extra["gamma_star"] and several.conversions == {}
    theta, outer = (np.array(several.extra[key]) for key in ("theta", "outer"))
    root = np.sqrt(np.linalg.norm(outer, axis=1) / np.linalg.norm(theta, axis=1))[:, None]
    inner, last = theta * root, outer / root  # balanced
    star = smallest((X @ inner.T).clip(0) @ last, CLASSES) / ((inner**2).sum() + (last**2).sum())
    assert several.bounds("MT2")[0] * (1 - 1e-9) <= star <= several.bounds("MT2")[1]
    for name, convention in (("f1", "M7"), ("f2", "M2"), ("linear", "M1"), ("f1-multiclass", "M2"), ("collapse", "M1")):
        with pytest.raises(InputError, match="has no bounds in convention"):
            certs[name].bounds(convention)
    with pytest.raises(InputError, match="only in M1"):
        margins.f1(DATA, activation="srelu").bounds("M2")


def test_files_that_are_no_certificates_are_refused(certs, tmp_path):
    import gzip
    import json

    path = tmp_path / "c.json"

    def refused(payload, words):
        path.write_text(payload if isinstance(payload, str) else json.dumps(payload))
        with pytest.raises(InputError, match=words):
            Certificate.load(path)

    payload = certs["f2"].payload()
    with pytest.raises(InputError, match="No such file"):
        Certificate.load(tmp_path / "none.json")
    refused("{", "not JSON")
    refused("[]", "is no certificate")
    refused({"format": "other"}, "is no certificate")
    refused(payload | {"format": "widemargin-certificate-9"}, "this version reads")
    refused({k: v for k, v in payload.items() if k != "dual"}, "dual is missing")
    refused(payload | {"lower": 0.0}, "digest")
    for broken in (
        {"dual": [[1], [2, 3]]},
        {"data": "x"},
        {"primal": {"theta": [[1, 2]]}},
        {"primal": {"theta": [[1, 2]], "mass": [1]}, "activation": "gelu"},
        {"dual": "q"},
    ):
        body = {k: v for k, v in (payload | broken).items() if k != "digest"}
        refused(body | {"digest": verify.digest(body)}, "damaged")
    path.write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(InputError, match="damaged"):
        Certificate.load(path)
    certs["f2"].save(path)
    assert Certificate.load(str(path)).stats["path"] == str(path)


def test_large_integers_of_a_relation_survive_saving(tmp_path):
    points = np.array([[1.0, 0.0], [2.0**60 + 2.0**10, 0.0], [0.0, 1.0]])
    cert = margins.min_norm_l1(Dataset(points, [1.0, 3.0, 1.0]))
    assert cert.status == "no-interpolation"
    cert.save(tmp_path / "c.json")
    again = Certificate.load(tmp_path / "c.json")
    assert again.payload() == cert.payload() and [int(w) for w in again.dual] == [int(w) for w in cert.dual]
