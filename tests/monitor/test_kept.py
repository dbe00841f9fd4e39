"""Answers of the search on disk: found again, never believed, and no trouble where they cannot be kept."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from widemargin.monitor import MarginMonitor, find_homogeneous, kept

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    def __init__(self, width: int = 8, shift: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.shift = nn.Linear(3, width, bias=False), nn.Linear(width, 2, bias=False), shift

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()) + self.shift


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Every search is kept here."""
    monkeypatch.setenv("WIDEMARGIN_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "LONG", 0.0)
    return tmp_path / "homogeneous"


def searches(monkeypatch) -> list[int]:
    count: list[int] = []

    def counted(*args, **options):
        count.append(1)
        return find_homogeneous(*args, **options)

    monkeypatch.setattr(kept, "find_homogeneous", counted)
    return count


def first_step(net: nn.Module, x: Tensor) -> MarginMonitor:
    monitor = MarginMonitor(net)
    monitor.step(logits=net(x), targets=torch.zeros(len(x), dtype=torch.long))
    return monitor


def test_the_second_monitor_of_an_architecture_does_not_search(place, monkeypatch, capsys):
    count = searches(monkeypatch)
    torch.manual_seed(0)
    one = first_step(Net(), torch.randn(10, 3)).homogeneous
    assert "looking for the parameters (of 2)" in capsys.readouterr().err  # it announces itself
    two = first_step(Net(), torch.randn(7, 3)).homogeneous  # other weights, another number of examples
    assert len(count) == 1 and one == two and two.degree == 2 and len(list(place.iterdir())) == 1
    first_step(Net(width=9), torch.randn(7, 3))
    frozen = Net()
    frozen.first.weight.requires_grad_(False)
    assert first_step(frozen, torch.randn(7, 3)).homogeneous.names == ("second.weight",)
    assert len(count) == 3


def test_what_was_kept_is_scaled_again(place, monkeypatch):
    """The same code and shapes with another constant: no longer homogeneous."""
    count = searches(monkeypatch)
    torch.manual_seed(0)
    first_step(Net(), torch.randn(10, 3))
    with pytest.warns(UserWarning, match="margins are not normalised"):
        found = first_step(Net(shift=0.5), torch.randn(10, 3)).homogeneous
    assert found.names == () and len(count) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"names": [1], "degree": 2, "evidence": [], "notes": []}'])
def test_a_damaged_answer_is_as_none(place, monkeypatch, text):
    count = searches(monkeypatch)
    torch.manual_seed(0)
    first_step(Net(), torch.randn(10, 3))
    (path,) = place.iterdir()
    path.write_text(text)
    assert first_step(Net(), torch.randn(10, 3)).homogeneous.degree == 2
    assert len(count) == 2 and json.loads(path.read_text())["degree"] == 2  # written anew


def test_short_searches_leave_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WIDEMARGIN_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "LONG", 1e9)
    first_step(Net(), torch.randn(10, 3))
    assert not list(tmp_path.iterdir()) and not capsys.readouterr().err
    monkeypatch.setenv("WIDEMARGIN_CACHE", "")
    monkeypatch.setattr(kept, "LONG", 0.0)
    first_step(Net(), torch.randn(10, 3))
    (tmp_path / "file").touch()
    monkeypatch.setenv("WIDEMARGIN_CACHE", str(tmp_path / "file"))  # no place for it
    assert first_step(Net(), torch.randn(10, 3)).homogeneous.degree == 2
