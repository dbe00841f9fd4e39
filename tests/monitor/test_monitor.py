"""`MarginMonitor` at work: its numbers against the room flows' and the definitions, and that training does not notice it."""

import atexit
import copy
import gc
import math
import pickle
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from widemargin.flows import GD, MLP, Net, Record, TwoLayer, View, pose, train
from widemargin.monitor import (
    Falls,
    Homogeneous,
    MarginMonitor,
    check_homogeneous,
    falls,
    find_homogeneous,
    load,
    own_geometry,
    series,
    vanishing_margin,
)
from widemargin.monitor import monitor as monitor_file
from widemargin.types import Dataset, InputError

pytestmark = pytest.mark.usefixtures("one_thread")


def small_net(classes: int = 3, seed: int = 0, kind: torch.dtype = torch.float64) -> nn.Sequential:
    """Without biases: homogeneous of degree 2."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, classes, bias=False)).to(kind)


def with_norm(seed: int = 0) -> nn.Sequential:
    """BatchNorm and dropout: things that differ in training, and buffers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3, bias=False)
    ).double()


def data(n: int = 24, classes: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, classes, (n,), generator=generator)


def size(*parameters: Tensor) -> float:
    """Norm of all of them together."""
    return float(torch.cat([p.detach().double().reshape(-1) for p in parameters]).norm())


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def check_same_state(model: nn.Module, before: dict[str, Tensor]) -> None:
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


NUMBERS = ("n", "error", "loss", "margin", "margin_mean", "psi", "log_loss_sum", "norm", "dual_entropy")


def check_same_numbers(a: Any, b: Any, rel: float = 1e-12) -> None:
    for name in NUMBERS:
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=rel, abs=1e-13), name


# ---------------------------------------------------------------- agreement with the room flows


class TwoLayerModule(nn.Module):
    """f(x) = sum_j a_j relu(v_j . x) with one output (N,)."""

    def __init__(self, W: dict[str, np.ndarray]):
        super().__init__()
        self.a, self.V = (nn.Parameter(torch.tensor(W[name][0])) for name in ("a", "V"))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.V.T) @ self.a


class DeepModule(nn.Module):
    def __init__(self, W: dict[str, np.ndarray]):
        super().__init__()
        self.names = list(W)
        for name in W:
            self.register_parameter(name, nn.Parameter(torch.tensor(W[name][0])))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names[:-1]:
            x = torch.relu(x @ getattr(self, name).T)
        return x @ getattr(self, self.names[-1]).T


def classes_data(classes: int, n: int = 20) -> Dataset:
    """Labels of a linear teacher: soon fitted."""
    x = data(n)[0].numpy()
    scores = x @ np.random.default_rng(5).standard_normal((4, max(2, classes)))
    return Dataset(x, np.sign(scores[:, 0]) if classes == 1 else scores.argmax(1).astype(float))


CASES: list[tuple[Net, type[nn.Module], str, str]] = [
    (TwoLayer(4, 12), TwoLayerModule, "bce", "logistic"),
    (TwoLayer(4, 12), TwoLayerModule, "exp", "exp"),
    (MLP(4, 9, depth=2, outputs=3), DeepModule, "ce", "ce"),
    (MLP(4, 9, depth=3, outputs=4), DeepModule, "ce", "ce"),
]


