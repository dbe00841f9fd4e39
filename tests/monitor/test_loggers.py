"""Where scalars go: a TensorBoard file is read back, and every kind of logger gets the same numbers with their steps."""

import math
import warnings

import pytest
import torch
from torch import nn

from widemargin.monitor import MarginMonitor, load
from widemargin.monitor.homogeneous import Homogeneous
from widemargin.monitor.loggers import as_logger, named
from widemargin.types import InputError

pytestmark = pytest.mark.usefixtures("one_thread")
FEW = {"margin", "psi", "margin_normalized", "psi_normalized", "norm", "error", "loss"}


class Wandb:
    def __init__(self):
        self.calls = []

    def log(self, data, step=None, commit=None):
        self.calls.append((data, step))


class NoStep:
    def __init__(self):
        self.calls = []

    def log(self, data):
        self.calls.append((data, data["step"]))


class Fabric:
    """`log` is there too, for one value."""

    def __init__(self):
        self.calls = []

    def log(self, name, value, step=None):
        raise AssertionError("not for dicts")

    def log_dict(self, metrics, step=None):
        self.calls.append((metrics, step))


class Lightning:
    def __init__(self):
        self.calls = []

    def log_metrics(self, metrics, step=None):
        self.calls.append((metrics, step))


class Kwargs:
    def __init__(self):
        self.calls = []

    def log(self, data, **more):
        self.calls.append((data, more["step"]))


def _model() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)).double()
    return model, torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3


def _run(log, **options) -> MarginMonitor:
    """Two steps and a measurement."""
    model, x, y = _model()
    monitor = MarginMonitor(model, log=log, **options)
    for _ in range(2):
        monitor.step(logits=model(x), targets=y)
    monitor.measure((x, y), "test")
    monitor.close()
    return monitor


def _expected(monitor: MarginMonitor, everything: bool = False) -> list[tuple[dict[str, float], int]]:
    return [(named(one, everything), one.step) for one in monitor.records]


def test_names_and_few_scalars():
    monitor = _run([])
    step, test = monitor.records[0], monitor.records[-1]
    assert named(step) == {f"margin/{key}": getattr(step, key) for key in FEW}
    assert named(test) == {f"margin/test/{key}": getattr(test, key) for key in FEW}
    more = named(test, everything=True)
    assert more["margin/test/margin_q50"] == test.quantiles[0.5]
    assert more["margin/test/effective"] == test.effective
    assert more["margin/test/norm/0"] == test.blocks["0"]
    assert more.keys() > named(test).keys()


@pytest.mark.parametrize("kind", [Wandb, Fabric, Lightning, Kwargs])
def test_objects_with_a_step(kind):
    logger = kind()
    monitor = _run(logger)
    assert logger.calls == _expected(monitor)
    assert [step for _, step in logger.calls] == [1, 2, 2]


def test_an_object_without_a_step_finds_it_among_the_scalars():
    logger = NoStep()
    monitor = _run(logger)
    assert logger.calls == [({**scalars, "step": step}, step) for scalars, step in _expected(monitor)]


def test_functions_modules_and_lists():
    first, second, third = [], [], []

    class mlflow:
        @staticmethod
        def log_metrics(metrics, step=None, synchronous=None):
            third.append((metrics, step))

    logs = [lambda scalars, step: first.append((scalars, step)), lambda scalars: second.append(scalars), mlflow()]
    monitor = _run(logs, everything=True)
    expected = _expected(monitor, everything=True)
    assert first == third == expected
    assert second == [{**scalars, "step": step} for scalars, step in expected]
    assert _run(None or ()).records  # none at all


@pytest.mark.parametrize(
    "function",
    [lambda d, /, step: (d, step), lambda d, step, /: (d, step), lambda d, *, step: (d, step), lambda d, k: (d, k)],
)
def test_all_ways_to_take_a_step(function):
    found = []
    as_logger(_signed(function, found))({"a": 1.0}, 7)
    assert found == [({"a": 1.0}, 7)]


def _signed(function, found):
    """The function with its signature, and its result kept."""
    import functools

    @functools.wraps(function)
    def kept(*args, **kwargs):
        found.append(function(*args, **kwargs))

    return kept


def test_an_optional_second_argument_that_is_no_step_is_left_alone():
    found = []
    as_logger(lambda d, prefix="x": found.append((d, prefix)))({"a": 1.0}, 7)
    assert found == [({"a": 1.0, "step": 7}, "x")]


def test_tensorboard_file_read_back(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(str(tmp_path))
    monitor = _run(writer)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {f"margin/{key}" for key in FEW} | {f"margin/test/{key}" for key in FEW}
    for tag in events.Tags()["scalars"]:
        found = [(one.step, one.value) for one in events.Scalars(tag)]
        expected = [(step, scalars[tag]) for scalars, step in _expected(monitor) if tag in scalars]
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=1e-6)


def test_a_logger_that_fails_loses_nothing(tmp_path):
    good, tries = [], []

    def bad(scalars, step):
        tries.append(step)
        raise ConnectionError("server away")

    with pytest.warns(UserWarning, match=r"logging to bad failed at step 1 \(ConnectionError: server away\)") as seen:
        monitor = _run([bad, lambda scalars, step: good.append((scalars, step))], out=tmp_path / "run")
    assert len(seen) == 1  # said once
    assert tries == [1, 2, 2]  # and tried again
    assert good == _expected(monitor)
    assert load(tmp_path / "run")["step"].to_pylist() == [1, 2, 2]


def test_even_a_warning_that_is_an_error_loses_nothing_of_the_file(tmp_path):
    def bad(scalars, step):
        raise ConnectionError("server away")

    model, x, y = _model()
    monitor = MarginMonitor(model, log=bad, out=tmp_path / "run")
    with pytest.raises(UserWarning, match="server away"):
        monitor.measure((x, y), "test")
    monitor.close()
    assert load(tmp_path / "run")["name"].to_pylist() == ["test"]


def test_values_that_are_not_finite_are_kept_and_not_logged(tmp_path):
    logger = Wandb()
    model, x, y = _model()
    with pytest.warns(UserWarning, match="not normalised"):
        monitor = MarginMonitor(model, Homogeneous((), 0), log=logger, out=tmp_path / "run")
    record = monitor.measure((x, y), "test")
    monitor.close()
    assert math.isnan(record.psi_normalized)
    assert set(logger.calls[0][0]) == {f"margin/test/{key}" for key in FEW - {"margin_normalized", "psi_normalized"}}
    assert load(tmp_path / "run")["psi"].to_pylist() == [record.psi]


def test_what_is_no_logger_is_said():
    with pytest.raises(InputError, match="cannot log to a int; give a TensorBoard SummaryWriter"):
        as_logger(3)
    with pytest.raises(InputError, match="Wandb is a class; make a logger of it first"):
        as_logger(Wandb)
