"""Arguments of another type, or numbers that no float holds, end in one sentence that names them."""

import numpy as np
import pytest
import torch

from widemargin import Certificate, Dataset, InputError, data, flows, margins, optima, plots, report, spaces, theory

DATA = Dataset([[1.0, 2.0], [2.0, -1.0], [-1.0, 0.5], [0.5, 0.5]], [1, -1, 1, -1])
HUGE = 10**400
ODD = [
    None,
    "x",
    b"x",
    1j,
    [],
    [1.0],
    {},
    np.array([1.0, 2.0]),
    np.array("x"),
    object(),
    torch.zeros(2),
    print,
    Dataset,
]
NO_TRUTH = [2, -1, 1.5, np.float64(1.0), np.int8(2), HUGE, *ODD]
NO_NUMBER = [True, -1.0, float("nan"), float("inf"), HUGE, -HUGE, *ODD]
NO_COUNT = [True, -1, 0, 1.5, float("nan"), HUGE, *ODD]


@pytest.mark.parametrize(
    ("name", "argument", "values"),
    [
        *(
            (name, "bias", [value for value in NO_TRUTH if value is not None or name not in ("f1", "f2")])
            for name in ("linear", "multiclass_linear", "f1", "f2", "frozen", "ntk", "multiclass_f1", "min_norm_l2")
        ),
        ("collapse", "strict", NO_TRUTH),
        *((name, "memory", [0, *NO_NUMBER[:6], *ODD[1:]]) for name in ("linear", "f1", "f2", "collapse")),
        ("batchnorm", "eps", NO_NUMBER),
        ("batchnorm", "displacement", NO_NUMBER),
        ("collapse", "eps", [0.0, *NO_NUMBER[:6], *ODD[1:]]),
        ("collapse", "gamma_nc", [0.0, *NO_NUMBER[:6], *ODD[1:]]),
        ("ntk", "confidence", [0, 1, *NO_NUMBER]),
        ("projected", "restarts", NO_COUNT),
        ("collapse", "most_cones", NO_COUNT),
        ("batchnorm", "width", NO_COUNT),
        ("collapse", "seed", [True, -1, 1.5, HUGE, *ODD]),
        ("projected", "seed", [True, -1, 1.5, HUGE, *ODD]),
        ("f1", "activation", [3, HUGE, *ODD[1:]]),
        *((name, "seed", [True, -1, 1.5, HUGE, *ODD]) for name in ("frozen", "random_features")),
        *((name, "part", [3, HUGE, *ODD]) for name in ("ntk", "batchnorm")),
        ("ntk", "transport", [3, HUGE, *ODD]),
        ("ntk", "samples", [True, 1, 1.5, *ODD[1:]]),
        ("batchnorm", "moves", NO_COUNT[:2] + NO_COUNT[3:]),
    ],
)
def test_one_sentence_names_the_argument(name, argument, values):
    needed = {"frozen": {"directions": 4}, "random_features": {"directions": 4}}.get(name, {})
    for value in values:
        with pytest.raises(InputError, match=rf"{argument} must (be|lie) .*, not ") as caught:
            getattr(margins, name)(DATA, **needed | {argument: value})
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["linear", "multiclass_linear", "f1", "f2"])
def test_truth_values_of_numpy_and_numbers(name):
    """Such as a comparison of arrays gives; what is saved has those of Python."""
    for value in (np.True_, np.array([2.0])[0] > 1, 1, np.int8(1)):
        cert = getattr(margins, name)(DATA, bias=value)
        assert cert.bias is True and cert.verify(DATA).ok
        assert cert.lower == getattr(margins, name)(DATA, bias=True).lower
    assert spaces.ReLU(bias=np.False_).bias is False
    assert spaces.as_space("leaky", bias=np.True_).bias is True


def test_sizes_that_are_numbers_of_any_kind():
    for memory in (10**9, 1e9, np.float32(1e9), np.int64(10**9)):
        assert margins.linear(DATA, memory=memory).proved