@pytest.mark.parametrize(("net", "module", "kind", "loss"), CASES, ids=["relu", "relu-exp", "mlp-2", "mlp-3"])
def test_numbers_agree_with_the_room_flows_along_training(
    net: Net, module: Callable[[Any], nn.Module], kind: str, loss: str
) -> None:
    """Same parameters, same numbers to 1e-10: at every step of gradient descent from a small start to fitted data."""
    lr, steps, times = 0.3, 160, [0, 1, 2, 5, 20, 50, 100, 160]
    dataset = classes_data(net.outputs)
    problem = pose(net, dataset, loss)
    run = train(
        dataset,
        net,
        GD(lr),
        loss=loss,
        stop=steps,
        record=Record(["psi", "psi_normalized", "margin", "norm", "q", "risk", "train_error"], times=times),
        seed=3,
    )
    model = module(net.init(1, 3))
    monitor = MarginMonitor(model, loss=kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = problem.X[0], problem.y[0]
    seen = 0
    for step in range(steps + 1):
        f = model(x)
        monitor.step(logits=f, targets=y, step=step)
        if step in times:
            W = {name: p.detach()[None].clone() for name, p in model.named_parameters()}
            check_against_view(monitor.measure((x, y)), View(problem, W, GD().init(problem, W), W), net)
            last = monitor.records[-2]  # of the step: the same batch
            row = {name: run[name][seen, 0] for name in run.records}
            for record in (last, monitor.records[-1]):
                assert record.psi == pytest.approx(row["psi"], rel=1e-10, abs=1e-10)
                assert record.psi_normalized == pytest.approx(row["psi_normalized"], rel=1e-10, abs=1e-10)
                assert record.margin == pytest.approx(row["margin"], rel=1e-10, abs=1e-10)
                assert record.norm == pytest.approx(row["norm"], rel=1e-10)
                assert record.loss == pytest.approx(row["risk"], rel=1e-10)
                assert record.error == row["train_error"]
                q = row["q"]
                assert record.dual_entropy == pytest.approx(-(q * np.log(q)).sum(), rel=1e-10)
            seen += 1
        p = y * f if kind != "ce" else None
        risk = (
            cross_entropy(f, y)
            if p is None
            else (-p).exp().mean()
            if kind == "exp"
            else nn.functional.softplus(-p).mean()
        )
        optimizer.zero_grad()
        risk.backward()
        optimizer.step()
    assert seen == len(times)
    assert monitor.homogeneous is not None
    assert monitor.homogeneous.degree == net.degree
    assert run["psi"][0, 0] < 0 < run["margin"][-1, 0]  # both signs were met


def check_against_view(record: Any, view: View, net: Net) -> None:
    from widemargin.flows import observe

    assert record.degree == net.degree
    assert record.psi == pytest.approx(float(observe.psi(view)), rel=1e-10, abs=1e-12)
    assert record.psi_normalized == pytest.approx(float(observe.psi_normalized(view)), rel=1e-10, abs=1e-12)
    assert record.margin == pytest.approx(float(observe.margin(view)), rel=1e-10, abs=1e-12)
    assert record.margin_normalized == pytest.approx(float(view.hard / view.sizes["partial"]), rel=1e-10, abs=1e-12)
    assert record.norm == pytest.approx(float(observe.norm(view)), rel=1e-12)
    assert sum(row["dual_share"] for row in record.classes) == pytest.approx(1, rel=1e-12)
    q, signs = observe.q(view)[0], view.problem.y[0]
    for row in record.classes:
        label = row["class"] if net.outputs > 1 else 2 * row["class"] - 1
        assert row["dual_share"] == pytest.approx(float(q[signs == label].sum()), rel=1e-10)


# ---------------------------------------------------------------- measure


@pytest.mark.parametrize("size", [1, 5, 24])
def test_measure_does_not_depend_on_the_batch_size(size: int) -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    whole = monitor.measure((x, y))
    parts = monitor.measure(DataLoader(TensorDataset(x, y), batch_size=size))
    check_same_numbers(whole, parts)
    assert whole.quantiles == pytest.approx(parts.quantiles)
    assert (whole.hardest, whole.at_minimum) == (parts.hardest, parts.at_minimum)
    for one, other in zip(whole.classes, parts.classes, strict=True):
        assert one == pytest.approx(other)
    f = model(x).detach()
    hard = (f.gather(1, y[:, None]) - f.scatter(1, y[:, None], -math.inf).amax(1, keepdim=True))[:, 0]
    assert_allclose(list(whole.quantiles.values()), np.quantile(hard.numpy(), list(whole.quantiles)), rtol=1e-12)
    assert whole.hardest == tuple(hard.argsort()[:16].tolist())
    assert whole.loss == pytest.approx(cross_entropy(f, y).item(), rel=1e-12)


def test_measure_takes_what_loaders_give() -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    expected = monitor.measure((x, y))
    for given in (
        [x, y],
        [(x, y)],
        iter([(x[:9], y[:9]), (x[9:], y[9:])]),
        {"input": x, "labels": y},
        [{"input": x, "label": y}],
    ):
        check_same_numbers(monitor.measure(given), expected)
    some = monitor.measure(((x[k : k + 4], y[k : k + 4]) for k in range(0, 24, 4)), batches=2)
    assert some.n == 8
    batches = iter([(x[k : k + 4], y[k : k + 4]) for k in range(0, 24, 4)])
    monitor.measure(batches, batches=2)
    assert len(list(batches)) == 4  # no batch too many was taken


def test_measure_costs_one_forward_pass_per_batch_and_step_none() -> None:
    model, (x, y) = small_net(), data()
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    monitor = MarginMonitor(model)
    monitor.measure([(x[:8], y[:8])])  # finds the homogeneous parameters
    calls.clear()
    monitor.measure([(x[:8], y[:8]), (x[8:], y[8:])])
    assert len(calls) == 2
    logits = model(x)
    calls.clear()
    for _ in range(3):
        monitor.step(logits=logits, targets=y)
    assert len(monitor.records) == 5
    assert not calls


def test_forward_of_ones_own_and_names_of_ones_own() -> None:
    model, (x, y) = small_net(), data()
    third = torch.arange(24)

    def forward(module: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        inputs, _, labels = batch
        return 2 * module(inputs), labels

    monitor = MarginMonitor(model, ["2.weight", "2.weight"], forward=forward)
    record = monitor.measure([(x, third, y)])
    f = model(x).detach()
    assert record.loss == pytest.approx(cross_entropy(2 * f, y).item(), rel=1e-12)
    assert record.degree == 1
    assert record.norm == pytest.approx(size(model[2].weight), rel=1e-12)
    by_function = MarginMonitor(model, lambda module: [name for name, _ in module.named_parameters()], degree=2)
    assert by_function.measure((x, y)).norm == pytest.approx(size(*model.parameters()), rel=1e-12)
    given = MarginMonitor(model, Homogeneous(("2.weight",), 1))
    given.step(logits=f, targets=y)  # without any forward pass
    assert given.last is not None
    assert given.last.norm == pytest.approx(size(model[2].weight), rel=1e-12)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"step": 2**70}, "step must be a whole number"),
        ({"step": 1.5}, "step must be a whole number"),
        ({"step": "a"}, "step must be a whole number"),
        ({"name": None}, "name: None is no text"),
        ({"name": "\ud800"}, "name: '.*' is no text"),
        ({"extra": {3: 1.0}}, "extra: 3 is no text"),
        ({"extra": {"a": 10**400}}, "extra: 'a' must be one number"),
        ({"extra": {"a": torch.ones(2)}}, "extra: 'a' must be one number"),
        ({"extra": [1]}, "extra must be a dictionary"),
    ],
)
def test_what_records_cannot_hold_is_refused(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    """At once: in the files it would take the records around it along, or make all of them unreadable."""
    monitor, batch = MarginMonitor(small_net(), out=tmp_path), data()
    monitor.measure(batch, step=1)
    with pytest.raises(InputError, match=said):
        monitor.measure(batch, **wrong)
    if "step" in wrong:
        logits = monitor.model(batch[0])
        with pytest.raises(InputError, match=said):
            monitor.step(logits=logits, targets=batch[1], **wrong)
    monitor.measure(batch, step=np.int64(2))
    monitor.measure(batch, step=torch.tensor(3))
    monitor.close()
    assert load(tmp_path)["step"].to_pylist() == [1, 2, 3]


def test_blocks_and_extra_and_levels() -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model, levels=(0.5,))
    record = monitor.measure((x, y), "train", step=77, extra={"a": torch.tensor(0.5), "b": np.float32(2), "c": 3})
    assert record.extra == {"a": 0.5, "b": 2.0, "c": 3.0}
    assert {type(value) for value in record.extra.values()} == {float}
    assert list(record.quantiles) == [0.5]
    assert (record.name, record.step, record.whole, record.exact) == ("train", 77, True, True)
    assert record.blocks == pytest.approx({"0": size(model[0].weight), "2": size(model[2].weight)})


def test_norms_follow_parameters_that_were_replaced() -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    monitor.measure((x, y))
    model.load_state_dict({name: 3 * p.detach() for name, p in model.named_parameters()}, assign=True)
    norm = size(*model.parameters())
    monitor.step(logits=model(x), targets=y)
    assert monitor.records[-1].norm == pytest.approx(norm, rel=1e-12)
    assert monitor.measure((x, y)).norm == pytest.approx(norm, rel=1e-12)


