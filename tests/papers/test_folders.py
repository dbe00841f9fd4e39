"""A folder per paper, a file per figure or table, each beginning with the sentence of the paper that it tests."""

import importlib
import pkgutil
import re
import sys
from types import ModuleType

import numpy as np
import pytest

from widemargin import InputError, papers
from widemargin.papers import REPRODUCTIONS


def module_of(id: str) -> ModuleType:
    return sys.modules[REPRODUCTIONS[id].function.__module__]


@pytest.mark.parametrize("id", REPRODUCTIONS)
def test_a_file_begins_with_the_sentence_that_it_tests(id: str):
    """The paper, the place, and the sentence between quotation marks."""
    module, paper = module_of(id), REPRODUCTIONS[id].paper
    assert module.__name__.startswith(f"widemargin.papers.{paper.lower()}.")
    first = " ".join((module.__doc__ or "").split("\n\n")[0].split())
    assert re.fullmatch(rf'{paper}, [^"]+: "[^"]{{20,}}"\.', first), first


@pytest.mark.parametrize("id", REPRODUCTIONS)
def test_the_sizes_of_a_figure_are_in_its_file_for_both_scales(id: str):
    sizes = module_of(id).SIZES
    assert set(sizes) == {"quick", "paper"} and set(sizes["quick"]) == set(sizes["paper"])


def test_one_file_has_one_figure():
    files = [module_of(id) for id in REPRODUCTIONS if id != "mt-table1-100"]  # Table 1 has two columns
    assert len(files) == len(set(files))


@pytest.mark.parametrize("folder", ["bn", "cb", "lr", "mt", "uh"])
def test_every_figure_of_a_folder_is_registered_by_importing_it(folder: str):
    package = importlib.import_module(f"widemargin.papers.{folder}")
    figures = {module_of(id).__name__ for id, one in REPRODUCTIONS.items() if one.paper == folder.upper()}
    assert figures == {f"{package.__name__}.{name}" for name in package.__all__}


def test_no_module_is_hidden_by_something_of_its_name():
    for package in (papers, papers.bn, papers.cb, papers.lr, papers.mt, papers.uh):
        for one in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{one.name}")
            assert isinstance(getattr(package, one.name), ModuleType), f"{package.__name__}.{one.name}"


@pytest.mark.parametrize(
    ("ask", "values"),
    [
        (papers.find, [3, None, "cb-2d", [3], [np.ones(3)], np.array(5)]),
        (lambda value: papers.run(value, "out"), [3, None, "cb-2d"]),
        (lambda value: papers.run(papers.find(["cb-2d"])[0], value), [3, None, []]),
        (lambda value: papers.run(papers.find(["cb-2d"])[0], "out", scale=value), [3, None, []]),
        (papers.count, [3, None, ["x"], [{}], np.array(5)]),
        (lambda value: papers.Verdict("a", 1, "1", value), [3, None, [], np.ones(3), "yes"]),
    ],
)
def test_arguments_of_another_type_are_one_sentence(ask, values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in values:
        with pytest.raises(InputError):
            ask(value)
    assert not list(tmp_path.iterdir())
