"""benchmarks/load.py, scaled down: many writers of one store, and a monitor of many steps a second."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PATH = Path(__file__).parents[2] / "benchmarks" / "load.py"


@pytest.fixture(scope="module")
def load():
    spec = importlib.util.spec_from_file_location("load", PATH)
    module = sys.modules["load"] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(PATH.parent))  # the processes that it starts import it too
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(PATH.parent))


def test_four_writers_of_one_store(load, tmp_path):
    found = load.fill_store(tmp_path / "s", runs=6_000, writers=4)
    assert found["runs"] == 6_000 and found["queries_meanwhile"] > 0  # the script itself looks for every row


@pytest.mark.long
def test_a_monitor_of_many_steps(load, tmp_path):
    found = load.fill_records(tmp_path / "m", rate=1000.0, seconds=4.0)
    assert found["records"] > 0 and found["lost"] == 0


def test_memory_does_not_grow_with_the_records(tmp_path):
    """What is in records.parquet is held in memory by nobody."""
    import pyarrow as pa
    from test_crashes import CONFIG, record

    from widemargin.monitor import store

    one = store.Store(tmp_path, CONFIG)
    base = store.row(record(7))
    held = []
    for k in range(6):
        one.fresh += [base | {"step": 10_000 * k + j} for j in range(10_000)]
        one.write(everything=True)
        held.append(pa.total_allocated_bytes())
    one.close()
    assert store.load(tmp_path)["step"].to_pylist() == list(range(60_000))
    assert held[-1] <= held[0] + 100_000, held