def test_nothing_homogeneous_means_no_normalised_margin() -> None:
    model, (x, y) = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double(), data()
    logged: list[dict[str, float]] = []
    monitor = MarginMonitor(model, log=lambda scalars, step: logged.append(scalars))
    with pytest.warns(UserWarning, match="margins are not normalised"):
        record = monitor.measure((x, y))
    assert record.degree is None
    assert math.isnan(record.psi_normalized)
    assert record.loss == pytest.approx(cross_entropy(model(x), y).item(), rel=1e-12)
    assert logged
    assert all(math.isfinite(value) for value in logged[0].values())


# ---------------------------------------------------------------- step


def test_step_is_the_measure_of_its_batch() -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    for k in range(6):
        f = model(x[4 * k : 4 * k + 4])
        monitor.step(logits=f, targets=y[4 * k : 4 * k + 4], loss=cross_entropy(f, y[4 * k : 4 * k + 4]) + 1)
    with pytest.warns(UserWarning, match="step 1: the loss that was given, .* is not the mean loss of these logits"):
        steps = list(monitor.records)
    assert [one.step for one in steps] == [1, 2, 3, 4, 5, 6]
    for k, one in enumerate(steps):
        batch = x[4 * k : 4 * k + 4], y[4 * k : 4 * k + 4]
        check_same_numbers(one, monitor.measure(batch))
        assert not one.whole
        assert one.extra["objective"] == pytest.approx(one.loss + 1, rel=1e-12)


def test_accumulated_batches_are_one() -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    for k in range(0, 24, 8):
        monitor.step(logits=model(x[k : k + 8]), targets=y[k : k + 8], accumulate=k < 16)
    monitor.step(logits=model(x), targets=y)
    parts, whole = monitor.records
    check_same_numbers(parts, whole)
    assert (parts.step, whole.step) == (1, 2)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_every_so_many_steps(accumulated: int) -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model, every=3)
    for k in range(10):
        for part in range(accumulated):
            monitor.step(logits=model(x[k : k + 1]), targets=y[k : k + 1], accumulate=part < accumulated - 1)
    assert [one.step for one in monitor.records] == [1, 4, 7, 10]
    for one in list(monitor.records):
        assert one.n == accumulated
        assert one.margin == pytest.approx(
            monitor.measure((x[one.step - 1 : one.step], y[one.step - 1 : one.step])).margin
        )


def test_batches_of_varying_sizes_and_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = small_net(), data()
    expected = [MarginMonitor(model).measure((x[:n], y[:n])) for n in (3, 24, 7, 7, 1)]
    for held in (monitor_file.HELD, 40):
        monkeypatch.setattr(monitor_file, "HELD", held)
        monitor = MarginMonitor(model)
        for n in (3, 24, 7, 7, 1):
            monitor.step(logits=model(x[:n]), targets=y[:n])
        for one, other in zip(monitor.records, expected, strict=True):
            check_same_numbers(one, other)


def test_parameters_are_those_of_the_step() -> None:
    """Records are made later, but of the parameters and logits as they were."""
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    norms = []
    for _ in range(3):
        f = model(x)
        monitor.step(logits=f, targets=y)
        norms.append(size(*model.parameters()))
        with torch.no_grad():
            f.zero_()
            for p in model.parameters():
                p.mul_(1.5)
    assert [one.norm for one in monitor.records] == pytest.approx(norms, rel=1e-12)
    margins = [one.margin for one in monitor.records]
    assert margins[2] == pytest.approx(margins[0] * 1.5**4)


