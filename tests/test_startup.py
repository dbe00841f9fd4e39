"""The front door opens at once: what is slow to import is imported when it is used, and what is missing is named in one sentence.

Everything runs in fresh processes, since torch is long imported in this one.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import widemargin
from widemargin import extras, margins
from widemargin.data import load_file
from widemargin.sweep import Run, Store
from widemargin.theory import _rooms

XOR = "x0,x1,y\n1,1,1\n-1,-1,1\n1,-1,-1\n-1,1,-1\n"
SLOW = ("torch", "scipy", "sklearn", "matplotlib", "plotly", "pandas", "pyarrow", "joblib", "ray", "dask")
ROOMS = {name for name in widemargin.__all__ if name.islower()}

# Run commands in one process; after each, one line with its status and what it imported.
LOOK = """
import json, sys
slow = json.loads(sys.argv[1])
import widemargin
seen = [["import", 0, [name for name in slow if name in sys.modules]]]
from widemargin import cli
for argv in json.loads(sys.argv[2]):
    try:
        status = cli.main(argv)
    except SystemExit as end:
        status = end.code or 0
    seen.append([argv[0], status, [name for name in slow if name in sys.modules]])
print(json.dumps(seen), file=sys.stderr)
"""

# As if nothing of the extra `train` were installed.
BARE = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nothing())
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def without_train(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(BARE.format(missing=sorted(extras.EXTRA)) + code, *arguments)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What must start at once, on a certificate, data and a store."""
    folder = tmp_path_factory.mktemp("startup")
    data, saved, store = folder / "xor.csv", folder / "cert.json", folder / "store"
    data.write_text(XOR)
    margins.f1(load_file(data)).save(saved)
    kept = Store(store)
    kept.add("sweep", "mine:f", "1", 0, [Run("a", {"x": 2}, 0)], [{"y": 5.0}], 1.0)
    kept.close()
    return [
        ["--help"],
        ["verify", "--help"],
        ["theorems"],
        ["theorems", "--json"],
        ["query", str(store), "select x, y from runs"],
        ["query", str(store), "select x, y from runs", "--csv"],
        ["verify", str(saved), str(data)],
        ["verify", str(saved), str(data), "--json"],
        ["play", "--out", str(folder / "page.html")],
    ]


def test_commands_that_need_no_torch_do_not_import_it(commands: list[list[str]]):
    run = python(LOOK, json.dumps(SLOW), json.dumps(commands))
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stderr.splitlines()[-1])
    assert [status for _, status, _ in seen] == [0] * (len(commands) + 1), run.stderr
    assert [name for name, _, _ in seen] == ["import", *(argv[0] for argv in commands)]
    assert {name: found for name, _, found in seen if found} == {}
    assert (
        "CB-22" in run.stdout and "x,y\n2,5.0\n" in run.stdout and "verified exactly" in run.stdout
    )  # they did their work


@pytest.mark.slow
def test_a_dry_run_of_trainings_imports_torch_and_nothing_else(tmp_path: Path):
    """It has two seconds, and torch alone takes more than one of them."""
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'function = "train"\n[fixed]\ndata = "parity:d=4,n=10"\nsteps = 5\nlr = 0.1\n[grid]\nwidth = [4, 8]\n',
        encoding="utf-8",
    )
    argv = ["sweep", str(plan), "--dry-run", "--store", str(tmp_path / "store")]
    run = python(LOOK, json.dumps(SLOW), json.dumps([argv]))
    assert json.loads(run.stderr.splitlines()[-1])[1:] == [["sweep", 0, ["torch"]]], run.stderr
    assert "2 runs, 0 of them stored already" in run.stdout


@pytest.mark.slow
def test_the_look_can_fail():
    """It sees torch where a command imports it."""
    run = python(LOOK, json.dumps(SLOW), json.dumps([["margin", "clusters:n=8,d=2,k=2,seed=0", "--kind", "linear"]]))
    assert "torch" in json.loads(run.stderr.splitlines()[-1])[1][2]


@pytest.mark.slow
def test_every_public_name_is_there_and_shown():
    code = """
import sys, widemargin
assert "widemargin.types" not in sys.modules and "numpy" not in sys.modules
missing = set(widemargin.__all__) - set(dir(widemargin))
assert not missing, missing
assert not hasattr(widemargin, "nonsense")
for name in widemargin.__all__:
    assert getattr(widemargin, name).__name__ in (name, f"widemargin.{name}"), name
names = {}
exec("from widemargin import *", names)
assert set(widemargin.__all__) <= set(names)
assert callable(widemargin.margins.f1) and callable(widemargin.optima.path) and callable(widemargin.sweep.sweep)
"""
    run = python(code)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("room", ["play", "plots", "sweep", "spaces", "theory", "data", "verify"])
def test_rooms_that_open_without_torch(room: str):
    run = without_train(f"import widemargin; widemargin.{room}; import widemargin.{room}")
    assert run.returncode == 0, run.stderr


def test_every_room_is_one_or_the_other():
    """A room that is added is looked at by a test above or below."""
    light, heavy = {"play", "plots", "sweep", "spaces", "theory", "data", "verify"}, {*HEAVY}
    assert light | heavy == ROOMS and not light & heavy


