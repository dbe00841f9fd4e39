"""The order of the rooms, and what importing the package costs."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import measure_slow
import widemargin
from checks import files_entered, noise

ORDER = [
    {"errors", "json_values"},
    {"disk", "forms"},
    {"verify", "kernels", "kinds", "extras", "notebooks", "references"},
    {"spaces", "needs_torch"},
    {"saved", "dataset"},
    {"types"},
    {"data", "plots"},
    {"pricing"},
    {"margins"},
    {"optima"},
    {"flows"},
    {"theory", "monitor"},
    {"papers"},
    {"sweep"},
    {"report"},
    {"play"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
SRC = Path(widemargin.__file__).parent
FILES = sorted(set(SRC.rglob("*.py")) - {SRC / "_version.py"})  # which a build writes
MODULES = ["widemargin", *sorted(module.name for module in pkgutil.walk_packages([str(SRC)], "widemargin."))]


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@functools.cache
def imports(file: Path) -> list[tuple[int, str]]:
    """(number of leading dots, full name) of everything a file imports, inside functions too."""
    found = []
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.level, f"{node.module or ''}.{alias.name}") for alias in node.names]
    return found


@pytest.mark.parametrize("file", [f for f in FILES if f != SRC / "__init__.py"], ids=lambda f: str(f.relative_to(SRC)))
def test_a_room_imports_only_earlier_rooms(file: Path):
    parts = file.relative_to(SRC).parts
    room = parts[0].removesuffix(".py")
    assert room in LEVEL, f"{room} is a new room: give it a place in ORDER"
    for level, name in imports(file):
        if level:
            assert level < len(parts), f"{file.name} leaves its room by a relative import of {name}"
        elif name in ("widemargin", "widemargin.__version__"):
            assert LEVEL[room] >= LEVEL["papers"], f"{room} imports the front door"
        elif name.startswith("widemargin."):
            other = name.split(".")[1]
            assert other in LEVEL, f"{room} imports {name} from the front door, not from its room"
            assert other == room or LEVEL[other] < LEVEL[room], f"{room} imports {other}"


def files_used(file: Path) -> set[Path]:
    """The files of its own room that a file imports; `from . import x` and `from .x import y` are both x, if it is a file."""
    parts = file.relative_to(SRC).parts
    used = set()
    for level, name in imports(file):
        steps = name.strip(".").split(".")
        where = SRC.joinpath(*parts[:-level]) if level else SRC
        if not level and steps[:2] != ["widemargin", parts[0]]:
            continue
        steps = steps if level else steps[1:]
        for end in range(len(steps), -1, -1):
            there = where.joinpath(*steps[:end])
            found = next((f for f in (there.with_suffix(".py"), there / "__init__.py") if end and f.exists()), None)
            if found or not end:
                used.add(found or where / "__init__.py")
                break
    return used - {file}


@pytest.mark.parametrize("room", sorted(p.name for p in SRC.iterdir() if (p / "__init__.py").exists()))
def test_no_cycle_of_imports_inside_a_room(room: str):
    """Imports for type checkers and inside functions count: a file can be read after those it imports.

    A folder inside a room opens with its __init__, which is read before any of its files: whoever imports such a file from
    outside the folder imports all that the __init__ does.
    """
    graph = {file: files_used(file) for file in (SRC / room).rglob("*.py")}
    for file, uses in graph.items():
        for other in list(uses):
            opened = other.parent / "__init__.py"
            if other.parent not in (SRC / room, *file.parents):
                uses.add(opened)
    while leaves := {file for file, uses in graph.items() if not uses}:
        graph = {file: uses - leaves for file, uses in graph.items() if file not in leaves}
    assert not graph, (
        f"files that import each other, or build on such: {sorted(str(f.relative_to(SRC)) for f in graph)}"
    )


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SRC)))
def test_no_room_uses_a_private_name_of_another(file: Path):
    """Neither by an import nor as an attribute of what was imported."""
    room, tree, theirs = file.relative_to(SRC).parts[0].removesuffix(".py"), parsed(file), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            named = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            named = {alias.asname: alias.name for alias in node.names if alias.asname}
            assert all(alias.asname or not private(alias.name.split(".")[-1]) for alias in node.names), ast.unparse(
                node
            )
        else:
            continue
        for here, name in named.items():
            parts = name.split(".")
            if parts[0] == "widemargin" and parts[1:2] != [room]:
                assert not any(private(part) for part in parts), f"{file.name} imports {name}"
                theirs.add(here)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in theirs:
            assert not private(node.attr), f"{file.name}, line {node.lineno}: {ast.unparse(node)}"


def test_files_are_short_enough_to_be_read():
    long = [str(file.relative_to(SRC)) for file in FILES if len(file.read_text().splitlines()) > 700]
    assert not long, f"more than 700 lines: {long}"


MOST_PARAMETERS = 10
DOORS = {  # what users call, with everything by name
    "flows/training.py": {"train"},
    # Triton's compiler takes pointers, sizes and blocks one by one, and no objects
    "flows/_kernels.py": {"_kernels.forward", "_kernels.backward"},
    "margins/batchnorm_networks.py": {"batchnorm"},
    "margins/neural_collapse.py": {"collapse"},
    "margins/tangent_kernels.py": {"ntk"},
    "monitor/monitor.py": {"MarginMonitor.__init__"},
    "optima/paths.py": {"path"},
    "optima/trained_networks.py": {"gap"},
    "optima/wide_networks.py": {"f1"},
    # theorems take the quantities that they are about
    "theory/generalization.py": {"regression_bound", "projected_distance_bound"},
    "theory/lazy.py": {"comparator_alignment", "sgd_test_error", "margin_after_moving"},
    "theory/mirror.py": {"late_margin", "margin_of_product_net", "margin_of_normalized_net"},
    "theory/selection.py": {"collapse_margin", "scalar_margin"},
}


def parameters(node: ast.AST, inside: str = "", method: bool = False) -> dict[str, int]:
    """How many parameters each function of a file has, `self` and the like not counted."""
    counts = {}
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.ClassDef):
            counts |= parameters(part, f"{inside}{part.name}.", True)
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            given, decorators = part.args, {ast.unparse(one) for one in part.decorator_list}
            names = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            counts[inside + part.name] = len(names) - (method and "staticmethod" not in decorators)
            counts |= parameters(part, f"{inside}{part.name}.")
        else:
            counts |= parameters(part, inside, method)
    return counts


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SRC)))
def test_no_function_but_a_door_has_more_than_ten_parameters(file: Path):
    name = str(file.relative_to(SRC))
    long = {one for one, count in parameters(parsed(file)).items() if count > MOST_PARAMETERS}
    assert long <= DOORS.get(name, set())
    assert DOORS.get(name, set()) <= long, "no longer an exception: take it from the list"


def test_the_lists_of_doors_name_files_that_there_are():
    assert {*DOORS} <= {str(file.relative_to(SRC)) for file in FILES}
    code = "class A:\n    def f(self, a, *, b): ...\n    @staticmethod\n    def g(a): ...\ndef h(a, b, /, c): ..."
    assert parameters(ast.parse(code)) == {"A.f": 2, "A.g": 1, "h": 3}


def test_the_list_of_slow_tests(request: pytest.FixtureRequest):
    """It names tests that there are, and they are marked; those that stay in `make check` are not on it."""
    slow = measure_slow.listed()
    lines = measure_slow.LIST.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(slow) > 0 and [*slow] == sorted(slow), "write it with `make slow`"
    root, tests = Path(__file__).parents[1], {}
    for name in slow:
        file, _, test = name.partition("::")
        if file not in tests:
            tests[file] = {
                n.name for n in ast.walk(ast.parse((root / file).read_text())) if isinstance(n, ast.FunctionDef)
            }
        assert test.rpartition("::")[2] in tests[file], f"{name} is gone: take it from {measure_slow.LIST.name}"
    for item in request.session.items:
        if measure_slow.name_of(item) in slow:
            assert item.get_closest_marker("slow") is not None


def test_what_a_measurement_changes_in_the_list_of_slow_tests():
    before = {"a": 2.0, "b": 2.0, "gone fast": 2.0, "not run": 0.6}
    took = {"a": 3.0, "b": 0.3, "gone fast": 0.2, "new": 0.6, "fast": 0.4, f"{measure_slow.KEPT[0]}::this": 9.0}
    assert measure_slow.chosen(before, took) == {"a": 3.0, "b": 0.3, "not run": 0.6, "new": 0.6}


def test_test_files_have_names_of_their_own():
    """Two of one name in different folders cannot be collected in one run."""
    names = [file.name for file in Path(__file__).parent.rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def test_one_engine():
    """What all solvers of wide networks need exists once, and what is left to each of them is short."""
    solvers, once = {}, {"run", "closed", "late", "left", "offer_centre", "tell", "take_dual", "certificate"}
    for file in (SRC / "margins").glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == "Solver":
                assert node.end_lineno is not None
                solvers[file.stem] = node.end_lineno - node.lineno + 1
                own = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                allowed = {"run"} if file.stem == "interpolation" else set()  # it may end before it begins
                assert not (own & once) - allowed, f"{file.name} has its own {own & once}"
    assert set(solvers) == {"wide_networks", "interpolation", "multiclass", "squared"} and sum(solvers.values()) < 900


@pytest.mark.parametrize(("n", "d", "most"), [(20, 2, 12), (12, 4, 14)], ids=["a list", "a tree"])
def test_how_many_files_a_call_of_f1_enters(n: int, d: int, most: int):
    """All signs of twelve points are tried with linear bounds alone: no further way to a bound comes in on a slow machine."""
    data, found = noise(n, d, seed=0), []
    entered = files_entered(lambda: found.append(widemargin.margins.f1(data, time_limit=None)))
    (certificate,) = found
    assert certificate.status == "certified" and certificate.bound == ("enumeration" if d == 2 else "tree")
    assert {"margins/wide_networks.py", "margins/engine.py", "pricing/points.py"} <= entered
    assert len(entered) <= most, sorted(entered)


def test_the_verifier_trusts_only_the_standard_library_and_numpy():
    for file in (SRC / "verify").glob("*.py"):
        for level, name in imports(file):
            top = name.split(".")[0]
            assert level == 1 or (level == 0 and (top == "numpy" or top in sys.stdlib_module_names)), name


def test_the_checker_needs_neither_torch_nor_scipy():
    code = "import sys, widemargin.verify; print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'scipy', 'sklearn'}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_exists_once(name: str):
    if name.endswith("__main__"):
        return
    module = importlib.import_module(name)
    public = getattr(module, "__all__", [])
    assert len(set(public)) == len(public)
    for item in public:
        assert hasattr(module, item), f"{name}.__all__ promises {item}"


def test_the_front_door():
    assert {"Certificate", "Dataset", "InputError", "Measure", "data", "margins", "spaces", "verify"} <= set(
        widemargin.__all__
    )
    assert {"f1", "f2", "frozen", "linear"} <= set(widemargin.margins.__all__)
    assert widemargin.__version__.count(".") == 2


def test_no_function_hides_a_file():
    """`from .f1 import f1` would put a function where the file `f1` is looked for."""
    hidden = set()
    for name in MODULES[1:]:
        importlib.import_module(name)
    for name in MODULES[1:]:
        folder, _, file = name.rpartition(".")
        if not isinstance(getattr(sys.modules[folder], file, None), ModuleType):
            hidden.add(name)
    assert not hidden, f"not reached as modules: {sorted(hidden)}"


def test_no_file_without_a_clear_job():
    for path in SRC.rglob("*"):
        assert path.stem.strip("_") not in {"utils", "util", "helpers", "misc", "common", "manager"}, path


def test_import_leaves_drawing_and_learning_libraries_alone():
    code = "import sys, widemargin; print([m for m in ('matplotlib', 'sklearn', 'pandas', 'rich') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]" and not run.stderr


def test_the_package_imports_without_the_solvers_it_does_not_always_need():
    """On a machine with numpy, scipy and torch alone: the LP and cone solvers are imported where they are used."""
    code = "import sys; sys.modules['clarabel'] = sys.modules['highspy'] = None; import widemargin; print('ok')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "ok\n", result.stderr


def names_in(file: Path) -> set[str]:
    """Everything that a file calls by name, imported or as an attribute, and its words."""
    seen: set[str] = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Name):
            seen.add(node.id)
        elif isinstance(node, ast.Attribute):
            seen.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            seen |= {alias.name for alias in node.names} | set((node.module or "").split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            seen.add(node.value)
    return seen


@pytest.mark.parametrize("name", ["training", "_graph", "plan", "own_parts", "contract", "problem", "events"])
def test_the_training_loop_knows_no_rule_by_name(name: str):
    """Neither a class of rules/ nor a word of `make_rule`: a rule of one's own is worth as much as one of the package."""
    flows = importlib.import_module("widemargin.flows")
    rules = importlib.import_module("widemargin.flows.rules")
    classes = {
        one.__name__ for one in vars(rules).values() if isinstance(one, type) and issubclass(one, flows.Rule)
    } - {"Rule"}
    assert len(classes) > 15
    there = names_in(SRC / "flows" / f"{name}.py")
    assert not there & (classes | (set(flows.rule_kinds()) - {"cb"}) | {"rules"})  # cb is also a clock


@pytest.mark.slow
def test_names_that_say_nothing_are_rare():
    """`found` and `one` for whatever a line has in hand were used 3,000 times; a few short ones are no trouble."""
    uses = dict.fromkeys(("found", "one"), 0)
    for file in FILES:
        for node in ast.walk(parsed(file)):
            name = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "attr", None)
            if name in uses:
                uses[name] += 1
    assert max(uses.values()) < 100, f"{uses}: call things what they are"