def test_steps_do_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read back between two flushes: on a GPU each such reading would stop the queue."""
    waits: list[str] = []
    model, (x, y) = small_net(), data()
    for kind, targets, logits in (("ce", y, model(x)), ("bce", (y > 0).double(), model(x)[:, 0])):
        monitor = MarginMonitor(model, Homogeneous(("0.weight", "2.weight"), 2), kind)
        monitor.step(logits=logits, targets=targets, loss=logits.mean())  # the first is looked at
        with pytest.warns(UserWarning, match="is not the mean loss"):
            monitor.flush()
        with monkeypatch.context() as patched:
            for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero"):
                original = getattr(Tensor, name)

                def counted(self: Tensor, *args: Any, name: str = name, original: Any = original, **kwargs: Any) -> Any:
                    waits.append(name)
                    return original(self, *args, **kwargs)

                patched.setattr(Tensor, name, counted)
            for k in range(monitor_file.FLUSH - 1):
                monitor.step(logits=logits, targets=targets, loss=logits.mean(), accumulate=k % 3 == 0)
            assert waits == []
            monitor.flush()
            assert 1 <= len(waits) <= 6  # not once for every step
        waits.clear()


@pytest.mark.parametrize("enabled", [True, False])
def test_gradients_are_as_before(enabled: bool) -> None:
    """Also after a step that is refused."""
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    with torch.set_grad_enabled(enabled):
        logits = model(x)
        monitor.step(logits=logits, targets=y)
        with pytest.raises(InputError, match="class indices"):
            monitor.step(logits=logits, targets=y + 0.5)
        assert torch.is_grad_enabled() is enabled
    assert logits.requires_grad is enabled
    monitor.step(logits=logits, targets=y, loss=logits.square().mean())
    assert not any(
        part.requires_grad for kept in monitor._held for part in (*kept.batch, kept.objective) if part is not None
    )


def test_a_refused_loss_drops_what_was_accumulated() -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    for wrong in (torch.zeros(8), "a", None.__class__):
        monitor.step(logits=model(x), targets=y, accumulate=True)
        with pytest.raises(InputError, match="loss must be one number"):
            monitor.step(logits=model(x), targets=y, loss=wrong)
        monitor.step(logits=model(x[:2]), targets=y[:2])
        assert monitor.last is not None and monitor.last.n == 2


def test_a_loss_whose_buffer_is_used_again() -> None:
    model, (x, y) = small_net(), data()
    monitor, loss = MarginMonitor(model), torch.zeros(())
    for value in (1.0, 2.0, 3.0):
        loss.fill_(value)
        monitor.step(logits=model(x), targets=y, loss=loss)
    with pytest.warns(UserWarning, match="is not the mean loss"):
        assert [record.extra["objective"] for record in monitor.records] == [1.0, 2.0, 3.0]


def test_a_warning_that_is_an_error_loses_no_record() -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    for _ in range(5):
        monitor.step(logits=model(x), targets=y, loss=50.0)
    with pytest.raises(UserWarning, match="is not the mean loss"):  # warnings are errors here
        monitor.flush()
    assert len(monitor.records) == 5


def test_one_output_in_the_loop() -> None:
    model, (x, y) = small_net(1), data(classes=2)
    monitor = MarginMonitor(model, loss="bce")
    f = model(x)
    monitor.step(logits=f, targets=y.double()[:, None])
    monitor.step(logits=f[:, 0], targets=2 * y - 1)
    expected = binary_cross_entropy_with_logits(f[:, 0], y.double()).item()
    assert [one.loss for one in monitor.records] == pytest.approx([expected, expected], rel=1e-12)
    assert monitor.last is not None
    check_same_numbers(monitor.last, monitor.measure((x, y)))


class Tokens(nn.Module):
    """Logits (B, T, V) of tokens (B, T)."""

    def __init__(self, vocabulary: int = 7):
        super().__init__()
        self.inner, self.head = nn.Embedding(vocabulary, 5), nn.Linear(5, vocabulary, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(torch.tanh(self.inner(input_ids)))
        return SimpleNamespace(logits=logits, loss=None)


def test_tokens_with_padding_and_outputs_with_logits() -> None:
    torch.manual_seed(0)
    model = Tokens().double()
    ids = torch.randint(0, 7, (4, 9))
    labels = torch.where(torch.arange(9) < 6, ids.roll(1, 1), -100)
    monitor = MarginMonitor(model)
    output = model(input_ids=ids, labels=labels)
    monitor.step(logits=output, targets=labels)
    record = monitor.measure({"input_ids": ids, "labels": labels})
    check_same_numbers(record, monitor.records[0])
    assert record.n == 24
    assert record.loss == pytest.approx(cross_entropy(output.logits.mT, labels).item(), rel=1e-12)
    assert record.degree == 1
    assert record.norm == pytest.approx(size(model.head.weight), rel=1e-12)


class TinyForCausalLM(Tokens):
    """Named as the causal models of `transformers` are, by which they are told."""


def test_a_causal_model_with_as_many_tokens_as_classes() -> None:
    """Its classes are in the last axis always, so T = V is no riddle; logits and labels are shifted against each other."""
    torch.manual_seed(0)
    model, ids = TinyForCausalLM(7).double(), torch.randint(0, 7, (3, 8))
    monitor = MarginMonitor(model)
    logits = model(input_ids=ids).logits
    assert logits[:, :-1].shape == (3, 7, 7)
    monitor.step(logits=logits[:, :-1], targets=ids[:, 1:])
    record = monitor.measure({"input_ids": ids, "labels": ids})
    check_same_numbers(record, monitor.records[0])
    assert record.n == 21
    assert record.loss == pytest.approx(
        cross_entropy(logits[:, :-1].reshape(-1, 7), ids[:, 1:].reshape(-1)).item(), rel=1e-12
    )


def test_the_axis_of_the_classes_can_be_given() -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x)

    torch.manual_seed(0)
    model, x, y = Square(), torch.randn(5, 4, 4), torch.randint(0, 4, (5, 4))
    with pytest.raises(InputError, match="set class_axis to -1 or to 1"):
        MarginMonitor(model).measure((x, y))
    last, second = (MarginMonitor(model, class_axis=axis).measure((x, y)).loss for axis in (-1, 1))
    assert last == pytest.approx(cross_entropy(model(x).mT, y).item(), rel=1e-5)
    assert second == pytest.approx(cross_entropy(model(x), y).item(), rel=1e-5)


# ---------------------------------------------------------------- nothing is disturbed


def train_some(monitored: bool, seed: int = 0) -> tuple[nn.Module, list[float]]:
    """A training with everything random: dropout, shuffled loaders with the global generator, numpy and Python draws."""
    model = with_norm(seed)
    x, y = data(40)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    own = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    monitor = MarginMonitor(model) if monitored else None
    draws = []

    def noisy() -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in zip(x.split(8), y.split(8)):
            yield inputs + random.random() + np.random.random(), labels  # noqa: NPY002

    for _ in range(3):
        for inputs, labels in loader:
            model.train()
            f = model(inputs)
            loss = cross_entropy(f, labels)
            optimizer.zero_grad()
            loss.backward()
            if monitor is not None:
                monitor.step(logits=f, targets=labels, loss=loss)
            optimizer.step()
        if monitor is not None:
            monitor.measure(own, "own")
            monitor.measure(loader, "train")
            monitor.measure(loader, "train", evaluate=False)
            monitor.measure(noisy(), "noisy", batches=2)
        draws += [random.random(), float(np.random.random()), float(torch.rand(()))]  # noqa: NPY002
        draws += [float(v) for v in next(iter(own))[0][:, 0]]
    return model, draws


def test_training_is_the_same_with_and_without_the_monitor() -> None:
    (plain, draws), (watched, draws_watched) = train_some(False), train_some(True)
    check_same_state(watched, state_of(plain))
    assert draws == draws_watched


class Drawing(nn.Module):
    """Draws and counts whenever it is called, also in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_net()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        random.random(), np.random.random()  # noqa: NPY002
        return self.inner(x)


def test_what_a_model_draws_and_counts_while_it_is_looked_at_is_taken_back() -> None:
    (x, y), model = data(), Drawing()
    monitor = MarginMonitor(model)
    random.seed(1), np.random.seed(1)  # noqa: NPY002
    logits = model(x)
    states = random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    monitor.step(logits=logits, targets=y)  # looks for what is homogeneous
    monitor.measure((x, y))
    assert (random.getstate(), np.random.get_state()[2]) == states  # noqa: NPY002
    assert model.count == 1