HEAVY = ("margins", "optima", "flows", "monitor", "papers", "report")
SENTENCE = "this needs the package torch, which is not installed; run pip install 'widemargin[train]'"


def test_rooms_that_need_torch_say_so_in_one_sentence():
    """By the front door and by their own names; as bad input, and as an ImportError for those who try."""
    code = """
import sys, widemargin
for room in sys.argv[1:]:
    for line in (f"widemargin.{room}", f"from widemargin import {room}", f"import widemargin.{room}"):
        try:
            exec(line)
        except widemargin.InputError as error:
            assert isinstance(error, ImportError) and error.name == "torch"
            print(error)
        else:
            raise SystemExit(line)
"""
    run = without_train(code, *HEAVY)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [SENTENCE] * (3 * len(HEAVY))


def test_what_runs_without_torch(commands: list[list[str]], tmp_path: Path):
    """Verify, query, theorems and data; and the others end with one sentence and the status of bad input."""
    refused = [
        ["margin", "parity:d=4,n=8"],
        ["bound", "parity:d=4,n=8"],
        ["reproduce", "list"],
        ["watch", str(tmp_path)],
    ]
    refused += [["fit", "parity:d=4,n=8", "--weight-decay", "1"], ["report", str(tmp_path)], ["demo"]]
    out = str(tmp_path / "parity.csv")
    asked = [*commands, ["data", "parity:d=4,n=8", "--out", out], *refused]
    code = f"import os\nos.chdir({str(tmp_path)!r})\n" + LOOK
    run = without_train(code, "[]", json.dumps(asked))
    assert run.returncode == 0, run.stderr
    lines = run.stderr.splitlines()
    seen = json.loads(lines[-1])
    assert [status for _, status, _ in seen] == [0] * (len(commands) + 2) + [2] * len(refused), run.stderr
    assert load_file(out).n == 8
    assert lines.count(f"widemargin: {SENTENCE}") == len(refused), run.stderr
    assert "Traceback" not in run.stderr


def test_other_packages_of_the_extra_are_named_too(tmp_path: Path):
    code = "import os\nos.chdir(sys.argv.pop())\n" + LOOK
    run = without_train(code, "[]", json.dumps([["data", "digits", "--out", "d.csv"]]), str(tmp_path))
    assert "the package scikit-learn, which is not installed" in run.stderr and "Traceback" not in run.stderr
    assert extras.sentence("nonsense") is None and extras.sentence(None) is None


def test_theorems_are_evaluated_without_torch():
    """On numbers; what looks at data and networks needs torch, and says so."""
    code = """
from widemargin import InputError, data, theory
from widemargin.theory.generalization import pac_bayes_margin_bound
print(float(pac_bayes_margin_bound(0.5, 1000).value))
try:
    theory.guarantees(data.parity(d=4, n=8))
except InputError as error:
    print(error)
"""
    run = without_train(code)
    assert run.returncode == 0, run.stderr
    value, said = run.stdout.splitlines()
    assert 0 < float(value) < 1 and said == SENTENCE


def test_later_is_the_module_itself_once_it_is_used(monkeypatch: pytest.MonkeyPatch):
    later = extras.Later("fractions")
    assert "fractions" in repr(later)
    import fractions

    assert later.Fraction is fractions.Fraction
    monkeypatch.setattr(fractions, "Fraction", int)
    assert later.Fraction is int
    with pytest.raises(AttributeError):
        _ = later.nonsense
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught:
        _ = extras.Later("no_such_module").anything
    assert not isinstance(caught.value, widemargin.InputError)  # nothing that an extra would bring


def test_the_extra_brings_what_the_sentences_promise():
    """pyproject.toml: torch is in `train`, not in the core; every other extra brings `train` along."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

    def names(lines: list[str]) -> set[str]:
        return {line.split(">")[0].strip() for line in lines}

    extra = project["optional-dependencies"]
    assert names(project["dependencies"]) == {"numpy", "scipy", "rich"}
    assert set(extras.EXTRA.values()) - {"contourpy"} == names(extra["train"])  # contourpy comes with matplotlib
    for name, lines in extra.items():
        assert name == "train" or "widemargin[train]" in lines, name


def for_type_checkers(module: ModuleType) -> dict[str, str]:
    """What a file imports under `if TYPE_CHECKING:`, and from where."""
    assert module.__file__
    (block,) = (node for node in ast.parse(Path(module.__file__).read_text()).body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    found = {}
    for node in block.body:
        assert isinstance(node, ast.Import | ast.ImportFrom)
        if isinstance(node, ast.ImportFrom) and node.module == "typing":  # annotations of the file's own functions
            continue
        prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        found |= {alias.asname or alias.name: prefix + alias.name for alias in node.names}
    return found


def test_type_checkers_see_the_names_that_there_are():
    assert sorted(for_type_checkers(widemargin)) == sorted(widemargin.__all__)
    for name, place in for_type_checkers(widemargin).items():
        assert place == (f"widemargin.{name}" if name in ROOMS else f"widemargin.types.{name}")
    later = {name: one._name for name, one in vars(_rooms).items() if isinstance(one, extras.Later)}
    assert later == for_type_checkers(_rooms) and len(later) > 5