@pytest.mark.parametrize("value", [3, *(value for value in ODD if not isinstance(value, str))])
def test_ids_are_texts(value):
    for ask in (theory.theorem, theory.order, lambda id: theory.guarantees(DATA, theorems=[id])):
        with pytest.raises(InputError, match="an id is a text such as 'MT-7', not"):
            ask(value)


def test_ids_come_in_a_list():
    for value in (3, "MT-7", object()):
        with pytest.raises(InputError, match="give ids as a list"):
            theory.guarantees(DATA, theorems=value)


@pytest.mark.parametrize("value", [3, HUGE, None, "x", b"x", {}, 1j, np.array(5), object(), print, DATA])
def test_what_is_no_table_of_numbers(value):
    """Matrices, points, widths and networks of another type."""
    asks = (
        lambda: margins.f2(DATA, kernel=value),
        lambda: margins.tangent(DATA, jacobian=value),
        lambda: margins.frozen(DATA, directions=value if value != 3 else True),
        lambda: margins.batchnorm(DATA, V0=value),
        lambda: margins.ntk_kernel(value),
        lambda: margins.ntk_kernel([[1.0, 2.0]], [value] if value != 3 else [[3.0]]),
        lambda: margins.positive_transport(value, [[1.0, 0.0]]),
        lambda: margins.parity_transport(3, value),
        lambda: margins.parity_transport(value if value != 3 else 1),
        lambda: margins.transport_margin(DATA, value, 100),
        lambda: margins.width_margin_curve(DATA, widths=value),
        lambda: margins.prune(value, DATA),
    )
    for number, ask in enumerate(asks):
        if value is None and number in (0, 3):
            continue  # left out
        if value is print and number in (0, 1, 9):
            continue  # a function
        with pytest.raises(InputError) as caught:
            ask()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_numbers_that_numpy_would_change():
    """It drops what is imaginary, and counts days."""
    for value in (1j * np.eye(4), np.eye(4).astype("m8[D]")):
        with pytest.raises(InputError, match="the kernel matrix must hold real numbers only, not"):
            margins.f2(DATA, kernel=value)


def test_a_matrix_that_torch_still_trains():
    weights = torch.nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
    assert margins.frozen(DATA, weights).upper == margins.frozen(DATA, weights.detach().numpy()).upper


def test_no_data():
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    cert = margins.f1(DATA)
    for ask in (
        lambda: margins.of(net, None),
        lambda: optima.gap(net, None, weight_decay=0.1),
        lambda: margins.prune(cert.primal, None),
        lambda: plots.decision(cert, None),
        lambda: theory.guarantees(None),
        lambda: flows.train(None, flows.TwoLayer(2, 3), flows.GD(), stop=1),
        lambda: data.save_dataset(None, "nothing.csv"),
    ):
        with pytest.raises(InputError, match="data must be a Dataset"):
            ask()


def test_paths_that_are_no_paths():
    for value in (None, 3, b"x", [], DATA):
        for ask in (
            margins.f1(DATA).save,
            Certificate.load,
            data.load_file,
            lambda path: data.save_dataset(DATA, path=path),
        ):
            with pytest.raises(InputError, match="the path must be text"):
                ask(value)


@pytest.mark.parametrize("value", [None, 3, "run", b"x", [1], {}, {"a": 1}, np.array(5), print])
def test_pictures_of_something_else(value):
    cert = margins.f1(DATA)
    for ask in (
        lambda: plots.intervals([value]),
        lambda: plots.neurons(value),
        lambda: plots.neurons(cert.primal, axes=value),
        lambda: plots.path(value),
        lambda: plots.progress(value),
        lambda: plots.records(value),
        lambda: plots.trajectory(value),
        lambda: report.write(value, "page.html"),
        lambda: report.build([cert], columns=value or 3),
        lambda: report.build([cert], trial=value if value != 3 else -1),
    ):
        with pytest.raises(InputError) as caught:
            ask()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_picture_of_one_interval():
    assert len(plots.intervals(margins.f1(DATA)).axes) == 1