def test_layers_that_are_replaced_while_training() -> None:
    """The norm of the layer that was there before was recorded, and one that was parametrised ended training in a KeyError."""
    (x, y), model = data(), small_net()
    monitor = MarginMonitor(model)
    monitor.step(logits=model(x), targets=y)
    model[2] = small_net(seed=1)[2]
    monitor.step(logits=model(x), targets=y)
    assert monitor.records[1].norm == pytest.approx(size(model[0].weight, model[2].weight), rel=1e-12)
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(InputError, match="no longer in the model"):
        monitor.step(logits=model(x), targets=y)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_takes_no_monitor_along(tmp_path: Path, how: Callable[[nn.Module], nn.Module]) -> None:
    """Averages of weights are copies, and a monitor that has a folder cannot be copied."""
    (x, y), model = data(), small_net()
    with MarginMonitor(model, out=tmp_path / "run") as monitor:
        logits = model(x)
        other = how(model)
        assert torch.equal(other(x), logits)
        held = weakref.ref(inputs := x + 1)
        other(inputs)
        del inputs
        gc.collect()
        assert held() is None
        monitor.step(logits=logits, targets=y)


@pytest.mark.parametrize("evaluate", [True, False])
def test_modes_buffers_and_gradients_are_as_before(evaluate: bool) -> None:
    model, (x, y) = with_norm(), data()
    model.train()
    model[1].eval()  # a frozen BatchNorm in a model that trains
    model[0].weight.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    cross_entropy(model(x), y).backward()
    before, grads = state_of(model), [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    draw = torch.get_rng_state()
    monitor = MarginMonitor(model)
    first = monitor.measure((x, y), evaluate=evaluate)
    assert [module.training for module in model.modules()] == modes
    check_same_state(model, before)
    assert torch.equal(torch.get_rng_state(), draw)
    for p, old in zip(model.parameters(), grads):
        assert (p.grad is None) == (old is None)
        assert old is None or torch.equal(p.grad, old)
    assert not model[0].weight.requires_grad
    model.eval()
    expected = cross_entropy(model(x), y).item()
    assert (first.loss == pytest.approx(expected, rel=1e-12)) is evaluate  # else the dropout is on


def test_batch_norm_in_training_mode_is_measured_and_left_alone() -> None:
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3, bias=False)).double(), data()
    monitor = MarginMonitor(model)
    before = state_of(model)
    inside = monitor.measure((x, y), evaluate=False)
    check_same_state(model, before)
    outside = monitor.measure((x, y))
    assert inside.loss == pytest.approx(cross_entropy(model(x), y).item(), rel=1e-12)
    assert outside.loss != pytest.approx(inside.loss, rel=1e-3)


