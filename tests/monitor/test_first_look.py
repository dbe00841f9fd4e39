"""What the first batch shows: warnings where margins would not mean what they seem to, and none where they would."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widemargin import InputError
from widemargin.monitor import MarginMonitor

pytestmark = pytest.mark.usefixtures("one_thread")


def net(outputs: int = 3, last: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, outputs, bias=False)]
    return nn.Sequential(*parts, *([] if last is None else [last]))


def fresh() -> nn.Module:
    """Outputs that all are a little above zero, as those of many fresh models are, and no sigmoid."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    nn.init.uniform_(model[2].weight, 0.0, 0.01)
    nn.init.constant_(model[2].bias, 0.3)
    return model


class Squeezed(nn.Module):
    """A sigmoid that is no module, and of one number for each example."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        inner[2].weight.data.mul_(40)  # measure has no graph, only what comes out

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.inner(x)).squeeze(1)


def batch(n: int = 20, classes: int = 3) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(n, 4), torch.randint(0, classes, (n,))


def said(act: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in found]


@pytest.mark.parametrize("way", ["step", "measure"])
@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        (lambda: net(3, nn.Softmax(-1)), "ce", "the logits are probabilities"),
        (lambda: net(3, nn.LogSoftmax(-1)), "ce", "logarithms of probabilities"),
        (lambda: net(1, nn.Sigmoid()), "bce", "between 0 and 1, as those of a sigmoid"),
        (lambda: net(3), "ce", ""),
        (lambda: net(1), "bce", ""),
        (lambda: fresh(), "bce", ""),
        (lambda: Squeezed(net(1)), "bce", "between 0 and 1, as those of a sigmoid"),
    ],
)
def test_probabilities_are_no_logits(model, kind, words, way):
    model, (x, y) = model(), batch(classes=3 if kind == "ce" else 2)
    monitor = MarginMonitor(model, loss=kind)

    def act() -> None:
        for _ in range(2):
            if way == "step":
                monitor.step(logits=model(x), targets=y)
            else:
                monitor.measure((x, y))

    found = [one for one in said(act) if "not normalised" not in one]  # which is true as well of a softmax
    assert len(found) == bool(words) and all(words in one for one in found)  # once


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.head(torch.tanh(self.inner(input_ids)))


def test_targets_that_are_the_inputs():
    model, ids = Text(), torch.randint(0, 9, (4, 6), generator=torch.Generator().manual_seed(0))
    padded = torch.where(torch.arange(6) < 4, ids, -100)
    for targets in (ids, padded):
        monitor = MarginMonitor(model)
        found = said(lambda: monitor.step(logits=model(ids, labels=targets), targets=targets))  # noqa: B023, run at once
        assert len(found) == 1 and "logits[:, :-1] and targets[:, 1:]" in found[0]
        found = said(lambda: MarginMonitor(model).measure({"input_ids": ids, "labels": targets}))  # noqa: B023
        assert len(found) == 1 and "the targets are the inputs themselves" in found[0]
    flat = MarginMonitor(model)  # as many loops give them to cross_entropy
    found = said(lambda: flat.step(logits=model(ids).flatten(0, 1), targets=ids.flatten()))
    assert len(found) == 1 and "the targets are the inputs themselves" in found[0]
    flat = MarginMonitor(model)
    assert not said(lambda: flat.step(logits=model(ids)[:, :-1].flatten(0, 1), targets=ids[:, 1:].flatten()))
    monitor = MarginMonitor(model)
    assert not said(lambda: monitor.step(logits=model(ids)[:, :-1], targets=ids[:, 1:]))
    assert not said(lambda: MarginMonitor(model).measure((ids, ids.roll(-1, 1))))


@pytest.mark.parametrize(
    ("loss", "warned"),
    [
        (lambda f, y: F.cross_entropy(f, y), False),
        (lambda f, y: F.cross_entropy(f, y, reduction="sum"), False),
        (lambda f, y: F.cross_entropy(f.bfloat16(), y), False),
        (lambda f, y: F.cross_entropy(f, y, reduction="sum").log(), False),  # normalised descent: another clock
        (lambda f, y: F.cross_entropy(f, y, label_smoothing=0.3), True),
        (lambda f, y: F.cross_entropy(f, y) + 0.5, True),
    ],
)
def test_a_loss_that_is_not_the_measured_one(loss, warned):
    model, (x, _) = net(), batch()
    model[2].weight.data.mul_(30)
    y = model(x).argmax(-1)  # fitted: the loss of smoothed labels is larger
    monitor = MarginMonitor(model)

    def act() -> None:
        for _ in range(3):
            monitor.step(logits=model(x), targets=y, loss=loss(model(x), y))
        monitor.flush()

    found = said(act)
    assert len(found) == warned and all("is not the mean loss of these logits" in one for one in found)


def test_the_loss_of_one_of_several_batches_is_not_compared():
    model, (x, y) = net(), batch()
    monitor = MarginMonitor(model)

    def act() -> None:
        monitor.step(logits=model(x), targets=y, accumulate=True)
        monitor.step(logits=model(3 * x), targets=y, loss=F.cross_entropy(model(3 * x), y))
        monitor.flush()

    assert not said(act)


N = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (1, torch.randint(0, 2, (20, 1), generator=N).float(), r"one output for each example; give loss=\"bce\""),
        (1, torch.randint(0, 2, (20,), generator=N).float(), r"one output for each example; give loss=\"bce\""),
        (1, torch.randint(0, 2, (20,), generator=N), r"one class only; for one output per example use loss=\"bce\""),
        (1, torch.randn(20, 1, generator=N), "this is regression, which has no margins"),
        (1, torch.randn(20, generator=N), "this is regression, which has no margins"),
        (3, torch.randn(20, 3, generator=N), "this is regression, which has no margins"),
        (3, torch.tensor([1.0, 1.0, 0.0]).repeat(20, 1), r"several labels for each example; give loss=\"bce\""),
        (3, torch.tensor([1, 1, 0]).repeat(20, 1), r"several labels that are a decision each, need loss=\"bce\""),
        (3, torch.tensor([0.0, 1.0, 0.0]).repeat(20, 1), r"one-hot rows; give targets.argmax"),
        (3, torch.tensor([0.1, 0.8, 0.1]).repeat(20, 1), "smoothed labels have no margin"),
    ],
)
@pytest.mark.parametrize("way", ["step", "measure"])
def test_other_tasks_are_told_by_name(outputs, targets, message, way):
    model, x = net(outputs), batch()[0]
    monitor = MarginMonitor(model)
    with pytest.raises(InputError, match=message):
        monitor.step(logits=model(x), targets=targets) if way == "step" else monitor.measure((x, targets))


def test_regression_with_the_loss_of_two_classes():
    model, x = net(1), batch()[0]
    with pytest.raises(InputError, match="other numbers are regression, which has no margins"):
        MarginMonitor(model, loss="bce").measure((x, torch.randn(20)))


def test_several_labels_are_decisions():
    model, (x, _) = net(3), batch()
    targets = (torch.randn(20, 3, generator=N) > 0).float()
    record = MarginMonitor(model, loss="bce").measure((x, targets))
    assert record.n == 60
    assert record.loss == pytest.approx(F.binary_cross_entropy_with_logits(model(x), targets).item(), rel=1e-5)
