"""Margins that no scale of parameters changes: against their definitions, and against scaling."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from widemargin import InputError, plots, report
from widemargin.monitor import MarginMonitor, load, series

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("margin_over_layers", "margin_over_gradient", "margin_over_gradient_median")


def net(outputs: int = 3, bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = (
        nn.Linear(4, 8, bias=bias),
        nn.ReLU(),
        nn.Linear(8, 8, bias=bias),
        nn.ReLU(),
        nn.Linear(8, outputs, bias=bias),
    )
    return nn.Sequential(*sizes).double()


def batch(n: int = 12, classes: int = 3) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(n, 4, dtype=torch.float64), torch.randint(0, classes, (n,))


def margin(f: Tensor, y: int) -> Tensor:
    return f[y] - torch.cat([f[:y], f[y + 1 :]]).max()


def test_by_their_definitions():
    model, (x, y) = net(), batch()
    record = MarginMonitor(model, heuristics=True).measure([(x[:5], y[:5]), (x[5:], y[5:])])
    sizes = math.prod(model[k].weight.norm().item() for k in (0, 2, 4))
    assert record.extra["margin_over_layers"] == pytest.approx(record.margin / sizes, rel=1e-10)
    values = []
    for one, label in zip(x, y):
        one = one.clone().requires_grad_(True)
        value = margin(model(one), int(label))
        value.backward()
        values.append(value.item() / one.grad.norm().item())
    assert record.extra["margin_over_gradient"] == pytest.approx(min(values), rel=1e-9)
    assert record.extra["margin_over_gradient_median"] == pytest.approx(
        sorted(values)[(len(values) - 1) // 2], rel=1e-9
    )


def test_of_a_linear_model_it_is_the_distance():
    model = nn.Linear(2, 2, bias=False).double()
    model.weight.data = torch.tensor([[3.0, 4.0], [0.0, 0.0]]).double()
    x = torch.tensor([[2.0, 0.0], [-1.0, -1.0]]).double()
    record = MarginMonitor(model, heuristics=True).measure((x, torch.tensor([0, 1])))
    assert record.extra["margin_over_gradient"] == pytest.approx(6 / 5)  # 3 * 2 / |(3, 4)|, and 7 / 5


def test_moving_the_scale_about_changes_the_norms_margin_and_not_these():
    """Biases let only the last layer be homogeneous: ten times the middle one is ten times the margin over |w|."""
    model, (x, y) = net(), batch()
    model[4].bias = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    asked = ["4.weight", "4.bias"]
    before = MarginMonitor(model, asked, heuristics=True).measure((x, y))
    model[2].weight.data.mul_(10)
    after = MarginMonitor(model, asked, heuristics=True).measure((x, y))
    assert after.error == before.error and after.free and before.free
    assert after.margin_normalized == pytest.approx(10 * before.margin_normalized, rel=1e-9)
    for name in NAMES:
        assert after.extra[name] == pytest.approx(before.extra[name], rel=1e-9)


@pytest.mark.parametrize("shape", ["(n, 1)", "(n,)"])
def test_one_output(shape):
    model, (x, y) = net(1), batch(classes=2)
    flat = nn.Flatten(0) if shape == "(n,)" else nn.Identity()
    record = MarginMonitor(nn.Sequential(model, flat), loss="bce", heuristics=True).measure((x, y))
    signs, leaf = 2.0 * y - 1, x.clone().requires_grad_(True)
    p = signs * model(leaf)[:, 0]
    p.sum().backward()
    assert record.extra["margin_over_gradient"] == pytest.approx((p / leaf.grad.norm(dim=1)).min().item(), rel=1e-9)


def test_tokens_have_no_gradient_and_nothing_is_left_behind(tmp_path):
    model = nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(15, 3, bias=False))
    ids, y = torch.randint(0, 7, (6, 3)), torch.randint(0, 3, (6,))
    before = [p.clone() for p in model.parameters()]
    with MarginMonitor(model, heuristics=True, out=tmp_path / "run") as monitor:
        record = monitor.measure((ids, y), name="train")
    assert set(record.extra) == {"margin_over_layers"}  # and the table of embeddings is no layer
    assert record.extra["margin_over_layers"] == pytest.approx(record.margin / model[2].weight.norm().item(), rel=1e-6)
    assert all(p.grad is None and torch.equal(p, old) for p, old in zip(model.parameters(), before))
    assert load(tmp_path / "run")["margin_over_layers"].to_pylist() == [record.extra["margin_over_layers"]]
    titles = [axes.get_title(loc="left") for axes in plots.records(series(tmp_path / "run")).axes]
    assert any(title.startswith("Heuristics") for title in titles)


def test_layers_whose_scale_is_divided_out_do_not_count():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.LayerNorm(8, eps=0, bias=False), nn.Linear(8, 3, bias=False))
    x, y = batch()
    record = MarginMonitor(model.double(), heuristics=True).measure((x, y))
    assert record.extra["margin_over_layers"] == pytest.approx(record.margin / model[2].weight.norm().item(), rel=1e-9)


def test_steps_do_without():
    model, (x, y) = net(), batch()
    monitor = MarginMonitor(model, heuristics=True)
    monitor.step(logits=model(x), targets=y)
    assert monitor.last is not None and not monitor.last.extra


def test_several_ranks_are_refused(monkeypatch):
    monkeypatch.setattr(MarginMonitor, "world", 2)
    with pytest.raises(InputError, match="heuristics are computed in one process"):
        MarginMonitor.__init__.__wrapped__(MarginMonitor.__new__(MarginMonitor), net(), heuristics=True)


def test_one_measurement_at_the_end_leaves_no_empty_picture(tmp_path):
    """The curves are those of the batches then, and the heuristics those of the measurement, in the picture and on the page."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    with MarginMonitor(model, out=tmp_path / "m", heuristics=True) as monitor:
        for _ in range(5):
            monitor.step(logits=model(x), targets=y)
        monitor.measure((x, y), name="test")
    assert "heuristics=True has margins that it does not change" in monitor.homogeneous.summary
    figure = plots.records(series(tmp_path / "m"))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert any("step" in title for title in titles[:1]) and "Heuristics, each over its largest, test" in titles
    assert max(len(one.get_xdata()) for one in figure.axes[0].lines) == 5
    page = report.build([tmp_path / "m"])
    shown = [one["figure"] for one in page.sections[0].contents if "figure" in one]
    assert "Heuristics, test" in shown and any(title.endswith(", step") for title in shown)