def test_modes_come_back_after_a_failure() -> None:
    model, (x, y) = with_norm(), data()
    monitor = MarginMonitor(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        monitor.measure([(x, y), (x[:, :2], y)])
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()
    assert torch.is_autocast_cache_enabled()
    assert monitor.measure((x, y)).n == 24


def test_autocast() -> None:
    """Inside autocast the casts of weights are kept from before: scaling must not see those."""
    model, (x, y) = small_net(kind=torch.float32), data()
    x = x.float()
    monitor = MarginMonitor(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f = model(x)
        assert f.dtype == torch.bfloat16
        monitor.step(logits=f, targets=y)
        record = monitor.measure((x, y))
        loss = cross_entropy(model(x).float(), y)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    check_same_numbers(record, monitor.records[0], rel=1e-6)
    assert record.degree == 2
    assert record.loss == pytest.approx(float(loss.detach()), rel=1e-5)


def test_parameters_of_low_precision_have_good_norms() -> None:
    model, (x, y) = small_net(kind=torch.bfloat16), data()
    monitor = MarginMonitor(model)
    monitor.step(logits=model(x.bfloat16()), targets=y)
    norm = size(*model.parameters())
    assert monitor.records[0].norm == pytest.approx(norm, rel=1e-6)
    assert monitor.records[0].degree == 2


def test_compiled_models() -> None:
    model, (x, y) = small_net(), data()
    plain = MarginMonitor(small_net()).measure((x, y))
    compiled = torch.compile(model, backend="eager")
    monitor = MarginMonitor(compiled)  # type: ignore[arg-type]
    f = compiled(x)
    cross_entropy(f, y).backward()
    monitor.step(logits=f, targets=y)
    check_same_numbers(monitor.records[0], plain)
    check_same_numbers(monitor.measure((x, y)), plain)
    assert monitor.homogeneous is not None
    assert monitor.homogeneous.names == ("0.weight", "2.weight")


def test_the_model_is_watched_and_its_compiled_form_trained() -> None:
    torch._dynamo.reset()
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    compiled = torch.compile(model, backend="eager")
    monitor.step(logits=compiled(x), targets=y)
    monitor.step(logits=compiled(x), targets=y)
    check_same_numbers(monitor.records[1], monitor.measure((x, y)))
    assert monitor._look.seen is None


def test_frozen_parameters_are_not_among_the_homogeneous() -> None:
    model, (x, y) = small_net(), data()
    model[0].weight.requires_grad_(False)
    record = MarginMonitor(model).measure((x, y))
    assert record.degree == 1
    assert record.norm == pytest.approx(size(model[2].weight), rel=1e-12)
    assert set(record.blocks) == {"0", "2"}


def test_what_is_held_does_not_keep_batches_alive() -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    inputs = x.clone()
    f = model(inputs)[:]  # a view
    alive = [weakref.ref(inputs), weakref.ref(f)]
    storage = weakref.ref(f.untyped_storage()) if hasattr(f.untyped_storage(), "__weakref__") else None
    monitor.step(logits=f, targets=y)
    monitor.step(logits=f, targets=y, accumulate=True)
    del inputs, f
    gc.collect()
    assert [one() for one in alive] == [None, None]
    assert storage is None or storage() is None
    assert monitor._look.seen is None
    assert not model._forward_pre_hooks
    unused = MarginMonitor(small_net())
    unused.model(x)
    assert unused._look.seen is not None
    unused.close()
    assert unused._look.seen is None
    assert not unused.model._forward_pre_hooks


def test_memory_is_bounded_by_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors alive in the middle of a long pass, beside the model's: as many bytes at the end as near the beginning."""
    from widemargin.monitor import tally

    monkeypatch.setattr(tally, "SAMPLE", 256)
    monkeypatch.setattr(tally, "SMALLEST", 32)
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    sizes = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for k in range(200):
            if k in (50, 199):
                gc.collect()
                dense = [t for t in gc.get_objects() if type(t) is Tensor and t.layout is torch.strided]
                tensors = {t.untyped_storage().data_ptr(): t for t in dense}
                sizes.append(sum(t.untyped_storage().nbytes() for t in tensors.values()))
                del tensors, dense  # or they stay alive here
            yield x.clone(), y.clone()

    assert monitor.measure(batches()).n == 200 * 24
    assert sizes[1] <= sizes[0]


def test_records_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_file, "KEPT", 30)
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    f = model(x)
    for _ in range(100):
        monitor.step(logits=f, targets=y)
    assert [one.step for one in monitor.records] == list(range(71, 101))


def test_the_first_record_and_the_last() -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    assert monitor.last is None
    assert monitor.records == []
    monitor.step(logits=model(x), targets=y, step=40)
    assert monitor.last is not None
    assert monitor.last.step == 40
    monitor.step(logits=model(x), targets=y)
    assert monitor.last.step == 41
    assert monitor.measure((x, y)).step == 41
    assert monitor.last.whole
    with MarginMonitor(model) as other:
        other.step(logits=model(x), targets=y)
    assert other._hook is None


# ---------------------------------------------------------------- bad input


def steps_on(logits: Any, targets: Any, kind: str = "ce", loss: Tensor | None = None) -> None:
    model, (x, _) = small_net(1 if kind == "bce" else 3), data()
    monitor = MarginMonitor(model, loss=kind)
    model(x)
    monitor.step(logits=logits, targets=targets, loss=loss)
    monitor.flush()


def measures(given: Any, model: nn.Module | None = None, **options: Any) -> None:
    MarginMonitor(small_net() if model is None else model, **options).measure(given)


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(4, 3)


class Returns(nn.Module):
    """Returns whatever it is told to."""

    def __init__(self, what: Callable[[Tensor], Any]):
        super().__init__()
        self.head, self.what = nn.Linear(4, 3, bias=False).double(), what

    def forward(self, x: Tensor) -> Any:
        return self.what(self.head(x))


X, Y = data(4)
NAN = torch.full((4, 3), math.nan, dtype=torch.float64)
F = torch.zeros(4, 3, dtype=torch.float64)

BAD: list[tuple[str, Callable[[], Any], str]] = [
    ("range, step", lambda: steps_on(F, torch.tensor([0, 1, 2, 3])), r"step 1: 1 labels are out of range"),
    ("range, measure", lambda: measures((X, torch.full((4,), 3))), r"measure: 4 labels are out of range; .* ignore_index"),
    ("ignored, step", lambda: steps_on(F, torch.full((4,), -100)), r"step 1: .* every label is ignored"),
    ("ignored, measure", lambda: measures((X, torch.full((4,), -100))), r"measure: .* every label is ignored"),
    ("nan, step", lambda: steps_on(NAN, Y), r"step 1: 4 examples have NaN or infinite logits; the model has diverged"),
    ("nan, measure", lambda: measures((X * math.nan, Y), homogeneous=HEAD), r"measure: 4 examples have NaN"),
    ("empty", lambda: measures([]), r"measure: there is no batch to measure; the loader is empty"),
    ("empty set", lambda: measures(DataLoader(TensorDataset(X[:0], Y[:0]))), r"there is no batch to measure"),
    ("used up", lambda: measures(iter(())), r"no batch to measure; .*a generator may be used up"),
    ("a tensor", lambda: measures(X), r"measure needs a loader or a batch with targets, not a Tensor"),
    ("a number", lambda: measures(3), r"measure needs a loader or a batch with targets, not a int"),
    ("a data set", lambda: measures(TensorDataset(X, Y)), r"not a TensorDataset"),
    ("no labels", lambda: measures({"input": X}), r"the batch has no labels, only input; give forward="),
    ("only inputs", lambda: measures([X]), r"a batch must be a pair .* not a Tensor; give forward="),
    ("three parts", lambda: measures([(X, Y, Y)]), r"a batch must be a pair .* not a tuple of 3; give forward="),
    ("nothing", lambda: measures([None]), r"a batch must be a pair .* not None"),
    ("batches", lambda: MarginMonitor(small_net()).measure((X, Y), batches=0), r"batches must be at least 1, not 0"),
    ("output", lambda: measures((X, Y), Returns(lambda f: (f, f))), r"the model returned a tuple of 2 and not logits"),
    ("text", lambda: measures((X, Y), Returns(lambda f: "yes")), r"the model returned a str and not logits"),
    ("classes", lambda: measures((X, Y), Returns(lambda f: f.argmax(1))), r"floating point"),
    ("forward", lambda: measures((X, Y), forward=lambda m, b: m(b[0])), r"forward must return a pair of tensors"),
    ("lazy", lambda: MarginMonitor(lazy()), r"0.weight is a lazy parameter without a shape yet; run one batch"),
    ("meta", lambda: MarginMonitor(on_meta()), r"weight is on the meta device and has no values; materialise"),
    ("no model", lambda: MarginMonitor("net"), r"watches a torch.nn.Module, not str"),  # type: ignore[arg-type]
    ("smoothed", lambda: steps_on(F, torch.rand(4, 3)), r"probabilities and smoothed labels have no margin"),
    ("float", lambda: steps_on(F, Y.double()), r"targets must be class indices"),
    ("shape", lambda: steps_on(F, Y[:3]), r"logits \(4, 3\) and targets \(3,\) do not belong together"),
    ("bce shape", lambda: steps_on(F, Y, "bce"), r'one number per example each; for several classes use loss="ce"'),
    ("integers", lambda: steps_on(F.long(), Y), r"logits must be floating point, not torch.int64"),
    ("numpy", lambda: steps_on(F, Y.numpy()), r"must be torch tensors, not a ndarray"),
    ("loss", lambda: steps_on(F, Y, loss=F[:, 0]), r"loss must be one number, not \(4,\); reduce it first"),
    ("which loss", lambda: MarginMonitor(small_net(), loss="mse"), r"unknown loss 'mse'; choose ce, bce, exp"),
    ("every", lambda: MarginMonitor(small_net(), every=0), r"every must be a whole number of at least 1, not 0"),
    ("levels", lambda: MarginMonitor(small_net(), levels=[50]), r"from 0 to 1, not \[50\]"),
    ("axis", lambda: MarginMonitor(small_net(), class_axis=2), r"class_axis must be -1 .* or 1, not 2"),
    ("degree", lambda: MarginMonitor(small_net(), degree=2), r"degree .* goes with names of parameters"),
    ("degree 0", lambda: MarginMonitor(small_net(), ["2.weight"], degree=0), r"degree is a positive number"),
    ("wrong degree", lambda: measures((X, Y), homogeneous=["2.weight"], degree=3), r"not homogeneous of degree 3 in 2.weight"),
    ("names", lambda: MarginMonitor(small_net(), ["head"]), r"no parameter 'head'; its last ones are 0.weight, 2.weight"),
    ("a name", lambda: MarginMonitor(small_net(), "2.weight"), r'must be "auto", a list of names'),
    ("no names", lambda: MarginMonitor(small_net(), []), r'must be "auto", a list of names'),
    ("names of another", lambda: MarginMonitor(small_net(), Homogeneous(("head",), 1)), r"no parameter 'head'"),
    ("log", lambda: MarginMonitor(small_net(), log=3), r"cannot log to a int"),
]  # fmt: skip
HEAD = Homogeneous(("0.weight", "2.weight"), 2)


@pytest.mark.parametrize(("act", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_is_told_in_a_sentence(act: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        act()
    assert "\n" not in str(caught.value)


def test_shared_parameters_have_one_name() -> None:
    model = small_net(8)
    model.append(nn.Linear(8, 8, bias=False))
    model[3].weight = model[2].weight
    with pytest.raises(InputError, match=r"'3.weight' is shared; it is called '2.weight' here"):
        MarginMonitor(model, ["3.weight"])


def test_a_step_before_any_forward_pass() -> None:
    model, (x, y) = small_net(), data()
    f = model(x)
    monitor = MarginMonitor(model)
    with pytest.raises(InputError, match=r"not seen a forward pass .* or give homogeneous=find_homogeneous"):
        monitor.step(logits=f, targets=y)
    advised = MarginMonitor(model, find_homogeneous(model, (x, y)))
    advised.step(logits=f, targets=y)
    monitor.measure((x, y))
    monitor.step(logits=f, targets=y)
    assert advised.last is not None
    assert monitor.last is not None
    check_same_numbers(advised.last, monitor.last)


def test_logits_made_from_several_calls_are_not_taken_for_the_models_outputs() -> None:
    """Similarities of two views have twice the degree of the embedding."""
    model, (x, _) = small_net(5), data()
    monitor = MarginMonitor(model)
    logits = model(x) @ model(x + 0.1).T
    labels = torch.arange(24)
    with pytest.raises(InputError, match=r"logits \(24, 24\) are not the model's outputs, \(5,\) for each example"):
        monitor.step(logits=logits, targets=labels)

    def forward(module: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return module(batch[0]) @ module(batch[0] + 0.1).T, torch.arange(len(batch[0]))

    right = MarginMonitor(model, forward=forward)
    assert right.measure((x, labels)).degree == 4
    right.step(logits=logits, targets=labels)
    assert right.records[-1].degree == 4
    assert right.records[-1].loss == pytest.approx(right.records[0].loss, rel=1e-12)


def test_a_model_that_returns_more_than_logits_in_the_loop() -> None:
    model, (x, y) = Returns(lambda f: (f, 2 * f)), data()
    monitor = MarginMonitor(model, forward=lambda module, batch: (module(batch[0])[0], batch[1]))
    f, _ = model(x)
    with pytest.raises(InputError, match=r"returned a tuple of 2 .* call measure\(loader\) first"):
        monitor.step(logits=f, targets=y)
    monitor.measure((x, y))
    monitor.step(logits=f, targets=y)
    check_same_numbers(*monitor.records)


def test_a_bad_step_is_told_once_and_the_others_are_kept() -> None:
    model, (x, y) = small_net(), data()
    monitor = MarginMonitor(model)
    f = model(x)
    for k in range(5):
        monitor.step(logits=f * math.nan if k == 2 else f, targets=y)
    with pytest.raises(InputError, match="step 3: 24 examples have NaN"):
        monitor.flush()
    assert [one.step for one in monitor.records] == [1, 2, 4, 5]
    with pytest.raises(InputError, match="do not belong together"):
        monitor.step(logits=f, targets=y[:3])
    monitor.step(logits=f[:9], targets=y[:9], accumulate=True)
    with pytest.raises(InputError, match="do not belong together"):
        monitor.step(logits=f, targets=y[:3])
    monitor.step(logits=f, targets=y)  # nothing of the accumulated ones is left in it
    assert monitor.last is not None
    check_same_numbers(monitor.last, monitor.measure((x, y)))


def test_closing_writes_and_lets_go_even_if_the_last_step_was_bad(tmp_path: Any) -> None:
    from widemargin.monitor import load

    model, (x, y) = small_net(), data()
    f = model(x)
    monitor = MarginMonitor(model, HEAD, out=tmp_path / "run")
    monitor.step(logits=f, targets=y)
    monitor.step(logits=f * math.nan, targets=y)
    with pytest.raises(InputError, match="step 2: 24 examples have NaN"):
        monitor.close()
    assert load(tmp_path / "run")["step"].to_pylist() == [1]


def test_a_monitor_that_is_dropped_writes_what_it_held_back(tmp_path: Path) -> None:
    model, (x, y) = small_net(), data()
    logged: list[int] = []

    def train_a_while() -> None:
        monitor = MarginMonitor(model, HEAD, out=tmp_path / "run", log=lambda numbers, step: logged.append(step))
        for _ in range(20):
            monitor.step(logits=model(x), targets=y)

    train_a_while()
    gc.collect()
    assert len(load(tmp_path / "run")) == 20 and logged == list(range(1, 21))
    with MarginMonitor(model, HEAD, out=tmp_path / "run", resume=True) as again:  # the folder is free
        again.step(logits=model(x), targets=y)
    assert load(tmp_path / "run")["step"].to_pylist() == list(range(1, 22))


def test_a_bad_step_at_the_end_of_the_process_is_a_sentence() -> None:
    code = (
        "import torch; from widemargin.monitor import MarginMonitor\n"
        "model = torch.nn.Linear(2, 2, bias=False); monitor = MarginMonitor(model)\n"
        "f = model(torch.eye(2)); [monitor.step(logits=f / k, targets=torch.tensor([0, 1])) for k in (1.0, float('nan'))]"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0 and "step 2: 2 examples have NaN" in ended.stderr and "Traceback" not in ended.stderr


def test_monitors_that_are_gone_leave_nothing_for_the_end(monkeypatch: Any) -> None:
    model, ends = small_net(), []
    monkeypatch.setattr(atexit, "register", lambda end, *args: ends.append(end))
    monkeypatch.setattr(atexit, "unregister", lambda end: ends.remove(end) if end in ends else None)
    for _ in range(100):
        MarginMonitor(model, HEAD)
    gc.collect()
    assert len(ends) == 1
    assert not any(type(one) is MarginMonitor and one.model is model for one in gc.get_objects())


def test_falls_are_counted_after_fitting_only():
    def records(values):
        return [SimpleNamespace(step=k, fitted=value > 0, psi_normalized=value) for k, value in enumerate(values)]

    assert falls(records([-3, -5, -1])) == Falls(0, 0, 0.0, None)
    assert falls(records([-3, -5, 1, 2, 3])) == Falls(2, 0, 0.0, None)
    found = falls(records([-3, -5, 2, 4, 3, 1, 5, 4.5, 6]))
    assert (found.pairs, found.count, found.last) == (6, 3, 7) and math.isclose(found.deepest, 0.75)
    assert falls(records([2, -1, 3])).count == 1  # psi may fall below 0 again: that is a fall like others
    assert str(found) == "fell in 3 of 6 pairs, at worst 75.0% below its best, last at step 7"


def test_quantiles_are_divided_by_the_power_of_the_norm():
    model = nn.Linear(3, 4, bias=False).double()
    record = MarginMonitor(model).measure((torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 4))
    size = float(model.weight.detach().norm())
    assert record.quantiles_normalized == {level: value / size for level, value in record.quantiles.items()}


def test_steps_are_flushed_by_the_clock(monkeypatch):
    model = nn.Linear(3, 4, bias=False)
    X, y = torch.randn(6, 3), torch.arange(6) % 4
    monitor = MarginMonitor(model, ["weight"], degree=1)
    monitor.measure((X, y))
    monitor.step(logits=model(X), targets=y)
    assert len(monitor._records) == 1  # held back
    monkeypatch.setattr(monitor_file, "PAUSE", -1.0)
    monitor.step(logits=model(X), targets=y)
    assert len(monitor._records) == 3


def test_small_batches_that_wait_are_copies():
    """Logits and labels may be buffers that the next step overwrites."""
    model = nn.Linear(3, 4, bias=False).double()
    X, y = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 4
    monitor = MarginMonitor(model)
    want = monitor.measure((X, y))
    logits, labels = model(X).detach(), y.clone()
    monitor.step(logits=logits, targets=labels)
    logits.zero_()
    labels.zero_()
    assert monitor.last.margin == pytest.approx(want.margin, rel=1e-12)
    assert monitor.last.psi == pytest.approx(want.psi, rel=1e-12)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"out": 3}, "out must be a path, not 3"),
        ({"out": b"run"}, "out must be a path"),
        ({"every": "x"}, "every must be a whole number"),
        ({"every": math.nan}, "every must be a whole number"),
        ({"every": True}, "every must be a whole number"),
        ({"levels": 3}, "levels are a list of shares"),
        ({"levels": ["x"]}, "levels are a list of shares"),
        ({"levels": [None]}, "levels are a list of shares"),
        ({"levels": "0.5"}, "levels are a list of shares"),
        ({"degree": "x"}, "degree is a positive number"),
        ({"degree": "x", "homogeneous": ["weight"]}, "degree is a positive number"),
        ({"degree": [2], "homogeneous": ["weight"]}, "degree is a positive number"),
    ],
)
def test_settings_of_a_wrong_type_are_one_sentence(keys, words):
    with pytest.raises(InputError, match=words):
        MarginMonitor(nn.Linear(2, 2, bias=False), **keys)


def test_threads_measure_one_after_the_other():
    """What scales is found by scaling it: another thread would measure a model that is not there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(64, 4)
    batch = (x, (x[:, 0] > 0).long())
    with MarginMonitor(model) as monitor:
        inside: list[int] = []
        most = []

        def look(*_: object) -> None:
            inside.append(1)
            most.append(len(inside))
            threading.Event().wait(0.002)  # another thread has its turn
            inside.pop()

        model.register_forward_hook(look)
        threads = [threading.Thread(target=lambda: [monitor.measure(batch) for _ in range(5)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert max(most) == 1 and len({(record.margin, record.degree) for record in monitor.records}) == 1
        assert len(copy.deepcopy(monitor)._records) == 20  # a lock itself has no copy
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("loss", [[], 10**400, np.array([1, 2])]),
        ("class_axis", ["x", 1.0, np.array([1, -1]), 10**400]),
        ("late", ["no", 1, None]),
        ("heuristics", ["no", None, np.array([1, 0])]),
        ("everything", ["no", 2]),
        ("resume", ["no", 2]),
        ("homogeneous", [np.array([1, 2]), np.array(5), 3]),
        ("levels", [np.array(0.5), 3]),
        ("norm", [np.array([1, 2]), 10**400]),
    ],
)
def test_options_of_another_type(option, values):
    """ "no" was taken for yes, and arrays were compared entry by entry."""
    for value in values:
        with pytest.raises(InputError) as caught:
            MarginMonitor(torch.nn.Linear(2, 2), **{option: value})
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_falls_of_what_are_no_records():
    for value in (None, "run", [1], {}):
        with pytest.raises(InputError, match="records must be a list of what a monitor recorded, not"):
            falls(value)


@pytest.mark.parametrize(
    ("ask", "values"),
    [
        (lambda value: check_homogeneous(small_net(), value, data()[0]), [torch.ones(2), np.array(5), 3, [["a"]], [3]]),
        (lambda value: find_homogeneous(small_net(), data()[0], tol=value), ["x", [], -1.0, math.nan, 1j]),
        (lambda value: find_homogeneous(small_net(), data()[0], forward=value), ["x", 3, ()]),
        (lambda value: find_homogeneous(small_net(), data()[0], progress=value), ["x", 3, ()]),
        (lambda value: own_geometry(None, value, norm="l2"), [None, 3, [], torch.ones(2)]),
        (vanishing_margin, [None, "float32", torch.int64, 3]),
        (series, [3, [], {"name": [], "step": []}, np.ones(3)]),
        (lambda value: falls([], half=value), [np.ones(3), torch.ones(3)]),
    ],
)
def test_arguments_of_another_type_are_one_sentence(ask, values):
    for value in values:
        with pytest.raises(InputError) as told:
            ask(value)
        assert "\n" not in str(told.value)
