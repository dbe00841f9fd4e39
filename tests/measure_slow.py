"""Writes tests/slow.txt, the tests that `make check` leaves to `make test`: `make slow`, or on a part of the tests

    python -m pytest -p measure_slow tests/flows

A test is on the list if all its cases together take more than LIMIT seconds of processor time. That includes processes that it
starts and fixtures that it uses, also those that another test before it set up. It leaves the list when it takes less than half
of that, so that the list does not change from machine to machine. Tests that were not run stay as they are.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

LIMIT = 0.5  # seconds
KEPT = ("tests/test_house.py",)  # never listed: rules that a change breaks before anything else
LIST = Path(__file__).with_name("slow.txt")


def listed() -> dict[str, float]:
    """Seconds by test, `FILE::NAME` from the root of the repository on, without its cases."""
    return {name: float(seconds) for seconds, name in map(str.split, LIST.read_text(encoding="utf-8").splitlines())}


def name_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def chosen(before: dict[str, float], took: dict[str, float]) -> dict[str, float]:
    """The list after a measurement."""
    least = {name: LIMIT / 2 if name in before else LIMIT for name in took}
    slow = {name: seconds for name, seconds in (before | took).items() if seconds > least.get(name, 0.0)}
    return {name: seconds for name, seconds in slow.items() if not name.startswith(KEPT)}


def _spent() -> float:
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


own: Counter[str] = Counter()  # seconds of calls and of fixtures that each case has of its own
shared: Counter[Any] = Counter()  # seconds of fixtures that tests share
uses: defaultdict[str, set[Any]] = defaultdict(set)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    began = _spent()
    try:
        return (yield)
    finally:
        if fixturedef.scope == "function":
            own[name_of(request.node)] += _spent() - began
        else:
            shared[fixturedef] = max(shared[fixturedef], _spent() - began)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    began = _spent()
    try:
        return (yield)
    finally:
        own[name_of(item)] += _spent() - began
        uses[name_of(item)] |= {each[-1] for each in item._fixtureinfo.name2fixturedefs.values()}  # type: ignore[attr-defined]


def pytest_sessionfinish() -> None:
    took = {name: seconds + sum(shared[one] for one in uses[name]) for name, seconds in own.items()}
    slow = chosen(listed(), took)
    LIST.write_text("".join(f"{slow[name]:.1f} {name}\n" for name in sorted(slow)), encoding="utf-8")
