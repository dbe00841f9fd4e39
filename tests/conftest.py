"""Puts this folder on the path, so that tests in any subfolder can import `checks`.

Marks the tests of slow.txt as slow, and skips `gpu` tests without a GPU.
"""

import contextlib
import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator

import hypothesis  # noqa: F401 it looks for references when it is imported, which it would not find below
import pytest
import torch

from measure_slow import listed, name_of
from widemargin.cli import sweep

# Thousands of tests and syntax trees live to the end: looking through them again and again takes seconds. On again below.
gc.disable()

os.environ["WIDEMARGIN_CACHE"] = ""  # no test hangs on what another has kept, in this process or in one that it starts
os.environ["COLUMNS"] = "150"  # as in docs/shown.py; a process of pytest-xdist would have 80

sweep.GRACE = (
    300.0  # no query, on however busy a machine, ends the process that tests are in; those that they start have the own
)

# A job in the background (`make test &`) is started with Ctrl-C ignored, one of nohup or of a service with SIGHUP, and so would
# be all that tests start: they would wait for ever.
USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
for number, usual in USUAL.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(number, usual)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch on one thread: for small tensors more are slower, by far where other programs run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before those that -m leaves out are taken away
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow, weight = listed(), Counter[str]()
    for item in items:
        if name_of(item) in slow:
            item.add_marker(pytest.mark.slow)
    if hasattr(
        config, "workerinput"
    ):  # of two processes none should begin with the longest file when the other is done
        for name, seconds in slow.items():
            weight[name.partition("::")[0]] += seconds
        items.sort(key=lambda item: -weight[item.nodeid.partition("::")[0]])
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
